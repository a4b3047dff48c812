//! Queues of a port: number, size, the cores that serve them, and the hash that chooses among them.

use std::fmt;

use dataplane::polling::Wait;
use dataplane::port::{RssTable, Thresholds};

/// Queues of a port. Of what is not given, the driver recommends the size, and the router chooses number
/// and cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Receive queues.
    pub rx: Option<u16>,
    /// Transmit queues.
    pub tx: Option<u16>,
    /// Packets that may wait in each receive queue.
    pub rx_descriptors: Option<u16>,
    /// Packets that may wait in each transmit queue.
    pub tx_descriptors: Option<u16>,
    /// Packets taken from a receive queue at once, 1 to 64.
    pub rx_burst: Option<u16>,
    /// Packets of a turn, see [`dataplane::polling`]; `None`: [`dataplane::polling::QUOTA`].
    pub quota: Option<u16>,
    /// The waiting of forwarders that receive from the port; `None`: as that of all forwarders.
    pub wait: Option<Wait>,
    /// Thresholds of each receive queue.
    pub rx_thresholds: Thresholds,
    /// Thresholds of each transmit queue.
    pub tx_thresholds: Thresholds,
    /// The cores that serve the receive queues, queue 0 first, then again from the first; empty: the
    /// router's choice.
    pub rx_cores: Vec<usize>,
    /// The cores that have a transmit queue; empty: the router's choice.
    pub tx_cores: Vec<usize>,
    /// The choice of a receive queue by a hash; `None`: the device's own choice.
    pub rss: Option<Rss>,
    /// Who spreads received packets over forwarders.
    pub spread: Spread,
    /// The device is asked for one more queue each way, which the control forwarder serves; never of a kernel
    /// interface.
    pub control: bool,
}

impl Queues {
    /// Receive queues that are asked for: as many as are given, or as there are cores for; one where
    /// software spreads packets.
    pub fn rx_wish(&self) -> Option<u16> {
        let by_software = (self.spread == Spread::Software).then_some(1);
        self.rx.or_else(|| wish_of(&self.rx_cores)).or(by_software)
    }

    /// Transmit queues that are asked for: as many as are given, or as there are cores for.
    pub fn tx_wish(&self) -> Option<u16> {
        self.tx.or_else(|| wish_of(&self.tx_cores))
    }

    /// A device opened for these is open for the others as well.
    pub(super) fn is_open_as(&self, other: &Self) -> bool {
        let opened = |queues: &Self| {
            let Self { rx_descriptors, tx_descriptors, rx_thresholds, tx_thresholds, .. } = queues;
            let sizes = (*rx_descriptors, *tx_descriptors, *rx_thresholds, *tx_thresholds);
            // A device's own key is not known once another has been written.
            let own_key = queues.rss.as_ref().is_none_or(|rss| rss.key.is_none() && !rss.symmetric);
            (queues.rx_wish(), queues.tx_wish(), queues.control, own_key, sizes)
        };
        opened(self) == opened(other)
    }
}

fn wish_of(cores: &[usize]) -> Option<u16> {
    Some(cores.len() as u16).filter(|&count| count > 0)
}

/// Who spreads received packets over forwarders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// The device, over its receive queues.
    #[default]
    Hardware,
    /// The forwarder that receives them, by a hash in software.
    Software,
}

impl Spread {
    /// As configurations write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
        }
    }
}

/// Receive-side scaling: a Toeplitz hash of each packet chooses its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// What is hashed.
    pub fields: RssFields,
    /// Both directions of a flow have one hash.
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
    /// As configurations write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::L3 => "l3",
            Self::L3L4 => "l3+l4",
        }
    }
}

impl Rss {
    /// The key is one with which both directions of a flow have one hash: its first two bytes, repeated.
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

/// A key as configurations write it: `6d:5a:…`.
pub fn key_text(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}
