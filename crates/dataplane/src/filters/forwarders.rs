//! The forwarders that a rule selects for its packets.

use std::fmt;

/// The most forwarders of a rule.
pub const FORWARDERS_MAX: usize = 16;

/// Forwarders, in ascending order, of which the hash of a packet's flow selects one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forwarders {
    numbers: [u16; FORWARDERS_MAX],
    /// At least 1.
    count: u8,
}

impl Forwarders {
    /// Returns these forwarders, each once; `None`: there is none, or there are more than [`FORWARDERS_MAX`].
    pub fn new(list: &[u16]) -> Option<Self> {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut numbers = [0; FORWARDERS_MAX];
        numbers.get_mut(..sorted.len())?.copy_from_slice(&sorted);
        (!sorted.is_empty()).then_some(Self { numbers, count: sorted.len() as u8 })
    }

    /// Returns their numbers.
    #[inline]
    pub fn numbers(&self) -> &[u16] {
        &self.numbers[..usize::from(self.count)]
    }

    /// Returns that of a hash: always the same one.
    #[inline]
    pub fn of_hash(&self, hash: u32) -> u16 {
        self.numbers[hash as usize % usize::from(self.count.max(1))]
    }
}

/// As `forwarder 1` or `forwarders 1,2`.
impl fmt::Display for Forwarders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.numbers().iter().map(u16::to_string).collect();
        let ending = if words.len() > 1 { "s" } else { "" };
        write!(f, "forwarder{ending} {}", words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_forwarder_has_its_share_of_hashes() {
        let three = Forwarders::new(&[7, 2, 5, 2]).unwrap();
        assert_eq!(
            (three.numbers(), three.to_string()),
            (&[2, 5, 7][..], "forwarders 2,5,7".into())
        );
        let mut counts = [0; 8];
        (0..300).for_each(|hash| counts[usize::from(three.of_hash(hash))] += 1);
        assert_eq!(counts, [0, 0, 100, 0, 0, 100, 0, 100]);
        assert_eq!(Forwarders::new(&[4]).unwrap().to_string(), "forwarder 4");
        let many: Vec<u16> = (0..17).collect();
        assert_eq!((Forwarders::new(&[]), Forwarders::new(&many)), (None, None));
        assert_eq!(Forwarders::new(&many[..16]).unwrap().of_hash(u32::MAX), 15);
    }
}
