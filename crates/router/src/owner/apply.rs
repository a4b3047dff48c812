//! Applies another configuration, without loss of packets that the change does not concern.
//!
//! 1. New and changed ports are connected (`ports.rs`); no route leads over them. Route tables of another structure
//!    are filled (`fibs.rs`).
//! 2. Every forwarder exchanges its old parts for new ones, between two batches.
//! 3. Additions: ports' links, addresses beside the old ones, neighbours, routes and other paths of
//!    routes. If both stay, packets take one way or the other.
//! 4. Removals: routes, neighbours, addresses, and then ports.
//! 5. Other slow path workers (`slow_path.rs`). Other cores, or another number of forwarders.
//! 6. Host interfaces in another namespace, which have been opened before (`namespace.rs`).
//! 7. Settings that cannot fail: of the slow path's engines, rates, multicast routes.
//! 8. Imported tables, piece by piece beside the owner's other work (`imports.rs`).
//!
//! If a step fails, it and all steps before it are undone: the router is as it was.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use control::config::{
    self, Config, ControlSocket, Diff, Interface, Neighbour, Port, Route, Strictness, Unit,
};
use control::cores::CorePlacement;
use control::fpm::Entrance;
use control::netlink::KernelOrder;
use dataplane::distribution::Schedulers;
use dataplane::exchange::Replacement;
use dataplane::features::Features;
use dataplane::forwarder::Settings;
use dataplane::interface::{InterfaceId, InterfaceInfo, VrfId};
use dataplane::port::PortId;
use ipnet::IpNet;
use machine::place::Place;
use slowpath::Command;

use super::super::control_socket;
use super::super::graphs::{FailureLog, ForwarderGraph};
use super::super::http;
use super::super::metrics;
use super::super::ports::request;
use super::super::prepare::{Prepared, Ready};
use super::super::queues;
use super::super::reports::Former;
use super::super::schedulers;
use super::super::settings;
use super::super::telnet;
use super::super::virtuals::Hosts;
use super::super::wiring::{Places, Spread, Wiring};
use super::Owner;
use super::api::NewRoles;
use super::initial::NewFibs;
use super::ports::Moves;
use super::sources::Sources;

/// The completed steps of a change, for undoing them.
#[derive(Default)]
struct Done {
    moves: Moves,
    exchanged: Option<Exchanged>,
    opened: Opened,
    /// Host interfaces of bonds and VLANs that are not started yet, or are removed.
    hosts: Hosts,
    /// True if additions were made, beside the old configuration.
    entered: bool,
    /// True if routes are in other tables, and the former ones still get every change.
    other_fibs: bool,
}

/// Listeners that are new or have changed.
#[derive(Default)]
struct Opened {
    /// The telnet service.
    telnet: Option<telnet::Opened>,
    /// Control sockets.
    control: Option<control_socket::Opened>,
    /// The listeners for metrics.
    metrics: Option<metrics::Opened>,
    /// Those for the API over HTTP.
    api: Option<http::Opened>,
    /// The roles of users.
    roles: Option<NewRoles>,
    /// The socket for zebra.
    entrance: Option<Entrance>,
}

/// The prepared parts: graphs, interfaces for steps, ports' devices, empty route tables.
type Parts =
    (Vec<ForwarderGraph>, Vec<InterfaceInfo>, BTreeMap<PortId, Ready>, Option<Vec<NewFibs>>);

/// The forwarders' former parts.
pub(super) struct Exchanged {
    old: Vec<Replacement>,
    graphs: Option<Former>,
}

