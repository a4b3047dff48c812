//! The kernel's connections as flows of a table, followed as they come, last and go.
//!
//! ```text
//!   events: UPDATE, DESTROY --+                        +--> table: put, end, remove
//!   all, each second ---------+--> Follower (a thread) +--> kernel: window checks off, timeouts renewed
//!   use of flows in the table +
//! ```
//!
//! The kernel announces connections that began when nobody listened only in part (`nf_conntrack_events` is 2), and loses
//! announcements when they are too many. So all connections are read each second, or after twenty times the duration of
//! that, if it is longer; and at once after a loss.
//!
//! The kernel sees no packet of a flow that is taken and would let its connection expire. The follower looks at the use of
//! each flow in the table, and tells the kernel the time that is left since its last packet, as the kernel itself would have it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Error;
use crate::conntrack::{self, Flow, State, Tuple};
use crate::netlink::{Connection, Family, Socket};
use crate::worker::{Waits, Wake, Worker};

/// Time between readings of all connections.
const INTERVAL: Duration = Duration::from_secs(1);

/// All connections are read again at the earliest after this multiple of the time that it took last.
const PAUSE: u32 = 20;

/// Time for which packets of an ended flow that were taken can still be returned.
const GRACE: Duration = Duration::from_secs(1);

/// Looks at a flow in the time after which it expires, and the longest time between them.
const LOOKS: u32 = 4;
const LOOK_LATEST: Duration = Duration::from_secs(60);

/// Time until the first look at a flow. The kernel may have seen some packets since it was prepared for those that it does
/// not see, and is prepared again when the timeout is renewed.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Name of the thread.
const THREAD: &str = "conntrack";

/// A table of flows whose packets are taken from the kernel.
pub trait Table {
    /// Returns true if packets to this address are forwarded by what takes them.
    fn forwards(&self, address: IpAddr) -> bool;
    /// Adds a flow.
    ///
    /// # Errors
    /// There is no room.
    fn put(&mut self, flow: &Flow) -> io::Result<()>;
    /// Takes no packet of a flow any more.
    fn end(&mut self, flow: &Flow);
    /// Removes an ended flow.
    fn remove(&mut self, flow: &Flow);
    /// Returns the time since the last packet of a flow that was taken; `None`: none was.
    fn quiet(&self, flow: &Flow) -> Option<Duration>;
}

/// Numbers of flows.
#[derive(Debug, Default)]
pub struct Counts {
    /// Flows in the table.
    pub known: AtomicU64,
    /// Flows that were left to the kernel because the table was full.
    pub refused: AtomicU64,
    /// Flows that have ended.
    pub ended: AtomicU64,
    /// Timeouts of the kernel's that were renewed.
    pub renewed: AtomicU64,
    /// Times at which announcements of the kernel's were lost.
    pub lost: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A flow in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    flow: Flow,
    /// The time of its last packet, as the kernel knows it.
    told: Instant,
    /// The time of the next look at its use.
    look: Instant,
}

/// The times after which the kernel's connections expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timeouts {
    tcp: Duration,
    udp: Duration,
}

impl Timeouts {
    /// Reads them; the kernel's defaults where it does not tell.
    fn read() -> Self {
        let read = |name: &str, default: u64| {
            let text = fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
            let number = text.ok().and_then(|text| text.trim().parse().ok());
            Duration::from_secs(number.unwrap_or(default))
        };
        Self { tcp: read("tcp_timeout_established", 432_000), udp: read("udp_timeout_stream", 120) }
    }

    fn of(self, flow: &Flow) -> Duration {
        if flow.is_tcp() { self.tcp } else { self.udp }
    }
}

/// Returns the time between two looks at the use of a flow that expires after this time.
fn between_looks(expires: Duration) -> Duration {
    (expires / LOOKS).clamp(Duration::from_secs(1), LOOK_LATEST)
}

/// Requests to the kernel.
trait Kernel {
    /// Changes a connection, see [`conntrack::change`].
    ///
    /// # Errors
    /// The kernel refuses; it is not found if the connection has gone.
    fn change(&mut self, flow: &Flow, expires: Option<Duration>) -> io::Result<()>;
}

