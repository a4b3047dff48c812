/* A device that holds rules of rte_flow, for tests: put in front of DPDK by LD_PRELOAD, it takes the rules
 * that a router gives to a port, and drops what fits them, or brings it to one receive queue, before the router
 * sees it. It knows the items and actions that a packet filter and control traffic need and refuses all others.
 *
 * With FLOW_DEVICE_QUEUES it also has an RSS table: a thread of its own, as a NIC works by itself, receives by all
 * queues of the device below and puts each packet into the queue that a rule or the table says.
 *
 *   FLOW_DEVICE_ENTRIES=N      room for N rules (1000 unless it is given)
 *   FLOW_DEVICE_REFUSE=A,B     refuses: count, ipv6, fragment (a mask of IPv4's fragment bits), destroy, ethertype,
 *                              table, all (rules)
 *   FLOW_DEVICE_QUEUES=1       rules lead to queues, and there is an RSS table of 128 entries
 *   FLOW_DEVICE_PORT=NAME      only the port whose device has this in its name
 *   FLOW_DEVICE_LOG=FILE       a line for each rule that comes or goes, and for each packet that is dropped or
 *                              brought to a queue by a rule
 *
 * A file FILE.refuse, if it is there, is read at each call in place of FLOW_DEVICE_REFUSE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_ip.h>
#include <rte_ring.h>
#include <rte_tcp.h>
#include <rte_udp.h>

#define HEADERS 64

/* A header of a packet: value and mask, of so many bytes. */
struct part {
	uint8_t spec[HEADERS], mask[HEADERS];
	size_t len;
};

struct rte_flow {
	uint16_t port;
	unsigned int number;
	bool ipv6, counted, drops;
	/* An Ethertype that is compared in place of IP's headers, 0: none. */
	uint16_t ethertype;
	/* Where packets go that are not dropped. */
	uint16_t queue;
	/* The protocol that the upper item stands for, 0: none. */
	uint8_t upper;
	struct part ip, l4;
	uint64_t hits, bytes;
	struct rte_flow *next;
};

static struct rte_flow *flows;
static unsigned int made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *what, uint16_t port, unsigned int number)
{
	const char *name = getenv("FLOW_DEVICE_LOG");
	FILE *file = name ? fopen(name, "a") : NULL;

	if (file) {
		fprintf(file, "%s port %u rule %u\n", what, port, number);
		fclose(file);
	}
}

static bool refuses(const char *what)
{
	const char *list = getenv("FLOW_DEVICE_REFUSE"), *log = getenv("FLOW_DEVICE_LOG");
	char name[512], text[256] = "";
	FILE *file = NULL;

	if (log) {
		snprintf(name, sizeof(name), "%s.refuse", log);
		file = fopen(name, "r");
	}
	if (file) {
		size_t got = fread(text, 1, sizeof(text) - 1, file);

		text[got] = 0;
		fclose(file);
		list = text;
	}
	return list && strstr(list, what);
}

static bool is_ours(uint16_t port)
{
	const char *wanted = getenv("FLOW_DEVICE_PORT");
	char name[RTE_ETH_NAME_MAX_LEN];

	return !wanted || (rte_eth_dev_get_name_by_port(port, name) == 0 && strstr(name, wanted));
}

static int refuse(struct rte_flow_error *error, int code, const char *message)
{
	return rte_flow_error_set(error, code, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL, message);
}

static bool take_part(struct part *part, const struct rte_flow_item *item, size_t len)
{
	if (item->last || !item->spec || !item->mask)
		return false;
	memcpy(part->spec, item->spec, len);
	memcpy(part->mask, item->mask, len);
	part->len = len;
	return true;
}

static bool queues_wanted(void)
{
	return getenv("FLOW_DEVICE_QUEUES") != NULL;
}

