"""Differences between Turnpike and the Linux kernel, with reasons: each rule specifies packets and fields, and quotes
the RFCs."""

import ipaddress
import struct
from dataclasses import dataclass

from .twins import OWN6, RIGHT_MTU, ROUTER

BOTH = frozenset({"left frames", "right frames"})


@dataclass(frozen=True)
class Rule:
    """`fields` may differ if `applies` returns true for the frame sent and the results."""

    name: str
    why: str
    fields: frozenset
    applies: object


def explain(frame, found):
    """Returns the differences without a rule, and the names of the rules of the others."""
    unexplained, used = dict(found), set()
    sent = Sent(frame)
    for rule in RULES:
        explained = [name for name in found if name in rule.fields]
        if explained and rule.applies(sent, found):
            used.add(rule.name)
            for name in explained:
                unexplained.pop(name, None)
    return unexplained, used


class Sent:
    """The frame that was sent, parsed as far as rules need."""

    def __init__(self, frame):
        self.group = bool(frame[0] & 1)
        self.packet = packet = frame[14:]
        self.v4 = frame[12:14] == b"\x08\x00" and len(packet) >= 20
        self.v6 = frame[12:14] == b"\x86\xdd" and len(packet) >= 40
        self.options, self.protocol, self.payload, self.source, self.destination = b"", None, b"", b"", b""
        self.chain = []
        if self.v4:
            header = (packet[0] & 15) * 4
            self.total, flags = struct.unpack_from("!H", packet, 2)[0], packet[6] >> 5
            self.reserved, self.df = bool(flags & 4), bool(flags & 2)
            self.options, self.protocol = packet[20:header], packet[9]
            self.source, self.destination, self.payload = packet[12:16], packet[16:20], packet[header:self.total]
        elif self.v6:
            self.source, self.destination = packet[8:24], packet[24:40]
            self.protocol, self.payload = packet[6], packet[40:]
            while self.protocol in (0, 43, 60) and len(self.payload) >= 8:
                length = 8 + self.payload[1] * 8
                self.chain.append((self.protocol, self.payload[:length]))
                self.protocol, self.payload = self.payload[0], self.payload[length:]

    @property
    def to_router(self):
        return self.destination in ROUTER

    def has(self, *kinds):
        """Returns true if an IPv4 option of one of these kinds begins the list."""
        return bool(self.options) and self.options[0] in kinds

    def extension(self, *kinds):
        """The first extension header of one of these kinds, b"" without."""
        return next((data for kind, data in self.chain if kind in kinds), b"")


def icmp(sent):
    """Type and code of an ICMP message of either family."""
    if sent.protocol == (1 if sent.v4 else 58) and len(sent.payload) >= 2:
        return sent.payload[0], sent.payload[1]
    return None


def own(*names):
    return frozenset(f"{side} own {name}" for side in ("left", "right") for name in names)


def in_network(address, *networks):
    if not address:
        return False
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(net) for net in networks)


def only_turnpike(found, *kinds):
    """Turnpike sent one more frame: an ICMP error of one of these types and codes."""
    ours, theirs = found.get("left frames", ([], []))
    said = [(frame.get("icmp type"), frame.get("icmp code")) for frame in ours]
    return not theirs and len(said) == 1 and said[0] in kinds


def _class(word):
    return int.from_bytes(word, "big") >> 20


UNUSUAL = ("0.0.0.0/8", "240.0.0.0/4")

