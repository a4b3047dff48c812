//! Configuration files of Click, converted to statements of Turnpike (crate `convert`).

use std::path::Path;

use convert::click::{Converted, convert};
use dataplane::catalogue::Catalogue;

use super::error::{ConfigError, ConfigErrors};
use super::{Config, Limits};

/// A configuration, with notes about parts of the file without effect.
pub struct Loaded {
    /// The converted configuration; its text is Lua, its lines are the file's.
    pub config: Config,
    /// Elements without effect, and what applies instead.
    pub notes: Vec<String>,
}

/// Loads a Click file.
///
/// # Errors
/// All faults of the file, or the error of reading it.
pub fn load(path: &Path, catalogue: &Catalogue) -> Result<Loaded, ConfigErrors> {
    parse(path, &super::text_of(path)?, catalogue)
}

/// Like [`load`], for a given text.
fn parse(path: &Path, text: &str, catalogue: &Catalogue) -> Result<Loaded, ConfigErrors> {
    let name = path.display().to_string();
    let converted = convert(&name, text).map_err(|errors| {
        let errors = errors.all().iter().map(|error| {
            let text = error.to_string();
            // The error begins with its place, which is more than a line.
            let place = error.place.to_string();
            let message = text.strip_prefix(&format!("{place}: ")).unwrap_or(&text).to_owned();
            ConfigError { file: place.into(), line: None, message }
        });
        ConfigErrors(errors.collect())
    })?;
    let Converted { lua, lines, notes } = converted;
    let of = |line: usize| lines.get(line.saturating_sub(1)).copied().flatten();
    let mut config =
        super::parse(path, &lua, Limits::default(), catalogue).map_err(|mut errors| {
            errors.0.iter_mut().for_each(|error| error.line = error.line.and_then(of));
            errors
        })?;
    config.ports.iter_mut().for_each(|port| port.line = of(port.line).unwrap_or(port.line));
    config.routes.iter_mut().for_each(|route| route.line = of(route.line).unwrap_or(route.line));
    Ok(Loaded { config, notes })
}
