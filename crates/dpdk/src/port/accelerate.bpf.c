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

struct {
	int (*type)[BPF_MAP_TYPE_XSKMAP];
	int (*max_entries)[256];
	u32 *key;
	u32 *value;
} xsks_map SECTION(".maps");

/* 802.1Q: the tag's bytes, its Ethertype, the bits of the identifier. */
enum { TAG = 4, ETHERTYPE_VLAN = 0x8100, VLAN_ID = 0x0fff, VLAN_IDS = 4096 };

/* The VLANs of the interface, by identifier; frames of others are the kernel's. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[VLAN_IDS];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	u32 *key;
	struct settings *value;
} vlans SECTION(".maps");

INLINE u32 route4(const u8 *address)
{
	return forwards4(address);
}

INLINE u32 route6(const u8 *address)
{
	return forwards6(address);
}

/* As `look`, for frames with the tag of a VLAN as well, which has settings of its own. */
INLINE enum outcome look_tagged(const struct settings *now, const u8 *frame, const u8 *end, u32 *route)
{
	const u8 *header = frame + ETHERNET + TAG;
	if (header > end || read16(frame + 12) != ETHERTYPE_VLAN || !is_to(now, frame))
		return look(now, frame, end, route);
	u32 id = read16(frame + ETHERNET) & VLAN_ID;
	const struct settings *vlan = bpf_map_lookup_elem(&vlans, &id);
	return vlan ? look_at(vlan, read16(frame + ETHERNET + 2), header, end, route) : OTHER_TYPE;
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
	u32 route;
	enum outcome outcome = look_tagged(now, frame, end, &route);
	if (outcome == REDIRECTED && is_stalled())
		outcome = STALLED;
	if (outcome != REDIRECTED)
		return count(outcome, XDP_PASS);
	int action = bpf_redirect_map(&xsks_map, context->rx_queue_index, XDP_PASS);
	return count(action == XDP_REDIRECT ? REDIRECTED : NO_SOCKET, action);
}

int (*xsk_prog_version)[1] SECTION("xdp_metadata");
char licensed_by[] SECTION("license") = "Apache-2.0";
