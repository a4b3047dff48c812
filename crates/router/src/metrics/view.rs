//! A router as scrapes see it: its units, whose counters they read, and the numbers that the owner has published.
//!
//! Names follow Prometheus' conventions. A name once published stays: dashboards and alerts depend on it
//! (`examples/monitoring`, and a test that compares them).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use api::report::{
    AcceleratedFlows, Class, Collector, Counters, Exporter, Exporters, Interference, QueueClass,
    Remote, SourceReport,
};
use control::rib::{RouteSource, Summary};
use dataplane::bond::BondTable;
use dataplane::counters::{BATCH_FILLS, ForwarderCounters};
use dataplane::filters::{FilterTable, Filters, RuleHits};
use dataplane::interface::InterfaceId;
use dataplane::next_hop::NEXT_HOPS;
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::tables::Tables;
use dataplane::transmit::Discipline;
use web::metrics::{Families, Histogram};

use super::super::buffers::Buffers;
use super::super::reports::Ledger;

/// An interface.
pub struct InterfaceView {
    /// Its name.
    pub name: String,
    /// The statement: `port`, `bond`, `vlan` or `loopback`.
    pub kind: &'static str,
    /// The name of its VRF.
    pub vrf: String,
    /// True if packets can leave by it.
    pub is_up: bool,
    /// The place of its counters.
    pub traffic: Traffic,
    /// A port's troubles, by name, with their counts at the last look.
    pub troubles: Vec<(&'static str, u64)>,
    /// Its queue in software.
    pub queue: Option<(InterfaceId, Discipline)>,
}

/// The place of an interface's counters.
pub enum Traffic {
    /// Forwarders', less the counts of earlier ports of the number.
    Port(PortId, [u64; 4]),
    /// The bonds'.
    Bond(InterfaceId),
    /// The VLANs'.
    Vlan(InterfaceId),
    /// No packets pass it.
    None,
}

/// A VRF's routes.
pub struct VrfView {
    /// Its name.
    pub name: String,
    /// Its numbers.
    pub summary: Summary,
}

/// All of it.
pub struct View {
    /// The time at which it was published.
    pub at: Instant,
    /// Counters of all units.
    pub ledger: Ledger,
    /// Packet buffers.
    pub buffers: Buffers,
    /// Tables with counters of bonds and VLANs.
    pub tables: Arc<Tables>,
    /// The interfaces.
    pub interfaces: Vec<InterfaceView>,
    /// Exporters of samples.
    pub exporters: Exporters,
    /// Filters and flows.
    pub filters: Filters,
    /// Packets and bytes that devices dropped by each rule of each filter; empty if devices have no rules.
    pub dropped_by_devices: Vec<Vec<[u64; 2]>>,
    /// Each forwarder's core.
    pub cores: Vec<usize>,
    /// Interruptions of forwarders.
    pub interference: Vec<Option<Interference>>,
    /// Sources of routes.
    pub sources: Vec<SourceReport>,
    /// The VRFs, the default one first.
    pub vrfs: Vec<VrfView>,
    /// The whole RIB's numbers.
    pub rib: Summary,
    /// Neighbours by interface.
    pub neighbours: Vec<(String, u64)>,
    /// Packets of accelerated interfaces, by interface and outcome.
    pub accelerated: Vec<(String, String, u64)>,
    /// The kernel's flows, where packets of no others are accelerated.
    pub accelerated_flows: Option<AcceleratedFlows>,
    /// The number of the configuration.
    pub configuration: u64,
    /// True if it waits for confirmation.
    pub is_unconfirmed: bool,
    /// True if it is the last good one in place of the file's.
    pub is_refused: bool,
}

/// Labels of a sample.
type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

impl View {
    /// Writes all families.
    pub fn write(&self, families: &mut Families<'_>) -> fmt::Result {
        self.interfaces(families)?;
        self.packets(families)?;
        self.steps(families)?;
        self.forwarders(families)?;
        self.slow_path(families)?;
        self.acceleration(families)?;
        self.queues(families)?;
        self.rules(families)?;
        self.flows(families)?;
        self.exporters(families)?;
        self.routes(families)?;
        self.sources(families)?;
        self.rest(families)
    }

