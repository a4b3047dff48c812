//! `turnpike drain` and `undrain`: take a router out of its network without loss, and back.
//!
//! ```text
//! drain     announce graceful shutdown (RFC 8326) -> traffic has left -> withdraw all routes -> traffic has left
//! undrain   restore the sessions -> they are up, routes have settled -> announce without graceful shutdown
//! ```
//!
//! Neighbours move their traffic while the router's routes still exist, so nothing is lost. The routing daemon is another
//! program's business ([`daemon`]); the router's counters report when traffic has left.

mod daemon;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use api::client::Connection;
use api::{DEFAULT_SOCKET, Show, query};
use clap::Args;
use serde_json::json;

use super::configuration::seconds;
use daemon::Daemon;

/// The distance of two looks at the counters.
const LOOK: Duration = Duration::from_millis(500);

/// Time for an answer of the router.
const PATIENCE: Duration = Duration::from_secs(20);

/// Options of `turnpike drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Packets a second that may still be on their way through the router: traffic below has left
    #[arg(long, default_value_t = 10, value_name = "PACKETS")]
    below: u64,
    /// Withdraw the routes at the end of the time even if traffic has not left, which loses packets
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of `turnpike undrain`.
#[derive(Debug, Args)]
pub struct UndrainArgs {
    /// Take traffic at the end of the time even if sessions are not up
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of both.
#[derive(Debug, Args)]
struct Common {
    /// Give up after this time (60s, 5m, 1h), with exit status 1
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = seconds)]
    timeout: u64,
    /// Time without traffic, or without a change of routes, that counts as the end of it
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = seconds)]
    quiet: u64,
    #[command(flatten)]
    daemon: daemon::DaemonArgs,
    /// The router's socket
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Drains the router.
///
/// # Errors
/// The router or the daemon cannot be asked, or traffic has not left in time.
pub fn drain(args: &DrainArgs) -> Result<ExitCode> {
    let common = &args.common;
    let mut work = Work::begin(common)?;
    let names = work.daemon.announce()?;
    work.say(&format!("graceful shutdown is announced by {names}"));
    let traffic = work.wait_until_left(args.below, work.deadline)?;
    if !traffic.has_left && !args.force {
        bail!(
            "traffic has not left: {} packets/s after {} s, --below is {}; routes are announced with graceful shutdown \
             and not withdrawn: turnpike undrain takes that back, --force withdraws them, --timeout gives more time",
            traffic.rate,
            common.timeout,
            args.below
        );
    }
    work.daemon.withdraw()?;
    work.say(&format!("routes are withdrawn, at {} packets/s", traffic.rate));
    let deadline = work.deadline.max(Instant::now() + 2 * work.quiet());
    let traffic = work.wait_until_left(args.below, deadline)?;
    if !traffic.has_left {
        bail!(
            "routes are withdrawn, and {} packets/s still arrive, --below is {}: a neighbour has other routes to this \
             router, such as a static one",
            traffic.rate,
            args.below
        );
    }
    let rate = traffic.rate;
    work.end("drained", &format!("drained: {rate} packets/s"))
}

/// Undoes [`drain`].
///
/// # Errors
/// The router or the daemon cannot be asked, or sessions are not up in time.
pub fn undrain(args: &UndrainArgs) -> Result<ExitCode> {
    let common = &args.common;
    let mut work = Work::begin(common)?;
    let names = work.daemon.restore()?;
    work.say(&format!("sessions of {names} are restored"));
    let down = work.wait_until_up()?;
    if !down.is_empty() && !args.force {
        bail!(
            "sessions are down after {} s: {}; routes are announced with graceful shutdown still: --force takes \
             traffic without these sessions, --timeout gives more time",
            common.timeout,
            down.join(", ")
        );
    }
    work.wait_until_settled()?;
    work.daemon.finish()?;
    work.end("undrained", "undrained: routes are announced without graceful shutdown")
}

/// Traffic that passes through the router.
struct Traffic {
    /// It has been below the bound for the quiet time.
    has_left: bool,
    /// Packets a second in the end.
    rate: u64,
}

/// A drain in progress.
struct Work<'a> {
    common: &'a Common,
    router: Connection,
    daemon: Daemon<'a>,
    deadline: Instant,
    begun: Instant,
}

impl<'a> Work<'a> {
    /// The router answers before its daemon is touched.
    fn begin(common: &'a Common) -> Result<Self> {
        if common.quiet >= common.timeout {
            let Common { quiet, timeout, .. } = common;
            bail!("--quiet {quiet}s: must be shorter than --timeout {timeout}s");
        }
        let router = Connection::open(&common.socket, PATIENCE)?;
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs(common.timeout);
        let mut work =
            Self { common, router, daemon: Daemon::new(&common.daemon)?, deadline, begun };
        work.transit()?;
        Ok(work)
    }

    fn say(&self, text: &str) {
        if !self.common.json {
            print(text);
        }
    }

    fn end(&self, state: &str, text: &str) -> Result<ExitCode> {
        let report = json!({ "state": state, "seconds": self.begun.elapsed().as_secs_f64() });
        match self.common.json {
            true => print(&serde_json::to_string_pretty(&report)?),
            false => print(text),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Packets so far that were received and not for the router itself.
    fn transit(&mut self) -> Result<u64> {
        let counters = self.router.query(&query::COUNTERS, Show::Counters {})?;
        Ok(counters.received.saturating_sub(counters.to_host))
    }

    /// Waits until the rate of transit has been at most `below` for the quiet time, or the deadline.
    fn wait_until_left(&mut self, below: u64, deadline: Instant) -> Result<Traffic> {
        let (mut packets, mut when) = (self.transit()?, Instant::now());
        let mut quiet_since = when;
        loop {
            sleep(LOOK);
            let (now, at) = (self.transit()?, Instant::now());
            let rate = per_second(now.saturating_sub(packets), at - when);
            (packets, when) = (now, at);
            if rate > below {
                quiet_since = at;
            }
            let has_left = at - quiet_since >= self.quiet();
            if has_left || at >= deadline {
                return Ok(Traffic { has_left, rate });
            }
        }
    }

    /// Waits until all sessions are up, or the time is over; returns those that are down.
    fn wait_until_up(&mut self) -> Result<Vec<String>> {
        loop {
            let down = self.daemon.down()?;
            if down.is_empty() || Instant::now() >= self.deadline {
                return Ok(down);
            }
            sleep(LOOK);
        }
    }

    /// Waits until the number of routes has not changed for the quiet time, or the time is over.
    fn wait_until_settled(&mut self) -> Result<()> {
        let mut routes = self.routes()?;
        let mut since = Instant::now();
        while since.elapsed() < self.quiet() && Instant::now() < self.deadline {
            sleep(LOOK);
            let now = self.routes()?;
            if now != routes {
                (routes, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    fn routes(&mut self) -> Result<usize> {
        let sources = self.router.query(&query::SOURCES, Show::Sources {})?;
        Ok(sources.iter().map(|source| source.ipv4 + source.ipv6).sum())
    }

    fn quiet(&self) -> Duration {
        Duration::from_secs(self.common.quiet)
    }
}

/// Prints a line. A drain goes on without its reader: half of one is worse than one that is not read.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A rate, rounded up: a single packet is not none.
fn per_second(packets: u64, time: Duration) -> u64 {
    (packets as f64 / time.as_secs_f64().max(1e-3)).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_rounded_up() {
        let half = Duration::from_millis(500);
        assert_eq!([0, 1, 5].map(|packets| per_second(packets, half)), [0, 2, 10]);
        assert_eq!(per_second(1, Duration::from_secs(3)), 1);
    }
}
