//! Findings: what the kernel applies to forwarded packets, where, to which packets, and what is to be done about it.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::Serialize;

/// The subject of a finding; its name is that of `--bypass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The interface itself: absent, not Ethernet.
    Interface,
    /// A bridge, or a port of one.
    Bridge,
    /// A bond or team, or a member of one.
    Bond,
    /// A device that takes the packets of another: IPVLAN, MACVLAN.
    Macvlan,
    /// A VRF device.
    Vrf,
    /// XDP programs.
    Xdp,
    /// Qdiscs, filters and programs of tc.
    Tc,
    /// Chains of nftables.
    Nftables,
    /// Chains of legacy iptables and ip6tables.
    Iptables,
    /// Address translation, whoever configures it.
    Nat,
    /// Connection tracking.
    Conntrack,
    /// Virtual servers (IPVS).
    Ipvs,
    /// Netfilter hooks of anything else.
    Hooks,
    /// Routing rules: `ip rule`.
    Rules,
    /// Routes for a part of the packets to a prefix: by TOS, by source.
    Routes,
    /// Routes that put a header in front: MPLS, SRv6, tunnels.
    Encapsulation,
    /// Received MPLS packets.
    Mpls,
    /// IPsec policies.
    Xfrm,
    /// Forwarding switched off.
    Forwarding,
    /// Reverse-path filtering, and other tests of source addresses.
    ReversePath,
    /// ICMP redirects.
    Redirects,
    /// Multicast routing.
    Multicast,
    /// Packet sockets: tcpdump.
    Taps,
}

impl Kind {
    /// All kinds, in the order of findings.
    pub const ALL: [Self; 23] = [
        Self::Interface,
        Self::Bridge,
        Self::Bond,
        Self::Macvlan,
        Self::Vrf,
        Self::Xdp,
        Self::Tc,
        Self::Nftables,
        Self::Iptables,
        Self::Nat,
        Self::Conntrack,
        Self::Ipvs,
        Self::Hooks,
        Self::Rules,
        Self::Routes,
        Self::Encapsulation,
        Self::Mpls,
        Self::Xfrm,
        Self::Forwarding,
        Self::ReversePath,
        Self::Redirects,
        Self::Multicast,
        Self::Taps,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interface => "interface",
            Self::Bridge => "bridge",
            Self::Bond => "bond",
            Self::Macvlan => "macvlan",
            Self::Vrf => "vrf",
            Self::Xdp => "xdp",
            Self::Tc => "tc",
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Nat => "nat",
            Self::Conntrack => "conntrack",
            Self::Ipvs => "ipvs",
            Self::Hooks => "hooks",
            Self::Rules => "rules",
            Self::Routes => "routes",
            Self::Encapsulation => "encapsulation",
            Self::Mpls => "mpls",
            Self::Xfrm => "xfrm",
            Self::Forwarding => "forwarding",
            Self::ReversePath => "reverse-path",
            Self::Redirects => "redirects",
            Self::Multicast => "multicast",
            Self::Taps => "taps",
        }
    }

    /// Returns true if the kernel's treatment may be bypassed on request. The others are followed, or are reasons that no
    /// request removes: an interface that is absent, forwarding that is switched off, the one place for an XDP program.
    pub fn can_be_bypassed(self) -> bool {
        match self {
            Self::Bridge
            | Self::Bond
            | Self::Macvlan
            | Self::Tc
            | Self::Nftables
            | Self::Iptables
            | Self::Nat
            | Self::Ipvs
            | Self::Hooks
            | Self::Rules
            | Self::Xfrm => true,
            Self::Interface
            | Self::Vrf
            | Self::Xdp
            | Self::Conntrack
            | Self::Routes
            | Self::Encapsulation
            | Self::Mpls
            | Self::Forwarding
            | Self::ReversePath
            | Self::Redirects
            | Self::Multicast
            | Self::Taps => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: a name that is no kind, or that of one that cannot be bypassed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bypass \"{0}\": no kind of rule that can be bypassed; known: {known}", known = bypassable())]
pub struct UnknownKind(String);

fn bypassable() -> String {
    let kinds = Kind::ALL.iter().filter(|kind| kind.can_be_bypassed());
    kinds.map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name && kind.can_be_bypassed());
        kind.ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ip4,
    /// IPv6.
    Ip6,
}

impl Family {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Ip4, Self::Ip6];

    /// Returns the family's name in text: `IPv4`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip4 => "IPv4",
            Self::Ip6 => "IPv6",
        }
    }

    /// Returns the family by the number of sockets.
    pub(crate) fn of(number: u8) -> Option<Self> {
        match number {
            2 => Some(Self::Ip4),
            10 => Some(Self::Ip6),
            _ => None,
        }
    }

    /// Returns the number of sockets.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Ip4 => 2,
            Self::Ip6 => 10,
        }
    }
}

