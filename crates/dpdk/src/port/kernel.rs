//! A kernel interface that a port takes over: changes by which only the port, and not the host's network
//! stack, processes its packets; all of them are undone when the port closes.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{fs, ptr};

use super::book::{self, Page};
use super::bpf;
use super::multicast::{Memberships, MulticastFilter, Multicasts};
use super::record::{Claim, Record};
use crate::Errno;
use crate::carrier::Carrier;
use crate::interface::Interface;

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Offloads that merge received packets, each with its commands to read and to write: generic
/// and large receive offload. The latter is a flag among others, as is the removal of VLAN tags.
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const FLAG_LRO: u32 = 1 << 15;
const FLAG_REMOVES_TAGS: u32 = 1 << 8;

/// Settings that keep the host off a link that it does not serve: it creates no IPv6 address for itself
/// there, forwards nothing, and answers no ARP.
const SYSCTLS: [(&str, &str, &str); 3] =
    [("ipv6", "disable_ipv6", "1"), ("ipv4", "forwarding", "0"), ("ipv4", "arp_ignore", "8")];

/// An interface, and the changes to undo.
pub(super) struct KernelInterface {
    pub(super) name: String,
    index: u32,
    /// Requests stay in the network namespace that the port was opened in.
    interface: Interface,
    undo: Vec<Undo>,
    /// Number of its page in the book.
    page: u64,
    links: Vec<OwnedFd>,
    /// The groups joined on it, once it is taken over.
    memberships: Option<Mutex<Memberships>>,
    /// The changes to undo, for the next process after a kill.
    record: Option<Record>,
    counters: Counters,
}

/// The kernel's counters of all interfaces of the network namespace that the file was opened in.
struct Counters {
    file: Option<fs::File>,
    /// Packets that failed to be sent before the port was opened.
    before: u64,
}

/// A change, given by the state before it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Undo {
    Sysctl {
        path: String,
        value: String,
    },
    Flags(i16),
    Mtu(i32),
    Ethtool {
        command: u32,
        value: u32,
    },
    /// The number of the XDP program that AF_XDP's driver attached and detaches itself, unless it is
    /// killed; `None` until the program is attached.
    Xdp(Option<u32>),
}

impl Undo {
    /// Formats it as a line of the record.
    fn to_line(&self) -> String {
        match self {
            Self::Sysctl { path, value } => format!("sysctl {path} {value}"),
            Self::Flags(flags) => format!("flags {flags}"),
            Self::Mtu(mtu) => format!("mtu {mtu}"),
            Self::Ethtool { command, value } => format!("ethtool {command} {value}"),
            Self::Xdp(program) => format!("xdp {}", program.unwrap_or(0)),
        }
    }

