//! Connection tracking: records flows that passed, so that filters distinguish replies from new
//! flows.
//!
//! A flow is entered when a packet of it passes in the direction in which no filter matches states,
//! and is kept alive by every later packet that passes. A packet is *established* if packets of the
//! other direction have passed, *related* if it is an ICMP error about such a packet, and *new*
//! otherwise. Sequence numbers are not checked, and a flow may begin in its middle: paths may be
//! asymmetric, and connections survive a restart of the router. An end's signal that the connection
//! is over holds until the other end continues.
//!
//! | file | concern |
//! |---|---|
//! | `key.rs` | the flow of a packet |
//! | `table.rs` | storage and eviction of flows |
//! | `batch.rs` | a batch's look-ups |

mod batch;
mod key;
mod table;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;

pub(crate) use self::batch::{Lookups, Passed};
pub use self::key::Tracked;
pub(crate) use self::key::fragment;
use self::key::unpack;
use self::table::{Clock, Entered, Table, View};

/// Settings of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSettings {
    /// Capacity for flows of each family.
    pub most: usize,
    /// Idle timeouts, in seconds.
    pub timeouts: Timeouts,
}

/// Idle timeouts of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, once both sides have sent data.
    pub tcp: u32,
    /// TCP before, and after one side has ended it.
    pub opening: u32,
    /// UDP, once both sides have sent something.
    pub udp: u32,
    /// UDP before.
    pub unanswered: u32,
    /// ICMP.
    pub icmp: u32,
    /// For the remaining fragments of a packet whose first fragment has passed.
    pub fragments: u32,
    /// Everything else.
    pub other: u32,
}

/// The minimums of the RFCs on network address translators: RFC 5382 (REQ-5), RFC 4787 (REQ-5), RFC
/// 5508 (REQ-1); for fragments the reassembly timeout of hosts (RFC 1122 3.3.2).
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp: 7440,
            opening: 240,
            udp: 300,
            unanswered: 120,
            icmp: 60,
            fragments: 30,
            other: 600,
        }
    }
}

impl Default for FlowSettings {
    fn default() -> Self {
        Self { most: 1 << 18, timeouts: Timeouts::default() }
    }
}

impl Timeouts {
    /// Each with its name in configurations.
    pub fn named(&mut self) -> [(&'static str, &mut u32); 7] {
        let Self { tcp, opening, udp, unanswered, icmp, fragments, other } = self;
        [
            ("tcp_s", tcp),
            ("opening_s", opening),
            ("udp_s", udp),
            ("unanswered_s", unanswered),
            ("icmp_s", icmp),
            ("fragments_s", fragments),
            ("other_s", other),
        ]
    }

    fn map(mut self, change: impl Fn(u32) -> u32) -> Self {
        self.named().into_iter().for_each(|(_, timeout)| *timeout = change(*timeout));
        self
    }
}

/// The flows of a router.
pub struct FlowTable {
    settings: FlowSettings,
    ip4: Table<Ipv4Addr>,
    ip6: Table<Ipv6Addr>,
    ticks: Ticks,
    /// In ticks.
    timeouts: Timeouts,
    counts: Counts,
}

/// Ticks of 2^`shift` TSC cycles, about an eighth of a second.
#[derive(Clone, Copy)]
struct Ticks {
    shift: u32,
    tsc_hz: u64,
}

impl Ticks {
    fn new(tsc_hz: u64) -> Self {
        Self { shift: (tsc_hz / 8).max(1).ilog2(), tsc_hz: tsc_hz.max(1) }
    }

    #[inline(always)]
    fn at(self, now: u64) -> u32 {
        (now >> self.shift) as u32
    }

    fn of_seconds(self, seconds: u32) -> u32 {
        let ticks = (u128::from(seconds) * u128::from(self.tsc_hz)) >> self.shift;
        u32::try_from(ticks).unwrap_or(u32::MAX / 4).min(u32::MAX / 4)
    }

    fn duration(self, ticks: u32) -> Duration {
        let cycles = u128::from(ticks) << self.shift;
        Duration::from_millis((cycles * 1000 / u128::from(self.tsc_hz)) as u64)
    }
}

#[derive(Default)]
struct Counts {
    entered: AtomicU64,
    pushed_out: AtomicU64,
    refused: AtomicU64,
}

/// Counts of the attempts to enter flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Entered.
    pub entered: u64,
    /// Displaced by newer ones before they expired.
    pub pushed_out: u64,
    /// Not entered for lack of room.
    pub refused: u64,
}

/// A flow as shown by commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The VRF's number.
    pub vrf: u16,
    /// The protocol; 44, that of the fragment header, for the remaining fragments of a packet whose first
    /// fragment has passed.
    pub protocol: u8,
    /// The initiator; the port is 0 if the protocol has none.
    pub from: (IpAddr, u16),
    /// The responder.
    pub to: (IpAddr, u16),
    /// The phase of the flow.
    pub phase: Phase,
    /// Packets and IP bytes of the initiator and of the responder.
    pub traffic: [(u64, u64); 2],
    /// Time since its first packet.
    pub age: Duration,
    /// Time since its last packet.
    pub idle: Duration,
}

/// The phase of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No packet of the responder yet.
    Unanswered,
    /// TCP: both ends have sent packets, but no data yet.
    Opening,
    /// Both ends have sent packets; other flows do not displace it.
    Assured,
    /// TCP: the connection has ended.
    Closing,
}

/// A selection of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// One of their ends is in this prefix.
    pub prefix: Option<IpNet>,
    /// One of their ends has this port.
    pub port: Option<u16>,
    /// They have this protocol.
    pub protocol: Option<u8>,
}

