"""NICs between the kernel's drivers and DPDK's: `turnpike devices`, `bind`, `unbind`, and ports with a driver."""

import json
import re
import signal

import pytest

from lib.netns import wait_for
from lib.router import binary

from .lib.hosts import Outside, ping, ports
from .lib.nic import KINDS, SHARED

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'
# The kernel's driver of each kind, and the module that makes the interface.
DRIVERS = {kind: (kind, kind) for kind in KINDS} | {"virtio": ("virtio-pci", "virtio_net"), SHARED: ("e1000", "e1000")}
RULES = "/etc/udev/rules.d"


def interface(machine, nic):
    """The name of a NIC's kernel interface, None without."""
    base = f"/sys/bus/pci/devices/{nic.pci}"
    found = machine.glob(f"{base}/net/*") + machine.glob(f"{base}/virtio*/net/*")
    return found[0].rsplit("/", 1)[1] if found else None


def to_kernel(machine, nic):
    """Binds a NIC to the kernel's driver, as at the machine's start; returns its interface's name."""
    driver, module = DRIVERS[nic.kind]
    machine.modprobe(module)
    machine.bind(nic, driver)
    machine.write_setting(f"/sys/bus/pci/devices/{nic.pci}/driver_override", "\n")
    return wait_for(lambda: interface(machine, nic), 20, 0.2)


def turnpike(machine, *argv, check=True):
    """A command that needs no router, completed."""
    return machine.run(binary(), *argv, check=check)