    /// Parses a line of the record; `None` when it is damaged.
    fn from_line(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        Some(match words[..] {
            ["sysctl", path, value] => Self::Sysctl { path: path.into(), value: value.into() },
            ["flags", flags] => Self::Flags(flags.parse().ok()?),
            ["mtu", mtu] => Self::Mtu(mtu.parse().ok()?),
            ["ethtool", command, value] => {
                Self::Ethtool { command: command.parse().ok()?, value: value.parse().ok()? }
            }
            ["xdp", program] => {
                Self::Xdp(Some(program.parse().ok()?).filter(|&number| number != 0))
            }
            _ => return None,
        })
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

impl KernelInterface {
    /// Opens the interface of this name, without changing it.
    pub(super) fn open(name: &str) -> Result<Self, Errno> {
        let interface = Interface::new(name)?;
        let index = interface.index()?;
        let (undo, links) = (Vec::new(), Vec::new());
        let counters = Counters::of(name);
        let (name, page) = (name.to_owned(), book::new_page());
        let (memberships, record) = (None, None);
        Ok(Self { name, index, interface, undo, page, links, memberships, record, counters })
    }

    /// Returns the kernel's number for it, which it keeps when its name changes.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Ensures that no other process takes the interface over, and undoes the changes left by one that
    /// was killed. Returns notes; an error names the process that has the interface.
    pub(super) fn claim(&mut self, directory: &Path) -> Result<Vec<String>, String> {
        match Record::claim(directory, &self.record_name()) {
            Ok(Claim::Taken(by)) => Err(by),
            Ok(Claim::Ours(record, left)) => {
                self.record = Some(record);
                if left.is_empty() {
                    return Ok(Vec::new());
                }
                for step in left.iter().rev().filter_map(|line| Undo::from_line(line)) {
                    step.revert(&self.interface, self.index);
                }
                let name = &self.name;
                Ok(vec![format!("{name} was put back as it was before a router that was killed")])
            }
            Err(error) => Ok(vec![format!(
                "{} is not put back should this router be killed: {}: {error}",
                self.name,
                directory.display()
            )]),
        }
    }

    fn record_name(&self) -> String {
        format!("{:x}-{}", self.namespace(), self.index)
    }

    /// Returns the number of the interface's network namespace.
    fn namespace(&self) -> u64 {
        let mut cookie = 0_u64;
        let mut size = size_of::<u64>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
        let place = ptr::from_mut(&mut cookie).cast();
        // SAFETY: a number and its size, for the call.
        let result = unsafe {
            libc::getsockopt(self.interface.socket().as_raw_fd(), level, option, place, &mut size)
        };
        // Linux before 5.14 has no cookies; the file of the namespace has a number too, which may be
        // reused after the namespace is removed.
        if result == 0 {
            cookie
        } else {
            fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino())
        }
    }

    /// Records a change to be undone, before it is made.
    fn remember(&mut self, step: Undo) {
        self.undo.push(step);
        self.write_record();
    }

    fn forget_last(&mut self) {
        self.undo.pop();
        self.write_record();
    }

    fn write_record(&self) {
        let lines: Vec<_> = self.undo.iter().map(Undo::to_line).collect();
        // A file in memory, a few lines long. If this fails, a kill leaves the changes as without a
        // record.
        let _ = self.record.as_ref().map(|record| record.write(&lines));
        // Without a descriptor for it, the book has no page: as without a record.
        if let Ok(interface) = self.interface.renamed(&self.name) {
            let (name, index, undo) = (self.name.clone(), self.index, self.undo.clone());
            let changes = Changes { name, index, interface, undo };
            let record = self.record.as_ref().map(|record| record.path().to_owned());
            book::write(self.page, Page { changes, record });
        }
    }

    /// Runs a step of AF_XDP's driver, and records the program that it attaches. There must be none
    /// before.
    pub(super) fn with_xdp_program<T, E>(
        &mut self,
        attach: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.remember(Undo::Xdp(None));
        let result = attach(self);
        self.undo.pop();
        if result.is_ok() {
            self.undo.push(Undo::Xdp(bpf::xdp_program(self.index)));
        }
        self.write_record();
        result
    }

    /// Records a program that has replaced the driver's, which is restored before the driver ends.
    pub(super) fn remember_xdp_program(&mut self, number: u32) {
        self.remember(Undo::Xdp(Some(number)));
    }

    /// Prepares the interface for a packet socket beside AF_XDP's: the host's stack sees no packet of it, and the
    /// kernel merges none.
    ///
    /// # Errors
    /// The kernel has no filter for that (before Linux 6.6).
    pub(super) fn prepare_control_socket(&mut self) -> Result<(), Errno> {
        self.links.push(bpf::attach(bpf::TC_DROP, self.index)?);
        self.disable_merging();
        Ok(())
    }

    /// Keeps the host out, and brings the interface up, with all multicasts until
    /// [`Self::set_multicasts`] selects the needed ones.
    pub(super) fn take_over(&mut self) -> Result<(), Errno> {
        for (family, key, value) in SYSCTLS {
            self.set_sysctl(format!("/proc/sys/net/{family}/conf/{}/{key}", self.name), value);
        }
        let flags = self.interface.flags()?;
        let up = flags | libc::IFF_UP as i16;
        if up != flags {
            self.remember(Undo::Flags(flags));
            self.interface.set_flags(up)?;
        }
        self.memberships = Some(Mutex::new(Memberships::all(self.index)?));
        Ok(())
    }

    /// Makes the interface receive these multicasts, in the namespace that it was taken over in.
    pub(super) fn set_multicasts(&self, wanted: &Multicasts) -> Result<MulticastFilter, Errno> {
        match &self.memberships {
            Some(joined) => joined.lock().unwrap_or_else(PoisonError::into_inner).set(wanted),
            None => Ok(MulticastFilter::Unfiltered),
        }
    }

    /// Makes the interface receive frames to these addresses besides its own.
    pub(super) fn set_addresses(&self, wanted: &BTreeSet<[u8; 6]>) -> Result<(), Errno> {
        match &self.memberships {
            Some(joined) => {
                joined.lock().unwrap_or_else(PoisonError::into_inner).set_addresses(wanted)
            }
            None => Ok(()),
        }
    }

    /// Prepares for a packet socket: received packets arrive one by one, as they were on the wire, and
    /// the host does not see them. Returns notes about unavailable features.
    pub(super) fn prepare_packet_socket(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.driver_name() == "veth" {
            match bpf::attach(bpf::XDP_PASS_NATIVE, self.index) {
                Ok(link) => self.links.push(link),
                Err(errno) => notes.push(format!(
                    "the peer may send frames larger than the MTU, which are lost (no XDP program \
                     could be attached: {errno}); turn off its segmentation: ethtool -K PEER tso off"
                )),
            }
        }
        match bpf::attach(bpf::TC_DROP, self.index) {
            Ok(link) => self.links.push(link),
            Err(errno) => notes.push(format!(
                "the host's network stack sees the packets too (no filter: {errno})"
            )),
        }
        // After the XDP program, which enables generic receive offload.
        self.disable_merging();
        notes
    }

    /// Prepares for AF_XDP: received frames keep their VLAN tags. A tag that the device removes is beside the frame,
    /// where XDP programs do not see it, and the frame looks like one of the port's own network. Returns a note if
    /// that is impossible.
    pub(super) fn prepare_xdp(&mut self) -> Option<String> {
        (!self.keep_tags()).then(|| {
            format!(
                "{} removes VLAN tags from received frames, which then look untagged; for VLANs use driver = \
                 \"af_packet\"",
                self.name
            )
        })
    }

    /// Has received frames keep their VLAN tags; false if that is impossible.
    pub(super) fn keep_tags(&mut self) -> bool {
        self.clear_flag(FLAG_REMOVES_TAGS);
        self.ethtool_value(ETHTOOL_GFLAGS, 0).unwrap_or(0) & FLAG_REMOVES_TAGS == 0
    }

    /// Checks that AF_XDP can work here, as far as that is possible without receiving.
    pub(super) fn try_xdp(&self) -> Result<(), String> {
        // SAFETY: makes a descriptor.
        let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(format!(
                "the kernel gives no AF_XDP socket: {}; a service may have them by its drop-in af-xdp.conf",
                Errno::last()
            ));
        }
        // SAFETY: a descriptor that the kernel has just created for us.
        drop(unsafe { OwnedFd::from_raw_fd(socket) });
        match bpf::attach(bpf::XDP_PASS, self.index) {
            Ok(_link) => Ok(()),
            // AF_XDP's own program stays when a router is killed.
            Err(Errno::EBUSY) => Err(format!(
                "{name} has an XDP program already; remove it: ip link set {name} xdp off",
                name = self.name
            )),
            Err(errno) => Err(format!("no XDP program can be attached: {errno}")),
        }
    }

