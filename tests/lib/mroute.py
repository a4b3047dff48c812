"""A multicast routing daemon of few words: holds the kernel's multicast routing sockets of a
namespace, as pimd and smcroute do, and writes entries into its cache."""

import socket
import struct

_INIT, _ADD_VIF, _ADD_MFC, _DEL_MFC = 200, 202, 204, 205
_USE_IFINDEX = 8


class Mroute:
    """Makes the kernel a multicast router over these interfaces, given as names with indexes."""

    def __init__(self, namespace, interfaces):
        self.numbers = {name: number for number, name in enumerate(interfaces)}
        with namespace.entered():
            self.ip4 = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
            self.ip6 = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
            self.ip4.setsockopt(socket.IPPROTO_IP, _INIT, 1)
            self.ip6.setsockopt(socket.IPPROTO_IPV6, _INIT, 1)
            for name, index in interfaces.items():
                number = self.numbers[name]
                # struct vifctl and struct mif6ctl
                vif = struct.pack("=HBBIi4s", number, _USE_IFINDEX, 1, 0, index, bytes(4))
                self.ip4.setsockopt(socket.IPPROTO_IP, _ADD_VIF, vif)
                mif = struct.pack("=HBBHxxI", number, 0, 1, index, 0)
                self.ip6.setsockopt(socket.IPPROTO_IPV6, _ADD_VIF, mif)

    def add(self, source, group, origin, leaves):
        """Adds an entry; `leaves` has the TTL for each interface, or names alone."""
        self._change(_ADD_MFC, source, group, origin, leaves)

    def delete(self, source, group, origin):
        """Removes an entry."""
        self._change(_DEL_MFC, source, group, origin, {})

    def counted(self, source, group):
        """Packets forwarded by the kernel itself by an IPv4 entry."""
        import fcntl

        request = socket.inet_aton(source) + socket.inet_aton(group) + bytes(24 + 8)
        answer = fcntl.ioctl(self.ip4.fileno(), 0x89E1, request)  # SIOCGETSGCNT
        return struct.unpack_from("=L", answer, 8)[0]

    def _change(self, what, source, group, origin, leaves):
        leaves = leaves if isinstance(leaves, dict) else dict.fromkeys(leaves, 1)
        parent = self.numbers[origin]
        if ":" in group:
            chosen = [0] * 8
            for name in leaves:
                chosen[self.numbers[name] // 32] |= 1 << self.numbers[name] % 32
            # struct mf6cctl
            entry = _sockaddr6(source) + _sockaddr6(group) + struct.pack("=Hxx8I", parent, *chosen)
            self.ip6.setsockopt(socket.IPPROTO_IPV6, what, entry)
            return
        ttls = bytearray(b"\xff" * 32)
        for name, ttl in leaves.items():
            ttls[self.numbers[name]] = ttl
        # struct mfcctl
        addresses = socket.inet_aton(source) + socket.inet_aton(group)
        entry = addresses + struct.pack("=H32sxxIIIi", parent, bytes(ttls), 0, 0, 0, 0)
        self.ip4.setsockopt(socket.IPPROTO_IP, what, entry)

    def close(self):
        """Closes the sockets: the kernel removes all entries."""
        self.ip4.close()
        self.ip6.close()


def _sockaddr6(address):
    return struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, address), 0)
