#!/usr/bin/env python3
"""Writes the fabric as a topology of containerlab, with the files of all routers.

    make.py DIRECTORY [LEAVES [SPINES]]     3 leaves, 2 spines
    containerlab deploy -t DIRECTORY/fabric.clab.yml

Inventory and templates are those of the Ansible role, as for namespaces (fabric.py).
"""

import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fabric import Fabric, turnpike_fabric  # noqa: E402

IMAGE = "turnpike-frr"


def node(fabric, name, directory):
    """A router, or a server, which has FRR only; their files are written."""
    server = name in fabric.groups["servers"]
    files = {"frr.conf": "/etc/frr/frr.conf"} | ({} if server else {"turnpike.lua": "/etc/turnpike/turnpike.lua"})
    binds = []
    for file, place in files.items():
        path = directory / f"{name}.{file}"
        path.write_text(fabric.render(f"{file}.j2", name))
        binds.append(f"{path.name}:{place}")
    made = {"kind": "linux", "image": IMAGE, "binds": binds}
    if server:
        addresses = fabric.variables[name]["fabric_loopbacks"]
        made["env"] = {"TURNPIKE": "none"}
        made["exec"] = [f"ip address add {address} dev lo" for address in addresses]
    return made


def host(network):
    """The host of a leaf's network."""
    commands = []
    for gateway in network["addresses"]:
        address, length = gateway.split("/")
        commands += [f"ip address add {address[:-1]}2/{length} dev eth1", f"ip route replace default via {address}"]
    # Its default route is by the leaf, not by the network of the containers' management.
    return {"kind": "linux", "image": IMAGE, "env": {"TURNPIKE": "none"}, "exec": commands}


def topology(fabric, directory):
    """The description for containerlab."""
    nodes = {name: node(fabric, name, directory) for group in fabric.groups.values() for name in group}
    links = turnpike_fabric.fabric_links(fabric.variables, fabric.groups)
    ends = [[f"{name}:{device}" for name, device in link] for link in links]
    for leaf in fabric.groups["leaves"]:
        for network in fabric.variables[leaf]["fabric_networks"]:
            name = f"host{leaf.removeprefix('leaf')}"
            nodes[name] = host(network)
            ends.append([f"{leaf}:{network['device']}", f"{name}:eth1"])
    mtu = fabric.inventory["all"]["vars"]["fabric_mtu"]
    wires = [{"endpoints": pair, "mtu": mtu} for pair in ends]
    return {"name": "fabric", "topology": {"nodes": nodes, "links": wires}}


def main():
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    fabric = Fabric(*map(int, sys.argv[2:] or (3, 2)), turnpike=True)
    try:
        text = yaml.safe_dump(topology(fabric, directory), sort_keys=False)
    finally:
        fabric.close()
    (directory / "fabric.clab.yml").write_text(text)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main()
