/* The XDP program of an AF_XDP port with a queue for control traffic, see control.rs.
 *
 * Control traffic goes on to the kernel (XDP_PASS), where the AF_PACKET socket of the control queue takes it and a
 * filter of traffic control drops what the socket has seen. Everything else goes to the AF_XDP socket of its receive
 * queue, as by the program of DPDK's driver that this one replaces.
 *
 * A packet is control traffic if it fits a rule. Rules have one of a few forms, each of which is one look-up in a hash
 * table. A packet to be forwarded costs one: its destination is none that any rule names.
 *
 * The packet of a frame with up to two VLAN tags is behind them; the tags do not matter. IPv6 packets with extension
 * headers fit no rule; of IPv4 fragments only the protocol is looked at. Numbers in keys are in network byte order.
 */

#include "xdp.bpf.h"

#define NETWORK(number) __builtin_bswap16(number)

enum {
	TAG = 4,
	ETHERTYPE_VLAN = 0x8100,
	ETHERTYPE_QINQ = 0x88a8,
	/* More fragments, or an offset (RFC 791 3.1). */
	FRAGMENT = 0x3fff,
	ICMP = 1,
	TCP = 6,
	UDP = 17,
	ICMPV6 = 58,
};

/* The form of a rule: the fields that it names beside those of all smaller ones but ETHERTYPE's. */
enum form {
	FORM_ETHERTYPE,
	FORM_PROTOCOL, /* destination, protocol */
	FORM_ICMP, /* and the type, in `to` */
	FORM_TO, /* and the destination port */
	FORM_FROM, /* and the source port */
	FORM_FLOW, /* all fields */
};

struct destination {
	u8 address[16]; /* of IPv4 the first four bytes */
	u16 ethertype;
};

struct key {
	u8 source[16], destination[16];
	u16 ethertype, from, to;
	u8 protocol, form;
};

struct count {
	u64 packets, bytes;
};

struct packet {
	struct key key;
	u64 bytes;
	u8 has_ports, icmp;
};

/* Destinations that rules name. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[256];
	struct destination *key;
	u8 *value;
} destinations SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[8192];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	struct key *key;
	struct count *value;
} rules SECTION(".maps");

/* The driver's map takes its place when the program is loaded. */
struct {
	int (*type)[BPF_MAP_TYPE_XSKMAP];
	int (*max_entries)[1];
	u32 *key;
	u32 *value;
} xsks_map SECTION(".maps");

INLINE int fits(struct packet *packet, enum form form)
{
	packet->key.form = form;
	struct count *count = bpf_map_lookup_elem(&rules, &packet->key);
	if (!count)
		return 0;
	__sync_fetch_and_add(&count->packets, 1);
	__sync_fetch_and_add(&count->bytes, packet->bytes);
	return 1;
}

/* Looks for a rule for a packet whose key has all fields. */
INLINE int has_rule(struct packet *packet)
{
	struct destination destination = { .ethertype = packet->key.ethertype };
	__builtin_memcpy(destination.address, packet->key.destination, 16);
	if (!bpf_map_lookup_elem(&destinations, &destination))
		return 0;
	struct packet rest = *packet;
	if (packet->has_ports && fits(packet, FORM_FLOW))
		return 1;
	__builtin_memset(rest.key.source, 0, 16);
	rest.key.from = rest.key.to = 0;
	if (fits(&rest, FORM_PROTOCOL))
		return 1;
	if (packet->icmp) {
		rest.key.to = packet->key.to;
		return fits(&rest, FORM_ICMP);
	}
	if (!packet->has_ports)
		return 0;
	rest.key.to = packet->key.to;
	if (fits(&rest, FORM_TO))
		return 1;
	rest.key.to = 0;
	rest.key.from = packet->key.from;
	return fits(&rest, FORM_FROM);
}

