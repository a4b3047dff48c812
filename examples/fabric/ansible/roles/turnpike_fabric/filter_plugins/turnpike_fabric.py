"""The fabric that an inventory describes: its mistakes, and the ports and sessions of each router.

Filters for the role's tasks and templates. They need nothing but the standard library, so that `fabric.py`, which builds
the same fabric of network namespaces, imports them.

    fabric = {name: variables of the host}, as Ansible's `hostvars`
    groups = {"spines": [name, …], "leaves": […], "servers": […]}, as Ansible's `groups`
"""

import ipaddress
import itertools
import json

# A kernel interface's name has at most this many bytes.
_NAME_MOST = 15
_ASN_MOST = 4_294_967_294


def fabric_links(fabric, groups):
    """The links: lists of two ends, `(name, device)`. All hosts have the same variable."""
    first = next(iter(members(groups)), None)
    found = fabric[first].get("fabric_links", []) if first else []
    return [sorted(link.items()) for link in found]


def members(groups):
    """The names of the fabric's routers and servers."""
    return [name for group in ("spines", "leaves", "servers") for name in groups.get(group, [])]


def fabric_ports(fabric, groups, name):
    """The router's ports: name, device and addresses. A link's port has the name of its other end and that one's AS number,
    and no address."""
    ports = []
    for ends in fabric_links(fabric, groups):
        for (here, device), (there, _) in (ends, ends[::-1]) if len(ends) == 2 else ():
            if here == name:
                asn = fabric[there].get("fabric_asn") if there in fabric else None
                ports.append({"name": there, "device": device, "addresses": [], "session": True, "asn": asn})
    for network in fabric[name].get("fabric_networks", []):
        ports.append({**network, "session": False})
    return ports


def fabric_problems(fabric, groups):
    """The mistakes of an inventory, each a sentence that names the thing, the value and the way out."""
    checks = (_variables, _link_ends, _reached, _devices, _port_names, _numbers, _addresses)
    return [problem for check in checks for problem in check(fabric, groups)]


def fabric_sessions_down(summary, ports):
    """The sessions that are down: of the ports with one, those that are not established in both families. `summary` is
    the answer of FRR's `show bgp summary json`."""
    families = [summary.get(family, {}).get("peers", {}) for family in ("ipv4Unicast", "ipv6Unicast")]
    names = [port["name"] for port in ports if port["session"]]
    return [name for name in names if any(peers.get(name, {}).get("state") != "Established" for peers in families)]


def fabric_routes_missing(text):
    """The kernel's routes of BGP that the router lacks. `text` has three lists of JSON: the router's routes, and the
    kernel's of both families."""
    decoder, lists = json.JSONDecoder(), []
    while text := text.strip():
        found, end = decoder.raw_decode(text)
        lists.append(found)
        text = text[end:]
    router, *kernel = lists
    has = {_network(route["prefix"]) for route in router}
    routes = [route for family in kernel for route in family if route.get("protocol") == "bgp"]
    return [route["dst"] for route in routes if _network(route["dst"]) not in has]


def _network(text):
    return None if text == "default" else ipaddress.ip_network(text)


def fabric_mtu_problems(fabric, groups, mtus):
    """Links whose ends differ in their MTU. `mtus` has the devices' MTUs, `{router: {device: mtu}}`; devices that are no
    kernel interfaces have none."""
    for ends in fabric_links(fabric, groups):
        wanted = [int(fabric[name].get("fabric_mtu", 1500)) for name, _ in ends]
        for (name, device), (other, _), mtu in zip(ends, ends[::-1], wanted):
            if (has := mtus.get(name, {}).get(device)) is not None and int(has) != mtu:
                yield (f"link {name} - {other}: {device} of {name} has MTU {has}, fabric_mtu is {mtu}: "
                       f"set it on the device (ip link set {device} mtu {mtu}), or change fabric_mtu")
        if wanted[0] != wanted[1]:
            yield (f"link {ends[0][0]} - {ends[1][0]}: fabric_mtu is {wanted[0]} at one end and {wanted[1]} at the "
                   "other: give both the same")


