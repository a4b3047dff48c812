//! `nd-advertiser`: answers neighbour solicitations for addresses of its own (RFC 4861 7.2.4).
//!
//! Takes neighbour solicitations with their Ethernet header at `offset`. An entry is a prefix and a MAC, as in
//! `"2001:db8::/64 02:00:00:00:00:01"`; of several that match, the longest prefix counts. The frame becomes the
//! advertisement, from the target to its sender, or to all nodes where that has no address yet.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | advertisements |
//! | `others` | solicitations for other addresses, those that are not valid (RFC 4861 7.1.1), and all else; unchanged |
//! | drop `full` | there is no room for the target's MAC in the answer to one that asks without an address |
//!
//! ```lua
//! graph:path("classify.0", { "nd-advertiser", entries = { "2001:db8::1/128 02:00:00:00:00:01" } }, "to-port")
//! graph:path("nd-advertiser.others", "drop")
//! ```

use std::net::Ipv6Addr;

use wire::MacAddr;
use wire::address::{ALL_NODES, multicast_mac_v6, solicited_node};
use wire::build::{Ipv6Fields, ipv6_header};
use wire::checksum::pseudo_header_v6;
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV6, EthernetHeader};
use wire::icmp::v6::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION};
use wire::ip::{Ipv6Header, PROTOCOL_ICMPV6};
use wire::nd::{
    FLAG_OVERRIDE, FLAG_SOLICITED, LinkLayerOption, ND_HOP_LIMIT, NeighbourAdvertisement,
    NeighbourSolicitation, OPTION_SOURCE_LINK_LAYER, OPTION_TARGET_LINK_LAYER, options,
};
use zerocopy::{FromBytes, IntoBytes};

