//! MoonRoute's configuration files: a Lua script that returns a table.
//!
//! ```lua
//! config = { ports = {}, routes = {} }
//! config["txQueueSize"] = 128              -- packets of a transmit burst
//! config["txQueueTimeout"] = 0.0001        -- seconds that they wait for it to fill
//! config["fastPathCores"] = { 1 }
//! config["telnetEnable"] = true
//! config["telnetPort"] = 23
//! config.ports["Port1"] = { mac = "A0:36:9F:3B:6D:52", ipv4 = "10.0.2.1", ipv4Prefix = 24 }
//! config.routes["Route1"] = { nhPort = "Port1", nhMAC = "a0:36:9f:3b:5b:6c", nhIPv4 = "10.0.2.9",
//!                             networkIP = "128.0.0.0", networkPrefix = 1 }
//! return config
//! ```
//!
//! It is converted to the statements of a Turnpike configuration, which are checked like any
//! others. Keys have the same meaning as for MoonRoute. A next hop given by its MAC becomes a
//! stand-in gateway address with a static neighbour.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use dataplane::catalogue::Catalogue;
use ipnet::IpNet;
use wire::MacAddr;
use wire::address::link_local;

use super::error::{Collector, ConfigError, ConfigErrors, suggestion};
use super::script::{self, Keyword, Limits, Said, Statement};
use super::value::{Table, Value, whole_number};
use super::{Config, validate};

const KNOWN: [&str; 15] = [
    "ports",
    "routes",
    "txQueueSize",
    "txQueueTimeout",
    "rxBurstSize",
    "fastPathCores",
    "addRoutesToLocalNetworks",
    "telnetEnable",
    "telnetPort",
    "telnetBindIP",
    "enableVirtualInterfaces",
    "virtualInterfacePrefix",
    "useLinuxRoutingTable",
    "slowPathQueueSize",
    "distributorQueuesSize",
];
const PORT: [&str; 9] = [
    "mac",
    "ipv4",
    "ipv4Prefix",
    "direction",
    "fastPathCores",
    "device",
    "rxBurstSize",
    "txQueueSize",
    "txQueueTimeout",
];
const ROUTE: [&str; 5] = ["nhPort", "nhMAC", "nhIPv4", "networkIP", "networkPrefix"];

/// Most packets of a transmit burst.
const BURST_MOST: f64 = 64.0;

/// Longest time for which they can wait, in microseconds.
const FLUSH_MOST: f64 = 100_000.0;

/// A configuration, with warnings about unused settings of the file.
pub struct Loaded {
    /// The converted configuration.
    pub config: Config,
    /// Keys that are unknown or have no effect, and what applies instead.
    pub warnings: Vec<String>,
}

/// Loads a MoonRoute file; `interfaces` are the machine's kernel interfaces by their MACs.
///
/// # Errors
/// All faults of the file, or the error of reading it.
pub fn load(
    path: &Path,
    interfaces: &BTreeMap<MacAddr, String>,
    catalogue: &Catalogue,
) -> Result<Loaded, ConfigErrors> {
    let text = super::text_of(path)?;
    parse(path, &text, interfaces, catalogue)
}

/// Like [`load`], for a given text.
fn parse(
    path: &Path,
    text: &str,
    interfaces: &BTreeMap<MacAddr, String>,
    catalogue: &Catalogue,
) -> Result<Loaded, ConfigErrors> {
    let limits = Limits::default();
    let config = script::run_for_table(text, limits).map_err(|(line, message)| {
        ConfigErrors(vec![ConfigError { file: path.to_owned(), line, message }])
    })?;
    let errors = Collector::new(path);
    let mut reader =
        Reader { text, interfaces, statements: Vec::new(), warnings: Vec::new(), errors };
    reader.read(&config);
    let Reader { statements, warnings, errors, .. } = reader;
    let ours = in_our_words(path, &statements);
    // The graph is the default one, that of an empty script.
    let said = Said { statements, errors, ..script::run(path, "", limits, catalogue) };
    let mut config = validate::validate(path, text, said)?;
    // The text that the history shows and a rollback uses.
    config.text = ours.into();
    Ok(Loaded { config, warnings })
}

