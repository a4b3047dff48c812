/* A source of packets, see source.c. */
#ifndef SHIM_SOURCE_H
#define SHIM_SOURCE_H

#include <stdint.h>

/* Bytes that are written into each packet. What a longer packet has behind them is left as it is. */
#define SHIM_SOURCE_HEAD 64

/* A packet as a device delivers it. */
struct shim_source_packet {
	uint8_t head[SHIM_SOURCE_HEAD];
	/* Results of the device: RTE_MBUF_F_RX_*, RTE_PTYPE_*, and the control information of a tag that it removed. */
	uint64_t flags;
	uint32_t packet_type;
	uint16_t tag;
	/* Its length without the frame check sequence. */
	uint16_t len;
};

/* The packets of one queue, over and over. */
struct shim_source {
	const struct shim_source_packet *packets;
	uint32_t count, next;
};

/* Makes received packets those of the source: an rte_rx_callback_fn whose parameter is a struct shim_source. */
uint16_t shim_source_fill(uint16_t port, uint16_t queue, struct rte_mbuf **received, uint16_t count, uint16_t most,
			  void *source);

#endif
