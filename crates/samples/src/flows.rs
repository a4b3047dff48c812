//! The cache of flows that sampled packets make (RFC 5470, 5.1: the metering process).
//!
//! A flow is exported when no packet of it came for the inactive timeout, and after the active timeout if packets
//! come: a long flow gives a record at least that often. The cache is bounded; a new flow beyond takes the place of the
//! one whose time would have ended first, which is exported early.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::Route;
use crate::headers::Headers;

/// The packets that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The number of the interface by which they came.
    pub input: u32,
    /// Their VLAN; 0: none.
    pub vlan: u16,
    /// Their source.
    pub source: IpAddr,
    /// Their destination.
    pub destination: IpAddr,
    /// Their protocol.
    pub protocol: u8,
    /// Their type of service or traffic class.
    pub tos: u8,
    /// Their source port.
    pub source_port: u16,
    /// Their destination port.
    pub destination_port: u16,
    /// Type and code of ICMP.
    pub icmp: u16,
}

/// The reason for which a flow ended (RFC 5102, 5.11.3: flowEndReason).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No packet came any more.
    Inactive,
    /// It has lasted for long.
    Active,
    /// The exporter ends, or is set up anew.
    Forced,
    /// Its place was needed.
    NoRoom,
}

impl End {
    /// Returns the number in records.
    pub fn number(self) -> u8 {
        match self {
            Self::Inactive => 1,
            Self::Active => 2,
            Self::Forced => 4,
            Self::NoRoom => 5,
        }
    }
}

/// The sampled packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// What they have in common.
    pub key: Key,
    /// Their route, by the last one.
    pub route: Route,
    /// Their number.
    pub packets: u64,
    /// Bytes of them, from the IP header on.
    pub octets: u64,
    /// The control bits of TCP of any of them.
    pub tcp_flags: u8,
    /// The times of the first and the last, in ms since 1970.
    pub first_ms: u64,
    /// See [`Self::first_ms`].
    pub last_ms: u64,
}

/// Bounds of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most flows, at least 1.
    pub most: usize,
    /// A flow's longest time in ms.
    pub active_ms: u64,
    /// The time in ms without a packet after which a flow has ended.
    pub inactive_ms: u64,
}

/// A sampled packet.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    /// Its headers.
    pub headers: &'a Headers,
    /// The number of the interface by which it came.
    pub input: u32,
    /// Its VLAN; 0: none.
    pub vlan: u16,
    /// Its route.
    pub route: Route,
}

/// The flows.
#[derive(Debug)]
pub struct Cache {
    limits: Limits,
    flows: HashMap<Key, Flow>,
    /// The ends of their times.
    deadlines: BTreeSet<(u64, Key)>,
}

