//! Effects of sources' events.

use std::time::{Instant, SystemTime};

use control::netlink::{AuditReport, Change, KernelOrder, NeighbourState, SourceEvent};
use control::rib::{GroupKey, GroupSpec, Path, Rib, Route, RouteKind, RouteSource};
use dataplane::interface::VrfId;
use ipnet::IpNet;
use slowpath::Command;

use super::super::slow_worker::Orders;
use super::sources::Sources;

/// Routes of a first synchronisation that are put into the RIB together.
const LOAD: usize = 1 << 16;

impl Sources {
    /// Applies an event; a link's state was applied when the event arrived.
    pub(super) fn apply(&mut self, rib: &mut Rib, orders: &Orders, event: SourceEvent) {
        if !self.is_current(&event) {
            return;
        }
        match event {
            SourceEvent::Apart(apart, event) => self.apply_apart(rib, orders, apart.vrf, *event),
            event => self.apply_common(rib, orders, event),
        }
    }

    /// Applies an event of no VRF's namespace, or one that means the same there.
    fn apply_common(&mut self, rib: &mut Rib, orders: &Orders, event: SourceEvent) {
        match event {
            SourceEvent::Route { source, vrf, prefix, metric, change } => {
                self.route(rib, (source, vrf, prefix, metric), change);
            }
            SourceEvent::Group { key, change } => self.group(rib, key, change),
            SourceEvent::Link { .. } => {}
            SourceEvent::VirtualMacs(macs) => self.set_virtual_macs(None, macs),
            SourceEvent::VlanDevices(devices) => self.set_vlan_devices(None, devices),
            SourceEvent::Apart(..) => {}
            SourceEvent::AllMulticast { port, on } => {
                self.all_multicast.set(port, on);
                // The slow path outlives the owner's loop.
                orders.all_multicast(port, on);
            }
            SourceEvent::Addresses { port, addresses } => {
                if let Err(error) = rib.set_addresses(port, &addresses) {
                    self.refuse(RouteSource::Local, &error);
                }
                orders.send(&Command::Addresses { interface: port, addresses });
            }
            SourceEvent::LocalAddress { vrf, prefix, present: true } => {
                if let Err(error) = rib.add_local(vrf, prefix) {
                    self.refuse(RouteSource::Local, &error);
                }
            }
            SourceEvent::LocalAddress { vrf, prefix, present: false } => {
                rib.remove_local(vrf, prefix);
            }
            SourceEvent::Neighbour { port, address, mac, state } => {
                orders.send(&Command::KernelNeighbour { interface: port, address, mac });
                // A neighbour in use is resolved before it ages away.
                if state == NeighbourState::Stale {
                    self.order(KernelOrder::Resolve { port, address });
                }
            }
            SourceEvent::ResyncBegin(source) => self.begin(rib, source),
            SourceEvent::ResyncEnd(source) => self.end(rib, source),
            SourceEvent::AuditBegin(source) => rib.begin_audit(source),
            SourceEvent::AuditRoute { source, vrf, prefix, metric, kind } => {
                rib.audit_route(&Route { vrf, prefix, source, metric, kind });
            }
            SourceEvent::AuditGroup { key, spec } => rib.audit_group(key, spec),
            SourceEvent::Audit(report) => {
                rib.end_audit();
                self.audits.under_way = Some((Instant::now(), report));
            }
        }
    }

    /// Applies an event of the network namespace of a VRF, where it is of the default VRF.
    fn apply_apart(&mut self, rib: &mut Rib, orders: &Orders, vrf: VrfId, event: SourceEvent) {
        let event = match event {
            SourceEvent::Route { source, prefix, metric, change, .. } => {
                let change = match change {
                    Change::Set(kind) => Change::Set(kind_in(vrf, kind)),
                    Change::Withdraw => Change::Withdraw,
                };
                SourceEvent::Route { source, vrf, prefix, metric, change }
            }
            SourceEvent::Group { key, change } => {
                let change = match change {
                    Change::Set(mut spec) => {
                        resolve_in(vrf, &mut spec.paths);
                        Change::Set(spec)
                    }
                    Change::Withdraw => Change::Withdraw,
                };
                SourceEvent::Group { key: GroupKey { space: vrf, ..key }, change }
            }
            SourceEvent::LocalAddress { prefix, present, .. } => {
                SourceEvent::LocalAddress { vrf, prefix, present }
            }
            SourceEvent::VirtualMacs(macs) => return self.set_virtual_macs(Some(vrf), macs),
            SourceEvent::VlanDevices(devices) => {
                return self.set_vlan_devices(Some(vrf), devices);
            }
            SourceEvent::ResyncBegin(_) => {
                self.load(rib);
                return rib.begin_resync_apart(vrf);
            }
            SourceEvent::ResyncEnd(source) => {
                self.load(rib);
                let gone = rib.end_resync_apart(vrf);
                let summary = rib.vrf_summary(vrf);
                let routes = summary.ipv4[source.index()] + summary.ipv6[source.index()];
                tracing::info!(
                    "kernel: the namespace of a VRF is synchronised, {routes} routes; {gone} were withdrawn meanwhile"
                );
                return self.space_is_read(vrf);
            }
            // Only the namespace of all other VRFs is audited.
            SourceEvent::AuditBegin(_)
            | SourceEvent::AuditRoute { .. }
            | SourceEvent::AuditGroup { .. }
            | SourceEvent::Audit(_)
            | SourceEvent::Apart(..) => return,
            SourceEvent::Link { .. }
            | SourceEvent::AllMulticast { .. }
            | SourceEvent::Addresses { .. }
            | SourceEvent::Neighbour { .. } => event,
        };
        self.apply_common(rib, orders, event);
    }

