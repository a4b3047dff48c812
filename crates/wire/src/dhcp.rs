//! DHCP messages as a relay agent changes them: [`v4`] by RFC 2131, RFC 1542, 4.1 and RFC 3046, [`v6`] by RFC 8415, 19.
//!
//! The functions take the data of a UDP datagram, whose contents are not trusted, and return that of the datagram to be
//! sent.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::MacAddr;

/// `ff02::1:2`: all DHCPv6 servers and relay agents of a link (RFC 8415, 7.1).
pub const ALL_RELAYS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Reason to discard a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not a DHCP message of this direction, or its options lead out of it.
    Malformed,
    /// It has passed a relay agent already, or says so (RFC 3046, 2.1).
    Untrusted,
    /// It has passed too many relay agents.
    Hops,
}

/// DHCP for IPv4.
pub mod v4 {
    use super::{Ipv4Addr, MacAddr, Refusal};

    /// UDP port of servers and relay agents.
    pub const SERVER_PORT: u16 = 67;
    /// UDP port of clients.
    pub const CLIENT_PORT: u16 = 68;

    /// Relay agents that a message may pass (RFC 1542, 4.1.1).
    pub const HOPS_MOST: u8 = 16;

    /// Longest message to which the relay agent adds its option: with it the packet fits an Ethernet frame (RFC 3046,
    /// 2.1.1).
    const LENGTH_MOST: usize = 1472;
    /// Least length of a message (RFC 1542, 2.1).
    const LENGTH_LEAST: usize = 300;

    const REQUEST: u8 = 1;
    const REPLY: u8 = 2;
    const ETHERNET: u8 = 1;
    // Offsets of fields: RFC 2131, 2.
    const HOPS: usize = 3;
    const FLAGS: usize = 10;
    const CIADDR: usize = 12;
    const YIADDR: usize = 16;
    const GIADDR: usize = 24;
    const CHADDR: usize = 28;
    const COOKIE: usize = 236;
    const OPTIONS: usize = 240;
    const MAGIC: [u8; 4] = [99, 130, 83, 99];

    const PAD: u8 = 0;
    const END: u8 = 255;
    /// Relay Agent Information (RFC 3046).
    const RELAY: u8 = 82;
    const CIRCUIT_ID: u8 = 1;
    const REMOTE_ID: u8 = 2;

    /// Returns true for a message of a client, false for one of a server; `None`: it is neither.
    pub fn is_request(message: &[u8]) -> Option<bool> {
        match *message.first()? {
            REQUEST => Some(true),
            REPLY => Some(false),
            _ => None,
        }
    }

    fn address(message: &[u8], at: usize) -> Option<Ipv4Addr> {
        message.get(at..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
    }

    /// Returns the message's options, each with its own bytes, up to the end option.
    fn options(message: &[u8]) -> Result<Vec<(u8, &[u8])>, Refusal> {
        if message.get(COOKIE..OPTIONS) != Some(&MAGIC[..]) {
            return Err(Refusal::Malformed);
        }
        let (mut rest, mut all) = (&message[OPTIONS..], Vec::new());
        loop {
            match *rest {
                [END, ..] => return Ok(all),
                [PAD, ..] => rest = &rest[1..],
                [code, length, ..] => {
                    let whole = 2 + usize::from(length);
                    let (option, after) = rest.split_at_checked(whole).ok_or(Refusal::Malformed)?;
                    all.push((code, option));
                    rest = after;
                }
                [_] | [] => return Err(Refusal::Malformed),
            }
        }
    }

    /// Returns the message that a relay agent sends to its servers for a client's: with the agent's address on the
    /// client's link, and with the circuit and the host by which the client is reached.
    ///
    /// # Errors
    /// The message is to be discarded.
    pub fn relay_request(
        message: &[u8],
        agent: Ipv4Addr,
        circuit: &[u8],
        remote: MacAddr,
    ) -> Result<Vec<u8>, Refusal> {
        let options = options(message)?;
        if message[0] != REQUEST {
            return Err(Refusal::Malformed);
        }
        let by_relay = options.iter().any(|(code, _)| *code == RELAY);
        if by_relay || address(message, GIADDR).is_none_or(|agent| !agent.is_unspecified()) {
            return Err(Refusal::Untrusted);
        }
        if message[HOPS] >= HOPS_MOST {
            return Err(Refusal::Hops);
        }
        let mut relayed = message[..OPTIONS].to_vec();
        relayed[HOPS] += 1;
        relayed[GIADDR..][..4].copy_from_slice(&agent.octets());
        options.iter().for_each(|(_, option)| relayed.extend_from_slice(option));
        let circuit = &circuit[..circuit.len().min(64)];
        let own = 2 + circuit.len() + 2 + remote.0.len();
        if relayed.len() + 2 + own < LENGTH_MOST {
            relayed.extend([RELAY, own as u8, CIRCUIT_ID, circuit.len() as u8]);
            relayed.extend_from_slice(circuit);
            relayed.extend([REMOTE_ID, remote.0.len() as u8]);
            relayed.extend_from_slice(&remote.0);
        }
        relayed.push(END);
        relayed.resize(relayed.len().max(LENGTH_LEAST), PAD);
        Ok(relayed)
    }

    /// A server's message, as the relay agent sends it to the client.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Reply {
        /// The agent's address on the client's link.
        pub agent: Ipv4Addr,
        /// The circuit that the agent had named.
        pub circuit: Option<Vec<u8>>,
        /// The client's addresses; `None`: the message is to be broadcast (RFC 1542, 4.1.2).
        pub client: Option<(MacAddr, Ipv4Addr)>,
        /// The message without the agent's option.
        pub message: Vec<u8>,
    }

