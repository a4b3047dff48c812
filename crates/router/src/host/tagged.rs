//! Frames for VLAN devices of the kernel, which the operator makes on host interfaces (`eth1.100`).
//!
//! ```text
//!   frames of VLAN 100 --> tagged, to the TAP eth1 --> kernel: eth1.100
//!   frames of eth1.100 --> kernel tags them, TAP eth1 --> read there, as the port's own
//! ```
//!
//! A TAP may be replaced while the router runs, so it is looked up for each frame.

use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::{Arc, Mutex, Weak};

use dataplane::lock::lock;
use dataplane::vlan::Tag;
use dpdk::VirtioHeader;
use wire::ethernet::ADDRESSES_LEN;
use wire::offload::{NEEDS_CHECKSUM, NetHeader};
use zerocopy::{FromBytes, IntoBytes};

use super::FrameDevice;
use super::up::FRAMES_MOST;

/// A host interface in use, if there is one.
type Slot = Arc<Mutex<Weak<dyn FrameDevice>>>;

/// The TAPs in use, by name, for the VLAN devices on them.
#[derive(Clone, Default)]
pub struct Taps(Arc<Mutex<HashMap<String, Slot>>>);

impl Taps {
    /// Interfaces on the host interface of this name use this TAP from now on.
    pub fn set(&self, name: &str, device: &Arc<dyn FrameDevice>) {
        *lock(&self.get(name)) = Arc::downgrade(device);
    }

    /// Returns the place of the TAP of this name.
    pub fn get(&self, name: &str) -> Slot {
        let none = || Slot::new(Mutex::new(Weak::<dpdk::Tap>::new()));
        lock(&self.0).entry(name.to_owned()).or_insert_with(none).clone()
    }
}

/// The way of a VLAN's frames to the kernel's VLAN device.
pub struct TaggedDevice {
    below: Slot,
    /// The tags as they stand in a frame.
    tags: Vec<u8>,
}

impl TaggedDevice {
    /// Creates it for a device with these tags, outer first, on a host interface.
    pub fn new(below: Slot, tags: &[Tag]) -> Self {
        Self { below, tags: tags.iter().flat_map(|tag| tag.bytes()).collect() }
    }

    /// Returns the header of a frame that is longer by the tags.
    fn header(&self, header: &[u8]) -> io::Result<NetHeader> {
        let mut header = NetHeader::read_from_bytes(header).map_err(|_| ErrorKind::InvalidInput)?;
        let more = self.tags.len() as u16;
        if header.flags & NEEDS_CHECKSUM != 0 {
            header.checksum_start.set(header.checksum_start.get().saturating_add(more));
        }
        if header.header_len.get() != 0 {
            header.header_len.set(header.header_len.get().saturating_add(more));
        }
        Ok(header)
    }
}

impl FrameDevice for TaggedDevice {
    fn read(&self, _: &mut VirtioHeader, _: &mut [u8]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let Some(device) = lock(&self.below).upgrade() else { return Err(nix::Error::EIO.into()) };
        let [header, first, rest @ ..] = parts else { return Err(ErrorKind::InvalidInput.into()) };
        let (addresses, data) =
            first.split_at_checked(ADDRESSES_LEN).ok_or(ErrorKind::InvalidInput)?;
        let header = self.header(header)?;
        let mut all = [IoSlice::new(&[]); FRAMES_MOST + 4];
        let own = [header.as_bytes(), addresses, &self.tags, data];
        let tagged = own.into_iter().chain(rest.iter().map(|part| &**part));
        let mut used = 0;
        for (place, part) in all.iter_mut().zip(tagged) {
            *place = IoSlice::new(part);
            used += 1;
        }
        device.write(&all[..used])
    }

    fn has_headers(&self) -> bool {
        // One without, of an older router, is not found here: the TAP may not be open yet.
        lock(&self.below).upgrade().is_none_or(|device| device.has_headers())
    }
}

#[cfg(test)]
mod tests {
    use dataplane::vlan::TagProtocol;
    use wire::offload::SEGMENT_TCP4;

    use super::super::testing::{Device, Kernel};
    use super::*;

    /// A TAP, and the frames that it gets.
    fn tap() -> (Arc<dyn FrameDevice>, Arc<Mutex<Kernel>>) {
        let (kernel, (reader, _)) = (Arc::<Mutex<Kernel>>::default(), io::pipe().unwrap());
        (Arc::new(Device(kernel.clone(), reader)), kernel)
    }

    fn tag(protocol: TagProtocol, id: u16, priority: u8) -> Tag {
        Tag { protocol, id, priority }
    }

    const FRAME: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0, 0x45, 0, 0, 20];

    fn write(device: &TaggedDevice, header: NetHeader) -> io::Result<()> {
        let (head, rest) = FRAME.split_at(15);
        device.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(head), IoSlice::new(rest)])
    }

    #[test]
    fn frames_get_the_tags_of_their_vlan_and_go_to_the_tap_in_use() {
        let taps = Taps::default();
        let tags = [tag(TagProtocol::Dot1ad, 300, 5), tag(TagProtocol::Dot1q, 7, 0)];
        let device = TaggedDevice::new(taps.get("lan"), &tags);
        let refused = write(&device, NetHeader::default()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(nix::libc::EIO), "there is no TAP yet");
        let (one, kernel) = tap();
        taps.set("lan", &one);
        let mut large =
            NetHeader { flags: NEEDS_CHECKSUM, segmentation: SEGMENT_TCP4, ..NetHeader::default() };
        (large.checksum_start, large.header_len) = (34.into(), 54.into());
        write(&device, NetHeader::default()).unwrap();
        write(&device, large).unwrap();
        let (other, _) = tap();
        taps.set("lan", &other);
        write(&device, NetHeader::default()).unwrap();
        drop(other);
        assert!(write(&device, NetHeader::default()).is_err(), "it was removed");
        let kernel = lock(&kernel);
        let expected =
            [&FRAME[..12], &[0x88, 0xa8, 0xa1, 0x2c, 0x81, 0, 0, 7], &FRAME[12..]].concat();
        assert_eq!(kernel.got, [&expected[..]; 2]);
        let header = |at: usize| &kernel.got_headers[at];
        let numbers = |at: usize| (header(at).checksum_start.get(), header(at).header_len.get());
        assert_eq!((numbers(0), numbers(1)), ((0, 0), (42, 62)), "offsets are behind the tags");
    }

    #[test]
    fn a_frame_without_addresses_is_refused() {
        let taps = Taps::default();
        let (tap, _) = tap();
        taps.set("lan", &tap);
        let device = TaggedDevice::new(taps.get("lan"), &[tag(TagProtocol::Dot1q, 7, 0)]);
        let header = NetHeader::default();
        for parts in [&[][..], &[IoSlice::new(header.as_bytes()), IoSlice::new(&FRAME[..11])]] {
            assert_eq!(device.write(parts).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
