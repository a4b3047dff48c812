//! Findings anew after each change.
//!
//! A thread listens to the kernel's notifications: links, qdiscs, filters, routing rules, interface settings, nftables and
//! IPsec policies. After a burst of them it inspects: when it has been quiet for [`QUIET`], and [`LATEST`] after the first
//! at the latest. The kernel does not announce changes of legacy iptables, of other settings, tcx programs and packet
//! sockets: for these it inspects each second.
//!
//! Routes are left out: the fast path follows them itself, and leaves to the kernel those for a part of the packets and
//! those that encapsulate.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::netlink::{Family, Raw, Socket};
use crate::worker::{Waits, Wake, Worker};
use crate::{Error, Inspection, Inspector, Options, Routes};

/// Quiet time that ends a burst of notifications.
const QUIET: Duration = Duration::from_millis(10);

/// Time after the first notification of a burst, at which an inspection begins even if more come.
const LATEST: Duration = Duration::from_millis(30);

/// Time between inspections without a notification.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time until the next attempt after an inspection that failed.
const RETRY: Duration = Duration::from_millis(200);

/// Name of the thread.
const THREAD: &str = "kernel-rules";

/// `RTMGRP_*` and `1 << (RTNLGRP_* - 1)`.
mod group {
    pub const LINK: u32 = 1;
    pub const TC: u32 = 1 << 3;
    pub const IPV4_RULE: u32 = 1 << 7;
    pub const IPV6_RULE: u32 = 1 << 18;
    pub const IPV4_NETCONF: u32 = 1 << 23;
    pub const IPV6_NETCONF: u32 = 1 << 24;
    pub const MPLS_NETCONF: u32 = 1 << 28;
    /// Of netfilter: `NFNLGRP_NFTABLES`.
    pub const NFTABLES: u32 = 1 << 6;
    /// Of IPsec: `XFRMNLGRP_POLICY`.
    pub const POLICY: u32 = 1 << 3;
}

const STATE: u32 = group::LINK
    | group::TC
    | group::IPV4_RULE
    | group::IPV6_RULE
    | group::IPV4_NETCONF
    | group::IPV6_NETCONF
    | group::MPLS_NETCONF;

/// A thread that inspects after each change. Ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    _worker: Worker,
}

impl Watch {
    /// Starts to watch in the calling thread's network namespace. `on_change` is called on the watch's thread, first with
    /// the present findings, and then whenever they have changed. Before that `on_notice` is called when the kernel
    /// announces a change of netfilter, whether findings change by it or not, and when they have changed otherwise.
    ///
    /// # Errors
    /// The kernel's interfaces cannot be read, or no thread can be started.
    pub fn start(
        interfaces: &[String],
        options: &Options,
        on_notice: impl FnMut() + Send + 'static,
        on_change: impl FnMut(Inspection) + Send + 'static,
    ) -> Result<Self, Error> {
        let sockets = Sockets::open().map_err(Error::Netlink)?;
        let inspector = Inspector::new(interfaces, options)?;
        let on_notice = Box::new(on_notice);
        let body = move |waits| Watcher::new(sockets, inspector, waits, on_notice).run(on_change);
        Ok(Self { _worker: Worker::start(THREAD, body)? })
    }
}

/// The sockets of notifications; those for parts that the kernel lacks are absent.
struct Sockets {
    state: Socket,
    netfilter: Option<Socket>,
    xfrm: Option<Socket>,
}

impl Sockets {
    fn open() -> io::Result<Self> {
        Ok(Self {
            state: Socket::open(Family::Route, STATE)?,
            netfilter: Socket::open(Family::Netfilter, group::NFTABLES).ok(),
            xfrm: Socket::open(Family::Xfrm, group::POLICY).ok(),
        })
    }

    /// Reads all notifications, and returns their effect.
    fn drain(&self, buffer: &mut Vec<u8>) -> Change {
        let mut change = Change::default();
        let sockets = [Some(&self.state), self.netfilter.as_ref(), self.xfrm.as_ref()];
        for (index, socket) in sockets.into_iter().enumerate() {
            let Some(socket) = socket else { continue };
            let before = std::mem::take(&mut change.any);
            let each = |_: &Raw<'_>| change.any = true;
            // Of lost notifications nothing is known but that there were some.
            if socket.drain(buffer, each).is_err() {
                change.any = true;
            }
            change.netfilter |= change.any && index == 1;
            change.any |= before;
        }
        change
    }
}

/// Effect of notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Change {
    /// There were some.
    any: bool,
    /// Some were of netfilter.
    netfilter: bool,
}

/// Times of the next inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schedule {
    /// The next one without a notification.
    regular: Instant,
    /// First and last notification of the burst that has not been followed by one yet.
    burst: Option<(Instant, Instant)>,
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self { regular: now, burst: None }
    }

    fn on_change(&mut self, change: Change, now: Instant) {
        if change.any {
            let first = self.burst.map_or(now, |(first, _)| first);
            self.burst = Some((first, now));
        }
    }

    /// Returns the time of the next inspection.
    fn due(&self) -> Instant {
        let of_burst = self.burst.map(|(first, last)| (last + QUIET).min(first + LATEST));
        of_burst.map_or(self.regular, |of_burst| of_burst.min(self.regular))
    }

    /// Begins an inspection.
    fn begin(&mut self, now: Instant) {
        *self = Self { regular: now + INTERVAL, burst: None };
    }

    /// Ends an inspection that failed.
    fn failed(&mut self, now: Instant) {
        self.regular = now + RETRY;
    }
}

struct Watcher {
    sockets: Sockets,
    inspector: Inspector,
    waits: Waits,
    schedule: Schedule,
    on_notice: Box<dyn FnMut() + Send>,
}

