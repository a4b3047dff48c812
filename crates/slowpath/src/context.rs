//! The views of the engine's shared state that its protocols get. Each protocol keeps its own state to itself.
//!
//! * [`LinkContext`]: for protocols that send on their own link only. They need neither neighbours nor routes.
//! * [`Context`]: for protocols that receive packets, or send packets by neighbours and routes.

use dataplane::flow::FlowHash;

use crate::bucket::Rates;
use crate::gateways::Gateways;
use crate::identification::Identifications;
use crate::interfaces::Interfaces;
use crate::neighbour::Table;
use crate::random::Random;
use crate::{Icmp, Time};

/// For protocols that send on their own link, at times of their own.
pub(crate) struct LinkContext<'a, O> {
    /// Mutable for [`crate::duplicate`], which decides on the addresses that may be used.
    pub interfaces: &'a mut Interfaces,
    pub random: &'a mut Random,
    pub now: Time,
    pub out: &'a mut O,
}

/// For protocols that receive packets, and send packets by neighbours and routes.
pub(crate) struct Context<'a, P, O> {
    pub interfaces: &'a Interfaces,
    pub table: &'a mut Table<P>,
    pub gateways: &'a Gateways,
    pub identifications: &'a mut Identifications,
    pub rates: &'a Rates,
    pub icmp: &'a Icmp,
    pub flow: &'a FlowHash,
    pub random: &'a mut Random,
    pub now: Time,
    pub out: &'a mut O,
}

impl<P, O> Context<'_, P, O> {
    /// Returns the identification of an own IPv4 packet of this length, by [`Identifications::v4`].
    pub(crate) fn identify(&mut self, length: usize, asked_with_df: bool) -> Option<Option<u16>> {
        let smallest_mtu = self.interfaces.smallest_mtu();
        self.identifications.v4(length, asked_with_df, smallest_mtu, self.now)
    }
}
