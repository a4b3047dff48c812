//! Flows of the kernel's connection tracking, where accelerated interfaces take nothing else.
//!
//! A thread follows the kernel's connections ([`kernel_rules::Follower`]) into the table of the XDP programs
//! ([`dpdk::Flows`]). These take packets of a direction when the kernel has let one pass, which a packet socket on each
//! accelerated interface sees. At each change of the kernel's rules all flows are in doubt until that happens again, and
//! when an interface or VLAN device becomes another one: rules may mean it by its number.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::report;
use dpdk::{Acceleration, FlowTap, FlowTuple, Flows, Prefixes};
use kernel_rules::{Flow, FlowTable, Follower, Tuple};

/// Time after a change of the rules from which packets confirm flows again: those that have passed the rules before wait in
/// qdiscs meanwhile.
const SETTLE: Duration = Duration::from_millis(200);

/// The flows, followed.
pub(super) struct FollowedFlows {
    flows: Arc<Flows>,
    follower: Follower,
    /// By the number of the interface's program.
    taps: BTreeMap<u64, FlowTap>,
    /// The kernel's numbers of the interfaces and VLAN devices.
    devices: BTreeSet<u32>,
}

/// The table of the programs.
struct Fast {
    flows: Arc<Flows>,
    prefixes: Arc<Prefixes>,
}

fn tuple(of: Tuple) -> FlowTuple {
    let Tuple { source, destination, source_port, destination_port, protocol } = of;
    FlowTuple { source, destination, source_port, destination_port, protocol }
}

impl FlowTable for Fast {
    fn forwards(&self, address: IpAddr) -> bool {
        self.prefixes.forwards(address)
    }

    fn put(&mut self, flow: &Flow) -> io::Result<()> {
        self.flows.put(tuple(flow.original), tuple(flow.reply)).map_err(io::Error::from)
    }

    fn end(&mut self, flow: &Flow) {
        self.flows.end(tuple(flow.original), tuple(flow.reply));
    }

    fn remove(&mut self, flow: &Flow) {
        self.flows.remove(tuple(flow.original), tuple(flow.reply));
    }

    fn quiet(&self, flow: &Flow) -> Option<Duration> {
        self.flows.quiet(tuple(flow.original), tuple(flow.reply))
    }
}

fn shared() -> Result<Arc<Flows>, String> {
    Flows::shared().map_err(|errno| format!("no table of flows: {errno}"))
}

/// Returns a function that puts all flows in doubt.
///
/// # Errors
/// The kernel makes no table.
pub(super) fn doubt() -> Result<impl Fn() + Send + 'static, String> {
    let flows = shared()?;
    Ok(move || flows.doubt(SETTLE))
}

impl FollowedFlows {
    /// Begins to follow flows between what is forwarded by these prefixes.
    ///
    /// # Errors
    /// The kernel makes no table, or does not tell its connections.
    pub(super) fn begin(prefixes: Arc<Prefixes>) -> Result<Self, String> {
        let flows = shared()?;
        let table = Fast { flows: flows.clone(), prefixes };
        let follower = Follower::start(table).map_err(|error| error.to_string())?;
        flows.doubt(Duration::ZERO);
        Ok(Self { flows, follower, taps: BTreeMap::new(), devices: BTreeSet::new() })
    }

    /// Has flows confirmed by these interfaces, and by no others.
    pub(super) fn confirm_by<'a>(
        &mut self,
        interfaces: impl Iterator<Item = (&'a str, &'a Acceleration)>,
    ) {
        let mut before = std::mem::take(&mut self.taps);
        for (name, acceleration) in interfaces {
            let number = acceleration.number();
            let tap = match before.remove(&number) {
                Some(tap) => Ok(Some(tap)),
                None => acceleration.flow_tap(),
            };
            match tap {
                Ok(tap) => self.taps.extend(tap.map(|tap| (number, tap))),
                Err(error) => tracing::error!(
                    "port \"{name}\": flows that leave by it stay with the kernel: {error}"
                ),
            }
        }
    }

    /// Puts all flows in doubt if these are not the interfaces and VLAN devices, by the kernel's numbers, of the last call.
    pub(super) fn doubt_others(&mut self, devices: BTreeSet<u32>) {
        if devices != self.devices {
            self.flows.doubt(SETTLE);
            self.devices = devices;
        }
    }

    /// Returns the report.
    pub(super) fn report(&self) -> report::AcceleratedFlows {
        let counts = self.follower.counts();
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        report::AcceleratedFlows {
            known: of(&counts.known),
            most: self.flows.most(),
            refused: of(&counts.refused),
            ended: of(&counts.ended),
            renewed: of(&counts.renewed),
            lost: of(&counts.lost),
        }
    }
}
