//! Places in a configuration, and errors that name them.

use std::fmt;
use std::sync::Arc;

/// A place in a configuration.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Name of the file, as given to [`parse`](crate::parse) or by a `#line` directive.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Beginning of the line's text.
    pub source: Arc<str>,
}

/// One error: `FILE:LINE:COLUMN: message`, and the line of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Place of the cause.
    pub place: Place,
    /// Cause and way out, without the place.
    pub message: String,
}

/// One or more errors.
#[derive(Clone, PartialEq, Eq)]
pub struct Errors(Vec<Error>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Error {
    /// An error at a place.
    pub fn new(place: &Place, message: impl Into<String>) -> Error {
        Error { place: place.clone(), message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)?;
        let before = (self.place.column as usize).saturating_sub(1);
        let source = &self.place.source;
        if source.trim().is_empty() || before > source.chars().count() {
            return Ok(());
        }
        let margin = source.chars().take(before).map(|c| if c == '\t' { '\t' } else { ' ' });
        write!(f, "\n    {source}\n    {}^", margin.collect::<String>())
    }
}

impl std::error::Error for Error {}

impl Errors {
    /// All errors, in the order in which they were found; at least one.
    pub fn all(&self) -> &[Error] {
        &self.0
    }

    /// Adds the errors of another.
    pub fn append(&mut self, mut other: Errors) {
        self.0.append(&mut other.0);
    }

    /// `Ok` for no errors.
    pub fn check(errors: Vec<Error>) -> Result<(), Errors> {
        if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
    }
}

impl From<Error> for Errors {
    fn from(error: Error) -> Errors {
        Errors(vec![error])
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Errors {}
