//! Steps for graphs that are composed freely: small ones that each do one thing to any frame.
//!
//! The default graph has none of them. Their names and their ways are those of Click's elements, whose configurations
//! are converted to graphs of them. Where a step looks at a header, `offset` is the header's place in the frame, so that a
//! graph need not move a frame's beginning to look behind its Ethernet header.

mod arp_responder;
mod check_ip6_header;
mod check_ip_header;
mod check_l4_header;
mod check_length;
mod check_paint;
mod classifier;
mod counter;
mod dec_ip6_hlim;
mod dec_ip_ttl;
mod drop_broadcasts;
mod egress_switch;
mod ether_encap;
mod ether_mirror;
mod ether_rewrite;
mod from_dump;
mod hash_switch;
mod host_ether_filter;
mod ip_classifier;
mod ip_filter;
mod ip_lookup;
mod lookup_ip6;
mod macs;
mod meter;
mod nd_advertiser;
mod on_wire;
mod packets;
mod paint;
mod paint_switch;
mod port_switch;
mod print;
mod queue;
mod random_sample;
mod random_switch;
mod rated_splitter;
mod round_robin_switch;
mod schedule;
mod set_ip_checksum;
mod set_ip_dscp;
mod stride;
mod stride_switch;
mod strip;
mod switch;
mod tee;
mod to_dump;
mod to_port;
mod to_queue;
mod unstrip;

use wire::MacAddr;
use wire::checksum::Checksum;
use wire::ip::{IPV4_MIN_LEN, Ipv4Header, Ipv6Header};
use zerocopy::{FromBytes, IntoBytes};

pub use from_dump::Dumps;
pub use meter::Meters;
pub use packets::Sources;
pub use print::{Printed, PrintedPacket};
pub use schedule::{OrderNumber, order_number, with_order_number};

use crate::catalogue::StepSpec;
use crate::graph::{MAX_OUTPUTS, Output};
use crate::params::{Arg, Args, Grammar, Kind, Param, Rate};

/// All of them.
pub(super) fn specs() -> Vec<StepSpec> {
    vec![
        on_wire::spec(),
        port_switch::spec(),
        egress_switch::spec(),
        to_port::spec(),
        strip::spec(),
        unstrip::spec(),
        paint::spec(),
        check_paint::spec(),
        paint_switch::spec(),
        switch::spec(),
        hash_switch::spec(),
        random_switch::spec(),
        round_robin_switch::spec(),
        stride_switch::spec(),
        counter::spec(),
        print::spec(),
        random_sample::spec(),
        rated_splitter::spec(),
        tee::spec(),
        queue::spec(),
        to_queue::spec(),
        schedule::spec(),
        meter::spec(),
        packets::spec(),
        from_dump::spec(),
        to_dump::spec(),
        check_length::spec(),
        classifier::spec(),
        ether_encap::spec(),
        ether_mirror::spec(),
        ether_rewrite::spec(),
        host_ether_filter::spec(),
        drop_broadcasts::spec(),
        check_ip_header::spec(),
        check_l4_header::spec(),
        check_ip6_header::spec(),
        dec_ip_ttl::spec(),
        dec_ip6_hlim::spec(),
        set_ip_dscp::spec(),
        set_ip_checksum::spec(),
        arp_responder::spec(),
        nd_advertiser::spec(),
        ip_lookup::spec(),
        lookup_ip6::spec(),
        ip_classifier::spec(),
        ip_filter::spec(),
    ]
}

/// The largest place of a header in a frame.
const OFFSET_MOST: i64 = 1024;

/// The place of an IP header behind an Ethernet header.
const IP: i64 = 14;

/// A MAC address.
static MAC: Grammar = Grammar { expected: "a MAC such as \"02:00:00:00:00:01\"", check: check_mac };

fn check_mac(text: &str) -> Result<(), String> {
    text.parse::<MacAddr>().map(drop).map_err(|error| error.to_string())
}

/// The parameter `offset`.
fn offset(default: i64, what: &'static str) -> Param {
    Param::new("offset", Kind::Integer(0..=OFFSET_MOST), what).or(Arg::Integer(default))
}

/// The parameter `outputs`, a number of them.
fn outputs() -> Param {
    let most = MAX_OUTPUTS as i64;
    Param::new("outputs", Kind::Integer(1..=most), "the number of outputs, 0, 1, …")
        .or(Arg::Integer(2))
}

/// The outputs of a step with [`outputs`].
fn numbered(args: &Args) -> Vec<Output> {
    (0..args.integer("outputs")).map(|number| Output::Next(number.to_string().into())).collect()
}

/// The parameter `rate`.
fn rate(what: &'static str) -> Param {
    Param::new("rate", Kind::Rate, what)
}

/// A rate by the clock.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rate: Rate,
    hz: u64,
}

