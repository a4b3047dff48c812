//! A small number attached to a packet: the class of traffic that the application has assigned to
//! it.
//!
//! It lies in three of the flags that DPDK leaves to applications
//! (`rte_mbuf_dynflag_register_bitnum`), because those are zero for each packet received by a
//! device or taken from a pool, unlike dynamic fields and the `hash` union, and are in the first
//! cache line.

use std::ffi::c_char;

use dpdk_sys as sys;

use super::RawMbuf;
use crate::Errno;
use crate::error::dpdk_errno;

/// Flags of the number.
const BITS: u32 = 3;

/// The lowest of its flags. Drivers that ask for any flag get low ones, so these are the last.
const SHIFT: u32 = sys::SHIM_MBUF_LAST_FREE.trailing_zeros() + 1 - BITS;

const MASK: u64 = ((1 << BITS) - 1) << SHIFT;

/// Reserves the flags, once per process.
///
/// # Errors
/// A driver has one of them.
pub(crate) fn reserve() -> Result<(), Errno> {
    for bit in SHIFT..SHIFT + BITS {
        let mut of = sys::rte_mbuf_dynflag { name: [0; 64], flags: 0 };
        let name = format!("turnpike_class_{}", bit - SHIFT);
        of.name.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte as c_char);
        // SAFETY: `of` lives over the call, and its name ends with a zero.
        if unsafe { sys::rte_mbuf_dynflag_register_bitnum(&of, bit) } < 0 {
            return Err(dpdk_errno());
        }
    }
    Ok(())
}

/// The class in these flags.
#[inline(always)]
pub(crate) fn of(flags: u64) -> u8 {
    ((flags & MASK) >> SHIFT) as u8
}

/// # Safety
/// `packet` points to an mbuf that is not used elsewhere meanwhile.
#[inline(always)]
pub(crate) unsafe fn set(packet: RawMbuf, class: u8) {
    // SAFETY: by the caller, the field is there to read and write.
    unsafe { packet.set_flags(packet.flags() & !MASK | u64::from(class) << SHIFT & MASK) }
}

#[cfg(test)]
mod tests {
    use crate::testing::pool;

    #[test]
    fn a_class_stays_until_the_packet_is_freed() {
        let pool = pool(7);
        for class in 0..8 {
            let mut packet = pool.copy_of(&[0; 60]).unwrap();
            assert_eq!(packet.traffic_class(), 0, "that of the buffer's last packet");
            packet.set_traffic_class(class);
            assert_eq!(packet.traffic_class(), class);
            assert_eq!(pool.linear_copy_of(&packet).unwrap().traffic_class(), class);
            let mut burst = crate::Burst::new();
            let slot = burst.put(packet).unwrap();
            burst.set_traffic_class(slot, class ^ 7);
            assert_eq!(burst.take(slot).unwrap().traffic_class(), class ^ 7);
        }
    }
}
