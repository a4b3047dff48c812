//! The messages of DHCP that a relay agent changes: any bytes are read or refused; what is relayed is read again, and an
//! agent does not take back what it has sent.
#![no_main]

use std::net::{Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use wire::MacAddr;
use wire::dhcp::{Refusal, v4, v6};

fuzz_target!(|bytes: &[u8]| {
    let agent = Ipv4Addr::new(192, 0, 2, 1);
    if let Ok(relayed) = v4::relay_request(bytes, agent, b"left", MacAddr([2; 6])) {
        assert!(relayed.len() >= 300 && relayed[24..28] == agent.octets());
        let again = v4::relay_request(&relayed, agent, b"left", MacAddr([2; 6]));
        assert_eq!(again, Err(Refusal::Untrusted));
        // As a server that returns everything.
        let mut answer = relayed;
        answer[0] = 2;
        let reply = v4::relay_reply(&answer).expect("its options were read");
        assert_eq!(reply.agent, agent);
        assert!(reply.circuit.is_none_or(|circuit| circuit == b"left"));
    }
    if let Ok(reply) = v4::relay_reply(bytes) {
        assert_eq!(v4::relay_reply(&reply.message).map(|reply| reply.circuit), Ok(None));
    }
    let (link, peer): (Ipv6Addr, _) = ("2001:db8::1".parse().unwrap(), "fe80::2".parse().unwrap());
    if let Ok(mut forward) = v6::relay_forward(bytes, link, peer, b"left") {
        // As a server that answers with the client's bytes: a Relay-reply with a Reply behind the options' headers.
        (forward[0], forward[46]) = (13, 7);
        let reply = v6::relay_reply(&forward).expect("it was wrapped here");
        let expected = (&bytes[1..], Some(&b"left"[..]), peer);
        assert_eq!((&reply.message[1..], reply.interface, reply.peer), expected);
    }
    let _ = v6::relay_reply(bytes);
});
