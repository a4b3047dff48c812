//! Expressions of a rule as packets of established flows meet them ([`crate::established`]).

use std::collections::BTreeMap;

use super::TableFamily;
use crate::established::{End, Holds, Met, STATE_ESTABLISHED, tcp_flags};
use crate::netlink::{Attribute, Attributes};

const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFTA_PAYLOAD_SREG: u16 = 5;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_META_SREG: u16 = 3;
const NFTA_CT_DREG: u16 = 1;
const NFTA_CT_KEY: u16 = 2;
const NFTA_CT_SREG: u16 = 4;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_BITWISE_OP: u16 = 6;
const NFTA_LOOKUP_SET: u16 = 1;
const NFTA_LOOKUP_DREG: u16 = 3;
const NFTA_OBJREF_IMM_TYPE: u16 = 1;
const NFTA_TARGET_NAME: u16 = 1;
const NFTA_MATCH_INFO: u16 = 3;

const NFT_OBJECT_COUNTER: u32 = 1;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
const NFT_PAYLOAD_NETWORK: u32 = 1;
const NFT_PAYLOAD_TRANSPORT: u32 = 2;
const NFT_META_NFTRACE: u32 = 12;
const NFT_META_NFPROTO: u32 = 15;
const NFT_META_L4PROTO: u32 = 16;
const NFT_META_PROTOCOL: u32 = 1;
/// Of a flow: protocol, mark, interfaces and their names, types, groups and kinds, families, protocol, packet type.
const META_OF_FLOWS: [u32; 15] = [1, 3, 4, 5, 6, 7, 8, 9, 15, 16, 19, 21, 22, 26, 27];
const NFT_CT_STATE: u32 = 0;
/// Of a flow: direction, status, helper, addresses, protocols, ports, zone, number. Not: marks and labels, which are changed
/// without a notice, times and counts.
const CT_OF_FLOWS: [u32; 14] = [1, 2, 6, 7, 8, 9, 10, 11, 12, 17, 19, 20, 21, 22];

/// The register of verdicts, and verdicts.
const VERDICT: u32 = 0;
const CONTINUE: i32 = -1;
const BREAK: i32 = -2;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FLAGS_OFFSET: u32 = 13;

/// The content of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The same for all packets of a flow.
    OfFlow,
    /// The state of the connection, masked.
    State(u32),
    /// Flags of TCP, masked.
    Flags(u8),
    /// TCP or UDP.
    Protocol,
    /// The family, by its number in netfilter or as Ethertype.
    Family,
}

/// The place of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where {
    pub family: TableFamily,
    /// True behind connection tracking.
    pub tracked: bool,
}

/// Reads the expressions of a rule.
pub fn read(expressions: Attributes<'_>, place: Where) -> Met {
    let mut reader =
        Reader { place, registers: BTreeMap::new(), met: Met::default(), family: place.family };
    for expression in expressions.iter().map(Attribute::nested) {
        let name = expression.text(NFTA_EXPR_NAME);
        if reader.expression(&name, expression.nested(NFTA_EXPR_DATA)).is_none() {
            reader.met.part = Some(name);
        }
        if reader.met.holds == Holds::Never || reader.met.part.is_some() {
            break;
        }
    }
    reader.met
}

struct Reader {
    place: Where,
    registers: BTreeMap<u32, Content>,
    met: Met,
    /// The family of packets that the expressions so far have left.
    family: TableFamily,
}

impl Reader {
    /// Reads an expression; `None` if it depends on more than the flow, or changes anything.
    fn expression(&mut self, name: &str, data: Attributes<'_>) -> Option<()> {
        let number = |kind| data.get(kind).and_then(Attribute::be32);
        match name {
            "immediate" => self.immediate(data),
            "payload" => {
                let content = self.payload(data)?;
                self.registers.insert(number(NFTA_PAYLOAD_DREG)?, content);
            }
            "meta" => self.meta(data)?,
            "ct" => {
                let content = match number(NFTA_CT_KEY)? {
                    _ if data.get(NFTA_CT_SREG).is_some() => return None,
                    NFT_CT_STATE if self.place.tracked => Content::State(u32::MAX),
                    NFT_CT_STATE => Content::OfFlow,
                    key if CT_OF_FLOWS.contains(&key) => Content::OfFlow,
                    _ => return None,
                };
                self.registers.insert(number(NFTA_CT_DREG)?, content);
            }
            "bitwise" => {
                let content = self.bitwise(data)?;
                self.registers.insert(number(NFTA_BITWISE_DREG)?, content);
            }
            "cmp" => {
                let holds = self.compare(data)?;
                self.met.holds = self.met.holds.and(holds);
            }
            "range" if !self.has_flags() => self.met.holds = self.met.holds.and(Holds::OfFlow),
            "byteorder" if !self.has_flags() => {}
            "lookup" if !self.has_flags() => self.lookup(data),
            "reject" => self.met.end = End::Final,
            "objref" => return (number(NFTA_OBJREF_IMM_TYPE)? == NFT_OBJECT_COUNTER).then_some(()),
            "match" => {
                let holds = xt_match(data, self.place.tracked)?;
                self.met.holds = self.met.holds.and(holds);
            }
            "target" => self.target(&data.text(NFTA_TARGET_NAME))?,
            "counter" | "log" | "last" | "notrack" => {}
            _ => return None,
        }
        Some(())
    }

