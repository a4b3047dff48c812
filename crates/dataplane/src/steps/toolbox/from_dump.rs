//! `from-dump`: makes the packets of a file as tcpdump writes it.
//!
//! Takes none; all forwarders together emit the packets of `file` once, in their order. They count as replicated. The file
//! (pcap, of Ethernet frames, up to 64 MiB) is read when the graph is made. Frames are those of the file, as far as it has
//! their bytes.
//!
//! | output | packets |
//! |---|---|
//! | `next` | with the times between them with `timing`, else as fast as the forwarders are |
//!
//! ```lua
//! graph:add { "from-dump", file = "/tmp/trace.pcap", timing = true }
//! graph:path("from-dump.next", { "to-port", port = "left" }, "transmit")
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;

use crate::batch::{Batch, Held};
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Origin, Output, Outputs, Step};
use crate::lock::lock;
use crate::mask::Mask;
use crate::params::{Arg, Grammar, Kind, Param};

const OUTPUTS: &[Output] = &[Output::Deferred(std::borrow::Cow::Borrowed("next"))];

/// Most bytes of a file.
const BYTES_MOST: u64 = 64 << 20;

/// Most bytes of a frame.
const FRAME_MOST: usize = 1518;

static FILE: Grammar =
    Grammar { expected: "the path of a pcap file", check: |path| read(path).map(drop) };

/// A frame, and its time behind the first one.
type Frame = (Duration, Box<[u8]>);

fn read(path: &str) -> Result<Vec<Frame>, String> {
    let wrong = |why: String| format!("\"{path}\": {why}");
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    // Others, pipes for instance, may never end.
    let metadata = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if !metadata.is_file() || metadata.len() > BYTES_MOST {
        return Err(wrong(format!("expected a file of at most {} MiB", BYTES_MOST >> 20)));
    }
    frames(BufReader::new(file.take(BYTES_MOST))).map_err(wrong)
}

fn frames(file: impl Read) -> Result<Vec<Frame>, String> {
    let mut reader = PcapReader::new(file).map_err(|error| format!("no pcap: {error}"))?;
    let link = reader.header().datalink;
    if link != DataLink::ETHERNET {
        return Err(format!("its packets are no Ethernet frames but {link:?}"));
    }
    let (mut frames, mut first) = (Vec::new(), None);
    while let Some(packet) = reader.next_packet() {
        let number = frames.len() + 1;
        let packet = packet.map_err(|error| format!("packet {number}: {error}"))?;
        let len = packet.data.len();
        if len > FRAME_MOST {
            return Err(format!("packet {number} has {len} bytes; at most {FRAME_MOST}"));
        }
        let time = packet.timestamp;
        let since = time.saturating_sub(*first.get_or_insert(time));
        frames.push((since, packet.data.into()));
    }
    Ok(frames)
}

pub(super) fn spec() -> StepSpec {
    let file = Param::new("file", Kind::Parsed(&FILE), "the path of the file");
    let timing = Param::new("timing", Kind::Flag, "keep the times between packets");
    StepSpec::new("from-dump", OUTPUTS, make)
        .param(file.or(Arg::Text(String::new())))
        .param(timing.or(Arg::Flag(false)))
}

/// The packets of a file, and the place in them that all forwarders have reached.
#[derive(Default)]
struct Dump {
    frames: Vec<Frame>,
    next: AtomicUsize,
    /// The time of the first packet, in TSC cycles; 0 before it.
    begin: AtomicU64,
}

/// By step and file, as long as there are such steps: one that stays goes on where it was.
#[derive(Default)]
pub struct Dumps(Mutex<HashMap<(String, String), Weak<Dump>>>);

impl Dumps {
    /// Returns true while a step of this name has packets that it has not made yet.
    pub fn has_more(&self, name: &str) -> bool {
        let all = lock(&self.0);
        let mut dumps = all.iter().filter(|((known, _), _)| known == name);
        dumps.any(|(_, dump)| dump.upgrade().is_some_and(|dump| dump.has_more()))
    }
}

impl Dump {
    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.frames.len()
    }
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let all = context.tables.shared.get::<Dumps>();
    let path = context.args.text("file");
    let new = || {
        // Checked by the grammar; a file that is gone since has no packets.
        let frames = read(path).unwrap_or_default();
        Arc::new(Dump { frames, ..Dump::default() })
    };
    let identity = (context.name.to_owned(), path.to_owned());
    let mut dumps = lock(&all.0);
    dumps.retain(|_, dump| dump.strong_count() > 0);
    let dump = dumps.get(&identity).and_then(Weak::upgrade).unwrap_or_else(new);
    dumps.insert(identity, Arc::downgrade(&dump));
    let hz = context.args.flag("timing").then(dpdk::tsc_hz);
    Box::new(FromDump { dump, hz })
}

struct FromDump {
    dump: Arc<Dump>,
    /// The clock, if packets keep their times.
    hz: Option<u64>,
}

