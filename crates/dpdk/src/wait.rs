//! Blocking until there is work: a doorbell that other threads ring, and a set of descriptors.
//!
//! An idle thread listens at its [`Doorbell`], checks once more everything that others may have left for it, and
//! only then blocks in [`WaitSet::wait`]:
//!
//! ```text
//!   consumer                               producer
//!     listening = true                       publishes a packet
//!     full fence                             full fence
//!     looks for packets: none                listening? yes: writes the eventfd
//!     epoll_wait  <--------------------------------+
//! ```
//!
//! At least one of the two checks sees the other's store, so no wake-up is lost; and a producer makes a system
//! call only while the consumer blocks, once for each time that it does. Rings have a flag of their own
//! ([`Consumer::listen`](crate::Consumer::listen)), so that a producer reads memory that it has in its cache.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::{Errno, Error};

/// Reason for ringing a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Packets are in a ring.
    Ring = 1,
    /// Request of another thread: an exchange, a command, the end.
    Control = 2,
}

/// Reasons for a thread's wake-up; several may be true at once, and none after a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// True if a descriptor of the set is readable, or has failed.
    pub receive: bool,
    /// See [`Cause::Ring`].
    pub ring: bool,
    /// See [`Cause::Control`].
    pub control: bool,
}

/// An eventfd by which other threads wake one that blocks. While that one is awake, ringing costs a fence and a
/// load.
#[derive(Debug)]
pub struct Doorbell {
    signal: OwnedFd,
    listening: AtomicBool,
    causes: AtomicU8,
    /// Rings for this listener whose signal it has not read: a ringer may be preempted between its claim and its signal,
    /// and the listener be awake again meanwhile. Left unread, the signal would end every later wait at once.
    owed: AtomicU64,
}

impl Doorbell {
    /// Creates a doorbell without a listener.
    ///
    /// # Errors
    /// [`Error::Wait`] if the kernel creates no eventfd.
    pub fn new() -> Result<Self, Error> {
        let signal = eventfd().map_err(|errno| Error::Wait { step: "making an eventfd", errno })?;
        let (listening, causes, owed) =
            (AtomicBool::new(false), AtomicU8::new(0), AtomicU64::new(0));
        Ok(Self { signal, listening, causes, owed })
    }

    /// Wakes the thread if it blocks or is about to. The data that it is to find must have been stored before.
    pub fn ring(&self, cause: Cause) {
        if self.claim(cause) {
            self.signal();
        }
    }