/* What is asked for, or what it does not take. */
static const char *read_rule(struct rte_flow *flow, const struct rte_flow_attr *attr,
	const struct rte_flow_item *item, const struct rte_flow_action *action)
{
	const struct rte_flow_item_eth *spec = item->spec, *mask = item->mask;
	bool known = true, leads = false;

	if (!attr->ingress || attr->egress || attr->transfer || attr->group || attr->priority)
		return "unknown attribute";
	if (item->type != RTE_FLOW_ITEM_TYPE_ETH)
		return "a pattern begins with an Ethernet header";
	if (spec) {
		if (!mask || mask->type != 0xffff || !rte_is_zero_ether_addr(&mask->dst) || !rte_is_zero_ether_addr(&mask->src))
			return "only whole Ethertypes are compared";
		if (refuses("ethertype"))
			return "Ethertypes are not supported";
		flow->ethertype = rte_be_to_cpu_16(spec->type);
		if ((++item)->type != RTE_FLOW_ITEM_TYPE_END)
			return "nothing is compared behind an Ethertype";
		goto actions;
	}
	item++;
	flow->ipv6 = item->type == RTE_FLOW_ITEM_TYPE_IPV6;
	if (flow->ipv6 && refuses("ipv6"))
		return "IPv6 is not supported";
	if (flow->ipv6)
		known = take_part(&flow->ip, item, sizeof(struct rte_ipv6_hdr));
	else
		known = item->type == RTE_FLOW_ITEM_TYPE_IPV4 && take_part(&flow->ip, item, sizeof(struct rte_ipv4_hdr));
	if (!known)
		return "unknown network item";
	if (!flow->ipv6 && (flow->ip.mask[6] || flow->ip.mask[7]) && refuses("fragment"))
		return "fragments cannot be told apart";
	item++;
	switch (item->type) {
	case RTE_FLOW_ITEM_TYPE_TCP:
		flow->upper = 6;
		known = take_part(&flow->l4, item, sizeof(struct rte_tcp_hdr));
		break;
	case RTE_FLOW_ITEM_TYPE_UDP:
		flow->upper = 17;
		known = take_part(&flow->l4, item, sizeof(struct rte_udp_hdr));
		break;
	case RTE_FLOW_ITEM_TYPE_ICMP:
		flow->upper = 1;
		known = take_part(&flow->l4, item, 8);
		break;
	case RTE_FLOW_ITEM_TYPE_ICMP6:
		flow->upper = 58;
		known = take_part(&flow->l4, item, 4);
		break;
	case RTE_FLOW_ITEM_TYPE_END:
		break;
	default:
		known = false;
	}
	if (!known)
		return "unknown transport item";
	if (flow->upper && (++item)->type != RTE_FLOW_ITEM_TYPE_END)
		return "unknown item";
actions:
	for (; action->type != RTE_FLOW_ACTION_TYPE_END; action++) {
		if (action->type == RTE_FLOW_ACTION_TYPE_COUNT && !refuses("count"))
			flow->counted = true;
		else if (action->type == RTE_FLOW_ACTION_TYPE_DROP)
			flow->drops = true;
		else if (action->type == RTE_FLOW_ACTION_TYPE_QUEUE && queues_wanted()) {
			flow->queue = ((const struct rte_flow_action_queue *)action->conf)->index;
			leads = true;
		} else
			return "unknown action";
	}
	return flow->drops || leads ? NULL : "packets have no fate";
}

