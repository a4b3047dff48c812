/* A device that holds rules of rte_flow, for tests: put in front of DPDK by LD_PRELOAD, it takes the rules
 * that a router gives to a port, and drops what fits them, or brings it to receive queues, before the router sees it.
 * It knows the items and actions that a packet filter and control traffic need and refuses all others.
 *
 * With FLOW_DEVICE_QUEUES it also has an RSS table: a thread of its own, as a NIC works by itself, receives by all
 * queues of the device below and puts each packet into the queue that a rule or the table says. A rule may spread its
 * packets over several queues (the action RSS).
 *
 * Where a pattern does not say whether a frame has tags, the device finds the packet behind them as well.
 *
 *   FLOW_DEVICE_ENTRIES=N      room for N rules (1000 unless it is given)
 *   FLOW_DEVICE_REFUSE=A,B     refuses: count, ipv6, fragment (a mask of IPv4's fragment bits), destroy, ethertype,
 *                              macs, vlan (tags, and bits about them), rss (the action), table, all (rules)
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
#define TAGS 2
#define QUEUES 64

/* A header of a packet: value and mask, of so many bytes. */
struct part {
	uint8_t spec[HEADERS], mask[HEADERS];
	size_t len;
};

struct rte_flow {
	uint16_t port;
	unsigned int number;
	bool ip_wanted, ipv6, counted, drops;
	struct rte_flow_item_eth eth, eth_mask;
	/* The tags that are compared. */
	struct rte_flow_item_vlan tags[TAGS], tag_masks[TAGS];
	unsigned int tag_count;
	/* Where packets go that are not dropped. */
	uint16_t queues[QUEUES];
	unsigned int queue_count;
	/* The protocol that the upper item stands for, 0: none. */
	uint8_t upper;
	struct part ip, l4;
	uint64_t hits, bytes;
	struct rte_flow *next;
};

static struct rte_flow *flows;
static unsigned int made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Open from the start: a forwarder, which drops packets here, may open no file to write it. */
static FILE *record;

__attribute__((constructor)) static void open_log(void)
{
	const char *name = getenv("FLOW_DEVICE_LOG");

	record = name ? fopen(name, "ae") : NULL;
	if (record)
		setvbuf(record, NULL, _IOLBF, 0);
}

