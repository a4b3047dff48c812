//! `classify`: sorts frames by content.
//!
//! Takes every frame a port received. A priority tag (0x8100, VLAN 0) is removed first: its frame
//! counts as untagged (IEEE 802.1Q 6.9).
//!
//! | output | packets |
//! |---|---|
//! | `ip4` | Ethertype 0x0800, to the MAC of this port, a virtual MAC of the interface (see `virtual_macs`) or a multicast MAC |
//! | `ip6` | Ethertype 0x86dd, likewise |
//! | punt `arp` | Ethertype 0x0806, likewise |
//! | punt `non-ip` | anything else to a group of a link protocol (LLDP, LACP, IS-IS), if the interface has a host interface |
//! | drop `runt` | shorter than Ethernet and the minimal header of its protocol |
//! | drop `not-for-us` | sent to another host's MAC (the port is promiscuous, or on a hub) |
//! | drop `vlan-unknown` | tagged (0x8100, 0x88a8, or by a tag that the device stripped), and the port has no VLAN with these tags (see `vlan-input`). Also after a priority tag |
//! | drop `unknown-ethertype` | anything else, also IEEE 802.3 length fields |
//! | punt `frame-to-host` | neither IPv4 nor IPv6, and passed to the host by a rule with `ethertype` of the interface's inward filter |
//! | drop `filtered`, `policed` | likewise, dropped by the rule or above its rate |
//!
//! Sets [`Batch::link_multicast`]. Sources: RFC 894, RFC 1042, RFC 2464, IEEE 802.1Q.

use std::sync::Arc;

use crate::batch::{Batch, ETHERNET};
use crate::filters::{FrameFilters, Judgement};
use crate::graph::{Output, Outputs, Step};
use crate::head::{bytes, ethernet, mac_bits};
use crate::mask::Mask;
use crate::reason::{DropReason, PuntReason, is_link_group};
use crate::tables::Tables;
use crate::virtual_macs::VirtualMacs;
use crate::vlan;

const IP4: usize = 0;
const IP6: usize = 1;
const ARP: usize = 2;
const RUNT: usize = 3;
const NOT_FOR_US: usize = 4;
const VLAN_UNKNOWN: usize = 5;
const UNKNOWN_ETHERTYPE: usize = 6;
const NON_IP: usize = 7;
const TO_HOST: usize = 8;
const FILTERED: usize = 9;
const POLICED: usize = 10;

pub(super) const OUTPUTS: &[Output] = &[
    Output::next("ip4"),
    Output::next("ip6"),
    Output::Punt(PuntReason::Arp),
    Output::Drop(DropReason::Runt),
    Output::Drop(DropReason::NotForUs),
    Output::Drop(DropReason::VlanUnknown),
    Output::Drop(DropReason::UnknownEthertype),
    Output::Punt(PuntReason::NonIp),
    Output::Punt(PuntReason::FrameToHost),
    Output::Drop(DropReason::Filtered),
    Output::Drop(DropReason::Policed),
];

const LEAST_IP4: usize = ETHERNET + 20;
const LEAST_IP6: usize = ETHERNET + 40;
const LEAST_ARP: usize = ETHERNET + 28;

/// The Ethertype of an 802.1Q tag.
const VLAN: u16 = 0x8100;

/// See the module's documentation.
#[derive(Default)]
pub struct Classify {
    /// `None`: no filter has rules with Ethertypes.
    filters: Option<Box<FrameFilters>>,
    macs: Arc<VirtualMacs>,
}

impl Classify {
    /// Uses the inward filters of these tables for frames that are neither IPv4 nor IPv6.
    pub fn new(tables: &Tables) -> Self {
        Self { filters: FrameFilters::of(&tables.filters), macs: tables.shared.get() }
    }
}

/// The frames of a batch by Ethertype and by minimal length.
#[derive(Default)]
struct Kinds {
    ip4: Mask,
    ip6: Mask,
    arp: Mask,
    vlan: Mask,
    for_port: Mask,
    multicast: Mask,
    short: Mask,
}

