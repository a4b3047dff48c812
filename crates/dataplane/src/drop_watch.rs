//! Observation of packets that are dropped outside a graph's steps: by rings, transmit queues, limits, the slow path.
//!
//! Such drops are counted, and their packets freed, by the functions of [`DropsByOrigin`](crate::counters::DropsByOrigin),
//! which show each packet to the observers first. Drops of steps are seen by a [`Watch`](crate::watch::Watch).
//! Without an observer, as nearly always, a drop costs one load more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};

use wire::ethernet::{customer_tag, with_tag};

use crate::interface::InterfaceId;
use crate::lock::lock;
use crate::reason::{DropOrigin, DropReason};

/// A drop: place, reason, and the packet's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The part of the router that drops it.
    pub origin: DropOrigin,
    /// The reason.
    pub reason: DropReason,
    /// The interface that received it, or that it was to leave by.
    pub interface: InterfaceId,
    /// True if it was to leave by the interface.
    pub is_outbound: bool,
    /// The tag that the device was to insert, see [`dpdk::Mbuf::requested_tag`].
    pub tag: Option<u16>,
}

impl Dropped {
    /// Of a packet received by this interface.
    pub fn received(
        origin: DropOrigin,
        reason: DropReason,
        interface: impl Into<InterfaceId>,
    ) -> Self {
        Self { origin, reason, interface: interface.into(), is_outbound: false, tag: None }
    }

    /// The same of a packet with this tag.
    pub(crate) fn with_tag(self, tag: Option<u16>) -> Self {
        Self { tag, ..self }
    }

    /// Of a packet on its way out by this interface.
    pub fn sent(origin: DropOrigin, reason: DropReason, interface: impl Into<InterfaceId>) -> Self {
        Self { is_outbound: true, ..Self::received(origin, reason, interface) }
    }
}

/// The bytes of a packet: passes each part of them on, in order.
pub type Parts<'a> = &'a dyn Fn(&mut dyn FnMut(&[u8]));

/// Observes dropped packets.
pub trait DropObserver: Send {
    /// A packet with these bytes is dropped.
    fn dropped(&mut self, drop: &Dropped, bytes: Parts<'_>);
}

/// The observers of the drops of one unit, which come and go while it runs.
#[derive(Default)]
pub struct DropWatch {
    is_on: AtomicBool,
    /// Locked by the owner while it exchanges them, and otherwise by the unit alone.
    observers: Mutex<Vec<Box<dyn DropObserver>>>,
}

impl DropWatch {
    /// Replaces the observers.
    pub fn set(&self, observers: Vec<Box<dyn DropObserver>>) {
        let is_on = !observers.is_empty();
        let old = std::mem::replace(&mut *lock(&self.observers), observers);
        self.is_on.store(is_on, Ordering::Relaxed);
        // Not under the lock.
        drop(old);
    }

    /// Returns true if there are observers.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Shows a packet to the observers, unless the owner is exchanging them: a unit does not wait.
    #[cold]
    pub(crate) fn see<'a, I: Iterator<Item = &'a [u8]>>(
        &self,
        drop: &Dropped,
        chunks: impl Fn() -> I,
    ) {
        let mut observers = match self.observers.try_lock() {
            Ok(observers) => observers,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let tag = drop.tag.map(customer_tag);
        let bytes = |take: &mut dyn FnMut(&[u8])| with_tag(tag.as_ref(), chunks()).for_each(take);
        observers.iter_mut().for_each(|observer| observer.dropped(drop, &bytes));
    }
}

impl std::fmt::Debug for DropWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DropWatch({})", self.is_on())
    }
}
