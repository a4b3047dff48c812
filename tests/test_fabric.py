"""The fabric of examples/fabric: its tour, the loss of a router, and the Ansible role that configures all of them."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lib.fabric import EXAMPLE, Failed, Fabric, Stream, inventory, prefix, run, running, turnpike_fabric, wait_for
from lib.kernel import forwarder
from lib.router import binary

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = [pytest.mark.skipif(forwarder() != "turnpike", reason="it is an example of Turnpike"), pytest.mark.xdist_group("fabric")]

PLAYBOOK = shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture(scope="module")
def fabric():
    """Two leaves and two spines."""
    fabric = running(2, 2)
    yield fabric
    fabric.close()


def test_the_tour():
    name = prefix()
    done = subprocess.run(
        [EXAMPLE / "run.sh", "2", "1"],
        env={**os.environ, "TURNPIKE": binary(), "PYTHON": sys.executable, "PREFIX": name, "QUICK": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "All of it worked" in done.stdout
    for count in re.findall(r"64 flows .* were answered by (\{.*\})", done.stdout):
        assert sum(json.loads(count).values()) == 64 and "no answer" not in count, done.stdout
    assert name not in run("ip", "netns")
    assert not list(Path("/etc/frr").glob(f"{name}*")) and not list(Path("/var/run/frr").glob(f"{name}*"))


def test_a_killed_spine_takes_no_more_than_its_share_until_bfd_notices(fabric):
    stream = Stream(fabric, "host1", "host2", rate=500)
    time.sleep(1)
    spine = fabric.nodes["spine2"]
    spine.kill()
    assert wait_for(lambda: fabric.paths("leaf1", "10.2.0.2") == fabric.paths("leaf2", "10.1.0.2") == 1, 30)
    time.sleep(1)
    spine.start()
    fabric.converged()
    account = stream.stop()
    # Some flows, of both families, and not all: those of the other spine.
    assert 0 < account.flows_hit() < account.flows, vars(account)
    assert all(account.by_family()) and account.twice == 0, account.by_family()
    # The others lost nothing, and these nothing after the detection.
    assert account.lost[-1] < account.sent - account.rate, (account.lost[-1], account.sent)


def playbook(fabric, tmp_path, change=None, *options, play="site.yml"):
    """Runs a playbook with a changed inventory; returns it completed."""
    described = fabric.for_ansible()
    if change:
        change(described["all"]["children"], described["all"]["vars"])
    file = tmp_path / "inventory.yml"
    file.write_text(json.dumps(described))
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"), "HOME": str(tmp_path)}
    return subprocess.run(
        [PLAYBOOK, play, "-i", file, *options], cwd=EXAMPLE / "ansible", env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
    )


def changes(done):
    """The number of changed tasks of each router."""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +: ok=\d+ +changed=(\d+)", done.stdout, re.M)}


def settings(fabric):
    """What a play that fails must not have changed: the routers' configurations and those of FRR."""
    return {
        router.name: (router.show("status")["configuration"], router.vtysh("show running-config"))
        for router in fabric.routers()
    }