struct rte_flow *rte_flow_create(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item pattern[],
	const struct rte_flow_action actions[], struct rte_flow_error *error)
{
	const char *room = getenv("FLOW_DEVICE_ENTRIES");
	unsigned int count = 0, most = room ? atoi(room) : 1000;
	struct rte_flow *flow = calloc(1, sizeof(*flow));
	const char *wrong = refuses("all") ? "no rule" : read_rule(flow, attr, pattern, actions);
	int code = 0;

	pthread_mutex_lock(&lock);
	for (struct rte_flow *other = flows; other; other = other->next)
		count += other->port == port;
	if (!is_ours(port))
		code = refuse(error, ENOSYS, NULL);
	else if (wrong)
		code = refuse(error, ENOTSUP, wrong);
	else if (count >= most)
		code = refuse(error, ENOSPC, "the table is full");
	if (!code) {
		flow->port = port;
		flow->number = made++;
		flow->next = flows;
		__atomic_store_n(&flows, flow, __ATOMIC_RELEASE);
		say(flow->drops ? "create" : "lead", port, flow->number);
	}
	pthread_mutex_unlock(&lock);
	if (code) {
		free(flow);
		return NULL;
	}
	return flow;
}

int rte_flow_destroy(uint16_t port, struct rte_flow *flow, struct rte_flow_error *error)
{
	struct rte_flow **at;

	if (refuses("destroy"))
		return refuse(error, EBUSY, "rules stay");
	pthread_mutex_lock(&lock);
	for (at = &flows; *at && *at != flow; at = &(*at)->next)
		;
	if (!*at || flow->port != port) {
		say("defect: destroy", port, 0);
		abort();
	}
	__atomic_store_n(at, flow->next, __ATOMIC_RELEASE);
	say("destroy", port, flow->number);
	pthread_mutex_unlock(&lock);
	/* A receiver may look at it still; it stays allocated. */
	return 0;
}

int rte_flow_query(uint16_t port, struct rte_flow *flow, const struct rte_flow_action *action, void *data,
	struct rte_flow_error *error)
{
	struct rte_flow_query_count *count = data;

	if (flow->port != port || !flow->counted || action->type != RTE_FLOW_ACTION_TYPE_COUNT)
		return refuse(error, EINVAL, "not counted");
	count->hits_set = count->bytes_set = 1;
	count->hits = flow->hits;
	count->bytes = flow->bytes;
	return 0;
}

static bool fits_part(const struct part *part, const uint8_t *packet, size_t len)
{
	if (len < part->len)
		return false;
	for (size_t at = 0; at < part->len; at++)
		if ((packet[at] ^ part->spec[at]) & part->mask[at])
			return false;
	return true;
}

static bool fits(const struct rte_flow *flow, uint16_t port, const uint8_t *frame, size_t len)
{
	uint16_t type = len < 14 ? 0 : frame[12] << 8 | frame[13];
	const uint8_t *ip = frame + 14;
	size_t header;
	uint8_t protocol;

	if (flow->port == port && flow->ethertype)
		return type == flow->ethertype;
	if (flow->port != port || type != (flow->ipv6 ? 0x86dd : 0x0800) || !fits_part(&flow->ip, ip, len - 14))
		return false;
	if (!flow->upper)
		return true;
	header = flow->ipv6 ? 40 : (ip[0] & 15) * 4;
	protocol = flow->ipv6 ? ip[6] : ip[9];
	while (flow->ipv6 && (protocol == 0 || protocol == 43 || protocol == 44 || protocol == 60) && header + 8 < len - 14) {
		size_t more = protocol == 44 ? 8 : (ip[header + 1] + 1) * 8;

		protocol = ip[header];
		header += more;
	}
	if (protocol != flow->upper || len < 14 + header)
		return false;
	/* A device that looks behind extension headers, and takes a later fragment's first bytes for a header: the
	 * rule must rule these out. */
	return fits_part(&flow->l4, ip + header, len - 14 - header);
}

/* The rule that a packet fits, which counts it. */
static struct rte_flow *rule_of(uint16_t port, struct rte_mbuf *packet)
{
	struct rte_flow *flow = __atomic_load_n(&flows, __ATOMIC_ACQUIRE);

