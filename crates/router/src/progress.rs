//! Progress of long operations: a line on standard error, if that is a terminal.

use std::time::Duration;

use control::import::Stage;
use indicatif::{ProgressBar, ProgressStyle};

/// Time between two updates for an operation that does not report its progress.
const TICK: Duration = Duration::from_millis(250);

/// A line that is removed when this is dropped.
pub struct Progress {
    bar: ProgressBar,
    what: String,
}

impl Progress {
    /// Creates the line of an operation that reports its progress.
    pub fn of(what: impl Into<String>) -> Self {
        let form = "{msg} [{bar:40}] {percent} % {elapsed}";
        let style =
            ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: ProgressBar::new(0).with_style(style.progress_chars("=> ")), what: what.into() }
    }

    /// Creates the line of an operation without progress reports.
    pub fn working(what: impl Into<String>) -> Self {
        let what = what.into();
        let form = "{msg} {spinner} {elapsed}";
        let style =
            ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style).with_message(what.clone());
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, what }
    }

    /// Updates the progress: the amount done, and the total.
    pub fn import(&self, stage: Stage, done: u64, all: u64) {
        let doing = match stage {
            Stage::Read => "reading",
            Stage::Load => "loading",
        };
        if self.bar.length() != Some(all) {
            self.bar.set_length(all);
            self.bar.set_message(format!("{}: {doing}", self.what));
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
