//! Errors of a configuration: each with its file and line, all of a file together.

use std::fmt;
use std::path::{Path, PathBuf};

pub(super) use dataplane::words::{did_you_mean, suggestion};

/// One error in a configuration, with a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, under the name given to [`super::load`].
    pub file: PathBuf,
    /// The line of the key or statement, counted from 1; `None` for the file as a whole.
    pub line: Option<usize>,
    /// The fault, with the key, the value and the remedy.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file.display(), self.message),
            None => write!(f, "{}: {}", self.file.display(), self.message),
        }
    }
}

/// All errors of a configuration, in the order of its lines; never empty as an `Err`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Collects the errors of one file.
#[derive(Debug)]
pub(super) struct Collector {
    file: PathBuf,
    errors: Vec<ConfigError>,
}

impl Collector {
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), errors: Vec::new() }
    }

    pub(super) fn add(&mut self, line: Option<usize>, message: impl Into<String>) {
        let error = ConfigError { file: self.file.clone(), line, message: message.into() };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns `Ok` if there were no errors; otherwise the errors by line.
    pub(super) fn finish(mut self) -> Result<(), ConfigErrors> {
        self.errors.sort_by_key(|error| error.line.unwrap_or(0));
        if self.errors.is_empty() { Ok(()) } else { Err(ConfigErrors(self.errors)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_listed_by_line() {
        let mut collector = Collector::new(Path::new("r.lua"));
        collector.add(Some(9), "late");
        collector.add(Some(2), "early");
        collector.add(Some(2), "early");
        collector.add(None, "all");
        let errors = collector.finish().unwrap_err();
        assert_eq!(errors.to_string(), "r.lua: all\nr.lua:2: early\nr.lua:9: late");
    }
}
