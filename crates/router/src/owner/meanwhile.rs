//! The owner's work while it waits for forwarders or slow path workers.
//!
//! ```text
//!   change --- work with the wiring ---> forwarders: exchange, some microseconds; or one is in a step for long
//!      |
//!      +-- not over in a moment: signals, links that go down, what clients ask, neighbours, routes
//! ```
//!
//! A change needs each forwarder once or several times, between two of its batches. That takes as long as a batch,
//! unless a step of a forwarder does not return. So that the router's owner is not held with it, the change takes the
//! [`Wiring`], and all work that does not need the wiring continues. Work that needs it, or would interfere with the
//! change, is postponed or refused:
//!
//! | what | meanwhile |
//! |---|---|
//! | a signal that ends the router | forwarders are not waited for any longer, then it ends |
//! | a link lost | routes over it are replaced |
//! | other events of devices | later |
//! | `apply`, `rollback`, `confirm` | refused |
//! | `show forwarders`, `show rss`, `show topology` | answered later |
//! | other questions, changes of routes and neighbours | answered |
//! | neighbours of the slow path, routes of other programs | taken in, unless ports are new and unknown to the RIB |

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use api::{Answer, Request, Show};
use control::netlink::LinkNotification;
use dpdk::{DeviceEvent, Happening};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

use super::super::server::Question;
use super::super::signals::{SignalRequest, Waiting};
use super::super::wiring::Wiring;
use super::Owner;
use super::clock::TICK;
use super::watch::{PortNotification, Watch};

/// Time before other work is done: nearly every change is complete by then.
const MOMENT: Duration = Duration::from_millis(50);

/// Answer to clients that request another change.
const BUSY: &str = "another change is being made, and waits for a forwarder; see the log, and try again when it is over";

/// The owner's inputs, beside its own data.
pub(super) struct Inputs {
    pub(super) signals: Waiting,
    pub(super) watch: Watch,
    pub(super) questions: mpsc::Receiver<Question>,
}

/// Inputs deferred until the change is complete.
#[derive(Default)]
pub(super) struct Later {
    notifications: VecDeque<PortNotification>,
    questions: VecDeque<Question>,
    reload: bool,
    /// The router is to end.
    pub(super) ended: Option<Signal>,
}

impl Later {
    /// The next notification.
    pub(super) fn notification(&mut self) -> Option<PortNotification> {
        self.notifications.pop_front()
    }

    /// The next question.
    pub(super) fn question(&mut self) -> Option<Question> {
        self.questions.pop_front()
    }

    /// Returns true, once, if the configuration file is to be applied again.
    pub(super) fn take_reload(&mut self) -> bool {
        std::mem::take(&mut self.reload)
    }
}

/// An input during a change.
enum Input {
    Signal(SignalRequest),
    Port(PortNotification),
    Question(Question),
}

/// Returns the next input; never, without inputs.
async fn next(inputs: &mut Option<Inputs>) -> Input {
    let Some(Inputs { signals, watch, questions }) = inputs else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        request = signals.next() => Input::Signal(request),
        notification = watch.next() => Input::Port(notification),
        Some(question) = questions.recv() => Input::Question(question),
    }
}