impl Watcher {
    fn new(
        sockets: Sockets,
        inspector: Inspector,
        waits: Waits,
        on_notice: Box<dyn FnMut() + Send>,
    ) -> Self {
        Self { sockets, inspector, waits, schedule: Schedule::new(Instant::now()), on_notice }
    }

    fn run(mut self, mut on_change: impl FnMut(Inspection)) {
        let (mut known, mut buffer) = (None, Vec::new());
        let mut complains = true;
        while self.wait(&mut buffer) {
            self.schedule.begin(Instant::now());
            match self.inspector.inspect(Routes::Omit) {
                Ok(inspection) => {
                    complains = true;
                    if known.as_ref() != Some(&inspection) {
                        known = Some(inspection.clone());
                        (self.on_notice)();
                        on_change(inspection);
                    }
                }
                Err(error) => {
                    if complains {
                        tracing::error!("kernel rules: {error}; trying again");
                    }
                    complains = false;
                    self.schedule.failed(Instant::now());
                }
            }
        }
    }

    /// Waits until an inspection is due; returns false if the thread is to end.
    fn wait(&mut self, buffer: &mut Vec<u8>) -> bool {
        loop {
            let change = self.sockets.drain(buffer);
            if change.netfilter {
                (self.on_notice)();
            }
            self.schedule.on_change(change, Instant::now());
            let left = self.schedule.due().saturating_duration_since(Instant::now());
            match self.sleep(left) {
                Wake::Stop => return false,
                Wake::Due => return true,
                Wake::Notification => {}
            }
        }
    }

    fn sleep(&self, left: Duration) -> Wake {
        let Sockets { state, netfilter, xfrm } = &self.sockets;
        let sockets = [Some(state), netfilter.as_ref(), xfrm.as_ref()];
        self.waits.wait(sockets.into_iter().flatten().map(Socket::as_fd), left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs commands in the thread's network namespace.
    fn ip(lines: &str) {
        let mut child = std::process::Command::new("ip");
        let child = child.args(["-batch", "-"]).stdin(std::process::Stdio::piped());
        let mut child = child.spawn().expect("iproute2 is installed");
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{lines}");
    }

    /// Runs a test with sockets in a namespace of its own, which has two interfaces; it gets them, and what drains them.
    fn listen(test: impl FnOnce(&Sockets, &mut dyn FnMut() -> Change) + Send + 'static) {
        let all = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
                .expect("the test runs as root");
            // A namespace may have the settings of the machine.
            let off = ["-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"];
            let done = std::process::Command::new("sysctl").args(off).status();
            assert!(done.unwrap().success());
            let mut buffer = Vec::new();
            let sockets = Sockets::open().unwrap();
            ip(
                "link set lo up\nlink add v0 type veth peer name v1\nlink set v0 up\nlink set v1 up\n",
            );
            let mut drain = || sockets.drain(&mut buffer);
            while drain() != Change::default() {}
            test(&sockets, &mut drain);
        };
        std::thread::spawn(all).join().unwrap();
    }

    #[test]
    fn announced_changes_are_heard() {
        listen(|_, drain| {
            let changes = [
                "ip link set v0 alias x",
                "ip rule add lookup 7",
                "ip -6 rule add lookup 7",
                "ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir fwd",
                "tc qdisc add dev v0 root tbf rate 1mbit burst 32k latency 10ms",
                "nft add table ip f",
                "sysctl -qw net.ipv4.conf.v0.forwarding=1",
                "sysctl -qw net.ipv6.conf.v0.forwarding=1",
                "sysctl -qw net.ipv4.conf.v0.rp_filter=2",
            ];
            let run = |command: &str| {
                let words: Vec<&str> = command.split(' ').collect();
                let done = std::process::Command::new(words[0]).args(&words[1..]).status();
                assert!(done.unwrap().success(), "{command}");
            };
            // A machine that forwards hands its settings down to new namespaces.
            for setting in
                ["ipv4.conf.v0.forwarding", "ipv6.conf.v0.forwarding", "ipv4.conf.v0.rp_filter"]
            {
                run(&format!("sysctl -qw net.{setting}=0"));
            }
            while drain() != Change::default() {}
            for change in changes {
                run(change);
                let heard = drain();
                let netfilter = change.starts_with("nft");
                assert_eq!(heard, Change { any: true, netfilter }, "{change}");
                while drain() != Change::default() {}
            }
            ip("route add 10.1.0.0/16 dev v0\n");
            assert_eq!(drain(), Change::default(), "a route");
        });
    }

    #[test]
    fn lost_notifications_are_a_change() {
        listen(|sockets, drain| {
            assert_eq!(drain(), Change::default(), "nothing happens");
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&sockets.state, 1).unwrap();
            let change = |number: u32| format!("link set v0 mtu {}\n", 1400 + number % 2);
            ip(&(0..200).map(change).collect::<String>());
            assert_eq!(drain(), Change { any: true, netfilter: false });
        });
    }

    const ANY: Change = Change { any: true, netfilter: false };

    #[test]
    fn a_burst_is_followed_by_one_inspection_soon() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert_eq!(schedule.due(), start);
        schedule.begin(start);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        schedule.on_change(Change::default(), at(90));
        assert_eq!(schedule.due(), at(1000));
        schedule.on_change(ANY, at(100));
        assert_eq!(schedule.due(), at(110));
        schedule.on_change(ANY, at(105));
        assert_eq!(schedule.due(), at(115));
        // A stream delays it no longer than this.
        (110..400).for_each(|now| schedule.on_change(ANY, at(now)));
        assert_eq!(schedule.due(), at(130));
        schedule.begin(at(130));
        assert_eq!(schedule.due(), at(1130));
        schedule.failed(at(140));
        assert_eq!(schedule.due(), at(340), "a failed one is tried again");
    }
}
