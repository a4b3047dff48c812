//! Time for reading the kernel's routes, in total and within the kernel.
//!
//! ```text
//! netlink_scale NETNS PORT...      then, at each Enter, an audit
//! ```
//!
//! NETNS is a file such as /run/netns/router; the PORTs are interfaces in it. Prints the time from
//! the start to the last route, and the processor time of the reading thread in user and kernel
//! mode. Events are counted and thrown away.

use std::path::PathBuf;
use std::time::Instant;

use control::netlink::{Following, HostVlans, KernelConfig, KernelOrder, SourceEvent, spawn};
use dataplane::interface::InterfaceId;
use tokio::sync::{mpsc, oneshot};

/// User and kernel time of the thread that reads, in seconds (proc(5): fields 14 and 15 of stat, in
/// hundredths).
fn reader_time() -> Option<(f64, f64)> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let stats =
        threads.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("stat")).ok());
    let stat = stats.into_iter().find(|stat| stat.contains("(netlink)"))?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let seconds = |at: usize| fields.get(at)?.parse::<f64>().ok().map(|ticks| ticks / 100.0);
    Some((seconds(11)?, seconds(12)?))
}

/// Resident memory now, in MiB.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0 / f64::from(1 << 20)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let netns = PathBuf::from(arguments.next().expect("usage: netlink_scale NETNS PORT..."));
    let ports =
        arguments.enumerate().map(|(at, name)| (InterfaceId::new(at as u16).unwrap(), name));
    let config = KernelConfig {
        netns: Some(netns),
        ports: ports.collect(),
        vlans: HostVlans::default(),
        vrfs: Vec::new(),
        following: Following { routes: true, exact: false, audit: None, receive_buffer: 64 << 20 },
        multicast: false,
        apart: None,
    };
    let (send, mut events) = mpsc::channel(16);
    let begin = Instant::now();
    let source = spawn(config, send).unwrap_or_else(|error| panic!("{error}"));
    let mut routes = 0;
    'reading: while let Some(batch) = events.blocking_recv() {
        for event in batch {
            match event {
                SourceEvent::Route { .. } => routes += 1,
                SourceEvent::ResyncEnd(_) => break 'reading,
                _ => {}
            }
        }
    }
    let wall = begin.elapsed();
    let (user, system) = reader_time().unwrap_or_default();
    let memory = resident();
    println!(
        "{routes} routes in {wall:.2?}: user {user:.2} s, kernel {system:.2} s; {memory:.0} MiB"
    );
    while std::io::stdin().read_line(&mut String::new()).is_ok_and(|length| length > 0) {
        let before = reader_time().unwrap_or_default();
        let (answer, answered) = oneshot::channel();
        source.order(KernelOrder::Audit(answer));
        let report = answered.blocking_recv().expect("the thread runs");
        let after = reader_time().unwrap_or_default();
        let (user, system) = (after.0 - before.0, after.1 - before.1);
        println!(
            "audit of {} in {:.2?}: user {user:.2} s, kernel {system:.2} s, clean: {}",
            report.compared,
            report.took,
            report.clean()
        );
        while events.try_recv().is_ok() {}
    }
}
