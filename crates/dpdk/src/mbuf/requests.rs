//! Requests to the device that sends a packet: to write its TCP or UDP checksum, to cut it into segments, or to
//! insert a VLAN tag.
//!
//! A request travels with its packet. [`TxQueue::send`](crate::TxQueue::send) passes it on to a device that
//! supports it; if the device writes no checksums or inserts no tags, the queue does. Packets are never segmented for a device
//! that does not support it: check [`Port::offloads`](crate::Port::offloads) before.

use dpdk_sys as sys;
use wire::checksum::Checksum;
use wire::ethernet::{TAG_LEN, customer_tag};

use super::{Mbuf, RawMbuf};

/// A protocol whose checksum can be left to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The headers in front of a packet's data, by their lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// The Ethernet header, with its tags; below 128.
    pub link: u16,
    /// The IP header with options or extension headers; below 512.
    pub network: u16,
    /// True for IPv6.
    pub ip6: bool,
    /// The protocol after it.
    pub transport: Transport,
    /// The TCP header with its options, or the UDP header; below 256.
    pub header: u16,
}

/// Offset of the checksum in an IPv4 header.
const IP4_CHECKSUM: u16 = 10;

/// All bits of a request.
pub(crate) const REQUESTS: u64 = sys::SHIM_MBUF_TX_TCP_SEG
    | sys::SHIM_MBUF_TX_TCP_CKSUM
    | sys::SHIM_MBUF_TX_UDP_CKSUM
    | sys::SHIM_MBUF_TX_IP_CKSUM
    | sys::SHIM_MBUF_TX_IPV4
    | sys::SHIM_MBUF_TX_IPV6;

/// The bit of a request to insert a VLAN tag, which is fulfilled apart from the others: a device that inserts tags
/// needs no preparation of the packet.
pub(crate) const TAG: u64 = sys::SHIM_MBUF_TX_VLAN;

impl RawMbuf {
    /// Leaves it to the device to insert a customer tag with this control information.
    ///
    /// # Safety
    /// As for [`RawMbuf::data`].
    #[inline(always)]
    pub(crate) unsafe fn request_tag(self, control: u16) {
        // SAFETY: by the caller, the fields are there to write.
        unsafe {
            self.set_vlan_tci(control);
            self.set_flags(self.flags() | TAG);
        }
    }

    /// Returns the control information of the tag that the device is to insert.
    ///
    /// # Safety
    /// As for [`RawMbuf::data`].
    #[inline(always)]
    pub(crate) unsafe fn requested_tag(self) -> Option<u16> {
        // SAFETY: by the caller, the fields are there to read.
        unsafe { (self.flags() & TAG != 0).then(|| self.vlan_tci()) }
    }

    /// Returns the packet's length on the wire, without the checksum: with a requested tag.
    ///
    /// # Safety
    /// As for [`RawMbuf::data`].
    #[inline(always)]
    pub(crate) unsafe fn wire_len(self) -> u32 {
        // SAFETY: by the caller, the fields are there to read.
        unsafe { self.pkt_len() + if self.flags() & TAG != 0 { TAG_LEN as u32 } else { 0 } }
    }
}

impl Transport {
    fn flag(self) -> u64 {
        match self {
            Self::Tcp => sys::SHIM_MBUF_TX_TCP_CKSUM,
            Self::Udp => sys::SHIM_MBUF_TX_UDP_CKSUM,
        }
    }

    /// Returns the offset of the checksum in its header, and the header's minimum length.
    fn checksum(self) -> (u16, u16) {
        match self {
            Self::Tcp => (16, 20),
            Self::Udp => (6, 8),
        }
    }
}

impl Layers {
    fn flags(self) -> u64 {
        let family = if self.ip6 { sys::SHIM_MBUF_TX_IPV6 } else { sys::SHIM_MBUF_TX_IPV4 };
        family | self.transport.flag()
    }

    /// Returns true if these can be the headers of a packet with this many bytes in its first segment.
    fn fit(self, first: usize) -> bool {
        let least = if self.ip6 { 40 } else { 20 };
        let in_fields = self.link < 128 && (least..512).contains(&self.network);
        let header = (self.transport.checksum().1..256).contains(&self.header);
        let end = usize::from(self.link) + usize::from(self.network) + usize::from(self.header);
        in_fields && header && end <= first
    }
}