impl Kernel for Connection {
    fn change(&mut self, flow: &Flow, expires: Option<Duration>) -> io::Result<()> {
        self.order(&conntrack::change(flow, expires))
    }
}

/// The flows of a table, without I/O but by its parameters.
struct Followed<T> {
    table: T,
    counts: Arc<Counts>,
    /// By the original direction.
    known: BTreeMap<Tuple, Known>,
    /// In the order of looks.
    looks: BTreeSet<(Instant, Tuple)>,
    /// Those whose packets may still be returned until the time, oldest first.
    ended: VecDeque<(Instant, Flow)>,
    timeouts: Timeouts,
    complains: bool,
}

impl<T: Table> Followed<T> {
    fn new(table: T, counts: Arc<Counts>) -> Self {
        Self {
            table,
            counts,
            known: BTreeMap::new(),
            looks: BTreeSet::new(),
            ended: VecDeque::new(),
            timeouts: Timeouts::read(),
            complains: true,
        }
    }

    /// Follows what the kernel says about a connection.
    fn follow(&mut self, kernel: &mut impl Kernel, (flow, state): (Flow, State), now: Instant) {
        let known = self.known.get(&flow.original).map(|known| known.flow);
        match (known, state) {
            (Some(known), State::Ended | State::Kernel) if known.number == flow.number => {
                self.end(&known, now);
            }
            // Addresses and ports of a connection that has gone.
            (Some(known), State::Flow | State::Kernel) if known.number != flow.number => {
                self.end(&known, now);
                self.begin(kernel, flow, state, now);
            }
            (None, _) => self.begin(kernel, flow, state, now),
            _ => {}
        }
    }

    fn begin(&mut self, kernel: &mut impl Kernel, flow: Flow, state: State, now: Instant) {
        // The destinations of both directions, as their packets are sent.
        let destinations = [flow.reply.source, flow.original.source];
        if state != State::Flow || !destinations.into_iter().all(|of| self.table.forwards(of)) {
            return;
        }
        // The kernel is prepared before it misses a packet.
        if kernel.change(&flow, None).is_err() {
            return;
        }
        self.ended.retain(|(_, ended)| ended.original != flow.original);
        if let Err(error) = self.table.put(&flow) {
            count(&self.counts.refused);
            if std::mem::take(&mut self.complains) {
                tracing::warn!(
                    "flows: some stay with the kernel: the table takes no more: {error}"
                );
            }
            return;
        }
        let look = now + FIRST_LOOK;
        self.known.insert(flow.original, Known { flow, told: now, look });
        self.looks.insert((look, flow.original));
        self.count_known();
    }

    fn end(&mut self, flow: &Flow, now: Instant) {
        let Some(known) = self.known.remove(&flow.original) else { return };
        self.looks.remove(&(known.look, flow.original));
        self.table.end(&known.flow);
        self.ended.push_back((now + GRACE, known.flow));
        count(&self.counts.ended);
        self.count_known();
    }

    fn count_known(&self) {
        self.counts.known.store(self.known.len() as u64, Ordering::Relaxed);
    }

    /// Takes up all flows that the kernel has; those that it does not have end.
    fn follow_all(&mut self, kernel: &mut impl Kernel, all: Vec<(Flow, State)>, now: Instant) {
        let there: BTreeSet<Flow> = all.iter().map(|(flow, _)| *flow).collect();
        let gone: Vec<Flow> = self.known.values().map(|known| known.flow).collect();
        for flow in gone.iter().filter(|flow| !there.contains(flow)) {
            self.end(flow, now);
        }
        for one in all {
            self.follow(kernel, one, now);
        }
    }

