//! Routing tables from files: MRT dumps and plain lists, spread over gateways by origin AS.
//!
//! | format | detected by | contents read |
//! |---|---|---|
//! | MRT `TABLE_DUMP_V2` (RFC 6396, RFC 8050) | its binary header | prefix, and origin AS of the first path that has one |
//! | text | otherwise | `PREFIX<TAB>AS`; lines that begin with `;` or `#` are comments |
//!
//! Either may be compressed by gzip or bzip2; formats are detected by the first bytes, never by the
//! name. A file may hold both families. It is read completely before the first route is changed, so
//! a broken file has no effect.
//!
//! A line or record that cannot be used is refused and counted, and reading continues; the first
//! [`REFUSALS_KEPT`] are kept with their place and reason.

mod exchange;
mod mrt;
mod synthetic;
mod text;

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path as FilePath, PathBuf};

use bzip2::read::MultiBzDecoder;
use dataplane::interface::VrfId;
use dataplane::words::count;
use flate2::read::MultiGzDecoder;
use ipnet::IpNet;

use crate::config;
use crate::rib::{self, LoadReport, Path, Rib, Route, RouteKind, RouteSource, import_metric};

pub use exchange::{Exchange, Progress};
pub use synthetic::write_synthetic;

/// Most refusals that a report keeps in full.
pub const REFUSALS_KEPT: usize = 20;

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// By gzip.
    Gzip,
    /// By bzip2.
    Bzip2,
}

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MRT `TABLE_DUMP_V2` records.
    Mrt,
    /// Lines of `PREFIX<TAB>AS`.
    Text,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mrt => "MRT",
            Self::Text => "text",
        })
    }
}

impl Format {
    /// Returns the unit that a report counts: lines or records.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Mrt => "record",
            Self::Text => "line",
        }
    }
}

/// A line or record that was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line or record, counted from 1.
    pub place: u64,
    /// Reason, with the value found.
    pub reason: String,
}

/// A table read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Format of the file.
    pub format: Format,
    /// Compression of the file.
    pub compression: Compression,
    /// Each prefix once, with its origin AS, in the order of the file.
    pub entries: Vec<(IpNet, u32)>,
    /// Further appearances of a prefix; the first counts.
    pub duplicates: u64,
    /// Lines or records that were refused.
    pub refused: u64,
    /// The first refusals.
    pub refusals: Vec<Refusal>,
}

impl Table {
    fn new(format: Format, compression: Compression) -> Self {
        let (entries, refusals) = (Vec::new(), Vec::new());
        Self { format, compression, entries, duplicates: 0, refused: 0, refusals }
    }

    fn refuse(&mut self, place: u64, reason: impl Into<String>) {
        self.refused += 1;
        if self.refusals.len() < REFUSALS_KEPT {
            self.refusals.push(Refusal { place, reason: reason.into() });
        }
    }
}

/// Reason why a file could not be read as a table. None of its routes has been used then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be opened.
    #[error("import {}: cannot be opened: {error}", .file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file ends early, its compression is damaged, or the disk fails.
    #[error(
        "import {}: damaged after {taken} routes: {error}; the file is truncated or corrupt, fetch it again",
        .file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Routes that were read before the damage.
        taken: usize,
        /// The error found.
        error: io::Error,
    },
    /// A format that is recognised but not supported.
    #[error("import {}: {what}", .file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The format, and a remedy.
        what: &'static str,
    },
    /// The file contains no route.
    #[error("import {}: no route in it{}", .file.display(), first_refusal(.format, .refused, .first))]
    NoRoute {
        /// The file.
        file: PathBuf,
        /// Format that it was read as.
        format: Format,
        /// Lines or records refused.
        refused: u64,
        /// The first refusal.
        first: Option<Refusal>,
    },
}

fn first_refusal(format: &Format, refused: &u64, first: &Option<Refusal>) -> String {
    let expected = "expected MRT TABLE_DUMP_V2, or lines of PREFIX<TAB>AS";
    match first {
        None => format!("; {expected}"),
        Some(Refusal { place, reason }) => {
            let unit = format.unit();
            format!(
                ": {} refused, the first at {unit} {place}: {reason}; {expected}",
                count(*refused as usize, unit)
            )
        }
    }
}

/// Stage of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading; progress is counted in bytes of the file.
    Read,
    /// Adding routes to the RIB; progress is counted in routes.
    Load,
}

/// Callback that receives the progress of an import and its total; returns true to go on.
pub type Watch<'a> = &'a mut dyn FnMut(Stage, u64, u64) -> bool;

/// Routes added to the RIB between two calls of the watch.
const LOADED: u64 = 4096;

