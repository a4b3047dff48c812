"""Many VRFs: two hundred customers with the same addresses, each with a VLAN on both sides, and no two meet."""

import pytest

from lib.apply import apply
from lib.lab import HOST_A_MAC, HOST_B_MAC, LEFT_MAC, PORTS, RIGHT_MAC, Wires
from lib.packets import ethernet, forwarded, ipv4, ipv6, tagged, udp, unpadded, untagged

VRFS = 200


def customer(number):
    """A VRF with a VLAN at each side; every third has no route to the network behind the right one."""
    lines = [f'turnpike.vrf "v{number}" {{}}']
    for side, network, mac in (("left", 1, HOST_A_MAC), ("right", 2, HOST_B_MAC)):
        name = f"{side[0]}{number}"
        lines.append(
            f'turnpike.vlan "{name}" {{ parent = "{side}", id = {number}, vrf = "v{number}", '
            f'address = {{ "10.1.{network}.1/24", "fd00:1:{network}::1/64" }} }}')
        for address in (f"10.1.{network}.2", f"fd00:1:{network}::2"):
            lines.append(f'turnpike.neighbour "{address}" {{ port = "{name}", mac = "{mac}" }}')
    if number % 3:
        lines.append(f'turnpike.route "198.51.100.0/24" {{ via = "10.1.2.2", vrf = "v{number}" }}')
        lines.append(f'turnpike.route "2001:db8::/32" {{ via = "fd00:1:2::2", vrf = "v{number}" }}')
    return "\n".join(lines) + "\n"


def config(numbers):
    return PORTS + "\n" + "".join(map(customer, numbers))


def is_data(seen):
    """A datagram of `frame`, in either family."""
    packet = untagged(seen)[0]
    return (2000).to_bytes(2, "big") in (packet[36:38], packet[56:58])


def frame(number, destination):
    """A frame of the customer's host at the left, with the customer's number in its data."""
    if ":" in destination:
        source, kind, packet = "fd00:1:1::2", 0x86DD, ipv6
    else:
        source, kind, packet = "10.1.1.2", 0x0800, ipv4
    data = udp(source, destination, 1000, 2000, number.to_bytes(2, "big") * 20)
    return ethernet(LEFT_MAC, HOST_A_MAC, kind, packet(source, destination, data))


def arrives(wires, numbers, destination, expected):
    """Of the customers' packets to an address, those of `expected` arrive, each in the customer's own VLAN."""
    wires.drain()
    for number in numbers:
        wires.left.send(tagged(frame(number, destination), number))
    # Those of two forwarders may pass each other.
    arrived = [untagged(seen) for seen in wires.right.expect(len(expected), is_data, 20)]
    assert sorted(tags[0][2] for _, tags in arrived) == sorted(expected)
    for seen, tags in arrived:
        sent = frame(tags[0][2], destination)
        assert unpadded(seen) == forwarded(sent, RIGHT_MAC, HOST_B_MAC), tags
    wires.right.drain()


@pytest.mark.parametrize("destinations", [("10.1.2.2", "198.51.100.7"), ("fd00:1:2::2", "2001:db8::7")], ids=["ip4", "ip6"])
def test_the_same_addresses_in_many_vrfs_do_not_meet(lab, destinations):
    numbers = range(1, VRFS + 1)
    wires = Wires(lab, ports=config(numbers))
    connected, behind = destinations
    arrives(wires, numbers, connected, list(numbers))
    arrives(wires, numbers, behind, [number for number in numbers if number % 3])
    vrfs = wires.router.show("vrfs")
    assert [vrf["name"] for vrf in vrfs] == ["default", *(f"v{number}" for number in numbers)]
    assert vrfs[150]["ports"] == ["l150", "r150"]
    # Some go, some come, and those that stay are not affected.
    others = [*range(1, 90), *range(190, VRFS + 40)]
    apply(wires.router, config(others))
    arrives(wires, others, behind, [number for number in others if number % 3])
    assert len(wires.router.show("vrfs")) == 1 + len(others)
    wires.router.counters()
    wires.router.stop()
