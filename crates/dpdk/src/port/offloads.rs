//! Offloads: packet processing that a port leaves to its device.
//!
//! An offload is used if the device has it and the router gains by it, unless the configuration sets it. A
//! required offload that is not available is an error, before the port is started; one that is off is listed
//! with the reason. Large receive offload is never used: packets that a device has merged could not be
//! forwarded unchanged.

use std::collections::BTreeMap;
use std::fmt;

use dpdk_sys as sys;

use super::PortConfig;
use crate::Error;

/// Packet processing that a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offload {
    /// The device checks IPv4 header checksums of received packets.
    RxChecksum,
    /// The device writes the TCP and UDP checksums that [`crate::Mbuf::request_checksum`] leaves to it.
    TxChecksum,
    /// The device cuts the TCP packets that [`crate::Mbuf::request_segmentation`] leaves to it.
    Segmentation,
    /// The device strips the VLAN tag of received frames, and inserts that of a VLAN with one customer tag into sent
    /// frames; a driver that would insert it in software leaves it to the router.
    Vlan,
    /// The device puts a frame that is longer than a packet buffer into several of them.
    Scatter,
    /// The device sends packets of several buffers.
    MultiSegment,
    /// The device returns sent packets to their pool without inspecting each.
    FastFree,
}

/// The offloads set by a configuration: required, or forbidden.
pub type OffloadWishes = BTreeMap<Offload, bool>;

impl Offload {
    /// All offloads, in the order of display.
    pub const ALL: [Self; 7] = [
        Self::RxChecksum,
        Self::TxChecksum,
        Self::Segmentation,
        Self::Vlan,
        Self::Scatter,
        Self::MultiSegment,
        Self::FastFree,
    ];

    /// Their names, in the same order.
    pub const NAMES: [&'static str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut n = 0;
        while n < names.len() {
            names[n] = Self::ALL[n].name();
            n += 1;
        }
        names
    };

    /// Returns its name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RxChecksum => "rx_checksum",
            Self::TxChecksum => "tx_checksum",
            Self::Segmentation => "segmentation",
            Self::Vlan => "vlan",
            Self::Scatter => "scatter",
            Self::MultiSegment => "multi_segment",
            Self::FastFree => "fast_free",
        }
    }

    /// Returns the offload of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|offload| offload.name() == name)
    }

    /// Returns DPDK's bits for receiving and sending, all of which a device must have.
    fn bits(self) -> (u64, u64) {
        match self {
            Self::RxChecksum => (sys::SHIM_RX_OFFLOAD_IPV4_CKSUM, 0),
            Self::TxChecksum => (0, sys::SHIM_TX_OFFLOAD_L4_CKSUM),
            Self::Segmentation => (0, sys::SHIM_TX_OFFLOAD_TCP_TSO),
            Self::Vlan => (sys::SHIM_RX_OFFLOAD_VLAN_STRIP, sys::SHIM_TX_OFFLOAD_VLAN_INSERT),
            Self::Scatter => (sys::SHIM_RX_OFFLOAD_SCATTER, 0),
            Self::MultiSegment => (0, sys::SHIM_TX_OFFLOAD_MULTI_SEGS),
            Self::FastFree => (0, sys::SHIM_TX_OFFLOAD_MBUF_FAST_FREE),
        }
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason for using an offload or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadReason {
    /// Used by default if the device has it.
    Default,
    /// The configuration requires it.
    Wanted,
    /// The configuration forbids it.
    Refused,
    /// The device, or its driver, lacks it.
    Missing,
    /// The driver does it in software, which costs more than the router's own.
    BySoftware,
    /// No packet that leaves by the port requests it.
    NoRequests,
    /// Every frame fits one packet buffer.
    FramesFit,
    /// The router does not use it unless configured to.
    Unused,
    /// It needs another offload, which is off.
    Needs(Offload),
    /// The packets of one transmit queue come from several pools, and some are shared.
    SeveralPools,
}

impl fmt::Display for OffloadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the device has it"),
            Self::Wanted => f.write_str("the configuration asks for it"),
            Self::Refused => f.write_str("the configuration forbids it"),
            Self::Missing => f.write_str("the device lacks it"),
            Self::BySoftware => {
                f.write_str("the driver has no hardware for it, and the router is faster")
            }
            Self::NoRequests => f.write_str("no packet that leaves by the port asks for it"),
            Self::FramesFit => f.write_str("every frame fits one packet buffer"),
            Self::Unused => f.write_str("the router removes and inserts tags itself"),
            Self::Needs(other) => write!(f, "it needs {other}, which is off"),
            Self::SeveralPools => {
                f.write_str("one transmit queue sends packets of several pools, and shared ones")
            }
        }
    }
}

