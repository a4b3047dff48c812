//! Links: speed, duplex, autonegotiation, flow control and forward error correction, as configured and as
//! reported by a device.

use std::fmt;
use std::mem::MaybeUninit;

use dpdk_sys as sys;

use super::{Attached, Port, PortConfig};
use crate::Error;

/// Speeds that DPDK has a bit for, in Mb/s; the first two can be half duplex.
const SPEEDS: [u32; 15] = [
    10, 100, 1000, 2500, 5000, 10_000, 20_000, 25_000, 40_000, 50_000, 56_000, 100_000, 200_000,
    400_000, 800_000,
];

/// Ethernet flow control (IEEE 802.3 annex 31B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// None.
    Off,
    /// The device obeys the other end's pause frames.
    Rx,
    /// The device sends pause frames.
    Tx,
    /// Both.
    Full,
}

impl Pause {
    const ALL: [(Self, sys::rte_eth_fc_mode); 4] = [
        (Self::Off, sys::RTE_ETH_FC_NONE),
        (Self::Rx, sys::RTE_ETH_FC_RX_PAUSE),
        (Self::Tx, sys::RTE_ETH_FC_TX_PAUSE),
        (Self::Full, sys::RTE_ETH_FC_FULL),
    ];

    fn mode(self) -> sys::rte_eth_fc_mode {
        Self::ALL.iter().find(|(pause, _)| *pause == self).map_or(sys::RTE_ETH_FC_NONE, |(_, m)| *m)
    }

    fn of_mode(mode: sys::rte_eth_fc_mode) -> Option<Self> {
        Self::ALL.iter().find(|(_, other)| *other == mode).map(|(pause, _)| *pause)
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "none",
            Self::Rx => "rx",
            Self::Tx => "tx",
            Self::Full => "full",
        })
    }
}

/// Forward error correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fec {
    /// None.
    Off,
    /// Negotiated by the two ends.
    Auto,
    /// Fire code, "base-R" (IEEE 802.3 clause 74).
    BaseR,
    /// Reed-Solomon (IEEE 802.3 clause 91 and others).
    Rs,
}

impl Fec {
    const ALL: [(Self, sys::rte_eth_fec_mode); 4] = [
        (Self::Off, sys::RTE_ETH_FEC_NOFEC),
        (Self::Auto, sys::RTE_ETH_FEC_AUTO),
        (Self::BaseR, sys::RTE_ETH_FEC_BASER),
        (Self::Rs, sys::RTE_ETH_FEC_RS),
    ];

    /// Returns its bit in a set of modes.
    fn bit(self) -> u32 {
        Self::ALL.iter().find(|(fec, _)| *fec == self).map_or(0, |(_, mode)| 1 << mode)
    }

    /// Iterates over the modes in a set.
    fn in_set(set: u32) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(fec, _)| fec).filter(move |fec| set & fec.bit() != 0)
    }
}

impl fmt::Display for Fec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "none",
            Self::Auto => "auto",
            Self::BaseR => "base-r",
            Self::Rs => "rs",
        })
    }
}

/// Link settings. The device decides those that are not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkWish {
    /// Mb/s.
    pub speed: Option<u32>,
    /// True for half duplex, which only 10 and 100 Mb/s support.
    pub half_duplex: bool,
    /// True if the speed is not negotiated.
    pub fixed: bool,
    /// Flow control.
    pub pause: Option<Pause>,
    /// Forward error correction.
    pub fec: Option<Fec>,
}

/// The settings as in a configuration: `speed = 1000, pause = "none"`; empty if there are none.
impl fmt::Display for LinkWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.speed.map(|mbps| format!("speed = {mbps}")));
        parts.extend(self.half_duplex.then(|| "duplex = \"half\"".to_owned()));
        parts.extend(self.fixed.then(|| "autoneg = false".to_owned()));
        parts.extend(self.pause.map(|pause| format!("pause = \"{pause}\"")));
        parts.extend(self.fec.map(|fec| format!("fec = \"{fec}\"")));
        f.write_str(&parts.join(", "))
    }
}

/// The details of a link; `None` if the device does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkDetails {
    /// Mb/s.
    pub speed: Option<u32>,
    /// True for full duplex.
    pub full_duplex: Option<bool>,
    /// True if the speed is negotiated.
    pub autoneg: Option<bool>,
    /// Flow control.
    pub pause: Option<Pause>,
    /// Forward error correction.
    pub fec: Option<Fec>,
}