	while (flow && !fits(flow, port, rte_pktmbuf_mtod(packet, uint8_t *), rte_pktmbuf_data_len(packet)))
		flow = __atomic_load_n(&flow->next, __ATOMIC_ACQUIRE);
	if (flow) {
		__atomic_add_fetch(&flow->hits, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&flow->bytes, rte_pktmbuf_pkt_len(packet), __ATOMIC_RELAXED);
		say(flow->drops ? "drop" : "brought", port, flow->number);
	}
	return flow;
}

static uint16_t receive(uint16_t port, uint16_t queue, struct rte_mbuf *packets[], uint16_t count, uint16_t most,
	void *context)
{
	uint16_t kept = 0;

	(void)queue, (void)most, (void)context;
	for (uint16_t at = 0; at < count; at++) {
		if (rule_of(port, packets[at]))
			rte_pktmbuf_free(packets[at]);
		else
			packets[kept++] = packets[at];
	}
	return kept;
}

#define TABLE 128
#define QUEUES 64

/* A port with queues of its own in front of those of the device below. */
static struct nic {
	bool runs, stops;
	uint16_t port, queues;
	pthread_t thread;
	uint16_t (*below)(void *queue, struct rte_mbuf **packets, uint16_t most);
	void *below_queues[QUEUES];
	struct rte_ring *rings[QUEUES];
} nics[RTE_MAX_ETHPORTS];
/* Entries outlive a stop. */
static uint16_t table[RTE_MAX_ETHPORTS][TABLE];

static uint16_t spread(const struct nic *nic, const struct rte_mbuf *packet)
{
	const uint8_t *frame = rte_pktmbuf_mtod(packet, const uint8_t *);
	unsigned int hash = 0;

	/* Addresses and ports of IPv4. */
	for (uint16_t at = 26; at < 38 && at < rte_pktmbuf_data_len(packet); at++)
		hash = hash * 31 + frame[at];
	return table[nic->port][hash % TABLE] % nic->queues;
}

static void *work(void *context)
{
	struct rte_mbuf *packets[32];
	struct nic *nic = context;

	while (!__atomic_load_n(&nic->stops, __ATOMIC_ACQUIRE)) {
		uint16_t all = 0;

		for (uint16_t queue = 0; queue < nic->queues; queue++) {
			uint16_t count = nic->below(nic->below_queues[queue], packets, 32);

			for (uint16_t at = 0; at < count; at++) {
				struct rte_flow *flow = rule_of(nic->port, packets[at]);
				uint16_t to = flow ? flow->queue : spread(nic, packets[at]);

				if ((flow && flow->drops) || rte_ring_enqueue(nic->rings[to], packets[at]))
					rte_pktmbuf_free(packets[at]);
			}
			all += count;
		}
		if (!all)
			usleep(50);
	}
	return NULL;
}

static uint16_t take(void *queue, struct rte_mbuf **packets, uint16_t most)
{
	return rte_ring_dequeue_burst(queue, (void **)packets, most, NULL);
}

