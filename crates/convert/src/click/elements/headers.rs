//! Elements that read, check and change headers.

use std::net::IpAddr;

use ::click::args::Args;
use ::click::ip::IpClassifier;
use ::click::kinds;
use ::click::names::Scope;
use ipnet::Ipv6Net;

use super::super::arguments::{self, bytes, mac, number};
use super::super::net::Net;
use super::{Destination, Piece, State, Step, Translated, Value};

/// Classes that look up a destination.
pub(in super::super) const LOOKUPS: [&str; 7] = [
    "StaticIPLookup",
    "LinearIPLookup",
    "RadixIPLookup",
    "DirectIPLookup",
    "RangeIPLookup",
    "SortedIPLookup",
    "LookupIPRouteMP",
];

pub(super) fn no_header() -> String {
    "packets have no IP header mark here; put CheckIPHeader or MarkIPHeader in front of it"
        .to_owned()
}

/// The argument `offset` of a step that takes IP packets.
pub(super) fn network(state: State) -> Result<(&'static str, Value), String> {
    state.network.map(|at| ("offset", Value::Number(at))).ok_or_else(no_header)
}

/// Moves the data's beginning back: into what was stripped, and beyond by a step.
pub(super) fn unstrip(state: State, bytes: i64) -> (Piece, State) {
    let missing = bytes - state.offset;
    if missing <= 0 {
        return (Piece::Nothing, State { offset: state.offset - bytes, ..state });
    }
    let network = state.network.map(|at| at + missing);
    (Piece::Steps(vec![Step::shift(-missing)]), State { offset: 0, network, ..state })
}

pub(super) fn ether_encap(mut args: Args<'_>, state: State) -> Translated {
    let ethertype = args.required("ETHERTYPE", kinds::integer(0..=0xffff))?;
    let (source, destination) = (args.required("SRC", mac)?, args.required("DST", mac)?);
    args.finish()?;
    let (piece, behind) = unstrip(state, 14);
    let mut steps = match piece {
        Piece::Steps(steps) => steps,
        _ => Vec::new(),
    };
    let args = vec![
        ("ethertype", Value::Number(ethertype)),
        ("source", Value::Text(source)),
        ("destination", Value::Text(destination)),
        ("offset", Value::Number(behind.offset + 14)),
    ];
    steps.push(Step::new("ether-encap", args, &["next"]));
    Ok((Piece::Steps(steps), behind))
}

pub(super) fn host_ether_filter(mut args: Args<'_>, state: State) -> Translated {
    let address = args.required("ETHER", mac)?;
    let drop_own = args.optional("DROP_OWN", kinds::boolean)?.unwrap_or(false);
    if args.optional("DROP_OTHER", kinds::boolean)? == Some(false) {
        return Err("DROP_OTHER false is not supported yet".to_owned());
    }
    let at = state.offset + args.keyword("OFFSET", bytes)?.unwrap_or(0);
    args.finish()?;
    let args = vec![
        ("address", Value::Text(address)),
        ("drop_own", Value::Flag(drop_own)),
        ("offset", Value::Number(at)),
    ];
    Ok((Piece::Steps(vec![Step::new("host-ether-filter", args, &["ok", "others"])]), state))
}

pub(super) fn classifier(mut args: Args<'_>, state: State) -> Translated {
    let patterns = args.rest();
    if patterns.is_empty() {
        return Err("patterns missing, one for each output".to_owned());
    }
    let outputs = (0..patterns.len()).map(|output| output.to_string()).collect();
    let args = vec![("patterns", Value::List(patterns)), ("offset", Value::Number(state.offset))];
    let step = Step { outputs, ..Step::new("classifier", args, &[]) };
    Ok((Piece::Steps(vec![step]), state))
}

/// A filter of an element with so many outputs in use, all of which its rules must have.
pub(super) fn ip_filter(mut args: Args<'_>, outputs: usize, state: State) -> Translated {
    let rules = args.rest();
    let used = IpClassifier::filter(&rules, &args.scope())?.outputs().max(1);
    if used > outputs {
        return Err(format!("a rule leads to output {}, which leads nowhere", used - 1));
    }
    let args = vec![("rules", Value::List(rules)), network(state)?];
    let outputs = (0..used).map(|output| output.to_string()).collect();
    let step = Step { outputs, ..Step::new("ip-filter", args, &[]) };
    Ok((Piece::Steps(vec![step]), state))
}

