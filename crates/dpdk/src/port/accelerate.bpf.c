/* The XDP program of an accelerated interface whose packets Turnpike's forwarders get, see accelerate.rs.
 *
 * A packet to be forwarded goes to the AF_XDP socket of its queue. Without a socket bpf_redirect_map passes the packet to
 * the kernel. The kernel takes some time to close the sockets of a process that is killed, on a busy machine a second or
 * two; so the process has a lease that it renews all the time, and without it nothing is taken.
 *
 * libxdp, by which DPDK's driver makes its sockets, looks for a program of this name on the interface, with a map of
 * sockets of this name and this number of its contract in the metadata. It attaches none of its own then.
 */

#include "accelerate.bpf.h"
#include "flows.bpf.h"

struct {
	int (*type)[BPF_MAP_TYPE_XSKMAP];
	int (*max_entries)[256];
	u32 *key;
	u32 *value;
} xsks_map SECTION(".maps");

/* A packet that is looked at. */
struct packet {
	struct flow *flow; /* found for it */
};

/* Returns the reason for which the packets of both directions are the kernel's for the time being: a FIN or RST. */
INLINE enum outcome doubt(const struct tuple *tuple, struct flow *flow)
{
	struct tuple key = answers(tuple, flow);
	struct flow *other = bpf_map_lookup_elem(&flows, &key);
	if (other)
		other->confirmed = 0;
	flow->confirmed = 0;
	return NO_FLOW;
}

/* Finds the flow of a packet with this header of TCP or UDP, `length` bytes with its data. `now`: of the interface, or of
 * the VLAN whose tag the packet has, by which the kernel must have received the flow. */
INLINE enum outcome find(const struct settings *now, struct packet *packet, struct tuple *tuple, const u8 *header, u32 length, const u8 *end)
{
	if (tuple->protocol != TCP && tuple->protocol != UDP)
		return NO_FLOW;
	if (header + UDP_HEADER > end || length < UDP_HEADER)
		return NO_FLOW;
	__builtin_memcpy(tuple->source_port, header, 2);
	__builtin_memcpy(tuple->destination_port, header + 2, 2);
	u8 flags = ACK;
	if (tuple->protocol == TCP) {
		if (header + TCP_HEADER > end || length < TCP_HEADER)
			return NO_FLOW;
		flags = header[TCP_FLAGS];
	}
	struct flow *flow = bpf_map_lookup_elem(&flows, tuple);
	if (!flow)
		return NO_FLOW;
	if (flags & (FIN | RST))
		return doubt(tuple, flow);
	if (!is_amid(flags) || flow->ingress != now->device || flow->confirmed < since())
		return NO_FLOW;
	packet->flow = flow;
	return REDIRECTED;
}

INLINE enum outcome find4(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	if (read16(header + 6) & FRAGMENT)
		return NO_FLOW;
	struct tuple tuple = { .protocol = header[9], .family = 4 };
	__builtin_memcpy(tuple.source, header + 12, 4);
	__builtin_memcpy(tuple.destination, header + 16, 4);
	return find(now, packet, &tuple, header + IPV4, read16(header + 2) - IPV4, end);
}

INLINE enum outcome find6(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	struct tuple tuple = { .protocol = header[6], .family = 6 };
	__builtin_memcpy(tuple.source, header + 8, 16);
	__builtin_memcpy(tuple.destination, header + 24, 16);
	return find(now, packet, &tuple, header + IPV6, read16(header + 4), end);
}

INLINE enum outcome decide4(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	const u8 *destination = header + 16;
	if (now->flows) {
		enum outcome outcome = find4(now, packet, header, end);
		if (outcome != REDIRECTED)
			return outcome;
		destination = packet->flow->destination;
	}
	if (!forwards4(destination))
		return ROUTE;
	return forwards4(header + 12) ? REDIRECTED : SOURCE;
}

INLINE enum outcome decide6(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	const u8 *destination = header + 24;
	if (now->flows) {
		enum outcome outcome = find6(now, packet, header, end);
		if (outcome != REDIRECTED)
			return outcome;
		destination = packet->flow->destination;
	}
	if (!forwards6(destination))
		return ROUTE;
	return forwards6(header + 8) ? REDIRECTED : SOURCE;
}

/* What a flow changes: addresses, ports, and by how much the sums of both change. */
struct change {
	const u8 *source, *destination, *source_port, *destination_port;
	u16 addresses, all;
};

INLINE u16 read_sum(const u8 *at)
{
	u16 sum;
	__builtin_memcpy(&sum, at, 2);
	return sum;
}

INLINE u16 folded(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return sum + (sum >> 16);
}

/* RFC 1624, equation 3; sums are in the order of bytes of the packet. */
INLINE void adjust(u8 *at, u16 change)
{
	u16 sum = ~folded((u16)~read_sum(at) + (u32)change);
	__builtin_memcpy(at, &sum, 2);
}

/* Adjusts the checksum of TCP or UDP; `pseudo` is the sum of the pseudo header, which a field that is left to the device
 * has alone. A field that has it by chance is completed with the others by the process. */
INLINE void adjust_transport(u8 *at, const struct change *change, int partial, u16 pseudo, int udp)
{
	if (partial && read_sum(at) == pseudo) {
		u16 sum = folded((u32)pseudo + change->addresses);
		__builtin_memcpy(at, &sum, 2);
		return;
	}
	if (udp && !read_sum(at))
		return;
	adjust(at, change->all);
	if (udp && !read_sum(at)) {
		u16 ones = 0xffff;
		__builtin_memcpy(at, &ones, 2);
	}
}

INLINE u32 words(const u8 *at, int count)
{
	u32 sum = 0;
	for (int i = 0; i < count; i++)
		sum += read_sum(at + 2 * i);
	return sum;
}

