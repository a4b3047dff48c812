//! Source address selection for the router's own IPv6 packets: RFC 6724, 5.
//!
//! The rules that distinguish candidates here, in their order:
//!
//! | rule | prefers |
//! |---|---|
//! | 1 | the destination itself |
//! | 2 | a scope that reaches the destination, and no larger one |
//! | 6 | the label of the destination, by the default policy table (2.1) |
//! | 8 | the longest prefix in common with it, up to the address's own prefix length |
//!
//! No address is deprecated, a home address or temporary (rules 3, 4, 7); the caller ensures that candidates
//! are those of one interface (rule 5). Of equal candidates the first is taken.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

/// Selects the best of the candidates, addresses with their prefixes, for packets to `destination`.
pub(crate) fn select(
    candidates: impl IntoIterator<Item = Ipv6Net>,
    destination: Ipv6Addr,
) -> Option<Ipv6Addr> {
    let mut candidates = candidates.into_iter();
    let first = candidates.next()?;
    let better = |best: Ipv6Net, next| {
        if preference(next, destination) > preference(best, destination) { next } else { best }
    };
    Some(candidates.fold(first, better).addr())
}

/// Returns the sort key of a candidate; the greatest one is preferred.
fn preference(candidate: Ipv6Net, destination: Ipv6Addr) -> (bool, bool, i16, bool, u8) {
    let source = candidate.addr();
    let (own, wanted) = (scope(source), scope(destination));
    // Sufficient scopes precede insufficient ones; of the former the smaller precedes, of the latter the
    // larger.
    let reaches = own >= wanted;
    let closeness = if reaches { -i16::from(own) } else { i16::from(own) };
    let label = label(source) == label(destination);
    (source == destination, reaches, closeness, label, common_prefix(candidate, destination))
}

/// Returns the scope of an address, numbered like those of multicast addresses (RFC 6724, 3.1).
fn scope(address: Ipv6Addr) -> u8 {
    const LINK: u8 = 2;
    const SITE: u8 = 5;
    const GLOBAL: u8 = 14;
    if address.is_multicast() {
        address.octets()[1] & 0xf
    } else if address.is_unicast_link_local() || address.is_loopback() {
        LINK
    } else if address.segments()[0] & 0xffc0 == 0xfec0 {
        SITE
    } else {
        GLOBAL
    }
}

/// Returns the label of an address in the default policy table (RFC 6724, 2.1), whose longest prefixes come
/// first.
fn label(address: Ipv6Addr) -> u8 {
    let bits = address.to_bits();
    match bits >> 112 {
        _ if bits == 1 => 0,
        _ if bits >> 32 == 0xffff => 4,
        _ if bits >> 32 == 0 => 3,
        _ if bits >> 96 == 0x2001_0000 => 5,
        0x2002 => 2,
        0x3ffe => 12,
        high if high & 0xffc0 == 0xfec0 => 11,
        high if high & 0xfe00 == 0xfc00 => 13,
        _ => 1,
    }
}

/// Number of leading bits that an address has in common with the destination, at most its prefix (RFC 6724,
/// 2.2).
fn common_prefix(candidate: Ipv6Net, destination: Ipv6Addr) -> u8 {
    let differing = candidate.addr().to_bits() ^ destination.to_bits();
    (differing.leading_zeros() as u8).min(candidate.prefix_len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(candidates: &[&str], destination: &str) -> String {
        let nets = candidates.iter().map(|net| net.parse().unwrap());
        select(nets, destination.parse().unwrap()).unwrap().to_string()
    }

    /// RFC 6724, 10.1.
    #[test]
    fn the_examples_of_the_rfc() {
        for (destination, candidates, chosen) in [
            ("2001:db8:1::1", ["2001:db8:3::1/64", "fe80::1/64"], "2001:db8:3::1"),
            ("ff05::1", ["2001:db8:3::1/64", "fe80::1/64"], "2001:db8:3::1"),
            ("2001:db8:1::1", ["2001:db8:1::1/64", "2001:db8:2::1/64"], "2001:db8:1::1"),
            ("fe80::1", ["fe80::2/64", "2001:db8:1::1/64"], "fe80::2"),
            ("2001:db8:1::1", ["2001:db8:1::2/64", "2001:db8:3::2/64"], "2001:db8:1::2"),
            (
                "2002:c633:6401::1",
                ["2001:db8:1::2/64", "2002:c633:6401:0:d5e3:7953:13eb:22e8/64"],
                "2002:c633:6401:0:d5e3:7953:13eb:22e8",
            ),
        ] {
            let mut order = candidates;
            assert_eq!(best(&order, destination), chosen, "{destination}");
            order.reverse();
            assert_eq!(best(&order, destination), chosen, "{destination}, the other way round");
        }
    }

    #[test]
    fn unique_local_addresses_are_for_each_other() {
        let own = ["fd00::1/64", "2001:db8::1/64"];
        assert_eq!(best(&own, "2003::9"), "2001:db8::1");
        assert_eq!(best(&own, "fd99::9"), "fd00::1");
        assert_eq!(best(&["2001:db8::1/64", "fd00::1/64"], "fd99::9"), "fd00::1");
    }

    #[test]
    fn bits_behind_the_prefix_do_not_count_and_the_first_of_two_alike_is_taken() {
        let own = ["2001:db8:0:1::1/64", "2001:db8:0:1:8000::1/64"];
        assert_eq!(best(&own, "2001:db8:0:1:8000::2"), "2001:db8:0:1::1");
        assert_eq!(select([], Ipv6Addr::LOCALHOST), None);
    }

    #[test]
    fn labels_are_those_of_the_default_policy_table() {
        for (address, expected) in [
            ("::1", 0),
            ("2003::1", 1),
            ("2002::1", 2),
            ("::10.0.0.1", 3),
            ("::ffff:10.0.0.1", 4),
            ("2001::1", 5),
            ("2001:db8::1", 1),
            ("fec0::1", 11),
            ("3ffe::1", 12),
            ("fc00::1", 13),
            ("fdff::1", 13),
        ] {
            assert_eq!(label(address.parse().unwrap()), expected, "{address}");
        }
    }
}