    fn interfaces(&self, families: &mut Families<'_>) -> fmt::Result {
        let all = || self.interfaces.iter().map(|of| (of.labels(), of));
        let traffic: Vec<_> =
            self.interfaces.iter().map(|of| (of.labels(), self.traffic(of))).collect();
        for (place, (name, help)) in [
            ("turnpike_interface_receive_packets", "Frames received"),
            ("turnpike_interface_receive_bytes", "Bytes of frames received, without FCS"),
            ("turnpike_interface_transmit_packets", "Frames sent"),
            ("turnpike_interface_transmit_bytes", "Bytes of frames sent, without FCS"),
        ]
        .into_iter()
        .enumerate()
        {
            let samples = traffic.iter().map(|(labels, counts)| (*labels, counts[place]));
            families.counters(name, help, samples)?;
        }
        let up = all().map(|(labels, of)| (labels, u64::from(of.is_up)));
        families.gauges("turnpike_interface_up", "1 if packets can leave by the interface", up)?;
        let kind = self.interfaces.iter().map(|of| {
            let labels: Labels<'_, 2> = [("interface", &of.name), ("kind", of.kind)];
            (labels, 1_u32)
        });
        families.gauges("turnpike_interface_info", "Kind of the interface", kind)?;
        for (trouble, name, help) in [
            (
                "rx_missed",
                "turnpike_interface_receive_missed_packets",
                "Frames that found their receive queue full",
            ),
            (
                "rx_nombuf",
                "turnpike_interface_receive_no_buffer_packets",
                "Frames that found no free buffer",
            ),
            ("rx_errors", "turnpike_interface_receive_errors", "Frames that arrived broken"),
            ("tx_errors", "turnpike_interface_transmit_errors", "Frames that could not be sent"),
            ("dma_faults", "turnpike_interface_dma_faults", "Accesses that the IOMMU refused"),
        ] {
            let count = |of: &InterfaceView| {
                of.troubles.iter().find(|(name, _)| *name == trouble).map(|(_, count)| *count)
            };
            let samples = all().filter_map(|(labels, of)| Some((labels, count(of)?)));
            families.counters(name, help, samples)?;
        }
        Ok(())
    }

    /// Packets and bytes received and sent by an interface, in this order.
    fn traffic(&self, of: &InterfaceView) -> [u64; 4] {
        let counted = match of.traffic {
            Traffic::Port(port, before) => {
                let all = self.ledger.traffic(port);
                return std::array::from_fn(|n| all[n].saturating_sub(before[n]));
            }
            Traffic::Bond(id) => self.tables.shared.get::<BondTable>().traffic(id),
            Traffic::Vlan(id) => self.tables.vlans.traffic(id),
            Traffic::None => return [0; 4],
        };
        [counted.rx_packets, counted.rx_bytes, counted.tx_packets, counted.tx_bytes]
    }

    fn packets(&self, families: &mut Families<'_>) -> fmt::Result {
        let Counters {
            received,
            originated,
            replicated,
            sent,
            to_host,
            in_flight,
            dropped_by_step,
            steps,
            ..
        } = self.ledger.counters();
        for (name, help, count) in [
            ("turnpike_received_packets", "Packets received by forwarders", received),
            ("turnpike_originated_packets", "Packets of the router and its kernel", originated),
            ("turnpike_replicated_packets", "Copies made of multicast packets", replicated),
            ("turnpike_sent_packets", "Packets that devices accepted", sent),
            ("turnpike_to_host_packets", "Packets for the router and its kernel", to_host),
        ] {
            families.counter(name, help, count)?;
        }
        let help = "Packets in rings, bursts and queues";
        families.gauge("turnpike_in_flight_packets", help, in_flight)?;
        let drops = dropped_by_step.iter().flat_map(|(step, reasons)| {
            let labels = move |reason| -> Labels<'_, 2> { [("reason", reason), ("step", step)] };
            reasons.iter().map(move |(reason, &count)| (labels(reason), count))
        });
        families.counters("turnpike_drops", "Packets dropped by a step or another part", drops)?;
        let counters = steps.iter().map(|(name, &count)| {
            let labels: Labels<'_, 1> = [("counter", name)];
            (labels, count)
        });
        families.counters("turnpike_script_events", "Counters of steps in Lua", counters)
    }