    fn route(
        &mut self,
        rib: &mut Rib,
        (source, vrf, prefix, metric): (RouteSource, VrfId, IpNet, u64),
        change: Change<RouteKind>,
    ) {
        let route = match change {
            Change::Set(kind) => Route { vrf, prefix, source, metric, kind },
            Change::Withdraw => {
                self.load(rib);
                rib.remove_one(vrf, prefix, source, metric);
                return;
            }
        };
        match &mut self.loading {
            Some((loading, routes)) if *loading == source => {
                routes.push(route);
                if routes.len() >= LOAD {
                    self.load(rib);
                }
            }
            _ => {
                if let Err(error) = rib.add(route) {
                    self.refuse(source, &error);
                }
            }
        }
    }

    fn group(&mut self, rib: &mut Rib, key: GroupKey, change: Change<GroupSpec>) {
        self.load(rib);
        let source = key.source;
        match change {
            Change::Set(spec) => {
                if let Err(error) = rib.set_group(key, spec) {
                    self.refuse(source, &error);
                }
            }
            Change::Withdraw => {
                rib.remove_group(key);
            }
        }
    }

    /// Puts the collected routes into the RIB.
    fn load(&mut self, rib: &mut Rib) {
        let waiting = self.loading.as_mut().filter(|(_, routes)| !routes.is_empty());
        let Some((source, routes)) = waiting else { return };
        let (source, routes) = (*source, std::mem::take(routes));
        let report = rib.load(routes);
        for error in &report.errors {
            self.refuse(source, error);
        }
        self.refused[source.index()] += (report.refused - report.errors.len()) as u64;
    }

    fn begin(&mut self, rib: &mut Rib, source: RouteSource) {
        rib.begin_resync(source);
        // The kernel's first synchronisation is short, and routes only: they are loaded together. Zebra's lasts as long
        // as zebra learns, and has no definite end.
        if std::mem::replace(&mut self.begun[source.index()], true) {
            tracing::info!("{}: synchronising again", source.name());
        } else if source == RouteSource::Kernel {
            self.loading = Some((source, Vec::new()));
        }
    }

    fn end(&mut self, rib: &mut Rib, source: RouteSource) {
        self.load(rib);
        self.loading.take_if(|(loading, _)| *loading == source);
        let gone = rib.end_resync(source);
        let summary = rib.summary();
        let routes = summary.ipv4[source.index()] + summary.ipv6[source.index()];
        let name = source.name();
        tracing::info!("{name}: synchronised, {routes} routes; {gone} were withdrawn meanwhile");
        if source == RouteSource::Kernel {
            self.first = false;
        }
    }
}

/// Has gateways without an interface resolved by the routes of a VRF.
fn resolve_in(vrf: VrfId, paths: &mut [Path]) {
    paths.iter_mut().filter(|path| path.interface.is_none()).for_each(|path| path.vrf = vrf);
}

/// Returns a kind of route with its gateways and its group those of a VRF's namespace.
fn kind_in(vrf: VrfId, kind: RouteKind) -> RouteKind {
    match kind {
        RouteKind::Unicast(mut paths) => {
            resolve_in(vrf, &mut paths);
            RouteKind::Unicast(paths)
        }
        RouteKind::NextHopGroup(key) => RouteKind::NextHopGroup(GroupKey { space: vrf, ..key }),
        kind => kind,
    }
}

impl Sources {
    /// Completes an audit when the RIB has.
    pub(super) fn finish_audit(&mut self, rib: &mut Rib) {
        let Some(findings) = rib.take_findings() else { return };
        let Some((begin, mut report)) = self.audits.under_way.take() else { return };
        report.took += begin.elapsed();
        report.at = SystemTime::now();
        report.add(findings);
        say_audit(&report);
        self.audits.count += 1;
        self.audits.failed += u64::from(!report.clean());
        self.audits.last = Some(report);
    }
}

fn say_audit(report: &AuditReport) {
    let AuditReport { compared, missing, stale, different, fib, took, .. } = report;
    if report.clean() {
        tracing::debug!("audit: {compared} routes are the kernel's, compared in {took:.1?}");
        return;
    }
    tracing::error!(
        "audit: of {compared} routes of the kernel {missing} were missing here, {stale} were left \
         over and {different} differed, and {fib} were forwarded otherwise: a defect, please \
         report; it has been put right: {}",
        report.examples.join("; ")
    );
}
