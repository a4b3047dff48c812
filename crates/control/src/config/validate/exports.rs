//! `turnpike.sflow { … }`, `turnpike.ipfix { … }`, `turnpike.snmp { … }`

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use dataplane::plan::Plans;
use dataplane::port::PortId;
use dataplane::samples::KEEP_MOST;
use dataplane::words::suggestion;

use super::super::exports::{Ipfix, Sampled, Sflow, Snmp};
use super::super::script::Statement;
use super::super::value::{Fields, Value};
use super::super::{Bond, Port};
use super::Context;
use super::graphs::lacking;
use super::rest::{plain, single};

/// Usual UDP ports of collectors.
const SFLOW_PORT: u16 = 6343;
const IPFIX_PORT: u16 = 4739;

/// The most packets of which one is sampled.
const SAMPLE_MOST: u64 = 1 << 24;

/// The most collectors of a statement.
const COLLECTORS_MOST: usize = 8;

/// The most seconds of any interval.
const SECONDS_MOST: u64 = 86_400;

/// The usual place of an agent's socket.
const AGENTX: &str = "/var/agentx/master";

/// Most bytes of a Unix socket's path, of which the kernel keeps 108 with the end.
const PATH_MOST: usize = 107;

const STEP: &str = "sample-in";

pub(super) fn sflow<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    interfaces: (&[Port], &[Bond]),
) -> Option<Sflow> {
    const KNOWN: &[&str] =
        &["collector", "source", "interfaces", "sample", "agent", "header", "counters_s"];
    let statement = single(context, statements)?;
    let mut fields = plain(context, statement, KNOWN);
    let sampled = sampled(&mut fields, SFLOW_PORT, interfaces);
    let agent = address(&mut fields, "agent", "the router's address in datagrams");
    let header = fields.number("header", 64..=KEEP_MOST as u64).unwrap_or(128) as usize;
    let counters = fields.number("counters_s", 0..=SECONDS_MOST).unwrap_or(20);
    let counters = (counters > 0).then(|| Duration::from_secs(counters));
    Some(Sflow { sampled, agent, header, counters })
}

pub(super) fn ipfix<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    interfaces: (&[Port], &[Bond]),
) -> Option<Ipfix> {
    const KNOWN: &[&str] = &[
        "collector",
        "source",
        "interfaces",
        "sample",
        "active_s",
        "inactive_s",
        "domain",
        "flows",
        "templates_s",
    ];
    let statement = single(context, statements)?;
    let mut fields = plain(context, statement, KNOWN);
    let sampled = sampled(&mut fields, IPFIX_PORT, interfaces);
    let mut seconds =
        |key, usual| Duration::from_secs(fields.number(key, 1..=SECONDS_MOST).unwrap_or(usual));
    let (active, inactive) = (seconds("active_s", 60), seconds("inactive_s", 15));
    let templates = seconds("templates_s", 60);
    if inactive > active {
        let (long, short) = (inactive.as_secs(), active.as_secs());
        let message =
            format!("inactive_s: {long} is longer than active_s, {short}; make one of them other");
        fields.error("inactive_s", message);
    }
    Some(Ipfix {
        sampled,
        active,
        inactive,
        domain: fields.number("domain", 0..=u32::MAX.into()).unwrap_or(1) as u32,
        flows: fields.number("flows", 64..=1 << 20).unwrap_or(1 << 16) as usize,
        templates,
    })
}

pub(super) fn snmp<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<Snmp> {
    let statement = single(context, statements)?;
    let mut fields = plain(context, statement, &["agentx"]);
    let path = fields.text("agentx", "an absolute path").unwrap_or(AGENTX);
    if !path.starts_with('/') || path.len() > PATH_MOST {
        let message = format!(
            "agentx \"{path}\": no absolute path of a socket of {PATH_MOST} bytes at most; write one such as \
             \"{AGENTX}\""
        );
        fields.error("agentx", message);
    }
    Some(Snmp { agentx: PathBuf::from(path) })
}

fn sampled(fields: &mut Fields<'_, '_>, usual: u16, interfaces: (&[Port], &[Bond])) -> Sampled {
    let sample = fields.number("sample", 1..=SAMPLE_MOST);
    if fields.get("sample").is_none() {
        let message = "sample missing; write sample = N: one of N packets is sampled, such as 1000";
        fields.error("", message);
    }
    Sampled {
        collectors: collectors(fields, usual),
        source: address(fields, "source", "one of this machine's addresses"),
        ports: ports(fields, interfaces),
        sample: sample.unwrap_or(1) as u32,
    }
}