impl Pace {
    /// The argument of [`rate`]; `None` without one.
    fn read(args: &Args) -> Option<Self> {
        match args.get("rate") {
            Arg::Rate(rate) => Some(Self { rate: *rate, hz: dpdk::tsc_hz() }),
            _ => None,
        }
    }

    /// The time that a frame of so many bytes takes, in TSC cycles.
    #[inline(always)]
    fn cost(self, bytes: usize) -> u64 {
        let (amount, rate) = match self.rate {
            Rate::Packets(rate) => (1, rate),
            Rate::Bits(rate) => (8 * bytes as u64, rate),
        };
        (u128::from(amount) * u128::from(self.hz) / u128::from(rate.max(1))) as u64
    }
}

/// An argument that is a place in a frame.
fn place(args: &Args) -> usize {
    args.integer("offset") as usize
}

/// An argument that is a MAC, checked by [`MAC`].
fn mac(args: &Args, name: &str) -> [u8; 6] {
    args.text(name).parse().unwrap_or(MacAddr::default()).0
}

/// The IPv4 header at a place of a frame, and its options; `None` if there is none, or not as a whole.
#[inline(always)]
fn ip4_header(frame: &[u8], at: usize) -> Option<(&Ipv4Header, &[u8])> {
    let (header, rest) = Ipv4Header::ref_from_prefix(frame.get(at..)?).ok()?;
    let options =
        header.header_len().checked_sub(IPV4_MIN_LEN).filter(|_| header.version() == 4)?;
    Some((header, rest.get(..options)?))
}

/// Like [`ip4_header`], for writing.
#[inline(always)]
fn ip4_header_mut(frame: &mut [u8], at: usize) -> Option<(&mut Ipv4Header, &[u8])> {
    let (header, rest) = Ipv4Header::mut_from_prefix(frame.get_mut(at..)?).ok()?;
    let options =
        header.header_len().checked_sub(IPV4_MIN_LEN).filter(|_| header.version() == 4)?;
    Some((header, rest.get(..options)?))
}

/// The IPv6 header at a place of a frame; `None` if there is none, or not as a whole.
#[inline(always)]
fn ip6_header(frame: &[u8], at: usize) -> Option<&Ipv6Header> {
    let (header, _) = Ipv6Header::ref_from_prefix(frame.get(at..)?).ok()?;
    (header.version() == 6).then_some(header)
}

/// Like [`ip6_header`], for writing.
#[inline(always)]
fn ip6_header_mut(frame: &mut [u8], at: usize) -> Option<&mut Ipv6Header> {
    let (header, _) = Ipv6Header::mut_from_prefix(frame.get_mut(at..)?).ok()?;
    (header.version() == 6).then_some(header)
}

/// The sum over an IPv4 header and its options, checksum included; 0 if it is intact.
#[inline(always)]
fn ip4_checksum(header: &Ipv4Header, options: &[u8]) -> u16 {
    let mut sum = Checksum::new();
    sum.add(header.as_bytes());
    sum.add(options);
    sum.finish()
}

/// Makes a step of the catalogue with these arguments, for ports of these names.
/// Releases the packets that a step holds; returns their number.
#[cfg(test)]
fn released(step: &mut dyn crate::graph::Step) -> usize {
    let mut count = 0;
    step.release(&mut |_| count += 1);
    count
}

#[cfg(test)]
fn make(kind: &str, args: &[(&str, crate::params::Given)]) -> Box<dyn crate::graph::Step> {
    make_with(&crate::testing::TestTables::every_kind(), kind, args)
}

/// Likewise, with these tables.
#[cfg(test)]
fn make_with(
    tables: &std::sync::Arc<crate::tables::Tables>,
    kind: &str,
    args: &[(&str, crate::params::Given)],
) -> Box<dyn crate::graph::Step> {
    use crate::catalogue::{Catalogue, MakeContext};
    let catalogue = Catalogue::default();
    let spec = catalogue.find(kind).unwrap();
    let given = args.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let args = &Args::read(spec.params(), &given).unwrap();
    let ports = &["left".to_owned(), "right".to_owned()];
    let step = spec.make(&MakeContext { name: "s", args, tables, ports }).unwrap();
    assert_eq!(step.outputs(), spec.outputs(args));
    step
}

/// An argument for [`make`].
#[cfg(test)]
fn text(text: &str) -> crate::params::Given {
    crate::params::Given::Text(text.to_owned())
}

/// Likewise.
#[cfg(test)]
fn number(number: i32) -> crate::params::Given {
    crate::params::Given::Number(number.into())
}

/// Likewise.
#[cfg(test)]
fn list(texts: &[&str]) -> crate::params::Given {
    crate::params::Given::List(texts.iter().map(|one| text(one)).collect())
}
