//! Publishes the router's state for metrics, see `metrics.rs`.

use std::collections::HashMap;
use std::time::Instant;

use control::config::{self, Config, Strictness};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::port::PortId;

use super::super::metrics::{InterfaceView, Opened, Service, Traffic, View, VrfView};
use super::Owner;
use super::hardware_filters::OfRule;

impl Owner {
    /// Serves metrics by these listeners from now on, or by none.
    pub(super) fn serve_metrics(&mut self, opened: Option<Opened>) {
        let listeners = match (opened, &self.serving.metrics) {
            (Some(Opened::Renewal(renewal)), now) => {
                return now.iter().for_each(|now| now.renew(&renewal));
            }
            (Some(Opened::Listeners(listeners)), _) => Some(*listeners),
            (None, _) => None,
        };
        let before = self.serving.metrics.take();
        let board = before.as_ref().map(|before| before.board.clone()).unwrap_or_default();
        match listeners.map(|listeners| Service::serve(listeners, board)).transpose() {
            Ok(service) => self.serving.metrics = service,
            Err(error) => tracing::error!("turnpike.metrics: {error:#}"),
        }
    }

    /// Opens the listeners of the new configuration, if they are others.
    pub(super) fn open_metrics(
        &self,
        (old, new): (&Config, &Config),
        strictness: Strictness,
    ) -> anyhow::Result<Option<Opened>> {
        let settings = new.metrics.as_ref().filter(|_| old.metrics != new.metrics);
        let now = self.serving.metrics.as_ref();
        settings.map(|settings| Opened::open(settings, strictness, now)).transpose()
    }

    /// Publishes the state, if somebody may ask. To be called from time to time, and after changes.
    pub(super) fn publish_metrics(&self) {
        if let Some(service) = &self.serving.metrics {
            self.view().into_iter().for_each(|view| service.board.publish(view));
        }
    }

    /// None while forwarders are being changed.
    fn view(&self) -> Option<View> {
        let wiring = self.forwarding.wiring.as_ref()?;
        let rib = &self.routing.rib;
        let names = self.configurations.current.vrf_names();
        let vrf = |(number, name): (usize, &String)| {
            let summary = rib.vrf_summary(VrfId::new(number as u16));
            VrfView { name: name.clone(), summary }
        };
        let neighbours = rib.neighbour_counts().iter();
        let acceleration = self.acceleration();
        Some(View {
            at: Instant::now(),
            ledger: self.forwarding.ledger.clone(),
            buffers: wiring.factory().buffers.clone(),
            tables: self.routing.tables.clone(),
            interfaces: self.interface_views(&names),
            exporters: self.exporters(),
            filters: self.filtering.filters.clone(),
            dropped_by_devices: self.dropped_by_devices(),
            interference: (0..wiring.seats().len())
                .map(|number| self.interference(number))
                .collect(),
            sources: self.source_reports(),
            cores: wiring.seats().iter().map(|seat| seat.core).collect(),
            vrfs: names.iter().enumerate().map(vrf).collect(),
            rib: rib.summary(),
            neighbours: neighbours
                .map(|(id, count)| (self.interface_name(*id), *count as u64))
                .collect(),
            accelerated: acceleration
                .interfaces
                .into_iter()
                .flat_map(|of| {
                    let name = of.name;
                    of.packets
                        .into_iter()
                        .map(move |(outcome, count)| (name.clone(), outcome, count))
                })
                .collect(),
            accelerated_flows: acceleration.flows,
            configuration: self.configurations.number(),
            is_unconfirmed: self.configurations.is_unconfirmed(),
            is_refused: self.configurations.is_refused(),
        })
    }

    fn interface_views(&self, vrfs: &[String]) -> Vec<InterfaceView> {
        let config = &self.configurations.current;
        let queues = config.software_queues().into_iter();
        let queues: HashMap<_, _> =
            queues.map(|of| (of.interface, (of.interface, of.queue.discipline))).collect();
        let view = |id: InterfaceId, name: &str, kind, of: &config::Interface, traffic| {
            let vrf = vrfs.get(of.settings.vrf.index()).cloned().unwrap_or_default();
            let is_up = self.devices.links[id.index()].up();
            let (troubles, queue) = (Vec::new(), queues.get(&id).copied());
            InterfaceView { name: name.to_owned(), kind, vrf, is_up, traffic, troubles, queue }
        };
        let ports = config.ports.iter().map(|port| {
            let traffic = Traffic::Port(port.id, self.counted_before(port.id));
            InterfaceView {
                troubles: self.devices.health.counts(port.id),
                ..view(port.id.into(), &port.name, "port", &port.interface, traffic)
            }
        });
        let is_open = |of: &config::Virtual<'_>| self.devices.virtuals.contains_key(&of.id);
        let virtuals = config.virtuals().filter(is_open).map(|of| {
            let traffic = match of.parent {
                Some(_) => Traffic::Vlan(of.id),
                None if of.kind == config::LOOPBACK => Traffic::None,
                None => Traffic::Bond(of.id),
            };
            view(of.id, of.name, of.kind, of.interface, traffic)
        });
        ports.chain(virtuals).collect()
    }

    /// The counts of earlier ports of this number.
    fn counted_before(&self, port: PortId) -> [u64; 4] {
        let open = self.devices.ports.get(port).map(|open| open.counted);
        let absent = || self.devices.absentees.ports.get(&port)?.last.as_ref().map(|of| of.counted);
        open.or_else(absent).unwrap_or_default()
    }

    fn dropped_by_devices(&self) -> Vec<Vec<[u64; 2]>> {
        let hits = &self.filtering.device_hits;
        if hits.is_empty() {
            return Vec::new();
        }
        let tables = self.filtering.filters.tables.iter();
        let of_filter = tables.map(|table| {
            let Some(table) = table else { return Vec::new() };
            let rules = table.spec().filter.rules.iter();
            let dropped = rules.map(|rule| {
                let OfRule { dropped, .. } = hits.of(table, rule);
                [dropped.packets, dropped.bytes]
            });
            dropped.collect()
        });
        of_filter.collect()
    }
}