/// State of a port's offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadState {
    /// The offload.
    pub offload: Offload,
    /// True if the device has it.
    pub has: bool,
    /// True if it is used.
    pub on: bool,
    /// The reason.
    pub reason: OffloadReason,
}

/// The offloads of a port: every one, used or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads([OffloadState; Offload::ALL.len()]);

impl Offloads {
    /// Iterates over all, in the order of [`Offload::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = &OffloadState> {
        self.0.iter()
    }

    /// Returns true if the offload is used.
    pub fn on(&self, offload: Offload) -> bool {
        self.iter().any(|state| state.offload == offload && state.on)
    }
}

/// Requirements of a port, in addition to the wishes of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// True if packets that request offloads leave by the port.
    pub(super) requests: bool,
    /// True if a frame of the port's MTU is longer than a packet buffer.
    pub(super) long_frames: bool,
}

/// Result of the negotiation, with which a device is configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Negotiated {
    /// DPDK's bits for receiving.
    pub(super) rx: u64,
    /// DPDK's bits for sending.
    pub(super) tx: u64,
    /// True if the device inserts VLAN tags into sent frames.
    pub(super) inserts_tags: bool,
    /// The states for display.
    pub(super) offloads: Offloads,
}

/// Drivers whose "device" is software on the router's own cores.
const SOFTWARE: [&str; 3] = ["net_tap", "net_vhost", "net_virtio_user"];

/// A driver that also computes checksums and segments packets in its own software. The others of [`SOFTWARE`]
/// leave that to the other end.
const IN_SOFTWARE: &str = "net_tap";

/// Drivers that insert tags in their own software, which costs more than the router's.
const TAGS_IN_SOFTWARE: [&str; 4] = ["net_virtio", "net_virtio_user", "net_vhost", "net_af_packet"];

/// Drivers that drop packets of more buffers than their device reports as its limit.
const FEW_BUFFERS: [(&str, usize); 1] = [("net_vmxnet3", 16)];

/// Returns the most buffers of a packet to be sent by a device with this many descriptors: a quarter of them,
/// so that the queue never waits for all of them to be free.
pub(super) fn tx_buffers_most(
    driver: &str,
    info: &sys::rte_eth_dev_info,
    descriptors: u16,
) -> usize {
    let known = FEW_BUFFERS.iter().find(|(name, _)| *name == driver).map(|(_, most)| *most);
    let device = usize::from(info.tx_desc_lim.nb_seg_max);
    known.unwrap_or(usize::MAX).min(device).min(usize::from(descriptors / 4)).max(1)
}

