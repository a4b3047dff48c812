//! The built-in steps, one file each. A file's header is the step's manual: its input, its outputs, its drop
//! reasons, the RFC clauses it fulfils.

mod bond_input;
mod bond_output;
mod builtin;
mod by_port;
mod classify;
mod complete_checksum;
#[cfg(any(test, feature = "faulty-step"))]
mod faulty;
mod filter;
mod filter_at;
mod ip4_decrement_ttl;
mod ip4_lookup;
mod ip4_prefetch;
mod ip4_rewrite;
mod ip4_ttl;
mod ip4_validate;
mod ip6_decrement_hop_limit;
mod ip6_hop_limit;
mod ip6_lookup;
mod ip6_rewrite;
mod ip6_validate;
mod mirror_in;
mod mtu;
mod multicast;
mod policy_route;
mod prohibit;
mod redirect;
mod reset;
mod resolve;
mod reverse_path;
mod sample_in;
mod steer;
mod toolbox;
mod vlan_input;
mod vlan_output;

pub use crate::filters::{FILTER_IN, FILTER_OUT};
pub use crate::next_hop::NamedHops;
pub use bond_input::BondInput;
pub use bond_output::BondOutput;
pub use by_port::ByPort;
pub use classify::Classify;
pub use complete_checksum::CompleteChecksum;
#[cfg(any(test, feature = "faulty-step"))]
pub use faulty::{FAULTY_ID, Faulty};
pub use filter::{FilterIn, FilterOut};
pub use filter_at::check_filter_step;
pub use ip4_decrement_ttl::Ip4DecrementTtl;
pub use ip4_lookup::Ip4Lookup;
pub use ip4_prefetch::Ip4Prefetch;
pub use ip4_rewrite::Ip4Rewrite;
pub use ip4_ttl::Ip4Ttl;
pub use ip4_validate::{DHCP_RELAY, Ip4Validate, TRANSLATED};
pub use ip6_decrement_hop_limit::Ip6DecrementHopLimit;
pub use ip6_hop_limit::Ip6HopLimit;
pub use ip6_lookup::Ip6Lookup;
pub use ip6_rewrite::Ip6Rewrite;
pub use ip6_validate::Ip6Validate;
pub use mirror_in::MirrorIn;
pub use mtu::Mtu;
pub use multicast::{Ip4Multicast, Ip6Multicast};
pub use policy_route::POLICY_ROUTE;
pub use prohibit::Prohibit;
pub use redirect::{REDIRECTS, Redirect, RedirectGates};
pub use reset::Reset;
pub use reverse_path::{Ip4ReversePath, Ip6ReversePath, REVERSE_PATH, ReversePath};
pub use sample_in::SampleIn;
pub use steer::named_hop;
pub use toolbox::{
    Dumps, Meters, OrderNumber, Printed, PrintedPacket, Sources, order_number, with_order_number,
};
pub use vlan_input::VlanInput;
pub use vlan_output::VlanOutput;
