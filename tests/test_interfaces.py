"""Kernel interfaces whose settings are changed while they are ports: MTU, MAC address, the interface itself."""

import re

import pytest

from lib.apply import apply, plan, write
from lib.lab import DRIVERS, HOST_B_MAC, PORTS, RIGHT_MAC, Hosts, ports_by
from lib.netns import veth, wait_for

OTHER_MAC = "02:00:00:00:02:99"

# Behind an IPv4 header and an ICMP header, 1,400 bytes on the wire.
PING_1400 = ["-n", "-c", 1, "-W", 2, "-s", 1372]


def port(router, name="right"):
    """The port's entry in `show ports`."""
    (found,) = [port for port in router.show("ports") if port["name"] == name]
    return found


def answered(host, *words):
    return host.run("ping", *words, check=False).returncode == 0


def soon(host, address):
    """Returns true if the address answers within some time."""
    return wait_for(lambda: answered(host, "-c", 1, "-W", 1, address), 20)


def set_mtu(hosts, mtu):
    """Sets another MTU on the right port's interface and the other end."""
    hosts.right.run("ip", "link", "set", "eth0", "mtu", mtu)
    hosts.inside.run("ip", "link", "set", "tp-right", "mtu", mtu)


def forget_path_mtus(hosts):
    for family in ("-4", "-6"):
        hosts.left.run("ip", family, "route", "flush", "cache")


