//! The search for several loss ratios at once (MLRsearch, RFC 9971): without devices and clocks, so that it can be
//! tested on a simulated router.
//!
//! A single trial says little about a rate: a queue that overflows for a moment, or a core that is taken away, makes a
//! good rate look bad. So a rate is judged by all of its trials (load classification of RFC 9971): those of full length
//! are added up until they have lasted for the goal's duration sum, and a share of that time, the exceed ratio, may
//! have lost too much. A judgement stands as soon as the missing trials cannot change it.
//!
//! ```text
//!   trials at a load -> Verdict: Lower (meets the goal) | Upper (does not) | Undecided (another trial)
//!   highest Lower below the lowest Upper = relevant lower bound; the search ends when the two are near each other
//! ```
//!
//! The search goes from short trials and a coarse width to long ones and the goal's width, for all goals at each step;
//! what one goal has learned about a load serves the others.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;

/// Steps of coarser search before a goal's own width and duration; each has twice the width of the next.
const COARSE_STEPS: u32 = 2;

/// Most trials of a search; a router that is different each time may need more, and is refused.
const TRIALS_MOST: usize = 2_000;

/// The lowest load that is tried, as a share of the highest.
const LOWEST: f64 = 1e-4;

/// A search goal (RFC 9971). Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Largest share of packets that a good trial may lose, 0 to below 1.
    pub loss_ratio: f64,
    /// Length of a trial of full length.
    pub final_trial: f64,
    /// Length of the first trials, at most that of the last.
    pub initial_trial: f64,
    /// Time for which trials of full length must have lasted at a load, unless their results agree earlier.
    pub duration_sum: f64,
    /// Share of that time in which more may be lost, 0 to below 1.
    pub exceed_ratio: f64,
    /// Largest distance between the bounds, as a share of the upper one.
    pub width: f64,
}

/// The result for a goal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bounds {
    /// The highest load that meets the goal; `None` if even the lowest does not.
    pub lower: Option<f64>,
    /// The lowest load that does not; `None` if even the highest meets it.
    pub upper: Option<f64>,
    /// The load forwarded at the lower bound in the worst trial that counts (conditional throughput of RFC 9971).
    pub conditional_throughput: f64,
}

/// A trial at some load.
#[derive(Clone, Copy, Debug)]
struct Trial {
    seconds: f64,
    loss_ratio: f64,
}

/// The judgement of a load for a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Lower,
    Upper,
    Undecided,
}

/// Finds the bounds for each goal at loads up to `highest`. `measure` makes a trial at a load for some seconds, and
/// returns the share of packets that it lost.
///
/// # Errors
/// A trial fails, or the trials contradict each other for too long.
pub fn search(
    highest: f64,
    goals: &[Goal],
    measure: impl FnMut(f64, f64) -> Result<f64>,
) -> Result<Vec<Bounds>> {
    let mut search = Search { highest, trials: BTreeMap::new(), made: 0, measure };
    search.begin(goals)?;
    for step in (0..=COARSE_STEPS).rev() {
        for goal in goals {
            search.narrow(&coarser(goal, step))?;
        }
    }
    Ok(goals.iter().map(|goal| search.bounds(goal)).collect())
}

/// Returns the goal of an earlier step: wider, with shorter trials of which one is enough.
fn coarser(goal: &Goal, step: u32) -> Goal {
    if step == 0 {
        return *goal;
    }
    let shorter =
        (goal.initial_trial / goal.final_trial).powf(f64::from(step) / f64::from(COARSE_STEPS));
    let trial = goal.final_trial * shorter;
    let width = (goal.width * f64::from(1 << step)).min(0.5);
    Goal { final_trial: trial, duration_sum: trial, width, ..*goal }
}

struct Search<M> {
    highest: f64,
    /// By the bits of the load, whose order is that of the loads, as they are positive.
    trials: BTreeMap<u64, Vec<Trial>>,
    made: usize,
    measure: M,
}

impl<M: FnMut(f64, f64) -> Result<f64>> Search<M> {
    /// Tries the highest load, and the load that was forwarded then: often near the result.
    fn begin(&mut self, goals: &[Goal]) -> Result<()> {
        let shortest = goals.iter().map(|goal| goal.initial_trial).fold(f64::INFINITY, f64::min);
        let lost = self.trial(self.highest, shortest)?;
        if lost > 0.0 {
            let forwarded = self.highest * (1.0 - lost);
            self.trial(forwarded.max(self.lowest()), shortest)?;
        }
        Ok(())
    }

