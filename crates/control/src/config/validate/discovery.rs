//! `router_discovery = …` of a port: ICMP router discovery (RFC 1256 4.1, whose bounds these are).

use std::time::Duration;

use ipnet::IpNet;
use slowpath::Discovery;

use super::super::value::{Fields, Table, Value, whole_number};

const EXPECTED: &str = "true, false or { interval_s = 600, lifetime_s = 1800, … }";
const KNOWN: &[&str] = &["interval_s", "least_interval_s", "lifetime_s", "preference", "broadcast"];

/// Reads the contents of a port's router discovery; `addresses` and `has_host` are its other
/// settings.
pub(super) fn read(
    fields: &mut Fields<'_, '_>,
    addresses: &[IpNet],
    has_host: bool,
) -> Option<Discovery> {
    const KEY: &str = "router_discovery";
    let discovery = match fields.get(KEY)? {
        Value::Bool(wanted) => wanted.then(Discovery::default)?,
        Value::Table(table) => read_table(fields, table),
        other => {
            fields.error(KEY, format!("{KEY}: expected {EXPECTED}, got {other}"));
            return None;
        }
    };
    if has_host {
        fields.error(
            KEY,
            "router_discovery: on a port with a host interface the kernel's programs advertise (FRR); \
             write host = false, or leave it out",
        );
    } else if !addresses.iter().any(|net| net.addr().is_ipv4()) {
        fields
            .error(KEY, "router_discovery: the port has no IPv4 address to advertise; give it one");
    }
    Some(discovery)
}

fn read_table<'s>(fields: &mut Fields<'_, 's>, table: &'s Table) -> Discovery {
    let mut fields = fields.nested("router_discovery", table, KNOWN);
    fields.refuse_items();
    let mut discovery = Discovery::default();
    if let Some(seconds) = fields.number("interval_s", 4..=1800) {
        discovery.interval = Duration::from_secs(seconds);
        discovery.least_interval = Duration::from_secs((seconds * 3 / 4).max(3));
        discovery.lifetime = discovery.interval * 3;
    }
    let interval = discovery.interval.as_secs();
    if let Some(seconds) = fields.number("least_interval_s", 3..=interval) {
        discovery.least_interval = Duration::from_secs(seconds);
    }
    if let Some(seconds) = fields.number("lifetime_s", interval..=9000) {
        discovery.lifetime = Duration::from_secs(seconds);
    }
    discovery.preference = preference(&mut fields);
    discovery.broadcast = fields.flag("broadcast");
    discovery
}

fn preference(fields: &mut Fields<'_, '_>) -> i32 {
    match fields.get("preference") {
        None => 0,
        // RFC 1256 3: the smallest number means not to be used as a default router.
        Some(Value::Text(text)) if text == "never" => i32::MIN,
        Some(value) => whole_number(value, &(0..=i32::MAX as u64)).map_or_else(
            || {
                let expected = "expected a whole number from 0 to 2147483647 or \"never\"";
                fields.error("preference", format!("preference: {expected}, got {value}"));
                0
            },
            |number| number as i32,
        ),
    }
}
