//! VPP, run by turns with the router ([`Peer`]).
//!
//! `scripts/build-vpp.sh` builds it and the library with the source of packets beside it. A worker of VPP forwards; its
//! main thread has another core. The worker fills vectors of up to 256 packets from the null device, turns DPDK's
//! buffers into its own, verifies header checksums, looks up, rewrites and sends, with its counters of interfaces,
//! routes and neighbours on. As on every router, its egress ports receive too: they have nothing. Its own counters tell
//! the cycles of each node of its graph.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dpdk::Memory;

use super::cases::Case;
use super::peer::{Files, Parts, Peer, Program, Setting, file_prefix, source_of};
use super::peer_case::{self, MAC, Neighbour};
use crate::workload::routes::Routes;

const NAME: &str = "vpp";

/// The socket for commands, in the directory of its files.
const SOCKET: &str = "cli.sock";

/// Starts VPP with the routes of an IPv4 case.
pub fn start(
    binary: &Path,
    case: &Case,
    full: &Routes<Ipv4Addr>,
    setting: &Setting<'_>,
) -> Result<Peer> {
    let files = Files::new()?;
    let commands = files.write("commands", commands(case, full).as_bytes())?;
    let plugins = binary.parent().and_then(Path::parent).map(|home| home.join("lib/vpp_plugins"));
    let plugins = plugins.with_context(|| format!("{}: no plugins beside it", binary.display()))?;
    let startup = startup(&commands, &plugins, case.egress, setting)?;
    let startup = files.write("startup.conf", startup.as_bytes())?;
    let arguments = vec!["-c".to_owned(), startup.display().to_string()];
    let (name, source, egress) = (NAME.to_owned(), source_of(binary), case.egress);
    let (control, socket) = (binary.with_file_name("vppctl"), commands.with_file_name(SOCKET));
    let parts = Some(Box::new(move || parts(&control, &socket)) as Parts);
    let program =
        Program { name, binary, source, arguments, files, egress, configure: None, parts };
    Peer::start(program, setting)
}

/// Returns VPP's configuration at its start, as far as commands cannot change it.
fn startup(
    commands: &Path,
    plugins: &Path,
    egress: usize,
    setting: &Setting<'_>,
) -> Result<String> {
    let directory = commands.parent().context("commands are in a directory")?.display();
    let (main, worker) = (setting.other_core(NAME)?, setting.core);
    let (pages, dpdk) = match setting.memory {
        Memory::NoHuge { .. } => ("default", " no-hugetlb mem-alloc-request 256"),
        Memory::Hugepages { .. } => ("default-hugepage", ""),
    };
    let device = |port| format!(" vdev {}", peer_case::device(port, true));
    let devices: String = (0..=egress).map(device).collect();
    let prefix = file_prefix(NAME);
    let commands = commands.display();
    Ok(format!(
        "unix {{ nodaemon nosyslog log {directory}/vpp.log runtime-dir {directory} \
         cli-listen {directory}/{SOCKET} startup-config {commands} }}\n\
         api-segment {{ prefix {prefix} }}\n\
         cpu {{ main-core {main} corelist-workers {worker} }}\n\
         memory {{ main-heap-size 3G main-heap-page-size {pages} }}\n\
         statseg {{ size 1G page-size {pages} }}\n\
         buffers {{ page-size {pages} }}\n\
         plugins {{ path {} plugin default {{ disable }} plugin dpdk_plugin.so {{ enable }} }}\n\
         dpdk {{ no-pci telemetry file-prefix {prefix}{dpdk}{devices} }}\n",
        plugins.display()
    ))
}

/// Returns the commands that make a case's interfaces, neighbours and routes. The port that receives comes last, so
/// that no packet passes before.
fn commands(case: &Case, full: &Routes<Ipv4Addr>) -> String {
    let mut commands = String::new();
    let mut say = |command: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(commands, "{command}");
    };
    for port in 0..=case.egress {
        let address = peer_case::address(port);
        say(format_args!("set interface mac address Ethernet{port} {MAC}"));
        say(format_args!("set interface ip address Ethernet{port} {address}/24"));
    }
    for Neighbour { port, address, mac } in Neighbour::all(case) {
        say(format_args!("set ip neighbor Ethernet{port} {address} {mac} static"));
    }
    for (prefix, Neighbour { port, address, .. }) in peer_case::routes(case, full) {
        say(format_args!("ip route add {prefix} via {address} Ethernet{port}"));
    }
    for port in (0..=case.egress).rev() {
        say(format_args!("set interface state Ethernet{port} up"));
    }
    commands
}

