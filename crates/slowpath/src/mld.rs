//! Multicast listener discovery, the listener's side (RFC 3810): reports for the groups that
//! neighbour discovery needs, so that switches with MLD snooping forward solicitations.
//!
//! Reports are sent with the announcements at start-up and when a multicast router queries. A query
//! is answered with all groups of the interface after a random delay (RFC 3810, 6.2); a query for one
//! group is answered like a general one, since a report of more groups than were queried is never
//! wrong.
//!
//! IPv4 needs no IGMP: ARP uses broadcast, and the router joins no IPv4 group.
//!
//! Drops: `nd-malformed` for queries that fail RFC 3810, 5.1.14 and 6.2.

use std::net::Ipv6Addr;
use std::time::Duration;

use dataplane::interface::InterfaceId;
use wire::build;
use wire::nd::{CHANGE_TO_EXCLUDE, MODE_IS_EXCLUDE};

use crate::context::LinkContext;
use crate::interfaces::Interface;
use crate::random::Random;
use crate::{Output, Time};

/// Bytes in an MLDv1 query, the shortest (RFC 2710, 3).
const QUERY_MIN_LEN: usize = 24;

/// Delayed answers to queries.
#[derive(Default)]
pub(crate) struct Groups {
    pending: Vec<(InterfaceId, Time)>,
}

impl Groups {
    /// Schedules an answer; one that is scheduled earlier covers it.
    fn schedule(&mut self, interface: InterfaceId, time: Time) {
        match self.pending.iter_mut().find(|(other, _)| *other == interface) {
            Some((_, planned)) => *planned = time.min(*planned),
            None => self.pending.push((interface, time)),
        }
    }

    /// Takes those of some interfaces out.
    pub(crate) fn part(&mut self, is_in: &impl Fn(InterfaceId) -> bool) -> Self {
        Self { pending: self.pending.extract_if(.., |(of, _)| is_in(*of)).collect() }
    }

    /// Adds those of other interfaces.
    pub(crate) fn join(&mut self, other: Self) {
        self.pending.extend(other.pending);
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.pending.iter().map(|&(_, time)| time).min()
    }

    /// Takes a query; returns false if it is not valid. `message` is the ICMPv6 message; `valid_ip` is true if hop
    /// limit and source are as required (1, link-local).
    pub(crate) fn query(
        &mut self,
        message: &[u8],
        valid_ip: bool,
        from: InterfaceId,
        now: Time,
        random: &mut Random,
    ) -> bool {
        let Some(code) = message.get(4..6) else { return false };
        if message.len() < QUERY_MIN_LEN || !valid_ip {
            return false;
        }
        let delay = max_response_delay(u16::from_be_bytes([code[0], code[1]]));
        let time = now.saturating_add(random.up_to(delay));
        self.schedule(from, time);
        true
    }

    /// Answers the queries that are due, with the groups that the interface listens to.
    pub(crate) fn run<P>(&mut self, link: &mut LinkContext<'_, impl Output<P>>) {
        while let Some(id) = self.due(link.now) {
            if let Some(interface) = link.interfaces.get(id) {
                report(interface, MODE_IS_EXCLUDE, link.out);
            }
        }
    }

    /// Returns an interface whose answer is due.
    fn due(&mut self, now: Time) -> Option<InterfaceId> {
        let position = self.pending.iter().position(|&(_, time)| time <= now)?;
        Some(self.pending.swap_remove(position).0)
    }
}

/// Reports that the interface starts to listen to its groups.
pub(crate) fn join_groups<P>(interface: &Interface, out: &mut impl Output<P>) {
    report(interface, CHANGE_TO_EXCLUDE, out);
}

fn report<P>(interface: &Interface, kind: u8, out: &mut impl Output<P>) {
    // 20 bytes per group, and the report must fit the minimum MTU.
    for groups in interface.reported_groups().chunks(50) {
        // RFC 3590, 4: from the unspecified address while there is no other.
        let source = interface.usable_link_local().unwrap_or(Ipv6Addr::UNSPECIFIED);
        let frame = build::listener_report(interface.mac, source, kind, groups);
        out.originate(interface.id, &frame);
    }
}

/// Converts the maximum response code to a time: milliseconds, from 32768 on a floating-point number
/// (RFC 3810, 5.1.3). MLDv1 has plain milliseconds; the difference only shortens long delays.
fn max_response_delay(code: u16) -> Duration {
    let millis = if code < 0x8000 {
        u64::from(code)
    } else {
        let mantissa = u64::from(code & 0x0fff) | 0x1000;
        mantissa << ((code >> 12 & 0x7) + 3)
    };
    Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_code_becomes_a_float_at_its_top_bit() {
        assert_eq!(max_response_delay(10_000), Duration::from_secs(10));
        assert_eq!(max_response_delay(0x7fff), Duration::from_millis(32_767));
        assert_eq!(max_response_delay(0x8000), Duration::from_millis(0x1000 << 3));
        assert_eq!(max_response_delay(0xffff), Duration::from_millis(0x1fff << 10));
    }
}
