//! Comparison of a structure's answers with the reference's: a wrong structure is not worth timing.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use fib::synthetic::Random;
use fib::{Algorithm, Bits, Change, Lookup, NO_ROUTE, NextHopId, NoReaders, Table};

use super::contender::Contender;
use crate::workload::pattern::{Addresses, in_table};
use crate::workload::routes::{Family, Routes};

/// The reference table with the routes.
pub struct Oracle<A: Family> {
    table: Box<dyn Table<A>>,
    lookup: Arc<dyn Lookup<A>>,
}

impl<A: Family> Oracle<A> {
    /// Builds the reference table.
    pub fn new(routes: &Routes<A>) -> Result<Self> {
        let mut table = A::table(Algorithm::Reference, Box::new(NoReaders))?;
        table.load(&mut routes.iter().copied())?;
        let lookup = table.reader();
        Ok(Self { table, lookup })
    }

    /// Returns the right answers.
    pub fn answers(&self, addresses: &Addresses<A>) -> Vec<NextHopId> {
        let mut answers = vec![NO_ROUTE; addresses.len()];
        self.lookup.lookup_batch(&addresses.bits, &mut answers);
        answers
    }

    /// Applies all changes.
    pub fn apply(&mut self, changes: &[Change<A>]) -> Result<()> {
        Ok(self.table.apply(changes)?)
    }
}

/// A wrong answer, and the number of wrong ones.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong<A: Family> {
    /// The lookup method.
    pub method: String,
    /// The first address that was answered wrongly.
    pub address: A,
    /// The reference's next hop, or `NO_ROUTE`.
    pub expected: NextHopId,
    /// The next hop given.
    pub got: NextHopId,
    /// Number of wrong answers.
    pub wrong: usize,
    /// Number of all answers.
    pub all: usize,
}

impl<A: Family> fmt::Display for Wrong<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |next_hop: NextHopId| match next_hop {
            NO_ROUTE => "no route".to_owned(),
            next_hop => format!("next hop {next_hop}"),
        };
        let Self { method, address, wrong, all, .. } = self;
        let (expected, got) = (name(self.expected), name(self.got));
        write!(
            f,
            "{method}: {address}: expected {expected}, got {got}; {wrong} of {all} answers are wrong"
        )
    }
}

impl<A: Family> std::error::Error for Wrong<A> {}

/// Compares all lookup methods of a structure with the right answers.
///
/// # Errors
/// [`Wrong`], or the structure's error if it cannot look up.
pub fn check<A: Family>(
    contender: &mut dyn Contender<A>,
    addresses: &Addresses<A>,
    expected: &[NextHopId],
) -> Result<()> {
    for (index, method) in contender.methods().into_iter().enumerate() {
        contender.select(index)?;
        let answers = contender.answers(addresses);
        let differs = |&at: &usize| answers[at] != expected[at];
        let Some(first) = (0..addresses.len()).find(differs) else { continue };
        return Err(Wrong {
            method: method.name,
            address: A::from(addresses.bits[first]),
            expected: expected[first],
            got: answers[first],
            wrong: (first..addresses.len()).filter(differs).count(),
            all: addresses.len(),
        }
        .into());
    }
    Ok(())
}

/// Returns addresses that find mistakes: half in the table, a quarter anywhere in the whole space,
/// a quarter the first and last of a prefix and their outer neighbours.
pub fn probes<A: Family>(routes: &Routes<A>, count: usize) -> Addresses<A> {
    let mut random = Random::new(0x7072_6f62);
    let probe = |index: usize| match index % 4 {
        0 | 1 => in_table(routes, &mut random),
        2 => A::any(&mut random),
        _ => edge(routes, &mut random),
    };
    Addresses::new((0..count).map(probe).collect())
}

/// Returns the first or last address of a random prefix, or the one before or after it.
fn edge<A: Family>(routes: &Routes<A>, random: &mut Random) -> A::Bits {
    let (prefix, _) = routes[random.below(routes.len() as u64) as usize];
    match random.below(4) {
        0 => prefix.bits(),
        1 => prefix.last_bits(),
        // The address before: the complement's successor.
        2 => !(!prefix.bits()).next(),
        _ => prefix.last_bits().next(),
    }
}

/// Returns addresses affected by changes: one in each changed prefix, and the outer neighbours of
/// its two edges.
pub fn probes_of_changes<A: Family>(changes: &[Change<A>]) -> Addresses<A> {
    let mut random = Random::new(0x6368_616e);
    let around = |change: &Change<A>| {
        let prefix = change.prefix();
        let inside = prefix.bits() | (A::any(&mut random) & !A::Bits::mask(prefix.len()));
        [inside, !(!prefix.bits()).next(), prefix.last_bits().next()]
    };
    Addresses::new(changes.iter().flat_map(around).collect())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use dpdk::qsbr::Qsbr;

    use super::*;
    use crate::fib::contender::House;

    fn house(routes: &Routes<Ipv4Addr>) -> House<Ipv4Addr> {
        let mut house = House::new(Algorithm::Poptrie, &Qsbr::new(1)).unwrap();
        house.build(routes).unwrap();
        house
    }

    #[test]
    fn a_right_structure_passes_before_and_after_changes() {
        let routes = fib::synthetic::ipv4(3000, 50);
        let (mut house, mut oracle) = (house(&routes), Oracle::new(&routes).unwrap());
        let changes = [
            Change::Insert { prefix: "11.0.0.0/9".parse().unwrap(), next_hop: 60 },
            Change::Remove { prefix: routes[7].0 },
        ];
        let mut all = probes(&routes, 20_000).bits;
        all.extend(probes_of_changes(&changes).bits);
        let all = Addresses::new(all);
        check(&mut house, &all, &oracle.answers(&all)).unwrap();
        for change in &changes {
            house.update(change).unwrap();
        }
        check(&mut house, &all, &oracle.answers(&all)).unwrap_err();
        oracle.apply(&changes).unwrap();
        check(&mut house, &all, &oracle.answers(&all)).unwrap();
    }

    #[test]
    fn a_wrong_answer_is_told_in_full() {
        let routes = vec![("11.0.0.0/8".parse().unwrap(), 5), ("12.0.0.0/8".parse().unwrap(), 6)];
        let mut house = house(&routes);
        let all = Addresses::new(vec![0x0a00_0000, 0x0b00_0001, 0x0c00_0001]);
        let error = check(&mut house, &all, &[NO_ROUTE, 5, NO_ROUTE]).unwrap_err().to_string();
        let expected = "poptrie: 12.0.0.1: expected no route, got next hop 6; \
                        1 of 3 answers are wrong";
        assert_eq!(error, expected);
        let error = check(&mut house, &all, &[1, 5, 1]).unwrap_err().to_string();
        assert!(error.contains("10.0.0.0: expected next hop 1, got no route; 2 of 3"), "{error}");
    }

    #[test]
    fn probes_meet_edges_inside_and_outside() {
        let routes: Routes<Ipv6Addr> = vec![("2001:db8::/32".parse().unwrap(), 1)];
        let text = |bits: u128| Ipv6Addr::from(bits).to_string();
        let all: Vec<String> = probes(&routes, 200).bits.into_iter().map(text).collect();
        for edge in [
            "2001:db8::",
            "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
            "2001:db9::",
        ] {
            assert!(all.iter().any(|address| address == edge), "{edge}");
        }
    }
}
