//! Selection of packets by a filter's first rule, for observers.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::{FilterTable, Filtered, Reader};
use crate::batch::{BATCH_MAX, Batch};
use crate::mask::Mask;

/// Selects the packets that the first rule of a filter matches, without an effect.
pub struct Sieve {
    table: Arc<FilterTable>,
    ip4: Reader<Ipv4Addr>,
    ip6: Reader<Ipv6Addr>,
}

impl Sieve {
    /// By this filter.
    pub fn new(table: Arc<FilterTable>) -> Self {
        let own = || std::iter::once(&*table);
        let (ip4, ip6) = (Reader::of(own()), Reader::of(own()));
        Self { table, ip4, ip6 }
    }

    /// Those of these packets.
    pub fn select(&mut self, batch: &Batch, packets: Mask) -> Mask {
        let Self { table, ip4, ip6 } = self;
        let [of_ip4, of_ip6, others] = batch.by_family(packets);
        let others = others.filter(|slot| table.has_rule_for_frame(batch, slot));
        fitting(table, ip4, batch, of_ip4) | fitting(table, ip6, batch, of_ip6) | others
    }
}

/// Those of these packets, all of one family, that a filter's first rule matches.
fn fitting<A: Filtered>(
    table: &FilterTable,
    reader: &mut Reader<A>,
    batch: &Batch,
    packets: Mask,
) -> Mask {
    if packets.is_empty() {
        return Mask::EMPTY;
    }
    let hidden = reader.read(batch, packets);
    let frames = packets.slots().map(|slot| batch.frame(slot));
    table.lend_to_fragments(&mut reader.fields, batch.now, frames);
    let mut found = [0; BATCH_MAX];
    A::classifier(table).classify(&reader.fields, &mut found);
    let fits = packets.slots().zip(found).filter(|(_, rule)| *rule == 0);
    fits.map(|(slot, _)| slot).collect::<Mask>().without(hidden)
}
