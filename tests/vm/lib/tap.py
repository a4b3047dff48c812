"""TAP interfaces for QEMU, made inside the namespace of the host that sits at them."""

import fcntl
import os
import struct

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR, _IFF_MULTI_QUEUE = 0x0002, 0x1000, 0x4000, 0x0100


def open_tap(namespace, name, queues=1):
    """Makes a TAP interface in the namespace; returns a descriptor for each of its queues. The interface is removed
    with the last of them."""
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR | (_IFF_MULTI_QUEUE if queues > 1 else 0)
    descriptors = []
    with namespace.entered():
        for _ in range(queues):
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            descriptors.append(descriptor)
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return descriptors
