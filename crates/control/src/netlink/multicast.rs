//! The kernel's multicast routing cache: the ports that packets to groups leave by, as set by a
//! multicast routing daemon (pimd, FRR's pimd and pim6d, smcroute).
//!
//! A thread of its own, in the network namespace of the host interfaces, reads the whole cache of
//! both families and the groups that the machine has joined. It does so after every notification,
//! and every few seconds because the kernel sends no notification of joined groups. Each result
//! replaces the previous one. A cache has as many entries as there are active sources, so reading
//! all of it costs little, and no change can be missed.
//!
//! These entries are left to the kernel, which receives their packets by the host interface and
//! forwards them: unresolved ones; those over an interface that is not a port, for example a PIM
//! register's; those of a group that the machine has joined on their incoming interface.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use dataplane::interface::InterfaceId;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::message::{
    Messages, MulticastMessage, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, RTM_GETROUTE,
    RTNL_FAMILY_IP6MR, RTNL_FAMILY_IPMR,
};
use super::socket::{Received, Socket, group};
use super::worker::{dump_socket, watch_readable};
use super::{Error, Interfaces, request, thread};

/// Longest time for which a newly joined group is not noticed.
const EVERY: Duration = Duration::from_secs(2);

/// Time for which further changes are awaited, to be read together.
const TOGETHER: Duration = Duration::from_millis(10);

const BUFFER: usize = 64 * 1024;

/// A multicast route of the kernel that the router can use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelGroup {
    /// The group.
    pub group: IpAddr,
    /// The sender; `None`: any.
    pub source: Option<IpAddr>,
    /// The incoming port.
    pub from: InterfaceId,
    /// The outgoing ports, each with the TTL that a packet must exceed.
    pub to: Vec<(InterfaceId, u8)>,
}

/// All multicast routes, sorted.
pub type KernelGroups = Arc<Vec<KernelGroup>>;

/// Follows the kernel's cache, in this namespace, until the receiver is dropped.
pub(super) fn follow(
    netns: Option<std::path::PathBuf>,
    interfaces: watch::Receiver<Arc<Interfaces>>,
) -> Result<watch::Receiver<KernelGroups>, Error> {
    thread::start("multicast", (netns, Some(privileges::Role::Server)), move || async move {
        let failed = |error| Error::Socket { what: "netlink socket for multicast".into(), error };
        let notifications =
            Socket::open(group::IPV4_MROUTE | group::IPV6_MROUTE).map_err(failed)?;
        let notifications = watch_readable(notifications).map_err(failed)?;
        let (groups, receiver) = watch::channel(KernelGroups::default());
        Ok((Follower { notifications, interfaces, groups }.run(), receiver))
    })
}

struct Follower {
    notifications: AsyncFd<Socket>,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    groups: watch::Sender<KernelGroups>,
}

impl Follower {
    async fn run(mut self) {
        let mut complain = true;
        loop {
            match self.read() {
                Ok(groups) => {
                    complain = true;
                    let groups = Arc::new(groups);
                    self.groups.send_if_modified(|known| {
                        let changed = *known != groups;
                        *known = groups;
                        changed
                    });
                }
                Err(error) if complain => {
                    complain = false;
                    tracing::warn!("the kernel's multicast routes cannot be read: {error}");
                }
                Err(_) => {}
            }
            if self.wait().await.is_err() {
                return;
            }
        }
    }

    /// Waits for a change or the next periodic dump. Returns an error if the receiver is
    /// dropped.
    async fn wait(&mut self) -> Result<(), ()> {
        let due = Instant::now() + EVERY;
        tokio::select! {
            () = self.groups.closed() => return Err(()),
            changed = self.interfaces.changed() => changed.map_err(drop)?,
            _ = self.notifications.readable() => {}
            () = sleep_until(due) => {}
        }
        self.forget_news(Instant::now() + TOGETHER).await;
        Ok(())
    }

    /// Discards notifications that arrive until then: the following dump includes their changes.
    async fn forget_news(&self, until: Instant) {
        let mut buffer = [0; 4096];
        while let Ok(Ok(mut ready)) = timeout_at(until, self.notifications.readable()).await {
            // Notifications lost by an overrun would be discarded as well.
            match self.notifications.get_ref().receive(&mut buffer, false) {
                Ok(Received::Nothing) | Err(_) => ready.clear_ready(),
                Ok(_) => {}
            }
        }
    }

    fn read(&mut self) -> io::Result<Vec<KernelGroup>> {
        let joined = joined();
        let interfaces = self.interfaces.borrow_and_update().clone();
        let mut groups = Vec::new();
        for family in [RTNL_FAMILY_IPMR, RTNL_FAMILY_IP6MR] {
            for message in dump(family)? {
                groups.extend(followed(&message, &interfaces, &joined));
            }
        }
        groups.sort();
        groups.dedup_by(|a, b| (a.group, a.source) == (b.group, b.source));
        Ok(groups)
    }
}