impl FromDump {
    /// Makes the next one, if it is due and there is a buffer for it.
    fn one(&self, batch: &Batch) -> Option<Held> {
        let Dump { frames, next, begin } = &*self.dump;
        let number = next.load(Ordering::Relaxed);
        let (since, frame) = frames.get(number)?;
        if let Some(hz) = self.hz {
            let now = batch.now.max(1);
            let first = begin.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
            let first = first.err().unwrap_or(now);
            let due = (since.as_nanos() * u128::from(hz) / 1_000_000_000) as u64;
            if now.saturating_sub(first) < due {
                return None;
            }
        }
        let packet = batch.copies.as_ref()?.pool().copy_of(frame)?;
        let took = next.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
        took.ok().map(|_| Held::new(packet))
    }
}

impl Step for FromDump {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, _: &mut Batch, _: Mask, _: &mut Outputs) {}

    fn emit(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> Origin {
        for _ in 0..most {
            let Some(packet) = self.one(batch) else { break };
            if let Ok(slot) = batch.put(packet) {
                out[0] |= Mask::when(true, slot);
            }
        }
        Origin::Made
    }

    fn is_waiting(&self) -> bool {
        self.dump.has_more()
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

    use super::super::{make, text};
    use super::*;
    use crate::graph::MAX_OUTPUTS;
    use crate::mirror::Copies;
    use crate::params::Given;
    use crate::testing::{batch_of, dpdk};

    /// A file of frames, each half a second behind the one before.
    fn file(frames: &[Vec<u8>], datalink: DataLink) -> Vec<u8> {
        let header = PcapHeader { datalink, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for (number, frame) in (0..).zip(frames) {
            let time = Duration::from_millis(1_000_000 + 500 * number);
            writer.write_packet(&PcapPacket::new(time, 2000, frame)).unwrap();
        }
        writer.into_writer()
    }

    fn written(name: &str, frames: &[Vec<u8>]) -> String {
        let path = std::env::temp_dir().join(format!("from-dump-{}-{name}", std::process::id()));
        std::fs::write(&path, file(frames, DataLink::ETHERNET)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn emit(step: &mut dyn Step, now: u64) -> Vec<Vec<u8>> {
        let mut batch = batch_of(&[]);
        batch.copies = Some(Copies::new(dpdk().1.clone()));
        batch.begin_emitted(now);
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        assert_eq!(step.emit(&mut batch, 64, &mut out), Origin::Made);
        out[0].slots().map(|slot| batch.frame(slot).to_vec()).collect()
    }

    #[test]
    fn packets_come_once_in_their_order() {
        let frames: Vec<_> = (0..100).map(|n| vec![n; 60]).collect();
        let path = written("once", &frames);
        let mut step = make("from-dump", &[("file", text(&path))]);
        assert_eq!(emit(&mut *step, 0), frames[..64]);
        assert!(step.is_waiting());
        assert_eq!(emit(&mut *step, 0), frames[64..]);
        assert!(!step.is_waiting() && emit(&mut *step, 0).is_empty());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn times_between_packets_are_kept() {
        let path = written("timing", &[vec![1; 60], vec![2; 60], vec![3; 60]]);
        let args = [("file", text(&path)), ("timing", Given::Flag(true))];
        let (mut step, hz) = (make("from-dump", &args), ::dpdk::tsc_hz());
        assert_eq!(emit(&mut *step, 5 * hz), [vec![1; 60]]);
        assert_eq!(emit(&mut *step, 5 * hz + hz / 2 - hz / 100).len(), 0);
        assert_eq!(emit(&mut *step, 5 * hz + hz / 2 + 1), [vec![2; 60]]);
        assert_eq!(emit(&mut *step, 7 * hz), [vec![3; 60]]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn other_files_are_refused() {
        let read = |bytes: &[u8]| frames(bytes).unwrap_err();
        assert!(read(b"text").starts_with("no pcap: "));
        assert!(read(&file(&[], DataLink::RAW)).contains("no Ethernet frames but RAW"));
        let long = file(&[vec![0; 60], vec![0; 1519]], DataLink::ETHERNET);
        assert_eq!(read(&long), "packet 2 has 1519 bytes; at most 1518");
        let cut = file(&[vec![0; 60]], DataLink::ETHERNET);
        assert!(read(&cut[..cut.len() - 1]).starts_with("packet 1: "));
        assert!(super::read("/nonexistent").unwrap_err().contains("No such file"));
        assert!(
            super::read("/dev/zero").unwrap_err().contains("expected a file of at most 64 MiB")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = frames(&bytes[..]);
            let whole = file(&[vec![1; 60], vec![2; 60]], DataLink::ETHERNET);
            let mut changed = whole.clone();
            for pair in bytes.chunks_exact(2) {
                changed[usize::from(pair[0]) % whole.len()] = pair[1];
            }
            let _ = frames(&changed[..]);
        }
    }
}
