//! `to-dump`: writes packets to a file as tcpdump does.
//!
//! Takes any frame. Forwarders copy the first bytes of each packet, from `offset` on and up to `length`, into a bounded
//! queue; a thread of the file's own writes them as pcap (of a frame in several buffers the first). `link` says what
//! begins at `offset`: an Ethernet or an IP header. The file replaces one of its name with the first packet, belongs to
//! the router's user alone, and has at most `megabytes`. Packets that the thread does not keep up with, or for which there
//! is no file or no room, are counted as `lost` (`turnpike show steps`). A change of the graph in which a step for the
//! file stays, with the same `link` and `megabytes`, continues it.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all |
//!
//! ```lua
//! graph:path("counter.next", { "to-dump", file = "/var/tmp/left.pcap" }, "drop")
//! ```

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_queue::ArrayQueue;
use pcap_file::pcap::PcapHeader;
use pcap_file::{DataLink, Endianness};

use super::{offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step, StepCounters};
use crate::lock::lock;
use crate::mask::Mask;
use crate::params::{Arg, Grammar, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("next")];

/// Most bytes of a packet.
const BYTES: usize = 2048;

/// Packets that can wait for the thread.
const WAITING: usize = 512;

/// The longest time for which they wait, and that while packets come.
const PATIENCE: Duration = Duration::from_millis(20);
const BUSY: Duration = Duration::from_micros(200);

static FILE: Grammar = Grammar { expected: "the path of a file", check: check_path };

/// Refuses a path that no file can have.
fn check_path(path: &str) -> Result<(), String> {
    let parent = Path::new(path).parent();
    let parent = parent.map(|parent| if parent == Path::new("") { Path::new(".") } else { parent });
    if Path::new(path).file_name().is_none() || Path::new(path).is_dir() {
        return Err(format!("\"{path}\" is none"));
    }
    match parent {
        Some(parent) if parent.is_dir() => Ok(()),
        _ => Err(format!("\"{path}\": its directory does not exist")),
    }
}

pub(super) fn spec() -> StepSpec {
    let file = Param::new("file", Kind::Parsed(&FILE), "the path of the file");
    let length = Param::new("length", Kind::Integer(1..=BYTES as i64), "bytes of a packet");
    let link = Param::new("link", Kind::Word(&["ethernet", "ip"]), "the first header");
    let size = Param::new("megabytes", Kind::Integer(1..=1 << 20), "the file's largest size");
    StepSpec::new("to-dump", OUTPUTS, make)
        .param(file.or(Arg::Text(String::new())))
        .param(length.or(Arg::Integer(2000)))
        .param(link.or(Arg::Word("ethernet")))
        .param(size.or(Arg::Integer(1024)))
        .param(offset(0, "the place of the first byte"))
}

/// The files that are being written. One with other settings is another file, which takes the name over.
#[derive(Default)]
struct All(Mutex<HashMap<Settings, Weak<Dump>>>);

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let all = context.tables.shared.get::<All>();
    let (args, path) = (context.args, context.args.text("file"));
    let settings = Settings {
        path: path.into(),
        is_ip: *args.get("link") == Arg::Word("ip"),
        bytes: (args.integer("megabytes") as u64) << 20,
    };
    let mut files = lock(&all.0);
    files.retain(|_, dump| dump.strong_count() > 0);
    let known = files.get(&settings).and_then(Weak::upgrade);
    let dump = known.unwrap_or_else(|| Arc::new(Dump::start(settings.clone())));
    files.insert(settings, Arc::downgrade(&dump));
    Box::new(ToDump {
        at: place(args),
        length: args.integer("length") as usize,
        dump,
        counters: StepCounters::new(&["packets", "lost"]),
    })
}

/// A packet on its way to the file.
struct Record {
    /// In TSC cycles.
    time: u64,
    whole: u32,
    len: usize,
    bytes: [u8; BYTES],
}

