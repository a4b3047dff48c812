//! `turnpike show routes`: printed as they come, however many there are.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use anyhow::Result;
use clap::Args;

use super::words;
use crate::api::report::{Route, RouteSummary};
use crate::api::{Request, RouteFilter, Show, client};
use crate::table;

/// Which routes.
#[derive(Debug, Args)]
pub struct RoutesArgs {
    /// Only those of this source, also those that are not used: see `show sources`
    #[arg(long)]
    source: Option<String>,
    /// Only those to this prefix, also those that are not used
    #[arg(long)]
    prefix: Option<String>,
    /// With --prefix: those to prefixes within it as well
    #[arg(long, requires = "prefix")]
    longer: bool,
    /// Also those that are not used
    #[arg(long)]
    all: bool,
    /// Only how many there are
    #[arg(long, conflicts_with_all = ["source", "prefix", "longer", "all"])]
    summary: bool,
}

/// Asks and prints. A reader that has seen enough (`show routes | head`) is not an error.
pub fn show(args: &RoutesArgs, socket: &Path, json: bool) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let printed = if args.summary {
        summary(&mut out, socket, json)
    } else {
        let prefix = args.prefix.as_deref().map(words::prefix).transpose()?;
        let (source, longer, all) = (args.source.clone(), args.longer, args.all);
        print(&mut out, socket, RouteFilter { source, prefix, longer, all }, json)
    };
    match printed.and_then(|()| Ok(out.flush()?)) {
        Err(error) if is_broken_pipe(&error) => {
            // What is left in the buffer would fail once more when it is dropped.
            drop(out.into_parts());
            Ok(())
        }
        other => other,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn summary(out: &mut impl Write, socket: &Path, json: bool) -> Result<()> {
    let report = client::ask(socket, &Request::Show(Show::Summary))?;
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(out, "{}", table::summary(&serde_json::from_value::<RouteSummary>(report)?))?;
    }
    Ok(())
}

/// One line a route; as JSON an array with one route a line.
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