    fn exporters(&self, families: &mut Families<'_>) -> fmt::Result {
        let Exporters { exporters, snmp } = &self.exporters;
        if let Some(snmp) = snmp {
            let is_ready = u64::from(snmp.state == "ready");
            let help = "1 if the SNMP agent has the router's objects";
            families.gauge("turnpike_snmp_ready", help, is_ready)?;
            families.counter("turnpike_snmp_requests", "Requests of the agent", snmp.requests)?;
        }
        type Read = fn(&Exporter) -> u64;
        let all: [(&str, &str, Read); 4] = [
            ("turnpike_export_sampled_packets", "Packets sampled", |of| of.sampled),
            ("turnpike_export_lost_samples", "Samples that found no free record", |of| of.lost),
            ("turnpike_export_unrouted_samples", "Samples sent without a route", |of| of.unrouted),
            ("turnpike_export_records", "Samples of packets or flows sent", |of| of.exported),
        ];
        for (name, help, read) in all {
            let samples = exporters.iter().map(|of| {
                let labels: Labels<'_, 1> = [("exporter", &of.name)];
                (labels, read(of))
            });
            families.counters(name, help, samples)?;
        }
        let flows = exporters.iter().filter_map(|of| {
            let labels: Labels<'_, 1> = [("exporter", &of.name)];
            Some((labels, of.flows?))
        });
        families.gauges("turnpike_export_flows", "Flows in the cache", flows)?;
        type ReadCollector = fn(&Collector) -> u64;
        let all: [(&str, &str, ReadCollector); 4] = [
            ("turnpike_export_datagrams", "Datagrams sent to the collector", |of| of.datagrams),
            ("turnpike_export_bytes", "Bytes sent to the collector", |of| of.bytes),
            ("turnpike_export_dropped_datagrams", "Datagrams lost for lack of room", |of| {
                of.dropped
            }),
            ("turnpike_export_errors", "Datagrams that could not be sent", |of| of.errors),
        ];
        for (name, help, read) in all {
            let samples = exporters.iter().flat_map(|exporter| {
                exporter.collectors.iter().map(move |of| {
                    let labels: Labels<'_, 2> =
                        [("exporter", &exporter.name), ("collector", &of.address)];
                    (labels, read(of))
                })
            });
            families.counters(name, help, samples)?;
        }
        Ok(())
    }

    fn steps(&self, families: &mut Families<'_>) -> fmt::Result {
        let outputs = self.ledger.outputs();
        let samples = outputs.iter().map(|((step, output), &packets)| {
            let labels: Labels<'_, 2> = [("step", step), ("output", output)];
            (labels, packets)
        });
        families.counters("turnpike_step_packets", "Packets by step and output", samples)
    }

