//! `ip-lookup`: sorts packets by the longest prefix of a table of its own that matches their destination.
//!
//! Takes frames with an IPv4 header at `offset`. A route is a prefix and an output, as in `"10.0.0.0/8 1"`. The router's
//! own routes are not looked up: for those there is `ip4-lookup`. With `address` that is looked up in place of every
//! packet's destination.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of the routes to this output |
//! | drop `unrouted` | without a route; without an IPv4 header, unless there is an `address` |
//!
//! ```lua
//! graph:path("check.ok", { "ip-lookup", routes = { "10.0.1.0/24 0", "0.0.0.0/0 1" }, outputs = 2 })
//! ```

use std::fmt::Display;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use fib::{Address, Algorithm, Lookup, NoReaders, Prefix, SMALL_ROUTES, Table};
use ipnet::Ipv4Net;

use super::{IP, ip4_header, numbered, offset, place};
use crate::batch::{BATCH_MAX, Batch};
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Grammar, Kind, Param};

/// A route.
static ROUTE: Grammar = Grammar {
    expected: "a route such as \"10.0.0.0/8 1\"",
    check: |text| read::<Ipv4Addr>(text).map(drop),
};

/// An address, or nothing.
static ADDRESS: Grammar = Grammar {
    expected: "an IPv4 address such as \"10.0.0.1\"",
    check: |text| check_address::<Ipv4Addr>(text),
};

/// Returns the reason for which a text is neither an address nor empty.
pub(super) fn check_address<A: FromStr<Err: Display>>(text: &str) -> Result<(), String> {
    match text {
        "" => Ok(()),
        text => text.parse::<A>().map(drop).map_err(|error| format!("\"{text}\": {error}")),
    }
}

/// A family of destinations.
pub(super) trait Destination: Address {
    /// Makes an empty table that begins small.
    fn table() -> Result<Box<dyn Table<Self>>, fib::Error>;

    /// Reads a prefix; host bits do not count.
    fn prefix(text: &str) -> Option<Prefix<Self>>;

    /// The destination of the packet whose header is at this place of a frame.
    fn of(frame: &[u8], at: usize) -> Option<Self::Bits>;
}

impl Destination for Ipv4Addr {
    fn table() -> Result<Box<dyn Table<Self>>, fib::Error> {
        fib::new_small_ipv4(Algorithm::default(), SMALL_ROUTES, || Box::new(NoReaders))
    }

    fn prefix(text: &str) -> Option<Prefix<Self>> {
        let net = text.parse::<Ipv4Net>().ok()?.trunc();
        Prefix::new(net.network(), net.prefix_len()).ok()
    }

    #[inline(always)]
    fn of(frame: &[u8], at: usize) -> Option<u32> {
        let (header, _) = ip4_header(frame, at)?;
        Some(header.destination().to_bits())
    }
}

/// Reads a route: a prefix and an output.
pub(super) fn read<A: Destination>(text: &str) -> Result<(Prefix<A>, u16), String> {
    let form = || format!("\"{text}\": expected PREFIX OUTPUT");
    let (prefix, output) = text.split_once(' ').ok_or_else(form)?;
    let output = output.trim().parse().map_err(|_| form())?;
    if usize::from(output) >= MAX_OUTPUTS - 1 {
        return Err(format!("\"{text}\": the largest output is {}", MAX_OUTPUTS - 2));
    }
    Ok((A::prefix(prefix).ok_or_else(form)?, output))
}

pub(super) fn spec() -> StepSpec {
    of_family::<Ipv4Addr>("ip-lookup", (&ROUTE, &ADDRESS), "the IPv4 header's place")
}

/// The step of this name for a family whose routes and addresses have these grammars.
pub(super) fn of_family<A: Destination>(
    name: &str,
    (route, address): (&'static Grammar, &'static Grammar),
    header: &'static str,
) -> StepSpec {
    let most = MAX_OUTPUTS as i64 - 1;
    let routes = Param::new("routes", Kind::ParsedList(route), "the routes");
    let count = Param::new("outputs", Kind::Integer(1..=most), "the number of outputs, 0, 1, …");
    let address = Param::new("address", Kind::Parsed(address), "looked up for all packets");
    StepSpec::new(name, &[], make::<A>)
        .outputs_by(all)
        .param(routes.or(Arg::Texts(Vec::new())))
        .param(count.or(Arg::Integer(2)))
        .param(offset(IP, header))
        .param(address.or(Arg::Text(String::new())))
}

fn all(args: &Args) -> Vec<Output> {
    numbered(args).into_iter().chain([Output::DropAs("unrouted".into())]).collect()
}

