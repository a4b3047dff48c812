//! The RIB against a naive model.

use super::*;

pub(crate) fn port(index: u16) -> PortId {
    PortId::new(index).unwrap()
}

/// A RIB with the ports of the example, 10.0.1.1/24 and 10.0.2.1/24 and their IPv6 likes.
pub(crate) fn two_ports() -> Rib {
    let make = |index: u16| RibPort {
        id: port(index),
        name: format!("port{index}"),
        mac: MacAddr([2, 0, 0, 0, 0, index as u8]),
        mtu: 1500,
        addresses: vec![
            format!("10.0.{}.1/24", index + 1).parse().unwrap(),
            format!("fd00:{}::1/64", index + 1).parse().unwrap(),
        ],
    };
    Rib::new(
        vec![make(0), make(1)],
        fib::new_ipv4(fib::Algorithm::default(), Box::new(fib::NoReaders)).unwrap(),
        fib::new_ipv6(fib::Algorithm::default(), Box::new(fib::NoReaders)).unwrap(),
        Arc::new(NextHopTable::new()),
        Box::new(fib::NoReaders),
    )
    .unwrap()
}
