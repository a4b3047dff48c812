//! Down: frames from the kernel to the port.

use std::io;

use dataplane::reason::DropReason;
use dpdk::{Layers, Mbuf, Mempool, Offload, Port, VirtioHeader};
use wire::ethernet::ETHERNET_LEN;
use wire::offload::NetHeader;
use wire::offload::segment::{Headers, Piece, Segments, Transport};
use zerocopy::FromBytes;

/// Room for any frame that a host interface can send: an IP packet, Ethernet header and VLAN tags.
pub const FRAME_MOST: usize = 65_536 + 64;

/// Offloads of a port's device for packets from the kernel.
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
    /// The headers that the device must know to write checksums or segment; `None` if it does neither.
    layers: Option<Layers>,
    /// Bytes of data in each segment that the device is to make.
    cut: Option<u16>,
}

impl Down {
    /// Creates one without a frame.
    pub fn new() -> Self {
        let device = DeviceWork::default();
        let buffer = vec![0; FRAME_MOST];
        Self { buffer, length: 0, segments: None, device, layers: None, cut: None }
    }

    /// Leaves this to the device from the next frame on.
    pub fn set_device(&mut self, device: DeviceWork) {
        self.device = device;
    }

    /// Returns what is left to the device.
    pub fn device(&self) -> DeviceWork {
        self.device
    }

    /// Returns true if packets of many buffers leave.
    pub fn has_large_packets(&self) -> bool {
        self.device.segmentation > 0
    }

    /// Returns true if all of the frame has left.
    pub fn is_empty(&self) -> bool {
        self.segments.as_ref().is_none_or(Segments::is_done)
    }

    /// Reads the next frame, which is to leave in buffers of `room` bytes; returns the drop reason if its header is
    /// inconsistent.
    ///
    /// # Errors
    /// Those of `read`.
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

    /// Returns the frame that was read last.
    pub fn frame(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Decides which work on a frame is left to the device.
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

    /// Makes the next packet from an empty one, and more of the pool if needed; returns its length. `None` if there is
    /// no frame now, or there are too few buffers.
    ///
    /// # Errors
    /// The packet's buffer is too small: the interface's MTU was raised above what the port can send.
    pub fn next(&mut self, packet: &mut Mbuf, pool: &Mempool) -> Option<Result<usize, DropReason>> {
        let mut rest = self.segments.clone()?;
        let piece = rest.next()?;
        let segment = self.cut.filter(|&segment| piece.data_len() > usize::from(segment));
        let whole = match segment {
            // The device cuts a piece that is longer than a buffer.
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
