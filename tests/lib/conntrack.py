"""The kernel's table of connections, by netlink, as the program `conntrack` reads and changes it.

    python conntrack.py delete PORT     (prints the number of connections deleted)
    python conntrack.py flush
"""

import ipaddress
import socket
import struct
import sys

_DONE, _ERROR = 3, 2
_NEW, _GET, _DELETE = 0x100, 0x101, 0x102
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_ORIGINAL, _REPLY, _STATUS, _PROTOINFO, _TIMEOUT = 1, 2, 3, 4, 7
TCP_STATES = ["NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE"]


def _attributes(data):
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def _number(data):
    return int.from_bytes(data or b"", "big")


class Connection:
    """A connection: `protocol`, the tuples `original` and `reply` (source, port, destination, port), `is_assured`, the `state`
    of TCP, and the `timeout` left in seconds."""

    def __init__(self, family, data):
        attributes = _attributes(data)
        self.family, self._original = family, attributes[_ORIGINAL]
        self.original, self.reply = self._tuple(_ORIGINAL, attributes), self._tuple(_REPLY, attributes)
        self.is_assured = bool(_number(attributes.get(_STATUS)) & 4)
        self.timeout = _number(attributes.get(_TIMEOUT))
        tcp = _attributes(_attributes(attributes.get(_PROTOINFO, b"")).get(1, b""))
        self.state = TCP_STATES[tcp[1][0]] if 1 in tcp else None

    def _tuple(self, direction, attributes):
        parts = _attributes(attributes[direction])
        addresses, ports = _attributes(parts[1]), _attributes(parts[2])
        self.protocol = ports[1][0]
        source, destination = [str(ipaddress.ip_address(of)) for of in addresses.values()]
        return source, _number(ports.get(2)), destination, _number(ports.get(3))

    def has(self, port):
        """Returns true for a port of its initiator's packets."""
        return port in self.original[1::2]

    def __repr__(self):
        return f"{self.protocol} {self.original} {self.reply} {self.state} {self.timeout} s assured: {self.is_assured}"


def _exchange(kind, flags, body=bytes(4)):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as netlink:
        netlink.send(struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST, 1, 0) + body)
        while True:
            data = netlink.recv(1 << 17)
            while data:
                length, received = struct.unpack_from("=IH", data)
                if received in (_DONE, _ERROR):
                    assert struct.unpack_from("=i", data, 16)[0] == 0, data
                    return
                if received == _NEW:
                    yield Connection(data[16], data[20:length])
                data = data[(length + 3) & ~3 :]


def connections(port=None):
    """The connections of this thread's network namespace, or those with a port."""
    return [one for one in _exchange(_GET, _DUMP) if port is None or one.has(port)]


def delete(port):
    """Deletes connections with a port; returns their number."""
    found = connections(port)
    for one in found:
        original = one._original
        body = bytes([one.family, 0, 0, 0]) + struct.pack("=HH", 4 + len(original), 0x8001) + original
        list(_exchange(_DELETE, _ACK, body))
    return len(found)


def flush():
    """Deletes all connections."""
    list(_exchange(_DELETE, _ACK))


if __name__ == "__main__":
    if sys.argv[1] == "flush":
        flush()
    else:
        print(delete(int(sys.argv[2])))
