//! Requests for other configurations of a running router: plan, apply and rollback.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request for the changes that a configuration would make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The file of the text, an absolute path: used in messages and as the base of the files that
    /// it imports.
    pub file: PathBuf,
    /// The configuration.
    pub text: String,
    /// True to list every route, regardless of their number.
    #[serde(default)]
    pub all: bool,
}

/// A request for a change to a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// As in [`PlanRequest`].
    pub file: PathBuf,
    /// The configuration.
    pub text: String,
    /// Seconds after which the change is reverted unless it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_s: Option<u64>,
}

/// A request for a change back to a configuration of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Its number; without it the one before the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// As in [`ApplyRequest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_s: Option<u64>,
}

/// A request to write the router's configuration to the file that it was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaveRequest {
    /// Its number; refused if the router has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// True to replace a file that was edited since the router read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}
