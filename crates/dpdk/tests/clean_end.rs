//! DPDK is shut down when nothing made from it is left.

mod process;

use dpdk::{
    Burst, Device, Eal, EalConfig, Error, Mempool, MempoolConfig, PacketList, Port, PortConfig,
    Ring,
};

#[test]
fn nothing_is_left_behind() {
    let (eal, pool) = process::start();
    // A pool that does not fit: the parts already made are freed as well.
    let config = MempoolConfig { name: "huge".into(), count: 1 << 20, ..Default::default() };
    let error = Mempool::new(&eal, &config).map(drop).unwrap_err().to_string();
    let start = "pool \"huge\" of 1048576 packets of 2048 bytes: ";
    assert!(error.starts_with(start), "{error}");
    assert!(
        error.contains("; the EAL has 128 MB ") && error.ends_with(": as configured"),
        "{error}"
    );
    {
        let config = PortConfig::new("p", Device::parse("net_null0").unwrap());
        let (_port, mut rx, _tx) = Port::open(&eal, &config, &pool).unwrap();
        let (mut producer, _consumer) = Ring::spsc(&eal, "r", 64).unwrap();
        let (mut burst, mut list) = (Burst::new(), PacketList::new());
        assert_eq!(rx[0].receive(&mut burst, 64), 64);
        burst.move_to(u64::MAX >> 8, &mut list);
        producer.send(&mut list);
        assert_eq!(pool.in_use(), 64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _registered = eal.register_thread().unwrap();
                drop(burst);
            });
        });
    }
    assert_eq!(pool.leaked(), 0);
    drop(pool);
    let before = process::address_space_mb();
    drop(eal);
    let freed = before - process::address_space_mb();
    assert!(freed >= process::MEMORY_MB, "{freed} MB were unmapped");
    assert_eq!(Eal::init(&EalConfig::default()).map(drop), Err(Error::EalStarted));
}