/// Negotiates the offloads of a port with a device.
///
/// # Errors
/// [`Error::PortConfig`]: a required one is not available.
pub(super) fn negotiate(
    config: &PortConfig,
    driver: &str,
    capabilities: (u64, u64),
    need: Need,
) -> Result<Negotiated, Error> {
    let (mut rx, mut tx) = (0, 0);
    let mut states: Vec<OffloadState> = Vec::with_capacity(Offload::ALL.len());
    for offload in Offload::ALL {
        let (rx_bits, tx_bits) = offload.bits();
        let has = capabilities.0 & rx_bits == rx_bits && capabilities.1 & tx_bits == tx_bits;
        let is_on = |other| states.iter().any(|state| state.offload == other && state.on);
        let (on, reason) = match config.offloads.get(&offload) {
            Some(false) => (false, OffloadReason::Refused),
            _ if !has => (false, OffloadReason::Missing),
            _ if offload == Offload::FastFree => (false, OffloadReason::SeveralPools),
            _ if offload == Offload::Segmentation && !is_on(Offload::TxChecksum) => {
                (false, OffloadReason::Needs(Offload::TxChecksum))
            }
            Some(true) => (true, OffloadReason::Wanted),
            None => by_default(offload, driver, need),
        };
        if config.offloads.get(&offload) == Some(&true) && !on {
            return Err(refusal(config, driver, offload, reason));
        }
        if on {
            (rx, tx) = (rx | rx_bits, tx | tx_bits);
        }
        states.push(OffloadState { offload, has, on, reason });
    }
    // The header's checksum changes with its length, so the device that segments packets must write it.
    if tx & sys::SHIM_TX_OFFLOAD_TCP_TSO != 0 {
        tx |= capabilities.1 & sys::SHIM_TX_OFFLOAD_IPV4_CKSUM;
    }
    let offloads = Offloads(std::array::from_fn(|n| states[n]));
    let inserts_tags = offloads.on(Offload::Vlan) && !TAGS_IN_SOFTWARE.contains(&driver);
    Ok(Negotiated { rx, tx, inserts_tags, offloads })
}

/// Returns true if an offload is used that the device has and the configuration does not set, with the
/// reason.
fn by_default(offload: Offload, driver: &str, need: Need) -> (bool, OffloadReason) {
    let software = SOFTWARE.contains(&driver);
    match offload {
        Offload::RxChecksum if software => (false, OffloadReason::BySoftware),
        Offload::TxChecksum | Offload::Segmentation if !need.requests => {
            (false, OffloadReason::NoRequests)
        }
        Offload::TxChecksum | Offload::Segmentation if driver == IN_SOFTWARE => {
            (false, OffloadReason::BySoftware)
        }
        Offload::Scatter if !need.long_frames => (false, OffloadReason::FramesFit),
        Offload::Vlan => (false, OffloadReason::Unused),
        _ => (true, OffloadReason::Default),
    }
}

