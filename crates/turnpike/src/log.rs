//! The router's log: lines on standard error, whose level changes while it runs.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

/// The level where neither the environment nor the configuration says one.
const DEFAULT: &str = "info";

/// Changes the level of a log.
type SetLevel = Box<dyn Fn(&str) + Send + Sync>;

/// Of the running log; absent as long as there is none, and where the environment says the level.
static SET_LEVEL: OnceLock<SetLevel> = OnceLock::new();

/// Logs to stderr: by the environment's RUST_LOG, else at this level, else `info`.
pub fn start(level: Option<&str>) {
    let environment = EnvFilter::try_from_default_env().ok();
    let is_free = environment.is_none();
    let filter = environment.unwrap_or_else(|| EnvFilter::new(level.unwrap_or(DEFAULT)));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        // A line that cannot be written, as on a terminal that was closed, is lost; to say so there panics.
        .log_internal_errors(false)
        .with_filter_reloading();
    if is_free {
        let handle = log.reload_handle();
        let _ = SET_LEVEL.set(Box::new(move |level| {
            if let Err(error) = handle.reload(EnvFilter::new(level)) {
                tracing::error!("the log's level cannot be changed: {error}");
            }
        }));
    }
    log.init();
}

/// The configuration has this level from now on; RUST_LOG goes before it.
pub fn set_level(level: Option<&str>) {
    if let Some(set) = SET_LEVEL.get() {
        set(level.unwrap_or(DEFAULT));
    }
}
