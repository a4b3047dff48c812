//! grout, run by turns with the router ([`Peer`]).
//!
//! `scripts/build-grout.sh` builds it, and the library with the source of packets beside it. grout is built on DPDK's
//! graph library and looks routes up in its `rte_fib` (DIR-24-8), as l3fwd does. A worker forwards without sleeping; the
//! main thread has another core. It verifies header checksums and counts packets of nodes and interfaces.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use dpdk::Memory;

use super::cases::Case;
use super::peer::{Configure, Files, Peer, Program, Setting, file_prefix, source_of};
use super::peer_case::{self, MAC, Neighbour};
use crate::workload::routes::Routes;

/// Groups for IPv4 prefixes longer than /24: enough for a full table.
const TBL8: u32 = 1 << 16;

const NAME: &str = "grout";

/// Starts grout with the routes of an IPv4 case.
pub fn start(
    binary: &Path,
    case: &Case,
    full: &Routes<Ipv4Addr>,
    setting: &Setting<'_>,
) -> Result<Peer> {
    let files = Files::new()?;
    let cores = (setting.other_core(NAME)?, setting.core);
    let commands = files.write("commands", commands(case, full, cores).as_bytes())?;
    let socket = commands.with_file_name("grout.sock");
    let mut arguments = vec!["--poll-mode".to_owned(), "--metrics=:0".to_owned()];
    arguments.push(format!("--socket={}", socket.display()));
    if matches!(setting.memory, Memory::NoHuge { .. }) {
        arguments.push("--test-mode".to_owned());
    }
    arguments.extend(["--".to_owned(), "--file-prefix".to_owned(), file_prefix(NAME)]);
    let mut command = Command::new(binary.with_file_name("grcli"));
    command.args(["--err-exit", "--no-pager", "--socket"]).arg(&socket);
    command.arg("--file").arg(&commands);
    let configure = Some(Configure { after: socket, command });
    let (name, source, egress) = (NAME.to_owned(), source_of(binary), case.egress);
    Peer::start(
        Program { name, binary, source, arguments, files, egress, configure, parts: None },
        setting,
    )
}

/// Returns the commands that make a case's ports, neighbours and routes. The port that receives comes first, since ports
/// are numbered as they are made, and gets up last.
fn commands(case: &Case, full: &Routes<Ipv4Addr>, (main, worker): (usize, usize)) -> String {
    let mut commands = format!("affinity cpus set control {main} datapath {worker}\n");
    let mut say = |command: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(commands, "{command}");
    };
    for port in 0..=case.egress {
        let (device, address) = (peer_case::device(port, true), peer_case::address(port));
        say(format_args!("interface add port p{port} devargs {device} down mac {MAC}"));
        say(format_args!("address add {address}/24 iface p{port}"));
    }
    // The first port makes the VRF.
    if case.full {
        let most = full.len() + 1024;
        say(format_args!("interface set vrf main rib4-routes {most} fib4-tbl8 {TBL8}"));
    }
    for Neighbour { port, address, mac } in Neighbour::all(case) {
        say(format_args!("nexthop add l3 iface p{port} address {address} mac {mac}"));
    }
    for (prefix, Neighbour { address, .. }) in peer_case::routes(case, full) {
        say(format_args!("route add {prefix} via {address}"));
    }
    for port in (0..=case.egress).rev() {
        say(format_args!("interface set port p{port} up"));
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cases::CASES;

    fn of(name: &str, full: &Routes<Ipv4Addr>) -> Vec<String> {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        commands(case, full, (0, 1)).lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_receiving_port_is_made_first_and_gets_up_last() {
        let commands = of("4r4e", &Vec::new());
        assert_eq!(commands[0], "affinity cpus set control 0 datapath 1");
        let first = "interface add port p0 devargs net_null0 down mac 02:00:00:00:00:01";
        assert_eq!(commands[1], first);
        for command in [
            "interface add port p4 devargs net_null4,no-rx=1 down mac 02:00:00:00:00:01",
            "address add 198.19.4.1/24 iface p4",
            "nexthop add l3 iface p4 address 198.19.4.5 mac 02:00:00:00:01:03",
            "route add 192.0.0.0/2 via 198.19.4.5",
        ] {
            assert!(commands.iter().any(|one| one == command), "{command}");
        }
        assert_eq!(commands.last().unwrap(), "interface set port p0 up");
    }

    #[test]
    fn a_full_table_has_room() {
        let commands = of("full4", &vec![("11.0.0.0/8".parse().unwrap(), 2)]);
        let at = |command: &str| commands.iter().position(|one| one == command).unwrap();
        assert!(
            at("interface set vrf main rib4-routes 1025 fib4-tbl8 65536")
                < at("route add 11.0.0.0/8 via 198.19.2.3")
        );
    }
}
