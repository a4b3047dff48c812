//! How far something long is: a line on standard error, if that is a terminal.

use std::time::Duration;

use control::import::Stage;
use indicatif::{ProgressBar, ProgressStyle};

/// Time between two looks of something that does not say how far it is.
const TICK: Duration = Duration::from_millis(250);

/// A line that goes when this is dropped.
pub struct Progress {
    bar: ProgressBar,
    what: String,
}

impl Progress {
    /// Of something that says how far it is.
    pub fn of(what: impl Into<String>) -> Self {
        let form = "{msg} [{bar:40}] {percent} % {elapsed}";
        let style =
            ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: ProgressBar::new(0).with_style(style.progress_chars("=> ")), what: what.into() }
    }

    /// Of something that takes its time.
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

    /// So much of all is done.
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
