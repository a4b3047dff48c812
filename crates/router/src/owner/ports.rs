//! Ports that are added, removed and changed while the router runs.
//!
//! ```text
//!   changed, or in the way:   link down -> disconnected -> put aside, or its device closed
//!   new, or put back:         (opened) -> slow path informed -> connected -> link up
//! ```
//!
//! A port's link is down for the router as long as it is not connected, so that routes over it are replaced as if its
//! cable were unplugged. Completed moves are kept in [`Moves`], and can be undone. A device is put aside open, unless
//! another port is to have it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use control::config::{self, Config, Diff};
use control::netlink::KernelOrder;
use control::rib::{Path, Route, RouteKind, RouteSource, Target};
use dataplane::interface::{InterfaceId, InterfaceInfo};
use dataplane::port::PortId;
use machine::bind;
use machine::cores;
use machine::place::{Place, of_port};
use slowpath::Command;

use super::super::host::HostInterface;
use super::super::ports::Opened;
use super::super::prepare::Ready;
use super::super::settings;
use super::hotplug::Absent;
use super::links::Link;
use super::{Owner, initial};

/// Error for a device that needs other graphs.
const CHANGED: &str = "its device has changed meanwhile";

/// Returns true if graphs made for a port with one of these serve the other.
fn is_same(one: InterfaceInfo, other: InterfaceInfo) -> bool {
    (one.mac, one.partial_checksums) == (other.mac, other.partial_checksums)
}

/// A port that was taken away, with the parts needed to bring it back.
pub(super) struct Gone {
    wanted: config::Port,
    /// Unless its device had to be closed.
    pub(super) kept: Option<Opened>,
    pub(super) host: Option<HostInterface>,
}

enum Move {
    Gone(Box<Gone>),
    Come(Box<config::Port>),
}

/// Completed moves of ports, in this order.
#[derive(Default)]
pub(super) struct Moves(Vec<Move>);

impl Moves {
    /// The host interface that a port had, put aside.
    fn host(&mut self, id: PortId) -> Option<&mut Option<HostInterface>> {
        self.0.iter_mut().find_map(|one| match one {
            Move::Gone(gone) if gone.wanted.id == id => Some(&mut gone.host),
            _ => None,
        })
    }

    /// The ports that have come.
    pub(super) fn come(&self) -> impl Iterator<Item = &config::Port> {
        self.0.iter().filter_map(|one| match one {
            Move::Come(port) => Some(&**port),
            Move::Gone(_) => None,
        })
    }
}

impl Owner {
    /// Disconnects ports that change or are in their way, and connects ports that are new or have changed. No route
    /// leads there yet. `infos` are the ports' data that graphs are made for.
    pub(super) async fn move_ports(
        &mut self,
        diff: &Diff,
        config: &Config,
        mut ready: BTreeMap<PortId, Ready>,
        infos: &[InterfaceInfo],
        moves: &mut Moves,
    ) -> Result<()> {
        let ports = &diff.ports;
        let come: Vec<_> =
            ports.added.iter().chain(ports.changed.iter().map(|(_, after)| after)).collect();
        let is_wanted = |port: &config::Port| come.iter().any(|to| to.device.is_same(&port.device));
        let in_the_way = ports.removed.iter().filter(|port| is_wanted(port));
        for port in ports.changed.iter().map(|(before, _)| before).chain(in_the_way) {
            let mut gone = self.detach(port).await?;
            if is_wanted(port) {
                gone.kept = None;
            }
            moves.0.push(Move::Gone(Box::new(gone)));
        }
        for port in come {
            let ready = ready.remove(&port.id).context("a port that was not prepared")?;
            self.attach(config, port, ready, infos[port.id.index()], moves).await?;
        }
        self.follow_hosts(config)
    }

    async fn attach(
        &mut self,
        config: &Config,
        port: &config::Port,
        ready: Ready,
        expected: InterfaceInfo,
        moves: &mut Moves,
    ) -> Result<()> {
        let forwarders = cores::place(config)?.forward.len();
        let mut opened = match ready.device {
            Ok(opened) => opened,
            Err(memory) => self.devices.opener.device(port, forwarders, &memory)?,
        };
        let info = opened.port.info;
        ensure!(is_same(info, expected), "port \"{}\": {CHANGED}; try again", port.name);
        let kept = moves.host(port.id).zip(port.interface.host.as_ref());
        let host = match kept {
            Some((host, wanted)) => {
                if let Some(host) = host {
                    host.change(info.mac, info.mtu).of_port(&port.name)?;
                    host.set_segmentation(wanted.segmentation).of_port(&port.name)?;
                }
                host.take()
            }
            None => None,
        };
        opened.attach(host.or(ready.host));
        moves.0.push(Move::Come(Box::new(port.clone())));
        self.bring(port, opened).await
    }

