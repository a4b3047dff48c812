/* The XDP program of an accelerated interface that forwards itself, without sockets and without forwarders, see
 * in_kernel.rs.
 *
 * ```
 *   look (accelerate.bpf.h)      route4, route6       next hop           way           devmap
 *   what is to be forwarded  --> number of a     -->  interface,    -->  own MAC,  --> frame leaves
 *                                next hop             MAC, or group      MTU, tag
 *                  |                                     |                 |
 *                  +------------> the kernel <-----------+-----------------+ not resolved, back where it came from, …
 * ```
 *
 * The tables are the router's own, which the process writes: the FIBs (crate fib: dir24_8.rs, poptrie.rs) and the table of
 * next hops (crate dataplane: next_hop.rs). Each lookup is a copy of the one there; an entry is read once. The program
 * runs within one grace period of the kernel (RCU), by which the process reuses pieces of the tables and numbers.
 */

#include "accelerate.bpf.h"
#include "open.bpf.h"

static long (*const bpf_xdp_adjust_head)(struct xdp_md *context, int delta) = (void *)44;
static long (*const bpf_xdp_adjust_tail)(struct xdp_md *context, int delta) = (void *)65;

enum {
	FIRST_DYNAMIC = 16, /* numbers from here on lead to interfaces */
	NUMBER = (1 << 15) - 1,
	SHORTEST = 60, /* bytes of a frame, without its checksum */
	PROTOCOL_TCP = 6,
	PROTOCOL_UDP = 17,
	PROTOCOL_DCCP = 33,
	PROTOCOL_SCTP = 132,
	PORTS = 64,
	WAYS = 1 << 13, /* ports, and VLANs on them */
};

/* Elements of maps are padded to eight bytes, so smaller ones lie in lines. */
struct line {
	u16 entries[32];
};

struct line32 {
	u32 entries[16];
};

struct node {
	u64 vector, leafvec, bases;
};

/* A way out: the own MAC and the MTU in one word, 0: none; and its port with the tag. */
struct way {
	u64 frame, port;
};

/* Of the second word: the port's driver takes frames of programs in drivers; the number of the port; the identifier of the
 * VLAN, and whether there is one. */
enum { NATIVE = 1, PORT_SHIFT = 8, VLAN_SHIFT = 16, TAGGED_SHIFT = 32 };

#define MAPPED(name, element, most)           \
	struct {                              \
		int (*type)[BPF_MAP_TYPE_ARRAY];  \
		int (*max_entries)[most];         \
		int (*map_flags)[BPF_F_MMAPABLE]; \
		u32 *key;                         \
		element *value;                   \
	} name SECTION(".maps")

MAPPED(tbl24, struct line, (1 << 24) / 32);
MAPPED(tbl_long, struct line, (1 << 23) / 32);
MAPPED(direct6, struct line32, (1 << 18) / 16);
MAPPED(nodes6, struct node, 1 << 20);
MAPPED(leaves6, struct line, (1 << 22) / 32);
MAPPED(next_hops, u64, 1 << 15);
MAPPED(members, struct line, (1 << 18) / 32);
MAPPED(ways, struct way, WAYS);

struct {
	int (*type)[BPF_MAP_TYPE_DEVMAP];
	int (*max_entries)[PORTS];
	u32 *key;
	u32 *value;
} devices SECTION(".maps");

/* The ports of a bond, by the kernel's numbers, whose frames are looked at. Its program runs in their drivers. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[64];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	u32 *key;
	u8 *value;
} bond_ports SECTION(".maps");

/* The seed of flow hashes; 1 if some destinations are the kernel's whatever their route. */
enum word { SEED, SOME_STAY, WORDS };
MAPPED(words, u64, WORDS);

INLINE u64 word(enum word key)
{
	u32 at = key;
	const u64 *value = bpf_map_lookup_elem(&words, &at);
	return value ? *value : 0;
}

INLINE u16 entry(void *lines, u32 number)
{
	u32 at = number >> 5;
	const struct line *line = bpf_map_lookup_elem(lines, &at);
	return line ? line->entries[number & 31] : 0;
}

INLINE u32 read32(const u8 *at)
{
	return (u32)read16(at) << 16 | read16(at + 2);
}

INLINE u64 read64(const u8 *at)
{
	return (u64)read32(at) << 32 | read32(at + 4);
}

INLINE u32 popcount(u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555;
	bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333);
	bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0f;
	return bits * 0x0101010101010101 >> 56;
}

