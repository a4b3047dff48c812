//! `turnpike click read` and `turnpike click write`: handlers of a Click configuration's elements.

use anyhow::{Result, bail};
use api::report::HandlerAnswer;
use api::{HandlerCall, Request};
use clap::{Args, Subcommand};

use super::{Console, RouterArgs};

/// A handler's call.
#[derive(Debug, Args)]
pub struct ClickArgs {
    #[command(subcommand)]
    call: Call,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

#[derive(Debug, Subcommand)]
enum Call {
    /// Print the value of a handler
    Read {
        /// ELEMENT.HANDLER, or one of the whole configuration: version, list, config, …
        handler: String,
        /// Its argument, for those that have one
        argument: Vec<String>,
    },
    /// Write a handler, until a configuration is applied
    Write {
        /// ELEMENT.HANDLER, or one of the whole configuration: stop
        handler: String,
        /// The value
        #[arg(allow_negative_numbers = true)]
        value: Vec<String>,
    },
}

/// Calls the handler and prints its value, or that it is written.
pub fn click(args: &ClickArgs, console: &mut Console<'_>) -> Result<()> {
    let call = match &args.call {
        Call::Read { handler, argument } => {
            HandlerCall::Read { handler: handler.clone(), argument: argument.join(" ") }
        }
        Call::Write { handler, value } => {
            HandlerCall::Write { handler: handler.clone(), value: value.join(" ") }
        }
    };
    let report = api::client::ask(console.socket, &Request::Handler(call))?;
    let HandlerAnswer { code, messages, data } = serde_json::from_value(report.clone())?;
    if code >= 300 {
        bail!("{}", messages.join("\n"));
    }
    console.print_report(report, |_| {
        let text = data.unwrap_or_else(|| messages.join("\n"));
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    })
}