fn collectors(fields: &mut Fields<'_, '_>, usual: u16) -> Vec<SocketAddr> {
    let texts = fields.texts("collector", "a collector's address or a list of them");
    let is_empty = matches!(fields.get("collector"), Some(Value::Table(_))) && texts.is_empty();
    if fields.get("collector").is_none() || is_empty {
        let message = format!("collector missing; write collector = \"192.0.2.9:{usual}\"");
        fields.error("collector", message);
    }
    let mut found = Vec::new();
    for text in texts {
        match collector(text, usual) {
            Ok(address) if found.contains(&address) => {
                fields
                    .error("collector", format!("collector \"{text}\" is given twice; remove one"));
            }
            Ok(address) => found.push(address),
            Err(why) => fields.error("collector", format!("collector \"{text}\": {why}")),
        }
    }
    if found.len() > COLLECTORS_MOST {
        let message =
            format!("collector: {} are given, {COLLECTORS_MOST} is the most", found.len());
        fields.error("collector", message);
    }
    found
}

/// Reads `192.0.2.9`, `192.0.2.9:6343`, `[2001:db8::9]:6343`, with or without `udp://` in front.
fn collector(text: &str, usual: u16) -> Result<SocketAddr, String> {
    let text = text.strip_prefix("udp://").unwrap_or(text);
    let address = text.parse::<SocketAddr>().ok();
    let address = address.or_else(|| Some(SocketAddr::new(text.parse().ok()?, usual)));
    let Some(address) = address.filter(|address| address.port() != 0) else {
        return Err(format!(
            "no address of a collector; write \"192.0.2.9:{usual}\" or \"[2001:db8::9]:{usual}\""
        ));
    };
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err("no address of one host".to_owned());
    }
    Ok(address)
}

fn address(fields: &mut Fields<'_, '_>, key: &str, meaning: &str) -> Option<IpAddr> {
    let text = fields.text(key, "an address")?;
    let address = text.parse::<IpAddr>().ok();
    let address = address.filter(|of| !of.is_unspecified() && !of.is_multicast());
    if address.is_none() {
        fields.error(key, format!("{key}: \"{text}\" is no address of a host; write {meaning}"));
    }
    address
}

/// Reads the names of ports, and of bonds for their ports.
fn ports(fields: &mut Fields<'_, '_>, (ports, bonds): (&[Port], &[Bond])) -> Option<Vec<PortId>> {
    fields.get("interfaces")?;
    let mut found = Vec::new();
    let names = fields.texts("interfaces", "a port's name or a list of names");
    if names.is_empty() && matches!(fields.get("interfaces"), Some(Value::Table(_))) {
        let message =
            "interfaces: the list is empty; leave it out to sample the packets of all ports";
        fields.error("interfaces", message);
    }
    for name in names {
        let port = ports.iter().find(|port| port.name == name).map(|port| vec![port.id]);
        let bond = || bonds.iter().find(|bond| bond.name == name).map(|bond| bond.ports.clone());
        match port.or_else(bond) {
            Some(more) => found.extend(more),
            None => {
                let known: Vec<&str> = (ports.iter().map(|port| &*port.name))
                    .chain(bonds.iter().map(|bond| &*bond.name))
                    .collect();
                let known = suggestion(name, "ports and bonds", &known);
                fields.error("interfaces", format!("interfaces: \"{name}\" unknown{known}"));
            }
        }
    }
    found.sort();
    found.dedup();
    Some(found)
}

/// Sets the ports that need the step `sample-in`.
pub(super) fn tell_ports((sflow, ipfix): (Option<&Sflow>, Option<&Ipfix>), ports: &mut [Port]) {
    let sflow = sflow.map(|of| &of.sampled);
    let all: Vec<_> = sflow.into_iter().chain(ipfix.map(|of| &of.sampled)).collect();
    for port in ports {
        port.interface.is_sampled = all.iter().any(|sampled| sampled.has(port.id));
    }
}