    fn forwarders(&self, families: &mut Families<'_>) -> fmt::Result {
        let running = || {
            self.ledger.running().zip(&self.cores).map(|((number, view), core)| {
                ([("forwarder", number.to_string()), ("core", core.to_string())], &*view.counters)
            })
        };
        type Read = fn(&ForwarderCounters) -> u64;
        let all: [(&str, &str, Read); 8] = [
            ("turnpike_forwarder_busy_cycles", "TSC cycles of rounds that found packets", |of| {
                of.busy.get()
            }),
            (
                "turnpike_forwarder_idle_cycles",
                "TSC cycles of rounds that found none, and of short sleeps",
                |of| of.idle.get(),
            ),
            (
                "turnpike_forwarder_blocked_cycles",
                "TSC cycles blocked without work, up to the last wake-up",
                |of| of.blocked.get(),
            ),
            ("turnpike_forwarder_rounds", "Rounds of the loop", |of| of.rounds.get()),
            ("turnpike_forwarder_batches", "Batches run through the graph", |of| of.batches()),
            ("turnpike_forwarder_packets", "Packets received from devices", received),
            (
                "turnpike_forwarder_pool_takes",
                "Accesses to the ring of free packet buffers that took some",
                |of| of.pool_takes.get(),
            ),
            (
                "turnpike_forwarder_pool_gives",
                "Accesses to the ring of free packet buffers that gave some back",
                |of| of.pool_gives.get(),
            ),
        ];
        for (name, help, read) in all {
            families.counters(name, help, running().map(|(labels, of)| (labels, read(of))))?;
        }
        let fill = running().map(|(labels, of)| {
            let counted = BATCH_FILLS.iter().zip(&of.batch_fill);
            let buckets = counted.map(|(&most, count)| (most as f64, count.get())).collect();
            (labels, Histogram { sum: of.batched.get() as f64, buckets })
        });
        let help = "Packets of batches run through the graph";
        families.histograms("turnpike_forwarder_batch_size_packets", help, fill)?;
        self.interference(families)?;
        families.gauge("turnpike_tsc_hertz", "TSC cycles of a second", dpdk::tsc_hz())
    }

    fn interference(&self, families: &mut Families<'_>) -> fmt::Result {
        let all = self.interference.iter().enumerate().zip(&self.cores);
        let all: Vec<_> = all
            .filter_map(|((number, of), core)| {
                let labels = [("forwarder", number.to_string()), ("core", core.to_string())];
                Some((labels, of.as_ref()?))
            })
            .collect();
        type Read = fn(&Interference) -> f64;
        let counters: [(&str, &str, Read); 6] = [
            (
                "turnpike_forwarder_preemptions",
                "Times that the scheduler gave a forwarder's core to another thread",
                |of| of.involuntary_switches as f64,
            ),
            ("turnpike_forwarder_minor_faults", "Page faults resolved from memory", |of| {
                of.minor_faults as f64
            }),
            ("turnpike_forwarder_major_faults", "Page faults that waited for a disk", |of| {
                of.major_faults as f64
            }),
            (
                "turnpike_forwarder_waited_seconds",
                "Time ready to run while other threads had the core",
                |of| of.waited_us as f64 / 1e6,
            ),
            (
                "turnpike_forwarder_stolen_seconds",
                "Time that the hypervisor took from the core",
                |of| of.stolen_us as f64 / 1e6,
            ),
            (
                "turnpike_forwarder_tlb_shootdowns",
                "Interrupts by which other cores made the core forget address translations",
                |of| of.tlb_shootdowns as f64,
            ),
        ];
        for (name, help, read) in counters {
            let samples = all.iter().map(|(labels, of)| (labels.clone(), read(of)));
            families.counters(name, help, samples)?;
        }
        Ok(())
    }

    fn slow_path(&self, families: &mut Families<'_>) -> fmt::Result {
        let policing = self.ledger.policing();
        let classes = || policing.classes.iter().map(|class| (class_labels(class), class));
        type Read = fn(&Class) -> u64;
        let all: [(&str, &str, Read); 2] = [
            (
                "turnpike_slow_path_offered_packets",
                "Packets that forwarders offered to the slow path",
                |of| of.offered,
            ),
            ("turnpike_slow_path_passed_packets", "Packets that the slow path accepted", |of| {
                of.passed
            }),
        ];
        for (name, help, read) in all {
            families.counters(name, help, classes().map(|(labels, of)| (labels, read(of))))?;
        }
        let refused = policing.classes.iter().flat_map(|of| {
            let labels = |why| -> Labels<'_, 2> { [("class", &of.name), ("why", why)] };
            [(labels("early"), of.refused_early), (labels("full"), of.refused_full)]
        });
        let help = "Packets that the limits of the slow path refused";
        families.counters("turnpike_slow_path_refused_packets", help, refused)?;
        let waiting = classes().map(|(labels, of)| (labels, of.waiting));
        let help = "Packets that wait for the slow path";
        families.gauges("turnpike_slow_path_waiting_packets", help, waiting)?;
        let (icmp, events) = (&policing.icmp_errors, &policing.events);
        let suppressed = icmp.suppressed + icmp.suppressed_by_prefix;
        let help = "ICMP errors not sent because of a limit";
        families.counter("turnpike_icmp_errors_suppressed", help, suppressed)?;
        let help = "Events of the slow path that wait for the owner";
        families.gauge("turnpike_slow_path_waiting_events", help, events.waiting)?;
        let help = "Events of the slow path lost because their queue was full";
        families.counter("turnpike_slow_path_lost_events", help, events.lost)
    }

