"""The routes of zebra, the kernel and Turnpike, compared byte for byte.

Each table becomes sorted lines `PREFIX TYPE GATEWAY@INTERFACE*WEIGHT …`. What is left out is left
out of all: connected networks and the router's own addresses, which each counts in its own way.
"""

import collections
import ipaddress
import itertools
import math

from .netns import wait_for


def kernel(machine, families=(4, 6), table="main"):
    """The kernel's routes."""
    lines = []
    for family in families:
        best = {}
        for route in machine.routes(family, table):
            if route.get("protocol") == "kernel" or route.get("type") in ("multicast", "local", "broadcast", "anycast"):
                continue
            prefix = _prefix(route["dst"], family)
            # A route all of whose links have lost their carrier is avoided by all.
            if route.get("type", "unicast") == "unicast" and not _kernel_paths(route)[1]:
                continue
            # Of several metrics the smallest is used.
            metric = route.get("metric", 0)
            if prefix not in best or metric < best[prefix][0]:
                best[prefix] = (metric, route)
        lines += [_line(prefix, *_kernel_paths(route)) for prefix, (_, route) in best.items()]
    return sorted(lines)


def _kernel_paths(route):
    hops = route.get("nexthops", [route])
    paths = [
        (hop.get("gateway") or hop.get("via", {}).get("host"), hop.get("dev"), hop.get("weight", 1))
        for hop in hops
        if not {"dead", "linkdown"} & set(hop.get("flags", []))
    ]
    kind = route.get("type", "unicast")
    return kind, paths if kind == "unicast" else []


def zebra(frr, families=(4, 6)):
    """The routes that zebra has selected."""
    lines = []
    for family in families:
        table = frr.json("show ip route" if family == 4 else "show ipv6 route", daemon="zebra")
        for prefix, routes in table.items():
            for route in routes:
                if route.get("selected") and route["protocol"] not in ("connected", "local"):
                    lines.append(_line(prefix, *_zebra_paths(route)))
    return sorted(lines)


def _zebra_paths(route):
    hops = [hop for hop in route["nexthops"] if hop.get("fib")]
    refusals = {"blackhole": "blackhole", "reject": "unreachable", "admin-prohibited": "prohibit"}
    for hop in hops:
        for flag, kind in refusals.items():
            if hop.get(flag):
                return kind, []
        if hop.get("unreachable"):
            return "blackhole", []
    return "unicast", [(hop.get("ip"), hop.get("interfaceName"), hop.get("weight", 1)) for hop in hops]


def turnpike(router, families=(4, 6), source="kernel"):
    """The routes from a source that Turnpike uses."""
    lines = []
    names = {"prohibited": "prohibit"}
    for route in router.show("routes", "--source", source):
        if not route["active"] or (6 if ":" in route["prefix"] else 4) not in families:
            continue
        paths = [(path["via"], path.get("port"), path.get("weight", 1)) for path in route["paths"]]
        lines.append(_line(route["prefix"], names.get(route["type"], route["type"]), paths))
    return sorted(lines)


def source(router, name):
    """Turnpike's report on a source: its routes and its status."""
    found = next(s for s in router.show("sources") if s["name"] == name)
    return {**found, **(found.get("remote") or {})}


def turnpike_count(router, name):
    """The number of Turnpike's routes from a source, by a query that is fast with a million."""
    found = source(router, name)
    return found["ipv4"] + found["ipv6"]


def assert_agree(machine, frr=None, families=(4, 6), source="kernel", seconds=20, count=None, flapped=False):
    """Waits until all tables are equal, with at least `count` routes, and returns the lines.

    Without Turnpike there are zebra and the kernel; without zebra, the kernel and Turnpike; by FPM
    the kernel has none of zebra's.

    `flapped` says that a link was lost and came back under next-hop groups. The kernel has then
    taken the link's next hop and the groups over it, and FRR 8.4 does not always put them back: it
    takes them for installed as they were. So zebra is not asked, and the router has to be as the
    kernel is.
    """
    if flapped:
        frr = None
    seen = {}

    def agree():
        seen.clear()
        if frr:
            seen["zebra"] = zebra(frr, families)
        if source == "kernel" or not machine.router:
            seen["kernel"] = kernel(machine, families)
        if machine.router:
            seen["turnpike"] = turnpike(machine.router, families, source)
        texts = {"\n".join(lines) for lines in seen.values()}
        return len(texts) == 1 and (count is None or len(next(iter(seen.values()))) >= count)

    assert wait_for(agree, seconds, 0.2), _difference(seen, count)
    return next(iter(seen.values()))


def _difference(seen, count):
    sizes = ", ".join(f"{name}: {len(lines)} routes" for name, lines in seen.items())
    report = [f"the tables differ ({sizes}; expected {count or 'any number of'} routes)"]
    for (a, left), (b, right) in itertools.combinations(seen.items(), 2):
        only = sorted(set(left) ^ set(right))
        report += [f"  {a if line in set(left) else b} has {line}" for line in only[:20]]
    return "\n".join(report)


def _prefix(text, family):
    if text == "default":
        return "0.0.0.0/0" if family == 4 else "::/0"
    if "/" in text:
        return text
    return f"{text}/{32 if family == 4 else 128}"


def _line(prefix, kind, paths):
    network = ipaddress.ip_network(prefix)
    # The kernel lists a gateway twice if it was added twice; here it is one with the sum of both weights.
    weights = collections.Counter()
    for gateway, interface, weight in paths:
        weights[gateway, interface] += weight
    paths = [(*path, weight) for path, weight in weights.items()]
    # Weights of 2 and 4 equal those of 1 and 2.
    common = math.gcd(*(weight for *_, weight in paths)) or 1
    paths = [(gateway, interface, weight // common) for gateway, interface, weight in paths]
    shown = sorted(f"{gateway or '-'}@{interface or '-'}*{weight}" for gateway, interface, weight in paths)
    return " ".join([str(network), kind, *shown])
