//! `ip4-lookup`: finds the route of each packet.
//!
//! Takes valid IPv4 packets. Looks up all destinations of the batch at once (longest prefix match,
//! RFC 1812 5.2.4.3), then the meaning of each next hop. Sets [`Batch::next_hop`], [`Batch::hop`]
//! and [`Batch::out_interface`]. Outputs and drop reasons: see the table in `resolve.rs`.

use std::sync::Arc;

use super::resolve::{OUTPUTS4, look_up, resolve, without_options};
use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::tables::Tables;

/// See the module's documentation.
pub struct Ip4Lookup {
    tables: Arc<Tables>,
}

impl Ip4Lookup {
    /// Looks up in these tables.
    pub fn new(tables: Arc<Tables>) -> Self {
        Self { tables }
    }
}

impl Step for Ip4Lookup {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS4
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        batch.link_scope = batch.link_scope.without(input);
        let input = without_options(batch, input, out);
        let tables = &*self.tables;
        let mut rest = input;
        while let Some((vrf, packets)) = batch.first_of_vrf(rest) {
            look_up(batch, packets, destination, |addresses, answers| {
                tables.vrf(vrf).fib4.lookup_prefetched(addresses, answers);
            });
            rest = rest.without(packets);
        }
        resolve(batch, input, &tables.next_hops, &tables.flows, out);
    }
}

#[inline(always)]
pub(super) fn destination(batch: &Batch, slot: usize) -> u32 {
    u32::from_be_bytes(batch.ip4(slot).destination_address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::{InterfaceId, InterfaceInfo, VrfId};
    use crate::tables::{Fibs, VrfTables};
    use crate::testing::{FrameBuilder, TestTables, run_step, run_step_on};

    fn to(address: &str) -> Vec<u8> {
        FrameBuilder::ip4().destination4(address).udp(1, 2, b"x").build()
    }

    #[test]
    fn each_kind_of_next_hop_has_its_own_output() {
        let mut step = Ip4Lookup::new(TestTables::every_kind());
        let frames: Vec<_> = (0..11).map(|n| to(&format!("10.0.{n}.1"))).collect();
        let (result, batch) = run_step(&mut step, &frames);
        assert_eq!(result["no-route"], [0]);
        assert_eq!(result["local"], [1]);
        assert_eq!(result["blackhole"], [2]);
        assert_eq!(result["martian-destination"], [3]);
        assert_eq!(result["prohibited"], [4]);
        assert_eq!(result["unreachable"], [5]);
        assert_eq!(result["forward"], [6, 9]);
        assert_eq!(result["glean"], [7]);
        assert_eq!(result["unresolved"], [8]);
        assert_eq!(result["multicast"], [10]);
        assert_eq!(batch.out_interface[6], 3);
        assert_eq!(batch.next_hop[8], 18);
    }

    #[test]
    fn each_packet_is_looked_up_in_its_interface_s_vrf() {
        let (one, other) = (TestTables::every_kind(), TestTables::every_kind());
        let mut both = Tables::clone(&one);
        let mut fib4 = fib::new_ipv4(fib::Algorithm::Reference, Box::new(fib::NoReaders)).unwrap();
        // One VRF forwards these packets, the other drops them.
        fib4.insert("10.0.6.0/24".parse().unwrap(), crate::next_hop::BLACKHOLE).unwrap();
        let fib6 = other.vrf(VrfId::DEFAULT).fib6.clone();
        both.vrfs = Arc::new(VrfTables::new(one.vrf(VrfId::DEFAULT).clone()));
        both.vrfs.add(VrfId::new(1), Fibs { fib4: fib4.reader(), fib6 });
        let mut step = Ip4Lookup::new(Arc::new(both));
        let frames = vec![to("10.0.6.1"); 3];
        let (result, _) = run_step_on(&mut step, &frames, |batch| {
            let info = InterfaceInfo { vrf: VrfId::new(1), ..InterfaceInfo::NONE };
            batch.interfaces = vec![info; 71];
            batch.set_interface(1, InterfaceId::new(70).unwrap());
        });
        assert_eq!((&result["forward"], &result["blackhole"]), (&vec![0, 2], &vec![1]));
    }

    #[test]
    fn only_local_packets_survive_a_link_layer_broadcast() {
        let mut step = Ip4Lookup::new(TestTables::every_kind());
        let frames: Vec<_> = (0..9).map(|n| to(&format!("10.0.{n}.1"))).collect();
        let (result, _) = run_step_on(&mut step, &frames, |b| b.link_multicast = Mask(0x1ff));
        assert_eq!(result["local"], [1]);
        assert_eq!(result["l2-broadcast"], [0, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_flow_keeps_its_path_and_flows_spread() {
        let mut step = Ip4Lookup::new(TestTables::every_kind());
        let flow = |port| FrameBuilder::ip4().destination4("10.0.9.1").udp(port, 53, b"x").build();
        let mut frames: Vec<_> = (1000..1063).map(flow).collect();
        frames.push(flow(1000));
        let (result, batch) = run_step(&mut step, &frames);
        assert_eq!(result["forward"].len(), 64);
        assert_eq!(batch.out_interface[0], batch.out_interface[63]);
        let first = batch.out_interface.iter().filter(|&&port| port == 3).count();
        assert!((16..=48).contains(&first), "{first} of 64 flows on the first path");
    }
}
