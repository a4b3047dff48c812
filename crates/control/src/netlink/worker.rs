//! The thread that communicates with the kernel.
//!
//! ```text
//!   notifications --> Model ----> pending ----> channel to the owner
//!   dump socket ----^                ^ at most PENDING batches, then the kernel's buffer fills
//!   request socket <---- orders
//! ```
//!
//! # Another namespace
//!
//! A thread can move to another network namespace, where its sockets are opened anew and everything is read. The model
//! forgets what it knew and says at the end of the reading what is not there any more. A neighbour that packets are
//! sent to is resolved in the new namespace first, and withdrawn only if that fails: no packet has to wait.
//!
//! # Overruns
//!
//! When the kernel has dropped messages, everything is read again. Notifications that arrive during
//! the dump are held back and applied after it, because a part of the dump may be older than
//! they are. Then everything that neither contained is removed. If messages were dropped during a
//! dump, another follows, with pauses that grow to a second, until none are lost: an unchanged
//! route is in every dump, so it is never touched.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use libc::{EEXIST, ENOENT, EOPNOTSUPP};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::event::{
    Apart, AuditReport, Following, KernelOrder, Move, Seat, SourceEvent, SourceState, SourceStatus,
};
use super::message::{
    Malformed, Messages, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN,
    RTM_NEWLINK, error_number,
};
use super::model::{Former, Model, Part};
use super::routes::{Difference, Differences, Recall};
use super::socket::{self, Received, Socket, group};
use super::{BATCH_MOST, Error, Interfaces, KernelConfig, batches, request};
use crate::rib::RouteSource;

/// Batches that wait for the owner before reading from the kernel stops.
const PENDING: usize = 64;

/// Datagrams that are read before other work is done.
const BURST: usize = 4096;

/// Datagrams are at most 32 KiB, except those about interfaces with many functions.
const BUFFER: usize = 256 * 1024;

/// Most bytes of notifications that are held back.
const HELD: usize = 512 << 20;

/// Attempts to read one part before an interrupted dump is accepted.
const INTERRUPTED: usize = 5;

/// Consecutive failed dumps before the thread gives up.
const FAILURES: u32 = 10;

/// Most orders that wait for their interface.
const WAITING: usize = 1024;

/// Longest time for which a change of an interface's all-multicast state is not noticed.
const ASK_LINKS: Duration = Duration::from_secs(1);

/// Time for which a neighbour that the namespace before had is resolved in the new one.
const RESOLVING: Duration = Duration::from_secs(5);

/// Time to wait for a dump, which the kernel answers immediately.
const TIMEOUT_S: i64 = 10;

/// The thread's ends of the owner's channels.
pub(super) struct Ends {
    pub(super) events: mpsc::Sender<Vec<SourceEvent>>,
    pub(super) orders: mpsc::Receiver<KernelOrder>,
    pub(super) interfaces: watch::Sender<Arc<Interfaces>>,
    pub(super) status: watch::Sender<SourceStatus>,
}

pub(super) struct Worker {
    apart: Option<Apart>,
    following: Following,
    /// The subjects to be followed after the present dump.
    wanted: Option<Following>,
    /// The namespace to move to after the present dump.
    moving: Option<Move>,
    /// State of the namespace before, until the new one has been read.
    former: Option<Former>,
    /// When neighbours of the namespace before are given up.
    patience: Option<Instant>,
    /// The owner has not had a first dump of the routes.
    first: bool,
    next_audit: Option<Instant>,
    model: Model,
    notifications: Arc<AsyncFd<Socket>>,
    dumps: Socket,
    requests: Arc<AsyncFd<Socket>>,
    ends: Ends,
    pending: VecDeque<Vec<SourceEvent>>,
    buffer: Vec<u8>,
    /// Notifications received during a dump.
    held: Vec<u8>,
    overrun: bool,
    sequence: u32,
    /// Requests whose refusal is logged.
    named: VecDeque<(u32, String)>,
    waiting: Vec<KernelOrder>,
    audits: Vec<oneshot::Sender<AuditReport>>,
    audit_due: bool,
    sync_due: bool,
    refusals: u64,
    failures: u32,
    status: SourceStatus,
    published: Instant,
    /// Time of the last request for the links' state.
    asked: Instant,
}

