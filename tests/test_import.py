"""Route tables: text and MRT, compressed and not, with lines that are wrong."""

import bz2
import gzip
import ipaddress
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from lib.lab import HOST_A_MAC, LEFT_MAC, PORTS, Wires
from lib.packets import ethernet, ipv4, pattern
from lib.router import Change, binary
from lib.terminal import Terminal

VIA4 = ("10.0.1.2", "10.0.2.2")
VIA6 = ("fd00:1::2", "fd00:2::2")


def loaded(lab, name, content, via=VIA4):
    """A router with the table."""
    gateways = ", ".join(f'"{v}"' for v in via)
    return Wires(
        lab, f'turnpike.import {{ file = "{name}", via = {{ {gateways} }} }}\n', files={name: content}
    ).router


def imported(router):
    return {r["prefix"]: r for r in router.show("routes") if r["source"] == "import"}


TABLE = b"".join(
    f"{a}.{b}.0.0/16\t{64500 + (a * 7 + b) % 40}\n".encode() for a in range(20, 30) for b in range(100)
)


@pytest.mark.parametrize("name, pack", [
    ("table.dat", bytes), ("table.dat.gz", gzip.compress), ("table.dat.bz2", bz2.compress),
])
def test_text(lab, name, pack):
    router = loaded(lab, name, pack(TABLE))
    routes = imported(router)
    assert len(routes) == 1000 and "23.45.0.0/16" in routes
    assert re.search(r"1000|1,000", router.log())
    # Spread by origin AS: one AS, one gateway; both gateways are used.
    gateway = {}
    for line in TABLE.decode().splitlines():
        prefix, origin = line.split("\t")
        (path,) = routes[prefix]["paths"]
        assert gateway.setdefault(origin, path["via"]) == path["via"]
    assert set(gateway.values()) == set(VIA4)
    router.stop()


def test_refused_lines_are_named(lab):
    table = b"\n".join([
        b"8.8.8.0/24\t15169",
        b"8.8.8.8/24\t15169",       # 2: host bits
        b"300.1.2.0/24\t1",         # 3: no address
        b"9.9.9.0/33\t1",           # 4: no length
        b"9.9.9.0/24\tx",           # 5: no AS
        b"hello",                   # 6
        b"9.9.9.0/24\t19281",
        b"2001:db8::/32\t64500",    # 8: there is no IPv6 gateway
        b"",
    ])
    router = loaded(lab, "table.dat", table)
    log = router.log()
    assert set(imported(router)) == {"8.8.8.0/24", "9.9.9.0/24"}
    for line in (2, 3, 4, 5, 6):
        assert re.search(rf"(table\.dat:{line}\b|line {line}\b)", log), f"line {line} is not named:\n{log}"
    router.stop()


def test_ipv6(lab):
    table = b"".join(f"2001:{i:x}::/32\t{64500 + i % 30}\n".encode() for i in range(0x400, 0x500))
    router = loaded(lab, "six.dat", table, VIA6)
    routes = imported(router)
    assert len(routes) == 256
    assert {r["paths"][0]["via"] for r in routes.values()} == set(VIA6)
    assert router.show("route", "2001:4ab::77")["prefix"] == "2001:4ab::/32"
    router.stop()


def test_both_families_in_one_table(lab):
    router = loaded(lab, "both.dat", b"8.8.8.0/24\t1\n2001:db8::/32\t2\n", VIA4 + VIA6)
    assert set(imported(router)) == {"8.8.8.0/24", "2001:db8::/32"}
    router.stop()


# --- MRT TABLE_DUMP_V2 (RFC 6396), written by hand ----------------------------------------------


def mrt(subtype, body):
    return struct.pack("!IHHI", 1_400_000_000, 13, subtype, len(body)) + body


def attribute(kind, value):
    return struct.pack("!BBB", 0x40, kind, len(value)) + value