impl Kinds {
    fn of(batch: &Batch, input: Mask) -> Self {
        let mac = mac_bits(&batch.own.mac.0);
        let mut kinds = Self::default();
        for i in input.slots() {
            let head = batch.head(i);
            let len = batch.len(i);
            let ethertype = ethernet(head).ethertype.get();
            let ip4 = Mask::when(ethertype == 0x0800, i);
            let ip6 = Mask::when(ethertype == 0x86dd, i);
            let arp = Mask::when(ethertype == 0x0806, i);
            kinds.ip4 |= ip4;
            kinds.ip6 |= ip6;
            kinds.arp |= arp;
            kinds.vlan |= Mask::when(ethertype == VLAN || ethertype == 0x88a8, i);
            kinds.multicast |= Mask::when(head[0] & 1 != 0, i);
            kinds.for_port |= Mask::when(mac_bits(head) == mac, i);
            kinds.short |= (ip4 & Mask::when(len < LEAST_IP4, i))
                | (ip6 & Mask::when(len < LEAST_IP6, i))
                | (arp & Mask::when(len < LEAST_ARP, i))
                | Mask::when(len < ETHERNET, i);
        }
        kinds
    }
}

impl Step for Classify {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        // Nearly all frames are IP packets to the port's own address; only the others are examined further.
        let mac = &batch.own.mac.0;
        let untagged = input.without(batch.vlan_stripped());
        let ip4 = untagged.filter(|i| is_usual(batch, i, mac, 0x0800, LEAST_IP4));
        let ip6 = untagged.without(ip4).filter(|i| is_usual(batch, i, mac, 0x86dd, LEAST_IP6));
        out[IP4] = ip4;
        out[IP6] = ip6;
        batch.link_multicast = Mask::EMPTY;
        let unusual = input.without(ip4 | ip6);
        if !unusual.is_empty() {
            sort_unusual(batch, unusual, self, out);
        }
    }
}

/// Returns true if this is a frame to the port's own address with this Ethertype, and has at least this length.
#[inline(always)]
fn is_usual(batch: &Batch, slot: usize, mac: &[u8; 6], ethertype: u16, least: usize) -> bool {
    let head = batch.head(slot);
    // Eight bytes in one load; the two bytes of the source are shifted out.
    let address = (u64::from_le_bytes(bytes::<0, 8>(head)) << 16) ^ (mac_bits(mac) << 16);
    let other = ethernet(head).ethertype.get() ^ ethertype;
    (address | u64::from(other) == 0) & (batch.len(slot) >= least)
}

/// Sorts all other frames: groups, ARP, those too short, not for the router, or of unknown protocols.
fn sort_unusual(batch: &mut Batch, input: Mask, step: &Classify, out: &mut Outputs) {
    remove_priority_tags(batch, input);
    let kinds = Kinds::of(batch, input);
    batch.link_multicast = kinds.multicast;
    out[RUNT] = input & kinds.short;
    let long = input.without(kinds.short);
    let mut others = long.without(kinds.for_port | kinds.multicast);
    if step.macs.any() {
        others = others.without(to_virtual_macs(batch, others, &step.macs));
    }
    out[NOT_FOR_US] = others;
    let ours = long.without(out[NOT_FOR_US]);

    out[VLAN_UNKNOWN] = ours & (kinds.vlan | batch.vlan_stripped());
    let ours = ours.without(out[VLAN_UNKNOWN]);

    out[IP4] |= ours & kinds.ip4;
    out[IP6] |= ours & kinds.ip6;
    let mut others = ours.without(kinds.ip4 | kinds.ip6);
    if let Some(filters) = step.filters.as_deref() {
        others = permitted(batch, others, filters, out);
    }
    out[ARP] = others & kinds.arp;
    let unknown = others.without(kinds.arp);
    let to_groups = unknown & kinds.multicast;
    if !to_groups.is_empty() {
        out[NON_IP] = link_protocols(batch, to_groups);
    }
    out[UNKNOWN_ETHERTYPE] = unknown.without(out[NON_IP]);
}

/// The frames to virtual MACs of their interfaces.
fn to_virtual_macs(batch: &Batch, frames: Mask, macs: &VirtualMacs) -> Mask {
    frames.filter(|i| macs.contain(batch.interface(i), mac_bits(batch.head(i))))
}