def test_the_role_changes_one_router_after_the_other_without_loss(fabric, tmp_path):
    def another_address(children, common):
        for number, variables in enumerate(children["leaves"]["hosts"].values(), 1):
            variables["fabric_loopbacks"] = [*variables["fabric_loopbacks"], f"10.254.0.{number}/32"]
        common["fabric_bgp"] = {"keepalive_s": 4, "hold_s": 12}

    before = settings(fabric)["spine2"]
    stream = Stream(fabric, "server1", "server2", rate=500)
    done = playbook(fabric, tmp_path, another_address, "--limit", "leaf1,spine1")
    assert done.returncode == 0, done.stdout
    assert set(changes(done)) == {"leaf1", "spine1"} and all(changes(done).values()), done.stdout
    assert done.stdout.index("changed: [spine1]") < done.stdout.index("changed: [leaf1]"), "not one after the other"
    assert wait_for(lambda: fabric.paths("leaf2", "10.254.0.1") == 2, 20)
    leaf = fabric.nodes["leaf1"]
    assert "fabric timers 4 12" in leaf.vtysh("show running-config")
    # The files are those that the tour makes of the same description.
    changed = fabric.for_ansible()["all"]
    another_address(changed["children"], changed["vars"])
    own = fabric.variables["leaf1"] | changed["vars"] | changed["children"]["leaves"]["hosts"]["leaf1"]
    files = {"turnpike.lua.j2": leaf.config, "frr.conf.j2": leaf.files[0] / "frr.conf"}
    for template, file in files.items():
        assert fabric.render(template, "leaf1", own) == file.read_text()
    # Nothing waits for its confirmation, and the same once more is no change.
    done = playbook(fabric, tmp_path, another_address, "--limit", "leaf1", "--skip-tags", "check")
    assert changes(done) == {"leaf1": 0}, done.stdout
    assert settings(fabric)["spine2"] == before
    assert stream.stop().lost == []


def test_a_router_that_fails_returns_and_the_others_are_untouched(fabric, tmp_path):
    before = settings(fabric)

    def another_number(children, common):
        children["spines"]["hosts"]["spine2"]["fabric_loopbacks"] += ["10.254.0.9/32"]
        for variables in children["spines"]["hosts"].values():
            variables["fabric_asn"] = 64999

    stream = Stream(fabric, "host1", "host2", rate=500)
    done = playbook(fabric, tmp_path, another_number, "--limit", "spine2,leaf2", "--skip-tags", "check")
    assert done.returncode != 0
    assert "spine2: Reload FRR: " in done.stdout and "BGP is already running; AS is 64512" in done.stdout, done.stdout
    after = settings(fabric)
    assert {name: conf for name, (_, conf) in after.items()} == {name: conf for name, (_, conf) in before.items()}
    assert "10.254.0.9" not in fabric.nodes["spine2"].config.read_text()
    assert "10.254.0.9" not in fabric.nodes["spine2"].command("show", "interfaces")
    assert after["leaf2"] == before["leaf2"]
    assert stream.stop().lost == []


@contextmanager
def restarts(fabric, directory):
    """Restarts routers at the request of a command, as systemd does; yields the command of a router, and the names of
    those that were restarted."""
    done, ended = [], threading.Event()

    def serve():
        while not ended.wait(0.05):
            for request in directory.glob("*.restart"):
                fabric.nodes[request.stem].restart()
                done.append(request.stem)
                request.unlink()

    def command(name):
        request = directory / f"{name}.restart"
        return ["sh", "-c", f"touch {request}; while [ -e {request} ]; do sleep 0.05; done"]

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield command, done
    finally:
        ended.set()
        server.join()


def test_an_upgrade_of_all_routers_loses_nothing(fabric, tmp_path):
    processes = {router.name: router.process.pid for router in fabric.routers()}
    stream = Stream(fabric, "server1", "server2", rate=500)
    with restarts(fabric, tmp_path) as (command, done):
        def commands(children, common):
            for group in ("spines", "leaves"):
                for name, variables in children[group]["hosts"].items():
                    variables["fabric_restart"] = command(name)

        play = playbook(fabric, tmp_path, commands, play="upgrade.yml")
    account = stream.stop()
    assert play.returncode == 0, play.stdout
    assert done == ["spine1", "spine2", "leaf1", "leaf2"], "not one after the other"
    assert all(router.process.pid != processes[router.name] for router in fabric.routers())
    assert account.lost == [] and account.twice == 0, vars(account)


def test_an_upgrade_ends_at_the_first_router_that_fails(fabric, tmp_path):
    def failing(children, common):
        children["spines"]["hosts"]["spine1"]["fabric_restart"] = ["false"]

    stream = Stream(fabric, "server1", "server2", rate=500)
    play = playbook(fabric, tmp_path, failing, play="upgrade.yml")
    assert play.returncode != 0 and "fatal: [spine1]" in play.stdout, play.stdout
    assert list(changes(play)) == ["spine1"]
    # It stays drained: the leaves have the other spine.
    assert fabric.paths("leaf1", "10.2.0.2") == 1
    fabric.nodes["spine1"].undrain()
    fabric.converged()
    assert stream.stop().lost == []


