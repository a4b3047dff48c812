"""The emulated NICs: each is wired to a TAP in a namespace of its own, with a real Linux host in it."""

import os

from lib.netns import Namespace

from .tap import open_tap

# QEMU's device and its properties, by kind. Those of PCI Express sit behind a root port each, so each has an
# IOMMU group of its own and can be unplugged; an e1000 is of conventional PCI and sits at the root.
KINDS = {
    "e1000e": {"device": "e1000e"},
    "e1000": {"device": "e1000", "express": False},
    "vmxnet3": {"device": "vmxnet3"},
    "virtio": {
        "device": "virtio-net-pci",
        "queues": 4,
        # Modern, and its memory accesses go through the IOMMU as a real card's do.
        "options": "mq=on,vectors=10,mrg_rxbuf=on,disable-legacy=on,disable-modern=off,iommu_platform=on",
    },
    "igb": {"device": "igb"},
}

# Two NICs of conventional PCI behind one bridge, which the IOMMU cannot tell apart: they share a group.
SHARED = "shared"
BRIDGE = "bridge"
_OTHERS = {SHARED: {"device": "e1000", "express": False, "bus": BRIDGE}}


def bridge():
    """The bridge of the NICs that share a group, on QEMU's command line."""
    return [
        "-device", "pcie-root-port,id=port-bridge,bus=node0,chassis=99,slot=99",
        "-device", f"pcie-pci-bridge,id={BRIDGE},bus=port-bridge",
    ]  # fmt: skip


class Nic:
    """One NIC of the virtual machine.

    `name` is QEMU's name for the device, `netdev` for what it is wired to; `host` is the namespace at the
    other end, where the interface is called `eth0`; `node` the NUMA node, None for one at the root.
    """

    def __init__(self, kind, index, number):
        spec = (KINDS | _OTHERS)[kind]
        self.kind, self.index = kind, index
        self.name = f"{kind}-{index}"
        self.netdev = f"net-{self.name}"
        self.port = f"port-{self.name}"
        self.mac = f"52:54:00:00:{number:02x}:01"
        self.host_mac = f"52:54:00:00:{number:02x}:02"
        self.express = spec.get("express", True)
        self.node = index % 2 if self.express else None
        self.queues = spec.get("queues", 1)
        self._bus = self.port if self.express else spec.get("bus", "pcie.0")
        self._number = number
        self._device = spec["device"]
        self._options = spec.get("options", "")
        self.host = Namespace(self.name)
        self._descriptors = []
        # As the kernel in the machine writes it; known when the machine has booted.
        self.pci = None

    def open(self):
        """Makes the TAP; returns its descriptors for QEMU to inherit."""
        self._descriptors = open_tap(self.host, "eth0", self.queues)
        self.host.run("ip", "link", "set", "eth0", "address", self.host_mac, "up")
        return self._descriptors

    def opened(self):
        """To be called after QEMU has taken over the descriptors."""
        for descriptor in self._descriptors:
            os.close(descriptor)

    def arguments(self):
        """The NIC on QEMU's command line."""
        listed = ":".join(map(str, self._descriptors))
        descriptors = f"fds={listed}" if self.queues > 1 else f"fd={listed}"
        arguments = ["-netdev", f"tap,id={self.netdev},{descriptors}"]
        if self.express:
            place = f"bus=node{self.node},chassis={self._number},slot={self._number}"
            arguments += ["-device", f"pcie-root-port,id={self.port},{place}"]
        return [*arguments, "-device", self.properties()]

    def properties(self):
        """The device and its properties, as the command line and the monitor's `device_add` have them."""
        properties = {"driver": self._device, "id": self.name, "netdev": self.netdev, "mac": self.mac}
        properties["bus"] = self._bus
        if self._bus == BRIDGE:
            # Its slot 0 is the bridge's own.
            properties["addr"] = self.index + 1
        properties["romfile"] = ""
        properties.update(option.split("=") for option in self._options.split(",") if option)
        return ",".join(f"{name}={value}" for name, value in properties.items())

    def close(self):
        """Removes the host, and with it the TAP's end here."""
        self.host.delete()