    fn acceleration(&self, families: &mut Families<'_>) -> fmt::Result {
        if self.accelerated.is_empty() {
            return Ok(());
        }
        let sample = |(interface, outcome, count): &(String, String, u64)| {
            ([("interface", interface.clone()), ("outcome", outcome.clone())], *count)
        };
        let help =
            "Packets received by accelerated interfaces, by the decision of their XDP programs";
        let samples = self.accelerated.iter().map(sample);
        families.counters("turnpike_acceleration_packets", help, samples)?;
        let Some(flows) = &self.accelerated_flows else { return Ok(()) };
        let help = "Established flows of the kernel that may be accelerated";
        families.gauge("turnpike_acceleration_flows", help, flows.known)?;
        let help = "Flows left to the kernel because the table of accelerated ones was full";
        families.counter("turnpike_acceleration_flows_refused", help, flows.refused)?;
        let help = "Accelerated flows that have ended";
        families.counter("turnpike_acceleration_flows_ended", help, flows.ended)?;
        let help = "Timeouts of the kernel renewed for accelerated flows";
        families.counter("turnpike_acceleration_flows_renewed", help, flows.renewed)
    }

    fn queues(&self, families: &mut Families<'_>) -> fmt::Result {
        let classes = |of: &InterfaceView| {
            let (interface, discipline) = of.queue?;
            Some((of.name.clone(), self.ledger.queue_classes(interface, discipline)))
        };
        let queues: Vec<_> = self.interfaces.iter().filter_map(classes).collect();
        let all = || {
            queues.iter().flat_map(|(interface, classes)| {
                let labels = move |of: &'_ QueueClass| {
                    [("interface", interface.clone()), ("class", of.name.clone())]
                };
                classes.iter().map(move |of| (labels(of), of))
            })
        };
        let waiting = all().map(|(labels, of)| (labels, of.waiting));
        let help = "Packets in the queue in software";
        families.gauges("turnpike_queue_waiting_packets", help, waiting)?;
        let delay = all().map(|(labels, of)| (labels, of.delay_us as f64 / 1e6));
        let help = "Time in the queue, a moving average";
        families.gauges("turnpike_queue_delay_seconds", help, delay)?;
        let sent = all().map(|(labels, of)| (labels, of.sent));
        families.counters("turnpike_queue_sent_packets", "Packets that left the queue", sent)?;
        let marked = all().map(|(labels, of)| (labels, of.marked));
        families.counters("turnpike_queue_marked_packets", "Packets marked by ECN", marked)?;
        let dropped = all().flat_map(|([interface, class], of)| {
            [("full", of.full), ("red", of.red), ("codel", of.codel)].map(|(why, count)| {
                ([interface.clone(), class.clone(), ("why", why.into())], count)
            })
        });
        families.counters(
            "turnpike_queue_dropped_packets",
            "Packets that the queue dropped",
            dropped,
        )
    }

