//! The time-stamp counter, and prefetching: one instruction each.

/// Returns the time-stamp counter of this core. Constant rate and synchronised between the cores of
/// one machine on every processor DPDK supports; not ordered with surrounding loads and stores.
#[inline(always)]
pub fn tsc() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and user space may execute it (DPDK
    // itself needs it).
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a counter register that Linux opens to user space.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack));
        }
        ticks
    }
}

/// Like [`tsc`], but all earlier loads have completed, and no later one begins before it: to time a
/// few hundred cycles. Costs some twenty itself.
#[inline(always)]
pub fn tsc_ordered() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has both instructions; they only order and read a counter.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        let ticks = core::arch::x86_64::_rdtsc();
        core::arch::x86_64::_mm_lfence();
        ticks
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: barriers, and a counter register that Linux opens to user space.
        unsafe {
            core::arch::asm!(
                "dsb ld", "isb", "mrs {}, cntvct_el0", "isb", out(reg) ticks, options(nostack)
            );
        }
        ticks
    }
}

/// Returns the ticks of [`tsc`] per second, as measured by the EAL when it started; 0 before.
pub fn tsc_hz() -> u64 {
    // SAFETY: returns a number that the EAL stored.
    unsafe { dpdk_sys::rte_get_tsc_hz() }
}

/// Prefetches the cache line at `address` into the first-level cache. Any address is allowed: a
/// prefetch never faults.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it neither faults nor changes memory.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch is a hint; it neither faults nor changes memory.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly));
    }
}