    /// Returns true if the thread listens, and this ring is the one that wakes it.
    fn claim(&self, cause: Cause) -> bool {
        self.causes.fetch_or(cause as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.listening.load(Ordering::Relaxed) && self.listening.swap(false, Ordering::AcqRel)
    }

    fn signal(&self) {
        let one = 1u64;
        // SAFETY: a descriptor of ours and eight bytes. If the counter is full, it is readable already.
        unsafe { libc::write(self.signal.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Reads the signals that are owed and have arrived.
    fn settle(&self) {
        let (owed, mut count) = (self.owed.load(Ordering::Relaxed), 0u64);
        if owed == 0 {
            return;
        }
        // SAFETY: a descriptor of ours and room for eight bytes; it does not block, and without a signal writes nothing.
        unsafe { libc::read(self.signal.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        self.owed.store(owed.saturating_sub(count), Ordering::Relaxed);
    }

    /// Makes [`Doorbell::ring`] wake from now on. The caller checks everything once more before it blocks.
    pub fn listen(&self) {
        self.settle();
        // For earlier rings, the caller finds the remaining work itself.
        self.causes.store(0, Ordering::Relaxed);
        self.listening.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends [`Doorbell::listen`]. Returns the reasons for which it was rung since then.
    pub fn ignore(&self) -> Woken {
        if !self.listening.swap(false, Ordering::AcqRel) {
            self.owed.fetch_add(1, Ordering::Relaxed);
        }
        self.settle();
        let causes = self.causes.swap(0, Ordering::Relaxed);
        let has = |cause: Cause| causes & cause as u8 != 0;
        Woken { receive: false, ring: has(Cause::Ring), control: has(Cause::Control) }
    }
}

impl AsFd for Doorbell {
    /// For threads that wait by other means than a [`WaitSet`]: readable once it was rung for a listener.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

/// Descriptors on which a thread waits, and its doorbell.
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
    doorbell: Arc<Doorbell>,
    watched: Vec<RawFd>,
}

/// Identifies the doorbell among the descriptors of a set.
const DOORBELL: u64 = u64::MAX;

/// Most descriptors that one call of the kernel reports.
const EVENTS: usize = 16;

impl WaitSet {
    /// Creates a set with only a doorbell of its own.
    ///
    /// # Errors
    /// [`Error::Wait`] if the kernel cannot create it.
    pub fn new() -> Result<Self, Error> {
        let doorbell = Arc::new(Doorbell::new()?);
        // SAFETY: makes a descriptor.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let epoll = owned(epoll, "making an epoll instance")?;
        let set = Self { epoll, doorbell, watched: Vec::new() };
        set.put(set.doorbell.signal.as_raw_fd(), DOORBELL)?;
        Ok(set)
    }

    /// Returns the doorbell, for other threads to ring and for the set's own to listen at.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Replaces the descriptors to wait for. A descriptor whose file is closed is removed from the set.
    ///
    /// # Errors
    /// [`Error::Wait`] if the kernel cannot wait for one of them; it waits for those before it.
    pub fn watch<'a>(
        &mut self,
        descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> Result<(), Error> {
        for descriptor in self.watched.drain(..) {
            let (epoll, none) = (self.epoll.as_raw_fd(), std::ptr::null_mut());
            // SAFETY: numbers of descriptors. One that was closed, and may have been reused, is not in the set.
            unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, descriptor, none) };
        }
        for descriptor in descriptors {
            let descriptor = descriptor.as_raw_fd();
            self.put(descriptor, descriptor as u64)?;
            self.watched.push(descriptor);
        }
        Ok(())
    }

    fn put(&self, descriptor: RawFd, mark: u64) -> Result<(), Error> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: mark };
        // SAFETY: descriptors, and an event that lives for the call.
        let result = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &mut event)
        };
        if result < 0 {
            return Err(Error::Wait { step: "waiting for a descriptor", errno: Errno::last() });
        }
        Ok(())
    }

    /// Blocks until a descriptor is readable, the doorbell rings or a signal arrives; at most for the given
    /// time. Returns true if a descriptor other than the doorbell's is readable or has failed; the error that a
    /// socket reports (its interface went down) is cleared, so that it is reported once.
    pub fn wait(&self, longest: Option<Duration>) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let count = wait_for(&self.epoll, &mut events, longest);
        let events = &events[..usize::try_from(count).unwrap_or(0)];
        let mut readable = false;
        for &libc::epoll_event { events, u64: mark } in events {
            if mark == DOORBELL {
                continue;
            }
            readable = true;
            if events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0 {
                take_error(mark as RawFd);
            }
        }
        readable
    }
}

/// Calls `epoll_pwait2`, which counts nanoseconds; before Linux 5.11 `epoll_wait`, which counts milliseconds and
/// waits longer rather than shorter. Returns the number of events, or less than 0.
fn wait_for(
    epoll: &OwnedFd,
    events: &mut [libc::epoll_event; EVENTS],
    longest: Option<Duration>,
) -> i32 {
    let epoll = epoll.as_raw_fd();
    if let Some(time) = longest {
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: a descriptor of ours, room for as many events as requested, a time that lives for the call,
        // and no mask.
        let count = unsafe {
            let events = events.as_mut_ptr();
            libc::syscall(libc::SYS_epoll_pwait2, epoll, events, EVENTS, &raw const time, mask, 0)
        };
        if count >= 0 || Errno::last() != Errno::ENOSYS {
            return count as i32;
        }
    }
    let millis = longest
        .map_or(-1, |time| i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: as above.
    unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as i32, millis) }
}

/// Takes the pending error of a socket; does nothing to other files.
fn take_error(descriptor: RawFd) {
    let (mut error, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: a number that may be a descriptor's, a number for the answer and its length.
    unsafe {
        let error = (&raw mut error).cast();
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_ERROR, error, &mut length)
    };
}

