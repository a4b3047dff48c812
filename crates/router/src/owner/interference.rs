//! Interference: threads and interrupts that take a forwarder's core from it. The kernel counts it, and the owner reads
//! it, without the forwarders.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::report::Interference;
use control::cores::CorePlacement;
use machine::Machine;
use machine::cores;
use machine::tasks::{CoreInterruptions, PREEMPTED_MOST, Task};
use nix::unistd::Pid;

use super::Owner;

/// The least time between two lines of the log about this.
const PAUSE: Duration = Duration::from_secs(60);

/// The last reading of a forwarder.
#[derive(Clone, Copy, Debug)]
struct Known {
    thread: Pid,
    core: usize,
    /// Of the core when the forwarder began to run on it.
    at_first: CoreInterruptions,
    involuntary: u64,
    since: Instant,
}

/// State of the forwarders' threads.
#[derive(Debug)]
pub(super) struct Watched {
    machine: Machine,
    known: Vec<Option<Known>>,
    told: Option<Instant>,
}

impl Default for Watched {
    fn default() -> Self {
        Self { machine: Machine::here(), known: Vec::new(), told: None }
    }
}

impl Watched {
    /// Looks at forwarders by thread and core, and returns a sentence if the scheduler has taken the core from
    /// one of them more often than it should since the last look.
    fn look(&mut self, forwarders: &[(Option<Pid>, usize)], now: Instant) -> Option<String> {
        // Read only if a forwarder has come to another core.
        let mut times: Option<BTreeMap<usize, CoreInterruptions>> = None;
        let mut often = Vec::new();
        self.known.resize(forwarders.len(), None);
        for (number, (&(thread, core), known)) in forwarders.iter().zip(&mut self.known).enumerate()
        {
            let task = thread.and_then(|thread| task(&self.machine, thread));
            let (Some(thread), Some(task)) = (thread, task) else {
                *known = None;
                continue;
            };
            match known {
                Some(known) if (known.thread, known.core) == (thread, core) => {
                    let more = task.involuntary.saturating_sub(known.involuntary);
                    let rate =
                        more as f64 / now.duration_since(known.since).as_secs_f64().max(1e-3);
                    (known.involuntary, known.since) = (task.involuntary, now);
                    if rate > PREEMPTED_MOST {
                        often.push(format!("forwarder {number} (core {core}) {rate:.0} times"));
                    }
                }
                _ => {
                    let times = times.get_or_insert_with(|| self.machine.core_interruptions());
                    let at_first = times.get(&core).copied().unwrap_or_default();
                    let involuntary = task.involuntary;
                    *known = Some(Known { thread, core, at_first, involuntary, since: now });
                }
            }
        }
        let is_time = self.told.is_none_or(|told| now.duration_since(told) >= PAUSE);
        (is_time && !often.is_empty()).then(|| {
            self.told = Some(now);
            format!(
                "other threads took the core from {} in the last second, and packets waited meanwhile; \
                 `turnpike doctor` lists them and the remedy",
                often.join(", ")
            )
        })
    }

    /// Returns the interference with a forwarder on this core; `None` if its thread has ended.
    fn report(&self, number: usize, (thread, core): (Option<Pid>, usize)) -> Option<Interference> {
        let task = task(&self.machine, thread?)?;
        let at_first = self.known.get(number).copied().flatten().filter(|known| known.core == core);
        let times = self.machine.core_interruptions().get(&core).copied().unwrap_or_default();
        let times =
            at_first.map_or_else(CoreInterruptions::default, |known| times.since(known.at_first));
        let micros = |time: Duration| time.as_micros() as u64;
        Some(Interference {
            allowed: task.allowed.into_iter().collect(),
            voluntary_switches: task.voluntary,
            involuntary_switches: task.involuntary,
            minor_faults: task.minor_faults,
            major_faults: task.major_faults,
            ran_us: micros(task.ran),
            waited_us: micros(task.waited),
            interrupts_us: micros(times.interrupts),
            stolen_us: micros(times.stolen),
            tlb_shootdowns: times.tlb_shootdowns,
        })
    }
}

fn task(machine: &Machine, thread: Pid) -> Option<Task> {
    machine.task(&format!("/proc/self/task/{thread}"))
}

