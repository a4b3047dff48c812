//! What a port says of itself: from the configuration to the slow path.

use control::config;
use slowpath::{Advertise, Discovery, PortSettings, Preference, Prefix};

/// A port's settings.
pub fn of(port: &config::Port) -> PortSettings {
    let advertise = port.advertise.as_ref().map(advertise);
    let config::Port { unreachables, redirects, dad, .. } = *port;
    let discovery = port.discovery.map(discovery);
    PortSettings { unreachables, redirects, dad, advertise, discovery }
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