    /// Looks at the use of flows whose time has come, and renews timeouts of those that were in use.
    fn look(&mut self, kernel: &mut impl Kernel, now: Instant) {
        while let Some((when, flow)) = self.looks.first().copied()
            && when <= now
        {
            self.looks.remove(&(when, flow));
            let Some(known) = self.known.get_mut(&flow) else { continue };
            let expires = self.timeouts.of(&known.flow);
            known.look = now + between_looks(expires);
            self.looks.insert((known.look, flow));
            let known = *known;
            self.renew(kernel, known, now);
        }
        while self.ended.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, flow)) = self.ended.pop_front() {
                self.table.remove(&flow);
            }
        }
    }

    /// Renews the timeout of a flow that was in use since the kernel was told.
    fn renew(&mut self, kernel: &mut impl Kernel, known: Known, now: Instant) {
        let quiet = self.table.quiet(&known.flow);
        let Some(last) = quiet.and_then(|quiet| now.checked_sub(quiet)) else { return };
        if last <= known.told {
            return;
        }
        let left = self.timeouts.of(&known.flow).saturating_sub(now - last);
        match kernel.change(&known.flow, Some(left)) {
            Ok(()) => {
                count(&self.counts.renewed);
                self.known.entry(known.flow.original).and_modify(|known| known.told = last);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.end(&known.flow, now),
            // The next look tries again.
            Err(_) => {}
        }
    }

    /// Tells the kernel the use of all flows, which are its own from now on.
    fn finish(&mut self, kernel: &mut impl Kernel, now: Instant) {
        let all: Vec<Known> = self.known.values().copied().collect();
        for known in all {
            self.renew(kernel, known, now);
        }
    }

    /// Returns the time at which there is something to do.
    fn due(&self) -> Option<Instant> {
        let look = self.looks.first().map(|(when, _)| *when);
        let removal = self.ended.front().map(|(when, _)| *when);
        look.into_iter().chain(removal).min()
    }
}

/// A thread that follows connections. Ends when this is dropped.
#[derive(Debug)]
pub struct Follower {
    _worker: Worker,
    counts: Arc<Counts>,
}

impl Follower {
    /// Starts to follow the connections of the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel does not tell its connections, or no thread can be started.
    pub fn start(table: impl Table + Send + 'static) -> Result<Self, Error> {
        let events =
            Socket::open(Family::Netfilter, conntrack::GROUPS).map_err(Error::Connections)?;
        let mut kernel = Connection::open(Family::Netfilter).map_err(Error::Connections)?;
        let all = kernel.dump(&conntrack::all(), read_flow).map_err(Error::Connections)?;
        let counts = Arc::<Counts>::default();
        let mut followed = Followed::new(table, counts.clone());
        let body = move |waits| {
            followed.follow_all(&mut kernel, all, Instant::now());
            run(followed, kernel, &events, &waits);
        };
        Ok(Self { _worker: Worker::start(THREAD, body)?, counts })
    }

