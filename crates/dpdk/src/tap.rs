//! A TAP interface: the kernel receives the frames written here, and its own frames are read here.
//!
//! DPDK has a driver for these; this one is for the slow path, which needs an interface that outlives its
//! process: with the interface the kernel would delete a million routes and their daemons' sessions. The
//! next process reuses it. While no process has its descriptor it has no carrier.
//!
//! Each frame has a virtio header in front of it (`IFF_VNET_HDR`), by which either side may leave
//! checksums and segmentation to the other: one system call then carries up to 64 KiB of a TCP connection.
//! An existing interface gets the header when it is attached, however it was created; a descriptor that
//! was kept open by an earlier process has the format it was created with ([`Tap::has_headers`]).

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::interface::{Interface, request};
use crate::{Errno, Error};

/// A TAP interface, up. When this is dropped, and when the process is killed, it stays with its addresses
/// and routes, without carrier; `ip link del NAME` removes it.
///
/// Frames are Ethernet frames without FCS, one per call. The kernel leaves checksums and segmentation to
/// the reader once [`Tap::set_segmentation`] has allowed that.
#[derive(Debug)]
pub struct Tap {
    file: File,
    index: u32,
    headers: bool,
}

/// A frame's `struct virtio_net_hdr`, little-endian.
pub type VirtioHeader = [u8; 10];

/// Work that the kernel may leave to the reader: checksums, and the segmentation of TCP over both
/// families.
const OFFLOADS: libc::c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;

/// The same for UDP (Linux 6.2).
const UDP_OFFLOADS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

impl Tap {
    /// Creates an interface in the calling thread's network namespace, with this name of at most 15
    /// characters, MAC and MTU, and brings it up. An existing TAP of this name without a user is taken
    /// over as it is.
    ///
    /// # Errors
    /// [`Error::Tap`] with the step that failed and, where there is one, the way out.
    pub fn create(name: &str, mac: [u8; 6], mtu: u16) -> Result<Self, Error> {
        let failed = |problem: String| Error::Tap { name: name.to_owned(), problem };
        if name.contains('\0') || !(1..libc::IFNAMSIZ).contains(&name.len()) {
            return Err(failed("an interface's name has 1 to 15 characters".into()));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(|error| failed(format!("/dev/net/tun: {error}; load it: modprobe tun")))?;
        let mut request = request(name);
        request.ifr_ifru.ifru_flags = FLAGS as i16;
        // SAFETY: TUNSETIFF reads and writes an `ifreq`.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
        if result < 0 {
            return Err(match Errno::last() {
                Errno::EBUSY => failed(
                    "exists already and is in use by another process: another router, or who holds it for \
                     one that was killed (start that one again, with its --socket, or end its turnpike hold)"
                        .into(),
                ),
                Errno::EINVAL => failed(
                    "exists already; remove it or give the port another name (the port's device \
                     cannot have the port's name in the same network namespace)"
                        .into(),
                ),
                Errno::EPERM => failed("not permitted; CAP_NET_ADMIN is needed".into()),
                errno => failed(errno.to_string()),
            });
        }
        let tap = Self::bring_up(file, name, mac, mtu, true)?;
        tap.set_lasting(true).map_err(|error| failed(format!("making it stay: {error}")))?;
        Ok(tap)
    }

    /// Like [`Self::create`], with the descriptor that an earlier process had of this interface, whose
    /// carrier stays as long as the descriptor is open.
    ///
    /// # Errors
    /// [`Error::Tap`]: the descriptor does not belong to the TAP of this name in the calling thread's
    /// namespace, or a step failed.
    pub fn take_over(held: OwnedFd, name: &str, mac: [u8; 6], mtu: u16) -> Result<Self, Error> {
        let failed = |problem: &str| Error::Tap { name: name.into(), problem: problem.into() };
        let mut request = request("");
        // SAFETY: TUNGETIFF writes an `ifreq`.
        let result = unsafe { libc::ioctl(held.as_raw_fd(), libc::TUNGETIFF as _, &mut request) };
        if result < 0 {
            return Err(failed("the descriptor that was kept is no TAP's, or it was removed"));
        }
        let known = request.ifr_name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
        if !known.eq(name.bytes()) {
            return Err(failed("the descriptor that was kept is another interface's"));
        }
        // SAFETY: the request filled in the flags.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        let headers = flags & libc::IFF_VNET_HDR as i16 != 0;
        Self::bring_up(File::from(held), name, mac, mtu, headers)
    }

    fn bring_up(
        file: File,
        name: &str,
        mac: [u8; 6],
        mtu: u16,
        headers: bool,
    ) -> Result<Self, Error> {
        let index = set_up(name, mac, mtu)?;
        let tap = Self { file, index, headers };
        let failed = |error| Error::Tap { name: name.into(), problem: format!("{error}") };
        tap.set_header_format().map_err(failed)?;
        Ok(tap)
    }

    /// Sets the format: ten bytes, little-endian, regardless of the setting of an earlier user.
    fn set_header_format(&self) -> io::Result<()> {
        if self.headers {
            self.set_int(libc::TUNSETVNETHDRSZ, size_of::<VirtioHeader>() as libc::c_int)?;
            self.set_int(libc::TUNSETVNETLE, 1)?;
        }
        Ok(())
    }

    /// Sends a request whose `code` reads an `int` from a pointer.
    fn set_int(&self, code: libc::Ioctl, value: libc::c_int) -> io::Result<()> {
        // SAFETY: both requests read an `int`, which lives until the call returns.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), code, &raw const value) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns true if frames have headers; false for a descriptor that an older process created without
    /// them.
    pub fn has_headers(&self) -> bool {
        self.headers
    }

    /// Sets whether the kernel leaves checksums and segmentation to the reader; frames that wait to be
    /// read stay as they are. Without headers the kernel never does.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_segmentation(&self, on: bool) -> io::Result<()> {
        if !self.headers {
            return Ok(());
        }
        let set = |offloads: libc::c_uint| {
            // SAFETY: takes an integer.
            let result =
                unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads) };
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        match on {
            false => set(0),
            true => set(OFFLOADS | UDP_OFFLOADS).or_else(|_| set(OFFLOADS)),
        }
    }

