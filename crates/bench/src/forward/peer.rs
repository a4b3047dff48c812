//! A DPDK program that forwards by turns with the router: started, stopped by a signal between its turns.
//! `l3fwd.rs`, `vpp.rs` and `grout.rs` have the programs.
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

/// The library with the source of packets, beside each program.
const SOURCE: &str = "source.so";

/// Everything that a program runs with.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// What it receives.
    pub packets: &'a SourcePackets,
    /// The benchmark's memory: it gets the same kind.
    pub memory: &'a Memory,
    /// All cores that this process may use.
    pub allowed: &'a [usize],
    /// The core to measure on.
    pub core: usize,
}

impl Setting<'_> {
    /// Returns a core besides the one to measure on, for the main thread of a program that has one.
    pub fn other_core(&self, name: &str) -> Result<usize> {
        let other = self.allowed.iter().copied().find(|core| *core != self.core);
        other.with_context(|| format!("{name}: its main thread needs a second core"))
    }

    /// Returns DPDK's arguments for memory of the benchmark's kind.
    pub fn memory_arguments(&self) -> &'static [&'static str] {
        match self.memory {
            Memory::NoHuge { .. } => &["--no-huge", "-m", "1280"],
            Memory::Hugepages { .. } => &["--in-memory"],
        }
    }
}

/// A program to run by turns.
pub struct Program<'a> {
    /// Its name in results and messages.
    pub name: String,
    /// The file.
    pub binary: &'a Path,
    /// The library with the source of packets.
    pub source: PathBuf,
    /// Its arguments, DPDK's among them.
    pub arguments: Vec<String>,
    /// Files that it reads.
    pub files: Files,
    /// The number of null devices that it sends to: ports 1 and up.
    pub egress: usize,
    /// A command that configures it while it runs.
    pub configure: Option<Configure>,
    /// Asks it, while it forwards, for the parts of its cost, in words.
    pub parts: Option<Parts>,
}

/// Asks a program for the parts of its cost.
pub type Parts = Box<dyn Fn() -> Result<String>>;

/// A command to run once this file is there.
pub struct Configure {
    pub after: PathBuf,
    pub command: Command,
}

/// Returns the library beside a program.
pub fn source_of(binary: &Path) -> PathBuf {
    binary.with_file_name(SOURCE)
}

/// Returns the prefix of the files that DPDK makes for a program.
pub fn file_prefix(name: &str) -> String {
    format!("turnpike-{name}-{}", std::process::id())
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
    /// Packets sent and then received when it was ready: before, some may have been dropped.
    ready: (u64, u64),
    parts: Option<Parts>,
    /// The cores on which the benchmark waits, and the one on which it measures.
    cores: (Vec<usize>, usize),
}

impl Peer {
    /// Starts it and stops it once it forwards.
    pub fn start(program: Program<'_>, setting: &Setting<'_>) -> Result<Self> {
        let Program { name, binary, source, arguments, files, egress, configure, parts } = program;
        let &Setting { packets, allowed, core, .. } = setting;
        let frames = files.write("packets", packets.as_bytes())?;
        let log = files.write("log", b"")?;
        // The stopped program must not outlive this process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(binary);
        command.args(arguments);
        command.env("LD_PRELOAD", &source).env("TURNPIKE_SOURCE", &frames);
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
        let runtime = Path::new(&directory).join("dpdk").join(file_prefix(&name));
        if let Some(configure) = configure {
            child.configure(configure)?;
        }
        let telemetry = child.telemetry(&runtime)?;
        let child = child.child.take().context("it has just been started")?;
        let cores = (allowed.to_vec(), core);
        let ready = (0, 0);
        let mut peer =
            Self { name, child, telemetry, _files: files, runtime, egress, ready, parts, cores };
        peer.wait(&log)?;
        peer.ready = (peer.sent()?, peer.received()?);
        peer.signal(Signal::SIGSTOP)?;
        Ok(peer)
    }

