"""Shared parts of the benchmarks: options, rounds in which rows take turns, files and plots, and the routers of the
experiments of the five systems.

Importing it makes the scenarios' library, `tests/lib`, importable.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
PLOTS = ROOT / "docs/plots"


def machine():
    """The machine and software of the measurement."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def named(about):
    """Describes the machine."""
    return f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}"


def options(documentation, runs, rows=None):
    """A parser with the common options: `--runs`, `--json` and, for a benchmark of several `rows`, `--rows`."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=runs, help=f"rounds; each measures every row ({runs})")
    if rows:
        parser.add_argument("--rows", default=",".join(rows), help=f"which ({','.join(rows)})")
    parser.add_argument("--json", metavar="FILE", help="write all runs there")
    return parser


def chosen(given, known):
    """The rows of `--rows`; ends unless all are known."""
    rows = given.rows.split(",")
    if unknown := [row for row in rows if row not in known]:
        sys.exit(f"--rows {unknown[0]}: not found; known: {', '.join(known)}")
    return rows


def need_two_cores(router="router"):
    """Ends on a machine where a router and the generator would share the core."""
    if len(cores()) < 2:
        sys.exit(f"the {router} and the generator need a core each: this machine has one")


def rounds(runs, rows, measure, say=json.dumps):
    """Measures every row in each round, so that other load of the machine affects all of them alike; prints each
    result. Returns the results by row."""
    results = {row: [] for row in rows}
    for number in range(runs):
        for row, done in results.items():
            done.append(measure(row))
            print(f"run {number + 1}/{runs} {row}: {say(done[-1])}", file=sys.stderr)
    return results


def write(file, about, **document):
    """Writes the runs, if a file was given."""
    if file:
        document = {"machine": about, "command": sys.argv[1:], **document}
        Path(file).write_text(json.dumps(document, indent=2) + "\n")


def run(main):
    """Runs a benchmark as root; prints the error of a command that failed."""
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run it as root")
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}: {error.stderr}")


# The experiments of the five systems: each is a set of parts, and a part is a figure.


def experiment(documentation, parts, runs=3):
    """Runs an experiment: `parts` are functions by name that take the options and return a `Part`. Prints
    every part, draws its plot, writes the file, and puts the lines into docs/benchmarks.md."""
    parser = options(documentation, runs)
    parser.add_argument("--parts", default=",".join(parts), help=f"which ({','.join(parts)})")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (1)")
    parser.add_argument("--cores", type=counts, metavar="N,N,…", default=range(1, len(cores()) + 1), help="numbers of cores, where a part compares them (all)")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/ as it is")
    given = parser.parse_args()
    if unknown := [name for name in given.parts.split(",") if name not in parts]:
        sys.exit(f"--parts {unknown[0]}: not found; known: {', '.join(parts)}")
    about = machine()
    name = Path(sys.argv[0]).stem
    print(named(about))
    done = {}
    for part in given.parts.split(","):
        done[part] = parts[part](given)
        print(f"\n{part}: {done[part].line()}", flush=True)
        if not given.no_docs:
            PLOTS.mkdir(exist_ok=True)
            if done[part].figure:
                plot(done[part].figure, PLOTS / f"{name}-{part}.svg")
            record(ROOT / "docs/benchmarks.md", f"{name}-{part}", done[part].text())
    write(given.json, about, parts={part: {"figure": d.figure, "line": d.line(), "runs": d.runs} for part, d in done.items()})


def counts(text):
    """Numbers of cores that this machine has."""
    numbers = [int(word) for word in text.split(",")]
    if unknown := [number for number in numbers if not 1 <= number <= len(cores())]:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: this machine has {len(cores())} cores")
    return numbers


class Part:
    """Result of one part of an experiment.

    `figure` is what `turnpike bench plot` draws, `runs` all that was measured, `said` a sentence with the
    result, `published` what the system's authors say of theirs, `table` the lines of a table to stand above."""

    def __init__(self, figure, runs, said, published, table=""):
        self.figure, self.runs, self.said, self.published, self.table = figure, runs, said, published, table

    def line(self):
        """Our result beside the published one."""
        return f"{self.said} Published: {self.published}"

    def text(self):
        """The part as it stands in the document."""
        return (f"{self.table}\n" if self.table else "") + wrapped(self.line())


def figure(title, x, y, series, words=(), log_x=False, log_y=False):
    """A figure: series are lists of points by name, or bars where there are words along the x axis."""
    return {
        "title": title, "x": x, "y": y, "words": list(words), "log_x": log_x, "log_y": log_y,
        "series": [{"name": str(name), "points": [list(point) for point in points]} for name, points in series.items()],
    }