    /// Takes from the port what can be put aside; its link is down from here on.
    pub(super) async fn detach(&mut self, port: &config::Port) -> Result<Gone> {
        let (id, wanted) = (port.id, port.clone());
        if self.devices.ports.get(id).is_none() {
            let absent = self.devices.absentees.ports.remove(&id);
            return Ok(Gone { wanted, kept: None, host: absent.and_then(|absent| absent.host) });
        }
        self.quiet(id);
        let disconnected = self.with_wiring(async |wiring| wiring.disconnect(id).await).await;
        let mut queues = match disconnected {
            Ok(queues) => queues,
            Err(error) => {
                self.look_at_link(id);
                return Err(of_port(error, &port.name));
            }
        };
        let host = queues.host.take();
        self.read_rules_of(id);
        let kept = self.devices.ports.remove(id).map(|port| Opened { port, queues });
        Ok(Gone { wanted, kept, host })
    }

    /// Connects a port. Its link is down until it is looked at.
    async fn bring(&mut self, wanted: &config::Port, mut opened: Opened) -> Result<()> {
        let (id, info) = (wanted.id, opened.port.info);
        let known = self.routing.rib.interface(id.into());
        let had_host = known.is_some() && self.routing.sources.is_host(id.into());
        match known {
            // Those of a host interface may be other than the configuration's.
            Some(known) => opened.port.addresses.clone_from(&known.addresses),
            None => opened.port.counted = self.forwarding.ledger.traffic(id),
        }
        opened.queues.host.iter().for_each(|host| self.devices.opener.keep_host(host));
        if wanted.bond.is_none() {
            self.slow_path.orders.port(&settings::slow_path_port(&opened.port, wanted));
        }
        self.routing.tables.mtus.open(id.into(), info.mtu);
        let link = &mut self.devices.links[id.index()];
        // A host interface that was set down keeps the port down.
        *link = if had_host && opened.port.host.is_some() {
            link.without_device()
        } else {
            Link::down()
        };
        let queues = opened.queues;
        let connected = self.with_wiring(async |wiring| wiring.connect(queues).await).await;
        connected.of_port(&wanted.name)?;
        self.routing.rib.set_device(id.into(), info.mac, info.mtu);
        self.devices.ports.insert(opened.port);
        Ok(())
    }

    /// Puts the ports that have come where routes can lead.
    pub(super) fn enter_ports(&mut self, diff: &Diff, moves: &Moves) -> Result<()> {
        let changed = diff.ports.changed.iter().map(|(_, after)| after);
        for port in diff.ports.added.iter().chain(changed) {
            self.settle_interface(port)?;
        }
        for (before, after) in &diff.ports.changed {
            let id = after.id;
            if before.interface.host.is_some() && after.interface.host.is_none() {
                // The kernel's addresses do not count any more.
                self.routing.rib.set_addresses(id.into(), &after.interface.addresses)?;
                let addresses = after.interface.addresses.clone();
                self.slow_path.orders.send(&Command::Addresses { interface: id.into(), addresses });
            }
        }
        for port in moves.come() {
            let is_new = |(before, _): &&(config::Port, _)| before.id == port.id;
            let before = diff.ports.changed.iter().find(is_new);
            if before.is_none_or(|(before, _)| before.interface.host.is_none()) {
                for &address in &port.interface.addresses {
                    let (port, address) = (port.id, address);
                    self.routing
                        .sources
                        .order(KernelOrder::AddAddress { port: port.into(), address });
                }
            }
        }
        moves.come().for_each(|port| self.look_at_link(port.id));
        Ok(())
    }

    /// Gives a port an interface of its own, or takes it away from one that belongs to a bond.
    fn settle_interface(&mut self, port: &config::Port) -> Result<()> {
        let id = InterfaceId::from(port.id);
        let is_known = self.routing.rib.interface(id).is_some();
        if port.bond.is_some() && is_known {
            self.forget_interface(id);
            self.devices.links[id.index()] = Link::down();
        } else if port.bond.is_none()
            && !is_known
            && let Some(open) = self.devices.ports.get(port.id)
        {
            let entry = initial::rib_port(open);
            self.routing.tables.mtus.open(id, open.info.mtu);
            self.routing.rib.batch(|rib| {
                let added = rib.add_interface(entry);
                rib.set_link(id, false);
                added
            })?;
        }
        Ok(())
    }

