//! Accelerated interfaces: the packets that their XDP programs take from the kernel.
//!
//! A program takes packets whose route leads over accelerated interfaces, by the boundaries of the FIB
//! (`boundaries.rs`), as long as the kernel forwards itself: its sysctls are looked at from time to time, and its rules are
//! followed (`kernel_rules.rs`). It begins when the kernel's routes and rules have been read for the first time, and ends
//! before the forwarders do, which send what is on its way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Bound;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use api::report;
use control::config::Config;
use control::rib::{Rib, Treatment};
use dataplane::interface::VrfId;
use dataplane::port::PortId;
use dpdk::{Errno, Outcome, Prefixes, Taken};
use ipnet::IpNet;

use super::super::boundaries::{Boundaries, Change, Treatments};
use super::super::lease::Keeper;
use super::super::ports::OpenPort;
use super::Owner;
use super::kernel_flows::FollowedFlows;
use super::kernel_rules::{KernelRules, Verdict};
use super::state::Devices;
use super::turn::Turn;

/// Ticks between two looks at settings of which there was no notification.
pub(super) const LOOK_TICKS: u32 = 20;

/// The longest wait at the end for packets that the programs have taken.
const DRAIN: Duration = Duration::from_millis(500);

/// State of all accelerated interfaces.
#[derive(Default)]
pub(super) struct Accelerated {
    /// The maps of the programs; `None`: no interface is accelerated, or the FIB is not complete yet.
    prefixes: Option<Arc<Prefixes>>,
    boundaries: Boundaries,
    /// Changed prefixes of the FIB that the maps do not have yet.
    behind: Vec<IpNet>,
    /// Boundaries that the kernel refused; their packets may go the wrong way, so nothing is taken while there are any.
    refused: BTreeSet<IpNet>,
    /// The packets that are taken, by port.
    interfaces: BTreeMap<PortId, Now>,
    /// The kernel's rules; `None` before they are read for the first time.
    rules: Option<KernelRules>,
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

/// The packets of an interface that are taken, and the reasons why others are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Now {
    /// The number of the program.
    program: u64,
    taken: Taken,
    ip4: Option<String>,
    ip6: Option<String>,
}

/// The kernel's settings of an interface.
#[derive(Debug, Default)]
struct Sysctls {
    ip4_forwarding: bool,
    ip6_forwarding: bool,
    reverse_path: u32,
}

impl Sysctls {
    /// Reads those of an interface of the thread's network namespace. One that cannot be read forwards nothing.
    fn of(interface: &str) -> Self {
        let number = |path: String| {
            let text = fs::read_to_string(format!("/proc/sys/net/{path}")).ok()?;
            text.trim().parse::<u32>().ok()
        };
        let reverse_path = |of: &str| number(format!("ipv4/conf/{of}/rp_filter"));
        Self {
            ip4_forwarding: number(format!("ipv4/conf/{interface}/forwarding")) == Some(1),
            ip6_forwarding: number("ipv6/conf/all/forwarding".to_owned()).is_some_and(|on| on != 0),
            // The kernel takes the greater one.
            reverse_path: reverse_path("all").max(reverse_path(interface)).unwrap_or(1),
        }
    }
}

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
        let place = match within {
            true => prefix,
            false => IpNet::new_assert(prefix.broadcast(), prefix.max_prefix_len()),
        };
        let after = (Bound::Excluded(place), Bound::Unbounded);
        let staying = self.stay.range(after).next().copied();
        let own = self.rib.prefix_after(VrfId::DEFAULT, place);
        own.into_iter().chain(staying).min()
    }
}

impl Accelerated {
    /// Returns true if changes of the FIB are not in the programs' maps yet.
    pub(super) fn is_behind(&self, rib: &Rib) -> bool {
        self.prefixes.is_some() && (!self.behind.is_empty() || rib.has_installed(VrfId::DEFAULT))
    }

