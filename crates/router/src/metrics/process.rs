//! Metrics of the process, with the names that Prometheus' client libraries use.

use std::fmt;
use std::fs;
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};
use web::metrics::Families;

/// `USER_HZ`, the unit of times in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;

/// Numbers of `/proc/self/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    threads: u64,
    /// Since the start of the machine.
    start_seconds: f64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Reads the line; its second field is the name, which may contain anything.
    fn read(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<u64> =
            rest.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
        // Numbered from 1 in proc(5); the first one here is the third.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) as f64 / TICKS_PER_SECOND,
            threads: field(20)?,
            start_seconds: field(22)? as f64 / TICKS_PER_SECOND,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Writes them; numbers that the kernel does not tell are left out.
pub fn write(families: &mut Families<'_>) -> fmt::Result {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    if let Some(stat) = stat.as_deref().and_then(Stat::read) {
        families.counter("process_cpu_seconds", "CPU time of all threads", stat.cpu_seconds)?;
        families.gauge("process_threads", "Threads", stat.threads)?;
        families.gauge("process_virtual_memory_bytes", "Virtual memory", stat.virtual_bytes)?;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as u64;
        let resident = stat.resident_pages * page;
        families.gauge("process_resident_memory_bytes", "Memory in use", resident)?;
        if let Some(boot) = boot_time() {
            let start = boot.as_secs_f64() + stat.start_seconds;
            families.gauge("process_start_time_seconds", "Start, in seconds since 1970", start)?;
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        families.gauge("process_open_fds", "Open descriptors", open.count() as u64)?;
    }
    if let Ok((most, _)) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
    {
        families.gauge("process_max_fds", "Most open descriptors", most)?;
    }
    Ok(())
}

/// The start of the machine, as time since 1970.
fn boot_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let line =
            "7 (a) b (c)) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 12 0 4200 8192 33 0 0";
        let expected = Stat {
            cpu_seconds: 2.0,
            threads: 12,
            start_seconds: 42.0,
            virtual_bytes: 8192,
            resident_pages: 33,
        };
        assert_eq!(Stat::read(line), Some(expected));
        assert_eq!(Stat::read("7 (x) S 1"), None);
    }
}
