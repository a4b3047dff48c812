//! Prefetches of cache lines before they are needed.
//!
//! The one operation of the batch lookups without a safe form in Rust.

/// Prefetches the cache line of `slice[index]` into the first-level cache; does nothing for an
/// index beyond the end.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], index: usize) {
    prefetch_address(slice.as_ptr().wrapping_add(index));
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn prefetch_address<T>(address: *const T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing and does not fault, for any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn prefetch_address<T>(address: *const T) {
    // SAFETY: `prfm` is a hint: it reads nothing and does not fault, for any address; the block
    // touches neither memory, stack nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline(always)]
fn prefetch_address<T>(_address: *const T) {}
