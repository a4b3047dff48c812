//! Room for packet memory: compared with the machine before DPDK takes it, for the kernel gives ordinary memory
//! away without asking and ends programs when none is left.

use anyhow::{Result, ensure};
use machine::Machine;

/// Can the router have so many megabytes now?
///
/// # Errors
/// It cannot.
pub fn check_now(
    machine: &Machine,
    needed_mb: usize,
    no_huge: bool,
    mbufs: Option<u32>,
) -> Result<()> {
    let Some(room) = Room::of(machine, no_huge) else { return Ok(()) };
    ensure!(
        room.free_mb.max(room.available_mb) >= needed_mb,
        "packet memory: {needed_mb} MB are needed{}, and {} MB of memory are available, {} MB of hugepages free; {}",
        wanted(mbufs),
        room.available_mb,
        room.free_mb,
        way_out(mbufs)
    );
    Ok(())
}

/// Can the router have so many megabytes when nothing else runs? What is to be said about it now.
///
/// # Errors
/// The machine is too small.
pub fn check_ever(
    machine: &Machine,
    needed_mb: usize,
    no_huge: bool,
    mbufs: Option<u32>,
) -> Result<Option<String>> {
    let Some(room) = Room::of(machine, no_huge) else { return Ok(None) };
    ensure!(
        room.huge_mb.max(room.total_mb) >= needed_mb,
        "packet memory: {needed_mb} MB are needed{}, and the machine has {} MB, {} MB of it in hugepages; {}",
        wanted(mbufs),
        room.total_mb,
        room.huge_mb,
        way_out(mbufs)
    );
    Ok(check_now(machine, needed_mb, no_huge, mbufs).err().map(|error| error.to_string()))
}

fn wanted(mbufs: Option<u32>) -> String {
    mbufs.map_or_else(String::new, |mbufs| format!(" for turnpike.memory {{ mbufs = {mbufs} }}"))
}

fn way_out(mbufs: Option<u32>) -> &'static str {
    match mbufs {
        Some(_) => "write a smaller number, leave it out, or stop other programs",
        None => "write turnpike.memory { mbufs = 16384 }, or stop other programs",
    }
}

/// Megabytes that the machine has.
struct Room {
    /// Ordinary memory, that of hugepages left out where it is available.
    available_mb: usize,
    total_mb: usize,
    /// Hugepages of one size.
    free_mb: usize,
    huge_mb: usize,
}

impl Room {
    /// `None`: the kernel does not tell.
    fn of(machine: &Machine, no_huge: bool) -> Option<Self> {
        let available_mb = machine.meminfo("MemAvailable:")? / 1024;
        let total_mb = machine.meminfo("MemTotal:")? / 1024;
        const PAGES: &str = "/sys/kernel/mm/hugepages";
        let sizes = if no_huge { Vec::new() } else { machine.names(PAGES) };
        let most = |file: &str| {
            let of_size = |name: &String| {
                let kb: usize =
                    name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
                let pages: usize = machine.number(&format!("{PAGES}/{name}/{file}"))?;
                Some(kb.saturating_mul(pages) / 1024)
            };
            sizes.iter().filter_map(of_size).max().unwrap_or(0)
        };
        let (free_mb, huge_mb) = (most("free_hugepages"), most("nr_hugepages"));
        Some(Self { available_mb, total_mb, free_mb, huge_mb })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::testing::Tree;

    const TREE: &[(&str, &str)] = &[
        ("proc/meminfo", "MemTotal: 24576000 kB\nMemFree: 1 kB\nMemAvailable: 20480000 kB\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1000\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "30\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0\n"),
    ];

    #[test]
    fn more_than_there_is_is_refused() {
        let tree = Tree::new(TREE);
        let machine = tree.machine();
        check_now(&machine, 20_000, false, None).unwrap();
        let error = check_now(&machine, 43_078, false, Some(16_777_216)).unwrap_err().to_string();
        assert_eq!(
            error,
            "packet memory: 43078 MB are needed for turnpike.memory { mbufs = 16777216 }, and 20000 MB of memory \
             are available, 20 MB of hugepages free; write a smaller number, leave it out, or stop other programs"
        );
        let error = check_ever(&machine, 43_078, false, None).unwrap_err().to_string();
        let expected = "packet memory: 43078 MB are needed, and the machine has 24000 MB, 30720 MB of it in hugepages; ";
        assert!(error.starts_with(expected), "{error}");
        assert!(error.ends_with("write turnpike.memory { mbufs = 16384 }, or stop other programs"));
    }

    #[test]
    fn what_would_fit_another_time_is_only_said() {
        let tree = Tree::new(TREE);
        let machine = tree.machine();
        assert_eq!(check_ever(&machine, 100, false, None).unwrap(), None);
        let said = check_ever(&machine, 22_000, false, None).unwrap().unwrap();
        assert!(said.contains("20000 MB of memory are available"), "{said}");
        // In hugepages that are in use.
        assert!(check_ever(&machine, 30_000, false, None).unwrap().is_some());
        assert!(check_ever(&machine, 30_000, true, None).is_err(), "not without them");
    }

    #[test]
    fn a_kernel_that_does_not_tell_is_believed() {
        let tree = Tree::new(&[("proc/version", "x")]);
        check_now(&tree.machine(), 1 << 40, false, None).unwrap();
        assert_eq!(check_ever(&tree.machine(), 1 << 40, false, None).unwrap(), None);
    }
}
