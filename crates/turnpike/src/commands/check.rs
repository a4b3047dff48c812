//! `turnpike check`: reads a configuration as `run` would, and touches nothing.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use control::config::{self, Config};
use control::import;
use dataplane::catalogue::Catalogue;

/// Reads a configuration; the error lists everything that is wrong with it.
pub fn load(file: &Path, catalogue: &Catalogue) -> Result<Config> {
    config::load(file, catalogue).map_err(|errors| anyhow!("{errors}"))
}

/// Checks a configuration with the tables it imports, and unless `offline` whether this machine
/// can run it.
pub fn check(file: &Path, offline: bool, catalogue: &Catalogue) -> Result<String> {
    let config = load(file, catalogue)?;
    if !offline {
        config::check_machine(&config).map_err(|errors| anyhow!("{errors}"))?;
    }
    let mut report = format!(
        "{}: right: {} ports, {} routes, {} neighbours",
        file.display(),
        config.ports.len(),
        config.routes.len(),
        config.neighbours.len(),
    );
    for import in &config.imports {
        let table = import::read_table(&import.file)
            .with_context(|| format!("{}:{}: import", file.display(), import.line))?;
        let (entries, refused) = (table.entries.len(), table.refused);
        let name = import.file.display();
        report += &format!("\nimport {name}: {entries} prefixes, {refused} refused");
    }
    Ok(report)
}
