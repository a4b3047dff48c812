//! `turnpike convert`: rules of other packet filters, and configurations of Click, in Lua.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use convert::Format;

/// The text to convert.
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
    /// A configuration of Click
    Click {
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
        Convert::Click { file } => return click(file),
    };
    let name = name_of(file);
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
    print(&converted.lua)?;
    Ok(if converted.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a configuration of Click as Lua, and notes about parts without effect on standard error.
fn click(file: &Path) -> Result<ExitCode> {
    let name = name_of(file);
    let converted = match input(file).with_context(|| name.clone()) {
        Ok(input) => convert::click::convert(&name, &input).map_err(|errors| errors.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    match converted {
        Ok(converted) => {
            converted.notes.iter().for_each(|note| eprintln!("{note}"));
            print(&converted.lua)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(errors) => {
            eprintln!("{errors}");
            Ok(ExitCode::from(UNREADABLE))
        }
    }
}

fn name_of(file: &Path) -> String {
    if file == Path::new("-") { "standard input".into() } else { file.display().to_string() }
}

fn print(text: &str) -> Result<()> {
    match io::Write::write_all(&mut io::stdout(), text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn input(file: &Path) -> Result<String> {
    if file != Path::new("-") {
        return Ok(fs::read_to_string(file)?);
    }
    let mut input = String::new();
    io::stdin().read_to_string(&mut input)?;
    Ok(input)
}
