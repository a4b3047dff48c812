//! `turnpike check`: reads a configuration like `run`, without side effects.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use control::config::{self, Strictness};
use control::import;
use dataplane::words::count;
use machine::bind::Binder;
use machine::{Machine, cores};
use router::progress::Progress;
use router::{ConfigSource, Language, Program, quarantine, room, tls};

/// The configuration, and its language.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// The configuration
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) language: LanguageArgs,
}

/// The language of a configuration; Turnpike's unless given.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LanguageArgs {
    /// The file is one of MoonRoute's
    #[arg(long)]
    pub(super) moonroute: bool,
    /// The file is one of Click's
    #[arg(long, conflicts_with = "moonroute")]
    pub(super) click: bool,
}

impl LanguageArgs {
    /// Returns the language.
    pub(super) fn language(self) -> Language {
        match (self.moonroute, self.click) {
            (true, _) => Language::MoonRoute,
            (_, true) => Language::Click,
            _ => Language::Turnpike,
        }
    }

    /// Returns the option as it is written in front of a file, with a space.
    pub(super) fn option(self) -> &'static str {
        match self.language() {
            Language::MoonRoute => "--moonroute ",
            Language::Click => "--click ",
            Language::Turnpike => "",
        }
    }
}

impl SourceArgs {
    /// Returns the file as the router knows it.
    pub fn source(&self) -> ConfigSource {
        ConfigSource { file: self.file.clone(), language: self.language.language() }
    }
}

/// Checks a configuration and the tables it imports, and, unless `offline`, whether this machine
/// can run it. The exit status is 1 if lines of a table are refused.
pub fn check(source: &SourceArgs, offline: bool, program: &Program) -> Result<(String, ExitCode)> {
    let (mut config, mut warnings) = source.source().load(program)?;
    if !offline {
        let binder = Binder::here();
        binder.resolve(&mut config)?;
        let vdevs = router::virtual_drivers(&config);
        let checked = config::check_machine(&config, vdevs, Strictness::New);
        checked.map_err(|errors| anyhow!("{errors}"))?;
        binder.check(&config, None)?;
        super::accelerate::check(&config)?;
        quarantine::examine(&config.quarantine.directory)?;
        tls::examine(&config, None, Strictness::New)?;
        warnings.extend(binder.taken_over(&config));
        let cores = cores::place(&config)?.forward;
        let (needed_mb, _) = router::packet_memory(&config, &cores);
        let memory = config.memory;
        let machine = Machine::here();
        warnings.extend(room::check_ever(&machine, needed_mb, memory.no_huge, memory.mbufs)?);
    }
    let doubts = config.doubts();
    let file = &config.file;
    let mut report = format!(
        "{}: OK: {}, {}, {}",
        file.display(),
        count(config.ports.len(), "port"),
        count(config.routes.len(), "route"),
        count(config.neighbours.len(), "neighbour"),
    );
    for warning in warnings.into_iter().chain(doubts) {
        report += &format!("\nwarning: {warning}");
    }
    let mut code = ExitCode::SUCCESS;
    for import in &config.imports {
        let progress = Progress::of(format!("import {}", import.file.display()));
        let mut watch = |stage, done, all| {
            progress.import(stage, done, all);
            true
        };
        let table = import::read_table(&import.file, &mut watch)
            .with_context(|| format!("{}:{}", file.display(), import.line))?;
        report += &format!("\n{}", imported(&import.file, &table));
        if table.refused > 0 {
            code = ExitCode::FAILURE;
        }
    }
    Ok((report, code))
}

/// Returns the contents of a table, and its refused lines.
fn imported(file: &Path, table: &import::Table) -> String {
    let (name, unit) = (file.display(), table.format.unit());
    let entries = count(table.entries.len(), "prefix");
    let mut text =
        format!("import {name}: {entries}, {} refused", count(table.refused as usize, unit));
    for refusal in &table.refusals {
        // Records have no line numbers for an editor.
        text += &match table.format {
            import::Format::Text => format!("\n{name}:{}: {}", refusal.place, refusal.reason),
            import::Format::Mrt => {
                format!("\n{name}: {unit} {}: {}", refusal.place, refusal.reason)
            }
        };
    }
    let more = table.refused - table.refusals.len() as u64;
    if more > 0 {
        text + &format!("\n{name}: {} refused", count(more as usize, &format!("more {unit}")))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use control::import::{Compression, Format, Refusal, Table};

    use super::*;

    #[test]
    fn refused_lines_have_their_numbers() {
        let refusal = |place| Refusal { place, reason: "\"x\" is not a prefix".to_owned() };
        let mut table = Table {
            format: Format::Text,
            compression: Compression::None,
            entries: vec![("10.0.0.0/8".parse().unwrap(), 1)],
            duplicates: 0,
            refused: 3,
            refusals: vec![refusal(2), refusal(7)],
        };
        let text = "import t: 1 prefix, 3 lines refused\nt:2: \"x\" is not a prefix\nt:7: \"x\" is \
                    not a prefix\nt: 1 more line refused";
        assert_eq!(imported(Path::new("t"), &table), text);
        table.format = Format::Mrt;
        assert!(imported(Path::new("t"), &table).contains("\nt: record 7: "));
        (table.refused, table.refusals) = (0, Vec::new());
        assert_eq!(imported(Path::new("t"), &table), "import t: 1 prefix, 0 records refused");
    }
}
