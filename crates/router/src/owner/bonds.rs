//! Bonds: the ports that take part, and the bonds' links.
//!
//! ```text
//!   link of a port ----------------------+
//!   LACP: Event::BondPort ---------------+--> select --> BondState, which forwarders read
//!   settings: mode, minimum_links -------+          +--> link of the bond, and of its VLANs
//! ```
//!
//! The forwarders' words are stored first, so that a lost port costs only the packets sent until its loss is noticed.
//! While fewer ports than `minimum_links` take part, the bond's link is down, and routes leave it as they leave a port
//! whose link is down; its ports still receive and send what is for the bond itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::anyhow;
use api::{Answer, query, report};
use control::config::{self, BondMode, Config};
use dataplane::bond::{BondState, BondTable};
use dataplane::interface::InterfaceId;
use dataplane::port::{MAX_PORTS, PortId, PortSet};
use dpdk::LinkWatch;
use slowpath::{Command, LacpConfig, LacpInfo, LacpPortInfo};
use tokio::sync::oneshot;
use tokio::time::timeout;
use wire::{MacAddr, lacp};

use super::super::ports::OpenPort;
use super::Owner;
use super::questions::{WORKERS_PATIENCE, answer};
use super::state::Devices;
use super::watch::PortNotification;

/// A bond that runs.
pub struct BondControl {
    /// As configured.
    pub(super) wanted: config::Bond,
    /// The words that forwarders read.
    state: Arc<BondState>,
    /// The results of LACP, by port: collecting, distributing.
    lacp: BTreeMap<PortId, (bool, bool)>,
    /// The settings of LACP that the slow path has; `None` in other modes.
    lacp_config: Option<LacpConfig>,
    /// The ports that receive and send now.
    pub(super) collecting: PortSet,
    /// The ports that send now.
    pub(super) distributing: PortSet,
    /// The active ports have different speeds, which was logged.
    speeds_differ: bool,
}

/// The bonds that run, by their numbers.
pub type BondControls = BTreeMap<InterfaceId, BondControl>;

impl BondControl {
    fn new(wanted: config::Bond, state: Arc<BondState>) -> Self {
        Self {
            wanted,
            state,
            lacp: BTreeMap::new(),
            lacp_config: None,
            collecting: PortSet::EMPTY,
            distributing: PortSet::EMPTY,
            speeds_differ: false,
        }
    }

    /// Returns the ports that collect and those that distribute, of those with a link.
    fn select(&self, with_link: &[PortId]) -> (PortSet, PortSet) {
        match self.wanted.mode {
            BondMode::Static => {
                let all: PortSet = with_link.iter().copied().collect();
                (all, all)
            }
            BondMode::ActiveBackup => {
                let first: PortSet = with_link.iter().copied().take(1).collect();
                (first, first)
            }
            BondMode::Lacp => {
                let agreed = |port: &PortId| self.lacp.get(port).copied().unwrap_or_default();
                let collects = with_link.iter().copied().filter(|port| agreed(port).0);
                let distributes = with_link.iter().copied().filter(|port| agreed(port).1);
                (collects.collect(), distributes.collect())
            }
        }
    }
}

impl Owner {
    /// Takes up the bonds of a configuration, whose ports are open.
    pub(super) fn configure_bonds(&mut self, config: &Config) {
        let table = self.routing.tables.shared.get::<BondTable>();
        let ids: Vec<_> = self.devices.bonds.keys().copied().collect();
        for id in ids.into_iter().filter(|id| config.bond(*id).is_none()) {
            // It is about to be removed, and its ports may be others' already.
            if let Some(bond) = self.devices.bonds.get_mut(&id) {
                bond.wanted.ports.clear();
            }
            self.follow_bond(id);
        }
        for wanted in &config.bonds {
            let known = self.devices.bonds.remove(&wanted.id);
            let changed = known.as_ref().is_none_or(|known| known.wanted != *wanted);
            let mut control =
                known.unwrap_or_else(|| BondControl::new(wanted.clone(), table.state(wanted.id)));
            control.wanted = wanted.clone();
            control
                .lacp
                .retain(|port, _| wanted.mode == BondMode::Lacp && wanted.ports.contains(port));
            self.devices.bonds.insert(wanted.id, control);
            self.configure_lacp(wanted, changed);
            self.follow_bond(wanted.id);
        }
        self.follow_carriers();
        if !config.bonds.is_empty() {
            // Each port receives frames to the bond's MAC, and LACP.
            self.follow_virtual_macs();
            self.filter_multicasts();
        }
    }

    /// Forgets the bonds that a configuration does not have.
    pub(super) fn forget_bond(&mut self, id: InterfaceId) {
        if self.devices.bonds.remove(&id).is_some() {
            self.slow_path.orders.send(&Command::Lacp { bond: id, config: None });
            self.routing.tables.shared.get::<BondTable>().forget(id);
        }
    }

