//! Threads from `/proc`: allowed and last cores, interruptions, waiting times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Machine, numbered, parse_list};

/// A kernel thread (`PF_KTHREAD` of `include/linux/sched.h`).
const PF_KTHREAD: u64 = 0x0020_0000;

/// `USER_HZ`, the unit of times in `/proc`, which the kernel's interface keeps at 100 a second.
const TICKS_PER_SECOND: u64 = 100;

/// Preemptions per second that are acceptable for a forwarder. The kernel's own threads, which are
/// bound to each core, cause a few; one busy thread on a forwarder's core causes some hundred.
pub const PREEMPTED_MOST: f64 = 20.0;

/// A thread. Counts and times are since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Its name, at most 15 characters.
    pub name: String,
    /// True for a kernel thread.
    pub of_kernel: bool,
    /// Cores on which it may run.
    pub allowed: BTreeSet<usize>,
    /// The core on which it ran last.
    pub core: usize,
    /// Times that it gave up the core, to sleep or to wait.
    pub voluntary: u64,
    /// Times that the scheduler preempted it for another thread.
    pub involuntary: u64,
    /// Page faults resolved from memory.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Time on a core.
    pub ran: Duration,
    /// Time ready to run while other threads had the core; zero if the kernel does not record it
    /// (`CONFIG_SCHED_INFO`).
    pub waited: Duration,
    /// Its start, as time since the start of the machine.
    pub began: Duration,
}

/// Interruptions of a core by work of no thread, since the start of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreInterruptions {
    /// Interrupts and the work deferred to their ends (softirqs).
    pub interrupts: Duration,
    /// Taken by the hypervisor for other virtual machines.
    pub stolen: Duration,
    /// Interrupts by which other cores made it forget address translations (TLB shootdowns).
    pub tlb_shootdowns: u64,
}

impl CoreInterruptions {
    /// Returns the increase since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            stolen: self.stolen.saturating_sub(earlier.stolen),
            tlb_shootdowns: self.tlb_shootdowns.saturating_sub(earlier.tlb_shootdowns),
        }
    }
}

impl Machine {
    /// Returns the thread of this directory, `/proc/PID/task/TID`; `None` if it has ended.
    pub fn task(&self, directory: &str) -> Option<Task> {
        let stat = self.read(&format!("{directory}/stat"))?;
        // A name may contain any characters, including blanks and parentheses.
        let (begin, end) = (stat.find('(')?, stat.rfind(')')?);
        let fields: Vec<&str> = stat.get(end + 1..)?.split_whitespace().collect();
        // proc(5) counts from 1, and two are before the name's end.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let status = self.read(&format!("{directory}/status"))?;
        let value = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned);
            status.lines().find_map(value)
        };
        let count = |name| value(name)?.trim().parse().ok();
        let schedule = self.read(&format!("{directory}/schedstat")).unwrap_or_default();
        let mut schedule =
            schedule.split_whitespace().map(|text| Duration::from_nanos(text.parse().unwrap_or(0)));
        Some(Task {
            name: stat.get(begin + 1..end)?.to_owned(),
            of_kernel: field(9)? & PF_KTHREAD != 0,
            allowed: parse_list(&value("Cpus_allowed_list")?)?,
            core: field(39)? as usize,
            voluntary: count("voluntary_ctxt_switches")?,
            involuntary: count("nonvoluntary_ctxt_switches")?,
            minor_faults: field(10)?,
            major_faults: field(12)?,
            ran: schedule.next().unwrap_or_default(),
            waited: schedule.next().unwrap_or_default(),
            began: ticks(field(22)?),
        })
    }

    /// Returns the directories of all threads, by process.
    pub fn tasks(&self) -> BTreeMap<usize, Vec<String>> {
        let processes = self.names("/proc").into_iter().filter_map(|name| name.parse().ok());
        let threads = |process: usize| {
            let base = format!("/proc/{process}/task");
            let threads = self.names(&base).into_iter();
            (process, threads.map(|thread| format!("{base}/{thread}")).collect())
        };
        processes.map(threads).collect()
    }

    /// Returns the time since the start of the machine.
    pub fn uptime(&self) -> Option<Duration> {
        let text = self.read("/proc/uptime")?;
        Duration::try_from_secs_f64(text.split_whitespace().next()?.parse().ok()?).ok()
    }

    /// Returns the interruptions of each core by work of no thread.
    pub fn core_interruptions(&self) -> BTreeMap<usize, CoreInterruptions> {
        let text = self.read("/proc/stat").unwrap_or_default();
        let shootdowns = self.tlb_shootdowns();
        let found = |line: &str| {
            let mut words = line.split_whitespace();
            let core = numbered(words.next()?, "cpu")?;
            let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal
            let &[irq, softirq, steal] = times.get(5..8)? else { return None };
            let tlb_shootdowns = shootdowns.get(&core).copied().unwrap_or(0);
            let (interrupts, stolen) = (ticks(irq + softirq), ticks(steal));
            Some((core, CoreInterruptions { interrupts, stolen, tlb_shootdowns }))
        };
        text.lines().filter_map(found).collect()
    }

    /// TLB shootdowns by core; none of processors that send no interrupts for them (Arm).
    fn tlb_shootdowns(&self) -> BTreeMap<usize, u64> {
        let text = self.read("/proc/interrupts").unwrap_or_default();
        let mut lines = text.lines();
        let cores = lines.next().unwrap_or_default().split_whitespace();
        let cores = cores.map_while(|word| numbered(word, "CPU"));
        let row = lines.find_map(|line| line.trim_start().strip_prefix("TLB:")).unwrap_or_default();
        cores.zip(row.split_whitespace().map_while(|word| word.parse().ok())).collect()
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(1000 / TICKS_PER_SECOND))
}

