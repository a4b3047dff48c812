//! Settings from the configuration's words to those of the units: when they start, and when they change.

use super::ports::OpenPort;
use control::config::{self, Config};
use dataplane::distribution::TxConfig;
use dataplane::forwarder::Settings;
use dataplane::polling::{Polling, PortPolling, QUOTA};
use dataplane::steps::REDIRECTS;
use slowpath::{Advertise, Discovery, InterfaceSettings, Preference, Prefix};

/// What forwarders mind.
pub fn of_forwarders(config: &Config) -> Settings {
    let config::Tx { burst, flush } = config.tx;
    Settings { tx: TxConfig { burst: burst.into(), flush }, polling: polling(config) }
}

fn polling(config: &Config) -> Polling {
    let config::Forwarders { wait, budget, shed, .. } = config.forwarders;
    let mut polling = Polling { wait, budget, shed, ..Polling::default() };
    for port in &config.ports {
        let wait = port.queues.wait.unwrap_or(wait);
        let quota = port.queues.quota.unwrap_or(QUOTA);
        polling.ports[port.id.index()] = PortPolling { wait, quota };
    }
    polling
}

/// The router's own ICMP.
pub fn icmp(config: &Config) -> slowpath::Icmp {
    let config::Icmp { ttl, echo } = config.icmp;
    slowpath::Icmp { ttl, echo, class_e: config.forwarding.class_e }
}

/// What bounds the slow path.
pub fn limits(wanted: &config::Slowpath) -> slowpath::Limits {
    slowpath::Limits {
        neighbours: wanted.neighbours,
        queue: wanted.queue,
        tries: wanted.retries.min(u32::from(u8::MAX)) as u8,
        reachable: wanted.timeout,
        reassembly: wanted.reassembly,
        icmp_rate: wanted.icmp_rate,
        icmp_burst: wanted.icmp_burst,
        icmp_prefix_rate: wanted.icmp_prefix_rate,
        icmp_prefix_burst: wanted.icmp_prefix_burst,
        ..slowpath::Limits::default()
    }
}

/// A port for the engine that owns it.
pub fn slow_path_port(open: &OpenPort, wanted: &config::Port) -> slowpath::InterfaceConfig {
    slowpath::InterfaceConfig {
        id: open.id.into(),
        name: open.name.clone(),
        mac: open.info.mac,
        mtu: open.info.mtu,
        addresses: open.addresses.clone(),
        host: open.host.is_some(),
        settings: of(wanted),
        owned: true,
    }
}

/// A port's settings.
pub fn of(port: &config::Port) -> InterfaceSettings {
    let advertise = port.advertise.as_ref().map(advertise);
    let config::Port { vrf, unreachables, dad, .. } = *port;
    let redirects = port.features().has(REDIRECTS);
    let discovery = port.discovery.map(discovery);
    InterfaceSettings { vrf, unreachables, redirects, dad, advertise, discovery }
}

fn discovery(wanted: config::Discovery) -> Discovery {
    let config::Discovery { interval, least_interval, lifetime, preference, broadcast } = wanted;
    Discovery { interval, least_interval, lifetime, preference, broadcast }
}

fn advertise(wanted: &config::Advertise) -> Advertise {
    Advertise {
        interval: wanted.interval,
        least_interval: wanted.least_interval,
        lifetime: wanted.lifetime,
        managed: wanted.managed,
        other: wanted.other,
        preference: match wanted.preference {
            config::Preference::High => Preference::High,
            config::Preference::Medium => Preference::Medium,
            config::Preference::Low => Preference::Low,
        },
        hop_limit: wanted.hop_limit,
        reachable: wanted.reachable,
        retransmit: wanted.retransmit,
        mtu: wanted.mtu,
        prefixes: wanted.prefixes.as_ref().map(|prefixes| prefixes.iter().map(prefix).collect()),
        dns: wanted.dns.clone(),
    }
}

fn prefix(wanted: &config::Prefix) -> Prefix {
    Prefix {
        net: wanted.net,
        valid: wanted.valid,
        preferred: wanted.preferred,
        on_link: wanted.on_link,
        autonomous: wanted.autonomous,
    }
}