    /// Polls the carriers of the kernel interfaces that are in bonds.
    pub(super) fn follow_carriers(&mut self) {
        let Devices { ports, bonds, carriers, absentees, .. } = &mut self.devices;
        let bonded: PortSet = bonds.values().flat_map(|bond| bond.wanted.ports.clone()).collect();
        let is_polled = |open: &&OpenPort| {
            bonded.contains(open.id) && matches!(open.port.link_watch(), LinkWatch::Kernel(_))
        };
        let polled = ports.iter().filter(is_polled).map(|open| (open.id, open.device.clone()));
        let polled: Vec<_> = polled.collect();
        let helpers = absentees.helpers();
        let report = move |id, up| {
            // The receiver goes when the router ends.
            let _ = helpers.send(PortNotification::Carrier(id, up));
        };
        carriers.watch(polled, |id| ports.get(id)?.port.carrier(), report);
    }

    /// The bond of a port.
    pub(super) fn bond_of(&self, port: PortId) -> Option<InterfaceId> {
        let has = |bond: &&BondControl| bond.wanted.ports.contains(&port);
        self.devices.bonds.values().find(has).map(|bond| bond.wanted.id)
    }

    /// A port's link, LACP's result or a setting has changed: selects the ports that take part.
    pub(super) fn follow_bond(&mut self, id: InterfaceId) {
        let Some(bond) = self.devices.bonds.get_mut(&id) else { return };
        let has_link = |port: &PortId| {
            self.devices.ports.get(*port).is_some() && self.devices.links[port.index()].up()
        };
        let with_link: Vec<_> = bond.wanted.ports.iter().copied().filter(has_link).collect();
        let (collecting, distributing) = bond.select(&with_link);
        bond.state.set(collecting, distributing);
        let before = bond.distributing;
        (bond.collecting, bond.distributing) = (collecting, distributing);
        let up = distributing.ports().count() >= usize::from(bond.wanted.minimum_links);
        let (mode, name) = (bond.wanted.mode, bond.wanted.name.clone());
        if before != distributing {
            let ports = distributing.ports().map(|port| self.interface_name(port));
            let ports = ports.collect::<Vec<_>>().join(", ");
            let ports = if ports.is_empty() { "none".to_owned() } else { ports };
            tracing::info!("bond \"{name}\": active ports: {ports}");
        }
        self.compare_speeds(id);
        self.lower_link(id, up);
        let moved = mode == BondMode::ActiveBackup && before != distributing;
        if moved && up && !before.is_empty() {
            self.announce_on(id);
        }
    }

    /// Passes the settings of LACP to the slow path, if anything that they depend on has changed.
    fn configure_lacp(&mut self, wanted: &config::Bond, changed: bool) {
        let macs = |port: &PortId| {
            let open = self.devices.ports.get(*port)?;
            Some((InterfaceId::from(*port), open.info.mac))
        };
        let system =
            self.devices.virtuals.get(&wanted.id).map_or(MacAddr::default(), |open| open.info.mac);
        let config = (wanted.mode == BondMode::Lacp).then(|| LacpConfig {
            system,
            priority: wanted.lacp.priority,
            // Numbers of bonds begin where those of ports end.
            key: (wanted.id.index() - MAX_PORTS + 1) as u16,
            fast: wanted.lacp.fast,
            passive: wanted.lacp.passive,
            maximum: wanted.maximum_links.map_or(usize::MAX, usize::from),
            ports: wanted.ports.iter().filter_map(macs).collect(),
        });
        let Some(control) = self.devices.bonds.get_mut(&wanted.id) else { return };
        if !changed && control.lacp_config == config {
            return;
        }
        control.lacp_config.clone_from(&config);
        let config = config.map(Box::new);
        self.slow_path.orders.send(&Command::Lacp { bond: wanted.id, config });
        for &port in &wanted.ports {
            let up = self.devices.links[port.index()].up();
            self.slow_path.orders.send(&Command::PortLink { interface: port.into(), up });
        }
    }

    /// LACP has agreed on other uses of a port.
    pub(super) fn agreed(&mut self, bond: InterfaceId, port: InterfaceId, result: (bool, bool)) {
        let Some(control) = self.devices.bonds.get_mut(&bond) else { return };
        if let Some(port) = port.port().filter(|port| control.wanted.ports.contains(port)) {
            control.lacp.insert(port, result);
            self.follow_bond(bond);
        }
    }