def too_long(router):
    return router.counters()["dropped"]["tx-too-long"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_lowered_mtu_is_obeyed_and_a_raised_one_as_far_as_the_port_was_opened_for(lab, driver):
    hosts = Hosts(lab, ports=ports_by(driver))
    left, router = hosts.left, hosts.router
    assert soon(left, "10.0.2.2") and soon(left, "fd00:2::2")
    for turn in range(3):
        set_mtu(hosts, 1300)
        assert wait_for(lambda: port(router)["mtu"] == 1300)
        words = 'port "right": MTU 1300, was 1500: that of its device tp-right'
        assert router.log().count(words) == turn + 1, router.log()
        # RFC 1191 4, RFC 8201 4: the sender gets the link's MTU.
        said = left.run("ping", "-M", "do", *PING_1400, "10.0.2.2", check=False).stdout
        assert "mtu = 1300" in said or "mtu=1300" in said, said
        said = left.run("ping", "-M", "do", *PING_1400, "fd00:2::2", check=False).stdout
        assert re.search(r"mtu ?= ?1300", said), said
        forget_path_mtus(hosts)
        # RFC 791: packets that may be fragmented are.
        before = router.counters()
        assert answered(left, "-M", "dont", *PING_1400, "10.0.2.2")
        after = router.counters()
        assert after["originated"] > before["originated"], "it was not cut"
        assert after["dropped"]["tx-too-long"] == 0, after
        set_mtu(hosts, 1500)
        assert wait_for(lambda: port(router)["mtu"] == 1500)
        assert answered(left, "-M", "do", *PING_1400, "10.0.2.2")
        assert answered(left, "-M", "do", *PING_1400, "fd00:2::2")
    set_mtu(hosts, 1600)
    words = "its device tp-right has an MTU of 1600 now; the port keeps 1500"
    assert wait_for(lambda: words in router.log()), router.log()
    assert port(router)["mtu"] == 1500
    assert port(router)["tx_errors"] == 0
    router.counters()
    router.stop()


@pytest.mark.provokes("tx-too-long")
def test_the_host_interface_follows_and_what_is_longer_is_a_named_drop(lab):
    hosts = Hosts(lab, ports=PORTS.replace('"tp-right",', '"tp-right", host = true,'))
    inside, router = hosts.inside, hosts.router
    host_mtu = lambda: int(re.search(r" mtu (\d+) ", inside.run("ip", "link", "show", "right").stdout)[1])  # noqa: E731
    assert soon(inside, "10.0.2.2") and host_mtu() == 1500
    set_mtu(hosts, 1300)
    assert wait_for(lambda: host_mtu() == 1300 and port(router)["mtu"] == 1300)
    # The kernel segments its own packets to the MTU.
    assert answered(inside, *PING_1400, "10.0.2.2")
    assert too_long(router) == 0
    # A packet that is too long is sent by force.
    inside.run("ip", "link", "set", "right", "mtu", 1500)
    assert wait_for(lambda: not answered(inside, "-M", "do", *PING_1400, "10.0.2.2") and too_long(router) > 0)
    assert port(router)["mtu"] == 1300
    assert answered(inside, "-c", 1, "-W", 2, "-s", 1272, "10.0.2.2")
    # Packets that fit again are sent again.
    set_mtu(hosts, 1500)
    assert wait_for(lambda: port(router)["mtu"] == 1500)
    inside.run("ip", "route", "flush", "cache")
    assert answered(inside, "-M", "do", *PING_1400, "10.0.2.2")
    # If both are equal, the host interface's is raised as well.
    set_mtu(hosts, 1400)
    assert wait_for(lambda: host_mtu() == 1400)
    set_mtu(hosts, 1500)
    assert wait_for(lambda: host_mtu() == 1500)
    router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_what_the_kernel_does_not_send_is_an_error(lab, driver):
    hosts = Hosts(lab, ports=ports_by(driver))
    router = hosts.router
    assert soon(hosts.left, "10.0.2.2")
    assert port(router)["tx_errors"] == 0
    # The other end accepts less, and does not report it: the kernel drops longer packets.
    hosts.right.run("ip", "link", "set", "eth0", "mtu", 1000)
    hosts.left.run("ping", *PING_1400, "-c", 5, "-i", "0.1", "10.0.2.2", check=False)
    assert wait_for(lambda: port(router)["tx_errors"] >= 5), port(router)
    assert wait_for(lambda: 'port "right": tx_errors +' in router.log()), router.log()
    # Packets that are short enough pass, regardless of earlier ones.
    assert answered(hosts.left, "-c", 3, "-i", "0.1", "-W", 2, "10.0.2.2"), port(router)
    router.counters()
    router.stop()


@pytest.mark.parametrize("driver", DRIVERS)
def test_another_mac_address_is_the_router_s_from_now_on(lab, driver):
    hosts = Hosts(lab, ports=ports_by(driver))
    router = hosts.router
    for turn in range(3):
        mac, old = (OTHER_MAC, RIGHT_MAC)[:: 1 if turn % 2 == 0 else -1]
        assert soon(hosts.left, "10.0.2.2")
        hosts.inside.run("ip", "link", "set", "tp-right", "address", mac)
        words = f"its device tp-right has the MAC address {mac} now, had {old}"
        assert wait_for(lambda: words in router.log()), router.log()  # noqa: B023
        assert wait_for(lambda: (port(router)["link"], port(router)["mac"]) == ("up", mac), 20), router.log()  # noqa: B023
        assert soon(hosts.left, "10.0.2.2") and soon(hosts.right, "10.0.1.2")
        neighbour = hosts.right.run("ip", "neigh", "show", "10.0.2.1").stdout
        assert mac in neighbour, neighbour
    report, status = plan(router, ports_by(driver))
    assert status == 0 and report["changes"] == []
    router.counters()
    router.stop()


def new_mac(hosts, mac):
    hosts.inside.run("ip", "link", "set", "tp-right", "address", mac)


def new_device(hosts, mac):
    hosts.inside.run("ip", "link", "delete", "tp-right")
    veth(hosts.inside, "tp-right", hosts.right, "eth0", mac, HOST_B_MAC)
    hosts.right.run("ip", "address", "add", "10.0.2.2/24", "dev", "eth0")
    hosts.right.run("ip", "route", "replace", "default", "via", "10.0.2.1")


@pytest.mark.parametrize("change", [new_mac, new_device], ids=lambda change: change.__name__)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_port_whose_device_changes_during_an_apply_is_as_its_device(lab, driver, change):
    # In either order: the notification of the device, or the configuration that reopens it.
    hosts = Hosts(lab, ports=ports_by(driver))
    router = hosts.router
    for turn in range(6):
        assert soon(hosts.left, "10.0.2.2"), router.log()
        mac = (OTHER_MAC, RIGHT_MAC)[turn % 2]
        mtu = (1400, 1500)[turn % 2]
        text = ports_by(driver).replace('"tp-right",', f'"tp-right", mtu = {mtu},')
        change(hosts, mac)
        done = router.command("apply", write(router, text), check=False)
        assert done.returncode == 0 or "nothing was changed" in done.stderr or "port \"right\"" in done.stderr, done
        assert wait_for(lambda: (port(router)["link"], port(router)["mac"]) == ("up", mac), 30), router.log()  # noqa: B023
        if done.returncode != 0:
            # No trace of the attempt is left that would hinder the next.
            assert wait_for(lambda: router.command("apply", write(router, text), check=False).returncode == 0, 20)  # noqa: B023
        assert wait_for(lambda: port(router)["mtu"] == mtu, 10), port(router)  # noqa: B023
        assert (port(router)["link"], port(router)["mac"]) == ("up", mac)
    assert soon(hosts.left, "10.0.2.2") and soon(hosts.right, "10.0.1.2"), router.log()
    report, status = plan(router, text)
    assert status == 0 and report["changes"] == []
    router.counters()
    router.stop()
