//! Requests about a kernel interface: a socket, an `ifreq`, an `ioctl`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{mem, ptr};

use crate::Errno;

/// A kernel interface by its name, and a socket for requests about it. The socket stays in the
/// network namespace that it was created in.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    socket: OwnedFd,
}

impl Interface {
    /// Creates a handle for the interface of this name; its existence is checked by the first
    /// request.
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        // SAFETY: makes a descriptor.
        let socket =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a descriptor that the kernel has just created for us.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        Ok(Self { name: name.to_owned(), socket })
    }

    /// Creates another handle with the same socket.
    pub(crate) fn try_clone(&self) -> Result<Self, Errno> {
        let socket = self
            .socket
            .try_clone()
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EBADF)))?;
        Ok(Self { name: self.name.clone(), socket })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn index(&self) -> Result<u32, Errno> {
        let mut request = request(&self.name);
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: the request filled in the index.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
    }

    /// Returns the name that the interface with this index has now; `None` if it was removed.
    pub(crate) fn name_of(&self, index: u32) -> Option<String> {
        let mut request = request("");
        request.ifr_ifru.ifru_ifindex = index as i32;
        self.ioctl(libc::SIOCGIFNAME, &mut request).ok()?;
        let bytes = request.ifr_name.iter().take_while(|&&byte| byte != 0);
        String::from_utf8(bytes.map(|&byte| byte as u8).collect()).ok()
    }

    /// Returns a handle for another name, in the same network namespace.
    pub(crate) fn renamed(&self, name: &str) -> Result<Self, Errno> {
        let socket = self.socket.try_clone().map_err(|_| Errno::last())?;
        Ok(Self { name: name.to_owned(), socket })
    }

    pub(crate) fn mtu(&self) -> Result<i32, Errno> {
        let mut request = request(&self.name);
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the request filled in the MTU.
        Ok(unsafe { request.ifr_ifru.ifru_mtu })
    }

    pub(crate) fn set_mtu(&self, mtu: i32) -> Result<(), Errno> {
        let mut request = request(&self.name);
        request.ifr_ifru.ifru_mtu = mtu;
        self.ioctl(libc::SIOCSIFMTU, &mut request)
    }

    pub(crate) fn flags(&self) -> Result<i16, Errno> {
        let mut request = request(&self.name);
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the request filled in the flags.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    /// Returns true if the kernel takes the interface for usable: it is up, and so is its other end.
    pub(crate) fn is_running(&self) -> bool {
        let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        self.flags().is_ok_and(|flags| flags & wanted == wanted)
    }

    pub(crate) fn set_flags(&self, flags: i16) -> Result<(), Errno> {
        let mut request = request(&self.name);
        request.ifr_ifru.ifru_flags = flags;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    pub(crate) fn mac(&self) -> Result<[u8; 6], Errno> {
        let mut request = request(&self.name);
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the request filled in the address.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|place| address[place] as u8))
    }

    /// Returns true if its frames are those of Ethernet.
    pub(crate) fn is_ethernet(&self) -> Result<bool, Errno> {
        let mut request = request(&self.name);
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the request filled in the address.
        let family = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
        Ok(family == libc::ARPHRD_ETHER)
    }

    pub(crate) fn set_mac(&self, mac: [u8; 6]) -> Result<(), Errno> {
        // SAFETY: the struct holds integers, for all of which zero is a value.
        let mut address: libc::sockaddr = unsafe { mem::zeroed() };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        let mut request = request(&self.name);
        request.ifr_ifru.ifru_hwaddr = address;
        self.ioctl(libc::SIOCSIFHWADDR, &mut request)
    }

    /// Sends an ethtool request; `T` is the struct of the command it begins with.
    pub(crate) fn ethtool<T>(&self, command: &mut T) -> Result<(), Errno> {
        let mut request = request(&self.name);
        request.ifr_ifru.ifru_data = ptr::from_mut(command).cast();
        self.ioctl(libc::SIOCETHTOOL, &mut request)
    }

    fn ioctl(&self, code: libc::c_ulong, request: &mut libc::ifreq) -> Result<(), Errno> {
        // SAFETY: each code used here reads and writes an `ifreq`, and SIOCETHTOOL the struct
        // it points to, which `ethtool` borrows.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), code as _, request) };
        if result < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

/// Creates a request for this interface.
pub(crate) fn request(name: &str) -> libc::ifreq {
    // SAFETY: the struct holds integers and a pointer, for all of which zero is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays 0; a longer name belongs to no interface.
    let room = request.ifr_name.len() - 1;
    for (to, &from) in request.ifr_name[..room].iter_mut().zip(name.as_bytes()) {
        *to = from as libc::c_char;
    }
    request
}