    fn rules(&self, families: &mut Families<'_>) -> fmt::Result {
        let tables = self.filters.tables.iter().enumerate();
        let tables = tables.filter_map(|(number, table)| Some((number, table.as_ref()?)));
        let counted: Vec<_> = tables
            .flat_map(|(number, table)| {
                let filter = &table.spec().filter;
                let by_devices = self.dropped_by_devices.get(number);
                let hits = table.hits().into_iter().zip(rule_labels(table)).enumerate();
                hits.map(move |(rule, (hits, label))| {
                    let by_devices = by_devices.and_then(|of| of.get(rule)).copied();
                    let labels = [("filter", filter.name.clone()), ("rule", label)];
                    (labels, with_devices(hits, by_devices.unwrap_or_default()))
                })
            })
            .collect();
        let hits = counted.iter().map(|(labels, [packets, _])| (labels.clone(), *packets));
        families.counters("turnpike_rule_hits", "Packets that a rule of a filter matched", hits)?;
        let bytes = counted.iter().map(|(labels, [_, bytes])| (labels.clone(), *bytes));
        families.counters("turnpike_rule_bytes", "Bytes of their IP packets", bytes)
    }

    fn flows(&self, families: &mut Families<'_>) -> fmt::Result {
        let Some(flows) = &self.filters.flows else { return Ok(()) };
        let [ip4, ip6] = flows.live(dpdk::tsc());
        let labels = |family| -> Labels<'_, 1> { [("family", family)] };
        let live = [(labels("ipv4"), ip4 as u64), (labels("ipv6"), ip6 as u64)];
        families.gauges("turnpike_flows", "Flows of filters", live)?;
        let help = "Room for flows of each family";
        families.gauge("turnpike_flows_limit", help, flows.room() as u64)?;
        let counts = flows.counts();
        families.counter("turnpike_flows_entered", "Flows entered", counts.entered)?;
        let help = "Flows displaced by newer ones before they expired";
        families.counter("turnpike_flows_pushed_out", help, counts.pushed_out)?;
        let help = "Flows not entered for lack of room";
        families.counter("turnpike_flows_refused", help, counts.refused)
    }

    fn routes(&self, families: &mut Families<'_>) -> fmt::Result {
        let by_origin = self.vrfs.iter().enumerate().flat_map(|(number, vrf)| {
            let counts = [("ipv4", &vrf.summary.ipv4), ("ipv6", &vrf.summary.ipv6)];
            counts.into_iter().flat_map(move |(family, counts)| {
                let of = move |origin: RouteSource| {
                    let labels: Labels<'_, 3> =
                        [("vrf", &vrf.name), ("family", family), ("origin", origin.name())];
                    (labels, counts[origin.index()] as u64)
                };
                // Thousands of VRFs have few origins each.
                RouteSource::ALL.into_iter().map(of).filter(move |of| number == 0 || of.1 > 0)
            })
        });
        let help = "Routes by origin, those not in use included";
        families.gauges("turnpike_routes", help, by_origin)?;
        let in_fib = self.vrfs.iter().flat_map(|vrf| {
            let labels = |family| -> Labels<'_, 2> { [("vrf", &vrf.name), ("family", family)] };
            let (fib4, fib6) = (vrf.summary.fib4 as u64, vrf.summary.fib6 as u64);
            [(labels("ipv4"), fib4), (labels("ipv6"), fib6)]
        });
        families.gauges("turnpike_fib_routes", "Prefixes in the FIB", in_fib)?;
        let Summary { next_hops, refused, waiting, pending, .. } = self.rib;
        families.counter("turnpike_routes_refused", "Routes refused", refused)?;
        let help = "Routes that wait for room or for their group";
        families.gauge("turnpike_routes_waiting", help, (waiting + pending) as u64)?;
        families.gauge("turnpike_next_hops", "Next hops in use", next_hops as u64)?;
        let help = "Room for next hops";
        families.gauge("turnpike_next_hops_limit", help, NEXT_HOPS as u64)?;
        let neighbours = self.neighbours.iter().map(|(interface, count)| {
            let labels: Labels<'_, 1> = [("interface", interface)];
            (labels, *count)
        });
        families.gauges("turnpike_neighbours", "Resolved neighbours", neighbours)
    }

