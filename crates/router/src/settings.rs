//! Settings from the configuration's words to those of the units: when they start, and when they change.

use dataplane::forwarder::Settings;
use dataplane::polling::{Polling, PortPolling, QUOTA};

use super::ports::OpenPort;
use control::config::{self, Config};

/// Returns the settings of forwarders.
pub fn of_forwarders(config: &Config) -> Settings {
    Settings { tx: config.tx, polling: polling(config) }
}

fn polling(config: &Config) -> Polling {
    let config::Forwarders {
        wait,
        budget,
        moderation,
        shed,
        // The owner moves queues, and makes those for control traffic.
        rebalance: _,
        control_queue: _,
        learned_flows: _,
        events: _,
    } = config.forwarders;
    let mut polling = Polling { wait, budget, moderation, shed, ..Polling::default() };
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
        is_loopback: false,
        settings: wanted.interface.settings.clone(),
        owned: true,
    }
}