impl Selection {
    fn has(&self, flow: &Flow) -> bool {
        let ends = [flow.from, flow.to];
        let any = |has: &dyn Fn(&(IpAddr, u16)) -> bool| ends.iter().any(has);
        self.prefix.is_none_or(|prefix| any(&|end| prefix.contains(&end.0)))
            && self.port.is_none_or(|port| any(&|end| end.1 == port))
            && self.protocol.is_none_or(|protocol| flow.protocol == protocol)
    }
}

/// Flows of a family that are looked at to count them.
const LOOKED_AT: usize = 16_384;

impl FlowTable {
    /// Creates an empty table; `tsc_hz`: cycles of the time-stamp counter per second; `seed`: a
    /// random number of the router.
    pub fn new(settings: FlowSettings, tsc_hz: u64, seed: u64) -> Self {
        let ticks = Ticks::new(tsc_hz);
        Self {
            settings,
            ip4: Table::new(settings.most, seed),
            ip6: Table::new(settings.most, seed),
            ticks,
            timeouts: settings.timeouts.map(|seconds| ticks.of_seconds(seconds)),
            counts: Counts::default(),
        }
    }

    /// Creates a table with other settings that takes over the flows of another at `now`, in TSC
    /// cycles.
    pub fn like(other: &Self, settings: FlowSettings, now: u64) -> Self {
        let seed = other.ip4.seed();
        let table = Self::new(settings, other.ticks.tsc_hz, seed);
        let clock = table.clock(now);
        table.ip4.take_over(&other.ip4, clock);
        table.ip6.take_over(&other.ip6, clock);
        table
    }

    /// The settings of the table.
    pub fn settings(&self) -> FlowSettings {
        self.settings
    }

    /// Returns the capacity for flows of each family.
    pub fn room(&self) -> usize {
        self.ip4.room()
    }

    /// Counts of flows.
    pub fn counts(&self) -> FlowCounts {
        let Counts { entered, pushed_out, refused } = &self.counts;
        let [entered, pushed_out, refused] =
            [entered, pushed_out, refused].map(|count| count.load(Ordering::Relaxed));
        FlowCounts { entered, pushed_out, refused }
    }

    /// Returns the number of IPv4 and of IPv6 flows at `now` in TSC cycles, estimated if there are many: cheap enough to
    /// be asked for often.
    pub fn live(&self, now: u64) -> [usize; 2] {
        let clock = self.clock(now);
        [self.ip4.count(clock, LOOKED_AT), self.ip6.count(clock, LOOKED_AT)]
    }

    #[inline(always)]
    fn clock(&self, now: u64) -> Clock<'_> {
        Clock { now: self.ticks.at(now), timeouts: &self.timeouts }
    }

    /// Returns the flows of this selection at `now` in TSC cycles, in no order.
    pub fn flows(&self, selection: &Selection, now: u64) -> Vec<Flow> {
        let clock = self.clock(now);
        let ip4 = self.ip4.flows(clock).map(|view| self.shown::<Ipv4Addr>(&view, clock.now));
        let ip6 = self.ip6.flows(clock).map(|view| self.shown::<Ipv6Addr>(&view, clock.now));
        ip4.chain(ip6).filter(|flow| selection.has(flow)).collect()
    }

    /// Removes the flows of this selection, so that their packets are new again. Returns the number
    /// removed.
    pub fn forget(&self, selection: &Selection, now: u64) -> usize {
        let clock = self.clock(now);
        let ip4 = |view: &View| selection.has(&self.shown::<Ipv4Addr>(view, clock.now));
        let ip6 = |view: &View| selection.has(&self.shown::<Ipv6Addr>(view, clock.now));
        self.ip4.forget(clock, ip4) + self.ip6.forget(clock, ip6)
    }

    fn shown<A: Tracked>(&self, view: &View, now: u32) -> Flow {
        let (ports, protocol, vrf) = unpack(view.key[1]);
        let addresses = A::addresses(&view.key);
        let first = view.state.origin();
        let end = |end: usize| (addresses[end], ports[end]);
        let is_answered = view.state.has_seen(0) && view.state.has_seen(1);
        let phase = match () {
            () if view.state.is_closing() => Phase::Closing,
            () if view.state.is_assured(protocol) => Phase::Assured,
            () if is_answered => Phase::Opening,
            () => Phase::Unanswered,
        };
        let since = |tick: u32| self.ticks.duration(now.saturating_sub(tick));
        Flow {
            vrf,
            protocol,
            from: end(first),
            to: end(1 - first),
            phase,
            traffic: [view.traffic[first], view.traffic[1 - first]],
            age: since(view.since),
            idle: since(view.state.tick()),
        }
    }

    fn count(&self, entered: Entered) {
        let Counts { entered: new, pushed_out, refused } = &self.counts;
        match entered {
            Entered::Known => {}
            Entered::New => drop(new.fetch_add(1, Ordering::Relaxed)),
            Entered::Instead => {
                new.fetch_add(1, Ordering::Relaxed);
                pushed_out.fetch_add(1, Ordering::Relaxed);
            }
            Entered::Full => drop(refused.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// A family's table in a [`FlowTable`].
pub(crate) trait Kept: Tracked {
    fn kept(flows: &FlowTable) -> &Table<Self>;
}

impl Kept for Ipv4Addr {
    fn kept(flows: &FlowTable) -> &Table<Self> {
        &flows.ip4
    }
}

impl Kept for Ipv6Addr {
    fn kept(flows: &FlowTable) -> &Table<Self> {
        &flows.ip6
    }
}
