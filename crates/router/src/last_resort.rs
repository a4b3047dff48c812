//! Ends by force a router whose orderly end hangs: in a forwarder's step that never returns, a worker or the owner that
//! is blocked, a device that cannot be closed.
//!
//! ```text
//!   SIGTERM --> signals thread --> owner: the parts of the router end one after the other
//!                    |                                           |
//!                    | looks at it                               | says which
//!                    v                                           v
//!             [ Course: what is being ended, and since when ] <--+
//!                    |
//!                    +-- the same part for too long, or a second signal -->
//!                          kernel interfaces put back, socket removed, process ended by force
//! ```
//!
//! An orderly end has many parts, each of which has [`PATIENCE`]. A forced end waits for none of them: the threads that
//! undo changes and write to the log may hang themselves, and have [`LAST_WORDS`].

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use dataplane::lock::lock;
use machine::bind::ports::Bindings;

/// Time limit for a part of the end.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Time limit for returning NICs to the kernel's drivers, which start their firmware.
pub const NIC_PATIENCE: Duration = Duration::from_secs(60);

/// Interval within which a second signal counts as the first: Ctrl-C goes to a whole process group, and some members
/// pass it on.
const SAME_WISH: Duration = Duration::from_secs(1);

/// The longest time between two looks at a deadline.
pub const LOOK: Duration = Duration::from_secs(1);

/// A thread on a busy machine is late by less than this.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Time limit for undoing changes and logging the reason.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The exit status of a process that ended so.
pub const STATUS: i32 = 3;

/// The current part of the router's start or end, and its traces outside of the process. Clones share one.
#[derive(Clone)]
pub struct Course(Arc<Mutex<Inner>>);

struct Inner {
    part: String,
    since: Instant,
    patience: Duration,
    /// The API's socket.
    socket: Option<PathBuf>,
    bindings: Weak<Bindings>,
    /// The router has been asked to end.
    is_ending: bool,
}

impl Default for Course {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            part: "the start".to_owned(),
            since: Instant::now(),
            patience: PATIENCE,
            socket: None,
            bindings: Weak::new(),
            is_ending: false,
        })))
    }
}

impl Course {
    /// The router enters this part of its start or end.
    pub fn enter(&self, part: impl Into<String>) {
        self.enter_for(part, PATIENCE);
    }

    /// As [`Self::enter`], for a part that may take longer.
    pub fn enter_for(&self, part: impl Into<String>, patience: Duration) {
        let mut inner = self.inner();
        (inner.part, inner.since, inner.patience) = (part.into(), Instant::now(), patience);
    }

    /// The router has made this socket, whose file is removed with it.
    pub fn owns_socket(&self, path: &Path) {
        self.inner().socket = Some(path.to_owned());
    }

    /// Returns true if the router has been asked to end.
    pub fn is_ending(&self) -> bool {
        self.inner().is_ending
    }

    /// The router has NICs bound.
    pub fn owns_bindings(&self, bindings: &Arc<Bindings>) {
        self.inner().bindings = Arc::downgrade(bindings);
    }

    /// Returns true while NICs are bound or given back.
    fn changes_nics(&self) -> bool {
        let bindings = self.inner().bindings.upgrade();
        bindings.is_some_and(|bindings| bindings.are_changing())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }
}

/// The time at which the process is ended by force.
pub struct Deadline {
    course: Course,
    /// The time of the first signal, and true if another one has arrived.
    asked: Option<(Instant, bool)>,
    excused: Excused,
}

/// The time that does not count for the part that began at `since`.
struct Excused {
    since: Instant,
    /// The machine stood still.
    standstill: Duration,
    /// NICs were bound or given back, whatever the part was.
    nics: Duration,
}

impl Excused {
    fn of(since: Instant) -> Self {
        Self { since, standstill: Duration::ZERO, nics: Duration::ZERO }
    }

    fn sum(&self) -> Duration {
        self.standstill + self.nics
    }
}

impl Deadline {
    /// Of a router that takes this course.
    pub fn new(course: Course) -> Self {
        Self { course, asked: None, excused: Excused::of(Instant::now()) }
    }

