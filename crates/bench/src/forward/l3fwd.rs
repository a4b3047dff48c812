//! DPDK's own programs, run by turns with the router: the example router `l3fwd` with `--lookup=fib`, and `testpmd`
//! that only passes packets on, as the floor of l3fwd's input and output ([`Peer`]).
//!
//! `scripts/build-l3fwd.sh` builds l3fwd from the distribution's sources, and the library with the source of packets
//! beside it. The null driver reports no packet types, so l3fwd runs with `--parse-ptype` and parses them from the
//! frames, as our first step does. It does not verify checksums.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::cases::Case;
use super::peer::{Files, Peer, Program, Setting, file_prefix, source_of};
use super::peer_case;
use crate::workload::routes::Routes;

/// Packets that both programs receive at once, as l3fwd is built, and buffers and the cache of their pools, as in l3fwd.
const BURST: usize = 32;
const BUFFERS: usize = 8192;
const CACHE: usize = 256;

/// Starts l3fwd with the routes of an IPv4 case. Its name is that of its file.
pub fn start(
    binary: &Path,
    case: &Case,
    full: &Routes<Ipv4Addr>,
    setting: &Setting<'_>,
) -> Result<Peer> {
    let name = binary.file_name().unwrap_or(binary.as_os_str()).to_string_lossy().into_owned();
    let files = Files::new()?;
    let v4 = files.write("routes4", &rules(case, full))?;
    let v6 = files.write("routes6", b"R2000::/3 1\n")?;
    let mask = (1u32 << (case.egress + 1)) - 1;
    let mut arguments =
        dpdk_arguments(&name, &setting.core.to_string(), case.egress, false, setting);
    arguments.extend([
        "-p".to_owned(),
        format!("{mask:#x}"),
        "--lookup=fib".to_owned(),
        "--parse-ptype".to_owned(),
        "-P".to_owned(),
        format!("--config=(0,0,{})", setting.core),
        format!("--rule_ipv4={}", v4.display()),
        format!("--rule_ipv6={}", v6.display()),
    ]);
    let (source, egress) = (source_of(binary), case.egress);
    let program =
        Program { name, binary, source, arguments, files, egress, configure: None, parts: None };
    Peer::start(program, setting)
}

/// Starts testpmd, which passes packets on without a look at them, in l3fwd's bursts and from a pool like l3fwd's. Its
/// main thread has another core than the one to measure on.
pub fn floor(source: PathBuf, setting: &Setting<'_>) -> Result<Peer> {
    const NAME: &str = "testpmd";
    let cores = format!("{},{}", setting.other_core("testpmd, the floor")?, setting.core);
    let mut arguments = dpdk_arguments(NAME, &cores, 1, true, setting);
    arguments.extend([
        "--forward-mode=io".to_owned(),
        "--auto-start".to_owned(),
        "--no-flush-rx".to_owned(),
        format!("--burst={BURST}"),
        format!("--total-num-mbufs={BUFFERS}"),
        format!("--mbcache={CACHE}"),
    ]);
    let (name, binary, files) = (NAME.to_owned(), Path::new("dpdk-testpmd"), Files::new()?);
    Peer::start(
        Program { name, binary, source, arguments, files, egress: 1, configure: None, parts: None },
        setting,
    )
}

/// Returns DPDK's arguments for a program on these cores, up to the mark behind which its own stand.
fn dpdk_arguments(
    name: &str,
    cores: &str,
    egress: usize,
    silent: bool,
    setting: &Setting<'_>,
) -> Vec<String> {
    let prefix = file_prefix(name);
    let mut arguments = vec!["-l", cores, "--no-pci", "--file-prefix", &prefix];
    arguments.extend(setting.memory_arguments());
    let mut arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
    let device = |port| format!("--vdev={}", peer_case::device(port, silent));
    arguments.extend((0..=egress).map(device));
    arguments.push("--".to_owned());
    arguments
}

/// Returns the routes of a case in l3fwd's format; port 0 is the receiving one.
fn rules(case: &Case, full: &Routes<Ipv4Addr>) -> Vec<u8> {
    let mut rules = Vec::new();
    for (prefix, to) in peer_case::routes(case, full) {
        // Writing to a vector cannot fail.
        let _ = writeln!(rules, "R{prefix} {}", to.port);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cases::CASES;

    #[test]
    fn routes_are_written_as_l3fwd_reads_them() {
        let of = |name: &str, full: &Routes<Ipv4Addr>| {
            let case = CASES.iter().find(|case| case.name == name).unwrap();
            String::from_utf8(rules(case, full)).unwrap()
        };
        let four = "R0.0.0.0/2 1\nR64.0.0.0/2 2\nR128.0.0.0/2 3\nR192.0.0.0/2 4\n";
        assert_eq!(of("4r4e", &Vec::new()), four);
        assert!(of("4r1e", &Vec::new()).lines().all(|line| line.ends_with(" 1")));
        let full = vec![("11.0.0.0/8".parse().unwrap(), 2), ("12.0.0.0/9".parse().unwrap(), 5)];
        assert_eq!(of("full4", &full), "R0.0.0.0/0 1\nR11.0.0.0/8 2\nR12.0.0.0/9 1\n");
    }
}
