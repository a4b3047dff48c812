//! Routes from a file or generated, for either family: the reader of `--table` and similar options.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};
use fib::synthetic::{self, Random};
use fib::{Address, Algorithm, GracePeriod, NextHopId, Prefix, Table};
use ipnet::IpNet;

/// A table's routes, each prefix once.
pub type Routes<A> = Vec<(Prefix<A>, NextHopId)>;

/// Properties of an address family that benchmarks need.
pub trait Family: Address {
    /// An address in the format of DPDK's tables.
    type Wire: Copy + Send + Sync + 'static;

    /// Converts an address for DPDK's tables.
    fn wire(bits: Self::Bits) -> Self::Wire;

    /// Returns the prefix, if it is of this family.
    fn prefix(net: IpNet) -> Option<Prefix<Self>>;

    /// Generates a table.
    fn synthetic(routes: usize, next_hops: NextHopId) -> Routes<Self>;

    /// Generates this many adjacent /24 with random next hops; none in IPv6.
    fn subnets(count: u32, next_hops: NextHopId) -> Option<Routes<Self>>;

    /// Creates an empty table of one of our structures.
    fn table(
        algorithm: Algorithm,
        grace: Box<dyn GracePeriod>,
    ) -> Result<Box<dyn Table<Self>>, fib::Error>;

    /// Returns a random address of the family's whole space.
    fn any(random: &mut Random) -> Self::Bits;

    /// Returns a random address of the space assigned to networks: all of IPv4, 2000::/3.
    fn global(random: &mut Random) -> Self::Bits;
}

impl Family for Ipv4Addr {
    type Wire = u32;

    fn wire(bits: u32) -> u32 {
        bits
    }

    fn prefix(net: IpNet) -> Option<Prefix<Self>> {
        match net {
            IpNet::V4(net) => net.try_into().ok(),
            IpNet::V6(_) => None,
        }
    }

    fn synthetic(routes: usize, next_hops: NextHopId) -> Routes<Self> {
        synthetic::ipv4(routes, next_hops)
    }

    fn subnets(count: u32, next_hops: NextHopId) -> Option<Routes<Self>> {
        let mut random = Random::new(1);
        let route = |index: u32| {
            // From 1.0.0.0 on, wrapping around to 0.255.255.0.
            let prefix = Prefix::new(Self::from(index.wrapping_add(1 << 16) << 8), 24).ok()?;
            Some((prefix, random.below(next_hops.into()) as NextHopId + 1))
        };
        (0..count).map(route).collect()
    }

    fn table(
        algorithm: Algorithm,
        grace: Box<dyn GracePeriod>,
    ) -> Result<Box<dyn Table<Self>>, fib::Error> {
        fib::new_ipv4(algorithm, grace)
    }

    fn any(random: &mut Random) -> u32 {
        random.word() as u32
    }

    fn global(random: &mut Random) -> u32 {
        Self::any(random)
    }
}

impl Family for Ipv6Addr {
    type Wire = [u8; 16];

    fn wire(bits: u128) -> [u8; 16] {
        bits.to_be_bytes()
    }

    fn prefix(net: IpNet) -> Option<Prefix<Self>> {
        match net {
            IpNet::V6(net) => net.try_into().ok(),
            IpNet::V4(_) => None,
        }
    }

    fn synthetic(routes: usize, next_hops: NextHopId) -> Routes<Self> {
        synthetic::ipv6(routes, next_hops)
    }

    fn subnets(_: u32, _: NextHopId) -> Option<Routes<Self>> {
        None
    }

    fn table(
        algorithm: Algorithm,
        grace: Box<dyn GracePeriod>,
    ) -> Result<Box<dyn Table<Self>>, fib::Error> {
        fib::new_ipv6(algorithm, grace)
    }

    fn any(random: &mut Random) -> u128 {
        random.wide()
    }

    fn global(random: &mut Random) -> u128 {
        1 << 125 | random.wide() >> 3
    }
}

