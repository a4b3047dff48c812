//! The threads of workers.
//!
//! A thread begins before it has a worker, so that a change of their number fails, if it fails, while everything is as
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use dpdk::Eal;
use machine::cores;

use super::super::last_resort::Course;
use super::SlowWorker;

/// The threads of all workers.
pub struct SlowThreads {
    eal: Arc<Eal>,
    stop: Arc<AtomicBool>,
    /// By the workers' numbers.
    threads: Vec<Thread>,
}

/// The worker is returned when it was stopped; one that left its thread went elsewhere.
type Thread = JoinHandle<Option<SlowWorker>>;

/// A thread that waits for its worker; it ends if this is dropped.
pub struct Idle {
    thread: Thread,
    worker: SyncSender<SlowWorker>,
}

impl SlowThreads {
    /// None yet.
    pub fn new(eal: Arc<Eal>) -> Self {
        Self { eal, stop: Arc::default(), threads: Vec::new() }
    }

    /// Threads for so many workers, which wait for them.
    ///
    /// # Errors
    /// The system makes no more threads.
    pub fn idle(&self, count: usize) -> Result<Vec<Idle>> {
        (0..count).map(|number| self.one(number)).collect()
    }

    fn one(&self, number: usize) -> Result<Idle> {
        let (worker, given) = sync_channel::<SlowWorker>(1);
        let (eal, stop) = (self.eal.clone(), self.stop.clone());
        let body = move || {
            let mut worker = given.recv().ok()?;
            let _registration = super::super::register(&eal);
            cores::sharpen_timer();
            privileges::keep_to(privileges::Role::Unit);
            worker.run(&stop);
            match worker.leaving.take() {
                // The asker has ended, as the router is about to.
                Some(to) => to.send(worker).err(),
                None => Some(worker),
            }
        };
        let name = format!("slow-path-{number}");
        let thread = thread::Builder::new().name(name.clone()).spawn(body);
        Ok(Idle { thread: thread.with_context(|| format!("thread {name}"))?, worker })
    }

    /// Has these threads run these workers, in place of those that have left.
    pub fn start(&mut self, idle: Vec<Idle>, workers: Vec<SlowWorker>) {
        let start = |(idle, worker): (Idle, SlowWorker)| {
            // It has room for one, and the thread waits for it.
            let _ = idle.worker.send(worker);
            idle.thread
        };
        self.threads = idle.into_iter().zip(workers).map(start).collect();
    }

    /// The number of a worker whose thread has ended by itself.
    pub fn dead(&self) -> Option<usize> {
        self.threads.iter().position(JoinHandle::is_finished)
    }

    /// Has all workers end after their rounds, without waiting for that; they have to be woken.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of all workers and returns them; false if one panicked.
    pub fn end(&mut self, course: &Course) -> (Vec<SlowWorker>, bool) {
        let (mut workers, mut complete) = (Vec::new(), true);
        for (number, thread) in self.threads.drain(..).enumerate() {
            course.enter(format!("slow path worker {number}"));
            match thread.join() {
                Ok(worker) => workers.extend(worker),
                Err(_) => complete = false,
            }
        }
        (workers, complete)
    }
}
