//! Ports' queues in software: those that the configuration asks for, made for each forwarder.

use std::sync::{Arc, Mutex, Weak};

use control::config::{Config, Port};
use dataplane::distribution::Schedulers;
use dataplane::lock::lock;
use dataplane::port::PortId;
use dataplane::transmit::shape::{Bucket, Shape};
use dataplane::transmit::{QueueConfig, Scheduler};

/// The queue of a port, as it is to be; `None`: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The port.
    pub port: PortId,
    /// Its queue and its rate.
    pub queue: Option<(QueueConfig, Option<Shape>)>,
}

impl Egress {
    fn of(port: &Port) -> Self {
        Self { port: port.id, queue: port.queue_in_software() }
    }
}

/// The queues of all ports that have one.
pub fn all(config: &Config) -> Vec<Egress> {
    config.ports.iter().map(Egress::of).filter(|egress| egress.queue.is_some()).collect()
}

/// The queues that change with another configuration.
pub fn changed(old: &Config, new: &Config) -> Vec<Egress> {
    let (before, after) = (all(old), all(new));
    let gone = before.iter().filter(|old| after.iter().all(|new| new.port != old.port));
    let gone = gone.map(|old| Egress { queue: None, ..*old });
    after.iter().copied().filter(|new| !before.contains(new)).chain(gone).collect()
}

/// The token buckets that forwarders share, as long as one of them has it.
#[derive(Debug, Default)]
pub struct Buckets(Mutex<Vec<(PortId, Shape, Weak<Bucket>)>>);

impl Buckets {
    /// The schedulers of a forwarder.
    pub fn schedulers(&self, wanted: &[Egress]) -> Schedulers {
        let make = |egress: &Egress| {
            let (config, shape) = egress.queue?;
            let shape = shape.map(|shape| (shape, self.bucket(egress.port, shape)));
            Some(Box::new(Scheduler::new(config, shape)))
        };
        wanted.iter().map(|egress| (egress.port, make(egress))).collect()
    }

    fn bucket(&self, port: PortId, shape: Shape) -> Arc<Bucket> {
        let mut known = lock(&self.0);
        known.retain(|(_, _, bucket)| bucket.strong_count() > 0);
        let is_it = |(id, of, _): &&(PortId, Shape, Weak<Bucket>)| (*id, *of) == (port, shape);
        if let Some(bucket) = known.iter().find(is_it).and_then(|(_, _, bucket)| bucket.upgrade()) {
            return bucket;
        }
        let bucket = Arc::new(Bucket::new(shape, dpdk::tsc_hz()));
        known.push((port, shape, Arc::downgrade(&bucket)));
        bucket
    }
}