/// The place of a rule or setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// An interface.
    Interface {
        /// Its name.
        name: String,
    },
    /// A chain attached to a hook of netfilter.
    Chain {
        /// `ip`, `ip6`, `inet`, `netdev`, `bridge`.
        family: String,
        /// Its table.
        table: String,
        /// Its name.
        chain: String,
        /// `forward`, `prerouting`, …
        hook: String,
        /// Chains of a hook are passed in ascending order.
        priority: i32,
        /// The rules that have an effect on forwarded packets, in order.
        rules: Vec<Rule>,
    },
    /// A hook of netfilter without rules that can be listed.
    Hook {
        /// The family.
        family: String,
        /// The hook.
        hook: String,
        /// The function that is called.
        function: String,
    },
    /// A routing rule.
    RoutingRule {
        /// The family.
        family: Family,
        /// Its priority.
        priority: u32,
        /// It, as `ip rule` shows it.
        text: String,
    },
    /// Routes of a table.
    Routes {
        /// The family.
        family: Family,
        /// The first ones, as text.
        examples: Vec<String>,
        /// Number of routes.
        count: usize,
    },
    /// A setting below `/proc/sys`.
    Setting {
        /// Its name: `net.ipv4.conf.eth0.forwarding`.
        name: String,
        /// Its value.
        value: i64,
    },
    /// A qdisc, filter or program.
    Tc {
        /// The interface.
        interface: String,
        /// It, as text: `qdisc htb 1:`.
        text: String,
    },
    /// An IPsec policy.
    Policy {
        /// `out`, `fwd`.
        direction: String,
        /// Its selector and priority, as text.
        text: String,
    },
    /// A file of `/proc/net`.
    File {
        /// Its path.
        path: String,
    },
}

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Rule {
    /// The chain, if it is not the base chain itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// Its number in the chain, from 1 on.
    pub number: usize,
    /// Its text; without the program that prints it, the names of its expressions.
    pub text: String,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.chain {
            Some(chain) => write!(f, "rule {} of chain {chain} \"{}\"", self.number, self.text),
            None => write!(f, "rule {} \"{}\"", self.number, self.text),
        }
    }
}

/// The packets concerned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packets {
    /// All forwarded ones.
    All,
    /// Those of a family.
    Family(Family),
    /// Those received on these interfaces.
    ReceivedOn(Vec<String>),
    /// Those sent by these interfaces.
    SentBy(Vec<String>),
    /// Those of a family that are received on these interfaces.
    FamilyOn(Family, Vec<String>),
    /// Those from these sources.
    From(Vec<IpNet>),
    /// Those to these destinations.
    To(Vec<IpNet>),
    /// A part that is not described further, in words.
    Some(String),
    /// No forwarded packet.
    None,
}

/// The treatment of the packets concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// No effect on accelerated packets, or none that can be seen in packets.
    Note,
    /// The fast path does the same.
    Follow,
    /// These packets stay with the kernel.
    Stay,
    /// The rule would be bypassed, as requested.
    Bypass,
    /// Acceleration is refused.
    Refuse,
}

/// A part of the kernel's treatment of forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Its subject.
    pub kind: Kind,
    /// The place.
    pub place: Place,
    /// The packets concerned.
    pub packets: Packets,
    /// The treatment.
    pub action: Action,
    /// The rule and its consequence, in a sentence.
    pub message: String,
    /// The way out of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way_out: Option<String>,
}

impl Finding {
    pub(crate) fn new(
        kind: Kind,
        place: Place,
        packets: Packets,
        action: Action,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, place, packets, action, message: message.into(), way_out: None }
    }

    /// Refuses, with this way out beside the bypass.
    pub(crate) fn refuse(
        kind: Kind,
        place: Place,
        packets: Packets,
        message: impl Into<String>,
        way_out: &str,
    ) -> Self {
        let way_out = match kind.can_be_bypassed() {
            true => format!("{way_out}, or say --bypass {kind}"),
            false => way_out.to_owned(),
        };
        let refused = Self::new(kind, place, packets, Action::Refuse, message);
        Self { way_out: Some(way_out), ..refused }
    }

    /// Returns the finding with a refusal turned into what was requested.
    pub(crate) fn bypassed(self) -> Self {
        match self.action {
            Action::Refuse => Self { action: Action::Bypass, way_out: None, ..self },
            _ => self,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way_out {
            Some(way_out) => write!(f, "{}; {way_out}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_of_their_own() {
        for kind in Kind::ALL {
            let parsed = kind.name().parse::<Kind>();
            assert_eq!(parsed.is_ok(), kind.can_be_bypassed(), "{kind}");
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
        }
        let error = "xdp".parse::<Kind>().unwrap_err().to_string();
        assert!(
            error.starts_with(
                "bypass \"xdp\": no kind of rule that can be bypassed; known: bridge, "
            ),
            "{error}"
        );
    }
}
