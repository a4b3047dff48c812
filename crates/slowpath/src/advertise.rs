//! Router advertisements: RFC 4861, 6.2; RFC 4191, 2.2 (preference); RFC 8106, 5.1 (DNS servers).
//!
//! An interface advertises if it is configured to (RFC 4861, 6.2.1: not by default): at random times
//! between the minimum and the maximum interval, the first three at most 16 seconds apart (6.2.4), and
//! after a router solicitation, with a random delay and no more often than every 3 seconds, to all nodes
//! (6.2.6). The last advertisement, at shutdown, has lifetime 0, so that hosts look for another router at
//! once (6.2.5).
//!
//! The prefixes are those of the interface's addresses, unless others are configured.
//!
//! Advertisements of other routers change nothing here (6.2.7), but values that are inconsistent with the
//! interface's own are reported ([`Event::AdvertisementDiffers`]), once in five minutes per interface.

use std::net::Ipv6Addr;
use std::time::Duration;

use dataplane::interface::InterfaceId;
use ipnet::Ipv6Net;
use wire::MacAddr;
use wire::address::ALL_NODES;
use wire::build;
use wire::icmp::v6;
use wire::nd::{
    self, FLAG_AUTONOMOUS, FLAG_MANAGED, FLAG_ON_LINK, FLAG_OTHER, LinkLayerOption, OPTION_DNS,
    OPTION_MTU, OPTION_PREFIX, OPTION_SOURCE_LINK_LAYER, PrefixOption, RouterAdvertisement,
};
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::context::LinkContext;
use crate::interfaces::{Interface, Interfaces};
use crate::random::Random;
use crate::{Advertise, Event, Output, Preference, Prefix, Time};

/// RFC 4861, 10: MAX_INITIAL_RTR_ADVERTISEMENTS, MAX_INITIAL_RTR_ADVERT_INTERVAL,
/// MAX_RA_DELAY_TIME, MIN_DELAY_BETWEEN_RAS.
const INITIAL_COUNT: u8 = 3;
const INITIAL_INTERVAL: Duration = Duration::from_secs(16);
const SOLICITED_DELAY: Duration = Duration::from_millis(500);
const LEAST_BETWEEN: Duration = Duration::from_secs(3);

/// Minimum time between two reports of an inconsistent router.
const LEAST_BETWEEN_REPORTS: Duration = Duration::from_secs(300);

/// Schedule of an interface's advertisements.
struct Schedule {
    interface: InterfaceId,
    next: Time,
    last: Option<Time>,
    /// Initial advertisements still to be sent.
    initial: u8,
    /// Time of the last report of an inconsistent router.
    reported: Option<Time>,
}

/// The advertising interfaces and their schedules.
#[derive(Default)]
pub(crate) struct Advertising(Vec<Schedule>);

