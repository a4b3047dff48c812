//! `turnpike hold`: keeps the host interfaces of a router that was killed.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::sys::socket::SockType;

use crate::api::DEFAULT_SOCKET;
use crate::api::server::{bind_private, remove_stale};
use crate::hold::{self, holder_socket};

/// What to hold, and how long.
#[derive(Debug, Args)]
pub struct HoldArgs {
    /// The socket of the router whose interfaces are held
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Let go of them so long after the router's end; the router's `--hold` goes before it
    #[arg(long, default_value_t = hold::SECONDS)]
    seconds: u64,
    /// A router has started this: the listener is standard input
    #[arg(long, hide = true, requires = "holder_socket")]
    started_by_router: bool,
    /// Where that listens
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
        own_listener(&path)?
    };
    let served = hold::serve(&listener, args.seconds, !args.started_by_router);
    // Removed first, so that the next router finds no holder rather than one that is ending.
    let _ = fs::remove_file(&path);
    served.with_context(|| format!("holder {}", path.display()))
}

fn own_listener(path: &std::path::Path) -> Result<OwnedFd> {
    let shown = path.display();
    if hold::is_served(path) {
        bail!("holder {shown}: another one holds there already; end it or choose another --socket");
    }
    if fs::symlink_metadata(path).is_ok() {
        remove_stale(path)?;
    }
    bind_private(path, SockType::SeqPacket)
        .with_context(|| format!("holder {shown}: the socket cannot be made"))
}
