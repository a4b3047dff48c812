//! Changes of a running engine's configuration: interfaces, their settings, limits, the router's own ICMP.

use dataplane::interface::InterfaceId;

use crate::neighbour::Forgotten;
use crate::{InterfaceConfig, InterfaceSettings, Output, Packet, SlowPath, Time};

impl<P: Packet> SlowPath<P> {
    /// Adds an interface, or replaces the one with its number.
    pub(crate) fn put_port(&mut self, interface: &InterfaceConfig, out: &mut impl Output<P>) {
        let host = self.interfaces.get(interface.id).is_some_and(|old| old.host);
        if host && !interface.host {
            // The kernel will not withdraw the neighbours that it reported.
            self.forget(interface.id, Forgotten::Told, out);
        }
        self.link_down(interface.id, out);
        self.interfaces.put(interface);
    }

    /// Removes an interface.
    pub(crate) fn remove_port(&mut self, interface: InterfaceId, out: &mut impl Output<P>) {
        self.link_down(interface, out);
        self.forget(interface, Forgotten::All, out);
        self.interfaces.remove(interface);
    }

    /// Handles an interface's link going down: announcements stop, and learned state is forgotten.
    pub(crate) fn link_down(&mut self, interface: InterfaceId, out: &mut impl Output<P>) {
        self.announcements.cancel(interface);
        self.advertising.cancel(interface);
        self.discovery.cancel(interface);
        self.probes.cancel(interface);
        self.forget(interface, Forgotten::Learned, out);
    }

    fn forget(&mut self, interface: InterfaceId, what: Forgotten, out: &mut impl Output<P>) {
        for removed in self.table.flush(interface, what) {
            self.removed(removed, out);
        }
    }

    /// Replaces an interface's settings. Hosts are sent the new advertisement, or the end of advertising,
    /// at once; duplicate address detection starts as soon as the interface gets other addresses.
    pub(crate) fn change_settings(
        &mut self,
        id: InterfaceId,
        settings: InterfaceSettings,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let Some(interface) = self.interfaces.get(id) else { return };
        let advertise = interface.settings.advertise != settings.advertise;
        let discovery = interface.settings.discovery != settings.discovery;
        let speaks = interface.owned && !interface.host;
        if speaks && advertise && settings.advertise.is_none() {
            self.cease_advertising_on(id, out);
        }
        if speaks && discovery && settings.discovery.is_none() {
            self.cease_discovery_on(id, out);
        }
        if let Some(interface) = self.interfaces.get_mut(id) {
            interface.settings = settings;
        }
        if speaks && advertise {
            self.start_advertising(id, now);
        }
        if speaks && discovery {
            self.start_discovery(id, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{Bench, LEFT, Out, config, originated, secs, v4};
    use dataplane::reason::{DropReason, PuntReason};

    use crate::{Advertise, Command, Discovery, Icmp};

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

    #[test]
    fn the_router_answers_ping_as_it_was_told_last() {
        let mut bench = Bench::with_hosts(config());
        let ping = v4("10.0.1.2", "10.0.1.1", 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        for (echo, answers) in [(false, 0), (true, 1)] {
            bench.command(Command::Icmp(Icmp { echo, ..Icmp::default() }));
            let outs = bench.local(ping.clone());
            let answer = |frame: &&&[u8]| frame[12..14] == [8, 0] && frame[34] == 0;
            assert_eq!(originated(&outs).iter().filter(answer).count(), answers, "{outs:?}");
        }
    }
}
