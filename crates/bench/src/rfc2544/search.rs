//! The searches of RFC 2544 by single trials, for bursts and loss: without devices and clocks, so that they can be tested on a simulated
//! router.

use anyhow::Result;

/// Returns the highest value of `lowest..=highest` that passes, to within `step`, by bisection (RFC
/// 2544, 26.1). If a rate passes, all lower ones are assumed to pass; returns 0 if none does. The
/// highest is tried first.
pub fn highest_passing(
    (lowest, highest): (f64, f64),
    step: f64,
    mut passes: impl FnMut(f64) -> Result<bool>,
) -> Result<f64> {
    if passes(highest)? {
        return Ok(highest);
    }
    let (mut good, mut bad) = (lowest, highest);
    let mut found = 0.0;
    while bad - good > step {
        let middle = (good + bad) / 2.0;
        if passes(middle)? {
            (good, found) = (middle, middle);
        } else {
            bad = middle;
        }
    }
    Ok(found)
}

/// Returns the rates of a frame loss test (RFC 2544, 26.3): from the highest down in steps of a
/// tenth of it, until two consecutive rates have no loss.
pub fn loss_by_rate(
    highest: f64,
    mut loss: impl FnMut(f64) -> Result<f64>,
) -> Result<Vec<(f64, f64)>> {
    let mut found: Vec<(f64, f64)> = Vec::new();
    for tenths in (1..=10).rev() {
        let rate = highest * f64::from(tenths) / 10.0;
        found.push((rate, loss(rate)?));
        if matches!(found[..], [.., (_, a), (_, b)] if a == 0.0 && b == 0.0) {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a router that forwards this much and loses the rest.
    fn loss(capacity: f64, rate: f64) -> f64 {
        (1.0 - capacity / rate).max(0.0)
    }

    #[test]
    fn the_search_finds_the_capacity_within_its_step() {
        for capacity in [0.003, 0.25, 0.5, 0.7312, 0.999] {
            let mut trials = 0;
            let found = highest_passing((0.0, 1.0), 0.001, |rate| {
                trials += 1;
                Ok(loss(capacity, rate) == 0.0)
            });
            let found = found.unwrap();
            assert!(found <= capacity && capacity - found <= 0.001, "{capacity}: {found}");
            assert!(trials <= 11, "{trials}");
        }
    }

    #[test]
    fn a_router_that_takes_everything_is_tried_once_and_one_that_takes_nothing_gets_0() {
        let mut trials = 0;
        let mut count = |passes| {
            trials += 1;
            Ok(passes)
        };
        assert_eq!(highest_passing((0.0, 9.0), 0.1, |_| count(true)).unwrap(), 9.0);
        assert_eq!(trials, 1);
        assert_eq!(highest_passing((0.0, 9.0), 0.1, |_| Ok(false)).unwrap(), 0.0);
        assert!(highest_passing((0.0, 9.0), 0.1, |_| anyhow::bail!("no device")).is_err());
    }

    #[test]
    fn the_search_for_partial_loss_ends_higher() {
        let highest = |limit: f64| {
            highest_passing((0.0, 1.0), 0.001, |rate| Ok(loss(0.6, rate) <= limit)).unwrap()
        };
        let (none, some) = (highest(0.0), highest(0.005));
        assert!(none <= 0.6 && 0.6 < some && some <= 0.6 / 0.995, "{none} {some}");
    }

    #[test]
    fn the_loss_test_ends_after_two_rates_without_loss() {
        let found = loss_by_rate(100.0, |rate| Ok(loss(75.0, rate))).unwrap();
        let rates: Vec<f64> = found.iter().map(|&(rate, _)| rate.round()).collect();
        assert_eq!(rates, [100.0, 90.0, 80.0, 70.0, 60.0]);
        assert_eq!(found[0].1, 0.25);
        let all = loss_by_rate(100.0, |rate| Ok(loss(1.0, rate))).unwrap();
        assert_eq!(all.len(), 10);
    }
}
