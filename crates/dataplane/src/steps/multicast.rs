//! `ip4-multicast`, `ip6-multicast`: selects the egress ports of multicast packets.
//!
//! Takes packets that the lookup found to be for groups (224.0.0.0/4, ff00::/8). Sets
//! [`Batch::receivers`] and rewrites the packet for transmission: decrements TTL or hop limit,
//! corrects the IPv4 checksum, and writes the group's MAC address (RFC 1112 6.4, RFC 2464 7).
//! `replicate.rs` writes the source address of each egress port.
//!
//! | output | packets |
//! |---|---|
//! | `replicate` | the group has an entry, the packet arrived on its port, and there are egress ports |
//! | punt `local` | no entry; a link-local group (RFC 5771 4, RFC 4291 2.7); a sample that the entry's owner requested |
//! | punt `too-big` | longer than the MTU of an egress port |
//! | drop `multicast-wrong-interface` | it arrived on another port than its entry's |
//! | drop `multicast-no-receiver` | no egress port: none has receivers, or the TTL does not exceed their thresholds, or 1 |
//!
//! No ICMP error answers a packet to a group that cannot be forwarded (RFC 1812 4.3.2.7). One longer than a
//! port's MTU goes to the slow path with all its ports, which fragments it or sends "packet too big" (RFC 4443
//! 3.2).

use std::sync::Arc;

use wire::address::{multicast_mac_v4, multicast_mac_v6};

use super::ip4_rewrite::decrement_ttl;
use crate::batch::{Batch, ETHERNET};
use crate::graph::{Output, Outputs, Step};
use crate::head::{ethernet_mut, ip6_mut};
use crate::interface::Mtus;
use crate::mask::Mask;
use crate::multicast::{Decision, MulticastRoute, Receivers};
use crate::reason::{DropReason, PuntReason};
use crate::tables::Tables;

const REPLICATE: usize = 0;
const LOCAL: usize = 1;
const WRONG_INTERFACE: usize = 2;
const NO_RECEIVER: usize = 3;
const TOO_BIG: usize = 4;

pub(super) const OUTPUTS: &[Output] = &[
    Output::next("replicate"),
    Output::Punt(PuntReason::Local),
    Output::Drop(DropReason::MulticastWrongInterface),
    Output::Drop(DropReason::MulticastNoReceiver),
    Output::Punt(PuntReason::TooBig),
];

/// See the module's documentation; for IPv4.
pub struct Ip4Multicast {
    tables: Arc<Tables>,
}

/// See the module's documentation; for IPv6.
pub struct Ip6Multicast {
    tables: Arc<Tables>,
}

impl Ip4Multicast {
    /// Reads entries and MTUs from these tables.
    pub fn new(tables: &Arc<Tables>) -> Self {
        Self { tables: tables.clone() }
    }
}

impl Ip6Multicast {
    /// Reads entries and MTUs from these tables.
    pub fn new(tables: &Arc<Tables>) -> Self {
        Self { tables: tables.clone() }
    }
}

impl Step for Ip4Multicast {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let routes = batch.multicast_routes(&self.tables.multicast);
        for slot in input.slots() {
            let ip = batch.ip4(slot);
            let (source, group, ttl) = (ip.source(), ip.destination(), ip.ttl);
            let stays = group.octets()[..3] == [224, 0, 0];
            let route = if stays { None } else { routes.ip4.find_entry(source, group) };
            let (output, receivers) = decide::<false>(&self.tables.mtus, batch, slot, route, ttl);
            out[output] |= Mask::when(true, slot);
            if output == TOO_BIG {
                // It goes to the slow path worker of its ingress interface.
                batch.out_interface[slot] = batch.interface(slot).index() as u16;
            }
            if output == REPLICATE {
                batch.receivers[slot] = receivers;
                let head = batch.head_mut(slot);
                ethernet_mut(head).destination = multicast_mac_v4(group);
                decrement_ttl(head);
            }
        }
    }
}

impl Step for Ip6Multicast {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let routes = batch.multicast_routes(&self.tables.multicast);
        for slot in input.slots() {
            let ip = batch.ip6(slot);
            let (source, group, hop_limit) = (ip.source(), ip.destination(), ip.hop_limit);
            // Interface-local, link-local, and scope 0, which is treated alike (RFC 7346 2).
            let stays = group.octets()[1] & 0xf <= 2
                || source.is_unicast_link_local()
                || source.is_unspecified();
            let route = if stays { None } else { routes.ip6.find_entry(source, group) };
            let (output, receivers) =
                decide::<true>(&self.tables.mtus, batch, slot, route, hop_limit);
            out[output] |= Mask::when(true, slot);
            if output == TOO_BIG {
                // It goes to the slow path worker of its ingress interface.
                batch.out_interface[slot] = batch.interface(slot).index() as u16;
            }
            if output == REPLICATE {
                batch.receivers[slot] = receivers;
                let head = batch.head_mut(slot);
                ethernet_mut(head).destination = multicast_mac_v6(group);
                ip6_mut(head).hop_limit -= 1;
            }
        }
    }
}