fn make<A: Destination>(context: &MakeContext<'_>) -> Box<dyn Step> {
    let outputs = all(context.args);
    let table = table::<A>(context.args.texts("routes"), outputs.len() - 1);
    let (reader, at) = (table.reader(), place(context.args));
    // Its routes stay as long as the step.
    let address = context.args.text("address").parse::<A>().ok();
    let way = address.map(|address| {
        let mut found = [0];
        reader.lookup_batch(&[address.into()], &mut found);
        way(found[0], outputs.len() - 1)
    });
    Box::new(OwnLookup { outputs, reader, at, way, _table: table })
}

/// The table of these routes; an output that the step has not leads to the last one.
fn table<A: Destination>(routes: &[String], last: usize) -> Box<dyn Table<A>> {
    let mut table = match A::table() {
        Ok(table) => table,
        // The default structure has both families.
        Err(error) => unreachable!("{error}"),
    };
    for (prefix, output) in routes.iter().filter_map(|route| read(route).ok()) {
        let _ = table.insert(prefix, output.min(last as u16) + 1);
    }
    table
}

/// The output of what a lookup has found.
#[inline(always)]
fn way(found: u16, last: usize) -> usize {
    usize::from(found).checked_sub(1).unwrap_or(last).min(last)
}

struct OwnLookup<A: Destination> {
    outputs: Vec<Output>,
    reader: Arc<dyn Lookup<A>>,
    at: usize,
    /// The output of all packets, if one address is looked up for them.
    way: Option<usize>,
    /// Keeps what the reader reads.
    _table: Box<dyn Table<A>>,
}

impl<A: Destination> Step for OwnLookup<A> {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        if let Some(way) = self.way {
            out[way] = input;
            return;
        }
        let last = self.outputs.len() - 1;
        let (mut addresses, mut found) = ([A::Bits::default(); BATCH_MAX], [0; BATCH_MAX]);
        let with_header = input.filter(|slot| {
            let address = A::of(batch.frame(slot), self.at);
            addresses[slot] = address.unwrap_or_default();
            address.is_some()
        });
        self.reader.lookup_batch(&addresses, &mut found);
        for slot in with_header.slots() {
            out[way(found[slot], last)] |= Mask::when(true, slot);
        }
        out[last] |= input.without(with_header);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{list, make, number, text};
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn the_longest_prefix_counts() {
        let routes = list(&["10.0.0.0/8 0", "10.1.0.0/16 1", "10.1.2.3/32 2", "10.9.0.0/16 7"]);
        let mut step = make("ip-lookup", &[("routes", routes), ("outputs", number(3))]);
        let to = |address| FrameBuilder::ip4().destination4(address).build();
        let mut frames: Vec<_> =
            ["10.2.0.1", "10.1.0.1", "10.1.2.3", "11.0.0.1", "10.9.0.1"].map(to).into();
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
        let routes = || list(&["10.0.0.0/8 0", "10.1.0.0/16 1"]);
        let frames = [FrameBuilder::ip4().destination4("10.2.0.1").build(), vec![0; 60]];
        for (address, output) in [("10.1.0.1", "1"), ("10.2.0.1", "0"), ("11.0.0.1", "unrouted")] {
            let mut step = make("ip-lookup", &[("routes", routes()), ("address", text(address))]);
            assert_eq!(run_step(&mut *step, &frames).0[output], [0, 1], "{address}");
        }
        assert!((ADDRESS.check)("10.0.0").is_err());
    }

    #[test]
    fn routes_that_are_none_are_refused() {
        for text in ["10.0.0.0/8", "10.0.0.0 1", "10.0.0.0/8 x", "10.0.0.0/33 1", "10.0.0.0/8 15"] {
            assert!(read::<Ipv4Addr>(text).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn it_agrees_with_a_walk_over_the_routes(
            routes in proptest::collection::vec((0u32..64, 24u8..=32, 0u16..3), 0..20),
            addresses in proptest::collection::vec(0u32..64, 1..20),
        ) {
            let address = |low: u32| Ipv4Addr::from(0x0a00_0000 | (low * 5));
            let net = |low, len| Ipv4Net::new(address(low), len).unwrap().trunc();
            let texts: Vec<_> =
                routes.iter().map(|&(low, len, out)| format!("{} {out}", net(low, len))).collect();
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            let mut step = make("ip-lookup", &[("routes", list(&texts)), ("outputs", number(3))]);
            let frames: Vec<_> = addresses.iter().map(|&low| {
                FrameBuilder::ip4().destination4(&address(low).to_string()).build()
            }).collect();
            let (result, _) = run_step(&mut *step, &frames);
            for (slot, &low) in addresses.iter().enumerate() {
                // Of equal prefixes the last one counts.
                let best = routes.iter().enumerate().filter(|(_, (of, len, _))| {
                    net(*of, *len).contains(&address(low))
                }).max_by_key(|(n, (_, len, _))| (*len, *n));
                let output = best.map_or("unrouted".to_owned(), |(_, (.., out))| out.to_string());
                proptest::prop_assert!(result[&output].contains(&slot), "{} {:?}", output, result);
            }
        }
    }
}