RULES = [
    Rule("the identification of own packets",
         "Turnpike's own packets up to 576 bytes have DF and no identification (RFC 6864 4.1: atomic datagrams); "
         "Linux numbers its errors and replies.",
         own("id", "flags"),
         lambda sent, found: all(theirs == 0 and ours == 2 for name, (ours, theirs) in found.items()
                                 if name.endswith("own flags"))),
    Rule("the flow label of own packets",
         "RFC 6437 3 lets a sender label flows or not; Linux labels, Turnpike does not.",
         own("class and flow"),
         lambda sent, found: all(_class(ours) == _class(theirs) and not int.from_bytes(ours, "big") & 0xFFFFF
                                 for name, (ours, theirs) in found.items() if name.endswith("class and flow"))),
    Rule("truncated packets",
         "RFC 1812 5.2.2: a router should answer with a parameter problem at the total length. Linux drops in silence.",
         BOTH, lambda sent, found: sent.v4 and sent.total > len(sent.packet) and only_turnpike(found, (12, 0))),
    Rule("the reserved flag of fragments",
         "RFC 1812 4.2.2.3: the reserved flag is not to be changed. Linux clears it when it cuts.",
         frozenset({"right passed flags"}),
         lambda sent, found: sent.v4 and sent.reserved and sent.total > RIGHT_MTU),
    Rule("options of later fragments",
         "RFC 791 3.2: options without the copied flag are in the first fragment only. Turnpike leaves them out, Linux "
         "puts no-operations in their place.",
         frozenset({"right passed length", "right passed options"}),
         lambda sent, found: sent.v4 and sent.options and sent.total > RIGHT_MTU and not sent.df),
    Rule("network 0 and 240/4",
         "RFC 1812 5.3.7 and 4.2.2.11: not to be forwarded, in silence; 240/4 by option (turnpike.forwarding { class_e }). "
         "Linux has taken both for unicast since 5.3 and 2.6.25.",
         BOTH, lambda sent, found: sent.v4 and (in_network(sent.source, *UNUSUAL) or in_network(sent.destination, *UNUSUAL))),
    Rule("the router's own address as source",
         "Nobody else may send from it (RFC 2827): Turnpike drops such packets of both families. Linux does so with IPv4's "
         "only.",
         BOTH, lambda sent, found: sent.v6 and sent.source in ROUTER),
    Rule("errors to a broadcast",
         "RFC 1812 4.3.2.7: no error to what is not one host's address. Linux looks only for multicast and the limited "
         "broadcast.",
         BOTH, lambda sent, found: sent.v4 and in_network(sent.source, "10.0.1.255/32", "10.0.2.255/32")),
    Rule("what is behind the end of the options",
         "RFC 791 3.1: nothing behind \"end of option list\" counts. Turnpike passes it on, Linux sets it to zero.",
         frozenset({"right passed options"}), lambda sent, found: sent.has(0)),
    Rule("record route in a reply",
         "RFC 1122 3.2.2.6: the reply has the request's option, this host's address included. Linux enters its address "
         "twice, as receiver and as sender.",
         own("options"), lambda sent, found: sent.to_router and sent.has(7)),
    Rule("a record route that does not fit",
         "For the router itself RFC 1122 3.2.1.8 asks for nothing; Turnpike answers the echo with the option as far as it "
         "could be filled in, Linux gives up while it makes the reply.",
         BOTH, lambda sent, found: sent.to_router and sent.has(7) and "right frames" not in found),
    Rule("two record routes",
         "RFC 791 3.1: the option appears at most once. Linux refuses the second, Turnpike fills in each (RFC 1122 1.2.2).",
         BOTH | own("icmp data", "icmp type", "icmp word", "length", "options", "tos"),
         lambda sent, found: sent.options.count(b"\x07\x07\x04") == 2),
    Rule("timestamps",
         "They say when the packet was here, which is not the same moment. With addresses RFC 1812 4.2.2.2 wants that of "
         "the interface by which the packet leaves; Linux enters the one by which it came. In a reply Linux enters two.",
         own("options") | {"right passed options"}, lambda sent, found: sent.has(0x44)),
    Rule("timestamps of an unknown kind",
         "RFC 791 3.1 knows the flags 0, 1 and 3; Turnpike points at another (RFC 1812 4.3.3.5), Linux passes it on.",
         BOTH | own("icmp data", "icmp type", "icmp word", "length", "options", "tos"),
         lambda sent, found: sent.has(0x44) and sent.options[3] & 15 == 2),
    Rule("source routes",
         "RFC 7126 4.3 and 4.4: refused, and the sender is told (RFC 792, code 5). Linux drops them in silence unless "
         "accept_source_route is set.",
         BOTH, lambda sent, found: sent.has(0x83, 0x89)),
    Rule("options in errors",
         "RFC 1812 4.3.2.3: the error quotes the packet as it was received; only source routes go into the error's own "
         "header (4.3.2.6). Linux quotes its changed copy and answers with the option.",
         own("icmp data", "options"), lambda sent, found: sent.has(7) and sent.df and sent.total > RIGHT_MTU),
    Rule("TCP to a port where nobody listens",
         "Without a host interface Turnpike has no TCP; an ICMP error ends the attempt as a reset would (RFC 1122 4.2.3.9).",
         BOTH | own("data", "icmp checksum", "icmp code", "icmp data", "icmp type", "icmp word", "length", "protocol",
                    "next header", "tos"),
         lambda sent, found: sent.to_router and sent.protocol == 6),
    Rule("ICMP timestamps", "RFC 1812 4.3.3.8: a router may answer. Turnpike does not.",
         BOTH, lambda sent, found: sent.to_router and icmp(sent) == (13, 0)),
    Rule("echo requests with a code",
         "RFC 792 and RFC 4443 4.1 have code 0 only; Linux sends whatever code it got.",
         BOTH, lambda sent, found: icmp(sent) is not None and sent.to_router and icmp(sent)[0] in (8, 128) and icmp(sent)[1]),
    Rule("unicast packets in broadcast frames",
         "RFC 1122 3.3.6: to be discarded in silence. Linux does so for UDP, TCP and forwarding, not for ICMP.",
         BOTH, lambda sent, found: sent.group and sent.to_router),
    Rule("IPv4-mapped sources",
         "RFC 4291 2.5.5.2: they stand for IPv4 nodes inside a host. Turnpike drops them as it does other addresses that "
         "are no host's; Linux passes them on.",
         BOTH, lambda sent, found: sent.v6 and in_network(sent.source, "::ffff:0:0/96")),
    Rule("to the unspecified address",
         "RFC 4291 2.5.2: must not be used as a destination. Turnpike drops it as a martian, Linux says \"no route\".",
         BOTH, lambda sent, found: sent.v6 and sent.destination == bytes(16)),
    Rule("unreachable routes",
         "RFC 4443 3.1: code 3 is for what cannot be reached for any other reason; Linux says \"no route\" (code 0) of a "
         "route that says the opposite.",
         own("icmp code"), lambda sent, found: in_network(sent.destination, "2001:db8:4::/48")),
    Rule("a link-local source whose hop limit ends",
         "Two errors would fit. RFC 4443 asks for neither first; Turnpike looks at the scope before the hop limit.",
         own("icmp code", "icmp type"), lambda sent, found: sent.v6 and in_network(sent.source, "fe80::/10")),
    Rule("errors about redirects",
         "RFC 4443 2.4 (e.2): none. Linux looks for errors only.",
         BOTH, lambda sent, found: sent.v6 and icmp(sent) is not None and icmp(sent)[0] == 137),
    Rule("long or filled PadN",
         "RFC 4942 2.1.9.5 suggests to be wary of them, RFC 8200 4.2 only that senders pad up to seven bytes with zeros. "
         "Linux drops, Turnpike passes.",
         BOTH, lambda sent, found: sent.extension(0, 60)[2:3] == b"\x01" or bytes(8) in sent.extension(0, 60)),
    Rule("options beyond their header",
         "RFC 4443 3.4: a parameter problem. Linux drops in silence.",
         BOTH, lambda sent, found: bool(sent.extension(0, 60)) and only_turnpike(found, (4, 0))),
    Rule("jumbograms",
         "RFC 2675 is for links that take more than 65,575 bytes: without one the option is unknown (RFC 8200 4.2, its "
         "bits say \"tell\"). Linux knows it and says that it is wrong.",
         own("icmp code", "icmp word"), lambda sent, found: sent.extension(0)[2:3] == b"\xc2"),
    Rule("options or hop limit first",
         "RFC 8200 does not say which comes first for a packet that has expired and whose options are malformed. "
         "Turnpike tells of the options, Linux of the hop limit.",
         own("class and flow", "icmp data", "icmp type", "icmp code", "icmp word", "length") | BOTH,
         lambda sent, found: sent.v6 and sent.packet[6] == 0 and sent.packet[7] <= 1),
    Rule("jumbo options of a wrong length",
         "The same: unknown to Turnpike, which tells (RFC 8200 4.2). Linux drops them in silence.",
         BOTH, lambda sent, found: sent.extension(0)[2:3] == b"\xc2" and sent.extension(0)[3:4] != b"\x04"
         and only_turnpike(found, (4, 2))),
    Rule("router alerts of another length",
         "RFC 2711 2.1 has two bytes. Turnpike passes the packet, whose business it is not; Linux drops it.",
         BOTH, lambda sent, found: sent.extension(0)[2:4] == b"\x05\x03"),
    Rule("IPv6 redirects",
         "RFC 4861 8.2: a router should send them, limited in rate. Turnpike does so where a port asks for it (redirects), "
         "Linux has no setting that stops it.",
         BOTH, lambda sent, found: in_network(sent.destination, "fd00:1::/64", "fe80::/10") and all(
             frame.get("icmp type") == 137 for ours, theirs in found.values() if isinstance(theirs, list)
             for frame in theirs[len(ours):])),
    Rule("routing headers of other types",
         "RFC 8200 4.4: without segments left to be ignored, with some a parameter problem. Linux knows types 3 and 4 and "
         "drops them where they are not switched on.",
         BOTH, lambda sent, found: sent.to_router and sent.extension(43)[2:3] in (b"\x03", b"\x04")),
    Rule("errors about router discovery",
         "RFC 1122 3.2.2 counts types 3, 4, 5, 11 and 12 as errors, about which there is none; Linux counts 9 and 10 too.",
         BOTH, lambda sent, found: sent.v4 and icmp(sent) is not None and icmp(sent)[0] in (9, 10)),
    Rule("the type of service of errors",
         "RFC 1349 5.1: errors have the default type of service (with the precedence of RFC 1812 4.3.2.5). Linux takes the "
         "packet's.",
         own("tos"), lambda sent, found: sent.v4 and sent.packet[1] & 0x1E),
    Rule("errors about packets to an anycast address",
         "RFC 4291 2.6: it is not a source. Linux answers from it.",
         frozenset({"left passed class and flow", "left passed source"}),
         lambda sent, found: in_network(sent.destination, "fd00:1::/128", "fd00:2::/128")),
    Rule("advertisements that answer a unicast solicitation",
         "RFC 4861 7.2.4: the override flag should be set and the link-layer address may be there; Linux leaves both out.",
         own("icmp data", "icmp word", "length"),
         lambda sent, found: icmp(sent) == (135, 0) and sent.destination == ipaddress.ip_address(OWN6).packed),
]
