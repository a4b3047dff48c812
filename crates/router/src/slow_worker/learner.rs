//! Reports of flows that the host begins, for the owner: see [`super::super::control_rules`].
//!
//! Each packet that the kernel sends by a host interface whose port learns is examined. A flow is reported when it
//! begins, and again every [`AGAIN`] while the host sends; reported flows are in a table of fixed size. New flows have
//! a rate, so that a local user who opens many costs the owner and the device no more than that. Replies to a flow that
//! is not reported still pass through the forwarders.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use dataplane::interface::InterfaceId;
use dataplane::own::{OwnAddresses, Owner};
use dataplane::port::{MAX_PORTS, PortId};
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader};
use wire::ip::{IPV4_MIN_LEN, Ipv4Header, Ipv6Header, PROTOCOL_TCP, PROTOCOL_UDP};
use zerocopy::FromBytes;

use super::super::control_rules::HostFlow;

/// Interval between reports of a flow while the host sends.
const AGAIN: Duration = Duration::from_secs(10);

/// Reported flows that a worker remembers.
const REMEMBERED: usize = 4096;

/// New flows that a worker reports in a second, and at once.
const RATE: u32 = 64;

/// Flows that wait for the owner.
const WAITING: usize = 1024;

/// TCP's flags SYN and ACK, and their offset.
const TCP_FLAGS: usize = 13;
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;

/// The ports that learn, and what was not learned.
#[derive(Debug)]
pub struct Learning {
    any: AtomicBool,
    ports: [OfPort; MAX_PORTS],
}

#[derive(Debug, Default)]
struct OfPort {
    learns: AtomicBool,
    /// Flows that were not reported because of the limits.
    unlearned: AtomicU64,
}

impl Learning {
    /// A port learns from now on, or does not.
    pub fn set(&self, port: PortId, learns: bool) {
        self.ports[port.index()].learns.store(learns, Ordering::Relaxed);
        let any = self.ports.iter().any(|port| port.learns.load(Ordering::Relaxed));
        self.any.store(any, Ordering::Relaxed);
    }

    /// Flows by this port that were not reported because of the limits.
    pub fn unlearned(&self, port: PortId) -> u64 {
        self.ports[port.index()].unlearned.load(Ordering::Relaxed)
    }
}

/// A flow, and the port that it leaves by.
pub type Learned = (PortId, HostFlow);

/// The owner's end.
pub struct LearnedFlows {
    /// The ports that learn.
    pub learning: Arc<Learning>,
    flows: Receiver<Learned>,
}

impl LearnedFlows {
    /// The next flow.
    pub fn take(&self) -> Option<Learned> {
        self.flows.try_recv().ok()
    }
}

/// Ends of workers, of which each gets a copy, and the owner's.
pub fn learned_flows() -> (LearnerShared, LearnedFlows) {
    let (sender, flows) = sync_channel(WAITING);
    let learning = Arc::new(Learning {
        any: AtomicBool::new(false),
        ports: std::array::from_fn(|_| OfPort::default()),
    });
    (LearnerShared { learning: learning.clone(), sender }, LearnedFlows { learning, flows })
}

/// The shared part of each [`Learner`].
#[derive(Clone)]
pub struct LearnerShared {
    learning: Arc<Learning>,
    sender: SyncSender<Learned>,
}

/// A worker's part.
pub struct Learner {
    shared: LearnerShared,
    /// By hash; made when a port learns first.
    told: Vec<Option<(Learned, Instant)>>,
    /// New flows that may be reported now, and the time of that count.
    left: f64,
    counted: Instant,
}

impl Learner {
    /// With no flow reported yet.
    pub fn new(shared: LearnerShared) -> Self {
        Self { shared, told: Vec::new(), left: RATE.into(), counted: Instant::now() }
    }

    /// The part that all share.
    pub fn shared(&self) -> LearnerShared {
        self.shared.clone()
    }

