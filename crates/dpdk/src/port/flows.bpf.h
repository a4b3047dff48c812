/* Flows of the kernel's connection tracking, as programs see them; see flows.rs.
 *
 * Each direction of a flow has an entry of its own, by the addresses and ports of its packets as they are received. What
 * is behind the last hook of the kernel has those that its rules of NAT give it: the inverse of the key of the other
 * direction. So the other direction's entry leads back to the packet as received.
 */

enum { TCP = 6, UDP = 17 };
enum { FIN = 0x01, SYN = 0x02, RST = 0x04, ACK = 0x10, URG = 0x20 };
enum { TCP_HEADER = 20, UDP_HEADER = 8, TCP_FLAGS = 13, TCP_CHECKSUM = 16, UDP_CHECKSUM = 6 };
enum { FRAGMENT = 0x3fff }; /* more fragments follow, or an offset */

struct tuple {
	u8 source[16], destination[16]; /* of IPv4 in the first bytes */
	u8 source_port[2], destination_port[2];
	u8 protocol;
	u8 family; /* 4 or 6 */
	u8 unused[2];
};

struct flow {
	u8 source[16], destination[16]; /* of the packets as they are sent */
	u8 source_port[2], destination_port[2];
	u16 address_change; /* of checksums, by the addresses alone */
	u16 change; /* by addresses and ports */
	u32 ingress; /* the interface or VLAN device by which the kernel receives the packets */
	u8 translates;
	u8 ended; /* no packet is taken any more, and those that were can be returned */
	u8 unused[2];
	u64 confirmed; /* nanoseconds of CLOCK_MONOTONIC; 0: the kernel has not let a packet pass yet */
	u64 last; /* the time of a packet that was taken, to within PRECISION */
};

enum { PRECISION = 1 << 26 };

/* Shared by all interfaces; the map of the process takes its place where flows are followed. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[1];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	struct tuple *key;
	struct flow *value;
} flows SECTION(".maps");

/* Earlier confirmations do not count, in nanoseconds of CLOCK_MONOTONIC. Shared, and mapped by the process. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	int (*map_flags)[BPF_F_MMAPABLE];
	u32 *key;
	u64 *value;
} flows_since SECTION(".maps");

INLINE u64 since(void)
{
	u32 zero = 0;
	const u64 *since = bpf_map_lookup_elem(&flows_since, &zero);
	return since ? *since : ~0ULL;
}

/* True for segments between the opening and the end of a connection. */
INLINE int is_amid(u8 flags)
{
	return (flags & (FIN | SYN | RST | ACK | URG)) == ACK;
}

/* The direction of answers to the packets. */
INLINE struct tuple inverse(const struct tuple *of)
{
	struct tuple inverse = { .protocol = of->protocol, .family = of->family };
	__builtin_memcpy(inverse.source, of->destination, 16);
	__builtin_memcpy(inverse.destination, of->source, 16);
	__builtin_memcpy(inverse.source_port, of->destination_port, 2);
	__builtin_memcpy(inverse.destination_port, of->source_port, 2);
	return inverse;
}

/* The key of the direction of answers to what is sent by `flow`, which `of` finds. */
INLINE struct tuple answers(const struct tuple *of, const struct flow *flow)
{
	struct tuple answers = { .protocol = of->protocol, .family = of->family };
	__builtin_memcpy(answers.source, flow->destination, 16);
	__builtin_memcpy(answers.destination, flow->source, 16);
	__builtin_memcpy(answers.source_port, flow->destination_port, 2);
	__builtin_memcpy(answers.destination_port, flow->source_port, 2);
	return answers;
}
