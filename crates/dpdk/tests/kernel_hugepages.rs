//! Ports made from kernel interfaces, with DPDK in hugepages, where the machine has them free.

mod veth;

use dpdk::{Driver, HugeMode};

#[test]
fn af_xdp_forwards_between_veths() {
    veth::two_ports_forward(HugeMode::Auto, Driver::AfXdp, "net_af_xdp");
}

#[test]
fn af_packet_forwards_between_veths() {
    veth::two_ports_forward(HugeMode::Auto, Driver::AfPacket, "net_af_packet");
}
