//! The Turnpike software router.
#![forbid(unsafe_code)]

fn main() {}