use super::macs::{Macs, read};
use super::{offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::Grammar;

const OUTPUTS: &[Output] = &[
    Output::next("ok"),
    Output::next("others"),
    Output::DropAs(std::borrow::Cow::Borrowed("full")),
];

/// Bytes of a header and of the fixed part of a message, and of an advertisement's frame.
const IP_LEN: usize = size_of::<Ipv6Header>();
const MESSAGE_LEN: usize = size_of::<NeighbourAdvertisement>();
const PAYLOAD_LEN: usize = MESSAGE_LEN + size_of::<LinkLayerOption>();
const FRAME_LEN: usize = ETHERNET_LEN + IP_LEN + PAYLOAD_LEN;

static ENTRY: Grammar = Grammar {
    expected: "a prefix and a MAC such as \"2001:db8::/64 02:00:00:00:00:01\"",
    check: |text| read::<Ipv6Addr>(text).map(drop),
};

pub(super) fn spec() -> StepSpec {
    StepSpec::new("nd-advertiser", OUTPUTS, make)
        .param(Macs::<Ipv6Addr>::param(&ENTRY))
        .param(offset(0, "the Ethernet header's place"))
        .moves_data()
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    Box::new(NdAdvertiser { macs: Macs::of(context.args), at: place(context.args) })
}

/// The address that somebody asks for, and the one who asks.
struct Solicitation {
    target: Ipv6Addr,
    /// Unspecified for one that has no address yet.
    source: Ipv6Addr,
    mac: MacAddr,
}

/// Reads a valid solicitation from a frame.
fn solicitation(frame: &[u8]) -> Option<Solicitation> {
    let (ethernet, rest) = EthernetHeader::read_from_prefix(frame).ok()?;
    let (ip, rest) = Ipv6Header::read_from_prefix(rest).ok()?;
    let is_icmp = ethernet.ethertype == ETHERTYPE_IPV6
        && ip.version() == 6
        && ip.next_header == PROTOCOL_ICMPV6
        && ip.hop_limit == ND_HOP_LIMIT;
    let payload = rest.get(..ip.payload_length.get().into()).filter(|_| is_icmp)?;
    let (message, rest) = NeighbourSolicitation::read_from_prefix(payload).ok()?;
    let (source, destination) = (ip.source(), Ipv6Addr::from(ip.destination_address));
    let mut sum = pseudo_header_v6(source, destination, PROTOCOL_ICMPV6, payload.len() as u32);
    sum.add(payload);
    let target = message.target();
    let is_valid = message.kind == NEIGHBOUR_SOLICITATION
        && message.code == 0
        && sum.finish() == 0
        && !target.is_multicast();
    let mut own = None;
    for option in options(rest) {
        own = own.or(option.ok()?.link_layer_address(OPTION_SOURCE_LINK_LAYER));
    }
    // One without an address asks the target's group, and gives no MAC.
    let is_probe = source.is_unspecified();
    let fits = !is_probe || own.is_none() && destination == solicited_node(target);
    let mac = own.unwrap_or(ethernet.source);
    (is_valid && fits).then_some(Solicitation { target, source, mac })
}

/// The frame that advertises a target's MAC.
fn advertisement(asked: &Solicitation, mac: MacAddr) -> [u8; FRAME_LEN] {
    let is_probe = asked.source.is_unspecified();
    let (destination, to, solicited) = match is_probe {
        true => (ALL_NODES, multicast_mac_v6(ALL_NODES), 0),
        false => (asked.source, asked.mac, FLAG_SOLICITED),
    };
    let ethernet =
        EthernetHeader { destination: to, source: mac, ethertype: ETHERTYPE_IPV6.into() };
    let fields = Ipv6Fields {
        class: 0,
        hop_limit: ND_HOP_LIMIT,
        next_header: PROTOCOL_ICMPV6,
        source: asked.target,
        destination,
    };
    let ip = ipv6_header(fields, PAYLOAD_LEN);
    let message = NeighbourAdvertisement {
        kind: NEIGHBOUR_ADVERTISEMENT,
        code: 0,
        checksum: 0.into(),
        flags: solicited | FLAG_OVERRIDE,
        reserved: [0; 3],
        target_address: asked.target.octets(),
    };
    let option = LinkLayerOption { kind: OPTION_TARGET_LINK_LAYER, length: 1, mac };
    let mut frame = [0; FRAME_LEN];
    let (head, payload) = frame.split_at_mut(ETHERNET_LEN + IP_LEN);
    head[..ETHERNET_LEN].copy_from_slice(ethernet.as_bytes());
    head[ETHERNET_LEN..].copy_from_slice(ip.as_bytes());
    payload[..MESSAGE_LEN].copy_from_slice(message.as_bytes());
    payload[MESSAGE_LEN..].copy_from_slice(option.as_bytes());
    let mut sum = pseudo_header_v6(asked.target, destination, PROTOCOL_ICMPV6, PAYLOAD_LEN as u32);
    sum.add(payload);
    payload[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}

struct NdAdvertiser {
    macs: Macs<Ipv6Addr>,
    at: usize,
}

impl NdAdvertiser {
    /// Makes a solicitation its own answer; returns the output.
    fn answer(&self, batch: &mut Batch, slot: usize) -> usize {
        let asked = batch.frame(slot).get(self.at..).and_then(solicitation);
        let Some(asked) = asked else { return 1 };
        let Some(mac) = self.macs.find(asked.target) else { return 1 };
        // A probe is shorter than its answer.
        let missing = (self.at + FRAME_LEN).saturating_sub(batch.frame(slot).len());
        if missing > 0 && !batch.unstrip(slot, missing as u16) {
            return 2;
        }
        let answer = advertisement(&asked, mac);
        match batch.frame_mut(slot).get_mut(self.at..self.at + FRAME_LEN) {
            Some(place) => {
                place.copy_from_slice(&answer);
                0
            }
            None => 2,
        }
    }
}

impl Step for NdAdvertiser {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            out[self.answer(batch, slot)] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::build::{Link, neighbour_advertisement};

    use super::super::{list, make};
    use super::*;
    use crate::testing::run_step;

    const ASKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    /// A solicitation from this address, with an option unless that is `::`.
    fn request(source: &str, target: &str) -> Vec<u8> {
        let (source, target) = (address(source), address(target));
        let group = solicited_node(target);
        let message = NeighbourSolicitation {
            kind: NEIGHBOUR_SOLICITATION,
            code: 0,
            checksum: 0.into(),
            reserved: 0.into(),
            target_address: target.octets(),
        };
        let option = LinkLayerOption { kind: OPTION_SOURCE_LINK_LAYER, length: 1, mac: ASKER };
        let option = if source.is_unspecified() { &[][..] } else { option.as_bytes() };
        wire::build::neighbour_discovery(
            ASKER,
            source,
            group,
            [message.as_bytes(), option].concat(),
        )
    }

    #[test]
    fn solicitations_become_advertisements() {
        let entries =
            list(&["2001:db8::/32 02:00:00:00:00:01", "2001:db8::1/128 02:00:00:00:00:02"]);
        let mut step = make("nd-advertiser", &[("entries", entries)]);
        let frames = [
            request("fe80::7", "2001:db8::1"),
            request("fe80::7", "2001:db8::9"),
            request("::", "2001:db8::1"),
            request("fe80::7", "2001:db9::1"),
        ];
        let (result, batch) = run_step(&mut *step, &frames);
        assert_eq!((&result["ok"], &result["others"]), (&vec![0, 1, 2], &vec![3]));
        let answer = |mac: u8, destination: &str, to: MacAddr, target: &str, flags: u8| {
            let link = Link { destination: to, source: MacAddr([2, 0, 0, 0, 0, mac]) };
            let (target, destination) = (address(target), address(destination));
            neighbour_advertisement(link, target, destination, target, flags)
        };
        let solicited = FLAG_SOLICITED | FLAG_OVERRIDE;
        assert_eq!(batch.frame(0), answer(2, "fe80::7", ASKER, "2001:db8::1", solicited));
        assert_eq!(batch.frame(1), answer(1, "fe80::7", ASKER, "2001:db8::9", solicited));
        let all = multicast_mac_v6(ALL_NODES);
        assert_eq!(batch.frame(2), answer(2, "ff02::1", all, "2001:db8::1", FLAG_OVERRIDE));
        assert_eq!(batch.frame(3), frames[3]);
    }

    #[test]
    fn what_is_not_valid_is_not_answered() {
        let mut step = make("nd-advertiser", &[("entries", list(&["::/0 02:00:00:00:00:01"]))]);
        let good = request("fe80::7", "2001:db8::1");
        let with = |at: usize, byte: u8| {
            let mut frame = good.clone();
            frame[at] = byte;
            frame
        };
        let frames = [
            good.clone(),
            // Hop limit, code, checksum, ethertype, next header, length, a group.
            with(21, 64),
            with(55, 1),
            with(56, good[56] ^ 1),
            with(13, 0),
            with(20, 17),
            good[..60].to_vec(),
            request("::", "ff02::1"),
        ];
        let (result, _) = run_step(&mut *step, &frames);
        assert_eq!((&result["ok"], &result["others"]), (&vec![0], &vec![1, 2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn entries_are_checked() {
        assert!(read::<Ipv6Addr>("2001:db8::/64 02:00:00:00:00:01").is_ok());
        for wrong in [
            "2001:db8::/64",
            "2001:db8::1 02:00:00:00:00:01",
            "::/0 x",
            "10.0.0.0/8 02:00:00:00:00:01",
        ] {
            assert!(
                read::<Ipv6Addr>(wrong).unwrap_err().contains("expected PREFIX MAC"),
                "{wrong}"
            );
        }
    }
}
