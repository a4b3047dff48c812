//! Interfaces' queues in software: those that the configuration asks for, made for each forwarder.

use std::sync::{Arc, Mutex, Weak};

use control::config::{Config, EgressQueues, Port, SoftwareQueue};
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::Schedulers;
use dataplane::interface::InterfaceId;
use dataplane::lock::lock;
use dataplane::port::PortId;
use dataplane::transmit::shape::{Bucket, Shape};
use dataplane::transmit::{Rate, Scheduler};

/// The queues of a port, as they are to be; `None`: none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The port.
    pub port: PortId,
    /// Its queues and their rates.
    pub queues: Option<EgressQueues>,
}

/// The queues of all ports that have some.
pub fn all(config: &Config) -> Vec<Egress> {
    let of = |port: &Port| {
        let queues = config.egress_queues(port)?;
        Some(Egress { port: port.id, queues: Some(queues) })
    };
    config.ports.iter().filter_map(of).collect()
}

/// The queues that change with another configuration.
pub fn changed(old: &Config, new: &Config) -> Vec<Egress> {
    let (before, after) = (all(old), all(new));
    let gone = before.iter().filter(|old| after.iter().all(|new| new.port != old.port));
    let gone: Vec<_> = gone.map(|old| Egress { port: old.port, queues: None }).collect();
    after.into_iter().filter(|new| !before.contains(new)).chain(gone).collect()
}

/// The token buckets that forwarders share, as long as one of them has it.
#[derive(Debug, Default)]
pub struct Buckets(Mutex<Vec<(InterfaceId, Shape, Weak<Bucket>)>>);

impl Buckets {
    /// The schedulers of the forwarder with these counters.
    pub fn schedulers(&self, wanted: &[Egress], counters: &ForwarderCounters) -> Schedulers {
        let make = |egress: &Egress| {
            let queues = egress.queues.as_ref()?;
            Some(Box::new(self.scheduler(egress.port, queues, counters)))
        };
        wanted.iter().map(|egress| (egress.port, make(egress))).collect()
    }

    fn scheduler(
        &self,
        port: PortId,
        queues: &EgressQueues,
        counters: &ForwarderCounters,
    ) -> Scheduler {
        let parts = |of: &SoftwareQueue| {
            let rate = of.shape.map(|shape| self.rate(of.interface, shape));
            (of.queue, rate, counters.queue(of.interface, port))
        };
        let (config, rate, counted) = parts(&queues.rest);
        let mut scheduler = Scheduler::new(config, rate, counted);
        for (tags, of) in &queues.vlans {
            let (config, rate, counted) = parts(of);
            scheduler.add(*tags, config, rate, counted);
        }
        scheduler
    }

    fn rate(&self, interface: InterfaceId, shape: Shape) -> Rate {
        let mut known = lock(&self.0);
        known.retain(|(_, _, bucket)| bucket.strong_count() > 0);
        let is_it =
            |(id, of, _): &&(InterfaceId, Shape, Weak<Bucket>)| (*id, *of) == (interface, shape);
        if let Some(bucket) = known.iter().find(is_it).and_then(|(_, _, bucket)| bucket.upgrade()) {
            return (shape, bucket);
        }
        let bucket = Arc::new(Bucket::new(shape, dpdk::tsc_hz()));
        known.push((interface, shape, Arc::downgrade(&bucket)));
        (shape, bucket)
    }
}
