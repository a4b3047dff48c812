//! A DPDK program that forwards by turns with the router: started, stopped by a signal between its turns.
//!
//! It receives the same packets by the same code as the router (`dpdk-sys/source.c`, loaded before DPDK), and sends to
//! null devices, on the same core. During its turns the benchmark waits on another core. The number of forwarded
//! packets is read from DPDK's telemetry socket; cycles are those of the time-stamp counter between two readings, and
//! the time that its threads had on a processor meanwhile.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dpdk::{Memory, SourcePackets};
use machine::cores;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::meter::{Cost, cycles_of};

/// Longest time until it forwards: l3fwd logs every route that it reads.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time for which it runs at the beginning of a turn before the measurement.
const WARM_UP: Duration = Duration::from_millis(20);

/// Everything that a program runs with.
pub struct Setting<'a> {
    /// What it receives.
    pub packets: &'a SourcePackets,
    /// The library that presents the packets.
    pub source: &'a Path,
    /// The benchmark's memory: it gets the same kind.
    pub memory: &'a Memory,
    /// All cores that this process may use.
    pub allowed: &'a [usize],
    /// The core to measure on.
    pub core: usize,
}

/// A program to run by turns.
pub struct Program<'a> {
    /// Its name in results and messages.
    pub name: String,
    /// The file.
    pub binary: &'a Path,
    /// Its cores, in DPDK's list format.
    pub cores: String,
    /// Arguments of its own, after DPDK's.
    pub arguments: Vec<String>,
    /// Files that it reads.
    pub files: Files,
    /// The number of null devices that it sends to: ports 1 and up.
    pub egress: usize,
    /// True if it receives by all ports, so that the others must have nothing.
    pub receives_by_all: bool,
}

/// Files of a program, in a directory of their own, which goes with this.
pub struct Files(TempDir);

impl Files {
    /// Makes the directory.
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::Builder::new().prefix("turnpike-bench-").tempdir()?))
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).with_context(|| format!("file {}", path.display()))?;
        Ok(path)
    }
}

/// The running program, stopped between turns.
pub struct Peer {
    name: String,
    child: Child,
    telemetry: OwnedFd,
    _files: Files,
    /// DPDK's directory for it, which a killed program leaves behind.
    runtime: PathBuf,
    egress: usize,
    /// The cores on which the benchmark waits, and the one on which it measures.
    cores: (Vec<usize>, usize),
}

impl Peer {
    /// Starts it and stops it once it forwards.
    pub fn start(program: Program<'_>, setting: &Setting<'_>) -> Result<Self> {
        let Program { name, binary, cores: list, arguments, files, egress, receives_by_all } =
            program;
        let &Setting { packets, source, memory, allowed, core } = setting;
        let unique = format!("turnpike-{name}-{}", std::process::id());
        let frames = files.write("packets", packets.as_bytes())?;
        let log = files.write("log", b"")?;
        // The stopped program must not outlive this process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(binary);
        command.args(["-l", &list, "--no-pci", "--file-prefix", &unique]);
        match memory {
            Memory::NoHuge { .. } => command.args(["--no-huge", "-m", "1280"]),
            Memory::Hugepages { .. } => command.arg("--in-memory"),
        };
        command.arg("--vdev=net_null0");
        let silent = if receives_by_all { ",no-rx=1" } else { "" };
        command.args((1..=egress).map(|index| format!("--vdev=net_null{index}{silent}")));
        command.arg("--").args(arguments);
        command.env("LD_PRELOAD", source).env("TURNPIKE_SOURCE", &frames);
        let out = fs::File::create(&log)?;
        // testpmd ends when it can read.
        command.stdin(Stdio::piped()).stderr(out.try_clone()?).stdout(out);
        // Its other threads must not run on the core that it forwards on.
        cores::spread(allowed)?;
        let child = command
            .spawn()
            .with_context(|| format!("{}: setpriv cannot start it", binary.display()));
        cores::pin(core)?;
        let mut child = Started { child: Some(child?), log: &log, name: &name.clone() };
        let directory = std::env::var("RUNTIME_DIRECTORY").unwrap_or_else(|_| "/var/run".into());
        let runtime = Path::new(&directory).join("dpdk").join(&unique);
        let telemetry = child.telemetry(&runtime)?;
        let child = child.child.take().context("it has just been started")?;
        let cores = (allowed.to_vec(), core);
        let mut peer = Self { name, child, telemetry, _files: files, runtime, egress, cores };
        peer.wait(&log)?;
        peer.signal(Signal::SIGSTOP)?;
        Ok(peer)
    }