/* Puts queues of its own in front of a started device. */
static void begin(uint16_t port)
{
	struct nic *nic = &nics[port];
	struct rte_eth_dev_info info;
	char name[RTE_RING_NAMESIZE];

	if (rte_eth_dev_info_get(port, &info) != 0)
		abort();
	memset(nic, 0, sizeof(*nic));
	nic->port = port;
	nic->queues = info.nb_rx_queues;
	nic->below = rte_eth_fp_ops[port].rx_pkt_burst;
	for (uint16_t queue = 0; queue < nic->queues; queue++) {
		snprintf(name, sizeof(name), "nic-%u-%u", port, queue);
		nic->rings[queue] = rte_ring_create(name, 2048, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
		if (!nic->rings[queue])
			abort();
		nic->below_queues[queue] = rte_eth_fp_ops[port].rxq.data[queue];
		rte_eth_fp_ops[port].rxq.data[queue] = nic->rings[queue];
	}
	rte_eth_fp_ops[port].rx_pkt_burst = take;
	nic->runs = true;
	if (pthread_create(&nic->thread, NULL, work, nic))
		abort();
}

/* Takes them away again. What nobody has received is lost, as in a NIC. */
static void end(uint16_t port)
{
	struct nic *nic = &nics[port];
	struct rte_mbuf *packet;

	if (!nic->runs)
		return;
	__atomic_store_n(&nic->stops, true, __ATOMIC_RELEASE);
	pthread_join(nic->thread, NULL);
	for (uint16_t queue = 0; queue < nic->queues; queue++) {
		while (rte_ring_dequeue(nic->rings[queue], (void **)&packet) == 0)
			rte_pktmbuf_free(packet);
		rte_ring_free(nic->rings[queue]);
		rte_eth_fp_ops[port].rxq.data[queue] = nic->below_queues[queue];
	}
	rte_eth_fp_ops[port].rx_pkt_burst = nic->below;
	nic->runs = false;
}

int rte_eth_dev_info_get(uint16_t port, struct rte_eth_dev_info *info)
{
	int (*get)(uint16_t, struct rte_eth_dev_info *) = dlsym(RTLD_NEXT, "rte_eth_dev_info_get");
	int result = get(port, info);

	if (!result && queues_wanted() && is_ours(port))
		info->reta_size = TABLE;
	return result;
}

int rte_eth_dev_rss_reta_update(uint16_t port, struct rte_eth_rss_reta_entry64 *groups, uint16_t size)
{
	int (*update)(uint16_t, struct rte_eth_rss_reta_entry64 *, uint16_t) =
		dlsym(RTLD_NEXT, "rte_eth_dev_rss_reta_update");

	if (!queues_wanted() || !is_ours(port))
		return update(port, groups, size);
	if (refuses("table"))
		return -ENOTSUP;
	for (uint16_t at = 0; at < size && at < TABLE; at++)
		if (groups[at / RTE_ETH_RETA_GROUP_SIZE].mask >> at % RTE_ETH_RETA_GROUP_SIZE & 1)
			table[port][at] = groups[at / RTE_ETH_RETA_GROUP_SIZE].reta[at % RTE_ETH_RETA_GROUP_SIZE];
	return 0;
}

int rte_eth_dev_rss_reta_query(uint16_t port, struct rte_eth_rss_reta_entry64 *groups, uint16_t size)
{
	int (*query)(uint16_t, struct rte_eth_rss_reta_entry64 *, uint16_t) =
		dlsym(RTLD_NEXT, "rte_eth_dev_rss_reta_query");

	if (!queues_wanted() || !is_ours(port))
		return query(port, groups, size);
	for (uint16_t at = 0; at < size && at < TABLE; at++)
		groups[at / RTE_ETH_RETA_GROUP_SIZE].reta[at % RTE_ETH_RETA_GROUP_SIZE] = table[port][at];
	return 0;
}

int rte_eth_dev_start(uint16_t port)
{
	int (*start)(uint16_t) = dlsym(RTLD_NEXT, "rte_eth_dev_start");
	struct rte_eth_dev_info info;
	int result;

	if (is_ours(port) && !queues_wanted() && rte_eth_dev_info_get(port, &info) == 0)
		for (uint16_t queue = 0; queue < info.nb_rx_queues; queue++)
			rte_eth_add_rx_callback(port, queue, receive, NULL);
	say("start", port, 0);
	result = start(port);
	if (!result && is_ours(port) && queues_wanted())
		begin(port);
	return result;
}

int rte_eth_dev_stop(uint16_t port)
{
	int (*stop)(uint16_t) = dlsym(RTLD_NEXT, "rte_eth_dev_stop");
	unsigned int left = 0;

	pthread_mutex_lock(&lock);
	for (struct rte_flow *flow = flows; flow; flow = flow->next)
		left += flow->port == port;
	pthread_mutex_unlock(&lock);
	say(left ? "defect: stop with rules left," : "stop", port, left);
	end(port);
	return stop(port);
}
