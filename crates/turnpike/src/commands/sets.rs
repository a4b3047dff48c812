//! `turnpike set add` and `turnpike set del`: elements of the sets that filters use.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, anyhow};
use api::Request;
use api::change::SetChange;
use clap::{Args, Subcommand};
use ipnet::IpNet;

use super::change::change;
use super::{Console, RouterArgs};

/// A change of a set.
#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(subcommand)]
    change: Set,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

#[derive(Debug, Subcommand)]
enum Set {
    /// Add elements to a set, until the router ends
    Add {
        /// The set
        set: String,
        /// Prefixes, and addresses of hosts
        #[arg(required = true, value_parser = element)]
        elements: Vec<IpNet>,
        /// Remove them after this time: 90s, 15m, 12h or 7d
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: Option<Duration>,
    },
    /// Remove elements added by `set add`
    Del {
        /// The set
        set: String,
        /// Prefixes, and addresses of hosts
        #[arg(required = true, value_parser = element)]
        elements: Vec<IpNet>,
    },
}

/// Changes the set and prints the result.
pub fn set(args: &SetArgs, console: &mut Console<'_>) -> Result<()> {
    let request = match &args.change {
        Set::Add { set, elements, time } => {
            let seconds = time.map(|time| time.as_secs());
            SetChange::Add { set: set.clone(), elements: elements.clone(), seconds }
        }
        Set::Del { set, elements } => {
            SetChange::Del { set: set.clone(), elements: elements.clone() }
        }
    };
    change(console, &Request::Set(request), "set")
}

/// Parses a prefix without host bits, or the address of one host.
fn element(text: &str) -> Result<IpNet> {
    if let Ok(host) = text.parse::<IpAddr>() {
        return Ok(host.into());
    }
    let net: IpNet =
        text.parse().map_err(|_| anyhow!("neither a prefix as 192.0.2.0/24 nor an address"))?;
    match net.trunc() {
        whole if whole == net => Ok(net),
        whole => Err(anyhow!("it has host bits; write {whole}")),
    }
}

/// Longest time: a year.
const TIME_MOST: u64 = 366 * 24 * 3600;

/// Parses a number of seconds, minutes, hours or days.
pub(super) fn time(text: &str) -> Result<Duration> {
    const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 24 * 3600)];
    let read = UNITS.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    let seconds = read.filter(|seconds| (1..=TIME_MOST).contains(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| anyhow!("write 90s, 15m, 12h or 7d, at most a year"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_prefixes_and_hosts() {
        let read = |text| element(text).map(|net| net.to_string()).map_err(|why| why.to_string());
        assert_eq!(read("192.0.2.0/24"), Ok("192.0.2.0/24".into()));
        assert_eq!(read("2001:db8::1"), Ok("2001:db8::1/128".into()));
        assert_eq!(read("192.0.2.1/24"), Err("it has host bits; write 192.0.2.0/24".into()));
        assert!(read("example.org").is_err());
    }

    #[test]
    fn times_have_units() {
        let read = |text| time(text).ok().map(|time| time.as_secs());
        assert_eq!(["90s", "15m", "2h", "7d"].map(read), [90, 900, 7200, 604_800].map(Some));
        assert_eq!(
            ["", "9", "0s", "-1s", "1w", "400d", "99999999999999999999s"].map(read),
            [None; 7]
        );
    }
}
