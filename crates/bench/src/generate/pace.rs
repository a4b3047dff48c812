//! Departure times of packets.
//!
//! Each packet pays for the time that it takes at the configured rate; the account starts with the
//! first packet, so that delays are made up for and the mean is exact. A sender delayed by more
//! than [`DEBT_MOST`] forgives the rest, instead of sending seconds' worth at once.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// Most time that is made up for, in seconds.
const DEBT_MOST: f64 = 0.001;

/// A sending rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// As fast as the device accepts packets.
    Most,
    /// Packets per second.
    Packets(f64),
    /// Bits per second, of frames with FCS.
    Bits(f64),
}

impl FromStr for Rate {
    type Err = anyhow::Error;

    /// Parses `max`, `250kpps`, `1.5Mpps`, `800Mbit`, `10Gbit`.
    fn from_str(text: &str) -> Result<Self> {
        if text == "max" {
            return Ok(Self::Most);
        }
        let known = "write max, 250kpps, 1.5Mpps, 800Mbit, 10Gbit";
        let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(at);
        let number: f64 = number.parse().with_context(|| format!("rate {text}: {known}"))?;
        ensure!(number > 0.0 && number.is_finite(), "rate {text}: must be above 0; {known}");
        Ok(match unit {
            "pps" => Self::Packets(number),
            "kpps" => Self::Packets(number * 1e3),
            "Mpps" => Self::Packets(number * 1e6),
            "kbit" => Self::Bits(number * 1e3),
            "Mbit" => Self::Bits(number * 1e6),
            "Gbit" => Self::Bits(number * 1e9),
            _ => anyhow::bail!("rate {text}: unknown unit \"{unit}\"; {known}"),
        })
    }
}

/// The account of a sender. Times are clock ticks.
pub struct Pace {
    rate: Rate,
    ticks_per_second: f64,
    /// Departure time of the next packet.
    next: f64,
    /// Seconds of delay that were forgiven.
    forgiven: f64,
}

impl Pace {
    /// Creates an account; the first packet may leave immediately.
    pub fn new(rate: Rate, ticks_per_second: u64, now: u64) -> Self {
        let ticks_per_second = ticks_per_second as f64;
        Self { rate, ticks_per_second, next: now as f64, forgiven: 0.0 }
    }

    /// Returns true if a packet may leave now.
    #[inline]
    pub fn is_due(&self, now: u64) -> bool {
        self.next <= now as f64
    }

    /// Pays for a packet of this many bytes, with FCS.
    #[inline]
    pub fn pay(&mut self, now: u64, bytes: usize) {
        let seconds = match self.rate {
            Rate::Most => return,
            Rate::Packets(rate) => 1.0 / rate,
            Rate::Bits(rate) => bytes as f64 * 8.0 / rate,
        };
        self.next += seconds * self.ticks_per_second;
        let oldest = now as f64 - DEBT_MOST * self.ticks_per_second;
        if self.next < oldest {
            self.forgiven += (oldest - self.next) / self.ticks_per_second;
            self.next = oldest;
        }
    }

    /// Returns the seconds by which the sender was too slow for its rate.
    pub fn behind(&self) -> f64 {
        self.forgiven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        let rate = |text: &str| text.parse::<Rate>().unwrap();
        assert_eq!(rate("max"), Rate::Most);
        assert_eq!(rate("1.5Mpps"), Rate::Packets(1.5e6));
        assert_eq!(rate("250kpps"), Rate::Packets(250e3));
        assert_eq!(rate("10Gbit"), Rate::Bits(1e10));
        for wrong in ["", "fast", "10", "0pps", "1e400Mpps", "5mpps", "-1pps"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    /// Returns the packets that leave in `ticks` if the sender polls every `step` ticks.
    fn sent(pace: &mut Pace, ticks: u64, step: u64, bytes: usize) -> u64 {
        let mut sent = 0;
        for now in (0..ticks).step_by(step as usize) {
            while pace.is_due(now) {
                pace.pay(now, bytes);
                sent += 1;
            }
        }
        sent
    }

    #[test]
    fn the_mean_is_exact_however_often_the_sender_looks() {
        for step in [1, 7, 333] {
            let mut pace = Pace::new(Rate::Packets(30_000.0), 1_000_000, 0);
            let sent = sent(&mut pace, 1_000_000, step, 64);
            assert!((29_970..=30_030).contains(&sent), "step {step}: {sent}");
            assert_eq!(pace.behind(), 0.0);
        }
        let mut pace = Pace::new(Rate::Bits(8e6), 1_000_000, 0);
        assert!((999..=1001).contains(&sent(&mut pace, 1_000_000, 10, 1000)));
    }

    #[test]
    fn a_sender_held_back_does_not_burst() {
        let mut pace = Pace::new(Rate::Packets(1e6), 1_000_000, 0);
        let mut burst = 0;
        while pace.is_due(1_000_000) {
            pace.pay(1_000_000, 64);
            burst += 1;
        }
        assert!(burst <= 1002, "{burst}");
        assert!((0.99..1.0).contains(&pace.behind()), "{}", pace.behind());
    }
}