/// Formats a speed with its unit: `10 Mb/s`, `2.5 Gb/s`.
fn speed_name(mbps: u32) -> String {
    match mbps {
        0..1000 => format!("{mbps} Mb/s"),
        _ => format!("{} Gb/s", f64::from(mbps) / 1000.0),
    }
}

fn speed_bit(mbps: u32, half_duplex: bool) -> u32 {
    // SAFETY: a conversion of two numbers.
    unsafe { sys::rte_eth_speed_bitflag(mbps, i32::from(!half_duplex)) }
}

/// Returns the speeds of a set, full duplex unless marked otherwise.
fn speeds_in(set: u32) -> Vec<String> {
    let full = SPEEDS.iter().filter(|&&mbps| set & speed_bit(mbps, false) != 0);
    let half = SPEEDS[..2].iter().filter(|&&mbps| set & speed_bit(mbps, true) != 0);
    let half = half.map(|&mbps| format!("{} half duplex", speed_name(mbps)));
    full.map(|&mbps| speed_name(mbps)).chain(half).collect()
}

fn known(words: &[String]) -> String {
    if words.is_empty() {
        return "it does not say what it can".into();
    }
    format!("it can: {}", words.join(", "))
}

impl LinkWish {
    /// Returns the speeds in DPDK's form, if the device supports them.
    pub(super) fn speeds(
        &self,
        config: &PortConfig,
        device: &str,
        info: &sys::rte_eth_dev_info,
    ) -> Result<u32, Error> {
        let Some(mbps) = self.speed else { return Ok(0) };
        let bit = speed_bit(mbps, self.half_duplex);
        if bit == 0 || info.speed_capa & bit == 0 {
            let duplex = if self.half_duplex { " half duplex" } else { "" };
            return Err(config.refuse(format!(
                "device {device} cannot do {}{duplex}; {}; or leave link.speed out",
                speed_name(mbps),
                known(&speeds_in(info.speed_capa))
            )));
        }
        Ok(bit | if self.fixed { sys::SHIM_LINK_SPEED_FIXED } else { 0 })
    }

    /// Rejects the settings for a kernel interface, whose link is configured in the kernel.
    pub(super) fn refuse_kernel(&self, config: &PortConfig, device: &str) -> Result<(), Error> {
        if *self == Self::default() {
            return Ok(());
        }
        Err(config.refuse(format!(
            "the link of device {device} is the kernel's: ethtool -s {device} speed …, ethtool -A \
             {device} …, ethtool --set-fec {device} …; leave link out"
        )))
    }
}

impl Attached {
    /// Sets flow control and error correction of a started device.
    pub(super) fn set_link(&self, config: &PortConfig) -> Result<(), Error> {
        if let Some(pause) = config.link.pause {
            let mut now = flow_control(self.id).ok_or_else(|| {
                let device = self.device.to_string_lossy();
                config.refuse(format!(
                    "device {device} has no flow control to be set; leave link.pause out"
                ))
            })?;
            now.mode = pause.mode();
            // SAFETY: the port exists; the settings live for the call.
            let result = unsafe { sys::rte_eth_dev_flow_ctrl_set(self.id, &mut now) };
            self.check(config, &format!("setting flow control to \"{pause}\""), result)?;
        }
        if let Some(fec) = config.link.fec {
            let can = fec_modes(self.id);
            if can & fec.bit() == 0 {
                let device = self.device.to_string_lossy();
                let words: Vec<_> = Fec::in_set(can).map(|fec| fec.to_string()).collect();
                return Err(config.refuse(format!(
                    "device {device} has no error correction \"{fec}\"; {}; or leave link.fec out",
                    known(&words)
                )));
            }
            // SAFETY: the port exists.
            let result = unsafe { sys::rte_eth_fec_set(self.id, fec.bit()) };
            self.check(config, &format!("setting error correction to \"{fec}\""), result)?;
        }
        Ok(())
    }
}

impl Port {
    /// Returns the current details of the link. Those of a kernel interface are available from the
    /// kernel.
    pub fn link_details(&self) -> LinkDetails {
        if self.open.kernel.is_some() {
            return LinkDetails::default();
        }
        let mut link = MaybeUninit::<sys::rte_eth_link>::zeroed();
        // SAFETY: the port is open; the function writes a link state, or nothing and fails, and zeros are
        // a state too (down).
        let (up, speed, full, autoneg) = unsafe {
            sys::rte_eth_link_get_nowait(self.id(), link.as_mut_ptr());
            let link = link.as_ptr();
            let (full, autoneg) = (sys::shim_link_full_duplex(link), sys::shim_link_autoneg(link));
            (sys::shim_link_up(link), sys::shim_link_speed(link), full, autoneg)
        };
        let speed = Some(speed).filter(|&speed| up && speed != 0 && speed != u32::MAX);
        LinkDetails {
            speed,
            full_duplex: speed.map(|_| full),
            autoneg: speed.map(|_| autoneg),
            pause: flow_control(self.id()).and_then(|now| Pause::of_mode(now.mode)),
            fec: self.fec(),
        }
    }

