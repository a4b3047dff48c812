//! Ports in trouble: devices' error counters, and DMA faults.
//!
//! Each kind of trouble is logged once when it begins and once when it has ended, with the count; `show ports` has the
//! counters at any time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::port::PortId;
use dpdk::Stats;

use super::Owner;

/// Trouble has ended when nothing was counted for so long.
const QUIET: Duration = Duration::from_secs(10);

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// The IOMMU refused the device access to memory.
    Dma,
    /// Packets that found their receive queue full.
    Missed,
    /// Packets that found no free buffer.
    NoBuffer,
    /// Packets that arrived broken.
    Receive,
    /// Packets that could not be sent.
    Send,
}

impl Trouble {
    const ALL: [Self; 5] = [Self::Dma, Self::Missed, Self::NoBuffer, Self::Receive, Self::Send];

    fn count(self, stats: &Stats, faults: u64) -> u64 {
        match self {
            Self::Dma => faults,
            Self::Missed => stats.imissed,
            Self::NoBuffer => stats.rx_nombuf,
            Self::Receive => stats.ierrors,
            Self::Send => stats.oerrors,
        }
    }

    /// As in `show ports --json`.
    fn name(self) -> &'static str {
        match self {
            Self::Dma => "dma_faults",
            Self::Missed => "rx_missed",
            Self::NoBuffer => "rx_nombuf",
            Self::Receive => "rx_errors",
            Self::Send => "tx_errors",
        }
    }

    /// Its cause, and the way out.
    fn advice(self) -> &'static str {
        match self {
            Self::Dma => {
                "the IOMMU refused the device access to memory, and its packets are lost; the kernel's \
                 log has the addresses"
            }
            Self::Missed => {
                "packets came faster than the forwarders took them; give the port more queues or \
                 the router more cores"
            }
            Self::NoBuffer => {
                "packets were lost because no buffer was free; raise turnpike.memory { mbufs }"
            }
            Self::Receive => "packets arrived broken; see the cable and the other end",
            Self::Send => "packets could not be sent; see the cable, the other end and its MTU",
        }
    }
}

/// Continuing trouble.
#[derive(Clone, Copy, Debug)]
struct Ongoing {
    since: Instant,
    /// The count before it began.
    before: u64,
    last: Instant,
}

/// A message for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Begins { count: u64 },
    Ended { count: u64, lasted: Duration },
}

/// A port's troubles.
#[derive(Clone, Debug, Default)]
struct Patient {
    faults: u64,
    seen: [u64; Trouble::ALL.len()],
    ongoing: [Option<Ongoing>; Trouble::ALL.len()],
}

impl Patient {
    /// Compares the counters with the last ones, and returns the messages to be logged.
    fn look(&mut self, stats: &Stats, now: Instant) -> Vec<(Trouble, Said)> {
        let mut said = Vec::new();
        for (place, trouble) in Trouble::ALL.into_iter().enumerate() {
            let count = trouble.count(stats, self.faults);
            let before = std::mem::replace(&mut self.seen[place], count);
            // A device that was opened anew counts from 0.
            let more = count.checked_sub(before).unwrap_or(count);
            let ongoing = &mut self.ongoing[place];
            match ongoing {
                None if more > 0 => {
                    *ongoing = Some(Ongoing { since: now, before: count - more, last: now });
                    said.push((trouble, Said::Begins { count: more }));
                }
                Some(one) if more > 0 => {
                    one.before = one.before.min(count);
                    one.last = now;
                }
                Some(one) if now.duration_since(one.last) >= QUIET => {
                    let lasted = one.last.duration_since(one.since);
                    said.push((
                        trouble,
                        Said::Ended { count: count - one.before.min(count), lasted },
                    ));
                    *ongoing = None;
                }
                _ => {}
            }
        }
        said
    }
}

/// All ports' troubles.
#[derive(Debug, Default)]
pub struct Health(BTreeMap<PortId, Patient>);

impl Health {
    /// DMA faults of a port's device.
    pub fn faults(&self, port: PortId) -> u64 {
        self.0.get(&port).map_or(0, |patient| patient.faults)
    }