impl Mbuf {
    /// Leaves the TCP or UDP checksum to the sending queue or device. Its field must hold the folded sum
    /// over the pseudo-header, as Linux and virtio hand packets over, and no bytes may follow the IP
    /// packet. Returns false, and does nothing, if these headers are not in the first segment.
    #[must_use]
    pub fn request_checksum(&mut self, layers: Layers) -> bool {
        self.request(layers, layers.flags(), 0)
    }

    /// Leaves it to the device to cut a TCP packet into segments with `segment` bytes of data each, and to
    /// write their checksums. The IPv4 header's checksum must be right, the TCP header's as for
    /// [`Mbuf::request_checksum`]. Returns false, and does nothing, if it is not TCP, the headers are not
    /// in the first segment, or `segment` is 0.
    #[must_use]
    pub fn request_segmentation(&mut self, layers: Layers, segment: u16) -> bool {
        let tcp = layers.transport == Transport::Tcp && segment > 0;
        tcp && self.request(layers, layers.flags() | sys::SHIM_MBUF_TX_TCP_SEG, segment)
    }

    fn request(&mut self, layers: Layers, flags: u64, segment: u16) -> bool {
        let raw = self.raw();
        if !layers.fit(self.data().len()) {
            return false;
        }
        let (link, network, header) = (layers.link, layers.network, layers.header);
        // SAFETY: a function of numbers; the packet is ours.
        unsafe {
            let lengths = sys::rte_mbuf_tx_offload(
                link.into(),
                network.into(),
                header.into(),
                segment.into(),
                0,
                0,
                0,
            );
            raw.field::<u64>(sys::MBUF_TX_OFFLOAD).write(lengths);
            raw.set_flags(raw.flags() & !REQUESTS | flags);
        }
        true
    }

    /// Returns true if the packet has a request to the sending device.
    pub fn has_request(&self) -> bool {
        // SAFETY: the packet is ours.
        unsafe { self.raw().flags() & REQUESTS != 0 }
    }

    /// Adapts the requests to a link header that has become this many bytes longer.
    pub(super) fn lengthen_link(&mut self, bytes: u16) {
        if !self.has_request() {
            return;
        }
        let raw = self.raw();
        // SAFETY: the packet is ours. The length of the link header has seven bits; 14 bytes and two tags fit.
        unsafe {
            let lengths = raw.field::<u64>(sys::MBUF_TX_OFFLOAD).read();
            let more = u64::from(bytes) << sys::RTE_MBUF_L2_LEN_OFS;
            raw.field::<u64>(sys::MBUF_TX_OFFLOAD).write(lengths + more);
        }
    }

    /// Returns the control information of the VLAN tag that the sending device is to insert.
    pub fn requested_tag(&self) -> Option<u16> {
        // SAFETY: the packet is ours.
        unsafe { self.raw().requested_tag() }
    }

    /// Inserts the tag that was left to a device; returns false without room for it.
    pub(crate) fn fulfil_tag(&mut self) -> bool {
        let raw = self.raw();
        let Some(control) = self.requested_tag() else { return true };
        // SAFETY: the packet is ours.
        unsafe { raw.set_flags(raw.flags() & !TAG) };
        self.insert_tag(customer_tag(control))
    }

    /// Copies the requests of a packet with the same bytes.
    pub(crate) fn request_as(&mut self, other: &Self) {
        let (raw, other) = (self.raw(), other.raw());
        // SAFETY: both packets are ours.
        unsafe {
            let lengths = other.field::<u64>(sys::MBUF_TX_OFFLOAD).read();
            raw.field::<u64>(sys::MBUF_TX_OFFLOAD).write(lengths);
            raw.set_flags(raw.flags() & !REQUESTS | other.flags() & REQUESTS);
            if let Some(control) = other.requested_tag() {
                raw.request_tag(control);
            }
        }
    }

