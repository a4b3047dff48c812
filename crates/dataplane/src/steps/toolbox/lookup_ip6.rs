//! `lookup-ip6`: sorts packets by the longest IPv6 prefix of a table of its own that matches their destination.
//!
//! Takes frames with an IPv6 header at `offset`. A route is a prefix and an output, as in `"2001:db8::/32 1"`. The router's
//! own routes are not looked up: for those there is `ip6-lookup`.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of the routes to this output |
//! | drop `unrouted` | without a route, or without an IPv6 header |
//!
//! ```lua
//! graph:path("check.ok", { "lookup-ip6", routes = { "2001:db8:1::/48 0", "::/0 1" }, outputs = 2 })
//! ```

use std::net::Ipv6Addr;
use std::sync::Arc;

use fib::{Algorithm, Lookup, NoReaders, Prefix, SMALL_ROUTES, Table};
use ipnet::Ipv6Net;

use super::{IP, ip6_address, ip6_header, numbered, offset, place};
use crate::batch::{BATCH_MAX, Batch};
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Grammar, Kind, Param};

/// A route.
static ROUTE: Grammar =
    Grammar { expected: "a route such as \"2001:db8::/32 1\"", check: |text| read(text).map(drop) };

fn read(text: &str) -> Result<(Ipv6Net, u16), String> {
    let form = || format!("\"{text}\": expected PREFIX OUTPUT");
    let (prefix, output) = text.split_once(' ').ok_or_else(form)?;
    let output = output.trim().parse().map_err(|_| form())?;
    if usize::from(output) >= MAX_OUTPUTS - 1 {
        return Err(format!("\"{text}\": the largest output is {}", MAX_OUTPUTS - 2));
    }
    Ok((prefix.parse::<Ipv6Net>().map_err(|_| form())?.trunc(), output))
}

pub(super) fn spec() -> StepSpec {
    let most = MAX_OUTPUTS as i64 - 1;
    let routes = Param::new("routes", Kind::ParsedList(&ROUTE), "the routes");
    let count = Param::new("outputs", Kind::Integer(1..=most), "the number of outputs, 0, 1, …");
    StepSpec::new("lookup-ip6", &[], make)
        .outputs_by(all)
        .param(routes.or(Arg::Texts(Vec::new())))
        .param(count.or(Arg::Integer(2)))
        .param(offset(IP, "the IPv6 header's place"))
}

fn all(args: &Args) -> Vec<Output> {
    numbered(args).into_iter().chain([Output::DropAs("unrouted".into())]).collect()
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let outputs = all(context.args);
    let table = table(context.args.texts("routes"), outputs.len() - 1);
    let (reader, at) = (table.reader(), place(context.args));
    Box::new(LookupIp6 { outputs, reader, at, _table: table })
}

/// The table of these routes; an output that the step has not leads to the last one.
fn table(routes: &[String], last: usize) -> Box<dyn Table<Ipv6Addr>> {
    let grace = || Box::new(NoReaders) as _;
    let mut table = match fib::new_small_ipv6(Algorithm::default(), SMALL_ROUTES, grace) {
        Ok(table) => table,
        // The default structure has IPv6.
        Err(error) => unreachable!("{error}"),
    };
    for (net, output) in routes.iter().filter_map(|route| read(route).ok()) {
        let prefix = Prefix::new(net.network(), net.prefix_len());
        let output = output.min(last as u16);
        let _ = prefix.map(|prefix| table.insert(prefix, output + 1));
    }
    table
}

struct LookupIp6 {
    outputs: Vec<Output>,
    reader: Arc<dyn Lookup<Ipv6Addr>>,
    at: usize,
    /// Keeps what the reader reads.
    _table: Box<dyn Table<Ipv6Addr>>,
}

impl Step for LookupIp6 {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let last = self.outputs.len() - 1;
        let (mut addresses, mut found) = ([0; BATCH_MAX], [0; BATCH_MAX]);
        let with_header = input.filter(|slot| {
            let header = ip6_header(batch.frame(slot), self.at);
            if let Some(header) = header {
                addresses[slot] = u128::from_be_bytes(ip6_address(header, 24));
            }
            header.is_some()
        });
        self.reader.lookup_batch(&addresses, &mut found);
        for slot in with_header.slots() {
            let way = usize::from(found[slot]).checked_sub(1).unwrap_or(last);
            out[way.min(last)] |= Mask::when(true, slot);
        }
        out[last] |= input.without(with_header);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{list, make, number};
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
    fn routes_that_are_none_are_refused() {
        for text in ["::/0", ":: 1", "::/0 x", "::/129 1", "::/0 15", "10.0.0.0/8 1"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
