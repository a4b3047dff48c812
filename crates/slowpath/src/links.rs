//! The protocols by which the router is known on its links, and their life: they start when a link comes up or the
//! interface gets other addresses, and stop when it goes down. On an interface with a host interface the kernel runs
//! them; on one that another engine owns, that engine. A loopback has no link, and none of them.
//!
//! | protocol | state | kept in |
//! |---|---|---|
//! | announcements and their defence | schedules | `announce.rs` |
//! | multicast listener reports | answers to queries | `mld.rs` |
//! | duplicate address detection | addresses being probed | `duplicate.rs` |
//! | router advertisements | schedules | `advertise.rs` |
//! | router discovery for IPv4 | schedules | `discovery.rs` |
//! | answers for anycast addresses, by `nd.rs` | frames to be sent later | `later.rs` |

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::ip::Ipv4Header;

use crate::advertise::Advertising;
use crate::announce::Announcements;
use crate::context::{Context, LinkContext};
use crate::discovery::RouterDiscovery;
use crate::duplicate::Probes;
use crate::interfaces::{Interface, Interfaces};
use crate::later::Later;
use crate::mld::Groups;
use crate::nd::{Message, NeighbourDiscovery};
use crate::{InterfaceSettings, Output, Packet, Time, arp, mld};

/// The protocols on all links.
#[derive(Default)]
pub(crate) struct Links {
    announcements: Announcements,
    groups: Groups,
    probes: Probes,
    advertising: Advertising,
    discovery: RouterDiscovery,
    later: Later,
}

impl Links {
    /// Starts on an interface whose link is up, or starts over.
    pub(crate) fn start<O>(&mut self, id: InterfaceId, link: &mut LinkContext<'_, O>) {
        let speaks =
            |interface: &Interface| interface.owned && !interface.host && !interface.is_loopback;
        if !link.interfaces.get(id).is_some_and(speaks) {
            return;
        }
        self.probes.start(id, link);
        self.announcements.schedule(id, link.now);
        if let Some(interface) = link.interfaces.get(id) {
            self.advertising.start(interface, link.now);
            self.discovery.start(interface, link.now);
        }
    }

