//! Answers to `show mirrors`.

use api::report::Mirror;
use dataplane::mirror_sessions::Session;

use super::Owner;

impl Owner {
    /// The mirror sessions, in the order of the configuration.
    pub(super) fn mirrors(&self) -> Vec<Mirror> {
        let counts = self.routing.tables.mirrors.counts();
        let report = |session: &Session| {
            let counts = counts.get(&session.name).copied().unwrap_or_default();
            Mirror {
                name: session.name.clone(),
                from: session.from.iter().map(|from| self.interface_name(*from)).collect(),
                direction: session.direction.name().to_owned(),
                to: self.interface_name(session.to),
                sample: session.sample,
                vlan: session.vlan,
                packets: counts.packets,
                bytes: counts.bytes,
                dropped: counts.dropped,
            }
        };
        self.configurations.current.mirrors.iter().map(|mirror| report(&mirror.session)).collect()
    }
}
