//! `ip4-redirect`, `ip6-redirect`: detects packets whose sender has a better first hop.
//!
//! Takes packets to be forwarded, with [`Batch::out_interface`] set. A packet whose egress port is
//! its ingress port goes to the slow path, which forwards it and, if its sender is a neighbour,
//! sends a redirect to the better first hop; but only one such packet of a port at a time, see
//! [`RedirectGates`]. The others continue like any packet.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | all others |
//! | punt `redirect` | its egress port is its ingress port, which redirects and has an open gate |
//!
//! Sources: RFC 1812 5.2.7.2, RFC 4861 8.2. The steps are in the graph only if a port redirects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::batch::{Batch, Group};
use crate::features::Feature;
use crate::graph::{Output, Outputs, Step};
use crate::interface::{InterfaceId, MAX_INTERFACES};
use crate::mask::Mask;
use crate::reason::PuntReason;
use crate::tables::Tables;

const OK: usize = 0;
const REDIRECT: usize = 1;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok"), Output::Punt(PuntReason::Redirect)];

/// Enables redirects to the hosts of a port.
pub const REDIRECTS: Feature = Feature::flag("redirects", 1);

/// The interfaces for which the slow path may get a packet whose egress interface is its ingress
/// interface. The slow path opens them from time to time, and the first such packet closes its
/// interface again: hosts that ignore redirects cost no more than those few packets.
#[derive(Debug)]
pub struct RedirectGates([AtomicBool; MAX_INTERFACES]);

impl Default for RedirectGates {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicBool::new(true)))
    }
}

impl RedirectGates {
    /// Opens all.
    pub fn open(&self) {
        self.0.iter().for_each(|gate| gate.store(true, Ordering::Relaxed));
    }

    /// Returns true once after each opening.
    #[inline(always)]
    fn pass(&self, interface: InterfaceId) -> bool {
        let gate = &self.0[interface.index()];
        gate.load(Ordering::Relaxed) && gate.swap(false, Ordering::Relaxed)
    }
}

/// See the module's documentation.
pub struct Redirect {
    gates: Arc<RedirectGates>,
}

impl Redirect {
    /// With the gates that all forwarders and the slow path share.
    pub fn new(tables: &Tables) -> Self {
        Self { gates: tables.shared.get() }
    }
}

impl Step for Redirect {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let mut shown = Mask::EMPTY;
        for Group { interface, packets, .. } in
            batch.by_interface(input).filter(|group| group.info.features.has(REDIRECTS))
        {
            let number = interface.index() as u16;
            let mut back = Mask::EMPTY;
            for i in packets.slots() {
                back |= Mask::when(batch.out_interface[i] == number, i);
            }
            let first = back.slots().next().filter(|_| self.gates.pass(interface));
            shown |= first.map_or(Mask::EMPTY, |slot| Mask::when(true, slot));
        }
        out[OK] = input.without(shown);
        out[REDIRECT] = shown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::testing::{FrameBuilder, TestTables, run_step_on};

    #[test]
    fn one_packet_is_shown_each_time_the_gate_is_opened() {
        let tables = TestTables::every_kind();
        let mut step = Redirect::new(&tables);
        let frames = vec![FrameBuilder::ip4().build(); 4];
        let mut run = |redirects: bool| {
            run_step_on(&mut step, &frames, |batch| {
                // The ingress port is 0.
                batch.out_interface[..4].copy_from_slice(&[1, 0, 0, 2]);
                batch.own.features = Features::NONE.with(REDIRECTS, redirects.into());
            })
            .0
        };
        let off = run(false);
        assert_eq!((off["ok"].len(), off["redirect"].len()), (4, 0));
        let first = run(true);
        assert_eq!((first["ok"].clone(), first["redirect"].clone()), (vec![0, 2, 3], vec![1]));
        assert_eq!(run(true)["ok"].len(), 4, "closed");
        tables.shared.get::<RedirectGates>().open();
        assert_eq!(run(true)["redirect"], [1]);
    }
}
