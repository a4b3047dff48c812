//! Neighbours, and the statements for limits and options.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dataplane::class::ClassLimits;
use dataplane::distribution::TxConfig;
use dataplane::flow::FlowFields;
use dataplane::flows::FlowSettings;
use dataplane::polling::Wait;
use dataplane::punts::WORKERS_MAX;
use dataplane::reason::PuntClass;
use fib::Algorithm;
use slowpath::Icmp;
use wire::MacAddr;

use super::super::error::suggestion;
use super::super::network::is_link_local;
use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{
    Fib, Forwarding, Log, Memory, Neighbour, PathHash, Quarantine, Route, Slowpath,
};
use super::Context;
use super::routes::{named_port, port_of, resilient};

pub(super) fn neighbours<'s>(
    context: &mut Context<'_>,
    routes: &[Route],
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<Neighbour> {
    let mut neighbours = Vec::new();
    let mut seen = HashMap::new();
    for statement in statements {
        let Some(neighbour) = neighbour(context, routes, statement) else { continue };
        let key = (neighbour.port, neighbour.address);
        if let Some(line) = seen.insert(key, neighbour.line) {
            let message = format!(
                "neighbour \"{}\": given on line {line} already; remove one",
                statement.name
            );
            context.errors.add(Some(statement.line), message);
        }
        neighbours.push(neighbour);
    }
    neighbours
}

fn neighbour(
    context: &mut Context<'_>,
    routes: &[Route],
    statement: &Statement,
) -> Option<Neighbour> {
    let what = format!("neighbour \"{}\"", statement.name);
    let mut fields = context.fields(what.clone(), statement, &["port", "mac"]);
    let mac = neighbour_mac(&mut fields);
    let port = fields.text("port", "a port's name");
    let port_line = fields.line_of("port");
    let Ok(address) = statement.name.parse::<IpAddr>() else {
        fields.error("", "not an IP address; write it as \"10.0.2.9\" or \"fd00:2::9\"");
        return None;
    };
    if fields.get("port").is_none() && is_link_local(address) {
        fields.error("", "port missing; write port = \"NAME\"");
        return None;
    }
    if let Some(Err(reason)) = port.map(|name| named_port(context, name)) {
        context.errors.add(Some(port_line), format!("{what}: {reason}"));
        return None;
    }
    match port_of(context, routes, address, port) {
        Ok(port) => Some(Neighbour { line: statement.line, port: port?, address, mac: mac? }),
        Err(reason) => {
            context.errors.add(Some(statement.line), format!("{what}: the address {reason}"));
            None
        }
    }
}

fn neighbour_mac(fields: &mut Fields<'_, '_>) -> Option<MacAddr> {
    if fields.get("mac").is_none() {
        fields.error("", "mac missing; write mac = \"02:00:00:00:00:09\"");
    }
    let text = fields.text("mac", "a MAC address")?;
    match text.parse::<MacAddr>() {
        Ok(mac) if mac.is_multicast() || mac == MacAddr::default() => {
            fields.error("mac", format!("mac \"{text}\" is not a host's; use a unicast address"));
            None
        }
        Ok(mac) => Some(mac),
        Err(error) => {
            fields.error("mac", format!("mac \"{text}\": {error}"));
            None
        }
    }
}

/// Returns the only statement of its kind; a second one is an error.
pub(super) fn single<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<&'s Statement> {
    let mut first: Option<&Statement> = None;
    for statement in statements {
        if let Some(first) = first {
            let (name, line) = (statement.keyword.name(), first.line);
            let message = format!("{name}: given on line {line} already; put everything in one");
            context.errors.add(Some(statement.line), message);
        }
        first = first.or(Some(statement));
    }
    first
}

/// Parses an address with a port; `usual` is the port of an example.
pub(super) fn listen(text: &str, usual: u16) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        format!("not an address with a port; write \"127.0.0.1:{usual}\" or \"[::1]:{usual}\"")
    })?;
    if address.port() == 0 {
        return Err(format!("port 0 is none; {usual} is usual"));
    }
    Ok(address)
}

/// Reports an address that others than this machine can reach, unless that is meant; returns false for one. `what`: the
/// protocol and its verb, as "telnet has"; `usual`: its port.
pub(super) fn is_within(
    fields: &mut Fields<'_, '_>,
    address: SocketAddr,
    is_public: bool,
    (what, usual): (&str, u16),
) -> bool {
    let is_within = address.ip().is_loopback() || is_public;
    if !is_within {
        fields.error("listen", format!("listen \"{address}\": {}", exposed(what, usual)));
    }
    is_within
}

/// The reason for which an address that others than this machine can reach is refused.
pub(super) fn exposed(what: &str, usual: u16) -> String {
    format!(
        "others than this machine can reach it, and {what} no passwords; write public = true if that is meant, or \
         listen = \"127.0.0.1:{usual}\""
    )
}