    /// Reads a server's message.
    ///
    /// # Errors
    /// The message is to be discarded.
    pub fn relay_reply(message: &[u8]) -> Result<Reply, Refusal> {
        let options = options(message)?;
        if message[0] != REPLY {
            return Err(Refusal::Malformed);
        }
        let field = |at| address(message, at).ok_or(Refusal::Malformed);
        let (agent, own, known) = (field(GIADDR)?, field(YIADDR)?, field(CIADDR)?);
        let client = if own.is_unspecified() { known } else { own };
        let mut sent = message[..OPTIONS].to_vec();
        let mut circuit = None;
        for (code, option) in options {
            if code == RELAY {
                circuit = sub_option(&option[2..], CIRCUIT_ID)?.map(<[u8]>::to_vec);
            } else {
                sent.extend_from_slice(option);
            }
        }
        sent.push(END);
        sent.resize(sent.len().max(LENGTH_LEAST), PAD);
        let mac = message[CHADDR..].first_chunk().map(|bytes| MacAddr(*bytes));
        let is_host = |mac: &MacAddr| !mac.is_multicast() && *mac != MacAddr::default();
        // Hardware type and length of the client's address.
        let mac = mac.filter(is_host).filter(|_| message[1..3] == [ETHERNET, 6]);
        let asks_for_broadcast = message[FLAGS] & 0x80 != 0 || client.is_unspecified();
        let client = mac.filter(|_| !asks_for_broadcast).map(|mac| (mac, client));
        Ok(Reply { agent, circuit, client, message: sent })
    }

    fn sub_option(mut rest: &[u8], wanted: u8) -> Result<Option<&[u8]>, Refusal> {
        while let [code, length, after @ ..] = rest {
            let (value, next) =
                after.split_at_checked(usize::from(*length)).ok_or(Refusal::Malformed)?;
            if *code == wanted {
                return Ok(Some(value));
            }
            rest = next;
        }
        if rest.is_empty() { Ok(None) } else { Err(Refusal::Malformed) }
    }
}

/// DHCP for IPv6.
pub mod v6 {
    use super::{Ipv6Addr, Refusal};

    /// UDP port of servers and relay agents.
    pub const SERVER_PORT: u16 = 547;
    /// UDP port of clients.
    pub const CLIENT_PORT: u16 = 546;

    /// Relay agents that a message may pass (RFC 8415, 7.6: HOP_COUNT_LIMIT).
    pub const HOPS_MOST: u8 = 8;

    const RELAY_FORWARD: u8 = 12;
    const RELAY_REPLY: u8 = 13;
    /// SOLICIT, REQUEST, CONFIRM, RENEW, REBIND, RELEASE, DECLINE, INFORMATION-REQUEST.
    const OF_CLIENTS: [u8; 8] = [1, 3, 4, 5, 6, 8, 9, 11];
    /// ADVERTISE, REPLY, RECONFIGURE, and Relay-reply for another agent.
    const FOR_CLIENTS: [u8; 4] = [2, 7, 10, RELAY_REPLY];

