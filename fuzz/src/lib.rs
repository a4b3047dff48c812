//! What the targets about packets share: frames made from what the fuzzer says, a router's
//! surroundings, and what must be true of whatever leaves it.
#![forbid(unsafe_code)]

pub mod check;
pub mod frame;
pub mod world;
