//! Cores: where forwarders and everything else run, and keeping threads there.
//!
//! A thread inherits the cores of the one that starts it. So the main thread confines itself to the control
//! cores before there is another ([`confine`]), and everything else follows: the owner, the API, slow path
//! workers, kernel listeners, watchdogs, DPDK's threads and programs that are started. Only forwarders move, each
//! to its own core. A change moves the threads that there are.

use std::fs;
use std::io;

use anyhow::{Context, Result, anyhow};
use control::config::Config;
use control::cores::{CorePlacement, supply};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::list_text;

/// The calling thread.
pub const SELF: Pid = Pid::from_raw(0);

/// The cores of forwarders and of everything else, on this machine.
///
/// # Errors
/// No core is left for forwarders, or the kernel does not report the available ones.
pub fn place(config: &Config) -> Result<CorePlacement> {
    let supply = supply().context("the kernel does not say which cores are allowed")?;
    let cores = &config.cores;
    let placement = CorePlacement::new(&cores.control, &cores.forward, supply)
        .map_err(|reason| anyhow!("cores: {reason}"))?;
    let placement = match &config.forwarders.events {
        Some(events) => placement
            .around_events(events.receive_core)
            .map_err(|reason| anyhow!("forwarders: {reason}"))?,
        None => placement,
    };
    Ok(CorePlacement { control_forwarder: config.forwarders.control_queue, ..placement })
}

/// The cores that threads of this process may ask for, ascending.
pub fn allowed() -> Result<Vec<usize>> {
    let supply = supply().context("the kernel does not say which cores are allowed")?;
    Ok(supply.allowed.iter().copied().collect())
}

/// Keeps all threads of this process on these cores, but for some. A thread that one of them starts meanwhile
/// is moved as well.
///
/// # Errors
/// The kernel refuses the cores, or does not list the threads.
pub fn confine(cores: &[usize], but: &[Pid]) -> Result<()> {
    let set = set_of(cores)?;
    // A thread started by one that has been moved is on the right cores already, so each pass finds
    // fewer.
    while confine_once(&set, but).with_context(|| format!("cores {cores:?}: cannot be used"))? {}
    Ok(())
}

/// Logs the placement, and that forwarders have to share cores if they have.
pub fn log_placement(placement: &CorePlacement) {
    let CorePlacement { control, forward, receiver, control_forwarder } = placement;
    let control = list_text(control);
    match forward.split_first().filter(|_| *receiver) {
        Some((first, rest)) => tracing::info!(
            "cores: the receiver on {first}, forwarders on {}, control on {control}",
            list_text(rest)
        ),
        None => tracing::info!("cores: forwarders on {}, control on {control}", list_text(forward)),
    }
    if *control_forwarder {
        tracing::info!(
            "forwarder {} is for control traffic, on the cores for control",
            forward.len()
        );
    }
    if let Some(sentence) = sharing(placement) {
        tracing::warn!("{sentence}");
    }
}

/// A sentence on the cores that control shares with forwarders, if there are some.
pub fn sharing(placement: &CorePlacement) -> Option<String> {
    let shared = placement.shared();
    (!shared.is_empty()).then(|| {
        format!(
            "control shares core {} with forwarders: packets wait while control works, and control while they are \
             forwarded; leave a core out of turnpike.cores {{ forward }}",
            list_text(&shared)
        )
    })
}

/// True if a thread was elsewhere.
fn confine_once(set: &CpuSet, but: &[Pid]) -> io::Result<bool> {
    let mut moved = false;
    for entry in fs::read_dir("/proc/self/task")? {
        let Some(thread) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let thread = Pid::from_raw(thread);
        if but.contains(&thread) {
            continue;
        }
        match sched_getaffinity(thread) {
            Ok(now) if now == *set => {}
            Ok(_) => {
                sched_setaffinity(thread, set).or_else(gone)?;
                // A core outside the cpuset is left out silently, and never found again.
                moved |= sched_getaffinity(thread).is_ok_and(|now| now == *set);
            }
            Err(error) => gone(error)?,
        }
    }
    Ok(moved)
}

/// A thread that has ended needs no core.
fn gone(error: Errno) -> io::Result<()> {
    if error == Errno::ESRCH { Ok(()) } else { Err(error.into()) }
}

fn set_of(cores: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core).with_context(|| format!("core {core}: no such core"))?;
    }
    Ok(set)
}

/// Keeps the calling thread on this core.
pub fn pin(core: usize) -> Result<()> {
    pin_thread(SELF, &[core])
}

/// Keeps a thread of this process on these cores, by the kernel's number for it.
pub fn pin_thread(thread: Pid, cores: &[usize]) -> Result<()> {
    let set = set_of(cores)?;
    let allowed = allowed()?;
    sched_setaffinity(thread, &set)
        .with_context(|| format!("core {}: cannot be used; allowed: {allowed:?}", list_text(cores)))
}

/// Lets the calling thread run on any of these cores.
pub fn spread(cores: &[usize]) -> Result<()> {
    sched_setaffinity(SELF, &set_of(cores)?)
        .with_context(|| format!("cores {cores:?}: cannot be used"))
}

/// Lets short sleeps of the calling thread be short: by default the kernel may add 50 µs.
pub fn sharpen_timer() {
    if let Err(error) = nix::sys::prctl::set_timerslack(1) {
        tracing::warn!("short sleeps may take 50 µs more: {error}");
    }
}
