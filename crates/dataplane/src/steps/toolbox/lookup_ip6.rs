//! `lookup-ip6`: sorts packets by the longest IPv6 prefix of a table of its own that matches their destination.
//!
//! Takes frames with an IPv6 header at `offset`. A route is a prefix and an output, as in `"2001:db8::/32 1"`. The router's
//! own routes are not looked up: for those there is `ip6-lookup`. With `address` that is looked up in place of every
//! packet's destination.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of the routes to this output |
//! | drop `unrouted` | without a route; without an IPv6 header, unless there is an `address` |
//!
//! ```lua
//! graph:path("check.ok", { "lookup-ip6", routes = { "2001:db8:1::/48 0", "::/0 1" }, outputs = 2 })
//! ```

use std::net::Ipv6Addr;

use fib::{Algorithm, NoReaders, Prefix, SMALL_ROUTES, Table};
use ipnet::Ipv6Net;

use super::ip_lookup::{Destination, check_address, of_family, read};
use super::ip6_header;
use crate::catalogue::StepSpec;
use crate::params::Grammar;

/// A route.
static ROUTE: Grammar = Grammar {
    expected: "a route such as \"2001:db8::/32 1\"",
    check: |text| read::<Ipv6Addr>(text).map(drop),
};

/// An address, or nothing.
static ADDRESS: Grammar = Grammar {
    expected: "an IPv6 address such as \"2001:db8::1\"",
    check: |text| check_address::<Ipv6Addr>(text),
};

impl Destination for Ipv6Addr {
    fn table() -> Result<Box<dyn Table<Self>>, fib::Error> {
        fib::new_small_ipv6(Algorithm::default(), SMALL_ROUTES, || Box::new(NoReaders))
    }

    fn prefix(text: &str) -> Option<Prefix<Self>> {
        let net = text.parse::<Ipv6Net>().ok()?.trunc();
        Prefix::new(net.network(), net.prefix_len()).ok()
    }

    #[inline(always)]
    fn of(frame: &[u8], at: usize) -> Option<u128> {
        Some(ip6_header(frame, at)?.destination().to_bits())
    }
}

pub(super) fn spec() -> StepSpec {
    of_family::<Ipv6Addr>("lookup-ip6", (&ROUTE, &ADDRESS), "the IPv6 header's place")
}

#[cfg(test)]
mod tests {
    use super::super::{list, make, number, text};
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn the_longest_prefix_counts() {
        let routes = list(&[
            "2001:db8::/32 0",
            "2001:db8:1::/48 1",
            "2001:db8:1::1/128 2",
            "2001:db8:9::/48 7",
        ]);
        let mut step = make("lookup-ip6", &[("routes", routes), ("outputs", number(3))]);
        let to = |address| FrameBuilder::ip6().destination6(address).build();
        let mut frames: Vec<_> =
            ["2001:db8:2::1", "2001:db8:1::2", "2001:db8:1::1", "2001:db9::1", "2001:db8:9::1"]
                .map(to)
                .into();
        frames.push(vec![0; 60]);
        let (result, _) = run_step(&mut *step, &frames);
        assert_eq!(
            ["0", "1", "2"].map(|output| result[output].clone()),
            [vec![0], vec![1], vec![2]]
        );
        assert_eq!(result["unrouted"], [3, 4, 5]);
    }

    #[test]
    fn one_address_may_stand_for_all() {
        let args = [("routes", list(&["2001:db8::/32 1"])), ("address", text("2001:db8::1"))];
        let mut step = make("lookup-ip6", &args);
        assert_eq!(run_step(&mut *step, &[vec![0; 60]]).0["1"], [0]);
        assert!((ADDRESS.check)("10.0.0.1").is_err());
    }

    #[test]
    fn routes_that_are_none_are_refused() {
        for text in ["::/0", ":: 1", "::/0 x", "::/129 1", "::/0 15", "10.0.0.0/8 1"] {
            assert!(read::<Ipv6Addr>(text).is_err(), "{text}");
        }
    }
}