/* The groups of a link and link-local addresses have rules for all of them, by their first address. */
INLINE int is_of_link(struct key *key)
{
	u8 *to = key->destination;
	if (key->ethertype == NETWORK(ETHERTYPE_IPV4)) {
		if (to[0] != 224 || to[1] || to[2])
			return 0;
		to[3] = 0;
		return 1;
	}
	if (to[0] == 0xff && to[1] == 0x02)
		__builtin_memset(to + 2, 0, 14);
	else if (to[0] == 0xfe && (to[1] & 0xc0) == 0x80) {
		to[1] = 0x80;
		__builtin_memset(to + 2, 0, 14);
	} else
		return 0;
	return 1;
}

INLINE void read_ports(struct packet *packet, const u8 *header, const u8 *end)
{
	struct key *key = &packet->key;
	if (header + 4 > end)
		return;
	if (key->protocol == TCP || key->protocol == UDP) {
		__builtin_memcpy(&key->from, header, 2);
		__builtin_memcpy(&key->to, header + 2, 2);
		packet->has_ports = 1;
	} else if (key->protocol == ICMP || key->protocol == ICMPV6) {
		key->to = NETWORK((u16)header[0]);
		packet->icmp = 1;
	}
}

INLINE int read_ipv4(struct packet *packet, const u8 *header, const u8 *end)
{
	if (header + IPV4 > end)
		return 0;
	u32 length = (header[0] & 15) * 4;
	packet->key.protocol = header[9];
	__builtin_memcpy(packet->key.source, header + 12, 4);
	__builtin_memcpy(packet->key.destination, header + 16, 4);
	u16 fragment;
	__builtin_memcpy(&fragment, header + 6, 2);
	if (length >= IPV4 && !(fragment & NETWORK(FRAGMENT)))
		read_ports(packet, header + length, end);
	return 1;
}

INLINE int read_ipv6(struct packet *packet, const u8 *header, const u8 *end)
{
	if (header + IPV6 > end)
		return 0;
	packet->key.protocol = header[6];
	__builtin_memcpy(packet->key.source, header + 8, 16);
	__builtin_memcpy(packet->key.destination, header + 24, 16);
	read_ports(packet, header + IPV6, end);
	return 1;
}

INLINE int is_tag(u16 ethertype)
{
	return ethertype == NETWORK(ETHERTYPE_VLAN) || ethertype == NETWORK(ETHERTYPE_QINQ);
}

INLINE int is_control(const u8 *frame, const u8 *end)
{
	const u8 *header = frame + ETHERNET;
	if (header > end)
		return 0;
	struct packet packet = { .bytes = end - frame };
	__builtin_memcpy(&packet.key.ethertype, header - 2, 2);
#pragma unroll
	for (int tags = 0; tags < 2; tags++) {
		if (!is_tag(packet.key.ethertype))
			break;
		header += TAG;
		if (header > end)
			return 0;
		__builtin_memcpy(&packet.key.ethertype, header - 2, 2);
	}
	int is_ip = 0;
	if (packet.key.ethertype == NETWORK(ETHERTYPE_IPV4))
		is_ip = read_ipv4(&packet, header, end);
	else if (packet.key.ethertype == NETWORK(ETHERTYPE_IPV6))
		is_ip = read_ipv6(&packet, header, end);
	else
		return fits(&packet, FORM_ETHERTYPE);
	if (!is_ip)
		return 0;
	if (has_rule(&packet))
		return 1;
	return is_of_link(&packet.key) && has_rule(&packet);
}

SECTION("xdp") int turnpike_control(struct xdp_md *context)
{
	const u8 *frame = (const u8 *)(long)context->data;
	const u8 *end = (const u8 *)(long)context->data_end;
	if (is_control(frame, end))
		return XDP_PASS;
	return bpf_redirect_map(&xsks_map, context->rx_queue_index, XDP_PASS);
}

char licensed_by[] SECTION("license") = "Apache-2.0";
