//! `turnpike filter log` and `turnpike filter unlog`: samples of a rule's packets in the log.

use std::time::Duration;

use anyhow::Result;
use api::Request;
use api::change::FilterChange;
use clap::{Args, Subcommand};

use super::change::change;
use super::sets::time;
use super::{Console, RouterArgs};

/// A change of the logging of filters.
#[derive(Debug, Args)]
pub struct FilterArgs {
    #[command(subcommand)]
    change: Filter,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

#[derive(Debug, Subcommand)]
enum Filter {
    /// Log packets of a rule, at most ten a second for each filter
    Log {
        /// The filter
        filter: String,
        /// The rule's name or number, or "default"
        rule: String,
        /// End it after this time: 90s, 15m, 12h or 7d
        #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "10m")]
        time: Duration,
    },
    /// End what `filter log` began
    Unlog {
        /// The filter
        filter: String,
        /// The rule's name or number, or "default"
        rule: String,
    },
}

/// Changes the logging and prints the result.
pub fn filter(args: &FilterArgs, console: &mut Console<'_>) -> Result<()> {
    let request = match &args.change {
        Filter::Log { filter, rule, time } => FilterChange::Log {
            filter: filter.clone(),
            rule: rule.clone(),
            seconds: time.as_secs(),
        },
        Filter::Unlog { filter, rule } => {
            FilterChange::Unlog { filter: filter.clone(), rule: rule.clone() }
        }
    };
    change(console, &Request::Filter(request), "filter")
}
