/* What the programs of accelerated interfaces share: the treatment of each received frame, as far as it does not depend
 * on the way of forwarding; see accelerate.rs.
 *
 * A packet that is only to be forwarded, by a route between accelerated interfaces, is forwarded by Turnpike; everything
 * else goes to the kernel, as if there were no program. Doubts are decided in favour of the kernel, which forwards as well.
 *
 * The source that includes this defines `struct packet`, `decide4`, `decide6` and `as_received`.
 */

#include "xdp.bpf.h"
#include "settings.bpf.h"

static u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;

enum { HOP_BY_HOP = 0 };

/* Outcomes, in the order of `Outcome` in accelerate.rs. */
enum outcome {
	REDIRECTED,
	NO_SOCKET, /* no socket on the queue */
	OFF, /* forwarding is off, or not ready yet */
	STALLED, /* the process did not renew its lease in time */
	OTHER_MAC, /* broadcasts, multicasts, other stations */
	OTHER_TYPE, /* ARP, frames with other tags than those of known VLANs, … */
	MALFORMED,
	OPTIONS, /* IPv4 options, an IPv6 hop-by-hop header */
	TTL,
	ADDRESSES, /* never forwarded by routers, or doubtful */
	TOO_LONG, /* for the least MTU */
	ROUTE, /* own addresses; routes that are not between accelerated interfaces */
	SOURCE, /* no such route leads to the source; the kernel may drop the packet (own addresses, rp_filter) */
	RETURNED, /* by the process; to be forwarded, but by the kernel */
	CHECKSUM, /* of TCP or UDP, left to the device by the sender */
	NO_WAY, /* the outgoing interface takes no frames of XDP programs, or is not ready */
	UNSENT, /* not counted here, but by unsent.bpf.c */
	NO_FLOW, /* where flows are followed: of none that the kernel has let pass */
	ENDED, /* returned when its flow had ended, so that nobody knows the packet as it was received: dropped */
	BOND_PORT, /* received by a port of a bond that the bond does not receive by, or that is not ready */
	OUTCOMES,
};

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	struct settings *value;
} settings SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[OUTCOMES];
	u32 *key;
	u64 *value;
} outcomes SECTION(".maps");

/* Frames that are being returned on this CPU. */
struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	u32 *value;
} returning SECTION(".maps");

struct key4 {
	u32 bits;
	u8 address[4];
};

struct key6 {
	u32 bits;
	u8 address[16];
};

/* Prefixes where the answer differs from that of the next shorter one: 1 if their packets are forwarded. Shared by all
 * interfaces; the maps of the process take their place when the programs are loaded. */
struct {
	int (*type)[BPF_MAP_TYPE_LPM_TRIE];
	int (*max_entries)[1 << 21];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	struct key4 *key;
	u8 *value;
} prefixes4 SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_LPM_TRIE];
	int (*max_entries)[1 << 21];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	struct key6 *key;
	u8 *value;
} prefixes6 SECTION(".maps");

/* The end of the lease in nanoseconds of CLOCK_MONOTONIC. Shared by all interfaces, and mapped by the process. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	int (*map_flags)[BPF_F_MMAPABLE];
	u32 *key;
	u64 *value;
} lease SECTION(".maps");

/* Counts an outcome of this CPU, whose packets are looked at one after the other. */
INLINE int count(enum outcome outcome, int action)
{
	u32 key = outcome;
	u64 *counter = bpf_map_lookup_elem(&outcomes, &key);
	if (counter)
		*counter += 1;
	return action;
}

INLINE u16 read16(const u8 *at)
{
	return (u16)at[0] << 8 | at[1];
}

/* A number of 16 bits whose bounds the kernel's verifier sees; that of Linux 6.1 loses them where bytes are joined. */
INLINE u64 bounded(u64 number)
{
	asm volatile("" : "+r"(number));
	return number & 0xffff;
}

/* 0/8, 127/8, and everything from the multicast groups on. */
INLINE int is_special4(const u8 *address)
{
	return address[0] == 0 || address[0] == 127 || address[0] >= 224;
}

/* ::/8, among it the unspecified address and the loopback; link-local unicast; multicast. */
INLINE int is_special6(const u8 *address)
{
	return address[0] == 0 || address[0] == 0xff || (address[0] == 0xfe && (address[1] & 0xc0) == 0x80);
}

/* True unless the packets to an address are the kernel's by the prefixes. */
INLINE int forwards4(const u8 *address)
{
	struct key4 key = { .bits = 32 };
	__builtin_memcpy(key.address, address, 4);
	const u8 *forwards = bpf_map_lookup_elem(&prefixes4, &key);
	return forwards && *forwards;
}

INLINE int forwards6(const u8 *address)
{
	struct key6 key = { .bits = 128 };
	__builtin_memcpy(key.address, address, 16);
	const u8 *forwards = bpf_map_lookup_elem(&prefixes6, &key);
	return forwards && *forwards;
}