/// Returns the frames that filters permit or do not cover; the others go to their outputs.
fn permitted(batch: &Batch, frames: Mask, filters: &FrameFilters, out: &mut Outputs) -> Mask {
    let mut rest = frames;
    for i in frames.slots() {
        let output = match filters.judge(batch, i) {
            None | Some(Judgement::Pass) => continue,
            Some(Judgement::ToHost) => TO_HOST,
            Some(Judgement::Police) => POLICED,
            Some(Judgement::Drop | Judgement::Reject) => FILTERED,
        };
        let bit = Mask::when(true, i);
        out[output] |= bit;
        rest = rest.without(bit);
    }
    rest
}

/// Removes a priority tag, and with it the tagging of the frame. Only one tag: a second one counts.
fn remove_priority_tags(batch: &mut Batch, input: Mask) {
    let is_tagged = |i| {
        let [ethertype, tci] =
            [bytes::<12, 2>(batch.head(i)), bytes::<14, 2>(batch.head(i))].map(u16::from_be_bytes);
        (ethertype == VLAN) & (tci & vlan::ID == 0)
    };
    for i in input.filter(is_tagged).slots() {
        batch.keep_tag(i);
        batch.untagged |= Mask::when(true, i);
        // A frame too short for the removal stays unchanged, and is dropped.
        batch.remove_tags(i, 1);
    }
}

