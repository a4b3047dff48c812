//! `turnpike extcap`: interfaces of a running router in Wireshark, which starts the command and reads its output and the
//! pipe that it writes; see Wireshark's extcap(4).
//!
//! ```text
//! Wireshark -- --extcap-interfaces ------------------------> interface {value=turnpike-wan}{display=…}
//!           -- --extcap-interface I --extcap-config -------> arg {number=0}{call=--snap}…
//!           -- --extcap-interface I --capture --fifo F ----> packets into F, until its reader closes it
//! ```

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use api::capture::{CaptureRequest, Line, SNAP, SNAP_MAX};
use api::{DEFAULT_SOCKET, Show, client, query};
use clap::Args;
use dataplane::reason::DropReason;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::capture;

/// The beginning of the names that Wireshark shows.
const PREFIX: &str = "turnpike-";

/// The pseudo-interface of dropped packets.
const DROPPED: &str = "dropped";

/// The pseudo-interface of packets to the slow path.
const PUNTED: &str = "punted";

/// The value of a selector that selects nothing.
const NONE: &str = "any";

/// The address of the documentation.
const HELP: &str = "https://www.wireshark.org/docs/man-pages/extcap.html";

/// What Wireshark asks for.
#[derive(Debug, Args)]
#[command(disable_version_flag = true)]
pub struct ExtcapArgs {
    /// List the interfaces of the running router, and those of dropped and punted packets
    #[arg(long)]
    extcap_interfaces: bool,
    /// The version of Wireshark
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,
    /// An interface of the list
    #[arg(long, value_name = "INTERFACE")]
    extcap_interface: Option<String>,
    /// List the link types of the interface
    #[arg(long)]
    extcap_dlts: bool,
    /// List the options of a capture on the interface
    #[arg(long)]
    extcap_config: bool,
    /// List the values of one of these options anew
    #[arg(long, value_name = "OPTION")]
    extcap_reload_option: Option<String>,
    /// A rule of filters that selects packets: proto=udp to_port=53. Without --capture it is only checked
    #[arg(long, value_name = "RULE", allow_hyphen_values = true)]
    extcap_capture_filter: Option<String>,
    /// Capture on the interface
    #[arg(long, requires = "fifo", requires = "extcap_interface")]
    capture: bool,
    /// The pipe into which packets are written as pcapng, until its reader closes it
    #[arg(long, value_name = "FILE")]
    fifo: Option<PathBuf>,
    /// Packets that enter this step, in place of those received and sent; any: these
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Packets dropped for this reason; any: for all
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Bytes kept of each packet
    #[arg(long, value_name = "BYTES")]
    snap: Option<usize>,
    /// The router's socket
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// Answers Wireshark.
pub fn run(args: &ExtcapArgs) -> Result<()> {
    if args.extcap_interfaces {
        return print(&interfaces(&args.socket));
    }
    let Some(interface) = args.extcap_interface.as_deref() else {
        bail!("for Wireshark: expected --extcap-interfaces, or --extcap-interface and a request")
    };
    let source = Source::named(interface)?;
    if args.extcap_dlts {
        return print("dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    }
    if args.extcap_config || args.extcap_reload_option.is_some() {
        let steps = steps(&args.socket);
        let text = match &args.extcap_reload_option {
            Some(option) => source.values(option, &steps),
            None => source.config(&steps),
        };
        return print(&text);
    }
    if args.capture {
        return capture_into(args, source.request(args));
    }
    match &args.extcap_capture_filter {
        // Wireshark shows the output as the reason for which the filter is wrong.
        Some(_) => print(&fault(&args.socket, source.request(args))?),
        None => bail!("{interface}: expected --extcap-dlts, --extcap-config or --capture"),
    }
}

/// Prints an answer, each line of which ends already.
fn print(answer: &str) -> Result<()> {
    Ok(std::io::stdout().write_all(answer.as_bytes())?)
}

/// The packets of an interface of the list.
#[derive(Debug, PartialEq, Eq)]
enum Source<'a> {
    Interface(&'a str),
    Dropped,
    Punted,
}

impl<'a> Source<'a> {
    fn named(listed: &'a str) -> Result<Self> {
        let name = listed.strip_prefix(PREFIX).with_context(|| {
            format!("interface \"{listed}\": expected one of turnpike extcap --extcap-interfaces")
        })?;
        Ok(match name {
            DROPPED => Self::Dropped,
            PUNTED => Self::Punted,
            name => Self::Interface(name),
        })
    }

    fn request(&self, args: &ExtcapArgs) -> CaptureRequest {
        let chosen = |value: &Option<String>| value.clone().filter(|value| value != NONE);
        let filter = args.extcap_capture_filter.as_deref().unwrap_or_default();
        let request = CaptureRequest {
            snap: args.snap,
            rule: filter.split_whitespace().map(str::to_owned).collect(),
            ..CaptureRequest::default()
        };
        match *self {
            Self::Interface(name) => {
                let interface = Some(name.to_owned());
                CaptureRequest { interface, at: chosen(&args.step), ..request }
            }
            Self::Dropped => {
                let dropped = Some(chosen(&args.reason).unwrap_or_default());
                CaptureRequest { dropped, ..request }
            }
            Self::Punted => CaptureRequest { punted: true, ..request },
        }
    }

    /// The options, as extcap(4) describes them.
    fn config(&self, steps: &[String]) -> String {
        let mut text = match self {
            Self::Interface(_) => {
                selector("step", "Packets", "Those received and sent, or those that enter a step")
            }
            Self::Dropped => selector(
                "reason",
                "Drop reason",
                "The reason for which the router drops the packets",
            ),
            Self::Punted => String::new(),
        };
        let number = usize::from(!text.is_empty());
        let _ = writeln!(
            text,
            "arg {{number={number}}}{{call=--snap}}{{display=Bytes of each packet}}{{tooltip=Bytes kept of each packet}}\
             {{type=unsigned}}{{range=1,{SNAP_MAX}}}{{default={SNAP}}}"
        );
        text + &self.values("step", steps) + &self.values("reason", steps)
    }

    /// The values of a selector.
    fn values(&self, option: &str, steps: &[String]) -> String {
        let value = |value: &str, display: &str, is_default: bool| {
            format!(
                "value {{arg=0}}{{value={value}}}{{display={display}}}{{default={is_default}}}\n"
            )
        };
        match (self, option) {
            (Self::Interface(_), "step") => {
                let all = steps.iter().map(|step| value(step, &format!("entering {step}"), false));
                value(NONE, "received and sent", true) + &all.collect::<String>()
            }
            (Self::Dropped, "reason") => {
                let all = DropReason::NAMES.iter().map(|name| value(name, name, false));
                value(NONE, "any reason", true) + &all.collect::<String>()
            }
            _ => String::new(),
        }
    }
}

fn selector(option: &str, display: &str, tooltip: &str) -> String {
    format!(
        "arg {{number=0}}{{call=--{option}}}{{display={display}}}{{tooltip={tooltip}}}{{type=selector}}{{reload=true}}\
         {{placeholder=Read again}}\n"
    )
}

/// The list of interfaces. Without a router it is empty: Wireshark asks at each start.
fn interfaces(socket: &Path) -> String {
    let mut text = format!(
        "extcap {{version={}}}{{help={HELP}}}{{display=Turnpike}}\n",
        env!("CARGO_PKG_VERSION")
    );
    let found = match client::query(socket, &query::INTERFACES, Show::Interfaces) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("{error:#}");
            return text;
        }
    };
    let mut list = |name: &str, display: &str| {
        let _ = writeln!(text, "interface {{value={PREFIX}{name}}}{{display={display}}}");
    };
    list(DROPPED, "Turnpike: dropped packets");
    list(PUNTED, "Turnpike: packets to the slow path");
    for api::report::Interface { name, .. } in &found {
        match [DROPPED, PUNTED].contains(&name.as_str()) {
            true => eprintln!(
                "interface \"{name}\" cannot be listed beside \"{PREFIX}{name}\"; use turnpike capture -i {name}"
            ),
            false => list(name, &format!("Turnpike: {name}")),
        }
    }
    text
}

/// The names of steps; none without a router.
fn steps(socket: &Path) -> Vec<String> {
    let graph = client::query(socket, &query::GRAPH, Show::Graph);
    let graph = graph.inspect_err(|error| eprintln!("{error:#}"));
    graph.map_or_else(
        |_| Vec::new(),
        |graph| graph.steps.into_iter().map(|step| step.name).collect(),
    )
}

/// The fault of a request, with its filter; empty for a good one. The router knows the names in it, so the capture begins
/// and ends at once.
fn fault(socket: &Path, request: CaptureRequest) -> Result<String> {
    let mut lines = client::capture(client::connect(socket)?, request)?;
    Ok(match capture::read(&mut lines)? {
        Some(Line::Error(reason)) => format!("{reason}\n"),
        _ => String::new(),
    })
}

fn capture_into(args: &ExtcapArgs, request: CaptureRequest) -> Result<()> {
    let path = args.fifo.as_deref().unwrap_or(Path::new(""));
    let connection = client::connect(&args.socket)?;
    let end = connection.try_clone()?;
    capture::write_all(connection, request, None, || {
        let fifo = open(path)?;
        let watched = fifo.try_clone()?;
        // Also while no packet is written, which would report it.
        std::thread::spawn(move || {
            wait_for_reader_to_close(&watched);
            // A failure means that the router has closed the connection.
            let _ = end.shutdown(Shutdown::Write);
        });
        capture::Files::over(path, Box::new(fifo))
    })
}

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.with_context(|| format!("pipe {}: cannot be opened", path.display()))
}

/// Returns once a pipe has no reader any more.
fn wait_for_reader_to_close(pipe: &File) {
    loop {
        // Errors are reported without being asked for.
        let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
        match poll(&mut polled, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_list_are_sources() {
        assert_eq!(Source::named("turnpike-wan.7").unwrap(), Source::Interface("wan.7"));
        assert_eq!(Source::named("turnpike-dropped").unwrap(), Source::Dropped);
        assert_eq!(Source::named("turnpike-punted").unwrap(), Source::Punted);
        let error = Source::named("eth0").unwrap_err().to_string();
        assert!(error.starts_with("interface \"eth0\": expected one of"), "{error}");
    }

    #[test]
    fn every_reason_is_offered() {
        let config = Source::Dropped.config(&[]);
        assert!(config.starts_with("arg {number=0}{call=--reason}"), "{config}");
        assert!(config.contains("arg {number=1}{call=--snap}"), "{config}");
        let values = config.lines().filter(|line| line.starts_with("value {arg=0}")).count();
        assert_eq!(values, DropReason::COUNT + 1);
        assert!(Source::Punted.config(&[]).starts_with("arg {number=0}{call=--snap}"));
    }
}
