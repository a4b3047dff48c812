//! Captures: forwarders get graphs with them, and without them when they have ended.
//!
//! A change of the captures that run is a change of the graphs, prepared and made like that of a configuration
//! (`configurations.rs`). Graphs have the captures that run when they are made; if others run when forwarders get them,
//! further ones are made.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use api::capture::{CaptureRequest, SNAP, SNAP_MAX};
use dataplane::capture::{Capture, Captures, Place};
use dataplane::graph::Target;
use dataplane::reason::DropReason;
use dataplane::words::suggestion;
use tokio::sync::oneshot;

use super::super::server::Begun;
use super::Owner;

/// Most captures at a time.
const MOST: usize = 8;

/// Where a capture is to be announced.
pub type CaptureAsker = oneshot::Sender<Result<Begun, String>>;

/// Captures on their way into graphs.
#[derive(Default)]
pub(super) struct CaptureWork {
    /// Changes of the captures that forwarders' graphs have.
    done: u64,
    /// Graphs are being made.
    is_making: bool,
    /// Those who wait, each for so many changes.
    waiting: Vec<(u64, Begun, CaptureAsker)>,
}

impl Owner {
    fn captures(&self) -> Arc<Captures> {
        self.routing.tables.shared.get::<Captures>()
    }

    /// Begins a capture; answers when forwarders have it.
    pub(super) fn begin_capture(&mut self, request: &CaptureRequest, to: CaptureAsker) {
        match self.capture_of(request) {
            Ok(capture) => {
                let interfaces = self.configurations.current.interfaces();
                let names = interfaces.map(|(id, name, _)| (id.index(), name.to_owned())).collect();
                self.captures().add(capture.clone());
                let changes = self.captures().changes();
                self.serving.captures.waiting.push((changes, Begun { capture, names }, to));
                self.make_captures();
            }
            // The client may have disconnected.
            Err(error) => _ = to.send(Err(format!("{error:#}"))),
        }
    }

    /// Ends a capture; forwarders lose it soon.
    pub(super) fn end_capture(&mut self, capture: &Arc<Capture>) {
        self.captures().remove(capture);
        self.make_captures();
    }

    /// Makes graphs with the captures that run, unless forwarders have those.
    pub(super) fn make_captures(&mut self) {
        let is_due = self.serving.captures.done != self.captures().changes();
        if is_due && !self.serving.captures.is_making {
            self.serving.captures.is_making = true;
            self.prepare_captures();
        }
    }

    /// Forwarders have graphs with the captures after so many changes, or cannot have others.
    pub(super) fn captures_made(&mut self, made: Result<u64>, was_asked: bool) {
        let work = &mut self.serving.captures;
        work.is_making &= !was_asked;
        let mut given_up = Vec::new();
        match made {
            Ok(changes) => {
                work.done = work.done.max(changes);
                for (_, begun, to) in work.waiting.extract_if(.., |(wanted, ..)| *wanted <= changes)
                {
                    // A client that is gone needs none.
                    if let Err(Ok(begun)) = to.send(Ok(begun)) {
                        given_up.push(begun.capture);
                    }
                }
            }
            Err(error) => {
                let reason = format!("capture: {error:#}");
                for (_, begun, to) in work.waiting.drain(..) {
                    given_up.push(begun.capture);
                    let _ = to.send(Err(reason.clone()));
                }
                let captures = self.captures();
                given_up.iter().for_each(|capture| captures.remove(capture));
                // Forwarders may have some of those that have ended, which nobody reads.
                return;
            }
        }
        given_up.iter().for_each(|capture| self.captures().remove(capture));
        self.make_captures();
    }

    fn capture_of(&self, request: &CaptureRequest) -> Result<Arc<Capture>> {
        let CaptureRequest { interface, at, dropped, punted, snap } = request;
        ensure!(self.captures().all().len() < MOST, "{MOST} captures run already; end one of them");
        let snap = snap.unwrap_or(SNAP);
        ensure!(
            (1..=SNAP_MAX).contains(&snap),
            "snap {snap}: expected a number of bytes from 1 to {SNAP_MAX}"
        );
        let place = match (at, dropped, punted) {
            (None, None, false) => Place::Wire,
            (Some(step), None, false) => Place::Step(self.step_named(step)?),
            (None, Some(reason), false) if reason.is_empty() => Place::Dropped(None),
            (None, Some(reason), false) => Place::Dropped(Some(self.reason_named(reason)?)),
            (None, None, true) => Place::Punted,
            _ => bail!("at, dropped and punted: choose one of them"),
        };
        let interface = interface.as_ref().map(|wanted| {
            let all = || self.configurations.current.interfaces();
            let found = all().find(|(_, name, _)| name == wanted).map(|(id, ..)| id);
            found.with_context(|| {
                let known: Vec<_> = all().map(|(_, name, _)| name).collect();
                format!(
                    "interface \"{wanted}\": unknown{}",
                    suggestion(wanted, "interfaces", &known)
                )
            })
        });
        Ok(Arc::new(Capture::new(place, interface.transpose()?, snap)))
    }

    fn step_named(&self, wanted: &str) -> Result<String> {
        let known: Vec<_> =
            self.forwarding.ledger.shape.steps.iter().map(|step| step.name.as_str()).collect();
        let is_known = known.contains(&wanted);
        ensure!(is_known, "step \"{wanted}\": unknown{}", suggestion(wanted, "steps", &known));
        Ok(wanted.to_owned())
    }

    /// The reason of this name for which a step drops packets.
    fn reason_named(&self, wanted: &str) -> Result<DropReason> {
        let found = DropReason::ALL.iter().copied().find(|reason| reason.name() == wanted);
        let reason = found.with_context(|| {
            let known = suggestion(wanted, "reasons", DropReason::NAMES);
            format!("reason \"{wanted}\": unknown{known}")
        })?;
        let edges = self.forwarding.ledger.shape.steps.iter().flat_map(|step| &step.outputs);
        ensure!(
            edges.clone().any(|(_, target)| *target == Target::Drop(reason)),
            "reason \"{wanted}\": no step of the graph drops for it; see punted for packets that the slow path drops"
        );
        Ok(reason)
    }
}
