/* A source of packets for benchmarks: what DPDK's null driver receives, which are buffers without content, becomes
 * frames, as a NIC writes them into buffers. There can be millions of them, each to another destination; the headers
 * are written anew each time, since a router changes them. It costs less than replaying a file by DPDK's pcap driver,
 * which copies from one buffer into another.
 *
 * Turnpike has it built in. Other programs get the same packets by the same code, compiled to a library and loaded
 * before DPDK:
 *
 *   scripts/build-source.sh source.so
 *   LD_PRELOAD=source.so TURNPIKE_SOURCE=FILE dpdk-testpmd --vdev=net_null0 …
 *
 * FILE has packets as struct shim_source_packet, one after the other; all queues of the device net_null0 present
 * them, each from another one on. */
#ifdef SHIM_SOURCE_PRELOAD
#define _GNU_SOURCE
#endif
#include <rte_mbuf.h>

#include "source.h"

uint16_t shim_source_fill(uint16_t port, uint16_t queue, struct rte_mbuf **received, uint16_t count, uint16_t most,
			  void *source)
{
	struct shim_source *of = source;
	uint32_t next = of->next;
	uint16_t at;

	(void)port, (void)queue, (void)most;
	for (at = 0; at < count; at++) {
		const struct shim_source_packet *packet = &of->packets[next];
		struct rte_mbuf *into = received[at];

		next = next + 1 == of->count ? 0 : next + 1;
		/* The null driver gives out fresh buffers, whose headroom and room are those of the pool. */
		memcpy(rte_pktmbuf_mtod(into, uint8_t *), packet->head, SHIM_SOURCE_HEAD);
		into->ol_flags = packet->flags;
		into->packet_type = packet->packet_type;
		into->vlan_tci = packet->tag;
		into->pkt_len = into->data_len = packet->len;
	}
	of->next = next;
	return count;
}

#ifdef SHIM_SOURCE_PRELOAD
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rte_debug.h>
#include <rte_ethdev.h>

#define QUEUES 64

static struct shim_source sources[QUEUES];

/* Maps the file; ends the program if it cannot. */
static void load(struct shim_source *source)
{
	const char *name = getenv("TURNPIKE_SOURCE");
	int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	struct stat about;
	void *packets;

	if (file < 0 || fstat(file, &about) < 0 || about.st_size < (off_t)sizeof(*source->packets))
		rte_exit(EXIT_FAILURE, "TURNPIKE_SOURCE=%s: no file of packets\n", name ? name : "");
	packets = mmap(NULL, about.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
	if (packets == MAP_FAILED)
		rte_exit(EXIT_FAILURE, "TURNPIKE_SOURCE=%s: cannot be mapped\n", name);
	close(file);
	source->packets = packets;
	source->count = about.st_size / sizeof(*source->packets);
}

/* Lets this library find DPDK's functions if a program has loaded DPDK with a plugin, for that only. Loaded together with
 * this library, DPDK would have memory of libc's before such a program puts functions of its own in front of malloc. */
static void find_dpdk(void)
{
	if (!dlopen(SHIM_ETHDEV, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD))
		abort();
}

/* This function and the next stand in front of DPDK's of the same name. Packets are counted by telemetry, which a
 * program may have turned off. */
int rte_eal_init(int argc, char **argv)
{
	int (*init)(int, char **);
	int from, to = 0;

	find_dpdk();
	init = (int (*)(int, char **))dlsym(RTLD_NEXT, "rte_eal_init");
	for (from = 0; from < argc; from++)
		if (strcmp(argv[from], "--no-telemetry") != 0)
			argv[to++] = argv[from];
	return init(to, argv);
}

int rte_eth_dev_start(uint16_t port)
{
	int (*start)(uint16_t);
	char name[RTE_ETH_NAME_MAX_LEN];
	struct rte_eth_dev_info info;
	uint16_t queue;

	find_dpdk();
	start = (int (*)(uint16_t))dlsym(RTLD_NEXT, "rte_eth_dev_start");
	if (rte_eth_dev_get_name_by_port(port, name) == 0 && strcmp(name, "net_null0") == 0 &&
	    rte_eth_dev_info_get(port, &info) == 0 && !sources[0].packets) {
		load(&sources[0]);
		for (queue = 0; queue < RTE_MIN(info.nb_rx_queues, QUEUES); queue++) {
			sources[queue] = sources[0];
			sources[queue].next = (uint64_t)sources[0].count * queue / info.nb_rx_queues;
			if (!rte_eth_add_rx_callback(port, queue, shim_source_fill, &sources[queue]))
				rte_exit(EXIT_FAILURE, "no memory for the source's callback\n");
		}
	}
	return start(port);
}
#endif
