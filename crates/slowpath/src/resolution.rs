//! Resolution of neighbours: sends the requests that the neighbour table asks for, and the packets that waited for
//! an answer; tells the control plane about neighbours that come and go.
//!
//! ```text
//!   send_to() ---> table --- MAC known ------------------------> transmit::send()
//!                    |
//!                    +------ waits: ask() ---> arp.rs, nd.rs, or the kernel (Event::Resolve)
//!                    |                           |
//!                    | run(): no answer          | learn(), kernel_neighbour()
//!                    v                           v
//!              icmp.rs: host unreachable      transmit::send(), Event::NeighbourUp
//! ```
//!
//! Drops: `neighbour-failed`, `neighbour-queue-full`, `neighbour-table-full`.

use std::net::IpAddr;

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::MacAddr;

use crate::context::Context;
use crate::icmp::{self, Error};
use crate::neighbour::{Due, Evidence, Forgotten, Key, Learnt, Removed, Resolution, Waiting};
use crate::{Event, Output, Packet, arp, nd, transmit};

/// Sends a packet or frame to a neighbour, or keeps it until the neighbour's MAC is known.
pub(crate) fn send_to<P: Packet>(
    key: Key,
    waiting: Waiting<P>,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    if context.interfaces.get(key.0).is_some_and(|interface| !interface.owned) {
        return context.out.hand_over(key.0, key.1, waiting);
    }
    match context.table.resolve(key, waiting, context.now) {
        Resolution::Ready(mac, waiting) => transmit::send(waiting, key.0, mac, context),
        Resolution::Waits { ask: true } => ask(key, None, context),
        Resolution::Waits { ask: false } => {}
        Resolution::Refused(waiting, DropReason::NeighbourFailed) => give_up(waiting, context),
        Resolution::Refused(waiting, reason) => discard(waiting, reason, context.out),
    }
    drop_displaced(context);
}

/// Sends the requests that are due, and gives up neighbours that do not answer.
pub(crate) fn run<P: Packet>(context: &mut Context<'_, P, impl Output<P>>) {
    while let Some(due) = context.table.due(context.now) {
        attend(due, context);
    }
}

fn attend<P: Packet>(due: Due<P>, context: &mut Context<'_, P, impl Output<P>>) {
    match due {
        Due::Ask(key) => ask(key, None, context),
        Due::Probe(key, mac) => ask(key, Some(mac), context),
        Due::Lost((interface, address)) => {
            context.out.event(Event::NeighbourDown { interface, address });
        }
        Due::Unreachable(queue) => {
            queue.into_iter().for_each(|waiting| give_up(waiting, context));
        }
    }
}

/// Asks for a neighbour's MAC: by broadcast, or from the MAC that had it last; on an interface with a host
/// interface, from the kernel.
fn ask<P>(key: Key, probe: Option<MacAddr>, context: &mut Context<'_, P, impl Output<P>>) {
    let Some(interface) = context.interfaces.get(key.0) else { return };
    if interface.host {
        // A request refused here is repeated, like one that is not answered.
        if context.gateways.serves(key) || context.rates.resolve(context.now) {
            context.out.event(Event::Resolve { interface: key.0, address: key.1 });
        }
        return;
    }
    match key.1 {
        IpAddr::V4(address) => arp::request(interface, address, probe, context.out),
        IpAddr::V6(address) => nd::solicit(interface, address, probe, context.out),
    }
}

/// Resolves a gateway before anything needs it; if it is resolved already, repeats the event.
pub(crate) fn start<P>(key: Key, context: &mut Context<'_, P, impl Output<P>>) {
    if !context.interfaces.is_owned(key.0) {
        return;
    }
    if let Some(mac) = context.table.mac(key) {
        context.out.event(Event::NeighbourUp { interface: key.0, address: key.1, mac });
    } else if context.table.start(key, context.now) {
        ask(key, None, context);
    }
    drop_displaced(context);
}

/// Learns a MAC that was received; returns false if the table has no use for it.
pub(crate) fn learn<P: Packet>(
    key: Key,
    mac: MacAddr,
    (evidence, create): (Evidence, bool),
    context: &mut Context<'_, P, impl Output<P>>,
) -> bool {
    let learnt = context.table.learn(key, mac, evidence, create, context.now);
    drop_displaced(context);
    let known = learnt.is_some();
    if let Some(learnt) = learnt {
        send_ready(key, mac, learnt, context);
    }
    known
}

/// Adds a static neighbour.
pub(crate) fn add_static<P: Packet>(
    key: Key,
    mac: MacAddr,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let ready = context.table.add_static(key, mac, context.now);
    send_ready(key, mac, Learnt { changed: true, ready }, context);
}

/// Takes the kernel's state of a neighbour; `None`: it did not answer, or was removed.
pub(crate) fn kernel_neighbour<P: Packet>(
    key: Key,
    mac: Option<MacAddr>,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    if let Some(mac) = mac {
        let learnt = context.table.learn_from_kernel(key, mac, context.now);
        drop_displaced(context);
        if let Some(learnt) = learnt {
            send_ready(key, mac, learnt, context);
        }
    } else if let Some(due) = context.table.kernel_lost(key, context.now) {
        attend(due, context);
    }
}

/// Reports a MAC that is new, and sends the packets that waited for it.
fn send_ready<P: Packet>(
    (interface, address): Key,
    mac: MacAddr,
    learnt: Learnt<P>,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    if learnt.changed {
        context.out.event(Event::NeighbourUp { interface, address, mac });
    }
    for waiting in learnt.ready {
        transmit::send(waiting, interface, mac, context);
    }
}

/// Removes a neighbour.
pub(crate) fn remove<P>(key: Key, context: &mut Context<'_, P, impl Output<P>>) {
    if let Some(removed) = context.table.remove(key) {
        report_removed(removed, context.out);
    }
}

/// Forgets neighbours of an interface.
pub(crate) fn forget<P>(
    interface: InterfaceId,
    what: Forgotten,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    for removed in context.table.flush(interface, what) {
        report_removed(removed, context.out);
    }
}

fn report_removed<P>(removed: Removed<P>, out: &mut impl Output<P>) {
    let (interface, address) = removed.key;
    if removed.was_up {
        out.event(Event::NeighbourDown { interface, address });
    }
    for waiting in removed.queue {
        discard(waiting, DropReason::NeighbourFailed, out);
    }
}

/// The neighbour does not answer: the packet's sender gets an ICMP error (RFC 1812, 4.3.3.1 and 3.3.2; RFC
/// 4861, 7.2.2).
fn give_up<P: Packet>(waiting: Waiting<P>, context: &mut Context<'_, P, impl Output<P>>) {
    if let Waiting::Received { packet, from } = waiting {
        let reason = DropReason::NeighbourFailed;
        icmp::refuse(packet, from, Error::HostUnreachable, reason, context);
    }
}

/// Drops the packets, and reports the neighbours, that made room for others.
fn drop_displaced<P>(context: &mut Context<'_, P, impl Output<P>>) {
    for (waiting, reason) in context.table.take_displaced() {
        discard(waiting, reason, context.out);
    }
    for (interface, address) in context.table.take_evicted() {
        context.out.event(Event::NeighbourDown { interface, address });
    }
}

/// Drops a received packet; a frame of the router's own is discarded uncounted.
pub(crate) fn discard<P>(waiting: Waiting<P>, reason: DropReason, out: &mut impl Output<P>) {
    if let Waiting::Received { packet, .. } = waiting {
        out.drop(packet, reason);
    }
}
