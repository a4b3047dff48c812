//! ICMP router discovery for IPv4, the router's side: RFC 1256, 4.
//!
//! An interface takes part if it is configured to: it advertises its IPv4 addresses with their
//! preference to all hosts at random times between the minimum and the maximum interval, the first
//! three at most 16 seconds apart (4.1), and answers a host's solicitation after a random delay of at
//! most two seconds with an advertisement to all (4.3: one answer serves several hosts). The last
//! advertisement, at shutdown, has lifetime 0.
//!
//! A solicitation is valid if its checksum and length are right, its code is 0 and its source is on
//! the interface's network (4.3). One from 0.0.0.0 never arrives here: the fast path drops such
//! sources, and the host learns the router from the next advertisement.

use std::net::Ipv4Addr;
use std::time::Duration;

use dataplane::interface::InterfaceId;
use wire::MacAddr;
use wire::build::{self, Ipv4Fields, Link};
use wire::checksum::checksum;
use wire::icmp::{ICMP_LEN, v4};
use wire::ip::{Ipv4Header, PROTOCOL_ICMP};

use crate::context::LinkContext;
use crate::interfaces::{Interface, Interfaces};
use crate::random::Random;
use crate::{Discovery, Output, Time};

/// RFC 1256, 3: MAX_INITIAL_ADVERTISEMENTS, MAX_INITIAL_ADVERT_INTERVAL, MAX_RESPONSE_DELAY.
const INITIAL_COUNT: u8 = 3;
const INITIAL_INTERVAL: Duration = Duration::from_secs(16);
const RESPONSE_DELAY: Duration = Duration::from_secs(2);

const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const ALL_HOSTS_MAC: MacAddr = MacAddr([1, 0, 0x5e, 0, 0, 1]);
const BROADCAST_MAC: MacAddr = MacAddr([0xff; 6]);

/// 32-bit words per entry: an address and its preference.
const ENTRY_WORDS: u8 = 2;
/// Most addresses in an advertisement: their number is an 8-bit field.
const ADDRESSES_MOST: usize = 255;

/// Schedule of an interface's advertisements.
struct Schedule {
    interface: InterfaceId,
    next: Time,
    /// Initial advertisements still to be sent.
    initial: u8,
    spoken: bool,
}

/// The interfaces that take part, and their schedules.
#[derive(Default)]
pub(crate) struct RouterDiscovery(Vec<Schedule>);

impl RouterDiscovery {
    /// Starts on an interface that takes part, once its link is up, or starts over.
    pub(crate) fn start(&mut self, interface: &Interface, now: Time) {
        if interface.settings.discovery.is_some() {
            let id = interface.id;
            self.cancel(id);
            let initial = INITIAL_COUNT;
            self.0.push(Schedule { interface: id, next: now, initial, spoken: false });
        }
    }

    pub(crate) fn cancel(&mut self, interface: InterfaceId) {
        self.0.retain(|plan| plan.interface != interface);
    }

    /// Takes those of some interfaces out.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Self {
        Self(self.0.extract_if(.., |of| is_in(of.interface)).collect())
    }

    /// Adds those of other interfaces.
    pub(crate) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.0.iter().map(|plan| plan.next).min()
    }

    /// Sends the advertisements that are due, and schedules the next ones.
    pub(crate) fn run<P>(&mut self, link: &mut LinkContext<'_, impl Output<P>>) {
        while let Some(plan) = self.0.iter_mut().find(|plan| plan.next <= link.now) {
            let interface = link.interfaces.get(plan.interface);
            let settings = interface.and_then(|interface| interface.settings.discovery);
            let Discovery { least_interval, interval, lifetime, .. } = settings.unwrap_or_default();
            let random = link.random.up_to(interval.saturating_sub(least_interval));
            let mut wait = least_interval + random;
            plan.initial = plan.initial.saturating_sub(1);
            if plan.initial > 0 {
                wait = wait.min(INITIAL_INTERVAL);
            }
            plan.next = link.now.saturating_add(wait);
            plan.spoken = true;
            if let Some(interface) = interface {
                advertise(interface, lifetime, link.out);
            }
        }
    }

    /// Announces on all interfaces that this router ceases to be one (RFC 1256, 4.1).
    pub(crate) fn cease<P>(&mut self, interfaces: &Interfaces, out: &mut impl Output<P>) {
        let ids: Vec<InterfaceId> = self.0.iter().map(|plan| plan.interface).collect();
        ids.into_iter().for_each(|id| self.cease_on(id, interfaces, out));
    }

    /// Stops advertising on an interface; sends lifetime 0 if the interface has advertised before.
    pub(crate) fn cease_on<P>(
        &mut self,
        id: InterfaceId,
        interfaces: &Interfaces,
        out: &mut impl Output<P>,
    ) {
        let spoken = self.0.iter().any(|plan| plan.interface == id && plan.spoken);
        self.cancel(id);
        if let Some(interface) = interfaces.get(id).filter(|_| spoken) {
            advertise(interface, Duration::ZERO, out);
        }
    }

    /// Takes a router solicitation, and schedules its answer: soon, and no later than planned. Returns false for
    /// other messages and invalid ones.
    pub(crate) fn solicited(
        &mut self,
        header: &Ipv4Header,
        bytes: &[u8],
        interface: &Interface,
        now: Time,
        random: &mut Random,
    ) -> bool {
        let message = &bytes[header.header_len()..];
        let valid = header.protocol == PROTOCOL_ICMP
            && !header.is_fragment()
            && message.len() >= ICMP_LEN
            && message[..2] == [v4::ROUTER_SOLICITATION, 0]
            && checksum(message) == 0
            && interface.is_on_link(header.source().into())
            && interface.settings.discovery.is_some();
        let plan = self.0.iter_mut().find(|plan| plan.interface == interface.id);
        if let Some(plan) = plan.filter(|_| valid) {
            plan.next = plan.next.min(now.saturating_add(random.up_to(RESPONSE_DELAY)));
        }
        valid
    }
}

