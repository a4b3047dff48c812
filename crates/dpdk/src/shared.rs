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

use dpdk_sys as sys;

use crate::mbuf::{Mbuf, RawMbuf};
use crate::mempool::Mempool;

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

    #[test]
    fn a_header_alone_is_a_packet_of_one_segment() {
        let pool = testing::pool(3);
        let replica = Shared::new(pool.alloc().unwrap()).refer(b"header", &pool).unwrap();
        assert_eq!((replica.data(), replica.segments()), (&b"header"[..], 1));
    }
}
