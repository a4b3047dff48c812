//! Accelerated interfaces: the packets that their XDP programs take from the kernel.
//!
//! A program takes packets whose route leads over accelerated interfaces, by the boundaries of the FIB
//! (`boundaries.rs`), as long as the kernel forwards itself: its sysctls are looked at from time to time, and its rules are
//! followed (`kernel_rules.rs`). It begins when the kernel's routes and rules have been read for the first time, and ends
//! before the forwarders do, which send what is on its way.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::ops::Bound;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use api::report;
use control::config::Config;
use control::rib::{Rib, Treatment};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::port::PortId;
use dpdk::{Errno, Outcome, Prefixes, Taken};
use ipnet::IpNet;

use super::super::boundaries::{Boundaries, Change, Treatments, Walk, last_address};
use super::super::lease::Keeper;
use super::super::ports::OpenPort;
use super::Owner;
use super::accelerated_bonds::{Bonds, PortNow};
use super::accelerated_vlans::{VlanNow, VlansNow, taken};
use super::in_kernel::{self, Ways};
use super::kernel_flows::FollowedFlows;
use super::kernel_rules::{KernelRules, Verdict};
use super::state::Devices;
use super::turn::Turn;

/// Ticks between two looks at settings of which there was no notification.
pub(super) const LOOK_TICKS: u32 = 20;

/// Prefixes that are walked to before another look at the time.
const PORTION: usize = 64;

/// The longest wait at the end for packets that the programs have taken.
const DRAIN: Duration = Duration::from_millis(500);

/// State of all accelerated interfaces.
#[derive(Default)]
pub(super) struct Accelerated {
    /// The maps of the programs; `None`: no interface is accelerated, or the FIB is not complete yet.
    prefixes: Option<Arc<Prefixes>>,
    boundaries: Boundaries,
    /// The walk through the FIB by which the maps are filled, and its beginning; nothing is taken before its end.
    walk: Option<(Walk, Instant)>,
    /// The ways out of programs that forward themselves, which need no boundaries; `None`: they do not.
    ways: Option<Ways>,
    /// Changed prefixes of the FIB that the maps do not have yet.
    behind: BTreeSet<IpNet>,
    /// Boundaries that the kernel refused; their packets may go the wrong way, so nothing is taken while there are any.
    refused: BTreeSet<IpNet>,
    /// The packets that are taken, by port.
    interfaces: BTreeMap<PortId, Now>,
    /// The ports of bonds.
    pub(super) bonds: Bonds,
    /// The kernel's rules; `None` before they are read for the first time.
    rules: Option<KernelRules>,
    /// The interfaces and VLAN devices whose rules are read.
    ruled: Vec<String>,
    /// The reasons for which the kernel's rules let nothing be accelerated; `None` before they are read.
    obstacles: Option<Vec<String>>,
    /// Destinations whose packets stay with the kernel by its rules.
    stay: BTreeSet<IpNet>,
    /// The kernel's flows, where nothing else is taken.
    flows: Option<FollowedFlows>,
    /// The reason why they cannot be followed.
    no_flows: Option<String>,
    /// Keeps the programs taking packets.
    keeper: Option<Keeper>,
    /// Set at the end: nothing is taken any more.
    ended: bool,
}

/// The packets of an interface and its VLANs that are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Now {
    /// The number of the program.
    program: u64,
    own: Families,
    vlans: VlansNow,
}

impl Now {
    /// Returns the kernel's numbers of the interface and its VLAN devices.
    fn devices(&self) -> impl Iterator<Item = u32> {
        let families = self.vlans.values().map(|vlan| &vlan.families);
        std::iter::once(&self.own).chain(families).map(|of| of.taken.device)
    }
}

/// The packets of an interface or VLAN that are taken, and the reasons why others are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Families {
    pub(super) taken: Taken,
    pub(super) ip4: Option<String>,
    pub(super) ip6: Option<String>,
}

/// Reads a number of the kernel's settings in the thread's network namespace.
fn sysctl(path: &str) -> Option<u32> {
    fs::read_to_string(format!("/proc/sys/net/{path}")).ok()?.trim().parse().ok()
}

/// What a look at the kernel's settings finds that is the same for all interfaces.
pub(super) struct Look {
    /// The least MTU of interfaces and VLAN devices.
    longest: u16,
    /// The reason why all packets are the kernel's.
    reason: Option<String>,
    ip6_forwarding: bool,
    reverse_path: Option<u32>,
    /// The kernel's numbers of interfaces and VLAN devices.
    pub(super) devices: HashMap<InterfaceId, u32>,
}