    /// Prepares the packet's requests for a device with these capabilities, in DPDK's bits, and fulfils in
    /// software those that it does not support. Returns false if that is impossible.
    pub(crate) fn fulfil(&mut self, capabilities: u64) -> bool {
        let raw = self.raw();
        // SAFETY: the packet is ours.
        let flags = unsafe { raw.flags() };
        if flags & sys::SHIM_MBUF_TX_TCP_SEG != 0 {
            if capabilities & sys::SHIM_TX_OFFLOAD_TCP_TSO == 0 {
                return false;
            }
            if flags & sys::SHIM_MBUF_TX_IPV4 != 0
                && capabilities & sys::SHIM_TX_OFFLOAD_IPV4_CKSUM != 0
            {
                // SAFETY: the packet is ours.
                let at = usize::from(unsafe { link(raw) } + IP4_CHECKSUM);
                self.data_mut()[at..at + 2].fill(0);
                // SAFETY: as above.
                unsafe { raw.set_flags(flags | sys::SHIM_MBUF_TX_IP_CKSUM) };
            }
        } else if flags & REQUESTS != 0 && capabilities & sys::SHIM_TX_OFFLOAD_L4_CKSUM == 0 {
            self.write_checksum(flags);
        }
        true
    }

    /// Writes the checksum that was left to the device.
    fn write_checksum(&mut self, flags: u64) {
        let udp = flags & sys::SHIM_MBUF_TX_UDP_CKSUM == sys::SHIM_MBUF_TX_UDP_CKSUM;
        let raw = self.raw();
        // SAFETY: the packet is ours, and its headers are in it: `request` has checked that.
        let start = unsafe {
            raw.set_flags(flags & !REQUESTS);
            usize::from(link(raw) + network(raw))
        };
        let mut sum = Checksum::new();
        let mut before = start;
        for chunk in self.chunks() {
            sum.add(&chunk[before.min(chunk.len())..]);
            before = 0;
        }
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        // RFC 768: a sum of 0 is sent as all ones, because 0 means "no checksum".
        let checksum = if udp && sum.finish() == 0 { u16::MAX } else { sum.finish() };
        let at = start + usize::from(transport.checksum().0);
        self.data_mut()[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Returns the length of the link header in the packet's request.
unsafe fn link(raw: RawMbuf) -> u16 {
    // SAFETY: by the caller, the field is there to read.
    let lengths = unsafe { raw.field::<u64>(sys::MBUF_TX_OFFLOAD).read() };
    (lengths >> sys::RTE_MBUF_L2_LEN_OFS & 0x7f) as u16
}

/// Returns the length of the IP header in the packet's request.
unsafe fn network(raw: RawMbuf) -> u16 {
    // SAFETY: by the caller, the field is there to read.
    let lengths = unsafe { raw.field::<u64>(sys::MBUF_TX_OFFLOAD).read() };
    (lengths >> sys::RTE_MBUF_L3_LEN_OFS & 0x1ff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mbuf::tests::chain;
    use crate::testing;

    const UDP: Layers =
        Layers { link: 14, network: 20, ip6: false, transport: Transport::Udp, header: 8 };
    const TCP: Layers = Layers { transport: Transport::Tcp, header: 20, ..UDP };

    /// The folded sum of words.
    fn sum(bytes: &[u8]) -> u16 {
        let words =
            bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    /// Builds a UDP frame with the sum over the pseudo-header in its checksum field, and returns that sum.
    fn partial(data: &[u8]) -> (Vec<u8>, u16) {
        let addresses = [192, 0, 2, 1, 198, 51, 100, 1];
        let length = (8 + data.len() as u16).to_be_bytes();
        let pseudo = sum(&[&addresses[..], &[0, 17], &length].concat());
        let udp = [&[0, 7, 0, 9][..], &length, &pseudo.to_be_bytes(), data].concat();
        (([&[0; 14 + 12][..], &addresses, &udp].concat()), pseudo)
    }

    /// Returns the sum over pseudo-header and UDP, all ones if the checksum is right.
    fn check(frame: &[u8], pseudo: u16) -> u16 {
        sum(&[&pseudo.to_be_bytes()[..], &frame[34..]].concat())
    }

    #[test]
    fn a_tag_moves_the_headers_of_a_request() {
        let pool = testing::pool(1);
        let (frame, pseudo) = partial(b"behind tags");
        let mut packet = pool.copy_of(&frame).unwrap();
        assert!(packet.request_checksum(UDP));
        assert!(packet.insert_tag([0x81, 0, 0, 7]) && packet.insert_tag([0x88, 0xa8, 0, 5]));
        assert!(packet.fulfil(0) && !packet.has_request());
        let untagged = [&packet.data()[..12], &packet.data()[20..]].concat();
        assert_eq!(check(&untagged, pseudo), 0xffff);
    }

    #[test]
    fn a_tag_that_no_device_inserts_is_inserted_by_the_queue() {
        let pool = testing::pool(3);
        let (frame, pseudo) = partial(b"behind a tag");
        let mut packet = pool.copy_of(&frame).unwrap();
        assert!(packet.request_checksum(UDP));
        // SAFETY: the packet is ours.
        unsafe { packet.raw().request_tag(0x6005) };
        // SAFETY: as above.
        assert_eq!(unsafe { packet.raw().wire_len() } as usize, frame.len() + 4);
        assert_eq!(packet.len(), frame.len());
        let mut other = pool.copy_of(&frame).unwrap();
        other.request_as(&packet);
        for mut packet in [packet, other] {
            assert!(packet.fulfil_tag() && packet.fulfil(0) && !packet.has_request());
            assert_eq!(packet.data()[12..16], [0x81, 0, 0x60, 5]);
            let untagged = [&packet.data()[..12], &packet.data()[16..]].concat();
            assert_eq!(check(&untagged, pseudo), 0xffff);
            assert!(packet.fulfil_tag() && packet.len() == frame.len() + 4, "only once");
        }
    }

    #[test]
    fn the_queue_writes_a_checksum_that_the_device_does_not() {
        let pool = testing::pool(7);
        let (frame, pseudo) = partial(b"odd length!");
        for cut in [frame.len(), 42, 43, 50] {
            let mut packet = chain(&pool, &[&frame[..cut], &frame[cut..]]);
            assert!(packet.request_checksum(UDP) && packet.has_request());
            assert!(packet.fulfil(0) && !packet.has_request());
            let sent: Vec<u8> = packet.chunks().flatten().copied().collect();
            assert_eq!(check(&sent, pseudo), 0xffff, "{cut}");
        }
    }

    #[test]
    fn a_device_that_writes_checksums_gets_the_request() {
        let pool = testing::pool(7);
        let (frame, _) = partial(b"data");
        let mut packet = pool.copy_of(&frame).unwrap();
        assert!(packet.request_checksum(UDP));
        assert!(packet.fulfil(sys::SHIM_TX_OFFLOAD_L4_CKSUM) && packet.has_request());
        assert_eq!(packet.data(), frame, "untouched");
        let mut other = pool.copy_of(&frame).unwrap();
        other.request_as(&packet);
        assert!(other.has_request() && other.fulfil(0) && !other.has_request());
        assert_ne!(other.data(), frame);
    }

    #[test]
    fn nobody_but_the_device_cuts_packets() {
        let pool = testing::pool(7);
        let mut packet = pool.copy_of(&[0x11; 200]).unwrap();
        assert!(packet.request_segmentation(TCP, 50));
        assert!(!packet.fulfil(0) && !packet.fulfil(sys::SHIM_TX_OFFLOAD_L4_CKSUM));
        assert!(packet.fulfil(sys::SHIM_TX_OFFLOAD_TCP_TSO));
        assert_eq!(packet.data(), [0x11; 200], "the header's checksum is the segments' pattern");
        let writes_headers = sys::SHIM_TX_OFFLOAD_TCP_TSO | sys::SHIM_TX_OFFLOAD_IPV4_CKSUM;
        assert!(packet.fulfil(writes_headers));
        assert_eq!(packet.data()[24..26], [0, 0]);
    }

    #[test]
    fn headers_that_are_not_there_are_refused() {
        let pool = testing::pool(7);
        let mut packet = pool.copy_of(&[0; 42]).unwrap();
        assert!(packet.request_checksum(UDP));
        let longer = Layers { network: 24, ..UDP };
        let larger = Layers { link: 128, ..UDP };
        let short = Layers { header: 7, ..UDP };
        for layers in [TCP, longer, larger, short, Layers { ip6: true, ..UDP }] {
            assert!(!packet.request_checksum(layers), "{layers:?}");
        }
        let mut packet = pool.copy_of(&[0; 200]).unwrap();
        assert!(!packet.request_segmentation(UDP, 100) && !packet.request_segmentation(TCP, 0));
        assert!(!packet.has_request());
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
        let pool = testing::pool(7);
        let mut frame = [0; 44];
        // Data that sum to all ones have the checksum 0.
        frame[34..36].copy_from_slice(&[0xff, 0xff]);
        let mut packet = pool.copy_of(&frame).unwrap();
        assert!(packet.request_checksum(UDP) && packet.fulfil(0));
        assert_eq!(packet.data()[40..42], [0xff, 0xff]);
    }
}
