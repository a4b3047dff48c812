//! The HTTP server of a router, for clients that may be slow, many or hostile.
//!
//! ```text
//!   scraper -- Unix socket or TCP --> one thread (tokio) -- path --> handler --> shared counters
//! ```
//!
//! The server has a thread of its own, so that no client delays the owner, the API or telnet; handlers read shared data
//! and never wait for another thread. This crate knows neither routers nor counters: the router gives it listening
//! sockets and something to write ([`metrics::Metrics`]). Further pages are further routes of [`Pages`].
//!
//! | file | concern |
//! |---|---|
//! | `server.rs` | the thread, and the limits of connections |
//! | `tls.rs` | TLS of a listener, and the names of clients with certificates |
//! | `patient.rs` | streams whose reader must take something from time to time |
//! | `stream.rs` | bodies that are made while they are sent |
//! | `metrics.rs` | `/metrics`: families of samples as text |
//! | `dashboard.rs` | files of the dashboard, for browsers |
#![forbid(unsafe_code)]

pub mod dashboard;
pub mod metrics;
mod patient;
mod server;
mod stream;
pub mod tls;

pub use axum;
pub use bytes::Bytes;
pub use patient::Patient;
pub use server::{Door, End, Limits, Listener, Server, Visit};
pub use stream::stream;
pub use tls::{Session, Tls};

/// Handlers by path.
pub type Pages = axum::Router;
