//! `turnpike capture`: packets of a running router as pcapng, into a file or a pipe.
//!
//! The router passes the packets on over its socket; this process writes the file, with the rights of its user.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::Shutdown;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use api::capture::{CaptureRequest, Line, Packet, Totals};
use api::client;
use api::pcapng::Writer;
use clap::Args;
use rustix::fs::OFlags;

use super::RouterArgs;

/// Bytes of a packet's block beside the frame, about.
const BLOCK: u64 = 96;

/// The packets, and the place for them.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// at STEP: packets that enter the step; dropped [REASON|any]: those that the router drops; punted: those that steps
    /// give to the slow path; without: packets as received, and as the graph sends them. And a rule of filters that selects
    /// among them, as proto=udp to_port=53 from=10.0.0.0/8
    #[arg(value_name = "WHICH")]
    which: Vec<String>,
    /// Only packets received by this interface, or sent by it
    #[arg(short, long)]
    interface: Option<String>,
    /// End after so many packets
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Keep so many bytes of each packet [default: 262]
    #[arg(short, long)]
    snap: Option<usize>,
    /// The file, or - for a pipe: turnpike capture -w - | tcpdump -r -
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Begin another file, FILE.2, FILE.3, … after so many MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    rotate: Option<u64>,
    /// Keep the last so many files only
    #[arg(long, value_name = "N", requires = "rotate", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,
    #[command(flatten)]
    router: RouterArgs,
}

/// Captures until Ctrl-C, the count, or the end of the pipe's reader.
pub fn run(args: &CaptureArgs) -> Result<()> {
    let request = request(args)?;
    if args.rotate.is_some() && args.write == Path::new("-") {
        bail!("--rotate: a pipe is one file; write -w FILE");
    }
    let connection = client::connect(&args.router.socket)?;
    let end = connection.try_clone()?;
    // Before the capture begins, so that no Ctrl-C ends this process without writing what was captured. A failure means
    // that the router has closed the connection.
    ctrlc::set_handler(move || _ = end.shutdown(Shutdown::Write))?;
    write_all(connection, request, args.count, || Files::open(args))
}

/// Captures on a connection into files, which are opened when the capture has begun, until its other direction is closed,
/// the count, or the end of a pipe's reader.
pub(super) fn write_all(
    connection: UnixStream,
    request: CaptureRequest,
    count: Option<u64>,
    open: impl FnOnce() -> Result<Files>,
) -> Result<()> {
    let mut lines = client::capture(connection, request)?;
    if let Line::Error(reason) = read(&mut lines)?.context("the router closed the connection")? {
        bail!("{reason}");
    }
    let mut files = open()?;
    files.flush()?;
    let written = follow(&mut lines, &mut files, count);
    let totals = match written {
        Err(error) if super::is_broken_pipe(&error) => return Ok(()),
        other => other?,
    };
    eprintln!("{} packets captured, {} lost", files.packets, totals.lost);
    if let Some(reason) = totals.ended {
        bail!("{reason}");
    }
    Ok(())
}

fn request(args: &CaptureArgs) -> Result<CaptureRequest> {
    let words = args.which.iter().flat_map(|words| words.split_whitespace());
    let (rule, words): (Vec<_>, Vec<_>) = words.partition(|word| word.contains('='));
    let mut request = CaptureRequest {
        interface: args.interface.clone(),
        snap: args.snap,
        rule: rule.into_iter().map(str::to_owned).collect(),
        ..CaptureRequest::default()
    };
    match words[..] {
        [] => {}
        ["at", step] => request.at = Some(step.to_owned()),
        ["dropped"] | ["dropped", "any"] => request.dropped = Some(String::new()),
        ["dropped", reason] => request.dropped = Some(reason.to_owned()),
        ["punted"] => request.punted = true,
        _ => bail!(
            "{}: expected at STEP, dropped, dropped REASON, dropped any or punted",
            words.join(" ")
        ),
    }
    Ok(request)
}

