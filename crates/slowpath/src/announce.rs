//! Announcements of an interface's addresses, and their defence: RFC 5227, 2.3 and 2.4; RFC 4861, 7.2.6.
//!
//! When its link comes up or its addresses change, an interface announces each address twice, two seconds apart: by
//! a gratuitous ARP request or an unsolicited neighbour advertisement. The multicast groups of the addresses are
//! joined at the same times. On an interface with a host interface the kernel does this.
//!
//! An address that another host uses is defended by ARP and reported, at most every 10 seconds per interface.

use dataplane::interface::InterfaceId;

use crate::context::LinkContext;
use crate::interfaces::Interface;
use crate::{Output, Time, arp, mld, nd};

/// Number of announcements of an interface's addresses, and the time between them (RFC 5227, 2.3 and 1.1:
/// ANNOUNCE_NUM, ANNOUNCE_INTERVAL). RFC 4861, 7.2.6 allows three.
const ANNOUNCE_COUNT: u8 = 2;
const ANNOUNCE_INTERVAL: Time = Time::from_secs(2);
/// Minimum time between two defences of an address (RFC 5227, 1.1: DEFEND_INTERVAL).
const DEFEND_INTERVAL: Time = Time::from_secs(10);

/// Schedule of the announcements of each interface's addresses.
#[derive(Default)]
pub(crate) struct Announcements {
    /// Interface, next time, announcements left.
    pending: Vec<(InterfaceId, Time, u8)>,
    /// Time at which an interface last defended an address.
    defended: Vec<(InterfaceId, Time)>,
}

impl Announcements {
    /// Schedules the announcements of an interface, the first one at once.
    pub(crate) fn schedule(&mut self, interface: InterfaceId, now: Time) {
        self.cancel(interface);
        self.pending.push((interface, now, ANNOUNCE_COUNT));
    }

    /// Takes those of some interfaces out.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Self {
        Self {
            pending: self.pending.extract_if(.., |(of, ..)| is_in(*of)).collect(),
            defended: self.defended.extract_if(.., |(of, _)| is_in(*of)).collect(),
        }
    }

    /// Adds those of other interfaces.
    pub(crate) fn join(&mut self, other: Self) {
        self.pending.extend(other.pending);
        self.defended.extend(other.defended);
    }

    pub(crate) fn cancel(&mut self, interface: InterfaceId) {
        self.pending.retain(|&(other, ..)| other != interface);
    }

    /// Returns true if the interface may report a conflict and defend its address now (RFC 5227, 2.4 (c)).
    pub(crate) fn may_defend(&mut self, interface: InterfaceId, now: Time) -> bool {
        let last = self.defended.iter().position(|&(other, _)| other == interface);
        if let Some(index) = last {
            if now.saturating_sub(self.defended[index].1) < DEFEND_INTERVAL {
                return false;
            }
            self.defended.swap_remove(index);
        }
        self.defended.push((interface, now));
        true
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.pending.iter().map(|&(_, time, _)| time).min()
    }

    /// Sends the announcements that are due.
    pub(crate) fn run<P>(&mut self, link: &mut LinkContext<'_, impl Output<P>>) {
        while let Some(id) = self.due(link.now) {
            if let Some(interface) = link.interfaces.get(id) {
                announce(interface, link.out);
            }
        }
    }

    /// Returns an interface whose announcement is due.
    fn due(&mut self, now: Time) -> Option<InterfaceId> {
        let position = self.pending.iter().position(|&(_, time, _)| time <= now)?;
        let (interface, time, left) = &mut self.pending[position];
        let interface = *interface;
        *time = now.saturating_add(ANNOUNCE_INTERVAL);
        *left -= 1;
        if *left == 0 {
            self.pending.remove(position);
        }
        Some(interface)
    }
}

/// Announces an interface's addresses to its neighbours, and joins its groups.
fn announce<P>(interface: &Interface, out: &mut impl Output<P>) {
    for net in &interface.v4 {
        arp::announce(interface, net.addr(), out);
    }
    mld::join_groups(interface, out);
    for address in interface.v6_addresses() {
        nd::announce(interface, address, out);
    }
}
