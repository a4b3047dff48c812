//! The kernel's interfaces for binding, which tests replace.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Operations of the kernel that binding needs.
pub trait Kernel: Send + Sync {
    /// Writes a setting of `/sys`.
    ///
    /// # Errors
    /// The kernel's error.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Runs a program to its end.
    ///
    /// # Errors
    /// The program cannot be started, or its standard error if it fails.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), String>;

    /// Waits for a moment, in which the kernel completes an operation.
    fn wait(&self);
}

/// The kernel that the program runs on.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Kernel for Here {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        // Services and cron jobs may have a PATH without these.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"));
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        Err(if said.is_empty() { output.status.to_string() } else { said })
    }

    fn wait(&self) {
        thread::sleep(MOMENT);
    }
}

/// Time between two polls of the kernel's state.
pub(super) const MOMENT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_written_and_never_made() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("unbind");
        assert_eq!(Here.write(&file, "x").unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, "").unwrap();
        Here.write(&file, "0000:03:00.0").unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "0000:03:00.0");
    }

    #[test]
    fn programs_that_fail_are_quoted() {
        assert_eq!(Here.run("sh", &["-c", "true"]), Ok(()));
        assert_eq!(Here.run("sh", &["-c", "echo no >&2; exit 3"]), Err("no".into()));
        assert_eq!(Here.run("sh", &["-c", "exit 3"]), Err("exit status: 3".into()));
        assert!(Here.run("/none", &[]).unwrap_err().contains("No such file"));
    }
}