    fn fec(&self) -> Option<Fec> {
        let mut set = 0;
        // SAFETY: the port is open; a number for the answer.
        let result = unsafe { sys::rte_eth_fec_get(self.id(), &mut set) };
        // The mode in force, or all allowed modes while the link is down.
        (result == 0 && set.count_ones() == 1).then(|| Fec::in_set(set).next())?
    }
}

/// Returns a device's flow control; `None` if it has none.
fn flow_control(id: u16) -> Option<sys::rte_eth_fc_conf> {
    let mut now = MaybeUninit::<sys::rte_eth_fc_conf>::zeroed();
    // SAFETY: the port exists; the function writes the settings, or fails.
    let result = unsafe { sys::rte_eth_dev_flow_ctrl_get(id, now.as_mut_ptr()) };
    // SAFETY: written; and zeros are a value of every field.
    (result == 0).then(|| unsafe { now.assume_init() })
}

/// Returns the modes of error correction that a device supports at any speed.
fn fec_modes(id: u16) -> u32 {
    // SAFETY: the port exists; with no room the function only counts.
    let count = unsafe { sys::rte_eth_fec_get_capability(id, std::ptr::null_mut(), 0) };
    let mut all = vec![sys::rte_eth_fec_capa::default(); usize::try_from(count).unwrap_or(0)];
    // SAFETY: the port exists; room for the reported number.
    let count = unsafe { sys::rte_eth_fec_get_capability(id, all.as_mut_ptr(), all.len() as u32) };
    all.truncate(usize::try_from(count).unwrap_or(0));
    all.iter().fold(0, |set, one| set | one.capa)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn port() -> PortConfig {
        PortConfig::new("wan", Device::Pci("0000:00:03.0".into()))
    }

    #[test]
    fn a_speed_that_the_device_cannot_do_is_refused_with_those_it_can() {
        let can = speed_bit(10, true) | speed_bit(10, false) | speed_bit(1000, false);
        let info = sys::rte_eth_dev_info { speed_capa: can, ..Default::default() };
        let speeds = |wish: LinkWish, info| wish.speeds(&port(), "0000:00:03.0", info);
        let wish = LinkWish { speed: Some(1000), ..LinkWish::default() };
        assert_eq!(speeds(wish, &info), Ok(speed_bit(1000, false)));
        let fixed = LinkWish { speed: Some(10), half_duplex: true, fixed: true, ..wish };
        assert_eq!(speeds(fixed, &info), Ok(speed_bit(10, true) | sys::SHIM_LINK_SPEED_FIXED));
        assert_eq!(speeds(LinkWish::default(), &info), Ok(0));
        let error = speeds(LinkWish { speed: Some(2500), ..wish }, &info).unwrap_err();
        assert_eq!(
            error.to_string(),
            "port \"wan\": device 0000:00:03.0 cannot do 2.5 Gb/s; it can: 10 Mb/s, 1 Gb/s, 10 Mb/s half \
             duplex; or leave link.speed out"
        );
        let error = speeds(wish, &sys::rte_eth_dev_info::default()).unwrap_err().to_string();
        assert!(error.contains("cannot do 1 Gb/s; it does not say"), "{error}");
    }

    #[test]
    fn the_kernel_s_links_are_set_by_ethtool() {
        assert_eq!(LinkWish::default().refuse_kernel(&port(), "eth1"), Ok(()));
        let wish = LinkWish { pause: Some(Pause::Full), ..LinkWish::default() };
        let error = wish.refuse_kernel(&port(), "eth1").unwrap_err().to_string();
        assert!(
            error.starts_with("port \"wan\": the link of device eth1 is the kernel's: ethtool -s"),
            "{error}"
        );
    }

    #[test]
    fn modes_have_one_bit_each() {
        assert_eq!(
            Fec::in_set(Fec::Rs.bit() | Fec::Off.bit()).collect::<Vec<_>>(),
            [Fec::Off, Fec::Rs]
        );
        for (pause, mode) in Pause::ALL {
            assert_eq!((Pause::of_mode(mode), pause.mode()), (Some(pause), mode));
        }
        assert_eq!(Pause::of_mode(9), None);
    }
}