fn refusal(config: &PortConfig, driver: &str, offload: Offload, reason: OffloadReason) -> Error {
    let device = &config.device;
    let problem = match reason {
        OffloadReason::Missing => format!("device {device} ({driver}) lacks it"),
        other => other.to_string(),
    };
    let way_out = match reason {
        OffloadReason::Needs(other) => format!("write {other} = true too, or leave it out"),
        _ => format!("leave it out, or write {offload} = false"),
    };
    config.refuse(format!("offload {offload} = true: {problem}; {way_out}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    const ALL: (u64, u64) = (u64::MAX, u64::MAX);
    const ROUTER: Need = Need { requests: true, long_frames: false };

    fn config(wishes: &[(Offload, bool)]) -> PortConfig {
        let device = Device::Vdev { name: "net_x0".into(), args: String::new() };
        let offloads = wishes.iter().copied().collect();
        PortConfig { offloads, ..PortConfig::new("p", device) }
    }

    fn on(wishes: &[(Offload, bool)], driver: &str, has: (u64, u64), need: Need) -> Vec<Offload> {
        let negotiated = negotiate(&config(wishes), driver, has, need).unwrap();
        let states = negotiated.offloads;
        states.iter().filter(|state| state.on).map(|state| state.offload).collect()
    }

    fn reason(wishes: &[(Offload, bool)], has: (u64, u64), offload: Offload) -> OffloadReason {
        let negotiated = negotiate(&config(wishes), "net_x", has, ROUTER).unwrap();
        let states = negotiated.offloads;
        states.iter().find(|state| state.offload == offload).unwrap().reason
    }

    #[test]
    fn what_the_device_has_and_the_router_needs_is_used() {
        use Offload::{MultiSegment, RxChecksum, Scatter, Segmentation, TxChecksum};
        let usual = [RxChecksum, TxChecksum, Segmentation, MultiSegment];
        assert_eq!(on(&[], "net_e1000_em", ALL, ROUTER), usual);
        let alone = Need { requests: false, long_frames: true };
        assert_eq!(on(&[], "net_e1000_em", ALL, alone), [RxChecksum, Scatter, MultiSegment]);
        assert_eq!(on(&[], "net_tap", ALL, alone), [Scatter, MultiSegment]);
        assert_eq!(on(&[], "net_tap", ALL, ROUTER), [MultiSegment]);
        assert_eq!(
            on(&[], "net_virtio_user", ALL, ROUTER),
            [TxChecksum, Segmentation, MultiSegment]
        );
        assert_eq!(on(&[], "net_null", (0, 0), ROUTER), []);
    }

    #[test]
    fn wishes_come_first() {
        let wishes: Vec<_> = Offload::ALL.map(|offload| (offload, false)).to_vec();
        assert_eq!(on(&wishes, "net_e1000_em", ALL, ROUTER), []);
        let wishes = [(Offload::RxChecksum, true), (Offload::Vlan, true)];
        let alone = Need { requests: false, long_frames: false };
        let expected = [Offload::RxChecksum, Offload::Vlan, Offload::MultiSegment];
        assert_eq!(on(&wishes, "net_tap", ALL, alone), expected);
    }

    #[test]
    fn only_what_is_on_is_asked_of_the_device() {
        let wishes = [(Offload::RxChecksum, true), (Offload::MultiSegment, false)];
        let alone = Need { requests: false, long_frames: false };
        let negotiated = negotiate(&config(&wishes), "net_x", ALL, alone).unwrap();
        assert_eq!((negotiated.rx, negotiated.tx), (sys::SHIM_RX_OFFLOAD_IPV4_CKSUM, 0));
        // Large receive offload is bit 4.
        let everything = Offload::ALL.into_iter().filter(|offload| *offload != Offload::FastFree);
        let wishes: Vec<_> = everything.map(|offload| (offload, true)).collect();
        let negotiated = negotiate(&config(&wishes), "net_x", ALL, ROUTER).unwrap();
        assert_eq!(negotiated.rx & (1 << 4), 0);
        assert_ne!(negotiated.tx & sys::SHIM_TX_OFFLOAD_IPV4_CKSUM, 0, "segments have headers");
    }

    #[test]
    fn half_an_offload_is_none() {
        let half =
            (0, sys::SHIM_TX_OFFLOAD_L4_CKSUM & sys::SHIM_TX_OFFLOAD_L4_CKSUM.wrapping_neg());
        assert_eq!(reason(&[], half, Offload::TxChecksum), OffloadReason::Missing);
        let strip_only = (sys::SHIM_RX_OFFLOAD_VLAN_STRIP, 0);
        assert_eq!(reason(&[], strip_only, Offload::Vlan), OffloadReason::Missing);
        let no_checksum = [(Offload::TxChecksum, false)];
        let expected = OffloadReason::Needs(Offload::TxChecksum);
        assert_eq!(reason(&no_checksum, ALL, Offload::Segmentation), expected);
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let refused = |wishes: &[(Offload, bool)], has| {
            negotiate(&config(wishes), "net_null", has, ROUTER).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&[(Offload::RxChecksum, true)], (0, 0)),
            "port \"p\": offload rx_checksum = true: device net_x0 (net_null) lacks it; leave it out, or \
             write rx_checksum = false"
        );
        assert_eq!(
            refused(&[(Offload::FastFree, true)], ALL),
            "port \"p\": offload fast_free = true: one transmit queue sends packets of several pools, \
             and shared ones; leave it out, or write fast_free = false"
        );
        assert_eq!(
            refused(&[(Offload::Segmentation, true), (Offload::TxChecksum, false)], ALL),
            "port \"p\": offload segmentation = true: it needs tx_checksum, which is off; write \
             tx_checksum = true too, or leave it out"
        );
    }

    #[test]
    fn names_lead_back() {
        assert!(
            Offload::ALL.iter().all(|offload| Offload::named(offload.name()) == Some(*offload))
        );
        assert_eq!(Offload::named("lro"), None);
    }
}