def test_frr_of_a_drained_router_restarts_without_loss(fabric):
    spine = fabric.nodes["spine1"]
    stream = Stream(fabric, "host1", "host2", rate=500)
    sessions = spine.sessions()
    spine.drain()
    spine.restart_daemon("bgpd")
    assert wait_for(lambda: spine.sessions() == sessions, 60)
    spine.undrain()
    fabric.converged()
    account = stream.stop()
    assert account.lost == [] and account.twice == 0, account.outage_ms()


def of_one_link(fabric, tmp_path):
    """The MTU of one end of a link is another's."""
    leaf = fabric.nodes["leaf1"].space
    leaf.ip("link", "set", "w-spine1", "mtu", 1400)
    try:
        return playbook(fabric, tmp_path, None, "--limit", "leaf1,spine1")
    finally:
        leaf.ip("link", "set", "w-spine1", "mtu", 1500)


def without_frr(fabric, tmp_path):
    """A router has no FRR."""
    def change(children, common):
        children["leaves"]["hosts"]["leaf2"]["fabric_vtysh"] = ["vtysh", "-N", "nowhere"]

    return playbook(fabric, tmp_path, change, "--limit", "leaf1,leaf2")


def with_a_mistake(fabric, tmp_path):
    """A router refuses its file."""
    def change(children, common):
        children["leaves"]["hosts"]["leaf2"]["fabric_settings"] = "turnpike.tx { burst = 99 }"

    return playbook(fabric, tmp_path, change, "--limit", "leaf1,leaf2")


@pytest.mark.parametrize("wrong, message", [
    (of_one_link, "link leaf1 - spine1: w-spine1 of leaf1 has MTU 1400, fabric_mtu is 1500"),
    (without_frr, "leaf2: FRR is missing or does not run: vtysh -N nowhere"),
    (with_a_mistake, "burst: expected a whole number from 1 to 64, got number 99"),
])
def test_mistakes_are_named_before_anything_is_changed(fabric, tmp_path, wrong, message):
    before = settings(fabric)
    done = wrong(fabric, tmp_path)
    assert done.returncode != 0 and message in done.stdout, done.stdout
    assert "Apply the files, one router at a time" not in done.stdout
    assert settings(fabric) == before


def mistakes(change):
    """The mistakes of a changed description of three leaves and two spines."""
    described = inventory(3, 2)["all"]
    hosts = {name: own for child in described["children"].values() for name, own in child["hosts"].items()}
    change(hosts, described["vars"]["fabric_links"])
    groups = {group: list(child["hosts"]) for group, child in described["children"].items()}
    return turnpike_fabric.fabric_problems({name: described["vars"] | own for name, own in hosts.items()}, groups)


def test_a_right_description_has_no_mistakes():
    assert mistakes(lambda hosts, links: None) == []


