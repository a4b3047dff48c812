//! The upper-layer headers of first fragments, with which a filter matches the fragments after them.
//!
//! Later fragments have no upper-layer header. A filter with rules that need one records that of each first
//! fragment by addresses, identification and ingress interface (IPv4: and protocol, RFC 791; IPv6: RFC 8200 4.5),
//! and lends it to the fragments that follow within [`TIMEOUT`]: they match the rules that the first one matched,
//! and a rule that drops it drops all of the packet. A fragment that overtakes its first one has no header. The
//! hash is keyed, so that nobody can choose identities that meet another's.
//!
//! The table is bounded: an entry takes the place of the older of two. Forwarders share it; each entry is two
//! words with a common tag, so that a reader that finds halves of two entries ignores them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use acl::{Fields, Upper};

use super::Filtered;
use crate::flows::fragment;
use crate::head::ETHERNET;

/// Seconds for which later fragments follow: the reassembly timeout of hosts (RFC 1122 3.3.2, RFC 8200 4.5).
const TIMEOUT: u16 = 60;

/// Places; packets whose fragments are followed at the same time.
const PLACES: usize = 4096;

/// See the module's documentation.
pub(super) struct Fragments {
    pairs: Box<[[Place; 2]]>,
    key: RandomState,
    tsc_hz: u64,
}

#[derive(Default)]
struct Place {
    /// The tag, and the second of its first fragment; 0: nobody's.
    identity: AtomicU64,
    /// The header, and the low bits of the tag.
    header: AtomicU64,
}

impl Fragments {
    pub fn new(tsc_hz: u64) -> Self {
        let pairs = (0..PLACES / 2).map(|_| Default::default()).collect();
        Self { pairs, key: RandomState::new(), tsc_hz: tsc_hz.max(1) }
    }

    /// Records the headers of first fragments, if it `records`, and lends them to later ones. `frames`: for each packet
    /// of `fields` its frame. `now`: in TSC cycles.
    #[cold]
    pub fn follow<'p, A: Filtered>(
        &self,
        fields: &mut Fields<A>,
        (now, records): (u64, bool),
        frames: impl Iterator<Item = &'p [u8]>,
    ) {
        let fragments = fields.fragments();
        for (place, frame) in frames.enumerate().filter(|(place, _)| fragments >> place & 1 == 1) {
            let packet = frame.get(ETHERNET..).unwrap_or_default();
            let Some((identity, is_first)) = fragment::<A>(packet) else { continue };
            let hash = self.key.hash_one((identity, fields.interface(place)));
            match fields.upper(place) {
                Some(upper) if is_first && records => self.enter(hash, upper, now),
                None if !is_first => {
                    if let Some(upper) = self.find(hash, now) {
                        fields.lend_upper(place, upper);
                    }
                }
                // Too short for its header.
                _ => {}
            }
        }
    }

    fn second(&self, now: u64) -> u16 {
        (now / self.tsc_hz) as u16
    }

    fn pair(&self, hash: u64) -> &[Place; 2] {
        &self.pairs[hash as usize % (PLACES / 2)]
    }

    fn enter(&self, hash: u64, upper: Upper, now: u64) {
        let (tag, now) = (tag(hash), self.second(now));
        let [one, other] = self.pair(hash);
        let age = |place: &Place| match place.identity.load(Ordering::Relaxed) {
            0 => u16::MAX,
            identity if identity >> 16 == tag => u16::MAX,
            identity => now.wrapping_sub(identity as u16),
        };
        let place = if is_of(one, tag) || !is_of(other, tag) && age(one) >= age(other) {
            one
        } else {
            other
        };
        let Upper { protocol, ports, detail } = upper;
        let header = u64::from(ports) << 32 | u64::from(protocol) << 24 | u64::from(detail) << 16;
        place.identity.store(0, Ordering::Relaxed);
        place.header.store(header | tag & 0xffff, Ordering::Release);
        place.identity.store(tag << 16 | u64::from(now), Ordering::Release);
    }

    fn find(&self, hash: u64, now: u64) -> Option<Upper> {
        let (tag, now) = (tag(hash), self.second(now));
        let place = self.pair(hash).iter().find(|place| is_of(place, tag))?;
        let identity = place.identity.load(Ordering::Acquire);
        let header = place.header.load(Ordering::Acquire);
        let is_whole = identity >> 16 == tag && header & 0xffff == tag & 0xffff;
        let is_young = now.wrapping_sub(identity as u16) <= TIMEOUT;
        (is_whole && is_young).then_some(Upper {
            protocol: (header >> 24) as u8,
            ports: (header >> 32) as u32,
            detail: (header >> 16) as u8,
        })
    }
}

/// Returns the tag of an identity; never 0.
fn tag(hash: u64) -> u64 {
    hash >> 16 | 1
}

fn is_of(place: &Place, tag: u64) -> bool {
    place.identity.load(Ordering::Acquire) >> 16 == tag
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 1000;

    fn upper(port: u32) -> Upper {
        Upper { protocol: 6, ports: 1000 << 16 | port, detail: 0x12 }
    }

    #[test]
    fn headers_are_kept_for_a_time() {
        let table = Fragments::new(HZ);
        let first = 0x1234_5678_9abc_def0;
        assert_eq!(table.find(first, 0), None);
        table.enter(first, upper(22), 0);
        assert_eq!(table.find(first, 60 * HZ), Some(upper(22)));
        assert_eq!(table.find(first, 61 * HZ), None);
        assert_eq!(table.find(first ^ 1 << 40, 0), None);
        // The next packet of the same identity.
        table.enter(first, upper(23), 61 * HZ);
        assert_eq!(table.find(first, 61 * HZ), Some(upper(23)));
    }

    #[test]
    fn the_older_of_two_makes_room() {
        let table = Fragments::new(HZ);
        let of = |number: u64| number << 20 | 7;
        (1..=3).for_each(|number| table.enter(of(number), upper(number as u32), number * HZ));
        let found = [1, 2, 3].map(|number| table.find(of(number), 4 * HZ).is_some());
        assert_eq!(found, [false, true, true]);
        table.enter(of(2), upper(9), 4 * HZ);
        assert_eq!(table.find(of(3), 4 * HZ), Some(upper(3)), "an identity has one place");
        // Expired ones make room whatever their age says after 18 hours.
        table.enter(of(4), upper(4), 70_000 * HZ);
        assert_eq!(table.find(of(4), 70_000 * HZ), Some(upper(4)));
    }
}