    /// A port of this worker may learn.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.shared.learning.any.load(Ordering::Relaxed)
    }

    /// The kernel sends a frame by the host interface of an interface on this port.
    pub fn look(
        &mut self,
        frame: &[u8],
        (interface, port): (InterfaceId, Option<PortId>),
        own: &OwnAddresses,
        now: Instant,
    ) {
        let of = |id: &PortId| &self.shared.learning.ports[id.index()];
        let learns = |id: &PortId| of(id).learns.load(Ordering::Relaxed);
        let Some(id) = port.filter(learns) else { return };
        let Some((flow, is_begun)) = flow_of(frame) else { return };
        if self.told.is_empty() {
            self.told.resize(REMEMBERED, None);
        }
        let place = place_of(&flow, id);
        let known = self.told[place].filter(|(known, _)| *known == (id, flow));
        match known {
            Some((_, told)) if now.duration_since(told) < AGAIN => return,
            // A reply does not begin a flow.
            None if !is_begun => return,
            // The kernel forwards for others as well.
            None if own.owner(flow.source, interface) != Some(Owner::Router) => return,
            None if !self.may_tell(now) => return self.count_unlearned(id),
            _ => {}
        }
        match self.shared.sender.try_send((id, flow)) {
            Ok(()) => self.told[place] = Some(((id, flow), now)),
            Err(_) => self.count_unlearned(id),
        }
    }

    fn count_unlearned(&self, port: PortId) {
        self.shared.learning.ports[port.index()].unlearned.fetch_add(1, Ordering::Relaxed);
    }

    fn may_tell(&mut self, now: Instant) -> bool {
        let since = now.duration_since(self.counted).as_secs_f64();
        self.counted = now;
        self.left = (self.left + since * f64::from(RATE)).min(RATE.into());
        let may = self.left >= 1.0;
        self.left -= f64::from(u8::from(may));
        may
    }
}

/// Returns a flow's place in the table of reported flows. Flows that share a place are reported more often.
fn place_of(flow: &HostFlow, port: PortId) -> usize {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hash = DefaultHasher::new();
    (flow, port.index()).hash(&mut hash);
    hash.finish() as usize % REMEMBERED
}

