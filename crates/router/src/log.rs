//! The router's log: lines on standard error, whose level changes while it runs.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

/// Default level, if neither the environment nor the configuration sets one.
const DEFAULT: &str = "info";

/// Function that changes the level of a log.
type SetLevel = Box<dyn Fn(&str) + Send + Sync>;

/// Setter of the running log; absent without a log, and if the environment sets the level.
static SET_LEVEL: OnceLock<SetLevel> = OnceLock::new();

/// Starts the log to stderr: with the environment's RUST_LOG, else this level, else `info`.
pub fn start(level: Option<&str>) {
    let environment = EnvFilter::try_from_default_env().ok();
    let is_free = environment.is_none();
    let filter = environment.unwrap_or_else(|| EnvFilter::new(level.unwrap_or(DEFAULT)));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        // A line that cannot be written, for example to a closed terminal, is lost; reporting it
        // would panic.
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

/// Sets the configuration's level; RUST_LOG takes precedence.
pub fn set_level(level: Option<&str>) {
    if let Some(set) = SET_LEVEL.get() {
        set(level.unwrap_or(DEFAULT));
    }
}