/// The reason before the kernel's routes have been read.
const UNREAD: &str = "the kernel's routes are being read";

/// The FIB, with destinations whose packets are the kernel's.
struct Fib<'a> {
    rib: &'a Rib,
    stay: &'a BTreeSet<IpNet>,
}

impl Fib<'_> {
    /// Returns true if all packets to this prefix stay with the kernel.
    fn stays(&self, prefix: IpNet) -> bool {
        self.stay.iter().any(|stay| stay.contains(&prefix))
    }
}

impl Treatments for Fib<'_> {
    fn of(&self, prefix: IpNet) -> Option<bool> {
        let own = self.rib.treatment(VrfId::DEFAULT, prefix).map(|of| of == Treatment::Forwarded);
        match self.stays(prefix) {
            true => (own.is_some() || self.stay.contains(&prefix)).then_some(false),
            false => own,
        }
    }

    fn next(&self, prefix: IpNet, within: bool) -> Option<IpNet> {
        let place = if within { prefix } else { last_address(prefix) };
        let after = (Bound::Excluded(place), Bound::Unbounded);
        let staying = self.stay.range(after).next().copied();
        let own = self.rib.prefix_after(VrfId::DEFAULT, place);
        own.into_iter().chain(staying).min()
    }
}

impl Accelerated {
    /// Returns true if changes of the FIB are not in the programs' maps yet.
    pub(super) fn is_behind(&self, rib: &Rib) -> bool {
        let has_changes = || !self.behind.is_empty() || rib.has_installed(VrfId::DEFAULT);
        self.prefixes.is_some() && (self.walk.is_some() || has_changes())
    }

    /// Begins to make the maps from the FIB, and follows it from now on. Programs that forward themselves have the FIB.
    fn begin(&mut self, rib: &mut Rib, in_kernel: bool) -> Result<(), Errno> {
        let prefixes = Prefixes::shared()?;
        if !in_kernel {
            rib.follow_installed(VrfId::DEFAULT);
            self.walk = Some((Walk::default(), Instant::now()));
            self.prefixes = Some(prefixes);
            return Ok(());
        }
        self.ways = Some(Ways::new(&prefixes)?);
        self.prefixes = Some(prefixes);
        let stay = self.stay.clone();
        self.treat_anew(&stay, rib);
        self.keep()
    }

    /// Walks on through the FIB as long as `has_time`. Returns true when all of it, with its changes meanwhile, is in the
    /// maps; from then on packets may be taken.
    fn walk_on(&mut self, rib: &mut Rib, has_time: &impl Fn() -> bool) -> bool {
        let Self { prefixes: Some(prefixes), walk: Some((walk, begun)), .. } = self else {
            return false;
        };
        while has_time() {
            let start = walk.last().map_or(Bound::Unbounded, Bound::Excluded);
            let all = rib.treatments_from(VrfId::DEFAULT, start);
            let mut walked = 0;
            for (prefix, of) in all.take(PORTION) {
                let change = self.boundaries.add(walk, prefix, of == Treatment::Forwarded);
                change.into_iter().for_each(|change| make(prefixes, change, &mut self.refused));
                walked += 1;
            }
            if walked < PORTION {
                let took = begun.elapsed().as_millis();
                self.walk = None;
                let stay = self.stay.clone();
                self.treat_anew(&stay, rib);
                tracing::info!(
                    "accelerate: {} boundaries of the FIB, in {took} ms",
                    self.boundaries.len()
                );
                return true;
            }
        }
        false
    }

    /// Keeps the programs taking packets.
    fn keep(&mut self) -> Result<(), Errno> {
        let Some(prefixes) = &self.prefixes else { return Ok(()) };
        let keeper = Keeper::start(prefixes.lease().clone());
        let keeper = keeper.map_err(|error| Errno::try_from(error).unwrap_or(Errno::EAGAIN))?;
        self.keeper = Some(keeper);
        Ok(())
    }

