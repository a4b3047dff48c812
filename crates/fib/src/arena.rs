//! Fixed reservations of zeroed atomics.
//!
//! The tables keep their pieces in a few large arrays that are reserved once, at their largest
//! size, and live as long as the last reader. The kernel hands out the pages when they are first
//! written, so a reservation costs address space, not memory. An index that is out of date points
//! to other contents of the same array, never outside it: that is why nearly all of this crate
//! needs no `unsafe`.
//!
//! The part in use is aligned to 2 MiB and the kernel is asked to back it with huge pages: a
//! random lookup in a table of some megabytes otherwise misses the TLB at every load.

use bytemuck::Zeroable;

const HUGE_PAGE: usize = 2 << 20;

/// `len` zeroed elements, aligned to a huge page when there is at least one to fill.
pub(crate) struct Arena<T> {
    storage: Box<[T]>,
    start: usize,
    len: usize,
}

impl<T: Zeroable> Arena<T> {
    /// Reserves `len` elements; all bytes are zero.
    pub fn new(len: usize) -> Self {
        let spare = if cfg!(miri) { 0 } else { HUGE_PAGE / size_of::<T>() };
        let storage = bytemuck::zeroed_slice_box::<T>(len + spare);
        let start = match storage.as_ptr().align_offset(HUGE_PAGE) {
            offset if offset <= spare => offset,
            _ => 0,
        };
        let arena = Self { storage, start, len };
        arena.advise_huge_pages();
        arena
    }

    /// Where the elements begin, for assembly.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn as_ptr(&self) -> *const T {
        self.storage.as_ptr().wrapping_add(self.start)
    }

    /// All elements.
    #[inline(always)]
    pub fn all(&self) -> &[T] {
        &self.storage[self.start..self.start + self.len]
    }

    /// All elements, as an array whose length the compiler knows.
    ///
    /// # Panics
    /// If `N` exceeds the length that was reserved: a bug of this crate.
    #[inline(always)]
    pub fn array<const N: usize>(&self) -> &[T; N] {
        self.all().first_chunk().expect("the arena is reserved with this length")
    }

    /// Returns the memory of the whole pages within `range` to the system; the elements read as
    /// zero or as they were from now on.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub fn discard(&self, range: std::ops::Range<usize>) {
        use rustix::mm::{Advice, madvise};
        let elements = &self.all()[range];
        let skip = elements.as_ptr().cast::<u8>().align_offset(HUGE_PAGE);
        let bytes = size_of_val(elements).saturating_sub(skip) / HUGE_PAGE * HUGE_PAGE;
        if bytes == 0 {
            return;
        }
        let address = elements.as_ptr().cast::<u8>().wrapping_add(skip).cast_mut();
        // SAFETY: the range lies inside `self.storage`, whole pages of private memory; they read
        // as zeros afterwards, which is a valid value of `T` (`Zeroable`), and `T` is an atomic
        // that other threads may change at any time (`Arena` is only used with such).
        let _ = unsafe { madvise(address.cast(), bytes, Advice::LinuxDontNeed) };
    }

    /// Does nothing where the system cannot take memory back.
    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub fn discard(&self, _range: std::ops::Range<usize>) {}

    #[cfg(all(target_os = "linux", not(miri)))]
    fn advise_huge_pages(&self) {
        use rustix::mm::{Advice, madvise};
        let bytes = size_of_val(self.all()) / HUGE_PAGE * HUGE_PAGE;
        if bytes == 0 {
            return;
        }
        let address = self.all().as_ptr().cast_mut().cast();
        // SAFETY: the range lies inside `self.storage`, begins at a page boundary, and this
        // advice changes neither contents nor protection, only the size of the pages behind.
        // A kernel without huge pages refuses; then plain pages serve as well.
        let _ = unsafe { madvise(address, bytes, Advice::LinuxHugepage) };
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn advise_huge_pages(&self) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    #[test]
    fn an_arena_is_zero_aligned_and_whole() {
        let arena = Arena::<AtomicU16>::new(3 << 20);
        assert_eq!(arena.all().len(), 3 << 20);
        assert!(arena.all().iter().step_by(4096).all(|x| x.load(Ordering::Relaxed) == 0));
        if !cfg!(miri) {
            assert_eq!(arena.all().as_ptr().align_offset(HUGE_PAGE), 0);
        }
        let array: &[AtomicU16; 5] = arena.array();
        array[4].store(7, Ordering::Relaxed);
        assert_eq!(arena.all()[4].load(Ordering::Relaxed), 7);
    }
}