    /// Returns true for a bond.
    pub(super) fn is_bond(&self) -> bool {
        self.interface.flags().is_ok_and(|flags| flags & libc::IFF_MASTER as i16 != 0)
    }

    /// Checks that the interface can be accelerated, as far as its flags and its type say.
    pub(super) fn check_accelerated(&self, in_kernel: bool) -> Result<(), String> {
        let name = &self.name;
        let unreadable = |errno| format!("device {name}: {errno}");
        if !self.interface.is_ethernet().map_err(unreadable)? {
            return Err(format!(
                "device {name} has no Ethernet frames, and only Ethernet is accelerated"
            ));
        }
        let flags = self.interface.flags().map_err(unreadable)?;
        if flags & libc::IFF_SLAVE as i16 != 0 {
            return Err(format!("device {name} belongs to a bond; name that, with in_kernel"));
        }
        if self.is_bond() && !in_kernel {
            return Err(format!(
                "device {name} is a bond, which has no AF_XDP sockets; bonds are accelerated with in_kernel"
            ));
        }
        if flags & libc::IFF_UP as i16 == 0 {
            return Err(format!("device {name} is down; set it up: ip link set {name} up"));
        }
        Ok(())
    }

    pub(super) fn mtu(&self) -> Result<u16, Errno> {
        Ok(u16::try_from(self.interface.mtu()?).unwrap_or(u16::MAX))
    }

