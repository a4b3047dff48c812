//! `turnpike plan`, `apply`, `confirm`, `rollback`, `save`, `history`: other configurations for a running router.
//!
//! The file is read here and its text sent to the router, so that the router needs no permission to
//! read it. Paths in it are looked up by the router.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use api::configuration::{ApplyRequest, PlanRequest, RollbackRequest, SaveRequest};
use api::report::{Applied, Change, ChangePlan, Saved};
use api::{Request, Show, client, query};
use clap::Args;

use super::{Console, RouterArgs};
use crate::table;

/// Exit status of a plan with changes; 1 is an error.
const CHANGES: u8 = 2;

/// Options of `turnpike plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The configuration
    file: PathBuf,
    /// The file is one of Click's
    #[arg(long)]
    click: bool,
    /// Show every route, regardless of their number
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Options of `turnpike apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// The configuration
    file: PathBuf,
    /// The file is one of Click's
    #[arg(long)]
    click: bool,
    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    saving: Saving,
    #[command(flatten)]
    pub router: RouterArgs,
}

/// The condition for keeping a change.
#[derive(Debug, Args)]
struct Condition {
    /// Revert after this time (60s, 5m, 1h) unless confirmed by `turnpike confirm`
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    confirm: Option<u64>,
}

/// The file of the start with the change.
#[derive(Debug, Args)]
struct Saving {
    /// Write the configuration to the file that the router was started with, as `turnpike save` does
    #[arg(long, conflicts_with = "confirm")]
    save: bool,
}

/// Options of `turnpike save`.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Replace a file that was edited since the router read it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Options of `turnpike confirm`.
#[derive(Debug, Args)]
pub struct ConfirmArgs {
    /// Write the configuration to the file that the router was started with, as `turnpike save` does
    #[arg(long)]
    save: bool,
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Options of `turnpike rollback`.
#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// A number of the history; without it the one before the current
    number: Option<u64>,
    #[command(flatten)]
    condition: Condition,
    #[command(flatten)]
    saving: Saving,
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Options of `turnpike history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Show the text of this configuration
    number: Option<u64>,
    /// Show the changes of a rollback to it, instead of its text
    #[arg(long, requires = "number")]
    diff: bool,
    #[command(flatten)]
    pub router: RouterArgs,
}

/// Prints the changes that a configuration would make.
pub fn plan(args: &PlanArgs, console: &mut Console<'_>) -> Result<ExitCode> {
    let (file, text) = read(&args.file, args.click)?;
    let request = Request::Plan(PlanRequest { file, text, all: args.all });
    let report = client::ask(console.socket, &request)?;
    let plan: ChangePlan = serde_json::from_value(report.clone())?;
    console.print_report(report, |_| Ok(table::plan(&plan)))?;
    Ok(if plan.changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHANGES) })
}

/// Changes to a configuration and prints the result.
pub fn apply(args: &ApplyArgs, console: &mut Console<'_>) -> Result<()> {
    let (file, text) = read(&args.file, args.click)?;
    let request = Request::Apply(ApplyRequest { file, text, confirm_s: args.condition.confirm });
    change(&request, args.saving.save, console)
}

/// Confirms the change.
pub fn confirm(args: &ConfirmArgs, console: &mut Console<'_>) -> Result<()> {
    let change = |report| Ok(serde_json::from_value::<Change>(report)?.change);
    console.report(&Request::Confirm {}, change)?;
    if args.save { save_this(SaveRequest { number: None, force: false }, console) } else { Ok(()) }
}

/// Changes back and prints the result.
pub fn rollback(args: &RollbackArgs, console: &mut Console<'_>) -> Result<()> {
    let request = RollbackRequest { to: args.number, confirm_s: args.condition.confirm };
    change(&Request::Rollback(request), args.saving.save, console)
}

/// Writes the configuration to the file of the start.
pub fn save(args: &SaveArgs, console: &mut Console<'_>) -> Result<()> {
    save_this(SaveRequest { number: None, force: args.force }, console)
}

/// Makes a change, prints the result, and then saves the configuration if it is to be.
fn change(request: &Request, save: bool, console: &mut Console<'_>) -> Result<()> {
    let report = client::ask(console.socket, request)?;
    let made: Applied = serde_json::from_value(report.clone())?;
    let number = made.number;
    console.print_report(report, |_| Ok(applied(made)))?;
    if !save {
        return Ok(());
    }
    save_this(SaveRequest { number: Some(number), force: false }, console)
        .with_context(|| format!("configuration {number} is in use, but not saved"))
}

fn save_this(request: SaveRequest, console: &mut Console<'_>) -> Result<()> {
    console.report(&Request::Save(request), |report| {
        let Saved { number, file, written } = serde_json::from_value(report)?;
        let how = if written { "saved" } else { "saved already" };
        Ok(format!("configuration {number} {how} in {file}"))
    })
}

/// Shows the applied configurations, one of them, or the differences to one.
pub fn history(args: &HistoryArgs, console: &mut Console<'_>) -> Result<()> {
    match args.number {
        None => console.ask(&query::HISTORY, Show::History, |all| Ok(table::history(&all))),
        Some(number) if args.diff => {
            let show = Show::Difference { number, all: false };
            console.ask(&query::DIFFERENCE, show, |plan| Ok(table::plan(&plan)))
        }
        Some(number) => {
            let show = Show::Configuration { number };
            console.ask(&query::CONFIGURATION, show, |one| Ok(one.text.trim_end().to_owned()))
        }
    }
}

fn applied(applied: Applied) -> String {
    let Applied { number, summary, confirm_s, .. } = applied;
    let condition = confirm_s.map_or_else(String::new, |seconds| {
        format!("\nit is taken back in {seconds} s; `turnpike confirm` keeps it")
    });
    format!("configuration {number}: {summary}{condition}")
}

/// Returns a file's absolute path and its text, which is converted if it is Click's; prints notes about parts of it
/// without effect.
fn read(file: &Path, click: bool) -> Result<(PathBuf, String)> {
    let mut text = fs::read_to_string(file)
        .with_context(|| format!("{}: cannot be read as text in UTF-8", file.display()))?;
    let file = std::path::absolute(file)
        .with_context(|| format!("{}: no absolute path", file.display()))?;
    if click {
        let converted = convert::click::convert(&file.display().to_string(), &text);
        let converted = converted.map_err(|errors| anyhow!("{errors}"))?;
        // Beside the answer, which may be JSON.
        converted.notes.iter().for_each(|note| eprintln!("warning: {note}"));
        text = converted.lua;
    }
    Ok((file, text))
}

/// Parses `60`, `60s`, `5m` or `1h`, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let time = number.parse::<u64>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
    time.filter(|seconds| (1..=86_400).contains(seconds))
        .ok_or_else(|| "expected a time from 1s to 24h, such as 60s, 5m or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        let all = ["60", "60s", "5m", "1h", "24h"].map(|text| seconds(text).unwrap());
        assert_eq!(all, [60, 60, 300, 3600, 86_400]);
        for wrong in
            ["", "s", "0", "0s", "25h", "-1s", "1d", "1.5m", "60ss", "99999999999999999999h"]
        {
            assert!(seconds(wrong).unwrap_err().contains("such as 60s"), "{wrong}");
        }
    }
}