def _variables(fabric, groups):
    for name in members(groups):
        variables = fabric[name]
        asn = variables.get("fabric_asn")
        if not isinstance(asn, int) or not 1 <= asn <= _ASN_MOST:
            yield f"{name}: fabric_asn: expected a number from 1 to {_ASN_MOST}, got {asn}"
        loopbacks = variables.get("fabric_loopbacks", [])
        texts = loopbacks + variables.get("fabric_anycast", [])
        texts += [address for network in variables.get("fabric_networks", []) for address in network["addresses"]]
        for text in texts:
            try:
                ipaddress.ip_interface(text)
            except ValueError:
                yield f"{name}: {text} is no address with a prefix length, such as 10.255.0.1/32"
        if not any(":" not in text for text in loopbacks):
            yield f"{name}: fabric_loopbacks: no IPv4 address; its first one is the router identifier"


def _link_ends(fabric, groups):
    known, seen = members(groups), set()
    for ends in fabric_links(fabric, groups):
        names = tuple(name for name, _ in ends)
        if len(names) != 2:
            yield f"fabric_links: {dict(ends)}: a link has two ends, {{ leaf1: eth1, spine1: eth1 }}"
            continue
        for name in names:
            if name not in known:
                yield f"link {' - '.join(names)}: {name} not found; known: {', '.join(known)}"
        if names in seen:
            yield f"link {' - '.join(names)}: there are two; make a bond of them"
        seen.add(names)


def _reached(fabric, groups):
    for group, other, word in (("leaves", "spines", "spine"), ("servers", "leaves", "leaf")):
        for name in groups.get(group, []):
            if not any(there in groups.get(other, []) for there in _neighbours(fabric, groups, name)):
                yield f"{name}: no link to a {word}: add one to fabric_links; {other}: {', '.join(groups.get(other, []))}"


def _neighbours(fabric, groups, name):
    links = [dict(ends) for ends in fabric_links(fabric, groups)]
    return [other for link in links if name in link for other in link if other != name]


def _devices(fabric, groups):
    for name in members(groups):
        used = {}
        for port in fabric_ports(fabric, groups, name):
            if (other := used.setdefault(port["device"], port["name"])) != port["name"]:
                yield f"{name}: device {port['device']} is that of port {other} and of port {port['name']}"


def _port_names(fabric, groups):
    for name in members(groups):
        ports = fabric_ports(fabric, groups, name)
        for port in ports:
            if len(port["name"].encode()) > _NAME_MOST:
                yield f"{name}: port {port['name']}: the name of an interface has at most {_NAME_MOST} bytes"
            if port["name"] == port["device"] and name not in groups.get("servers", []):
                yield f"{name}: port {port['name']} and its device have one name, which its host interface needs"
        for taken in ("lo", "lo0", "anycast"):
            if any(port["name"] == taken for port in ports):
                yield f"{name}: port {taken}: that is the name of a loopback"


def _numbers(fabric, groups):
    spines = {fabric[name].get("fabric_asn") for name in groups.get("spines", [])}
    if len(spines) > 1:
        yield (f"spines: fabric_asn differs: {', '.join(map(str, sorted(spines, key=str)))}: give all spines the same, "
               "by which they refuse the ways through leaves")
    others = [name for group in ("leaves", "servers") for name in groups.get(group, [])]
    owners = {number: "the spines" for number in spines}
    for name in others:
        number = fabric[name].get("fabric_asn")
        if number is not None and (owner := owners.setdefault(number, name)) != name:
            yield f"{name}: fabric_asn {number} is that of {owner}"


def _addresses(fabric, groups):
    own, shared = [], {}
    for name in members(groups):
        networks = fabric[name].get("fabric_networks", [])
        texts = fabric[name].get("fabric_loopbacks", []) + [text for network in networks for text in network["addresses"]]
        own += [(name, interface) for text in texts if (interface := _interface(text))]
        shared.update({interface: name for text in fabric[name].get("fabric_anycast", []) if (interface := _interface(text))})
    own += [(name, interface) for interface, name in shared.items()]
    for (name, one), (other, two) in itertools.combinations(own, 2):
        if one.ip == two.ip:
            yield f"address {one.ip} is that of {name} and of {other}"
        elif one.version == two.version and one.network.overlaps(two.network):
            yield f"networks {one.network} of {name} and {two.network} of {other} overlap"


def _interface(text):
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


class FilterModule:
    """The filters by their names in Ansible."""

    def filters(self):
        """The filters."""
        return {
            "fabric_ports": fabric_ports,
            "fabric_problems": fabric_problems,
            "fabric_routes_missing": fabric_routes_missing,
            "fabric_sessions_down": fabric_sessions_down,
            "fabric_mtu_problems": lambda *arguments: list(fabric_mtu_problems(*arguments)),
        }
