//! Keeps the router in memory. The kernel drops pages of files, such as code, that have not been used for
//! a while, and reads them again on demand: a forwarder that runs rarely used code, as it does
//! at every change of the configuration, then waits for a disk, and packets wait with it.

use anyhow::{Context, Result};
use nix::libc;
use nix::sys::mman::{MlockAllFlags, mlockall};

/// Reads the program and all that it has now, and keeps it in memory; memory added later is kept from its first
/// use on, so that memory which is only reserved costs nothing.
pub fn stay() {
    if let Err(error) = lock() {
        tracing::warn!(
            "{error:#}: packets may wait for a disk when memory is short; run as root, or raise LimitMEMLOCK"
        );
    }
}

fn lock() -> Result<()> {
    let current = MlockAllFlags::MCL_CURRENT;
    let used = MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    mlockall(current)
        .and_then(|()| mlockall(current | MlockAllFlags::MCL_FUTURE | used))
        .context("the router cannot be kept in memory")
}
