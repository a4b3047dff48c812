//! Bytes shared by the ends of several packets: multicast by reference.
//!
//! ```text
//!   replica 1:  [ its own header ] --> [ reference ] --+
//!   replica 2:  [ its own header ] --> [ reference ] --+--> [ the bytes they share ]
//!   replica 3:  [ its own header ] --> [ reference ] --+
//! ```
//!
//! Ownership: the shared bytes belong to all packets that refer to them, and are never written again.
//! [`Shared`] makes its packet read only, DPDK counts the references, and the buffer returns to its
//! pool with the last of them, on any thread. A replica's first segment, which is all that
//! [`Mbuf::data_mut`] reaches, is the replica's own; [`Mbuf::append`] finds no room behind shared
//! bytes.
//!
//! A mirrored packet goes on as it is, and lends its bytes to the copy, except the first ones, which steps may write:
//!
//! ```text
//!   packet:  [ 128 bytes of its own | the bytes it lends ]
//!   copy:    [ the same 128 bytes ] --> [ reference ] -^
//! ```

use dpdk_sys as sys;

use crate::mbuf::{Mbuf, RawMbuf};
use crate::mempool::Mempool;

/// Bytes at the beginning of a packet that its copy does not share.
const PRIVATE: u16 = 128;

/// The part of them that the holder of the packet may write wherever its data begin now: a VLAN's tags or an Ethernet
/// header may have been removed in front. It holds an IPv4 header with all options and TCP's checksum.
pub(crate) const LENT_OWN: usize = 96;

/// Packets up to this length are copied whole: cheaper than a reference.
const SHORT: u32 = 256;

/// A copy of a packet.
#[derive(Debug)]
pub struct Copied {
    /// The copy.
    pub packet: Mbuf,
    /// True if it refers to the original's bytes.
    pub is_shared: bool,
}

/// Copies a packet by reference, or whole if it is short.
///
/// # Safety
/// The caller owns the packet, and does not write its bytes from [`LENT_OWN`] on while a copy that shares them exists.
pub(crate) unsafe fn copy_by_reference(packet: RawMbuf, pool: &Mempool) -> Option<Copied> {
    // SAFETY: by the caller.
    let (len, first, segments) =
        unsafe { (packet.pkt_len(), packet.data_len(), packet.segments()) };
    // A reference must not begin with an empty segment, which devices refuse.
    let has_more = first > PRIVATE || (segments == 1 && first > 0);
    if len <= SHORT || !has_more {
        // SAFETY: by the caller; the chunks are copied before the function ends.
        let copy = copy_of_chunks(unsafe { packet.chunks() }, pool)?;
        return Some(Copied { packet: copy, is_shared: false });
    }
    // SAFETY: by the caller; the bytes are in the first segment.
    let head = unsafe { std::slice::from_raw_parts(packet.data(), usize::from(PRIVATE)) };
    let mut copy = pool.copy_of(head)?;
    // SAFETY: by the caller, the bytes to which the clone refers are not written while it exists; it has no other
    // owner.
    let mut clone = unsafe {
        let clone = sys::rte_pktmbuf_clone(packet.0, pool.as_ptr());
        if clone.is_null() {
            return None;
        }
        Mbuf::from_raw(RawMbuf(clone))
    };
    if !clone.adj(PRIVATE.into()) {
        return None;
    }
    copy.chain(clone).ok()?;
    Some(Copied { packet: copy, is_shared: true })
}

/// Returns a packet of its own with these bytes, in as many buffers as they need.
pub(crate) fn copy_of_chunks<'a>(
    chunks: impl Iterator<Item = &'a [u8]>,
    pool: &Mempool,
) -> Option<Mbuf> {
    let mut copy = pool.alloc()?;
    for part in chunks.flat_map(|chunk| chunk.chunks(pool.data_room().into())) {
        if !copy.extend(part) {
            copy.chain(pool.copy_of(part)?).ok()?;
        }
    }
    Some(copy)
}

impl Copied {
    /// Gives the copy bytes of its own. `None` when the pool has not enough buffers; the copy is gone then. Either way
    /// the original's bytes are its own again.
    pub fn separate(self, pool: &Mempool) -> Option<Mbuf> {
        if self.is_shared { copy_of_chunks(self.packet.chunks(), pool) } else { Some(self.packet) }
    }
}

/// The bytes that replicas share, read only.
#[derive(Debug)]
pub struct Shared {
    packet: Mbuf,
}

