//! `ip6-validate`: checks IPv6 headers.
//!
//! Takes frames with Ethertype IPv6 and at least 40 bytes after the Ethernet header.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | valid |
//! | drop `ip6-version` | version is not 6 |
//! | drop `ip6-payload-length` | payload length beyond the frame |
//! | drop `ip6-martian-source` | source multicast (RFC 4291 2.7), loopback (2.5.3) or IPv4-mapped |
//! | drop `own-source` | source is an address of the router (`own.rs`), link-local ones aside; not on interfaces that are [`TRANSLATED`] |
//!
//! Neighbour discovery from an address of the router passes: it reveals a host with the same address (RFC 4862
//! 5.4).
//!
//! Sets [`Batch::link_scope`] for link-local and unspecified sources, which must not be forwarded
//! to another link (RFC 4291 2.5.2, 2.5.6), and [`Batch::options`] if a hop-by-hop options header
//! follows (RFC 8200 4.3). Bytes after the payload (link padding) are cut off. IPv6 has no header
//! checksum.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use wire::ip::IPV6_LEN;

use crate::batch::{Batch, ETHERNET, HEAD};
use crate::graph::{Output, Outputs, Step};
use crate::head::{ip6, is_neighbour_discovery};
use crate::mask::Mask;
use crate::own::OwnAddresses;
use crate::reason::DropReason;
use crate::steps::TRANSLATED;

const OK: usize = 0;
const VERSION: usize = 1;
const PAYLOAD_LENGTH: usize = 2;
const MARTIAN_SOURCE: usize = 3;
const OWN_SOURCE: usize = 4;

pub(super) const OUTPUTS: &[Output] = &[
    Output::next("ok"),
    Output::Drop(DropReason::Ip6Version),
    Output::Drop(DropReason::Ip6PayloadLength),
    Output::Drop(DropReason::Ip6MartianSource),
    Output::Drop(DropReason::OwnSource),
];

/// The next header of hop-by-hop options (RFC 8200 4.3).
const HOP_BY_HOP_HEADER: u8 = 0;

/// See the module's documentation.
#[derive(Debug)]
pub struct Ip6Validate {
    own: Arc<OwnAddresses>,
}

impl Ip6Validate {
    /// Uses these as the router's own addresses.
    pub fn new(own: &Arc<OwnAddresses>) -> Self {
        Self { own: own.clone() }
    }
}

impl Step for Ip6Validate {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        // Nearly all packets have an ordinary source and no options; only the others are examined further.
        let hints = &self.own.ip6;
        let [plain, padded] = input.sort(|i| {
            let (head, len) = (batch.head(i), batch.len(i));
            let end = packet_end(head);
            let ip = ip6(head);
            let ordinary = hints.of(ip.source_address[0], ip.source_address[15]) == 0;
            let usual = (ip.version() == 6)
                & (end <= len)
                & ordinary
                & (ip.next_header != HOP_BY_HOP_HEADER);
            [usual, end < len]
        });
        out[OK] = plain;
        batch.link_scope = Mask::EMPTY;
        batch.options = batch.options.without(input);
        let unusual = input.without(plain);
        if !unusual.is_empty() {
            sort_unusual(&self.own, batch, unusual, out);
        }
        for i in (padded & out[OK]).slots() {
            let end = packet_end(batch.head(i));
            batch.trim(i, end);
        }
    }
}

fn sort_unusual(own: &OwnAddresses, batch: &mut Batch, input: Mask, out: &mut Outputs) {
    let mut version = Mask::EMPTY;
    let mut too_long = Mask::EMPTY;
    let mut martian = Mask::EMPTY;
    let mut hop_by_hop = Mask::EMPTY;
    let mut link_scope = Mask::EMPTY;
    let mut looped = Mask::EMPTY;
    for i in input.slots() {
        let (head, len) = (batch.head(i), batch.len(i));
        let end = packet_end(head);
        let source = u128::from_be_bytes(ip6(head).source_address);
        version |= Mask::when(ip6(head).version() != 6, i);
        too_long |= Mask::when(end > len, i);
        martian |= Mask::when(is_martian(source), i);
        hop_by_hop |= Mask::when(ip6(head).next_header == HOP_BY_HOP_HEADER, i);
        let owner = own.owner(IpAddr::V6(Ipv6Addr::from_bits(source)), batch.interface(i));
        let is_translated = batch.info(i).features.has(TRANSLATED);
        looped |= Mask::when(owner.is_some() && !is_translated && !is_neighbour_discovery(head), i);
        link_scope |= Mask::when(source >> 118 == 0xfe80 >> 6 || source == 0, i);
    }
    batch.link_scope = link_scope;
    out[VERSION] = version;
    out[PAYLOAD_LENGTH] = too_long.without(version);
    out[MARTIAN_SOURCE] = martian.without(version | too_long);
    out[OWN_SOURCE] = looped.without(version | too_long | martian);
    let valid = input.without(version | too_long | martian | looped);
    batch.options |= valid & hop_by_hop;
    out[OK] |= valid;
}

