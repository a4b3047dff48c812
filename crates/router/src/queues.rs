//! Queues of ports from the configuration's words to those of DPDK and of the wiring.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use control::config::{self, Config, RssFields, Spread};
use dataplane::port::PortId;
use dataplane::spread::{DEFAULT_KEY, TABLE, Toeplitz};
use dpdk::{RssConfig, RssTable};

use super::wiring::CoreMap;

/// The configuration of a port's queues, except their number and size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPlan {
    /// The cores that serve them.
    pub map: CoreMap,
    /// Packets taken from a receive queue at once; `None`: as the driver recommends.
    pub burst: Option<usize>,
    /// The hash by which software spreads received packets, if it does.
    pub spread: Option<SoftwareSpread>,
    /// Rules of its filter select forwarders for packets that the device spreads.
    pub by_rules: bool,
}

impl PortPlan {
    /// Returns true if forwarders hand over received packets to others by rings.
    pub fn has_rings(&self) -> bool {
        self.spread.is_some() || self.by_rules
    }
}

/// A hash in software and what it chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftwareSpread {
    key: Vec<u8>,
    ports: bool,
    table: RssTable,
}

/// Those of all ports.
pub type QueuePlans = BTreeMap<PortId, PortPlan>;

/// Returns the plans of all ports of a configuration.
pub fn plans(config: &Config) -> QueuePlans {
    config.ports.iter().map(|port| (port.id, plan(port))).collect()
}

/// Returns the plan of a port.
pub fn plan(port: &config::Port) -> PortPlan {
    let config::Queues { rx_cores, tx_cores, rx_burst, spread, .. } = &port.queues;
    PortPlan {
        map: CoreMap { rx: rx_cores.clone(), tx: tx_cores.clone() },
        burst: rx_burst.map(usize::from),
        spread: (*spread == Spread::Software).then(|| software(port)),
        by_rules: port.steers_by_device(),
    }
}

fn software(port: &config::Port) -> SoftwareSpread {
    let rss = rss_of(port).unwrap_or(RssConfig { ports: true, ..RssConfig::default() });
    let symmetric = || dpdk::SYMMETRIC_RSS_KEY.repeat(DEFAULT_KEY.len() / 2);
    let own = || if rss.symmetric { symmetric() } else { DEFAULT_KEY.to_vec() };
    SoftwareSpread { key: rss.key.clone().unwrap_or_else(own), ports: rss.ports, table: rss.table }
}

/// Returns the RSS settings for a port's device; `None` if software hashes.
pub fn device_rss(port: &config::Port) -> Option<RssConfig> {
    rss_of(port).filter(|_| port.queues.spread == Spread::Hardware)
}

fn rss_of(port: &config::Port) -> Option<RssConfig> {
    let config::Rss { fields, symmetric, key, table } = port.queues.rss.clone()?;
    Some(RssConfig { ports: fields == RssFields::L3L4, symmetric, key, table })
}

impl SoftwareSpread {
    /// The forwarder of each hash, of so many forwarders.
    ///
    /// # Errors
    /// The table names one that is not there, or leaves none.
    pub fn table(&self, forwarders: usize) -> Result<[u16; TABLE]> {
        let entries = self.table.entries(TABLE, forwarders as u16);
        let entries = entries.map_err(|problem| {
            anyhow!("rss: table of spread = \"software\", whose queues are forwarders: {problem}")
        })?;
        Ok(entries.try_into().unwrap_or([0; TABLE]))
    }

    /// Its hash.
    pub fn hash(&self) -> Toeplitz {
        Toeplitz::new(&self.key, self.ports)
    }

    /// Its key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Ports of TCP and UDP are hashed.
    pub fn hashes_ports(&self) -> bool {
        self.ports
    }
}
