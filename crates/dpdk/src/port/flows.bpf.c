/* The program at packet sockets of accelerated interfaces that sees packets which the kernel sends, see flows.rs.
 *
 * A packet of a flow that was received by one interface and is sent by an accelerated one has passed all rules of the
 * kernel. That confirms its direction of the flow, with the interface by which it was received: a VLAN device, if it came
 * with the tag of one. No packet is kept.
 *
 * A packet that leaves by a VLAN device is seen where the device below sends it, with its tag, and not at the VLAN device:
 * the queues and hooks of the device below are still ahead there. It confirms its flow if the tag is that of an accelerated
 * VLAN, which the program looks up where the interface's XDP program does. Packets with other tags, or with two, confirm
 * nothing, so their flows stay with the kernel. The kernel leaves a tag to the device, beside the frame, or has it in it.
 */

#include "xdp.bpf.h"
#include "settings.bpf.h"
#include "flows.bpf.h"

/* linux/bpf.h */
struct __sk_buff {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	u32 ingress_ifindex, ifindex;
};
static long (*const bpf_skb_load_bytes)(const void *skb, u32 at, void *to, u32 length) = (void *)26;
static u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;

enum { PACKET_OUTGOING = 4 };

/* A number in network byte order. */
INLINE u32 on_wire(u16 number)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap16(number);
#else
	return number;
#endif
}

/* Reads ports; false for a packet that is not taken either. */
INLINE int read_ports(struct __sk_buff *packet, u32 at, struct tuple *tuple)
{
	u8 header[TCP_HEADER] = {};
	u32 length = tuple->protocol == TCP ? TCP_HEADER : UDP_HEADER;
	if (tuple->protocol != TCP && tuple->protocol != UDP)
		return 0;
	if (length == TCP_HEADER ? bpf_skb_load_bytes(packet, at, header, TCP_HEADER)
	                         : bpf_skb_load_bytes(packet, at, header, UDP_HEADER))
		return 0;
	if (tuple->protocol == TCP && !is_amid(header[TCP_FLAGS]))
		return 0;
	__builtin_memcpy(tuple->source_port, header, 2);
	__builtin_memcpy(tuple->destination_port, header + 2, 2);
	return 1;
}

INLINE int read4(struct __sk_buff *packet, u32 at, struct tuple *tuple)
{
	u8 header[IPV4];
	if (bpf_skb_load_bytes(packet, at, header, IPV4) || header[0] != 0x45)
		return 0;
	if ((header[6] << 8 | header[7]) & FRAGMENT)
		return 0;
	tuple->family = 4;
	tuple->protocol = header[9];
	__builtin_memcpy(tuple->source, header + 12, 4);
	__builtin_memcpy(tuple->destination, header + 16, 4);
	return read_ports(packet, at + IPV4, tuple);
}

INLINE int read6(struct __sk_buff *packet, u32 at, struct tuple *tuple)
{
	u8 header[IPV6];
	if (bpf_skb_load_bytes(packet, at, header, IPV6) || header[0] >> 4 != 6)
		return 0;
	tuple->family = 6;
	tuple->protocol = header[6];
	__builtin_memcpy(tuple->source, header + 8, 16);
	__builtin_memcpy(tuple->destination, header + 24, 16);
	return read_ports(packet, at + IPV6, tuple);
}

/* True for the tag of an accelerated VLAN. */
INLINE int is_accelerated(u32 tag)
{
	u32 id = tag & VLAN_ID;
	return bpf_map_lookup_elem(&vlans, &id) != 0;
}

/* The place of a packet in a frame without a tag, or with that of an accelerated VLAN, and its Ethertype; 0 for others. */
INLINE u32 place(struct __sk_buff *packet, u32 *type)
{
	u8 tag[TAG];
	*type = packet->protocol;
	if (packet->vlan_present)
		return packet->vlan_proto == on_wire(ETHERTYPE_VLAN) && is_accelerated(packet->vlan_tci) ? ETHERNET : 0;
	if (*type != on_wire(ETHERTYPE_VLAN))
		return ETHERNET;
	if (bpf_skb_load_bytes(packet, ETHERNET, tag, TAG) || !is_accelerated(tag[0] << 8 | tag[1]))
		return 0;
	*type = on_wire(tag[2] << 8 | tag[3]);
	return ETHERNET + TAG;
}

/* Reads addresses and ports; false for a packet that is not taken either. */
INLINE int read_tuple(struct __sk_buff *packet, struct tuple *tuple)
{
	u32 type, at = place(packet, &type);
	if (!at)
		return 0;
	if (type == on_wire(ETHERTYPE_IPV4))
		return read4(packet, at, tuple);
	return type == on_wire(ETHERTYPE_IPV6) && read6(packet, at, tuple);
}

SECTION("socket") int turnpike_confirm(struct __sk_buff *packet)
{
	if (packet->pkt_type != PACKET_OUTGOING || !packet->ingress_ifindex)
		return 0;
	struct tuple sent = {};
	if (!read_tuple(packet, &sent))
		return 0;
	struct tuple key = inverse(&sent);
	const struct flow *other = bpf_map_lookup_elem(&flows, &key);
	if (!other)
		return 0;
	struct tuple received = answers(&key, other);
	struct flow *flow = bpf_map_lookup_elem(&flows, &received);
	u64 now = bpf_ktime_get_coarse_ns();
	u64 from = since();
	if (!flow || flow->ended || now < from)
		return 0;
	if (flow->confirmed < from || flow->ingress != packet->ingress_ifindex) {
		flow->ingress = packet->ingress_ifindex;
		flow->confirmed = now;
	}
	return 0;
}

char licensed_by[] SECTION("license") = "Apache-2.0";