@pytest.mark.parametrize("change, message", [
    (lambda hosts, links: hosts["leaf2"].update(fabric_loopbacks=["10.255.0.101/32"]),
     "address 10.255.0.101 is that of leaf1 and of leaf2"),
    (lambda hosts, links: hosts["leaf2"]["fabric_networks"][0].update(addresses=["10.1.0.9/16"]),
     "networks 10.1.0.0/24 of leaf1 and 10.1.0.0/16 of leaf2 overlap"),
    (lambda hosts, links: hosts["leaf2"].update(fabric_anycast=["10.255.0.1/32"]), "address 10.255.0.1 is that of"),
    (lambda hosts, links: hosts["leaf2"].update(fabric_loopbacks=["10.255.0"]), "leaf2: 10.255.0 is no address"),
    (lambda hosts, links: hosts["leaf2"].update(fabric_loopbacks=["fd00::7/128"]), "leaf2: fabric_loopbacks: no IPv4 address"),
    (lambda hosts, links: hosts["leaf2"].update(fabric_asn="x"), "leaf2: fabric_asn: expected a number from 1 to"),
    (lambda hosts, links: hosts["leaf2"].update(fabric_asn=64601), "leaf2: fabric_asn 64601 is that of leaf1"),
    (lambda hosts, links: hosts["spine2"].update(fabric_asn=64513), "spines: fabric_asn differs: 64512, 64513"),
    (lambda hosts, links: [links.remove(link) for link in [*links] if "leaf3" in link and "server2" not in link],
     "leaf3: no link to a spine: add one to fabric_links; spines: spine1, spine2"),
    (lambda hosts, links: [links.remove(link) for link in [*links] if "server1" in link], "server1: no link to a leaf"),
    (lambda hosts, links: links.append({"leaf1": "w-x", "spine9": "w-y"}), "spine9 not found; known: spine1, spine2, leaf1"),
    (lambda hosts, links: links.append({"leaf1": "w-x", "spine1": "w-y"}), "link leaf1 - spine1: there are two"),
    (lambda hosts, links: links.append({"leaf1": "w-x"}), "a link has two ends"),
    (lambda hosts, links: links[0].update(leaf1="w-hosts"), "leaf1: device w-hosts is that of port"),
    (lambda hosts, links: links[0].update(leaf1="spine1"), "leaf1: port spine1 and its device have one name"),
    (lambda hosts, links: hosts["leaf1"]["fabric_networks"][0].update(name="lo0"), "leaf1: port lo0: that is the name of"),
    (lambda hosts, links: hosts["leaf1"]["fabric_networks"][0].update(name="hosts-of-the-third-floor"),
     "the name of an interface has at most 15 bytes"),
])
def test_mistakes_of_a_description_are_named(change, message):
    found = mistakes(change)
    assert any(message in problem for problem in found), found


def test_a_fabric_is_not_made_of_mistakes():
    def change(inventory):
        inventory["all"]["vars"]["fabric_links"].clear()

    with pytest.raises(Failed, match="leaf1: no link to a spine"):
        Fabric(2, 1, prefix=prefix(), turnpike=binary(), change=change)
    with pytest.raises(Failed, match="there must be 2 leaves and 1 spine"):
        Fabric(1, 0, prefix=prefix(), turnpike=binary())


def test_the_fabric_has_the_role_s_defaults():
    described = yaml.safe_load((EXAMPLE / "ansible/roles/turnpike_fabric/defaults/main.yml").read_text())
    own = inventory(2, 1)["all"]["vars"]
    for name in ("fabric_mtu", "fabric_forwarding", "fabric_bfd", "fabric_bgp"):
        assert own[name] == described[name]
    # The example of real machines has no mistakes either.
    described = yaml.safe_load((EXAMPLE / "ansible/inventory.yml").read_text())["all"]
    groups = {group: list(child["hosts"]) for group, child in described["children"].items()}
    hosts = {name: described["vars"] | child.get("vars", {}) | own
             for child in described["children"].values() for name, own in child["hosts"].items()}
    assert turnpike_fabric.fabric_problems(hosts, groups) == []


def test_what_others_have_made_is_not_removed():
    name = prefix()
    theirs = Path("/etc/frr", f"{name}-spine1")
    theirs.mkdir(parents=True)
    fabric = Fabric(2, 1, prefix=name, turnpike=binary())
    try:
        with pytest.raises(Failed, match=f"{theirs} exists already; if it is a leftover: rm -r"):
            fabric.start()
    finally:
        fabric.close()
        assert theirs.is_dir()
        theirs.rmdir()


def test_alerts_of_the_fabric(tmp_path):
    monitoring = EXAMPLE.parent / "monitoring"
    done = subprocess.run(["promtool", "test", "rules", "fabric.rules.test.yml"], cwd=monitoring, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(["promtool", "check", "config", "fabric.prometheus.yml"], cwd=monitoring, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