/// Returns the end of the packet in the frame: Ethernet header, 40 bytes, payload.
fn packet_end(head: &[u8; HEAD]) -> usize {
    ETHERNET + IPV6_LEN + usize::from(ip6(head).payload_length.get())
}

/// Returns true for multicast ff00::/8, loopback ::1, IPv4-mapped ::ffff:0:0/96.
fn is_martian(source: u128) -> bool {
    (source >> 120 == 0xff) | (source == 1) | (source >> 32 == 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::testing::{FrameBuilder, run_step, run_step_on};

    fn from(source: &str) -> Vec<u8> {
        FrameBuilder::ip6().source6(source).udp(1, 2, b"payload").build()
    }

    /// The router has 2001:db8:9::1 on every port.
    fn step() -> Ip6Validate {
        let own = OwnAddresses::new(false);
        own.publish([], [(crate::interface::VrfId::DEFAULT, "2001:db8:9::1".parse().unwrap())]);
        Ip6Validate::new(&Arc::new(own))
    }

    #[test]
    fn the_router_s_own_addresses_are_no_sources_but_of_neighbour_discovery() {
        let message = |kind: u8, hop_limit| {
            let frame = FrameBuilder::ip6().source6("2001:db8:9::1").protocol(58).ttl(hop_limit);
            frame.payload(&[kind, 0, 0, 0, 0, 0, 0, 0]).build()
        };
        let mut hop_by_hop = from("2001:db8:9::1");
        hop_by_hop[20] = 0;
        let frames = [
            from("2001:db8:9::1"),
            from("2001:db8:8::1"),
            message(136, 255),
            message(136, 254),
            message(128, 255),
            hop_by_hop,
        ];
        let (result, _) = run_step(&mut step(), &frames);
        assert_eq!(result["own-source"], [0, 3, 4, 5]);
        assert_eq!(result["ok"], [1, 2]);
        let (result, _) = run_step_on(&mut step(), &frames, |batch| {
            batch.own.features = Features::NONE.with(TRANSLATED, 1);
        });
        assert_eq!(result["ok"], [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn each_fault_has_its_own_output() {
        let good = from("2001:db8::1");
        let mut version = good.clone();
        version[14] = 0x45;
        let mut long = good.clone();
        long[19] += 1;
        let mut hop_by_hop = good.clone();
        hop_by_hop[20] = 0;
        let frames = [
            good,
            version,
            long,
            hop_by_hop,
            from("ff02::1"),
            from("::1"),
            from("::ffff:192.0.2.1"),
            from("fe80::1"),
            from("febf::1"),
            from("::"),
            from("fec0::1"),
        ];
        let (result, batch) = run_step(&mut step(), &frames);
        assert_eq!(result["ok"], [0, 3, 7, 8, 9, 10]);
        assert_eq!(result["ip6-version"], [1]);
        assert_eq!(result["ip6-payload-length"], [2]);
        assert_eq!(batch.options, Mask(1 << 3));
        assert_eq!(result["ip6-martian-source"], [4, 5, 6]);
        assert_eq!(batch.link_scope, Mask(0b11_1000_0000));
    }

    #[test]
    fn padding_is_cut_off() {
        let good = from("2001:db8::1");
        let mut padded = good.clone();
        padded.extend([0xee; 9]);
        let (result, batch) = run_step(&mut step(), &[padded]);
        assert_eq!(result["ok"], [0]);
        assert_eq!(batch.frame(0), good);
    }
}
