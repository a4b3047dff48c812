//! Down: a frame that the kernel sent, on its way to the port.
//!
//! The kernel sends up to 64 KiB at once and leaves their segmentation to the interface. Segments are
//! made one by one, as the port's ring has room for them; the next frame is read when the last has left.
//! Where the port's device segments, it gets as many segments in one packet of several buffers as it takes;
//! where it writes checksums, they are left to it.

use std::io;

use dataplane::reason::DropReason;
use dpdk::{Layers, Mbuf, Mempool, Offload, Port, VirtioHeader};
use wire::ethernet::ETHERNET_LEN;
use wire::offload::NetHeader;
use wire::offload::segment::{Headers, Piece, Segments, Transport};
use zerocopy::FromBytes;

/// Room for any frame that a host interface can send: an IP packet, Ethernet header and VLAN tags.
pub const FRAME_MOST: usize = 65_536 + 64;

/// What the device of a port does for packets that leave by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceWork {
    /// It writes TCP and UDP checksums.
    pub checksum: bool,
    /// It segments TCP packets of so many buffers; 0: none.
    pub segmentation: usize,
    /// Bytes of the longest frame that it makes.
    pub frame: usize,
}

/// DPDK's driver for TAP devices, which blocks its queue where a segment is longer than the MTU with its
/// Ethernet header, or where it has too few buffers of its own.
const TAP: (&str, usize) = ("net_tap", 8);

impl DeviceWork {
    /// Of a port as it was opened.
    pub fn of(port: &Port) -> Self {
        let used = |offload| port.offloads().on(offload);
        let segments = used(Offload::Segmentation) && used(Offload::MultiSegment);
        let (mtu, most) = (usize::from(port.mtu()), port.tx_buffers_most());
        let (frame, most) = match port.driver() == TAP.0 {
            true => (mtu, most.min(TAP.1)),
            false => (mtu + ETHERNET_LEN, most),
        };
        let segmentation = if segments { most } else { 0 };
        Self { checksum: used(Offload::TxChecksum), segmentation, frame }
    }
}

/// A frame of the kernel and its segments that have not left.
pub struct Down {
    /// Room for any frame.
    buffer: Vec<u8>,
    /// Bytes of the frame that is in it.
    length: usize,
    segments: Option<Segments>,
    device: DeviceWork,
    /// What the device must know of the frame, if it is to do something.
    layers: Option<Layers>,
    /// Bytes of data in each segment that the device is to make.
    cut: Option<u16>,
}

impl Down {
    /// Nothing is on the way.
    pub fn new() -> Self {
        let device = DeviceWork::default();
        let buffer = vec![0; FRAME_MOST];
        Self { buffer, length: 0, segments: None, device, layers: None, cut: None }
    }

    /// Leaves this to the device from the next frame on.
    pub fn set_device(&mut self, device: DeviceWork) {
        self.device = device;
    }

    /// Whether packets of many buffers leave.
    pub fn has_large_packets(&self) -> bool {
        self.device.segmentation > 0
    }

    /// Whether all of the frame has left.
    pub fn is_empty(&self) -> bool {
        self.segments.as_ref().is_none_or(Segments::is_done)
    }

    /// Reads the next frame, which is to leave in buffers with so many bytes of room; the reason to drop it
    /// if its header does not fit.
    ///
    /// # Errors
    /// What reading says.
    pub fn fill(
        &mut self,
        room: usize,
        read: impl FnOnce(&mut VirtioHeader, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Result<(), DropReason>> {
        let mut header = VirtioHeader::default();
        self.length = read(&mut header, &mut self.buffer)?;
        let header = NetHeader::read_from_bytes(&header).unwrap_or_default();
        let segments = Segments::new(&header, self.frame());
        let result = segments.as_ref().map(drop).map_err(|_| DropReason::HostMalformed);
        self.segments = segments.ok().map(|segments| self.plan(segments, room));
        Ok(result)
    }

    fn frame(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Decides what the device does with a frame.
    fn plan(&mut self, segments: Segments, room: usize) -> Segments {
        (self.layers, self.cut) = (None, None);
        let headers = segments.headers(self.frame()).filter(|_| self.device.checksum);
        let Some(headers) = headers else { return segments };
        self.layers = Some(layers(&headers));
        let cut = segments.device_segment(self.frame());
        let fits = |cut: &u16| headers.data + usize::from(*cut) <= self.device.frame;
        let Some(cut) = cut.filter(fits) else { return segments };
        let bytes = (self.device.segmentation * room).saturating_sub(headers.data);
        match bytes / usize::from(cut).max(1) {
            0 | 1 => segments,
            group => {
                self.cut = Some(cut);
                segments.in_groups(u16::try_from(group).unwrap_or(u16::MAX))
            }
        }
    }

    /// Makes the next packet, of an empty one and more of the pool if it needs them; its length. `None`: there
    /// is nothing now, or there are too few buffers.
    ///
    /// # Errors
    /// The packet's buffer is too small for it: somebody raised the interface's MTU above what the port
    /// can send.
    pub fn next(&mut self, packet: &mut Mbuf, pool: &Mempool) -> Option<Result<usize, DropReason>> {
        let mut rest = self.segments.clone()?;
        let piece = rest.next()?;
        let segment = self.cut.filter(|&segment| piece.data_len() > usize::from(segment));
        let whole = match segment {
            // What is longer than a buffer is the device's to cut.
            Some(_) => copy_chained(&piece, self.frame(), packet, pool)?,
            None => piece.parts(self.frame()).iter().all(|part| packet.extend(part)),
        };
        self.segments = Some(rest);
        if !whole {
            return Some(Err(DropReason::TooBig));
        }
        Some(self.finish(&piece, packet, segment).map(|()| piece.len()))
    }

    /// Completes a packet, or leaves that to the device.
    fn finish(
        &self,
        piece: &Piece,
        packet: &mut Mbuf,
        segment: Option<u16>,
    ) -> Result<(), DropReason> {
        let Some(layers) = self.layers else {
            piece.finish(packet.data_mut());
            return Ok(());
        };
        piece.finish_headers(packet.data_mut());
        let asked = match segment {
            Some(segment) => packet.request_segmentation(layers, segment),
            None => packet.request_checksum(layers),
        };
        if asked { Ok(()) } else { Err(DropReason::HostMalformed) }
    }
}

/// Copies a piece into a packet, and into more buffers behind its own, each filled; false if there is no room
/// for its headers, `None` if there are too few buffers.
fn copy_chained(piece: &Piece, frame: &[u8], packet: &mut Mbuf, pool: &Mempool) -> Option<bool> {
    let [headers, data] = piece.parts(frame);
    let room = usize::from(pool.data_room());
    let (first, rest) = data.split_at(data.len().min(room.saturating_sub(headers.len())));
    let mut whole = packet.extend(headers) && packet.extend(first);
    for bytes in rest.chunks(room.max(1)) {
        let mut buffer = pool.alloc()?;
        whole &= buffer.extend(bytes) && packet.chain(buffer).is_ok();
    }
    Some(whole)
}

fn layers(headers: &Headers) -> Layers {
    let &Headers { ip, l4, data, ip6, transport } = headers;
    Layers {
        link: ip as u16,
        network: (l4 - ip) as u16,
        ip6,
        transport: match transport {
            Transport::Tcp => dpdk::Transport::Tcp,
            Transport::Udp => dpdk::Transport::Udp,
        },
        header: (data - l4) as u16,
    }
}