    const OPTION_RELAY_MESSAGE: u16 = 9;
    const OPTION_INTERFACE_ID: u16 = 18;
    /// Bytes of a relay message in front of its options (RFC 8415, 9).
    const HEADER: usize = 34;
    /// Bytes of a client's message in front of its options.
    const CLIENT_HEADER: usize = 4;

    /// Longest message that is relayed: with what the agent adds it is a UDP datagram.
    const LENGTH_MOST: usize = 60_000;

    /// Returns true for a message of a client or of an agent nearer to it, false for a server's to an agent; `None`: it
    /// is neither.
    pub fn is_request(message: &[u8]) -> Option<bool> {
        match *message.first()? {
            RELAY_REPLY => Some(false),
            kind if kind == RELAY_FORWARD || OF_CLIENTS.contains(&kind) => Some(true),
            _ => None,
        }
    }

    /// Returns the Relay-forward message for a client's or another agent's, which came from `peer` on the interface
    /// with this address and identifier.
    ///
    /// # Errors
    /// The message is to be discarded.
    pub fn relay_forward(
        message: &[u8],
        link: Ipv6Addr,
        peer: Ipv6Addr,
        interface: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let by_agent = message.first() == Some(&RELAY_FORWARD);
        let least = if by_agent { HEADER } else { CLIENT_HEADER };
        if is_request(message) != Some(true) || !(least..=LENGTH_MOST).contains(&message.len()) {
            return Err(Refusal::Malformed);
        }
        options(&message[least..]).try_for_each(|option| option.map(drop))?;
        if by_agent && message[1] >= HOPS_MOST {
            return Err(Refusal::Hops);
        }
        let hops = if by_agent { message[1] + 1 } else { 0 };
        // 19.1.2: the agent with a global address has named the link.
        let is_named = by_agent && !peer.is_unicast_link_local();
        let link = if is_named { Ipv6Addr::UNSPECIFIED } else { link };
        let mut relayed = vec![RELAY_FORWARD, hops];
        relayed.extend(link.octets());
        relayed.extend(peer.octets());
        put(&mut relayed, OPTION_INTERFACE_ID, &interface[..interface.len().min(64)]);
        put(&mut relayed, OPTION_RELAY_MESSAGE, message);
        Ok(relayed)
    }

    fn put(message: &mut Vec<u8>, code: u16, value: &[u8]) {
        message.extend(code.to_be_bytes());
        // Fits: callers bound it.
        message.extend((value.len() as u16).to_be_bytes());
        message.extend_from_slice(value);
    }