    /// Returns the MAC address that it has now; `None` if another interface has its name.
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        self.is_there().then(|| self.interface.mac().ok())?
    }

    /// Returns true if its name is still its own.
    pub(super) fn is_there(&self) -> bool {
        self.interface.index() == Ok(self.index)
    }

    /// Returns the number of packets that the kernel has dropped instead of sending, since the port was
    /// opened.
    pub(super) fn unsent(&self) -> u64 {
        self.counters.unsent(&self.name).saturating_sub(self.counters.before)
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) -> Result<(), Errno> {
        let old = self.mtu()?;
        if old != mtu {
            self.remember(Undo::Mtu(old.into()));
            self.interface.set_mtu(mtu.into())?;
        }
        Ok(())
    }

    /// Returns true if the link is up: both the interface and its other end are.
    pub(super) fn is_running(&self) -> bool {
        self.interface.is_running()
    }

    pub(super) fn carrier(&self) -> Result<Carrier, Errno> {
        Carrier::of_interface(&self.interface)
    }

    /// Returns the kernel driver's name; empty when it is not available.
    pub(super) fn driver_name(&self) -> String {
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        if self.interface.ethtool(&mut info).is_err() {
            return String::new();
        }
        let name = info.driver.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// Returns the number of receive queues of the interface; at least 1.
    pub(super) fn receive_queues(&self) -> u16 {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        if self.interface.ethtool(&mut channels).is_err() {
            return 1;
        }
        u16::try_from(channels.combined + channels.rx).unwrap_or(u16::MAX).max(1)
    }

    fn disable_merging(&mut self) {
        if let Ok(on @ 1..) = self.ethtool_value(ETHTOOL_GGRO, 0) {
            self.change_ethtool(ETHTOOL_SGRO, on, 0);
        }
        self.clear_flag(FLAG_LRO);
    }

    /// Turns off an offload among the flags.
    fn clear_flag(&mut self, flag: u32) {
        if let Ok(flags) = self.ethtool_value(ETHTOOL_GFLAGS, 0)
            && flags & flag != 0
        {
            self.change_ethtool(ETHTOOL_SFLAGS, flags, flags & !flag);
        }
    }

    fn change_ethtool(&mut self, command: u32, old: u32, new: u32) {
        self.remember(Undo::Ethtool { command, value: old });
        if self.ethtool_value(command, new).is_err() {
            self.forget_last();
        }
    }

    fn ethtool_value(&self, command: u32, data: u32) -> Result<u32, Errno> {
        ethtool_value(&self.interface, command, data)
    }

    /// Writes a setting if the kernel has it, and records its old value.
    fn set_sysctl(&mut self, path: String, value: &str) {
        let Ok(old) = fs::read_to_string(&path) else { return };
        let old = old.trim().to_owned();
        if old == value {
            return;
        }
        self.remember(Undo::Sysctl { path: path.clone(), value: old });
        if fs::write(&path, value).is_err() {
            self.forget_last();
        }
    }
}

impl Counters {
    fn of(interface: &str) -> Self {
        let mut counters =
            Self { file: fs::File::open("/proc/thread-self/net/dev").ok(), before: 0 };
        counters.before = counters.unsent(interface);
        counters
    }

    /// Returns the number of packets that an interface could not send; 0 if it is not available.
    fn unsent(&self, interface: &str) -> u64 {
        let text = self.file.as_ref().and_then(|file| read_whole(file).ok()).unwrap_or_default();
        text.lines().find_map(|line| unsent_in(line, interface)).unwrap_or(0)
    }
}

/// Reads a file of the kernel's, from its beginning.
fn read_whole(file: &fs::File) -> std::io::Result<String> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match file.read_at(&mut part, bytes.len() as u64)? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
}