impl Cache {
    /// Creates it without flows.
    pub fn new(limits: Limits) -> Self {
        Self { limits, flows: HashMap::new(), deadlines: BTreeSet::new() }
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Counts a packet. Returns the flow whose place it needed.
    pub fn count(&mut self, sampled: &Sampled<'_>, now_ms: u64) -> Option<(Flow, End)> {
        let Sampled { headers, input, vlan, route } = *sampled;
        let key = Key {
            input,
            vlan,
            source: headers.source,
            destination: headers.destination,
            protocol: headers.protocol,
            tos: headers.tos,
            source_port: headers.source_port,
            destination_port: headers.destination_port,
            icmp: headers.icmp,
        };
        let is_new = !self.flows.contains_key(&key);
        let displaced = (is_new && self.flows.len() >= self.limits.most).then(|| self.displace());
        let limits = self.limits;
        let flow = self.flows.entry(key).or_insert(Flow {
            key,
            route,
            packets: 0,
            octets: 0,
            tcp_flags: 0,
            first_ms: now_ms,
            last_ms: now_ms,
        });
        if !is_new {
            self.deadlines.remove(&(limits.deadline(flow), key));
        }
        flow.packets += 1;
        flow.octets += u64::from(headers.length);
        flow.tcp_flags |= headers.tcp_flags;
        // A clock may be set back.
        flow.last_ms = now_ms.max(flow.last_ms);
        flow.route = route;
        self.deadlines.insert((limits.deadline(flow), key));
        displaced.flatten()
    }

    fn displace(&mut self) -> Option<(Flow, End)> {
        let (_, key) = self.deadlines.pop_first()?;
        self.flows.remove(&key).map(|flow| (flow, End::NoRoom))
    }

    /// Returns the flows whose time has ended, `most` of them.
    pub fn ended(&mut self, now_ms: u64, most: usize) -> Vec<(Flow, End)> {
        let mut ended = Vec::new();
        while ended.len() < most
            && let Some(&(deadline, key)) = self.deadlines.first()
            && deadline <= now_ms
        {
            self.deadlines.pop_first();
            let Some(flow) = self.flows.remove(&key) else { continue };
            let is_inactive = flow.last_ms + self.limits.inactive_ms <= now_ms;
            ended.push((flow, if is_inactive { End::Inactive } else { End::Active }));
        }
        ended
    }

    /// Returns all flows; none is left.
    pub fn drain(&mut self) -> Vec<(Flow, End)> {
        self.deadlines.clear();
        self.flows.drain().map(|(_, flow)| (flow, End::Forced)).collect()
    }
}

impl Limits {
    fn deadline(self, flow: &Flow) -> u64 {
        (flow.last_ms + self.inactive_ms).min(flow.first_ms + self.active_ms)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::headers::{self, tests::udp4};

    const LIMITS: Limits = Limits { most: 4, active_ms: 1000, inactive_ms: 100 };

    fn sampled(headers: &Headers) -> Sampled<'_> {
        Sampled { headers, input: 1, vlan: 0, route: Route::default() }
    }

    pub(crate) fn with_port(port: u16) -> Headers {
        Headers { source_port: port, ..headers::read(&udp4()).unwrap() }
    }

    #[test]
    fn flows_end_when_idle_and_when_they_last() {
        let mut cache = Cache::new(LIMITS);
        for at in [0, 50, 120] {
            assert_eq!(cache.count(&sampled(&with_port(1)), at), None);
        }
        cache.count(&sampled(&with_port(2)), 130);
        assert_eq!(cache.ended(219, 9), []);
        let ended = cache.ended(220, 9);
        let [(flow, End::Inactive)] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((flow.key.source_port, flow.packets, flow.octets), (1, 3, 384));
        assert_eq!((flow.first_ms, flow.last_ms), (0, 120));
        for at in (210..1130).step_by(90) {
            cache.count(&sampled(&with_port(2)), at);
        }
        assert_eq!(cache.ended(1129, 9), []);
        assert_eq!(cache.ended(1130, 9)[0].1, End::Active);
        assert!(cache.is_empty());
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = Cache::new(LIMITS);
        for port in 0..4 {
            assert_eq!(cache.count(&sampled(&with_port(port)), u64::from(port)), None);
        }
        cache.count(&sampled(&with_port(0)), 10);
        let (flow, end) = cache.count(&sampled(&with_port(9)), 11).unwrap();
        assert_eq!((flow.key.source_port, end, cache.len()), (1, End::NoRoom, 4));
        assert_eq!(cache.ended(5000, 3).len(), 3);
        assert_eq!(cache.drain().len(), 1);
    }

    proptest! {
        /// Whatever comes when, no packet is lost or counted twice, and the bounds hold.
        #[test]
        fn packets_are_counted_once(events in prop::collection::vec((0..8u16, 0..400u64), 0..200)) {
            let mut cache = Cache::new(LIMITS);
            let (mut now, mut out) = (0, Vec::new());
            for (port, later) in &events {
                now += later;
                out.extend(cache.ended(now, usize::MAX));
                out.extend(cache.count(&sampled(&with_port(*port)), now));
                prop_assert!(cache.len() <= LIMITS.most && cache.len() == cache.deadlines.len());
                prop_assert!(cache.flows.values().all(|flow| now - flow.last_ms < LIMITS.inactive_ms));
                prop_assert!(cache.flows.values().all(|flow| now - flow.first_ms < LIMITS.active_ms));
            }
            out.extend(cache.drain());
            prop_assert_eq!(out.iter().map(|(flow, _)| flow.packets).sum::<u64>(), events.len() as u64);
        }
    }
}