    /// Starts the deadline for the router's end.
    pub fn ask(&mut self, now: Instant) {
        self.course.inner().is_ending = true;
        match &mut self.asked {
            Some((first, again)) => *again |= now.saturating_duration_since(*first) >= SAME_WISH,
            None => self.asked = Some((now, false)),
        }
    }

    /// The thread that watches this deadline waited, `late` of it longer than it wanted to. Where that is seconds, the
    /// machine itself stood still, as a virtual machine does, and no part of the end is late for that reason; neither
    /// where the part waited for NICs, which have a time of their own.
    pub fn excuse(&mut self, waited: Duration, late: Duration) {
        let nics = self.course.changes_nics();
        self.excuse_for(waited, late, nics);
    }

    /// As [`Self::excuse`]; `nics`: NICs are bound or given back.
    fn excuse_for(&mut self, waited: Duration, late: Duration, nics: bool) {
        let since = self.course.inner().since;
        if since != self.excused.since {
            self.excused = Excused::of(since);
        }
        if late >= STANDSTILL {
            self.excused.standstill += late;
        } else if nics {
            self.excused.nics = NIC_PATIENCE.min(self.excused.nics + waited);
        }
    }

    /// Returns the time that does not count for the part that began at `since`.
    fn excused_in(&self, since: Instant) -> Duration {
        if self.excused.since == since { self.excused.sum() } else { Duration::ZERO }
    }

    /// Returns the time that is left; `None` if no end was requested.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let (first, again) = self.asked?;
        let (since, patience) = {
            let inner = self.course.inner();
            (inner.since, inner.patience)
        };
        let until = first.max(since) + patience + self.excused_in(since);
        let left = until.saturating_duration_since(now);
        Some(if again { Duration::ZERO } else { left })
    }

    /// Undoes changes that outlive the process, logs the part that did not end, and ends the process.
    pub fn force(&self) -> ! {
        let (done, all) = channel();
        let (course, asked) = (self.course.clone(), self.asked);
        let words = move || tracing::error!("{}", words(&course, asked));
        let course = self.course.clone();
        let undo = move || course.put_back();
        let begun = [begin("last-words", words, &done), begin("last-resort", undo, &done)];
        drop(done);
        let deadline = Instant::now() + LAST_WORDS;
        for _ in begun.into_iter().filter(|&begun| begun) {
            // A thread that is late is left alone.
            let _ = all.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        dpdk::leave(STATUS)
    }
}

/// Does something on a thread of its own; false if there can be none.
fn begin(name: &str, work: impl FnOnce() + Send + 'static, done: &Sender<()>) -> bool {
    let done = done.clone();
    let body = move || {
        work();
        // The receiver may be closed.
        let _ = done.send(());
    };
    thread::Builder::new().name(name.to_owned()).spawn(body).is_ok()
}

impl Course {
    /// Undoes changes that outlive the process: those of kernel interfaces, and the socket's file. Everything else ends
    /// with its descriptors.
    fn put_back(&self) {
        let socket = self.inner().socket.clone();
        if let Some(path) = socket {
            let _ = fs::remove_file(path);
        }
        dpdk::give_back_interfaces();
    }
}

/// Describes the part that did not end and the devices that stay bound.
fn words(course: &Course, asked: Option<(Instant, bool)>) -> String {
    let (part, since, bindings) = {
        let inner = course.inner();
        (inner.part.clone(), inner.since, inner.bindings.upgrade())
    };
    let why = match asked {
        Some((first, false)) => {
            format!("{part} has not come to its end for {} s", first.max(since).elapsed().as_secs())
        }
        _ => format!("asked a second time, while {part} has not come to its end"),
    };
    let mut text = format!("{why}: the process ends without it (status {STATUS})");
    let threads = threads();
    if !threads.is_empty() {
        let _ = write!(text, "; threads that run still: {}", threads.join(", "));
    }
    let nics = bindings.map(|bindings| bindings.addresses()).unwrap_or_default();
    for address in nics {
        let _ = write!(text, "; {address} stays bound, give it back: turnpike unbind {address}");
    }
    text
}

