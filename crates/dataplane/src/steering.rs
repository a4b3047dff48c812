//! Steering: the packets of a batch that filters send elsewhere than their destination's route leads. Filters note
//! them, and the steps `ip4-policy-route` and `ip6-policy-route` send them.

use crate::mask::{BATCH_MAX, Mask};

/// Packets of a batch that rules send elsewhere.
pub struct Steering {
    packets: Mask,
    /// The rule's filter and the place of its target there, by slot; of other packets they mean nothing.
    targets: [(u8, u8); BATCH_MAX],
}

impl Steering {
    /// No packet.
    pub const NONE: Self = Self { packets: Mask::EMPTY, targets: [(0, 0); BATCH_MAX] };

    /// Forgets all packets.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.packets = Mask::EMPTY;
    }

    /// Packets that rules send elsewhere.
    #[inline(always)]
    pub fn packets(&self) -> Mask {
        self.packets
    }

    /// The rule's filter and the place of its target there, of one of these packets.
    #[inline(always)]
    pub(crate) fn target(&self, slot: usize) -> (u8, u8) {
        self.targets[slot & (BATCH_MAX - 1)]
    }

    /// Sends the packet of a slot to the target at this place of the filter with this number.
    pub fn add(&mut self, slot: usize, filter: u8, target: u8) {
        self.targets[slot & (BATCH_MAX - 1)] = (filter, target);
        self.packets |= Mask::when(true, slot);
    }
}
