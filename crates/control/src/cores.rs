//! Lists of cores in the notation of users and the kernel, `1,3-5`, the cores that this process may
//! use, and their division among forwarders and control ([`CorePlacement`]).

mod placement;

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::{fs, io};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

pub use placement::{CorePlacement, Supply};

/// Parses a list of cores; the result is ascending, regardless of the order in the text.
///
/// # Errors
/// Description of the fault, and the notation of a list.
pub fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    /// More than any machine has; prevents "0-99999999999" from filling the memory.
    const CORES_MOST: usize = 4096;
    let mut cores = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
        else {
            return Err(format!("\"{part}\" is not a core or a range; write \"1,3-5\""));
        };
        if first > last {
            return Err(format!("range {part} ends before it begins; write {last}-{first}"));
        }
        if last >= CORES_MOST {
            return Err(format!("core {last} is beyond {}, the most", CORES_MOST - 1));
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(format!("core {core} given twice; name each core once"));
            }
            cores.push(core);
        }
    }
    cores.sort_unstable();
    Ok(cores)
}

/// Returns the cores that this process may use, and those of them that the kernel isolates, as
/// determined by the first call. That call must precede the process's confinement of its own
/// threads. Cores added to its cpuset later are used after a restart.
///
/// Allowed are the cores of the main thread's affinity, and those isolated ones (`isolcpus`) that
/// the cpuset includes: no thread runs on them unless it requests them.
///
/// # Errors
/// A file of the kernel cannot be read, or a thread cannot be made.
pub fn supply() -> io::Result<&'static Supply> {
    static SUPPLY: OnceLock<Supply> = OnceLock::new();
    if let Some(known) = SUPPLY.get() {
        return Ok(known);
    }
    let isolated = usable(isolated_cores())?;
    let mut allowed = affinity_of_process()?;
    allowed.extend(&isolated);
    Ok(SUPPLY.get_or_init(|| Supply { allowed, isolated }))
}

/// Returns the affinity of the main thread.
fn affinity_of_process() -> io::Result<BTreeSet<usize>> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .ok_or_else(|| invalid("/proc/self/status has no Cpus_allowed_list".to_owned()))?;
    Ok(parse_cores(list.trim()).map_err(invalid)?.into_iter().collect())
}

/// Returns the cores that the kernel isolates (`isolcpus`).
fn isolated_cores() -> BTreeSet<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
    parse_cores(list.trim()).unwrap_or_default().into_iter().collect()
}

/// Returns those of some cores that a thread of this process may request: the kernel refuses one
/// outside the process's cpuset.
fn usable(wished: BTreeSet<usize>) -> io::Result<BTreeSet<usize>> {
    let ask = |&core: &usize| {
        let mut cores = CpuSet::new();
        let this_thread = Pid::from_raw(0);
        cores.set(core).is_ok() && sched_setaffinity(this_thread, &cores).is_ok()
    };
    // A separate thread, so that the affinity of no other thread changes.
    let asking = std::thread::Builder::new();
    let asking = asking.spawn(move || wished.into_iter().filter(ask).collect())?;
    Ok(asking.join().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(parse_cores("1"), Ok(vec![1]));
        assert_eq!(parse_cores(" 5, 1-3 "), Ok(vec![1, 2, 3, 5]));
    }

    #[test]
    fn other_texts_are_explained() {
        for (text, reason) in [
            ("", "\"\" is not a core or a range; write \"1,3-5\""),
            ("1,,2", "\"\" is not a core or a range; write \"1,3-5\""),
            ("a", "\"a\" is not a core or a range; write \"1,3-5\""),
            ("1-", "\"1-\" is not a core or a range; write \"1,3-5\""),
            ("3-1", "range 3-1 ends before it begins; write 1-3"),
            ("1,0-2", "core 1 given twice; name each core once"),
            ("0-99999999999", "core 99999999999 is beyond 4095, the most"),
        ] {
            assert_eq!(parse_cores(text), Err(reason.to_owned()), "{text}");
        }
    }

    #[test]
    fn cores_that_can_be_asked_for_are_found_and_nobody_is_moved() {
        let before = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
        let supply = supply().unwrap();
        let first = *supply.allowed.first().expect("a core to run on");
        assert!(supply.isolated.is_subset(&supply.allowed));
        let usable = usable(BTreeSet::from([first, 1000, usize::MAX])).unwrap();
        assert_eq!(usable, BTreeSet::from([first]));
        assert_eq!(nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap(), before, "ours stays");
        assert_eq!(
            affinity_of_process().unwrap(),
            supply.allowed.difference(&supply.isolated).copied().collect()
        );
    }
}