    /// A server's Relay-reply message, as the agent passes it on.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Reply<'a> {
        /// The link's address, as the agent had named it.
        pub link: Ipv6Addr,
        /// The interface's identifier.
        pub interface: Option<&'a [u8]>,
        /// The client, or the agent nearer to it.
        pub peer: Ipv6Addr,
        /// True if it is for another agent.
        pub for_agent: bool,
        /// The message for it.
        pub message: &'a [u8],
    }

    /// Reads a server's Relay-reply message.
    ///
    /// # Errors
    /// The message is to be discarded.
    pub fn relay_reply(message: &[u8]) -> Result<Reply<'_>, Refusal> {
        let (header, rest) = message.split_first_chunk::<HEADER>().ok_or(Refusal::Malformed)?;
        if header[0] != RELAY_REPLY {
            return Err(Refusal::Malformed);
        }
        let address = |at: usize| {
            header[at..].first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |o| (*o).into())
        };
        let (link, peer) = (address(2), address(18));
        let (mut interface, mut inner) = (None, None);
        for option in options(rest) {
            match option? {
                (OPTION_INTERFACE_ID, value) => interface = Some(value),
                (OPTION_RELAY_MESSAGE, value) => inner = Some(value),
                _ => {}
            }
        }
        let inner = inner.filter(|inner| inner.len() >= CLIENT_HEADER).ok_or(Refusal::Malformed)?;
        let is_for_peer = FOR_CLIENTS.contains(&inner[0]);
        if !is_for_peer || peer.is_multicast() || peer.is_unspecified() || peer.is_loopback() {
            return Err(Refusal::Malformed);
        }
        Ok(Reply { link, interface, peer, for_agent: inner[0] == RELAY_REPLY, message: inner })
    }

    /// Iterates over options; an option that leads out of the message is an error, and the last one.
    fn options(mut rest: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Refusal>> {
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let all = std::mem::take(&mut rest);
            let Some(([a, b, c, d], after)) = all.split_first_chunk() else {
                return Some(Err(Refusal::Malformed));
            };
            let length = usize::from(u16::from_be_bytes([*c, *d]));
            let Some((value, next)) = after.split_at_checked(length) else {
                return Some(Err(Refusal::Malformed));
            };
            rest = next;
            Some(Ok((u16::from_be_bytes([*a, *b]), value)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const CLIENT: MacAddr = MacAddr([2, 0, 0, 0, 9, 9]);
    const AGENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);

    /// A message with these options.
    fn message(operation: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 240];
        bytes[..4].copy_from_slice(&[operation, 1, 6, 0]);
        bytes[28..34].copy_from_slice(&CLIENT.0);
        bytes[236..].copy_from_slice(&[99, 130, 83, 99]);
        bytes.extend(options);
        bytes
    }

    #[test]
    fn a_request_gets_the_agent_s_address_and_option() {
        let request = message(1, &[0, 53, 1, 1, 55, 2, 1, 3, 255, 0, 0, 7]);
        let relayed = v4::relay_request(&request, AGENT, b"left", MAC).unwrap();
        assert_eq!((relayed[3], &relayed[24..28], relayed.len()), (1, &[10, 0, 1, 1][..], 300));
        let expected = [
            &[53, 1, 1, 55, 2, 1, 3, 82, 14, 1, 4][..],
            b"left",
            &[2, 6, 2, 0, 0, 0, 0, 1, 255, 0],
        ]
        .concat();
        assert_eq!(relayed[240..][..expected.len()], expected);
        // A long message goes without it.
        let filler = [&[43, 250][..], &[1; 250]].concat();
        let long = message(
            1,
            &[&[53, 1, 1][..], &filler.repeat(4), &[43, 210], &[1; 210], &[255]].concat(),
        );
        let relayed = v4::relay_request(&long, AGENT, b"left", MAC).unwrap();
        assert_eq!((relayed.len(), &relayed[28..]), (long.len(), &long[28..]));
    }

    #[test]
    fn requests_that_have_passed_an_agent_or_are_malformed_are_refused() {
        let relay = |bytes: &[u8]| v4::relay_request(bytes, AGENT, b"left", MAC).map(drop);
        let good = message(1, &[53, 1, 1, 255]);
        assert_eq!(relay(&good), Ok(()));
        let with = |at: usize, value| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(relay(&with(27, 1)), Err(Refusal::Untrusted), "giaddr");
        let option = message(1, &[53, 1, 1, 82, 2, 1, 0, 255]);
        assert_eq!(relay(&option), Err(Refusal::Untrusted));
        assert_eq!((relay(&with(3, 15)), relay(&with(3, 16))), (Ok(()), Err(Refusal::Hops)));
        for bad in [
            with(0, 2),
            with(0, 3),
            with(239, 0),
            message(1, &[53, 1, 1]),
            message(1, &[53, 9, 255]),
        ] {
            assert_eq!(relay(&bad), Err(Refusal::Malformed));
        }
        for length in 0..good.len() {
            assert_eq!(relay(&good[..length]), Err(Refusal::Malformed), "{length}");
        }
    }

    #[test]
    fn a_reply_loses_the_agent_s_option_and_names_its_client() {
        let mut reply = message(2, &[53, 1, 2, 82, 6, 2, 1, 9, 1, 1, 7, 51, 1, 9, 255]);
        reply[16..20].copy_from_slice(&[10, 0, 1, 50]);
        reply[24..28].copy_from_slice(&AGENT.octets());
        let read = v4::relay_reply(&reply).unwrap();
        let client = Ipv4Addr::new(10, 0, 1, 50);
        assert_eq!(
            (read.agent, read.circuit, read.client),
            (AGENT, Some(vec![7]), Some((CLIENT, client)))
        );
        assert_eq!(read.message[240..248], [53, 1, 2, 51, 1, 9, 255, 0]);
        let client_of = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = reply.clone();
            change(&mut bytes);
            v4::relay_reply(&bytes).map(|reply| reply.client)
        };
        // The client asks for a broadcast, has no address, or none of Ethernet, or a group's.
        assert_eq!(client_of(&|bytes| bytes[10] = 0x80), Ok(None));
        assert_eq!(client_of(&|bytes| bytes[16..20].fill(0)), Ok(None));
        assert_eq!(client_of(&|bytes| bytes[1] = 6), Ok(None));
        assert_eq!(client_of(&|bytes| bytes[28] = 1), Ok(None));
        let renewed = client_of(&|bytes| {
            bytes[16..20].fill(0);
            bytes[12..16].copy_from_slice(&[10, 0, 1, 51]);
        });
        assert_eq!(renewed, Ok(Some((CLIENT, Ipv4Addr::new(10, 0, 1, 51)))));
        // Sub-options that lead out of the option.
        assert_eq!(client_of(&|bytes| bytes[246] = 9), Err(Refusal::Malformed));
        assert_eq!(client_of(&|bytes| bytes[0] = 1), Err(Refusal::Malformed));
    }

    #[test]
    fn messages_for_ipv6_are_wrapped_and_unwrapped() {
        let link: Ipv6Addr = "fd00:1::1".parse().unwrap();
        let peer: Ipv6Addr = "fe80::2".parse().unwrap();
        let solicit = [1, 1, 2, 3, 0, 1, 0, 2, 7, 7];
        let forward = v6::relay_forward(&solicit, link, peer, b"left").unwrap();
        let expected = [
            &[12, 0][..],
            &link.octets(),
            &peer.octets(),
            &[0, 18, 0, 4],
            b"left",
            &[0, 9, 0, 10],
            &solicit,
        ]
        .concat();
        assert_eq!(forward, expected);
        // Another agent's: by its global address it has named the link, by its link-local one not.
        let (far, near) = ("fd00:1::9".parse().unwrap(), peer);
        let again = v6::relay_forward(&forward, link, far, b"x").unwrap();
        assert_eq!((again[1], &again[2..18]), (1, &[0; 16][..]));
        let again = v6::relay_forward(&forward, link, near, b"x").unwrap();
        assert_eq!(again[2..18], link.octets());
        let hops = |count| {
            let mut bytes = forward.clone();
            bytes[1] = count;
            v6::relay_forward(&bytes, link, near, b"x").map(|relayed| relayed[1])
        };
        assert_eq!((hops(7), hops(8)), (Ok(8), Err(Refusal::Hops)));
        let mut reply = expected;
        reply[0] = 13;
        reply[46] = 7;
        let read = v6::relay_reply(&reply).unwrap();
        assert_eq!(
            (read.link, read.peer, read.interface, read.for_agent),
            (link, peer, Some(&b"left"[..]), false)
        );
        assert_eq!((read.message[0], read.message.len()), (7, 10));
        reply[46] = 13;
        assert!(v6::relay_reply(&reply).unwrap().for_agent);
    }

    #[test]
    fn malformed_messages_for_ipv6_are_refused() {
        let (link, peer) = (Ipv6Addr::UNSPECIFIED, "fe80::2".parse().unwrap());
        let malformed = Err(Refusal::Malformed);
        let forward = |bytes: &[u8]| v6::relay_forward(bytes, link, peer, b"left").map(drop);
        // A reply, an unknown type, too short, an option that leads out of it.
        for bad in [
            &[7, 1, 2, 3][..],
            &[99, 1, 2, 3],
            &[1, 1, 2],
            &[12; 33],
            &[1, 1, 2, 3, 0, 1, 0, 1],
            &[],
        ] {
            assert_eq!(forward(bad), malformed, "{bad:?}");
        }
        assert_eq!(forward(&[1; 60_001]), malformed);
        let reply = |peer: &str, rest: &[u8]| {
            let peer: Ipv6Addr = peer.parse().unwrap();
            let bytes = [&[13, 0][..], &[0; 16], &peer.octets(), rest].concat();
            v6::relay_reply(&bytes).map(drop)
        };
        assert_eq!(reply("fe80::2", &[0, 9, 0, 4, 7, 1, 2, 3]), Ok(()));
        for rest in [
            &[][..],
            &[0, 9, 0, 4, 1, 1, 2, 3],
            &[0, 9, 0, 3, 7, 1, 2],
            &[0, 9, 0, 5, 7, 1, 2, 3],
            &[0, 9],
        ] {
            assert_eq!(reply("fe80::2", rest), malformed, "{rest:?}");
        }
        for peer in ["ff02::1", "::", "::1"] {
            assert_eq!(reply(peer, &[0, 9, 0, 4, 7, 1, 2, 3]), malformed);
        }
    }
}
