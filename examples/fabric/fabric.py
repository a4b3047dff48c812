"""A fabric of routers in network namespaces: each has a namespace, with Turnpike (or the kernel) as forwarder and FRR.

    fabric = Fabric(leaves=3, spines=2)
    try:
        fabric.start()
        …
    finally:
        fabric.close()

It is described by an inventory, as fabrics of real machines are, and its files are made by the templates of the Ansible
role beside this file.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import jinja2
except ImportError:
    sys.exit("Jinja2, which makes the configurations, is missing: apt-get install python3-jinja2")

HERE = Path(__file__).resolve().parent
ROLE = HERE / "ansible/roles/turnpike_fabric"
TRAFFIC = HERE / "traffic.py"
sys.path.insert(0, str(ROLE / "filter_plugins"))
import turnpike_fabric  # noqa: E402

FRR = Path("/usr/lib/frr")
DAEMONS = ("zebra", "bgpd", "bfdd")
ANYCAST = ["10.53.0.53/32", "fd53::53/128"]
# Of each router's Lua file: many of them share few cores.
SMALL = 'turnpike.memory { mbufs = 32768 }\nturnpike.forwarders { wait = "interrupt" }'

# Those of the role's defaults that the templates need, and Ansible would read by itself.
DEFAULTS = {
    "fabric_mtu": 1500, "fabric_forwarding": "resilient = true", "fabric_settings": SMALL,
    "fabric_bfd": {"interval_ms": 150, "multiplier": 4}, "fabric_bgp": {"keepalive_s": 3, "hold_s": 9},
}
NONE = {"fabric_anycast": [], "fabric_networks": []}


class Failed(Exception):
    """A part of the fabric did not do what it must."""


def inventory(leaves, spines):
    """The description of a fabric, as Ansible reads it: every leaf has a link to every spine and a network with a host,
    two servers have a link to two leaves each, and the first and the last leaf have the anycast addresses."""
    names = {
        "spines": [f"spine{n}" for n in range(1, spines + 1)],
        "leaves": [f"leaf{n}" for n in range(1, leaves + 1)],
        "servers": ["server1", "server2"],
    }
    links = [{leaf: f"w-{spine}", spine: f"w-{leaf}"} for leaf in names["leaves"] for spine in names["spines"]]
    homes = {"server1": names["leaves"][:2], "server2": names["leaves"][-2:]}
    links += [{server: leaf, leaf: f"w-{server}"} for server, two in homes.items() for leaf in two]
    hosts = {
        "spines": {name: _host(64512, n) for n, name in enumerate(names["spines"], 1)},
        "leaves": {name: _leaf(n, leaves) for n, name in enumerate(names["leaves"], 1)},
        "servers": {name: _host(64800 + n, 200 + n) for n, name in enumerate(names["servers"], 1)},
    }
    return {"all": {
        "vars": {"fabric_links": links, **DEFAULTS},
        "children": {group: {"hosts": members} for group, members in hosts.items()},
    }}


def _host(asn, number):
    return {"fabric_asn": asn, "fabric_loopbacks": [f"10.255.0.{number}/32", f"fd00:255::{number}/128"]}


def _leaf(number, leaves):
    network = {"name": "hosts", "device": "w-hosts", "addresses": [f"10.{number}.0.1/24", f"fd00:{number}::1/64"]}
    anycast = {"fabric_anycast": ANYCAST} if number in (1, leaves) else {}
    return _host(64600 + number, 100 + number) | {"fabric_networks": [network]} | anycast


def wait_for(condition, seconds=60, pause=0.2):
    """Waits until the condition holds; returns false if it does not within the time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def run(*argv, check=True, timeout=120, **options):
    """Runs a command; returns its output."""
    argv = list(map(str, argv))
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, **options)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


class Space:
    """A network namespace."""

    def __init__(self, name):
        if Path("/run/netns", name).exists():
            raise Failed(f"the network namespace {name} exists already; if it is a leftover: ip netns del {name}")
        self.name, self.processes = name, []
        run("ip", "netns", "add", name)

    def command(self, *argv):
        """A command that runs there."""
        return ["ip", "netns", "exec", self.name, *map(str, argv)]

    def run(self, *argv, **options):
        """Runs a command there."""
        return run(*self.command(*argv), **options)

    def ip(self, *words, **options):
        """Runs `ip` there."""
        return run("ip", "-n", self.name, *words, **options)

    def sysctl(self, **values):
        """Sets variables of the kernel, such as `net__ipv4__ip_forward`."""
        self.run("sysctl", "-qw", *(f"{name.replace('__', '.')}={value}" for name, value in values.items()))

    def spawn(self, *argv, **options):
        """Starts a command there."""
        self.processes.append(subprocess.Popen(self.command(*argv), stdin=subprocess.DEVNULL, **options))
        return self.processes[-1]

    def delete(self):
        """Removes it, and ends what was started there."""
        for process in self.processes:
            process.poll() is None and process.kill()
            process.wait()
        run("ip", "netns", "del", self.name, check=False)


