/* Frames that the programs of in_kernel.bpf.c have redirected and that no interface has sent, see in_kernel.rs.
 *
 * A program learns nothing of what becomes of its frame: a link may be down, a ring full. The kernel reports each frame at
 * one of two tracepoints, on the same CPU before another interface's frames are looked at there: at once if it is refused,
 * else with the bulk that it is in. So the frames that are open on a CPU say whether a report is about ours.
 */

#include "xdp.bpf.h"
#include "open.bpf.h"

/* By number of the receiving interface. */
struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[64];
	u32 *key;
	u64 *value;
} unsent SECTION(".maps");

/* Some open frames are reported, of which so many are lost. */
INLINE int report(u64 frames, u64 lost)
{
	u32 zero = 0;
	struct open *now = bpf_map_lookup_elem(&open, &zero);
	if (!now || !now->frames)
		return 0;
	now->frames -= frames < now->frames ? frames : now->frames;
	u32 interface = now->interface;
	u64 *counter = bpf_map_lookup_elem(&unsent, &interface);
	if (counter)
		*counter += lost;
	return 0;
}

/* from, to, sent, drops, err */
SECTION("raw_tp/xdp_devmap_xmit") int turnpike_devmap(u64 *arguments)
{
	u32 sent = arguments[2], lost = arguments[3];
	return report((u64)sent + lost, lost);
}

/* from, program, target, err, … */
SECTION("raw_tp/xdp_redirect_err") int turnpike_refused(u64 *arguments)
{
	(void)arguments;
	return report(1, 1);
}

char licensed_by[] SECTION("license") = "Apache-2.0";