    /// The names of a port's counters that show trouble now.
    pub fn troubles(&self, port: PortId) -> Vec<String> {
        let Some(patient) = self.0.get(&port) else { return Vec::new() };
        let all = Trouble::ALL.iter().zip(&patient.ongoing);
        all.filter(|(_, ongoing)| ongoing.is_some()).map(|(one, _)| one.name().to_owned()).collect()
    }

    /// A port's counters of trouble with their counts at the last look; none before the first.
    pub fn counts(&self, port: PortId) -> Vec<(&'static str, u64)> {
        let Some(patient) = self.0.get(&port) else { return Vec::new() };
        Trouble::ALL.iter().zip(patient.seen).map(|(one, count)| (one.name(), count)).collect()
    }

    /// Forgets a port, so that a later one of this number begins anew.
    pub fn forget(&mut self, port: PortId) {
        self.0.remove(&port);
    }
}

impl Owner {
    /// Notes devices that were refused access to memory.
    pub(super) fn note_faults(&mut self, devices: &[String]) {
        for device in devices {
            let port =
                self.devices.ports.iter().find(|port| port.is_pci(device)).map(|port| port.id);
            if let Some(id) = port {
                self.devices.health.0.entry(id).or_default().faults += 1;
            }
        }
    }

    /// Reads all devices' counters, and logs troubles that begin or have ended.
    pub(super) fn examine(&mut self) {
        let now = Instant::now();
        for open in self.devices.ports.iter() {
            let patient = self.devices.health.0.entry(open.id).or_default();
            for (trouble, said) in patient.look(&open.port.stats(), now) {
                let (name, what) = (&open.name, trouble.name());
                match said {
                    Said::Begins { count } => {
                        tracing::warn!("port \"{name}\": {what} +{count}: {}", trouble.advice());
                    }
                    Said::Ended { count, lasted } => tracing::info!(
                        "port \"{name}\": {what} +{count} in {} s; none for {} s",
                        lasted.as_secs().max(1),
                        QUIET.as_secs()
                    ),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_said_when_it_begins_and_when_it_has_ended() {
        let (mut patient, start) = (Patient::default(), Instant::now());
        let mut look = |second, imissed| {
            let stats = Stats { imissed, ..Stats::default() };
            patient.look(&stats, start + Duration::from_secs(second))
        };
        assert_eq!(look(0, 0), []);
        assert_eq!(look(1, 5), [(Trouble::Missed, Said::Begins { count: 5 })]);
        // It continues, with pauses.
        for (second, count) in [(2, 9), (3, 9), (11, 10), (20, 10)] {
            assert_eq!(look(second, count), [], "{second}");
        }
        let lasted = Duration::from_secs(10);
        assert_eq!(look(21, 10), [(Trouble::Missed, Said::Ended { count: 10, lasted })]);
        assert_eq!(look(40, 10), []);
        assert_eq!(look(41, 11), [(Trouble::Missed, Said::Begins { count: 1 })]);
    }

    #[test]
    fn a_device_that_counts_from_nothing_again_has_no_trouble_by_that() {
        let (mut patient, start) = (Patient::default(), Instant::now());
        let mut look = |second, ierrors, oerrors| {
            let stats = Stats { ierrors, oerrors, ..Stats::default() };
            patient.look(&stats, start + Duration::from_secs(second))
        };
        let begins = |count| Said::Begins { count };
        assert_eq!(look(0, 0, 100), [(Trouble::Send, begins(100))]);
        assert_eq!(
            look(11, 0, 0),
            [(Trouble::Send, Said::Ended { count: 0, lasted: Duration::ZERO })]
        );
        assert_eq!(look(12, 3, 0), [(Trouble::Receive, begins(3))]);
    }

    #[test]
    fn dma_faults_are_trouble() {
        let mut patient = Patient { faults: 2, ..Patient::default() };
        let said = patient.look(&Stats::default(), Instant::now());
        assert_eq!(said, [(Trouble::Dma, Said::Begins { count: 2 })]);
        let health = Health([(PortId::FIRST, patient)].into());
        assert_eq!(health.troubles(PortId::FIRST), ["dma_faults"]);
        assert_eq!((health.faults(PortId::FIRST), health.faults(PortId::new(1).unwrap())), (2, 0));
    }
}