    /// Returns the numbers of flows.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Returns an error if the kernel of the calling thread's network namespace does not tell its connections.
///
/// # Errors
/// The kernel's.
pub fn examine() -> Result<(), Error> {
    let mut kernel = Connection::open(Family::Netfilter).map_err(Error::Connections)?;
    kernel.dump(&conntrack::all(), |_| None::<()>).map_err(Error::Connections)?;
    Ok(())
}

/// Reads a connection whose packets may be taken.
fn read_flow(raw: &crate::netlink::Raw<'_>) -> Option<(Flow, State)> {
    conntrack::read(raw).filter(|(_, state)| *state == State::Flow)
}

fn run<T: Table>(
    mut followed: Followed<T>,
    mut kernel: Connection,
    events: &Socket,
    waits: &Waits,
) {
    let (mut buffer, mut all_due) = (Vec::new(), Instant::now() + INTERVAL);
    loop {
        let now = Instant::now();
        let each = |raw: &crate::netlink::Raw<'_>| {
            if let Some(one) = conntrack::read(raw) {
                followed.follow(&mut kernel, one, now);
            }
        };
        if events.drain(&mut buffer, each).is_err() {
            count(&followed.counts.lost);
            all_due = now;
        }
        if all_due <= now {
            followed.timeouts = Timeouts::read();
            match kernel.dump(&conntrack::all(), read_flow) {
                Ok(all) => followed.follow_all(&mut kernel, all, now),
                Err(error) => tracing::warn!("flows: the kernel does not tell them: {error}"),
            }
            all_due = Instant::now() + INTERVAL.max(now.elapsed() * PAUSE);
        }
        followed.look(&mut kernel, Instant::now());
        let due = followed.due().map_or(all_due, |due| due.min(all_due));
        let left = due.saturating_duration_since(Instant::now());
        if waits.wait([events.as_fd()], left) == Wake::Stop {
            followed.finish(&mut kernel, Instant::now());
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that keeps a record.
    #[derive(Default)]
    struct Record {
        local: Option<IpAddr>,
        full: bool,
        flows: BTreeMap<Tuple, Option<Duration>>,
        ended: Vec<Flow>,
        removed: Vec<Flow>,
    }

    impl Table for Record {
        fn forwards(&self, address: IpAddr) -> bool {
            self.local != Some(address)
        }

        fn put(&mut self, flow: &Flow) -> io::Result<()> {
            if self.full {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.flows.insert(flow.original, None);
            Ok(())
        }

        fn end(&mut self, flow: &Flow) {
            self.flows.remove(&flow.original);
            self.ended.push(*flow);
        }

        fn remove(&mut self, flow: &Flow) {
            self.removed.push(*flow);
        }

        fn quiet(&self, flow: &Flow) -> Option<Duration> {
            self.flows[&flow.original]
        }
    }

    /// Requests that the kernel got, and its answer.
    #[derive(Default)]
    struct Requests {
        all: Vec<(Flow, Option<Duration>)>,
        error: Option<io::ErrorKind>,
    }

    impl Kernel for Requests {
        fn change(&mut self, flow: &Flow, expires: Option<Duration>) -> io::Result<()> {
            self.all.push((*flow, expires));
            self.error.map_or(Ok(()), |error| Err(error.into()))
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn flow(port: u16, number: u32) -> Flow {
        let tuple = |source: &str, source_port, destination: &str, destination_port| Tuple {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port,
            destination_port,
            protocol: 17,
        };
        let original = tuple("10.0.1.2", port, "10.0.2.2", 53);
        Flow { original, reply: tuple("10.0.2.2", 53, "10.0.2.1", port), number }
    }

    fn followed() -> (Followed<Record>, Requests, Instant) {
        let mut followed = Followed::new(Record::default(), Arc::default());
        followed.timeouts = Timeouts { tcp: 400 * SECOND, udp: 120 * SECOND };
        (followed, Requests::default(), Instant::now())
    }

    #[test]
    fn a_flow_is_in_the_table_as_long_as_the_kernel_has_it() {
        let (mut followed, mut kernel, now) = followed();
        let one = flow(1, 7);
        followed.follow(&mut kernel, (one, State::Untold), now);
        followed.follow(&mut kernel, (one, State::Kernel), now);
        assert!(followed.table.flows.is_empty() && kernel.all.is_empty());
        followed.follow(&mut kernel, (one, State::Flow), now);
        followed.follow(&mut kernel, (one, State::Flow), now);
        assert_eq!(kernel.all, [(one, None)], "once, before it is taken");
        assert!(followed.table.flows.contains_key(&one.original));
        // What another connection before did.
        followed.follow(&mut kernel, (flow(1, 6), State::Ended), now);
        followed.follow(&mut kernel, (one, State::Untold), now);
        assert!(followed.table.ended.is_empty());
        followed.follow(&mut kernel, (one, State::Kernel), now);
        assert_eq!(followed.table.ended, [one]);
        followed.look(&mut kernel, now + GRACE / 2);
        assert!(followed.table.removed.is_empty(), "packets may be on their way");
        assert_eq!(followed.due(), Some(now + GRACE));
        followed.look(&mut kernel, now + GRACE);
        assert_eq!(followed.due(), None);
        assert_eq!(followed.table.removed, [one]);
    }

    #[test]
    fn a_connection_in_the_place_of_another_is_another_flow() {
        let (mut followed, mut kernel, now) = followed();
        followed.follow(&mut kernel, (flow(1, 7), State::Flow), now);
        followed.follow(&mut kernel, (flow(1, 8), State::Flow), now);
        assert_eq!(followed.table.ended, [flow(1, 7)]);
        followed.look(&mut kernel, now + 2 * GRACE);
        assert!(followed.table.removed.is_empty(), "the place is taken");
        assert!(followed.table.flows.contains_key(&flow(1, 8).original));
    }

    #[test]
    fn flows_of_the_machine_itself_and_refused_ones_are_the_kernels() {
        let (mut followed, mut kernel, now) = followed();
        for local in ["10.0.1.2", "10.0.2.2"] {
            followed.table.local = Some(local.parse().unwrap());
            followed.follow(&mut kernel, (flow(1, 7), State::Flow), now);
        }
        followed.table.local = None;
        kernel.error = Some(io::ErrorKind::NotFound);
        followed.follow(&mut kernel, (flow(1, 7), State::Flow), now);
        assert!(followed.table.flows.is_empty());
        (kernel.error, followed.table.full) = (None, true);
        followed.follow(&mut kernel, (flow(1, 7), State::Flow), now);
        assert!(followed.table.flows.is_empty() && followed.known.is_empty());
        assert_eq!(followed.counts.refused.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn all_flows_are_those_of_the_kernel() {
        let (mut followed, mut kernel, now) = followed();
        for port in [1, 2, 3] {
            followed.follow(&mut kernel, (flow(port, 7), State::Flow), now);
        }
        let all =
            vec![(flow(2, 7), State::Flow), (flow(3, 8), State::Flow), (flow(4, 7), State::Flow)];
        followed.follow_all(&mut kernel, all, now);
        assert_eq!(followed.table.ended, [flow(1, 7), flow(3, 7)]);
        let known: Vec<Flow> = followed.known.values().map(|known| known.flow).collect();
        assert_eq!(known, [flow(2, 7), flow(3, 8), flow(4, 7)]);
        assert_eq!(followed.counts.known.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn timeouts_are_renewed_for_flows_in_use_alone() {
        let (mut followed, mut kernel, now) = followed();
        let (used, unused) = (flow(1, 7), flow(2, 7));
        for one in [used, unused] {
            followed.follow(&mut kernel, (one, State::Flow), now);
        }
        kernel.all.clear();
        assert_eq!(followed.due(), Some(now + FIRST_LOOK), "soon");
        followed.look(&mut kernel, now + FIRST_LOOK);
        assert!(kernel.all.is_empty());
        let due = followed.due().unwrap();
        assert_eq!(due, now + FIRST_LOOK + 30 * SECOND, "a quarter of the time");
        followed.table.flows.insert(used.original, Some(5 * SECOND));
        followed.look(&mut kernel, due);
        assert_eq!(kernel.all, [(used, Some(115 * SECOND))], "from its last packet on");
        // It has been silent since.
        followed.table.flows.insert(used.original, Some(35 * SECOND));
        followed.look(&mut kernel, due + 30 * SECOND);
        assert_eq!(kernel.all.len(), 1);
        // The kernel has no such connection any more.
        followed.table.flows.insert(used.original, Some(SECOND));
        kernel.error = Some(io::ErrorKind::NotFound);
        followed.look(&mut kernel, due + 60 * SECOND);
        assert_eq!(followed.table.ended, [used]);
    }

    #[test]
    fn the_kernel_is_told_all_at_the_end() {
        let (mut followed, mut kernel, now) = followed();
        followed.follow(&mut kernel, (flow(1, 7), State::Flow), now);
        kernel.all.clear();
        followed.table.flows.insert(flow(1, 7).original, Some(SECOND));
        followed.finish(&mut kernel, now + 5 * SECOND);
        assert_eq!(kernel.all, [(flow(1, 7), Some(119 * SECOND))]);
    }

    #[test]
    fn looks_are_neither_rare_nor_too_many() {
        assert_eq!(between_looks(120 * SECOND), 30 * SECOND);
        assert_eq!(between_looks(432_000 * SECOND), LOOK_LATEST);
        assert_eq!(between_looks(SECOND), SECOND);
    }
}
