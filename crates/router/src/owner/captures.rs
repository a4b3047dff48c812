//! Captures of packets: they begin and end by an exchange of forwarders' watches (`watches.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Error, Result, bail, ensure};
use api::capture::{CaptureRequest, SNAP, SNAP_MAX};
use dataplane::capture::{Capture, What};
use dataplane::reason::DropReason;
use dataplane::words::suggestion;
use tokio::sync::oneshot;

use super::super::server::{Begun, Course};
use super::Owner;
use super::watches::Capturing;

/// Most captures at a time.
const MOST: usize = 8;

/// Where a capture is to be announced.
pub type CaptureAsker = oneshot::Sender<Result<Begun, String>>;

impl Owner {
    /// Begins a capture; answers when forwarders have it.
    pub(super) async fn begin_capture(&mut self, request: &CaptureRequest, to: CaptureAsker) {
        let begun = self.try_begin_capture(request).await;
        if let Err(Ok(begun)) = to.send(begun.map_err(|error| format!("{error:#}"))) {
            // The client has disconnected.
            self.end_capture(&begun.capture).await;
        }
    }

    async fn try_begin_capture(&mut self, request: &CaptureRequest) -> Result<Begun> {
        let capture = self.capture_of(request)?;
        let selecting = self.selecting(&request.rule)?;
        let (interface, course) = (request.interface.clone(), Arc::new(Course::default()));
        course.set_names(self.interface_names());
        let begun = Begun { capture: capture.clone(), course: course.clone() };
        let capturing = Capturing { capture: capture.clone(), selecting, interface, course };
        self.forwarding.observers.captures.push(capturing);
        if let Err(error) = self.exchange_watches(None).await {
            self.forget_capture(&capture);
            self.watch_drops();
            return Err(error);
        }
        Ok(begun)
    }

    fn interface_names(&self) -> BTreeMap<usize, String> {
        let interfaces = self.configurations.current.interfaces();
        interfaces.map(|(id, name, _)| (id.index(), name.to_owned())).collect()
    }

    /// Tells captures of interfaces that a change has removed or renumbered: their numbers may be others' now.
    pub(super) fn tell_captures(&self) {
        let names = self.interface_names();
        for Capturing { capture, interface, course, .. } in &self.forwarding.observers.captures {
            course.set_names(names.clone());
            let wanted = interface.as_ref().zip(capture.interface());
            if let Some((name, number)) = wanted
                && names.get(&number.index()) != Some(name)
            {
                course
                    .end(format!("interface \"{name}\" was removed, and the capture of it ended"));
            }
        }
    }

    /// Ends a capture.
    pub(super) async fn end_capture(&mut self, capture: &Arc<Capture>) {
        self.forget_capture(capture);
        self.watch_on().await;
    }

    fn forget_capture(&mut self, capture: &Arc<Capture>) {
        self.forwarding.observers.captures.retain(|other| !Arc::ptr_eq(&other.capture, capture));
    }

    fn capture_of(&self, request: &CaptureRequest) -> Result<Arc<Capture>> {
        let CaptureRequest { interface, at, dropped, punted, snap, rule: _ } = request;
        let running = self.forwarding.observers.captures.len();
        ensure!(running < MOST, "{MOST} captures run already; end one of them");
        let snap = snap.unwrap_or(SNAP);
        ensure!(
            (1..=SNAP_MAX).contains(&snap),
            "snap {snap}: expected a number of bytes from 1 to {SNAP_MAX}"
        );
        let what = match (at, dropped, punted) {
            (None, None, false) => What::Wire,
            (Some(step), None, false) => What::Step(self.step_named(step)?),
            (None, Some(reason), false) if reason.is_empty() => What::Dropped(None),
            (None, Some(reason), false) => What::Dropped(Some(reason_named(reason)?)),
            (None, None, true) => What::Punted,
            _ => bail!("at, dropped and punted: choose one of them"),
        };
        let interface = interface.as_ref().map(|wanted| self.interface_named(wanted)).transpose();
        Ok(Arc::new(Capture::new(what, interface.map_err(Error::msg)?, snap)))
    }

    fn step_named(&self, wanted: &str) -> Result<String> {
        let known: Vec<_> =
            self.forwarding.ledger.shape.steps.iter().map(|step| step.name.as_str()).collect();
        let is_known = known.contains(&wanted);
        ensure!(is_known, "step \"{wanted}\": unknown{}", suggestion(wanted, "steps", &known));
        Ok(wanted.to_owned())
    }
}

/// The reason of this name.
fn reason_named(wanted: &str) -> Result<DropReason> {
    let found = DropReason::ALL.iter().copied().find(|reason| reason.name() == wanted);
    found.with_context(|| {
        let known = suggestion(wanted, "reasons", DropReason::NAMES);
        format!("reason \"{wanted}\": unknown{known}")
    })
}
