//! Addresses and prefixes, the same for both families.
//!
//! [`Address`] joins the address types of the standard library with the integers that the tables
//! compute on: `u32` for IPv4, `u128` for IPv6, most significant bit first, as
//! `u32::from(Ipv4Addr)` gives them. [`Prefix`] is a network whose host bits are known to be zero.

use std::{
    fmt::{Debug, Display},
    hash::Hash,
    net::{Ipv4Addr, Ipv6Addr},
    ops::{BitAnd, BitOr, BitXor, Not},
    str::FromStr,
};

use crate::Error;

mod sealed {
    pub trait Sealed {}
    impl Sealed for std::net::Ipv4Addr {}
    impl Sealed for std::net::Ipv6Addr {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
}

/// The integer behind an address: `u32` or `u128`.
///
/// Numeric order is address order. The dataplane makes one from the header's bytes with
/// `u32::from_be_bytes` or `u128::from_be_bytes`, one or two byte-swap instructions.
pub trait Bits:
    sealed::Sealed
    + Copy
    + Ord
    + Hash
    + Debug
    + Default
    + Send
    + Sync
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + 'static
{
    /// Number of bits: 32 or 128.
    const WIDTH: u8;

    /// Returns `len` ones from the top, the rest zeros; lengths beyond the width count as the width.
    fn mask(len: u8) -> Self;

    /// The `count` (at most 32) bits that begin `from` bits below the top, right-aligned. Bits
    /// below the last read as zero.
    fn slice(self, from: u8, count: u8) -> u32;

    /// The integer without its leading `count` (fewer than [`Bits::WIDTH`]) bits: the next ones move up, zeros
    /// follow.
    fn skip(self, count: u8) -> Self;

    /// Returns an integer with the `count` low bits of `value` placed `from` bits below the top.
    fn place(value: u32, from: u8, count: u8) -> Self;

    /// Returns the number of leading zero bits.
    fn leading(self) -> u8;

    /// Returns the next integer, 0 after the last.
    fn next(self) -> Self;
}

macro_rules! bits {
    ($integer:ty, $width:expr) => {
        impl Bits for $integer {
            const WIDTH: u8 = $width;

            fn mask(len: u8) -> Self {
                if len == 0 { 0 } else { <$integer>::MAX << ($width - len.min($width)) }
            }

            fn slice(self, from: u8, count: u8) -> u32 {
                if count == 0 || from >= $width {
                    return 0;
                }
                let aligned = (self << from) >> ($width - 32);
                (aligned as u32) >> (32 - count)
            }

            fn skip(self, count: u8) -> Self {
                self << count
            }

            fn place(value: u32, from: u8, count: u8) -> Self {
                if count == 0 || from >= $width {
                    return 0;
                }
                let top = (value as $integer) << ($width - 32) << (32 - count);
                top >> from
            }

            fn leading(self) -> u8 {
                self.leading_zeros() as u8
            }

            fn next(self) -> Self {
                self.wrapping_add(1)
            }
        }
    };
}

bits!(u32, 32);
bits!(u128, 128);

/// An IP address: [`Ipv4Addr`] or [`Ipv6Addr`].
pub trait Address:
    sealed::Sealed
    + Copy
    + Ord
    + Hash
    + Debug
    + Display
    + FromStr
    + From<Self::Bits>
    + Into<Self::Bits>
    + Send
    + Sync
    + 'static
{
    /// The integer that tables compute on.
    type Bits: Bits;

    /// "IPv4" or "IPv6", for messages.
    const FAMILY: &'static str;

    /// Returns the address as an integer, most significant bit first.
    fn bits(self) -> Self::Bits {
        self.into()
    }
}

impl Address for Ipv4Addr {
    type Bits = u32;
    const FAMILY: &'static str = "IPv4";
}

impl Address for Ipv6Addr {
    type Bits = u128;
    const FAMILY: &'static str = "IPv6";
}

/// A network: an address and the number of its leading bits that count.
///
/// The remaining bits are zero; the constructors refuse anything else. Prefixes order by address,
/// then length, so that a prefix comes directly before those nested in it.
///
/// ```
/// use std::net::Ipv4Addr;
/// let lan: fib::Prefix<Ipv4Addr> = "192.0.2.0/24".parse().unwrap();
/// assert!(lan.contains(Ipv4Addr::new(192, 0, 2, 77)));
/// assert!("192.0.2.1/24".parse::<fib::Prefix<Ipv4Addr>>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix<A: Address> {
    address: A,
    len: u8,
}

impl<A: Address> Prefix<A> {
    /// Creates the network `address/len`.
    ///
    /// # Errors
    /// [`Error::PrefixLength`] if `len` exceeds the family's, [`Error::HostBits`] if the address has a bit set
    /// beyond the prefix.
    pub fn new(address: A, len: u8) -> Result<Self, Error> {
        if len > A::Bits::WIDTH {
            return Err(Error::PrefixLength { len, family: A::FAMILY, most: A::Bits::WIDTH });
        }
        let prefix = Self::covering(address, len);
        if prefix.address != address {
            return Err(Error::HostBits {
                prefix: format!("{address}/{len}"),
                network: format!("{prefix}"),
            });
        }
        Ok(prefix)
    }

