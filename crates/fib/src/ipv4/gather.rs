//! The IPv4 lookup of 16 addresses at a time, with AVX-512 gathers.
//!
//! ```text
//!  16 addresses --->> 13 --> 2 gathers of 8 words --> 16 bitmaps    16 bases
//!               --->>  8 --> shift counts ------------> shift, popcount + --> gather of 16 leaves
//!                                         if any of these names a deep table: gather of these
//! ```
//!
//! About 25 instructions for 16 lookups: so few that the processor has the cache misses of several
//! groups of 16 in flight at once, without prefetching. Written as assembly for two reasons:
//! gathers then are what the memory model wants them to be, loads of aligned cells that other
//! threads may store to (the compiler's intrinsics are plain reads, for which that would be a data
//! race), and the crate does not depend on a compiler that has stable AVX-512 intrinsics.

use std::arch::asm;

use super::lookup::Shared;
use crate::NextHopId;

/// Addresses per step.
const LANES: usize = 16;

/// The low and the high halves of 16 words that lie in two registers.
static HALVES: [[u32; LANES]; 2] = [
    [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30],
    [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31],
];

/// The slot's number; the mark of a leaf that names a deep table; the last byte of an address; the
/// number of the deep table.
static MASKS: [u32; 4] = [31, 0x8000, 0xff, 0x7fff];

/// Whether the processor has the instructions.
pub(super) fn works() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vpopcntdq")
}

/// Writes the answers for the addresses to `out`; where the lengths differ, the shorter counts.
///
/// # Safety
/// [`works`] must have returned true.
#[inline(always)]
pub(super) unsafe fn lookup_batch(shared: &Shared, addresses: &[u32], out: &mut [NextHopId]) {
    let count = addresses.len().min(out.len());
    let (groups, rest) = addresses[..count].as_chunks::<LANES>();
    let (group_outs, rest_out) = out[..count].as_chunks_mut::<LANES>();
    for (addresses, out) in groups.iter().zip(group_outs) {
        // SAFETY: passed on to the caller.
        unsafe { lookup_16(shared, addresses, out) };
    }
    if !rest.is_empty() {
        let (mut addresses, mut answers) = ([rest[0]; LANES], [0; LANES]);
        addresses[..rest.len()].copy_from_slice(rest);
        // SAFETY: passed on to the caller.
        unsafe { lookup_16(shared, &addresses, &mut answers) };
        rest_out.copy_from_slice(&answers[..rest.len()]);
    }
}

/// The answers for 16 addresses.
///
/// # Safety
/// [`works`] must have returned true.
#[inline(always)]
unsafe fn lookup_16(shared: &Shared, addresses: &[u32; LANES], out: &mut [NextHopId; LANES]) {
    // SAFETY: The instructions exist (the function's contract). The block reads 16 elements of
    // `addresses` and writes 16 of `out`. A word's index is an address's top 19 bits,
    // below the length of `top`. A leaf's index is a word's top 26 bits plus at most 31, below `LEAVES`; that of a deep
    // answer is 15 bits times 256 plus 8 bits, below the length of `deep`. 4 bytes are read where
    // a leaf or an answer has 2, so both arrays are one element longer. Cells of all arrays
    // are only ever written by atomic stores; each gathered element of 8 or 2 aligned bytes is
    // what a relaxed atomic load returns, and the other 2 bytes, from the next element, are thrown
    // away. Each load's address depends on the load before it, which on x86 also has the effect of
    // acquire ordering.
    unsafe {
        asm!(
            "vmovdqu32 zmm23, [{addresses}]",
            // Words.
            "vpsrld zmm17, zmm23, 13",
            "kxnorw k1, k1, k1",
            "kxnorw k2, k2, k2",
            "vextracti64x4 ymm18, zmm17, 1",
            "vpxord zmm19, zmm19, zmm19",
            "vpxord zmm20, zmm20, zmm20",
            "vpgatherdq zmm19{{k1}}, [{top} + ymm17*8]",
            "vpgatherdq zmm20{{k2}}, [{top} + ymm18*8]",
            // Bitmaps and bases.
            "vmovdqu32 zmm21, [{halves}]",
            "vmovdqu32 zmm22, [{halves} + 64]",
            "vpermi2d zmm21, zmm19, zmm20",
            "vpermi2d zmm22, zmm19, zmm20",
            // base + popcount(bitmap >> slot)
            "vpsrld zmm16, zmm23, 8",
            "vpandd zmm16, zmm16, dword ptr [{masks}]{{1to16}}",
            "vpsrlvd zmm21, zmm21, zmm16",
            "vpopcntd zmm21, zmm21",
            "vpsrld zmm22, zmm22, 6",
            "vpaddd zmm21, zmm21, zmm22",
            // Leaves.
            "kxnorw k1, k1, k1",
            "vpxord zmm22, zmm22, zmm22",
            "vpgatherdd zmm22{{k1}}, [{leaves} + zmm21*2]",
            // Deep tables.
            "vptestmd k1, zmm22, dword ptr [{masks} + 4]{{1to16}}",
            "kortestw k1, k1",
            "jz 2f",
            "vpandd zmm16, zmm23, dword ptr [{masks} + 8]{{1to16}}",
            "vpandd zmm17, zmm22, dword ptr [{masks} + 12]{{1to16}}",
            "vpslld zmm17, zmm17, 8",
            "vpord zmm16, zmm16, zmm17",
            "vpgatherdd zmm22{{k1}}, [{deep} + zmm16*2]",
            "2:",
            "vpmovdw ymm22, zmm22",
            "vmovdqu32 [{out}], ymm22",
            addresses = in(reg) addresses.as_ptr(),
            out = in(reg) out.as_mut_ptr(),
            top = in(reg) shared.top.as_ptr(),
            deep = in(reg) shared.deep.as_ptr(),
            leaves = in(reg) shared.leaves.as_ptr(),
            halves = in(reg) HALVES.as_ptr(),
            masks = in(reg) MASKS.as_ptr(),
            out("k1") _, out("k2") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            options(nostack),
        );
    }
}