impl Advertising {
    /// Starts advertising on an interface that is configured to, once its link is up, or starts over.
    pub(crate) fn start(&mut self, interface: &Interface, now: Time) {
        if !interface.speaks_v6() || interface.settings.advertise.is_none() {
            return;
        }
        let id = interface.id;
        let last = self.0.iter().find(|plan| plan.interface == id).and_then(|plan| plan.last);
        self.cancel(id);
        // Not sooner after the last advertisement than the RFC allows.
        let next = last.map_or(now, |last| now.max(last.saturating_add(LEAST_BETWEEN)));
        let initial = INITIAL_COUNT;
        self.0.push(Schedule { interface: id, next, last, initial, reported: None });
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

    /// Sends the advertisements that are due to all nodes, and schedules the next ones.
    pub(crate) fn run<P>(&mut self, link: &mut LinkContext<'_, impl Output<P>>) {
        while let Some(id) = self.due(link.now, link.interfaces, link.random) {
            let usable = |interface: &&Interface| interface.usable_link_local().is_some();
            let Some(interface) = link.interfaces.get(id).filter(usable) else { continue };
            if let Some(advertise) = &interface.settings.advertise {
                link.out.originate(id, &frame(interface, advertise, advertise.lifetime));
            }
        }
    }

    /// Returns an interface whose advertisement is due, and schedules its next one.
    fn due(
        &mut self,
        now: Time,
        interfaces: &Interfaces,
        random: &mut Random,
    ) -> Option<InterfaceId> {
        let plan = self.0.iter_mut().find(|plan| plan.next <= now)?;
        let advertise = interfaces
            .get(plan.interface)
            .and_then(|interface| interface.settings.advertise.as_ref());
        let (least, most) = advertise.map_or((LEAST_BETWEEN, INITIAL_INTERVAL), |advertise| {
            (advertise.least_interval, advertise.interval)
        });
        let mut interval = least + random.up_to(most.saturating_sub(least));
        plan.initial = plan.initial.saturating_sub(1);
        if plan.initial > 0 {
            interval = interval.min(INITIAL_INTERVAL);
        }
        plan.last = Some(now);
        plan.next = now.saturating_add(interval);
        Some(plan.interface)
    }

    /// Announces on all advertising interfaces that this router ceases to be one (6.2.5).
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
        let spoken = self.0.iter().any(|plan| plan.interface == id && plan.last.is_some());
        self.cancel(id);
        let Some(interface) = interfaces.get(id).filter(|_| spoken) else { return };
        if let Some(advertise) = &interface.settings.advertise {
            out.originate(id, &frame(interface, advertise, Duration::ZERO));
        }
    }

    /// Takes a valid router solicitation and schedules its answer (6.2.6): soon, but at least 3 seconds after the
    /// last advertisement, and no later than planned.
    pub(crate) fn solicited(&mut self, from: InterfaceId, now: Time, random: &mut Random) {
        let Some(plan) = self.0.iter_mut().find(|plan| plan.interface == from) else { return };
        let delay = random.up_to(SOLICITED_DELAY);
        let earliest = plan.last.map_or(now, |last| now.max(last.saturating_add(LEAST_BETWEEN)));
        plan.next = plan.next.min(earliest.saturating_add(delay));
    }

    /// Compares a valid advertisement of another router on an interface's link with the interface's own; `message`
    /// starts at the ICMPv6 header.
    pub(crate) fn compare<P>(
        &mut self,
        router: Ipv6Addr,
        message: &[u8],
        interface: &Interface,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let Some(advertise) = &interface.settings.advertise else { return };
        if let Some(what) = difference(interface, advertise, message)
            && self.may_report(interface.id, now)
        {
            out.event(Event::AdvertisementDiffers { interface: interface.id, router, what });
        }
    }

    /// Returns true if an inconsistent router may be reported now.
    fn may_report(&mut self, interface: InterfaceId, now: Time) -> bool {
        let Some(plan) = self.0.iter_mut().find(|plan| plan.interface == interface) else {
            return false;
        };
        let late = |last: Time| now.saturating_sub(last) >= LEAST_BETWEEN_REPORTS;
        let may = plan.reported.is_none_or(late);
        if may {
            plan.reported = Some(now);
        }
        may
    }
}

/// First field in which another router's advertisement is inconsistent with ours (6.2.7). A value that
/// either side leaves unspecified is no difference.
fn difference(interface: &Interface, ours: &Advertise, message: &[u8]) -> Option<&'static str> {
    let (theirs, options) = RouterAdvertisement::ref_from_prefix(message).ok()?;
    let differ = |a: u32, b: u32| a != 0 && b != 0 && a != b;
    let flags = (FLAG_MANAGED | FLAG_OTHER) & (theirs.flags ^ flags(ours));
    if differ(theirs.current_hop_limit.into(), ours.hop_limit.into()) {
        return Some("hop limit");
    } else if flags != 0 {
        return Some("managed or other flag");
    } else if differ(theirs.reachable_time.get(), millis(ours.reachable)) {
        return Some("reachable time");
    } else if differ(theirs.retransmit_timer.get(), millis(ours.retransmit)) {
        return Some("retransmit timer");
    }
    nd::options(options).flatten().find_map(|option| option_difference(interface, ours, &option))
}

