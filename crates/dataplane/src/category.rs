//! Categories: sets of a batch's packets, assigned by filters and read by later steps.
//!
//! A rule puts its packets into a category; a packet may be in several, and nothing is copied. The numbers of
//! categories stand for the names in a configuration, in the order of their first use.

use crate::mask::Mask;

/// The most categories of a router.
pub const CATEGORIES_MAX: usize = 16;

/// The packets of a batch in each category. Steps in Lua read this layout.
#[derive(Debug)]
#[repr(C)]
pub struct Categories {
    masks: [Mask; CATEGORIES_MAX],
    /// The numbers of those that have had a packet, one bit each.
    used: u64,
}

impl Categories {
    /// No packet is in any.
    pub const NONE: Self = Self { masks: [Mask::EMPTY; CATEGORIES_MAX], used: 0 };

    /// Takes all packets out.
    #[inline(always)]
    pub fn clear(&mut self) {
        if self.used != 0 {
            *self = Self::NONE;
        }
    }

    /// Puts the packet of a slot into the categories of these bits.
    pub fn add(&mut self, slot: usize, categories: u16) {
        for number in Mask(categories.into()).slots() {
            self.masks[number % CATEGORIES_MAX] |= Mask::when(true, slot);
        }
        self.used |= u64::from(categories);
    }

    /// The packets in one.
    pub fn packets(&self, category: usize) -> Mask {
        self.masks.get(category).copied().unwrap_or(Mask::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_may_be_in_several_until_the_next_batch() {
        let mut categories = Categories::NONE;
        categories.add(3, 0b101);
        categories.add(5, 0b100);
        let packets = |of: &Categories| [0, 1, 2, 15, 16].map(|number| of.packets(number).0);
        assert_eq!(packets(&categories), [0b1000, 0, 0b10_1000, 0, 0]);
        categories.clear();
        assert_eq!(packets(&categories), [0; 5]);
    }
}
