//! Identifications of the router's own packets that may be fragmented: RFC 6864, 4; RFC 8200, 4.5.

use crate::Time;
use crate::bucket::TokenBucket;
use crate::random::Random;

/// The router's own packets that may be fragmented on their way, per second and in one burst. An identification
/// is not used again for as long as a packet may live, two minutes (RFC 6864, 4.3): 5000 + 120 * 500 is less
/// than the number of identifications.
const RATE: u32 = 500;
const BURST: u32 = 5000;

/// Largest own IPv4 packet that is never fragmented (RFC 791, 3.1: the size that every host accepts).
const SMALL: usize = 576;

/// The last identifications used.
pub(crate) struct Identifications {
    /// Of an IPv4 packet that the router made.
    v4: u16,
    /// Bounds the packets that need an identification.
    v4_rate: TokenBucket,
    /// Of a packet that the router itself sent in fragments.
    fragments: u32,
}

impl Identifications {
    /// Starts at random identifications.
    pub(crate) fn new(random: &mut Random) -> Self {
        let (v4, fragments) = (random.next() as u16, random.next() as u32);
        Self { v4, v4_rate: TokenBucket::new(RATE, BURST), fragments }
    }

    /// Returns the identification of an own IPv4 packet of this length. The inner `None`: it needs none and gets
    /// DF, because it is small or because its receiver discovers the path MTU itself. The outer `None`: it must
    /// not be sent, since all identifications are in use.
    pub(crate) fn v4(
        &mut self,
        length: usize,
        asked_with_df: bool,
        smallest_mtu: u16,
        now: Time,
    ) -> Option<Option<u16>> {
        let fits = length <= usize::from(smallest_mtu);
        if fits && (length <= SMALL || asked_with_df) {
            return Some(None);
        }
        if !self.v4_rate.take(now) {
            return None;
        }
        self.v4 = self.v4.wrapping_add(1);
        Some(Some(self.v4))
    }

    /// Returns the identification of an own packet that the router itself sends in fragments. Those of IPv4 keep
    /// the one that their packet has.
    pub(crate) fn of_fragments(&mut self) -> u32 {
        self.fragments = self.fragments.wrapping_add(1);
        self.fragments
    }

    /// Starts over with IPv4 identification 1.
    #[cfg(test)]
    pub(crate) fn restart(&mut self) {
        self.v4 = 0;
    }
}
