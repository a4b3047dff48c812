"""`turnpike doctor` on this machine, and the references of `turnpike run` to it; `show topology`."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from lib.lab import PORTS, Wires, ports_by
from lib.router import binary

ROUTER = 'local turnpike = require "turnpike"\n'
NULL = ROUTER + 'turnpike.port "a" { device = "net_null0" }\n'
SEVERITIES = ["error", "warning", "note", "ok"]


@pytest.fixture
def write(tmp_path):
    """Writes a configuration readable by all users; returns its name."""
    tmp_path.chmod(0o755)

    def write(text, name="router.lua"):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(0o644)
        return file

    return write


def doctor(*argv, wrap=()):
    """`turnpike doctor` completed."""
    command = [*wrap, binary(), "doctor", *argv]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
    assert "panicked" not in done.stderr, done.stderr
    return done


def report(*argv, wrap=()):
    """The report of `--json`, after a check of its form and the exit status."""
    done = doctor(*argv, "--json", wrap=wrap)
    told = json.loads(done.stdout)
    found = told["findings"]
    severities = [finding["severity"] for finding in found]
    assert severities == sorted(severities, key=SEVERITIES.index) and told["worst"] == severities[0]
    assert done.returncode == {"ok": 0, "note": 0, "warning": 1, "error": 2}[told["worst"]]
    for finding in found:
        assert finding["check"] and finding["found"]
        # A warning states its cost, and the remedy or that there is none.
        assert finding.get("cost") or finding["severity"] in ("ok", "note")
    return told


def of(told, check):
    """The only finding of a check."""
    (finding,) = [finding for finding in told["findings"] if finding["check"] == check]
    return finding


def test_a_machine_is_examined_without_a_configuration():
    told = report()
    assert told["file"] is None and of(told, "configuration")["severity"] == "note"
    assert of(told, "kernel")["found"] == f"Linux {os.uname().release}"
    assert of(told, "privileges")["severity"] == of(told, "locked-memory")["severity"] == "ok"
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    assert f", {len(os.sched_getaffinity(0))} cores" in of(told, "processor")["found"], online


# Checks of the present state: two runs may differ.
MOMENTARY = ("preemption", "processes")


def test_text_and_json_say_the_same(write):
    file = write(NULL)
    told, text = report(file), doctor(file).stdout
    *blocks, end = re.split(r"^(?=(?:error|warning|note|ok) +[\w-]+:|errors )", text, flags=re.M)[1:]
    heads = [re.match(r"(\w+) +([\w-]+):", block).groups() for block in blocks]
    findings = [finding for finding in told["findings"] if finding["check"] not in MOMENTARY]
    steady = [(head, block) for head, block in zip(heads, blocks, strict=True) if head[1] not in MOMENTARY]
    assert [head for head, _ in steady] == [(finding["severity"], finding["check"]) for finding in findings]
    # Commands are on lines of their own, unbroken; all other text fits a terminal.
    commands = [command for finding in findings for command in finding.get("mend", [])]
    lines = [line for _, block in steady for line in block.splitlines()]
    assert [line.strip() for line in lines if line.startswith(" " * 11)] == commands
    prose = [line for line in lines if not line.startswith(" " * 11)]
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in prose)
    counts = {one: [head[0] for head in heads].count(one) for one in SEVERITIES}
    assert end.strip() == "errors {error}, warnings {warning}, notes {note}, ok {ok}".format(**counts)


def test_commands_name_files_that_are_there(write):
    told = report(write(NULL))
    commands = [command for finding in told["findings"] for command in finding.get("mend", [])]
    targets = re.findall(r"> (/(?:sys|proc)/[\w/.-]+)$", "\n".join(commands), re.M)
    assert all(os.access(target, os.W_OK) for target in targets), targets


def test_hugepages_are_what_the_configuration_needs(write):
    needed = {}
    for mbufs in (20_000, 200_000):
        file = write(NULL + f"turnpike.memory {{ mbufs = {mbufs} }}\n")
        needed[mbufs] = int(re.search(r"(\d+) MB are needed", of(report(file), "hugepages")["found"])[1])
    # Buffers have 2,048 bytes and 512 in addition.
    assert needed[200_000] - needed[20_000] == pytest.approx(180_000 * 2560 / 1e6, abs=1)


def test_every_core_for_forwarders_leaves_none(write):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) != os.cpu_count():
        pytest.skip("not every core is allowed here")
    all_cores = write(NULL + f'turnpike.forwarders {{ cores = "{",".join(map(str, cores))}" }}\n')
    assert of(report(all_cores), "control-plane")["severity"] == "warning"
    assert of(report(write(NULL)), "control-plane")["severity"] == ("ok" if len(cores) > 1 else "warning")


def test_what_the_kernel_says_of_xdp_is_asked_in_the_interfaces_namespace(lab):
    """A veth's driver has XDP, and no zero copy; in another namespace the interface does not exist."""
    wires = Wires(lab)
    wires.router.stop()
    config = wires.router.config
    told = json.loads(wires.inside.run(binary(), "doctor", config, "--json", check=False).stdout)
    found = [finding for finding in told["findings"] if finding["check"] == "zero-copy"]
    assert len(found) == 2
    release = tuple(map(int, re.match(r"(\d+)\.(\d+)", os.uname().release).groups()))
    expected = "its driver has XDP, but copies packets" if release >= (6, 3) else "cannot tell"
    assert all(expected in finding["found"] and finding["severity"] == "note" for finding in found), found
    outside = doctor(config, "--json")
    missing = [one for one in json.loads(outside.stdout)["findings"] if one["check"] == "configuration"]
    assert outside.returncode == 2 and len(missing) == 2
    assert all("not found" in one["found"] and one["severity"] == "error" for one in missing)


