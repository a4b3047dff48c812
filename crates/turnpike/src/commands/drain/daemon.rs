//! The routing daemon beside the router: FRR's bgpd by vtysh, or any other by a program of the operator.
//!
//! Words go to programs as arguments, never through a shell.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::Value;

/// Time for an answer of vtysh.
const VTYSH_TIME: Duration = Duration::from_secs(30);

/// Time for a program of the operator, which waits for sessions itself.
const PROGRAM_TIME: Duration = Duration::from_secs(600);

/// Time for the rest of a program's output after its end.
const PIPE_TIME: Duration = Duration::from_secs(2);

/// The distance of two looks at a program.
const LOOK: Duration = Duration::from_millis(20);

/// The daemon's choice.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// FRR's path space, as its daemons were given by -N
    #[arg(long, value_name = "NAME", conflicts_with = "with", value_parser = path_space)]
    pathspace: Option<String>,
    /// FRR's shell
    #[arg(long, value_name = "PROGRAM", default_value = "vtysh", conflicts_with = "with")]
    vtysh: PathBuf,
    /// For another daemon than FRR: a program that is called with announce and then withdraw by drain, with restore and
    /// then finish by undrain
    #[arg(long, value_name = "PROGRAM")]
    with: Option<PathBuf>,
}

/// A routing daemon.
pub enum Daemon<'a> {
    /// FRR, with its instances of BGP as its configuration begins them: `router bgp 65000 vrf blue`.
    Frr { vtysh: Vtysh<'a>, instances: Vec<String> },
    /// Another one, by a program.
    Other(&'a PathBuf),
}

impl<'a> Daemon<'a> {
    /// Finds the daemon.
    pub fn new(args: &'a DaemonArgs) -> Result<Self> {
        if let Some(program) = &args.with {
            return Ok(Self::Other(program));
        }
        let vtysh = Vtysh { program: &args.vtysh, path_space: args.pathspace.as_deref() };
        let instances = instances(&vtysh.run(&["show running-config"])?);
        if instances.is_empty() {
            bail!(
                "{}: FRR has no BGP: bgpd does not run, or its configuration has no `router bgp`; another daemon is \
                 drained by a program: --with PROGRAM",
                vtysh.name()
            );
        }
        Ok(Self::Frr { vtysh, instances })
    }

    /// All routes are announced with the community GRACEFUL_SHUTDOWN. Returns a name of the daemon for a message.
    pub fn announce(&self) -> Result<String> {
        self.order("announce", "bgp graceful-shutdown")?;
        Ok(self.name())
    }

    /// Sessions are shut down, all routes withdrawn.
    pub fn withdraw(&self) -> Result<()> {
        self.order("withdraw", "bgp shutdown message turnpike drain")
    }

    /// Sessions may come up again. Returns a name of the daemon for a message.
    pub fn restore(&self) -> Result<String> {
        self.order("restore", "no bgp shutdown")?;
        Ok(self.name())
    }

    /// Routes are announced without the community.
    pub fn finish(&self) -> Result<()> {
        self.order("finish", "no bgp graceful-shutdown")
    }

    /// Returns the sessions that are down, with their state. A program of the operator has waited for its own.
    pub fn down(&self) -> Result<Vec<String>> {
        let Self::Frr { vtysh, .. } = self else { return Ok(Vec::new()) };
        let said = vtysh.run(&["show bgp vrf all summary json"])?;
        let summary = serde_json::from_str(&said)
            .with_context(|| format!("{}: no JSON: {}", vtysh.name(), first_line(&said)))?;
        Ok(down(&summary))
    }

    fn name(&self) -> String {
        match self {
            Self::Frr { instances, .. } => format!("FRR ({})", instances.join(", ")),
            Self::Other(program) => program.display().to_string(),
        }
    }

    fn order(&self, word: &str, line: &str) -> Result<()> {
        match self {
            Self::Frr { vtysh, instances } => instances.iter().try_for_each(|instance| {
                vtysh.run(&["configure terminal", instance, line]).map(drop)
            }),
            Self::Other(program) => {
                let output = run(Command::new(program).arg(word), PROGRAM_TIME)?;
                let name = format!("{} {word}", program.display());
                succeeded(&name, &output).map(drop)
            }
        }
    }
}

/// FRR's shell.
pub struct Vtysh<'a> {
    program: &'a PathBuf,
    path_space: Option<&'a str>,
}

