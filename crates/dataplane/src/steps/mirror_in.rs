//! `mirror-in`: copies received frames for mirror sessions (SPAN).
//!
//! Takes every frame that a port receives, before all other steps: as it came from the wire, with its tags, also if a
//! later step drops it. A tag that the device removed is in the copy again, as an 802.1Q tag. The frame itself
//! continues unchanged.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | all others |
//! | drop `mirror-destination` | received on the port of an analyser |
//!
//! A copy has the first 128 bytes for itself, since steps rewrite headers, and shares the others with the frame; see
//! `tap.rs` for copies that share nothing. It leaves by the analyser's port, or by the route to the analyser
//! (`erspan.rs`), and counts as replicated. A copy without a buffer or a way, or for which its port has no room, is
//! dropped as `mirror-lost`; the frame is not affected. The step is in
//! the default graph only if a session mirrors received packets, or there is an analyser's port. It counts copies by
//! session (`show mirrors`).

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::mirror_sessions::{Direction, Mirror};
use crate::reason::DropReason;
use crate::tables::Tables;

const OK: usize = 0;
const DESTINATION: usize = 1;

pub(super) const OUTPUTS: &[Output] =
    &[Output::next("ok"), Output::Drop(DropReason::MirrorDestination)];

/// See the module's documentation.
pub struct MirrorIn(Mirror);

impl MirrorIn {
    /// Creates it for the sessions in these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(tables.mirror(Direction::Inward))
    }
}

impl Step for MirrorIn {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let port = batch.in_port;
        if self.0.is_destination(port) {
            out[DESTINATION] = input;
            return;
        }
        out[OK] = input;
        if let Some((burst, taps)) = batch.burst_and_taps() {
            self.0.copy(burst, taps, input, port);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::interface::InterfaceId;
    use crate::mirror::Copies;
    use crate::mirror_sessions::{Destination, Session, Sessions};
    use crate::port::PortId;
    use crate::tap::Made;
    use crate::testing::{FrameBuilder, TestTables, dpdk, run_step_on};

    #[test]
    fn frames_are_copied_and_continue_and_those_of_an_analyser_s_port_do_not() {
        let tables = TestTables::every_kind();
        let session = Session {
            name: "tap".into(),
            from: vec![InterfaceId::FIRST],
            direction: Direction::Both,
            to: Destination::Port(PortId::new(4).unwrap()),
            sample: 1,
            vlan: None,
        };
        let sessions = Sessions::new(vec![session], &tables.vlans.get(), false);
        tables.mirrors.set(Arc::new(sessions));
        let frames = [FrameBuilder::ip4().build(), vec![0; 14]];
        for (port, expected) in [(0, "ok"), (1, "ok"), (4, "mirror-destination")] {
            let mut step = MirrorIn::new(&tables);
            let (result, mut batch) = run_step_on(&mut step, &frames, |batch| {
                batch.in_port = PortId::new(port).unwrap();
                batch.copies = Some(Copies::new(dpdk().1.clone()));
            });
            assert_eq!(result[expected], [0, 1], "port {port}");
            let (_, taps) = batch.burst_and_taps().unwrap();
            let copies: Vec<_> = taps.made().collect();
            assert_eq!(copies.len(), usize::from(port == 0));
            for Made { packets: made, .. } in copies {
                assert_eq!(
                    [made.burst.frame(0), made.burst.frame(1)],
                    [&frames[0][..], &frames[1]]
                );
                assert_eq!(made.out_interface[..2], [4, 4]);
            }
        }
    }
}
