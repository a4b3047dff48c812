//! `turnpike flow del`, and the selection of flows.

use anyhow::{Result, bail};
use api::{FlowSelection, Request};
use clap::{Args, Subcommand};
use ipnet::IpNet;

use super::change::change;
use super::{Console, RouterArgs};

/// The selection of flows: all conditions must hold, those on an end for either end.
#[derive(Clone, Debug, Args)]
pub struct FlowWords {
    /// Flows with an end in this prefix
    #[arg(long)]
    prefix: Option<IpNet>,
    /// Flows with an end of this port
    #[arg(long)]
    port: Option<u16>,
    /// Flows of this protocol: tcp, udp, icmp, icmp6, sctp, … or its number
    #[arg(long, value_parser = protocol)]
    protocol: Option<u8>,
}

impl FlowWords {
    /// Returns the selection as used in requests.
    pub fn selection(&self) -> FlowSelection {
        FlowSelection { prefix: self.prefix, port: self.port, protocol: self.protocol }
    }
}

/// Returns the number of a protocol by its name.
pub fn protocol(text: &str) -> Result<u8, String> {
    acl::text::protocol(text).map_err(|error| error.to_string())
}

/// A change of the flows.
#[derive(Debug, Args)]
pub struct FlowArgs {
    #[command(subcommand)]
    change: Flow,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

#[derive(Debug, Subcommand)]
enum Flow {
    /// Remove flows, so that filters treat their next packets as new
    Del {
        #[command(flatten)]
        of: FlowWords,
        /// All flows
        #[arg(long, conflicts_with_all = ["prefix", "port", "protocol"])]
        all: bool,
    },
}

/// Changes the flows and prints the result.
pub fn flow(args: &FlowArgs, console: &mut Console<'_>) -> Result<()> {
    let Flow::Del { of, all } = &args.change;
    let selection = of.selection();
    if !all && selection == FlowSelection::default() {
        bail!("which flows? say --prefix, --port or --protocol, or --all");
    }
    change(console, &Request::ForgetFlows(selection), "flows")
}

#[cfg(test)]
mod tests {
    use super::protocol;

    #[test]
    fn protocols_have_names_and_numbers() {
        assert_eq!((protocol("tcp"), protocol("89"), protocol("icmp6")), (Ok(6), Ok(89), Ok(58)));
        assert!(protocol("256").is_err() && protocol("tpc").unwrap_err().contains("tcp"));
    }
}