/// The threads that carry packets, with the kernel's letter for what each does.
fn threads() -> Vec<String> {
    let Ok(all) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let one = |path: PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let (name, rest) = (stat.split_once('(')?.1).rsplit_once(") ")?;
        let carries = name.starts_with("forwarder-") || name.starts_with("slow-path-");
        carries.then(|| format!("{name} ({})", &rest[..1]))
    };
    let mut threads: Vec<_> = all.flatten().filter_map(|entry| one(entry.path())).collect();
    threads.sort();
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_part_of_the_end_has_its_time() {
        let course = Course::default();
        let mut deadline = Deadline::new(course.clone());
        let now = Instant::now();
        assert_eq!(deadline.left(now + 3600 * SECOND), None, "nobody has asked");
        // It has served for an hour; that is no part of the end.
        course.enter("the owner");
        deadline.ask(now + 3600 * SECOND);
        assert_eq!(deadline.left(now + 3600 * SECOND), Some(PATIENCE));
        assert_eq!(deadline.left(now + 3604 * SECOND), Some(PATIENCE - 4 * SECOND));
        assert_eq!(deadline.left(now + 3700 * SECOND), Some(Duration::ZERO));
        let mut deadline = Deadline::new(course.clone());
        deadline.ask(now);
        course.enter_for("NICs", NIC_PATIENCE);
        let begun = course.inner().since;
        assert_eq!(deadline.left(begun + 9 * SECOND), Some(NIC_PATIENCE - 9 * SECOND));
        course.enter("DPDK");
        assert!(deadline.left(Instant::now() + 11 * SECOND) == Some(Duration::ZERO));
    }

    #[test]
    fn a_machine_that_stood_still_delays_the_deadline_and_a_late_thread_does_not() {
        let course = Course::default();
        let mut deadline = Deadline::new(course.clone());
        let now = course.inner().since;
        deadline.ask(now);
        deadline.excuse(PATIENCE, STANDSTILL / 2);
        assert_eq!(deadline.left(now + PATIENCE), Some(Duration::ZERO));
        deadline.excuse(PATIENCE, 30 * SECOND);
        assert_eq!(deadline.left(now + PATIENCE), Some(30 * SECOND));
        assert_eq!(deadline.left(now + PATIENCE + 30 * SECOND), Some(Duration::ZERO));
        // It is no concern of the next part.
        course.enter("the next");
        let next = course.inner().since;
        assert_eq!(deadline.left(next + PATIENCE), Some(Duration::ZERO));
    }

    #[test]
    fn a_part_that_waits_for_nics_has_their_time_and_then_its_own() {
        let course = Course::default();
        let mut deadline = Deadline::new(course.clone());
        let now = course.inner().since;
        deadline.ask(now);
        for _ in 0..30 {
            deadline.excuse_for(LOOK, Duration::ZERO, true);
        }
        deadline.excuse_for(LOOK, Duration::ZERO, false);
        assert_eq!(deadline.left(now + 30 * SECOND), Some(PATIENCE));
        for _ in 0..100 {
            deadline.excuse_for(LOOK, Duration::ZERO, true);
        }
        assert_eq!(deadline.left(now + NIC_PATIENCE), Some(PATIENCE), "they have no more");
    }

    #[test]
    fn a_second_signal_ends_it_at_once_but_not_the_same_wish_twice() {
        let mut deadline = Deadline::new(Course::default());
        let now = Instant::now();
        deadline.ask(now);
        deadline.ask(now + SECOND / 2);
        assert!(deadline.left(now + SECOND / 2).unwrap() > 9 * SECOND);
        deadline.ask(now + SECOND);
        assert_eq!(deadline.left(now + SECOND), Some(Duration::ZERO));
    }

    #[test]
    fn the_last_words_name_the_part_and_the_threads() {
        let course = Course::default();
        course.enter("forwarder 3");
        let body = || words(&course, Some((Instant::now(), false)));
        let said = thread::scope(|scope| {
            let thread = thread::Builder::new().name("forwarder-3".to_owned());
            thread.spawn_scoped(scope, body).unwrap().join().unwrap()
        });
        assert!(said.starts_with("forwarder 3 has not come to its end for 0 s"), "{said}");
        assert!(said.contains("threads that run still: forwarder-3 (R)"), "{said}");
        let said = words(&course, Some((Instant::now(), true)));
        assert!(said.starts_with("asked a second time, while forwarder 3"), "{said}");
    }
}
