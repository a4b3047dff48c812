/* Frames that a program has redirected on this CPU and of which the kernel has reported nothing yet, see unsent.bpf.c. */

struct open {
	u32 interface; /* the number of that which has received them */
	u32 frames;
};

struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	struct open *value;
} open SECTION(".maps");
