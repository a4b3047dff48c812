//! DPDK stays while a packet is out: its memory must not be freed under the packet.

mod process;

#[test]
fn a_packet_keeps_its_memory() {
    let (eal, pool) = process::start();
    let packet = pool.copy_of(b"still here").unwrap();
    drop(pool);
    let before = process::address_space_mb();
    drop(eal);
    let freed = before.saturating_sub(process::address_space_mb());
    assert!(freed < process::MEMORY_MB, "{freed} MB were unmapped");
    assert_eq!(packet.data(), b"still here");
    drop(packet);
}