    /// Makes the maps from the whole FIB, and follows it from now on.
    fn begin(&mut self, rib: &mut Rib) -> Result<(), Errno> {
        let prefixes = Prefixes::shared()?;
        rib.follow_installed(VrfId::DEFAULT);
        let all = rib.treatments(VrfId::DEFAULT);
        self.boundaries = Boundaries::of(all.map(|(net, of)| (net, of == Treatment::Forwarded)));
        for change in self.boundaries.iter() {
            make(&prefixes, change, &mut self.refused);
        }
        let keeper = Keeper::start(prefixes.lease().clone());
        self.keeper =
            Some(keeper.map_err(|error| Errno::try_from(error).unwrap_or(Errno::EAGAIN))?);
        self.prefixes = Some(prefixes);
        let stay = self.stay.clone();
        self.treat_anew(&stay, rib);
        Ok(())
    }

    /// Brings changes of the FIB into the maps, as long as `has_time`.
    pub(super) fn follow(&mut self, rib: &mut Rib, has_time: impl Fn() -> bool) {
        let Some(prefixes) = &self.prefixes else { return };
        self.behind.append(&mut rib.drain_installed(VrfId::DEFAULT));
        let fib = Fib { rib, stay: &self.stay };
        while has_time()
            && let Some(prefix) = self.behind.pop()
        {
            for change in self.boundaries.follow(prefix, &fib) {
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
        for prefix in changed {
            self.behind.push(*prefix);
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

impl Owner {
    /// Begins when the FIB is complete, and follows the kernel's settings.
    pub(super) fn look_at_accelerated(&mut self) {
        if self.accelerated.ended || !self.serving.ready {
            return;
        }
        let longest = accelerated(&self.devices).map(|(open, _)| self.mtu_of(open)).min();
        let Some(longest) = longest else { return };
        if self.accelerated.rules.is_none() {
            let names: Vec<String> =
                accelerated(&self.devices).map(|(open, _)| open.name.clone()).collect();
            match KernelRules::start(&names, &self.configurations.current.acceleration) {
                Ok(rules) => self.accelerated.rules = Some(rules),
                Err(error) => {
                    tracing::error!("accelerate: {error}; all packets stay with the kernel")
                }
            }
        }
        self.accelerated.follow_rules(&self.configurations.current, &mut self.routing.rib);
        if self.accelerated.prefixes.is_none() && self.accelerated.obstacles.is_some() {
            let begun = Instant::now();
            if let Err(errno) = self.accelerated.begin(&mut self.routing.rib) {
                tracing::error!(
                    "accelerate: no map of prefixes: {errno}; all packets stay with the kernel"
                );
                self.accelerated.ended = true;
                return;
            }
            tracing::info!(
                "accelerate: {} boundaries of the FIB, in {} ms",
                self.accelerated.boundaries.len(),
                begun.elapsed().as_millis()
            );
        }
        if let Some(keeper) = &self.accelerated.keeper {
            keeper.owner_is_there();
        }
        if self.configurations.current.acceleration.flows {
            let interfaces = accelerated(&self.devices).map(|(open, of)| (&*open.name, of));
            self.accelerated.follow_flows(interfaces);
        }
        // After the maps: what they have no room for is a reason to take nothing.
        let wanted: Vec<_> = accelerated(&self.devices)
            .map(|(open, acceleration)| (open.id, self.wanted(open, acceleration, longest)))
            .collect();
        self.accelerated.interfaces.retain(|id, _| wanted.iter().any(|(of, _)| of == id));
        for (id, now) in wanted {
            self.take(id, now);
        }
    }

    fn mtu_of(&self, open: &OpenPort) -> u16 {
        self.devices.links[open.id.index()].mtu(open.port.mtu())
    }

    /// Returns the packets that an interface is to take.
    fn wanted(&self, open: &OpenPort, acceleration: &dpdk::Acceleration, longest: u16) -> Now {
        let sysctls = Sysctls::of(&open.name);
        let full = (!self.accelerated.refused.is_empty())
            .then(|| "the XDP programs have no room for the routes".to_owned());
        let strict = || {
            (sysctls.reverse_path == 1).then(|| {
                "rp_filter is strict; make it loose: sysctl net.ipv4.conf.all.rp_filter=2"
                    .to_owned()
            })
        };
        let obstacle = match &self.accelerated.obstacles {
            None => Some("the kernel's rules are being read".to_owned()),
            Some(obstacles) => obstacles.first().cloned(),
        };
        let full = obstacle.or(full).or_else(|| self.accelerated.no_flows.clone());
        let off = |on: bool, sysctl: String| (!on).then(|| format!("{sysctl} is 0"));
        let ip4_sysctl = format!("net.ipv4.conf.{}.forwarding", open.name);
        let ip4 = full.clone().or_else(|| off(sysctls.ip4_forwarding, ip4_sysctl)).or_else(strict);
        let ip6_sysctl = "net.ipv6.conf.all.forwarding".to_owned();
        let ip6 = full.or_else(|| off(sysctls.ip6_forwarding, ip6_sysctl));
        let taken = Taken {
            mac: open.port.mac(),
            longest,
            ip4: ip4.is_none(),
            ip6: ip6.is_none(),
            partial_checksums: open.port.partial_checksums(),
        };
        Now { program: acceleration.number(), taken, ip4, ip6 }
    }

    /// Has an interface take other packets than before.
    fn take(&mut self, id: PortId, now: Now) {
        let Some(open) = self.devices.ports.get(id) else { return };
        let Some(acceleration) = open.port.acceleration() else { return };
        if self.accelerated.interfaces.get(&id) == Some(&now) {
            return;
        }
        if let Err(errno) = acceleration.take(&now.taken) {
            tracing::error!("port \"{}\": its XDP program: {errno}", open.name);
            return;
        }
        let says = |family: &str, why: &Option<String>| match why {
            None => tracing::info!("port \"{}\": {family} is accelerated", open.name),
            Some(why) => {
                tracing::warn!("port \"{}\": {family} stays with the kernel: {why}", open.name)
            }
        };
        let before = self.accelerated.interfaces.insert(id, now.clone());
        for (family, before, now) in [
            ("IPv4", before.as_ref().map(|of| &of.ip4), &now.ip4),
            ("IPv6", before.as_ref().map(|of| &of.ip6), &now.ip6),
        ] {
            if before != Some(now) {
                says(family, now);
            }
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
            if let Err(errno) = acceleration.take(&Taken::default()) {
                tracing::error!("port \"{}\": its XDP program: {errno}", open.name);
            }
        }
        self.accelerated.keeper = None;
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
        self.accelerated.follow(&mut self.routing.rib, || turn.has_time());
    }

    /// Returns the report about the accelerated interfaces.
    pub(super) fn acceleration(&self) -> report::Acceleration {
        let interfaces = accelerated(&self.devices).map(|(open, acceleration)| {
            let now = self.accelerated.interfaces.get(&open.id);
            let family = |taken: fn(&Taken) -> bool, why: fn(&Now) -> &Option<String>| {
                let why = match now {
                    None => Some("the kernel's routes are being read".to_owned()),
                    Some(now) => why(now).clone(),
                };
                let accelerated = now.is_some_and(|now| taken(&now.taken));
                report::AcceleratedFamily { accelerated, reason: why }
            };
            let counts = acceleration.counts().unwrap_or_default();
            let outcomes = Outcome::ALL.map(Outcome::name).map(str::to_owned).into_iter();
            report::AcceleratedInterface {
                name: open.name.clone(),
                mode: if acceleration.generic().is_none() { "native" } else { "generic" }
                    .to_owned(),
                reason: acceleration.generic().map(str::to_owned),
                ip4: family(|of| of.ip4, |of| &of.ip4),
                ip6: family(|of| of.ip6, |of| &of.ip6),
                longest: now.map_or(0, |now| now.taken.longest),
                packets: outcomes.zip(counts).collect(),
            }
        });
        report::Acceleration {
            interfaces: interfaces.collect(),
            boundaries: self.accelerated.boundaries.len(),
            flows: self.accelerated.flows.as_ref().map(FollowedFlows::report),
        }
    }
}