def test_a_wrong_file_is_an_error_among_the_other_findings(write, tmp_path):
    for number, (text, expected) in enumerate([
        (NULL + 'turnpike.port "a" {}\n', "0.lua:3: "),
        ("\x00\x7f", "1.lua"),
        (NULL + 'turnpike.forwarders { cores = "4000" }\n', "core 4000 does not exist"),
        (NULL + 'turnpike.port "b" { device = "0000:ff:1f.7" }\n', "PCI device 0000:ff:1f.7 not found"),
        (None, "4.lua: cannot be read"),
    ]):
        file = tmp_path / f"{number}.lua" if text is None else write(text, f"{number}.lua")
        told = report(file)
        wrong = of(told, "configuration")
        assert wrong["severity"] == "error" and expected in wrong["found"], wrong
        assert told["file"] == str(file) and len(told["findings"]) > 12


def test_an_unprivileged_user_with_little_locked_memory(write):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    told = report(write(NULL), wrap=[*nobody, "prlimit", "--memlock=65536:65536"])
    locked, privileges = of(told, "locked-memory"), of(told, "privileges")
    assert locked["found"] == "64 kB may be locked by user 65534" and locked["severity"] == "warning"
    assert any("LimitMEMLOCK=infinity" in command for command in locked["mend"])
    assert privileges["severity"] == "warning" and "CAP_NET_ADMIN" in privileges["found"]


def test_locked_memory_is_limited_where_there_is_no_privilege(write):
    file, limited = write(NULL), ["prlimit", "--memlock=1048576:1048576"]
    assert of(report(file, wrap=limited), "locked-memory")["severity"] == "ok"
    locked = of(report(file, wrap=[*limited, "setpriv", "--bounding-set=-ipc_lock"]), "locked-memory")
    assert (locked["severity"], locked["found"]) == ("warning", "1024 kB may be locked by user 0")


def test_run_points_to_it_for_errors_of_the_machine_only(write, tmp_path):
    def run(text, wrap=()):
        argv = [*wrap, binary(), "run", write(text), "--socket", tmp_path / "sock"]
        done = subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done
        return done.stderr.rstrip().splitlines()

    pointer = f"run: turnpike doctor {tmp_path / 'router.lua'}"
    for error in (
        run(NULL + 'turnpike.forwarders { cores = "4000" }\n'),
        # More than the machine has: DPDK's memory.
        run(NULL + "turnpike.memory { mbufs = 400000 }\n", wrap=["prlimit", "--as=900000000"]),
    ):
        assert error[-1] == pointer and len(error) > 1, error
    for error in (
        run(NULL + 'turnpike.port "a" {}\n'),
        run(NULL + 'turnpike.port "b" { device = "eth77" }\n'),
        run(NULL + 'turnpike.port "b" { device = "net_pcap0,rx_pcap=/none" }\n'),
    ):
        assert not any("turnpike doctor" in line for line in error), error


@pytest.mark.parametrize("driver", ["af_packet"])
def test_topology_shows_cores_queues_and_forwarders(lab, driver):
    cores = sorted(os.sched_getaffinity(0))[:2]
    listed = ",".join(map(str, cores))
    router = Wires(lab, f'turnpike.forwarders {{ cores = "{listed}" }}\n', ports_by(driver)).router
    told = router.show("topology")
    threads = [thread for node in told["nodes"] for core in node["cores"] for thread in core["threads"]]
    online = subprocess.run(["lscpu", "-p=cpu"], capture_output=True, text=True).stdout
    assert sorted(threads) == sorted(int(line) for line in online.splitlines() if not line.startswith("#"))
    assert [one["core"] for one in told["forwarders"]] == cores
    ports = {port["name"]: port for port in told["ports"]}
    shown = {port["name"]: port for port in router.show("ports")}
    assert ports.keys() == {"left", "right"}
    assert all(len(ports[name]["rx"]) == shown[name]["rx_queues"] for name in ports)
    served = [(q["port"], q["queue"], f["forwarder"]) for f in told["forwarders"] for q in f["queues"]]
    expected = [(name, queue, by) for name in ports for queue, by in enumerate(ports[name]["rx"])]
    assert sorted(served) == sorted(expected) and served
    text = router.command("show", "topology").stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    for one in told["forwarders"]:
        assert re.search(rf"forwarder {one['forwarder']} on {one['core']}: ", text), text
    assert text.startswith("node 0") and "port left: " in text
    router.stop()


def test_topology_follows_forwarders_and_ports(lab):
    from lib.apply import apply

    cores = sorted(os.sched_getaffinity(0))
    router = Wires(lab, f'turnpike.forwarders {{ cores = "{cores[0]}" }}\n').router
    assert [one["core"] for one in router.show("topology")["forwarders"]] == [cores[0]]
    apply(router, PORTS + f'turnpike.forwarders {{ cores = "{cores[-1]}" }}\n')
    assert [one["core"] for one in router.show("topology")["forwarders"]] == [cores[-1]]
    router.stop()