    /// Disconnects the ports that are there no more, which no route needs any more.
    pub(super) async fn detach_removed(&mut self, diff: &Diff, moves: &mut Moves) -> Result<()> {
        for port in &diff.ports.removed {
            if self.devices.ports.get(port.id).is_some() || self.devices.absentees.contain(port.id)
            {
                let gone = self.detach(port).await?;
                moves.0.push(Move::Gone(Box::new(gone)));
            }
        }
        Ok(())
    }

    /// Closes what was put aside: nothing can fail any more.
    pub(super) fn leave_ports(&mut self, config: &Config, moves: Moves) {
        for one in moves.0 {
            let Move::Gone(gone) = one else { continue };
            let Gone { wanted, kept, host } = *gone;
            if config.port(wanted.id).is_none() {
                self.forget_port(wanted.id);
                tracing::info!("port \"{}\": closed", wanted.name);
            }
            drop(kept);
            if let Some(host) = host {
                self.devices.opener.remove_host(host);
            }
        }
        if let Err(error) = self.follow_hosts(config) {
            tracing::error!("{error:#}");
        }
        self.give_back_devices(config);
    }

    /// Gives devices back that were bound for ports that a configuration does not have, beside the router's
    /// work: the kernel takes its time.
    pub(super) fn give_back_devices(&self, config: &Config) {
        let (opener, wanted) = (self.devices.opener.clone(), bind::ports::wanted(config));
        tokio::task::spawn_blocking(move || opener.give_back_unused(&wanted));
    }

    /// Removes all state of a port.
    fn forget_port(&mut self, id: PortId) {
        self.forget_interface(id.into());
        self.devices.health.forget(id);
    }

    /// Removes all state of an interface.
    pub(super) fn forget_interface(&mut self, id: InterfaceId) {
        self.forget_commands_over(id);
        let neighbours: Vec<_> =
            self.routing.rib.neighbours().filter(|(interface, ..)| *interface == id).collect();
        for (_, address, _) in neighbours {
            self.routing.rib.remove_neighbour(id, address);
        }
        self.routing.rib.remove_interface(id);
        self.slow_path.orders.send(&Command::RemoveInterface { interface: id });
        self.routing.tables.mtus.open(id, u16::MAX);
        self.devices.links[id.index()] = Link::default();
    }

    /// Routes that commands added go with the port they lead over, as the kernel's do; of several paths
    /// those over it.
    fn forget_commands_over(&mut self, id: InterfaceId) {
        let over = |paths: &[Path]| paths.iter().any(|path| path.interface == Some(id));
        let of_commands =
            self.routing.rib.routes().filter(|route| route.source == RouteSource::Command);
        let routes: Vec<_> = of_commands
            .filter_map(|route| match route.target {
                Target::Unicast(paths) if over(&paths) => {
                    Some((route.vrf, route.prefix, route.metric, paths))
                }
                _ => None,
            })
            .collect();
        for (vrf, prefix, metric, mut paths) in routes {
            paths.retain(|path| path.interface != Some(id));
            let source = RouteSource::Command;
            if paths.is_empty() {
                self.routing.rib.remove_one(vrf, prefix, source, metric);
                continue;
            }
            let kind = RouteKind::Unicast(paths);
            if let Err(error) = self.routing.rib.add(Route { vrf, prefix, source, kind, metric }) {
                tracing::warn!("command: {error}");
            }
        }
    }

    /// Undoes all moves, the last one first.
    pub(super) async fn take_back(&mut self, base: &Config, moves: Moves) {
        let mut hosts = BTreeMap::new();
        for one in moves.0.into_iter().rev() {
            let (what, done) = match one {
                Move::Come(port) => {
                    let what = format!("port \"{}\" cannot be taken away again", port.name);
                    (what, self.send_away(base, &port, &mut hosts).await)
                }
                Move::Gone(mut gone) => {
                    let id = gone.wanted.id;
                    gone.host = gone.host.or_else(|| hosts.remove(&id));
                    let what = format!(
                        "port \"{}\" cannot be opened again; tried again",
                        gone.wanted.name
                    );
                    (what, self.bring_back(base, *gone).await)
                }
            };
            if let Err(error) = done {
                tracing::error!("{what}: {error:#}");
            }
        }
        if let Err(error) = self.follow_hosts(base) {
            tracing::error!("{error:#}");
        }
        self.give_back_devices(base);
    }

