//! Cores: which ones this process may use, and staying on one.

use anyhow::{Context, Result};
use control::config::Config;
use control::cores::isolated_cores;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

/// Those of the configuration for forwarders, else the last one allowed: the first is the busiest with
/// everything else.
pub fn of_forwarders(config: &Config) -> Result<Vec<usize>> {
    if !config.forwarders.cores.is_empty() {
        return Ok(config.forwarders.cores.clone());
    }
    let allowed = allowed()?;
    Ok(vec![*allowed.last().context("no core is allowed for this process")?])
}

/// The cores that this thread may run on, and those that the kernel isolates and it may ask for, ascending.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(SELF).context("the kernel does not say which cores are allowed")?;
    let isolated = isolated_cores();
    let allowed = |core: &usize| set.is_set(*core).unwrap_or(false) || isolated.contains(core);
    Ok((0..CpuSet::count()).filter(allowed).collect())
}

/// Keeps the calling thread on this core.
pub fn pin(core: usize) -> Result<()> {
    pin_thread(SELF, core)
}

/// Keeps a thread of this process on this core, by the kernel's number for it.
pub fn pin_thread(thread: Pid, core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core).with_context(|| format!("core {core}: no such core"))?;
    let allowed = allowed()?;
    sched_setaffinity(thread, &set)
        .with_context(|| format!("core {core}: cannot be used; allowed: {allowed:?}"))
}

/// Lets the calling thread run on any of these cores.
pub fn spread(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core).with_context(|| format!("core {core}: no such core"))?;
    }
    sched_setaffinity(SELF, &set).with_context(|| format!("cores {cores:?}: cannot be used"))
}

/// Lets short sleeps of the calling thread be short: by default the kernel may add 50 µs.
pub fn sharpen_timer() {
    if let Err(error) = nix::sys::prctl::set_timerslack(1) {
        tracing::warn!("short sleeps may take 50 µs more: {error}");
    }
}
