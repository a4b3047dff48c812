//! `turnpike check`: reads a configuration as `run` would, and touches nothing.

use std::path::Path;

use anyhow::{Result, anyhow};
use control::config::{self, Config};

/// Reads a configuration; the error lists everything that is wrong with it.
pub fn load(file: &Path) -> Result<Config> {
    config::load(file).map_err(|errors| anyhow!("{errors}"))
}

/// Checks a configuration, and unless `offline` whether this machine can run it.
pub fn check(file: &Path, offline: bool) -> Result<String> {
    let config = load(file)?;
    if !offline {
        config::check_machine(&config).map_err(|errors| anyhow!("{errors}"))?;
    }
    Ok(format!(
        "{}: right: {} ports, {} routes, {} neighbours, {} tables to import",
        file.display(),
        config.ports.len(),
        config.routes.len(),
        config.neighbours.len(),
        config.imports.len(),
    ))
}
