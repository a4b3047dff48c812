//! IPsec policies. Forwarded packets meet those of direction `fwd`, and `out` ones when they are routed.

use std::io;

use ipnet::IpNet;

use crate::Options;
use crate::finding::{Action, Finding, Kind, Packets, Place};
use crate::netlink::{Attribute, Connection, Raw, Request, u32_at};
use crate::rules::address;

const XFRM_MSG_NEWPOLICY: u16 = 0x13;
const XFRM_MSG_GETPOLICY: u16 = 0x15;
const XFRM_MSG_GETDEFAULT: u16 = 0x28;

/// Bytes of `struct xfrm_userpolicy_info`.
const FIXED: usize = 168;
/// Bytes of `struct xfrm_userpolicy_id`.
const ID: usize = 64;
/// Bytes of `struct xfrm_userpolicy_default`.
const DEFAULT: usize = 3;

const XFRM_POLICY_OUT: u8 = 1;
const XFRM_POLICY_FWD: u8 = 2;
const XFRM_POLICY_BLOCK: u8 = 1;
const XFRM_USERPOLICY_BLOCK: u8 = 1;
const XFRMA_TMPL: u16 = 5;
const XFRMA_IF_ID: u16 = 31;

/// A policy that may concern forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Policy {
    pub priority: u32,
    pub direction: &'static str,
    pub from: IpNet,
    pub to: IpNet,
    /// The upper-layer protocol; 0: any.
    pub protocol: u8,
    /// The interface; 0: any.
    pub interface: u32,
    /// True if packets are dropped.
    pub blocks: bool,
    /// True if packets are encrypted, or must have been.
    pub has_templates: bool,
    /// It is for packets of this XFRM interface.
    pub interface_id: Option<u32>,
}

impl Policy {
    /// Reads a policy of a direction that forwarded packets meet.
    pub fn read(raw: &Raw<'_>) -> Option<Self> {
        let (fixed, attributes) =
            raw.split::<FIXED>().filter(|_| raw.kind == XFRM_MSG_NEWPOLICY)?;
        let direction = match fixed[160] {
            XFRM_POLICY_OUT => "out",
            XFRM_POLICY_FWD => "fwd",
            _ => return None,
        };
        let bytes = if fixed[40] == 2 { 4 } else { 16 };
        let net = |at: usize, length| IpNet::new(address(fixed.get(at..at + bytes)?)?, length).ok();
        let (to, from) = (net(0, fixed[42])?, net(16, fixed[43])?);
        Some(Self {
            priority: u32_at(fixed, 152)?,
            direction,
            from,
            to,
            protocol: fixed[44],
            interface: u32_at(fixed, 48)?,
            blocks: fixed[161] == XFRM_POLICY_BLOCK,
            has_templates: attributes
                .get(XFRMA_TMPL)
                .is_some_and(|templates| !templates.value.is_empty()),
            interface_id: attributes
                .get(XFRMA_IF_ID)
                .and_then(Attribute::u32)
                .filter(|&id| id != 0),
        })
    }

    fn text(&self) -> String {
        let protocol =
            if self.protocol == 0 { String::new() } else { format!(" proto {}", self.protocol) };
        let action = if self.blocks { " block" } else { "" };
        format!(
            "from {} to {}{protocol} dir {} priority {}{action}",
            self.from, self.to, self.direction, self.priority
        )
    }

    fn finding(&self, options: &Options) -> Option<Finding> {
        // One without templates lets packets pass as they are; those of an XFRM interface are for its packets only.
        if self.interface_id.is_some() || (!self.blocks && !self.has_templates) {
            return None;
        }
        let text = self.text();
        let place = Place::Policy { direction: self.direction.to_owned(), text: text.clone() };
        let policy = format!("IPsec policy \"{text}\"");
        let packets = if self.to.prefix_len() != 0 && options.exceptions.destinations {
            Packets::To(vec![self.to])
        } else if self.from.prefix_len() != 0 && options.exceptions.sources {
            Packets::From(vec![self.from])
        } else {
            let message = format!("{policy} concerns forwarded packets, which would pass it by");
            let packets = Packets::Some(format!("from {} to {}", self.from, self.to));
            return Some(Finding::refuse(
                Kind::Xfrm,
                place,
                packets,
                message,
                "remove it: ip xfrm policy delete …",
            ));
        };
        Some(Finding::new(
            Kind::Xfrm,
            place,
            packets,
            Action::Stay,
            format!("{policy}: these packets stay with the kernel"),
        ))
    }
}

/// The policies, and what becomes of packets without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    pub policies: Vec<Policy>,
    /// True if forwarded packets without a policy are dropped.
    pub blocks_by_default: bool,
}

/// Reads them.
///
/// # Errors
/// The kernel refuses, usually for want of CAP_NET_ADMIN.
pub fn read(connection: &mut Connection) -> io::Result<Policies> {
    let mut policies =
        connection.dump(&Request::new(XFRM_MSG_GETPOLICY, &[0; ID]), Policy::read)?;
    policies.sort();
    policies.dedup();
    let request = Request::new(XFRM_MSG_GETDEFAULT, &[0; 4]);
    // Kernels before 5.15 accept packets without a policy.
    let default = connection.ask(&request, default_blocks).unwrap_or_default();
    Ok(Policies { policies, blocks_by_default: default.unwrap_or(false) })
}

/// Reads `struct xfrm_userpolicy_default`: in, fwd, out.
fn default_blocks(raw: &Raw<'_>) -> Option<bool> {
    let defaults = raw.payload.first_chunk::<DEFAULT>()?;
    Some(defaults[1] == XFRM_USERPOLICY_BLOCK || defaults[2] == XFRM_USERPOLICY_BLOCK)
}

impl Policies {
    /// Returns the findings.
    pub fn findings(&self, options: &Options) -> Vec<Finding> {
        let all = self.policies.iter().filter_map(|policy| policy.finding(options));
        all.chain(self.blocks_by_default.then(blocked_by_default)).collect()
    }
}

fn blocked_by_default() -> Finding {
    let place = Place::Policy { direction: "fwd".into(), text: "default block".into() };
    let message =
        "forwarded packets without an IPsec policy are dropped (ip xfrm policy getdefault)";
    let way_out = "ip xfrm policy setdefault fwd accept out accept";
    Finding::refuse(Kind::Xfrm, place, Packets::All, message, way_out)
}
