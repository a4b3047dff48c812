//! The packet path: batches, the mask graph, its steps, and the forwarders that run it.
//!
//! Start at [`default_plan()`] for the path of a packet, at [`graph`] for the execution of the graph, at
//! [`forwarder`] for the loop around it, and at [`steps`] for the single steps.
#![forbid(unsafe_code)]

pub mod batch;
pub mod bond;
pub mod bucket;
pub mod builder;
pub mod capture;
pub mod catalogue;
pub mod category;
pub mod class;
pub mod companions;
pub mod copy_filter;
pub mod counters;
mod default_graph;
pub mod distribution;
pub mod drop_watch;
pub mod erspan;
pub mod events;
pub mod exchange;
pub mod features;
pub mod filters;
pub mod flow;
pub mod flows;
pub mod forwarder;
pub mod frame;
pub mod gauge;
pub mod grace;
pub mod graph;
mod head;
pub mod interface;
pub mod lock;
pub mod mask;
mod mirror;
pub mod mirror_sessions;
pub mod multicast;
pub mod next_hop;
mod outgoing;
pub mod own;
pub mod params;
pub mod plan;
pub mod polling;
pub mod port;
pub mod punts;
pub mod quarantine;
pub mod reason;
pub mod records;
pub mod replicate;
pub mod router_filter;
pub mod samples;
pub mod shape;
pub mod shared;
pub mod shed;
pub mod shed_filter;
pub mod spread;
pub mod spread_filter;
pub mod steering;
pub mod steps;
pub mod tables;
mod tap;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod traffic;
pub mod transmit;
pub mod virtual_macs;
pub mod vlan;
pub mod watch;
pub mod wires;
pub mod words;

pub use batch::Batch;
pub use default_graph::{default_graph, default_plan, default_steps};
pub use mask::Mask;
