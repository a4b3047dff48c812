//! Other configurations for a running router: what they would change, and to change it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What would a configuration change?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The file that the text is from, an absolute path: what messages name, and where the files that
    /// it imports are sought.
    pub file: PathBuf,
    /// The configuration.
    pub text: String,
    /// Every route, however many there are.
    #[serde(default)]
    pub all: bool,
}

/// Change to a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// As in [`PlanRequest`].
    pub file: PathBuf,
    /// The configuration.
    pub text: String,
    /// Back to what was before after so many seconds, unless it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_s: Option<u64>,
}

/// Change back to a configuration of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Its number; without it the one before the current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// As in [`ApplyRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_s: Option<u64>,
}
