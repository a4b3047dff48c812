//! LACP, the protocol by which two systems agree on the links of a bond: IEEE 802.1AX-2014, 6.4.
//!
//! Each port of a bond runs the Receive, Periodic Transmission and Mux machines (6.4.12, 6.4.13, 6.4.15), and the
//! bond the Selection Logic (6.4.14). The Mux machine has independent control: a port collects before it distributes,
//! so nothing is lost while the two sides come up one after the other.
//!
//! ```text
//!   LACPDU, link, time --> Receive --> partner --> Selection --> Mux --> Event::BondPort (collecting, distributing)
//!                             |                                   |
//!                             +-----> something to tell <---------+--> LACPDU, three a second at most
//!                                     Periodic Transmission ------+
//! ```
//!
//! Selection: the ports with the same partner (system and key) are the bond. The partner of the present ones stays;
//! without them the one with most ports is selected, and of equal ones that of the first port. If no port has a
//! partner, the first port with a link is used alone, as an individual link (6.4.14): a bond towards a host
//! without LACP, which has not been set up yet, works by one link. A port whose partner is the router itself (a loop)
//! is not selected.
//!
//! With a limit of links, the ports of the group beyond it stand by (6.4.14): those that come last by the port priorities
//! and numbers of the system with the lower identifier, and before them those whose LACPDUs do not pass both ways. One
//! takes the place of a port that is lost, and gives it back as soon as that one is in use again, not before.
//!
//! A port that is not in sync for a minute, on either side, and does not stand by, churns (6.4.17). Markers are answered
//! (6.5.4.2), ten a second and port at most (IEEE 802.3, Annex 57B). LACPDUs of version 2 are read as far as version 1 goes.

use std::time::Duration;

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::lacp::{Lacpdu, Marker, Port, SlowPdu, state};

use crate::{Event, LacpConfig, LacpInfo, LacpPortInfo, Output, Packet, Time};

/// Periods of transmission and times of silence (6.4.4).
const FAST_PERIODIC: Duration = Duration::from_secs(1);
const SLOW_PERIODIC: Duration = Duration::from_secs(30);
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);
const LONG_TIMEOUT: Duration = Duration::from_secs(90);
const AGGREGATE_WAIT: Duration = Duration::from_secs(2);

/// Time without synchronization after which a port churns (6.4.17: Churn_Detection_Time).
const CHURN_DETECTION: Duration = Duration::from_secs(60);

/// LACPDUs that a port sends in [`FAST_PERIODIC`] at most (6.4.16).
const TX_MOST: u8 = 3;

/// Answers to markers in the same time.
const MARKERS_MOST: u8 = 10;

/// Priority of all ports: the standard's default.
const PORT_PRIORITY: u16 = 0x8000;

/// State of the Receive machine (6.4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    /// PORT_DISABLED: no link.
    Disabled,
    /// EXPIRED: the partner has been silent, or the link has just come up.
    Expired,
    /// DEFAULTED: there is no partner.
    Defaulted,
    /// CURRENT.
    Current,
}

impl Receive {
    fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Expired => "expired",
            Self::Defaulted => "defaulted",
            Self::Current => "current",
        }
    }
}

/// State of the Mux machine (6.4.15), independent control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mux {
    Detached,
    Waiting,
    Attached,
    Collecting,
    Distributing,
}

impl Mux {
    fn name(self) -> &'static str {
        match self {
            Self::Detached => "detached",
            Self::Waiting => "waiting",
            Self::Attached => "attached",
            Self::Collecting => "collecting",
            Self::Distributing => "distributing",
        }
    }
}

/// A Churn Detection machine (6.4.17), of a port's own side or of its partner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Churn {
    /// No link.
    Disabled,
    /// CHURN_MONITOR: not in sync, until this time.
    Monitor(Time),
    /// NO_CHURN: in sync.
    Settled,
    /// CHURN.
    Found,
}

impl Churn {
    fn run(&mut self, has_link: bool, in_sync: bool, now: Time) {
        *self = match *self {
            _ if !has_link => Self::Disabled,
            _ if in_sync => Self::Settled,
            Self::Disabled | Self::Settled => Self::Monitor(now + CHURN_DETECTION),
            Self::Monitor(end) if end <= now => Self::Found,
            Self::Monitor(_) | Self::Found => *self,
        };
    }

    fn deadline(self) -> Option<Time> {
        if let Self::Monitor(end) = self { Some(end) } else { None }
    }
}

/// The other end of a link, as far as aggregation goes (6.3.6): ports with the same can be aggregated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    system_priority: u16,
    system: MacAddr,
    key: u16,
    /// The link, if it is not to be aggregated: the number of the own port.
    individual: Option<u16>,
}

/// A period in which the number of sent frames is limited.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    begin: Time,
    sent: u8,
}

impl Window {
    /// Counts a frame if it may be sent now.
    fn admit(&mut self, most: u8, now: Time) -> bool {
        if now.saturating_sub(self.begin) >= FAST_PERIODIC {
            *self = Self { begin: now, sent: 0 };
        }
        let admitted = self.sent < most;
        self.sent += u8::from(admitted);
        admitted
    }
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    rx: u64,
    tx: u64,
    malformed: u64,
    markers: u64,
}

/// A port of a bond.
struct LacpPort {
    interface: InterfaceId,
    mac: MacAddr,
    has_link: bool,
    partner: Port,
    defaulted: bool,
    receive: Receive,
    current_while: Option<Time>,
    mux: Mux,
    wait_while: Option<Time>,
    /// The group with which it is selected.
    selected: Option<Group>,
    /// It is of the group that is used, and beyond the limit of links.
    standby: bool,
    /// Of its own side and of its partner's.
    churn: [Churn; 2],
    periodic: Option<Time>,
    /// There is something to tell (NTT).
    must_tell: bool,
    window: Window,
    marker_window: Window,
    /// Reported last: collecting, distributing.
    reported: (bool, bool),
    counts: Counts,
}