/// Returns the output for a packet, and its egress interfaces. Counts it for the entry.
fn decide<const IP6: bool>(
    mtus: &Mtus,
    batch: &Batch,
    slot: usize,
    route: Option<(u32, &MulticastRoute)>,
    ttl: u8,
) -> (usize, Receivers) {
    let nowhere = |output| (output, Receivers::NONE);
    let Some((entry, route)) = route else { return nowhere(LOCAL) };
    let count = match route.decide(batch.interface(slot), ttl) {
        Decision::First(0) => return nowhere(NO_RECEIVER),
        Decision::First(count) => count,
        Decision::WrongInterface => return nowhere(WRONG_INTERFACE),
        Decision::Sample => return nowhere(LOCAL),
    };
    let len = batch.len(slot) - ETHERNET;
    let mtus = mtus.family(IP6);
    if route.first(count).any(|interface| len > mtus.get(interface).into()) {
        return nowhere(TOO_BIG);
    }
    route.counters.count(1, len as u64);
    (REPLICATE, Receivers::new(IP6, entry, count))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::interface::InterfaceId;
    use crate::multicast::MulticastRoutes;
    use crate::testing::{FrameBuilder, TestTables, run_step};

    fn port(index: u16) -> InterfaceId {
        InterfaceId::new(index).unwrap()
    }

    /// Packets from port 0 to 239.1.1.1 leave by ports 1, 2 (TTL above 8) and 4, whose MTU is 1000,
    /// those to ff0e::1 by 1, 2 and 3; those to 239.2.2.2 have no receivers; those to 239.3.3.3
    /// come from port 1. Packets from 192.0.2.9 to 239.1.1.1 have their own entry, to port 3. The
    /// entries of 224.0.0.7 and ff02::7 must never be used.
    fn tables() -> Arc<Tables> {
        let tables = TestTables::every_kind();
        let route = |from, to: &[(u16, u8)]| {
            let to = to.iter().map(|&(index, ttl)| (port(index), ttl));
            MulticastRoute::new(port(from), to, Arc::default())
        };
        let mut routes = MulticastRoutes::default();
        let ip4 = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let to = [(1, 0), (2, 8), (4, 0)];
        routes.ip4.insert(None, ip4("239.1.1.1"), route(0, &to));
        routes.ip4.insert(Some(ip4("192.0.2.9")), ip4("239.1.1.1"), route(0, &[(3, 0)]));
        routes.ip4.insert(None, ip4("239.2.2.2"), route(0, &[]));
        routes.ip4.insert(None, ip4("239.3.3.3"), route(1, &to));
        routes.ip4.insert(None, ip4("224.0.0.7"), route(0, &to));
        routes.ip6.insert(None, "ff0e::1".parse().unwrap(), route(0, &[(1, 0), (2, 8), (3, 0)]));
        routes.ip6.insert(None, "ff02::7".parse().unwrap(), route(0, &to));
        tables.multicast.publish(routes);
        tables
    }

    fn to4(group: &str) -> FrameBuilder {
        FrameBuilder::ip4().destination4(group)
    }

    fn ports(batch: &Batch, slot: usize) -> Vec<usize> {
        let routes = batch.groups.as_ref().unwrap();
        let mut all: Vec<_> =
            routes.receivers(batch.receivers[slot]).map(InterfaceId::index).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn each_packet_goes_where_its_entry_says() {
        let frames = [
            to4("239.1.1.1").build(),
            to4("239.1.1.1").ttl(8).build(),
            to4("239.1.1.1").source4("192.0.2.9").build(),
            to4("239.1.1.1").ttl(1).build(),
            to4("239.2.2.2").build(),
            to4("239.3.3.3").build(),
            to4("239.4.4.4").build(),
            to4("224.0.0.7").build(),
        ];
        let (result, batch) = run_step(&mut Ip4Multicast::new(&tables()), &frames);
        assert_eq!(result["replicate"], [0, 1, 2]);
        assert_eq!(ports(&batch, 0), [1, 2, 4]);
        assert_eq!(ports(&batch, 1), [1, 4]);
        assert_eq!(ports(&batch, 2), [3]);
        assert_eq!(result["multicast-no-receiver"], [3, 4]);
        assert_eq!(result["multicast-wrong-interface"], [5]);
        assert_eq!(result["local"], [6, 7]);
    }

    #[test]
    fn hop_limits_are_ttls() {
        let to = |group| FrameBuilder::ip6().destination6(group);
        let frames = [
            to("ff0e::1").build(),
            to("ff0e::1").ttl(8).build(),
            to("ff0e::1").ttl(1).build(),
            to("ff0e::2").build(),
            to("ff02::7").build(),
            to("ff0e::1").source6("fe80::1").build(),
            to("ff0e::1").source6("::").build(),
        ];
        let (result, batch) = run_step(&mut Ip6Multicast::new(&tables()), &frames);
        assert_eq!(result["replicate"], [0, 1]);
        assert_eq!(ports(&batch, 1), [1, 3]);
        assert_eq!(result["multicast-no-receiver"], [2]);
        assert_eq!(result["local"], [3, 4, 5, 6]);
        assert_eq!(batch.head(0)[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(batch.head(0)[21], 63);
    }

    #[test]
    fn ttl_checksum_and_group_mac_change_and_nothing_else() {
        let sent = to4("239.129.1.1").ttl(7).udp(1, 2, b"payload");
        let tables = tables();
        let mut routes = MulticastRoutes::default();
        let route = MulticastRoute::new(port(0), [(port(1), 0)], Arc::default());
        routes.ip4.insert(None, "239.129.1.1".parse().unwrap(), route);
        tables.multicast.publish(routes);
        let (_, batch) = run_step(&mut Ip4Multicast::new(&tables), &[sent.clone().build()]);
        let mut expected = sent.destination_mac([1, 0, 0x5e, 1, 1, 1]).ttl(6).build();
        FrameBuilder::fix_ip4_checksum(&mut expected);
        assert_eq!(batch.frame(0), expected);
    }

    #[test]
    fn what_is_too_long_for_a_port_goes_to_the_slow_path_with_all_ports() {
        let frame = |len: usize, ttl| to4("239.1.1.1").ttl(ttl).payload(&vec![0; len - 20]).build();
        let tables = tables();
        let (result, batch) =
            run_step(&mut Ip4Multicast::new(&tables), &[frame(1000, 9), frame(1001, 9)]);
        assert_eq!((&result["replicate"], &result["too-big"]), (&vec![0], &vec![1]));
        assert_eq!(batch.head(1)[ETHERNET + 8], 9, "as it was received");
    }

    #[test]
    fn no_ipv6_goes_to_a_link_that_is_too_small_for_it() {
        let tables = tables();
        let mut routes = MulticastRoutes::default();
        let group = "ff0e::1".parse().unwrap();
        let route = MulticastRoute::new(port(0), [(port(1), 0), (port(4), 0)], Arc::default());
        routes.ip6.insert(None, group, route);
        tables.multicast.publish(routes);
        let frame = FrameBuilder::ip6().destination6("ff0e::1").payload(&[0; 100]).build();
        for (mtu, output) in [(1279, "too-big"), (1280, "replicate")] {
            tables.mtus.open(port(4), mtu);
            let (result, _) =
                run_step(&mut Ip6Multicast::new(&tables), std::slice::from_ref(&frame));
            assert_eq!(result[output], [0], "{mtu}");
        }
    }

    #[test]
    fn entries_count_and_their_owner_gets_samples() {
        let tables = tables();
        let routes = tables.multicast.read();
        let of = |group: &str| {
            let source = Ipv4Addr::new(192, 0, 2, 1);
            &routes.ip4.find(source, group.parse().unwrap()).unwrap().counters
        };
        let (good, wrong) = (of("239.1.1.1"), of("239.3.3.3"));
        good.sample();
        wrong.sample();
        let frames = ["239.1.1.1", "239.1.1.1", "239.1.1.1", "239.3.3.3", "239.3.3.3"]
            .map(|group| to4(group).payload(&[0; 80]).build());
        let (result, _) = run_step(&mut Ip4Multicast::new(&tables), &frames);
        assert_eq!(result["local"], [0, 3], "the first of each kind");
        assert_eq!((good.packets(), good.bytes(), good.wrong_interface()), (2, 200, 0));
        assert_eq!((wrong.packets(), wrong.wrong_interface()), (0, 2));
    }
}