class Node:
    """A router or a server: its namespace and its FRR, which the path space of the same name keeps apart."""

    def __init__(self, fabric, name):
        self.fabric, self.name = fabric, name
        self.space = Space(f"{fabric.prefix}-{name}")
        # Addresses count at once; flows of the kernel take ways by their ports.
        self.space.sysctl(
            net__ipv6__conf__default__accept_dad=0, net__ipv4__fib_multipath_hash_policy=1,
            net__ipv6__fib_multipath_hash_policy=1, net__ipv4__ip_forward=0, net__ipv6__conf__all__forwarding=0,
            # Advertisements of neighbours are for FRR; the kernel would take default routes from them.
            net__ipv6__conf__default__accept_ra=0,
        )
        self.space.ip("link", "set", "lo", "up")
        self.daemons, self._made = {}, []
        self.files = Path("/etc/frr", self.space.name), Path("/var/run/frr", self.space.name)

    def start(self):
        """Addresses of a server are those of its `lo`."""
        for address in self.fabric.variables[self.name]["fabric_loopbacks"]:
            self.space.ip("address", "add", address, "dev", "lo")

    def start_frr(self):
        """Starts FRR's daemons, and gives them their configuration."""
        for directory in self.files:
            if directory.exists():
                raise Failed(f"{directory} exists already; if it is a leftover: rm -r {directory}")
            directory.mkdir(parents=True)
            self._made.append(directory)
            shutil.chown(directory, "frr", "frr")
        config = self.files[0] / "frr.conf"
        config.write_text(self.fabric.render("frr.conf.j2", self.name))
        config.chmod(0o640)
        shutil.chown(config, "frr", "frr")
        # Its absence would be logged.
        (self.files[0] / "vtysh.conf").touch()
        for daemon in DAEMONS:
            self._start_daemon(daemon)
        self._configure()

    def _start_daemon(self, daemon):
        options = ["-s", 8_000_000] if daemon == "zebra" else []
        with open(self.fabric.directory / f"{self.name}.{daemon}.log", "ab") as log:
            self.daemons[daemon] = self.space.spawn(
                FRR / daemon, "-N", self.space.name, "-P", 0, *options, stdout=log, stderr=log)
        answers = lambda: "FRRouting" in self.vtysh("show version", daemon=daemon, check=False)  # noqa: E731
        if not wait_for(answers, 60, 0.05):
            raise Failed(f"{daemon} of {self.name} does not answer:\n{self.log(daemon)}")

    def _configure(self):
        """Gives FRR's daemons their configuration."""
        said = run("vtysh", "-N", self.space.name, "-b", check=False)
        if "%" in said or "error" in said.lower():
            raise Failed(f"FRR's configuration of {self.name}: {said}")

    def restart_daemon(self, daemon):
        """Kills a daemon of FRR and starts it again, as watchfrr does."""
        process = self.daemons[daemon]
        process.kill()
        process.wait()
        self._start_daemon(daemon)
        self._configure()

    def vtysh(self, *commands, daemon=None, check=True):
        """Runs commands of FRR."""
        words = ["-d", daemon] if daemon else []
        return run("vtysh", "-N", self.space.name, *words, *(word for c in commands for word in ("-c", c)), check=check)

    def json(self, command):
        """The answer of a `show … json` command of FRR."""
        return json.loads(self.vtysh(f"{command} json") or "{}")

    def sessions(self):
        """The number of BGP sessions that are up, for each family, and of all."""
        summary = self.json("show bgp summary")
        families = [summary.get(family, {}).get("peers", {}) for family in ("ipv4Unicast", "ipv6Unicast")]
        ups = [sum(peer["state"] == "Established" for peer in peers.values()) for peers in families]
        return min(ups), max(map(len, families))

    def log(self, what):
        """The log of a daemon or of the forwarder."""
        file = self.fabric.directory / f"{self.name}.{what}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def stop_frr(self):
        """Ends FRR's daemons at once, and removes its files."""
        for process in self.daemons.values():
            process.kill()
        for process in self.daemons.values():
            process.wait()
        self.daemons = {}
        for directory in self._made:
            shutil.rmtree(directory, ignore_errors=True)