/* The sum of protocol and length of a pseudo header. */
INLINE u32 pseudo(u8 protocol, const u8 *length, u16 less)
{
	u16 number = read16(length) - less;
	const u8 rest[4] = { 0, protocol, number >> 8, number };
	return words(rest, 2);
}

/* Changes ports and checksum of TCP or UDP. */
INLINE void change_transport(u8 *header, const u8 *end, u8 protocol, const struct change *change, int partial, u16 sum)
{
	if (header + UDP_HEADER > end)
		return;
	if (protocol == UDP) {
		adjust_transport(header + UDP_CHECKSUM, change, partial, sum, 1);
	} else {
		if (header + TCP_HEADER > end)
			return;
		adjust_transport(header + TCP_CHECKSUM, change, partial, sum, 0);
	}
	__builtin_memcpy(header, change->source_port, 2);
	__builtin_memcpy(header + 2, change->destination_port, 2);
}

/* A frame from the place on at which it would begin if it had no tag: Ethertype and packet lie as in an untagged one. */
INLINE u8 *untagged(u8 *frame, const u8 *end)
{
	if (frame + ETHERNET > end)
		return frame;
	return read16(frame + 12) == ETHERTYPE_VLAN ? frame + TAG : frame;
}

/* Changes addresses, ports and checksums of a packet that `look` has found good, in a frame that is `untagged`. */
INLINE void translate(u8 *frame, const u8 *end, const struct change *change, int partial)
{
	u8 *header = frame + ETHERNET;
	if (header + IPV4 > end)
		return;
	if (read16(frame + 12) == ETHERTYPE_IPV4) {
		u16 sum = folded(words(header + 12, 4) + pseudo(header[9], header + 2, IPV4));
		change_transport(header + IPV4, end, header[9], change, partial, sum);
		adjust(header + 10, change->addresses);
		__builtin_memcpy(header + 12, change->source, 4);
		__builtin_memcpy(header + 16, change->destination, 4);
		return;
	}
	if (header + IPV6 > end)
		return;
	u16 sum = folded(words(header + 8, 16) + pseudo(header[6], header + 4, 0));
	change_transport(header + IPV6, end, header[6], change, partial, sum);
	__builtin_memcpy(header + 8, change->source, 16);
	__builtin_memcpy(header + 24, change->destination, 16);
}

/* Changes a packet that is taken as its flow says. */
INLINE void take(u8 *frame, const u8 *end, struct flow *flow, int partial)
{
	struct change change = {
		flow->source, flow->destination, flow->source_port, flow->destination_port, flow->address_change, flow->change,
	};
	if (flow->translates)
		translate(untagged(frame, end), end, &change, partial);
	u64 time = bpf_ktime_get_coarse_ns();
	if (time - flow->last > PRECISION)
		flow->last = time;
}

/* Reads addresses and ports of a packet of TCP or UDP without options, in a frame that is `untagged`; false for others. */
INLINE int read_tuple(const u8 *frame, const u8 *end, struct tuple *tuple)
{
	const u8 *header = frame + ETHERNET, *transport = header + IPV4;
	if (transport + UDP_HEADER > end)
		return 0;
	if (read16(frame + 12) == ETHERTYPE_IPV4) {
		tuple->family = 4;
		tuple->protocol = header[9];
		__builtin_memcpy(tuple->source, header + 12, 4);
		__builtin_memcpy(tuple->destination, header + 16, 4);
	} else {
		transport = header + IPV6;
		if (transport + UDP_HEADER > end)
			return 0;
		tuple->family = 6;
		tuple->protocol = header[6];
		__builtin_memcpy(tuple->source, header + 8, 16);
		__builtin_memcpy(tuple->destination, header + 24, 16);
	}
	__builtin_memcpy(tuple->source_port, transport, 2);
	__builtin_memcpy(tuple->destination_port, transport + 2, 2);
	return 1;
}

/* Changes a taken packet back to what was received: the other direction's entry has it, and its changes of sums are the
 * same. The process has completed checksums, and the frame has its tag. Returns false if the flow has gone. */
INLINE int restore(u8 *frame, const u8 *end)
{
	struct tuple sent = {};
	if (!read_tuple(frame, end, &sent))
		return 0;
	struct tuple key = inverse(&sent);
	const struct flow *other = bpf_map_lookup_elem(&flows, &key);
	if (!other)
		return 0;
	struct change change = {
		other->destination, other->source, other->destination_port, other->source_port, other->address_change, other->change,
	};
	if (other->translates)
		translate(frame, end, &change, 0);
	return 1;
}

INLINE int as_received(const struct settings *now, u8 *frame, const u8 *end)
{
	return !now->flows || restore(untagged(frame, end), end);
}

SECTION("xdp") int xsk_def_prog(struct xdp_md *context)
{
	u8 *frame = (u8 *)(long)context->data;
	const u8 *end = (const u8 *)(long)context->data_end;
	struct packet packet = {};
	u32 zero = 0;
	const struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	if (!now)
		return XDP_PASS;
	if (is_returned(now))
		return XDP_PASS;
	const struct settings *own = now;
	enum outcome outcome = look_tagged(&own, &packet, frame, end);
	if (outcome == REDIRECTED && is_stalled())
		outcome = STALLED;
	if (outcome != REDIRECTED)
		return count(outcome, XDP_PASS);
	int action = bpf_redirect_map(&xsks_map, context->rx_queue_index, XDP_PASS);
	if (action == XDP_REDIRECT && packet.flow)
		take(frame, end, packet.flow, now->partial);
	return count(action == XDP_REDIRECT ? REDIRECTED : NO_SOCKET, action);
}

int (*xsk_prog_version)[1] SECTION("xdp_metadata");
char licensed_by[] SECTION("license") = "Apache-2.0";