    fn sources(&self, families: &mut Families<'_>) -> fmt::Result {
        let all = || self.sources.iter().map(|of| ([("source", &*of.name)], of));
        let is_ready = |of: &SourceReport| matches!(&*of.state, "ready" | "synchronised");
        let ready = all().map(|(labels, of)| (labels, u64::from(is_ready(of))));
        families.gauges("turnpike_source_ready", "1 if the source of routes is followed", ready)?;
        type Read = fn(&Remote) -> u64;
        let counters: [(&str, &str, Read); 5] = [
            ("turnpike_source_messages", "Messages read", |of| of.messages),
            ("turnpike_source_errors", "Malformed messages and attributes", |of| of.errors),
            ("turnpike_source_refused", "Changes refused", |of| of.refused),
            ("turnpike_source_overruns", "Times that messages were lost", |of| of.overruns),
            ("turnpike_source_audits_failed", "Comparisons that found a difference", |of| {
                of.audits_failed
            }),
        ];
        for (name, help, read) in counters {
            let samples =
                all().filter_map(|(labels, of)| Some((labels, read(of.remote.as_ref()?))));
            families.counters(name, help, samples)?;
        }
        Ok(())
    }

    fn rest(&self, families: &mut Families<'_>) -> fmt::Result {
        let (all, in_use) = self.buffers.count();
        families.gauge("turnpike_mbufs", "Packet buffers", all as u64)?;
        families.gauge("turnpike_mbufs_in_use", "Packet buffers in use", in_use as u64)?;
        let help = "Number of the configuration, as in show history";
        families.gauge("turnpike_configuration_number", help, self.configuration)?;
        let help = "1 while a configuration waits for turnpike confirm";
        let unconfirmed = u64::from(self.is_unconfirmed);
        families.gauge("turnpike_configuration_unconfirmed", help, unconfirmed)?;
        let help = "1 while the router has the last good configuration, as its file was refused";
        let refused = u64::from(self.is_refused);
        families.gauge("turnpike_configuration_refused", help, refused)?;
        let help = "Time since the control plane published its state, about a second";
        families.gauge("turnpike_owner_silent_seconds", help, self.at.elapsed().as_secs_f64())
    }
}

impl InterfaceView {
    fn labels(&self) -> Labels<'_, 2> {
        [("interface", &self.name), ("vrf", &self.vrf)]
    }
}

fn class_labels(class: &Class) -> Labels<'_, 1> {
    [("class", &class.name)]
}

fn received(counters: &ForwarderCounters) -> u64 {
    let ports = (0..MAX_PORTS as u16).filter_map(PortId::new);
    ports.map(|port| counters.rx(port).packets.get()).sum()
}

fn with_devices(hits: RuleHits, [packets, bytes]: [u64; 2]) -> [u64; 2] {
    [hits.packets + packets, hits.bytes + bytes]
}

/// The label of each rule, and of the default: its name, else its number. Each is there once, or a scrape would be
/// refused as a whole.
fn rule_labels(table: &FilterTable) -> Vec<String> {
    let rules = &table.spec().filter.rules;
    let names = rules.iter().map(|rule| rule.name.as_deref());
    unique(names.chain([Some("default")]))
}

fn unique<'n>(names: impl Iterator<Item = Option<&'n str>>) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let label = |(place, name): (usize, Option<&str>)| {
        let number = (place + 1).to_string();
        let mut label = name.map_or(number.clone(), str::to_owned);
        while !taken.insert(label.clone()) {
            label += &format!("#{number}");
        }
        label
    };
    names.enumerate().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_rules_are_there_once() {
        let names = [Some("2"), None, Some("web"), Some("web"), Some("web#4"), Some("default")];
        let labels = unique(names.into_iter().chain([Some("default")]));
        assert_eq!(labels, ["2", "2#2", "web", "web#4", "web#4#5", "default", "default#7"]);
    }
}
