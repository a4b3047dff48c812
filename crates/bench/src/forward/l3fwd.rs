//! DPDK's example router `l3fwd` with `--lookup=fib`, run by turns with ours.
//!
//! It is a separate program (`scripts/build-l3fwd.sh` builds it from the distribution's sources)
//! that receives from the same pcap file and sends to null devices, on the same core. Between its
//! turns it is stopped by a signal; during them the benchmark waits on another core. The number of
//! forwarded packets is read from DPDK's telemetry socket; cycles are those of the time-stamp
//! counter between two readings.
//!
//! The drivers report no packet types, so it runs with `--parse-ptype` and parses them from the
//! frames, as our first step does. It does not verify checksums.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dpdk::Memory;
use machine::cores;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use nix::unistd::Pid;

use super::cases::{Case, FOUR, NEXT_HOPS, way};
use crate::meter::Cost;
use crate::workload::routes::Routes;

/// Longest time until it forwards: it logs every route that it reads.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time for which it runs at the beginning of a turn before the measurement.
const WARM_UP: Duration = Duration::from_millis(20);

/// The running program, stopped between turns.
pub struct L3fwd {
    child: Child,
    telemetry: OwnedFd,
    files: Vec<PathBuf>,
    /// DPDK's directory for it, which a killed program leaves behind.
    runtime: PathBuf,
    egress: usize,
    /// The cores on which the benchmark waits, and the one on which it measures.
    cores: (Vec<usize>, usize),
}

impl L3fwd {
    /// Starts it with the routes of an IPv4 case and stops it. `allowed` are all cores that this
    /// process may use, `core` is the one to measure on.
    pub fn start(
        binary: &Path,
        case: &Case,
        full: &Routes<Ipv4Addr>,
        pcap: &Path,
        memory: &Memory,
        (allowed, core): (&[usize], usize),
    ) -> Result<Self> {
        let name = format!("turnpike-l3fwd-{}-{}", std::process::id(), case.name);
        let files = ["v4", "v6"].map(|six| std::env::temp_dir().join(format!("{name}.{six}")));
        fs::write(&files[0], rules(case, full)).context("l3fwd's routes cannot be written")?;
        fs::write(&files[1], "R2000::/3 1\n").context("l3fwd's routes cannot be written")?;
        // The stopped program must not outlive this process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(binary);
        command.args(["-l", &core.to_string(), "--no-pci", "--file-prefix", &name]);
        match memory {
            Memory::NoHuge { .. } => command.args(["--no-huge", "-m", "1280"]),
            Memory::Hugepages { .. } => command.arg("--in-memory"),
        };
        command.arg(format!("--vdev=net_pcap0,rx_pcap={},infinite_rx=1", pcap.display()));
        command.args((0..case.egress).map(|index| format!("--vdev=net_null{index}")));
        let mask = (1u32 << (case.egress + 1)) - 1;
        command.args(["--", "-p", &format!("{mask:#x}"), "--lookup=fib", "--parse-ptype", "-P"]);
        command.arg(format!("--config=(0,0,{core})"));
        command.arg(format!("--rule_ipv4={}", files[0].display()));
        command.arg(format!("--rule_ipv6={}", files[1].display()));
        let log = std::env::temp_dir().join(format!("{name}.log"));
        let out = fs::File::create(&log).context("l3fwd's log cannot be written")?;
        command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        // Its other threads must not run on the core that it forwards on.
        cores::spread(allowed)?;
        let child = command
            .spawn()
            .with_context(|| format!("--l3fwd {}: setpriv cannot start it", binary.display()));
        cores::pin(core)?;
        let mut files = Vec::from(files);
        files.push(log);
        let mut child = Started(Some(child?));
        let directory = std::env::var("RUNTIME_DIRECTORY").unwrap_or_else(|_| "/var/run".into());
        let runtime = Path::new(&directory).join("dpdk").join(&name);
        let telemetry = child.telemetry(&runtime, &files[2])?;
        let child = child.0.take().context("it has just been started")?;
        let cores = (allowed.to_vec(), core);
        let mut l3fwd = Self { child, telemetry, files, runtime, egress: case.egress, cores };
        let deadline = Instant::now() + PATIENCE;
        while l3fwd.received()? == 0 {
            if let Some(status) = l3fwd.child.try_wait()? {
                bail!("l3fwd: ended by {status}:\n{}", last_lines(&l3fwd.files[2]));
            }
            ensure!(Instant::now() < deadline, "l3fwd: forwards nothing after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(50));
        }
        l3fwd.signal(Signal::SIGSTOP)?;
        Ok(l3fwd)
    }

    /// Lets it forward at least `packets`, and returns the cost.
    pub fn turn(&mut self, packets: u64) -> Result<Cost> {
        let (allowed, core) = &self.cores;
        let others: Vec<_> = allowed.iter().copied().filter(|other| other != core).collect();
        cores::spread(if others.is_empty() { allowed } else { &others })?;
        self.signal(Signal::SIGCONT)?;
        thread::sleep(WARM_UP);
        let (first, start) = (self.received()?, dpdk::tsc());
        let (mut last, mut end) = (first, start);
        while last - first < packets {
            thread::sleep(Duration::from_millis(5));
            (last, end) = (self.received()?, dpdk::tsc());
        }
        self.signal(Signal::SIGSTOP)?;
        cores::pin(self.cores.1)?;
        let cycles = (end - start) as f64 / (last - first) as f64;
        Ok(Cost { cycles, instructions: None, branch_misses: None })
    }

    /// Fails if packets did not leave by all ports.
    pub fn check(&mut self) -> Result<()> {
        self.signal(Signal::SIGCONT)?;
        for port in 1..=self.egress {
            let sent = self.count(port, "opackets")?;
            ensure!(sent > 0, "l3fwd: nothing left by port {port}");
        }
        self.signal(Signal::SIGSTOP)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).with_context(|| format!("l3fwd does not take {signal}"))
    }

