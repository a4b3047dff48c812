//! Fixed reservations of zeroed atomics.
//!
//! The tables keep their pieces in a few large arrays that are reserved once, at their largest
//! size, and live as long as the last reader. The kernel hands out the pages when they are first
//! written, so a reservation costs address space, not memory. A stale index refers to other contents of the
//! same array, never outside it: that is why nearly all of this crate needs no `unsafe`.
//!
//! The part in use is aligned to 2 MiB and the kernel is advised to back it with huge pages: otherwise a
//! random lookup in a table of some megabytes misses the TLB at every load.

use bytemuck::Zeroable;

/// An array of atomics that lives as long as the last reader.
pub(crate) trait Room<T>: Send + Sync {
    /// Returns all elements.
    fn all(&self) -> &[T];

    /// Returns all elements, as an array whose length the compiler knows.
    ///
    /// # Panics
    /// If `N` exceeds the reserved length: a bug of this crate.
    #[inline(always)]
    fn array<const N: usize>(&self) -> &[T; N] {
        self.all().first_chunk().expect("the room has this length")
    }

    /// Requests memory of a NUMA node, where that is possible.
    fn place(&self, _node: u32) {}
}

/// Memory that was lent for the life of the process.
impl<T: Send + Sync> Room<T> for &'static [T] {
    #[inline(always)]
    fn all(&self) -> &[T] {
        self
    }
}

impl<T: Zeroable + Send + Sync> Room<T> for Arena<T> {
    #[inline(always)]
    fn all(&self) -> &[T] {
        Arena::all(self)
    }

    fn place(&self, node: u32) {
        Arena::place(self, node);
    }
}

const HUGE_PAGE: usize = 2 << 20;

/// Smaller arrays get no huge page.
const WORTH_A_HUGE_PAGE: usize = HUGE_PAGE / 8;

/// Moves pages from other nodes: `linux/mempolicy.h`.
#[cfg(all(target_os = "linux", not(miri)))]
const MPOL_MF_MOVE: libc::c_int = 1 << 1;

/// NUMA nodes that Linux can number.
#[cfg(all(target_os = "linux", not(miri)))]
const MOST_NODES: libc::c_ulong = 1024;

/// `len` zeroed elements; large arrays begin at a huge page and share their last one with no other memory.
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
        // Enough that one of them begins at a huge page, also if the size is not a power of two.
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

    /// Returns all elements.
    #[inline(always)]
    pub fn all(&self) -> &[T] {
        &self.storage[self.start..self.start + self.len]
    }

    /// Returns all elements, as an array whose length the compiler knows.
    ///
    /// # Panics
    /// If `N` exceeds the reserved length: a bug of this crate.
    #[inline(always)]
    pub fn array<const N: usize>(&self) -> &[T; N] {
        self.all().first_chunk().expect("the arena is reserved with this length")
    }

    /// Returns the memory of the whole pages within `range` to the system; from now on the elements read as
    /// zero or as before.
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

    /// Requests pages of a NUMA node, and moves pages there from other nodes; if the node has no memory left,
    /// another node's is used. Arrays too small for a huge page stay where they are: caches hold them.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub fn place(&self, node: u32) {
        let (address, bytes) = (self.all().as_ptr(), size_of_val(self.all()));
        if bytes < WORTH_A_HUGE_PAGE || address.align_offset(HUGE_PAGE) != 0 {
            return;
        }
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let mut nodes = [0_u64; MOST_NODES as usize / 64];
        let Some(word) = nodes.get_mut(node as usize / 64) else { return };
        *word = 1 << (node % 64);
        // SAFETY: the range lies inside `self.storage`, since arrays that begin at a huge page have
        // their last one to themselves (`new`); a memory policy changes neither its contents nor
        // its protection, only the choice of pages that hold it. `nodes` outlives the call and has
        // as many bits as the kernel reads: one less than `MOST_NODES`. A kernel without NUMA
        // refuses, and has no choice of nodes.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                address,
                bytes,
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                MOST_NODES + 1,
                MPOL_MF_MOVE,
            )
        };
    }

    /// Does nothing where the system has no such call.
    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub fn place(&self, _node: u32) {}

    /// Advises huge pages for this many bytes from the first element on.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn advise_huge_pages(&self, bytes: usize) {
        use rustix::mm::{Advice, madvise};
        if bytes == 0 {
            return;
        }
        let address = self.all().as_ptr().cast_mut().cast();
        // SAFETY: the range lies inside `self.storage` (`new`, the only caller, ensures that), and this
        // advice changes neither contents nor protection, only the size of the pages behind it. A kernel
        // without huge pages refuses; then plain pages serve as well.
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
        // A size that is not a power of two, and one below a huge page.
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

    /// Returns the line of this process's `numa_maps` for the memory at an address.
    #[cfg(target_os = "linux")]
    fn numa_line(address: *const AtomicU16) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let start = format!("{:x} ", address.addr());
        maps.lines().find(|line| line.starts_with(&start)).map(str::to_owned)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_arena_is_placed_where_the_kernel_knows_nodes() {
        if cfg!(miri) || !std::path::Path::new("/proc/self/numa_maps").exists() {
            return;
        }
        let arena = Arena::<AtomicU16>::new(3 << 20);
        arena.place(0);
        let line =
            numa_line(arena.all().as_ptr()).expect("a policy of its own is a line of its own");
        assert!(line.split_whitespace().any(|word| word == "prefer:0"), "{line}");
        // A node that does not exist, and one that cannot exist: ignored.
        arena.place(1023);
        arena.place(u32::MAX);
        assert_eq!(arena.all()[1].load(Ordering::Relaxed), 0);
    }
}
