//! The owner's orders to the slow path.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use dataplane::class::{ByClass, ClassLimits};
use dataplane::interface::InterfaceId;
use dataplane::lock::lock;
use dataplane::punts::owner;
use dataplane::tables::Tables;
use dpdk::{Cause, Doorbell};
use slowpath::{Command, InterfaceConfig, LacpInfo, NeighbourInfo};
use tokio::sync::oneshot;

use super::super::host::HostInterface;
use super::super::wiring::{HostLink, WorkerEnds};
use super::SlowWorker;

/// An order to one worker.
pub enum Order {
    /// A change for the engine.
    Engine(Command),
    /// The kernel takes all multicasts on a port's host interface, or only those joined.
    AllMulticast {
        /// The port.
        port: InterfaceId,
        /// All.
        on: bool,
    },
    /// Gives packets to a port to this forwarder from now on.
    Connect {
        /// The port.
        port: InterfaceId,
        /// The forwarder.
        sender: usize,
        /// The port's host interface, for the worker that owns the port.
        host: Option<HostLink>,
    },
    /// The VLANs have changed.
    Vlans,
    /// Look up routes in these tables from now on.
    Tables(Arc<Tables>),
    /// The worker that owns a VLAN gets its host interface.
    AttachHost {
        /// The VLAN.
        interface: InterfaceId,
        /// Its host interface.
        host: Box<HostInterface>,
    },
    /// The worker that owns a port or VLAN uses another host interface for it from now on; the one before is returned.
    ReplaceHost {
        /// The port or VLAN.
        interface: InterfaceId,
        /// Its new host interface.
        host: Box<HostInterface>,
        /// The channel of the reply.
        answer: oneshot::Sender<HostInterface>,
    },
    /// Drops packets to a port from now on; its host interface, or a VLAN's, is returned.
    Disconnect {
        /// The port or VLAN.
        port: InterfaceId,
        /// The channel of the reply.
        answer: oneshot::Sender<Option<HostLink>>,
    },
    /// Halt until new connections arrive, or their sender is dropped.
    Halt {
        /// Reports that the worker has halted.
        halted: oneshot::Sender<()>,
        /// The new connections.
        go: Receiver<Connections>,
    },
    /// Finish what forwarders have punted, which is no more now, and leave the thread.
    Leave(oneshot::Sender<SlowWorker>),
    /// The classes have these turns from now on.
    Weights(ByClass<ClassLimits>),
    /// Send back the state of LACP.
    Bonds(oneshot::Sender<Vec<LacpInfo>>),
    /// Send back the neighbour table.
    Neighbours(oneshot::Sender<Vec<NeighbourInfo>>),
}

/// A worker's connections when there is another number of forwarders.
pub struct Connections {
    /// Each port's forwarder.
    pub senders: Vec<(InterfaceId, usize)>,
    /// To and from forwarders that are new.
    pub more: Vec<WorkerEnds>,
    /// The number of forwarders.
    pub forwarders: usize,
}

/// Halted workers, which continue when this releases them or is dropped.
pub struct Halted(Vec<Sender<Connections>>);

impl Halted {
    /// Releases them. `more` has the ends of each new forwarder by worker.
    pub fn go(
        self,
        senders: Vec<(InterfaceId, usize)>,
        forwarders: usize,
        more: Vec<Vec<WorkerEnds>>,
    ) {
        let mut more: Vec<_> = more.into_iter().map(Vec::into_iter).collect();
        for worker in self.0 {
            let ends = more.iter_mut().filter_map(Iterator::next).collect();
            // A worker that has ended is skipped.
            let _ = worker.send(Connections { senders: senders.clone(), more: ends, forwarders });
        }
    }
}

/// Orders that may wait for a worker before the owner takes no more routes and neighbours from outside.
const WAITING_MOST: usize = 8192;

/// A worker's orders in their sequence.
pub struct OrderQueue {
    orders: Receiver<Order>,
    waiting: Arc<AtomicUsize>,
}

