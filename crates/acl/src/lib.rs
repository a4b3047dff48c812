//! Packet filters: the rules, their compiler, and a slow reference.
//!
//! A [`Filter`] is a list of rules, walked from the top: the first rule that matches a packet decides.
//! Classification itself is DPDK's `rte_acl`, elsewhere. This crate turns rules into its input and
//! tells what it must answer; it builds without DPDK.
//!
//! ```text
//! text     "1024-65535", "syn,!ack", "cs1"  ->  numbers        rule    Filter, Rule, Matches; their faults
//! key      frame   ->  Key: fixed offsets, one per packet      shadow  rules that can never match
//! compile  Filter  ->  fields and entries of rte_acl           walk    Filter, Key -> rule: the oracle
//! ```
//!
//! ```
//! use acl::{Action, Family, Filter, Matches, Rule};
//!
//! let ssh = Matches {
//!     protocol: vec![acl::text::protocol("tcp")?],
//!     to_port: vec![acl::text::ports("22")?],
//!     from: vec!["192.0.2.0/24".parse().unwrap()],
//!     ..Matches::default()
//! };
//! let rule = Rule { name: Some("ssh".into()), line: 3, matches: ssh, action: Action::Accept };
//! let filter = Filter { name: "edge-in".into(), rules: vec![rule], default: Action::Drop };
//! assert!(filter.check().is_empty());
//! assert!(acl::warnings(&filter).is_empty());
//!
//! let compiled = acl::compile(&filter, Family::Ip4).unwrap();
//! assert_eq!(compiled.entries.len(), 1);
//! # Ok::<(), acl::text::TextError>(())
//! ```
//!
//! # Fragments and extension headers
//!
//! A rule with ports, TCP flags or ICMP types matches a packet only if its upper-layer header was
//! found and is whole. Later fragments, fragments too short for that header, and extension header
//! chains that cannot be followed match no such rule ([`key`] says which RFC asks for it).
#![forbid(unsafe_code)]

mod compile;
mod display;
#[cfg(any(test, feature = "testing"))]
pub mod generate;
pub mod key;
pub mod packet;
mod rule;
mod shadow;
pub mod text;
mod walk;

pub use compile::{Compiled, Entry, Field, FieldKind, TOO_MANY, TooMany, check_size, compile};
pub use key::Key;
pub use rule::{Action, Bits, Error, Family, Fault, Filter, Implied, Matches, Rule};
pub use shadow::{Warning, warnings};
pub use walk::{walk, walk_from};