/// A file that reports how far it has been read.
struct Watched<'a> {
    file: File,
    read: u64,
    length: u64,
    watch: Watch<'a>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read += count as u64;
        if !(self.watch)(Stage::Read, self.read, self.length) {
            return Err(io::Error::other("stopped"));
        }
        Ok(count)
    }
}

/// Reads a table. If the watch stops the reading, the table is reported as damaged at that point.
///
/// # Errors
/// The file cannot be read to its end, or contains no route.
pub fn read_table(file: &FilePath, watch: Watch<'_>) -> Result<Table, ImportError> {
    let open = |error| ImportError::Open { file: file.to_owned(), error };
    let opened = File::open(file).map_err(open)?;
    let length = opened.metadata().map_err(open)?.len();
    let watched = Watched { file: opened, read: 0, length, watch };
    let mut raw = BufReader::with_capacity(1 << 16, watched);
    let magic = peek(&mut raw).map_err(open)?;
    let unsupported = |what| ImportError::Unsupported { file: file.to_owned(), what };
    let (compression, reader): (_, Box<dyn Read + '_>) = match magic[..] {
        [0x1f, 0x8b, ..] => (Compression::Gzip, Box::new(MultiGzDecoder::new(raw))),
        [b'B', b'Z', b'h', ..] => (Compression::Bzip2, Box::new(MultiBzDecoder::new(raw))),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            return Err(unsupported("compressed by xz; unpack it, or use gzip or bzip2"));
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            return Err(unsupported("compressed by zstd; unpack it, or use gzip or bzip2"));
        }
        _ => (Compression::None, Box::new(raw)),
    };
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let damaged = |taken, error| ImportError::Damaged { file: file.to_owned(), taken, error };
    let head = peek(&mut reader).map_err(|error| damaged(0, error))?;
    let format = if mrt::looks_like(&head) { Format::Mrt } else { Format::Text };
    let mut table = Table::new(format, compression);
    let mut collector = Collector { table: &mut table, seen: HashSet::new() };
    let result = match format {
        Format::Mrt => mrt::read(&mut reader, &mut collector),
        Format::Text => text::read(&mut reader, &mut collector),
    };
    result.map_err(|error| damaged(table.entries.len(), error))?;
    if table.entries.is_empty() {
        let (refused, first) = (table.refused, table.refusals.into_iter().next());
        return Err(ImportError::NoRoute { file: file.to_owned(), format, refused, first });
    }
    Ok(table)
}

/// Returns the first bytes without consuming them.
fn peek(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    const MOST: usize = 16;
    let buffer = reader.fill_buf()?;
    Ok(buffer[..buffer.len().min(MOST)].to_vec())
}

/// Collects the entries that the format readers find.
struct Collector<'a> {
    table: &'a mut Table,
    seen: HashSet<IpNet>,
}

impl Collector<'_> {
    fn take(&mut self, place: u64, prefix: IpNet, origin: u32) {
        if prefix.trunc() != prefix {
            let reason = format!("{prefix}: host bits are set; the prefix is {}", prefix.trunc());
            self.table.refuse(place, reason);
        } else if let Some(range) = rib::reserved_range(&prefix) {
            self.table.refuse(place, format!("{prefix}: lies in {range}, never forwarded"));
        } else if self.seen.insert(prefix) {
            self.table.entries.push((prefix, origin));
        } else {
            self.table.duplicates += 1;
        }
    }

    fn refuse(&mut self, place: u64, reason: impl Into<String>) {
        self.table.refuse(place, reason);
    }
}

/// Result of [`import`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportReport {
    /// The file.
    pub file: PathBuf,
    /// Its format.
    pub format: Format,
    /// IPv4 routes in the RIB.
    pub ipv4: usize,
    /// IPv6 routes in the RIB.
    pub ipv6: usize,
    /// Further appearances of a prefix; the first counts.
    pub duplicates: u64,
    /// Lines or records that the file's reader refused.
    pub refused: u64,
    /// The first refusals.
    pub refusals: Vec<Refusal>,
    /// IPv4 prefixes left out because `via` has no IPv4 gateway.
    pub without_gateway4: usize,
    /// IPv6 prefixes left out because `via` has no IPv6 gateway.
    pub without_gateway6: usize,
    /// Routes that did not fit into the RIB.
    pub refused_by_rib: usize,
    /// The first errors of the RIB.
    pub rib_errors: Vec<rib::Error>,
}

