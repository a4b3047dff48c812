//! The slow protocols of link aggregation: LACPDUs and marker PDUs (IEEE 802.1AX-2014, 6.4.2.3 and 6.5.3.3).

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MacAddr;
use crate::ethernet::EthernetHeader;

/// Ethertype of the slow protocols (IEEE 802.3, Annex 57A).
pub const ETHERTYPE_SLOW: u16 = 0x8809;

/// Destination of all their frames; no bridge forwards it.
pub const SLOW_GROUP: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0, 0, 2]);

/// Flags of a port in a LACPDU (6.4.2.3, m): the bits of [`Port::state`].
pub mod state {
    /// LACP_Activity: sends LACPDUs regardless of the partner.
    pub const ACTIVITY: u8 = 1;
    /// LACP_Timeout: wants a LACPDU each second.
    pub const SHORT_TIMEOUT: u8 = 1 << 1;
    /// Aggregation: the link can be aggregated with others.
    pub const AGGREGATION: u8 = 1 << 2;
    /// Synchronization: the port is attached to the right aggregator.
    pub const SYNCHRONIZATION: u8 = 1 << 3;
    /// Collecting: received frames count.
    pub const COLLECTING: u8 = 1 << 4;
    /// Distributing: the port sends frames.
    pub const DISTRIBUTING: u8 = 1 << 5;
    /// Defaulted: the partner's data is configured, not received.
    pub const DEFAULTED: u8 = 1 << 6;
    /// Expired: nothing has come from the partner for too long.
    pub const EXPIRED: u8 = 1 << 7;

    /// The names of the bits, lowest first.
    const NAMES: [&str; 8] = [
        "activity",
        "short-timeout",
        "aggregation",
        "synchronization",
        "collecting",
        "distributing",
        "defaulted",
        "expired",
    ];

    /// Returns the names of the flags that are set.
    pub fn names(state: u8) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().enumerate().filter(move |(bit, _)| state >> bit & 1 != 0).map(|of| of.1)
    }
}

/// A port as a LACPDU describes it: the sender's own (actor), or the receiver's as the sender knows it (partner).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Port {
    /// Priority of its system; the least number counts most.
    pub system_priority: U16,
    /// Identifier of its system.
    pub system: MacAddr,
    /// Its key: ports of a system with the same one can be aggregated.
    pub key: U16,
    /// Its priority in its system.
    pub port_priority: U16,
    /// Its number in its system.
    pub port: U16,
    /// Flags, see [`mod@state`].
    pub state: u8,
}

/// The type and the length of a TLV.
type Tlv = [u8; 2];

const ACTOR: Tlv = [1, 20];
const PARTNER: Tlv = [2, 20];
const COLLECTOR: Tlv = [3, 16];
const TERMINATOR: Tlv = [0, 0];

const SUBTYPE_LACP: u8 = 1;
const SUBTYPE_MARKER: u8 = 2;
const VERSION: u8 = 1;

/// A LACPDU behind the Ethernet header.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    subtype: u8,
    version: u8,
    actor_tlv: Tlv,
    actor: Port,
    actor_reserved: [u8; 3],
    partner_tlv: Tlv,
    partner: Port,
    partner_reserved: [u8; 3],
    collector_tlv: Tlv,
    collector_delay: U16,
    collector_reserved: [u8; 12],
    terminator: Tlv,
    reserved: [u8; 50],
}

/// A marker PDU behind the Ethernet header.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MarkerLayout {
    subtype: u8,
    version: u8,
    tlv: Tlv,
    marker: Marker,
    pad: [u8; 2],
    terminator: Tlv,
    reserved: [u8; 90],
}

/// Length of every PDU in bytes, without Ethernet header.
pub const PDU_LEN: usize = size_of::<Layout>();
const _: () = assert!(PDU_LEN == 110 && size_of::<MarkerLayout>() == PDU_LEN, "IEEE 802.1AX");

/// A marker (6.5.3.3): a port asks whether the frames sent before it have arrived.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Marker {
    /// Number of the asking port.
    pub port: U16,
    /// Its system.
    pub system: MacAddr,
    /// Chosen by the asking port.
    pub transaction: U32,
}

/// The sender's port and the receiver's, as the sender knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacpdu {
    /// The sender's port.
    pub actor: Port,
    /// The receiver's port.
    pub partner: Port,
    /// Longest time for which the sender's collector delays a frame, in tens of microseconds.
    pub collector_delay: u16,
}

/// A frame of link aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowPdu {
    /// A LACPDU.
    Lacp(Lacpdu),
    /// A marker, to be answered by [`Marker::response`].
    Marker(Marker),
    /// The answer to a marker.
    MarkerResponse,
    /// Another slow protocol (OAM, ESMC).
    Other,
}