    /// Sets another MAC and MTU, from a thread in its network namespace, and brings it up; with another MAC it is not
    /// isolated any more.
    ///
    /// # Errors
    /// [`Error::Tap`] with the step that failed.
    pub fn change(&self, name: &str, mac: [u8; 6], mtu: u16) -> Result<(), Error> {
        set_up(name, mac, mtu).map(drop)
    }

    /// Has the kernel resolve no neighbours on it, nor look for duplicates of its addresses, from a thread in its network
    /// namespace: nobody is behind it.
    ///
    /// # Errors
    /// [`Error::Tap`] with the step that failed.
    pub fn isolate(&self, name: &str) -> Result<(), Error> {
        let failed = |errno: Errno| Error::Tap {
            name: name.to_owned(),
            problem: format!("turning ARP off: {errno}"),
        };
        let interface = Interface::new(name).map_err(failed)?;
        let without_arp = |flags| interface.set_flags(flags | libc::IFF_NOARP as i16);
        interface.flags().and_then(without_arp).map_err(failed)
    }

    /// Sets whether the interface stays, with its addresses and routes, without a user; if not, the kernel
    /// removes it when this is dropped.
    pub fn set_lasting(&self, lasting: bool) -> io::Result<()> {
        // SAFETY: takes an integer.
        let result = unsafe {
            libc::ioctl(self.file.as_raw_fd(), libc::TUNSETPERSIST as _, i32::from(lasting))
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the kernel's number for it, in its namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Reads a frame that the kernel sent, and its header, which is zero for frames without one.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; any other error: the interface was removed.
    pub fn read(&self, header: &mut VirtioHeader, frame: &mut [u8]) -> io::Result<usize> {
        header.fill(0);
        if !self.headers {
            return (&self.file).read(frame);
        }
        let before = header.len();
        let parts = &mut [IoSliceMut::new(header), IoSliceMut::new(frame)];
        Ok((&self.file).read_vectored(parts)?.saturating_sub(before))
    }

    /// Writes a frame to the kernel in parts, at most 1,024, of which the first is the header. The header
    /// is left out if frames have none.
    ///
    /// # Errors
    /// `EIO` while the interface is not up, `EINVAL` for a header that does not fit its frame; other
    /// errors mean that the kernel does not accept it now, or that the interface was removed.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let parts = if self.headers { parts } else { parts.get(1..).unwrap_or_default() };
        (&self.file).write_vectored(parts).map(drop)
    }
}

/// A TAP whose frames have virtio headers and nothing else in front.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// Returns true if the calling thread's network namespace has an interface of this name.
pub fn interface_exists(name: &str) -> bool {
    interface_index(name).is_some()
}

/// Returns the kernel's number of the interface with this name in the calling thread's network namespace;
/// `None` if there is none.
pub fn interface_index(name: &str) -> Option<u32> {
    Interface::new(name).ok()?.index().ok()
}

/// Sets MAC and MTU of an interface in the calling thread's namespace and brings it up; returns its
/// number.
fn set_up(name: &str, mac: [u8; 6], mtu: u16) -> Result<u32, Error> {
    let step = |what: &'static str| {
        move |errno: Errno| Error::Tap {
            name: name.to_owned(),
            problem: format!("{what}: {errno}"),
        }
    };
    let interface = Interface::new(name).map_err(step("opening a socket"))?;
    // Setting it again would clear the kernel's neighbours.
    let is_other = interface.mac().map_err(step("asking for its MAC"))? != mac;
    if is_other {
        interface.set_mac(mac).map_err(step("setting its MAC"))?;
    }
    interface.set_mtu(mtu.into()).map_err(step("setting its MTU"))?;
    // One that has had another MAC may have been isolated for an earlier use of its name.
    let unwanted = if is_other { libc::IFF_NOARP as i16 } else { 0 };
    let up = |flags: i16| interface.set_flags((flags | libc::IFF_UP as i16) & !unwanted);
    interface.flags().and_then(up).map_err(step("bringing it up"))?;
    interface.index().map_err(step("asking for its index"))
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::testing::within_a_minute;