/// The partner that a port without one has (6.4.7: administrative values): an individual link in use, to which LACPDUs
/// are sent each second, so that a partner is found as soon as there is one.
fn no_partner() -> Port {
    let state =
        state::SHORT_TIMEOUT | state::SYNCHRONIZATION | state::COLLECTING | state::DISTRIBUTING;
    Port { state, ..Port::default() }
}

/// The identity of a port: everything in it but the flags.
fn is_same_port(one: &Port, other: &Port) -> bool {
    Port { state: 0, ..*one } == Port { state: 0, ..*other }
        && (one.state ^ other.state) & state::AGGREGATION == 0
}

impl LacpPort {
    fn new(interface: InterfaceId, mac: MacAddr) -> Self {
        Self {
            interface,
            mac,
            has_link: false,
            partner: no_partner(),
            defaulted: true,
            receive: Receive::Disabled,
            current_while: None,
            mux: Mux::Detached,
            wait_while: None,
            selected: None,
            standby: false,
            churn: [Churn::Disabled; 2],
            periodic: None,
            must_tell: false,
            window: Window::default(),
            marker_window: Window::default(),
            reported: (false, false),
            counts: Counts::default(),
        }
    }

    /// Its number in LACPDUs, from 1 on: some systems take 0 for no port.
    fn number(&self) -> u16 {
        self.interface.index() as u16 + 1
    }

    /// It as its LACPDUs describe it.
    fn actor(&self, config: &LacpConfig) -> Port {
        let when = |bit: u8, on: bool| if on { bit } else { 0 };
        Port {
            system_priority: config.priority.into(),
            system: config.system,
            key: config.key.into(),
            port_priority: PORT_PRIORITY.into(),
            port: self.number().into(),
            state: state::AGGREGATION
                | when(state::ACTIVITY, !config.passive)
                | when(state::SHORT_TIMEOUT, config.fast)
                | when(state::SYNCHRONIZATION, self.mux >= Mux::Attached)
                | when(state::COLLECTING, self.mux >= Mux::Collecting)
                | when(state::DISTRIBUTING, self.mux == Mux::Distributing)
                | when(state::DEFAULTED, self.defaulted)
                | when(state::EXPIRED, self.receive == Receive::Expired),
        }
    }

    fn partner_has(&self, bits: u8) -> bool {
        self.partner.state & bits == bits
    }

    fn set_partner(&mut self, bits: u8, on: bool) {
        self.partner.state =
            if on { self.partner.state | bits } else { self.partner.state & !bits };
    }

    fn set_link(&mut self, up: bool, now: Time) {
        if self.has_link == up {
            return;
        }
        self.has_link = up;
        if up {
            self.expire(now);
        } else {
            self.receive = Receive::Disabled;
            self.current_while = None;
            self.set_partner(state::SYNCHRONIZATION, false);
        }
    }

    /// Enters EXPIRED: the partner is asked to send fast.
    fn expire(&mut self, now: Time) {
        self.receive = Receive::Expired;
        self.set_partner(state::SYNCHRONIZATION, false);
        self.set_partner(state::SHORT_TIMEOUT, true);
        self.current_while = Some(now + SHORT_TIMEOUT);
        self.must_tell = true;
    }

    /// The time of silence is over.
    fn time_out(&mut self, now: Time) {
        match self.receive {
            Receive::Current => self.expire(now),
            Receive::Expired => {
                if !is_same_port(&self.partner, &no_partner()) {
                    self.selected = None;
                }
                self.partner = no_partner();
                self.defaulted = true;
                self.receive = Receive::Defaulted;
                self.current_while = None;
            }
            Receive::Disabled | Receive::Defaulted => self.current_while = None,
        }
    }

    /// Takes a LACPDU (6.4.9: update_Selected, update_NTT, recordPDU).
    fn take(&mut self, pdu: &Lacpdu, config: &LacpConfig, now: Time) {
        self.counts.rx += 1;
        if !self.has_link {
            return;
        }
        let own = self.actor(config);
        if !is_same_port(&pdu.actor, &self.partner) {
            self.selected = None;
        }
        let told =
            state::ACTIVITY | state::SHORT_TIMEOUT | state::SYNCHRONIZATION | state::AGGREGATION;
        let knows_us = is_same_port(&pdu.partner, &own);
        self.must_tell |= !knows_us || (pdu.partner.state ^ own.state) & told != 0;
        let sender = |bit: u8| pdu.actor.state & bit != 0;
        let is_active =
            sender(state::ACTIVITY) || !config.passive && pdu.partner.state & state::ACTIVITY != 0;
        let matched = (knows_us || !sender(state::AGGREGATION))
            && sender(state::SYNCHRONIZATION)
            && is_active;
        self.partner = pdu.actor;
        self.set_partner(state::SYNCHRONIZATION, matched);
        self.defaulted = false;
        self.receive = Receive::Current;
        let silence = if config.fast { SHORT_TIMEOUT } else { LONG_TIMEOUT };
        self.current_while = Some(now + silence);
    }

    /// The group of a port that has a partner; `None`: it has none, or the partner is the router itself.
    fn group(&self, config: &LacpConfig) -> Option<Group> {
        let known = match self.receive {
            Receive::Current => true,
            Receive::Expired => !self.defaulted,
            Receive::Disabled | Receive::Defaulted => false,
        };
        let Port { system_priority, system, key, .. } = self.partner;
        (known && system != config.system).then(|| Group {
            system_priority: system_priority.get(),
            system,
            key: key.get(),
            individual: (!self.partner_has(state::AGGREGATION)).then(|| self.number()),
        })
    }

    /// The group of a port without a partner, of which it is the only one.
    fn alone(&self) -> Option<Group> {
        (self.receive == Receive::Defaulted).then(|| Group {
            system_priority: 0,
            system: MacAddr::default(),
            key: 0,
            individual: Some(self.number()),
        })
    }