    fn lowest(&self) -> f64 {
        self.highest * LOWEST
    }

    fn trial(&mut self, load: f64, seconds: f64) -> Result<f64> {
        self.made += 1;
        ensure!(
            self.made <= TRIALS_MOST,
            "no result after {TRIALS_MOST} trials: they contradict each other"
        );
        let loss_ratio = (self.measure)(load, seconds)?;
        self.trials.entry(load.to_bits()).or_default().push(Trial { seconds, loss_ratio });
        Ok(loss_ratio)
    }

    /// Makes trials until the goal's bounds are as near each other as its width.
    fn narrow(&mut self, goal: &Goal) -> Result<()> {
        let mut stride = goal.width;
        while let Some(load) = self.next_load(goal, &mut stride) {
            while self.verdict(load, goal) == Verdict::Undecided {
                self.trial(load, goal.final_trial)?;
            }
        }
        Ok(())
    }

    /// Returns the next load to decide; `None` at the end. A missing bound is sought by strides that double.
    fn next_load(&self, goal: &Goal, stride: &mut f64) -> Option<f64> {
        let Bounds { lower, upper, .. } = self.bounds(goal);
        let inside = self.tried_between(lower, upper, goal);
        let next = match (lower, upper) {
            (Some(lower), Some(upper)) if (upper - lower) / upper <= goal.width => return None,
            (Some(lower), None) if lower >= self.highest => return None,
            (None, Some(upper)) if upper <= self.lowest() => return None,
            _ if inside.is_some() => return inside,
            (Some(lower), Some(upper)) => (lower * upper).sqrt(),
            (Some(lower), None) => lower / (1.0 - stride.min(0.9)),
            (None, Some(upper)) => upper * (1.0 - stride.min(0.9)),
            (None, None) => self.highest,
        };
        *stride *= 2.0;
        Some(next.clamp(self.lowest(), self.highest))
    }

    /// Returns a load between the bounds that has been tried and is undecided for this goal, the nearest to the upper
    /// bound: earlier steps found it, so the result is near.
    fn tried_between(&self, lower: Option<f64>, upper: Option<f64>, goal: &Goal) -> Option<f64> {
        let mut loads = self.trials.keys().rev().map(|&bits| f64::from_bits(bits));
        loads.find(|&load| {
            lower.is_none_or(|lower| lower < load)
                && upper.is_none_or(|upper| load < upper)
                && self.verdict(load, goal) == Verdict::Undecided
        })
    }

    /// Returns the relevant bounds: a load above one that does not meet the goal is no lower bound.
    fn bounds(&self, goal: &Goal) -> Bounds {
        let judged = |wanted: Verdict| {
            let loads = self.trials.keys().map(|&bits| f64::from_bits(bits));
            loads.filter(move |&load| self.verdict(load, goal) == wanted)
        };
        let upper = judged(Verdict::Upper).next();
        let lower =
            judged(Verdict::Lower).filter(|&load| upper.is_none_or(|upper| load < upper)).last();
        let conditional_throughput =
            lower.map_or(0.0, |load| self.conditional_throughput(load, goal));
        Bounds { lower, upper, conditional_throughput }
    }

    fn at(&self, load: f64) -> &[Trial] {
        self.trials.get(&load.to_bits()).map_or(&[], Vec::as_slice)
    }

    fn verdict(&self, load: f64, goal: &Goal) -> Verdict {
        judge(self.at(load), goal)
    }

    /// Returns the load forwarded in the trial of full length that is the last one needed, from the best downwards.
    fn conditional_throughput(&self, load: f64, goal: &Goal) -> f64 {
        let full = |trial: &&Trial| trial.seconds >= goal.final_trial;
        let mut trials: Vec<Trial> = self.at(load).iter().filter(full).copied().collect();
        trials.sort_by(|a, b| a.loss_ratio.total_cmp(&b.loss_ratio));
        let lasted: f64 = trials.iter().map(|trial| trial.seconds).sum();
        let mut remaining = lasted.max(goal.duration_sum) * (1.0 - goal.exceed_ratio);
        let mut loss_ratio = 0.0;
        for trial in trials {
            if remaining <= 0.0 {
                break;
            }
            loss_ratio = trial.loss_ratio;
            remaining -= trial.seconds;
        }
        load * (1.0 - loss_ratio)
    }
}

