//! A case as other programs are told of it: null devices, neighbours and routes. Device 0 receives; each route leads to one
//! of [`NEXT_HOPS`] neighbours, spread over the egress ports, which are the devices from 1 on.

use std::net::Ipv4Addr;

use wire::MacAddr;

use super::cases::{Case, FOUR, NEXT_HOPS, way};
use crate::source::PORT_MAC;
use crate::workload::routes::Routes;

/// MAC of all ports, to which the packets are sent.
pub const MAC: MacAddr = MacAddr(PORT_MAC);

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The port that it is on.
    pub port: usize,
    pub address: Ipv4Addr,
    pub mac: MacAddr,
}

impl Neighbour {
    /// Returns one by its number, below [`NEXT_HOPS`].
    fn new(case: &Case, number: u16) -> Self {
        let port = usize::from(number) % case.egress + 1;
        let address = Ipv4Addr::new(198, 19, port as u8, number as u8 + 2);
        Self { port, address, mac: MacAddr([2, 0, 0, 0, 1, number as u8]) }
    }

    /// Returns all of them.
    pub fn all(case: &Case) -> impl Iterator<Item = Self> {
        (0..NEXT_HOPS).map(|number| Self::new(case, number))
    }
}

/// Returns the address of a port, whose network has 24 bits.
pub fn address(port: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 19, port as u8, 1)
}

/// Returns a null device. `silent`: the program receives by all ports, so that all but the first must have nothing.
pub fn device(port: usize, silent: bool) -> String {
    let nothing = if silent && port != 0 { ",no-rx=1" } else { "" };
    format!("net_null{port}{nothing}")
}

/// Returns the prefixes of a case, and the neighbour of each.
pub fn routes<'a>(
    case: &'a Case,
    full: &'a Routes<Ipv4Addr>,
) -> Box<dyn Iterator<Item = (String, Neighbour)> + 'a> {
    let to = move |(prefix, number)| (prefix, Neighbour::new(case, number));
    if case.full {
        let default = std::iter::once(("0.0.0.0/0".to_owned(), 0));
        let all = full.iter().map(|(prefix, hop)| (prefix.to_string(), way(*hop)));
        Box::new(default.chain(all).map(to))
    } else {
        let four = FOUR.iter().zip(0..NEXT_HOPS);
        Box::new(four.map(|(prefix, number)| ((*prefix).to_owned(), number)).map(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::cases::CASES;

    #[test]
    fn routes_are_spread_over_neighbours_and_these_over_ports() {
        let of = |name: &str, full: &Routes<Ipv4Addr>| {
            let case = CASES.iter().find(|case| case.name == name).unwrap();
            let told = routes(case, full)
                .map(|(prefix, to)| format!("{prefix} {} {}", to.address, to.mac));
            told.collect::<Vec<_>>()
        };
        let four = of("4r4e", &Vec::new());
        assert_eq!(four.len(), 4);
        assert_eq!(four[3], "192.0.0.0/2 198.19.4.5 02:00:00:00:01:03");
        assert_eq!(of("4r1e", &Vec::new())[3], "192.0.0.0/2 198.19.1.5 02:00:00:00:01:03");
        let full = vec![("11.0.0.0/8".parse().unwrap(), 2), ("12.0.0.0/9".parse().unwrap(), 5)];
        let default = "0.0.0.0/0 198.19.1.2 02:00:00:00:01:00";
        let second = "11.0.0.0/8 198.19.2.3 02:00:00:00:01:01";
        assert_eq!(
            of("full4", &full),
            [default, second, &default.replace("0.0.0.0/0", "12.0.0.0/9")]
        );
    }
}
