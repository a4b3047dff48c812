//! `turnpike convert`: rules of other packet filters as filters of a configuration.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use convert::Format;

/// The rules to convert.
#[derive(Debug, Subcommand)]
pub enum Convert {
    /// The output of `nft list ruleset` or `nft -j list ruleset`
    Nftables {
        /// The file, `-` for standard input
        file: PathBuf,
    },
    /// The output of `iptables-save` or `ip6tables-save`, or both, one after the other
    IptablesSave {
        /// The file, `-` for standard input
        file: PathBuf,
    },
}

/// Exit status if the input cannot be read.
const UNREADABLE: u8 = 2;

/// Prints the rules as Lua, and notes about omitted ones on standard error.
///
/// # Errors
/// Standard output cannot be written to.
pub fn convert(what: &Convert) -> Result<ExitCode> {
    let (format, file) = match what {
        Convert::Nftables { file } => (Format::Nftables, file),
        Convert::IptablesSave { file } => (Format::Iptables, file),
    };
    let name =
        if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
    let read = input(file).and_then(|input| Ok(convert::convert(format, &name, &input)?));
    let converted = match read.with_context(|| name.clone()) {
        Ok(converted) => converted,
        Err(error) => {
            eprintln!("{error:#}");
            return Ok(ExitCode::from(UNREADABLE));
        }
    };
    for left in &converted.left {
        eprintln!("{name}: {left}");
    }
    match io::Write::write_all(&mut io::stdout(), converted.lua.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(if converted.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn input(file: &Path) -> Result<String> {
    if file != Path::new("-") {
        return Ok(fs::read_to_string(file)?);
    }
    let mut input = String::new();
    io::stdin().read_to_string(&mut input)?;
    Ok(input)
}
