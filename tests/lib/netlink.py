"""Route messages as sent by the kernel and FRR, correct and malformed, byte for byte (rtnetlink(7))."""

import ipaddress
import socket
import struct

NEWROUTE, DELROUTE, NEWNEXTHOP = 24, 25, 104
DST, OIF, GATEWAY, PRIORITY, MULTIPATH, TABLE, NH_ID = 1, 4, 5, 6, 9, 15, 30
UNICAST, BLACKHOLE = 1, 6
_ACK_CREATE_REPLACE = 0x0001 | 0x0004 | 0x0400 | 0x0100


def attribute(kind, value):
    """An attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind, body, flags=_ACK_CREATE_REPLACE, length=None):
    """A netlink message; `length`, if given, replaces the correct one."""
    return struct.pack("=IHHII", 16 + len(body) if length is None else length, kind, flags, 1, 0) + body


def route(prefix, *attributes, kind=NEWROUTE, route_type=UNICAST, length=None, family=None, protocol=186):
    """A route message with RTA_DST and the given attributes; `length` overrides the prefix length."""
    address, bits = prefix.split("/")
    packed = ipaddress.ip_address(address).packed
    if family is None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bits = int(bits) if length is None else length
    head = struct.pack("=BBBBBBBBI", family, bits, 0, 0, 254, protocol, 0, route_type, 0)
    return message(kind, head + attribute(DST, packed) + b"".join(attributes))


def oif(index):
    """The interface."""
    return attribute(OIF, struct.pack("=I", index))


def gateway(address):
    """The gateway."""
    return attribute(GATEWAY, ipaddress.ip_address(address).packed)


def nhid(number):
    """The next-hop object."""
    return attribute(NH_ID, struct.pack("=I", number))


def fpm(payload, version=1, kind=1, length=None):
    """The frame of the FPM protocol around a message."""
    return struct.pack("!BBH", version, kind, 4 + len(payload) if length is None else length) + payload


def write(namespace, messages):
    """Sends many messages to the kernel of a namespace, which does not answer unless it refuses one: an error then."""
    with namespace.entered():
        channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    with channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        channel.bind((0, 0))
        for group in _chunks(messages, 32 << 10):
            channel.send(group)
        channel.setblocking(False)
        try:
            answer = channel.recv(4096)
        except BlockingIOError:
            return
        error = -struct.unpack_from("=i", answer, 16)[0]
        raise OSError(error, "the kernel refused a message")


def _chunks(messages, size):
    group, length = [], 0
    for item in messages:
        group.append(item)
        length += len(item)
        if length >= size:
            yield b"".join(group)
            group, length = [], 0
    if group:
        yield b"".join(group)


def ipv4_routes(prefixes, via, index, kind=NEWROUTE, protocol=186, metric=20):
    """Messages that add (or delete) IPv4 routes of table `main` over gateways, in turn: `via` is a
    list of addresses, `index` one of interfaces, and `metric` one number or one for each gateway.
    Quick, for a million."""
    metrics = [metric] * len(via) if isinstance(metric, int) else metric
    flags = 0x0001 | (0x0400 | 0x0100 if kind == NEWROUTE else 0)
    tails = [
        attribute(PRIORITY, struct.pack("=I", metric)) + gateway(address) + oif(number)
        for address, number, metric in zip(via, index, metrics, strict=True)
    ]
    total = 16 + 12 + 8 + len(tails[0])
    heads = {
        length: struct.pack("=IHHIIBBBBBBBBIHH", total, kind, flags, 0, 0, socket.AF_INET, length, 0, 0, 254,
                            protocol, 0, UNICAST, 0, 8, DST)
        for length in range(33)
    }
    for number, prefix in enumerate(prefixes):
        address, length = prefix.split("/")
        yield heads[int(length)] + socket.inet_aton(address) + tails[number % len(tails)]


def grouped_routes(prefixes, group, paths=(), protocol=186, metric=20):
    """Messages that add IPv4 routes over a next-hop object or, without one, over `paths`, pairs of
    gateway and interface."""
    if group is not None:
        tail = nhid(group)
    else:
        hops = b"".join(
            struct.pack("=HBBi", 8 + len(gateway(address)), 0, 0, index) + gateway(address) for address, index in paths
        )
        tail = attribute(MULTIPATH, hops)
    tail += attribute(PRIORITY, struct.pack("=I", metric))
    flags = 0x0001 | 0x0400 | 0x0100
    total = 16 + 12 + 8 + len(tail)
    for prefix in prefixes:
        address, length = prefix.split("/")
        head = struct.pack("=IHHIIBBBBBBBBIHH", total, NEWROUTE, flags, 0, 0, socket.AF_INET, int(length), 0, 0, 254,
                           protocol, 0, UNICAST, 0, 8, DST)
        yield head + socket.inet_aton(address) + tail