    /// Brings changes of the FIB into the maps, as long as `has_time`.
    pub(super) fn follow(&mut self, rib: &mut Rib, has_time: impl Fn() -> bool) {
        let (Some(prefixes), None) = (&self.prefixes, &self.walk) else { return };
        self.behind.extend(rib.drain_installed(VrfId::DEFAULT));
        let fib = Fib { rib, stay: &self.stay };
        while has_time()
            && let Some(prefix) = self.behind.pop_first()
        {
            for change in self.boundaries.follow(prefix, &fib, &self.behind) {
                make(prefixes, change, &mut self.refused);
            }
        }
    }

    /// Returns true if the kernel's rules have changed.
    pub(super) fn has_news(&self) -> bool {
        self.rules.as_ref().is_some_and(KernelRules::has_news)
    }

    /// Reads the kernel's rules again, for another configuration. Until then all packets are the kernel's.
    pub(super) fn read_rules_anew(&mut self) {
        (self.rules, self.obstacles) = (None, None);
    }

    /// Takes up a change of the kernel's rules. The destinations that stay with the kernel are in the maps before this
    /// returns; those that no longer do follow like changes of routes.
    fn follow_rules(&mut self, config: &Config, rib: &mut Rib) {
        let Some(Verdict { obstacles, stay }) =
            self.rules.as_ref().and_then(|rules| rules.news(config))
        else {
            return;
        };
        let known = self.obstacles.take().unwrap_or_default();
        for obstacle in obstacles.iter().filter(|one| !known.contains(one)) {
            tracing::warn!("accelerate: all packets stay with the kernel: {obstacle}");
        }
        self.obstacles = Some(obstacles);
        let changed: BTreeSet<IpNet> = self.stay.symmetric_difference(&stay).copied().collect();
        self.stay = stay;
        for prefix in &changed {
            let now =
                if self.stay.contains(prefix) { "stay with the kernel" } else { "are accelerated" };
            tracing::info!("accelerate: packets to {prefix} {now}");
        }
        self.treat_anew(&changed, rib);
    }

    /// Follows the kernel's flows by these interfaces, once there are maps of prefixes.
    fn follow_flows<'a>(
        &mut self,
        interfaces: impl Iterator<Item = (&'a str, &'a dpdk::Acceleration)>,
    ) {
        let Some(prefixes) = &self.prefixes else { return };
        if self.flows.is_none() {
            let begun = FollowedFlows::begin(prefixes.clone());
            let failed = begun.as_ref().err().cloned();
            if let (Some(error), None) = (&failed, &self.no_flows) {
                tracing::error!("accelerate: all packets stay with the kernel: {error}");
            }
            (self.flows, self.no_flows) = (begun.ok(), failed);
        }
        if let Some(flows) = &mut self.flows {
            flows.confirm_by(interfaces);
        }
    }

    /// Brings these prefixes, and all within them, into the maps by their present treatment.
    fn treat_anew(&mut self, changed: &BTreeSet<IpNet>, rib: &mut Rib) {
        if let (Some(ways), Some(prefixes)) = (&self.ways, &self.prefixes) {
            return ways.stay(prefixes, (changed, &self.stay), &mut self.refused);
        }
        for prefix in changed {
            self.behind.insert(*prefix);
            self.behind.extend(within(rib, *prefix));
        }
        self.follow(rib, || true);
    }
}

/// Returns the prefixes of the FIB within this one.
fn within(rib: &Rib, prefix: IpNet) -> impl Iterator<Item = IpNet> {
    let next = move |&after: &IpNet| rib.prefix_after(VrfId::DEFAULT, after);
    let inside = move |inner: &IpNet| prefix.contains(inner);
    std::iter::successors(rib.prefix_after(VrfId::DEFAULT, prefix), next).take_while(inside)
}

/// Makes a change in the kernel's maps.
fn make(prefixes: &Prefixes, change: Change, refused: &mut BTreeSet<IpNet>) {
    let (net, result) = match change {
        Change::Set(net, forwards) => (net, prefixes.set(net.addr(), net.prefix_len(), forwards)),
        Change::Remove(net) => (net, prefixes.remove(net.addr(), net.prefix_len())),
    };
    match result {
        Ok(()) => _ = refused.remove(&net),
        Err(Errno::ENOENT) if matches!(change, Change::Remove(_)) => _ = refused.remove(&net),
        Err(errno) => {
            if refused.is_empty() {
                tracing::error!(
                    "accelerate: {net}: the XDP programs have no room for it: {errno}; all packets stay with the kernel"
                );
            }
            refused.insert(net);
        }
    }
}