    /// Undoes the addition of a port. Its host interface returns to the port that it was before.
    async fn send_away(
        &mut self,
        base: &Config,
        port: &config::Port,
        hosts: &mut BTreeMap<PortId, HostInterface>,
    ) -> Result<()> {
        let gone = self.detach(port).await?;
        let before = base.port(port.id);
        match (gone.host, before) {
            (Some(host), Some(before)) if before.interface.host.is_some() => {
                hosts.insert(port.id, host);
            }
            (Some(host), _) => self.devices.opener.give_up_host(&host),
            (None, _) => {}
        }
        if before.is_none() {
            self.forget_port(port.id);
        }
        Ok(())
    }

    /// Connects a port as it was. If its device cannot be had so, the port waits for it.
    async fn bring_back(&mut self, base: &Config, gone: Gone) -> Result<()> {
        let Gone { wanted, kept, host } = gone;
        let opened = match kept.map_or_else(|| self.open_as_it_was(base, &wanted), Ok) {
            Ok(opened) => opened,
            Err(error) => {
                self.devices.absentees.ports.insert(wanted.id, Absent::new(host, None));
                return Err(error);
            }
        };
        let done = self.return_port(&wanted, opened, host).await;
        if done.is_err() {
            self.devices.absentees.ports.insert(wanted.id, Absent::new(None, None));
        }
        done
    }

    /// Opens a port's device if the forwarders' graphs were made for it.
    fn open_as_it_was(&self, base: &Config, wanted: &config::Port) -> Result<Opened> {
        let forwarders = cores::place(base)?.forward.len();
        let memory = self.devices.opener.memory(wanted, forwarders)?;
        let opened = self.devices.opener.device(wanted, forwarders, &memory)?;
        let known = self.configurations.known.get(&wanted.id).map(|known| known.info);
        ensure!(known.is_some_and(|known| is_same(opened.port.info, known)), "{CHANGED}");
        Ok(opened)
    }

    /// Connects a port of the configuration again, with the host interface that it had.
    pub(super) async fn return_port(
        &mut self,
        wanted: &config::Port,
        mut opened: Opened,
        host: Option<HostInterface>,
    ) -> Result<()> {
        let info = opened.port.info;
        let host = match host {
            Some(mut host) if !wanted.accelerate => {
                host.change(info.mac, info.mtu)?;
                let wanted = wanted.interface.host.as_ref();
                host.set_segmentation(wanted.is_some_and(|wanted| wanted.segmentation))?;
                Some(host)
            }
            _ => self.devices.opener.host(wanted, info, Some(&opened.port))?,
        };
        opened.attach(host);
        self.bring(wanted, opened).await?;
        self.settle_interface(wanted)?;
        self.look_at_link(wanted.id);
        Ok(())
    }

    /// Passes the ports with host interfaces to the kernel's listener.
    pub(super) fn follow_hosts(&mut self, config: &Config) -> Result<()> {
        let hosts = self.devices.ports.iter().filter(|port| port.host.is_some());
        let hosts = hosts.map(|port| (port.id.into(), port.name.clone()));
        let absent = config.ports.iter().filter(|port| self.devices.absentees.contain(port.id));
        let absent = absent.filter(|port| self.has_host(port.id.into()));
        let uppers = self.devices.virtuals.values().filter(|of| of.host.is_some());
        let uppers = uppers.map(|of| (of.id, of.name.clone()));
        let absent = absent.map(|port| (port.id.into(), port.name.clone()));
        let all = hosts.chain(absent).chain(uppers).collect();
        let followed = self.routing.sources.follow_hosts(config, all);
        self.leave_spaces();
        followed
    }

    /// Returns true if a port has a host interface; also while it waits for its device.
    pub(super) fn has_host(&self, id: InterfaceId) -> bool {
        let Some(id) = id.port() else {
            return self.devices.virtuals.get(&id).is_some_and(|of| of.host.is_some());
        };
        let absent = self.devices.absentees.ports.get(&id);
        self.devices.ports.get(id).is_some_and(|open| open.host.is_some())
            || absent.is_some_and(|absent| absent.host.is_some())
    }
}
