//! Tests with a holder in a thread, and routers that connect to it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::SockType;

use super::channel::{Channel, Message};
use super::client::Holder;
use super::process;
use crate::server::bind_private;

struct Lab {
    _directory: tempfile::TempDir,
    path: PathBuf,
    holder: JoinHandle<std::io::Result<()>>,
}

impl Lab {
    fn new(seconds: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("router.sock.hold");
        let listener = bind_private(&path, SockType::SeqPacket).unwrap();
        let holder = thread::spawn(move || process::serve(&listener, seconds, false));
        Self { _directory: directory, path, holder }
    }

    /// Returns a router's connection, and the names of the descriptors held for it.
    fn router(&self) -> (Holder, Vec<String>) {
        let (holder, held) = Holder::find(&self.path).unwrap().expect("nobody listens");
        (holder, held.into_iter().map(|(name, _)| name).collect())
    }

    fn ended(self) {
        self.holder.join().unwrap().unwrap();
    }
}

/// Returns a pipe: its read end shows whether the write end is open anywhere.
fn pipe() -> (File, OwnedFd) {
    let (read, write) = std::io::pipe().unwrap();
    (File::from(OwnedFd::from(read)), write.into())
}

fn keep(holder: &Holder, name: &str, descriptor: &OwnedFd) {
    holder.send(&Message::Keep(name.to_owned()), Some(descriptor.as_fd())).unwrap();
}

#[test]
fn what_a_killed_router_had_the_next_one_gets() {
    let lab = Lab::new(600);
    let (mut read, write) = pipe();
    let (first, held) = lab.router();
    assert!(held.is_empty());
    keep(&first, "one", &write);
    keep(&first, "two", &write);
    // The same name replaces the descriptor.
    keep(&first, "two", &write);
    first.ask(&Message::Forget("one".to_owned())).unwrap();
    drop((first, write));
    let (second, held) = Holder::find(&lab.path).unwrap().unwrap();
    let (names, descriptors): (Vec<_>, Vec<_>) = held.into_iter().unzip();
    assert_eq!(names, ["two"]);
    let mut write = File::from(descriptors.into_iter().next().unwrap());
    write.write_all(b"x").unwrap();
    drop(write);
    let mut text = [0; 8];
    assert_eq!(read.read(&mut text).unwrap(), 1);
    second.ask(&Message::Stopping).unwrap();
    // The holder has released it.
    assert_eq!(read.read(&mut text).unwrap(), 0);
    drop(second);
    lab.ended();
}

#[test]
fn messages_of_a_router_that_is_killed_before_the_holder_runs_are_handled() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("router.sock.hold");
    let listener = bind_private(&path, SockType::SeqPacket).unwrap();
    let (mut read, write) = pipe();
    let router = Channel::connect(&path, Duration::from_secs(5)).unwrap();
    router.send(&Message::Keep("one".to_owned()), Some(write.as_fd())).unwrap();
    router.send(&Message::Ready, None).unwrap();
    drop((router, write));
    let holder = thread::spawn(move || process::serve(&listener, 600, false));
    let lab = Lab { _directory: directory, path, holder };
    let (next, held) = lab.router();
    assert_eq!(held, ["one"]);
    next.ask(&Message::Stopping).unwrap();
    assert_eq!(read.read(&mut [0; 8]).unwrap(), 0);
    drop(next);
    lab.ended();
}

#[test]
fn messages_of_a_router_that_is_killed_with_messages_unread_are_handled() {
    let lab = Lab::new(600);
    let (_read, write) = pipe();
    let (first, _) = lab.router();
    keep(&first, "lasting", &write);
    drop(first);
    for round in 0..200 {
        // Its answers may be unread in its socket when that is closed.
        let router = Channel::connect(&lab.path, Duration::from_secs(5)).unwrap();
        let name = format!("round {round}");
        router.send(&Message::Keep(name.clone()), Some(write.as_fd())).unwrap();
        router.send(&Message::Ready, None).unwrap();
        drop(router);
        let (next, held) = lab.router();
        assert!(held.contains(&name), "{name}: {held:?}");
        next.ask(&Message::Forget(name)).unwrap();
    }
    let (last, held) = lab.router();
    assert_eq!(held, ["lasting"]);
    last.ask(&Message::Stopping).unwrap();
    drop(last);
    lab.ended();
}

#[test]
fn what_nobody_comes_for_is_let_go_and_the_holder_ends() {
    let lab = Lab::new(0);
    let (mut read, write) = pipe();
    let (router, _) = lab.router();
    keep(&router, "one", &write);
    router.send(&Message::Ready, None).unwrap();
    drop((router, write));
    assert_eq!(read.read(&mut [0; 8]).unwrap(), 0);
    lab.ended();
}

#[test]
fn routers_that_do_not_become_ready_do_not_stop_the_clock() {
    let lab = Lab::new(600);
    let (mut read, write) = pipe();
    let (router, _) = lab.router();
    keep(&router, "one", &write);
    router.send(&Message::Ready, None).unwrap();
    router.send(&Message::Hold(1), None).unwrap();
    drop((router, write));
    // Several routers fail to start, one after the other, each within the second; each requests a
    // long holding time.
    let mut starts = 0;
    while let Ok(Some((router, held))) = Holder::find(&lab.path)
        && !held.is_empty()
    {
        router.send(&Message::Hold(600), None).unwrap();
        drop((router, held));
        starts += 1;
        thread::sleep(Duration::from_millis(50));
    }
    assert!(starts > 1, "{starts}");
    assert_eq!(read.read(&mut [0; 8]).unwrap(), 0);
    lab.ended();
}

#[test]
fn while_there_is_a_router_no_other_is_served() {
    let lab = Lab::new(600);
    let (_read, write) = pipe();
    let (router, _) = lab.router();
    keep(&router, "one", &write);
    assert!(Holder::find(&lab.path).unwrap().is_none());
    router.ask(&Message::Stopping).unwrap();
    drop(router);
    lab.ended();
}

#[test]
fn messages_that_it_does_not_know_are_passed_over() {
    let lab = Lab::new(600);
    let (router, _) = lab.router();
    let (_read, write) = pipe();
    keep(&router, &"x".repeat(1000), &write);
    router.send(&Message::Held("what only holders say".to_owned()), None).unwrap();
    router.send(&Message::Keep("without a descriptor".to_owned()), None).unwrap();
    router.ask(&Message::Forget("unheard of".to_owned())).unwrap();
    drop(router);
    lab.ended();
}

#[test]
fn a_socket_that_nobody_listens_to_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("router.sock.hold");
    assert!(Holder::find(&path).unwrap().is_none());
    drop(bind_private(&path, SockType::SeqPacket).unwrap());
    assert!(Holder::find(&path).unwrap().is_none());
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    let error = format!("{:#}", Holder::find(&path).unwrap_err());
    assert!(error.contains("not a socket"), "{error}");
}
