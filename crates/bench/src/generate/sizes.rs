//! Lengths of generated frames, with FCS.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};

/// The largest frame.
pub const LARGEST: usize = 9_200 + 18;

/// Sizes used by turns.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    list: Vec<usize>,
    next: usize,
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    /// Parses `64`, `64,594,1518` by turns, or `imix`: 7 frames of 64, 4 of 594, 1 of 1518 bytes.
    fn from_str(text: &str) -> Result<Self> {
        if text == "imix" {
            // Spread, so that a burst has different sizes.
            let list = vec![64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64];
            return Ok(Self { list, next: 0 });
        }
        let size = |size: &str| {
            let size: usize = size
                .parse()
                .with_context(|| format!("size {size}: write bytes with FCS, a list, or imix"))?;
            ensure!((64..=LARGEST).contains(&size), "size {size}: 64 to {LARGEST} bytes");
            Ok(size)
        };
        Ok(Self { list: text.split(',').map(size).collect::<Result<_>>()?, next: 0 })
    }
}

impl Sizes {
    /// Creates one size for all frames.
    pub fn one(size: usize) -> Self {
        Self { list: vec![size], next: 0 }
    }

    /// Returns the size of the next frame.
    #[inline]
    pub fn next(&mut self) -> usize {
        let size = self.list[self.next];
        self.next = if self.next + 1 < self.list.len() { self.next + 1 } else { 0 };
        size
    }

    /// Returns the smallest size.
    pub fn smallest(&self) -> usize {
        self.list.iter().copied().min().unwrap_or(64)
    }

    /// Returns the largest size.
    pub fn largest(&self) -> usize {
        self.list.iter().copied().max().unwrap_or(64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_in_turn() {
        let mut sizes: Sizes = "64,128".parse().unwrap();
        assert_eq!([sizes.next(), sizes.next(), sizes.next()], [64, 128, 64]);
        let mut imix: Sizes = "imix".parse().unwrap();
        let turn: Vec<_> = (0..12).map(|_| imix.next()).collect();
        let of = |size| turn.iter().filter(|&&s| s == size).count();
        assert_eq!([of(64), of(594), of(1518)], [7, 4, 1]);
    }

    #[test]
    fn bad_sizes_are_named() {
        for (text, message) in [("63", "64 to 9218"), ("9219", "64 to 9218"), ("x", "size x")] {
            let error = format!("{:#}", text.parse::<Sizes>().unwrap_err());
            assert!(error.contains(message), "{error}");
        }
    }
}
