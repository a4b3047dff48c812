//! `turnpike show routes`: printed as they arrive, regardless of their number.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use api::report::Route;
use api::{RouteFilter, Show, client, query};
use clap::Args;

use super::{Console, words};
use crate::table;

/// The selection of routes.
#[derive(Debug, Args)]
pub struct RoutesArgs {
    /// Only routes of this source, including unused ones: see `show sources`
    #[arg(long)]
    source: Option<String>,
    /// Only routes to this prefix, including unused ones
    #[arg(long)]
    prefix: Option<String>,
    /// With --prefix: also routes to prefixes within it
    #[arg(long, requires = "prefix")]
    longer: bool,
    /// Also unused routes
    #[arg(long)]
    all: bool,
    /// Routes of this VRF: see `show vrfs`
    #[arg(long)]
    vrf: Option<String>,
    /// Only the numbers of routes
    #[arg(long, conflicts_with_all = ["source", "prefix", "longer", "all", "vrf"])]
    summary: bool,
}

/// Requests routes and prints them.
pub fn show(args: &RoutesArgs, console: &mut Console<'_>) -> Result<()> {
    if args.summary {
        return console.ask(&query::SUMMARY, Show::Summary, |summary| Ok(table::summary(&summary)));
    }
    let prefix = args.prefix.as_deref().map(words::prefix).transpose()?;
    let (source, longer, all) = (args.source.clone(), args.longer, args.all);
    let mut out = BufWriter::with_capacity(1 << 16, &mut *console.out);
    let filter = RouteFilter { source, prefix, longer, all, vrf: args.vrf.clone() };
    let printed = print(&mut out, console.socket, filter, console.json);
    match printed.and_then(|()| Ok(out.flush()?)) {
        Err(error) => {
            // The rest of the buffer would fail once more when it is dropped.
            drop(out.into_parts());
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Prints one line a route; as JSON an array with one route a line.
fn print(out: &mut impl Write, socket: &Path, filter: RouteFilter, json: bool) -> Result<()> {
    let mut first = true;
    client::ask_routes(socket, filter, |route: Route| {
        let before = match (json, std::mem::take(&mut first)) {
            (true, true) => "[\n",
            (true, false) => ",\n",
            (false, true) => table::ROUTES_HEADER,
            (false, false) => "",
        };
        out.write_all(before.as_bytes())?;
        if json {
            serde_json::to_writer(&mut *out, &route)?;
        } else {
            writeln!(out, "{}", table::route_line(&route))?;
        }
        Ok(true)
    })?;
    match (json, first) {
        (true, true) => writeln!(out, "[]")?,
        (true, false) => writeln!(out, "\n]")?,
        (false, true) => write!(out, "{}", table::ROUTES_HEADER)?,
        (false, false) => {}
    }
    Ok(())
}