impl ImportReport {
    /// The report of a table whose entries, which come with it, are not in the RIB yet.
    fn begin(import: &config::Import, table: Table) -> (Self, Vec<(IpNet, u32)>) {
        let report = Self {
            file: import.file.clone(),
            format: table.format,
            ipv4: 0,
            ipv6: 0,
            duplicates: table.duplicates,
            refused: table.refused,
            refusals: table.refusals,
            without_gateway4: 0,
            without_gateway6: 0,
            refused_by_rib: 0,
            rib_errors: Vec::new(),
        };
        (report, table.entries)
    }

    /// Counts routes of a family that were added to the RIB.
    fn count(&mut self, ipv4: bool, loaded: LoadReport) {
        *(if ipv4 { &mut self.ipv4 } else { &mut self.ipv6 }) += loaded.accepted;
        self.refused_by_rib += loaded.refused;
        self.rib_errors.extend(loaded.errors);
        self.rib_errors.truncate(REFUSALS_KEPT);
    }

    /// Counts prefixes of a family for which there is no gateway.
    fn leave_out(&mut self, ipv4: bool, prefixes: usize) {
        *(if ipv4 { &mut self.without_gateway4 } else { &mut self.without_gateway6 }) += prefixes;
    }
}

/// Several lines: the routes used, then those not used, with reasons.
impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        write!(
            f,
            "import {file}: {} IPv4 and {} ({})",
            self.ipv4,
            count(self.ipv6, "IPv6 route"),
            self.format
        )?;
        if self.duplicates > 0 {
            write!(f, ", {} left out", count(self.duplicates as usize, "duplicate"))?;
        }
        for (left, family) in [(self.without_gateway4, "IPv4"), (self.without_gateway6, "IPv6")] {
            if left > 0 {
                let prefixes = count(left, &format!("{family} prefix"));
                write!(f, "\n  {prefixes} left out: via has no {family} gateway, add one")?;
            }
        }
        let unit = self.format.unit();
        list(f, self.refused, (unit, "refused"), &self.refusals, |refusal| {
            format!("{unit} {}: {}", refusal.place, refusal.reason)
        })?;
        let by_rib = self.refused_by_rib as u64;
        list(f, by_rib, ("route", "refused by the RIB"), &self.rib_errors, ToString::to_string)
    }
}

/// `NUMBER units done:` and the examples that were kept, or nothing.
fn list<T>(
    f: &mut fmt::Formatter<'_>,
    number: u64,
    (unit, done): (&str, &str),
    kept: &[T],
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    if number == 0 {
        return Ok(());
    }
    write!(f, "\n  {} {done}:", count(number as usize, unit))?;
    for item in kept {
        write!(f, "\n    {}", text(item))?;
    }
    let more = number - kept.len() as u64;
    if more > 0 { write!(f, "\n    and {more} more") } else { Ok(()) }
}

/// Reads a table and adds its routes, each over the gateway selected by its origin AS:
/// `gateways[AS % count]` among those of its family. Of several imports the one with the smallest `rank` wins.
///
/// # Errors
/// Those of [`read_table`]; the RIB is unchanged then. If the watch stops the import later, the RIB
/// has some of the routes.
pub fn import(
    rib: &mut Rib,
    import: &config::Import,
    rank: u32,
    watch: Watch<'_>,
) -> Result<ImportReport, ImportError> {
    let (mut report, entries) = ImportReport::begin(import, read_table(&import.file, watch)?);
    let (mut taken, all) = (0u64, entries.len() as u64);
    let mut goes_on = || {
        taken += 1;
        !taken.is_multiple_of(LOADED) || watch(Stage::Load, taken, all)
    };
    for ipv4 in [true, false] {
        let of_family = |(prefix, _): &&(IpNet, u32)| prefix.addr().is_ipv4() == ipv4;
        let entries = entries.iter().filter(of_family);
        let gateways = import.gateways(ipv4);
        if gateways.is_empty() {
            report.leave_out(ipv4, entries.count());
            continue;
        }
        let loaded = rib.load(
            entries
                .take_while(|_| goes_on())
                .map(|&(prefix, origin)| route(prefix, origin, gateways, rank)),
        );
        report.count(ipv4, loaded);
    }
    Ok(report)
}

/// Returns the route to a prefix over the gateway selected by its origin AS; `gateways` is not
/// empty.
fn route(prefix: IpNet, origin: u32, gateways: &[Path], rank: u32) -> Route {
    let gateway = gateways[origin as usize % gateways.len()];
    let path = Path { weight: 1, ..gateway };
    let (vrf, metric) = (VrfId::DEFAULT, import_metric(rank, origin));
    Route { vrf, prefix, source: RouteSource::Import, kind: RouteKind::Unicast(vec![path]), metric }
}

#[cfg(test)]
mod tests;
