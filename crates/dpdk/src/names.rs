//! Names of what DPDK keeps in lists of its own, and wants to be unique and short.

use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A name that nothing else of this process has; `what` is letters.
pub(crate) fn serial_name(what: &str) -> CString {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let serial = MADE.fetch_add(1, Ordering::Relaxed);
    CString::new(format!("{what}{serial}")).expect("neither letters nor digits hold a NUL")
}