impl OrderQueue {
    /// The next one, if there is one.
    pub fn take(&self) -> Option<Order> {
        let order = self.orders.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(order)
    }
}

/// The way to one worker. An order is never refused, since none may be lost; senders of many check
/// [`Orders::have_room`] first.
#[derive(Clone)]
pub struct OrderSender {
    orders: Sender<Order>,
    waiting: Arc<AtomicUsize>,
    /// The worker's, which may block.
    doorbell: Arc<Doorbell>,
}

impl OrderSender {
    /// Sends an order; fails if the worker has ended.
    pub fn send(&self, order: Order) -> Result<(), Ended> {
        // Before the worker may take it.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.orders.send(order).map_err(|_| Ended)?;
        self.doorbell.ring(Cause::Control);
        Ok(())
    }
}

/// The worker has ended and takes no orders any more.
#[derive(Debug)]
pub struct Ended;

/// The way to a worker that has this doorbell, both ends.
pub fn order_queue(doorbell: Arc<Doorbell>) -> (OrderSender, OrderQueue) {
    let (sender, orders) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let sender = OrderSender { orders: sender, waiting: waiting.clone(), doorbell };
    (sender, OrderQueue { orders, waiting })
}

/// The way to all workers. Clones lead to the same ones, also after these have been replaced.
#[derive(Clone)]
pub struct Orders(Arc<Mutex<Arc<[OrderSender]>>>);

impl Orders {
    /// To these workers.
    pub fn new(workers: Vec<OrderSender>) -> Self {
        Self(Arc::new(Mutex::new(workers.into())))
    }

    fn workers(&self) -> Arc<[OrderSender]> {
        lock(&self.0).clone()
    }

    /// Leads to these workers from now on. Those before execute the orders that they have, finish what forwarders have
    /// punted, and are returned; one that has ended is not.
    pub async fn replace(&self, workers: Vec<OrderSender>) -> Vec<SlowWorker> {
        let former = std::mem::replace(&mut *lock(&self.0), workers.into());
        let mut leaving = Vec::new();
        for worker in &*former {
            let (to, left) = oneshot::channel();
            let _ = worker.send(Order::Leave(to));
            leaving.push(left);
        }
        let mut left = Vec::new();
        for worker in leaving {
            left.extend(worker.await.ok());
        }
        left
    }

    /// Has every worker make a round at once, if it blocks.
    pub fn wake(&self) {
        self.workers().iter().for_each(|worker| worker.doorbell.ring(Cause::Control));
    }

    /// Returns true if no worker has so many orders that senders should hold back more.
    pub fn have_room(&self) -> bool {
        self.workers().iter().all(|worker| worker.waiting.load(Ordering::Relaxed) < WAITING_MOST)
    }

    /// Sends a command to every engine: each knows all addresses and gateways, and serves the ports that it owns.
    /// The workers outlive the owner's loop, and have ended only if they panicked.
    pub fn send(&self, command: &Command) {
        for worker in &*self.workers() {
            if worker.send(Order::Engine(command.clone())).is_err() {
                tracing::error!("the slow path has ended; neighbours are not resolved any more");
            }
        }
    }

    /// Sends every engine a new or changed port, and its owner.
    pub fn port(&self, port: &InterfaceConfig) {
        let workers = self.workers();
        for (worker, orders) in workers.iter().enumerate() {
            let owned = owner(port.id.index(), workers.len()) == worker;
            let port = Box::new(InterfaceConfig { owned, ..port.clone() });
            let _ = orders.send(Order::Engine(Command::Interface(port)));
        }
    }

    /// Sends the worker that has the port's host interface the multicasts that the kernel takes on it. A worker that
    /// has ended has none any more.
    pub fn all_multicast(&self, port: InterfaceId, on: bool) {
        for worker in &*self.workers() {
            let _ = worker.send(Order::AllMulticast { port, on });
        }
    }

