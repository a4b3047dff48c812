//! Neighbour discovery messages and options (RFC 4861, 4) and MLDv2 reports (RFC 3810, 5.2).

use std::net::Ipv6Addr;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MacAddr;

/// The hop limit of every neighbour discovery message: no host off the link can send a packet that
/// arrives with it (RFC 4861, 11.2).
pub const ND_HOP_LIMIT: u8 = 255;

/// Option: link-layer address of the sender.
pub const OPTION_SOURCE_LINK_LAYER: u8 = 1;
/// Option: link-layer address of the target.
pub const OPTION_TARGET_LINK_LAYER: u8 = 2;
/// Option: a prefix (RFC 4861, 4.6.2).
pub const OPTION_PREFIX: u8 = 3;
/// Option: the packet that triggered a redirect (RFC 4861, 4.6.3).
pub const OPTION_REDIRECTED: u8 = 4;
/// Option: the link's MTU (RFC 4861, 4.6.4).
pub const OPTION_MTU: u8 = 5;
/// Option: recursive DNS servers (RFC 8106, 5.1).
pub const OPTION_DNS: u8 = 25;

/// Flag in a router advertisement: addresses are available by DHCPv6.
pub const FLAG_MANAGED: u8 = 0x80;
/// Flag in a router advertisement: other configuration is available by DHCPv6.
pub const FLAG_OTHER: u8 = 0x40;
/// Flag of a prefix: its addresses are on the link.
pub const FLAG_ON_LINK: u8 = 0x80;
/// Flag of a prefix: hosts make addresses from it (RFC 4862).
pub const FLAG_AUTONOMOUS: u8 = 0x40;

/// Flag in an advertisement: the sender is a router.
pub const FLAG_ROUTER: u8 = 0x80;
/// Flag in an advertisement: it answers a solicitation.
pub const FLAG_SOLICITED: u8 = 0x40;
/// Flag in an advertisement: replace the cached address.
pub const FLAG_OVERRIDE: u8 = 0x20;

/// Router solicitation (RFC 4861, 4.1); options follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RouterSolicitation {
    /// Type 133.
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// ICMPv6 checksum.
    pub checksum: U16,
    /// 0.
    pub reserved: U32,
}

/// Router advertisement (RFC 4861, 4.2); options follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RouterAdvertisement {
    /// Type 134.
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// ICMPv6 checksum.
    pub checksum: U16,
    /// Hop limit for hosts; 0: not specified.
    pub current_hop_limit: u8,
    /// Managed (0x80) and other configuration (0x40).
    pub flags: u8,
    /// Seconds for which the sender is a default router; 0: it is not one.
    pub router_lifetime: U16,
    /// Milliseconds for which a neighbour counts as reachable; 0: not specified.
    pub reachable_time: U32,
    /// Milliseconds between retransmitted solicitations; 0: not specified.
    pub retransmit_timer: U32,
}

/// Neighbour solicitation (RFC 4861, 4.3); options follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct NeighbourSolicitation {
    /// Type 135.
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// ICMPv6 checksum.
    pub checksum: U16,
    /// 0.
    pub reserved: U32,
    /// Address to resolve.
    pub target_address: [u8; 16],
}

impl NeighbourSolicitation {
    /// Returns the address to resolve.
    pub fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.target_address)
    }
}

/// Neighbour advertisement (RFC 4861, 4.4); options follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct NeighbourAdvertisement {
    /// Type 136.
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// ICMPv6 checksum.
    pub checksum: U16,
    /// [`FLAG_ROUTER`], [`FLAG_SOLICITED`], [`FLAG_OVERRIDE`].
    pub flags: u8,
    /// 0.
    pub reserved: [u8; 3],
    /// Address that is advertised.
    pub target_address: [u8; 16],
}

impl NeighbourAdvertisement {
    /// Returns the address that is advertised.
    pub fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.target_address)
    }
}

/// A prefix in a router advertisement (RFC 4861, 4.6.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct PrefixOption {
    /// [`OPTION_PREFIX`].
    pub kind: u8,
    /// 4: length in units of 8 bytes.
    pub length: u8,
    /// Bits of the prefix.
    pub prefix_length: u8,
    /// [`FLAG_ON_LINK`], [`FLAG_AUTONOMOUS`].
    pub flags: u8,
    /// Seconds for which the prefix is on the link; all ones: for ever.
    pub valid: U32,
    /// Seconds for which addresses made from it are preferred.
    pub preferred: U32,
    /// 0.
    pub reserved: U32,
    /// The prefix, the bits beyond its length 0.
    pub prefix: [u8; 16],
}

