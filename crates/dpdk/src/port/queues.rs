//! Number and size of a port's queues: the configured ones if the device supports them, else its
//! driver's recommendation.

use std::ffi::CStr;
use std::fmt::{self, Write};

use dpdk_sys as sys;

use super::PortConfig;
use crate::Error;

/// Descriptors of a queue if the driver recommends none.
const DESCRIPTORS: u16 = 1024;

/// Upper limit of a driver's recommendation, for which packet memory is sized.
pub const DESCRIPTORS_MOST: u16 = 4096;

/// Packets taken at once if the driver recommends no number.
const BURST: u16 = crate::BURST_MAX as u16;

/// Thresholds at which a NIC reads and writes the descriptors of a queue, named as in DPDK's
/// `rte_eth_rxconf` and `rte_eth_txconf`; `None`: its driver's recommendation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// `pthresh`: number of free descriptors in the NIC below which it fetches more.
    pub prefetch: Option<u8>,
    /// `hthresh`: minimum number of descriptors in memory for a fetch.
    pub host: Option<u8>,
    /// `wthresh`: number of descriptors written back together.
    pub write_back: Option<u8>,
    /// `rx_free_thresh`, `tx_free_thresh`: number of descriptors after which the driver renews or frees
    /// buffers.
    pub free: Option<u16>,
    /// `tx_rs_thresh`: number of sent packets after which the NIC reports; transmit queues only.
    pub report: Option<u16>,
}

impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefetch, host, write_back, free, report } = *self;
        let mut text = String::new();
        for (name, value) in [
            ("prefetch", prefetch.map(u16::from)),
            ("host", host.map(u16::from)),
            ("write_back", write_back.map(u16::from)),
            ("free", free),
            ("report", report),
        ] {
            if let Some(value) = value {
                let comma = if text.is_empty() { "" } else { ", " };
                write!(text, "{comma}{name} {value}")?;
            }
        }
        f.write_str(if text.is_empty() { "the driver's" } else { &text })
    }
}

impl Thresholds {
    fn put(&self, thresholds: &mut sys::rte_eth_thresh, free: &mut u16) {
        let sys::rte_eth_thresh { pthresh, hthresh, wthresh } = thresholds;
        for (own, wish) in
            [(pthresh, self.prefetch), (hthresh, self.host), (wthresh, self.write_back)]
        {
            *own = wish.unwrap_or(*own);
        }
        *free = self.free.unwrap_or(*free);
    }

    /// Applies them to a driver's recommendation for receive queues.
    pub(super) fn of_rx(&self, mut conf: sys::rte_eth_rxconf) -> sys::rte_eth_rxconf {
        self.put(&mut conf.rx_thresh, &mut conf.rx_free_thresh);
        conf
    }

    /// Applies them to a driver's recommendation for transmit queues.
    pub(super) fn of_tx(&self, mut conf: sys::rte_eth_txconf) -> sys::rte_eth_txconf {
        self.put(&mut conf.tx_thresh, &mut conf.tx_free_thresh);
        conf.tx_rs_thresh = self.report.unwrap_or(conf.tx_rs_thresh);
        conf
    }
}

/// Queues and descriptors requested of a device; `None`: its driver's recommendation.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) rx: u16,
    pub(super) tx: u16,
    pub(super) rx_desc: Option<u16>,
    pub(super) tx_desc: Option<u16>,
}

/// Queues and descriptors that a device gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queues {
    pub(super) rx: u16,
    pub(super) tx: u16,
    pub(super) rx_desc: u16,
    pub(super) tx_desc: u16,
    /// Recommended number of packets to take at once.
    pub(super) rx_burst: u16,
    /// Those for control traffic.
    pub(super) control: ControlQueues,
}

/// Queues of a port for control traffic: the last receive queue, which receives packets only by
/// rules, and the last transmit queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlQueues {
    /// There is such a receive queue.
    pub rx: bool,
    /// There is such a transmit queue.
    pub tx: bool,
    /// The reason for which there is no such receive queue although it was asked for.
    pub why: Option<String>,
}