    /// Takes the state of some interfaces out.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Self {
        Self {
            announcements: self.announcements.part(is_in),
            groups: self.groups.part(is_in),
            probes: self.probes.part(is_in),
            advertising: self.advertising.part(is_in),
            discovery: self.discovery.part(is_in),
            later: self.later.part(is_in),
        }
    }

    /// Adds that of other interfaces.
    pub(crate) fn join(&mut self, other: Self) {
        let Self { announcements, groups, probes, advertising, discovery, later } = other;
        self.announcements.join(announcements);
        self.groups.join(groups);
        self.probes.join(probes);
        self.advertising.join(advertising);
        self.discovery.join(discovery);
        self.later.join(later);
    }

    /// Announces an interface's addresses again.
    pub(crate) fn announce(&mut self, id: InterfaceId, now: Time) {
        self.announcements.schedule(id, now);
    }

    /// Stops on an interface whose link is down.
    pub(crate) fn stop(&mut self, id: InterfaceId) {
        self.announcements.cancel(id);
        self.advertising.cancel(id);
        self.discovery.cancel(id);
        self.probes.cancel(id);
    }

    /// Replaces an interface's settings. Hosts are sent the new advertisement, or the end of advertising,
    /// at once; listeners of groups are reported if there are more; duplicate address detection starts as soon as the interface gets other addresses.
    pub(crate) fn change<P>(
        &mut self,
        id: InterfaceId,
        settings: InterfaceSettings,
        link: &mut LinkContext<'_, impl Output<P>>,
    ) {
        let Some(interface) = link.interfaces.get(id) else { return };
        let speaks = interface.owned && !interface.host && !interface.is_loopback;
        let advertise = speaks && interface.settings.advertise != settings.advertise;
        let discovery = speaks && interface.settings.discovery != settings.discovery;
        if advertise && settings.advertise.is_none() {
            self.advertising.cease_on(id, link.interfaces, link.out);
        }
        if discovery && settings.discovery.is_none() {
            self.discovery.cease_on(id, link.interfaces, link.out);
        }
        let Some(interface) = link.interfaces.get_mut(id) else { return };
        let old_groups = interface.reported_groups();
        interface.settings = settings;
        if speaks && interface.reported_groups().iter().any(|group| !old_groups.contains(group)) {
            mld::join_groups(interface, link.out);
        }
        if advertise {
            self.advertising.start(interface, link.now);
        }
        if discovery {
            self.discovery.start(interface, link.now);
        }
    }

    /// Sends what is due.
    pub(crate) fn run<P>(&mut self, link: &mut LinkContext<'_, impl Output<P>>) {
        self.announcements.run(link);
        self.groups.run(link);
        self.probes.run(&mut self.advertising, link);
        self.advertising.run(link);
        self.discovery.run(link);
        self.later.run(link);
    }

    /// Returns the time at which [`Self::run`] has work next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let all = [
            self.announcements.next_deadline(),
            self.groups.next_deadline(),
            self.probes.next_deadline(),
            self.advertising.next_deadline(),
            self.discovery.next_deadline(),
            self.later.next_deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// Announces on all links that this router ceases to be one.
    pub(crate) fn cease<P>(&mut self, interfaces: &Interfaces, out: &mut impl Output<P>) {
        self.advertising.cease(interfaces, out);
        self.discovery.cease(interfaces, out);
    }

    /// Takes an ARP message.
    pub(crate) fn arp<P: Packet>(
        &mut self,
        packet: P,
        from: InterfaceId,
        context: &mut Context<'_, P, impl Output<P>>,
    ) {
        arp::process(packet, from, &mut self.announcements, context);
    }

    /// Takes a message of neighbour discovery; returns the reason to drop it, if there is one.
    pub(crate) fn neighbour_discovery<P: Packet>(
        &mut self,
        message: &Message<'_>,
        from: InterfaceId,
        context: &mut Context<'_, P, impl Output<P>>,
    ) -> Option<DropReason> {
        let Self { announcements, probes, advertising, later, .. } = self;
        let mut protocol = NeighbourDiscovery { announcements, probes, advertising, later };
        protocol.process(message, from, context)
    }

    /// Takes a query of multicast listener discovery; returns false if it is not valid.
    pub(crate) fn listener_query<P, O>(
        &mut self,
        message: &[u8],
        valid_ip: bool,
        from: InterfaceId,
        context: &mut Context<'_, P, O>,
    ) -> bool {
        self.groups.query(message, valid_ip, from, context.now, context.random)
    }

    /// Takes a router solicitation over IPv4; returns false for other messages and invalid ones.
    pub(crate) fn router_solicited<P, O>(
        &mut self,
        header: &Ipv4Header,
        bytes: &[u8],
        from: InterfaceId,
        context: &mut Context<'_, P, O>,
    ) -> bool {
        let Some(interface) = context.interfaces.get(from) else { return false };
        self.discovery.solicited(header, bytes, interface, context.now, context.random)
    }

    /// Cancels all announcements.
    #[cfg(test)]
    pub(crate) fn silence(&mut self) {
        self.announcements = Announcements::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dataplane::reason::PuntReason;

    use super::*;
    use crate::testing::{Bench, LEFT, Out, config, originated, secs, v4};
    use crate::{Advertise, Command, Discovery, InterfaceConfig};

    fn settings(change: impl Fn(&mut InterfaceSettings)) -> Command {
        let mut settings = InterfaceSettings::default();
        change(&mut settings);
        Command::Settings { interface: LEFT, settings }
    }

    /// Router lifetimes of the advertisements in the output, of both families.
    fn lifetimes(outs: &[Out]) -> Vec<u16> {
        let number = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let lifetime = |frame: &[u8]| match (frame[12], frame.get(54), frame[34]) {
            (0x86, Some(134), _) => Some(number(frame, 60)),
            (8, _, 9) => Some(number(frame, 40)),
            _ => None,
        };
        originated(outs).into_iter().filter_map(lifetime).collect()
    }

    #[test]
    fn a_port_begins_to_advertise_changes_and_says_goodbye() {
        let mut bench = Bench::with(config());
        assert_eq!(lifetimes(&bench.pass(secs(60))), []);
        let advertise = |lifetime| {
            let advertise = Advertise { lifetime: secs(lifetime), ..Advertise::default() };
            settings(move |settings| settings.advertise = Some(advertise.clone()))
        };
        bench.command(advertise(1000));
        assert_eq!(lifetimes(&bench.pass(Duration::ZERO)), [1000]);
        bench.command(advertise(2000));
        assert_eq!(lifetimes(&bench.pass(secs(3))), [2000], "not sooner than the RFC allows");
        // The same settings again change nothing.
        bench.command(advertise(2000));
        assert_eq!(lifetimes(&bench.pass(Duration::ZERO)), []);
        bench.command(settings(|_| {}));
        assert_eq!(lifetimes(&bench.pass(secs(2000))), [0]);
    }

    #[test]
    fn a_port_takes_part_in_discovery_and_leaves_it() {
        let mut bench = Bench::with(config());
        bench.command(settings(|settings| settings.discovery = Some(Discovery::default())));
        assert_eq!(lifetimes(&bench.pass(Duration::ZERO)), [1800]);
        bench.command(settings(|_| {}));
        assert_eq!(lifetimes(&bench.pass(secs(2000))), [0]);
    }

    #[test]
    fn a_port_that_begins_to_relay_joins_the_group_of_its_clients() {
        let mut bench = Bench::with(config());
        bench.pass(secs(60));
        // For each frame, true if it names the group.
        let joined = |bench: &mut Bench| {
            let outs = bench.take();
            let reports: Vec<_> = originated(&outs).into_iter().map(<[u8]>::to_vec).collect();
            let group = wire::dhcp::ALL_RELAYS.octets();
            reports.iter().map(|frame| frame.windows(16).any(|at| at == group)).collect::<Vec<_>>()
        };
        let relay = |servers: &[&str]| {
            let servers: Vec<_> = servers.iter().map(|server| crate::testing::ip(server)).collect();
            settings(move |settings| settings.relay = servers.clone())
        };
        bench.command(relay(&["10.0.2.2"]));
        assert_eq!(joined(&mut bench), [] as [bool; 0], "IPv4 has broadcasts");
        bench.command(relay(&["10.0.2.2", "fd00:2::2"]));
        assert_eq!(joined(&mut bench), [true]);
        bench.command(relay(&["fd00:2::3"]));
        assert_eq!(joined(&mut bench), [] as [bool; 0], "it is a member already");
    }

    #[test]
    fn nothing_is_sent_on_a_loopback() {
        let mut loopback = config().interfaces.remove(0);
        (loopback.id, loopback.is_loopback) = (InterfaceId::new(64).unwrap(), true);
        loopback.addresses = ["192.0.2.9/32", "fd09::9/128"].map(|net| net.parse().unwrap()).into();
        loopback.settings.dad = 1;
        let mut config = config();
        config.interfaces.push(loopback.clone());
        let mut bench = Bench::with(config);
        let on_it = |outs: &[Out]| {
            outs.iter().any(|out| matches!(out, Out::Originate(id, _) if *id == loopback.id))
        };
        assert!(!on_it(&bench.pass(secs(10))));
        let up = Command::PortLink { interface: loopback.id, up: true };
        bench.command(up);
        let addresses = vec!["192.0.2.8/32".parse().unwrap()];
        bench.command(Command::Addresses { interface: loopback.id, addresses });
        let settings =
            crate::InterfaceSettings { vrf: loopback.settings.vrf, ..Default::default() };
        bench.command(Command::Settings { interface: loopback.id, settings });
        assert!(!on_it(&bench.pass(secs(10))));
        // Its address is the router's on other interfaces.
        let ping = v4("10.0.1.2", "192.0.2.8", 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        let outs = bench.punt(PuntReason::Local, InterfaceId::FIRST, 0, ping);
        assert_eq!(originated(&outs).len(), 1, "{outs:?}");
    }

    #[test]
    fn a_port_comes_speaks_when_its_link_is_up_and_goes() {
        let mut bench = Bench::with(config());
        let third = InterfaceId::new(7).unwrap();
        let mac = crate::testing::R;
        let interface = InterfaceConfig {
            id: third,
            name: "third".into(),
            mac,
            addresses: vec!["10.0.7.1/24".parse().unwrap()],
            ..config().interfaces[0].clone()
        };
        let ping = |n: u8| v4("10.0.7.2", "10.0.7.1", 1, &[8, 0, 0xf7 - n, 0xff, n, 0, 0, 0]);
        let from = |bench: &mut Bench, n| bench.punt(PuntReason::Local, third, 0, ping(n));
        assert!(matches!(from(&mut bench, 0)[..], [Out::Drop(DropReason::PortDown)]));
        bench.pass(secs(10));
        bench.command(Command::Interface(Box::new(interface.clone())));
        assert_eq!(bench.pass(secs(3)), [], "its link is not up");
        let announced = |outs: &[Out]| {
            let own = |frame: &&&[u8]| frame[6..12] == mac.0 && frame[12..14] == [8, 6];
            originated(outs).iter().filter(own).count()
        };
        bench.command(Command::PortLink { interface: third, up: true });
        assert_eq!(announced(&bench.pass(secs(3))), 2);
        let gateway = Command::NextHop { id: 99, interface: third, address: [10, 0, 7, 2].into() };
        bench.command(gateway);
        assert_eq!(announced(&bench.pass(Duration::ZERO)), 1, "it asks for its gateway");
        // Another MAC: learned neighbours are forgotten, static ones stay.
        let given =
            Command::AddStaticNeighbour { interface: third, address: [10, 0, 7, 9].into(), mac };
        bench.command(given);
        let neighbours = |bench: &mut Bench| bench.router.neighbours(bench.now).len();
        assert_eq!(neighbours(&mut bench), 2);
        let other = InterfaceConfig { mac: crate::testing::A, ..interface };
        bench.command(Command::Interface(Box::new(other)));
        assert_eq!(neighbours(&mut bench), 1);
        bench.command(Command::RemoveInterface { interface: third });
        assert_eq!(neighbours(&mut bench), 0);
        assert_eq!(from(&mut bench, 2).last(), Some(&Out::Drop(DropReason::PortDown)));
        assert_eq!(bench.pass(secs(100)), []);
    }
}