    const MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];

    /// Moves the calling thread to its own network namespace.
    fn namespace() {
        // SAFETY: no memory is involved.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "this test makes a network namespace and needs root");
    }

    /// Creates a TAP whose last user has just dropped it.
    fn create_again(name: &str) -> Tap {
        within_a_minute("its last user is gone", || match Tap::create(name, MAC, 1500) {
            Err(error) if error.to_string().contains("in use by another process") => None,
            result => Some(result.unwrap()),
        })
    }

    fn ip(arguments: &str) -> String {
        let output = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn it_has_name_mac_and_mtu_is_up_and_stays() {
        namespace();
        let tap = Tap::create("tpt0", MAC, 1400).unwrap();
        let link = ip("link show tpt0");
        assert!(link.contains("02:00:00:00:09:01") && link.contains("mtu 1400"), "{link}");
        assert!(link.contains(",UP") && link.starts_with(&format!("{}:", tap.index())), "{link}");
        ip("address add 192.0.2.1/24 dev tpt0");
        ip("route add 198.51.100.0/24 via 192.0.2.2");
        drop(tap);
        let link = within_a_minute("nobody uses it", || {
            Some(ip("link show tpt0")).filter(|link| link.contains("NO-CARRIER"))
        });
        assert!(link.contains("mtu 1400"), "{link}");
        let again = create_again("tpt0");
        let link = ip("link show tpt0");
        assert!(link.contains("LOWER_UP") && link.contains("mtu 1500"), "{link}");
        assert!(link.starts_with(&format!("{}:", again.index())), "{link}");
        assert!(ip("route").contains("198.51.100.0/24 via 192.0.2.2"), "{}", ip("route"));
    }

    #[test]
    fn it_changes_and_goes_if_it_is_not_to_last() {
        namespace();
        assert!(!interface_exists("tpt5"));
        let tap = Tap::create("tpt5", MAC, 1400).unwrap();
        tap.change("tpt5", [2, 0, 0, 0, 9, 9], 1300).unwrap();
        let link = ip("link show tpt5");
        assert!(link.contains("02:00:00:00:09:09") && link.contains("mtu 1300"), "{link}");
        tap.set_lasting(false).unwrap();
        assert!(interface_exists("tpt5"));
        drop(tap);
        within_a_minute("it is gone", || (!interface_exists("tpt5")).then_some(()));
    }

    #[test]
    fn an_isolated_one_has_its_addresses_at_once_and_stays_isolated_until_it_is_another() {
        namespace();
        let tap = Tap::create("tpt9", MAC, 1500).unwrap();
        tap.isolate("tpt9").unwrap();
        ip("address add 2001:db8::1/128 dev tpt9");
        assert!(!ip("address show dev tpt9 scope global").contains("tentative"));
        tap.change("tpt9", MAC, 1400).unwrap();
        let link = ip("link show tpt9");
        assert!(link.contains("NOARP") && link.contains(",UP"), "{link}");
        drop(tap);
        let port = within_a_minute("its last user is gone", || {
            Tap::create("tpt9", [2, 0, 0, 0, 9, 9], 1500).ok()
        });
        let link = ip("link show tpt9");
        assert!(
            !link.contains("NOARP") && link.starts_with(&format!("{}:", port.index())),
            "{link}"
        );
    }

    #[test]
    fn a_name_that_is_taken_is_refused() {
        namespace();
        let tap = Tap::create("tpt1", MAC, 1500).unwrap();
        let error = Tap::create("tpt1", MAC, 1500).unwrap_err().to_string();
        assert!(error.starts_with("host interface tpt1: exists already and is in use"), "{error}");
        drop(tap);
        ip("link add tpt3 type veth peer name tpt4");
        let error = Tap::create("tpt3", MAC, 1500).unwrap_err().to_string();
        assert!(error.starts_with("host interface tpt3: exists already;"), "{error}");
        for name in ["", "sixteen-letters-", "nul\0"] {
            assert!(Tap::create(name, MAC, 1500).is_err(), "{name:?}");
        }
    }

    #[test]
    fn frames_go_both_ways_and_a_down_interface_says_so() {
        namespace();
        let tap = Tap::create("tpt2", MAC, 1500).unwrap();
        ip("address add 192.0.2.1/24 dev tpt2");
        // ARP request for 192.0.2.1 from 192.0.2.2.
        let mut request = [0; 42];
        request[..6].fill(0xff);
        request[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 2]);
        request[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        request[22..32].copy_from_slice(&[2, 0, 0, 0, 9, 2, 192, 0, 2, 2]);
        request[38..42].copy_from_slice(&[192, 0, 2, 1]);
        let parts =
            [IoSlice::new(&[0; 10]), IoSlice::new(&request[..20]), IoSlice::new(&request[20..])];
        tap.write(&parts).unwrap();
        let (mut header, mut frame) = ([1; 10], [0; 2000]);
        let deadline = Instant::now() + Duration::from_secs(5);
        // The kernel sends other frames as well: it solicits IPv6 routers.
        loop {
            assert!(Instant::now() < deadline, "no answer");
            match tap.read(&mut header, &mut frame) {
                Ok(length) if length >= 42 && frame[12..14] == [8, 6] && frame[21] == 2 => break,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(frame[6..12], MAC);
        assert_eq!(frame[28..32], [192, 0, 2, 1]);
        assert_eq!(header, [0; 10], "nothing is left to the reader");
        ip("link set tpt2 down");
        assert_eq!(tap.write(&parts).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    /// Creates a lasting TAP without headers, like older routers.
    fn older(name: &str) -> File {
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
        let mut request = request(name);
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
        // SAFETY: TUNSETIFF reads and writes an `ifreq`; the other takes an integer.
        unsafe {
            assert_eq!(libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request), 0);
            assert_eq!(libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST as _, 1), 0);
        }
        file
    }

    fn features(name: &str) -> String {
        let output = std::process::Command::new("ethtool").args(["-k", name]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let wanted = |line: &&str| {
            ["tx-checksumming:", "tcp-segmentation-offload:", "tx-udp-segmentation:"]
                .iter()
                .any(|start| line.starts_with(start))
        };
        text.lines().filter(wanted).map(|line| line.split(' ').nth(1).unwrap()).collect()
    }

    #[test]
    fn the_kernel_leaves_work_to_the_reader_only_when_it_may() {
        namespace();
        let tap = Tap::create("tpt6", MAC, 1500).unwrap();
        assert!(tap.has_headers());
        assert_eq!(features("tpt6"), "offoffoff");
        tap.set_segmentation(true).unwrap();
        assert_eq!(features("tpt6"), "ononon");
        tap.set_segmentation(false).unwrap();
        assert_eq!(features("tpt6"), "offoffoff");
    }

    #[test]
    fn an_interface_of_an_older_router_gets_headers() {
        namespace();
        drop(older("tpt7"));
        let tap = create_again("tpt7");
        tap.set_segmentation(true).unwrap();
        assert!(tap.has_headers() && tap.file.metadata().is_ok());
        assert_eq!(features("tpt7"), "ononon");
        let held = tap.as_fd().try_clone_to_owned().unwrap();
        drop(tap);
        assert!(Tap::take_over(held, "tpt7", MAC, 1500).unwrap().has_headers());
    }

    #[test]
    fn a_kept_descriptor_of_an_older_router_goes_on_without_headers() {
        namespace();
        let held = OwnedFd::from(older("tpt8"));
        let tap = Tap::take_over(held, "tpt8", MAC, 1500).unwrap();
        tap.set_segmentation(true).unwrap();
        assert!(!tap.has_headers());
        assert_eq!(features("tpt8"), "offoffoff");
        let frame = [[0xff; 12].as_slice(), &[0x88, 0xcc], &[0; 46]].concat();
        tap.write(&[IoSlice::new(&[9; 10]), IoSlice::new(&frame)]).unwrap();
        let shown = ip("-j -s link show tpt8");
        assert!(shown.contains(r#""rx":{"bytes":60,"packets":1,"#), "{shown}");
    }
}