/// Returns the ports whose interfaces are accelerated.
fn accelerated(devices: &Devices) -> impl Iterator<Item = (&OpenPort, &dpdk::Acceleration)> {
    devices.ports.iter().filter_map(|open| Some((open, open.port.acceleration()?)))
}

/// Returns the packets to be taken of an interface or VLAN device with this name and number. One whose settings cannot be
/// read forwards nothing.
pub(super) fn families(name: &str, id: InterfaceId, mac: [u8; 6], look: &Look) -> Families {
    let off = |on: bool, sysctl: String| (!on).then(|| format!("{sysctl} is 0"));
    let strict = || {
        // The kernel takes the greater one.
        let reverse_path = look.reverse_path.max(sysctl(&format!("ipv4/conf/{name}/rp_filter")));
        (reverse_path.unwrap_or(1) == 1).then(|| {
            "rp_filter is strict; make it loose: sysctl net.ipv4.conf.all.rp_filter=2".to_owned()
        })
    };
    let ip4_forwarding = || sysctl(&format!("ipv4/conf/{name}/forwarding")) == Some(1);
    let reason = &look.reason;
    let ip4 = reason
        .clone()
        .or_else(|| off(ip4_forwarding(), format!("net.ipv4.conf.{name}.forwarding")))
        .or_else(strict);
    let ip6_sysctl = || "net.ipv6.conf.all.forwarding".to_owned();
    let ip6 = reason.clone().or_else(|| off(look.ip6_forwarding, ip6_sysctl()));
    let (four, six) = (ip4.is_none(), ip6.is_none());
    let (longest, way) = (look.longest, id.index() as u16);
    // No packet is received by a device with number 0, and no flow.
    let device = look.devices.get(&id).copied().unwrap_or_default();
    let taken = Taken { mac, longest, ip4: four, ip6: six, partial_checksums: false, way, device };
    Families { taken, ip4, ip6 }
}

/// Logs the families of an interface whose treatment has changed.
fn say_changes(kind: &str, name: &str, before: Option<&Families>, now: &Families) {
    for (family, before, now) in
        [("IPv4", before.map(|of| &of.ip4), &now.ip4), ("IPv6", before.map(|of| &of.ip6), &now.ip6)]
    {
        match now {
            _ if before == Some(now) => {}
            None => tracing::info!("{kind} \"{name}\": {family} is accelerated"),
            Some(why) => {
                tracing::warn!("{kind} \"{name}\": {family} stays with the kernel: {why}");
            }
        }
    }
}

/// Returns the report about both families of an interface.
fn reported(of: &Families) -> (report::AcceleratedFamily, report::AcceleratedFamily) {
    let family = |accelerated, reason: &Option<String>| report::AcceleratedFamily {
        accelerated,
        reason: reason.clone(),
    };
    (family(of.taken.ip4, &of.ip4), family(of.taken.ip6, &of.ip6))
}

/// Returns the report about an interface before the kernel's routes have been read.
fn unread() -> (report::AcceleratedFamily, report::AcceleratedFamily) {
    let why = Some(UNREAD.to_owned());
    reported(&Families { ip4: why.clone(), ip6: why, ..Families::default() })
}