/// Returns true for a packet to all routers on an interface that answers solicitations.
pub(crate) fn is_for_routers(
    header: &Ipv4Header,
    from: InterfaceId,
    interfaces: &Interfaces,
) -> bool {
    let to = header.destination();
    let takes_part = |interface: &Interface| interface.settings.discovery.is_some();
    (to == ALL_ROUTERS || to.is_broadcast()) && interfaces.get(from).is_some_and(takes_part)
}

fn advertise<P>(interface: &Interface, lifetime: Duration, out: &mut impl Output<P>) {
    let Some(discovery) = &interface.settings.discovery else { return };
    if let Some(frame) = frame(interface, discovery, lifetime) {
        out.originate(interface.id, &frame);
    }
}

/// Builds an interface's advertisement (RFC 1256, 3); `None` if it has no IPv4 address.
fn frame(interface: &Interface, discovery: &Discovery, lifetime: Duration) -> Option<Vec<u8>> {
    let addresses = &interface.v4[..interface.v4.len().min(ADDRESSES_MOST)];
    let source = addresses.first()?.addr();
    let mut entries = Vec::new();
    for net in addresses {
        entries.extend_from_slice(&net.addr().octets());
        entries.extend_from_slice(&discovery.preference.to_be_bytes());
    }
    let (destination, mac) = match discovery.broadcast {
        false => (ALL_HOSTS, ALL_HOSTS_MAC),
        true => (Ipv4Addr::BROADCAST, BROADCAST_MAC),
    };
    let seconds = u16::try_from(lifetime.as_secs()).unwrap_or(u16::MAX);
    let rest =
        u32::from(addresses.len() as u8) << 24 | u32::from(ENTRY_WORDS) << 16 | u32::from(seconds);
    let fields = Ipv4Fields {
        tos: 0,
        identification: 0,
        dont_fragment: true,
        // Of no use beyond the link, and must not leave it (RFC 1256, 4.1).
        ttl: 1,
        protocol: PROTOCOL_ICMP,
        source,
        destination,
    };
    let link = Link { destination: mac, source: interface.mac };
    Some(build::icmpv4(link, fields, (v4::ROUTER_ADVERTISEMENT, 0, rest), &entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, LEFT, Out, config, drops, hex, originated, secs, v4 as packet};
    use crate::{Command, Config};
    use dataplane::reason::DropReason;

    fn taking_part() -> Config {
        let mut config = config();
        config.interfaces[0].settings.discovery = Some(Discovery::default());
        config
    }

    fn started(config: Config) -> (Bench, Vec<Out>) {
        let mut bench = Bench::with(config);
        bench.command(Command::PortLink { interface: LEFT, up: true });
        let outs = bench.pass(Duration::ZERO);
        (bench, outs)
    }

    /// Lifetimes of the advertisements in the output.
    fn lifetimes(outs: &[Out]) -> Vec<u16> {
        let ours = |frame: &&[u8]| frame[12..14] == [8, 0] && frame[34] == 9;
        let lifetime = |frame: &[u8]| u16::from_be_bytes([frame[40], frame[41]]);
        originated(outs).into_iter().filter(ours).map(lifetime).collect()
    }

    fn solicitation(source: &str, destination: &str) -> Vec<u8> {
        packet(source, destination, 1, &[10, 0, 0xf5, 0xff, 0, 0, 0, 0])
    }

    #[test]
    fn an_advertisement_byte_by_byte() {
        let (_, outs) = started(taking_part());
        let frames = originated(&outs);
        let ours = frames.iter().find(|frame| frame[12..14] == [8, 0]).unwrap();
        let expected = hex("01005e000001 020000000001 0800
                            45000024000040000101 8ed7 0a000101 e0000001
                            0900 e3f4 01 02 0708 0a000101 00000000");
        assert_eq!(**ours, expected);
    }

    #[test]
    fn to_all_by_broadcast_and_with_a_preference_if_so_configured() {
        let mut config = taking_part();
        config.interfaces[0].settings.discovery =
            Some(Discovery { broadcast: true, preference: -2, ..Discovery::default() });
        let (_, outs) = started(config);
        let frames = originated(&outs);
        let ours = frames.iter().find(|frame| frame[12..14] == [8, 0]).unwrap();
        assert_eq!(ours[..6], [0xff; 6]);
        assert_eq!(ours[30..34], [0xff; 4]);
        assert_eq!(ours[46..50], [0xff, 0xff, 0xff, 0xfe]);
    }

    #[test]
    fn the_first_three_come_soon_and_the_others_at_their_interval() {
        let (mut bench, outs) = started(taking_part());
        let mut times = vec![Duration::ZERO; lifetimes(&outs).len()];
        for _ in 0..3000 {
            let outs = bench.pass(secs(1));
            times.extend(lifetimes(&outs).iter().map(|_| bench.now));
        }
        assert_eq!(times.len(), 3 + (3000 - 32) / 600 + usize::from(times.len() > 7), "{times:?}");
        assert_eq!(times[..3], [secs(0), secs(16), secs(32)]);
        for pair in times[2..].windows(2) {
            let between = pair[1] - pair[0];
            assert!(secs(449) <= between && between <= secs(601), "{between:?}");
        }
    }

    #[test]
    fn a_host_that_asks_is_answered_within_two_seconds() {
        let (mut bench, _) = started(taking_part());
        bench.pass(secs(100));
        for to in ["224.0.0.2", "255.255.255.255", "10.0.1.1"] {
            let outs = bench.local(solicitation("10.0.1.2", to));
            assert!(matches!(outs[..], [Out::ToHost(_)]), "{outs:?}");
            assert_eq!(lifetimes(&bench.pass(secs(2))), [1800], "{to}");
        }
        // Several simultaneous solicitations share one answer.
        for host in ["10.0.1.2", "10.0.1.3", "10.0.1.4"] {
            bench.local(solicitation(host, "224.0.0.2"));
        }
        assert!(lifetimes(&bench.pass(secs(2))).len() <= 2);
    }

    #[test]
    fn what_is_no_valid_solicitation_is_not_answered() {
        let (mut bench, _) = started(taking_part());
        bench.pass(secs(100));
        let valid = solicitation("10.0.1.2", "224.0.0.2");
        let elsewhere = solicitation("10.0.9.2", "224.0.0.2");
        let mut checksum = valid.clone();
        checksum[36] ^= 1;
        let code = packet("10.0.1.2", "224.0.0.2", 1, &[10, 1, 0xf5, 0xfe, 0, 0, 0, 0]);
        let short = packet("10.0.1.2", "224.0.0.2", 1, &[10, 0, 0xf5, 0xff]);
        let udp = packet("10.0.1.2", "224.0.0.2", 17, &[10, 0, 0xf5, 0xff, 0, 0, 0, 0]);
        for frame in [elsewhere, checksum, code, short, udp] {
            assert_eq!(drops(&bench.local(frame)), [DropReason::MulticastNotRouted]);
            assert_eq!(lifetimes(&bench.pass(secs(3))), []);
        }
    }

    #[test]
    fn a_port_that_does_not_take_part_says_nothing() {
        let (mut bench, outs) = started(config());
        assert_eq!(lifetimes(&outs), []);
        let outs = bench.local(solicitation("10.0.1.2", "224.0.0.2"));
        assert_eq!(drops(&outs), [DropReason::MulticastNotRouted]);
        bench.local(solicitation("10.0.1.2", "10.0.1.1"));
        assert_eq!(lifetimes(&bench.pass(secs(1000))), []);
    }

    #[test]
    fn the_last_word_is_lifetime_zero() {
        let (mut bench, _) = started(taking_part());
        bench.router.shutdown(&mut bench.net);
        assert_eq!(lifetimes(&bench.take()), [0]);
    }
}