    /// Answers with the bonds, when the slow path has answered with the state of LACP.
    pub(super) fn list_bonds(&self, to: oneshot::Sender<Answer>) {
        let mut bonds: Vec<_> =
            self.devices.bonds.values().map(|bond| self.bond_report(bond)).collect();
        if bonds.is_empty() {
            return answer(to, &query::BONDS, Ok(Vec::new()));
        }
        let orders = self.slow_path.orders.clone();
        tokio::spawn(async move {
            let known = match timeout(WORKERS_PATIENCE, orders.bonds()).await {
                Ok(Some(known)) => Ok(known),
                Ok(None) => Err(anyhow!("the slow path has ended")),
                Err(_) => Err(anyhow!(
                    "a slow path worker does not answer for {} s; see the log",
                    WORKERS_PATIENCE.as_secs()
                )),
            };
            answer(
                to,
                &query::BONDS,
                known.map(|known| {
                    bonds.iter_mut().for_each(|bond| add_lacp(bond, &known));
                    bonds.into_iter().map(|bond| bond.report).collect::<Vec<_>>()
                }),
            );
        });
    }

    fn bond_report(&self, bond: &BondControl) -> BondReport {
        let word = |up: bool| String::from(if up { "up" } else { "down" });
        let port = |&port: &PortId| report::BondPort {
            name: self.interface_name(port),
            link: word(self.devices.links[port.index()].up()),
            collecting: bond.collecting.contains(port),
            distributing: bond.distributing.contains(port),
            receive: None,
            mux: None,
            selected: bond.distributing.contains(port),
            standby: false,
            actor_churn: false,
            partner_churn: false,
            looped: false,
            partner: None,
            lacpdus_in: 0,
            lacpdus_out: 0,
            malformed: 0,
            markers: 0,
        };
        let wanted = &bond.wanted;
        BondReport {
            id: wanted.id,
            ports: wanted.ports.clone(),
            report: report::Bond {
                name: wanted.name.clone(),
                mode: wanted.mode.name().to_owned(),
                hash: wanted.hash.name().to_owned(),
                link: word(self.devices.links[wanted.id.index()].up()),
                minimum_links: wanted.minimum_links,
                maximum_links: wanted.maximum_links,
                partner: None,
                ports: wanted.ports.iter().map(port).collect(),
            },
        }
    }

    /// Warns of ports with different speeds, which get equal parts of the flows, once until they are alike again.
    fn compare_speeds(&mut self, id: InterfaceId) {
        let Some(bond) = self.devices.bonds.get_mut(&id) else { return };
        let speed = |port: PortId| {
            let mbps = self.devices.ports.get(port)?.port.link().speed_mbps;
            (mbps != 0 && mbps != u32::MAX).then_some((port, mbps))
        };
        let speeds: Vec<_> = bond.collecting.ports().filter_map(speed).collect();
        let first = speeds.first().map(|(_, mbps)| *mbps);
        let differs = speeds.iter().any(|(_, mbps)| Some(*mbps) != first);
        if std::mem::replace(&mut bond.speeds_differ, differs) || !differs {
            return;
        }
        let name = bond.wanted.name.clone();
        let each =
            speeds.iter().map(|(port, mbps)| format!("{} {mbps} Mb/s", self.interface_name(*port)));
        let each = each.collect::<Vec<_>>().join(", ");
        tracing::warn!(
            "bond \"{name}\": its ports have different speeds ({each}), and get equal parts of the flows; use ports of \
             one speed"
        );
    }

    /// Announces the addresses of a bond and its VLANs: bridges learn the port that their MAC is behind now.
    fn announce_on(&self, bond: InterfaceId) {
        let on_it = self.devices.virtuals.values().filter(|of| of.lower == Some(bond));
        for interface in on_it.map(|of| of.id).chain([bond]) {
            self.slow_path.orders.send(&Command::Announce { interface });
        }
    }
}

/// A report that lacks the state of LACP.
struct BondReport {
    id: InterfaceId,
    ports: Vec<PortId>,
    report: report::Bond,
}

/// Adds the state of LACP to a bond's report.
fn add_lacp(bond: &mut BondReport, known: &[LacpInfo]) {
    let Some(info) = known.iter().find(|info| info.bond == bond.id) else { return };
    for (id, port) in bond.ports.iter().zip(&mut bond.report.ports) {
        let of_port = |info: &&LacpPortInfo| info.port == InterfaceId::from(*id);
        let Some(info) = info.ports.iter().find(of_port) else { continue };
        port.receive = Some(info.receive.to_owned());
        port.mux = Some(info.mux.to_owned());
        (port.selected, port.looped, port.standby) = (info.selected, info.looped, info.standby);
        [port.actor_churn, port.partner_churn] = info.churns;
        (port.lacpdus_in, port.lacpdus_out) = (info.rx, info.tx);
        (port.malformed, port.markers) = (info.malformed, info.markers);
        port.partner = info.partner.as_ref().map(|partner| report::LacpPartner {
            system: partner.system.to_string(),
            system_priority: partner.system_priority.get(),
            key: partner.key.get(),
            port: partner.port.get(),
            port_priority: partner.port_priority.get(),
            state: lacp::state::names(partner.state).map(str::to_owned).collect(),
        });
        if info.selected && bond.report.partner.is_none() {
            bond.report.partner = port.partner.as_ref().map(|partner| partner.system.clone());
        }
    }
}