def refused(machine, *argv):
    """Output of a command that must be refused."""
    done = turnpike(machine, *argv, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


def listed(machine, nic):
    """A NIC in the list of devices."""
    devices = json.loads(turnpike(machine, "devices", "--json").stdout)
    return {one["pci"]: one for one in devices["nics"]}[nic.pci]


def link(machine, name):
    """A kernel interface as `ip` shows it."""
    return json.loads(machine.run("ip", "-json", "address", "show", "dev", name).stdout)[0]


def domain(machine, nic):
    """The kind of the domain of a NIC's IOMMU group."""
    return machine.read(f"/sys/bus/pci/devices/{nic.pci}/iommu_group/type").strip()


class Taken(Outside):
    """The host at a NIC that the kernel has, and that a router's port binds by the interface's name."""

    def __init__(self, machine, nic, side, driver="vfio-pci"):
        self.name = to_kernel(machine, nic)
        super().__init__(machine, nic, side, DRIVERS[nic.kind][0])
        self.device, self.settings = self.name, f', driver = "{driver}"'


def is_back(machine, host):
    """Checks that the kernel has the NIC again, with its interface."""
    return machine.driver(host.nic) == DRIVERS[host.nic.kind][0] and interface(machine, host.nic) == host.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_nic_is_listed_bound_and_given_back(machine, kind):
    nic = machine.nic(kind)
    name = to_kernel(machine, nic)
    machine.run("ip", "link", "set", name, "mtu", 1400, "up")
    told = listed(machine, nic)
    driver = DRIVERS[kind][0]
    assert told["driver"] == driver and {driver, "vfio-pci", "uio_pci_generic"} <= set(told["drivers"])
    assert told["state"] == "idle" and told["used_by"] == []
    assert told["numa_node"] == nic.node or nic.node is None
    assert told["iommu_group"] == int(machine.iommu_group(nic))
    (shown,) = told["interfaces"]
    assert (shown["name"], shown["mac"]) == (name, nic.mac) and shown["link"] in ("up", "no carrier")
    assert re.search(rf"^ *{nic.pci} +{driver} .* {name} .*{nic.mac}", turnpike(machine, "devices").stdout, re.M)

    said = turnpike(machine, "bind", nic.pci).stdout
    assert said == f"{nic.pci}: bound to vfio-pci; it was to {driver}\n"
    assert machine.driver(nic) == "vfio-pci"
    told = listed(machine, nic)
    assert told["state"] == "free" and told["driver_before"] == driver and told["interfaces"] == []
    assert turnpike(machine, "bind", nic.pci).stdout == f"{nic.pci}: bound to vfio-pci already\n"

    assert turnpike(machine, "unbind", nic.pci).stdout == f"{nic.pci}: given back to {driver}\n"
    assert machine.driver(nic) == driver and interface(machine, nic) == name
    after = link(machine, name)
    assert after["mtu"] == 1400 and "UP" in after["flags"] and after["address"] == nic.mac
    assert machine.read(f"/sys/bus/pci/devices/{nic.pci}/driver_override").strip() == "(null)"


def test_the_name_comes_back(machine):
    nic = machine.nic("e1000e")
    name = to_kernel(machine, nic)
    machine.run("ip", "link", "set", name, "down")
    machine.run("ip", "link", "set", name, "name", "uplink7")
    try:
        turnpike(machine, "bind", nic.pci)
        turnpike(machine, "unbind", nic.pci)
        assert interface(machine, nic) == "uplink7"
    finally:
        machine.run("ip", "link", "set", "uplink7", "down")
        machine.run("ip", "link", "set", "uplink7", "name", name)


def test_addresses_and_the_default_route_are_not_cut_off(machine):
    nic = machine.nic("e1000e")
    name = to_kernel(machine, nic)
    machine.run("ip", "address", "add", "10.9.0.1/24", "dev", name)
    machine.run("ip", "link", "set", name, "up")
    assert f"{nic.pci} carries 10.9.0.1/24 on {name};" in refused(machine, "bind", nic.pci)
    machine.run("ip", "route", "add", "default", "via", "10.9.0.2", "dev", name)
    assert f"carries the default route over {name}, 10.9.0.1/24" in refused(machine, "bind", nic.pci)
    # A VLAN over it counts as well.
    machine.run("ip", "route", "del", "default")
    machine.run("ip", "address", "del", "10.9.0.1/24", "dev", name)
    machine.run("ip", "link", "add", "link", name, "name", "vlan9", "type", "vlan", "id", 9)
    machine.run("ip", "address", "add", "10.9.9.1/24", "dev", "vlan9")
    assert "10.9.9.1/24 on vlan9" in refused(machine, "bind", nic.pci)
    machine.run("ip", "link", "del", "vlan9")
    assert machine.driver(nic) == "e1000e"
    # By force; the address returns.
    machine.run("ip", "address", "add", "10.9.0.1/24", "dev", name)
    said = turnpike(machine, "bind", nic.pci, "--force").stdout
    assert f"cut off: 10.9.0.1/24 on {name};" in said
    turnpike(machine, "unbind", nic.pci)
    addresses = [f"{one['local']}/{one['prefixlen']}" for one in link(machine, name)["addr_info"]]
    assert "10.9.0.1/24" in addresses
    machine.run("ip", "address", "flush", "dev", name)


def test_wrong_devices_and_drivers_are_named(machine):
    nic = machine.nic("e1000e")
    to_kernel(machine, nic)
    assert "PCI device 0000:ff:1f.7 not found; NICs: " in refused(machine, "bind", "ff:1f.7")
    assert '"eth1": not a PCI address' in refused(machine, "bind", "eth1")
    said = refused(machine, "bind", nic.pci, "--driver", "nonsense")
    assert "driver nonsense not found" in said and "known: e1000e, vfio-pci, uio_pci_generic" in said
    # An existing driver that does not accept the NIC: everything is as before.
    said = refused(machine, "bind", nic.pci, "--driver", "vmxnet3")
    assert f"{nic.pci} cannot be bound to vmxnet3" in said
    assert machine.driver(nic) == "e1000e"


def test_a_group_that_nics_share_is_bound_as_a_whole(machine):
    one, other = (machine.nic(SHARED, index) for index in (0, 1))
    for nic in (one, other):
        to_kernel(machine, nic)
    told = listed(machine, one)
    assert machine.iommu_group(one) == machine.iommu_group(other)
    assert other.pci in [device["pci"] for device in told["group_others"]], told
    said = refused(machine, "bind", one.pci)
    group = int(machine.iommu_group(one))
    assert f"{one.pci} is in IOMMU group {group} with " in said and f"{other.pci} (e1000)" in said
    # The driver for hot plugging of the bridge prevents it as well.
    if bridge := re.search(r"echo (\S+) > (\S+/unbind)", said):
        machine.write_setting(bridge[2], bridge[1])
        said = refused(machine, "bind", one.pci)
    assert f"with {other.pci} (e1000), which the kernel uses" in said
    assert f"bind them together: turnpike bind {one.pci} {other.pci}" in said
    assert machine.driver(one) == "e1000"
    said = refused(machine, "bind", one.pci, "--driver", "uio_pci_generic")
    assert f"this one translates for group {group}, in which are" in said and other.pci in said
    # A port alone does not get it either; the two together do.
    hosts = [Taken(machine, nic, side) for side, nic in enumerate((one, other), 1)]
    machine.write("/run/one.lua", ports(hosts[0]) + FORWARDERS)
    assert f"is in IOMMU group {group} with {other.pci} (e1000)" in refused(machine, "check", "/run/one.lua")
    router = machine.router(ports(*hosts) + FORWARDERS)
    try:
        for family in (4, 6):
            ping(*hosts, family)
        router.stop()
    finally:
        router.close()
    assert all(is_back(machine, host) for host in hosts)
    turnpike(machine, "bind", one.pci, other.pci)
    assert [machine.driver(nic) for nic in (one, other)] == ["vfio-pci", "vfio-pci"]
    # A missing one does not prevent the others.
    said = refused(machine, "unbind", one.pci, "ff:1f.7", other.pci)
    assert "PCI device 0000:ff:1f.7 not found; NICs: " in said
    assert all(f"{nic.pci}: given back to e1000" in said for nic in (one, other))
    assert [machine.driver(nic) for nic in (one, other)] == ["e1000", "e1000"]


def test_what_is_remembered_is_a_rule_of_udev(machine):
    nic = machine.nic("e1000e")
    to_kernel(machine, nic)
    rule = f"{RULES}/05-turnpike-{nic.pci}.rules"
    assert f"{nic.pci}: written: {rule}\n" in turnpike(machine, "bind", nic.pci, "--remember").stdout
    text = machine.read(rule)
    assert f'KERNEL=="{nic.pci}"' in text and 'ATTR{driver_override}="vfio-pci"' in text
    # Its command has its effect also if the kernel's driver has the NIC already.
    machine.write("/run/rule.sh", re.search(r"/bin/sh -c '(.*)'", text)[1])
    machine.bind(nic, "e1000e")
    machine.write_setting(f"/sys/bus/pci/devices/{nic.pci}/driver_override", "vfio-pci")
    machine.run("sh", "/run/rule.sh")
    assert machine.driver(nic) == "vfio-pci" and listed(machine, nic)["remembered"]
    # After a restart of the machine, /run is empty.
    machine.run("rm", "-r", "/run/turnpike")
    assert f"{nic.pci}: removed: {rule}\n" in turnpike(machine, "unbind", nic.pci).stdout
    assert not machine.exists(rule) and machine.driver(nic) == "e1000e"


@pytest.fixture
def hosts(machine):
    """Hosts at an e1000e and a virtio NIC, both with the kernel."""
    made = [Taken(machine, machine.nic(kind), side) for side, kind in enumerate(("e1000e", "virtio"), 1)]
    yield made
    for host in made:
        turnpike(machine, "unbind", host.nic.pci, check=False)


def test_ports_bind_their_nics_and_give_them_back(machine, hosts):
    left, right = hosts
    text = ports(*hosts) + FORWARDERS
    machine.run("ip", "link", "set", left.name, "up")
    router = machine.router(text)
    try:
        assert [machine.driver(host.nic) for host in hosts] == ["vfio-pci", "vfio-pci"]
        for family in (4, 6):
            ping(left, right, family)
            ping(right, left, family)
        # They are not removed.
        told = listed(machine, left.nic)
        assert told["state"] == "program" and "(turnpike)" in told["used_by"][0]
        for command in ("bind", "unbind"):
            options = ("--force", "--driver", "uio_pci_generic") if command == "bind" else ()
            said = refused(machine, command, left.nic.pci, *options)
            assert f"{left.nic.pci} is in use by process {router.process.pid} (turnpike); stop that first" in said
        machine.write("/run/second.lua", text)
        assert "is in use by process" in refused(machine, "check", "/run/second.lua")
        router.stop()
    finally:
        router.close()
    assert all(is_back(machine, host) for host in hosts)
    assert "UP" in link(machine, left.name)["flags"]


@pytest.mark.long
def test_after_a_kill_they_are_given_back(machine, hosts):
    text = ports(*hosts) + FORWARDERS

    def killed():
        router = machine.router(text)
        router.process.send_signal(signal.SIGKILL)
        router.process.wait(60)
        assert machine.driver(hosts[0].nic) == "vfio-pci"

    # The same router takes them over by the names that they had.
    killed()
    router = machine.router(text)
    try:
        ping(*hosts, 4)
        router.stop()
    finally:
        router.close()
    assert all(is_back(machine, host) for host in hosts)
    # Another gives them back at its start.
    killed()
    null = 'local turnpike = require "turnpike"\nturnpike.port "null" { device = "net_null0" }\n'
    router = machine.router(null + FORWARDERS, wait=False)
    try:
        router.wait_ready()
        assert all(is_back(machine, host) for host in hosts)
        router.stop()
    finally:
        router.close()
    # So does a command.
    killed()
    for host in hosts:
        turnpike(machine, "unbind", host.nic.pci)
    assert all(is_back(machine, host) for host in hosts)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ports_by_uio_get_a_domain_that_does_not_translate(machine, kind):
    hosts = [Taken(machine, machine.nic(kind, index), index + 1, "uio_pci_generic") for index in (0, 1)]
    domains = [domain(machine, host.nic) for host in hosts]
    router = machine.router(ports(*hosts) + FORWARDERS)
    try:
        assert [domain(machine, host.nic) for host in hosts] == ["identity", "identity"]
        ping(*hosts, 4)
        ping(*hosts, 6)
        router.stop()
    finally:
        router.close()
    assert all(is_back(machine, host) for host in hosts)
    assert [domain(machine, host.nic) for host in hosts] == domains


@pytest.mark.long
def test_check_says_what_run_says_and_nothing_stays_bound(machine, hosts):
    left, right = hosts
    text = ports(*hosts) + FORWARDERS
    machine.run("ip", "address", "add", "10.9.0.1/24", "dev", right.name)
    machine.write("/run/check.lua", text)
    said = refused(machine, "check", "/run/check.lua")
    assert f'/run/check.lua:3: port "port2": {right.nic.pci} carries 10.9.0.1/24 on {right.name};' in said
    ran = refused(machine, "run", "/run/check.lua", "--socket", "/run/check.sock")
    assert said.strip() in ran and is_back(machine, left)
    machine.run("ip", "address", "flush", "dev", right.name)
    assert turnpike(machine, "check", "/run/check.lua").stdout.startswith("/run/check.lua: OK: 2 ports")
    # Without driver, the NIC must be bound.
    machine.write("/run/check.lua", text.replace(f'"{left.name}"', f'"{left.nic.pci}"').replace(left.settings, "", 1))
    said = refused(machine, "check", "/run/check.lua")
    assert f"{left.nic.pci} is bound to e1000e, which leaves it to the kernel; bind it: turnpike bind" in said
    # An error after the binding: a core that DPDK cannot have, or a queue too many.
    machine.write("/run/check.lua", text.replace(right.settings, right.settings + ", rx_queues = 64"))
    ran = refused(machine, "run", "/run/check.lua", "--socket", "/run/check.sock")
    assert "rx_queues 64" in ran
    assert all(is_back(machine, host) for host in hosts)


def test_a_port_that_is_applied_binds_and_one_that_goes_gives_back(machine, hosts):
    left, right = hosts
    router = machine.router(ports(left) + FORWARDERS)
    apply = lambda text: (machine.write("/run/next.lua", text), router.command("apply", "/run/next.lua"))  # noqa: E731
    try:
        apply(ports(*hosts) + FORWARDERS)
        assert machine.driver(right.nic) == "vfio-pci"
        ping(left, right, 4)
        apply(ports(left) + FORWARDERS)
        assert wait_for(lambda: is_back(machine, right), 30, 0.2), router.log()
        # One that cannot be opened stays with the kernel.
        machine.write("/run/next.lua", ports(*hosts).replace(right.settings, right.settings + ", rx_queues = 64") + FORWARDERS)
        assert router.command("apply", "/run/next.lua", check=False).returncode == 1
        assert wait_for(lambda: is_back(machine, right), 30, 0.2), router.log()
        left.run("ping", "-c", 1, "-W", 10, "10.0.1.1")
        router.stop()
    finally:
        router.close()
    assert is_back(machine, left)


def test_a_nic_that_is_unplugged_is_bound_again_when_it_is_back(machine, hosts):
    left, right = hosts
    router = machine.router(ports(*hosts) + FORWARDERS)
    try:
        ping(left, right, 4)
        machine.unplug(left.nic)
        shown = lambda: {port["name"]: port for port in router.show("ports")}["port1"]["link"]  # noqa: E731
        assert wait_for(lambda: shown() == "gone", 10), router.log()
        # The kernel's driver takes it at once.
        machine.plug(left.nic)
        assert wait_for(lambda: shown() == "up", 60, 0.2), router.log()
        assert machine.driver(left.nic) == "vfio-pci"
        ping(left, right, 4)
        router.stop()
    finally:
        router.close()
    assert wait_for(lambda: is_back(machine, left), 10, 0.2)