    /// Returns the network of this length that holds `address`: host bits are cleared, and a length
    /// beyond the family's counts as the family's.
    pub fn covering(address: A, len: u8) -> Self {
        let len = len.min(A::Bits::WIDTH);
        Self { address: A::from(address.bits() & A::Bits::mask(len)), len }
    }

    /// Returns the host route to an address.
    pub fn host(address: A) -> Self {
        Self { address, len: A::Bits::WIDTH }
    }

    /// Returns the network's first address.
    pub fn address(&self) -> A {
        self.address
    }

    /// Returns the prefix length.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Returns the network's first address as an integer.
    pub fn bits(&self) -> A::Bits {
        self.address.bits()
    }

    /// Returns the network's last address as an integer.
    pub fn last_bits(&self) -> A::Bits {
        self.bits() | !A::Bits::mask(self.len)
    }

    /// Returns true if the address belongs to the network.
    pub fn contains(&self, address: A) -> bool {
        address.bits() & A::Bits::mask(self.len) == self.bits()
    }
}

impl<A: Address> Display for Prefix<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl<A: Address> Debug for Prefix<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Display::fmt(self, f)
    }
}

impl<A: Address> FromStr for Prefix<A> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::NotAPrefix { text: text.to_owned(), family: A::FAMILY };
        let (address, len) = text.split_once('/').ok_or_else(wrong)?;
        let address = address.parse::<A>().map_err(|_| wrong())?;
        Self::new(address, len.parse().map_err(|_| wrong())?)
    }
}

impl TryFrom<ipnet::Ipv4Net> for Prefix<Ipv4Addr> {
    type Error = Error;

    fn try_from(net: ipnet::Ipv4Net) -> Result<Self, Error> {
        Self::new(net.addr(), net.prefix_len())
    }
}

impl TryFrom<ipnet::Ipv6Net> for Prefix<Ipv6Addr> {
    type Error = Error;

    fn try_from(net: ipnet::Ipv6Net) -> Result<Self, Error> {
        Self::new(net.addr(), net.prefix_len())
    }
}

impl From<Prefix<Ipv4Addr>> for ipnet::Ipv4Net {
    fn from(prefix: Prefix<Ipv4Addr>) -> Self {
        Self::new_assert(prefix.address, prefix.len)
    }
}

impl From<Prefix<Ipv6Addr>> for ipnet::Ipv6Net {
    fn from(prefix: Prefix<Ipv6Addr>) -> Self {
        Self::new_assert(prefix.address, prefix.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_count_from_the_top() {
        assert_eq!(0x1234_5678u32.slice(0, 8), 0x12);
        assert_eq!(0x1234_5678u32.slice(8, 16), 0x3456);
        assert_eq!(0x1234_5678u32.slice(28, 6), 0b10_0000, "bits below the last are zero");
        assert_eq!(0x1234_5678u32.slice(32, 6), 0);
        let address = 0x2001_0db8_0000_0000_0000_0000_0000_00ffu128;
        assert_eq!(address.slice(0, 32), 0x2001_0db8);
        assert_eq!(address.slice(120, 8), 0xff);
        assert_eq!(address.slice(126, 6), 0b11_0000);
    }

    #[test]
    fn skipping_and_slicing_from_the_top_is_slicing_further_down() {
        let address = 0x2001_0db8_1234_5678_9abc_def0_0000_00ffu128;
        for from in 0..128 {
            assert_eq!(address.skip(from).slice(0, 6), address.slice(from, 6));
        }
        assert_eq!(0x1234_5678u32.skip(28).slice(0, 6), 0x1234_5678u32.slice(28, 6));
    }

    #[test]
    fn place_undoes_slice() {
        assert_eq!(u32::place(0x56, 16, 8), 0x5600);
        assert_eq!(u128::place(0xff, 120, 8), 0xff);
        assert_eq!(u128::place(0b11_0000, 126, 6), 0b11);
    }

    #[test]
    fn masks_at_both_ends() {
        assert_eq!(u32::mask(0), 0);
        assert_eq!(u32::mask(32), u32::MAX);
        assert_eq!(u128::mask(1), 1 << 127);
        assert_eq!(u128::mask(200), u128::MAX);
    }

    #[test]
    fn host_bits_and_lengths_are_refused_with_a_way_out() {
        let error = "10.0.0.1/8".parse::<Prefix<Ipv4Addr>>().unwrap_err().to_string();
        assert!(error.contains("10.0.0.1/8") && error.contains("10.0.0.0/8"), "{error}");
        assert!("10.0.0.0/33".parse::<Prefix<Ipv4Addr>>().is_err());
        assert!("::/129".parse::<Prefix<Ipv6Addr>>().is_err());
        assert!("10.0.0.0".parse::<Prefix<Ipv4Addr>>().is_err());
    }

    #[test]
    fn ipnet_goes_both_ways() {
        let net: ipnet::Ipv6Net = "2001:db8::/32".parse().unwrap();
        let prefix = Prefix::try_from(net).unwrap();
        assert_eq!(ipnet::Ipv6Net::from(prefix), net);
        let host_bits: ipnet::Ipv4Net = "10.0.0.1/8".parse().unwrap();
        assert!(Prefix::try_from(host_bits).is_err());
    }
}