/* A packet that is looked at, as far as the way of forwarding knows more about it than its bytes. */
struct packet;

/* Decides about a valid packet by its addresses: REDIRECTED if it may be forwarded, else the reason why it may not. */
INLINE enum outcome decide4(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end);
INLINE enum outcome decide6(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end);

/* Changes a frame that the process returns back to what was received; false if that is not known any more. */
INLINE int as_received(const struct settings *now, u8 *frame, const u8 *end);

/* Returns REDIRECTED if the packet may be forwarded, else the reason why it may not. */
INLINE enum outcome look4(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	if (!now->ip4)
		return OFF;
	if (header + IPV4 > end || header[0] >> 4 != 4 || (header[0] & 15) < 5)
		return MALFORMED;
	if ((header[0] & 15) != 5)
		return OPTIONS;
	u64 length = bounded(read16(header + 2));
	if (length < IPV4 || header + length > end)
		return MALFORMED;
	if (length > now->longest)
		return TOO_LONG;
	if (header[8] <= 1)
		return TTL;
	if (is_special4(header + 12) || is_special4(header + 16))
		return ADDRESSES;
	return decide4(now, packet, header, end);
}

INLINE enum outcome look6(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	if (!now->ip6)
		return OFF;
	if (header + IPV6 > end || header[0] >> 4 != 6)
		return MALFORMED;
	u64 length = IPV6 + bounded(read16(header + 4));
	if (length == IPV6 || header + length > end)
		return MALFORMED;
	if (length > now->longest)
		return TOO_LONG;
	if (header[6] == HOP_BY_HOP)
		return OPTIONS;
	if (header[7] <= 1)
		return TTL;
	if (is_special6(header + 8) || is_special6(header + 24))
		return ADDRESSES;
	return decide6(now, packet, header, end);
}

/* True for a frame that the process has returned on this CPU, which the kernel's stack shows the program again. */
INLINE int is_returned(const struct settings *now)
{
	if (!now->generic)
		return 0;
	u32 zero = 0;
	u32 *frames = bpf_map_lookup_elem(&returning, &zero);
	if (!frames || !*frames)
		return 0;
	*frames -= 1;
	return 1;
}

INLINE int is_stalled(void)
{
	u32 zero = 0;
	const u64 *end = bpf_map_lookup_elem(&lease, &zero);
	return !end || bpf_ktime_get_coarse_ns() > *end;
}

/* True for a frame to this MAC. */
INLINE int is_to(const struct settings *now, const u8 *frame)
{
	for (int i = 0; i < 6; i++) {
		if (frame[i] != now->mac[i])
			return 0;
	}
	return 1;
}

/* Looks at a packet of this Ethertype. */
INLINE enum outcome look_at(const struct settings *now, struct packet *packet, u16 type, const u8 *header, const u8 *end)
{
	if (type == ETHERTYPE_IPV4)
		return look4(now, packet, header, end);
	if (type == ETHERTYPE_IPV6)
		return look6(now, packet, header, end);
	return OTHER_TYPE;
}

INLINE enum outcome look(const struct settings *now, struct packet *packet, const u8 *frame, const u8 *end)
{
	const u8 *header = frame + ETHERNET;
	if (header > end)
		return MALFORMED;
	if (!is_to(now, frame))
		return OTHER_MAC;
	return look_at(now, packet, read16(frame + 12), header, end);
}

/* As `look`, for frames with the tag of a VLAN as well, which has settings of its own: `now` becomes those. */
INLINE enum outcome look_tagged(const struct settings **now, struct packet *packet, const u8 *frame, const u8 *end)
{
	const u8 *header = frame + ETHERNET + TAG;
	if (header > end || read16(frame + 12) != ETHERTYPE_VLAN || !is_to(*now, frame))
		return look(*now, packet, frame, end);
	u32 id = read16(frame + ETHERNET) & VLAN_ID;
	const struct settings *vlan = bpf_map_lookup_elem(&vlans, &id);
	if (!vlan)
		return OTHER_TYPE;
	*now = vlan;
	return look_at(vlan, packet, read16(frame + ETHERNET + 2), header, end);
}

/* Gives the kernel a frame that the process has received and does not forward, see `Returner`. */
SECTION("xdp") int turnpike_return(struct xdp_md *context)
{
	u8 *frame = (u8 *)(long)context->data;
	const u8 *end = (const u8 *)(long)context->data_end;
	u32 zero = 0;
	const struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	if (now && !as_received(now, frame, end))
		return count(ENDED, XDP_DROP);
	u32 *frames = bpf_map_lookup_elem(&returning, &zero);
	if (now && now->generic && frames)
		*frames += 1;
	return count(RETURNED, XDP_PASS);
}
