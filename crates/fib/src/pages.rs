//! Reservations of zeroed atomics that take memory a small page at a time.
//!
//! Small tables keep their pieces here (`small.rs`). As in `arena.rs`, an array is reserved once, at its largest size,
//! and lives as long as the last reader, so a stale index refers to other contents of the same array. But an arena is
//! advised to take 2 MiB with its first element, for the TLB's sake; a thousand small tables would take gigabytes. Here
//! an element costs a page of 4 KiB, which the kernel hands out when it is first written. Where there are no such calls an
//! arena serves as well.

use std::{alloc::Layout, marker::PhantomData, ptr::NonNull};

use bytemuck::Zeroable;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// `len` zeroed elements.
pub(crate) struct Pages<T> {
    storage: Storage,
    len: usize,
    elements: PhantomData<T>,
}

const PAGE: usize = 4096;

/// A private anonymous mapping.
struct Storage {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to no thread; `Pages` gives out shared references to atomics only.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Storage {
    /// Reserves at least this many bytes; all are zero.
    fn new(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let Some(first) = mapped.ok().and_then(|address| NonNull::new(address.cast::<u8>())) else {
            let layout = Layout::from_size_align(bytes, PAGE);
            std::alloc::handle_alloc_error(layout.unwrap_or(Layout::new::<u8>()))
        };
        // SAFETY: the range is the mapping; the advice changes neither contents nor protection, only the size of
        // the pages behind it. A kernel without huge pages refuses, and has none to give.
        let _ = unsafe { madvise(first.as_ptr().cast(), bytes, Advice::LinuxNoHugepage) };
        Self { first, bytes }
    }

    /// Returns the memory of the whole pages within a range of bytes to the system.
    fn discard(&self, range: std::ops::Range<usize>) {
        let first = range.start.next_multiple_of(PAGE);
        let end = range.end.min(self.bytes) / PAGE * PAGE;
        if first >= end {
            return;
        }
        let address = self.first.as_ptr().wrapping_add(first);
        // SAFETY: the range lies inside the mapping, whole pages of private memory; they read as zeros afterwards,
        // a valid value of the elements (`Zeroable`), which are atomics that other threads may change at any time.
        let _ = unsafe { madvise(address.cast(), end - first, Advice::LinuxDontNeed) };
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and every reference to it has borrowed `self`.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

impl<T: Zeroable + Send + Sync> Pages<T> {
    /// Reserves `len` elements; all bytes are zero.
    pub fn new(len: usize) -> Self {
        const { assert!(align_of::<T>() <= 4096) };
        Self { storage: Storage::new(len * size_of::<T>()), len, elements: PhantomData }
    }

    /// Returns all elements.
    #[inline(always)]
    pub fn all(&self) -> &[T] {
        // SAFETY: the storage has room for `len` elements, is aligned to a page, was zeroed, which is a valid `T`
        // (`Zeroable`), and lives as long as `self`. Only shared references are given out, so writing goes by the
        // atomics that `T` consists of.
        unsafe { std::slice::from_raw_parts(self.storage.first.as_ptr().cast(), self.len) }
    }

    /// Returns all elements, as an array whose length the compiler knows.
    ///
    /// # Panics
    /// If `N` exceeds the reserved length: a bug of this crate.
    #[inline(always)]
    pub fn array<const N: usize>(&self) -> &[T; N] {
        self.all().first_chunk().expect("the pages are reserved with this length")
    }

    /// Returns the memory of the whole pages within `range` to the system; from now on the elements read as zero or as
    /// before.
    pub fn discard(&self, range: std::ops::Range<usize>) {
        let size = size_of::<T>();
        self.storage.discard(range.start * size..range.end.min(self.len) * size);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn pages_are_zero_and_lose_only_those_discarded() {
        let pages = Pages::<AtomicU64>::new(3 * 512 + 1);
        assert_eq!(pages.all().len(), 3 * 512 + 1);
        assert!(pages.all().iter().all(|x| x.load(Ordering::Relaxed) == 0));
        pages.all().iter().for_each(|x| x.store(7, Ordering::Relaxed));
        // Half a page at each end stays.
        pages.discard(256..3 * 512 + 1);
        let kept: Vec<_> = pages.all().iter().map(|x| x.load(Ordering::Relaxed) == 7).collect();
        assert!(kept[..512].iter().all(|kept| *kept));
        assert!(kept[512..3 * 512].iter().all(|kept| !*kept));
        assert!(kept[3 * 512]);
        let array: &[AtomicU64; 2] = pages.array();
        assert_eq!(array[1].load(Ordering::Relaxed), 7);
    }
}
