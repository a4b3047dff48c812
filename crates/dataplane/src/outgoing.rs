//! Packets that leave beside those of a batch: copies and replicas.

use dpdk::{Burst, Mbuf};

use crate::mask::BATCH_MAX;
use crate::port::PortId;

/// Packets on their way to the distribution, and the ports they leave by.
pub(crate) struct Outgoing {
    pub(crate) burst: Burst,
    pub(crate) out_interface: [u16; BATCH_MAX],
}

impl Outgoing {
    /// No packets.
    pub(crate) fn new() -> Self {
        Self { burst: Burst::new(), out_interface: [0; BATCH_MAX] }
    }

    /// There is no room for another.
    pub(crate) fn is_full(&self) -> bool {
        self.burst.len() == BATCH_MAX
    }

    /// Adds a packet for a port.
    ///
    /// # Errors
    /// Returns the packet if there is no room, or too little buffer behind its beginning.
    pub(crate) fn add(&mut self, packet: Mbuf, port: PortId) -> Result<(), Mbuf> {
        let slot = self.burst.put(packet)?;
        self.out_interface[slot] = port.index() as u16;
        Ok(())
    }
}