/// Judges a load by its trials (load classification of RFC 9971). Short trials count only as far as they have lost more
/// than the exceed ratio allows.
fn judge(trials: &[Trial], goal: &Goal) -> Verdict {
    let sum = |full: bool, good: bool| -> f64 {
        let counts = |trial: &&Trial| {
            (trial.seconds >= goal.final_trial) == full
                && (trial.loss_ratio <= goal.loss_ratio) == good
        };
        trials.iter().filter(counts).map(|trial| trial.seconds).sum()
    };
    let balance = sum(false, true) * goal.exceed_ratio / (1.0 - goal.exceed_ratio);
    let bad = sum(true, false) + (sum(false, false) - balance).max(0.0);
    let known = sum(true, true) + bad;
    let whole = known.max(goal.duration_sum);
    let allowed = whole * goal.exceed_ratio;
    // Durations are sums of the same few numbers; their rounding must not decide.
    let slack = whole * 1e-9;
    match (bad <= allowed + slack, bad + (whole - known) <= allowed + slack) {
        (true, true) => Verdict::Lower,
        (false, _) => Verdict::Upper,
        (true, false) => Verdict::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use fib::synthetic::Random;
    use proptest::prelude::*;

    use super::*;

    const GOAL: Goal = Goal {
        loss_ratio: 0.0,
        final_trial: 1.0,
        initial_trial: 0.25,
        duration_sum: 5.0,
        exceed_ratio: 0.5,
        width: 0.005,
    };

    /// Simulates a router that forwards this much and loses the rest.
    fn loss(capacity: f64, load: f64) -> f64 {
        (1.0 - capacity / load).max(0.0)
    }

    fn trials(results: &[(f64, f64)]) -> Vec<Trial> {
        results.iter().map(|&(seconds, loss_ratio)| Trial { seconds, loss_ratio }).collect()
    }

    #[test]
    fn a_load_is_judged_by_all_of_its_trials() {
        let judge = |results: &[(f64, f64)]| judge(&trials(results), &GOAL);
        assert_eq!(judge(&[]), Verdict::Undecided);
        assert_eq!(judge(&[(1.0, 0.0); 2]), Verdict::Undecided);
        assert_eq!(
            judge(&[(1.0, 0.0); 3]),
            Verdict::Lower,
            "two bad ones of five would be allowed"
        );
        assert_eq!(judge(&[(1.0, 0.1); 2]), Verdict::Undecided);
        assert_eq!(judge(&[(1.0, 0.1); 3]), Verdict::Upper);
        assert_eq!(judge(&[(1.0, 0.0), (1.0, 0.1), (1.0, 0.0), (1.0, 0.1)]), Verdict::Undecided);
        assert_eq!(judge(&[(0.5, 0.0); 20]), Verdict::Undecided, "short ones prove nothing good");
        assert_eq!(judge(&[(0.5, 0.1); 6]), Verdict::Upper, "but bad ones count");
        let balanced = [&[(0.5, 0.1); 6][..], &[(0.5, 0.0); 6]].concat();
        assert_eq!(judge(&balanced), Verdict::Undecided, "unless as many are good");
    }

    #[test]
    fn without_an_exceed_ratio_every_trial_must_be_good() {
        let strict = Goal { exceed_ratio: 0.0, duration_sum: 2.0, ..GOAL };
        let judge = |results: &[(f64, f64)]| judge(&trials(results), &strict);
        assert_eq!(judge(&[(1.0, 0.0); 1]), Verdict::Undecided);
        assert_eq!(judge(&[(1.0, 0.0); 2]), Verdict::Lower);
        assert_eq!(judge(&[(1.0, 0.0), (1.0, 1e-9)]), Verdict::Upper);
        assert_eq!(judge(&[(0.1, 1e-9)]), Verdict::Upper);
    }

    #[test]
    fn a_router_that_takes_everything_or_nothing_is_found_soon() {
        let mut seconds = 0.0;
        let mut count = |lost: f64| {
            search(8.0, &[GOAL], |_, trial| {
                seconds += trial;
                Ok(lost)
            })
            .unwrap()[0]
        };
        let all = Bounds { lower: Some(8.0), upper: None, conditional_throughput: 8.0 };
        assert_eq!(count(0.0), all);
        let none = count(1.0);
        assert_eq!((none.lower, none.conditional_throughput), (None, 0.0));
        assert!(seconds < 30.0, "{seconds}");
        assert!(search(1.0, &[GOAL], |_, _| anyhow::bail!("no device")).is_err());
    }

    /// Packets of a trial are lost in one in ten although the router could forward them: a bisection by single trials
    /// would nearly always end too low.
    #[test]
    fn a_disturbed_router_is_found_within_the_width_and_by_a_bisection_it_is_not() {
        let disturbed = |random: &mut Random, load: f64| {
            let by_chance = random.word().is_multiple_of(10);
            loss(0.6, load).max(if by_chance { 0.001 } else { 0.0 })
        };
        let (mut near, mut near_by_bisection) = (0, 0);
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let found =
                search(1.0, &[GOAL], |load, _| Ok(disturbed(&mut random, load))).unwrap()[0];
            near += usize::from(found.lower.is_some_and(|lower| (0.594..=0.6).contains(&lower)));
            let bisected = crate::rfc2544::search::highest_passing((0.0, 1.0), 0.005, |load| {
                Ok(disturbed(&mut random, load) == 0.0)
            });
            near_by_bisection += usize::from((0.594..=0.6).contains(&bisected.unwrap()));
        }
        assert!(near >= 90 && near_by_bisection <= 75, "{near}, {near_by_bisection}");
    }

    #[test]
    fn trials_that_always_contradict_each_other_end_the_search_with_an_error() {
        let mut random = Random::new(1);
        let endless = Goal { duration_sum: 1e9, exceed_ratio: 0.5, ..GOAL };
        let error = search(1.0, &[endless], |_, _| Ok((random.word() % 2) as f64)).unwrap_err();
        assert!(error.to_string().contains("contradict each other"), "{error}");
    }

    #[test]
    fn the_conditional_throughput_is_of_the_worst_trial_that_counts() {
        let goal = Goal { loss_ratio: 0.1, exceed_ratio: 0.25, duration_sum: 4.0, ..GOAL };
        let mut search =
            Search { highest: 1.0, trials: BTreeMap::new(), made: 0, measure: |_, _| Ok(0.0) };
        let all = trials(&[(1.0, 0.0), (1.0, 0.5), (1.0, 0.02), (1.0, 0.04), (0.1, 0.09)]);
        search.trials.insert(0.5f64.to_bits(), all);
        let bounds = search.bounds(&goal);
        assert_eq!((bounds.lower, bounds.upper), (Some(0.5), None));
        assert_eq!(
            bounds.conditional_throughput,
            0.5 * 0.96,
            "a quarter of the time does not count"
        );
    }

    proptest! {
        /// The result of each goal encloses the true one, which for a share lost is the capacity divided by the rest.
        #[test]
        fn all_goals_are_found_within_their_width(
            capacity in 0.001f64..1.2,
            partial in 0.0f64..0.2,
            width in 0.002f64..0.1,
            exceed_ratio in 0.0f64..0.9,
        ) {
            let goal = Goal { width, exceed_ratio, ..GOAL };
            let goals = [goal, Goal { loss_ratio: partial, ..goal }];
            let mut seconds = 0.0;
            let found = search(1.0, &goals, |load, trial| {
                seconds += trial;
                Ok(loss(capacity, load))
            }).unwrap();
            for (goal, found) in goals.iter().zip(&found) {
                let truth = capacity / (1.0 - goal.loss_ratio);
                if truth >= 1.0 {
                    prop_assert_eq!((found.lower, found.upper), (Some(1.0), None));
                    continue;
                }
                let (lower, upper) = found.lower.zip(found.upper).unwrap();
                prop_assert!(lower <= truth * 1.0001 && truth * 0.9999 <= upper, "{} {} {}", lower, truth, upper);
                prop_assert!((upper - lower) / upper <= width);
                prop_assert!(found.conditional_throughput <= capacity.min(lower) * 1.0001);
            }
            prop_assert!(found[0].lower.unwrap() <= found[1].lower.unwrap());
            // Fewer than fifteen loads of five seconds for each goal.
            prop_assert!(seconds < 150.0, "{}", seconds);
        }
    }
}
