//! Effects of a rule on packets, by its expressions.

use crate::netlink::{Attribute, Attributes};

const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFTA_LOOKUP_DREG: u16 = 3;
const NFTA_PAYLOAD_SREG: u16 = 5;
const NFTA_META_SREG: u16 = 3;
const NFTA_CT_SREG: u16 = 4;
const NFTA_EXTHDR_SREG: u16 = 7;
const NFTA_OBJREF_IMM_TYPE: u16 = 1;
/// Name of a target or match of iptables.
const NFTA_TARGET_NAME: u16 = 1;

const NFT_OBJECT_COUNTER: u32 = 1;

/// The register of verdicts.
const VERDICT: u32 = 0;
const ACCEPT: i32 = 1;
const CONTINUE: i32 = -1;
const BREAK: i32 = -2;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;

/// The effects of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// It may drop or reject a packet, or take it out of the kernel's way: queue, fwd, tproxy.
    pub drops: bool,
    /// It may change a packet, its marks or sets.
    pub changes: bool,
    /// It translates addresses.
    pub translates: bool,
    /// It uses connections.
    pub tracks: bool,
    /// It depends on the number of packets: limits, quotas.
    pub counts: bool,
    /// A map decides about the packet's verdict.
    pub maps: bool,
    /// The chains that it leads to.
    pub jumps: Vec<String>,
    /// Names of its expressions.
    pub expressions: Vec<String>,
}

impl Effects {
    /// Reads the expressions of a rule.
    pub fn of(expressions: Attributes<'_>) -> Self {
        let mut effects = Self::default();
        for expression in expressions.iter().map(Attribute::nested) {
            let name = expression.text(NFTA_EXPR_NAME);
            effects.read(&name, expression.nested(NFTA_EXPR_DATA));
            effects.expressions.push(name);
        }
        effects
    }

    /// Returns true if packets differ by it, but for accepting them.
    pub fn has_any(&self) -> bool {
        self.drops || self.changes || self.translates || self.maps
    }

    /// Returns true if filters cannot do the same, because it depends on a state or changes one.
    pub fn has_state(&self) -> bool {
        self.changes || self.translates || self.tracks || self.counts
    }

    /// Adds those of another rule.
    pub fn add(&mut self, other: &Self) {
        self.drops |= other.drops;
        self.changes |= other.changes;
        self.translates |= other.translates;
        self.tracks |= other.tracks;
        self.counts |= other.counts;
        self.maps |= other.maps;
    }

    fn read(&mut self, name: &str, data: Attributes<'_>) {
        let writes = |kind| data.get(kind).is_some();
        match name {
            "immediate" => self.immediate(data),
            "lookup" => {
                self.maps |= data.get(NFTA_LOOKUP_DREG).and_then(Attribute::be32) == Some(VERDICT)
            }
            "cmp" | "bitwise" | "byteorder" | "range" | "hash" | "numgen" | "rt" | "socket"
            | "osf" | "fib" | "xfrm" | "tunnel" | "inner" | "counter" | "last" | "log" => {}
            "payload" => self.changes |= writes(NFTA_PAYLOAD_SREG),
            "meta" => self.changes |= writes(NFTA_META_SREG),
            "exthdr" => self.changes |= writes(NFTA_EXTHDR_SREG),
            "ct" => {
                self.tracks = true;
                self.changes |= writes(NFTA_CT_SREG);
            }
            "connlimit" => (self.tracks, self.counts) = (true, true),
            "limit" | "quota" => self.counts = true,
            "nat" | "masq" | "redir" => (self.tracks, self.translates) = (true, true),
            "flow_offload" => (self.tracks, self.changes) = (true, true),
            // Accelerated packets are not tracked in any case.
            "notrack" => {}
            "reject" | "queue" | "fwd" | "tproxy" | "synproxy" => self.drops = true,
            "objref" => self.object(data),
            "match" => self.tracks |= tracks(&data.text(NFTA_TARGET_NAME)),
            "target" => self.target(&data.text(NFTA_TARGET_NAME)),
            // dup, dynset, and those of later kernels.
            _ => self.changes = true,
        }
    }

    fn immediate(&mut self, data: Attributes<'_>) {
        if data.get(NFTA_IMMEDIATE_DREG).and_then(Attribute::be32) != Some(VERDICT) {
            return;
        }
        let verdict = data.nested(NFTA_IMMEDIATE_DATA).nested(NFTA_DATA_VERDICT);
        match verdict.get(NFTA_VERDICT_CODE).and_then(Attribute::be32).map(u32::cast_signed) {
            Some(ACCEPT | CONTINUE | BREAK | RETURN) => {}
            Some(JUMP | GOTO) => self.jumps.push(verdict.text(NFTA_VERDICT_CHAIN)),
            _ => self.drops = true,
        }
    }

    /// A named object: counters only count.
    fn object(&mut self, data: Attributes<'_>) {
        match data.get(NFTA_OBJREF_IMM_TYPE).and_then(Attribute::be32) {
            Some(NFT_OBJECT_COUNTER) => {}
            _ => (self.changes, self.counts) = (true, true),
        }
    }

    /// Adds those of a target of iptables.
    pub fn target(&mut self, name: &str) {
        match name {
            "LOG" | "NFLOG" | "TRACE" | "NOTRACK" => {}
            "SNAT" | "DNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" => {
                (self.tracks, self.translates) = (true, true);
            }
            "REJECT" | "NFQUEUE" | "TPROXY" | "SYNPROXY" => self.drops = true,
            _ => {
                self.changes = true;
                self.tracks |= matches!(name, "CT" | "CONNMARK" | "CONNSECMARK");
            }
        }
    }
}

/// Returns true for a match of iptables that uses connections.
pub fn tracks(name: &str) -> bool {
    matches!(
        name,
        "state"
            | "conntrack"
            | "connmark"
            | "connlimit"
            | "connbytes"
            | "connlabel"
            | "cluster"
            | "helper"
    )
}
