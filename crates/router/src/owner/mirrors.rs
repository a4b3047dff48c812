//! Answers to `show mirrors`.

use api::report::{Erspan, Mirror};
use control::config::Vrf;
use dataplane::mirror_sessions::{Destination, Session};

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
                to: match session.to {
                    Destination::Port(port) => self.interface_name(port),
                    Destination::Erspan(to) => to.destination.to_string(),
                },
                erspan: self.erspan(session),
                sample: session.sample,
                vlan: session.vlan,
                packets: counts.packets,
                bytes: counts.bytes,
                dropped: counts.dropped,
            }
        };
        self.configurations.current.mirrors.iter().map(|mirror| report(&mirror.session)).collect()
    }

    fn erspan(&self, session: &Session) -> Option<Erspan> {
        let Destination::Erspan(to) = session.to else { return None };
        let tables = &self.routing.tables;
        Some(Erspan {
            source: to.source.to_string(),
            id: to.id,
            vrf: Vrf::name_of(&self.configurations.current.vrfs, to.vrf).to_owned(),
            reachable: tables.mirrors.get().is_reachable(&session.name, &tables.next_hops),
        })
    }
}