/// Refuses graphs that lack the step for samples.
pub(super) fn check_graphs(
    context: &mut Context<'_>,
    statement: Option<&Statement>,
    plans: &Plans,
    ports: &[Port],
) {
    let Some(statement) = statement else { return };
    if let Some(port) = lacking(plans, ports, STEP, |port| port.interface.is_sampled) {
        let message = format!(
            "{}: the graph of port \"{}\" has no step {STEP}; put it in front: \
             turnpike.new_graph \"{STEP}\"",
            statement.keyword.name(),
            port.name
        );
        context.errors.add(Some(statement.line), message);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dataplane::catalogue::Catalogue;
    use dataplane::samples::SAMPLES;

    use super::super::super::{Config, ConfigErrors, Diff, Effect, Limits, Unit, parse};

    const PORTS: &str = "local turnpike = require 'turnpike'
        turnpike.port 'wan' { device = 'eth0', address = '10.0.1.1/24' }
        turnpike.port 'lan' { device = 'eth1' }
        turnpike.port 'one' { device = 'eth2' }
        turnpike.bond 'lag' { ports = 'one' }\n";

    fn read(more: &str) -> Result<Config, ConfigErrors> {
        parse("t.lua".as_ref(), &format!("{PORTS}{more}"), Limits::default(), &Catalogue::default())
    }

    fn errors(more: &str) -> String {
        read(more).unwrap_err().to_string()
    }

    fn asks(config: &Config) -> Vec<bool> {
        config.ports.iter().map(|port| port.interface.features().has(SAMPLES)).collect()
    }

    #[test]
    fn statements_are_read_and_their_ports_ask_for_the_step() {
        let config = read(
            "turnpike.sflow { collector = { '192.0.2.9', '[fd00::9]:99' }, sample = 1000, interfaces = { 'wan', 'lag' },
               agent = '10.0.1.1', header = 64, counters_s = 5, source = '10.0.1.1' }
             turnpike.snmp {}",
        )
        .unwrap();
        let sflow = config.sflow.as_ref().unwrap();
        let shown: Vec<_> = sflow.sampled.collectors.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.9:6343", "[fd00::9]:99"]);
        assert_eq!((sflow.header, sflow.counters), (64, Some(Duration::from_secs(5))));
        assert_eq!(asks(&config), [true, false, true]);
        assert_eq!(config.snmp.as_ref().unwrap().agentx.to_str(), Some("/var/agentx/master"));
        let [sampling] = &config.samplings()[..] else { panic!() };
        assert_eq!((&*sampling.name, sampling.rate, sampling.keep), ("sflow", 1000, 64));
        assert_eq!(sampling.ports.ports().map(|port| port.index()).collect::<Vec<_>>(), [0, 2]);
        let config = read(
            "turnpike.ipfix { collector = 'udp://192.0.2.9', sample = 1, active_s = 9, inactive_s = 3, domain = 7 }",
        )
        .unwrap();
        let ipfix = config.ipfix.as_ref().unwrap();
        assert_eq!(ipfix.sampled.collectors[0].to_string(), "192.0.2.9:4739");
        assert_eq!((ipfix.domain, ipfix.flows, ipfix.active.as_secs()), (7, 65536, 9));
        assert_eq!(asks(&config), [true; 3]);
        assert_eq!(asks(&read("").unwrap()), [false; 3]);
    }

    #[test]
    fn mistakes_are_named() {
        for (statement, expected) in [
            ("sflow {}", "sample missing; write sample = N"),
            ("sflow { sample = 9 }", "collector missing; write collector = \"192.0.2.9:6343\""),
            ("ipfix { sample = 9, collector = {} }", "collector missing"),
            ("ipfix { sample = 9, collector = 'here' }", "\"here\": no address of a collector"),
            ("ipfix { sample = 9, collector = '224.0.0.1' }", "no address of one host"),
            ("ipfix { sample = 9, collector = '192.0.2.9:0' }", "no address of a collector"),
            ("sflow { sample = 9, collector = { '192.0.2.9', '192.0.2.9:6343' } }", "given twice"),
            (
                "sflow { sample = 9, collector = '192.0.2.9', interfaces = 'wam' }",
                "did you mean \"wan\"?",
            ),
            ("sflow { sample = 9, collector = '192.0.2.9', interfaces = {} }", "the list is empty"),
            (
                "sflow { sample = 9, collector = '192.0.2.9', agent = '::' }",
                "is no address of a host",
            ),
            (
                "ipfix { sample = 9, collector = '192.0.2.9', inactive_s = 99 }",
                "longer than active_s, 60",
            ),
            ("snmp { agentx = 'master' }", "no absolute path of a socket"),
        ] {
            let found = errors(&format!("turnpike.{statement}"));
            assert!(found.contains(expected), "{statement}: {found}");
        }
        let bare = "turnpike.graph = turnpike.new_graph 'classify'
            turnpike.graph:path('classify.ip4', 'ip4-validate', 'drop')
            turnpike.graph:path('classify.ip6', 'ip6-validate', 'drop')
            turnpike.sflow { collector = '192.0.2.9', sample = 9 }";
        assert!(errors(bare).contains("has no step sample-in"), "{}", errors(bare));
    }

    #[test]
    fn samples_are_of_graphs_and_the_rest_is_of_the_exporter() {
        let of = |sample: u32, port: u16| {
            read(&format!("turnpike.sflow {{ collector = '192.0.2.9:{port}', sample = {sample} }}"))
                .unwrap()
        };
        let effects = |old: &Config, new: &Config| -> Vec<Effect> {
            Diff::between(old, new).settings.iter().map(|setting| setting.effect).collect()
        };
        assert_eq!(effects(&of(9, 1), &of(9, 2)), [Effect::Live(Unit::Export)]);
        assert_eq!(effects(&of(9, 1), &of(8, 1)), [Effect::Graph]);
        assert!(effects(&read("").unwrap(), &of(9, 1)).contains(&Effect::Graph));
    }
}
