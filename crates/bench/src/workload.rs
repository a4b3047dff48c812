//! Input of the benchmarks and the generator: routes from a file or generated, and addresses to
//! send to or look up.

pub mod pattern;
pub mod routes;