/// Reads the users that may connect; their existence is checked against the machine elsewhere.
pub(super) fn users(fields: &mut Fields<'_, '_>) -> Vec<String> {
    let users = fields.texts("users", "users such as { \"operator\", \"1000\" }");
    if users.contains(&"") {
        fields.error(
            "users",
            "users: \"\" is no name; write users such as { \"operator\", \"1000\" }",
        );
    }
    users.into_iter().map(str::to_owned).collect()
}

/// Returns the reader of a statement without a name.
pub(super) fn plain<'b, 's>(
    context: &'b mut Context<'_>,
    statement: &'s Statement,
    known: &'static [&'static str],
) -> Fields<'b, 's> {
    context.fields(statement.keyword.name().to_owned(), statement, known)
}

/// Reads the wait mode of forwarders.
pub(super) fn wait(fields: &mut Fields<'_, '_>) -> Option<Wait> {
    let known = Wait::ALL.map(Wait::name);
    let text = fields.text("wait", "\"poll\", \"adaptive\", \"interrupt\" or \"moderated\"")?;
    let wait = Wait::ALL.into_iter().find(|wait| wait.name() == text);
    if wait.is_none() {
        let message = format!("wait \"{text}\" unknown; known: {}", known.join(", "));
        fields.error("wait", message);
    }
    wait
}

pub(super) fn forwarding<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Forwarding {
    let Some(statement) = single(context, statements) else { return Forwarding::default() };
    let mut fields =
        plain(context, statement, &["class_e", "resolve_via_default", "hash", "resilient"]);
    let resolve_via_default = fields.flag_or("resolve_via_default", true);
    let hash = path_hash(&mut fields);
    let resilient = resilient(&mut fields, false);
    Forwarding { class_e: fields.flag("class_e"), resolve_via_default, hash, resilient }
}

/// Reads `hash = { fields = "l3", … }`.
fn path_hash(fields: &mut Fields<'_, '_>) -> PathHash {
    const KNOWN: [&str; 5] = ["fields", "flow_label", "inner", "symmetric", "seed"];
    const WORDS: [&str; 2] = ["l3", "l3+l4"];
    let Some(mut table) = fields.table("hash", &KNOWN) else { return PathHash::default() };
    let word = table.text("fields", "\"l3\" or \"l3+l4\"").unwrap_or(WORDS[1]);
    if !WORDS.contains(&word) {
        let message = format!("fields \"{word}\" unknown; known: {}", WORDS.join(", "));
        table.error("fields", message);
    }
    let fields = FlowFields {
        ports: word != WORDS[0],
        flow_label: table.flag("flow_label"),
        inner: table.flag("inner"),
        symmetric: table.flag("symmetric"),
    };
    if fields.symmetric && fields.flow_label {
        let message = "symmetric: the two directions of a flow have different flow labels; leave out flow_label";
        table.error("symmetric", message.to_owned());
    }
    let seed = table.number("seed", 0..=u32::MAX.into()).map(|seed| seed as u32);
    PathHash { seed, fields }
}

pub(super) fn tx<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> TxConfig {
    let mut tx = TxConfig::default();
    let Some(statement) = single(context, statements) else { return tx };
    let mut fields = plain(context, statement, &["burst", "flush_us"]);
    if let Some(burst) = fields.number("burst", 1..=64) {
        tx.burst = burst as usize;
    }
    if let Some(micros) = fields.number("flush_us", 0..=100_000) {
        tx.flush = Duration::from_micros(micros);
    }
    tx
}

pub(super) fn slowpath<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Slowpath {
    const KNOWN: &[&str] = &[
        "neighbours",
        "queue",
        "retries",
        "timeout_s",
        "reassembly_s",
        "workers",
        "icmp_rate",
        "icmp_burst",
        "icmp_prefix_rate",
        "icmp_prefix_burst",
        "classes",
    ];
    let mut slowpath = Slowpath::default();
    let Some(statement) = single(context, statements) else { return slowpath };
    let limits = &mut slowpath.limits;
    let mut fields = plain(context, statement, KNOWN);
    let number = |fields: &mut Fields<'_, '_>, key, most| fields.number(key, 1..=most);
    if let Some(neighbours) = number(&mut fields, "neighbours", 1 << 20) {
        limits.neighbours = neighbours as usize;
    }
    if let Some(queue) = number(&mut fields, "queue", 1024) {
        limits.queue = queue as usize;
    }
    if let Some(retries) = number(&mut fields, "retries", 100) {
        limits.tries = retries as u8;
    }
    if let Some(seconds) = number(&mut fields, "timeout_s", 86_400) {
        limits.reachable = Duration::from_secs(seconds);
    }
    if let Some(seconds) = fields.number("reassembly_s", 1..=120) {
        limits.reassembly = Duration::from_secs(seconds);
    }
    if let Some(workers) = number(&mut fields, "workers", WORKERS_MAX as u64) {
        slowpath.workers = workers as usize;
    }
    for (key, least, value) in [
        ("icmp_rate", 0, &mut limits.icmp_rate),
        ("icmp_burst", 1, &mut limits.icmp_burst),
        ("icmp_prefix_rate", 0, &mut limits.icmp_prefix_rate),
        ("icmp_prefix_burst", 1, &mut limits.icmp_prefix_burst),
    ] {
        if let Some(number) = fields.number(key, least..=1_000_000) {
            *value = number as u32;
        }
    }
    if let Some(mut classes) = fields.table("classes", PuntClass::NAMES) {
        for (name, limits) in PuntClass::NAMES.iter().zip(&mut slowpath.classes) {
            if let Some(mut class) = classes.table(name, &["rate", "weight", "share", "queue"]) {
                class_limits(&mut class, limits);
            }
        }
    }
    slowpath
}