def plot(drawn, file):
    """Draws it."""
    from lib.router import binary

    with tempfile.NamedTemporaryFile("w", suffix=".json") as figure_file:
        json.dump(drawn, figure_file)
        figure_file.flush()
        subprocess.run([binary(), "bench", "plot", figure_file.name, str(file)], check=True)


def record(document, key, part):
    """Replaces the text between a key's marks in a document, if it has them."""
    text = document.read_text()
    begin, end = f"<!-- bench: {key} -->\n", "<!-- end -->"
    if begin not in text:
        print(f"{document.name} has no place for {key}", file=sys.stderr)
        return
    start = text.index(begin) + len(begin)
    document.write_text(text[:start] + part + text[text.index(end, start):])


def wrapped(line, width=108):
    """A paragraph, broken into lines."""
    import textwrap

    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) + "\n"


def sweep(runs, values, measure):
    """Measures every value in each round; returns pairs of value and median, and all measurements."""
    results = {value: [] for value in values}
    for number in range(runs):
        for value, done in results.items():
            done.append(measure(value))
            print(f"run {number + 1}/{runs} {value}: {done[-1]}", file=sys.stderr)
    return {value: statistics.median(done) for value, done in results.items()}, results


def turnpike(*argv):
    """The JSON of a `turnpike` command that needs no router."""
    from lib.router import binary

    done = subprocess.run([binary(), *map(str, argv), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"turnpike {' '.join(map(str, argv))}: {done.stderr}")
    return json.loads(done.stdout)


def built(name):
    """The programs of another router, which its script builds unless they are there."""
    return subprocess.run([ROOT / f"scripts/build-{name}.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def cores():
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def pcap_mac(port):
    """The address of a capture-file port, as its driver makes it."""
    return f"02:70:63:61:70:{port:02x}"


def frame_to(mac, address, size):
    """A UDP frame to an IPv4 address, `size` bytes with FCS."""
    from lib.packets import ethernet, ipv4, udp

    data = bytes(size - 4 - 14 - 20 - 8)
    packet = ipv4("198.18.0.1", address, udp("198.18.0.1", address, 1024, 9, data))
    return ethernet(mac, "02:00:00:00:00:99", 0x0800, packet)


def forwarders_on(used, more=""):
    """The configuration of forwarders on these cores that shed nothing, with more settings."""
    return f'turnpike.forwarders {{ cores = "{",".join(map(str, used))}", shed = false, {more} }}'


class Flood:
    """A router whose ports are capture files, which its forwarders replay without end: the whole router, as fast as its
    cores permit, without a generator. Transmitted packets are dropped by the port.

    Port n has the address 10.n.0.1/24 (n from 1) and a neighbour 10.n.0.2. `destinations[n]` is what is sent
    into port n; `config` is added to the configuration, `forwarders` to the settings of forwarders."""

    def __init__(self, lab, destinations, config="", size=64, cores_used=None, queues=1, tx_burst=32, forwarders=""):
        from lib.packets import pcap_file

        space = lab.namespace("router", quiet=True)
        lines = ['local turnpike = require "turnpike"']
        files, frames = {}, 0
        for index, addresses in enumerate(destinations):
            port = index + 1
            files[f"in{port}.pcap"] = pcap_file([frame_to(pcap_mac(index), address, size) for address in addresses])
            frames += len(addresses) * queues
            play = ",".join([f"rx_pcap=in{port}.pcap"] * queues)
            lines.append(
                f'turnpike.port "p{port}" {{ device = "net_pcap{index},{play},infinite_rx=1", address = "10.{port}.0.1/24" }}'
            )
            lines.append(f'turnpike.neighbour "10.{port}.0.2" {{ port = "p{port}", mac = "02:00:00:00:{port:02x}:02" }}')
        used = cores_used or cores()[-1:]
        lines.append(forwarders_on(used, forwarders))
        lines.append(f"turnpike.tx {{ burst = {tx_burst} }}")
        # The frames, and room for packets in progress.
        mbufs = frames + 4096 * len(destinations) * queues + 16_384
        lines.append(f"turnpike.memory {{ mbufs = {mbufs} }}")
        self.router = lab.router(space, "\n".join(lines) + "\n" + config, files=files)

    def rate(self, seconds):
        """Million packets per second that leave."""
        time.sleep(0.3)
        before, start = self._sent(), time.monotonic()
        time.sleep(seconds)
        after, end = self._sent(), time.monotonic()
        if after == before:
            raise RuntimeError(f"nothing leaves: {self.router.show('counters')['dropped']}")
        return (after - before) / (end - start) / 1e6

    def _sent(self):
        return self.router.show("counters")["sent"]


def flood_rate(seconds, **settings):
    """The rate of a flooded router, which is started for it."""
    from lib.lab import Lab

    lab = Lab()
    try:
        return Flood(lab, **settings).rate(seconds)
    finally:
        lab.close()


class Veths:
    """Hosts on veth pairs with Turnpike or the kernel's forwarding between them; a generator has the hosts' ends.
    `count` ports with addresses 10.n.0.1/24; hosts are 10.n.0.2, with known MACs."""

    def __init__(self, lab, by, count=2, config="", settings=None, before=""):
        """`settings`: further settings of ports, by number; `config`: further configuration of the router; `before`:
        configuration before its ports."""
        from lib.netns import veth

        self.router_side = lab.namespace("router", quiet=True)
        self.tester = lab.namespace("tester", quiet=True)
        self.macs = {}
        lines = ['local turnpike = require "turnpike"', before]
        for port in range(1, count + 1):
            mac, host = f"02:00:00:00:{port:02x}:01", f"02:00:00:00:{port:02x}:02"
            self.macs[port] = mac
            more = (settings or {}).get(port, "")
            veth(self.router_side, f"tp-{port}", self.tester, f"g-{port}", mac, host)
            lines.append(f'turnpike.port "p{port}" {{ device = "tp-{port}", address = "10.{port}.0.1/24"{more} }}')
            lines.append(f'turnpike.neighbour "10.{port}.0.2" {{ port = "p{port}", mac = "{host}" }}')
            if by == "kernel":
                self.router_side.run("ip", "address", "add", f"10.{port}.0.1/24", "dev", f"tp-{port}")
                self.router_side.run("ip", "neighbour", "add", f"10.{port}.0.2", "lladdr", host, "dev", f"tp-{port}")
        self.router = None
        if by == "kernel":
            self.router_side.sysctl("net.ipv4.ip_forward", 1)
        else:
            self.router = lab.router(self.router_side, "\n".join(lines) + "\n" + config)

    def end(self, port):
        """The hosts' end of a port, as a device."""
        return f"g-{port}"

    def arrived(self, ports):
        """Packets that have arrived at the hosts of these ports so far."""
        return self._counted(ports, "rx_packets")

    def left(self, ports):
        """Packets that have left the hosts of these ports so far."""
        return self._counted(ports, "tx_packets")

    def _counted(self, ports, counter):
        files = [f"/sys/class/net/{self.end(port)}/statistics/{counter}" for port in ports]
        return sum(map(int, self.tester.run("cat", *files).stdout.split()))

    def generate(self, source, sink, rate, seconds, size=64, dscp="0", to=None, core=None):
        """Starts a generator from one port to another; `report` waits for it. `to`: other destinations than the sink's
        host, as `turnpike generate` takes them."""
        from lib.router import binary

        command = [
            binary(), "generate", "--device", self.end(source), "--receive", self.end(sink), "--to-mac", self.macs[source],
            "--from", f"10.{source}.0.2", "--to", to or f"10.{sink}.0.2", "--size", size, "--rate", rate, "--full", "lose",
            "--seconds", seconds, "--wait-ms", 200, "--cores", cores()[0] if core is None else core, "--no-huge", "--json", "--dscp", dscp,
        ]
        return subprocess.Popen(
            self.tester.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


class Memifs(Veths):
    """Turnpike and a generator with memif links between them: a device whose packets cost little to receive, as a
    NIC's do. Addresses as those of `Veths`."""

    def __init__(self, lab, count=2, config="", settings=None):
        self.tester = lab.namespace("tester", quiet=True)
        self.directory = tempfile.TemporaryDirectory()
        self.macs = {port: f"02:00:00:00:{port:02x}:01" for port in range(1, count + 1)}
        lines = ['local turnpike = require "turnpike"']
        for port, mac in self.macs.items():
            device, more = self.link("server", port, mac), (settings or {}).get(port, "")
            lines.append(f'turnpike.port "p{port}" {{ device = "{device}", address = "10.{port}.0.1/24"{more} }}')
            lines.append(f'turnpike.neighbour "10.{port}.0.2" {{ port = "p{port}", mac = "{mac[:-1]}2" }}')
        self.router = lab.router(lab.namespace("router", quiet=True), "\n".join(lines) + "\n" + config)

    def link(self, role, port, mac):
        return f"net_memif{port},role={role},socket-abstract=no,socket={self.directory.name}/{port}.sock,mac={mac}"

    def end(self, port):
        return self.link("client", port, f"{self.macs[port][:-1]}2")


def report(generator):
    """The final report of a generator."""
    out, err = generator.communicate(timeout=120)
    if generator.returncode != 0:
        raise RuntimeError(f"generate: {err}")
    return json.loads(out)


def cpu_seconds(pid, thread):
    """Processor time of a process's thread with this name."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == thread:
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise RuntimeError(f"process {pid} has no thread {thread}")
