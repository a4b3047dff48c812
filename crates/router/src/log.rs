//! The router's log: lines on standard error, or entries in systemd's journal if that is where standard error leads. Its
//! level changes while it runs.
//!
//! Entries have fields besides the message: `PRIORITY`, `SYSLOG_IDENTIFIER`, `TARGET` (the module), `CODE_FILE` and
//! `CODE_LINE` (systemd.journal-fields(7)).

use std::env;
use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use nix::sys::stat::fstat;
use tracing_journald::Layer as Journal;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, registry, reload};

/// Default level, if neither the environment nor the configuration sets one.
const DEFAULT: &str = "info";

/// Function that changes the level of a log.
type SetLevel = Box<dyn Fn(&str) + Send + Sync>;

/// Setter of the running log; absent without a log, and if the environment sets the level.
static SET_LEVEL: OnceLock<SetLevel> = OnceLock::new();

/// Starts the log: with the environment's RUST_LOG, else `info` until [`set_level`].
pub fn start() {
    let environment = EnvFilter::try_from_default_env().ok();
    let is_free = environment.is_none();
    let filter = environment.unwrap_or_else(|| EnvFilter::new(DEFAULT));
    let (filter, handle) = reload::Layer::new(filter);
    if is_free {
        let _ = SET_LEVEL.set(Box::new(move |level| {
            if let Err(error) = handle.reload(EnvFilter::new(level)) {
                tracing::error!("the log's level cannot be changed: {error}");
            }
        }));
    }
    let journal = journal();
    let lines = journal.is_none().then(|| {
        fmt::layer()
            .with_writer(stderr)
            .with_target(false)
            .with_ansi(stderr().is_terminal())
            // A line that cannot be written, for example to a closed terminal, is lost; reporting it
            // would panic.
            .log_internal_errors(false)
    });
    registry().with(filter).with(journal).with(lines).init();
}

/// The journal, if standard error leads there: its device and inode are those that systemd names (systemd.exec(5)).
fn journal() -> Option<Journal> {
    let stream = env::var("JOURNAL_STREAM").ok()?;
    let found = fstat(stderr()).ok()?;
    if stream != format!("{}:{}", found.st_dev, found.st_ino) {
        return None;
    }
    let journal = Journal::new().ok()?;
    Some(journal.with_syslog_identifier("turnpike".to_owned()).with_field_prefix(None))
}

/// Sets the configuration's level; RUST_LOG takes precedence.
pub fn set_level(level: Option<&str>) {
    if let Some(set) = SET_LEVEL.get() {
        set(level.unwrap_or(DEFAULT));
    }
}