fn class_limits(fields: &mut Fields<'_, '_>, limits: &mut ClassLimits) {
    if let Some(rate) = fields.number("rate", 1..=100_000_000) {
        limits.rate = rate as u32;
    }
    // Its former name: `share`.
    let share = fields.number("share", 1..=1000);
    let weight = fields.number("weight", 1..=1000);
    if share.is_some() && weight.is_some() {
        fields.error("share", "share is another name of weight; leave it out");
    }
    if let Some(weight) = weight.or(share) {
        limits.weight = weight as u32;
    }
    if let Some(queue) = fields.number("queue", 16..=65_536) {
        limits.queue = queue as usize;
    }
}

pub(super) fn flows<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> FlowSettings {
    const KNOWN: &[&str] = &[
        "most",
        "tcp_s",
        "opening_s",
        "udp_s",
        "unanswered_s",
        "icmp_s",
        "fragments_s",
        "other_s",
    ];
    let mut flows = FlowSettings::default();
    let Some(statement) = single(context, statements) else { return flows };
    let mut fields = plain(context, statement, KNOWN);
    if let Some(most) = fields.number("most", 1024..=1 << 24) {
        flows.most = most as usize;
    }
    for (key, timeout) in flows.timeouts.named() {
        if let Some(seconds) = fields.number(key, 1..=7 * 86_400) {
            *timeout = seconds as u32;
        }
    }
    flows
}

pub(super) fn icmp<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Icmp {
    let mut icmp = Icmp { class_e: context.class_e, ..Icmp::default() };
    let Some(statement) = single(context, statements) else { return icmp };
    let mut fields = plain(context, statement, &["ttl", "echo"]);
    if let Some(ttl) = fields.number("ttl", 1..=255) {
        icmp.ttl = ttl as u8;
    }
    icmp.echo = fields.flag_or("echo", icmp.echo);
    icmp
}

pub(super) fn memory<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Memory {
    let Some(statement) = single(context, statements) else { return Memory::default() };
    let mut fields = plain(context, statement, &["mbufs", "no_huge"]);
    Memory {
        mbufs: fields.number("mbufs", 512..=1 << 24).map(|mbufs| mbufs as u32),
        no_huge: fields.flag("no_huge"),
    }
}

pub(super) fn fib<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Fib {
    let Some(statement) = single(context, statements) else { return Fib::default() };
    let mut fields = plain(context, statement, &["ipv4", "ipv6"]);
    let fib = Fib { ipv4: algorithm(&mut fields, "ipv4"), ipv6: algorithm(&mut fields, "ipv6") };
    // Not every structure supports both families; creating an empty table reports that.
    if let Err(error) = fib::new_ipv6(fib.ipv6, Box::new(fib::NoReaders)) {
        fields.error("ipv6", format!("ipv6: {error}"));
    }
    fib
}

fn algorithm(fields: &mut Fields<'_, '_>, key: &str) -> Algorithm {
    let Some(name) = fields.text(key, "a route table's name") else { return Algorithm::default() };
    name.parse().unwrap_or_else(|_| {
        let suggestion = suggestion(name, "known", &Algorithm::ALL.map(Algorithm::name));
        fields.error(key, format!("{key}: route table \"{name}\" unknown{suggestion}"));
        Algorithm::default()
    })
}

pub(super) fn log<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Log {
    const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
    let Some(statement) = single(context, statements) else { return Log::default() };
    let mut fields = plain(context, statement, &["level"]);
    let Some(text) = fields.text("level", "a log level") else { return Log::default() };
    let level = LEVELS.into_iter().find(|&level| level == text);
    if level.is_none() {
        let suggestion = suggestion(text, "known", &LEVELS);
        fields.error("level", format!("level \"{text}\" unknown{suggestion}"));
    }
    Log { level }
}

pub(super) fn quarantine<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Quarantine {
    let mut quarantine = Quarantine::default();
    let Some(statement) = single(context, statements) else { return quarantine };
    let mut fields = plain(context, statement, &["directory", "packets", "mib"]);
    if let Some(directory) = fields.text("directory", "an absolute path") {
        if directory.starts_with('/') {
            quarantine.directory = directory.into();
        } else {
            let message = format!("directory \"{directory}\": not absolute; begin it with /");
            fields.error("directory", message);
        }
    }
    if let Some(packets) = fields.number("packets", 1..=1_000_000) {
        quarantine.packets = packets as usize;
    }
    if let Some(mib) = fields.number("mib", 1..=4096) {
        quarantine.bytes = mib << 20;
    }
    quarantine
}
