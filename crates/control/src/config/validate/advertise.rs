//! `advertise = …` of a port: router advertisements (RFC 4861 6.2.1, whose bounds these are).

use std::net::Ipv6Addr;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use slowpath::{Advertise, Preference, Prefix};

use super::super::network::{is_link_local, not_a_host, parse_prefix};
use super::super::value::{Fields, Table, Value};

const EXPECTED: &str = "true, false or { interval_s = 600, lifetime_s = 1800, … }";
const KNOWN: &[&str] = &[
    "interval_s",
    "least_interval_s",
    "lifetime_s",
    "managed",
    "other",
    "preference",
    "hop_limit",
    "reachable_ms",
    "retransmit_ms",
    "mtu",
    "prefixes",
    "valid_s",
    "preferred_s",
    "dns",
];
const PREFIX: &[&str] = &["valid_s", "preferred_s", "on_link", "autonomous"];
const PREFIX_FORM: &str =
    "a prefix such as \"fd00:1::/64\" or { \"fd00:1::/64\", valid_s = 86400 }";
const FOR_EVER: u64 = u32::MAX as u64;

/// This many fit into one advertisement on every link (RFC 8200 5: 1280 bytes).
const PREFIXES_MOST: usize = 32;
const DNS_MOST: usize = 8;

/// Reads the contents of a port's advertisements; `addresses`, `mtu` and `has_host` are the port's
/// other settings.
pub(super) fn read(
    fields: &mut Fields<'_, '_>,
    addresses: &[IpNet],
    mtu: Option<u16>,
    has_host: bool,
) -> Option<Advertise> {
    let advertise = match fields.get("advertise")? {
        Value::Bool(wanted) => wanted.then(Advertise::default)?,
        Value::Table(table) => read_table(fields, table, addresses, mtu),
        other => {
            fields.error("advertise", format!("advertise: expected {EXPECTED}, got {other}"));
            return None;
        }
    };
    check_size(fields, &advertise, addresses);
    if has_host {
        fields.error(
            "advertise",
            "advertise: on a port with a host interface the kernel's programs advertise (radvd, FRR); \
             write host = false, or leave it out",
        );
    }
    if mtu.is_some_and(|mtu| mtu < 1280) {
        fields.error("advertise", "advertise: a port with an MTU below 1280 speaks no IPv6");
    }
    Some(advertise)
}

/// Checks that an advertisement fits the smallest MTU.
fn check_size(fields: &mut Fields<'_, '_>, advertise: &Advertise, addresses: &[IpNet]) {
    let own = addresses.iter().filter(|net| net.addr().is_ipv6()).count();
    let prefixes = advertise.prefixes.as_ref().map_or(own, Vec::len);
    for (count, most, what) in
        [(prefixes, PREFIXES_MOST, "prefixes"), (advertise.dns.len(), DNS_MOST, "dns")]
    {
        if count > most {
            let message =
                format!("advertise: {what}: {count} given, {most} is the most; remove some");
            fields.error("advertise", message);
        }
    }
}

fn read_table<'s>(
    fields: &mut Fields<'_, 's>,
    table: &'s Table,
    addresses: &[IpNet],
    port_mtu: Option<u16>,
) -> Advertise {
    let mut fields = fields.nested("advertise", table, KNOWN);
    fields.refuse_items();
    let mut advertise = Advertise::default();
    read_times(&mut fields, &mut advertise);
    advertise.managed = fields.flag("managed");
    advertise.other = fields.flag("other");
    advertise.preference = preference(&mut fields);
    if let Some(limit) = fields.number("hop_limit", 0..=255) {
        advertise.hop_limit = limit as u8;
    }
    // The maximum is one hour (RFC 4861 6.2.1).
    advertise.reachable = millis(fields.number("reachable_ms", 0..=3_600_000));
    advertise.retransmit = millis(fields.number("retransmit_ms", 0..=3_600_000));
    let most = u64::from(port_mtu.unwrap_or(9216)).max(1280);
    advertise.mtu = fields.number("mtu", 1280..=most).map(|mtu| mtu as u16);
    advertise.prefixes = prefixes(&mut fields, addresses);
    advertise.dns = dns(&mut fields);
    advertise
}

fn millis(number: Option<u64>) -> Duration {
    Duration::from_millis(number.unwrap_or(0))
}

fn read_times(fields: &mut Fields<'_, '_>, advertise: &mut Advertise) {
    if let Some(seconds) = fields.number("interval_s", 4..=1800) {
        advertise.interval = Duration::from_secs(seconds);
        advertise.lifetime = advertise.interval * 3;
        // RFC 4861 6.2.1: a third from 9 seconds on, else three quarters; at least 3.
        let least = if seconds >= 9 { seconds * 33 / 100 } else { seconds * 3 / 4 };
        advertise.least_interval = Duration::from_secs(least.max(3));
    }
    let interval = advertise.interval.as_secs();
    if let Some(seconds) = fields.number("least_interval_s", 3..=(interval * 3 / 4).max(3)) {
        advertise.least_interval = Duration::from_secs(seconds);
    }
    if let Some(seconds) = fields.number("lifetime_s", 0..=9000) {
        advertise.lifetime = Duration::from_secs(seconds);
        if seconds != 0 && seconds < interval {
            fields.error(
                "lifetime_s",
                format!(
                    "lifetime_s: {seconds} is less than the interval of {interval} seconds: hosts \
                     would lose the router; write 0 (no default router) or more than that"
                ),
            );
        }
    }
}