    /// Advances the Mux machine by one transition; returns true if there was one. `ready`: no port of the bond waits.
    fn step_mux(&mut self, ready: bool, now: Time) -> bool {
        let selected = self.selected.is_some();
        let in_sync = selected && self.partner_has(state::SYNCHRONIZATION);
        let collected = in_sync && self.partner_has(state::COLLECTING);
        let next = match self.mux {
            Mux::Detached if selected => Mux::Waiting,
            Mux::Waiting if !selected => Mux::Detached,
            Mux::Waiting if ready => Mux::Attached,
            Mux::Attached if !selected => Mux::Detached,
            Mux::Attached if in_sync => Mux::Collecting,
            Mux::Collecting if !in_sync => Mux::Attached,
            Mux::Collecting if collected => Mux::Distributing,
            Mux::Distributing if !collected => Mux::Collecting,
            _ => return false,
        };
        self.wait_while = (next == Mux::Waiting).then(|| now + AGGREGATE_WAIT);
        self.must_tell |= next != Mux::Waiting;
        self.mux = next;
        true
    }

    /// Returns true while it waits for more ports to be attached together (6.4.15, wait_while_timer).
    fn waits(&self, now: Time) -> bool {
        self.mux == Mux::Waiting && self.wait_while.is_some_and(|end| now < end)
    }

    /// Sets the next periodic transmission (6.4.13), which only two passive ports do without.
    fn schedule(&mut self, config: &LacpConfig, now: Time) {
        let silent = config.passive && !self.partner_has(state::ACTIVITY);
        if !self.has_link || silent {
            self.periodic = None;
            return;
        }
        let fast = self.partner_has(state::SHORT_TIMEOUT);
        let period = if fast { FAST_PERIODIC } else { SLOW_PERIODIC };
        match self.periodic {
            Some(due) if due <= now => {
                self.must_tell = true;
                self.periodic = Some(now + period);
            }
            // The partner wants them faster.
            Some(due) if due > now + period => {
                self.must_tell = true;
                self.periodic = Some(now + period);
            }
            Some(_) => {}
            None => self.periodic = Some(now + period),
        }
    }

    /// Runs both machines of churn detection. A port that stands by is meant to be out of sync.
    fn detect_churn(&mut self, now: Time) {
        let (has_link, standby) = (self.has_link, self.standby);
        let partner = self.partner_has(state::SYNCHRONIZATION);
        let in_sync = [self.mux >= Mux::Attached, partner];
        for (churn, in_sync) in self.churn.iter_mut().zip(in_sync) {
            churn.run(has_link, in_sync || standby, now);
        }
    }

    /// Returns true if LACPDUs pass both ways: the partner's arrive, and say that its own have arrived there.
    fn is_heard(&self) -> bool {
        self.receive == Receive::Current
            && self.partner.state & (state::EXPIRED | state::DEFAULTED) == 0
    }

    /// Returns its place among the ports of a group, of which the first are used: that by the system with the lower
    /// identifier.
    fn rank(&self, config: &LacpConfig) -> (u16, u16) {
        let Port { system_priority, system, port_priority, port, .. } = self.partner;
        match (config.priority, config.system) <= (system_priority.get(), system) {
            true => (PORT_PRIORITY, self.number()),
            false => (port_priority.get(), port.get()),
        }
    }

    fn tell<P>(&mut self, config: &LacpConfig, now: Time, out: &mut impl Output<P>) {
        let silent = config.passive && !self.partner_has(state::ACTIVITY);
        if !self.has_link || silent {
            self.must_tell = false;
        }
        if !self.must_tell || !self.window.admit(TX_MOST, now) {
            return;
        }
        let pdu = Lacpdu { actor: self.actor(config), partner: self.partner, collector_delay: 0 };
        out.originate(self.interface, &pdu.frame(self.mac));
        self.counts.tx += 1;
        self.must_tell = false;
    }

    fn answer<P>(&mut self, marker: Marker, now: Time, out: &mut impl Output<P>) {
        self.counts.markers += 1;
        if self.marker_window.admit(MARKERS_MOST, now) {
            out.originate(self.interface, &marker.response(self.mac));
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let told = self.must_tell.then(|| self.window.begin + FAST_PERIODIC);
        let [own, partner] = self.churn.map(Churn::deadline);
        let times = [self.current_while, self.wait_while, self.periodic, told, own, partner];
        times.into_iter().flatten().min()
    }

    fn info(&self, config: &LacpConfig) -> LacpPortInfo {
        LacpPortInfo {
            port: self.interface,
            receive: self.receive.name(),
            mux: self.mux.name(),
            selected: self.selected.is_some(),
            standby: self.standby,
            churns: self.churn.map(|churn| churn == Churn::Found),
            looped: self.receive == Receive::Current && self.partner.system == config.system,
            actor: self.actor(config),
            partner: (!self.defaulted).then_some(self.partner),
            rx: self.counts.rx,
            tx: self.counts.tx,
            malformed: self.counts.malformed,
            markers: self.counts.markers,
        }
    }
}

/// A bond with LACP.
struct Bond {
    id: InterfaceId,
    config: LacpConfig,
    /// In the configuration's order.
    ports: Vec<LacpPort>,
    /// The group whose ports are the bond.
    group: Option<Group>,
}

impl Bond {
    fn new(id: InterfaceId, config: LacpConfig) -> Self {
        let ports = config.ports.iter().map(|&(port, mac)| LacpPort::new(port, mac)).collect();
        Self { id, config, ports, group: None }
    }