/// Writes packets until the router has said the totals.
fn follow(
    lines: &mut BufReader<UnixStream>,
    files: &mut Files,
    most: Option<u64>,
) -> Result<Totals> {
    let is_full = |files: &Files| most.is_some_and(|most| files.packets >= most);
    loop {
        match read(lines)? {
            None => bail!("the router closed the connection; is it shutting down?"),
            Some(Line::Packet(_)) if is_full(files) => {}
            Some(Line::Packet(packet)) => {
                files.write(&packet)?;
                if is_full(files) {
                    lines.get_ref().shutdown(Shutdown::Write)?;
                }
            }
            Some(Line::Ok(totals)) => {
                files.flush()?;
                return Ok(serde_json::from_value(totals)?);
            }
            Some(Line::Error(reason)) => bail!("{reason}"),
        }
        // A reader of the pipe sees what there is.
        if lines.buffer().is_empty() {
            files.flush()?;
        }
    }
}

/// The next line; `None` at the end.
pub(super) fn read(lines: &mut impl BufRead) -> Result<Option<Line>> {
    let mut line = String::new();
    if lines.read_line(&mut line).context("the router closed the connection")? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).context("the answer is not one of this version").map(Some)
}

/// The file that is written, and those before.
pub(super) struct Files {
    path: PathBuf,
    rotate: Option<u64>,
    keep: Option<u64>,
    /// The number of the file that is written.
    number: u64,
    /// Its bytes, about.
    bytes: u64,
    packets: u64,
    pcap: Writer<BufWriter<Box<dyn Write>>>,
}

impl Files {
    fn open(args: &CaptureArgs) -> Result<Self> {
        let files = Self::over(&args.write, destination(&args.write)?)?;
        Ok(Self { rotate: args.rotate.map(|mib| mib << 20), keep: args.files, ..files })
    }

    /// One file, which is a pipe.
    pub(super) fn over(path: &Path, pipe: Box<dyn Write>) -> Result<Self> {
        Ok(Self {
            pcap: writer(path, pipe)?,
            path: path.to_owned(),
            rotate: None,
            keep: None,
            number: 1,
            bytes: 0,
            packets: 0,
        })
    }

    fn write(&mut self, packet: &Packet) -> Result<()> {
        if self.rotate.is_some_and(|most| self.bytes >= most) {
            self.next()?;
        }
        self.bytes += BLOCK + packet.frame.len() as u64;
        self.pcap.write(packet).with_context(|| self.name())?;
        self.packets += 1;
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.flush()?;
        self.number += 1;
        let path = numbered(&self.path, self.number);
        self.pcap = writer(&path, destination(&path)?)?;
        self.bytes = 0;
        if let Some(gone) =
            self.keep.and_then(|keep| self.number.checked_sub(keep)).filter(|n| *n > 0)
        {
            let gone = numbered(&self.path, gone);
            match std::fs::remove_file(&gone) {
                // Somebody has cleared up.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.with_context(|| gone.display().to_string())?,
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.pcap.get_mut().flush().with_context(|| self.name())
    }

    /// The name of the file that is written, for errors.
    fn name(&self) -> String {
        numbered(&self.path, self.number).display().to_string()
    }
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    match number {
        1 => path.to_owned(),
        _ => PathBuf::from(format!("{}.{number}", path.display())),
    }
}

/// Opens a file; a link that somebody may have put in its place is not followed.
fn destination(path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let file = open(path).with_context(|| {
        format!("file {}: cannot be written; a link is not followed", path.display())
    })?;
    Ok(Box::new(file))
}

fn writer(path: &Path, to: Box<dyn Write>) -> Result<Writer<BufWriter<Box<dyn Write>>>> {
    Writer::new(BufWriter::new(to)).with_context(|| path.display().to_string())
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(destination(&link).is_err());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
    }
}
