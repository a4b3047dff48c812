//! A pool for devices that use physical addresses: if the machine has free hugepages, every packet that is
//! handed out is physically contiguous, and adjacent to its neighbours as AF_XDP requires.

use dpdk::{Eal, EalConfig, Error, IovaMode, Mempool, MempoolConfig};

#[test]
fn packets_across_distant_pages_are_never_handed_out() {
    let config = EalConfig { memory_mb: 64, iova: IovaMode::Physical, ..EalConfig::default() };
    let eal = match Eal::init(&config) {
        Ok(eal) => eal,
        // No hugepages are free: the error states how to reserve them.
        Err(error) => {
            return assert!(matches!(error, Error::PhysicalMemory { mb: 64, .. }), "{error}");
        }
    };
    let config = MempoolConfig { count: 10_000, cache: 0, ..MempoolConfig::default() };
    let pool = Mempool::new(&eal, &config).unwrap();
    let packets: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    // A page of 2 MiB holds some 880 packets, so at most one of 800 crosses its end.
    assert!(pool.withheld() <= 10_000 / 800, "{}", pool.withheld());
    assert_eq!((packets.len(), pool.in_use()), (10_000 - pool.withheld(), pool.size()));
    drop(packets);
    assert_eq!(pool.leaked(), 0);
}