    fn immediate(&mut self, data: Attributes<'_>) {
        let register = data.get(NFTA_IMMEDIATE_DREG).and_then(Attribute::be32);
        if register != Some(VERDICT) {
            self.registers.insert(register.unwrap_or(VERDICT), Content::OfFlow);
            return;
        }
        let verdict = data.nested(NFTA_IMMEDIATE_DATA).nested(NFTA_DATA_VERDICT);
        let chain = || verdict.text(NFTA_VERDICT_CHAIN);
        self.met.end =
            match verdict.get(NFTA_VERDICT_CODE).and_then(Attribute::be32).map(u32::cast_signed) {
                Some(CONTINUE | BREAK) => End::Next,
                Some(RETURN) => End::Return,
                Some(JUMP) => End::Jump(chain()),
                Some(GOTO) => End::Goto(chain()),
                _ => End::Final,
            };
    }

    /// Returns what is read of a packet.
    fn payload(&self, data: Attributes<'_>) -> Option<Content> {
        let number = |kind| data.get(kind).and_then(Attribute::be32);
        let (offset, length) = (number(NFTA_PAYLOAD_OFFSET)?, number(NFTA_PAYLOAD_LEN)?);
        if data.get(NFTA_PAYLOAD_SREG).is_some() {
            return None;
        }
        let within =
            |from, to| offset >= from && offset.checked_add(length).is_some_and(|end| end <= to);
        match (number(NFTA_PAYLOAD_BASE)?, self.family) {
            (NFT_PAYLOAD_TRANSPORT, _) if within(0, 4) => Some(Content::OfFlow),
            (NFT_PAYLOAD_TRANSPORT, _) if (offset, length) == (FLAGS_OFFSET, 1) => {
                Some(Content::Flags(u8::MAX))
            }
            (NFT_PAYLOAD_NETWORK, TableFamily::Ip6) if within(6, 7) => Some(Content::Protocol),
            (NFT_PAYLOAD_NETWORK, TableFamily::Ip6) if within(8, 40) => Some(Content::OfFlow),
            (NFT_PAYLOAD_NETWORK, TableFamily::Ip6) => None,
            (NFT_PAYLOAD_NETWORK, _) if within(9, 10) => Some(Content::Protocol),
            (NFT_PAYLOAD_NETWORK, _) if within(12, 20) => Some(Content::OfFlow),
            _ => None,
        }
    }

    fn meta(&mut self, data: Attributes<'_>) -> Option<()> {
        let number = |kind| data.get(kind).and_then(Attribute::be32);
        let key = number(NFTA_META_KEY)?;
        if data.get(NFTA_META_SREG).is_some() {
            return (key == NFT_META_NFTRACE).then_some(());
        }
        let content = match key {
            NFT_META_L4PROTO => Content::Protocol,
            NFT_META_NFPROTO | NFT_META_PROTOCOL => Content::Family,
            key if META_OF_FLOWS.contains(&key) => Content::OfFlow,
            _ => return None,
        };
        self.registers.insert(number(NFTA_META_DREG)?, content);
        Some(())
    }

    /// Returns the content of a register; one that was not written by an expression that is known here is of the flow, as
    /// all others end the reading.
    fn content(&self, register: Option<u32>) -> Content {
        register.and_then(|of| self.registers.get(&of)).copied().unwrap_or(Content::OfFlow)
    }

    /// Returns true if a register has flags of TCP, which differ from packet to packet.
    fn has_flags(&self) -> bool {
        self.registers.values().any(|content| matches!(content, Content::Flags(_)))
    }

    fn bitwise(&self, data: Attributes<'_>) -> Option<Content> {
        let content = self.content(data.get(NFTA_BITWISE_SREG).and_then(Attribute::be32));
        let value = |kind| data.nested(kind).get(NFTA_DATA_VALUE).map(|of| of.value);
        let is_mask = data.get(NFTA_BITWISE_OP).and_then(Attribute::be32).unwrap_or(0) == 0
            && value(NFTA_BITWISE_XOR).is_none_or(|xor| xor.iter().all(|byte| *byte == 0));
        let mask = value(NFTA_BITWISE_MASK).unwrap_or_default();
        match content {
            Content::State(_) if is_mask => {
                Some(Content::State(u32::from_ne_bytes(*mask.first_chunk()?)))
            }
            Content::Flags(_) if is_mask => Some(Content::Flags(*mask.first()?)),
            Content::Flags(_) => None,
            _ => Some(Content::OfFlow),
        }
    }

