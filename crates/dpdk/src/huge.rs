//! Tables on huge pages.

use std::mem::MaybeUninit;

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
    fn large_tables_are_advised() {
        if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            return;
        }
        let table = on_huge_pages(4 << 20, |_| 1u8);
        let middle = (&raw const table[2 << 20]) as usize;
        assert!(flags(middle).split(' ').any(|flag| flag == "hg"), "{}", flags(middle));
    }
}
