//! The kernel as a source of links, addresses, neighbours and routes, by netlink.
//!
//! One thread, in the network namespace of the host interfaces, holds what the kernel has and tells
//! the owner of the RIB what changes.
//!
//! ```text
//!   socket.rs    namespaces and sockets
//!   message.rs   bytes to messages; request.rs the other way
//!   model.rs     links, addresses, neighbours, rules        Model
//!   routes.rs    routes and nexthop objects, of FPM too     Routes
//!   worker.rs    the thread: readings, overruns, audits     Worker
//!   event.rs     what goes to the owner and comes from it
//!   links.rs     the interfaces that ports are made of          LinkWatch
//!   multicast.rs another thread, for the multicast routing cache
//!   netdev.rs    a question apart: XDP of an interface's driver
//! ```

mod event;
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
use std::time::Duration;

use dataplane::interface::{InterfaceId, VrfId};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};

pub use event::*;
pub use links::{LinkNews, LinkWatch};
pub use multicast::{KernelGroup, KernelGroups};
pub use socket::enter_netns;
pub(crate) use socket::{Received, Socket};
use worker::{Ends, Worker};

/// The most events of one batch.
pub const BATCH_MOST: usize = 4096;

/// Orders that wait for the kernel's thread.
pub const ORDERS: usize = 2048;

/// Of these, places that requests for neighbours do not take: for links and addresses.
const RESERVED: usize = ORDERS / 2;

/// How the kernel is listened to.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// The network namespace's file; `None`: the caller's own.
    pub netns: Option<PathBuf>,
    /// The ports with a host interface, and its name.
    pub ports: Vec<(InterfaceId, String)>,
    /// The VRFs besides the default one.
    pub vrfs: Vec<KernelVrf>,
    /// Routes, rules and nexthop objects are wanted, not only links, addresses and neighbours.
    pub routes: bool,
    /// Multicast routes are wanted as well.
    pub multicast: bool,
    /// Time between two comparisons with the kernel's routes; `None`: only when ordered.
    pub audit: Option<Duration>,
    /// Bytes of messages that the kernel keeps before it drops them.
    pub receive_buffer: usize,
}

/// Which interface of the namespace is which port, and which routing table which VRF.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// By interface index: every interface known, with its port if it is one.
    pub by_index: HashMap<u32, Option<InterfaceId>>,
    /// The tables whose routes are those of VRFs besides the default one.
    pub vrfs: BTreeMap<u32, VrfId>,
}

/// Why a source does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace's file cannot be opened or entered.
    #[error("network namespace {}: {error}; known: {known}; make it: ip netns add NAME", path.display())]
    Namespace {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        error: std::io::Error,
        /// The names under /run/netns.
        known: String,
    },
    /// No socket.
    #[error("{what}: {error}")]
    Socket {
        /// Which.
        what: String,
        /// What the kernel says.
        error: std::io::Error,
    },
}

/// The thread that listens to the kernel. It ends when this is dropped.
#[derive(Debug)]
pub struct KernelSource {
    orders: mpsc::Sender<KernelOrder>,
    /// Orders for which there was no room.
    lost: Arc<AtomicU64>,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    status: watch::Receiver<SourceStatus>,
    groups: Option<watch::Receiver<KernelGroups>>,
}

impl KernelSource {
    /// Asks the kernel for something. In vain if the thread has ended, which it tells by its status. Of
    /// more than [`ORDERS`] at a time requests for neighbours are lost and counted; whoever wants the
    /// neighbour asks again.
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

    /// Orders for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Which interfaces are ports; changes with every link that comes or goes.
    pub fn interfaces(&self) -> watch::Receiver<Arc<Interfaces>> {
        self.interfaces.clone()
    }

    /// The kernel's multicast routes, if they are wanted; changes with them.
    pub fn groups(&self) -> Option<watch::Receiver<KernelGroups>> {
        self.groups.clone()
    }

    /// How it goes, at most a quarter of a second old.
    pub fn status(&self) -> SourceStatus {
        self.status.borrow().clone()
    }
}

/// Events in batches.
pub(crate) fn batches(events: Vec<SourceEvent>) -> impl Iterator<Item = Vec<SourceEvent>> {
    let mut events = events.into_iter();
    std::iter::from_fn(move || {
        let batch: Vec<SourceEvent> = events.by_ref().take(BATCH_MOST).collect();
        (!batch.is_empty()).then_some(batch)
    })
}

/// What a kernel that sends these messages comes to: for tests, and to look into captures.
pub fn replay(config: &KernelConfig, messages: &[u8]) -> Vec<SourceEvent> {
    let mut model = model::Model::new(config);
    for message in message::Messages(messages) {
        match message {
            Ok(raw) => model.news(&raw),
            Err(error) => model.malformed(&error),
        }
    }
    model.routes.take_events()
}

/// Starts to listen to the kernel. Events come in batches of up to [`BATCH_MOST`]; when the
/// receiver is slow they wait in this source's memory, then in the kernel's.
pub fn spawn(
    config: KernelConfig,
    events: mpsc::Sender<Vec<SourceEvent>>,
) -> Result<KernelSource, Error> {
    let (orders, orders_in) = mpsc::channel(ORDERS);
    let (interfaces_out, interfaces) = watch::channel(Arc::default());
    let (status_out, status) = watch::channel(SourceStatus::default());
    let ends = Ends { events, orders: orders_in, interfaces: interfaces_out, status: status_out };
    let (netns, wanted) = (config.netns.clone(), config.multicast);
    thread::start("netlink", netns.clone(), move || async move {
        Worker::new(config, ends).map(|worker| (worker.run(), ()))
    })?;
    let follow = || multicast::follow(netns, interfaces.clone());
    let groups = wanted.then(follow).transpose()?;
    Ok(KernelSource { orders, lost: Arc::default(), interfaces, status, groups })
}