class Router(Node):
    """A router. With Turnpike the wires end in devices `w-NAME`, and interfaces `NAME` are its host interfaces; if the
    kernel forwards, the wires end in interfaces `NAME`."""

    def __init__(self, fabric, name):
        super().__init__(fabric, name)
        self.process = None
        self.socket = fabric.directory / f"{name}.sock"
        self.config = fabric.directory / f"{name}.lua"

    def start(self):
        """Starts the forwarder and waits until it forwards."""
        if not self.fabric.turnpike:
            return self._start_kernel()
        self.config.write_text(self.fabric.render("turnpike.lua.j2", self.name))
        with open(self.fabric.directory / f"{self.name}.turnpike.log", "wb") as log:
            self.process = self.space.spawn(
                self.fabric.turnpike, "run", self.config, "--socket", self.socket, stdout=log, stderr=log)
        ready = lambda: " ready: " in self.log("turnpike") or self.process.poll() is not None  # noqa: E731
        wait_for(ready, 120, 0.05)
        if self.process.poll() is not None or not ready():
            raise Failed(f"{self.name} did not start:\n{self.log('turnpike')}")

    def _start_kernel(self):
        super().start()
        for network in self.fabric.variables[self.name].get("fabric_networks", []):
            for address in network["addresses"]:
                self.space.ip("address", "add", address, "dev", network["name"])

    def command(self, *words, check=True, timeout=180):
        """Runs a command of Turnpike for this router."""
        return run(self.fabric.turnpike, *words, "--socket", self.socket, check=check, timeout=timeout)

    def show(self, *words):
        """The answer of `turnpike show`."""
        return json.loads(self.command("show", *words, "--json"))

    def drain(self, *options):
        """Takes the traffic off the router."""
        return self.command("drain", "--pathspace", self.space.name, *options)

    def undrain(self, *options):
        """Gives the router its traffic back."""
        return self.command("undrain", "--pathspace", self.space.name, *options)

    def kill(self):
        """Kills the forwarder: links stay up, and no packet passes."""
        self.process.kill()
        self.process.wait()

    def restart(self):
        """Another process takes over, as an upgrade does it: FRR and its sessions do not notice."""
        self.process.send_signal(signal.SIGUSR2)
        self._ended()
        self.start()

    def stop(self):
        """Ends the forwarder; raises unless it ended cleanly."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self._ended()

    def _ended(self):
        if (status := self.process.wait(120)) != 0:
            raise Failed(f"{self.name} ended with {status}:\n{self.log('turnpike')}")


class Fabric:
    """All of it. `turnpike` is the binary; `None`: the kernel forwards. `change` may change the inventory."""

    def __init__(self, leaves=3, spines=2, prefix="fabric", turnpike=None, change=lambda inventory: None):
        if leaves < 2 or spines < 1:
            raise Failed(f"{leaves} leaves and {spines} spines: there must be 2 leaves and 1 spine, or more")
        self.prefix, self.turnpike, self.spaces = prefix, turnpike, {}
        self.nodes, self.directory = {}, Path(tempfile.mkdtemp(prefix="turnpike-fabric-"))
        self.directory.chmod(0o755)
        self.inventory = inventory(leaves, spines)
        change(self.inventory)
        children, common = self.inventory["all"]["children"], self.inventory["all"]["vars"]
        self.groups = {group: list(child["hosts"]) for group, child in children.items()}
        self.variables = {name: common | own for child in children.values() for name, own in child["hosts"].items()}
        if problems := turnpike_fabric.fabric_problems(self.variables, self.groups):
            shutil.rmtree(self.directory)
            raise Failed("\n".join(problems))
        loader = jinja2.FileSystemLoader(ROLE / "templates")
        self._templates = jinja2.Environment(loader=loader, trim_blocks=True, keep_trailing_newline=True,
                                             undefined=jinja2.StrictUndefined)
        # As in Ansible.
        self._templates.filters["split"] = str.split
        self._templates.tests["match"] = lambda text, expression: re.match(expression, text)

    def for_ansible(self):
        """The inventory with the ways to the namespaces, by which Ansible reaches the routers of this fabric."""
        described = json.loads(json.dumps(self.inventory))
        for group, child in described["all"]["children"].items():
            for name, variables in child["hosts"].items() if group != "servers" else ():
                node = self.nodes[name]
                space, conf = node.space.name, str(node.files[0] / "frr.conf")
                variables.update({
                    "ansible_connection": "netns", "ansible_host": space, "ansible_python_interpreter": sys.executable,
                    "fabric_turnpike": [str(self.turnpike)], "fabric_socket": ["--socket", str(node.socket)],
                    "fabric_lua": str(node.config), "fabric_frr_conf": conf, "fabric_vtysh": ["vtysh", "-N", space],
                    "fabric_drain": ["--pathspace", space],
                    # Adds lines to the running configuration; taking lines out needs frr-reload, of frr-pythontools.
                    "fabric_frr_reload": ["vtysh", "-N", space, "-f", conf],
                })
        return described

    def render(self, template, name, variables=None):
        """A configuration file of a router or server, with other variables than its own if there are any."""
        ports = turnpike_fabric.fabric_ports(self.variables, self.groups, name)
        return self._templates.get_template(template).render(
            **{**NONE, **(variables or self.variables[name])}, ports=ports, inventory_hostname=name, groups=self.groups)

    def routers(self):
        """The routers."""
        return [node for node in self.nodes.values() if isinstance(node, Router)]

    def start(self, frr=True):
        """Makes namespaces and wires, starts the routers, and FRR unless `frr` is false."""
        for group, names in self.groups.items():
            for name in names:
                self.nodes[name] = (Node if group == "servers" else Router)(self, name)
        self._wire()
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values() if frr else ():
            node.start_frr()
        if self.turnpike is None:
            # FRR's configuration, in which Turnpike forwards, has turned it off.
            for router in self.routers():
                router.space.sysctl(net__ipv4__ip_forward=1, net__ipv6__conf__all__forwarding=1)

    def _wire(self):
        for ends in turnpike_fabric.fabric_links(self.variables, self.groups):
            (a, device_a), (b, device_b) = ends
            self._cable(self.nodes[a].space, self._device(a, device_a), self.nodes[b].space, self._device(b, device_b))
        for name in self.groups["leaves"]:
            for network in self.variables[name].get("fabric_networks", []):
                self._end_host(name, network)

    def _device(self, name, device):
        """The interface where a wire ends: with the kernel as forwarder there is no host interface beside it."""
        return device if self.turnpike or name in self.groups["servers"] else device.removeprefix("w-")

    @staticmethod
    def _cable(a, device_a, b, device_b):
        run("ip", "link", "add", device_a, "netns", a.name, "type", "veth", "peer", "name", device_b, "netns", b.name)
        a.ip("link", "set", device_a, "up")
        b.ip("link", "set", device_b, "up")

    def _end_host(self, leaf, network):
        """The host in a leaf's network: `host1` behind `leaf1`."""
        host = f"host{leaf.removeprefix('leaf')}"
        space = self.spaces[host] = Space(f"{self.prefix}-{host}")
        space.sysctl(net__ipv6__conf__default__accept_dad=0)
        space.ip("link", "set", "lo", "up")
        self._cable(space, "eth0", self.nodes[leaf].space, self._device(leaf, network["device"]))
        for gateway in network["addresses"]:
            address, length = gateway.split("/")
            space.ip("address", "add", f"{address[:-1]}2/{length}", "dev", "eth0")
            space.ip("-6" if ":" in address else "-4", "route", "add", "default", "via", address)

    def neighbours(self, name):
        """The other ends of its links."""
        return [port["name"] for port in turnpike_fabric.fabric_ports(self.variables, self.groups, name) if port["session"]]

    def space(self, name):
        """The namespace of a host, server or router."""
        return self.spaces.get(name) or self.nodes[name].space

    def addresses(self, name):
        """The addresses of a host or server, one of each family."""
        if name in self.nodes:
            return [text.split("/")[0] for text in self.variables[name]["fabric_loopbacks"]]
        network = self.variables[f"leaf{name.removeprefix('host')}"]["fabric_networks"][0]
        return [text.split("/")[0][:-1] + "2" for text in network["addresses"]]

    def ends(self):
        """The names of hosts and servers."""
        return [*self.spaces, *self.groups["servers"]]

    def prefixes(self):
        """All prefixes, and for each the number of routers that have it."""
        found = {}
        for name, variables in self.variables.items():
            networks = [text for network in variables.get("fabric_networks", []) for text in network["addresses"]]
            for text in [*variables["fabric_loopbacks"], *variables.get("fabric_anycast", []), *networks]:
                found.setdefault(text, []).append(name)
        return found

    def converged(self, seconds=120):
        """Waits until every session is up and every end reaches every other by all paths; raises if not."""
        for node in self.nodes.values():
            if not wait_for(lambda node=node: len(set(node.sessions())) == 1, seconds):
                raise Failed(f"{node.name}: sessions are down\n{node.vtysh('show bgp summary')}")
        if not wait_for(lambda: not self.missing_paths(), seconds):
            raise Failed(f"paths are missing: {self.missing_paths()[:5]}")

    def missing_paths(self):
        """Leaves that lack a path to another leaf, of one by each spine; servers that lack one to each other, which is by
        the leaf of both, if there is one."""
        missing = []
        for group, wanted in (("leaves", len(self.groups["spines"])), ("servers", 1)):
            for name in self.groups[group]:
                others = [other for other in self.groups[group] if other != name]
                for text in (text for other in others for text in self.variables[other]["fabric_loopbacks"]):
                    if (has := self.paths(name, text.split("/")[0])) < wanted:
                        missing.append(f"{name} to {text}: {has} of {wanted}")
        return missing

    def paths(self, name, address):
        """The number of paths to an address: those of Turnpike, or of the kernel."""
        if self.turnpike and name not in self.groups["servers"]:
            return len(self.nodes[name].show("route", address).get("paths", []))
        family = "-6" if ":" in address else "-4"
        routes = json.loads(self.nodes[name].space.ip("-j", family, "route", "show", address) or "[]")
        return sum(len(route.get("nexthops", [route])) for route in routes)

    def close(self):
        """Removes everything; raises if a router did not end cleanly."""
        errors = []
        for router in self.routers():
            try:
                router.stop()
            except (Failed, subprocess.TimeoutExpired) as error:
                errors.append(str(error))
                router.process.kill()
        for node in self.nodes.values():
            node.stop_frr()
        for space in [*self.spaces.values(), *(node.space for node in self.nodes.values())]:
            space.delete()
        shutil.rmtree(self.directory, ignore_errors=True)
        if errors:
            raise Failed("\n".join(errors))