/// Makes an eventfd, which is not readable until it is written to.
pub(crate) fn eventfd() -> Result<OwnedFd, Errno> {
    // SAFETY: makes a descriptor.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if event < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor that the kernel has just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}

fn owned(descriptor: RawFd, step: &'static str) -> Result<OwnedFd, Error> {
    if descriptor < 0 {
        return Err(Error::Wait { step, errno: Errno::last() });
    }
    // SAFETY: a descriptor that the kernel has just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Far longer than any wait of these tests.
    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    fn is_readable(doorbell: &Doorbell) -> bool {
        let fd = doorbell.signal.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that lives for the call, which does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn a_doorbell_writes_only_while_somebody_listens_and_once() {
        let bell = Doorbell::new().unwrap();
        bell.ring(Cause::Ring);
        assert!(!is_readable(&bell), "nobody listens");
        bell.listen();
        bell.ring(Cause::Control);
        assert!(is_readable(&bell) && !bell.listening.load(Ordering::Relaxed));
        bell.ring(Cause::Ring);
        assert_eq!(bell.ignore(), Woken { receive: false, ring: true, control: true });
        assert!(!is_readable(&bell));
        bell.listen();
        assert_eq!(bell.ignore(), Woken::default());
    }

    #[test]
    fn a_set_waits_for_the_doorbell_and_for_descriptors() {
        let mut set = WaitSet::new().unwrap();
        let bell = set.doorbell().clone();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        set.watch([ours.as_fd()]).unwrap();
        assert!(!set.wait(Some(Duration::ZERO)));
        bell.listen();
        let ringer = bell.clone();
        let thread = std::thread::spawn(move || ringer.ring(Cause::Control));
        assert!(!set.wait(LONG), "the doorbell is no descriptor of the set");
        assert!(bell.ignore().control);
        thread.join().unwrap();
        theirs.write_all(b"x").unwrap();
        assert!(set.wait(LONG));
        set.watch([]).unwrap();
        assert!(!set.wait(Some(Duration::ZERO)), "it is watched no more");
        set.watch([ours.as_fd()]).unwrap();
        assert!(set.wait(Some(Duration::ZERO)));
        ours.read_exact(&mut [0]).unwrap();
        assert!(!set.wait(Some(Duration::ZERO)));
        drop((ours, theirs));
        assert!(!set.wait(Some(Duration::ZERO)), "a file that is closed leaves the set");
        set.watch([]).unwrap();
    }

    #[test]
    fn the_error_of_a_socket_is_reported_once() {
        let mut set = WaitSet::new().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        // A port without a listener: that of a closed socket.
        let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.connect(gone).unwrap();
        set.watch([socket.as_fd()]).unwrap();
        socket.send(b"x").unwrap();
        assert!(set.wait(LONG), "the port is unreachable");
        assert!(!set.wait(Some(Duration::ZERO)));
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let directory = std::fs::File::open("/").unwrap();
        let error = set.watch([file.as_fd(), directory.as_fd()]).unwrap_err().to_string();
        assert!(error.starts_with("waiting for a descriptor: "), "{error}");
    }

    #[test]
    fn a_signal_that_comes_late_does_not_end_later_waits() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.listen();
        assert!(doorbell.claim(Cause::Ring));
        // The listener wakes by other means, and listens again, before the ringer goes on.
        assert!(doorbell.ignore().ring);
        doorbell.listen();
        doorbell.ring(Cause::Control);
        assert!(is_readable(&doorbell) && doorbell.ignore().control);
        doorbell.listen();
        doorbell.signal();
        assert!(is_readable(&doorbell));
        assert_eq!(doorbell.ignore(), Woken::default());
        assert!(!is_readable(&doorbell));
        doorbell.listen();
        doorbell.ring(Cause::Ring);
        assert!(doorbell.ignore().ring && !is_readable(&doorbell));
    }

    /// One thread stores each of many numbers and rings; another one sees it, and blocks whenever it has seen
    /// all: a lost wake-up would leave it blocked.
    #[test]
    fn no_wake_up_is_lost() {
        const LAST: u64 = 200_000;
        let (set, number) = (WaitSet::new().unwrap(), Arc::new(AtomicU64::new(0)));
        let bell = set.doorbell().clone();
        let (ringer, stored) = (bell.clone(), number.clone());
        let seen = Arc::new(AtomicU64::new(0));
        let acknowledged = seen.clone();
        let thread = std::thread::spawn(move || {
            for next in 1..=LAST {
                stored.store(next, Ordering::Relaxed);
                ringer.ring(Cause::Ring);
                // Sometimes ahead of the other thread, sometimes waiting until it is about to block.
                while next % 3 == 0 && acknowledged.load(Ordering::Relaxed) < next {
                    std::hint::spin_loop();
                    std::thread::yield_now();
                }
            }
        });
        let mut last = 0;
        while last < LAST {
            bell.listen();
            let now = number.load(Ordering::Relaxed);
            if now == last {
                let begin = std::time::Instant::now();
                set.wait(LONG);
                assert!(begin.elapsed() < LONG.unwrap(), "a wake-up behind {last} was lost");
            }
            bell.ignore();
            last = number.load(Ordering::Relaxed);
            seen.store(last, Ordering::Relaxed);
        }
        thread.join().unwrap();
    }
}
