//! What a running engine can be told about itself: a port's settings, bounds, its own ICMP.

use dataplane::port::PortId;

use crate::{Output, Packet, PortSettings, SlowPath, Time};

impl<P: Packet> SlowPath<P> {
    /// A port's settings from now on. Hosts hear at once what it advertises now, or that it does not
    /// any more; duplicates of its addresses are looked for as soon as it gets others.
    pub(crate) fn change_settings(
        &mut self,
        id: PortId,
        settings: PortSettings,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let Some(port) = self.ports.get(id) else { return };
        let advertise = port.settings.advertise != settings.advertise;
        let discovery = port.settings.discovery != settings.discovery;
        let speaks = port.owned && !port.host;
        if speaks && advertise && settings.advertise.is_none() {
            self.cease_advertising_on(id, out);
        }
        if speaks && discovery && settings.discovery.is_none() {
            self.cease_discovery_on(id, out);
        }
        if let Some(port) = self.ports.get_mut(id) {
            port.settings = settings;
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
    use crate::{Advertise, Command, Discovery, Icmp};

    fn settings(change: impl Fn(&mut PortSettings)) -> Command {
        let mut settings = PortSettings::default();
        change(&mut settings);
        Command::Settings { port: LEFT, settings }
    }

    /// The router lifetimes of the advertisements among what came out, of both families.
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
        // The same once more is nothing new.
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