pub(super) fn check_ip_header(net: &Net<'_>, element: usize, state: State) -> Translated {
    let (mut args, scope) = (net.args(element), net.scope(element));
    let interfaces = args.keyword("INTERFACES", kinds::raw)?;
    let sources = args.keyword("BADSRC", kinds::raw)?;
    let at = args.keyword("OFFSET", bytes)?;
    let destinations = args.keyword("GOODDST", kinds::raw)?;
    args.ignore(&["VERBOSE", "DETAILS"]);
    let is_two = net.class(element) == "CheckIPHeader2";
    let checksum = args.keyword("CHECKSUM", kinds::boolean)?.unwrap_or(!is_two);
    // The first argument was a list of bad sources once.
    let first = args.optional("OFFSET or BADSRC", kinds::raw)?;
    let second = args.optional("OFFSET", bytes)?;
    args.finish()?;
    let (list, first) = match first {
        Some(first) => match bytes(&first, &scope) {
            Ok(at) => (None, Some(at)),
            Err(_) => (Some(first), None),
        },
        None => (None, None),
    };
    let at = state.offset + at.or(second).or(first).unwrap_or(0);
    let (mut bad, mut good) = (Vec::new(), Vec::new());
    if interfaces.is_some() || list.is_some() {
        bad = vec!["0.0.0.0/32".to_owned(), "255.255.255.255/32".to_owned()];
    }
    for word in ::click::text::split_words(&interfaces.unwrap_or_default()) {
        let net = arguments::net(word, &scope)?;
        bad.push(format!("{}/32", net.broadcast()));
        good.push(format!("{}/32", net.addr()));
    }
    bad.extend(hosts([list, sources], &scope)?);
    good.extend(hosts([destinations, None], &scope)?);
    let mut args = vec![("offset", Value::Number(at))];
    if !bad.is_empty() {
        args.push(("bad_sources", Value::List(bad)));
        if !good.is_empty() {
            args.push(("good_destinations", Value::List(good)));
        }
    }
    if !checksum {
        args.push(("checksum", Value::Flag(false)));
    }
    let step = Step::new("check-ip-header", args, &["ok", "bad"]);
    Ok((
        Piece::Steps(vec![step]),
        State { network: Some(at), destination: Destination::Header, ..state },
    ))
}

/// The addresses of lists, as prefixes.
fn hosts(lists: [Option<String>; 2], scope: &Scope<'_>) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for list in lists.into_iter().flatten() {
        for word in ::click::text::split_words(&arguments::unquoted(&list)) {
            hosts.push(format!("{}/32", arguments::address(word, scope)?));
        }
    }
    Ok(hosts)
}

pub(super) fn check_ip6_header(mut args: Args<'_>, state: State) -> Translated {
    let sources = args.optional("BADADDRS", kinds::raw)?.unwrap_or_default();
    let at = state.offset + args.optional("OFFSET", bytes)?.unwrap_or(0);
    let scope = args.scope();
    args.finish()?;
    let mut bad = vec!["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128".to_owned()];
    for word in ::click::text::split_words(&arguments::unquoted(&sources)) {
        let address = kinds::ip6(word, &scope).map_err(|why| format!("\"{word}\": {why}"))?;
        bad.push(format!("{address}/128"));
    }
    let args = vec![("offset", Value::Number(at)), ("bad_sources", Value::List(bad))];
    let step = Step::new("check-ip6-header", args, &["ok", "bad"]);
    Ok((
        Piece::Steps(vec![step]),
        State { network: Some(at), destination: Destination::Header, ..state },
    ))
}

pub(super) fn l4(mut args: Args<'_>, state: State, protocol: &str) -> Translated {
    args.ignore(&["VERBOSE", "DETAILS"]);
    args.finish()?;
    let args = vec![("protocol", Value::text(protocol)), network(state)?];
    Ok((Piece::Steps(vec![Step::new("check-l4-header", args, &["ok", "bad"])]), state))
}

/// The destination annotation is always the header's destination, which lookups read at this place of it.
pub(super) fn get_address(mut args: Args<'_>, state: State, place: i64) -> Translated {
    args.ignore(&["ANNO", "IP"]);
    let at = state.offset + args.required("OFFSET", bytes)?;
    args.finish()?;
    if state.network.is_none_or(|network| network + place != at) {
        return Err("only the destination of a marked IP header is supported".to_owned());
    }
    Ok((Piece::Nothing, State { destination: Destination::Header, ..state }))
}

/// The destination annotation is this one from here on.
pub(super) fn set_address(address: IpAddr, args: Args<'_>, state: State) -> Translated {
    args.finish()?;
    Ok((Piece::Nothing, State { destination: Destination::Fixed(address), ..state }))
}

/// The argument by which a table of a family finds the destination of packets.
fn destination(state: State, is_ip4: bool) -> Result<(&'static str, Value), String> {
    match state.destination {
        Destination::Header => network(state),
        Destination::Fixed(address) if address.is_ipv4() == is_ip4 => {
            Ok(("address", Value::Text(address.to_string())))
        }
        Destination::Fixed(address) => Err(format!(
            "packets have the destination annotation {address} of the other family here"
        )),
        Destination::Various => {
            Err("packets have different destination annotations here, by their paths; \
                                     put a SetIPAddress or GetIPAddress(16) in front of it"
                .to_owned())
        }
    }
}