/// Reads or generates (`synthetic:N`, `subnets:N`) the routes of one family. In a file, origin AS
/// `a` maps to next hop `a mod next_hops + 1`; prefixes of the other family are skipped.
///
/// # Errors
/// The source cannot be read, or has no route of the family. `option` is used in the message.
pub fn load<A: Family>(option: &str, source: &str, next_hops: NextHopId) -> Result<Routes<A>> {
    if let Some(count) = source.strip_prefix("subnets:") {
        let count = count.parse().ok().filter(|count| (1..=1 << 24).contains(count));
        let routes = count.and_then(|count| A::subnets(count, next_hops));
        return routes.with_context(|| {
            format!("{option} {source}: write subnets:N, 1 to 16777216 IPv4 networks of /24")
        });
    }
    if let Some(count) = source.strip_prefix("synthetic:") {
        let count = count.parse().with_context(|| {
            format!("{option} {source}: write synthetic:N, N being the number of prefixes")
        })?;
        ensure!(count > 0, "{option} {source}: at least 1 prefix");
        return Ok(A::synthetic(count, next_hops));
    }
    let table = control::import::read_table(source.as_ref(), &mut |_, _, _| true);
    let table = table.context(option.to_owned())?;
    let next_hop = |origin: u32| (origin % u32::from(next_hops)) as NextHopId + 1;
    let entries = table.entries.into_iter();
    let routes: Routes<A> = entries
        .filter_map(|(net, origin)| A::prefix(net).map(|prefix| (prefix, next_hop(origin))))
        .collect();
    ensure!(!routes.is_empty(), "{option} {source}: no {} prefixes in it", A::FAMILY);
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_made_up_tables_give_routes_of_one_family() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("table");
        std::fs::write(&file, "11.0.0.0/8\t7\n2001:db8::/32\t250\n").unwrap();
        let name = file.to_str().unwrap();
        let v4 = load::<Ipv4Addr>("--table", name, 200).unwrap();
        assert_eq!(v4, [("11.0.0.0/8".parse().unwrap(), 8)]);
        let v6 = load::<Ipv6Addr>("--table6", name, 200).unwrap();
        assert_eq!(v6, [("2001:db8::/32".parse().unwrap(), 51)]);
        assert_eq!(load::<Ipv6Addr>("--table6", "synthetic:300", 9).unwrap().len(), 300);
    }

    #[test]
    fn subnets_lie_side_by_side() {
        let routes = load::<Ipv4Addr>("--table", "subnets:256", 4).unwrap();
        assert_eq!(routes.len(), 256);
        assert_eq!(routes[0].0.to_string(), "1.0.0.0/24");
        assert_eq!(routes[255].0.to_string(), "1.0.255.0/24");
        assert!(routes.iter().all(|(_, hop)| (1..=4).contains(hop)));
        for wrong in ["subnets:0", "subnets:16777217", "subnets:x"] {
            let error = load::<Ipv4Addr>("--table", wrong, 4).unwrap_err().to_string();
            assert!(error.contains("1 to 16777216"), "{error}");
        }
        assert!(load::<Ipv6Addr>("--table6", "subnets:1", 4).is_err());
    }

    #[test]
    fn sources_that_give_nothing_are_named() {
        let text =
            |source: &str| format!("{:#}", load::<Ipv6Addr>("--table6", source, 200).unwrap_err());
        assert!(text("synthetic:many").starts_with("--table6 synthetic:many: write synthetic:N"));
        assert_eq!(text("synthetic:0"), "--table6 synthetic:0: at least 1 prefix");
        assert!(text("/no/such").starts_with("--table6: import /no/such: cannot be opened"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("v4");
        std::fs::write(&file, "11.0.0.0/8\t7\n").unwrap();
        assert!(text(file.to_str().unwrap()).ends_with("no IPv6 prefixes in it"));
    }

    #[test]
    fn global_ipv6_addresses_lie_in_2000_3() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            assert_eq!(Ipv6Addr::global(&mut random) >> 125, 1);
        }
    }
}