impl Queues {
    /// Adds a queue each way for control traffic, if that is asked for and the device has them. A receive queue
    /// must be left out of the device's spreading, which takes a table.
    pub(super) fn add_control(&mut self, config: &PortConfig, info: &sys::rte_eth_dev_info) {
        if !config.control_queue || matches!(config.device, crate::Device::Kernel(_)) {
            return;
        }
        if self.tx == config.tx_queues && most(info, false, info.max_tx_queues) > self.tx {
            self.control.tx = true;
            self.tx += 1;
        }
        let most = most(info, false, info.max_rx_queues);
        self.control.why = if info.reta_size == 0 {
            Some("the device has no RSS table that could leave a receive queue out".to_owned())
        } else if most <= self.rx {
            Some(format!(
                "the device has {most} receive queues at most, and all of them receive packets to forward"
            ))
        } else {
            None
        };
        if self.control.why.is_none() {
            self.control.rx = true;
            self.rx += 1;
        }
    }
}

impl Wish {
    pub(super) fn of(config: &PortConfig) -> Self {
        let PortConfig { rx_queues, tx_queues, rx_desc, tx_desc, .. } = *config;
        Self { rx: rx_queues, tx: tx_queues, rx_desc, tx_desc }
    }

    /// Reconciles the request with the device's limits. Fewer than requested explicitly is an error.
    pub(super) fn settle(
        &self,
        config: &PortConfig,
        info: &sys::rte_eth_dev_info,
    ) -> Result<Queues, Error> {
        let (rx_port, tx_port) = (&info.default_rxportconf, &info.default_txportconf);
        let refuse = |problem| config.refuse(format!("device {}: {problem}", config.device));
        let rx_most = most(info, config.exact_rx_queues, info.max_rx_queues);
        let tx_most = most(info, config.exact_tx_queues, info.max_tx_queues);
        Ok(Queues {
            rx: number("rx_queues", self.rx, config.exact_rx_queues, rx_most).map_err(refuse)?,
            tx: number("tx_queues", self.tx, config.exact_tx_queues, tx_most).map_err(refuse)?,
            rx_desc: size("rx_descriptors", self.rx_desc, rx_port.ring_size, &info.rx_desc_lim)
                .map_err(refuse)?,
            tx_desc: size("tx_descriptors", self.tx_desc, tx_port.ring_size, &info.tx_desc_lim)
                .map_err(refuse)?,
            rx_burst: match rx_port.burst_size {
                0 => BURST,
                burst => burst.min(BURST),
            },
            control: ControlQueues::default(),
        })
    }
}

/// Returns the number of queues, for a device with at most `most`.
pub(super) fn number(key: &str, wish: u16, exact: bool, most: u16) -> Result<u16, String> {
    if exact && wish > most {
        return Err(format!("{key} {wish}: it has {most} at most; lower {key}, or leave it out"));
    }
    Ok(wish.min(most))
}

/// Returns the most queues of a device that has so many, of which an exact number is asked for, or not.
///
/// The two ends of a memif agree on a number when they connect, long after the device was configured. In DPDK 22.11
/// queues beyond it use the first ring, so that a packet is received once for each queue, and what they send is lost.
fn most(info: &sys::rte_eth_dev_info, exact: bool, has: u16) -> u16 {
    // SAFETY: a driver's name is a C string that stays; without a name the pointer is null.
    let driver = (!info.driver_name.is_null()).then(|| unsafe { CStr::from_ptr(info.driver_name) });
    if driver == Some(c"net_memif") && !exact { has.min(1) } else { has }
}