def rib(sequence, prefix, origins):
    """A RIB entry with one path for each origin AS."""
    net = ipaddress.ip_network(prefix)
    octets = net.network_address.packed[: (net.prefixlen + 7) // 8]
    entries = b""
    for origin in origins:
        path = struct.pack("!BBIII", 2, 3, 64496, 64497, origin)
        attributes = attribute(1, b"\0") + attribute(2, path)
        entries += struct.pack("!HIH", 0, 1_400_000_000, len(attributes)) + attributes
    body = struct.pack("!IB", sequence, net.prefixlen) + octets + struct.pack("!H", len(origins)) + entries
    return mrt(2 if net.version == 4 else 4, body)


PEERS = mrt(1, struct.pack("!IHH", 0x0A000001, 0, 1) + struct.pack("!B4s4sI", 2, b"\x0a\0\0\x01", b"\x0a\0\0\x02", 64496))
DUMP = PEERS + b"".join(
    rib(n, p, o) for n, (p, o) in enumerate([
        ("8.8.8.0/24", [15169]), ("1.0.0.0/9", [13335, 7]), ("200.1.2.128/25", [65551]),
        ("2001:db8::/32", [64511]), ("0.0.0.0/0", [64500]),
    ])
)


@pytest.mark.parametrize("name, pack", [("rib", bytes), ("rib.gz", gzip.compress), ("rib.bz2", bz2.compress)])
def test_mrt(lab, name, pack):
    router = loaded(lab, name, pack(DUMP), VIA4 + VIA6)
    assert set(imported(router)) == {
        "8.8.8.0/24", "1.0.0.0/9", "200.1.2.128/25", "2001:db8::/32", "0.0.0.0/0"}
    assert router.show("route", "200.1.2.200")["prefix"] == "200.1.2.128/25"
    router.stop()


def test_mrt_that_ends_in_the_middle(lab):
    wires = Wires(lab, wait=False, config=(
        'turnpike.import { file = "rib", via = { "10.0.1.2", "fd00:1::2" } }\n'), files={"rib": DUMP[:-9]})
    assert wires.router.process.wait(20) == 1
    assert "rib" in wires.router.log() and "panicked" not in wires.router.log()


# --- generated tables -------------------------------------------------------------------------------


def generate(count, path):
    return subprocess.run([binary(), "generate-table", str(count), str(path)], capture_output=True, text=True)


def test_a_generated_table_is_loaded_and_used(lab, tmp_path):
    path = tmp_path / "table.dat.gz"
    done = generate(50_000, path)
    assert done.returncode == 0, done.stderr
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert len(lines) == 50_000
    table = {}
    for line in lines:
        prefix, origin = line.split("\t")
        assert int(origin) > 0
        table[ipaddress.ip_network(prefix)] = origin
    assert len(table) == 50_000, "prefixes are repeated"
    lengths = {net.prefixlen for net in table}
    assert len(lengths) > 8 and 24 in lengths

    wires = Wires(lab, 'turnpike.import { file = "table.dat.gz", via = { "10.0.1.2", "10.0.2.2" } }\n',
                  files={"table.dat.gz": path.read_bytes()}, calm=True)
    router = wires.router
    assert len(imported(router)) == 50_000
    # Every hundredth and its neighbours, compared with a linear search of the list.
    by_length = {length: {n.network_address for n in table if n.prefixlen == length} for length in lengths}
    frames = 0
    change = Change(router)
    for net in list(table)[::700]:
        for address in (net.network_address, net.broadcast_address):
            expected = longest(by_length, address)
            answer = router.show("route", address)
            assert answer["prefix"] == str(expected)
            if address == net.network_address and not answer["type"] == "local":
                via = answer["paths"][0]["via"]
                wires.left.send(ethernet(LEFT_MAC, HOST_A_MAC, 0x0800, ipv4("10.0.1.2", str(address), pattern(20))))
                side = wires.left if via == "10.0.1.2" else wires.right
                assert [f[30:34] for f in side.expect(1)] == [address.packed]
                frames += 1
    assert change(received=frames) == {"received": frames, "sent": frames}
    router.stop()


def longest(by_length, address):
    for length in sorted(by_length, reverse=True):
        net = ipaddress.ip_network((int(address) >> (32 - length) << (32 - length) if length else 0, length))
        if net.network_address in by_length[length]:
            return net
    return None


def test_a_generated_table_is_the_same_each_time(tmp_path):
    a, b = tmp_path / "a.dat", tmp_path / "b.dat"
    assert generate(2000, a).returncode == 0 and generate(2000, b).returncode == 0
    assert a.read_bytes() == b.read_bytes()


def test_a_table_that_cannot_be_written(tmp_path):
    done = generate(10, tmp_path / "nowhere" / "table.dat")
    assert done.returncode != 0 and "nowhere" in done.stderr and "panicked" not in done.stderr


# --- a table that takes long -----------------------------------------------------------------------

LARGE = b"".join(f"{a}.{b}.{c}.0/24\t64500\n".encode() for a in range(20, 30) for b in range(200) for c in range(250))


@pytest.fixture
def at_a_terminal(lab):
    """Runs the binary with a large table at a terminal; `close` ends it."""
    wires, made = Wires(lab, start=False), []

    def start(command, *options):
        directory = Path(tempfile.mkdtemp(prefix="turnpike-test-"))
        lab._made.callback(shutil.rmtree, directory, ignore_errors=True)
        (directory / "table").write_bytes(LARGE)
        (directory / "router.lua").write_text(PORTS + 'turnpike.import { file = "table", via = "10.0.2.2" }\n')
        argv = wires.inside.command(binary(), command, directory / "router.lua", *options)
        made.append(Terminal(shutil.which(argv[0]), *argv[1:]))
        return made[-1]

    yield start, wires.inside
    for terminal in made:
        terminal.close()


def test_an_import_shows_how_far_it_is(at_a_terminal):
    start, _ = at_a_terminal
    terminal = start("check")
    terminal.wait_for(r"import .*table: reading \[[=> ]+", 60)
    assert terminal.ends(60) == 0
    assert "500000 prefixes, 0 lines refused" in terminal.screen


def test_a_router_that_imports_can_be_ended(at_a_terminal, tmp_path):
    start, inside = at_a_terminal
    terminal = start("run", "--socket", tmp_path / "router.sock")
    terminal.wait_for(r"import .*table: (reading|loading)", 60)
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ends(60) == 0
    assert "SIGTERM: ended while it started" in terminal.screen and "ready" not in terminal.screen
    assert "xdp" not in inside.links() and not (tmp_path / "router.sock").exists()
