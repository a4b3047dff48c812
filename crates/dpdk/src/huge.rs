//! Tables and packet memory on huge pages.

use std::fs;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::Errno;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of an ordinary page.
const PAGE: usize = 4096;

/// Makes a table of `len` elements in memory that the kernel is asked to back with huge pages: otherwise each access
/// to a random element of a table of some megabytes also misses the TLB. Smaller tables get ordinary memory, and so do up
/// to 2 MiB at either end of a large one.
pub fn on_huge_pages<T>(len: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
    let mut table = Vec::with_capacity(len);
    advise(table.spare_capacity_mut());
    table.extend((0..len).map(make));
    table.into_boxed_slice()
}

/// Advises before the memory is first written, when its pages are chosen.
fn advise<T>(memory: &mut [MaybeUninit<T>]) {
    let bytes = size_of_val(memory);
    let first = memory.as_mut_ptr().cast::<u8>();
    let skipped = first.align_offset(PAGE);
    if bytes < HUGE_PAGE || skipped >= bytes {
        return;
    }
    // SAFETY: whole pages inside the memory, which is borrowed; the advice changes neither contents nor protection,
    // only the size of the pages behind it. A kernel without huge pages refuses, and has none to give.
    let _ = unsafe {
        libc::madvise(
            first.add(skipped).cast(),
            (bytes - skipped) / PAGE * PAGE,
            libc::MADV_HUGEPAGE,
        )
    };
}

/// Returns true if the kernel gives huge pages to memory for which it is asked to.
pub(crate) fn are_given() -> bool {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]"))
}

/// Returns the whole huge pages within memory of so many bytes at an address.
fn whole_pages(start: usize, bytes: usize) -> Range<usize> {
    let end = (start + bytes) / HUGE_PAGE * HUGE_PAGE;
    start.next_multiple_of(HUGE_PAGE).min(end)..end
}

/// Replaces the whole huge pages within some memory by memory of this process alone, which is zero, and which the kernel is
/// asked to back with huge pages. Forked processes do not have it: their copies would cost time and take pages away from
/// devices that write to them.
///
/// # Errors
/// The kernel refuses; the memory may not be there any more.
///
/// # Safety
/// The memory is mapped, and nobody uses it or has told its pages to a device.
pub(crate) unsafe fn replace(start: *mut u8, bytes: usize) -> Result<(), Errno> {
    let pages = whole_pages(start.addr(), bytes);
    if pages.is_empty() {
        return Ok(());
    }
    let first = start.with_addr(pages.start).cast();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: by the caller, all of it is memory that nobody uses.
    let mapped = unsafe { libc::mmap(first, pages.len(), access, kind, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTFORK] {
        // SAFETY: the mapping just made; neither changes its contents.
        let _ = unsafe { libc::madvise(first, pages.len(), advice) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_all_sizes_have_their_elements() {
        for len in [0, 1, 5000, 300_001] {
            let table = on_huge_pages(len, |at| at as u64);
            assert!(table.iter().copied().eq(0..len as u64), "{len}");
        }
    }

    /// `VmFlags` of the mapping that holds this address; `hg` is the advice.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bounds = range.map(|(from, to)| [from, to].map(|at| usize::from_str_radix(at, 16)));
            match bounds {
                Some([Ok(from), Ok(to)]) => inside = (from..to).contains(&address),
                _ if inside && line.starts_with("VmFlags:") => return line.to_owned(),
                _ => {}
            }
        }
        String::new()
    }

    #[test]
    fn only_whole_pages_are_replaced() {
        const MB: usize = 1 << 20;
        assert_eq!(whole_pages(4 * MB, 4 * MB), 4 * MB..8 * MB);
        assert_eq!(whole_pages(4 * MB + 1, 4 * MB), 6 * MB..8 * MB);
        assert_eq!(whole_pages(4 * MB - 1, 4 * MB), 4 * MB..6 * MB);
        for (start, bytes) in [(4 * MB + 1, 2 * MB), (5 * MB, MB), (5 * MB, MB - 1), (4 * MB, 0)] {
            assert!(whole_pages(start, bytes).is_empty(), "{start} {bytes}");
        }
    }

    #[test]
    fn replaced_memory_is_zero_and_the_rest_as_before() {
        let mut memory = vec![7_u8; 3 * HUGE_PAGE];
        let pages = whole_pages(memory.as_ptr().addr(), memory.len());
        let offset = pages.start - memory.as_ptr().addr();
        // SAFETY: the vector's own memory.
        unsafe { replace(memory.as_mut_ptr(), memory.len()) }.unwrap();
        let inside = offset..offset + pages.len();
        assert!(memory.iter().enumerate().all(|(at, &byte)| (byte == 0) == inside.contains(&at)));
        if are_given() {
            assert!(
                flags(pages.start).split(' ').any(|flag| flag == "hg"),
                "{}",
                flags(pages.start)
            );
        }
        assert!(flags(pages.start).split(' ').any(|flag| flag == "dc"), "not in forked processes");
    }

    #[test]
    fn large_tables_are_advised() {
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            return;
        }
        let table = on_huge_pages(4 << 20, |_| 1u8);
        let middle = (&raw const table[2 << 20]) as usize;
        assert!(flags(middle).split(' ').any(|flag| flag == "hg"), "{}", flags(middle));
    }
}
