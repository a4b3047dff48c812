//! Whatever the kernel were to send, the model of it stands, and tells nothing that contradicts
//! itself: a route is withdrawn only after it was told, and told again only when it changed.
//!
//! The input is a sequence of netlink messages. They get right lengths and types that mean
//! something, since random bytes seldom have either; what is in them stays as it is.
#![no_main]

use std::collections::HashMap;

use arbitrary::Arbitrary;
use control::netlink::{Change, Following, HostVlans, KernelConfig, SourceEvent, replay};
use dataplane::port::PortId;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Message {
    kind: u8,
    flags: u16,
    family: u8,
    fixed: [u8; 15],
    attributes: Vec<(u8, Vec<u8>)>,
}

/// `RTM_NEW…` and `RTM_DEL…` of links, addresses, routes, neighbours, rules and nexthop objects.
const KINDS: [u16; 12] = [16, 17, 20, 21, 24, 25, 28, 29, 32, 33, 104, 105];

impl Message {
    fn write(&self, out: &mut Vec<u8>) {
        let kind = KINDS[usize::from(self.kind) % KINDS.len()];
        let fixed = match kind {
            16 | 17 => 16,
            20 | 21 | 104 | 105 => 8,
            _ => 12,
        };
        let begin = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&kind.to_ne_bytes());
        out.extend_from_slice(&self.flags.to_ne_bytes());
        out.extend_from_slice(&[0; 8]);
        out.push([0, 2, 10][usize::from(self.family) % 3]);
        out.extend_from_slice(&self.fixed[..fixed - 1]);
        for (kind, value) in &self.attributes {
            let value = &value[..value.len().min(200)];
            out.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
            out.extend_from_slice(&u16::from(kind % 34).to_ne_bytes());
            out.extend_from_slice(value);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        let length = (out.len() - begin) as u32;
        out[begin..begin + 4].copy_from_slice(&length.to_ne_bytes());
    }
}

#[derive(Arbitrary, Debug)]
struct Input {
    messages: Vec<Message>,
    rest: Vec<u8>,
}

fuzz_target!(|input: Input| {
    let mut bytes = Vec::new();
    input.messages.iter().for_each(|message| message.write(&mut bytes));
    bytes.extend_from_slice(&input.rest);
    let config = KernelConfig {
        vlans: HostVlans::default(),
        vrfs: Vec::new(),
        netns: None,
        ports: vec![(PortId::FIRST.into(), String::new())],
        following: Following { routes: true, exact: false, audit: None, receive_buffer: 0 },
        multicast: true,
        apart: None,
    };
    let mut told = HashMap::new();
    for event in replay(&config, &bytes) {
        if let SourceEvent::Route { prefix, metric, change, .. } = event {
            match change {
                Change::Set(kind) => {
                    let old = told.insert((prefix, metric), kind.clone());
                    assert!(
                        old.as_ref() != Some(&kind)
                            || matches!(kind, control::netlink::RouteKind::NextHopGroup(_)),
                        "{prefix} told twice"
                    );
                }
                Change::Withdraw => {
                    assert!(told.remove(&(prefix, metric)).is_some(), "{prefix} was not told");
                }
            }
        }
    }
});
