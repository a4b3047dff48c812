"""Ports whose peers map the router's packet memory: virtio-user, here beside vhost-user of another router."""

from lib.kernel import pings
from lib.netns import veth, wait_for

HEAD = 'local turnpike = require "turnpike"; turnpike.memory { mbufs = 16384 }\n'
FAR = 'turnpike.port "v" {{ device = "net_virtio_user0,path={0},mac=02:00:00:00:02:02", address = "10.0.2.2/24" }}\n'


def near(path):
    """The router in the middle: a host, and vhost-user at a socket."""
    return HEAD + f"""
turnpike.port "lan" {{ device = "eth0", address = "10.0.1.1/24" }}
turnpike.port "v" {{ device = "net_vhost0,iface={path}", address = "10.0.2.1/24" }}
"""


def test_packets_between_routers_by_memory_that_one_lends_to_the_other(lab, tmp_path):
    space, host, far = (lab.namespace(role) for role in ("router", "host", "far"))
    veth(space, "eth0", host, "eth0")
    host.run("ip", "address", "add", "10.0.1.2/24", "dev", "eth0")
    host.run("ip", "route", "add", "default", "via", "10.0.1.1")
    path = tmp_path / "v.sock"
    first = lab.router(space, near(path))
    # Without hugepages, which would be shared in any case.
    second = lab.router(far, HEAD + FAR.format(path) + 'turnpike.route "0.0.0.0/0" { via = "10.0.2.1" }\n')
    assert "transparent huge pages" not in second.log(), second.log()
    assert wait_for(lambda: pings(host, "10.0.2.2", 1, 1), 30), (first.log(), second.log())
    assert pings(host, "10.0.2.2", 20, 10, 1400)
    second.stop()
    first.stop()


def test_a_lender_that_comes_later_is_refused_where_the_memory_is_the_process_s_own(lab, tmp_path):
    space = lab.namespace("router")
    veth(space, "eth0", lab.namespace("host"), "eth0")
    lan = 'turnpike.port "lan" { device = "eth0", address = "10.0.1.1/24" }\n'
    router = lab.router(space, HEAD + lan)
    private = "transparent huge pages" in router.log()
    file = router.directory / "later.lua"
    file.write_text(HEAD + lan + FAR.format(tmp_path / "v.sock"))
    done = router.command("apply", file, check=False)
    if private:
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode != 0 and "net_virtio_user0 shares the packet memory" in said and "restart it" in said, said
    assert [port["name"] for port in router.show("ports")] == (["lan"] if private else ["lan", "v"])
    router.stop()
