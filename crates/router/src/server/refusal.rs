//! The reasons for which a request has no answer.

use std::error::Error;
use std::fmt;

use api::Answer;

/// The reason for which a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The router ends.
    Ending,
    /// The owner refuses the request.
    Because(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ending => f.write_str("the router is shutting down"),
            Self::Because(reason) => f.write_str(reason),
        }
    }
}

impl Error for Refusal {}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::Error(refusal.to_string())
    }
}

/// Returns the answer to a client whose request the owner was asked.
pub fn answer(outcome: Result<serde_json::Value, Refusal>) -> Answer {
    outcome.map_or_else(Answer::from, Answer::Ok)
}