impl Vtysh<'_> {
    /// Runs commands in one shell; returns their output.
    fn run(&self, commands: &[&str]) -> Result<String> {
        let space = self.path_space.iter().flat_map(|name| ["-N", *name]);
        let commands_words = commands.iter().flat_map(|command| ["-c", *command]);
        let words: Vec<OsString> = space.chain(commands_words).map(OsString::from).collect();
        let output = run(Command::new(self.program).args(words), VTYSH_TIME).map_err(|error| {
            error.context("FRR is reached by vtysh; other daemons by --with PROGRAM")
        })?;
        let said = succeeded(&self.name(), &output)?;
        // vtysh reports a refused command on its output and exits with 0.
        match said.lines().find(|line| line.starts_with('%')) {
            Some(line) => Err(anyhow!("{}: {}: {line}", self.name(), commands.join("; "))),
            None => Ok(said),
        }
    }

    fn name(&self) -> String {
        let space = self.path_space.map(|name| format!(" -N {name}")).unwrap_or_default();
        format!("{}{space}", self.program.display())
    }
}

/// Runs a program without input; an error names it.
fn run(command: &mut Command, time: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{name} cannot be run"))?;
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        let (done, text) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // What cannot be read is missing from the message only.
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
            let _ = done.send(text);
        });
        text
    };
    let out = reader(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let err = reader(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let deadline = Instant::now() + time;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => sleep(LOOK),
            None => {
                child.kill()?;
                child.wait()?;
                bail!("{name} has not ended after {} s", time.as_secs());
            }
        }
    };
    // A program that it has left behind may keep the pipe.
    let text = |reader: mpsc::Receiver<Vec<u8>>| reader.recv_timeout(PIPE_TIME).unwrap_or_default();
    Ok(Output { status, stdout: text(out), stderr: text(err) })
}

/// The output of a program that has succeeded.
fn succeeded(name: &str, output: &Output) -> Result<String> {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().chain(said.lines()).rfind(|line| !line.trim().is_empty());
    bail!("{name}: {}: {}", output.status, last.unwrap_or("no message"))
}

/// The instances of BGP in a configuration.
fn instances(config: &str) -> Vec<String> {
    let lines = config.lines().filter(|line| line.starts_with("router bgp "));
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// The peers of a summary of all VRFs that are not established in a family: `{vrf: {family: {peers: {name: {state}}}}}`.
/// Those that an operator has shut down do not count.
fn down(summary: &Value) -> Vec<String> {
    let objects = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let mut down = Vec::new();
    for (vrf, families) in objects(summary) {
        for (_, family) in objects(&families) {
            for (name, peer) in objects(&family["peers"]) {
                let state = peer["state"].as_str().unwrap_or("unknown");
                if state != "Established" && state != "Idle (Admin)" {
                    let of_vrf =
                        if vrf == "default" { String::new() } else { format!(" of VRF {vrf}") };
                    down.push(format!("{name}{of_vrf} ({state})"));
                }
            }
        }
    }
    down.sort();
    down.dedup();
    down
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Parses the name of a path space, of which FRR makes parts of paths.
fn path_space(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits, `-`, `_` and `.`, as FRR's -N".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_instances_of_bgp_are_found() {
        let config = "!\nrouter bgp 65000\n neighbor a remote-as 1\nexit\n!\nrouter bgp 65000 vrf blue\nexit\nrouter ospf\n";
        assert_eq!(instances(config), ["router bgp 65000", "router bgp 65000 vrf blue"]);
        assert!(instances("hostname x\n router bgp 1\n").is_empty());
    }

    #[test]
    fn sessions_that_are_down_are_named_once() {
        let peer = |state: &str| json!({ "state": state });
        let families = |state| {
            json!({ "peers": { "spine1": peer(state), "spine2": peer("Established"),
            "old": peer("Idle (Admin)") } })
        };
        let summary = json!({
            "default": { "ipv4Unicast": families("Active"), "ipv6Unicast": families("Active") },
            "blue": { "vrfName": "blue", "ipv4Unicast": families("Connect") },
        });
        assert_eq!(down(&summary), ["spine1 (Active)", "spine1 of VRF blue (Connect)"]);
        assert!(down(&json!({})).is_empty());
    }

    #[test]
    fn a_path_space_is_no_path_and_no_option() {
        assert!(path_space("fabric-leaf1").is_ok());
        for wrong in ["", "-c", "..", "a/b", "a b", "a\n", "ä"] {
            assert!(path_space(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_last_line() {
        let output =
            run(Command::new("sh").args(["-c", "echo first; echo reason >&2; exit 3"]), LOOK * 500);
        let error = succeeded("sh", &output.unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("sh: exit status: 3: "), "{error}");
        let error = run(&mut Command::new("/nonexistent/vtysh"), LOOK).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/vtysh cannot be run: No such file"));
        let left = run(Command::new("sh").args(["-c", "sleep 5 & exit 0"]), LOOK * 500);
        assert!(left.unwrap().status.success());
        let error = run(Command::new("sleep").arg("600"), LOOK).unwrap_err().to_string();
        assert!(error.contains("sleep has not ended"), "{error}");
    }
}
