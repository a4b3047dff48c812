//! Progress of a measurement: a bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a bar of this many steps.
pub fn bar(steps: u64, what: &str) -> ProgressBar {
    let form = "{msg} [{bar:40}] {pos}/{len} {elapsed} of about {duration}";
    let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style.progress_chars("=> ")).with_message(what.to_owned())
}
