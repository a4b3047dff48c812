//! The commands of the binary; `bench` has a module of its own.
//!
//! A command for a running router is a variant of [`RouterCommand`]. It works with a [`Console`],
//! so that it behaves the same in a Unix shell, in `turnpike shell` and over telnet.

pub mod accelerate;
pub mod annotations;
pub mod api;
pub mod bind;
pub mod capture;
pub mod change;
pub mod check;
pub mod click;
pub mod configuration;
pub mod convert;
pub mod do_;
pub mod doctor;
pub mod drain;
pub mod extcap;
pub mod filter;
pub mod flows;
pub mod generate;
pub mod hold;
pub mod moonroute;
pub mod pages;
pub mod routes;
pub mod run;
pub mod sets;
pub mod show;
pub mod top;
pub mod trace;
pub mod words;

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::api::Show;
use ::api::query::Query;
use anyhow::Result;
use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use serde_json::Value;

use ::api::{DEFAULT_SOCKET, Request, client};
use change::{NeighbourArgs, RouteArgs};
use click::ClickArgs;
use configuration::{ApplyArgs, ConfirmArgs, HistoryArgs, PlanArgs, RollbackArgs, SaveArgs};
use do_::DoArgs;
use filter::FilterArgs;
use flows::FlowArgs;
use sets::SetArgs;
use show::ShowArgs;
use trace::TraceArgs;

/// A command to a running router. All variants are available in the Unix shell, in `turnpike shell`
/// and over telnet, with help and completion.
#[derive(Debug, Subcommand)]
pub enum RouterCommand {
    /// List the changes that a configuration would make to a running router; exits with 2 if there are any
    Plan(PlanArgs),
    /// Apply a configuration to a running router: all of it, or nothing
    Apply(ApplyArgs),
    /// Keep a change made by `apply --confirm` or `rollback --confirm`
    Confirm(ConfirmArgs),
    /// Return a running router to an earlier configuration
    Rollback(RollbackArgs),
    /// Write the configuration of a running router to the file that it was started with
    Save(SaveArgs),
    /// List the earlier configurations of a running router
    History(HistoryArgs),
    /// Show the state of a running router
    Show(ShowArgs),
    /// Add or remove routes of a running router
    Route(RouteArgs),
    /// Set or remove neighbours of a running router
    Neighbour(NeighbourArgs),
    /// Remove flows that filters of a running router track
    Flow(FlowArgs),
    /// Add or remove elements of a running router's sets of prefixes
    Set(SetArgs),
    /// Log packets of a filter's rule of a running router
    Filter(FilterArgs),
    /// Show the way of packets through a running router, step by step
    Trace(TraceArgs),
    /// Read or write a handler of an element of a Click configuration
    Click(ClickArgs),
    /// Run a Lua command that the configuration defines
    Do(DoArgs),
}

/// The commands with a file argument.
pub const READING_FILES: [&str; 2] = ["plan", "apply"];

/// The router's socket, and the output format.
#[derive(Debug, Args)]
pub struct RouterArgs {
    /// The router's socket
    #[arg(long, global = true, default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

impl RouterCommand {
    /// Returns the router's socket and the output format.
    pub fn router(&self) -> &RouterArgs {
        match self {
            Self::Plan(args) => &args.router,
            Self::Apply(args) => &args.router,
            Self::Confirm(args) => &args.router,
            Self::Rollback(args) => &args.router,
            Self::Save(args) => &args.router,
            Self::History(args) => &args.router,
            Self::Show(args) => &args.router,
            Self::Route(args) => &args.router,
            Self::Neighbour(args) => &args.router,
            Self::Flow(args) => &args.router,
            Self::Set(args) => &args.router,
            Self::Filter(args) => &args.router,
            Self::Trace(args) => &args.router,
            Self::Click(args) => &args.router,
            Self::Do(args) => &args.router,
        }
    }

    /// Returns true if it reads a file given as an argument. The commands are those of
    /// [`READING_FILES`].
    pub fn reads_file(&self) -> bool {
        match self {
            Self::Plan(_) | Self::Apply(_) => true,
            Self::Confirm(_)
            | Self::Rollback(_)
            | Self::Save(_)
            | Self::History(_)
            | Self::Show(_)
            | Self::Route(_)
            | Self::Neighbour(_)
            | Self::Flow(_)
            | Self::Set(_)
            | Self::Filter(_)
            | Self::Trace(_)
            | Self::Click(_)
            | Self::Do(_) => false,
        }
    }

    /// Executes the command; returns the exit status for a Unix shell.
    ///
    /// # Errors
    /// The router refuses or cannot be reached, or the output cannot be written.
    pub fn execute(&self, console: &mut Console<'_>) -> Result<ExitCode> {
        match self {
            Self::Plan(args) => return configuration::plan(args, console),
            Self::Apply(args) => configuration::apply(args, console),
            Self::Confirm(args) => configuration::confirm(args, console),
            Self::Rollback(args) => configuration::rollback(args, console),
            Self::Save(args) => configuration::save(args, console),
            Self::History(args) => configuration::history(args, console),
            Self::Show(args) => show::show(args, console),
            Self::Route(args) => change::route(args, console),
            Self::Neighbour(args) => change::neighbour(args, console),
            Self::Flow(args) => flows::flow(args, console),
            Self::Set(args) => sets::set(args, console),
            Self::Filter(args) => filter::filter(args, console),
            Self::Trace(args) => trace::trace(args, console),
            Self::Click(args) => click::click(args, console),
            Self::Do(args) => do_::run(&args.call, console),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Environment of a command.
pub struct Console<'a> {
    /// The router's socket.
    pub socket: &'a Path,
    /// True to print answers as JSON.
    pub json: bool,
    /// The output.
    pub out: &'a mut dyn Write,
}

impl Console<'_> {
    /// Prints a text and ends its line.
    pub fn print(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.out, "{text}")?)
    }

    /// Sends a request to the router and prints its report: as JSON, or as formatted by `text`.
    pub fn report(
        &mut self,
        request: &Request,
        text: impl FnOnce(Value) -> Result<String>,
    ) -> Result<()> {
        let report = client::ask(self.socket, request)?;
        self.print_report(report, text)
    }

    /// Sends a query to the router and prints the answer: as JSON, or as the table of it.
    pub fn ask<A: DeserializeOwned>(
        &mut self,
        query: &Query<A>,
        question: Show,
        table: impl FnOnce(A) -> Result<String>,
    ) -> Result<()> {
        self.report(&query.request(question), |answer| table(serde_json::from_value(answer)?))
    }

    /// Prints a report: as JSON, or as formatted by `text`.
    pub fn print_report(
        &mut self,
        report: Value,
        text: impl FnOnce(Value) -> Result<String>,
    ) -> Result<()> {
        let text = if self.json { serde_json::to_string_pretty(&report)? } else { text(report)? };
        self.print(&text)
    }
}

/// An error in JSON output: `{"error": "…"}`.
#[derive(Debug)]
pub struct JsonError(String);

impl JsonError {
    /// Returns the error with its causes.
    pub fn of(error: &anyhow::Error) -> Self {
        Self(format!("{error:#}"))
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", serde_json::json!({ "error": self.0 }))
    }
}

impl std::error::Error for JsonError {}

/// Returns true if the reader of the output has closed it. That is not an error:
/// `show routes | head`.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
