//! The rank of a digit among the ten keys of an IPv6 node, with vector instructions.
//!
//! ```text
//!  digit, eight times            >= keys 0 to 7   -> 8 bits \
//!                                >= keys 8, 9, .. -> 8 bits  | the low ten bits are counted
//! ```
//!
//! Unsigned `key <= digit` is `max(key, digit) == digit`. Written as assembly so that the compiler
//! does not see the loads of the keys, which other threads store with atomic instructions: for its
//! own vector loads these stores would be a data race.

use std::arch::asm;

use super::lookup::Node;

/// Keys that count.
const KEYS: u32 = (1 << 10) - 1;

/// Returns true if the processor has the instructions.
pub(super) fn works() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Counts the keys of a node that are not greater than the digit.
///
/// # Safety
/// [`works`] must have returned true.
#[inline(always)]
pub(super) unsafe fn rank(node: &Node, digit: &u16) -> usize {
    let mut bits: u32;
    // SAFETY: The instructions exist (the function's contract). The block reads 2 bytes of `digit`
    // and the first 32 of the 64 bytes of `node`; it writes nothing. The keys are 4-byte cells that
    // are written by atomic stores only: each aligned cell within a vector load is what a relaxed
    // atomic load returns. Using 128-bit registers leaves the upper halves clean, so that code
    // without AVX runs at full speed afterwards.
    unsafe {
        asm!(
            "vpbroadcastw xmm0, word ptr [{digit}]",
            "vpmaxuw xmm1, xmm0, xmmword ptr [{node}]",
            "vpmaxuw xmm2, xmm0, xmmword ptr [{node} + 16]",
            "vpcmpeqw xmm1, xmm1, xmm0",
            "vpcmpeqw xmm2, xmm2, xmm0",
            "vpacksswb xmm1, xmm1, xmm2",
            "vpmovmskb {bits:e}, xmm1",
            digit = in(reg) digit,
            node = in(reg) node.as_ptr(),
            bits = lateout(reg) bits,
            out("xmm0") _, out("xmm1") _, out("xmm2") _,
            options(nostack, preserves_flags, readonly),
        );
    }
    (bits & KEYS).count_ones() as usize
}