/// Reason why the thread ends.
enum End {
    /// The owner has closed its channels.
    Unwanted,
    Failed(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Result of reading one part.
struct DumpResult {
    interrupted: bool,
    unsupported: bool,
}

/// Use of the messages of a dump.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Take,
    Compare,
}

impl Worker {
    /// Opens the sockets, in the thread's namespace and runtime.
    pub(super) fn new(config: KernelConfig, ends: Ends) -> Result<Self, Error> {
        let named = |what: &str| {
            let what = what.to_owned();
            move |error| Error::Socket { what, error }
        };
        let notifications = notification_socket(&config.following)
            .map_err(named("netlink socket for notifications"))?;
        let dumps = dump_socket().map_err(named("netlink socket for dumps"))?;
        let requests = Socket::open(0).map_err(named("netlink socket for requests"))?;
        let requests = watch_readable(requests).map_err(named("netlink socket for requests"))?;
        let following = config.following;
        Ok(Self {
            apart: config.apart,
            model: Model::new(&config),
            notifications: Arc::new(notifications),
            dumps,
            requests: Arc::new(requests),
            following,
            wanted: None,
            moving: None,
            former: None,
            patience: None,
            first: following.routes,
            next_audit: None,
            ends,
            pending: VecDeque::new(),
            buffer: vec![0; BUFFER],
            held: Vec::new(),
            overrun: false,
            sequence: 0,
            named: VecDeque::new(),
            waiting: Vec::new(),
            audits: Vec::new(),
            audit_due: false,
            sync_due: true,
            refusals: 0,
            failures: 0,
            status: SourceStatus::default(),
            published: Instant::now(),
            asked: Instant::now(),
        })
    }

    /// Runs until the owner closes its channels, or netlink fails.
    pub(super) async fn run(mut self) {
        if let Err(End::Failed(error)) = self.turn().await {
            tracing::error!("kernel: netlink has failed, no changes are seen any more: {error}");
            self.status.state = SourceState::Failed;
            self.publish();
        }
    }

    async fn turn(&mut self) -> Result<(), End> {
        let mut tick = interval(Duration::from_millis(200));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.postpone_audit();
        loop {
            if let Some(wanted) = self.wanted.take() {
                self.follow(wanted)?;
            }
            if let Some(to) = self.moving.take() {
                self.move_to(to)?;
            }
            if self.sync_due || self.audit_due {
                match self.read_everything().await {
                    Err(End::Failed(error)) => self.try_again(error).await?,
                    other => other?,
                }
                self.postpone_audit();
                continue;
            }
            let events = self.ends.events.clone();
            let (notifications, requests) = (self.notifications.clone(), self.requests.clone());
            // Polled in random order: neither endless orders nor endless notifications block the
            // others.
            tokio::select! {
                order = self.ends.orders.recv() => self.handle(order.ok_or(End::Unwanted)?),
                permit = events.reserve(), if !self.pending.is_empty() => {
                    let batch = self.pending.pop_front().unwrap_or_default();
                    permit.map_err(|_| End::Unwanted)?.send(batch);
                }
                ready = requests.readable() => {
                    self.read_refusals()?;
                    ready?.clear_ready();
                }
                ready = notifications.readable(), if self.pending.len() < PENDING => {
                    let mut ready = ready?;
                    if self.read_notifications(false)? {
                        ready.clear_ready();
                    }
                }
                _ = at(self.next_audit) => self.audit_due = true,
                _ = tick.tick() => self.tick(),
            }
            self.collect();
            if self.published.elapsed() > Duration::from_millis(100) {
                self.publish();
            }
        }
    }

    fn postpone_audit(&mut self) {
        self.next_audit = self.following.audit.map(|every| Instant::now() + every);
    }

