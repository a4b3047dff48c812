//! The kernel as a source of links, addresses, neighbours and routes, by netlink.
//!
//! One thread, in the network namespace of the host interfaces, tracks the kernel's state and sends
//! changes to the owner of the RIB.
//!
//! ```text
//!   socket.rs    namespaces and sockets
//!   message.rs   bytes to messages; request.rs the reverse
//!   model.rs     links, addresses, neighbours, rules        Model
//!   routes.rs    routes and nexthop objects, of FPM too     Routes
//!   worker.rs    the thread: dumps, overruns, audits     Worker
//!   event.rs     events to the owner and orders from it
//!   links.rs     the interfaces that ports are made of          LinkWatch
//!   multicast.rs another thread, for the multicast routing cache
//!   netdev.rs    a question apart: XDP of an interface's driver
//!   inventory.rs another: all interfaces and what they belong to
//! ```

mod event;
pub mod inventory;
mod links;
pub(crate) mod message;
mod model;
mod multicast;
pub mod netdev;
mod request;
pub(crate) mod routes;
mod socket;
pub(crate) mod thread;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::interface::{InterfaceId, VrfId};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

pub use event::*;
pub use links::{LinkNotification, LinkWatch};
pub use multicast::{KernelGroup, KernelGroups};
pub use socket::enter_netns;
pub(crate) use socket::{Received, Socket};
use worker::{Ends, Worker};

/// Most events in one batch.
pub const BATCH_MOST: usize = 4096;

/// Capacity of the queue of orders to the kernel's thread.
pub const ORDERS: usize = 2048;

/// Places of [`ORDERS`] reserved for links and addresses, which requests for neighbours do not
/// take.
const RESERVED: usize = ORDERS / 2;

/// Configuration of a kernel source.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// The network namespace's file; `None`: the caller's own.
    pub netns: Option<PathBuf>,
    /// The ports with a host interface, and the interface's name.
    pub ports: Vec<(InterfaceId, String)>,
    /// The VLANs.
    pub vlans: HostVlans,
    /// The VRFs besides the default one.
    pub vrfs: Vec<KernelVrf>,
    /// Subjects to follow besides links, addresses and neighbours.
    pub following: Following,
    /// True to follow multicast routes as well.
    pub multicast: bool,
    /// The VRF that the namespace belongs to; `None`: it has the default VRF, and any number of others.
    pub apart: Option<Apart>,
}

/// Mapping of a namespace's interfaces to ports, and of its routing tables to VRFs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// All known interfaces by index, each with its port if it has one.
    pub by_index: HashMap<u32, Option<InterfaceId>>,
    /// The tables of VRFs other than the default one.
    pub vrfs: BTreeMap<u32, VrfId>,
}

/// Reason why a source does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace's file cannot be opened or entered.
    #[error("network namespace {}: {error}; known: {known}; make it: ip netns add NAME", path.display())]
    Namespace {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: std::io::Error,
        /// The names under /run/netns.
        known: String,
    },
    /// A socket cannot be opened.
    #[error("{what}: {error}")]
    Socket {
        /// Kind of socket.
        what: String,
        /// The kernel's error.
        error: std::io::Error,
    },
}

/// Thread that follows the kernel. Ends when this is dropped.
#[derive(Debug)]
pub struct KernelSource {
    orders: mpsc::Sender<KernelOrder>,
    /// Orders lost because the queue was full.
    lost: Arc<AtomicU64>,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    status: watch::Receiver<SourceStatus>,
    groups: Option<watch::Receiver<KernelGroups>>,
    /// The namespace that it is in.
    netns: Option<PathBuf>,
}

impl KernelSource {
    /// Follows multicast routes from now on, or no longer.
    ///
    /// # Errors
    /// The kernel cannot be listened to.
    pub fn follow_multicast(&mut self, on: bool) -> Result<(), Error> {
        match (on, &self.groups) {
            (true, None) => {
                let follower = multicast::follow(self.netns.clone(), self.interfaces.clone())?;
                self.groups = Some(follower);
            }
            (true, Some(_)) => {}
            (false, _) => self.groups = None,
        }
        Ok(())
    }

