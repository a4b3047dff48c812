//! Random numbers that spread timers. Not for secrets.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and a mix per number; any seed is good.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random time between zero and `max`.
    pub(crate) fn up_to(&mut self, max: Duration) -> Duration {
        max.mul_f64((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn durations_fill_their_range() {
        let mut random = Random::new(1);
        let all: Vec<_> = (0..1000).map(|_| random.up_to(Duration::from_secs(10))).collect();
        assert!(all.iter().all(|d| *d < Duration::from_secs(10)));
        assert!(all.iter().any(|d| *d < Duration::from_secs(1)));
        assert!(all.iter().any(|d| *d > Duration::from_secs(9)));
    }
}
