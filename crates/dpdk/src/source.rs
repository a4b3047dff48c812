//! A source of packets for benchmarks: DPDK's null driver with frames in its empty buffers. See `dpdk-sys/source.c`.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use dpdk_sys as sys;

/// The bytes of a packet that are written: its headers. What lies behind them is left as it is.
pub const SOURCE_HEAD: usize = sys::SHIM_SOURCE_HEAD as usize;

/// A packet of a source, with the results that a device would report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePacket {
    /// Its first bytes.
    pub head: [u8; SOURCE_HEAD],
    /// Its length without the frame check sequence.
    pub len: u16,
    /// The device has verified its IPv4 header checksum, if it has one, and knows its headers.
    pub is_verified: bool,
    /// The control information of the customer tag that the device has removed.
    pub stripped: Option<u16>,
}

/// Packets that a queue presents over and over ([`RxQueue::present`](crate::RxQueue::present)).
pub struct SourcePackets(Box<[sys::shim_source_packet]>);

impl SourcePackets {
    /// Makes them of these packets; `None` if there are none, or more than 2^32 - 1.
    pub fn new(packets: impl Iterator<Item = SourcePacket>) -> Option<Arc<Self>> {
        let all: Box<[_]> = packets.map(raw).collect();
        let is_possible = !all.is_empty() && u32::try_from(all.len()).is_ok();
        is_possible.then(|| Arc::new(Self(all)))
    }

    /// Returns the bytes of a file that other programs read: see `dpdk-sys/source.c`.
    pub fn as_bytes(&self) -> &[u8] {
        let bytes = size_of_val(&*self.0);
        // SAFETY: the struct has no padding (asserted below), so that all of its bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), bytes) }
    }

    /// Returns the packet's frame, as far as it is written, and its length.
    pub fn get(&self, index: usize) -> Option<(&[u8; SOURCE_HEAD], usize)> {
        self.0.get(index).map(|packet| (&packet.head, packet.len.into()))
    }

    /// Returns the length of the longest packet.
    pub(crate) fn longest(&self) -> u16 {
        self.0.iter().map(|packet| packet.len).max().unwrap_or(0)
    }

    /// Returns true if the device reports something about a packet.
    pub(crate) fn says_more(&self) -> bool {
        self.0.iter().any(|packet| packet.flags != 0)
    }
}

const _: () = assert!(size_of::<sys::shim_source_packet>() == SOURCE_HEAD + 16);

fn raw(packet: SourcePacket) -> sys::shim_source_packet {
    let SourcePacket { head, len, is_verified, stripped } = packet;
    let stripped_flag = if stripped.is_some() { sys::SHIM_MBUF_RX_VLAN_STRIPPED } else { 0 };
    let mut raw = sys::shim_source_packet {
        head,
        flags: stripped_flag,
        packet_type: 0,
        tag: stripped.unwrap_or(0),
        len,
    };
    if is_verified {
        let (packet_type, good) = match head[12..14] {
            [0x08, 0x00] => (sys::RTE_PTYPE_L3_IPV4, sys::SHIM_MBUF_RX_IP_CKSUM_GOOD),
            [0x86, 0xdd] => (sys::RTE_PTYPE_L3_IPV6, 0),
            _ => (0, 0),
        };
        raw.packet_type = packet_type | sys::RTE_PTYPE_L2_ETHER | sys::RTE_PTYPE_L4_UDP;
        raw.flags |= good;
    }
    raw
}

/// The packets that a queue presents, and its place among them. To be dropped before the queue's port.
pub(crate) struct Source {
    callback: NonNull<sys::rte_eth_rxtx_callback>,
    device: u16,
    queue: u16,
    /// Not a box: DPDK has a pointer to it.
    _state: Rc<UnsafeCell<sys::shim_source>>,
    _packets: Arc<SourcePackets>,
}

impl Source {
    /// Has the queue of a device present packets, from the first one on; `None` if DPDK has no memory.
    ///
    /// # Safety
    /// The device is one of the null driver, the queue was set up, its buffers have room for the packets, and nobody
    /// receives from it at the same time, nor while the result is dropped.
    pub unsafe fn start(packets: &Arc<SourcePackets>, device: u16, queue: u16) -> Option<Self> {
        let (first, count) = (packets.0.as_ptr(), packets.0.len() as u32);
        let state = sys::shim_source { packets: first, count, next: 0 };
        let state = Rc::new(UnsafeCell::new(state));
        // SAFETY: by the caller. The state and the packets live until the callback has been removed.
        let callback = unsafe {
            let fill = Some(sys::shim_source_fill as _);
            sys::rte_eth_add_rx_callback(device, queue, fill, state.get().cast())
        };
        let callback = NonNull::new(callback.cast_mut())?;
        Some(Self { callback, device, queue, _state: state, _packets: packets.clone() })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: it was added to this queue, which nobody uses meanwhile, so that its memory can be freed at once.
        unsafe {
            sys::rte_eth_remove_rx_callback(self.device, self.queue, self.callback.as_ptr());
            sys::rte_free(self.callback.as_ptr().cast());
        }
    }
}

// SAFETY: only calls of the queue's owner read and write the state, and nobody else counts it.
unsafe impl Send for Source {}
