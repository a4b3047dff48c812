//! The IPv4 lookup of 16 addresses at a time, with AVX-512 gathers.
//!
//! ```text
//!  16 addresses --->> 16 --> gather of 16 directory entries
//!               --->> 13 -->  + --> 2 gathers of 8 words --> 16 bitmaps    16 bases
//!               --->>  8 --> shift counts -------------> shift, popcount +  --> gather of 16 leaves
//!                                          if any of these names a deep table: gather of these
//! ```
//!
//! About 30 instructions for 16 lookups: so few that the processor has the cache misses of several
//! groups of 16 in flight at once, without prefetching. Written as assembly for two reasons:
//! gathers then are what the memory model wants them to be, loads of aligned cells that other
//! threads may store to (the compiler's intrinsics are plain reads, for which that would be a data
//! race), and the crate does not depend on a compiler that has stable AVX-512 intrinsics.

#![cfg(target_arch = "x86_64")]

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
/// number of the deep table; the place of a word in its line.
static MASKS: [u32; 5] = [31, 0x8000, 0xff, 0x7fff, 7];

/// Whether the processor has the instructions.
pub(super) fn works() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vpopcntdq")
}

/// Writes the answers for the addresses to `out`, of the same length.
///
/// # Safety
/// [`works`] must have returned true.
#[inline(always)]
pub(super) unsafe fn lookup_batch(shared: &Shared, addresses: &[u32], out: &mut [NextHopId]) {
    for (addresses, out) in addresses.chunks(LANES).zip(out.chunks_mut(LANES)) {
        // SAFETY: passed on to the caller.
        unsafe { lookup_16(shared, addresses, out) };
    }
}

/// At most 16 addresses, and as many answers.
///
/// # Safety
/// [`works`] must have returned true.
#[inline(always)]
unsafe fn lookup_16(shared: &Shared, addresses: &[u32], out: &mut [NextHopId]) {
    let count = addresses.len().min(out.len()).min(LANES);
    let lanes = (1u32 << count) - 1;
    // SAFETY: The instructions exist (the function's contract). Lanes at and beyond `count` are
    // masked off in every load and store, so that the block reads `count` elements of `addresses`
    // and writes `count` of `out`. An entry's index is an address's top 16 bits, below the
    // length of `directory`; the entries are places at which a line of 8 words begins. A leaf's index is a word's top 26 bits plus at most 31, below `LEAVES`; that of a deep
    // answer is 15 bits times 256 plus 8 bits, below the length of `deep`. 4 bytes are read where
    // a leaf or an answer has 2, so both arrays are one element longer. Cells of all arrays
    // are only ever written by atomic stores; each gathered element of 8, 4 or 2 aligned bytes is
    // what a relaxed atomic load returns, and the other 2 bytes, from the next element, are thrown
    // away. Each load's address depends on the load before it, which on x86 also has the effect of
    // acquire ordering.
    unsafe {
        asm!(
            "kmovw k1, {lanes:e}",
            "kmovw k3, k1",
            "kmovw k4, k1",
            "vmovdqu32 zmm23{{k1}}{{z}}, [{addresses}]",
            // Directory entries.
            "vpsrld zmm16, zmm23, 16",
            "kmovw k2, k1",
            "vpxord zmm17, zmm17, zmm17",
            "vpgatherdd zmm17{{k2}}, [{directory} + zmm16*4]",
            // Words.
            "vpsrld zmm16, zmm23, 13",
            "vpandd zmm16, zmm16, dword ptr [{masks} + 16]{{1to16}}",
            "vpaddd zmm17, zmm17, zmm16",
            "kshiftrw k2, k1, 8",
            "vextracti64x4 ymm18, zmm17, 1",
            "vpxord zmm19, zmm19, zmm19",
            "vpxord zmm20, zmm20, zmm20",
            "vpgatherdq zmm19{{k1}}, [{words} + ymm17*8]",
            "vpgatherdq zmm20{{k2}}, [{words} + ymm18*8]",
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
            "vpxord zmm22, zmm22, zmm22",
            "vpgatherdd zmm22{{k3}}, [{leaves} + zmm21*2]",
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
            "vpmovdw [{out}]{{k4}}, zmm22",
            lanes = in(reg) lanes,
            addresses = in(reg) addresses.as_ptr(),
            out = in(reg) out.as_mut_ptr(),
            directory = in(reg) shared.directory.all().as_ptr(),
            words = in(reg) shared.words.all().as_ptr(),
            deep = in(reg) shared.deep.all().as_ptr(),
            leaves = in(reg) shared.leaves.all().as_ptr(),
            halves = in(reg) HALVES.as_ptr(),
            masks = in(reg) MASKS.as_ptr(),
            out("k1") _, out("k2") _, out("k3") _, out("k4") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            options(nostack),
        );
    }
}