impl Owner {
    /// Does something with the wiring that waits for forwarders or workers, and meanwhile what can be done
    /// without.
    ///
    /// # Errors
    /// The work's own.
    pub(super) async fn with_wiring<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Wiring) -> Result<T>,
    ) -> Result<T> {
        // No work done meanwhile calls this again.
        let mut wiring = self
            .forwarding
            .wiring
            .take()
            .context("the wiring is in use: a defect, please report")?;
        let outcome = {
            let mut work = pin!(work(&mut wiring));
            match timeout(MOMENT, &mut work).await {
                Ok(outcome) => outcome,
                Err(_) => self.attend_until(work).await,
            }
        };
        self.forwarding.wiring = Some(wiring);
        outcome
    }

    async fn attend_until<T>(&mut self, mut work: impl Future<Output = T> + Unpin) -> T {
        let mut ticks = interval(TICK);
        loop {
            let taking = self.is_known();
            let busy = taking && self.is_busy();
            tokio::select! {
                biased;
                done = &mut work => return done,
                input = next(&mut self.serving.inputs) => self.on_input_meanwhile(input).await,
                () = self.slow_path.events.ready(), if taking => self.take_events(),
                batch = self.routing.sources.receive(), if taking => self.take_in(batch),
                () = std::future::ready(()), if busy => self.work(),
                _ = ticks.tick() => {
                    self.routing.rib.tick();
                }
            }
            self.pass_commands();
            self.tell_manager();
            tokio::task::yield_now().await;
        }
    }

    /// Returns true if the RIB has all ports that events can refer to.
    fn is_known(&self) -> bool {
        let knows = |id| self.routing.rib.interface(id).is_some();
        // Ports of bonds have no interface of their own.
        let is_bonded = |id| self.bond_of(id).is_some();
        self.devices.ports.iter().all(|open| knows(open.id.into()) || is_bonded(open.id))
    }

    async fn on_input_meanwhile(&mut self, input: Input) {
        match input {
            Input::Signal(SignalRequest::End(signal)) => {
                self.serving.later.ended.get_or_insert(signal);
                self.forwarding.hurry.set();
            }
            Input::Signal(SignalRequest::Reload) => self.serving.later.reload = true,
            Input::Port(notification) => {
                self.see_links_go(&notification);
                self.serving.later.notifications.push_back(notification);
            }
            Input::Question(question) if needs_wiring(&question) => {
                self.serving.later.questions.push_back(question);
            }
            Input::Question(Question::Request(request, asker)) if changes_all(&request) => {
                // The client may have disconnected.
                let _ = asker.send(Answer::Error(BUSY.to_owned()));
            }
            Input::Question(question) => self.answer(question).await,
        }
    }

    /// Takes lost links down at once; restored links can wait.
    fn see_links_go(&mut self, notification: &PortNotification) {
        let mut gone = Vec::new();
        match notification {
            PortNotification::Devices(events) => {
                let lost = |&DeviceEvent { port, what }: &DeviceEvent| {
                    let open = self.devices.ports.iter().find(|open| open.port.id() == port)?;
                    let stays = what == Happening::Link && open.port.link().up;
                    (!stays).then_some(open.id)
                };
                gone.extend(events.iter().filter_map(lost));
            }
            PortNotification::Links(notifications) => {
                let lost = |notification: &LinkNotification| {
                    let index = match *notification {
                        LinkNotification::Is { index, running: false, .. }
                        | LinkNotification::Gone { index } => index,
                        _ => return None,
                    };
                    Some(self.devices.ports.iter().find(|open| open.is_interface(index))?.id)
                };
                gone.extend(notifications.iter().filter_map(lost));
            }
            PortNotification::Carrier(id, false) => gone.push(*id),
            PortNotification::Carrier(_, true)
            | PortNotification::Faults(_)
            | PortNotification::Closed(_)
            | PortNotification::Reopened(..) => {}
        }
        gone.into_iter().for_each(|id| self.device_link(id, false));
    }
}

/// Returns true if the answer needs the wiring.
fn needs_wiring(question: &Question) -> bool {
    let request = match question {
        Question::Request(request, _) => request,
        Question::Capture(..) | Question::EndCapture(_) => return true,
        Question::Page(..) | Question::Export(_) => return false,
    };
    let Request::Show(show) = request else { return matches!(request, Request::Trace(_)) };
    matches!(
        show,
        Show::Forwarders | Show::Rss | Show::ControlQueues | Show::Topology | Show::Overview { .. }
    )
}

/// Returns true if the request changes the configuration, or confirms or rolls back a change.
fn changes_all(request: &Request) -> bool {
    matches!(request, Request::Apply(_) | Request::Rollback(_) | Request::Confirm {})
}
