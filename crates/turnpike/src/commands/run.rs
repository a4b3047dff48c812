//! `turnpike run`: starts the router and keeps it running.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use control::config::{self, Config};
use dataplane::catalogue::Catalogue;
use tracing_subscriber::EnvFilter;

use super::check::SourceArgs;
use crate::api::DEFAULT_SOCKET;
use crate::router;

/// What to run.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Where to listen for `turnpike show`
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
}

/// Runs until a signal; an error says why the router did not start or did not end cleanly.
pub fn run(args: &RunArgs, catalogue: &Catalogue) -> Result<()> {
    let (config, warnings) = args.source.load(catalogue)?;
    config::check_machine(&config).map_err(|errors| anyhow!("{errors}"))?;
    start_log(&config);
    let file = config.file.display();
    warnings.iter().for_each(|warning| tracing::warn!("{file}: {warning}"));
    let no_huge = args.no_huge || config.memory.no_huge;
    router::run(config, catalogue, &args.socket, no_huge)
}

/// Logs to stderr: by the environment's RUST_LOG, else the configuration's level, else `info`.
fn start_log(config: &Config) {
    let level = config.log.level.unwrap_or("info");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