    fn received(&self) -> Result<u64> {
        self.count(0, "ipackets")
    }

    fn count(&self, port: usize, counter: &str) -> Result<u64> {
        let question = format!("/ethdev/stats,{port}");
        let answer = ask(&self.telemetry, &question)?;
        let count = answer["/ethdev/stats"][counter].as_u64();
        count.with_context(|| format!("l3fwd: no {counter} in {answer}"))
    }
}

impl Drop for L3fwd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.files.iter().for_each(|file| _ = fs::remove_file(file));
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

/// A program that is killed if its start fails.
struct Started(Option<Child>);

impl Started {
    /// Connects to its telemetry socket, which appears some time after its start.
    fn telemetry(&mut self, runtime: &Path, log: &Path) -> Result<OwnedFd> {
        let path = runtime.join("dpdk_telemetry.v2");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let socket =
                socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
            if connect(socket.as_raw_fd(), &UnixAddr::new(&path)?).is_ok() {
                // It sends an introduction.
                receive(&socket)?;
                return Ok(socket);
            }
            let child = self.0.as_mut().context("it has been started")?;
            if let Some(status) = child.try_wait()? {
                bail!("l3fwd: ended by {status}:\n{}", last_lines(log));
            }
            ensure!(Instant::now() < deadline, "l3fwd: no socket {}", path.display());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a query to DPDK's telemetry, and returns the answer.
fn ask(telemetry: &OwnedFd, question: &str) -> Result<serde_json::Value> {
    send(telemetry.as_raw_fd(), question.as_bytes(), MsgFlags::empty())?;
    receive(telemetry)
}

fn receive(telemetry: &OwnedFd) -> Result<serde_json::Value> {
    let mut answer = vec![0; 16_384];
    let length = recv(telemetry.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    Ok(serde_json::from_slice(&answer[..length])?)
}

/// Returns the routes of a case in l3fwd's format; port 0 is the receiving one.
fn rules(case: &Case, full: &Routes<Ipv4Addr>) -> Vec<u8> {
    let port = |way: u16| usize::from(way) % case.egress + 1;
    let mut rules = Vec::new();
    let mut rule = |prefix: &dyn std::fmt::Display, way| {
        // Writing to a vector cannot fail.
        let _ = writeln!(rules, "R{prefix} {}", port(way));
    };
    if case.full {
        rule(&"0.0.0.0/0", 0);
        full.iter().for_each(|(prefix, hop)| rule(prefix, way(*hop)));
    } else {
        FOUR.iter().zip(0..NEXT_HOPS).for_each(|(prefix, way)| rule(prefix, way));
    }
    rules
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
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
