//! What the commands of the binary do; `bench` has a module of its own.

pub mod change;
pub mod check;
pub mod generate;
pub mod routes;
pub mod run;
pub mod show;
mod words;
