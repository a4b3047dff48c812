//! What benchmarks and the generator work with: routes from a file or made up, and addresses to send
//! to or look up.

pub mod pattern;
pub mod routes;