/// Between forwarders and the thread.
struct Waiting {
    records: ArrayQueue<Record>,
    /// No more packets are wanted: the file is full, or there is none.
    closed: AtomicBool,
    /// No more packets come.
    ended: AtomicBool,
}

/// A file and its thread, which ends with the last step for it.
struct Dump {
    waiting: Arc<Waiting>,
    thread: Option<JoinHandle<()>>,
}

impl Dump {
    fn start(settings: Settings) -> Self {
        let waiting = Arc::new(Waiting {
            records: ArrayQueue::new(WAITING),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let of_thread = waiting.clone();
        let body = move || {
            privileges::keep_to(privileges::Role::Writer);
            settings.write(&of_thread);
        };
        let thread = thread::Builder::new().name("dump".to_owned()).spawn(body).ok();
        waiting.closed.store(thread.is_none(), Ordering::Relaxed);
        Self { waiting, thread }
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        self.waiting.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Settings {
    path: PathBuf,
    /// The packets have no Ethernet header.
    is_ip: bool,
    bytes: u64,
}

impl Settings {
    /// The thread: writes what comes until the last step has gone.
    fn write(&self, waiting: &Waiting) {
        let mut output = None;
        loop {
            // Before the records: those that came until then are there.
            let ended = waiting.ended.load(Ordering::Acquire);
            let has_some = !waiting.records.is_empty();
            if self.drain(waiting, &mut output).is_err() {
                waiting.closed.store(true, Ordering::Relaxed);
            }
            if ended {
                return;
            }
            thread::park_timeout(if has_some { BUSY } else { PATIENCE });
        }
    }

    /// Writes the records that wait.
    fn drain(&self, waiting: &Waiting, output: &mut Option<Writer>) -> io::Result<()> {
        let (wall, now) = (SystemTime::now(), dpdk::tsc());
        while let Some(record) = waiting.records.pop() {
            if waiting.closed.load(Ordering::Relaxed) {
                continue;
            }
            let writer = match output {
                Some(writer) => writer,
                None => output.insert(Writer::create(self)?),
            };
            let ago = now.saturating_sub(record.time) as f64 / dpdk::tsc_hz().max(1) as f64;
            writer.add(&record, wall - Duration::from_secs_f64(ago))?;
        }
        output.as_mut().map_or(Ok(()), |writer| writer.file.flush())
    }
}

struct Writer {
    file: BufWriter<File>,
    /// Bytes that it may still write.
    room: u64,
}

/// Bytes of a record in the file beside the packet's.
const RECORD: u64 = 16;

/// The name of a file until it has its own.
fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

impl Writer {
    /// Creates the file under another name and renames it: neither follows a link that somebody has put there.
    fn create(settings: &Settings) -> io::Result<Self> {
        let new = new_name(&settings.path);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        fs::rename(&new, &settings.path)?;
        let mut file = BufWriter::new(file);
        let datalink = if settings.is_ip { DataLink::RAW } else { DataLink::ETHERNET };
        let endianness = Endianness::Little;
        let header = PcapHeader { datalink, endianness, ..PcapHeader::default() };
        header.write_to(&mut file).map_err(io::Error::other)?;
        Ok(Self { file, room: settings.bytes })
    }

    fn add(&mut self, record: &Record, time: SystemTime) -> io::Result<()> {
        let size = RECORD + record.len as u64;
        self.room = self.room.checked_sub(size).ok_or(io::ErrorKind::FileTooLarge)?;
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Its own writer cannot be flushed.
        let words = [time.as_secs() as u32, time.subsec_micros(), record.len as u32, record.whole];
        words.iter().try_for_each(|word| self.file.write_all(&word.to_le_bytes()))?;
        self.file.write_all(&record.bytes[..record.len])
    }
}

struct ToDump {
    at: usize,
    length: usize,
    dump: Arc<Dump>,
    counters: StepCounters,
}

impl ToDump {
    /// Copies a packet for the thread; returns false if it is lost.
    fn keep(&self, batch: &Batch, slot: usize) -> bool {
        let Dump { waiting, .. } = &*self.dump;
        if waiting.closed.load(Ordering::Relaxed) || waiting.records.is_full() {
            return false;
        }
        let data = batch.frame(slot).get(self.at..).unwrap_or(&[]);
        let len = data.len().min(self.length);
        let mut bytes = [0; BYTES];
        bytes[..len].copy_from_slice(&data[..len]);
        let whole = batch.len(slot).saturating_sub(self.at) as u32;
        waiting.records.push(Record { time: batch.now, whole, len, bytes }).is_ok()
    }
}

impl Step for ToDump {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        // In their order, unlike `filter`.
        for slot in input.slots() {
            let kept = self.keep(batch, slot);
            self.counters.at(usize::from(!kept)).add(1);
        }
    }

    fn counters(&self) -> Option<&StepCounters> {
        Some(&self.counters)
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;

    use super::super::{make, number, text};
    use super::*;
    use crate::testing::run_step_on;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("to-dump-{}-{name}", std::process::id()))
    }

    fn given(path: &Path) -> crate::params::Given {
        text(path.to_str().unwrap())
    }

    /// Frames that differ in their last byte.
    fn frames(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|number| (0..59).chain([number as u8]).collect()).collect()
    }

    fn run(step: &mut dyn Step, count: usize) {
        let now = |batch: &mut Batch| batch.now = dpdk::tsc();
        assert_eq!(run_step_on(step, &frames(count), now).0["next"].len(), count);
    }

    fn lost(step: &dyn Step) -> u64 {
        step.counters().unwrap().all().last().unwrap().1
    }

    #[test]
    fn the_file_has_the_packets_once_the_step_has_gone() {
        let path = path("whole");
        let args = [("file", given(&path)), ("length", number(46)), ("offset", number(14))];
        let mut step = make("to-dump", &args);
        run(&mut *step, 3);
        assert_eq!(lost(&*step), 0);
        drop(step);
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        for frame in frames(3) {
            let packet = reader.next_packet().unwrap().unwrap();
            assert_eq!((packet.orig_len, &*packet.data), (46, &frame[14..]));
            assert!(packet.timestamp <= now && now - packet.timestamp < Duration::from_secs(60));
        }
        assert!(reader.next_packet().is_none());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn links_are_not_followed_and_old_files_are_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let (path, victim) = (path("link"), path("victim"));
        fs::write(&victim, "precious").unwrap();
        for link in [path.clone(), new_name(&path)] {
            std::os::unix::fs::symlink(&victim, link).unwrap();
        }
        let mut step = make("to-dump", &[("file", given(&path))]);
        run(&mut *step, 1);
        drop(step);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600);
        fs::remove_file(path).unwrap();
        fs::remove_file(victim).unwrap();
    }

    #[test]
    fn a_file_has_a_largest_size() {
        let path = path("full");
        let settings = Settings { path: path.clone(), is_ip: false, bytes: 100 };
        let mut writer = Writer::create(&settings).unwrap();
        let record = Record { time: 0, whole: 60, len: 60, bytes: [0; BYTES] };
        assert!(writer.add(&record, SystemTime::now()).is_ok());
        let error = writer.add(&record, SystemTime::now()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn packets_without_a_file_are_lost() {
        let directory = path("gone");
        fs::create_dir(&directory).unwrap();
        let mut step = make("to-dump", &[("file", given(&directory.join("x")))]);
        fs::remove_dir(&directory).unwrap();
        let mut rounds = 0;
        while lost(&*step) == 0 {
            run(&mut *step, 64);
            rounds += 1;
            assert!(rounds < 1_000_000);
        }
        drop(step);
    }

    #[test]
    fn paths_of_no_file_are_refused() {
        assert!(check_path("/nonexistent/x").unwrap_err().contains("its directory does not exist"));
        assert!(check_path("/").is_err() && check_path("").is_err() && check_path("/tmp").is_err());
        assert!(check_path("x.pcap").is_ok());
    }
}
