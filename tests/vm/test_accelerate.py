"""`turnpike accelerate` on NICs that stay with the kernel's driver: every kind, native XDP where the driver has it."""

import pytest

from lib.kernel import reaches
from lib.netns import wait_for
from lib.router import binary
from lib.traffic import Sink, Stream, lost

from .lib.hosts import _join, address, ping
from .lib.nic import KINDS

DRIVERS = {kind: kind for kind in KINDS} | {"virtio": "virtio-pci"}
DATAGRAMS, DATAGRAMS_A_SECOND = 200, 100
# For which a NIC is without a link when its driver resets it, with emulated cores.
RESET_SECONDS = 5


class Kernel:
    """The host at a NIC of the kernel, which has the router's addresses of network `side`."""

    def __init__(self, machine, nic, side):
        machine.modprobe("virtio_net")
        machine.bind(nic, DRIVERS[nic.kind])
        self.nic, self.side, self.namespace = nic, side, nic.host
        base = f"/sys/bus/pci/devices/{nic.pci}"
        names = lambda: machine.glob(f"{base}/net/*") + machine.glob(f"{base}/virtio*/net/*")  # noqa: E731
        assert wait_for(names, 30, 0.1)
        self.device = names()[0].rpartition("/")[2]
        for command in (
            ["ip", "link", "set", self.device, "up"],
            ["ip", "address", "add", f"10.0.{side}.1/24", "dev", self.device],
            ["ip", "address", "add", f"fd00:{side}::1/64", "dev", self.device, "nodad"],
        ):
            machine.run(*command)
        _join(self, "eth0")

    def run(self, *argv, **options):
        """Runs a command on the host."""
        return self.namespace.run(*argv, **options)


@pytest.fixture(params=KINDS)
def hosts(request, machine):
    """Hosts at two NICs of a kind, between which the kernel forwards."""
    nics = [machine.nic(request.param, index) for index in (0, 1)]
    before = {name: machine.read(name).strip() for name in FORWARDING}
    made = [Kernel(machine, nic, side) for side, nic in enumerate(nics, 1)]
    for name in FORWARDING:
        machine.write_setting(name, 1)
    yield made
    for name, value in before.items():
        machine.write_setting(name, value)
    for nic in nics:
        machine.bind(nic, None)


PORT = 'turnpike.port "{0}" {{ device = "{0}", accelerate = true, rx_queues = {1}, tx_queues = {1} }}\n'
FORWARDING = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"]


def accelerated(router):
    """Packets that Turnpike has taken, by interface."""
    return {of["name"]: of["packets"]["accelerated"] for of in router.show("acceleration")["interfaces"]}


def test_nics_of_the_kernel_are_accelerated_and_are_its_own_again(machine, hosts):
    for family in (4, 6):
        # A NIC takes seconds to negotiate with its peer.
        assert reaches(hosts[0].namespace, address(hosts[1], family), 60), "the kernel alone"
    # As the command writes it.
    ports = "".join(PORT.format(host.device, len(machine.glob(f"/sys/class/net/{host.device}/queues/rx-*"))) for host in hosts)
    router = machine.router(f'local turnpike = require "turnpike"\n{ports}')
    takes = lambda: all(of[family]["accelerated"] for of in router.show("acceleration")["interfaces"] for family in ("ip4", "ip6"))  # noqa: E731
    assert wait_for(takes, 60, 0.2), router.log()
    for family in (4, 6):
        ping(hosts[0], hosts[1], family, seconds=30)
        ping(hosts[1], hosts[0], family, size=1452, seconds=30)
    sink = Sink(hosts[1].namespace)
    try:
        stream = Stream(hosts[0].namespace, [address(hosts[1], 4), address(hosts[1], 6)], DATAGRAMS_A_SECOND)
        assert sink.wait(DATAGRAMS, seconds=60)
        taken = accelerated(router)
        assert taken[hosts[0].device] >= DATAGRAMS, (router.show("acceleration"), router.log())
        # The kernel forwards on while the stream lasts.
        router.stop()
        assert sink.wait(DATAGRAMS, seconds=60)
        sent = stream.stop()
        # Packets in progress take longer than usual through emulated cores.
        sink.arrived(settle=2)
        # Drivers that reset their NIC at a change of its settings lose what arrives meanwhile.
        missing = lost(sent, sink)
        assert len(missing) <= RESET_SECONDS * DATAGRAMS_A_SECOND * 2, len(missing)
        print(f"{hosts[0].nic.kind}: lost {len(missing)} of {sent}")
    finally:
        sink.close()
    for host in hosts:
        assert "xdp" not in machine.run("ip", "link", "show", "dev", host.device).stdout


def test_programs_that_forward_need_a_kernel_that_says_who_sends_their_frames(machine, hosts):
    names = [host.device for host in hosts]
    if machine.linux() < (6, 3):
        refused = machine.run(binary(), "accelerate", "--in-kernel", *names, check=False)
        assert refused.returncode == 1 and "Linux 6.3" in refused.stderr, refused
        return
    listed = ", ".join(f'"{name}"' for name in names)
    router = machine.router(f'require "turnpike".accelerate {{ {listed}, in_kernel = true }}\n')
    takes = lambda: all(of[family]["accelerated"] for of in router.show("acceleration")["interfaces"] for family in ("ip4", "ip6"))  # noqa: E731
    assert wait_for(takes, 60, 0.2), router.log()
    for family in (4, 6):
        ping(hosts[0], hosts[1], family, seconds=30)
        ping(hosts[1], hosts[0], family, size=1452, seconds=30)
    taken = accelerated(router)
    assert all(taken[name] for name in names), (router.show("acceleration"), router.log())
    router.stop()