    /// Changes the followed subjects, between two dumps.
    fn follow(&mut self, wanted: Following) -> Result<(), End> {
        let before = std::mem::replace(&mut self.following, wanted);
        self.postpone_audit();
        if before.receive_buffer != wanted.receive_buffer || before.routes != wanted.routes {
            // Messages that the old socket has not received are part of the following dump.
            self.notifications = Arc::new(notification_socket(&wanted)?);
            self.sync_due = true;
        }
        if before.routes != wanted.routes {
            self.first = wanted.routes;
            self.model.follow_routes(wanted.routes);
        }
        self.collect();
        self.publish();
        Ok(())
    }

    /// Moves to another namespace, between two dumps. The thread stays where it is if it cannot.
    fn move_to(&mut self, to: Move) -> Result<(), End> {
        let Move { namespace, seats, moved } = to;
        if let Err(error) = socket::enter(&namespace) {
            tracing::error!("kernel: the other network namespace cannot be entered: {error}");
            return Ok(());
        }
        self.collect();
        self.notifications = Arc::new(notification_socket(&self.following)?);
        self.dumps = dump_socket()?;
        self.requests = Arc::new(watch_readable(Socket::open(0)?)?);
        self.named.clear();
        drop(moved);
        let former = self.model.leave();
        // Before they are read, so that they are the same as before if they can be.
        for Seat { port, index, addresses } in seats {
            for address in addresses {
                let sequence = self.next_sequence();
                self.named.push_back((
                    sequence,
                    format!("{:?}", KernelOrder::AddAddress { port, address }),
                ));
                self.requests.get_ref().send(&request::add_address(index, address, sequence))?;
            }
            for &(_, address) in former.neighbours.iter().filter(|(of, _)| *of == port) {
                let sequence = self.next_sequence();
                self.requests.get_ref().send(&request::resolve(index, address, sequence))?;
            }
        }
        self.model.resolving.extend(former.neighbours.iter().copied());
        self.former = Some(former);
        self.patience = Some(Instant::now() + RESOLVING);
        (self.first, self.sync_due) = (self.following.routes, true);
        self.publish();
        Ok(())
    }

    /// Work that is done from time to time.
    fn tick(&mut self) {
        self.ask_links();
        self.model.send_found();
        if self.patience.take_if(|until| *until <= Instant::now()).is_some() {
            self.model.give_up_resolving();
        }
    }

    /// Reads everything or compares everything, whichever is due.
    async fn read_everything(&mut self) -> Result<(), End> {
        if self.sync_due {
            self.sync().await?;
        } else if std::mem::take(&mut self.audit_due) {
            self.audit().await?;
        }
        self.failures = 0;
        Ok(())
    }

    /// Handles a failed dump: another is begun after a pause, unless many have failed in a row.
    async fn try_again(&mut self, error: io::Error) -> Result<(), End> {
        self.failures += 1;
        self.refusals += 1;
        if self.failures == FAILURES {
            return Err(End::Failed(error));
        }
        tracing::warn!("kernel: {error}; reading everything again");
        self.publish();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The rest of the last answer is discarded with its socket.
        self.dumps = dump_socket()?;
        self.sync_due = true;
        Ok(())
    }

    /// Reads the waiting notifications; with `hold` they are kept for later. Returns true if none
    /// are left.
    fn read_notifications(&mut self, hold: bool) -> Result<bool, End> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut result = Ok(false);
        for _ in 0..BURST {
            match self.notifications.get_ref().receive(&mut buffer, false) {
                Ok(Received::Bytes(length)) if hold => self.hold(&buffer[..length]),
                Ok(Received::Bytes(length)) => self.take_news(&buffer[..length]),
                Ok(Received::Truncated | Received::Overrun) => self.lose(),
                Ok(Received::Nothing) => {
                    result = Ok(true);
                    break;
                }
                Err(error) => {
                    result = Err(error.into());
                    break;
                }
            }
        }
        self.buffer = buffer;
        result
    }

    /// Handles lost messages: everything has to be read again.
    fn lose(&mut self) {
        self.status.overruns += 1;
        self.overrun = true;
        if !self.sync_due {
            tracing::warn!(
                "kernel: messages were lost ({} times); reading everything again",
                self.status.overruns
            );
        }
        self.sync_due = true;
    }

