"""`turnpike doctor` on a machine with NICs, an IOMMU and two nodes: its findings, and the effect of its commands."""

import json
import re

import pytest

from lib.router import binary

FILE = "/run/doctor.lua"


def configuration(*nics, cores="1", more=""):
    """A router with a port for each NIC, or with a virtual one."""
    lines = (
        f'turnpike.port "{nic.kind}{nic.index}" {{ device = "{nic.pci}", address = "10.9.{number}.1/24" }}\n'
        for number, nic in enumerate(nics)
    )
    listed = "".join(lines) or 'turnpike.port "null" { device = "net_null0" }\n'
    return f'local turnpike = require "turnpike"\n{listed}turnpike.forwarders {{ cores = "{cores}" }}\n{more}'


def examine(machine, text):
    """The findings for a configuration, by check."""
    machine.write(FILE, text)
    done = machine.run(binary(), "doctor", FILE, "--json", check=False)
    told = json.loads(done.stdout)
    assert done.returncode == {"ok": 0, "note": 0, "warning": 1, "error": 2}[told["worst"]]
    findings = {}
    for finding in told["findings"]:
        findings.setdefault(finding["check"], []).append(finding)
    return findings


def severity(findings, check):
    """The highest severity of a check."""
    return findings[check][0]["severity"]


def mend(machine, findings, check, number=0):
    """Runs a command of a finding, as an operator would."""
    command = findings[check][0]["mend"][number]
    machine.run("sh", "-ec", command)


def test_a_nic_is_judged_by_its_driver(machine):
    nic = machine.nic("e1000e")
    text = configuration(nic)
    machine.bind(nic, "e1000e")
    findings = examine(machine, text)
    assert severity(findings, "driver") == "error" and nic.pci in findings["driver"][0]["found"]
    router = machine.router(text, wait=False)
    try:
        assert router.process.wait(60) == 1
        assert router.log().rstrip().splitlines()[-1] == f"run: turnpike doctor {router.config}"
    finally:
        router.close()
    machine.bind(nic, "uio_pci_generic")
    findings = examine(machine, text)
    assert severity(findings, "driver") == "note" and severity(findings, "hugepages") == "ok"
    short = examine(machine, configuration(nic, more="turnpike.memory { mbufs = 900000 }\n"))
    assert severity(short, "hugepages") == "error"
    machine.bind(nic, "vfio-pci")
    findings = examine(machine, text)
    checks = ("driver", "iommu", "iommu-group", "module", "locked-memory", "privileges", "configuration", "numa")
    assert {check: severity(findings, check) for check in checks} == dict.fromkeys(checks, "ok")
    assert "dmar0" in findings["iommu"][0]["found"]


def test_vfio_is_not_told_to_do_without_what_there_is(machine):
    allowed = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
    nic = machine.nic("e1000e")
    machine.bind(nic, "vfio-pci")
    text = configuration(nic)
    assert severity(examine(machine, text), "interrupt-remapping") == "ok"
    machine.write_setting(allowed, "Y")
    try:
        findings = examine(machine, text)
        assert severity(findings, "interrupt-remapping") == "note"
        mend(machine, findings, "interrupt-remapping")
        assert severity(examine(machine, text), "interrupt-remapping") == "ok"
    finally:
        machine.write_setting(allowed, "N")


def test_hugepages_are_reserved_on_the_node_that_lacks_them(machine):
    # Three quarters of what is needed on node 0, where there is half of what is reserved.
    text = configuration(cores="0,1,2", more="turnpike.memory { mbufs = 450000 }\n")
    findings = examine(machine, text)
    lacking = findings["hugepages"][0]
    assert lacking["severity"] == "warning" and lacking["found"].startswith("node 0: 800 MB are free"), lacking
    before = machine.read("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages").strip()
    mend(machine, findings, "hugepages")
    try:
        assert {one["severity"] for one in examine(machine, text)["hugepages"]} == {"ok"}
    finally:
        machine.write_setting("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", before)


def test_forwarders_are_moved_to_the_node_of_their_nic(machine):
    far = machine.nic("e1000e", 1)
    machine.bind(far, "vfio-pci")
    findings = examine(machine, configuration(far, cores="1"))
    assert severity(findings, "numa") == "warning"
    assert findings["numa"][0]["found"] == 'port "e1000e1": on node 1; forwarders on other nodes: 1'
    (line,) = findings["numa"][0]["mend"]
    cores = re.fullmatch(r'turnpike\.cores { forward = "(.*)" }', line)[1]
    assert severity(examine(machine, configuration(far, cores=cores)), "numa") == "ok"


@pytest.mark.parametrize("check", ["interrupts", "numa-balancing"])
def test_a_command_mends(machine, check):
    text = configuration(cores="1,2,3")
    if check == "numa-balancing":
        machine.write_setting("/proc/sys/kernel/numa_balancing", "1")
    findings = examine(machine, text)
    assert severity(findings, check) == "warning", findings[check]
    mend(machine, findings, check)
    assert severity(examine(machine, text), check) == "ok"


def test_topology_draws_both_nodes(machine):
    nics = [machine.nic("e1000e", index) for index in (0, 1)]
    for nic in nics:
        machine.bind(nic, "vfio-pci")
    router = machine.router(configuration(*nics, cores="1,3"))
    try:
        told = router.show("topology")
        assert [node["node"] for node in told["nodes"]] == [0, 1]
        assert [(one["core"], one["node"]) for one in told["forwarders"]] == [(1, 0), (3, 1)]
        assert [(port["device"], port["node"]) for port in told["ports"]] == [(nic.pci, nic.node) for nic in nics]
        # Lines are broken to fit a terminal.
        text = " ".join(router.command("show", "topology").stdout.replace("|", " ").split())
        assert "distance to node 1: 20" in text and text.rindex("node 1:") < text.index("port e1000e1"), text
        router.stop()
    finally:
        router.close()


def test_without_locked_memory_a_nic_does_not_start(machine):
    nic = machine.nic("e1000e")
    machine.bind(nic, "vfio-pci")
    machine.write(FILE, configuration(nic))
    unprivileged = ["prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock"]
    told = json.loads(machine.run(*unprivileged, binary(), "doctor", FILE, "--json", check=False).stdout)
    (locked,) = [finding for finding in told["findings"] if finding["check"] == "locked-memory"]
    assert locked["severity"] == "error" and locked["found"] == "64 kB may be locked by user 0"
    started = machine.run(*unprivileged, binary(), "run", FILE, "--socket", "/run/doctor.sock", check=False, timeout=90)
    assert started.returncode == 1
    assert started.stderr.rstrip().splitlines()[-1] == f"run: turnpike doctor {FILE}", started.stderr
