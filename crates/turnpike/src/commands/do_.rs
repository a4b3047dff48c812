//! `turnpike do`: commands that the configuration defines, in Lua.

use anyhow::Result;
use api::{DoRequest, Request};
use clap::Args;

use super::{Console, RouterArgs};
use crate::table;

/// The command and its arguments.
#[derive(Debug, Args)]
pub struct DoArgs {
    #[command(flatten)]
    pub(super) call: CallArgs,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

/// A command with its words.
#[derive(Debug, Args)]
pub struct CallArgs {
    /// Its name
    #[arg(value_name = "COMMAND")]
    pub name: String,
    /// Its arguments; -- precedes words that begin with -
    pub args: Vec<String>,
}

/// Runs it in the router and prints its output.
pub fn run(call: &CallArgs, console: &mut Console<'_>) -> Result<()> {
    let request = DoRequest { name: call.name.clone(), args: call.args.clone() };
    console.report(&Request::Do(request), |report| Ok(table::any(&report)))
}