/// Tasks of machines made of files.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::super::testing::Tree;
    use super::*;

    impl Tree {
        /// Adds a thread of a process.
        pub fn task(&self, process: usize, thread: usize, task: &Task) {
            self.thread_at(&format!("proc/{process}/task/{thread}"), thread, task);
        }

        /// Adds a thread of the calling process.
        pub fn thread(&self, thread: usize, task: &Task) {
            self.thread_at(&format!("proc/self/task/{thread}"), thread, task);
        }

        fn thread_at(&self, base: &str, thread: usize, task: &Task) {
            let flags = if task.of_kernel { PF_KTHREAD } else { 0 };
            let mut fields = vec![0; 40];
            fields[9 - 3] = flags;
            (fields[10 - 3], fields[12 - 3]) = (task.minor_faults, task.major_faults);
            fields[22 - 3] = task.began.as_secs() * TICKS_PER_SECOND;
            fields[39 - 3] = task.core as u64;
            let rest: Vec<String> = fields[1..].iter().map(u64::to_string).collect();
            self.write(
                &format!("{base}/stat"),
                format!("{thread} ({}) S {}\n", task.name, rest.join(" ")),
            );
            let allowed = super::super::list_text(&task.allowed);
            self.write(
                &format!("{base}/status"),
                format!(
                    "Name:\tx\nCpus_allowed_list:\t{allowed}\nvoluntary_ctxt_switches:\t{}\n\
                     nonvoluntary_ctxt_switches:\t{}\n",
                    task.voluntary, task.involuntary
                ),
            );
            let (ran, waited) = (task.ran.as_nanos(), task.waited.as_nanos());
            self.write(&format!("{base}/schedstat"), format!("{ran} {waited} 7\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    #[test]
    fn threads_and_cores_are_read() {
        let task = Task {
            name: "a) S (b".to_owned(),
            of_kernel: true,
            allowed: [1, 2].into(),
            core: 2,
            voluntary: 5,
            involuntary: 6,
            minor_faults: 7,
            major_faults: 8,
            ran: Duration::from_nanos(9),
            waited: Duration::from_nanos(10),
            began: Duration::from_secs(11),
        };
        let tree = Tree::new(&[
            ("proc/uptime", "12.50 20.00\n"),
            ("proc/stat", "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2\nintr 5\n"),
            ("proc/interrupts", "  CPU0  CPU1\n 1: 5 6 PCI-MSI x\nTLB: 31 7 TLB shootdowns\n"),
        ]);
        tree.task(3, 4, &task);
        let machine = tree.machine();
        let directory = machine.tasks()[&3][0].clone();
        assert_eq!(machine.task(&directory), Some(task));
        assert_eq!(machine.uptime(), Some(Duration::from_millis(12_500)));
        let times = CoreInterruptions {
            interrupts: Duration::from_millis(130),
            stolen: Duration::from_millis(80),
            tlb_shootdowns: 31,
        };
        assert_eq!(machine.core_interruptions(), [(0, times)].into());
        assert_eq!(
            times.since(CoreInterruptions { stolen: ticks(9), tlb_shootdowns: 30, ..times }),
            CoreInterruptions { tlb_shootdowns: 1, ..CoreInterruptions::default() }
        );
        tree.write("proc/3/task/4/stat", "4 (x) S 1\n");
        assert_eq!((machine.task(&directory), machine.task("/proc/9/task/9")), (None, None));
    }

    #[test]
    fn the_kernel_tells_of_this_thread() {
        let machine = Machine::here();
        let thread = nix::unistd::gettid();
        let task = machine.task(&format!("/proc/self/task/{thread}")).unwrap();
        assert!(!task.of_kernel && task.allowed.contains(&task.core), "{task:?}");
        assert!(task.began > Duration::ZERO && task.began <= machine.uptime().unwrap());
        assert!(machine.core_interruptions().contains_key(&task.core));
        assert!(machine.tasks().contains_key(&(std::process::id() as usize)));
    }
}