    /// Waits until it forwards.
    fn wait(&mut self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.count(1, "opackets")? == 0 {
            let name = &self.name;
            if let Some(status) = self.child.try_wait()? {
                bail!("{name}: ended by {status}:\n{}", last_lines(log));
            }
            ensure!(Instant::now() < deadline, "{name}: forwards nothing after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets it forward at least `packets`, and returns the cost.
    pub fn turn(&mut self, packets: u64) -> Result<Cost> {
        let (allowed, core) = &self.cores;
        let others: Vec<_> = allowed.iter().copied().filter(|other| other != core).collect();
        cores::spread(if others.is_empty() { allowed } else { &others })?;
        self.signal(Signal::SIGCONT)?;
        thread::sleep(WARM_UP);
        let (first, start, ran) = (self.received()?, dpdk::tsc(), self.processor_time()?);
        let (mut last, mut end) = (first, start);
        while last - first < packets {
            thread::sleep(Duration::from_millis(5));
            (last, end) = (self.received()?, dpdk::tsc());
        }
        let ran = self.processor_time()?.saturating_sub(ran);
        self.signal(Signal::SIGSTOP)?;
        cores::pin(self.cores.1)?;
        let each = |cycles: f64| cycles / (last - first) as f64;
        let (cycles, busy) = (each((end - start) as f64), each(cycles_of(ran)));
        Ok(Cost { cycles, busy, instructions: None, branch_misses: None })
    }

    /// Fails if packets did not leave by all ports.
    pub fn check(&mut self) -> Result<()> {
        self.signal(Signal::SIGCONT)?;
        for port in 1..=self.egress {
            let sent = self.count(port, "opackets")?;
            ensure!(sent > 0, "{}: nothing left by port {port}", self.name);
        }
        self.signal(Signal::SIGSTOP)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).with_context(|| format!("{} does not take {signal}", self.name))
    }

    fn received(&self) -> Result<u64> {
        self.count(0, "ipackets")
    }

    /// Returns the time that its threads have had on a processor.
    fn processor_time(&self) -> Result<Duration> {
        let mut nanoseconds = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let ran = text.split(' ').next().and_then(|ran| ran.parse::<u64>().ok());
            nanoseconds += ran.with_context(|| format!("schedstat {text:?}: no number"))?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    fn count(&self, port: usize, counter: &str) -> Result<u64> {
        let question = format!("/ethdev/stats,{port}");
        let answer = ask(&self.telemetry, &question)?;
        let count = answer["/ethdev/stats"][counter].as_u64();
        count.with_context(|| format!("{}: no {counter} in {answer}", self.name))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

/// A program that is killed if its start fails.
struct Started<'a> {
    child: Option<Child>,
    log: &'a Path,
    name: &'a str,
}

impl Started<'_> {
    /// Connects to its telemetry socket, which appears some time after its start.
    fn telemetry(&mut self, runtime: &Path) -> Result<OwnedFd> {
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
            let child = self.child.as_mut().context("it has been started")?;
            if let Some(status) = child.try_wait()? {
                bail!("{}: ended by {status}:\n{}", self.name, last_lines(self.log));
            }
            ensure!(Instant::now() < deadline, "{}: no socket {}", self.name, path.display());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
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

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