/// The frames to a group of a link protocol, on interfaces that have a host interface.
fn link_protocols(batch: &Batch, frames: Mask) -> Mask {
    let mut found = Mask::EMPTY;
    for i in frames.slots() {
        let &[a, b, c, d, e, f, ..] = batch.head(i);
        found |= Mask::when(is_link_group([a, b, c, d, e, f]) && batch.info(i).host, i);
    }
    found
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;

    use super::*;
    use crate::interface::InterfaceId;
    use crate::testing::{FrameBuilder, PORT_MAC, run_step, run_step_on, tagged};

    #[test]
    fn each_kind_takes_its_own_output() {
        let other = [2, 9, 9, 9, 9, 9];
        let frames = [
            FrameBuilder::ip4().build(),
            FrameBuilder::ip6().build(),
            FrameBuilder::ethernet(PORT_MAC, 0x0806).payload(&[0; 28]).build(),
            FrameBuilder::ip4().build()[..33].to_vec(),
            FrameBuilder::ip6().build()[..53].to_vec(),
            FrameBuilder::ip4().destination_mac(other).build(),
            FrameBuilder::ip4().destination_mac([0xff; 6]).build(),
            FrameBuilder::ethernet(PORT_MAC, 0x8100).payload(&[1; 46]).build(),
            FrameBuilder::ethernet(PORT_MAC, 0x88cc).payload(&[0; 46]).build(),
            FrameBuilder::ethernet(PORT_MAC, 46).payload(&[0; 46]).build(),
            vec![0; 13],
        ];
        let (result, batch) = run_step(&mut Classify::default(), &frames);
        assert_eq!(result["ip4"], [0, 6]);
        assert_eq!(result["ip6"], [1]);
        assert_eq!(result["arp"], [2]);
        assert_eq!(result["runt"], [3, 4, 10]);
        assert_eq!(result["not-for-us"], [5]);
        assert_eq!(result["vlan-unknown"], [7]);
        assert_eq!(result["unknown-ethertype"], [8, 9]);
        assert_eq!(batch.link_multicast, Mask(1 << 6));
    }

    #[test]
    fn a_frame_whose_tag_the_device_took_out_is_still_a_tagged_one() {
        let frames = [
            FrameBuilder::ip4().build(),
            FrameBuilder::ip6().build(),
            FrameBuilder::ethernet(PORT_MAC, 0x0806).payload(&[0; 28]).build(),
            FrameBuilder::ip4().destination_mac([2, 9, 9, 9, 9, 9]).build(),
            FrameBuilder::ip4().build(),
        ];
        let (result, _) =
            run_step_on(&mut Classify::default(), &frames, |batch| batch.burst.say(0, 0, 0b01111));
        assert_eq!(result["vlan-unknown"], [0, 1, 2]);
        assert_eq!(result["not-for-us"], [3]);
        assert_eq!(result["ip4"], [4]);
    }

    #[test]
    fn frames_to_virtual_macs_are_for_the_router() {
        let mac = [0, 0, 0x5e, 0, 1, 7];
        let frames = [
            FrameBuilder::ip4().destination_mac(mac).build(),
            FrameBuilder::ip6().destination_mac(mac).build(),
            FrameBuilder::ethernet(mac, 0x0806).payload(&[0; 28]).build(),
            FrameBuilder::ip4().destination_mac([0, 0, 0x5e, 0, 1, 8]).build(),
            FrameBuilder::ip4().build(),
        ];
        let mut step = Classify::default();
        let (result, _) = run_step(&mut step, &frames);
        assert_eq!(result["not-for-us"], [0, 1, 2, 3]);
        step.macs.set(&[(InterfaceId::FIRST, MacAddr(mac))]);
        let (result, _) = run_step(&mut step, &frames);
        assert_eq!(result["ip4"], [0, 4]);
        assert_eq!(result["ip6"], [1]);
        assert_eq!(result["arp"], [2]);
        assert_eq!(result["not-for-us"], [3]);
        let other = InterfaceId::new(1).unwrap();
        step.macs.set(&[(other, MacAddr(mac))]);
        let (result, _) = run_step(&mut step, &frames);
        assert_eq!(result["not-for-us"], [0, 1, 2, 3], "of another interface");
    }

    #[test]
    fn a_priority_tag_is_taken_out() {
        let arp = FrameBuilder::ethernet(PORT_MAC, 0x0806).payload(&[0; 28]).build();
        let (ip4, ip6) = (FrameBuilder::ip4().build(), FrameBuilder::ip6().build());
        let frames = [
            tagged(&ip4, 0x8100, 0),
            tagged(&ip6, 0x8100, 0xf000),
            tagged(&arp, 0x8100, 0xa000),
            tagged(&ip4, 0x8100, 0xa005),
            tagged(&ip4, 0x88a8, 0),
            tagged(&tagged(&ip4, 0x8100, 5), 0x8100, 0),
            tagged(&ip4, 0x8100, 0)[..37].to_vec(),
            tagged(&ip4, 0x8100, 0)[..17].to_vec(),
            tagged(&FrameBuilder::ip4().destination_mac([0xff; 6]).build(), 0x8100, 0),
        ];
        let (result, batch) = run_step(&mut Classify::default(), &frames);
        assert_eq!(result["ip4"], [0, 8]);
        assert_eq!(result["ip6"], [1]);
        assert_eq!(result["arp"], [2]);
        assert_eq!(result["vlan-unknown"], [3, 4, 5, 7]);
        assert_eq!(result["runt"], [6]);
        assert_eq!(batch.link_multicast, Mask(1 << 8));
        assert_eq!([batch.frame(0), batch.frame(1), batch.frame(2)], [&ip4[..], &ip6, &arp]);
        assert_eq!([0, 1, 2].map(|slot| batch.priority(slot)), [0, 7, 5]);
    }

    #[test]
    fn link_protocols_are_punted_where_there_is_a_host_interface() {
        let frame =
            |mac, ethertype| FrameBuilder::ethernet(mac, ethertype).payload(&[0xfe; 46]).build();
        let lldp = frame([0x01, 0x80, 0xc2, 0, 0, 0x0e], 0x88cc);
        let isis = frame([0x01, 0x80, 0xc2, 0, 0, 0x14], 46);
        let other_group = frame([0x01, 0x80, 0xc2, 0, 0, 0x30], 46);
        let unicast = frame(PORT_MAC, 0x88cc);
        let frames = [lldp, isis, other_group, unicast];
        let (result, _) = run_step_on(&mut Classify::default(), &frames, |batch| {
            batch.own.host = true;
        });
        assert_eq!(result["non-ip"], [0, 1]);
        assert_eq!(result["unknown-ethertype"], [2, 3]);
        let (result, _) = run_step(&mut Classify::default(), &frames);
        assert_eq!(result["unknown-ethertype"], [0, 1, 2, 3]);
        let (result, _) = run_step_on(&mut Classify::default(), &frames, |batch| {
            batch.own.host = true;
            batch.set_interface(1, InterfaceId::new(64).unwrap());
        });
        assert_eq!(result["non-ip"], [0], "the other one came by an interface without one");
    }
}