/* Of dir24_8.rs. */
INLINE u32 find4(u32 address)
{
	u16 found = entry(&tbl24, address >> 8);
	if (found >> 15)
		found = entry(&tbl_long, (u32)(found & NUMBER) << 8 | (address & 0xff));
	return found;
}

/* Of poptrie.rs: 18 bits at once, then 6 by 6. */
static __attribute__((noinline)) u32 find6(u64 high, u64 low)
{
	u32 at = high >> 50;
	const struct line32 *line = bpf_map_lookup_elem(&direct6, &at);
	if (!line)
		return 0;
	u32 number = line->entries[high >> 46 & 15];
	if (number >> 31)
		return number & NUMBER;
	high = high << 18 | low >> 46;
	low <<= 18;
	for (int level = 0; level < 19; level++) {
		const struct node *node = bpf_map_lookup_elem(&nodes6, &number);
		if (!node)
			return 0;
		u32 slot = high >> 58;
		if (!(node->vector >> slot & 1)) {
			u32 rank = popcount(node->leafvec & (((u64)2 << slot) - 1));
			return entry(&leaves6, (u32)node->bases + rank - 1);
		}
		number = (u32)(node->bases >> 32) + popcount(node->vector & (((u64)1 << slot) - 1));
		high = high << 6 | low >> 58;
		low <<= 6;
	}
	return 0;
}

/* The number of the route to an address if its packets are forwarded, else 0. */
INLINE u32 route4(const u8 *address)
{
	u32 number = find4(read32(address));
	return number >= FIRST_DYNAMIC ? number : 0;
}

INLINE u32 route6(const u8 *address)
{
	u32 number = find6(read64(address), read64(address + 8));
	return number >= FIRST_DYNAMIC ? number : 0;
}

struct packet {
	u32 route; /* its number */
};

INLINE enum outcome decide4(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	(void)now, (void)end;
	packet->route = route4(header + 16);
	if (!packet->route)
		return ROUTE;
	return route4(header + 12) ? REDIRECTED : SOURCE;
}

INLINE enum outcome decide6(const struct settings *now, struct packet *packet, const u8 *header, const u8 *end)
{
	(void)now, (void)end;
	packet->route = route6(header + 24);
	if (!packet->route)
		return ROUTE;
	return route6(header + 8) ? REDIRECTED : SOURCE;
}

/* The process gets no frames. */
INLINE int as_received(const struct settings *now, u8 *frame, const u8 *end)
{
	(void)now, (void)frame, (void)end;
	return 1;
}

/* A next hop as next_hop.rs packs it. */
enum { KIND = 7, FORWARD = 1, GROUP = 4 };

INLINE u64 next_hop(u32 number)
{
	const u64 *hop = bpf_map_lookup_elem(&next_hops, &number);
	return hop ? *hop : 0;
}

/* The path of a flow with this hash. */
INLINE u64 select(u64 group, u32 hash)
{
	u32 first = group >> 16, count = group >> 48;
	return next_hop(entry(&members, first + (u32)((u64)hash * count >> 32)));
}

INLINE u64 fold(u64 hash, u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15;
	return hash ^ hash >> 32;
}

INLINE int has_ports(u8 protocol)
{
	return protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP || protocol == PROTOCOL_DCCP || protocol == PROTOCOL_SCTP;
}

/* The ports of a packet, which begin there; 0 if the frame ends before. */
INLINE u32 ports(const u8 *at, const u8 *end)
{
	return at + 4 > end ? 0 : read32(at);
}

/* The hash of a packet's addresses, protocol and ports; fragments have none. Its upper half depends on all bits. */
INLINE u32 hash4(const u8 *header, const u8 *end)
{
	int is_fragment = read16(header + 6) & 0x3fff;
	u32 own = has_ports(header[9]) && !is_fragment ? ports(header + IPV4, end) : 0;
	u64 hash = fold(word(SEED), read64(header + 12));
	return fold(hash, (u64)header[9] << 32 | own) >> 32;
}

INLINE u32 hash6(const u8 *header, const u8 *end)
{
	u32 own = has_ports(header[6]) ? ports(header + IPV6, end) : 0;
	u64 hash = word(SEED);
	for (int at = 8; at < IPV6; at += 8)
		hash = fold(hash, read64(header + at));
	return fold(hash, (u64)header[6] << 32 | own) >> 32;
}

