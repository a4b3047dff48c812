//! Programs that print rules as text: `nft`, `iptables-legacy-save`.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The only places where they are looked for, whatever the environment says.
const PLACES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Time until a program is ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of a listing.
const LONGEST: usize = 64 << 20;

/// Reason for not having a listing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// It is not installed.
    #[error("{0} is not installed")]
    Program(String),
    /// It fails.
    #[error("{0} fails: {1}")]
    Fails(String, String),
    /// Its output is not as expected.
    #[error("the output of {0} is not understood")]
    Unreadable(String),
}

/// Returns the output of a program.
///
/// # Errors
/// It is not installed, fails, or takes too long.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, Missing> {
    let mut places = PLACES.iter().map(|place| Path::new(place).join(program));
    let path = places.find(|path| path.exists()).ok_or_else(|| Missing::Program(program.into()))?;
    let fails = |error: String| Missing::Fails(program.to_owned(), error);
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| fails(error.to_string()))?;
    let output = output(&mut child);
    if output.is_err() {
        // It has ended, or ends now.
        child.kill().ok();
    }
    let status = child.wait().map_err(|error| fails(error.to_string()))?;
    let output = output.map_err(|error| fails(error.to_string()))?;
    if !status.success() {
        return Err(fails(status.to_string()));
    }
    Ok(output)
}

fn output(child: &mut Child) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut pipe = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long")),
            Err(Errno::INTR) => continue,
            ready => ready?,
        };
        match pipe.read(&mut buffer)? {
            0 => return Ok(String::from_utf8_lossy(&all).into_owned()),
            _ if all.len() > LONGEST => return Err(io::Error::other("its output is too long")),
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_print_fail_or_are_absent() {
        assert_eq!(run("echo", &["a", "b"]), Ok("a b\n".into()));
        assert!(matches!(run("false", &[]), Err(Missing::Fails(..))));
        assert_eq!(run("no-such-program", &[]), Err(Missing::Program("no-such-program".into())));
    }
}