    fn hold(&mut self, bytes: &[u8]) {
        if self.held.len() + bytes.len() > HELD {
            self.lose();
            return;
        }
        self.held.extend_from_slice(bytes);
        self.held.resize(self.held.len().next_multiple_of(4), 0);
    }

    fn take_news(&mut self, bytes: &[u8]) {
        for message in Messages(bytes) {
            match message {
                Ok(raw) if raw.kind == NLMSG_OVERRUN => self.lose(),
                Ok(raw) if raw.kind <= NLMSG_DONE => {}
                Ok(raw) => self.model.on_notification(&raw),
                Err(error) => self.model.malformed(&error),
            }
        }
    }

    /// Moves the model's events to the queue for the owner.
    fn collect(&mut self) {
        let misplaced = self.model.misplaced();
        misplaced.into_iter().for_each(|(name, index, device)| self.place(&name, index, device));
        if let Some(interfaces) = self.model.interfaces() {
            self.ends.interfaces.send_replace(Arc::new(interfaces));
            let waiting = std::mem::take(&mut self.waiting);
            waiting.into_iter().for_each(|order| self.handle(order));
        }
        if std::mem::take(&mut self.model.stale_ports) {
            self.sync_due = true;
        }
        let mut events = self.model.routes.take_events();
        if let Some(apart) = self.apart {
            let of_vrf = |event| SourceEvent::Apart(apart, Box::new(event));
            events = events.into_iter().map(of_vrf).collect();
        }
        self.pending.extend(batches(events));
        while !self.pending.is_empty()
            && let Ok(permit) = self.ends.events.try_reserve()
        {
            permit.send(self.pending.pop_front().unwrap_or_default());
        }
    }

    /// Puts a host interface into a VRF device, or takes it out.
    fn place(&mut self, name: &str, index: u32, device: Option<u32>) {
        let sequence = self.next_sequence();
        let what =
            if device.is_some() { "put into its VRF device" } else { "out of its VRF device" };
        self.named.push_back((sequence, format!("{name} {what}")));
        // The kernel sets the interface down and up meanwhile, by which IPv6 addresses are lost unless they are to be
        // kept. It makes the change before the request returns.
        let file = format!("/proc/sys/net/ipv6/conf/{name}/keep_addr_on_down");
        let kept = std::fs::read_to_string(&file).ok();
        if kept.is_some() && std::fs::write(&file, "1").is_err() {
            tracing::warn!("kernel: {file} cannot be written: {name} may lose IPv6 addresses");
        }
        if let Err(error) = self.requests.get_ref().send(&request::master(index, device, sequence))
        {
            self.refusals += 1;
            tracing::warn!("kernel: {name} {what}: {error}");
        }
        if let Some(before) = &kept {
            let _ = std::fs::write(&file, before.trim());
        }
    }

    /// Periodically requests the state of the ports' interfaces: the kernel sends no notification
    /// when a daemon makes one receive all multicasts.
    fn ask_links(&mut self) {
        if self.asked.elapsed() < ASK_LINKS {
            return;
        }
        self.asked = Instant::now();
        for index in self.model.port_indexes() {
            let sequence = self.next_sequence();
            // On an error it is requested again the next time.
            let _ = self.requests.get_ref().send(&request::ask_link(index, sequence));
        }
    }

    /// Handles notifications, orders and events during a dump.
    async fn meanwhile(&mut self, hold: bool) -> Result<(), End> {
        let notifications = self.notifications.clone();
        loop {
            let all = self.read_notifications(hold)?;
            while let Ok(order) = self.ends.orders.try_recv() {
                self.handle(order);
            }
            self.collect();
            if self.published.elapsed() > Duration::from_millis(100) {
                self.publish();
            }
            if self.pending.len() < PENDING {
                return Ok(());
            }
            let events = self.ends.events.clone();
            tokio::select! {
                permit = events.reserve() => {
                    let batch = self.pending.pop_front().unwrap_or_default();
                    permit.map_err(|_| End::Unwanted)?.send(batch);
                }
                ready = notifications.readable() => {
                    let mut ready = ready?;
                    if all {
                        ready.clear_ready();
                    }
                }
            }
        }
    }

