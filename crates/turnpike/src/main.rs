//! The Turnpike software router; all code is in the library, see `turnpike::main_with`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    turnpike::main_with([])
}