impl Owner {
    /// Makes a change, or none. Returns the longest that a packet was held up on a forwarder, if any
    /// exchanged something.
    pub(super) async fn carry_out(&mut self, prepared: Prepared) -> Result<Option<Duration>> {
        let Prepared {
            base,
            config,
            strictness,
            diff,
            imports,
            graphs,
            more,
            placement,
            ports,
            ready,
            hosts,
            moved,
            fibs,
        } = prepared;
        let (fibs, near) = fibs.map(|fibs| (fibs.empty, fibs.near)).unzip();
        let mut done = Done { hosts, ..Done::default() };
        let with = (graphs, ports, ready, fibs);
        let made = match self.change((&base, &config, &diff), (with, strictness), &mut done).await {
            Ok(pause) => match self.spread(&placement, more, (&base, &config)).await {
                Ok(between) => Ok(pause.max(between)),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match made {
            Ok(pause) => {
                near.into_iter().for_each(|near| self.leave_former_fibs(near));
                self.leave_ports(&config, done.moves);
                self.remove_hosts(done.hosts);
                self.warn_of_distance();
                self.move_hosts((&base, &config), moved, &mut done.opened.entrance).await;
                self.settle((&base, &config, &diff), done.opened);
                self.routing.imports.begin(imports);
                self.filtering.filters =
                    self.routing.tables.filters.use_next(&self.routing.tables.interfaces.get());
                self.filtering.sets.retain(&config.sets);
                self.serve_exports(&config);
                self.place_rules(&config);
                self.steer_control_for(&config);
                self.watch_again().await;
                Ok(pause)
            }
            Err(error) => {
                moved.values().for_each(|host| self.devices.opener.give_up_host(host));
                self.take_back_virtuals(&base, done.hosts).await;
                if done.entered {
                    self.undo(&base, &config, &diff);
                }
                if let Some(exchanged) = done.exchanged {
                    self.exchange_back(exchanged).await;
                }
                self.use_former_fibs(done.other_fibs);
                self.take_back(&base, done.moves).await;
                self.filtering.sets.retain(&base.sets);
                Err(error.context("nothing was changed"))
            }
        }
    }

    /// Everything that can fail.
    async fn change(
        &mut self,
        (base, config, diff): (&Config, &Config, &Diff),
        ((graphs, ports, ready, fibs), strictness): (Parts, Strictness),
        done: &mut Done,
    ) -> Result<Option<Duration>> {
        let schedulers = self.schedulers(base, config)?;
        done.opened.telnet = self.open_telnet(base, config)?;
        done.opened.control = self.open_control_sockets(base, config)?;
        done.opened.metrics = self.open_metrics((base, config), strictness)?;
        done.opened.api = self.open_api((base, config), strictness)?;
        done.opened.roles = self.resolve_roles(base, config)?;
        done.opened.entrance = Sources::open_entrance(base, config)?;
        self.make_vrfs(base, config)?;
        let has_other_fibs = fibs.is_some();
        if let Some(fibs) = fibs {
            self.fill_fibs(fibs).await?;
        }
        self.move_ports(diff, config, ready, &ports, &mut done.moves).await?;
        let moved = !diff.ports.is_empty() && config.virtuals().next().is_some();
        let other = base.interfaces().map(step_facts).ne(config.interfaces().map(step_facts));
        let infos = (moved || other || !diff.bonds.is_empty() || !diff.vlans.is_empty())
            .then(|| ports.clone());
        let other = settings::of_forwarders(config);
        let other = (other != settings::of_forwarders(base)).then_some(other);
        let (pause, exchanged) =
            self.exchange_all(config, graphs, infos, (other, schedulers)).await?;
        done.exchanged = exchanged;
        if has_other_fibs {
            self.use_other_fibs()?;
            done.other_fibs = true;
        }
        done.entered = true;
        self.enter_ports(diff, &done.moves)?;
        self.enter_virtuals(config, &ports, &mut done.hosts).await?;
        self.put_new(base, config, diff)?;
        self.change_rss(base, config)?;
        self.remove_old(base, config, diff);
        self.leave_virtuals(config, &mut done.hosts).await?;
        self.detach_removed(diff, &mut done.moves).await?;
        Ok(pause)
    }

    /// Adds new and changed objects, beside the old ones.
    fn put_new(&mut self, old: &Config, new: &Config, diff: &Diff) -> Result<()> {
        self.move_to_vrfs(new);
        // Before the routes and addresses there, of which the last are removed before it is refused.
        if new.forwarding.class_e {
            self.routing.rib.accept_class_e(true);
        }
        for (id, name, before, after) in interfaces(old, new) {
            let both = both(before, after);
            if both != before.addresses {
                self.set_addresses(id, &before.addresses, &both).of_port(name)?;
            }
        }
        for neighbour in added(&old.neighbours, &new.neighbours) {
            self.put_neighbour(neighbour)?;
        }
        let changed = diff.routes.changed.iter().map(|(_, after)| after);
        self.put_routes(diff.routes.added.iter().chain(changed))?;
        self.filtering.sets.declare(&new.sets)?;
        self.filtering.sets.configure(&new.sets)?;
        self.put_next_hops(new)
    }

    /// All next hops with names.
    fn put_next_hops(&mut self, config: &Config) -> Result<()> {
        let (rib, known) = (&mut self.routing.rib, &mut self.configurations.routes);
        let put = rib.batch(|rib| {
            config.all_next_hops().iter().try_for_each(|hop| {
                known.put_next_hop(rib, hop).with_context(|| format!("line {}", hop.line))
            })
        });
        known.publish_next_hops(rib, &self.routing.tables.named_hops);
        put
    }

    /// Forgets the next hops with names that a configuration does not have.
    fn keep_next_hops(&mut self, config: &Config) {
        let (rib, known) = (&mut self.routing.rib, &mut self.configurations.routes);
        known.keep_next_hops(rib, &config.all_next_hops());
        known.publish_next_hops(rib, &self.routing.tables.named_hops);
    }

    /// Removes objects that the new configuration does not have.
    fn remove_old(&mut self, old: &Config, new: &Config, diff: &Diff) {
        self.remove_routes(diff.routes.removed.iter());
        self.keep_next_hops(new);
        for gone in absent(&old.neighbours, &new.neighbours) {
            self.routing.rib.remove_neighbour(gone.port, gone.address);
        }
        for (id, name, before, after) in interfaces(old, new) {
            let both = both(before, after);
            if both != after.addresses
                && let Err(error) = self.set_addresses(id, &both, &after.addresses)
            {
                tracing::error!("port \"{name}\": {error:#}");
            }
        }
    }

    /// As it was before [`Self::put_new`] and [`Self::remove_old`], of which only a part may have been done.
    fn undo(&mut self, old: &Config, new: &Config, diff: &Diff) {
        self.move_to_vrfs(old);
        let before = diff.routes.changed.iter().map(|(before, _)| before);
        let mut failed = self.put_routes(before.chain(&diff.routes.removed)).err();
        failed = failed.or(self.put_next_hops(old).err());
        self.keep_next_hops(old);
        self.remove_routes(diff.routes.added.iter());
        for neighbour in added(&new.neighbours, &old.neighbours) {
            failed = failed.or(self.put_neighbour(neighbour).err());
        }
        for gone in absent(&new.neighbours, &old.neighbours) {
            self.routing.rib.remove_neighbour(gone.port, gone.address);
        }
        for (id, _, before, after) in interfaces(old, new) {
            let both = both(before, after);
            if both != before.addresses {
                failed = failed.or(self.set_addresses(id, &both, &before.addresses).err());
            }
        }
        self.routing.rib.accept_class_e(old.forwarding.class_e);
        failed = failed.or(self.change_rss(new, old).err());
        failed = failed.or(self.filtering.sets.configure(&old.sets).err());
        if let Some(error) = failed {
            tracing::error!("cannot restore the previous configuration: {error:#}");
        }
    }

    /// Hash and table of ports whose device stays.
    fn change_rss(&mut self, old: &Config, new: &Config) -> Result<()> {
        let forwarders = self.forwarding.wiring.as_ref().map_or(0, Wiring::forwarders);
        for (id, before, after) in ports(old, new) {
            let Some(open) = self.devices.ports.get(id) else { continue };
            if queues::device_rss(before) != queues::device_rss(after) {
                let request = request(after, forwarders)?;
                open.port.set_rss(&request)?;
            }
        }
        Ok(())
    }

    /// Changes a port's addresses. Those of a port with a host interface are requested from the kernel, whose
    /// notifications then change them.
    fn set_addresses(
        &mut self,
        port: InterfaceId,
        before: &[IpNet],
        after: &[IpNet],
    ) -> Result<()> {
        if self.has_host(port) {
            for address in without(after, before) {
                self.routing.sources.order(KernelOrder::AddAddress { port, address });
            }
            for address in without(before, after) {
                self.routing.sources.order(KernelOrder::RemoveAddress { port, address });
                // Unless `promote_secondaries` is on, Linux removes the others of the network with its first.
                let is_beside =
                    |other: &&IpNet| address.addr().is_ipv4() && other.trunc() == address.trunc();
                for &address in after.iter().filter(is_beside) {
                    self.routing.sources.order(KernelOrder::AddAddress { port, address });
                }
            }
            return Ok(());
        }
        self.routing.rib.set_addresses(port, after)?;
        self.slow_path
            .orders
            .send(&Command::Addresses { interface: port, addresses: after.to_vec() });
        Ok(())
    }

    fn put_neighbour(&mut self, neighbour: &Neighbour) -> Result<()> {
        let &Neighbour { port, address, mac, .. } = neighbour;
        let what = || format!("line {}: neighbour {address}", neighbour.line);
        self.routing.rib.add_static_neighbour(port, address, mac).with_context(what)
    }

    /// All of the routes, or an error after some of them.
    fn put_routes<'a>(&mut self, routes: impl Iterator<Item = &'a Route>) -> Result<()> {
        let (rib, known) = (&mut self.routing.rib, &mut self.configurations.routes);
        // Earlier refusals of the FIB do not concern these routes.
        self.routing.sources.log_pending(rib);
        rib.batch(|rib| {
            let mut routes = routes;
            routes.try_for_each(|route| {
                known.put(rib, route).with_context(|| format!("line {}", route.line))
            })
        })?;
        match rib.drain_refusals().into_iter().next() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn remove_routes<'a>(&mut self, routes: impl Iterator<Item = &'a Route>) {
        let (rib, known) = (&mut self.routing.rib, &mut self.configurations.routes);
        rib.batch(|rib| routes.for_each(|route| known.remove(rib, route)));
    }

    /// Opens the telnet service of the new configuration, if that is other.
    fn open_telnet(&self, old: &Config, new: &Config) -> Result<Option<telnet::Opened>> {
        let settings = new.telnet.as_ref().filter(|_| old.telnet != new.telnet);
        let (Some(settings), Some(service)) = (settings, &self.serving.service) else {
            return Ok(None);
        };
        Ok(Some(service.open_telnet(settings, &self.serving.socket)?))
    }

    /// Opens the control sockets of the new configuration, if those are others.
    fn open_control_sockets(
        &self,
        old: &Config,
        new: &Config,
    ) -> Result<Option<control_socket::Opened>> {
        let Some(service) = &self.serving.service else { return Ok(None) };
        let same = |(one, other): (&ControlSocket, &ControlSocket)| one.is_same(other);
        let (before, after) = (&old.control_sockets, &new.control_sockets);
        if before.len() == after.len() && before.iter().zip(after).all(same) {
            return Ok(None);
        }
        service.open_control(after).map(Some)
    }

    /// Follows the sources of routes that the configuration names.
    fn follow_sources(&mut self, new: &Config, entrance: Option<Entrance>) {
        if let Err(error) = self.routing.sources.follow(new, entrance) {
            tracing::error!("turnpike.routes_from: {error:#}");
        }
        self.routing.groups.follow(self.routing.sources.groups());
    }

    /// Has each unit take up its changed settings, as far as that cannot fail.
    fn settle(
        &mut self,
        (old, new, diff): (&Config, &Config, &Diff),
        Opened { mut telnet, mut control, mut metrics, mut api, mut roles, mut entrance }: Opened,
    ) {
        // Its writer names packets' ports.
        self.slow_path.quarantine.set(new);
        // A port may have moved.
        self.order_vrfs(old, new);
        for unit in diff.units() {
            match unit {
                Unit::Vrfs => self.leave_vrfs(old, new),
                Unit::Interfaces => self.send_settings(old, new),
                Unit::Addresses => self.note_addresses(new),
                Unit::Multicast => self.routing.groups.configure(&new.multicast),
                Unit::Sources => self.follow_sources(new, entrance.take()),
                Unit::Resolution => {
                    self.routing.rib.resolve_via_default(new.forwarding.resolve_via_default);
                }
                Unit::ClassE => {
                    self.routing.rib.accept_class_e(new.forwarding.class_e);
                    // Errors are sent to hosts there, or not.
                    self.slow_path.orders.send(&Command::Icmp(new.icmp));
                }
                Unit::SlowPath | Unit::Workers => self.limit_slow_path(new.slowpath),
                Unit::Icmp => self.slow_path.orders.send(&Command::Icmp(new.icmp)),
                Unit::Log => crate::log::set_level(new.log.level),
                Unit::Acceleration => self.accelerated.read_rules_anew(),
                Unit::Telnet => {
                    let service = self.serving.service.iter_mut();
                    service.for_each(|service| service.serve_telnet(telnet.take()));
                }
                Unit::Metrics => self.serve_metrics(metrics.take()),
                Unit::Api => self.serve_api(api.take()),
                Unit::Access => self.use_roles(roles.take()),
                // They may fail: `change` and `spread` are done with them.
                Unit::Vlans
                | Unit::Bonds
                | Unit::ReceiveQueues
                | Unit::TransmitQueues
                | Unit::Forwarders
                | Unit::Cores
                | Unit::Neighbours
                | Unit::NextHops
                | Unit::PrefixSets => {}
                // With each change, whatever it changed.
                Unit::DeviceFilters
                | Unit::DeviceMulticasts
                | Unit::Namespace
                | Unit::ControlQueues
                | Unit::Imports
                | Unit::Export
                | Unit::Quarantine => {}
                Unit::Elements => {
                    self.counts.keep(old, new);
                    let service = self.serving.service.iter_mut();
                    service.for_each(|service| service.serve_scripts(&new.elements));
                }
                Unit::ControlSockets => {
                    let (service, sockets) =
                        (self.serving.service.iter_mut(), &new.control_sockets);
                    service.for_each(|service| service.serve_control(sockets, control.take()));
                }
                // Those that need them look into the present configuration.
                Unit::Opening | Unit::Rebalancing | Unit::Commands => {}
            }
        }
    }

    /// The changed settings of interfaces, for the slow path.
    fn send_settings(&mut self, old: &Config, new: &Config) {
        for (interface, _, before, after) in interfaces(old, new) {
            if before.settings != after.settings {
                let settings = after.settings.clone();
                self.slow_path.orders.send(&Command::Settings { interface, settings });
            }
        }
    }

    fn note_addresses(&mut self, new: &Config) {
        for open in self.devices.ports.iter_mut() {
            if let Some(port) = new.port(open.id) {
                open.addresses.clone_from(&port.interface.addresses);
            }
        }
    }

    fn limit_slow_path(&mut self, wanted: config::Slowpath) {
        let config::Slowpath { workers: _, limits, classes } = &wanted;
        self.forwarding.ledger.slow.rates.set_errors(limits);
        self.forwarding.ledger.slow.class_rates.set(classes);
        self.slow_path.orders.weights(classes);
        self.slow_path.orders.send(&Command::Limits(*limits));
        self.forwarding.ledger.slowpath = wanted;
    }

    /// Gives each forwarder its changed parts: graph, ports' data, settings. Returns the pause, and the former parts.
    pub(super) async fn exchange_all(
        &mut self,
        new: &Config,
        mut graphs: Vec<ForwarderGraph>,
        infos: Option<Vec<InterfaceInfo>>,
        (settings, schedulers): (Option<Settings>, Vec<Schedulers>),
    ) -> Result<(Option<Duration>, Option<Exchanged>)> {
        if graphs.is_empty()
            && infos.is_none()
            && settings.is_none()
            && schedulers.iter().all(Vec::is_empty)
        {
            return Ok((None, None));
        }
        let shape = graphs.first().map(|(graph, _)| graph.shape().clone());
        let views: Vec<_> =
            graphs.iter().map(|(graph, lua)| (graph.counters().clone(), lua.clone())).collect();
        let mut graphs = graphs.drain(..).map(|(graph, _)| graph);
        let count = self.forwarders();
        let mut schedulers = schedulers.into_iter();
        let replacement = |_| Replacement {
            schedulers: schedulers.next().unwrap_or_default(),
            graph: graphs.next(),
            ports: infos.clone(),
            settings: settings.clone(),
            ..Replacement::default()
        };
        let replacements = (0..count).map(replacement).collect();
        let exchange = async |wiring: &mut Wiring| {
            let old = wiring.exchanges.exchange(replacements).await?;
            Ok((old, wiring.exchanges.pause().await))
        };
        let (old, pause) = self.with_wiring(exchange).await?;
        let graphs = shape.map(|shape| {
            // The failures of the old steps, before they are removed.
            self.forwarding.failures.look(self.forwarding.ledger.lua());
            self.forwarding.failures = FailureLog::default();
            let script = new.script.as_ref();
            let names = script.map(|script| script.counters.clone()).unwrap_or_default();
            self.forwarding.ledger.replace_graphs(shape, views, names)
        });
        Ok((pause, Some(Exchanged { old, graphs })))
    }

    /// The ports' queues that change, for each forwarder.
    fn schedulers(&self, old: &Config, new: &Config) -> Result<Vec<Schedulers>> {
        let changed = schedulers::changed(old, new);
        let Some(wiring) = self.forwarding.wiring.as_ref().filter(|_| !changed.is_empty()) else {
            return Ok(Vec::new());
        };
        let (factory, count) = (wiring.factory(), self.forwarders());
        factory.buffers.check_queues(new, wiring.forwarders())?;
        let of = |forwarder| {
            let counters = self.forwarding.ledger.counters_of(forwarder);
            factory.buckets.schedulers(&changed, &counters)
        };
        Ok((0..count).map(of).collect())
    }

    /// Gives each forwarder its former parts.
    async fn exchange_back(&mut self, exchanged: Exchanged) {
        let Exchanged { old, graphs } = exchanged;
        let exchange = async |wiring: &mut Wiring| wiring.exchanges.exchange(old).await;
        if let Err(error) = self.with_wiring(exchange).await {
            tracing::error!("cannot restore the forwarders' previous graphs: {error:#}");
            return;
        }
        if let Some(former) = graphs {
            self.forwarding.failures = FailureLog::default();
            self.forwarding.ledger.put_back(former);
        }
    }

    /// Returns the number of forwarders.
    pub(super) fn forwarders(&self) -> usize {
        self.forwarding.wiring.as_ref().map_or(0, |wiring| wiring.exchanges.len())
    }

    /// The last steps that can fail: other slow path workers, then other cores or another number of forwarders, which is
    /// never undone.
    async fn spread(
        &mut self,
        placement: &CorePlacement,
        more: Vec<ForwarderGraph>,
        (base, config): (&Config, &Config),
    ) -> Result<Option<Duration>> {
        let replaced = self.replace_workers(config).await?;
        let outcome = self.spread_forwarders(placement, more, config).await;
        if outcome.is_err()
            && replaced
            && let Err(error) = self.replace_workers(base).await
        {
            tracing::error!("slow path: the number of workers cannot be put back: {error:#}");
        }
        outcome
    }

    /// Moves forwarders to their cores, with the configured queues, and all other threads to the control cores;
    /// additional forwarders get these graphs. Returns the time for which none received, if queues moved.
    async fn spread_forwarders(
        &mut self,
        placement: &CorePlacement,
        more: Vec<ForwarderGraph>,
        config: &Config,
    ) -> Result<Option<Duration>> {
        let (first, seats) = (self.forwarders(), placement.seats());
        let places = Places::new(placement, config.forwarders.events.as_ref());
        let factory = self.forwarding.wiring.as_ref().context("no wiring")?.factory();
        let make = |(number, graph): (usize, ForwarderGraph)| {
            let (core, counters) = (seats[number], self.forwarding.ledger.counters_of(number));
            let settings = (settings::of_forwarders(config), &schedulers::all(config)[..]);
            factory.make((number, core), graph, settings, counters)
        };
        let more = (first..).zip(more).map(make).collect::<Result<Vec<_>>>()?;
        let plans = queues::plans(config);
        let spread = async |wiring: &mut Wiring| wiring.spread(&places, &plans, more).await;
        let Spread { joined, pause } = self.with_wiring(spread).await?;
        self.forwarding.ledger.set_forwarders(seats.len(), joined);
        self.confine(placement);
        Ok(pause)
    }
}

/// The ports that are in both, before and after.
fn ports<'a>(
    old: &'a Config,
    new: &'a Config,
) -> impl Iterator<Item = (PortId, &'a Port, &'a Port)> {
    new.ports.iter().filter_map(|after| Some((after.id, old.port(after.id)?, after)))
}