    /// Waits until it forwards.
    fn wait(&mut self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sent = self.count(1, "opackets");
            let name = &self.name;
            // One that ends closes its socket first.
            thread::sleep(Duration::from_millis(50));
            if let Some(status) = self.child.try_wait()? {
                bail!("{name}: ended by {status}:\n{}", last_lines(log));
            }
            if sent? > 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{name}: forwards nothing after {PATIENCE:?}");
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets it forward at least `packets`, and returns the cost.
    pub fn turn(&mut self, packets: u64) -> Result<Cost> {
        self.resume()?;
        thread::sleep(WARM_UP);
        let (first, start, ran) = (self.received()?, dpdk::tsc(), self.processor_time()?);
        let (mut last, mut end) = (first, start);
        while last - first < packets {
            thread::sleep(Duration::from_millis(5));
            (last, end) = (self.received()?, dpdk::tsc());
        }
        let ran = self.processor_time()?.saturating_sub(ran);
        self.stop()?;
        let each = |cycles: f64| cycles / (last - first) as f64;
        let (cycles, busy) = (each((end - start) as f64), each(cycles_of(ran)));
        Ok(Cost { cycles, busy, instructions: None, branch_misses: None })
    }

    /// Fails if packets did not leave by all ports, or if some were dropped, which costs less. Returns the parts of its
    /// cost, of a program that tells them.
    pub fn finish(&mut self) -> Result<Option<String>> {
        self.resume()?;
        self.check()?;
        let parts = self.parts.as_ref().map(|parts| parts()).transpose();
        self.stop()?;
        parts
    }

    fn check(&self) -> Result<()> {
        let name = &self.name;
        for port in 1..=self.egress {
            ensure!(self.count(port, "opackets")? > 0, "{name}: nothing left by port {port}");
        }
        let (sent, received) = self.ready;
        // It goes on meanwhile: in this order, what passes between two questions counts as sent.
        let received = self.received()? - received;
        let sent = self.sent()? - sent;
        ensure!(sent >= received / 1000 * 999, "{name}: of {received} packets only {sent} left");
        Ok(())
    }

    /// Lets it run, and this process on other cores.
    fn resume(&self) -> Result<()> {
        let (allowed, core) = &self.cores;
        let others: Vec<_> = allowed.iter().copied().filter(|other| other != core).collect();
        cores::spread(if others.is_empty() { allowed } else { &others })?;
        self.signal(Signal::SIGCONT)
    }

    /// Stops it, and returns this process to its core.
    fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        cores::pin(self.cores.1)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).with_context(|| format!("{} does not take {signal}", self.name))
    }

    fn received(&self) -> Result<u64> {
        self.count(0, "ipackets")
    }

    fn sent(&self) -> Result<u64> {
        (1..=self.egress).map(|port| self.count(port, "opackets")).sum()
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
        // VPP's shared memory, which is named like DPDK's files.
        let prefix = file_prefix(&self.name);
        for file in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&format!("{prefix}-")) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// A program that is killed if its start fails.
struct Started<'a> {
    child: Option<Child>,
    log: &'a Path,
    name: &'a str,
}

impl Started<'_> {
    /// Runs a command that configures it.
    fn configure(&mut self, Configure { after, mut command }: Configure) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !after.exists() {
            self.expect(deadline, &after)?;
        }
        let done = command.stdin(Stdio::null()).output()?;
        let said = [&done.stdout[..], &done.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said);
        ensure!(done.status.success(), "{}: its configuration fails: {said}", self.name);
        Ok(())
    }

    /// Waits a moment for a file that appears some time after its start.
    fn expect(&mut self, deadline: Instant, file: &Path) -> Result<()> {
        let child = self.child.as_mut().context("it has been started")?;
        if let Some(status) = child.try_wait()? {
            bail!("{}: ended by {status}:\n{}", self.name, last_lines(self.log));
        }
        ensure!(Instant::now() < deadline, "{}: no socket {}", self.name, file.display());
        thread::sleep(Duration::from_millis(50));
        Ok(())
    }

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
            self.expect(deadline, &path)?;
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