    /// Takes up another configuration; ports that stay keep their state, unless the system is another.
    fn configure(&mut self, config: LacpConfig) {
        let is_same = (config.system, config.priority, config.key)
            == (self.config.system, self.config.priority, self.config.key);
        let mut known = if is_same { std::mem::take(&mut self.ports) } else { Vec::new() };
        let port = |&(interface, mac): &(InterfaceId, MacAddr)| {
            let at = known.iter().position(|port| (port.interface, port.mac) == (interface, mac));
            at.map_or_else(|| LacpPort::new(interface, mac), |at| known.swap_remove(at))
        };
        self.ports = config.ports.iter().map(port).collect();
        self.ports.iter_mut().for_each(|port| port.must_tell = true);
        self.config = config;
    }

    /// The Selection Logic (6.4.14): selects the group, and the ports in it that are detached from another.
    fn select(&mut self) {
        let groups: Vec<_> = self.ports.iter().map(|port| port.group(&self.config)).collect();
        let size = |group: &Group| groups.iter().flatten().filter(|other| *other == group).count();
        let present = self.group.filter(|group| size(group) > 0);
        // The first of the largest.
        let largest = groups.iter().flatten().rev().max_by_key(|group| size(group)).copied();
        let alone = || {
            let stays = |port: &&LacpPort| port.alone().is_some() && port.alone() == self.group;
            let first = || self.ports.iter().find_map(LacpPort::alone);
            self.ports.iter().find(stays).and_then(LacpPort::alone).or_else(first)
        };
        let chosen = present.or(largest).or_else(alone);
        self.stand_by(&groups, chosen);
        for (port, group) in self.ports.iter_mut().zip(groups) {
            let own = group.or_else(|| port.alone()).filter(|_| port.has_link);
            let wanted = own.filter(|own| Some(*own) == chosen && !port.standby);
            if port.selected != wanted && (wanted.is_none() || port.mux == Mux::Detached) {
                port.selected = wanted;
            } else if port.selected != wanted {
                // It is detached from the other group first.
                port.selected = None;
            }
        }
        self.group = chosen;
    }

    /// Has the ports of the chosen group stand by that are beyond the limit of links.
    fn stand_by(&mut self, groups: &[Option<Group>], chosen: Option<Group>) {
        let config = &self.config;
        let is_in = |(port, group): &(&mut LacpPort, &Option<Group>)| {
            port.has_link && group.is_some() && **group == chosen
        };
        self.ports.iter_mut().for_each(|port| port.standby = false);
        let mut of_group: Vec<_> =
            self.ports.iter_mut().zip(groups).filter(is_in).map(|(port, _)| port).collect();
        of_group.sort_by_key(|port| (!port.is_heard(), port.rank(config)));
        let places = config.maximum.min(of_group.len());
        let (first, beyond) = of_group.split_at_mut(places);
        // Ports in use keep their places until the better ones are in use: nothing is lost meanwhile.
        let mut kept = first.iter().filter(|port| port.mux != Mux::Distributing).count();
        for port in beyond {
            port.standby = kept == 0 || port.mux < Mux::Collecting;
            kept -= usize::from(!port.standby);
        }
    }

    /// Brings all machines to rest, reports and sends.
    fn settle<P>(&mut self, now: Time, out: &mut impl Output<P>) {
        // Each round moves a port by a transition; two ways through all states are more than any input causes.
        for _ in 0..16 {
            self.select();
            let ready = !self.ports.iter().any(|port| port.waits(now));
            let moved = |port: &mut LacpPort| port.step_mux(ready, now);
            if self.ports.iter_mut().map(moved).filter(|&moved| moved).count() == 0 {
                break;
            }
        }
        for port in &mut self.ports {
            // It waits for others now, whose time is due later.
            port.wait_while = port.wait_while.filter(|&end| now < end);
            let is = (port.mux >= Mux::Collecting, port.mux == Mux::Distributing);
            if is != port.reported {
                port.reported = is;
                let (collecting, distributing) = is;
                let (bond, port) = (self.id, port.interface);
                out.event(Event::BondPort { bond, port, collecting, distributing });
            }
            port.detect_churn(now);
            port.schedule(&self.config, now);
            port.tell(&self.config, now, out);
        }
    }

    fn run<P>(&mut self, now: Time, out: &mut impl Output<P>) {
        for port in &mut self.ports {
            if port.current_while.is_some_and(|end| end <= now) {
                port.time_out(now);
            }
        }
        self.settle(now, out);
    }
}

/// LACP on all bonds.
#[derive(Default)]
pub(crate) struct Lacp {
    bonds: Vec<Bond>,
    /// Links of ports, of which some may belong to a bond later.
    down: Vec<InterfaceId>,
}

impl Lacp {
    /// Takes the bonds among some interfaces out; both know the links of all ports.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Self {
        let bonds = self.bonds.extract_if(.., |bond| is_in(bond.id)).collect();
        Self { bonds, down: self.down.clone() }
    }

    /// Adds other bonds.
    pub(crate) fn join(&mut self, other: Self) {
        self.bonds.extend(other.bonds);
    }

    /// Starts LACP on a bond, changes it, or ends it.
    pub(crate) fn configure<P>(
        &mut self,
        id: InterfaceId,
        config: Option<LacpConfig>,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let at = self.bonds.iter().position(|bond| bond.id == id);
        match (at, config) {
            (Some(at), None) => drop(self.bonds.swap_remove(at)),
            (None, None) => {}
            (Some(at), Some(config)) => self.bonds[at].configure(config),
            (None, Some(config)) => self.bonds.push(Bond::new(id, config)),
        }
        if let Some(bond) = self.bonds.iter_mut().find(|bond| bond.id == id) {
            for port in &mut bond.ports {
                port.set_link(!self.down.contains(&port.interface), now);
            }
            bond.settle(now, out);
        }
    }

    /// A port has a link, or has none.
    pub(crate) fn link<P>(
        &mut self,
        interface: InterfaceId,
        up: bool,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        self.down.retain(|&other| other != interface);
        if !up {
            self.down.push(interface);
        }
        for bond in &mut self.bonds {
            let port = bond.ports.iter_mut().find(|port| port.interface == interface);
            if let Some(port) = port {
                port.set_link(up, now);
                bond.settle(now, out);
            }
        }
    }

