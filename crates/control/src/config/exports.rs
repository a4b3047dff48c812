//! Statements about data for collectors and managers: sFlow, IPFIX, SNMP.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use dataplane::port::{PortId, PortSet};
use dataplane::samples::Sampling;

use super::{Config, Port};

/// The name of sFlow's samples.
pub const SFLOW: &str = "sflow";

/// The name of IPFIX's samples.
pub const IPFIX: &str = "ipfix";

/// Bytes of a frame that have its headers, for flows.
const HEADERS: usize = 128;

/// Collectors, and the packets that are sampled for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Address and UDP port of each collector, at least one.
    pub collectors: Vec<SocketAddr>,
    /// Source address of datagrams; `None`: the kernel's choice.
    pub source: Option<IpAddr>,
    /// The ports whose received packets are sampled; `None`: all.
    pub ports: Option<Vec<PortId>>,
    /// One of so many packets is sampled, from 1 on.
    pub sample: u32,
}

impl Sampled {
    /// Returns true if this port's packets are sampled.
    pub fn has(&self, port: PortId) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }

    fn sampling(&self, name: &str, ports: &[Port], keep: usize) -> Sampling {
        let sampled = ports.iter().map(|port| port.id).filter(|port| self.has(*port));
        let ports: PortSet = sampled.collect();
        Sampling { name: name.to_owned(), ports, rate: self.sample, keep }
    }
}

/// `turnpike.sflow`: sampled packets and counters in sFlow version 5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sflow {
    /// Collectors and samples.
    pub sampled: Sampled,
    /// The router's address in datagrams; `None`: one of its interfaces'.
    pub agent: Option<IpAddr>,
    /// Bytes of each sampled frame, 64 to 256.
    pub header: usize,
    /// Time between two samples of an interface's counters; `None`: there are none.
    pub counters: Option<Duration>,
}

/// `turnpike.ipfix`: flows of sampled packets in IPFIX (RFC 7011).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipfix {
    /// Collectors and samples.
    pub sampled: Sampled,
    /// The longest time before a flow with packets is exported.
    pub active: Duration,
    /// The time without a packet after which it is.
    pub inactive: Duration,
    /// The observation domain.
    pub domain: u32,
    /// Most flows at a time.
    pub flows: usize,
    /// Time between two transmissions of the templates.
    pub templates: Duration,
}

/// `turnpike.snmp`: objects for an SNMP agent by AgentX (RFC 2741).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snmp {
    /// The path of the agent's socket.
    pub agentx: PathBuf,
}

impl Config {
    /// Returns the settings of samples for steps.
    pub fn samplings(&self) -> Vec<Sampling> {
        let sflow = self.sflow.as_ref();
        let sflow = sflow.map(|of| of.sampled.sampling(SFLOW, &self.ports, of.header));
        let ipfix = self.ipfix.as_ref();
        let ipfix = ipfix.map(|of| of.sampled.sampling(IPFIX, &self.ports, HEADERS));
        sflow.into_iter().chain(ipfix).collect()
    }

    /// Returns the samples of each statement that has some, to be changed.
    pub(super) fn sampled_mut(&mut self) -> impl Iterator<Item = &mut Sampled> {
        let sflow = self.sflow.as_mut().map(|of| &mut of.sampled);
        sflow.into_iter().chain(self.ipfix.as_mut().map(|of| &mut of.sampled))
    }
}
