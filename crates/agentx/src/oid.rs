//! Object identifiers.

use std::fmt;

/// Most sub-identifiers (RFC 2578, 3.5).
pub const PARTS_MOST: usize = 128;

/// An object identifier. Its order is that of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Oid(Vec<u32>);

impl Oid {
    /// Creates it of these sub-identifiers, the first [`PARTS_MOST`] of them.
    pub fn new(parts: &[u32]) -> Self {
        Self(parts[..parts.len().min(PARTS_MOST)].to_vec())
    }

    /// Returns its sub-identifiers.
    pub fn parts(&self) -> &[u32] {
        &self.0
    }

    /// Returns it with others behind it.
    #[must_use]
    pub fn with(&self, parts: &[u32]) -> Self {
        Self::new(&[&self.0, parts].concat())
    }

    /// Returns the sub-identifiers behind a prefix; `None` if it does not begin with it.
    pub fn within(&self, prefix: &[u32]) -> Option<&[u32]> {
        self.0.strip_prefix(prefix)
    }

    /// Returns true for the null identifier `0.0`, which has no sub-identifiers here.
    pub fn is_null(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| write!(f, ".{part}"))
    }
}