/// Returns all entries of a family; none if the kernel has no multicast routing.
fn dump(family: u8) -> io::Result<Vec<MulticastMessage>> {
    const SEQUENCE: u32 = 1;
    let mut buffer = vec![0; BUFFER];
    'again: for _ in 0..5 {
        // A new socket has no remainder of an abandoned answer.
        let socket = dump_socket()?;
        socket.send(&request::dump(RTM_GETROUTE, family, 12, SEQUENCE))?;
        let mut entries = Vec::new();
        loop {
            let length = match socket.receive(&mut buffer, true)? {
                Received::Bytes(length) => length,
                Received::Nothing => return Err(io::ErrorKind::TimedOut.into()),
                Received::Truncated | Received::Overrun => continue 'again,
            };
            for raw in Messages(&buffer[..length]).flatten() {
                if raw.flags & NLM_F_DUMP_INTR != 0 {
                    continue 'again;
                }
                match raw.kind {
                    NLMSG_DONE | NLMSG_ERROR => return Ok(entries),
                    // A malformed entry is skipped; the kernel continues to forward it.
                    _ => entries.extend(MulticastMessage::parse(&raw).ok().flatten()),
                }
            }
        }
    }
    Err(io::Error::other("it changed whenever it was read"))
}

/// Converts an entry, if the router can use it.
fn followed(
    message: &MulticastMessage,
    interfaces: &Interfaces,
    joined: &HashSet<(u32, IpAddr)>,
) -> Option<KernelGroup> {
    let port = |interface: u32| interfaces.by_index.get(&interface).copied().flatten();
    if joined.contains(&(message.from?, message.group)) {
        return None;
    }
    let mut to = Vec::with_capacity(message.to.len());
    for &(interface, ttl) in &message.to {
        to.push((port(interface)?, ttl));
    }
    to.sort();
    let source = Some(message.source).filter(|source| !source.is_unspecified());
    Some(KernelGroup { group: message.group, source, from: port(message.from?)?, to })
}

/// Returns the groups that the machine has joined, with the interfaces' indexes, in the thread's
/// namespace.
fn joined() -> HashSet<(u32, IpAddr)> {
    let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let ip4 = read("igmp").unwrap_or_default();
    let ip6 = read("igmp6").unwrap_or_default();
    joined4(&ip4).chain(joined6(&ip6)).collect()
}

/// Parses `/proc/net/igmp`: a line for each interface, which begins with its index, and below it an
/// indented one for each group, which begins with the address as a number in the machine's byte
/// order.
fn joined4(text: &str) -> impl Iterator<Item = (u32, IpAddr)> {
    let mut interface = 0;
    text.lines().skip(1).filter_map(move |line| {
        let first = line.split_whitespace().next()?;
        if !line.starts_with(char::is_whitespace) {
            interface = first.parse().ok()?;
            return None;
        }
        let group = u32::from_str_radix(first, 16).ok()?;
        Some((interface, Ipv4Addr::from(group.to_ne_bytes()).into()))
    })
}

/// Parses `/proc/net/igmp6`: index, name and group on each line.
fn joined6(text: &str) -> impl Iterator<Item = (u32, IpAddr)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (index, _, group) = (words.next()?, words.next()?, words.next()?);
        let group = u128::from_str_radix(group, 16).ok()?;
        Some((index.parse().ok()?, Ipv6Addr::from_bits(group).into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn joined_groups_are_read_as_the_kernel_writes_them() {
        // From a kernel 6.18, little-endian.
        let text = "Idx\tDevice    : Count Querier\tReporter\n\
                    1\tlo        :     1      V3\n\
                    \t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    7\tleft      :     2      V3\n\
                    \t\t\t\t010101EF     1 0:00000000\t\t0\n\
                    \t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let groups: Vec<_> = joined4(text).collect();
        let expected = [(1, ip("224.0.0.1")), (7, ip("239.1.1.1")), (7, ip("224.0.0.1"))];
        if cfg!(target_endian = "little") {
            assert_eq!(groups, expected);
        }
        let text = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
                    7    left            ff0e0000000000000000000000000101     1 00000004 0\n";
        let groups: Vec<_> = joined6(text).collect();
        assert_eq!(groups, [(1, ip("ff02::1")), (7, ip("ff0e::101"))]);
        assert_eq!(joined4("").count() + joined6("odd line\n").count(), 0);
    }

    #[test]
    fn what_only_the_kernel_can_forward_is_left_to_it() {
        let interfaces = Interfaces {
            by_index: [
                (1, None),
                (7, InterfaceId::new(0)),
                (8, InterfaceId::new(1)),
                (9, InterfaceId::new(2)),
            ]
            .into(),
            ..Interfaces::default()
        };
        let message = |from, to: &[u32]| MulticastMessage {
            source: ip("10.0.1.2"),
            group: ip("239.1.1.1"),
            from,
            to: to.iter().map(|&interface| (interface, 1)).collect(),
        };
        let nothing = HashSet::new();
        let port = |n| InterfaceId::new(n).unwrap();
        let entry = followed(&message(Some(7), &[9, 8]), &interfaces, &nothing).unwrap();
        assert_eq!((entry.from, entry.to), (port(0), vec![(port(1), 1), (port(2), 1)]));
        assert_eq!(entry.source, Some(ip("10.0.1.2")));
        assert!(followed(&message(Some(7), &[]), &interfaces, &nothing).unwrap().to.is_empty());
        for message in [
            message(None, &[8]),          // not resolved yet
            message(Some(1), &[8]),       // from an interface that is not a port
            message(Some(7), &[8, 1]),    // to an interface that is not a port
            message(Some(7), &[8, 4711]), // to an unknown interface
        ] {
            assert_eq!(followed(&message, &interfaces, &nothing), None, "{message:?}");
        }
        let joined = HashSet::from([(8, ip("239.1.1.1")), (7, ip("239.1.1.2"))]);
        assert!(followed(&message(Some(7), &[8]), &interfaces, &joined).is_some());
        assert!(followed(&message(Some(8), &[7]), &interfaces, &joined).is_none());
    }
}
