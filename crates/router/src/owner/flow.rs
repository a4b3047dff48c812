//! The hash of a flow, for `show route … --from …`: that of a packet made up for it.

use std::net::IpAddr;

use api::Flow;
use dataplane::flow::FlowHash;

/// Returns the flow's hash; 0, as for packets other than IP, if its addresses are of different families.
pub fn hash(flows: &FlowHash, to: IpAddr, flow: &Flow) -> u32 {
    let mut packet = match (flow.from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0; 20];
            header[0] = 0x45;
            header[9] = flow.protocol;
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&to.octets());
            header
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0; 40];
            header[0] = 0x60;
            header[6] = flow.protocol;
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
            header
        }
        _ => return 0,
    };
    packet.extend(flow.sport.to_be_bytes());
    packet.extend(flow.dport.to_be_bytes());
    flows.of_path(&packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_flow_counts() {
        let flows = FlowHash::new(7);
        for (from, other, to) in
            [("10.0.0.1", "10.0.0.2", "10.0.1.1"), ("fd00::1", "fd00::2", "fd00:1::1")]
        {
            let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let flow = Flow { from, protocol: 17, sport: 1000, dport: 53 };
            let number = hash(&flows, to, &flow);
            for changed in [
                Flow { from: other.parse().unwrap(), ..flow },
                Flow { protocol: 6, ..flow },
                Flow { sport: 1001, ..flow },
                Flow { dport: 54, ..flow },
            ] {
                assert_ne!(hash(&flows, to, &changed), number, "{changed:?}");
            }
            assert_eq!(hash(&flows, to, &flow), number);
            assert_ne!(hash(&FlowHash::new(8), to, &flow), number);
        }
    }

    #[test]
    fn ports_count_only_where_there_are_any() {
        let flows = FlowHash::new(7);
        let (from, to) = ("10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap());
        let icmp = |sport| Flow { from, protocol: 1, sport, dport: 0 };
        assert_eq!(hash(&flows, to, &icmp(0)), hash(&flows, to, &icmp(9)));
    }
}