impl Owner {
    /// Keeps all threads but forwarders on the cores for control, those that were there before a change included.
    pub(super) fn confine(&mut self, placement: &CorePlacement) {
        let scheduler =
            self.forwarding.wiring.as_ref().and_then(|wiring| wiring.events()?.pinned());
        let forwarders = self.threads().into_iter().filter_map(|(thread, _)| thread);
        let forwarders: Vec<Pid> = forwarders.chain(scheduler).collect();
        if let Err(error) = cores::confine(&placement.control, &forwarders) {
            tracing::error!("control stays on the cores that it had: {error:#}");
        }
        if let Some(sentence) =
            cores::sharing(placement).filter(|_| self.forwarding.cores != *placement)
        {
            tracing::warn!("{sentence}");
        }
        self.forwarding.cores = placement.clone();
    }

    /// To be called from time to time: writes to the log if forwarders are kept from their cores.
    pub(super) fn look_at_threads(&mut self) {
        let forwarders = self.threads();
        if let Some(sentence) = self.forwarding.watched.look(&forwarders, Instant::now()) {
            tracing::warn!("{sentence}");
        }
    }

    /// Returns the interference with a forwarder.
    pub(super) fn interference(&self, number: usize) -> Option<Interference> {
        let threads = self.threads();
        self.forwarding.watched.report(number, *threads.get(number)?)
    }

    /// Thread and core of each forwarder that has a core of its own.
    fn threads(&self) -> Vec<(Option<Pid>, usize)> {
        let Some(wiring) = &self.forwarding.wiring else { return Vec::new() };
        let own = wiring.threads().zip(wiring.seats()).take(wiring.forwarders());
        own.map(|(thread, seat)| (thread, seat.core)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::testing::Tree;

    fn thread(tree: &Tree, number: i32, involuntary: u64) {
        let task = Task { involuntary, voluntary: 3, minor_faults: 4, ..Task::default() };
        tree.thread(number as usize, &task);
    }

    fn cores(tree: &Tree, irq: u64, steal: u64) {
        tree.write("proc/stat", format!("cpu5 0 0 0 0 0 {irq} 1 {steal} 0 0\n"));
    }

    #[test]
    fn a_forwarder_that_is_preempted_often_is_named_once_a_minute() {
        let tree = Tree::new(&[]);
        let mut watched = Watched { machine: tree.machine(), ..Watched::default() };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let forwarders = [(Some(Pid::from_raw(7)), 5), (Some(Pid::from_raw(8)), 6)];
        let mut look = |at: u32, counts: [u64; 2]| {
            thread(&tree, 7, counts[0]);
            thread(&tree, 8, counts[1]);
            watched.look(&forwarders, start + second * at)
        };
        assert_eq!(look(0, [1000, 0]), None, "what was before is no rate");
        assert_eq!(look(1, [1020, 0]), None, "as often as may be");
        let said = look(2, [1320, 21]).unwrap();
        let expected =
            "from forwarder 0 (core 5) 300 times, forwarder 1 (core 6) 21 times in the last second";
        assert!(said.contains(expected), "{said}");
        assert_eq!(look(3, [1620, 21]), None, "once a minute");
        assert!(look(62, [91_620, 21]).is_some());
        assert_eq!(look(122, [91_621, 21]), None);
    }

    #[test]
    fn times_of_a_core_count_from_when_the_forwarder_came() {
        let tree = Tree::new(&[]);
        let mut watched = Watched { machine: tree.machine(), ..Watched::default() };
        let forwarder = (Some(Pid::from_raw(7)), 5);
        thread(&tree, 7, 2);
        cores(&tree, 100, 50);
        watched.look(&[forwarder], Instant::now());
        cores(&tree, 103, 57);
        let report = watched.report(0, forwarder).unwrap();
        let counts = [report.voluntary_switches, report.involuntary_switches, report.minor_faults];
        assert_eq!(counts, [3, 2, 4]);
        assert_eq!((report.interrupts_us, report.stolen_us), (30_000, 70_000));
        // It has moved since the last look.
        let moved = watched.report(0, (forwarder.0, 6)).unwrap();
        assert_eq!((moved.interrupts_us, moved.stolen_us), (0, 0));
        assert_eq!(watched.report(0, (None, 5)), None);
        assert_eq!(watched.report(0, (Some(Pid::from_raw(9)), 5)), None, "it has ended");
    }
}