/// Redirect (RFC 4861, 4.5); options follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Redirect {
    /// Type 137.
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// ICMPv6 checksum.
    pub checksum: U16,
    /// 0.
    pub reserved: U32,
    /// The better first hop.
    pub target_address: [u8; 16],
    /// The destination that it applies to.
    pub destination_address: [u8; 16],
}

/// A link-layer address option for Ethernet (RFC 2464, 6).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LinkLayerOption {
    /// [`OPTION_SOURCE_LINK_LAYER`] or [`OPTION_TARGET_LINK_LAYER`].
    pub kind: u8,
    /// 1: length in units of 8 bytes.
    pub length: u8,
    /// The address.
    pub mac: MacAddr,
}

/// An option as found in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdOption<'a> {
    /// Type.
    pub kind: u8,
    /// Bytes after type and length; 6 or more.
    pub value: &'a [u8],
}

impl NdOption<'_> {
    /// Returns the address in a link-layer address option of this kind, if its length is that for
    /// Ethernet.
    pub fn link_layer_address(&self, kind: u8) -> Option<MacAddr> {
        if self.kind != kind {
            return None;
        }
        <[u8; 6]>::try_from(self.value).ok().map(MacAddr)
    }
}

/// Error: an option has length 0 or runs past the end of the message, which must be discarded
/// (RFC 4861, 6.1.1, 7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionError;

/// Iterates over the options in `bytes`, the part after a message's fixed fields. After an error the iterator
/// ends.
pub fn options(bytes: &[u8]) -> impl Iterator<Item = Result<NdOption<'_>, OptionError>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let length = rest.get(1).map_or(0, |&units| usize::from(units) * 8);
        if length == 0 || length > rest.len() {
            rest = &[];
            return Some(Err(OptionError));
        }
        let (option, tail) = rest.split_at(length);
        rest = tail;
        Some(Ok(NdOption { kind: option[0], value: &option[2..] }))
    })
}

/// Start of an MLDv2 report (RFC 3810, 5.2); the records follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ListenerReport {
    /// Type 143.
    pub kind: u8,
    /// 0.
    pub reserved1: u8,
    /// ICMPv6 checksum.
    pub checksum: U16,
    /// 0.
    pub reserved2: U16,
    /// Number of records.
    pub records: U16,
}

/// Record type: the listener joins the group for all sources (RFC 3810, 5.2.12).
pub const CHANGE_TO_EXCLUDE: u8 = 4;
/// Record type: the listener is a member for all sources, as answer to a query.
pub const MODE_IS_EXCLUDE: u8 = 2;

/// A record of an MLDv2 report, without sources or auxiliary data.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ListenerRecord {
    /// [`CHANGE_TO_EXCLUDE`] or [`MODE_IS_EXCLUDE`].
    pub kind: u8,
    /// 0.
    pub auxiliary_length: u8,
    /// 0: no sources are excluded.
    pub sources: U16,
    /// The group.
    pub group: [u8; 16],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_one_by_one() {
        let bytes = [1, 1, 2, 0, 0, 0, 0, 9, 14, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        let found: Vec<_> = options(&bytes).map(Result::unwrap).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].link_layer_address(OPTION_SOURCE_LINK_LAYER),
            Some(MacAddr([2, 0, 0, 0, 0, 9]))
        );
        assert_eq!(found[0].link_layer_address(OPTION_TARGET_LINK_LAYER), None);
        assert_eq!((found[1].kind, found[1].value.len()), (14, 14));
        assert_eq!(found[1].link_layer_address(14), None);
    }

    #[test]
    fn a_bad_option_ends_the_walk_with_an_error() {
        for bytes in [&[1u8, 0, 0, 0, 0, 0, 0, 0][..], &[1, 2, 0, 0, 0, 0, 0, 0], &[1]] {
            let found: Vec<_> = options(bytes).collect();
            assert_eq!(found, [Err(OptionError)]);
        }
        assert_eq!(options(&[]).count(), 0);
    }
}