static void say(const char *what, uint16_t port, unsigned int number)
{
	if (record)
		fprintf(record, "%s port %u rule %u\n", what, port, number);
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

static bool is_whole_or_none(const struct rte_ether_addr *mask)
{
	return rte_is_zero_ether_addr(mask) || rte_is_broadcast_ether_addr(mask);
}

/* The Ethernet header that is asked for, or what it does not take of it. */
static const char *read_ethernet(struct rte_flow *flow, const struct rte_flow_item *item)
{
	const struct rte_flow_item_eth *mask = item->mask;

	if (!item->spec)
		return NULL;
	if (!mask || item->last || !is_whole_or_none(&mask->dst) || !is_whole_or_none(&mask->src))
		return "only whole addresses are compared";
	if (mask->type != 0 && mask->type != 0xffff)
		return "only whole Ethertypes are compared";
	if (refuses("macs") && !(rte_is_zero_ether_addr(&mask->dst) && rte_is_zero_ether_addr(&mask->src)))
		return "addresses are not compared";
	if (refuses("vlan") && mask->has_vlan)
		return "tags are not told apart";
	flow->eth = *(const struct rte_flow_item_eth *)item->spec;
	flow->eth_mask = *mask;
	return NULL;
}

static const char *read_tag(struct rte_flow *flow, const struct rte_flow_item *item)
{
	const struct rte_flow_item_vlan *mask = item->mask;

	if (refuses("vlan"))
		return "tags are not compared";
	if (flow->tag_count == TAGS || !item->spec || !mask || item->last || (mask->inner_type && mask->inner_type != 0xffff))
		return "unknown tag";
	flow->tags[flow->tag_count] = *(const struct rte_flow_item_vlan *)item->spec;
	flow->tag_masks[flow->tag_count++] = *mask;
	return NULL;
}

/* The packet that is asked for, or what it does not take of it. */
static const char *read_packet(struct rte_flow *flow, const struct rte_flow_item *item)
{
	bool known;

	flow->ip_wanted = true;
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
	return NULL;
}

/* The queues over which packets are to be spread, or what it does not take of that. */
static const char *read_rss(struct rte_flow *flow, const struct rte_flow_action_rss *rss)
{
	if (refuses("rss"))
		return "packets are not spread by rules";
	if (rss->level || rss->key_len || !rss->queue_num || rss->queue_num > QUEUES)
		return "unknown kind of RSS";
	flow->queue_count = rss->queue_num;
	memcpy(flow->queues, rss->queue, rss->queue_num * sizeof(*rss->queue));
	return NULL;
}

static const char *read_actions(struct rte_flow *flow, const struct rte_flow_action *action)
{
	const char *wrong = NULL;

	for (; !wrong && action->type != RTE_FLOW_ACTION_TYPE_END; action++) {
		if (action->type == RTE_FLOW_ACTION_TYPE_COUNT && !refuses("count"))
			flow->counted = true;
		else if (action->type == RTE_FLOW_ACTION_TYPE_DROP)
			flow->drops = true;
		else if (action->type == RTE_FLOW_ACTION_TYPE_QUEUE && queues_wanted()) {
			flow->queues[0] = ((const struct rte_flow_action_queue *)action->conf)->index;
			flow->queue_count = 1;
		} else if (action->type == RTE_FLOW_ACTION_TYPE_RSS && queues_wanted())
			wrong = read_rss(flow, action->conf);
		else
			wrong = "unknown action";
	}
	if (!wrong && !flow->drops && !flow->queue_count)
		wrong = "packets have no fate";
	return wrong;
}

/* What is asked for, or what it does not take. */
static const char *read_rule(struct rte_flow *flow, const struct rte_flow_attr *attr,
	const struct rte_flow_item *item, const struct rte_flow_action *action)
{
	const char *wrong;
	bool typed;

	if (!attr->ingress || attr->egress || attr->transfer || attr->group || attr->priority)
		return "unknown attribute";
	if (item->type != RTE_FLOW_ITEM_TYPE_ETH)
		return "a pattern begins with an Ethernet header";
	wrong = read_ethernet(flow, item++);
	while (!wrong && item->type == RTE_FLOW_ITEM_TYPE_VLAN)
		wrong = read_tag(flow, item++);
	if (wrong)
		return wrong;
	typed = flow->tag_count ? flow->tag_masks[flow->tag_count - 1].inner_type : flow->eth_mask.type;
	if (item->type != RTE_FLOW_ITEM_TYPE_END)
		wrong = read_packet(flow, item);
	else if (!typed)
		wrong = "nothing is compared";
	else if (refuses("ethertype"))
		wrong = "Ethertypes are not supported";
	return wrong ? wrong : read_actions(flow, action);
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

/* A frame on the wire: its tags, that which the device below has taken off included, and what is behind them. */
struct view {
	const uint8_t *frame, *payload;
	/* Bytes of the payload. */
	size_t len;
	unsigned int tags;
	/* The Ethertypes in front of each tag, and that of the payload. */
	uint16_t types[TAGS + 2], tci[TAGS + 1];
};

static bool is_tag(uint16_t type)
{
	return type == 0x8100 || type == 0x88a8;
}

/* False for a frame that is too short. */
static bool look_at(struct view *view, const struct rte_mbuf *packet)
{
	const uint8_t *at = rte_pktmbuf_mtod(packet, const uint8_t *), *end = at + rte_pktmbuf_data_len(packet);

	memset(view, 0, sizeof(*view));
	view->frame = at;
	if (packet->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED) {
		view->types[0] = 0x8100;
		view->tci[view->tags++] = packet->vlan_tci;
	}
	at += 12;
	for (;;) {
		if (end - at < 4)
			return false;
		view->types[view->tags] = at[0] << 8 | at[1];
		if (!is_tag(view->types[view->tags]) || view->tags == TAGS + 1)
			break;
		view->tci[view->tags++] = at[2] << 8 | at[3];
		at += 4;
	}
	view->payload = at + 2;
	view->len = end - view->payload;
	return true;
}

static bool is_address(const struct rte_ether_addr *mask, const struct rte_ether_addr *spec, const uint8_t *found)
{
	return rte_is_zero_ether_addr(mask) || !memcmp(spec, found, sizeof(*spec));
}

static bool fits_link(const struct rte_flow *flow, const struct view *view)
{
	const struct rte_flow_item_eth *spec = &flow->eth, *mask = &flow->eth_mask;

	if (!is_address(&mask->dst, &spec->dst, view->frame) || !is_address(&mask->src, &spec->src, view->frame + 6))
		return false;
	if ((mask->type && rte_be_to_cpu_16(spec->type) != view->types[0]) || (mask->has_vlan && spec->has_vlan != !!view->tags))
		return false;
	for (unsigned int at = 0; at < flow->tag_count; at++) {
		const struct rte_flow_item_vlan *tag = &flow->tags[at], *bits = &flow->tag_masks[at];

		if (view->tags <= at || ((rte_cpu_to_be_16(view->tci[at]) ^ tag->tci) & bits->tci))
			return false;
		if (bits->inner_type && rte_be_to_cpu_16(tag->inner_type) != view->types[at + 1])
			return false;
		if (bits->has_more_vlan && tag->has_more_vlan != (view->tags > at + 1))
			return false;
	}
	return true;
}

static bool fits(const struct rte_flow *flow, uint16_t port, const struct view *view)
{
	const uint8_t *ip = view->payload;
	size_t header;
	uint8_t protocol;

	if (flow->port != port || !fits_link(flow, view))
		return false;
	if (!flow->ip_wanted)
		return true;
	if (view->types[view->tags] != (flow->ipv6 ? 0x86dd : 0x0800) || !fits_part(&flow->ip, ip, view->len))
		return false;
	if (!flow->upper)
		return true;
	header = flow->ipv6 ? 40 : (ip[0] & 15) * 4;
	protocol = flow->ipv6 ? ip[6] : ip[9];
	while (flow->ipv6 && (protocol == 0 || protocol == 43 || protocol == 44 || protocol == 60) && header + 8 < view->len) {
		size_t more = protocol == 44 ? 8 : (ip[header + 1] + 1) * 8;

		protocol = ip[header];
		header += more;
	}
	if (protocol != flow->upper || view->len < header)
		return false;
	/* A device that looks behind extension headers, and takes a later fragment's first bytes for a header: the
	 * rule must rule these out. */
	return fits_part(&flow->l4, ip + header, view->len - header);
}

/* The rule that a packet fits, which counts it. */
static struct rte_flow *rule_of(uint16_t port, const struct rte_mbuf *packet, const struct view *view)
{
	struct rte_flow *flow = __atomic_load_n(&flows, __ATOMIC_ACQUIRE);

	while (flow && !fits(flow, port, view))
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
	struct view view;

	(void)queue, (void)most, (void)context;
	for (uint16_t at = 0; at < count; at++) {
		if (look_at(&view, packets[at]) && rule_of(port, packets[at], &view))
			rte_pktmbuf_free(packets[at]);
		else
			packets[kept++] = packets[at];
	}
	return kept;
}

#define TABLE 128

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

/* Of the addresses of IP, and of the ports of TCP and UDP unless the packet is a fragment. */
static unsigned int hash_of(const struct view *view)
{
	const uint8_t *ip = view->payload;
	uint16_t type = view->types[view->tags];
	size_t from, to, ports;
	unsigned int hash = 0;
	uint8_t protocol;

	if (type == 0x0800 && view->len >= 20) {
		from = 12, to = 20, ports = (ip[0] & 15) * 4;
		protocol = (ip[6] & 0x3f) || ip[7] ? 0 : ip[9];
	} else if (type == 0x86dd && view->len >= 40) {
		from = 8, to = ports = 40;
		protocol = ip[6];
	} else {
		return 0;
	}
	for (size_t at = from; at < to; at++)
		hash = hash * 31 + ip[at];
	for (size_t at = ports; (protocol == 6 || protocol == 17) && at < ports + 4 && at < view->len; at++)
		hash = hash * 31 + ip[at];
	/* Neighbouring ports are to differ in high bits, too. */
	return hash * 2654435761u >> 16;
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
				struct view view;
				bool whole = look_at(&view, packets[at]);
				struct rte_flow *flow = whole ? rule_of(nic->port, packets[at], &view) : NULL;
				unsigned int hash = whole ? hash_of(&view) : 0;
				uint16_t to = table[nic->port][hash % TABLE] % nic->queues;

				if (flow && !flow->drops)
					to = flow->queues[hash % flow->queue_count];
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
