/* Frames as a NIC's driver has them, without the socket buffers of the kernel's stack, see wire.py. */

#include "../crates/dpdk/src/port/xdp.bpf.h"

static long (*const bpf_redirect)(u32 interface, u64 flags) = (void *)23;

enum { ADDRESSES = 1 << 20 };

/* The frame without what changes; where it leaves. */
struct settings {
	u8 head[ETHERNET + IPV4 + 8];
	u16 sum; /* of the IPv4 header without the destination, folded */
	u32 interface;
};

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	struct settings *value;
} settings SECTION(".maps");

/* Destinations, as they are in packets. */
struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[ADDRESSES / 2];
	int (*map_flags)[BPF_F_MMAPABLE];
	u32 *key;
	u32 (*value)[2];
} destinations SECTION(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	u32 *value;
} position SECTION(".maps");

/* Writes the next frame; the process has the kernel run this with frames of its size (BPF_F_TEST_XDP_LIVE_FRAMES). */
SECTION("xdp") int make_frame(struct xdp_md *context)
{
	u8 *frame = (u8 *)(long)context->data, *end = (u8 *)(long)context->data_end;
	u32 zero = 0;
	const struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	u32 *at = bpf_map_lookup_elem(&position, &zero);
	if (!now || !at || frame + sizeof now->head > end)
		return XDP_DROP;
	u32 number = *at & (ADDRESSES - 1), pair = number / 2;
	const u32(*destination)[2] = bpf_map_lookup_elem(&destinations, &pair);
	if (!destination)
		return XDP_DROP;
	*at += 1;
	__builtin_memcpy(frame, now->head, sizeof now->head);
	u32 to = (*destination)[number & 1];
	u32 sum = now->sum + (to & 0xffff) + (to >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	u16 check = ~sum;
	__builtin_memcpy(frame + ETHERNET + 10, &check, sizeof check);
	__builtin_memcpy(frame + ETHERNET + 16, &to, sizeof to);
	return bpf_redirect(now->interface, 0);
}

char licensed_by[] SECTION("license") = "Apache-2.0";
