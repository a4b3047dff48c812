//! Gateways by the numbers of their next hops, as the control plane assigns them.

use std::collections::HashMap;

use crate::neighbour::Key;

/// The gateways. Several next hops may lead to the same one.
#[derive(Clone, Default)]
pub(crate) struct Gateways {
    by_next_hop: HashMap<u16, Key>,
    /// Number of next hops that each gateway serves.
    uses: HashMap<Key, usize>,
}

impl Gateways {
    /// Makes this next hop a gateway's.
    pub(crate) fn set(&mut self, next_hop: u16, gateway: Key) {
        *self.uses.entry(gateway).or_default() += 1;
        let old = self.by_next_hop.insert(next_hop, gateway);
        self.release(old);
    }

    /// Withdraws a next hop's number.
    pub(crate) fn remove(&mut self, next_hop: u16) {
        let old = self.by_next_hop.remove(&next_hop);
        self.release(old);
    }

    fn release(&mut self, gateway: Option<Key>) {
        let Some(gateway) = gateway else { return };
        if let Some(uses) = self.uses.get_mut(&gateway) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&gateway);
            }
        }
    }

    /// Returns the gateway with this next-hop number.
    pub(crate) fn get(&self, next_hop: u16) -> Option<Key> {
        self.by_next_hop.get(&next_hop).copied()
    }

    /// Returns true for a neighbour that is the gateway of a next hop.
    pub(crate) fn serves(&self, neighbour: Key) -> bool {
        self.uses.contains_key(&neighbour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{LEFT, ip};

    #[test]
    fn a_gateway_serves_until_its_last_next_hop_is_gone() {
        let (one, other) = ((LEFT, ip("10.0.1.2")), (LEFT, ip("10.0.1.3")));
        let mut gateways = Gateways::default();
        gateways.set(1, one);
        gateways.set(2, one);
        gateways.set(1, one);
        gateways.remove(2);
        assert!(gateways.serves(one), "next hop 1 is counted once");
        gateways.set(1, other);
        assert_eq!((gateways.serves(one), gateways.serves(other)), (false, true));
        assert_eq!(gateways.get(1), Some(other));
        gateways.remove(1);
        gateways.remove(1);
        assert_eq!((gateways.serves(other), gateways.get(1)), (false, None));
    }
}