/// Converts tables to statements.
struct Reader<'a> {
    text: &'a str,
    interfaces: &'a BTreeMap<MacAddr, String>,
    statements: Vec<Statement>,
    warnings: Vec<String>,
    errors: Collector,
}

impl Reader<'_> {
    fn read(&mut self, config: &Table) {
        self.report_unknown("", &config.named, &KNOWN);
        let ports = self.tables(config, "ports");
        for (name, port) in &ports {
            self.port(name, port, config);
        }
        if ports.is_empty() {
            self.errors.add(None, "ports: there are none; write config.ports[\"NAME\"] = { … }");
        }
        let (mut stand_ins, mut prefixes) = (BTreeSet::new(), BTreeMap::new());
        for (name, route) in &self.tables(config, "routes") {
            self.route(name, route, &mut stand_ins, &mut prefixes);
        }
        self.cores(config, &ports);
        self.bursts(config);
        self.telnet(config);
        if flag(config, "useLinuxRoutingTable") {
            let kernel = Table { list: vec![text("kernel")], ..Table::default() };
            self.state(Keyword::RoutesFrom, "useLinuxRoutingTable", "", kernel);
        }
        self.ignored(config);
    }

    /// Adds a statement, with the line on which the script first mentions it.
    fn state(&mut self, keyword: Keyword, word: &str, name: &str, settings: Table) {
        let line = self.line_of(word).unwrap_or(1);
        self.statements.push(Statement { keyword, line, name: name.to_owned(), settings });
    }

    /// Returns the line of a word's first occurrence as a key; none for computed keys.
    fn line_of(&self, word: &str) -> Option<usize> {
        let stands =
            |line: &str| ["\"", "'"].iter().any(|q| line.contains(&format!("{q}{word}{q}")));
        let named = |line: &str| line.contains(&format!(".{word}"));
        self.text.lines().position(|line| stands(line) || named(line)).map(|at| at + 1)
    }

    fn error(&mut self, word: &str, message: String) {
        let line = self.line_of(word);
        self.errors.add(line, message);
    }

    fn report_unknown(&mut self, what: &str, table: &BTreeMap<String, Value>, known: &[&str]) {
        for key in table.keys().filter(|key| !known.contains(&key.as_str())) {
            let known = suggestion(key, "known", known);
            self.warnings.push(format!("{what}key \"{key}\" unknown and ignored{known}"));
        }
    }

    /// Returns the tables within a table, by name; those without names are numbered.
    fn tables(&mut self, config: &Table, key: &str) -> Vec<(String, Table)> {
        let Some(Value::Table(all)) = config.named.get(key) else { return Vec::new() };
        let numbered = all.list.iter().zip(1..).map(|(value, n)| (format!("{key}[{n}]"), value));
        let named = all.named.iter().map(|(name, value)| (name.clone(), value));
        let mut tables = Vec::new();
        for (name, value) in named.chain(numbered) {
            match value {
                Value::Table(table) => tables.push((name, table.clone())),
                other => self.error(&name, format!("{key}: {name}: expected a table, got {other}")),
            }
        }
        tables
    }

    fn port(&mut self, name: &str, port: &Table, config: &Table) {
        let what = format!("port \"{name}\": ");
        self.report_unknown(&what, &port.named, &PORT);
        let mut settings = Table::default();
        if let Some(device) = self.device(name, port) {
            settings.named.insert("device".to_owned(), text(&device));
        }
        if let Some(address) = self.address(name, port) {
            settings.named.insert("address".to_owned(), text(&address));
        }
        match port.named.get("direction") {
            None => {}
            Some(Value::Text(direction)) if direction == "inout" => {}
            Some(other) => self.error(
                name,
                format!(
                    "{what}direction: {other}: a port receives and sends, as with MoonRoute, which \
                     refuses \"in\" and \"out\" too; write \"inout\""
                ),
            ),
        }
        if flag(config, "enableVirtualInterfaces") {
            settings.named.insert("host".to_owned(), Value::Bool(true));
        }
        for key in ["rxBurstSize", "txQueueSize", "txQueueTimeout", "fastPathCores"] {
            if port.named.contains_key(key) {
                let instead = match key {
                    "fastPathCores" => "all ports are served by all cores that are named",
                    _ => "it is the same for all ports",
                };
                self.warnings.push(format!("{what}{key}: {instead}"));
            }
        }
        self.state(Keyword::Port, name, name, settings);
    }

    /// Returns the kernel interface with the port's MAC, or the value of `device`, a key that
    /// MoonRoute does not have.
    fn device(&mut self, name: &str, port: &Table) -> Option<String> {
        if let Some(Value::Text(device)) = port.named.get("device") {
            return Some(device.clone());
        }
        let mac = match port.named.get("mac") {
            Some(Value::Text(text)) => text,
            other => {
                let got = other.map_or_else(|| "nothing".to_owned(), ToString::to_string);
                self.error(name, format!("port \"{name}\": mac: expected a MAC, got {got}"));
                return None;
            }
        };
        match mac.parse::<MacAddr>() {
            Ok(parsed) if self.interfaces.contains_key(&parsed) => {
                return self.interfaces.get(&parsed).cloned();
            }
            Ok(parsed) => {
                let known: Vec<String> = self
                    .interfaces
                    .iter()
                    .map(|(mac, interface)| format!("{mac} ({interface})"))
                    .collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                self.error(
                    name,
                    format!(
                        "port \"{name}\": no interface has mac {parsed}; known: {known}. For one that is \
                         bound to a DPDK driver add device = \"PCI ADDRESS\""
                    ),
                );
            }
            Err(error) => self.error(name, format!("port \"{name}\": mac \"{mac}\": {error}")),
        }
        None
    }

    fn address(&mut self, name: &str, port: &Table) -> Option<String> {
        let ipv4 = match port.named.get("ipv4")? {
            Value::Text(text) => text.clone(),
            other => {
                self.error(
                    name,
                    format!("port \"{name}\": ipv4: expected an address, got {other}"),
                );
                return None;
            }
        };
        match port.named.get("ipv4Prefix").map(|value| (value, whole_number(value, &(0..=32)))) {
            Some((_, Some(length))) => Some(format!("{ipv4}/{length}")),
            other => {
                let got =
                    other.map_or_else(|| "nothing".to_owned(), |(value, _)| value.to_string());
                self.error(
                    name,
                    format!(
                        "port \"{name}\": ipv4Prefix: expected a length from 0 to 32, got {got}"
                    ),
                );
                None
            }
        }
    }

    fn route(
        &mut self,
        name: &str,
        route: &Table,
        stand_ins: &mut BTreeSet<(String, MacAddr)>,
        prefixes: &mut BTreeMap<String, String>,
    ) {
        self.report_unknown(&format!("route \"{name}\": "), &route.named, &ROUTE);
        let (prefix, port, via) = match self.route_parts(route, stand_ins) {
            Ok(parts) => parts,
            Err(message) => return self.error(name, format!("route \"{name}\": {message}")),
        };
        if let Some(first) = prefixes.get(&prefix) {
            let ignored = format!("route \"{name}\": to {prefix}, as \"{first}\" is; ignored");
            return self.warnings.push(ignored);
        }
        prefixes.insert(prefix.clone(), name.to_owned());
        let named = [("via", via), ("port", port)];
        let named = named.map(|(key, value)| (key.to_owned(), Value::Text(value)));
        let settings = Table { named: named.into(), ..Table::default() };
        self.state(Keyword::Route, name, &prefix, settings);
    }

    /// Returns a route's prefix, port and gateway.
    fn route_parts(
        &mut self,
        route: &Table,
        stand_ins: &mut BTreeSet<(String, MacAddr)>,
    ) -> Result<(String, String, String), String> {
        let network = text_in(route, "networkIP", "an address")?;
        let length = route.named.get("networkPrefix");
        let length = length.and_then(|value| whole_number(value, &(0..=128))).ok_or_else(|| {
            let got = length.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            format!("networkPrefix: expected a length, got {got}")
        })?;
        let port = text_in(route, "nhPort", "a port's name")?;
        let via = if route.named.contains_key("nhMAC") {
            let text = text_in(route, "nhMAC", "a MAC")?;
            let mac: MacAddr =
                text.parse().map_err(|error| format!("nhMAC \"{text}\": {error}"))?;
            let via = link_local(mac).to_string();
            if stand_ins.insert((port.clone(), mac)) {
                self.stand_in(&via, &port, mac);
            }
            via
        } else {
            text_in(route, "nhIPv4", "an address, for there is no nhMAC")?
        };
        // As in MoonRoute, bits after the prefix length are ignored.
        let written = format!("{network}/{length}");
        let prefix = written.parse::<IpNet>().map_or(written, |net| net.trunc().to_string());
        Ok((prefix, port, via))
    }

    /// Adds the neighbour that stands for a MAC.
    fn stand_in(&mut self, address: &str, port: &str, mac: MacAddr) {
        let named = [("port", port.to_owned()), ("mac", mac.to_string())];
        let named = named.map(|(key, value)| (key.to_owned(), Value::Text(value)));
        let settings = Table { named: named.into(), ..Table::default() };
        self.state(Keyword::Neighbour, port, address, settings);
    }

    /// Collects all cores of the file, for all ports.
    fn cores(&mut self, config: &Table, ports: &[(String, Table)]) {
        let mut cores = BTreeSet::new();
        let own = ports.iter().map(|(_, port)| port).filter_map(|p| p.named.get("fastPathCores"));
        let common = config.named.get("fastPathCores");
        // The common cores apply if a port has none of its own.
        let common = common.filter(|_| own.clone().count() < ports.len());
        let given: Vec<&Value> = own.chain(common).collect();
        for value in given {
            let Value::Table(list) = value else {
                let message = format!("fastPathCores: expected a list of cores, got {value}");
                self.error("fastPathCores", message);
                continue;
            };
            for core in &list.list {
                match whole_number(core, &(0..=4095)) {
                    Some(core) => {
                        cores.insert(core);
                    }
                    None => self.error(
                        "fastPathCores",
                        format!("fastPathCores: expected a core's number, got {core}"),
                    ),
                }
            }
        }
        if !cores.is_empty() {
            let cores: Vec<String> = cores.iter().map(u64::to_string).collect();
            let named = [("cores".to_owned(), Value::Text(cores.join(",")))];
            let settings = Table { named: named.into(), ..Table::default() };
            self.state(Keyword::Forwarders, "fastPathCores", "", settings);
        }
    }

    /// Sets the transmit bursts, limited to the largest size and time possible here.
    fn bursts(&mut self, config: &Table) {
        let mut settings = Table::default();
        let mut number = |key: &str, own: &str, factor: f64, most: f64| match config.named.get(key)
        {
            None => {}
            Some(Value::Number(given)) if *given >= 0.0 => {
                let value = (given * factor).round();
                if value > most {
                    self.warnings.push(format!("{key} = {given}: {own} = {most} is the most"));
                }
                settings.named.insert(own.to_owned(), Value::Number(value.min(most)));
            }
            Some(other) => {
                let message = format!("{key}: expected a number, got {other}");
                self.errors
                    .add(self.text.lines().position(|l| l.contains(key)).map(|n| n + 1), message);
            }
        };
        number("txQueueSize", "burst", 1.0, BURST_MOST);
        number("txQueueTimeout", "flush_us", 1e6, FLUSH_MOST);
        if !settings.named.is_empty() {
            self.state(Keyword::Tx, "txQueueSize", "", settings);
        }
    }

    /// Enables telnet on this machine only, regardless of the bind address: files come with
    /// `telnetBindIP = "0.0.0.0"`.
    fn telnet(&mut self, config: &Table) {
        if !flag(config, "telnetEnable") {
            return;
        }
        let port = match config.named.get("telnetPort") {
            None => 23,
            Some(value) => match whole_number(value, &(1..=65_535)) {
                Some(port) => port,
                None => {
                    let message = format!("telnetPort: expected a port's number, got {value}");
                    return self.error("telnetPort", message);
                }
            },
        };
        match config.named.get("telnetBindIP") {
            Some(Value::Text(address)) if !address.starts_with("127.") => {
                self.warnings.push(format!(
                    "telnetBindIP = \"{address}\": telnet has no passwords, so it is served on 127.0.0.1; \
                     other addresses take a configuration with turnpike.telnet {{ public = true }}"
                ));
            }
            _ => {}
        }
        let named = [("listen".to_owned(), Value::Text(format!("127.0.0.1:{port}")))];
        let settings = Table { named: named.into(), ..Table::default() };
        self.state(Keyword::Telnet, "telnetPort", "", settings);
    }

    /// Warns of known keys without effect.
    fn ignored(&mut self, config: &Table) {
        let reasons = [
            ("rxBurstSize", "a forwarder takes up to 64 packets at a time"),
            (
                "slowPathQueueSize",
                "each class of packets has a queue of its own: turnpike.slowpath",
            ),
            ("distributorQueuesSize", "there are no such queues"),
            ("virtualInterfacePrefix", "a host interface has its port's name"),
        ];
        for (key, reason) in reasons {
            if config.named.contains_key(key) {
                self.warnings.push(format!("{key}: has no effect; {reason}"));
            }
        }
        if let Some(Value::Bool(false)) = config.named.get("addRoutesToLocalNetworks") {
            let key = "addRoutesToLocalNetworks = false";
            let reason = "hosts on the networks of ports can always be reached";
            self.warnings.push(format!("{key}: has no effect; {reason}"));
        }
    }
}

