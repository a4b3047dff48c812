//! The router under test: a separate `turnpike run`, connected to the tester by two memif links.
//!
//! Networks are those that RFC 2544 and RFC 5180 reserve for benchmarks. The tester's packets go to
//! a network behind a gateway on the second link; nothing has to be resolved.

use std::fmt::Write;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// The MAC of the receiving port.
pub const MAC: &str = "02:00:00:00:01:01";

/// Longest time for its start or its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running router, which ends when this is dropped.
pub struct Router {
    child: Child,
    /// With a name that no other user can guess, and removed with everything in it.
    directory: TempDir,
}

impl Router {
    /// Starts a router on this core; `table` is a file of additional routes, or `synthetic:N`.
    pub fn start(core: usize, table: Option<&str>, no_huge: bool) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("turnpike-rfc2544-").tempdir();
        let directory = directory.context("no directory for the router")?;
        let place = directory.path();
        let config = place.join("router.lua");
        let log = File::create(place.join("log")).context("no log for the router")?;
        fs::write(&config, configuration(place, core, table)?)?;
        let program = std::env::current_exe().context("where this program is")?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(program).arg("run").arg(&config);
        command.arg("--socket").arg(place.join("router.sock"));
        if no_huge {
            command.arg("--no-huge");
        }
        command.current_dir(place).stdin(Stdio::null());
        let child = command.stdout(log.try_clone()?).stderr(log).spawn();
        let child = child.context("setpriv cannot start the router")?;
        let mut router = Self { child, directory };
        router.wait_until_ready()?;
        Ok(router)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            if log.contains("ready: ") {
                return Ok(());
            }
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("the router does not start:\n{log}");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the tester's ends of the links: the sending and the receiving device.
    pub fn devices(&self) -> [String; 2] {
        [0, 1].map(|link| {
            let socket = self.directory.path().join(format!("link{link}.sock"));
            let mac = format!("02:00:00:00:0{}:02", link + 1);
            // The device's number is arbitrary, as the router is another process.
            format!(
                "net_memif{link},role=client,socket-abstract=no,socket={},mac={mac}",
                socket.display()
            )
        })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(directory: &std::path::Path, core: usize, table: Option<&str>) -> Result<String> {
    let mut text = String::from("local turnpike = require \"turnpike\"\n");
    for (link, name) in [(0, "left"), (1, "right")] {
        let socket = directory.join(format!("link{link}.sock"));
        writeln!(
            text,
            "turnpike.port \"{name}\" {{ device = \"net_memif{link},role=server,socket-abstract=no,\
             socket={},mac=02:00:00:00:0{}:01\", address = {{ \"198.{}.0.1/24\", \"2001:2:0:{}::1/64\" }} }}",
            socket.display(),
            link + 1,
            link + 18,
            link + 1,
        )?;
    }
    text.push_str(
        "turnpike.neighbour \"198.19.0.2\" { port = \"right\", mac = \"02:00:00:00:02:02\" }\n\
         turnpike.neighbour \"2001:2:0:2::2\" { port = \"right\", mac = \"02:00:00:00:02:02\" }\n\
         turnpike.route \"198.19.128.0/17\" { via = \"198.19.0.2\" }\n\
         turnpike.route \"2001:2:0:8000::/49\" { via = \"2001:2:0:2::2\" }\n",
    );
    if let Some(table) = table {
        let file = if table.strip_prefix("synthetic:").is_some() {
            let file = directory.join("table.gz");
            let count = table.trim_start_matches("synthetic:").parse();
            let count = count.with_context(|| format!("--table {table}: write synthetic:N"))?;
            control::import::write_synthetic(&file, count, 0)?;
            file
        } else {
            fs::canonicalize(table).with_context(|| format!("--table {table}"))?
        };
        writeln!(
            text,
            "turnpike.import {{ file = \"{}\", via = \"198.19.0.2\" }}",
            file.display()
        )?;
    }
    writeln!(text, "turnpike.forwarders {{ cores = \"{core}\" }}")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_right() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("router.lua");
        fs::write(&file, configuration(directory.path(), 0, Some("synthetic:100")).unwrap())
            .unwrap();
        let config = control::config::load(&file, &Default::default()).unwrap();
        assert_eq!(config.ports.len(), 2);
        let error = configuration(directory.path(), 0, Some("synthetic:x")).unwrap_err();
        assert!(format!("{error:#}").starts_with("--table synthetic:x: write synthetic:N"));
    }
}