/// The interfaces that are in both: number, name, settings before and after.
fn interfaces<'a>(
    old: &'a Config,
    new: &'a Config,
) -> impl Iterator<Item = (InterfaceId, &'a str, &'a Interface, &'a Interface)> {
    let stays = |(id, name, after)| Some((id, name, old.interface(id)?, after));
    new.interfaces().filter_map(stays)
}

/// An interface's addresses while it has the old ones and the new ones.
fn both(before: &Interface, after: &Interface) -> Vec<IpNet> {
    let added = without(&after.addresses, &before.addresses);
    before.addresses.iter().copied().chain(added).collect()
}

/// Returns the addresses of the first that are not in the second.
fn without<'a>(some: &'a [IpNet], others: &'a [IpNet]) -> impl Iterator<Item = IpNet> + 'a {
    some.iter().copied().filter(|address| !others.contains(address))
}

/// The neighbours of `new` that are not, or are other, in `old`.
fn added<'a>(old: &'a [Neighbour], new: &'a [Neighbour]) -> impl Iterator<Item = &'a Neighbour> {
    let key = |neighbour: &Neighbour| (neighbour.port, neighbour.address, neighbour.mac);
    new.iter().filter(move |new| !old.iter().any(|old| key(old) == key(new)))
}

/// Returns the neighbours of `some` whose addresses `others` do not have, regardless of their MAC.
fn absent<'a>(
    some: &'a [Neighbour],
    others: &'a [Neighbour],
) -> impl Iterator<Item = &'a Neighbour> {
    let key = |neighbour: &Neighbour| (neighbour.port, neighbour.address);
    some.iter().filter(move |one| !others.iter().any(|other| key(other) == key(one)))
}

/// The settings of an interface that forwarders look at.
fn step_facts(
    (id, _, interface): (InterfaceId, &str, &Interface),
) -> (InterfaceId, Features, VrfId) {
    (id, interface.features(), interface.settings.vrf)
}
