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

/// Smaller arrays are not worth a huge page.
const WORTH_A_HUGE_PAGE: usize = HUGE_PAGE / 8;

/// `len` zeroed elements; those worth it begin at a huge page and have their last one to
/// themselves.
pub(crate) struct Arena<T> {
    storage: Box<[T]>,
    start: usize,
    len: usize,
}

impl<T: Zeroable> Arena<T> {
    /// Reserves `len` elements; all bytes are zero.
    pub fn new(len: usize) -> Self {
        let size = size_of::<T>();
        let huge = match len * size {
            bytes if cfg!(miri) || bytes < WORTH_A_HUGE_PAGE => 0,
            bytes => bytes.next_multiple_of(HUGE_PAGE),
        };
        // So many that one of them begins at a huge page, also if the size is no power of two.
        let spare = if huge == 0 { 0 } else { HUGE_PAGE >> size.trailing_zeros() };
        let storage = bytemuck::zeroed_slice_box::<T>(len.max(huge.div_ceil(size)) + spare);
        let (start, huge) = match storage.as_ptr().align_offset(HUGE_PAGE) {
            offset if offset <= spare => (offset, huge),
            _ => (0, 0),
        };
        let arena = Self { storage, start, len };
        arena.advise_huge_pages(huge);
        arena
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

    /// Asks for huge pages behind this many bytes from the first element on.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn advise_huge_pages(&self, bytes: usize) {
        use rustix::mm::{Advice, madvise};
        if bytes == 0 {
            return;
        }
        let address = self.all().as_ptr().cast_mut().cast();
        // SAFETY: the range lies inside `self.storage` (`new`, the only caller, has seen to that),
        // and this advice changes neither contents nor protection, only the size of the pages
        // behind. A kernel without huge pages refuses; then plain pages serve as well.
        let _ = unsafe { madvise(address, bytes, Advice::LinuxHugepage) };
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn advise_huge_pages(&self, _bytes: usize) {}
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
        // A size that is no power of two, and one below a huge page.
        let nodes = Arena::<[AtomicU16; 12]>::new(1 << 17);
        let small = Arena::<AtomicU16>::new(1 << 18);
        if !cfg!(miri) {
            assert_eq!(nodes.all().as_ptr().align_offset(HUGE_PAGE), 0);
            assert_eq!(small.all().as_ptr().align_offset(HUGE_PAGE), 0);
        }
        assert_eq!((nodes.all().len(), small.all().len()), (1 << 17, 1 << 18));
        let array: &[AtomicU16; 5] = arena.array();
        array[4].store(7, Ordering::Relaxed);
        assert_eq!(arena.all()[4].load(Ordering::Relaxed), 7);
    }
}
