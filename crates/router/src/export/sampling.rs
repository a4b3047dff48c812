//! Sampled packets of an exporter, and their routes.

use std::sync::Arc;

use dataplane::port::PortId;
use dataplane::samples::{Sample, Stock};
use samples::headers::{self, Headers};

use super::{Ask, OwnerLink, PathFound, PathQuery};

/// Packets whose routes are asked for together: the owner answers in a fraction of a millisecond.
const TOGETHER: usize = 64;

/// Most packets of a tick; more wait in the stock.
const TICK_MOST: usize = 4096;

/// A sampled packet.
pub struct Packet {
    /// The port that received it.
    pub port: PortId,
    /// One of so many packets was sampled.
    pub rate: u32,
    /// The length of the frame.
    pub length: u32,
    /// Its first bytes.
    pub frame: Vec<u8>,
    /// Its headers, if it is an IP packet.
    pub headers: Option<Headers>,
    /// Its way, if it is known.
    pub path: Option<PathFound>,
}

/// The packets of an exporter.
pub struct Packets {
    /// Where forwarders put them.
    pub stock: Arc<Stock>,
    /// Packets of IP whose route the owner did not tell in time.
    pub unrouted: u64,
}

impl Packets {
    /// Takes all from the stock that are there, or the most for a tick.
    pub async fn take(&mut self, owner: &OwnerLink) -> Vec<Packet> {
        let mut all = Vec::new();
        let mut is_answering = true;
        while all.len() < TICK_MOST {
            let mut some: Vec<Packet> = std::iter::from_fn(|| self.next()).take(TOGETHER).collect();
            if some.is_empty() {
                break;
            }
            is_answering = is_answering && find_paths(owner, &mut some).await.is_some();
            let is_lost = |packet: &&Packet| packet.headers.is_some() && packet.path.is_none();
            self.unrouted += some.iter().filter(is_lost).count() as u64;
            all.append(&mut some);
        }
        all
    }

    fn next(&self) -> Option<Packet> {
        let record = self.stock.records.take()?;
        let Sample { port, rate, length, frame } = &*record;
        let packet = Packet {
            port: *port,
            rate: *rate,
            length: *length as u32,
            frame: frame.clone(),
            headers: headers::read(frame),
            path: None,
        };
        self.stock.records.give_back(record);
        Some(packet)
    }
}

/// Asks the owner for the packets' ways; `None` if it does not answer.
async fn find_paths(owner: &OwnerLink, packets: &mut [Packet]) -> Option<()> {
    let query = |packet: &Packet| {
        let (port, frame) = (packet.port, packet.frame.clone());
        packet.headers.map(|headers| PathQuery { port, frame, headers })
    };
    let queries: Vec<_> = packets.iter().filter_map(query).collect();
    if queries.is_empty() {
        return Some(());
    }
    let found = owner.ask(|to| Ask::Paths(queries, to)).await?;
    let asked = packets.iter_mut().filter(|packet| packet.headers.is_some());
    asked.zip(found).for_each(|(packet, path)| packet.path = Some(path));
    Some(())
}