impl Owner {
    /// Begins when the FIB is complete, and follows the kernel's settings.
    pub(super) fn look_at_accelerated(&mut self) {
        if self.accelerated.ended {
            return;
        }
        let longest = accelerated(&self.devices).map(|(open, _)| self.mtu_of(open)).min();
        let Some(longest) = longest else { return };
        let longest = self.least_vlan_mtu().map_or(longest, |mtu| mtu.min(longest));
        self.follow_bonds();
        let ports = accelerated(&self.devices).map(|(open, _)| open.name.clone());
        let on_them = self.accelerated_bond_ports().chain(self.accelerated_vlan_names());
        let names: Vec<String> = ports.chain(on_them).collect();
        if names != self.accelerated.ruled {
            self.accelerated.read_rules_anew();
        }
        if self.accelerated.rules.is_none() {
            match KernelRules::start(&names, &self.configurations.current.acceleration) {
                Ok(rules) => {
                    (self.accelerated.rules, self.accelerated.ruled) = (Some(rules), names);
                }
                Err(error) => {
                    tracing::error!("accelerate: {error}; all packets stay with the kernel")
                }
            }
        }
        self.accelerated.follow_rules(&self.configurations.current, &mut self.routing.rib);
        // Rules are read beside the routes, which may be a million.
        if !self.serving.ready {
            return;
        }
        if self.accelerated.prefixes.is_none() {
            let in_kernel = self.configurations.current.acceleration.in_kernel;
            let begun = self.accelerated.begin(&mut self.routing.rib, in_kernel);
            self.end_without(begun, "no maps of the XDP programs");
        }
        if let Some(keeper) = &mut self.accelerated.keeper {
            keeper.owner_is_there();
            // Programs that forward themselves need no forwarder.
            let needs_them = self.accelerated.ways.is_none();
            keeper.watch(self.forwarding.ledger.watched().filter(|_| needs_them).collect());
        }
        if let Some(mut ways) = self.accelerated.ways.take() {
            let ports: Vec<_> = accelerated(&self.devices)
                .map(|(open, _)| (open, self.mtu_of(open), self.vlan_ways(open.id)))
                .collect();
            ways.follow(&ports);
            self.accelerated.ways = Some(ways);
        }
        if self.configurations.current.acceleration.flows {
            let interfaces = accelerated(&self.devices).map(|(open, of)| (&*open.name, of));
            self.accelerated.follow_flows(interfaces);
        }
        // After the maps: what they have no room for is a reason to take nothing.
        let look = self.look(longest);
        let wanted: Vec<_> = accelerated(&self.devices)
            .map(|(open, acceleration)| (open.id, self.wanted(open, acceleration, &look)))
            .collect();
        if let Some(flows) = &mut self.accelerated.flows {
            flows.doubt_others(wanted.iter().flat_map(|(_, now)| now.devices()).collect());
        }
        self.accelerated.interfaces.retain(|id, _| wanted.iter().any(|(of, _)| of == id));
        for (id, now) in wanted {
            self.take(id, now);
        }
    }

    /// Leaves all packets to the kernel for good if something that they need is not to be had.
    fn end_without(&mut self, result: Result<(), Errno>, missing: &str) {
        if let Err(errno) = result {
            tracing::error!("accelerate: {missing}: {errno}; all packets stay with the kernel");
            self.accelerated.ended = true;
        }
    }

    fn mtu_of(&self, open: &OpenPort) -> u16 {
        self.devices.links[open.id.index()].mtu(open.port.mtu())
    }

    /// Looks at what is the same for all interfaces.
    fn look(&self, longest: u16) -> Look {
        let of = &self.accelerated;
        let obstacle = match &of.obstacles {
            None => Some("the kernel's rules are being read".to_owned()),
            Some(obstacles) => obstacles.first().cloned(),
        };
        let unread = || of.keeper.is_none().then(|| UNREAD.to_owned());
        let full = || {
            (!of.refused.is_empty())
                .then(|| "the XDP programs have no room for the routes".to_owned())
        };
        let missing = || of.ways.as_ref().and_then(|_| in_kernel::missing(&self.routing.rib));
        Look {
            longest,
            reason: obstacle
                .or_else(unread)
                .or_else(full)
                .or_else(missing)
                .or_else(|| of.no_flows.clone()),
            ip6_forwarding: sysctl("ipv6/conf/all/forwarding").is_some_and(|on| on != 0),
            reverse_path: sysctl("ipv4/conf/all/rp_filter"),
            devices: self.routing.sources.device_numbers(),
        }
    }

    /// Returns the packets that an interface and its VLANs are to take.
    fn wanted(&self, open: &OpenPort, acceleration: &dpdk::Acceleration, look: &Look) -> Now {
        let (program, mac) = (acceleration.number(), open.port.mac());
        let mut own = families(&open.name, open.id.into(), mac, look);
        own.taken.partial_checksums = open.port.partial_checksums();
        own.taken.device = acceleration.interface();
        Now { program, own, vlans: self.wanted_vlans(open.id, mac, look) }
    }

    /// Has an interface take other packets than before.
    fn take(&mut self, id: PortId, now: Now) {
        let Some(open) = self.devices.ports.get(id) else { return };
        let Some(acceleration) = open.port.acceleration() else { return };
        if self.accelerated.interfaces.get(&id) == Some(&now) {
            return;
        }
        let vlans = taken(&now.vlans);
        let result = acceleration.take(&now.own.taken).and(acceleration.take_vlans(&vlans));
        if let Err(errno) = result {
            tracing::error!("port \"{}\": its XDP program: {errno}", open.name);
            return;
        }
        let name = open.name.clone();
        let before = self.accelerated.interfaces.insert(id, now.clone());
        say_changes("port", &name, before.as_ref().map(|of| &of.own), &now.own);
        let before = before.unwrap_or_default();
        for (id, vlan) in &now.vlans {
            let before = before.vlans.get(id).map(|of| &of.families);
            say_changes("VLAN device", &vlan.name, before, &vlan.families);
        }
        for vlan in
            before.vlans.iter().filter(|(id, _)| !now.vlans.contains_key(id)).map(|(_, of)| of)
        {
            tracing::info!("VLAN device \"{}\" is not accelerated any more", vlan.name);
        }
    }

