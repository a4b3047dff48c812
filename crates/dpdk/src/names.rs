//! Names of objects in DPDK's own lists, which must be unique and short.

use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns a name that is unique in this process; `what` is letters.
pub(crate) fn serial_name(what: &str) -> CString {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let serial = MADE.fetch_add(1, Ordering::Relaxed);
    CString::new(format!("{what}{serial}")).expect("neither letters nor digits hold a NUL")
}