    /// Follows another network namespace from now on, with these host interfaces in it. Everything is read there; then
    /// what is not there is withdrawn. Returns a channel that is closed when the namespace before is not followed any
    /// more.
    ///
    /// # Errors
    /// The namespace cannot be opened, or its multicast routes cannot be followed.
    pub fn move_to(
        &mut self,
        netns: Option<PathBuf>,
        seats: Vec<Seat>,
    ) -> Result<oneshot::Receiver<()>, Error> {
        let namespace = socket::open_netns(netns.as_deref())?;
        let (moved, answer) = oneshot::channel();
        self.order(KernelOrder::Move(Move { namespace, seats, moved }));
        self.netns = netns;
        if self.groups.take().is_some() {
            self.follow_multicast(true)?;
        }
        Ok(answer)
    }

    /// Sends an order to the kernel's thread. It has no effect if the thread has ended, which its
    /// status reports. If more than [`ORDERS`] are queued, requests for neighbours are lost and
    /// counted; the request is repeated when the neighbour is needed again.
    pub fn order(&self, order: KernelOrder) {
        let is_request = matches!(order, KernelOrder::Resolve { .. });
        if is_request && self.orders.capacity() <= RESERVED {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Err(TrySendError::Full(order)) = self.orders.try_send(order) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!("kernel: {order:?}: too many orders wait; it is not made");
        }
    }

    /// Returns the number of orders lost because the queue was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the mapping of interfaces to ports, updated with every link that appears or
    /// disappears.
    pub fn interfaces(&self) -> watch::Receiver<Arc<Interfaces>> {
        self.interfaces.clone()
    }

    /// Returns the kernel's multicast routes, updated when they change, if they are followed.
    pub fn groups(&self) -> Option<watch::Receiver<KernelGroups>> {
        self.groups.clone()
    }

    /// Returns the status, at most a quarter of a second old.
    pub fn status(&self) -> SourceStatus {
        self.status.borrow().clone()
    }
}

/// Splits events into batches.
pub(crate) fn batches(events: Vec<SourceEvent>) -> impl Iterator<Item = Vec<SourceEvent>> {
    let mut events = events.into_iter();
    std::iter::from_fn(move || {
        let batch: Vec<SourceEvent> = events.by_ref().take(BATCH_MOST).collect();
        (!batch.is_empty()).then_some(batch)
    })
}

/// Returns the events that result from a kernel sending these messages: for tests, and for reading
/// captures.
pub fn replay(config: &KernelConfig, messages: &[u8]) -> Vec<SourceEvent> {
    let mut model = model::Model::new(config);
    for message in message::Messages(messages) {
        match message {
            Ok(raw) => model.on_notification(&raw),
            Err(error) => model.malformed(&error),
        }
    }
    model.routes.take_events()
}

/// Starts to follow the kernel. Events come in batches of up to [`BATCH_MOST`]; when the receiver
/// is slow they wait in this source's memory, then in the kernel's.
pub fn spawn(
    config: KernelConfig,
    events: mpsc::Sender<Vec<SourceEvent>>,
) -> Result<KernelSource, Error> {
    let (orders, orders_in) = mpsc::channel(ORDERS);
    let (interfaces_out, interfaces) = watch::channel(Arc::default());
    let (status_out, status) = watch::channel(SourceStatus::default());
    let ends = Ends { events, orders: orders_in, interfaces: interfaces_out, status: status_out };
    let (netns, wanted) = (config.netns.clone(), config.multicast);
    thread::start(
        "netlink",
        (netns.clone(), Some(privileges::Role::Kernel)),
        move || async move { Worker::new(config, ends).map(|worker| (worker.run(), ())) },
    )?;
    let mut source =
        KernelSource { orders, lost: Arc::default(), interfaces, status, groups: None, netns };
    source.follow_multicast(wanted)?;
    Ok(source)
}