INLINE u16 folded(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The sum of some 16-bit words; the caller has checked that they are there. */
INLINE u32 sum_of(const u8 *at, int bytes)
{
	u32 sum = 0;
	for (int i = 0; i < bytes; i += 2)
		sum += read16(at + i);
	return sum;
}

/* True if the sender has left the checksum of TCP or UDP to its device: the field has the sum over the pseudo-header. The
 * frame that leaves would have it so. One packet in 65,536 looks like that by chance, which the kernel forwards. */
INLINE int is_partial(const u8 *segment, const u8 *end, u8 protocol, u32 addresses, u16 length)
{
	int field = protocol == PROTOCOL_TCP ? 16 : 6;
	if (protocol != PROTOCOL_TCP && protocol != PROTOCOL_UDP)
		return 0;
	if (segment + field + 2 > end)
		return 0;
	return read16(segment + field) == folded(addresses + protocol + length);
}

INLINE int has_partial4(const u8 *header, const u8 *end)
{
	if (read16(header + 6) & 0x1fff)
		return 0;
	return is_partial(header + IPV4, end, header[9], sum_of(header + 12, 8), read16(header + 2) - IPV4);
}

INLINE int has_partial6(const u8 *header, const u8 *end)
{
	return is_partial(header + IPV6, end, header[6], sum_of(header + 8, 32), read16(header + 4));
}

/* What is to be done with a packet. */
struct verdict {
	enum outcome outcome;
	u64 hop; /* its next hop */
};

INLINE struct verdict through(u32 route, u32 hash)
{
	u64 hop = next_hop(route);
	if ((hop & KIND) == GROUP)
		hop = select(hop, hash);
	return (struct verdict){ (hop & KIND) == FORWARD ? REDIRECTED : RETURNED, hop };
}

INLINE struct verdict judge4(const u8 *header, const u8 *end, u32 route)
{
	if (folded(sum_of(header, IPV4)) != 0xffff)
		return (struct verdict){ MALFORMED, 0 };
	if (has_partial4(header, end))
		return (struct verdict){ CHECKSUM, 0 };
	if (word(SOME_STAY) && !forwards4(header + 16))
		return (struct verdict){ ROUTE, 0 };
	return through(route, hash4(header, end));
}

INLINE struct verdict judge6(const u8 *header, const u8 *end, u32 route)
{
	if (has_partial6(header, end))
		return (struct verdict){ CHECKSUM, 0 };
	if (word(SOME_STAY) && !forwards6(header + 24))
		return (struct verdict){ ROUTE, 0 };
	return through(route, hash6(header, end));
}

/* Lowers the TTL or hop limit, which is 2 at least. */
INLINE void age(u8 *header, int is_ip4)
{
	if (!is_ip4) {
		header[7] -= 1;
		return;
	}
	/* RFC 1624: the word with the TTL is less by 0x100, so the sum's complement is more by that. */
	u32 check = read16(header + 10) + 0x100;
	check += check >= 0xffff;
	header[8] -= 1;
	header[10] = check >> 8;
	header[11] = check;
}

INLINE void put_mac(u8 *at, u64 mac)
{
	for (int i = 0; i < 6; i++)
		at[i] = mac >> 8 * i;
}

INLINE u32 length_of(const u8 *header, int is_ip4)
{
	return is_ip4 ? read16(header + 2) : IPV6 + (u32)read16(header + 4);
}

/* Removes what follows the packet in its frame, as the kernel does: an interface refuses a frame that is longer than its
 * packets may be. The frame stays as long as the shortest one of Ethernet. */
INLINE void trim(struct xdp_md *context, u32 offset)
{
	const u8 *frame = (const u8 *)(long)context->data;
	const u8 *end = (const u8 *)(long)context->data_end;
	const u8 *header = frame + offset;
	if (header + IPV4 > end)
		return;
	u32 all = end - frame, shortest = SHORTEST + offset - ETHERNET;
	u32 kept = offset + length_of(header, header[0] >> 4 == 4);
	if (kept < shortest)
		kept = shortest;
	if (all > kept)
		bpf_xdp_adjust_tail(context, (int)kept - (int)all);
}

/* A frame is on its way, and the kernel will report it. Its stack (generic mode) reports none. */
INLINE void note_open(const struct settings *now)
{
	u32 zero = 0;
	struct open *frames = bpf_map_lookup_elem(&open, &zero);
	if (now->generic || !frames)
		return;
	frames->interface = now->interface;
	frames->frames += 1;
}

INLINE void put16(u8 *at, u16 number)
{
	at[0] = number >> 8;
	at[1] = number;
}

/* Writes the headers of a frame that leaves, whose IP header is there by now. */
INLINE int write_headers(struct xdp_md *context, u64 mac, u64 hop, u64 port, u32 offset, int is_ip4)
{
	u8 *frame = (u8 *)(long)context->data, *header = frame + offset;
	/* Known, but not to the verifier. */
	if (header + IPV4 > (u8 *)(long)context->data_end)
		return 0;
	put_mac(frame, hop >> 16);
	put_mac(frame + 6, mac);
	if (offset > ETHERNET) {
		put16(frame + 12, ETHERTYPE_VLAN);
		put16(frame + ETHERNET, port >> VLAN_SHIFT & VLAN_ID);
	}
	put16(header - 2, is_ip4 ? ETHERTYPE_IPV4 : ETHERTYPE_IPV6);
	age(header, is_ip4);
	return 1;
}

/* Sends a packet of this length, whose headers had a tag of so many bytes, on its way, if there is one. `now`: of the
 * interface that has received it; `own`: of its VLAN. */
INLINE int send(struct xdp_md *context, const struct settings *now, const struct settings *own, u64 hop, u32 length, int is_ip4, int tag)
{
	u32 number = hop >> 3 & (WAYS - 1);
	const struct way *way = bpf_map_lookup_elem(&ways, &number);
	u64 mac = way ? way->frame : 0, port = way ? way->port : 0;
	if (!mac || !(now->generic || port & NATIVE))
		return count(NO_WAY, XDP_PASS);
	if (number == own->way)
		return count(RETURNED, XDP_PASS);
	if (length > mac >> 48)
		return count(TOO_LONG, XDP_PASS);
	if (bpf_redirect_map(&devices, port >> PORT_SHIFT & (PORTS - 1), XDP_PASS) != XDP_REDIRECT)
		return count(NO_WAY, XDP_PASS);
	int tag_now = port >> TAGGED_SHIFT & 1 ? TAG : 0;
	if (tag != tag_now && bpf_xdp_adjust_head(context, tag - tag_now))
		return count(NO_WAY, XDP_PASS);
	/* By constants, of which the verifier knows where the header is. */
	int is_written = tag_now ? write_headers(context, mac, hop, port, ETHERNET + TAG, is_ip4) :
				   write_headers(context, mac, hop, port, ETHERNET, is_ip4);
	if (!is_written)
		return count(MALFORMED, XDP_DROP);
	note_open(now);
	return count(REDIRECTED, XDP_REDIRECT);
}

/* Forwards a packet that `look` has found good, whose header is there. */
INLINE int forward(struct xdp_md *context, const struct settings *now, const struct settings *own, u32 route, u32 offset)
{
	trim(context, offset);
	const u8 *header = (const u8 *)(long)context->data + offset;
	const u8 *end = (const u8 *)(long)context->data_end;
	/* Known, but not to the verifier. */
	if (header + IPV4 > end)
		return count(MALFORMED, XDP_PASS);
	int is_ip4 = header[0] >> 4 == 4;
	if (!is_ip4 && header + IPV6 > end)
		return count(MALFORMED, XDP_PASS);
	struct verdict verdict = is_ip4 ? judge4(header, end, route) : judge6(header, end, route);
	if (verdict.outcome != REDIRECTED)
		return count(verdict.outcome, XDP_PASS);
	return send(context, now, own, verdict.hop, length_of(header, is_ip4), is_ip4, offset - ETHERNET);
}

/* False for frames of a bond that has not received them: by a port that is a spare, or that is not ready. */
INLINE int is_received(const struct xdp_md *context, const struct settings *now)
{
	u32 port = context->ingress_ifindex;
	return !now->bond || bpf_map_lookup_elem(&bond_ports, &port);
}

SECTION("xdp") int turnpike_forward(struct xdp_md *context)
{
	const u8 *frame = (const u8 *)(long)context->data;
	u32 zero = 0;
	const struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	if (!now)
		return XDP_PASS;
	if (is_returned(now))
		return XDP_PASS;
	if (!is_received(context, now))
		return count(BOND_PORT, XDP_PASS);
	struct packet packet = { 0 };
	const struct settings *own = now;
	enum outcome outcome = look_tagged(&own, &packet, frame, (const u8 *)(long)context->data_end);
	if (outcome == REDIRECTED && is_stalled())
		outcome = STALLED;
	if (outcome != REDIRECTED)
		return count(outcome, XDP_PASS);
	/* By constants, as above. */
	return own == now ? forward(context, now, own, packet.route, ETHERNET) :
			    forward(context, now, own, packet.route, ETHERNET + TAG);
}

char licensed_by[] SECTION("license") = "Apache-2.0";
