/* What dpdk-sys binds: every header named here, with its static inline functions, and a few
 * constants and functions of our own for what a C struct says and Rust cannot (offsets inside
 * anonymous unions, bit-fields and per-thread variables, whose names and nesting differ between
 * DPDK releases). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rte_acl.h>
#include <rte_bus.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_eventdev.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_flow.h>
#include <rte_hash_crc.h>
#include <rte_interrupts.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_lpm.h>
#include <rte_lpm6.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_rcu_qsbr.h>
#include <rte_ring.h>
#include <rte_service.h>
#include <rte_thread.h>
#include <rte_version.h>
/* Of vectors only their greatest width: DPDK's types of them are each processor's. */
#include <generic/rte_vect.h>

#include "source.h"

/* Where the fields of struct rte_mbuf are that the packet path reads without a call. */
enum shim_mbuf_offset {
	MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	MBUF_PORT = offsetof(struct rte_mbuf, port),
	MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
	MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	MBUF_HASH = offsetof(struct rte_mbuf, hash),
	MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	MBUF_POOL = offsetof(struct rte_mbuf, pool),
	MBUF_NEXT = offsetof(struct rte_mbuf, next),
	MBUF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload),
};

/* rte_errno is a macro over a per-thread variable. */
static inline int shim_errno(void) { return rte_errno; }

/* Bits of rte_flow's items: the compiler puts those of Ethernet into the padding after the header, bindgen behind it. */
static inline void shim_flow_eth_tagged(struct rte_flow_item_eth *item, bool tagged) { item->has_vlan = tagged; }
static inline void shim_flow_vlan_more(struct rte_flow_item_vlan *item, bool more) { item->has_more_vlan = more; }

/* The bit-fields of struct rte_eth_link became members of an anonymous struct in 24.11. */
static inline bool shim_link_up(const struct rte_eth_link *link) { return link->link_status != 0; }
static inline uint32_t shim_link_speed(const struct rte_eth_link *link) { return link->link_speed; }
static inline bool shim_link_full_duplex(const struct rte_eth_link *link) { return link->link_duplex != 0; }
static inline bool shim_link_autoneg(const struct rte_eth_link *link) { return link->link_autoneg != 0; }

/* Macros of the form RTE_BIT64(n) or UINT32_MAX, which bindgen does not evaluate. */
static const uint64_t SHIM_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t SHIM_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t SHIM_RX_OFFLOAD_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t SHIM_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t SHIM_RSS_IP = RTE_ETH_RSS_IP;
static const uint64_t SHIM_RSS_TCP_UDP = RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
static const uint64_t SHIM_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t SHIM_TX_OFFLOAD_L4_CKSUM =
	RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
static const uint64_t SHIM_TX_OFFLOAD_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t SHIM_TX_OFFLOAD_MBUF_FAST_FREE = RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
static const uint64_t SHIM_TX_OFFLOAD_VLAN_INSERT = RTE_ETH_TX_OFFLOAD_VLAN_INSERT;
static const uint64_t SHIM_MBUF_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t SHIM_MBUF_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t SHIM_MBUF_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;
static const uint64_t SHIM_MBUF_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;
static const uint64_t SHIM_MBUF_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t SHIM_MBUF_TX_UDP_CKSUM = RTE_MBUF_F_TX_UDP_CKSUM;
static const uint64_t SHIM_MBUF_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t SHIM_MBUF_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t SHIM_MBUF_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t SHIM_MBUF_TX_VLAN = RTE_MBUF_F_TX_VLAN;
static const uint64_t SHIM_RSS_IP_TCP_UDP = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
static const uint32_t SHIM_DEV_INTR_LSC = RTE_ETH_DEV_INTR_LSC;
static const uint32_t SHIM_LINK_SPEED_FIXED = RTE_ETH_LINK_SPEED_FIXED;
static const uint64_t SHIM_MBUF_INDIRECT = RTE_MBUF_F_INDIRECT;
static const uint64_t SHIM_MBUF_LAST_FREE = RTE_MBUF_F_LAST_FREE;
static const unsigned int SHIM_LCORE_ID_ANY = LCORE_ID_ANY;
static const uint64_t SHIM_MBUF_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
static const uint32_t SHIM_INTR_PRIVATE = RTE_INTR_INSTANCE_F_PRIVATE;
static const uint32_t SHIM_EVENT_QUEUE_QOS = RTE_EVENT_DEV_CAP_QUEUE_QOS;
static const uint32_t SHIM_EVENT_MULTIPLE_QUEUE_PORT = RTE_EVENT_DEV_CAP_MULTIPLE_QUEUE_PORT;
static const uint32_t SHIM_EVENT_IMPLICIT_RELEASE_DISABLE = RTE_EVENT_DEV_CAP_IMPLICIT_RELEASE_DISABLE;
static const uint32_t SHIM_EVENT_PORT_DISABLE_IMPL_REL = RTE_EVENT_PORT_CFG_DISABLE_IMPL_REL;
static const uint32_t SHIM_EVENT_QUEUE_SINGLE_LINK = RTE_EVENT_QUEUE_CFG_SINGLE_LINK;
