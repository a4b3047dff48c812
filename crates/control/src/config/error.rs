//! Errors of a configuration: each with its file and line, all of a file together.

use std::fmt;
use std::path::{Path, PathBuf};

/// One thing wrong with a configuration, said so that it can be put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as it was named to [`super::load`].
    pub file: PathBuf,
    /// The line of the key or statement, counted from 1; `None` when the file as a whole is meant.
    pub line: Option<usize>,
    /// What is wrong, with the key, the value and the way out.
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

/// Everything wrong with a configuration, in the order of its lines; never empty as an `Err`.
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

    /// `Ok` when nothing was wrong; otherwise the errors by line.
    pub(super) fn finish(mut self) -> Result<(), ConfigErrors> {
        self.errors.sort_by_key(|error| error.line.unwrap_or(0));
        if self.errors.is_empty() { Ok(()) } else { Err(ConfigErrors(self.errors)) }
    }
}

/// The known word that was probably meant: at most two typing errors away, and not more than a
/// third of the word; else one that begins as the word does or with which the word begins.
pub(super) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 2);
    let known: Vec<&str> = known.into_iter().collect();
    let near = known
        .iter()
        .map(|&candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate);
    let begins = |longer: &str, shorter: &str| shorter.len() >= 3 && longer.starts_with(shorter);
    near.or_else(|| known.into_iter().find(|c| begins(word, c) || begins(c, word)))
}

/// `; did you mean "x"?` or nothing, then the list of what is known.
pub(super) fn suggestion(word: &str, label: &str, known: &[&str]) -> String {
    let guess = did_you_mean(word, known.iter().copied())
        .map(|guess| format!("; did you mean \"{guess}\"?"))
        .unwrap_or_else(|| ";".to_owned());
    format!("{guess} {label}: {}", known.join(", "))
}

/// The number of insertions, deletions, replacements and swaps of neighbours between two words
/// (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognised_and_other_words_are_not() {
        let known = ["device", "driver", "address", "mac", "mtu"];
        assert_eq!(did_you_mean("adress", known), Some("address"));
        assert_eq!(did_you_mean("addresses", known), Some("address"));
        assert_eq!(did_you_mean("deivce", known), Some("device"));
        assert_eq!(did_you_mean("mut", known), Some("mtu"));
        assert_eq!(did_you_mean("addr", known), Some("address"));
        assert_eq!(did_you_mean("macaddr", known), Some("mac"));
        assert_eq!(did_you_mean("colour", known), None);
    }

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