/// Asks a forwarding VPP for the cycles of its nodes in half a second.
fn parts(control: &Path, socket: &Path) -> Result<String> {
    let ask = |question: &str| {
        let done =
            Command::new(control).arg("-s").arg(socket).args(question.split(' ')).output()?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        ensure!(done.status.success(), "vppctl {question}: {said}");
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    };
    ask("clear runtime")?;
    thread::sleep(Duration::from_millis(500));
    let answer = ask("show runtime")?;
    let nodes = nodes(&answer);
    ensure!(!nodes.is_empty(), "vppctl show runtime: no node with packets in:\n{answer}");
    let nodes: Vec<_> = nodes.iter().map(|(name, each)| format!("{name} {each:.1}")).collect();
    Ok(format!("by its nodes: {}", nodes.join(", ")))
}

/// Reads the answer to `show runtime`: nodes that had packets and their cycles for each packet received, in its order.
fn nodes(answer: &str) -> Vec<(&str, f64)> {
    let rows = answer.lines().filter_map(node);
    // Threads without packets have no such nodes.
    let rows: Vec<_> = rows.filter(|(_, vectors, _)| *vectors > 0.0).collect();
    let received = rows.iter().find(|(name, ..)| *name == "dpdk-input").map(|row| row.1);
    let received = received.unwrap_or(f64::NAN);
    // A node that handles the odd packet is none of the path's.
    let path = rows.into_iter().filter(|(_, vectors, _)| *vectors > received / 1000.0);
    path.map(|(name, vectors, clocks)| (name, clocks * vectors / received)).collect()
}

/// Reads a line: name, state in one word or two, calls, vectors, suspends, clocks of a packet, vectors of a call.
fn node(line: &str) -> Option<(&str, f64, f64)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [name, .., _, vectors, _, clocks, each] = words[..] else { return None };
    each.parse::<f64>().ok()?;
    Some((name, vectors.parse().ok()?, clocks.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cases::CASES;

    #[test]
    fn the_receiving_port_gets_up_last() {
        let case = CASES.iter().find(|case| case.name == "4r4e").unwrap();
        let commands = commands(case, &Vec::new());
        let commands: Vec<_> = commands.lines().collect();
        for command in [
            "set interface mac address Ethernet0 02:00:00:00:00:01",
            "set interface ip address Ethernet4 198.19.4.1/24",
            "set ip neighbor Ethernet4 198.19.4.5 02:00:00:00:01:03 static",
            "ip route add 192.0.0.0/2 via 198.19.4.5 Ethernet4",
        ] {
            assert!(commands.contains(&command), "{command}");
        }
        assert_eq!(commands.last(), Some(&"set interface state Ethernet0 up"));
    }

    #[test]
    fn cycles_are_those_of_nodes_that_had_packets() {
        // Recorded from VPP v26.06, whose main thread has nodes too.
        let nodes = nodes(include_str!("vpp/runtime.txt"));
        let names: Vec<_> = nodes.iter().map(|(name, _)| *name).collect();
        let ip4 = ["ethernet-input", "ip4-input", "ip4-lookup", "ip4-rewrite"];
        assert_eq!(names, [&["Ethernet1-output", "Ethernet1-tx", "dpdk-input"], &ip4[..]].concat());
        let all: f64 = nodes.iter().map(|(_, each)| each).sum();
        assert!((all - 116.2).abs() < 0.1, "{all}");
        assert!((nodes[2].1 - 42.4).abs() < 0.001, "{nodes:?}");
        // A node that half of the packets pass costs each half as much.
        let half =
            "dpdk-input polling 1 200 0 4.00e1 200.00\nEthernet1-tx active 1 100 0 2.00e1 100.00\n";
        assert_eq!(super::nodes(half), [("dpdk-input", 40.0), ("Ethernet1-tx", 10.0)]);
    }
}
