//! The event device of the forwarders, and the thread that schedules where the device does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use control::config::Events;
use dataplane::events::EventUnit;
use dpdk::{Eal, EventConfig, EventDevice};
use machine::cores;
use nix::unistd::Pid;

/// The first sleep of a scheduler without packets; each next one is twice as long.
const FIRST_SLEEP: Duration = Duration::from_micros(2);

/// The longest.
const LONGEST_SLEEP: Duration = Duration::from_micros(50);

/// Rounds without packets before the first sleep.
const SPIN_ROUNDS: u32 = 100;

/// Rounds in which nobody takes or brings packets before the scheduler leaves its core to others for a moment.
const STILL_ROUNDS: u32 = 32;

/// The event device in use.
pub struct EventMode {
    /// Its configuration.
    pub settings: Events,
    /// The device.
    pub device: EventDevice,
    scheduler: Option<Scheduler>,
}

/// An event device, and the forwarders' accesses to it: the receiver's first.
pub struct Opened {
    /// The device.
    pub mode: EventMode,
    /// By forwarder.
    pub units: Vec<EventUnit>,
}

impl EventMode {
    /// Opens and starts the device for a receiver and so many workers.
    ///
    /// # Errors
    /// There is no such device, or it cannot do what is configured; no thread for its scheduler.
    pub fn open(eal: &Arc<Eal>, settings: &Events, workers: usize) -> Result<Opened> {
        let config = EventConfig { device: &settings.device, order: settings.order, workers };
        let ports = EventDevice::open(eal, &config).context("turnpike.forwarders")?;
        let device = ports.device;
        let scheduler = match device.needs_scheduler() {
            true => Some(Scheduler::start(eal, &device, settings.scheduler_core)?),
            false => None,
        };
        let workers = ports.workers.into_iter().map(EventUnit::worker);
        let units = std::iter::once(EventUnit::receiver(ports.receiver)).chain(workers).collect();
        Ok(Opened { mode: Self { settings: settings.clone(), device, scheduler }, units })
    }

    /// The scheduler's thread, if it has a core of its own.
    pub fn pinned(&self) -> Option<Pid> {
        self.settings.scheduler_core.and(self.scheduler.as_ref()).map(|scheduler| scheduler.thread)
    }

    /// Returns true if a thread schedules for the device.
    pub fn has_scheduler(&self) -> bool {
        self.scheduler.is_some()
    }
}

/// The thread that schedules.
struct Scheduler {
    stop: Arc<AtomicBool>,
    thread: Pid,
    handle: Option<JoinHandle<()>>,
}

impl Scheduler {
    fn start(eal: &Arc<Eal>, device: &EventDevice, core: Option<usize>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (beginning, begun) = channel();
        let (end, eal, device) = (stop.clone(), eal.clone(), device.clone());
        let body = move || {
            let pinned = core.map_or(Ok(()), cores::pin);
            // DPDK's services run on registered threads only.
            let ready = pinned.and_then(|()| Ok(eal.register_thread()?));
            cores::sharpen_timer();
            privileges::keep_to(privileges::Role::Unit);
            let thread = nix::unistd::gettid();
            match ready {
                Ok(_registration) => {
                    let _ = beginning.send(Ok(thread));
                    schedule(&device, &end);
                }
                Err(error) => _ = beginning.send(Err(error)),
            }
        };
        let handle = thread::Builder::new().name("event-scheduler".to_owned()).spawn(body)?;
        let ended = "the event scheduler ended at once; see the log";
        let thread = begun.recv().context(ended)?.context("the event scheduler")?;
        Ok(Self { stop, thread, handle: Some(handle) })
    }
}

/// Schedules until it is to end. Without packets it sleeps for some microseconds at a time. While workers are slow it lets
/// those run that share its core; a scheduler that did so after each round would wait for a busy one each time.
fn schedule(device: &EventDevice, end: &AtomicBool) {
    let (mut seen, mut rounds, mut sleep) = (0, 0, FIRST_SLEEP);
    while !end.load(Ordering::Relaxed) {
        device.schedule();
        let (now, is_empty) = (device.activity(), device.in_flight() == 0);
        if std::mem::replace(&mut seen, now) != now {
            (rounds, sleep) = (0, FIRST_SLEEP);
            continue;
        }
        rounds += 1;
        if is_empty && rounds > SPIN_ROUNDS {
            thread::sleep(sleep);
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        } else if !is_empty && rounds % STILL_ROUNDS == 0 {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take()
            && handle.join().is_err()
        {
            tracing::error!("the event scheduler ended by a panic: a defect, please report");
        }
    }
}