/// An element that answers who asks for a MAC.
pub(super) fn responder(
    net: &Net<'_>,
    element: usize,
    state: State,
    kind: &'static str,
) -> Translated {
    let scope = net.scope(element);
    let mut entries = Vec::new();
    for argument in &net.element(element).arguments {
        let wrong = |why: String| format!("entry \"{argument}\": {why}");
        let mut words = ::click::text::split_words(argument);
        let last = words.last().copied().unwrap_or_default();
        let mac = mac(last, &scope).map_err(|why| wrong(format!("{why} at the end")))?;
        // A name may have both, the address and the MAC.
        if words.len() > 1 {
            words.pop();
        }
        if kind == "arp-responder" {
            for word in words {
                let net = arguments::net(word, &scope).map_err(wrong)?;
                entries.push(format!("{} {mac}", net.trunc()));
            }
        } else {
            let [prefix] = words[..] else {
                return Err(wrong("expected IP6/LENGTH ETH".to_owned()));
            };
            let prefix = kinds::prefix6(prefix, &scope).map_err(wrong)?;
            let prefix = Ipv6Net::new(prefix.address, prefix.length);
            let prefix = prefix.map_err(|why| wrong(why.to_string()))?.trunc();
            entries.push(format!("{prefix} {mac}"));
        }
    }
    if entries.is_empty() {
        return Err("entries missing, such as 10.0.0.1 2:0:0:0:0:1".to_owned());
    }
    let args = vec![("entries", Value::List(entries)), ("offset", Value::Number(state.offset))];
    Ok((Piece::Steps(vec![Step::new(kind, args, &["ok", "others"])]), state))
}

/// A route of a lookup: its prefix, its gateway, its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Route {
    pub(in super::super) prefix: ipnet::Ipv4Net,
    pub(in super::super) gateway: Option<std::net::Ipv4Addr>,
    pub(in super::super) output: usize,
}

/// The routes of a lookup. Of equal prefixes the last one counts.
pub(in super::super) fn routes(net: &Net<'_>, element: usize) -> Result<Vec<Route>, String> {
    let mut routes: Vec<Route> = Vec::new();
    let scope = net.scope(element);
    for argument in &net.element(element).arguments {
        let words = ::click::text::split_words(argument);
        let form = || format!("route \"{argument}\": expected ADDRESS/MASK [GATEWAY] OUTPUT");
        let (prefix, gateway, output) = match words[..] {
            [prefix, output] => (prefix, None, output),
            [prefix, gateway, output] => (prefix, Some(gateway), output),
            _ => return Err(form()),
        };
        let prefix = arguments::net(prefix, &scope)
            .map_err(|why| format!("route \"{argument}\": {why}"))?
            .trunc();
        let gateway = match gateway {
            None | Some("-") => None,
            Some(gateway) => Some(
                arguments::address(gateway, &scope)
                    .map_err(|why| format!("route \"{argument}\": {why}"))?,
            ),
        };
        let output = output.parse().map_err(|_| form())?;
        let gateway = gateway.filter(|gateway| !gateway.is_unspecified());
        routes.retain(|route| route.prefix != prefix);
        routes.push(Route { prefix, gateway, output });
    }
    Ok(routes)
}

pub(super) fn lookup(net: &Net<'_>, element: usize, state: State) -> Translated {
    let routes = routes(net, element)?;
    if let Some(route) = routes.iter().find(|route| route.gateway.is_some()) {
        return Err(format!(
            "the gateway of route {} has no effect without an ARPQuerier; leave it out",
            route.prefix
        ));
    }
    let most = routes.iter().map(|route| route.output + 1).max().unwrap_or(1);
    let routes = routes.iter().map(|route| format!("{} {}", route.prefix, route.output)).collect();
    let outputs = net.outputs(element).max(1);
    if most > outputs {
        return Err(format!("a route leads to output {}, which leads nowhere", most - 1));
    }
    let args = vec![("routes", Value::List(routes)), destination(state, true)?];
    Ok((Piece::Steps(vec![Step::numbered("ip-lookup", args, outputs)]), state))
}

/// Routes of IPv6, whose gateways have no effect likewise.
pub(super) fn lookup6(net: &Net<'_>, element: usize, state: State) -> Translated {
    let (scope, outputs) = (net.scope(element), net.outputs(element).max(1));
    let mut routes = Vec::new();
    for argument in &net.element(element).arguments {
        let form = || format!("route \"{argument}\": expected ADDRESS/LENGTH OUTPUT");
        let words = ::click::text::split_words(argument);
        let (prefix, output) = match words[..] {
            [prefix, output] => (prefix, output),
            [prefix, gateway, output] if gateway.parse() == Ok(std::net::Ipv6Addr::UNSPECIFIED) => {
                (prefix, output)
            }
            [_, _, _] => {
                return Err(format!(
                    "the gateway of route \"{argument}\" has no effect; leave it out"
                ));
            }
            _ => return Err(form()),
        };
        let prefix = kinds::prefix6(prefix, &scope).map_err(|_| form())?;
        let prefix = Ipv6Net::new(prefix.address, prefix.length).map_err(|_| form())?.trunc();
        let output = number(output, &scope).map_err(|_| form())?;
        if !(0..outputs as i64).contains(&output) {
            return Err(format!("a route leads to output {output}, which leads nowhere"));
        }
        routes.push(format!("{prefix} {output}"));
    }
    let args = vec![("routes", Value::List(routes)), destination(state, false)?];
    Ok((Piece::Steps(vec![Step::numbered("lookup-ip6", args, outputs)]), state))
}