/// Returns the transmit errors and drops in this interface's line of `/proc/net/dev`: behind its name
/// are eight receive counters, then eight transmit counters.
fn unsent_in(line: &str, interface: &str) -> Option<u64> {
    let (name, counters) = line.rsplit_once(':')?;
    if name.trim_start() != interface {
        return None;
    }
    let mut counters = counters.split_ascii_whitespace().skip(10);
    let mut next = || counters.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// The changes to undo on an interface.
#[derive(Debug)]
pub(super) struct Changes {
    name: String,
    index: u32,
    interface: Interface,
    undo: Vec<Undo>,
}

impl Changes {
    /// Undoes all of them, the last change first. May be called again, since a change may be under way.
    pub(super) fn revert_all(&mut self) {
        follow_name(&mut self.interface, &mut self.name, self.index, &mut self.undo);
        for step in self.undo.iter().rev() {
            step.clone().revert(&self.interface, self.index);
        }
    }
}

/// Follows a change of an interface's name, by which the changes are undone: the operator may have
/// renamed it.
fn follow_name(interface: &mut Interface, name: &mut String, index: u32, undo: &mut [Undo]) {
    let Some(now) = interface.name_of(index).filter(|now| now != name) else { return };
    let Ok(renamed) = interface.renamed(&now) else { return };
    let (old, new) = (format!("/conf/{name}/"), format!("/conf/{now}/"));
    for step in undo {
        if let Undo::Sysctl { path, .. } = step {
            *path = path.replace(&old, &new);
        }
    }
    (*interface, *name) = (renamed, now);
}

impl Undo {
    /// Undoes a change. Errors are ignored (the interface may be removed); there is no one to report
    /// them to.
    fn revert(self, interface: &Interface, index: u32) {
        let _ = match self {
            Self::Sysctl { path, value } => fs::write(path, value).map_err(|_| Errno::last()),
            Self::Flags(flags) => interface.set_flags(flags),
            Self::Mtu(mtu) => interface.set_mtu(mtu),
            Self::Ethtool { command, value } => ethtool_value(interface, command, value).map(drop),
            Self::Xdp(program) => {
                // It may be another program by now.
                let now = bpf::xdp_program(index);
                if now.is_some() && (program.is_none() || program == now) {
                    bpf::detach_xdp(index);
                }
                Ok(())
            }
        };
    }
}

fn ethtool_value(interface: &Interface, command: u32, data: u32) -> Result<u32, Errno> {
    let mut value = EthtoolValue { command, data };
    interface.ethtool(&mut value)?;
    Ok(value.data)
}

/// Returns the process that has a kernel interface of the caller's network namespace as a port, in the
/// form `process 123`. `None` if there is none, or the caller may not see it.
pub fn interface_user(name: &str) -> Option<String> {
    let interface = KernelInterface::open(name).ok()?;
    Record::user(Path::new(Record::DIRECTORY), &interface.record_name())
}

impl Drop for KernelInterface {
    fn drop(&mut self) {
        self.links.clear();
        self.memberships = None;
        follow_name(&mut self.interface, &mut self.name, self.index, &mut self.undo);
        while let Some(step) = self.undo.pop() {
            step.revert(&self.interface, self.index);
        }
        book::tear_out(self.page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::within_a_minute;

    #[test]
    fn an_interface_with_an_xdp_program_says_how_to_remove_it() {
        // SAFETY: no memory is involved.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "this test makes a network namespace and needs root");
        let command = ["link", "add", "tpk0", "type", "veth", "peer", "name", "tpk1"];
        let made = std::process::Command::new("ip").args(command).status().unwrap();
        assert!(made.success());
        let interface = KernelInterface::open("tpk0").unwrap();
        assert_eq!(interface.try_xdp(), Ok(()));
        let program = within_a_minute("the program that was tried is gone", || {
            match bpf::attach(bpf::XDP_PASS, interface.index) {
                Err(Errno::EBUSY) => None,
                result => Some(result.unwrap()),
            }
        });
        let words = "tpk0 has an XDP program already; remove it: ip link set tpk0 xdp off";
        assert_eq!(interface.try_xdp(), Err(words.into()));
        drop(program);
        within_a_minute("a program goes with its descriptor", || interface.try_xdp().ok());
        assert_eq!(KernelInterface::open("tpk9").map(drop), Err(Errno::ENODEV));
    }
    #[test]
    fn a_killed_router_s_changes_are_undone_by_the_next() {
        // SAFETY: no memory is involved.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "this test makes a network namespace and needs root");
        let command = ["link", "add", "tpk2", "type", "veth", "peer", "name", "tpk3"];
        assert!(std::process::Command::new("ip").args(command).status().unwrap().success());
        let directory =
            std::env::temp_dir().join(format!("turnpike-kernel-{}", std::process::id()));
        let state = || {
            let key = |(family, key, _): &(&str, &str, &str)| {
                fs::read_to_string(format!("/proc/sys/net/{family}/conf/tpk2/{key}")).unwrap()
            };
            let interface = KernelInterface::open("tpk2").unwrap();
            let flags = interface.interface.flags().unwrap() & libc::IFF_UP as i16;
            (SYSCTLS.iter().map(key).collect::<String>(), flags, interface.mtu().unwrap())
        };
        let before = state();

        let mut first = KernelInterface::open("tpk2").unwrap();
        assert_eq!(first.claim(&directory), Ok(Vec::new()));
        first.set_mtu(1300).unwrap();
        first.take_over().unwrap();
        assert_ne!(state(), before);
        let other = KernelInterface::open("tpk2").unwrap().claim(&directory);
        assert_eq!(other, Err(format!("process {}", std::process::id())));
        // A kill: nothing is undone, the record stays, its lock is released.
        let lines = std::mem::take(&mut first.undo).iter().map(Undo::to_line).collect::<Vec<_>>();
        drop(first);
        let name = {
            let interface = KernelInterface::open("tpk2").unwrap();
            format!("{:x}-{}", interface.namespace(), interface.index)
        };
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(&name), format!("process 1\n{}\n", lines.join("\n"))).unwrap();

        let mut second = KernelInterface::open("tpk2").unwrap();
        let notes = second.claim(&directory).unwrap();
        assert_eq!(notes, ["tpk2 was put back as it was before a router that was killed"]);
        assert_eq!(state(), before);
        second.take_over().unwrap();
        drop(second);
        assert_eq!(state(), before);
        assert!(!directory.exists());
    }

    /// As the book does when a process ends by force: without the owner of the interface.
    #[test]
    fn changes_are_undone_without_whoever_made_them() {
        // SAFETY: no memory is involved.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "this test makes a network namespace and needs root");
        let ip = |words: &str| {
            let done = std::process::Command::new("ip").args(words.split(' ')).status().unwrap();
            assert!(done.success(), "ip {words}");
        };
        ip("link add tpk4 type veth peer name tpk5");
        let state = |name: &str| {
            let key = |(family, key, _): &(&str, &str, &str)| {
                fs::read_to_string(format!("/proc/sys/net/{family}/conf/{name}/{key}")).unwrap()
            };
            let mtu = KernelInterface::open(name).unwrap().mtu().unwrap();
            (SYSCTLS.iter().map(key).collect::<String>(), mtu)
        };
        let before = state("tpk4");
        let mut held = KernelInterface::open("tpk4").unwrap();
        held.set_mtu(1300).unwrap();
        held.take_over().unwrap();
        assert_ne!(state("tpk4"), before);
        let mut page = book::take(held.page).expect("what is changed is in the book");
        // The interface was renamed meanwhile.
        ip("link set tpk4 down");
        ip("link set tpk4 name tpk6");
        // Twice, since a change may be under way.
        (0..2).for_each(|_| page.revert_all());
        assert_eq!(state("tpk6"), before);
        held.write_record();
        let number = held.page;
        drop(held);
        assert!(book::take(number).is_none(), "who has undone all has no page any more");
        assert_eq!(state("tpk6"), before);
    }

    #[test]
    fn what_could_not_be_sent_is_read_from_the_interface_s_line() {
        let line = "  eth1: 1 2 3 4 5 6 7 8 101 102 13 14 105 106 107 108";
        assert_eq!(unsent_in(line, "eth1"), Some(13 + 14));
        assert_eq!(unsent_in(line, "eth"), None);
        // A label of old kernels: its own colon belongs to the name.
        assert_eq!(unsent_in("eth1:0: 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8", "eth1"), None);
        for other in ["Inter-|   Receive  |  Transmit", "eth1: 1 2 3", "eth1: x"] {
            assert_eq!(unsent_in(other, "eth1"), None, "{other}");
        }
    }

    #[test]
    fn changes_survive_the_record() {
        for step in [
            Undo::Sysctl { path: "/proc/sys/net/x".into(), value: "1".into() },
            Undo::Flags(-4099),
            Undo::Mtu(1500),
            Undo::Ethtool { command: 0x26, value: 1 << 15 },
            Undo::Xdp(Some(7)),
            Undo::Xdp(None),
        ] {
            assert_eq!(Undo::from_line(&step.to_line()), Some(step));
        }
        for damaged in ["", "mtu", "mtu x", "mtu 1 2", "sysctl /proc", "hello 1"] {
            assert_eq!(Undo::from_line(damaged), None, "{damaged}");
        }
    }
}