    /// Sends every worker the forwarder for packets to a port, and gives the port's own worker the
    /// host interface. A worker that has ended needs none any more.
    pub fn connect(&self, port: InterfaceId, sender: usize, mut host: Option<HostLink>) {
        let workers = self.workers();
        let owner = owner(port.index(), workers.len());
        for (index, worker) in workers.iter().enumerate() {
            let host = if index == owner { host.take() } else { None };
            let _ = worker.send(Order::Connect { port, sender, host });
        }
    }

    /// Makes every worker look up routes in these tables.
    pub fn tables(&self, tables: &Arc<Tables>) {
        for worker in &*self.workers() {
            let _ = worker.send(Order::Tables(tables.clone()));
        }
    }

    /// Makes every worker use the VLANs for which graphs were made last.
    pub fn vlans(&self) {
        for worker in &*self.workers() {
            let _ = worker.send(Order::Vlans);
        }
    }

    /// Gives the worker that owns a VLAN its host interface.
    pub fn attach_host(&self, interface: InterfaceId, host: HostInterface) {
        let workers = self.workers();
        if let Some(worker) = workers.get(owner(interface.index(), workers.len())) {
            let _ = worker.send(Order::AttachHost { interface, host: Box::new(host) });
        }
    }

    /// Gives the worker that owns a port or VLAN another host interface for it; returns the one before, or this one if
    /// there was none. A worker that has ended has none.
    pub async fn replace_host(
        &self,
        interface: InterfaceId,
        host: HostInterface,
    ) -> Option<HostInterface> {
        let workers = self.workers();
        let worker = workers.get(owner(interface.index(), workers.len()))?;
        let (answer, former) = oneshot::channel();
        worker.send(Order::ReplaceHost { interface, host: Box::new(host), answer }).ok()?;
        former.await.ok()
    }

    /// Makes every worker release a port, or a VLAN's host interface; returns the host interface. A worker that has
    /// ended holds none.
    pub async fn disconnect(&self, port: InterfaceId) -> Option<HostLink> {
        let mut answers = Vec::new();
        for worker in &*self.workers() {
            let (answer, link) = oneshot::channel();
            let _ = worker.send(Order::Disconnect { port, answer });
            answers.push(link);
        }
        let mut link = None;
        for answer in answers {
            link = link.or(answer.await.ok().flatten());
        }
        link
    }

    /// Halts every worker.
    pub async fn halt(&self) -> Halted {
        let (mut workers, mut all) = (Vec::new(), Vec::new());
        for worker in &*self.workers() {
            let ((halted, answer), (sender, go)) = (oneshot::channel(), channel());
            let _ = worker.send(Order::Halt { halted, go });
            all.push(answer);
            workers.push(sender);
        }
        for halted in all {
            // A worker that has ended does nothing either.
            let _ = halted.await;
        }
        Halted(workers)
    }

    /// Sends every worker the weights of the classes. A worker that has ended needs none any more.
    pub fn weights(&self, limits: &ByClass<ClassLimits>) {
        for worker in &*self.workers() {
            let _ = worker.send(Order::Weights(*limits));
        }
    }

    /// The state of LACP on all bonds; `None` if a worker has ended.
    pub async fn bonds(&self) -> Option<Vec<LacpInfo>> {
        let mut answers = Vec::new();
        for worker in &*self.workers() {
            let (ask, answer) = oneshot::channel();
            worker.send(Order::Bonds(ask)).ok()?;
            answers.push(answer);
        }
        let mut all = Vec::new();
        for answer in answers {
            all.extend(answer.await.ok()?);
        }
        Some(all)
    }

    /// The neighbours of all workers; `None` if a worker has ended.
    pub async fn neighbours(&self) -> Option<Vec<NeighbourInfo>> {
        let mut answers = Vec::new();
        for worker in &*self.workers() {
            let (ask, answer) = oneshot::channel();
            worker.send(Order::Neighbours(ask)).ok()?;
            answers.push(answer);
        }
        let mut all = Vec::new();
        for answer in answers {
            all.extend(answer.await.ok()?);
        }
        all.sort_by_key(|info| (info.interface, info.address));
        Some(all)
    }
}