    /// Takes a frame of the slow protocols that came by this port of the bond.
    pub(crate) fn packet<P: Packet>(
        &mut self,
        packet: P,
        (bond, from): (InterfaceId, InterfaceId),
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let pdu = SlowPdu::parse(packet.bytes());
        let bond = self.bonds.iter_mut().find(|of| of.id == bond);
        if let Some(bond) = bond
            && let Some(port) = bond.ports.iter_mut().find(|port| port.interface == from)
        {
            match &pdu {
                Some(SlowPdu::Lacp(pdu)) => port.take(pdu, &bond.config, now),
                Some(SlowPdu::Marker(marker)) => port.answer(*marker, now, out),
                Some(SlowPdu::MarkerResponse | SlowPdu::Other) => {}
                None => port.counts.malformed += 1,
            }
            bond.settle(now, out);
        }
        match pdu {
            Some(_) => out.to_host(packet),
            None => out.drop(packet, DropReason::LacpMalformed),
        }
    }

    /// Runs what is due.
    pub(crate) fn run<P>(&mut self, now: Time, out: &mut impl Output<P>) {
        for bond in &mut self.bonds {
            if bond.ports.iter().filter_map(LacpPort::next_deadline).any(|due| due <= now) {
                bond.run(now, out);
            }
        }
    }

