"""Every kind of NIC, bound to vfio-pci behind an IOMMU, forwards between real hosts."""

import itertools

import pytest

from lib.traffic import Sink, Stream, lost

from .lib.hosts import Inside, Outside, address, ping, ports
from .lib.nic import KINDS

FORWARDERS = 'turnpike.forwarders { cores = "1" }\n'
# Bytes of an echo request's data: frames of 64 to 1,514 bytes, with the frame check sequence up to 1,518.
SIZES = {4: [18, 56, 200, 512, 1000, 1472], 6: [8, 56, 200, 512, 1000, 1452]}
DATAGRAMS, DATAGRAMS_A_SECOND = 200, 100


class Among:
    """A router between hosts."""

    def __init__(self, machine, *hosts):
        self.hosts = hosts
        self.machine = machine
        self._before = len(machine.dma_faults())
        self.router = machine.router(ports(*hosts) + FORWARDERS)
        self._excused = [fault for fault in machine.dma_faults()[self._before :] if _is_excused(fault, hosts)]

    def new_dma_faults(self):
        """The accesses that the IOMMU has refused since this was made."""
        return self.machine.dma_faults()[self._before + len(self._excused) :]


def _is_excused(fault, hosts):
    """Returns true if a fault at the start is caused by DPDK's driver of vmxnet3: it makes the device read its settings
    before it has set their address, so QEMU's reads them at address 0x18 (`vmxnet3_setup_driver_shared`)."""
    nics = [host.nic for host in hosts if host.nic and host.nic.kind == "vmxnet3"]
    read = "DMA Read NO_PASID] Request device [{}] fault addr 0x0 "
    return any(read.format(nic.pci.removeprefix("0000:")) in fault for nic in nics)


@pytest.fixture(scope="module", params=KINDS)
def between(request, machine):
    """A router between the hosts at two NICs of a kind."""
    left, right = (machine.nic(request.param, index) for index in (0, 1))
    made = Among(machine, Outside(machine, left, 1), Outside(machine, right, 2))
    yield made
    made.router.close()


@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_packets_of_every_size_go_both_ways(between, family):
    everyone_pings_everyone(between, family, SIZES[family])


def test_a_stream_arrives_whole(between):
    left, right = between.hosts
    sink = Sink(right.namespace)
    try:
        stream = Stream(left.namespace, [address(right, 4), address(right, 6)], DATAGRAMS_A_SECOND)
        assert sink.wait(DATAGRAMS, seconds=60)
        sent = stream.stop()
        # Packets in progress take longer than usual through emulated cores.
        sink.arrived(settle=2)
        assert lost(sent, sink) == []
    finally:
        sink.close()
    shown = {port["name"]: port for port in between.router.show("ports")}
    assert shown["port1"]["rx_packets"] >= sent and shown["port2"]["tx_packets"] >= sent
    assert between.router.counters()["sent"] >= sent


def test_the_iommu_has_refused_nothing(between):
    assert between.new_dma_faults() == []


def test_it_stops_and_every_packet_buffer_comes_back(between):
    between.router.stop()


def test_nics_and_kernel_interfaces_share_a_router(machine):
    """One pool of packet buffers serves devices that do DMA and AF_XDP, which requires its own layout."""
    inside = []
    try:
        inside += [Inside(machine, 3, "af_xdp")]
        inside += [Inside(machine, 4, "af_packet")]
        nics = (machine.nic("e1000e"), machine.nic("virtio"))
        outside = [Outside(machine, nic, side) for side, nic in enumerate(nics, 1)]
        among = Among(machine, *outside, *inside)
        try:
            for family in (4, 6):
                everyone_pings_everyone(among, family, SIZES[family][::4])
            assert among.new_dma_faults() == []
            among.router.stop()
        finally:
            among.router.close()
    finally:
        for host in inside:
            host.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_without_an_iommu_a_nic_gets_physical_addresses(machine, kind):
    """With uio_pci_generic, which does not use an IOMMU: the device's accesses are not translated."""
    nics = [machine.nic(kind, index) for index in (0, 1)]
    among = Among(machine, *(Outside(machine, nic, nic.index + 1, "uio_pci_generic") for nic in nics))
    try:
        for family in (4, 6):
            everyone_pings_everyone(among, family, SIZES[family][::5])
        among.router.stop()
    finally:
        among.router.close()


def everyone_pings_everyone(among, family, sizes):
    """Every host gets an answer from every other, with the data that it sent."""
    pairs = list(itertools.permutations(among.hosts, 2))
    for (source, target), size in itertools.product(pairs, sizes):
        try:
            ping(source, target, family, size)
        except RuntimeError as error:
            error.add_note("\n".join(among.new_dma_faults()))
            raise