fn option_difference(
    interface: &Interface,
    ours: &Advertise,
    option: &nd::NdOption<'_>,
) -> Option<&'static str> {
    match option.kind {
        OPTION_MTU => {
            let mtu = option.value.get(2..6)?.try_into().ok().map(u32::from_be_bytes)?;
            ours.mtu.is_some_and(|ours| u32::from(ours) != mtu).then_some("MTU")
        }
        OPTION_PREFIX => {
            let bytes = [&[OPTION_PREFIX, 4], option.value].concat();
            let theirs = PrefixOption::read_from_bytes(&bytes).ok()?;
            let same = |prefix: &Prefix| {
                prefix.net.prefix_len() == theirs.prefix_length
                    && prefix.net.network().octets() == theirs.prefix
            };
            let ours = prefixes(interface, ours).into_iter().find(same)?;
            let lifetimes = (seconds(ours.valid), seconds(ours.preferred));
            (lifetimes != (theirs.valid.get(), theirs.preferred.get()))
                .then_some("prefix lifetimes")
        }
        _ => None,
    }
}

/// Returns the advertised prefixes: the configured ones, else the networks of the interface's addresses.
fn prefixes(interface: &Interface, advertise: &Advertise) -> Vec<Prefix> {
    if let Some(prefixes) = &advertise.prefixes {
        return prefixes.clone();
    }
    let mut nets: Vec<Ipv6Net> = interface.v6.iter().map(Ipv6Net::trunc).collect();
    nets.sort_unstable();
    nets.dedup();
    nets.into_iter().map(Prefix::new).collect()
}

