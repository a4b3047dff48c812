//! Selection of packets by a filter's first rule, for observers.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use wire::ethernet::{ADDRESSES_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, payload};

use super::{FilterTable, Filtered, Reader};
use crate::batch::{BATCH_MAX, Batch, ETHERNET};
use crate::mask::Mask;

/// Bytes at the beginning of a frame in which [`Sieve::fits`] finds its headers.
pub const SIEVED: usize = 512;

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

    /// Returns true for a frame of so many bytes outside a batch, of which `head` has the first ones. VLAN tags are
    /// removed from them: a rule sees the fields behind.
    pub fn fits(&mut self, head: &mut [u8], length: usize, interface: u16) -> bool {
        let Self { table, ip4, ip6 } = self;
        let Some((ethertype, start)) = payload(head) else { return false };
        let tags = start.saturating_sub(ETHERNET);
        head.copy_within(..ADDRESSES_LEN, tags);
        let frame = (&head[tags..], length - tags);
        match ethertype {
            ETHERTYPE_IPV4 => fits(table, ip4, frame, interface),
            ETHERTYPE_IPV6 => fits(table, ip6, frame, interface),
            _ => table.has_rule_for(frame.0, interface),
        }
    }
}

/// Returns true for an untagged frame of the family that a filter's first rule matches.
fn fits<A: Filtered>(
    table: &FilterTable,
    reader: &mut Reader<A>,
    frame: (&[u8], usize),
    interface: u16,
) -> bool {
    reader.fields.clear();
    let is_hidden = reader.fields.push_frame(frame.0, frame.1, interface);
    table.lend_to_fragments(&mut reader.fields, dpdk::tsc(), std::iter::once(frame.0));
    let mut found = [0; BATCH_MAX];
    A::classifier(table).classify(&reader.fields, &mut found);
    found[0] == 0 && !is_hidden
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
