//! Carriers of kernel interfaces, polled by a thread of their own.
//!
//! ```text
//!   Owner -- the interfaces of ports of bonds --> thread "carriers" -- a carrier came or went --> Owner
//! ```
//!
//! The kernel's own notifications come up to a second late, and what a bond sends meanwhile by a port without a link
//! is lost. The requests wait for a lock of the kernel's, so the owner does not make them itself. Without such ports
//! there is no thread.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use dataplane::port::PortId;
use dpdk::Carrier;

/// Interval of polling.
const INTERVAL: Duration = Duration::from_millis(10);

/// The carriers that are polled.
#[derive(Default)]
pub struct Carriers {
    /// The interfaces, by port and name of its device.
    watched: Vec<(PortId, String)>,
    thread: Option<Sender<Vec<(PortId, Carrier)>>>,
}

impl Carriers {
    /// Polls these interfaces from now on, and no others. `report` gets the first state of each, and every change, from
    /// the thread.
    pub fn watch(
        &mut self,
        ports: Vec<(PortId, String)>,
        carrier: impl Fn(PortId) -> Option<Carrier>,
        report: impl Fn(PortId, bool) + Send + 'static,
    ) {
        if ports == self.watched {
            return;
        }
        let read = ports.iter().filter_map(|(id, _)| Some((*id, carrier(*id)?))).collect();
        self.watched = ports;
        let sender = self.thread.get_or_insert_with(|| start(report));
        // The thread ends with its sender, or could not start, which was logged.
        let _ = sender.send(read);
        if self.watched.is_empty() {
            self.thread = None;
        }
    }
}

fn start(report: impl Fn(PortId, bool) + Send + 'static) -> Sender<Vec<(PortId, Carrier)>> {
    let (sender, lists) = mpsc::channel();
    let started =
        thread::Builder::new().name("carriers".to_owned()).spawn(move || poll(&lists, &report));
    if let Err(error) = started {
        tracing::warn!("links of bonds are noticed up to a second late: thread carriers: {error}");
    }
    sender
}

/// Polls the interfaces of the latest list until its sender is dropped.
fn poll(lists: &Receiver<Vec<(PortId, Carrier)>>, report: &impl Fn(PortId, bool)) {
    let mut watched: Vec<(PortId, Carrier, Option<bool>)> = Vec::new();
    loop {
        match lists.recv_timeout(INTERVAL) {
            Ok(list) => watched = list.into_iter().map(|(id, of)| (id, of, None)).collect(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for (id, carrier, last) in &mut watched {
            let up = carrier.is_up();
            if last.replace(up) != Some(up) {
                report(*id, up);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_first_state_is_reported_and_the_thread_ends_with_the_last_interface() {
        let (reports, reported) = mpsc::channel();
        let mut carriers = Carriers::default();
        let carrier = |id: PortId| Carrier::of(["turnpike-no-0", "turnpike-no-1"][id.index()]).ok();
        let (zero, one) = (PortId::new(0).unwrap(), PortId::new(1).unwrap());
        let names = [(zero, "a".to_owned()), (one, "b".to_owned())];
        carriers.watch(names.to_vec(), carrier, move |id, up| reports.send((id, up)).unwrap());
        assert_eq!(reported.recv(), Ok((zero, false)));
        assert_eq!(reported.recv(), Ok((one, false)));
        // A list that is the same is not read again.
        carriers.watch(names.to_vec(), |_| panic!(), |_, _| panic!());
        // Another is, by the same thread.
        carriers.watch(names[..1].to_vec(), carrier, |_, _| panic!());
        assert_eq!(reported.recv(), Ok((zero, false)));
        carriers.watch(Vec::new(), carrier, |_, _| panic!());
        assert!(reported.recv().is_err());
    }
}
