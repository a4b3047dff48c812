//! `turnpike generate-table`: writes a table to import if there is no real one.

use std::path::Path;

use anyhow::{Context, Result};
use control::import;

/// Writes the table and returns a message.
pub fn generate(ipv4: usize, ipv6: usize, file: &Path) -> Result<String> {
    import::write_synthetic(file, ipv4, ipv6)
        .with_context(|| format!("file {}: cannot be written", file.display()))?;
    Ok(format!("{}: {ipv4} IPv4 and {ipv6} IPv6 prefixes with origin ASes", file.display()))
}