    /// Reads everything, repeatedly until no messages are lost during a dump.
    async fn sync(&mut self) -> Result<(), End> {
        let first = self.first;
        self.status.state = SourceState::Synchronising;
        if first {
            self.model.routes.push(SourceEvent::ResyncBegin(RouteSource::Kernel));
        }
        self.publish();
        let mut pause = Duration::from_millis(20);
        loop {
            (self.sync_due, self.overrun) = (false, false);
            self.sync_once().await?;
            if !self.overrun {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            // Notifications received until now are older than the next dump.
            self.read_notifications(false)?;
        }
        self.status.resyncs += 1;
        self.status.last_resync = Some(SystemTime::now());
        self.status.state = SourceState::Synchronised;
        self.model.send_found();
        if first {
            self.first = false;
            self.model.routes.push(SourceEvent::ResyncEnd(RouteSource::Kernel));
            self.model.forget_locals();
        }
        if let Some(former) = self.former.take() {
            self.model.withdraw(former);
        }
        self.collect();
        self.publish();
        Ok(())
    }

    async fn sync_once(&mut self) -> Result<(), End> {
        self.held.clear();
        self.model.begin_sync();
        let parts = if self.following.routes { &Part::ALL[..] } else { &Part::ALL[..3] };
        for &part in parts {
            for attempt in 1.. {
                self.model.begin_part(part);
                let dump = self.read_part(part, Purpose::Take).await?;
                if dump.unsupported {
                    self.model.without(part);
                    break;
                }
                if !dump.interrupted || attempt == INTERRUPTED {
                    self.model.end_part(part);
                    break;
                }
            }
        }
        self.read_notifications(true)?;
        let held = std::mem::take(&mut self.held);
        self.take_news(&held);
        self.held = held;
        self.held.clear();
        self.held.shrink_to(1 << 20);
        let gone = self.model.routes.end_sync();
        if gone > 0 && self.status.resyncs > 0 {
            tracing::info!(
                "kernel: removed {gone} routes and nexthop objects that no longer exist"
            );
        }
        Ok(())
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    /// Reads one part of the kernel's state.
    async fn read_part(&mut self, part: Part, purpose: Purpose) -> Result<DumpResult, End> {
        let (kind, family, fixed) = part.request();
        let sequence = self.next_sequence();
        self.dumps.send(&request::dump(kind, family, fixed, sequence))?;
        let mut dump = DumpResult { interrupted: false, unsupported: false };
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = match self.dumps.receive(&mut buffer, true)? {
                Received::Bytes(length) => length,
                Received::Nothing => {
                    let what = format!("no answer to a request for {}", part.name());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what).into());
                }
                Received::Truncated | Received::Overrun => {
                    dump.interrupted = true;
                    continue;
                }
            };
            for message in Messages(&buffer[..length]) {
                let raw = match message {
                    Ok(raw) => raw,
                    Err(error) => {
                        self.model.malformed(&error);
                        continue;
                    }
                };
                if raw.sequence != sequence || raw.kind == NLMSG_NOOP {
                    continue;
                }
                dump.interrupted |= raw.flags & NLM_F_DUMP_INTR != 0;
                match (raw.kind, purpose) {
                    (NLMSG_DONE, _) => {
                        self.meanwhile(purpose == Purpose::Take).await?;
                        return Ok(dump);
                    }
                    (NLMSG_ERROR, _) => return self.refused(part, error_number(&raw)),
                    (_, Purpose::Take) => self.model.dumped(&raw),
                    (_, Purpose::Compare) => self.model.compare(&raw),
                }
            }
            self.meanwhile(purpose == Purpose::Take).await?;
        }
    }

    /// Handles the refusal of a request for a part, which this kernel may not support.
    fn refused(&mut self, part: Part, error: Result<i32, Malformed>) -> Result<DumpResult, End> {
        match error {
            Ok(EOPNOTSUPP) => Ok(DumpResult { interrupted: false, unsupported: true }),
            Ok(number) => {
                let error = io::Error::from_raw_os_error(number);
                let what = format!("request for {}: {error}", part.name());
                Err(io::Error::new(error.kind(), what).into())
            }
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error).into()),
        }
    }

    /// Compares the routes held with the kernel's. Only differences found twice are reported.
    async fn audit(&mut self) -> Result<(), End> {
        let begin = Instant::now();
        self.overrun = false;
        let mut differences = self.compare().await?;
        if !differences.found.is_empty() {
            // A change is visible a moment before its notification arrives.
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.meanwhile(false).await?;
            differences.confirmed_by(&self.compare().await?);
        }
        if self.overrun {
            // Nothing is proved; everything is read again, and then compared.
            self.audit_due = true;
            return Ok(());
        }
        let count = |difference| differences.count(difference);
        let report = AuditReport {
            at: SystemTime::now(),
            took: begin.elapsed(),
            compared: differences.compared,
            missing: count(Difference::Missing),
            stale: count(Difference::Stale),
            different: count(Difference::Other),
            fib: 0,
            examples: differences.examples(5),
        };
        self.recall().await?;
        self.sync_due |= !report.clean();
        for answer in self.audits.drain(..) {
            // The requester may have dropped its receiver.
            let _ = answer.send(report.clone());
        }
        self.model.routes.push(SourceEvent::Audit(report));
        self.collect();
        self.publish();
        Ok(())
    }

    /// Reports once more everything that was reported to the owner, for comparison.
    async fn recall(&mut self) -> Result<(), End> {
        self.model.routes.push(SourceEvent::AuditBegin(RouteSource::Kernel));
        let mut next = Some(Recall::default());
        while let Some(place) = next {
            next = self.model.routes.recall(place, BATCH_MOST);
            // Changes during the recall are reported in between, in order.
            self.meanwhile(false).await?;
        }
        Ok(())
    }

    async fn compare(&mut self) -> Result<Differences, End> {
        self.meanwhile(false).await?;
        self.model.routes.begin_audit();
        if self.following.routes {
            for part in [Part::Nexthops, Part::Routes4, Part::Routes6] {
                self.read_part(part, Purpose::Compare).await?;
            }
        }
        while !self.read_notifications(false)? {}
        Ok(self.model.routes.end_audit())
    }

    fn handle(&mut self, order: KernelOrder) {
        let port = order.port();
        // Numbers of interfaces of the namespace that is left mean others in the new one.
        let index = port.filter(|_| self.moving.is_none());
        let index = index.and_then(|port| self.model.index_of(port));
        let sequence = self.next_sequence();
        let request = match (&order, index) {
            (KernelOrder::Ports(ports), _) => return self.model.set_ports(ports),
            (KernelOrder::Vlans(_), _) => {
                let KernelOrder::Vlans(vlans) = order else { return };
                return self.model.set_vlans(vlans);
            }
            (&KernelOrder::Follow(wanted), _) => {
                self.wanted = Some(wanted);
                return;
            }
            (KernelOrder::Move(_), _) => {
                let KernelOrder::Move(to) = order else { return };
                self.moving = Some(to);
                return;
            }
            (KernelOrder::Vrfs(_), _) => {
                let KernelOrder::Vrfs(vrfs) = order else { return };
                return self.model.set_vrfs(vrfs);
            }
            (KernelOrder::Audit(_), _) => {
                let KernelOrder::Audit(answer) = order else { return };
                self.audits.push(answer);
                self.audit_due = true;
                return;
            }
            (KernelOrder::Resolve { .. }, None) => return,
            (_, None) => {
                // The interface is being created, or was removed.
                if self.waiting.len() < WAITING {
                    self.waiting.push(order);
                }
                return;
            }
            (&KernelOrder::Resolve { address, .. }, Some(index)) => {
                request::resolve(index, address, sequence)
            }
            (KernelOrder::SetCarrier { .. }, Some(index)) if self.model.is_vlan(index) => return,
            (&KernelOrder::SetCarrier { up, .. }, Some(index)) => {
                request::carrier(index, up, sequence)
            }
            (&KernelOrder::SetMtu { mtu, .. }, Some(index)) => request::mtu(index, mtu, sequence),
            (&KernelOrder::AddAddress { address, .. }, Some(index)) => {
                request::add_address(index, address, sequence)
            }
            (&KernelOrder::RemoveAddress { address, .. }, Some(index)) => {
                request::remove_address(index, address, sequence)
            }
        };
        if !matches!(order, KernelOrder::Resolve { .. }) {
            self.named.push_back((sequence, format!("{order:?}")));
            if self.named.len() > 256 {
                self.named.pop_front();
            }
        }
        if let Err(error) = self.requests.get_ref().send(&request) {
            self.refusals += 1;
            tracing::warn!("kernel: {order:?}: {error}");
        }
        if let (KernelOrder::SetCarrier { .. }, Some(index)) = (&order, index) {
            // The kernel reports a carrier's change up to a second later, unless the state of the
            // link is requested (`linkwatch_sync_dev`, Linux 6.14 and later). Routing daemons wait
            // for the report.
            let sequence = self.next_sequence();
            let _ = self.requests.get_ref().send(&request::ask_link(index, sequence));
        }
    }

    /// Reads the kernel's responses to requests: there are none, unless it refuses or answers them.
    fn read_refusals(&mut self) -> Result<(), End> {
        // A link with all its statistics takes some kilobytes.
        let mut buffer = vec![0; 32768];
        loop {
            let length = match self.requests.get_ref().receive(&mut buffer, false)? {
                Received::Nothing => return Ok(()),
                Received::Bytes(length) => length,
                // Only refusals are lost.
                Received::Truncated | Received::Overrun => continue,
            };
            for raw in Messages(&buffer[..length]).flatten() {
                match (raw.kind, error_number(&raw)) {
                    (NLMSG_ERROR, Ok(number)) => self.refusal(raw.sequence, number),
                    (RTM_NEWLINK, _) => self.model.asked(&raw),
                    _ => {}
                }
            }
        }
    }

    fn refusal(&mut self, sequence: u32, number: i32) {
        // An address that exists already, or is removed already, is not an error.
        if matches!(number, 0 | EEXIST | ENOENT) {
            return;
        }
        self.refusals += 1;
        if let Some((_, order)) = self.named.iter().find(|(other, _)| *other == sequence) {
            let error = io::Error::from_raw_os_error(number);
            tracing::warn!("kernel: {order} refused: {error}");
        }
    }

    fn publish(&mut self) {
        self.published = Instant::now();
        let counts = self.model.counts;
        self.status.messages = counts.messages;
        self.status.errors = counts.errors + self.refusals;
        self.status.ignored = counts.ignored;
        self.status.routes = if self.following.routes { self.model.routes.count() } else { 0 };
        self.status.groups = self.model.routes.groups();
        self.ends.status.send_replace(self.status.clone());
    }
}

/// Opens a socket for the notifications about everything that is followed.
fn notification_socket(following: &Following) -> io::Result<AsyncFd<Socket>> {
    let mut groups = group::LINK | group::NEIGH | group::IPV4_IFADDR | group::IPV6_IFADDR;
    if following.routes {
        groups |= group::IPV4_ROUTE | group::IPV6_ROUTE | group::NEXTHOP;
        groups |= group::IPV4_RULE | group::IPV6_RULE;
    }
    let notifications = Socket::open(groups)?;
    if !notifications.set_receive_buffer(following.receive_buffer)? {
        tracing::warn!(
            "no privilege (CAP_NET_ADMIN) for a netlink receive buffer of {} bytes; the limit is \
             net.core.rmem_max",
            following.receive_buffer
        );
    }
    watch_readable(notifications)
}

/// Opens a socket for dumps.
pub(super) fn dump_socket() -> io::Result<Socket> {
    let socket = Socket::open(0)?;
    socket.set_timeout(TIMEOUT_S)?;
    Ok(socket)
}

/// Registers a socket with the runtime, for notifications when it is readable.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for descriptors that change; a Socket owns its own"
)]
pub(super) fn watch_readable(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// Waits until a moment, or for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
