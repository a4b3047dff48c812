//! Settings from the configuration's words to those of the units: when they start, and when they change.

use dataplane::forwarder::Settings;
use dataplane::polling::{Polling, PortPolling, QUOTA};
use dataplane::steps::REDIRECTS;

use super::ports::OpenPort;
use control::config::{self, Config};
use slowpath::InterfaceSettings;

/// Returns the settings of forwarders.
pub fn of_forwarders(config: &Config) -> Settings {
    Settings { tx: config.tx, polling: polling(config) }
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

/// A port for the engine that owns it.
pub fn slow_path_port(open: &OpenPort, wanted: &config::Port) -> slowpath::InterfaceConfig {
    slowpath::InterfaceConfig {
        id: open.id.into(),
        name: open.name.clone(),
        mac: open.info.mac,
        mtu: open.info.mtu,
        addresses: open.addresses.clone(),
        host: open.host.is_some(),
        settings: of(&wanted.interface),
        owned: true,
    }
}

/// An interface's settings.
pub fn of(interface: &config::Interface) -> InterfaceSettings {
    let config::Interface { vrf, unreachables, dad, discovery, .. } = *interface;
    let redirects = interface.features().has(REDIRECTS);
    let advertise = interface.advertise.clone();
    InterfaceSettings { vrf, unreachables, redirects, dad, advertise, discovery }
}
