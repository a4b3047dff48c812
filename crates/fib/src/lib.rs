//! fib
#![forbid(unsafe_code)]