    /// Leaves all packets to the kernel, and waits until forwarders and the slow path have dealt with those that were
    /// taken. To be called while they run.
    pub(super) fn leave_to_kernel(&mut self) {
        self.accelerated.ended = true;
        let ports: Vec<_> = accelerated(&self.devices).collect();
        if ports.is_empty() {
            return;
        }
        for (open, acceleration) in &ports {
            let nothing = (Taken::default(), BTreeMap::new());
            let result = acceleration.take(&nothing.0).and(acceleration.take_vlans(&nothing.1));
            if let Err(errno) = result {
                tracing::error!("port \"{}\": its XDP program: {errno}", open.name);
            }
        }
        self.accelerated.keeper = None;
        if let Some(ways) = &self.accelerated.ways {
            ways.wait();
            tracing::info!("accelerate: all packets stay with the kernel");
            return;
        }
        let taken = |acceleration: &dpdk::Acceleration| {
            acceleration.counts().map_or(0, |counts| counts[Outcome::Redirected as usize])
        };
        let end = Instant::now() + DRAIN;
        let arrived = |(open, acceleration): &(&OpenPort, &dpdk::Acceleration)| {
            let stats = open.port.stats();
            stats.ipackets + stats.imissed >= taken(acceleration)
        };
        let is_done =
            || ports.iter().all(arrived) && self.forwarding.ledger.counters().in_flight == 0;
        while !is_done() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        self.accelerated.flows = None;
        tracing::info!("accelerate: all packets stay with the kernel");
    }

    /// Brings changes of the FIB into the maps, for a turn.
    pub(super) fn follow_boundaries(&mut self, turn: &Turn) {
        let has_time = || turn.has_time();
        if self.accelerated.walk_on(&mut self.routing.rib, &has_time) {
            let kept = self.accelerated.keep();
            self.end_without(kept, "no thread that keeps the programs taking packets");
            self.look_at_accelerated();
        }
        self.accelerated.follow(&mut self.routing.rib, has_time);
    }

    /// Returns the report about the accelerated interfaces.
    pub(super) fn acceleration(&self) -> report::Acceleration {
        let interfaces = accelerated(&self.devices).map(|(open, acceleration)| {
            let now = self.accelerated.interfaces.get(&open.id);
            let (ip4, ip6) = now.map_or_else(unread, |now| reported(&now.own));
            let vlan = |(id, VlanNow { name, families }): (&u16, &VlanNow)| {
                let (ip4, ip6) = reported(families);
                report::AcceleratedVlan { name: name.clone(), id: *id, ip4, ip6 }
            };
            let vlans = now.map_or_else(Vec::new, |now| now.vlans.iter().map(vlan).collect());
            let bond_ports = self.accelerated.bonds.get(&open.id).into_iter().flatten();
            let counts = acceleration.counts().unwrap_or_default();
            let outcomes = Outcome::ALL.map(Outcome::name).map(str::to_owned).into_iter();
            report::AcceleratedInterface {
                name: open.name.clone(),
                mode: if acceleration.generic().is_none() { "native" } else { "generic" }
                    .to_owned(),
                reason: acceleration.generic().map(str::to_owned),
                ip4,
                ip6,
                vlans,
                bond_ports: bond_ports.map(PortNow::report).collect(),
                longest: now.map_or(0, |now| now.own.taken.longest),
                closed: self
                    .accelerated
                    .ways
                    .as_ref()
                    .and_then(|ways| ways.closed(open.id))
                    .map(str::to_owned),
                packets: outcomes.zip(counts).collect(),
            }
        });
        report::Acceleration {
            interfaces: interfaces.collect(),
            boundaries: self.accelerated.boundaries.len(),
            in_kernel: self.accelerated.ways.is_some(),
            flows: self.accelerated.flows.as_ref().map(FollowedFlows::report),
        }
    }
}
