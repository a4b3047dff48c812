/* The XDP programs of an accelerated interface, see accelerate.rs.
 *
 * The first looks at each received frame. A packet that is only to be forwarded, by a route between accelerated
 * interfaces, goes to the AF_XDP socket of its queue; everything else goes to the kernel, as if there were no program.
 * Doubts are decided in favour of the kernel, which forwards as well. Without a socket bpf_redirect_map passes the packet
 * to the kernel too. The kernel takes some time to close the sockets of a process that is killed, on a busy machine a
 * second or two; so the process has a lease that it renews all the time, and without it nothing is taken.
 *
 * The second gives the kernel a frame that the process has received and does not forward, see `Returner`.
 *
 * libxdp, by which DPDK's driver makes its sockets, looks for a program of this name on the interface, with a map of
 * sockets of this name and this number of its contract in the metadata. It attaches none of its own then.
 */

#include "xdp.bpf.h"

static u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;

enum { HOP_BY_HOP = 0 };

/* 802.1Q: the tag's bytes, its Ethertype, the bits of the identifier. */
enum { TAG = 4, ETHERTYPE_VLAN = 0x8100, VLAN_ID = 0x0fff, VLAN_IDS = 4096 };

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
	RETURNED, /* by the process */
	OUTCOMES,
};

struct settings {
	u8 mac[6];
	u16 longest; /* bytes of an IP packet */
	u8 ip4, ip6; /* forwarding is on */
	u8 generic; /* the kernel's stack runs the program, and runs it for returned frames as well */
	u8 unused;
};

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	struct settings *value;
} settings SECTION(".maps");

/* The VLANs of the interface, by identifier; frames of others are the kernel's. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[VLAN_IDS];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	u32 *key;
	struct settings *value;
} vlans SECTION(".maps");

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

struct {
	int (*type)[BPF_MAP_TYPE_XSKMAP];
	int (*max_entries)[256];
	u32 *key;
	u32 *value;
} xsks_map SECTION(".maps");

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

/* Returns REDIRECTED if the packet may be forwarded, else the reason why it may not. */
INLINE enum outcome look4(const struct settings *now, const u8 *header, const u8 *end)
{
	if (!now->ip4)
		return OFF;
	if (header + IPV4 > end || header[0] >> 4 != 4 || (header[0] & 15) < 5)
		return MALFORMED;
	if ((header[0] & 15) != 5)
		return OPTIONS;
	u16 length = read16(header + 2);
	if (length < IPV4 || header + length > end)
		return MALFORMED;
	if (length > now->longest)
		return TOO_LONG;
	if (header[8] <= 1)
		return TTL;
	if (is_special4(header + 12) || is_special4(header + 16))
		return ADDRESSES;
	if (!forwards4(header + 16))
		return ROUTE;
	return forwards4(header + 12) ? REDIRECTED : SOURCE;
}

INLINE enum outcome look6(const struct settings *now, const u8 *header, const u8 *end)
{
	if (!now->ip6)
		return OFF;
	if (header + IPV6 > end || header[0] >> 4 != 6)
		return MALFORMED;
	u32 length = IPV6 + (u32)read16(header + 4);
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
	if (!forwards6(header + 24))
		return ROUTE;
	return forwards6(header + 8) ? REDIRECTED : SOURCE;
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

INLINE enum outcome look(const struct settings *now, const u8 *frame, const u8 *end)
{
	const u8 *header = frame + ETHERNET;
	if (header > end)
		return MALFORMED;
	for (int i = 0; i < 6; i++) {
		if (frame[i] != now->mac[i])
			return OTHER_MAC;
	}
	u16 type = read16(frame + 12);
	if (type == ETHERTYPE_VLAN) {
		header += TAG;
		if (header > end)
			return MALFORMED;
		u32 id = read16(frame + ETHERNET) & VLAN_ID;
		now = bpf_map_lookup_elem(&vlans, &id);
		if (!now)
			return OTHER_TYPE;
		type = read16(frame + ETHERNET + 2);
	}
	if (type == ETHERTYPE_IPV4)
		return look4(now, header, end);
	if (type == ETHERTYPE_IPV6)
		return look6(now, header, end);
	return OTHER_TYPE;
}

SECTION("xdp") int xsk_def_prog(struct xdp_md *context)
{
	const u8 *frame = (const u8 *)(long)context->data;
	const u8 *end = (const u8 *)(long)context->data_end;
	u32 zero = 0;
	const struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	if (!now)
		return XDP_PASS;
	if (is_returned(now))
		return XDP_PASS;
	enum outcome outcome = look(now, frame, end);
	if (outcome == REDIRECTED && is_stalled())
		outcome = STALLED;
	if (outcome != REDIRECTED)
		return count(outcome, XDP_PASS);
	int action = bpf_redirect_map(&xsks_map, context->rx_queue_index, XDP_PASS);
	return count(action == XDP_REDIRECT ? REDIRECTED : NO_SOCKET, action);
}

SECTION("xdp") int turnpike_return(struct xdp_md *context)
{
	(void)context;
	u32 zero = 0;
	const struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	u32 *frames = bpf_map_lookup_elem(&returning, &zero);
	if (now && now->generic && frames)
		*frames += 1;
	return count(RETURNED, XDP_PASS);
}

int (*xsk_prog_version)[1] SECTION("xdp_metadata");
char licensed_by[] SECTION("license") = "Apache-2.0";
