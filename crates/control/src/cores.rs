//! Lists of cores as users and the kernel write them, `1,3-5`, and cores that the kernel isolates.

use std::fs;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Reads a list of cores; they are ascending in the result, however they were written.
///
/// # Errors
/// What is wrong with the text, and how a list is written.
pub fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    /// More than any machine has; keeps "0-99999999999" from filling the memory.
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

/// Cores that the kernel isolates (`isolcpus`) and this process may use. No thread is allowed to run there
/// until it asks for it, which is what they are for; one outside the process's cpuset is refused.
pub fn isolated_cores() -> Vec<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
    let isolated = parse_cores(list.trim()).unwrap_or_default();
    isolated.into_iter().filter(|&core| can_run_on(core)).collect()
}

/// May a thread of this process ask for a core?
fn can_run_on(core: usize) -> bool {
    let ask = move || {
        let mut cores = CpuSet::new();
        let this_thread = Pid::from_raw(0);
        cores.set(core).is_ok() && sched_setaffinity(this_thread, &cores).is_ok()
    };
    std::thread::spawn(ask).join().unwrap_or(false)
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
    fn a_thread_may_ask_for_cores_that_there_are() {
        let before = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
        let first = (0..CpuSet::count()).find(|&core| before.is_set(core).unwrap()).unwrap();
        assert!(can_run_on(first) && !can_run_on(1000) && !can_run_on(usize::MAX));
        assert_eq!(nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap(), before, "ours stays");
        assert!(isolated_cores().iter().all(|&core| can_run_on(core)));
    }
}
