//! `turnpike hold`: keeps the host interfaces of a router that was killed.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result};
use api::DEFAULT_SOCKET;
use clap::Args;
use router::hold::{self, holder_socket};

/// Options of `turnpike hold`.
#[derive(Debug, Args)]
pub struct HoldArgs {
    /// The socket of the router whose interfaces are held
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Time for which they are held after the router's end, in seconds; the router's `--hold` takes
    /// precedence
    #[arg(long, default_value_t = hold::SECONDS)]
    seconds: u64,
    /// Started by a router: the listener is standard input
    #[arg(long, hide = true, requires = "holder_socket")]
    started_by_router: bool,
    /// The path of that listener
    #[arg(long, hide = true)]
    holder_socket: Option<PathBuf>,
}

/// Holds until nothing is left to hold if a router has started this, else until a signal.
pub fn hold(args: &HoldArgs) -> Result<()> {
    let path = match &args.holder_socket {
        Some(path) => path.clone(),
        None => holder_socket(&args.socket),
    };
    let listener = if args.started_by_router {
        // The terminal's signals are for the router. The call fails if this process leads a group
        // already.
        let _ = rustix::process::setsid();
        // As it is started by a descriptor's name, its name would be "exe".
        let _ = rustix::thread::set_name(c"turnpike-hold");
        let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
        // From now on, new connections have this process as their peer.
        rustix::net::listen(&listener, 8).context("standard input is no socket")?;
        listener
    } else {
        hold::listen(&path)?
    };
    let served = hold::serve(&listener, args.seconds, !args.started_by_router);
    // Removed first, so that the next router finds no holder rather than one that is ending.
    let _ = fs::remove_file(&path);
    served.with_context(|| format!("holder {}", path.display()))
}
