//! DPDK's interrupt thread, which DPDK does not end: `rte_eal_cleanup` unmaps the memory of the devices' interrupt handles
//! (memif leaves some behind), and a thread that reads them afterwards ends the process by a fault. So it is held before.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dpdk_sys as sys;

/// Longest wait for the thread, which may be in a device's callback.
const PATIENCE: Duration = Duration::from_secs(2);

/// True once the thread is held.
static HELD: AtomicBool = AtomicBool::new(false);

/// Holds the interrupt thread until the process ends, if it comes in time.
pub(crate) fn hold() {
    // SAFETY: makes a descriptor, which is owned below.
    let event = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC) };
    // SAFETY: memory of the C library's allocator, which is freed below.
    let handle = unsafe { sys::rte_intr_instance_alloc(sys::SHIM_INTR_PRIVATE) };
    if event < 0 || handle.is_null() {
        return;
    }
    // SAFETY: the descriptor that the kernel has just made for us.
    let event = unsafe { OwnedFd::from_raw_fd(event) };
    // SAFETY: the handle is ours, and DPDK copies it. The descriptor stays open as long as the process lives.
    unsafe {
        sys::rte_intr_fd_set(handle, event.into_raw_fd());
        sys::rte_intr_type_set(handle, sys::RTE_INTR_HANDLE_EXT);
        sys::rte_intr_callback_register(handle, Some(stay), std::ptr::null_mut());
        sys::rte_intr_instance_free(handle);
    }
    let end = Instant::now() + PATIENCE;
    while !HELD.load(Ordering::Acquire) && Instant::now() < end {
        thread::yield_now();
    }
}

/// Runs in the interrupt thread, which has no lock here.
unsafe extern "C" fn stay(_: *mut c_void) {
    HELD.store(true, Ordering::Release);
    loop {
        thread::park();
    }
}