fn preference(fields: &mut Fields<'_, '_>) -> Preference {
    match fields.text("preference", "\"high\", \"medium\" or \"low\"") {
        None | Some("medium") => Preference::Medium,
        Some("high") => Preference::High,
        Some("low") => Preference::Low,
        Some(other) => {
            fields.error(
                "preference",
                format!("preference \"{other}\" unknown; known: high, medium, low"),
            );
            Preference::Medium
        }
    }
}

/// Returns the configured prefixes, or those of the port's addresses if only lifetimes are
/// configured.
fn prefixes(fields: &mut Fields<'_, '_>, addresses: &[IpNet]) -> Option<Vec<Prefix>> {
    let mut common = Prefix::new(Ipv6Net::default());
    let lifetimes = lifetimes(fields, &mut common);
    let items: &[Value] = match fields.get("prefixes") {
        None if !lifetimes => return None,
        None => {
            let nets = addresses.iter().filter_map(|net| match net {
                IpNet::V6(net) => Some(net.trunc()),
                IpNet::V4(_) => None,
            });
            return Some(nets.map(|net| Prefix { net, ..common.clone() }).collect());
        }
        Some(Value::Table(table)) if table.named.is_empty() && table.odd.is_empty() => &table.list,
        Some(single) => std::slice::from_ref(single),
    };
    Some(items.iter().filter_map(|item| prefix(fields, item, &common)).collect())
}

fn prefix<'s>(fields: &mut Fields<'_, 's>, item: &'s Value, common: &Prefix) -> Option<Prefix> {
    let (text, table) = match item {
        Value::Text(text) => (text, None),
        Value::Table(table) => match &table.list[..] {
            [Value::Text(text)] => (text, Some(table)),
            _ => return wrong_prefix(fields, item),
        },
        _ => return wrong_prefix(fields, item),
    };
    let net = match parse_prefix(text, "\"fd00:1::/64\"") {
        Ok(IpNet::V6(net)) if net != net.trunc() => {
            let whole = net.trunc();
            fields.error("prefixes", format!("prefix \"{text}\" has host bits; write \"{whole}\""));
            return None;
        }
        // RFC 4861 4.6.2: the link-local prefix is never advertised.
        Ok(IpNet::V6(net)) if net.addr().is_multicast() || is_link_local(net.addr().into()) => {
            fields.error("prefixes", format!("prefix \"{text}\" is none that is advertised"));
            return None;
        }
        Ok(IpNet::V6(net)) => net,
        Ok(IpNet::V4(_)) => return wrong_prefix(fields, item),
        Err(reason) => {
            fields.error("prefixes", format!("prefix \"{text}\": {reason}"));
            return None;
        }
    };
    let mut prefix = Prefix { net, ..common.clone() };
    if let Some(table) = table {
        let mut fields = fields.nested(&format!("prefix \"{text}\""), table, PREFIX);
        lifetimes(&mut fields, &mut prefix);
        prefix.on_link = fields.flag_or("on_link", true);
        prefix.autonomous = fields.flag_or("autonomous", true);
    }
    Some(prefix)
}

fn wrong_prefix(fields: &mut Fields<'_, '_>, item: &Value) -> Option<Prefix> {
    fields.error("prefixes", format!("prefixes: expected {PREFIX_FORM}, got {item}"));
    None
}

/// Reads a prefix's lifetimes; returns true if one is configured.
fn lifetimes(fields: &mut Fields<'_, '_>, prefix: &mut Prefix) -> bool {
    let valid = fields.number("valid_s", 0..=FOR_EVER).map(Duration::from_secs);
    let preferred = fields.number("preferred_s", 0..=FOR_EVER).map(Duration::from_secs);
    prefix.valid = valid.unwrap_or(prefix.valid);
    // The preferred lifetime must not exceed the valid one (RFC 4861 4.6.2).
    prefix.preferred = preferred.unwrap_or(prefix.preferred.min(prefix.valid));
    if prefix.preferred > prefix.valid {
        let (preferred, valid) = (prefix.preferred.as_secs(), prefix.valid.as_secs());
        fields.error(
            "preferred_s",
            format!("preferred_s: {preferred} is more than valid_s, {valid}; write that or less"),
        );
    }
    valid.is_some() || preferred.is_some()
}

fn dns(fields: &mut Fields<'_, '_>) -> Vec<Ipv6Addr> {
    let mut servers = Vec::new();
    for text in fields.texts("dns", "an IPv6 address, or a list of them") {
        match text.parse::<Ipv6Addr>() {
            Ok(address) => match not_a_host(address.into(), false) {
                Some(reason) => {
                    fields.error("dns", format!("dns \"{text}\": {reason}, not a server's"))
                }
                None => servers.push(address),
            },
            Err(_) => fields.error("dns", format!("dns \"{text}\": not an IPv6 address")),
        }
    }
    servers
}
