//! Frames for the kernel on the device of an accelerated port, which has received them there.

use std::io::{self, ErrorKind, IoSlice};

use dpdk::{Returner, VirtioHeader};

use super::FrameDevice;

/// The kernel's side of an accelerated port. The kernel sends its own frames without the router, so there are none to
/// read.
pub struct ReturnDevice(pub Returner);

impl FrameDevice for ReturnDevice {
    fn read(&self, _: &mut VirtioHeader, _: &mut [u8]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let [_header, frame @ ..] = parts else { return Err(ErrorKind::InvalidInput.into()) };
        let given = match frame {
            [whole] => self.0.give(whole),
            pieces => {
                self.0.give(&pieces.iter().flat_map(|piece| &**piece).copied().collect::<Vec<_>>())
            }
        };
        given.map_err(Into::into)
    }

    fn has_headers(&self) -> bool {
        false
    }
}
