"""What the kernel applies to the packets that it forwards, under `turnpike accelerate`: followed, or theirs stay the kernel's."""

import json
import subprocess

import pytest

from lib.accelerate import Box, Counted, packets, status, takes_packets
from lib.kernel import pings, reaches
from lib.netns import wait_for
from lib.router import binary

# Each attaches programs or starts many routers: beside each other they would hold the kernel's locks for seconds.
pytestmark = pytest.mark.xdist_group("accelerate")

B4, B6 = "198.51.2.1", "2001:db8:2::1"

FORWARD = """
table ip fw {
  chain forward {
    type filter hook forward priority 0; policy accept;
    ip daddr 198.51.2.9 drop
  }
}
"""


def nft(box, rules):
    subprocess.run(box.space.command("nft", "-f", "-"), input=rules, text=True, check=True)


@pytest.fixture
def box(lab):
    box = Box(lab)
    box.settle()
    return box


def refused(box, *options):
    """What the command says when it refuses; nothing of the machine has changed then."""
    before = box.space.link_settings()
    command = box.space.command(binary(), "accelerate", "eth0", "eth1", "--no-huge", "--socket", "/run/turnpike-refused.sock", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2), done
    assert box.space.link_settings() == before
    return done.stderr


def test_rules_that_cannot_be_followed_are_refused_and_named(box):
    nft(box, "table inet nat { chain post { type nat hook postrouting priority 100; masquerade; }; }")
    said = refused(box)
    assert "table inet nat chain post" in said and "--bypass nat" in said, said
    box.ip("rule", "add", "from", "198.51.1.0/24", "lookup", "77")
    said = refused(box, "--bypass", "nat")
    assert "--bypass rules" in said and "chain post" not in said, said
    unknown = refused(box, "--bypass", "firewall")
    assert "firewall" in unknown and "nftables" in unknown


def test_what_may_be_bypassed_is(box):
    nft(box, "table inet nat { chain post { type nat hook postrouting priority 100; masquerade; }; }")
    router = box.accelerate("eth0", "eth1", "--bypass", "nat")
    takes_packets(router)
    count = Counted(router, "eth0")
    assert reaches(box.a, B4) and count["accelerated"]
    router.stop()


def test_rules_that_appear_meanwhile_give_all_packets_back_to_the_kernel(box):
    router = box.accelerate("eth0", "eth1")
    takes_packets(router)
    nft(box, "table ip watched { chain forward { type filter hook forward priority 0; ct state new counter drop; }; }")
    assert wait_for(lambda: not status(router)["eth0"]["ip4"]["accelerated"], 20)
    assert "watched" in status(router)["eth0"]["ip4"]["reason"]
    count = Counted(router, "eth0")
    pings(box.a, B4, count=3)
    assert count["accelerated"] == 0 and count["off"] >= 1, "the kernel's rules decide"
    nft(box, "delete table ip watched")
    assert wait_for(lambda: status(router)["eth0"]["ip4"]["accelerated"], 20)
    assert reaches(box.a, B4) and count["accelerated"]
    router.stop()


def test_simple_forward_chains_are_followed_as_filters(box):
    box.b.run("ip", "address", "add", "198.51.2.9/32", "dev", "lo")
    nft(box, FORWARD)
    router = box.accelerate("eth0", "eth1")
    takes_packets(router)
    count = Counted(router, "eth0")
    assert reaches(box.a, B4) and not pings(box.a, "198.51.2.9", count=3)
    assert count["accelerated"] >= 2 and sum(router.counters()["dropped"].values()) >= 1, router.counters()["dropped"]
    rules = json.loads(router.command("show", "filters", "--json").stdout)
    assert any(one["name"].startswith("forward") for one in rules), rules
    # Other rules than those of the start: the kernel decides until the next start.
    nft(box, "flush chain ip fw forward")
    assert wait_for(lambda: not status(router)["eth0"]["ip4"]["accelerated"] or pings(box.a, "198.51.2.9"), 20)
    assert reaches(box.a, "198.51.2.9"), "nothing drops them any more"
    router.stop()


def test_destinations_of_routing_rules_stay_with_the_kernel(box):
    router = box.accelerate("eth0", "eth1")
    takes_packets(router)
    count = Counted(router, "eth0")
    assert reaches(box.a, B4) and reaches(box.a, B6) and count["accelerated"]
    box.ip("rule", "add", "to", "198.51.2.0/28", "tos", "0x10", "lookup", "main")
    assert wait_for(lambda: "198.51.2.0/28 stay with the kernel" in router.log(), 20), router.log()
    count = Counted(router, "eth0")
    assert pings(box.a, B4, count=2) and count["accelerated"] == 0 and count["route"] >= 2
    assert pings(box.a, "10.0.2.2", count=2) and pings(box.a, B6) and count["accelerated"] >= 3, "others are accelerated"
    box.ip("rule", "del", "to", "198.51.2.0/28", "tos", "0x10", "lookup", "main")
    count = Counted(router, "eth0")
    assert wait_for(lambda: pings(box.a, B4) and count["accelerated"] > 0, 20)
    assert packets(router, "eth0", "accelerated")
    router.stop()


def test_the_bypass_changes_live(box, lab):
    nft(box, "table ip watched { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }")
    config = 'require "turnpike".accelerate { "eth0", "eth1", bypass = { "nftables", "bond" } }\n'
    router = lab.router(box.space, config)
    takes_packets(router)
    other = router.directory / "other.lua"
    other.write_text(config.replace('"nftables", ', ""))
    router.command("apply", other)
    assert wait_for(lambda: "watched" in (status(router)["eth0"]["ip4"]["reason"] or ""), 20), status(router)
    other.write_text(config.replace('"nftables"', '"nftables", "tc"'))
    router.command("apply", other)
    takes_packets(router)
    count = Counted(router, "eth0")
    assert reaches(box.a, B4) and count["accelerated"]
    router.stop()