/// Returns the flow of a TCP or UDP packet, and true if its sender may have begun the flow with it.
fn flow_of(frame: &[u8]) -> Option<(HostFlow, bool)> {
    let ethertype = EthernetHeader::ref_from_prefix(frame).ok()?.0.ethertype.get();
    let packet = &frame[ETHERNET_LEN..];
    let (protocol, source, destination, segment): (_, IpAddr, IpAddr, _) = match ethertype {
        ETHERTYPE_IPV4 => {
            let (ip, _) =
                Ipv4Header::ref_from_prefix(packet).ok().filter(|(ip, _)| !ip.is_fragment())?;
            let segment = packet.get(ip.header_len().max(IPV4_MIN_LEN)..)?;
            (ip.protocol, ip.source_address.into(), ip.destination_address.into(), segment)
        }
        ETHERTYPE_IPV6 => {
            let (ip, segment) = Ipv6Header::ref_from_prefix(packet).ok()?;
            (ip.next_header, ip.source_address.into(), ip.destination_address.into(), segment)
        }
        _ => return None,
    };
    let is_begun = match protocol {
        PROTOCOL_UDP => true,
        PROTOCOL_TCP => segment.get(TCP_FLAGS)? & SYN_ACK == SYN,
        _ => return None,
    };
    if destination.is_multicast() || destination == IpAddr::from([255; 4]) {
        return None;
    }
    let &[a, b, c, d] = segment.first_chunk()?;
    let (source_port, destination_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Some((HostFlow { protocol, source, source_port, destination, destination_port }, is_begun))
}

#[cfg(test)]
mod tests {
    use dataplane::interface::VrfId;
    use ipnet::IpNet;

    use super::*;

    const PORT: PortId = PortId::FIRST;

    struct Lab {
        learner: Learner,
        learned: LearnedFlows,
        own: OwnAddresses,
        start: Instant,
    }

    fn lab() -> Lab {
        let (shared, learned) = learned_flows();
        learned.learning.set(PORT, true);
        let own = OwnAddresses::new(false);
        let net: [IpNet; 1] = ["10.0.1.1/24".parse().unwrap()];
        own.publish([(PORT.into(), VrfId::DEFAULT, &net[..])], []);
        Lab { learner: Learner::new(shared), learned, own, start: Instant::now() }
    }

    impl Lab {
        /// Has the kernel send this after so many seconds; returns true if the flow was reported.
        fn sends(&mut self, frame: &[u8], seconds: u64) -> bool {
            let now = self.start + Duration::from_secs(seconds);
            self.learner.look(frame, (PORT.into(), Some(PORT)), &self.own, now);
            let told = self.learned.take();
            assert!(self.learned.take().is_none(), "once at most");
            told.is_some()
        }
    }

    /// IPv4 from an address of 10.0.1.0/24 and a port, to 192.0.2.9:443.
    fn frame(protocol: u8, from: u8, port: u16, flags: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend([10, 0, 1, from, 192, 0, 2, 9]);
        frame.extend(port.to_be_bytes());
        frame.extend([1, 187, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn a_flow_is_told_when_the_host_begins_it_and_again_while_it_lasts() {
        let mut lab = lab();
        let (syn, ack) = (frame(6, 1, 40000, SYN), frame(6, 1, 40000, 0x10));
        assert!(!lab.sends(&ack, 0), "nobody has seen its beginning");
        assert!(lab.sends(&syn, 0));
        assert!(!lab.sends(&ack, 9));
        assert!(lab.sends(&ack, 10));
        assert!(!lab.sends(&ack, 11));
        assert!(lab.sends(&frame(17, 1, 5000, 0), 11), "UDP says nothing of a beginning");
    }

    #[test]
    fn the_flow_is_told_as_it_leaves() {
        let mut lab = lab();
        let by = (PORT.into(), Some(PORT));
        lab.learner.look(&frame(6, 1, 40000, SYN), by, &lab.own, lab.start);
        let (port, flow) = lab.learned.take().unwrap();
        assert_eq!(port, PORT);
        assert_eq!(flow.to_string(), "tcp 10.0.1.1:40000 > 192.0.2.9:443");
    }

    #[test]
    fn answers_forwarded_packets_groups_and_fragments_are_no_flows_of_the_host() {
        let mut lab = lab();
        assert!(!lab.sends(&frame(6, 1, 80, SYN_ACK), 0), "an answer");
        assert!(!lab.sends(&frame(6, 7, 40000, SYN), 0), "not the router's address");
        assert!(!lab.sends(&frame(1, 1, 0, SYN), 0), "no ports");
        let mut to_group = frame(17, 1, 40000, 0);
        to_group[14 + 16] = 224;
        assert!(!lab.sends(&to_group, 0));
        let mut fragment = frame(17, 1, 40000, 0);
        fragment[14 + 7] = 1;
        assert!(!lab.sends(&fragment, 0));
        for cut in 0..40 {
            lab.sends(&frame(17, 1, 40000, 0)[..cut], 0);
        }
    }

    #[test]
    fn many_new_flows_are_told_at_a_rate() {
        let mut lab = lab();
        let mut told = |seconds| {
            (0..1000_u16)
                .filter(|port| {
                    lab.sends(&frame(6, 1, 1000 * (1 + seconds as u16) + port, SYN), seconds)
                })
                .count()
        };
        assert_eq!((told(0), told(1), told(30)), (64, 64, 64));
        assert_eq!(lab.learned.learning.unlearned(PORT), 3 * (1000 - 64));
    }

    #[test]
    fn a_port_that_does_not_learn_tells_nothing() {
        let mut lab = lab();
        lab.learned.learning.set(PORT, false);
        assert!(!lab.learner.is_on() && !lab.sends(&frame(6, 1, 1, SYN), 0));
    }
}