    /// Returns the time at which [`Self::run`] has work next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let ports = self.bonds.iter().flat_map(|bond| &bond.ports);
        ports.filter_map(LacpPort::next_deadline).min()
    }

    /// Returns the state of all bonds.
    pub(crate) fn list(&self) -> Vec<LacpInfo> {
        let info = |bond: &Bond| LacpInfo {
            bond: bond.id,
            ports: bond.ports.iter().map(|port| port.info(&bond.config)).collect(),
        };
        self.bonds.iter().map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::{L, LEFT, Net, Out, R, right, secs};

    const ONE: MacAddr = MacAddr([2, 0, 0, 0, 1, 1]);
    const TWO: MacAddr = MacAddr([2, 0, 0, 0, 2, 2]);

    fn bond() -> InterfaceId {
        InterfaceId::new(64).unwrap()
    }

    fn config(system: MacAddr) -> LacpConfig {
        let ports = vec![(LEFT, L), (right(), R)];
        LacpConfig {
            system,
            priority: 0x8000,
            key: 7,
            fast: true,
            passive: false,
            maximum: 64,
            ports,
        }
    }

    /// A system with a bond of two ports.
    struct System {
        lacp: Lacp,
        net: Net,
        /// Of each port: collecting, distributing.
        state: BTreeMap<InterfaceId, (bool, bool)>,
        /// Received frames that were dropped.
        drops: Vec<DropReason>,
    }

    impl System {
        fn new(config: LacpConfig) -> Self {
            let mut lacp = Lacp::default();
            let mut net = Net::default();
            lacp.configure(bond(), Some(config), Time::ZERO, &mut net);
            Self { lacp, net, state: BTreeMap::new(), drops: Vec::new() }
        }

        /// Takes what it sent, by port.
        fn take(&mut self) -> Vec<(InterfaceId, Vec<u8>)> {
            let mut frames = Vec::new();
            for out in std::mem::take(&mut self.net.outs) {
                match out {
                    Out::Originate(interface, frame) => frames.push((interface, frame)),
                    Out::Event(Event::BondPort { port, collecting, distributing, .. }) => {
                        assert!(collecting || !distributing);
                        self.state.insert(port, (collecting, distributing));
                    }
                    Out::Drop(reason) => self.drops.push(reason),
                    _ => {}
                }
            }
            frames
        }

        fn run(&mut self, now: Time) -> Vec<(InterfaceId, Vec<u8>)> {
            self.lacp.run(now, &mut self.net);
            self.take()
        }

        fn receive(&mut self, port: InterfaceId, frame: Vec<u8>, now: Time) {
            self.lacp.packet(frame, (bond(), port), now, &mut self.net);
        }

        fn link(&mut self, port: InterfaceId, up: bool, now: Time) {
            self.lacp.link(port, up, now, &mut self.net);
        }

        /// Left and right: `-` neither, `c` collecting, `d` distributing.
        fn uses(&mut self) -> String {
            let of = |port| match self.state.get(&port).copied().unwrap_or_default() {
                (_, true) => 'd',
                (true, _) => 'c',
                _ => '-',
            };
            [LEFT, right()].map(of).into_iter().collect()
        }

        fn info(&self) -> LacpInfo {
            self.lacp.list().pop().unwrap()
        }
    }

    /// Two systems, whose left ports are joined by a wire, and their right ones.
    struct Pair {
        one: System,
        two: System,
        now: Time,
        /// Ports whose wire loses everything.
        cut: Vec<InterfaceId>,
        /// Ports by which the first hears nothing.
        deaf: Vec<InterfaceId>,
        /// LACPDUs that the first sent.
        sent: usize,
    }

    impl Pair {
        fn new(one: LacpConfig, two: LacpConfig) -> Self {
            let (one, two) = (System::new(one), System::new(two));
            Self { one, two, now: Time::ZERO, cut: Vec::new(), deaf: Vec::new(), sent: 0 }
        }

        /// Lets time pass in steps of a tenth of a second.
        fn pass(&mut self, time: Duration) -> String {
            let end = self.now + time;
            while self.now < end {
                self.now += Duration::from_millis(100);
                let (from_one, from_two) = (self.one.run(self.now), self.two.run(self.now));
                self.sent += from_one.len();
                let passes = |(port, _): &(InterfaceId, Vec<u8>)| !self.cut.contains(port);
                for (port, frame) in from_one.into_iter().filter(passes) {
                    self.two.receive(port, frame, self.now);
                }
                let hears = |(port, _): &(InterfaceId, Vec<u8>)| !self.deaf.contains(port);
                for (port, frame) in from_two.into_iter().filter(passes).filter(hears) {
                    self.one.receive(port, frame, self.now);
                }
                for frames in [self.one.take(), self.two.take()] {
                    // Answers arrive with the next step's.
                    self.sent += frames.len();
                    for (port, frame) in frames.into_iter().filter(passes) {
                        let pdu = SlowPdu::parse(&frame);
                        let Some(SlowPdu::Lacp(pdu)) = pdu else { continue };
                        if pdu.actor.system == ONE {
                            self.two.receive(port, frame, self.now);
                        } else if !self.deaf.contains(&port) {
                            self.one.receive(port, frame, self.now);
                        }
                    }
                }
            }
            self.one.take();
            self.two.take();
            format!("{} {}", self.one.uses(), self.two.uses())
        }
    }

    #[test]
    fn two_systems_agree_on_both_links() {
        let mut pair = Pair::new(config(ONE), config(TWO));
        assert_eq!(pair.pass(secs(1)), "-- --", "ports are attached together");
        assert_eq!(pair.pass(secs(3)), "dd dd");
        let info = pair.one.info();
        for port in &info.ports {
            assert_eq!((port.receive, port.mux, port.selected), ("current", "distributing", true));
            let partner = port.partner.unwrap();
            assert_eq!((partner.system, partner.key.get()), (TWO, 7));
            assert_eq!(partner.port.get(), port.port.index() as u16 + 1);
            assert_eq!(port.actor.state, 0b0011_1111, "active, short, in sync, in use");
        }
        pair.sent = 0;
        pair.pass(secs(10));
        assert!((18..=22).contains(&pair.sent), "one a second and port: {}", pair.sent);
    }

    #[test]
    fn a_silent_partner_loses_the_link_within_three_seconds() {
        let mut pair = Pair::new(config(ONE), config(TWO));
        assert_eq!(pair.pass(secs(5)), "dd dd");
        pair.cut.push(LEFT);
        assert_eq!(pair.pass(secs(1)), "dd dd");
        assert_eq!(pair.pass(secs(3)), "-d -d");
        assert_eq!(pair.one.info().ports[0].receive, "expired");
        pair.pass(secs(3));
        assert_eq!(pair.one.info().ports[0].receive, "defaulted");
        pair.cut.clear();
        assert_eq!(pair.pass(secs(5)), "dd dd");
    }

    #[test]
    fn slow_partners_are_given_ninety_seconds() {
        let slow = |system| LacpConfig { fast: false, ..config(system) };
        let mut pair = Pair::new(slow(ONE), slow(TWO));
        assert_eq!(pair.pass(secs(40)), "dd dd");
        pair.sent = 0;
        pair.pass(secs(60));
        assert!((3..=5).contains(&pair.sent), "two a minute and port: {}", pair.sent);
        pair.cut.push(right());
        assert_eq!(pair.pass(secs(55)), "dd dd");
        assert_eq!(pair.pass(secs(40)), "d- d-");
    }

    #[test]
    fn a_lost_link_is_left_at_once_and_comes_back() {
        let mut pair = Pair::new(config(ONE), config(TWO));
        pair.pass(secs(5));
        let now = pair.now;
        pair.one.link(LEFT, false, now);
        pair.one.take();
        assert_eq!(pair.one.uses(), "-d");
        pair.two.link(LEFT, false, now);
        assert_eq!(pair.pass(secs(10)), "-d -d");
        let now = pair.now;
        pair.one.link(LEFT, true, now);
        pair.two.link(LEFT, true, now);
        assert_eq!(pair.pass(secs(5)), "dd dd");
    }

    #[test]
    fn one_side_may_be_passive_and_two_passive_ones_use_one_link() {
        let passive = |system| LacpConfig { passive: true, ..config(system) };
        let mut pair = Pair::new(config(ONE), passive(TWO));
        assert_eq!(pair.pass(secs(6)), "dd dd");
        let mut pair = Pair::new(passive(ONE), passive(TWO));
        assert_eq!(pair.pass(secs(10)), "d- d-");
        assert_eq!(pair.sent, 0);
    }

    #[test]
    fn a_bond_without_a_partner_uses_its_first_link_alone() {
        let mut pair = Pair::new(config(ONE), config(TWO));
        pair.cut = vec![LEFT, right()];
        assert_eq!(pair.pass(secs(3)), "-- --");
        assert_eq!(pair.pass(secs(4)), "d- d-");
        let now = pair.now;
        pair.one.link(LEFT, false, now);
        assert_eq!(pair.pass(secs(3)), "-d d-", "the next one");
        let now = pair.now;
        pair.one.link(LEFT, true, now);
        assert_eq!(pair.pass(secs(10)), "-d d-", "it stays");
        // A partner counts more than none.
        pair.cut = vec![right()];
        assert_eq!(pair.pass(secs(6)), "d- d-");
        pair.cut.clear();
        assert_eq!(pair.pass(secs(6)), "dd dd");
    }

    #[test]
    fn links_to_two_systems_are_not_used_together() {
        let mut one = System::new(config(ONE));
        let mut others = [System::new(config(TWO)), System::new(config(MacAddr([2; 6])))];
        let mut now = Time::ZERO;
        for _ in 0..80 {
            now += Duration::from_millis(100);
            for (port, frame) in one.run(now) {
                let other = &mut others[port.index()];
                other.receive(port, frame, now);
            }
            for (port, other) in [LEFT, right()].into_iter().zip(&mut others) {
                for (_, frame) in other.run(now).into_iter().filter(|(from, _)| *from == port) {
                    one.receive(port, frame, now);
                }
            }
        }
        one.take();
        assert_eq!(one.uses(), "d-");
        assert!(one.info().ports.iter().all(|port| port.receive == "current"));
    }

    fn limited(system: MacAddr, maximum: usize) -> LacpConfig {
        LacpConfig { maximum, ..config(system) }
    }

    #[test]
    fn ports_beyond_the_limit_stand_by_and_take_the_place_of_lost_ones() {
        // Each side may have the limit; the one with the lower identifier numbers the ports.
        for (one, two) in [(1, 64), (64, 1), (1, 1)] {
            let mut pair = Pair::new(limited(ONE, one), limited(TWO, two));
            assert_eq!(pair.pass(secs(5)), "d- d-", "{one} {two}");
            let standby = |system: &System| {
                let of = |port: &LacpPortInfo| (port.selected, port.standby);
                system.info().ports.iter().map(of).collect::<Vec<_>>()
            };
            if one == 1 {
                assert_eq!(standby(&pair.one), [(true, false), (false, true)]);
            }
            pair.cut.push(LEFT);
            pair.pass(secs(15));
            assert_eq!(pair.pass(secs(1)), "-d -d", "{one} {two}");
            pair.cut.clear();
            assert_eq!(pair.pass(secs(8)), "d- d-", "the first port returns: {one} {two}");
        }
    }

    #[test]
    fn a_port_that_returns_takes_its_place_when_it_is_in_use() {
        for (one, two) in [(1, 64), (64, 1), (1, 1)] {
            let mut pair = Pair::new(limited(ONE, one), limited(TWO, two));
            let set = |pair: &mut Pair, up| {
                let now = pair.now;
                pair.one.link(LEFT, up, now);
                pair.two.link(LEFT, up, now);
            };
            set(&mut pair, false);
            assert_eq!(pair.pass(secs(5)), "-d -d", "{one} {two}");
            let step = |pair: &mut Pair| {
                let uses = pair.pass(Duration::from_millis(100));
                assert!(uses.split(' ').all(|side| side.contains('d')), "{uses}: {one} {two}");
                uses
            };
            // Without LACPDUs, or with a link that comes and goes, it takes no place.
            pair.cut.push(LEFT);
            for up in [true, false, true, false] {
                set(&mut pair, up);
                (0..20).for_each(|_| assert_eq!(step(&mut pair), "-d -d"));
            }
            pair.cut.clear();
            for up in [true, false] {
                set(&mut pair, up);
                (0..10).for_each(|_| assert_eq!(step(&mut pair), "-d -d"));
            }
            set(&mut pair, true);
            let last = (0..60).map(|_| step(&mut pair)).last();
            assert_eq!(last.as_deref(), Some("d- d-"), "{one} {two}");
        }
    }

    #[test]
    fn a_port_whose_lacpdus_pass_one_way_only_is_replaced() {
        for (one, two) in [(1, 64), (64, 1), (1, 1)] {
            let mut pair = Pair::new(limited(ONE, one), limited(TWO, two));
            assert_eq!(pair.pass(secs(5)), "d- d-");
            pair.deaf.push(LEFT);
            assert_eq!(pair.pass(secs(7)), "-d -d", "{one} {two}");
            assert_eq!(pair.pass(secs(20)), "-d -d", "{one} {two}");
        }
    }

    #[test]
    fn the_system_with_the_lower_identifier_says_which_ports_stand_by() {
        // Crossed wires: the left port of each is joined to the right one of the other.
        let uses = |first: MacAddr, second: MacAddr| {
            let mut one = System::new(limited(first, 1));
            let mut two = System::new(limited(second, 1));
            let other = |port| if port == LEFT { right() } else { LEFT };
            let mut now = Time::ZERO;
            for _ in 0..80 {
                now += Duration::from_millis(100);
                for (port, frame) in one.run(now) {
                    two.receive(other(port), frame, now);
                }
                for (port, frame) in two.run(now) {
                    one.receive(other(port), frame, now);
                }
            }
            one.take();
            two.take();
            format!("{} {}", one.uses(), two.uses())
        };
        assert_eq!(uses(ONE, TWO), "d- -d");
        assert_eq!(uses(TWO, ONE), "-d d-");
    }

    #[test]
    fn a_port_that_is_out_of_sync_for_a_minute_churns() {
        let churns = |system: &System, port: usize| system.info().ports[port].churns;
        let mut one = System::new(config(ONE));
        let mut now = Time::ZERO;
        let mut pass = |one: &mut System, seconds: u64, sync: bool| {
            for _ in 0..seconds * 10 {
                now += Duration::from_millis(100);
                one.run(now);
                let more = if sync { state::SYNCHRONIZATION } else { 0 };
                let state = state::ACTIVITY | state::AGGREGATION | more;
                let actor = Port { system: TWO, port: 1.into(), state, ..Port::default() };
                let partner = one.info().ports[0].actor;
                let pdu = Lacpdu { actor, partner, collector_delay: 0 };
                one.receive(LEFT, pdu.frame(TWO), now);
            }
        };
        pass(&mut one, 59, false);
        assert_eq!(churns(&one, 0), [false, false]);
        pass(&mut one, 2, false);
        assert_eq!(churns(&one, 0), [false, true], "the partner does not attach its port");
        // Nobody is at the other port, which is not used beside one with a partner.
        assert_eq!(churns(&one, 1), [true, false]);
        pass(&mut one, 1, true);
        assert_eq!(churns(&one, 0), [false, false]);
        one.link(right(), false, secs(62));
        assert_eq!(churns(&one, 1), [false, false]);
        let mut pair = Pair::new(limited(ONE, 1), limited(TWO, 1));
        pair.pass(secs(70));
        assert_eq!(churns(&pair.one, 1), [false, false], "it stands by");
    }

    #[test]
    fn lacpdus_of_version_2_are_read_with_all_that_follows() {
        let mut one = System::new(config(ONE));
        let mut now = Time::ZERO;
        for _ in 0..50 {
            now += Duration::from_millis(100);
            one.run(now);
            let state =
                state::ACTIVITY | state::AGGREGATION | state::SYNCHRONIZATION | state::COLLECTING;
            let actor = Port { system: TWO, port: 1.into(), state, ..Port::default() };
            let partner = one.info().ports[0].actor;
            let mut frame = Lacpdu { actor, partner, collector_delay: 0 }.frame(TWO);
            // Port Algorithm, Port Conversation ID Digest, a Mask, an unknown TLV with a length beyond the frame.
            frame[15] = 2;
            frame.truncate(72);
            frame.extend([4, 6, 0, 0x80, 0xc2, 1, 5, 20]);
            frame.extend([7; 18]);
            frame.extend([6, 131]);
            frame.extend([0xff; 129]);
            frame.extend([0x77, 255, 1]);
            one.receive(LEFT, frame, now);
        }
        one.take();
        assert_eq!((one.uses().as_str(), one.info().ports[0].malformed), ("d-", 0));
    }

    #[test]
    fn a_loop_is_not_used() {
        let mut one = System::new(config(ONE));
        let mut now = Time::ZERO;
        for _ in 0..100 {
            now += Duration::from_millis(100);
            for (port, frame) in one.run(now) {
                let back = if port == LEFT { right() } else { LEFT };
                one.receive(back, frame, now);
            }
        }
        one.take();
        assert_eq!(one.uses(), "--");
        assert!(one.info().ports.iter().all(|port| port.looped && !port.selected));
    }

    #[test]
    fn a_partner_that_does_not_know_the_port_is_not_in_sync() {
        let uses = |knows: bool| {
            let mut one = System::new(config(ONE));
            let mut now = Time::ZERO;
            for _ in 0..50 {
                now += Duration::from_millis(100);
                one.run(now);
                let state = state::ACTIVITY
                    | state::AGGREGATION
                    | state::SYNCHRONIZATION
                    | state::COLLECTING;
                let actor = Port { system: TWO, port: 1.into(), state, ..Port::default() };
                let mut partner = one.info().ports[0].actor;
                if !knows {
                    partner.key = 8.into();
                }
                let pdu = Lacpdu { actor, partner, collector_delay: 0 };
                one.receive(LEFT, pdu.frame(TWO), now);
            }
            one.take();
            one.uses()
        };
        assert_eq!((uses(true), uses(false)), ("d-".to_owned(), "--".to_owned()));
    }

    #[test]
    fn malformed_and_foreign_frames_change_nothing() {
        let mut pair = Pair::new(config(ONE), config(TWO));
        pair.pass(secs(5));
        let now = pair.now;
        let good = Lacpdu::default().frame(TWO);
        for len in [14, 60, 123] {
            pair.one.receive(LEFT, good[..len].to_vec(), now);
        }
        // A port of no bond, and a bond that there is not.
        pair.one.receive(InterfaceId::new(9).unwrap(), good.clone(), now);
        let nobody = InterfaceId::new(65).unwrap();
        pair.one.lacp.packet(good, (nobody, LEFT), now, &mut pair.one.net);
        assert_eq!(pair.pass(Duration::from_millis(100)), "dd dd");
        assert_eq!(pair.one.drops, [DropReason::LacpMalformed; 3]);
        assert_eq!(pair.one.info().ports[0].malformed, 3);
        assert!(pair.one.net.returned >= 5, "each packet is returned");
    }

    #[test]
    fn markers_are_answered_ten_a_second() {
        let mut one = System::new(config(ONE));
        one.run(secs(1));
        let marker = Marker { port: 3.into(), system: TWO, transaction: 5.into() };
        let mut frame = marker.response(TWO);
        frame[16] = 1;
        (0..20).for_each(|_| one.receive(LEFT, frame.clone(), secs(1)));
        let answers = one.take();
        let responses = answers.iter().filter(|(_, frame)| frame[14] == 2).count();
        assert_eq!((responses, &answers[0].1), (10, &marker.response(L)));
        one.receive(LEFT, frame, secs(2));
        assert_eq!(one.take().iter().filter(|(_, frame)| frame[14] == 2).count(), 1);
        assert_eq!(one.info().ports[0].markers, 21);
    }

    #[test]
    fn no_more_than_three_lacpdus_leave_a_port_in_a_second() {
        let mut one = System::new(config(ONE));
        one.run(secs(10));
        for number in 0..20u16 {
            let actor = Port { key: number.into(), system: TWO, ..Port::default() };
            let pdu = Lacpdu { actor, ..Lacpdu::default() };
            one.receive(LEFT, pdu.frame(TWO), secs(10));
        }
        let sent = one.take().iter().filter(|(port, _)| *port == LEFT).count();
        assert!(sent <= 3, "{sent}");
        assert_eq!(one.run(secs(11)).iter().filter(|(port, _)| *port == LEFT).count(), 1);
    }

    #[test]
    fn settings_change_while_links_are_in_use() {
        let mut pair = Pair::new(config(ONE), config(TWO));
        pair.pass(secs(5));
        let slow = LacpConfig { fast: false, ..config(ONE) };
        let now = pair.now;
        pair.one.lacp.configure(bond(), Some(slow), now, &mut pair.one.net);
        assert_eq!(pair.pass(secs(1)), "dd dd");
        assert_eq!(pair.two.info().ports[0].partner.unwrap().state & state::SHORT_TIMEOUT, 0);
        let ports = vec![(right(), R)];
        let now = pair.now;
        let less = LacpConfig { ports, ..config(ONE) };
        pair.one.lacp.configure(bond(), Some(less), now, &mut pair.one.net);
        pair.pass(secs(5));
        assert_eq!(pair.two.uses(), "-d");
        let now = pair.now;
        pair.one.lacp.configure(bond(), None, now, &mut pair.one.net);
        assert!(pair.one.lacp.list().is_empty() && pair.one.lacp.next_deadline().is_none());
    }
}