    fn compare(&mut self, data: Attributes<'_>) -> Option<Holds> {
        let number = |kind| data.get(kind).and_then(Attribute::be32);
        let content = self.content(number(NFTA_CMP_SREG));
        let value = data.nested(NFTA_CMP_DATA).get(NFTA_DATA_VALUE)?.value;
        let operation = number(NFTA_CMP_OP)?;
        let equal = match (content, operation) {
            (Content::Flags(mask), NFT_CMP_EQ | NFT_CMP_NEQ) => tcp_flags(mask, *value.first()?)?,
            (Content::Flags(_), _) => return None,
            (Content::State(mask), NFT_CMP_EQ | NFT_CMP_NEQ) => {
                let wanted = u32::from_ne_bytes(*value.first_chunk()?);
                Holds::known(STATE_ESTABLISHED & mask == wanted)
            }
            (Content::Protocol, NFT_CMP_EQ | NFT_CMP_NEQ) => match *value.first()? {
                TCP | UDP => Holds::OfFlow,
                _ => Holds::Never,
            },
            (Content::Family, NFT_CMP_EQ) => {
                self.family = family_of(value)?;
                Holds::OfFlow
            }
            _ => Holds::OfFlow,
        };
        Some(if operation == NFT_CMP_NEQ { equal.not() } else { equal })
    }

    fn lookup(&mut self, data: Attributes<'_>) {
        self.met.holds = self.met.holds.and(Holds::OfFlow);
        self.met.sets.push(data.text(NFTA_LOOKUP_SET));
        match data.get(NFTA_LOOKUP_DREG).and_then(Attribute::be32) {
            Some(VERDICT) => self.met.end = End::Any,
            Some(register) => _ = self.registers.insert(register, Content::OfFlow),
            None => {}
        }
    }

    fn target(&mut self, name: &str) -> Option<()> {
        match name {
            "LOG" | "NFLOG" | "TRACE" | "NOTRACK" => {}
            "REJECT" => self.met.end = End::Final,
            _ => return None,
        }
        Some(())
    }
}

/// Returns the family by its number in netfilter, or by its Ethertype.
fn family_of(value: &[u8]) -> Option<TableFamily> {
    match value {
        [2, ..] | [0x08, 0x00, ..] => Some(TableFamily::Ip),
        [10, ..] | [0x86, 0xdd, ..] => Some(TableFamily::Ip6),
        _ => None,
    }
}

/// Returns the packets for which a match of iptables holds; `None` if it depends on more than the flow.
fn xt_match(data: Attributes<'_>, tracked: bool) -> Option<Holds> {
    let info = data.get(NFTA_MATCH_INFO).map_or(&[][..], |info| info.value);
    match data.text(NFTA_TARGET_NAME).as_str() {
        "conntrack" => xt_conntrack(info, tracked),
        "state" if tracked => {
            let states = u32::from_ne_bytes(*info.first_chunk()?);
            Some(Holds::known(states & STATE_ESTABLISHED != 0))
        }
        "tcp" => xt_tcp(info),
        name => of_match(name),
    }
}

/// Returns the packets for which a match of iptables without further details holds; `None` if it depends on more than the
/// flow.
pub fn of_match(name: &str) -> Option<Holds> {
    match name {
        "comment" => Some(Holds::Always),
        "addrtype" | "conntrack" | "helper" | "iprange" | "mark" | "multiport" | "pkttype"
        | "state" | "tcp" | "udp" => Some(Holds::OfFlow),
        "icmp" | "icmp6" | "sctp" | "dccp" | "esp" | "ah" => Some(Holds::Never),
        _ => None,
    }
}

/// `struct xt_conntrack_mtinfo3`: addresses, masks, times, ports, then flags and states.
fn xt_conntrack(info: &[u8], tracked: bool) -> Option<Holds> {
    const FLAGS: usize = 146;
    const STATE: u16 = 1;
    const EXPIRES: u16 = 1 << 7;
    let half = |at: usize| Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let (flags, inverted, states) = (half(FLAGS)?, half(FLAGS + 2)?, half(FLAGS + 4)?);
    if flags & EXPIRES != 0 {
        return None;
    }
    if flags & STATE == 0 || !tracked {
        return Some(Holds::OfFlow);
    }
    let holds = Holds::known(u32::from(states) & STATE_ESTABLISHED != 0);
    let holds = if inverted & STATE != 0 { holds.not() } else { holds };
    Some(holds.and(if flags == STATE { Holds::Always } else { Holds::OfFlow }))
}

/// `struct xt_tcp`: ports, an option, the mask of flags, their values, inversions.
fn xt_tcp(info: &[u8]) -> Option<Holds> {
    const OPTION: usize = 8;
    const INVERTED_FLAGS: u8 = 4;
    let [option, mask, value, inverted] = *info.get(OPTION..)?.first_chunk::<4>()?;
    let flags = match mask {
        0 => Holds::OfFlow,
        _ => tcp_flags(mask, value)?,
    };
    let flags = if inverted & INVERTED_FLAGS != 0 { flags.not() } else { flags };
    // An option is looked for in each segment.
    (option == 0 || flags == Holds::Never).then(|| flags.and(Holds::OfFlow))
}
