//! A TAP for tests, at whose other end a test is the kernel.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use dpdk::VirtioHeader;
use wire::offload::NetHeader;
use zerocopy::{FromBytes, IntoBytes};

use super::FrameDevice;

/// The kernel, as the tests have it.
#[derive(Default)]
pub(crate) struct Kernel {
    /// Frames that it sends.
    pub(crate) sends: VecDeque<Vec<u8>>,
    /// The header of each.
    pub(crate) header: NetHeader,
    /// Frames that it got.
    pub(crate) got: Vec<Vec<u8>>,
    /// The header of each.
    pub(crate) got_headers: Vec<NetHeader>,
    /// The error that it returns instead of taking a frame.
    pub(crate) refuses: Option<i32>,
}

/// A TAP, and a descriptor that is readable when its other end says so.
pub(crate) struct Device(pub(crate) Arc<Mutex<Kernel>>, pub(crate) io::PipeReader);

impl FrameDevice for Device {
    fn read(&self, header: &mut VirtioHeader, frame: &mut [u8]) -> io::Result<usize> {
        let mut kernel = self.0.lock().unwrap();
        let sent = kernel.sends.pop_front().ok_or(io::Error::from(io::ErrorKind::WouldBlock))?;
        header.copy_from_slice(kernel.header.as_bytes());
        frame[..sent.len()].copy_from_slice(&sent);
        Ok(sent.len())
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mut kernel = self.0.lock().unwrap();
        if let Some(errno) = kernel.refuses {
            return Err(io::Error::from_raw_os_error(errno));
        }
        kernel.got_headers.push(NetHeader::read_from_bytes(&parts[0]).unwrap());
        kernel.got.push(parts[1..].iter().flat_map(|part| part.iter().copied()).collect());
        Ok(())
    }

    fn has_headers(&self) -> bool {
        true
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(&self.1))
    }
}
