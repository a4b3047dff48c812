//! `turnpike top`: a live view of a running router, see crate `top`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use api::DEFAULT_SOCKET;
use clap::Args;
use top::{Options, Panel};

/// The router, and the way to show it.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two samples, from 0.2 on
    #[arg(short, long, value_parser = seconds, default_value = "1")]
    delay: Duration,
    /// Print text, for scripts and files
    #[arg(short, long)]
    batch: bool,
    /// End after so many samples
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// The first panel, in a batch the only one: interfaces, forwarders, drops, flows, routes
    #[arg(short, long)]
    panel: Option<Panel>,
    /// The router's socket
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// Shows the router until the user quits.
pub fn run(args: TopArgs) -> Result<ExitCode> {
    let TopArgs { delay, batch, count, panel, socket } = args;
    top::run(&Options { socket, delay, batch, count, panel })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.2..=3600.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err("expected 0.2 to 3600".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_neither_nothing_nor_for_ever() {
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        for wrong in ["0", "0.19", "-1", "3601", "inf", "NaN", "1s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
