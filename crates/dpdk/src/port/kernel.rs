//! A kernel interface that a port takes over: what must be changed so that the port alone, and
//! not the host's network stack, deals with its packets; all of it is undone when the port closes.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{fs, mem, ptr};

use super::bpf;
use crate::Errno;

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Offloads that merge received packets, each with its commands to read and to write: generic
/// and large receive offload (the latter is a flag among others).
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const FLAG_LRO: u32 = 1 << 15;

/// Settings that keep the host out of a link it does not serve: it makes no IPv6 address for
/// itself there, forwards nothing, and answers no ARP.
const SYSCTLS: [(&str, &str, &str); 3] =
    [("ipv6", "disable_ipv6", "1"), ("ipv4", "forwarding", "0"), ("ipv4", "arp_ignore", "8")];

/// An interface, and what is to be undone.
pub(super) struct KernelInterface {
    pub(super) name: String,
    index: u32,
    /// Any socket: what interface requests go through. It keeps to the network namespace that
    /// the port was opened in.
    socket: OwnedFd,
    undo: Vec<Undo>,
    links: Vec<OwnedFd>,
}

enum Undo {
    Sysctl { path: String, value: String },
    Flags(i16),
    Mtu(i32),
    Ethtool { command: u32, value: u32 },
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
    /// The interface of this name, unchanged so far.
    pub(super) fn open(name: &str) -> Result<Self, Errno> {
        // SAFETY: makes a descriptor.
        let socket =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(Errno::of_system());
        }
        // SAFETY: a descriptor that the kernel has just made for us.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let (name, undo, links) = (name.to_owned(), Vec::new(), Vec::new());
        let mut interface = Self { name, index: 0, socket, undo, links };
        let mut request = interface.request();
        interface.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: the request filled in the index.
        interface.index = unsafe { request.ifr_ifru.ifru_ifindex } as u32;
        Ok(interface)
    }

    /// Keeps the host out, and brings the interface up, with all multicasts: the neighbour
    /// protocols need theirs (RFC 4861 7.2.1), and a filter for few groups saves a router nothing.
    pub(super) fn take_over(&mut self) -> Result<(), Errno> {
        for (family, key, value) in SYSCTLS {
            self.set_sysctl(format!("/proc/sys/net/{family}/conf/{}/{key}", self.name), value);
        }
        let flags = self.flags()?;
        let up = flags | (libc::IFF_UP | libc::IFF_ALLMULTI) as i16;
        if up != flags {
            self.undo.push(Undo::Flags(flags));
            self.set_flags(up)?;
        }
        Ok(())
    }

    /// Prepares for a packet socket: received packets come one by one, as they were on the
    /// wire, and the host does not see them. Says what could not be had.
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
        // After the XDP program, which turns generic receive offload on.
        self.disable_merging();
        notes
    }

    /// Whether AF_XDP can work here, as far as that can be told without receiving.
    pub(super) fn try_xdp(&self) -> Result<(), String> {
        // SAFETY: makes a descriptor.
        let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(format!("the kernel gives no AF_XDP socket: {}", Errno::of_system()));
        }
        // SAFETY: a descriptor that the kernel has just made for us.
        drop(unsafe { OwnedFd::from_raw_fd(socket) });
        match bpf::attach(bpf::XDP_PASS, self.index) {
            Ok(_link) => Ok(()),
            // AF_XDP's own program stays when a router is killed.
            Err(Errno(libc::EBUSY)) => Err(format!(
                "{name} has an XDP program already; remove it: ip link set {name} xdp off",
                name = self.name
            )),
            Err(errno) => Err(format!("no XDP program can be attached: {errno}")),
        }
    }

    pub(super) fn mtu(&self) -> Result<u16, Errno> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the request filled in the MTU.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) -> Result<(), Errno> {
        let old = self.mtu()?;
        if old != mtu {
            self.write_mtu(mtu.into())?;
            self.undo.push(Undo::Mtu(old.into()));
        }
        Ok(())
    }

    /// Whether the link is up: the interface is, and so is its other end.
    pub(super) fn is_running(&self) -> bool {
        let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        self.flags().is_ok_and(|flags| flags & wanted == wanted)
    }

    /// The kernel driver's name; empty when it does not say.
    pub(super) fn driver_name(&self) -> String {
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        if self.ethtool(&mut info).is_err() {
            return String::new();
        }
        let name = info.driver.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    /// Receive queues that the interface has; at least 1.
    pub(super) fn receive_queues(&self) -> u16 {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        if self.ethtool(&mut channels).is_err() {
            return 1;
        }
        u16::try_from(channels.combined + channels.rx).unwrap_or(u16::MAX).max(1)
    }

    fn disable_merging(&mut self) {
        if let Ok(on @ 1..) = self.ethtool_value(ETHTOOL_GGRO, 0) {
            self.change_ethtool(ETHTOOL_SGRO, on, 0);
        }
        if let Ok(flags) = self.ethtool_value(ETHTOOL_GFLAGS, 0)
            && flags & FLAG_LRO != 0
        {
            self.change_ethtool(ETHTOOL_SFLAGS, flags, flags & !FLAG_LRO);
        }
    }

    fn change_ethtool(&mut self, command: u32, old: u32, new: u32) {
        if self.ethtool_value(command, new).is_ok() {
            self.undo.push(Undo::Ethtool { command, value: old });
        }
    }

    fn ethtool_value(&self, command: u32, data: u32) -> Result<u32, Errno> {
        let mut value = EthtoolValue { command, data };
        self.ethtool(&mut value)?;
        Ok(value.data)
    }

    /// `T` is the struct of the command it begins with.
    fn ethtool<T>(&self, command: &mut T) -> Result<(), Errno> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = ptr::from_mut(command).cast();
        self.ioctl(libc::SIOCETHTOOL, &mut request)
    }

    /// Writes a setting if the kernel has it, and remembers what it was.
    fn set_sysctl(&mut self, path: String, value: &str) {
        let Ok(old) = fs::read_to_string(&path) else { return };
        let old = old.trim().to_owned();
        if old != value && fs::write(&path, value).is_ok() {
            self.undo.push(Undo::Sysctl { path, value: old });
        }
    }

    fn flags(&self) -> Result<i16, Errno> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the request filled in the flags.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    fn set_flags(&self, flags: i16) -> Result<(), Errno> {
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = flags;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    fn write_mtu(&self, mtu: i32) -> Result<(), Errno> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = mtu;
        self.ioctl(libc::SIOCSIFMTU, &mut request)
    }

    /// A request that names this interface.
    fn request(&self) -> libc::ifreq {
        // SAFETY: the struct holds integers and a pointer, for all of which zero is a value.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        // The last byte stays 0; a longer name is no interface's.
        let room = request.ifr_name.len() - 1;
        for (to, &from) in request.ifr_name[..room].iter_mut().zip(self.name.as_bytes()) {
            *to = from as libc::c_char;
        }
        request
    }

    fn ioctl(&self, code: libc::c_ulong, request: &mut libc::ifreq) -> Result<(), Errno> {
        // SAFETY: each code used here reads and writes an `ifreq`, and SIOCETHTOOL the struct
        // it points to, which `ethtool` borrows.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), code as _, request) };
        if result < 0 { Err(Errno::of_system()) } else { Ok(()) }
    }
}

impl Drop for KernelInterface {
    fn drop(&mut self) {
        self.links.clear();
        // Whatever cannot be undone (the interface may be gone) stays; nobody is there to ask.
        while let Some(step) = self.undo.pop() {
            let _ = match step {
                Undo::Sysctl { path, value } => fs::write(path, value).map_err(|_| Errno(0)),
                Undo::Flags(flags) => self.set_flags(flags),
                Undo::Mtu(mtu) => self.write_mtu(mtu),
                Undo::Ethtool { command, value } => self.ethtool_value(command, value).map(drop),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let program = bpf::attach(bpf::XDP_PASS, interface.index).unwrap();
        let words = "tpk0 has an XDP program already; remove it: ip link set tpk0 xdp off";
        assert_eq!(interface.try_xdp(), Err(words.into()));
        drop(program);
        assert_eq!(interface.try_xdp(), Ok(()), "a program goes with its descriptor");
        assert_eq!(KernelInterface::open("tpk9").map(drop), Err(Errno(libc::ENODEV)));
    }
}
