//! Tests that an exchange has the same result as a start with the new table.

use proptest::prelude::*;

use super::super::{Compression, Format, REFUSALS_KEPT, route};
use super::*;
use crate::rib::tests::two_ports;
use crate::rib::{Path as RoutePath, RouteInfo};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn over(port: u16, via: &str) -> RoutePath {
    RoutePath::over(dataplane::interface::InterfaceId::new(port).unwrap(), via.parse().unwrap())
}

fn table(entries: Vec<(IpNet, u32)>) -> Table {
    Table { entries, ..Table::new(Format::Text, Compression::None) }
}

fn over_both_ports() -> config::Import {
    config::Import {
        line: 1,
        file: "table".into(),
        modified: None,
        via4: vec![over(0, "10.0.1.2"), over(1, "10.0.2.2")],
        via6: Vec::new(),
    }
}

/// Does all of an exchange; returns its report, if it has one, and the number of routes removed.
fn finish(mut exchange: Exchange, rib: &mut Rib) -> (Option<ImportReport>, usize) {
    let mut report = None;
    loop {
        match exchange.go_on(rib) {
            Progress::More => {}
            Progress::Loaded(loaded) => report = Some(*loaded),
            Progress::Done(removed) => return (report, removed),
        }
    }
}

fn routes(rib: &Rib) -> Vec<RouteInfo> {
    rib.routes().filter(|route| route.source == RouteSource::Import).collect()
}

/// Returns a RIB with these tables of two imports, as after a start.
fn with(first: &[(IpNet, u32)], second: &[(IpNet, u32)]) -> Rib {
    let (mut rib, import) = (two_ports(), over_both_ports());
    for (metric, entries) in [(0, first), (1, second)] {
        let ipv4 = entries.iter().filter(|(prefix, _)| prefix.addr().is_ipv4());
        rib.load(ipv4.map(|&(prefix, origin)| route(prefix, origin, &import.via4, metric)));
    }
    rib
}

#[test]
fn a_prefix_of_both_tables_is_routed_all_the_time() {
    let old: Vec<_> =
        (0..2000u32).map(|n| (net(&format!("20.{}.{}.0/24", n >> 8, n & 255)), n)).collect();
    let new: Vec<_> = old[1000..].iter().map(|&(prefix, origin)| (prefix, origin + 1)).collect();
    let mut rib = with(&old, &[]);
    let mut exchange = Exchange::to_table(&over_both_ports(), 0, table(new.clone()));
    let mut pieces = 0;
    let removed = loop {
        match exchange.go_on(&mut rib) {
            Progress::Done(removed) => break removed,
            Progress::Loaded(report) => assert_eq!((report.ipv4, report.ipv6), (1000, 0)),
            Progress::More => pieces += 1,
        }
        let active = routes(&rib).iter().filter(|route| route.active).count();
        assert!(active >= 1000, "{active} routes");
        for (prefix, _) in &new {
            assert!(rib.lookup(VrfId::DEFAULT, prefix.addr()).is_some(), "{prefix}");
        }
    };
    assert!(pieces >= 5, "{pieces} pieces");
    assert_eq!((removed, routes(&rib)), (1000, routes(&with(&new, &[]))));
}

#[test]
fn a_family_that_loses_its_gateways_loses_its_routes() {
    let entries = vec![(net("198.51.100.0/24"), 1), (net("2001:db8::/32"), 2)];
    let mut rib = with(&entries, &[]);
    assert_eq!(routes(&rib).len(), 1, "there is no IPv6 gateway");
    let other =
        config::Import { via4: Vec::new(), via6: vec![over(1, "fd00:2::2")], ..over_both_ports() };
    let (report, removed) = finish(Exchange::to_table(&other, 0, table(entries)), &mut rib);
    let report = report.unwrap();
    assert_eq!((report.ipv4, report.ipv6, report.without_gateway4, removed), (0, 1, 1, 1));
    let left: Vec<_> = routes(&rib).into_iter().map(|route| route.prefix).collect();
    assert_eq!(left, [net("2001:db8::/32")]);
}

#[test]
fn an_import_that_is_removed_leaves_those_of_other_metrics() {
    let (first, second) = (vec![(net("198.51.100.0/24"), 1)], vec![(net("198.51.100.0/24"), 2)]);
    let mut rib = with(&first, &second);
    assert_eq!(routes(&rib).len(), 2);
    assert_eq!(finish(Exchange::to_nothing(0), &mut rib), (None, 1));
    let left = routes(&rib);
    assert_eq!((left.len(), left[0].metric, left[0].active), (1, 1, true));
}

#[test]
fn refusals_of_the_table_are_reported() {
    let mut refusing = table(vec![(net("198.51.100.0/24"), 1)]);
    (0..50).for_each(|place| refusing.refuse(place, "x"));
    let (report, _) = finish(Exchange::to_table(&over_both_ports(), 0, refusing), &mut two_ports());
    let report = report.unwrap();
    assert_eq!((report.refused, report.refusals.len()), (50, REFUSALS_KEPT));
}

/// A table of few prefixes, so that two of them have many in common.
fn entries() -> impl Strategy<Value = Vec<(IpNet, u32)>> {
    let prefix = (0..40u32, 20..26u8).prop_map(|(n, length)| {
        let prefix = net(&format!("20.0.{n}.0/{length}")).trunc();
        if n % 3 == 0 { net(&format!("2001:{n:x}::/32")) } else { prefix }
    });
    proptest::collection::btree_map(prefix, 0..4u32, 0..30)
        .prop_map(|map| map.into_iter().collect())
}

proptest! {
    #[test]
    fn an_exchange_leaves_what_a_start_makes(
        first in entries(), second in entries(), new in entries(), metric in 0..2u32, stopped in 0..3usize,
    ) {
        let mut rib = with(&first, &second);
        // An exchange for another table may have been given up midway.
        let mut given_up = Exchange::to_table(&over_both_ports(), metric, table(second.clone()));
        (0..stopped).for_each(|_| drop(given_up.go_on(&mut rib)));
        finish(Exchange::to_table(&over_both_ports(), metric, table(new.clone())), &mut rib);
        let expected = if metric == 0 { with(&new, &second) } else { with(&first, &new) };
        prop_assert_eq!(routes(&rib), routes(&expected));
        finish(Exchange::to_nothing(1 - metric), &mut rib);
        let expected = if metric == 0 { with(&new, &[]) } else { with(&[], &new) };
        prop_assert_eq!(routes(&rib), routes(&expected));
    }
}
