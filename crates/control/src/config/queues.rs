//! Queues of a port: number, size, the cores that serve them, and the hash that selects among them.

use std::fmt;

use dataplane::polling::Wait;
use dataplane::port::{RssTable, Thresholds};

/// Queues of a port. If not configured, the size is the driver's recommendation, and the router
/// selects number and cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Receive queues.
    pub rx: Option<u16>,
    /// Transmit queues.
    pub tx: Option<u16>,
    /// Capacity of each receive queue in packets.
    pub rx_descriptors: Option<u16>,
    /// Capacity of each transmit queue in packets.
    pub tx_descriptors: Option<u16>,
    /// Packets taken from a receive queue at once, 1 to 64.
    pub rx_burst: Option<u16>,
    /// Packets of a turn, see [`dataplane::polling`]; `None`: [`dataplane::polling::QUOTA`].
    pub quota: Option<u16>,
    /// Wait mode of forwarders that receive from the port; `None`: that of all forwarders.
    pub wait: Option<Wait>,
    /// Thresholds of each receive queue.
    pub rx_thresholds: Thresholds,
    /// Thresholds of each transmit queue.
    pub tx_thresholds: Thresholds,
    /// The cores that serve the receive queues, from queue 0 on, repeated if there are more queues;
    /// empty: the router's choice.
    pub rx_cores: Vec<usize>,
    /// The cores with a transmit queue; empty: the router's choice.
    pub tx_cores: Vec<usize>,
    /// Selection of a receive queue by a hash; `None`: the device's default.
    pub rss: Option<Rss>,
    /// Distribution of received packets over forwarders.
    pub spread: Spread,
    /// The device gets one more queue in each direction, served by the control forwarder; never on a kernel
    /// interface.
    pub control: bool,
}

impl Queues {
    /// Returns the requested number of receive queues: the configured one, or that of the cores;
    /// one if software spreads packets.
    pub fn rx_wish(&self) -> Option<u16> {
        let by_software = (self.spread == Spread::Software).then_some(1);
        self.rx.or_else(|| wish_of(&self.rx_cores)).or(by_software)
    }

    /// Returns the requested number of transmit queues: the configured one, or that of the cores.
    pub fn tx_wish(&self) -> Option<u16> {
        self.tx.or_else(|| wish_of(&self.tx_cores))
    }

    /// Returns true if a device opened for these queues need not be reopened for the others.
    pub(super) fn is_open_as(&self, other: &Self) -> bool {
        let opened = |queues: &Self| {
            let Self { rx_descriptors, tx_descriptors, rx_thresholds, tx_thresholds, .. } = queues;
            let sizes = (*rx_descriptors, *tx_descriptors, *rx_thresholds, *tx_thresholds);
            // A device's own key is no longer known after another has been written.
            let own_key = queues.rss.as_ref().is_none_or(|rss| rss.key.is_none() && !rss.symmetric);
            (queues.rx_wish(), queues.tx_wish(), queues.control, own_key, sizes)
        };
        opened(self) == opened(other)
    }
}

fn wish_of(cores: &[usize]) -> Option<u16> {
    Some(cores.len() as u16).filter(|&count| count > 0)
}

/// Distribution of received packets over forwarders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// By the device, over its receive queues.
    #[default]
    Hardware,
    /// By the forwarder that receives them, with a hash in software.
    Software,
}

impl Spread {
    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
        }
    }
}

/// Receive-side scaling: a Toeplitz hash of each packet selects its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// The hashed fields.
    pub fields: RssFields,
    /// True if both directions of a flow have the same hash.
    pub symmetric: bool,
    /// The key; `None`: the device's own, or a symmetric one.
    pub key: Option<Vec<u8>>,
    /// The queue of each hash.
    pub table: RssTable,
}

/// Fields of a packet that RSS hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RssFields {
    /// Addresses.
    L3,
    /// Addresses, and ports of TCP and UDP.
    #[default]
    L3L4,
}

impl RssFields {
    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::L3 => "l3",
            Self::L3L4 => "l3+l4",
        }
    }
}

impl Rss {
    /// Returns true if the key gives both directions of a flow the same hash: its first two bytes,
    /// repeated.
    pub fn is_symmetric(key: &[u8]) -> bool {
        key.iter().zip(key.iter().skip(2)).all(|(one, other)| one == other)
    }
}

impl fmt::Display for Rss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fields, symmetric, key, table } = self;
        f.write_str(fields.name())?;
        if *symmetric {
            f.write_str(", symmetric")?;
        }
        if let Some(key) = key {
            write!(f, ", key {}", key_text(key))?;
        }
        match table {
            RssTable::Even => Ok(()),
            RssTable::Skip(queues) => write!(f, ", skip {queues:?}"),
            RssTable::Pattern(queues) => write!(f, ", table {queues:?}"),
        }
    }
}

/// Returns a key as written in configurations: `6d:5a:…`.
pub fn key_text(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}