class Stream:
    """Numbered datagrams from one end to another, of both families: `flows` flows to each address."""

    def __init__(self, fabric, source, target, rate=1000, flows=16):
        self.addresses, self.name = fabric.addresses(target), f"{source} to {target}"
        self.rate = rate
        self._receiver = self._begin(fabric.space(target), "receive")
        self._sender = self._begin(fabric.space(source), "send", rate, flows, *self.addresses)

    @staticmethod
    def _begin(space, *words):
        process = space.spawn(sys.executable, TRAFFIC, *words, stdout=subprocess.PIPE, text=True)
        if process.stdout.readline() != "begun\n":
            raise Failed(f"traffic.py {words[0]} did not begin in {space.name}")
        return process

    def stop(self):
        """Ends it; returns the account."""
        self._sender.terminate()
        sent = json.loads(self._sender.communicate(timeout=60)[0])
        self._receiver.terminate()
        received = json.loads(self._receiver.communicate(timeout=60)[0])
        return Account(self, sent, received)


class Account:
    """The datagrams of a stream: `sent`, `lost` (numbers), `twice`."""

    def __init__(self, stream, sent, received):
        self.name, self.rate, self.flows = stream.name, stream.rate, sent["flows"]
        self.sent, self.twice = sent["sent"], received["twice"]
        arrived = {n for first, last in received["ranges"] for n in range(first, last + 1)}
        self.lost = sorted(set(range(self.sent)) - arrived)

    def by_family(self):
        """The numbers of lost datagrams: IPv4, IPv6."""
        return [sum(number % 2 == family for number in self.lost) for family in (0, 1)]

    def flows_hit(self):
        """The number of flows that lost any."""
        return len({number % self.flows for number in self.lost})

    def outage_ms(self):
        """The time over which datagrams were lost, in ms."""
        return (self.lost[-1] - self.lost[0] + 1) * 1000 / self.rate if self.lost else 0.0


def binary():
    """The router's binary: `$TURNPIKE`, else the release build."""
    found = Path(os.environ.get("TURNPIKE") or HERE.parents[1] / "target/release/turnpike")
    if not os.access(found, os.X_OK):
        raise Failed(f"{found} is missing: run `make build`, or say TURNPIKE=FILE")
    return found


def preconditions():
    """Raises if a program or a right is missing."""
    if os.geteuid() != 0:
        raise Failed("network namespaces need root: run it as root")
    missing = [daemon for daemon in DAEMONS if not (FRR / daemon).exists()]
    if missing or not shutil.which("vtysh"):
        raise Failed(f"FRR is missing ({', '.join(missing) or 'vtysh'}): apt-get install frr")
    packages = {"ping": "iputils-ping", "traceroute": "traceroute", "iperf3": "iperf3", "ss": "iproute2"}
    if missing := [package for program, package in packages.items() if not shutil.which(program)]:
        raise Failed(f"programs are missing: apt-get install {' '.join(missing)}")
