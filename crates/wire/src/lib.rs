//! wire
#![forbid(unsafe_code)]

mod mac;
pub use mac::MacAddr;
pub use mac::ParseMacError;
