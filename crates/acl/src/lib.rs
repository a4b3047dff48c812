//! Packet filters: the rules, their classifier, and a slow reference.
//!
//! A [`Filter`] is a list of rules, walked from the top: the first rule that matches a packet decides.
//!
//! ```text
//! text        "1024-65535", "syn,!ack", "cs1"  ->  numbers     rule    Filter, Rule, Matches; their faults
//! key         frame   ->  Key: the fields that rules match     shadow  rules that can never match
//! fields      Keys    ->  Fields: a batch, field by field      walk    Filter, Key -> rule: the oracle
//! classifier  Filter  ->  Classifier; Fields  ->  rules        rte     Filter -> rte_acl's entries
//! sets        prefixes with a name, which change under rules
//! ```
//!
//! ```
//! use acl::{Action, Filter, Matches, Rule};
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
//! let (_, packet) = acl::packet::read("tcp 192.0.2.9:4000 > 203.0.113.1:22", |name| Err(name.into()))?;
//! let mut packets = acl::Fields::<std::net::Ipv4Addr>::default();
//! packets.push(&packet);
//! let mut found = [0; acl::BATCH];
//! acl::Classifier::new(&filter, &acl::SetReaders::none())?.classify(&packets, &mut found);
//! assert_eq!(found[0], 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Fragments and extension headers
//!
//! A rule with ports, TCP flags or ICMP types matches a packet only if its upper-layer header was found and is
//! whole. Later fragments, fragments too short for that header, and extension header chains that cannot be
//! followed match no such rule ([`key`] cites the RFCs).
#![forbid(unsafe_code)]

mod classes;
mod classifier;
mod conditions;
mod display;
mod fields;
#[cfg(any(test, feature = "testing"))]
pub mod generate;
pub mod key;
pub mod offload;
pub mod packet;
#[cfg(any(test, feature = "testing"))]
pub mod rte;
mod rule;
mod sets;
mod shadow;
pub mod text;
mod walk;

pub use classes::FilterAddress;
pub use classifier::{Classifier, TooLarge};
pub use fields::{BATCH, Ends, Fields, HEAD, Head, Upper};
pub use key::Key;
pub use rule::{
    Action, Bits, Error, Extension, Family, Fault, Filter, Implied, Matches, Rule, State,
};
pub use sets::{SETS_MAX, SetError, SetId, SetReaders, Sets};
pub use shadow::{Warning, warnings};
pub use walk::{walk, walk_from};