fn flags(advertise: &Advertise) -> u8 {
    let managed = if advertise.managed { FLAG_MANAGED } else { 0 };
    let other = if advertise.other { FLAG_OTHER } else { 0 };
    let preference = match advertise.preference {
        Preference::High => 0b01 << 3,
        Preference::Medium => 0,
        Preference::Low => 0b11 << 3,
    };
    managed | other | preference
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Builds an interface's advertisement (4.2) with this router lifetime.
fn frame(interface: &Interface, advertise: &Advertise, lifetime: Duration) -> Vec<u8> {
    // RFC 4191, 2.2: a router that is not a default router has no preference.
    let preference = if lifetime.is_zero() { !0b11000 } else { !0 };
    let fixed = RouterAdvertisement {
        kind: v6::ROUTER_ADVERTISEMENT,
        code: 0,
        checksum: U16::new(0),
        current_hop_limit: advertise.hop_limit,
        flags: flags(advertise) & preference,
        router_lifetime: U16::new(u16::try_from(lifetime.as_secs()).unwrap_or(u16::MAX)),
        reachable_time: U32::new(millis(advertise.reachable)),
        retransmit_timer: U32::new(millis(advertise.retransmit)),
    };
    let mut message = fixed.as_bytes().to_vec();
    message.extend_from_slice(source_option(interface.mac).as_bytes());
    if let Some(mtu) = advertise.mtu {
        message.extend_from_slice(&[OPTION_MTU, 1, 0, 0]);
        message.extend_from_slice(&u32::from(mtu).to_be_bytes());
    }
    for prefix in prefixes(interface, advertise) {
        message.extend_from_slice(prefix_option(&prefix).as_bytes());
    }
    for servers in advertise.dns.chunks(100) {
        message.extend_from_slice(&[OPTION_DNS, 1 + 2 * servers.len() as u8, 0, 0]);
        // RFC 8106, 5.1: three intervals; nothing when this router ceases.
        let valid = if lifetime.is_zero() { Duration::ZERO } else { advertise.interval * 3 };
        message.extend_from_slice(&seconds(valid).to_be_bytes());
        servers.iter().for_each(|server| message.extend_from_slice(&server.octets()));
    }
    build::neighbour_discovery(interface.mac, interface.link_local, ALL_NODES, message)
}

fn source_option(mac: MacAddr) -> LinkLayerOption {
    LinkLayerOption { kind: OPTION_SOURCE_LINK_LAYER, length: 1, mac }
}

fn prefix_option(prefix: &Prefix) -> PrefixOption {
    let on_link = if prefix.on_link { FLAG_ON_LINK } else { 0 };
    let autonomous = if prefix.autonomous { FLAG_AUTONOMOUS } else { 0 };
    PrefixOption {
        kind: OPTION_PREFIX,
        length: 4,
        prefix_length: prefix.net.prefix_len(),
        flags: on_link | autonomous,
        valid: U32::new(seconds(prefix.valid)),
        preferred: U32::new(seconds(prefix.preferred)),
        reserved: U32::new(0),
        prefix: prefix.net.network().octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        Bench, L, LEFT, Out, config, fix_icmpv6_checksum, hex, originated, right, secs, v6,
    };
    use crate::{Command, Config};

    fn advertising(change: impl Fn(&mut Advertise)) -> Config {
        let mut config = config();
        let mut advertise = Advertise::default();
        change(&mut advertise);
        config.interfaces[0].settings.advertise = Some(advertise);
        config
    }

    fn bench(change: impl Fn(&mut Advertise)) -> Bench {
        Bench::with(advertising(change))
    }

    /// The times at which the left interface advertised, in milliseconds, and the last advertisement.
    fn times(bench: &mut Bench, until: Time) -> (Vec<u128>, Vec<u8>) {
        let (mut times, mut last) = (Vec::new(), Vec::new());
        while let Some(deadline) = bench.router.next_deadline().filter(|&d| d <= until) {
            let outs = bench.pass(deadline - bench.now);
            let advertised = |frame: &&[u8]| frame.get(54) == Some(&134);
            for frame in originated(&outs).into_iter().filter(advertised) {
                times.push(bench.now.as_millis());
                last = frame.to_vec();
            }
        }
        bench.now = until;
        (times, last)
    }

    fn solicitation() -> Vec<u8> {
        let mut frame = v6("fe80::a", "ff02::2", 58, &[133, 0, 0, 0, 0, 0, 0, 0]);
        frame[21] = 255;
        fix_icmpv6_checksum(&mut frame, 54);
        frame
    }

    #[test]
    fn an_advertisement_byte_by_byte() {
        let (times, frame) = times(&mut bench(|_| {}), secs(1));
        assert_eq!(times, [0]);
        let want = hex("333300000001 020000000001 86dd 6000000000383aff
            fe80000000000000000000fffe000001 ff020000000000000000000000000001
            8600 0000 40 00 0708 00000000 00000000
            0101 020000000001
            0304 40 c0 00278d00 00093a80 00000000 fd000001000000000000000000000000");
        let mut want = want;
        fix_icmpv6_checksum(&mut want, 54);
        assert_eq!(frame, want);
    }

    #[test]
    fn everything_that_is_configured_is_said() {
        let net = "2001:db8:7::/48".parse().unwrap();
        let (_, frame) = times(
            &mut bench(|advertise| {
                advertise.lifetime = secs(9000);
                advertise.managed = true;
                advertise.other = true;
                advertise.preference = Preference::High;
                advertise.hop_limit = 0;
                advertise.reachable = Duration::from_millis(1500);
                advertise.retransmit = secs(2);
                advertise.mtu = Some(1400);
                advertise.dns = vec!["fd00:1::1".parse().unwrap()];
                advertise.prefixes = Some(vec![Prefix {
                    on_link: false,
                    valid: Duration::MAX,
                    preferred: secs(9),
                    ..Prefix::new(net)
                }]);
            }),
            secs(1),
        );
        let mut want = hex("8600 0000 00 c8 2328 000005dc 000007d0
            0101 020000000001
            0501 0000 00000578
            0304 30 40 ffffffff 00000009 00000000 20010db8000700000000000000000000
            1903 0000 00000708 fd000001000000000000000000000001");
        want[2..4].copy_from_slice(&frame[56..58]);
        assert_eq!(frame[54..], want);
    }

    #[test]
    fn the_first_ones_come_quickly_and_the_later_ones_at_their_intervals() {
        let mut bench = bench(|_| {});
        let (times, _) = times(&mut bench, secs(20_000));
        assert_eq!(times[0], 0);
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps[..2].iter().all(|gap| (3000..=16_000).contains(gap)), "{gaps:?}");
        assert!(gaps[2..].iter().all(|gap| (198_000..=600_000).contains(gap)), "{gaps:?}");
        assert!(gaps.iter().any(|&gap| gap != gaps[3]), "random");
    }

    #[test]
    fn who_solicits_is_answered_soon_but_not_too_often() {
        let mut bench = bench(|_| {});
        times(&mut bench, secs(100));
        bench.local(solicitation());
        bench.local(solicitation());
        let (first, _) = times(&mut bench, secs(101));
        assert_eq!(first.len(), 1, "one for both");
        assert!(first[0] <= 100_500);
        bench.local(solicitation());
        let (second, _) = times(&mut bench, secs(110));
        assert_eq!(second.len(), 1);
        assert!((3000..=3500).contains(&(second[0] - first[0])), "{first:?} {second:?}");
    }

    #[test]
    fn a_port_that_does_not_advertise_stays_silent() {
        let mut bench = bench(|_| {});
        let mut frame = solicitation();
        frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 2]);
        bench.punt(dataplane::reason::PuntReason::Local, right(), 1, frame);
        let outs = bench.pass(secs(1000));
        assert!(
            outs.iter()
                .all(|out| !matches!(out, Out::Originate(interface, _) if *interface != LEFT))
        );
    }

    #[test]
    fn the_end_is_said() {
        let mut bench = bench(|advertise| advertise.preference = Preference::High);
        bench.pass(secs(5));
        bench.router.shutdown(&mut bench.net);
        let outs = bench.take();
        let [last] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!((last[54], last[59], &last[60..62]), (134, 0, &[0, 0][..]));
        assert_eq!(bench.router.next_deadline(), None);
    }

    #[test]
    fn a_link_that_comes_back_begins_anew() {
        let mut bench = bench(|_| {});
        times(&mut bench, secs(1000));
        bench.command(Command::PortLink { interface: LEFT, up: false });
        assert_eq!(times(&mut bench, secs(3000)).0, []);
        bench.command(Command::PortLink { interface: LEFT, up: true });
        let (times, _) = times(&mut bench, secs(3100));
        assert!(times.len() >= 3 && times[0] == 3_000_000, "{times:?}");
    }

    #[test]
    fn other_routers_that_disagree_are_reported_once_in_a_while() {
        let mut bench = bench(|advertise| advertise.mtu = Some(1500));
        bench.pass(secs(1));
        let theirs = |change: &dyn Fn(&mut Vec<u8>)| {
            let ours = advertising(|advertise| advertise.mtu = Some(1500));
            let mut interface = crate::interfaces::Interfaces::new(&ours.interfaces);
            let interface = interface.get_mut(LEFT).unwrap();
            let mut frame =
                frame(interface, interface.settings.advertise.as_ref().unwrap(), secs(1800));
            frame[6..12].copy_from_slice(&crate::testing::A.0);
            frame[22..38].copy_from_slice(&hex("fe80000000000000000000000000000a"));
            frame[..6].copy_from_slice(&L.0);
            change(&mut frame);
            fix_icmpv6_checksum(&mut frame, 54);
            frame
        };
        let report = |what| {
            let router = "fe80::a".parse().unwrap();
            Out::Event(Event::AdvertisementDiffers { interface: LEFT, router, what })
        };
        assert_eq!(bench.local(theirs(&|_| {})).len(), 1, "they agree");
        for (change, what) in [
            (&(|f: &mut Vec<u8>| f[58] = 32) as &dyn Fn(&mut Vec<u8>), "hop limit"),
            (&|f: &mut Vec<u8>| f[59] = 0x80, "managed or other flag"),
            (&|f: &mut Vec<u8>| f[85] ^= 1, "MTU"),
            (&|f: &mut Vec<u8>| f[93] ^= 1, "prefix lifetimes"),
        ] {
            assert_eq!(bench.local(theirs(change))[0], report(what));
            assert_eq!(bench.local(theirs(change)).len(), 1, "not again at once");
            bench.pass(secs(300));
        }
        // Unspecified values do not differ.
        assert_eq!(bench.local(theirs(&|frame| frame[58] = 0)).len(), 1);
    }
}
