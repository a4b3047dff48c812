//! AgentX version 1 (RFC 2741), the subagent's side: PDUs as bytes, and the state of a session. No sockets and no
//! clock.
//!
//! ```text
//!   bytes of the master --> pdu.rs --> session.rs --> Step::Ask: objects are asked for
//!                                          |    <---- answer
//!   bytes for the master <-- pdu.rs <------+
//! ```
//!
//! Objects are only read: a master's attempts to set one are answered by `notWritable`. Anything may come from a
//! master; what cannot be read is an error, after which the connection is of no use any more.
#![forbid(unsafe_code)]

mod bytes;
pub mod oid;
pub mod pdu;
pub mod session;

use thiserror::Error;

pub use oid::Oid;
pub use pdu::{Header, Pdu, Range, Value, VarBind};
pub use session::{Request, Session, Step};

/// A PDU that cannot be read, or that does not fit the session.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// Its version is not 1.
    #[error("version {0}; known: 1")]
    Version(u8),
    /// Its type has no meaning for a subagent.
    #[error("type {0} is none for a subagent")]
    Type(u8),
    /// It is too long.
    #[error("{0} bytes; {most} is the most", most = pdu::PAYLOAD_MOST)]
    Long(usize),
    /// It ends before its end.
    #[error("it is cut")]
    Cut,
    /// Bytes are left behind its end.
    #[error("{0} bytes too many")]
    Rest(usize),
    /// A value's type is unknown.
    #[error("value of type {0} unknown")]
    ValueType(u16),
    /// The master refuses what the session needs.
    #[error("the master refuses it: {}", session::error_name(*.0))]
    Refused(u16),
    /// The master has closed the session.
    #[error("the master has closed the session (reason {0})")]
    Closed(u8),
}
