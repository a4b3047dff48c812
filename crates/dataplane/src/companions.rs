//! Parts that act on a forwarder's packets outside of the steps of its graph: filters of packets that the graph ends with or
//! never sees, tags and mirrors of what leaves. Made of the same tables as the graph and exchanged together with it.

use crate::copy_filter::CopyFilter;
use crate::mirror_sessions::MirrorOutput;
use crate::router_filter::RouterFilter;
use crate::shed_filter::ShedFilter;
use crate::spread_filter::SpreadFilter;
use crate::vlan::Tagger;

/// See the module's documentation. Each is there only if the configuration needs it.
#[derive(Default)]
pub struct Companions {
    /// The filter of packets that the graph punts to the slow path.
    pub router_filter: Option<Box<RouterFilter>>,
    /// The filter of copies of multicast packets.
    pub copy_filter: Option<Box<CopyFilter>>,
    /// Tags copies of multicast packets that leave by VLANs or bonds.
    pub tagger: Option<Box<Tagger>>,
    /// Selects forwarders for packets spread by software.
    pub spread_filter: Option<Box<SpreadFilter>>,
    /// Selects packets to be kept under overload.
    pub shed_filter: Option<Box<ShedFilter>>,
    /// Mirroring where packets leave. The distribution has it while the graph runs.
    pub mirror_output: Option<Box<MirrorOutput>>,
}