/// Returns the size of a queue.
fn size(
    key: &str,
    wish: Option<u16>,
    recommended: u16,
    limits: &sys::rte_eth_desc_lim,
) -> Result<u16, String> {
    let least = limits.nb_min.max(1);
    let most = if limits.nb_max == 0 { u16::MAX } else { limits.nb_max };
    let step = limits.nb_align.max(1);
    let fit = |size: u16| {
        let size = size.clamp(least, most);
        // Rounded up if there is room, as DPDK does it.
        let up = size.checked_next_multiple_of(step).filter(|&up| up <= most);
        up.unwrap_or(size - size % step)
    };
    let Some(wish) = wish else {
        let recommended = if recommended == 0 { DESCRIPTORS } else { recommended };
        return Ok(fit(recommended.min(DESCRIPTORS_MOST)));
    };
    if fit(wish) != wish {
        let steps = if step > 1 { format!(" in steps of {step}") } else { String::new() };
        return Err(format!(
            "{key} {wish}: it takes {least} to {most}{steps}; write {}, or leave it out",
            fit(wish)
        ));
    }
    Ok(wish)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(nb_min: u16, nb_max: u16, nb_align: u16) -> sys::rte_eth_desc_lim {
        sys::rte_eth_desc_lim { nb_min, nb_max, nb_align, ..Default::default() }
    }

    #[test]
    fn a_driver_s_recommendation_is_kept_within_its_limits() {
        let size = |recommended, limits| size("rx_descriptors", None, recommended, &limits);
        assert_eq!(size(0, limits(32, 4096, 8)), Ok(1024));
        assert_eq!(size(256, limits(32, 4096, 8)), Ok(256));
        assert_eq!(size(0, limits(32, 512, 8)), Ok(512));
        assert_eq!(size(8192, limits(32, 16384, 8)), Ok(4096), "packet memory is made for no more");
        assert_eq!(size(100, limits(1, 104, 32)), Ok(96), "down where up is too much");
        assert_eq!(size(100, limits(0, 0, 0)), Ok(100), "a driver without limits");
    }

    #[test]
    fn an_explicit_size_is_taken_as_it_is_or_refused_with_the_way_out() {
        let size = |wish| size("rx_descriptors", Some(wish), 256, &limits(64, 4096, 32));
        assert_eq!((size(64), size(4096)), (Ok(64), Ok(4096)));
        for (wish, instead) in [(32, 64), (4097, 4096), (8192, 4096), (100, 128)] {
            let expected = format!(
                "rx_descriptors {wish}: it takes 64 to 4096 in steps of 32; write {instead}, or leave it out"
            );
            assert_eq!(size(wish), Err(expected));
        }
    }

    #[test]
    fn a_device_may_have_fewer_queues_unless_the_number_was_given() {
        assert_eq!(number("rx_queues", 4, false, 1), Ok(1));
        assert_eq!(number("rx_queues", 4, true, 8), Ok(4));
        let refused = number("rx_queues", 4, true, 1).unwrap_err();
        assert_eq!(refused, "rx_queues 4: it has 1 at most; lower rx_queues, or leave it out");
    }

    #[test]
    fn a_memif_has_one_queue_unless_more_were_asked_for() {
        let info =
            sys::rte_eth_dev_info { driver_name: c"net_memif".as_ptr(), ..Default::default() };
        assert_eq!([false, true].map(|exact| most(&info, exact, 256)), [1, 256]);
        assert_eq!(most(&sys::rte_eth_dev_info::default(), false, 256), 256);
    }

    #[test]
    fn thresholds_that_are_given_replace_the_driver_s() {
        let driver = sys::rte_eth_txconf {
            tx_thresh: sys::rte_eth_thresh { pthresh: 32, hthresh: 1, wthresh: 2 },
            tx_free_thresh: 32,
            tx_rs_thresh: 30,
            ..Default::default()
        };
        assert_eq!(Thresholds::default().of_tx(driver).tx_free_thresh, 32);
        let wish =
            Thresholds { host: Some(9), free: Some(64), report: Some(8), ..Default::default() };
        let made = wish.of_tx(driver);
        let sys::rte_eth_thresh { pthresh, hthresh, wthresh } = made.tx_thresh;
        assert_eq!((pthresh, hthresh, wthresh), (32, 9, 2));
        assert_eq!((made.tx_free_thresh, made.tx_rs_thresh), (64, 8));
    }
}