impl Shared {
    /// Shares this packet from now on.
    pub fn new(packet: Mbuf) -> Self {
        Self { packet }
    }

    /// Returns the shared bytes, segment by segment.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.packet.chunks()
    }

    /// Creates a packet of two or more buffers: `header`, and a reference to the shared bytes. `None`
    /// when the pool has not enough buffers, or none that holds the header.
    pub fn refer(&self, header: &[u8], pool: &Mempool) -> Option<Mbuf> {
        let mut first = pool.copy_of(header)?;
        if self.packet.is_empty() {
            return Some(first);
        }
        // SAFETY: the packet is ours and alive, and its bytes are not written while it is; the clone
        // refers to them and is the caller's, so it has no other owner.
        let clone = unsafe {
            let clone = sys::rte_pktmbuf_clone(self.packet.raw().0, pool.as_ptr());
            if clone.is_null() {
                return None;
            }
            Mbuf::from_raw(RawMbuf(clone))
        };
        first.chain(clone).ok()?;
        Some(first)
    }

    /// Creates a packet of one buffer: `header` and a copy of the shared bytes, for devices that
    /// accept no more than one. `None` when the pool has no buffer, or none that large.
    pub fn copy(&self, header: &[u8], pool: &Mempool) -> Option<Mbuf> {
        let mut copy = pool.copy_of(header)?;
        for chunk in self.packet.chunks() {
            copy.append(chunk.len())?.copy_from_slice(chunk);
        }
        Some(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Burst;
    use crate::mbuf::tests::chain;
    use crate::testing;

    fn bytes(packet: &Mbuf) -> Vec<u8> {
        packet.chunks().flatten().copied().collect()
    }

    #[test]
    fn replicas_read_the_same_bytes_and_the_last_one_frees_them() {
        let pool = testing::pool(15);
        let shared = Shared::new(pool.copy_of(b"payload").unwrap());
        let mut replicas: Vec<Mbuf> =
            [b"1", b"2", b"3"].iter().map(|header| shared.refer(*header, &pool).unwrap()).collect();
        assert_eq!(pool.in_use(), 1 + 3 * 2, "no byte was copied");
        drop(shared);
        assert_eq!(pool.in_use(), 7, "the replicas hold it");
        replicas[0].data_mut()[0] = b'9';
        assert_eq!(bytes(&replicas[0]), b"9payload");
        assert_eq!(bytes(&replicas[2]), b"3payload");
        assert_eq!((replicas[1].len(), replicas[1].segments()), (8, 2));
        let last = replicas.pop().unwrap();
        drop(replicas);
        assert_eq!((pool.in_use(), bytes(&last)), (3, b"3payload".to_vec()));
        std::thread::spawn(move || drop(last)).join().unwrap();
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn nobody_writes_behind_shared_bytes() {
        let pool = testing::pool(15);
        let shared = Shared::new(pool.copy_of(b"shared").unwrap());
        let mut replica = shared.refer(b"h", &pool).unwrap();
        assert!(replica.append(1).is_none(), "the tailroom is the shared buffer's");
        assert!(replica.trim_to(3));
        assert_eq!(bytes(&replica), b"hsh");
        assert_eq!(bytes(&shared.refer(b"h", &pool).unwrap()), b"hshared");
    }

    #[test]
    fn packets_of_several_segments_are_shared_and_copied_whole() {
        let pool = testing::pool(31);
        let shared = Shared::new(chain(&pool, &[b"ab", b"cd", b"ef"]));
        let replica = shared.refer(b"h", &pool).unwrap();
        assert_eq!((bytes(&replica), replica.segments()), (b"habcdef".to_vec(), 4));
        let copy = shared.copy(b"h", &pool).unwrap();
        assert_eq!((copy.data(), copy.segments()), (&b"habcdef"[..], 1));
        drop((shared, replica, copy));
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn without_buffers_there_is_no_replica_and_nothing_leaks() {
        let pool = testing::pool(3);
        let shared = Shared::new(pool.copy_of(b"payload").unwrap());
        let first = shared.refer(b"1", &pool).unwrap();
        assert!(shared.refer(b"2", &pool).is_none() && shared.copy(b"2", &pool).is_none());
        drop(first);
        let held = pool.alloc().unwrap();
        assert!(shared.copy(&[0; 2048], &pool).is_none(), "header and payload do not fit");
        let more = pool.alloc().unwrap();
        assert!(shared.refer(b"2", &pool).is_none(), "no buffer at all");
        drop((shared, held, more));
        assert_eq!(pool.leaked(), 0);
    }

    /// A frame whose bytes differ.
    fn frame(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
    }

    fn burst_of(packet: Mbuf) -> Burst {
        let mut burst = Burst::new();
        assert_eq!(burst.put(packet).unwrap(), 0);
        burst
    }

    #[test]
    fn a_copy_shows_the_packet_as_it_was_and_shares_its_data() {
        let pool = testing::pool(31);
        for (parts, buffers) in [(vec![1500], 2), (vec![257], 2), (vec![600, 2000, 1], 4)] {
            let whole = frame(parts.iter().sum());
            let mut rest = &whole[..];
            let parts: Vec<&[u8]> = parts
                .iter()
                .map(|len| {
                    let part;
                    (part, rest) = rest.split_at(*len);
                    part
                })
                .collect();
            let mut burst = burst_of(chain(&pool, &parts));
            let before = pool.in_use();
            let Copied { packet: copy, is_shared } = burst.copy_by_reference(0, &pool).unwrap();
            assert_eq!((pool.in_use() - before, is_shared), (buffers, true));
            burst.head_mut(0).fill(0xee);
            let own = burst.frame_mut(0);
            assert_eq!(own.len(), 96, "what follows is the copy's as well");
            own.fill(0xee);
            assert!(burst.remove_tags(0, 2));
            burst.frame_mut(0).fill(0xdd);
            let (own, others) = burst.frame_and_rest(0);
            let seen: Vec<u8> = own.iter().chain(others.flatten()).copied().collect();
            assert_eq!(seen[104..], whole[112..], "all of the original can be read");
            let mut original = burst.take(0).unwrap();
            assert!(original.data_mut().len() <= 96);
            drop(original);
            assert_eq!(bytes(&copy), whole);
            drop(copy);
            assert_eq!(pool.leaked(), 0);
        }
    }

    #[test]
    fn short_packets_and_short_beginnings_are_copied_whole() {
        let pool = testing::pool(31);
        let whole = frame(2500);
        let (begin, rest) = whole.split_at(100);
        for parts in [&[&whole[..256]][..], &[&whole[..1]], &[begin, &rest[..2000], &rest[2000..]]]
        {
            let expected = parts.concat();
            let mut burst = burst_of(chain(&pool, parts));
            let copied = burst.copy_by_reference(0, &pool).unwrap();
            assert!(!copied.is_shared);
            assert_eq!(burst.frame_mut(0).len(), parts[0].len(), "all of it is its own");
            burst.frame_mut(0).fill(0xee);
            assert_eq!(bytes(&copied.packet), expected);
        }
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn a_copy_is_separated_from_its_original() {
        let pool = testing::pool(7);
        let whole = frame(1500);
        let mut burst = burst_of(pool.copy_of(&whole).unwrap());
        let copied = burst.copy_by_reference(0, &pool).unwrap();
        let copy = copied.separate(&pool).unwrap();
        assert_eq!((bytes(&copy), copy.segments(), pool.in_use()), (whole.clone(), 1, 2));
        let original = burst.take(0).unwrap();
        assert_eq!(burst.put(original).unwrap(), 0, "a burst takes what is not shared");
        let copied = burst.copy_by_reference(0, &pool).unwrap();
        let original = burst.take(0).unwrap();
        let original = burst.put(original).unwrap_err();
        let held: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        assert!(copied.separate(&pool).is_none(), "no buffer");
        assert_eq!(burst.put(original).unwrap(), 0);
        assert!(burst.copy_by_reference(0, &pool).is_some(), "its buffers are back");
        drop((held, copy, burst));
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn without_buffers_there_is_no_copy_and_the_packet_stays() {
        let pool = testing::pool(4);
        let mut burst = burst_of(pool.copy_of(&frame(1500)).unwrap());
        let mut held: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        for free in 0..2 {
            assert!(burst.copy_by_reference(0, &pool).is_none(), "{free}");
            assert_eq!(burst.frame_mut(0).len(), 1500);
            held.pop();
        }
        assert!(burst.copy_by_reference(0, &pool).is_some());
        assert!(burst.copy_by_reference(1, &pool).is_none(), "no packet");
        drop((burst, held));
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn a_header_alone_is_a_packet_of_one_segment() {
        let pool = testing::pool(3);
        let replica = Shared::new(pool.alloc().unwrap()).refer(b"header", &pool).unwrap();
        assert_eq!((replica.data(), replica.segments()), (&b"header"[..], 1));
    }
}
