//! Marks: values that rules write into packets, or attach to them.

use std::fmt;

use dpdk::Mbuf;
use wire::checksum;

use crate::batch::{Batch, ETHERNET};
use crate::frame::Class;

/// The mark that a rule gives its accepted packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The DSCP (RFC 2474), 0 to 63; `None`: unchanged.
    pub dscp: Option<u8>,
    /// The class in transmit queues; `None`: that of the DSCP.
    pub class: Option<Class>,
}

impl Mark {
    /// Leaves packets as they are.
    pub const NONE: Self = Self { dscp: None, class: None };

    /// Combines two marks; values of this one take precedence.
    pub fn or(self, other: Self) -> Self {
        Self { dscp: self.dscp.or(other.dscp), class: self.class.or(other.class) }
    }

    /// Marks the packet of a batch's slot.
    #[inline]
    pub(crate) fn apply(self, batch: &mut Batch, slot: usize) {
        if let Some(dscp) = self.dscp {
            write_dscp(batch.head_mut(slot), dscp);
        }
        if let Some(class) = self.class {
            batch.burst.set_traffic_class(slot, class.number());
        }
    }

    /// Marks a packet outside a batch, all headers of which are in its first segment.
    pub fn apply_to(self, packet: &mut Mbuf) {
        if let Some(dscp) = self.dscp {
            write_dscp(packet.data_mut(), dscp);
        }
        if let Some(class) = self.class {
            packet.set_traffic_class(class.number());
        }
    }

    /// Writes the part of the mark that is in a frame.
    pub fn write(self, frame: &mut [u8]) {
        if let Some(dscp) = self.dscp {
            write_dscp(frame, dscp);
        }
    }
}

/// As shown in plans: `dscp 46, queue class voice`; empty for [`Mark::NONE`].
impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dscp = self.dscp.map(|dscp| format!("dscp {dscp}"));
        let class = self.class.map(|class| format!("queue class {}", class.name()));
        let words: Vec<String> = dscp.into_iter().chain(class).collect();
        f.write_str(&words.join(", "))
    }
}

/// Writes the DSCP of an IP packet.
fn write_dscp(frame: &mut [u8], dscp: u8) {
    let is_ip6 = frame.get(ETHERNET).map(|byte| byte >> 4) == Some(6);
    if let Some(head) = frame.first_chunk_mut() {
        set_dscp(is_ip6, head, dscp);
    }
}

/// Bytes of a frame up to the end of IPv4's checksum: those that a DSCP changes.
const DSCP_HEAD: usize = ETHERNET + 12;

/// Writes the DSCP (RFC 2474 3), and leaves the two bits of ECN beside it. IPv4's checksum follows (RFC 1624,
/// equation 3).
fn set_dscp(is_ip6: bool, head: &mut [u8; DSCP_HEAD], dscp: u8) {
    if is_ip6 {
        head[ETHERNET] = head[ETHERNET] & 0xf0 | dscp >> 2;
        head[ETHERNET + 1] = head[ETHERNET + 1] & 0x3f | dscp << 6;
        return;
    }
    let word = |head: &[u8; DSCP_HEAD], at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let before = word(head, ETHERNET);
    head[ETHERNET + 1] = head[ETHERNET + 1] & 3 | dscp << 2;
    let sum = checksum::update(word(head, ETHERNET + 10), before, word(head, ETHERNET));
    head[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
}
