//! slowpath
#![forbid(unsafe_code)]