impl SlowPdu {
    /// Reads the PDU of an untagged frame; `None` if the frame is malformed. Longer frames and later versions are
    /// read as far as this version goes (6.4.2.3, b).
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (ethernet, pdu) = EthernetHeader::ref_from_prefix(frame).ok()?;
        if ethernet.ethertype != ETHERTYPE_SLOW || ethernet.destination != SLOW_GROUP {
            return None;
        }
        match *pdu.first()? {
            SUBTYPE_LACP => {
                let (pdu, _) = Layout::ref_from_prefix(pdu).ok()?;
                let tlvs = [pdu.actor_tlv, pdu.partner_tlv, pdu.collector_tlv];
                (pdu.version >= VERSION && tlvs == [ACTOR, PARTNER, COLLECTOR]).then_some(())?;
                let Layout { actor, partner, collector_delay, .. } = *pdu;
                let collector_delay = collector_delay.get();
                Some(Self::Lacp(Lacpdu { actor, partner, collector_delay }))
            }
            SUBTYPE_MARKER => {
                let (pdu, _) = MarkerLayout::ref_from_prefix(pdu).ok()?;
                match pdu.tlv {
                    [1, 16] if pdu.version >= VERSION => Some(Self::Marker(pdu.marker)),
                    [2, 16] if pdu.version >= VERSION => Some(Self::MarkerResponse),
                    _ => None,
                }
            }
            0 => None,
            _ => Some(Self::Other),
        }
    }
}

fn frame(source: MacAddr, pdu: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    let ethernet =
        EthernetHeader { destination: SLOW_GROUP, source, ethertype: ETHERTYPE_SLOW.into() };
    [ethernet.as_bytes(), pdu.as_bytes()].concat()
}

impl Lacpdu {
    /// Returns the frame that a port with this address sends.
    pub fn frame(&self, source: MacAddr) -> Vec<u8> {
        frame(
            source,
            &Layout {
                subtype: SUBTYPE_LACP,
                version: VERSION,
                actor_tlv: ACTOR,
                actor: self.actor,
                actor_reserved: [0; 3],
                partner_tlv: PARTNER,
                partner: self.partner,
                partner_reserved: [0; 3],
                collector_tlv: COLLECTOR,
                collector_delay: self.collector_delay.into(),
                collector_reserved: [0; 12],
                terminator: TERMINATOR,
                reserved: [0; 50],
            },
        )
    }
}

impl Marker {
    /// Returns the frame by which a port with this address answers (6.5.4.2).
    pub fn response(self, source: MacAddr) -> Vec<u8> {
        frame(
            source,
            &MarkerLayout {
                subtype: SUBTYPE_MARKER,
                version: VERSION,
                tlv: [2, 16],
                marker: self,
                pad: [0; 2],
                terminator: TERMINATOR,
                reserved: [0; 90],
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn pdu() -> Lacpdu {
        let port = |system, port: u16| Port {
            system_priority: 0x8000.into(),
            system: MacAddr([2, 0, 0, 0, 0, system]),
            key: 17.into(),
            port_priority: 255.into(),
            port: port.into(),
            state: state::ACTIVITY | state::AGGREGATION,
        };
        Lacpdu { actor: port(1, 3), partner: port(2, 4), collector_delay: 9 }
    }

    #[test]
    fn a_lacpdu_has_the_bytes_of_the_standard() {
        let frame = pdu().frame(SOURCE);
        assert_eq!(frame.len(), 124);
        assert_eq!(frame[..18], [1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 9, 1, 1, 1, 20]);
        assert_eq!(
            frame[18..36],
            [0x80, 0, 2, 0, 0, 0, 0, 1, 0, 17, 0, 255, 0, 3, 5, 0, 0, 0],
            "the actor"
        );
        assert_eq!(frame[36..42], [2, 20, 0x80, 0, 2, 0]);
        assert_eq!(frame[56..62], [3, 16, 0, 9, 0, 0]);
        assert_eq!(frame[72..124], [0; 52]);
    }

    #[test]
    fn a_lacpdu_survives_its_frame_and_a_later_version_is_read() {
        let mut frame = pdu().frame(SOURCE);
        assert_eq!(SlowPdu::parse(&frame), Some(SlowPdu::Lacp(pdu())));
        frame[15] = 2;
        frame.extend([7; 40]);
        assert_eq!(SlowPdu::parse(&frame), Some(SlowPdu::Lacp(pdu())));
    }

    #[test]
    fn malformed_frames_are_refused() {
        let good = pdu().frame(SOURCE);
        // Destination, Ethertype, subtype, version, types and lengths of the three TLVs.
        for (at, value) in [
            (5, 3),
            (13, 8),
            (14, 0),
            (15, 0),
            (16, 2),
            (17, 19),
            (36, 1),
            (37, 21),
            (56, 0),
            (57, 15),
        ] {
            let mut frame = good.clone();
            frame[at] = value;
            assert_eq!(SlowPdu::parse(&frame), None, "byte {at}");
        }
        for len in 0..good.len() {
            assert_eq!(SlowPdu::parse(&good[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_marker_is_answered_as_it_is() {
        let marker = Marker { port: 3.into(), system: SOURCE, transaction: 0x0102_0304.into() };
        let mut frame = marker.response(SOURCE);
        assert_eq!((frame.len(), SlowPdu::parse(&frame)), (124, Some(SlowPdu::MarkerResponse)));
        assert_eq!(frame[14..32], [2, 1, 2, 16, 0, 3, 2, 0, 0, 0, 0, 1, 1, 2, 3, 4, 0, 0]);
        frame[16] = 1;
        assert_eq!(SlowPdu::parse(&frame), Some(SlowPdu::Marker(marker)));
        frame[17] = 17;
        assert_eq!(SlowPdu::parse(&frame), None);
        frame[14] = 3;
        assert_eq!(SlowPdu::parse(&frame), Some(SlowPdu::Other));
    }
}