/// Writes the statements as a Turnpike configuration.
fn in_our_words(path: &Path, statements: &[Statement]) -> String {
    let mut text =
        format!("-- From MoonRoute's {}\nlocal turnpike = require \"turnpike\"\n", path.display());
    for Statement { keyword, name, settings, .. } in statements {
        let name = if keyword.is_named() { format!(" {}", quoted(name)) } else { String::new() };
        let settings = lua(&Value::Table(settings.clone()));
        text += &format!("turnpike.{}{name} {settings}\n", keyword.name());
    }
    text
}

/// Writes a value in Lua syntax.
fn lua(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::Text(text) => quoted(text),
        Value::Table(table) => {
            let items = table.list.iter().map(lua);
            let named = table.named.iter().map(|(key, value)| format!("{key} = {}", lua(value)));
            let all: Vec<String> = items.chain(named).collect();
            if all.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", all.join(", ")) }
        }
        Value::Other(_) => "nil".to_owned(),
    }
}

/// Writes a text in Lua syntax.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_ascii_control() => quoted += &format!("\\{:03}", c as u32),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn flag(table: &Table, key: &str) -> bool {
    matches!(table.named.get(key), Some(Value::Bool(true)))
}

fn text_in(table: &Table, key: &str, expected: &str) -> Result<String, String> {
    match table.named.get(key) {
        Some(Value::Text(text)) => Ok(text.clone()),
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            Err(format!("{key}: expected {expected}, got {got}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Device, Diff, Route, Telnet};
    use super::*;
    use crate::rib::RouteKind;

    /// A file of the usual kind.
    const FILE: &str = r#"config = {ports = {}, routes = {}}
config["txQueueSize"] = 32
config["txQueueTimeout"] = 0.0001
config["addRoutesToLocalNetworks"] = true
config["telnetEnable"] = false
config["fastPathCores"] = {2, 1}
ports = {}
ports["Port1"] = {
  mac = "A0:36:9F:3B:6D:52",
  ipv4 = "10.0.2.1",
  ipv4Prefix = 24,
  direction = "inout",
}
ports["Port2"] = { mac = "a0:36:9f:3b:6d:50", ipv4 = "10.0.1.1", ipv4Prefix = 24 }
routes = {}
routes["Route1"] = {
  nhPort = "Port2",
  nhMAC = "a0:36:9f:3b:5b:6c",
  nhIPv4 = "10.0.1.5",
  networkIP = "0.0.0.0",
  networkPrefix = 1
}
routes["Route2"] = { nhPort = "Port1", nhIPv4 = "10.0.2.5", networkIP = "128.0.0.1", networkPrefix = 1 }
config.ports = ports
config.routes = routes
"#;

    fn read(more: &str) -> Result<Loaded, ConfigErrors> {
        let interfaces = [("a0:36:9f:3b:6d:52", "eth2"), ("a0:36:9f:3b:6d:50", "eth1")];
        let interfaces =
            interfaces.map(|(mac, name)| (mac.parse().unwrap(), name.to_owned())).into();
        let text = format!("{FILE}{more}\nreturn config\n");
        parse(Path::new("cfg.lua"), &text, &interfaces, &Catalogue::default())
    }

    fn errors(more: &str) -> String {
        read(more).map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    fn warnings(more: &str) -> Vec<String> {
        read(more).unwrap().warnings
    }

    #[test]
    fn a_file_means_what_it_means_to_moonroute() {
        let Loaded { config, warnings } = read("").unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        let ports: Vec<_> = config.ports.iter().map(|p| (p.name.as_str(), &p.device)).collect();
        let device = |name: &str| Device::Kernel(name.to_owned());
        assert_eq!(ports, [("Port1", &device("eth2")), ("Port2", &device("eth1"))]);
        assert_eq!(config.ports[0].interface.addresses, ["10.0.2.1/24".parse().unwrap()]);
        assert_eq!(config.ports[0].line, 8);
        assert_eq!(config.cores.forward, [1, 2]);
        assert_eq!((config.tx.burst, config.tx.flush), (32, Duration::from_micros(100)));
        assert_eq!(config.telnet, None);
        let [low, high] = &config.routes[..] else { panic!("{:?}", config.routes) };
        let via = |route: &Route| match &route.kind {
            RouteKind::Unicast(paths) => paths[0].via.unwrap().to_string(),
            other => panic!("{other:?}"),
        };
        // The MAC is preferred to the address.
        assert_eq!(
            (low.prefix.to_string(), via(low)),
            ("0.0.0.0/1".into(), "fe80::a236:9fff:fe3b:5b6c".into())
        );
        assert_eq!((high.prefix.to_string(), via(high)), ("128.0.0.0/1".into(), "10.0.2.5".into()));
        let [neighbour] = &config.neighbours[..] else { panic!("{:?}", config.neighbours) };
        assert_eq!(neighbour.address.to_string(), via(low));
        assert_eq!(
            (neighbour.mac.to_string().as_str(), neighbour.port.index()),
            ("a0:36:9f:3b:5b:6c", 1)
        );
    }

    #[test]
    fn it_can_be_said_in_our_words() {
        let more =
            "config.telnetEnable = true config.useLinuxRoutingTable = true ports.Port1.ipv4 = nil";
        for more in ["", more] {
            let config = read(more).unwrap().config;
            let path = Path::new("ours.lua");
            let ours =
                super::super::parse(path, &config.text, Limits::default(), &Catalogue::default());
            let ours = ours.unwrap_or_else(|errors| panic!("{errors}\n{}", config.text));
            assert_eq!(
                Diff::between(&config, &ours),
                Diff {
                    names: vec!["Port1".into(), "Port2".into()],
                    vrfs: vec!["default".into()],
                    ..Diff::default()
                }
            );
        }
        assert_eq!(quoted("a\"\\\n"), r#""a\"\\\010""#);
    }

    #[test]
    fn further_keys_mean_what_they_can() {
        let telnet = |more: &str| {
            read(&format!("config.telnetEnable = true {more}")).unwrap().config.telnet.unwrap()
        };
        assert_eq!(telnet("").listen, "127.0.0.1:23".parse().unwrap());
        let public = "config.telnetPort = 2424 config.telnetBindIP = '0.0.0.0'";
        let expected = Telnet { listen: "127.0.0.1:2424".parse().unwrap(), ..Telnet::default() };
        assert_eq!(telnet(public), expected);
        let linux = "config.useLinuxRoutingTable = true config.enableVirtualInterfaces = true";
        let linux = read(linux).unwrap().config;
        assert!(linux.routes_from.kernel.is_some() && linux.ports[0].interface.host.is_some());
        let own = "for n, port in pairs(ports) do port.fastPathCores = { 3 } end";
        assert_eq!(read(own).unwrap().config.cores.forward, [3]);
        let pci = "ports.Port1.device = '0000:03:00.0' ports.Port1.mac = nil";
        let pci = read(pci).unwrap().config;
        assert_eq!(pci.ports[0].device, Device::Pci("0000:03:00.0".into()));
    }

    #[test]
    fn what_does_not_count_is_said() {
        for (more, expected) in [
            ("config.speed = 9", "key \"speed\" unknown and ignored; known: ports, routes,"),
            ("config.rxBurtsSize = 9", "did you mean \"rxBurstSize\"?"),
            ("ports.Port1.ipv6 = ''", "port \"Port1\": key \"ipv6\" unknown and ignored"),
            ("routes.Route1.metric = 3", "route \"Route1\": key \"metric\" unknown and ignored"),
            ("config.rxBurstSize = 128", "rxBurstSize: has no effect; a forwarder takes up to 64"),
            ("config.txQueueSize = 128", "txQueueSize = 128: burst = 64 is the most"),
            ("config.txQueueTimeout = 1", "txQueueTimeout = 1: flush_us = 100000 is the most"),
            ("config.addRoutesToLocalNetworks = false", "can always be reached"),
            (
                "config.telnetEnable = true config.telnetBindIP = '0.0.0.0'",
                "telnetBindIP = \"0.0.0.0\": telnet has no passwords, so it is served on 127.0.0.1",
            ),
            (
                "routes.Route3 = { nhPort = 'Port1', nhIPv4 = '10.0.2.6', networkIP = '128.0.0.9', networkPrefix = 1 }",
                "route \"Route3\": to 128.0.0.0/1, as \"Route2\" is; ignored",
            ),
        ] {
            let warnings = warnings(more);
            assert_eq!(warnings.len(), 1, "{more}: {warnings:?}");
            assert!(warnings[0].contains(expected), "{more}: {warnings:?}");
        }
        assert_eq!(read("config.txQueueSize = 128").unwrap().config.tx.burst, 64);
    }

    #[test]
    fn what_is_wrong_names_the_thing() {
        for (more, expected) in [
            (
                "ports.Port1.mac = '02:00:00:00:00:01'",
                "cfg.lua:8: port \"Port1\": no interface has mac 02:00:00:00:00:01; known: \
                 a0:36:9f:3b:6d:50 (eth1), a0:36:9f:3b:6d:52 (eth2). For one that is bound to a DPDK \
                 driver add device = \"PCI ADDRESS\"",
            ),
            ("ports.Port1.mac = 'x'", "cfg.lua:8: port \"Port1\": mac \"x\": "),
            (
                "ports.Port1.direction = 'in'",
                "cfg.lua:8: port \"Port1\": direction: string \"in\": a port receives and sends",
            ),
            (
                "ports.Port1.ipv4Prefix = 33",
                "ipv4Prefix: expected a length from 0 to 32, got number 33",
            ),
            ("ports.Port1.ipv4 = '10.0.2'", "10.0.2/24"),
            ("ports.Port2 = ports.Port1", "eth2"),
            ("routes.Route1.nhPort = 'Port9'", "Port9"),
            (
                "routes.Route2.nhIPv4 = nil",
                "route \"Route2\": nhIPv4: expected an address, for there is no nhMAC, got nothing",
            ),
            (
                "routes.Route2.networkPrefix = 'x'",
                "networkPrefix: expected a length, got string \"x\"",
            ),
            ("config.fastPathCores = 1", "fastPathCores: expected a list of cores, got number 1"),
            ("config.ports = {}", "ports: there are none"),
            ("do return 5 end", "cfg.lua: returns number 5; it must end with: return config"),
            ("x = = 1", "unexpected symbol"),
            ("os.execute('true')", "attempt to index global 'os' (a nil value)"),
        ] {
            let errors = errors(more);
            assert!(errors.contains(expected), "{more}: {errors}");
        }
    }
}
