//! The quarantine file: packets over which the router's code panicked, for its developers.
//!
//! A thread of its own takes the copies and writes them as pcapng, a file for each run of the router,
//! made at the first packet: each packet with the interface that is its port, the time, and
//! the panic's message as its comment. Wireshark and tshark show them (`frame.comment`). Packets and
//! bytes are bounded: the first packets are kept, because the first panic is the one to investigate.
//!
//! Packets are other people's: directory and files are made for the router's user alone. A directory that
//! another user made, or that others may write to, is refused.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use control::config::{self, Config};
use dataplane::interface::InterfaceId;
use dataplane::lock::lock;
use dataplane::quarantine::{Quarantine, Suspect};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::private::Private;

/// The least time between two lines of the log.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Bytes of a packet's block beside the frame and the comment, at most.
const BLOCK: usize = 64;

/// The current settings of the thread. Clones are of one.
#[derive(Clone, Debug)]
pub struct KeeperSettings(Arc<Mutex<Current>>);

#[derive(Debug)]
struct Current {
    limits: config::Quarantine,
    /// The names of the ports by their numbers.
    names: Vec<String>,
}

impl Current {
    fn of(config: &Config) -> Self {
        Self { limits: config.quarantine.clone(), names: config.port_names() }
    }
}

impl KeeperSettings {
    /// Returns those of a configuration.
    pub fn of(config: &Config) -> Self {
        Self(Arc::new(Mutex::new(Current::of(config))))
    }

    /// Sets those of another configuration.
    pub fn set(&self, config: &Config) {
        *self.current() = Current::of(config);
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        lock(&self.0)
    }

    fn limits(&self) -> config::Quarantine {
        self.current().limits.clone()
    }

    fn of_port(&self, port: Option<InterfaceId>) -> Option<String> {
        self.current().names.get(port?.index()).filter(|name| !name.is_empty()).cloned()
    }
}

/// Starts the thread with these settings. It ends when every copy of the [`Quarantine`] is dropped.
///
/// # Errors
/// The thread cannot be created.
pub fn start(settings: KeeperSettings) -> Result<(Quarantine, JoinHandle<()>)> {
    let (quarantine, from) = Quarantine::new();
    let mut keeper = Keeper::new(settings);
    let body = move || {
        privileges::keep_to(privileges::Role::Writer);
        keeper.run(&from);
    };
    let thread = thread::Builder::new().name("quarantine".to_owned()).spawn(body)?;
    Ok((quarantine, thread))
}

struct Keeper {
    settings: KeeperSettings,
    /// The limits that the fields below are of.
    limits: config::Quarantine,
    file: Option<Writer>,
    /// Packets that were to be kept.
    seen: u64,
    kept: usize,
    /// Why no more is kept.
    ended: Option<String>,
    logged: Option<Instant>,
}

struct Writer {
    path: PathBuf,
    pcap: PcapNgWriter<BufWriter<File>>,
    /// The names of the interfaces that the file has so far, in its order.
    interfaces: Vec<String>,
    /// Bytes of all files in the directory.
    bytes: u64,
}

impl Keeper {
    fn new(settings: KeeperSettings) -> Self {
        let limits = settings.limits();
        Self { settings, limits, file: None, seen: 0, kept: 0, ended: None, logged: None }
    }

    fn run(&mut self, from: &Receiver<Suspect>) {
        for suspect in from {
            self.seen += 1;
            self.follow_settings();
            if self.ended.is_none() {
                match self.keep(&suspect) {
                    Ok(()) => self.kept += 1,
                    Err(error) => self.ended = Some(format!("{error:#}")),
                }
            }
            self.log(&suspect);
        }
    }

    /// Begins anew in another directory, and continues with other limits.
    fn follow_settings(&mut self) {
        let limits = self.settings.limits();
        if limits == self.limits {
            return;
        }
        if limits.directory != self.limits.directory {
            self.file = None;
        }
        self.ended = None;
        self.limits = limits;
    }

    /// A line for the first and then one a second at most: a flood of panics is no flood of lines.
    fn log(&mut self, suspect: &Suspect) {
        if self.logged.is_some_and(|logged| logged.elapsed() < LOG_EVERY) {
            return;
        }
        self.logged = Some(Instant::now());
        let place = match (&self.ended, &self.file) {
            (Some(reason), _) => format!("not kept: {reason}"),
            (None, Some(file)) => format!("kept in {}", file.path.display()),
            (None, None) => String::new(),
        };
        let port = self.port_name(suspect);
        tracing::error!(
            "a panic over a packet of {port}: {}; {place}; {} so far: a defect, please report",
            suspect.message,
            self.seen
        );
    }

    fn port_name(&self, suspect: &Suspect) -> String {
        let name = self.settings.of_port(suspect.interface);
        name.map_or_else(|| "no port".to_owned(), |name| format!("port \"{name}\""))
    }

    fn keep(&mut self, suspect: &Suspect) -> Result<()> {
        let Self { limits, settings, file, kept, .. } = self;
        anyhow::ensure!(*kept < limits.packets, "{} packets are kept already", limits.packets);
        if file.is_none() {
            *file = Some(Writer::open(&limits.directory)?);
        }
        let Some(writer) = file else { return Ok(()) };
        let size = (BLOCK + suspect.frame.len() + suspect.message.len()) as u64;
        anyhow::ensure!(
            writer.bytes + size <= limits.bytes,
            "the files in {} have {} bytes already",
            limits.directory.display(),
            writer.bytes
        );
        let name = settings.of_port(suspect.interface).unwrap_or_else(|| "none".to_owned());
        writer.write(suspect, name).with_context(|| writer.path.display().to_string())?;
        writer.bytes += size;
        Ok(())
    }
}

impl Writer {
    fn open(directory: &Path) -> Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("quarantine-{}-{}.pcapng", since.as_secs(), std::process::id());
        let path = directory.join(&name);
        let place = private(directory).open()?;
        // By the directory that was looked at, whatever has that name by now.
        let here = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
        let bytes = size_of_all(&here).with_context(|| directory.display().to_string())?;
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(here.join(name));
        let file = file.with_context(|| path.display().to_string())?;
        let pcap = PcapNgWriter::new(BufWriter::new(file))?;
        Ok(Self { path, pcap, interfaces: Vec::new(), bytes })
    }

    /// The number of the interface with this name in the file.
    fn interface(&mut self, name: String) -> Result<usize> {
        if let Some(number) = self.interfaces.iter().position(|known| *known == name) {
            return Ok(number);
        }
        self.pcap.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(&name)),
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        })?;
        self.interfaces.push(name);
        Ok(self.interfaces.len() - 1)
    }

    /// Writes a packet, so that it is in the file whatever happens next.
    fn write(&mut self, suspect: &Suspect, port: String) -> Result<()> {
        let interface = self.interface(port)?;
        self.pcap.write_pcapng_block(EnhancedPacketBlock {
            interface_id: interface as u32,
            timestamp: suspect.time.duration_since(UNIX_EPOCH).unwrap_or_default(),
            original_len: suspect.frame.len() as u32,
            data: Cow::Borrowed(&suspect.frame),
            options: vec![EnhancedPacketOption::Comment(Cow::Borrowed(&suspect.message))],
        })?;
        self.pcap.get_mut().flush()?;
        Ok(())
    }
}

/// Checks that the directory can be used, or made, as far as can be seen.
///
/// # Errors
/// It cannot.
pub fn examine(directory: &Path) -> Result<()> {
    private(directory).examine()
}

fn private(path: &Path) -> Private<'_> {
    let elsewhere = "choose another turnpike.quarantine { directory }";
    Private { what: "quarantine directory", path, elsewhere }
}

/// Bytes of the quarantine files of all runs.
fn size_of_all(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|n| n.starts_with("quarantine-") && n.ends_with(".pcapng")) {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::DirBuilder;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};

    use nix::unistd::Uid;
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    fn keep(limits: &config::Quarantine, frames: &[&[u8]]) -> Keeper {
        let names = vec![String::new(), "left".to_owned(), "right".to_owned()];
        let current = Current { limits: limits.clone(), names };
        let mut keeper = Keeper::new(KeeperSettings(Arc::new(Mutex::new(current))));
        put(&mut keeper, frames);
        keeper
    }

    fn put(keeper: &mut Keeper, frames: &[&[u8]]) {
        let (quarantine, from) = Quarantine::new();
        for (n, frame) in frames.iter().enumerate() {
            quarantine.put(InterfaceId::new(n as u16), &format!("panic {n}"), frame);
        }
        drop(quarantine);
        keeper.run(&from);
    }

    /// The names of a file's interfaces.
    fn interfaces(path: &Path) -> Vec<String> {
        let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::InterfaceDescription(interface) = block.unwrap() {
                let name = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                found.push(name.unwrap());
            }
        }
        found
    }

    /// Interface, comment and bytes of each packet in a file.
    fn packets(path: &Path) -> Vec<(u32, String, Vec<u8>)> {
        let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                let comments = packet.options.iter().filter_map(|option| match option {
                    EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                    _ => None,
                });
                found.push((packet.interface_id, comments.collect(), packet.data.to_vec()));
            }
        }
        found
    }

    fn limits(directory: &Path) -> config::Quarantine {
        config::Quarantine { directory: directory.join("q"), packets: 10, bytes: 1 << 20 }
    }

    #[test]
    fn packets_are_kept_with_port_and_message() {
        let directory = tempfile::tempdir().unwrap();
        let keeper = keep(&limits(directory.path()), &[b"first", b"second", b"third", b"4th"]);
        let path = &keeper.file.as_ref().unwrap().path;
        let expected = [(0, "panic 0", "first"), (1, "panic 1", "second"), (2, "panic 2", "third")];
        assert_eq!(interfaces(path), ["none", "left", "right"]);
        let found = packets(path);
        for ((interface, comment, data), expected) in found.iter().zip(expected) {
            assert_eq!(
                (*interface, &**comment, &**data),
                (expected.0, expected.1, expected.2.as_bytes())
            );
        }
        assert_eq!(
            (found.len(), found[3].0),
            (4, 0),
            "the first and the last came by no port that has a name"
        );
    }

    #[test]
    fn no_more_packets_are_kept_than_allowed() {
        let directory = tempfile::tempdir().unwrap();
        let few = config::Quarantine { packets: 2, ..limits(directory.path()) };
        let keeper = keep(&few, &[b"1", b"2", b"3", b"4"]);
        assert_eq!(packets(&keeper.file.as_ref().unwrap().path).len(), 2);
        assert_eq!((keeper.seen, keeper.ended.as_deref()), (4, Some("2 packets are kept already")));
    }

    #[test]
    fn other_limits_take_effect_with_the_next_packet() {
        let directory = tempfile::tempdir().unwrap();
        let few = config::Quarantine { packets: 1, ..limits(directory.path()) };
        let mut keeper = keep(&few, &[b"1", b"2"]);
        let first = keeper.file.as_ref().unwrap().path.clone();
        assert_eq!(keeper.kept, 1);
        keeper.settings.current().limits.packets = 2;
        put(&mut keeper, &[b"3"]);
        assert_eq!(packets(&first).len(), 2, "the same file goes on");
        let elsewhere = directory.path().join("elsewhere");
        let more = config::Quarantine { directory: elsewhere.clone(), packets: 3, ..few };
        keeper.settings.current().limits = more;
        put(&mut keeper, &[b"4", b"5"]);
        let second = &keeper.file.as_ref().unwrap().path;
        assert!(second.starts_with(elsewhere) && packets(second)[0].2 == b"4");
        assert_eq!((keeper.kept, packets(&first).len(), packets(second).len()), (3, 2, 1));
    }

    #[test]
    fn no_more_bytes_are_kept_than_allowed_in_all_files_together() {
        let directory = tempfile::tempdir().unwrap();
        let small = config::Quarantine { bytes: 1000, ..limits(directory.path()) };
        let first = keep(&small, &[&[7; 800]]);
        assert_eq!(first.kept, 1);
        // Another run, which makes a file of its own.
        let path = &first.file.as_ref().unwrap().path;
        fs::rename(path, path.with_file_name("quarantine-1-1.pcapng")).unwrap();
        let second = keep(&small, &[&[7; 800]]);
        assert_eq!(second.kept, 0);
        assert!(second.ended.unwrap().contains("bytes already"));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_said() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("q"), "a file").unwrap();
        let keeper = keep(&limits(directory.path()), &[b"1"]);
        assert!(keeper.ended.unwrap().contains(&*directory.path().to_string_lossy()));
        let error = examine(&directory.path().join("q")).unwrap_err().to_string();
        assert!(error.ends_with(
            "q: no directory; remove it, or choose another turnpike.quarantine { directory }"
        ));
        let error = examine(&directory.path().join("q/deep/er")).unwrap_err().to_string();
        assert!(error.contains("q/deep/er: cannot be made, "), "{error}");
        examine(&directory.path().join("not/there")).unwrap();
    }

    #[test]
    fn only_the_routers_user_can_read_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let keeper = keep(&limits(&directory.path().join("new")), &[b"1"]);
        let path = &keeper.file.as_ref().unwrap().path;
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(mode(&directory.path().join("new")), 0o700);
        examine(path.parent().unwrap()).unwrap();
    }

    /// As root: no other user can give a directory away.
    #[test]
    fn a_directory_of_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let limits = limits(directory.path());
        let refused = |why: &str| {
            let error = keep(&limits, &[b"1"]).ended.unwrap();
            assert!(error.contains(why), "{error}");
            assert!(examine(&limits.directory).unwrap_err().to_string().contains(why));
            assert_eq!(fs::read_dir(&limits.directory).unwrap().count(), 0, "{why}");
        };
        let open = fs::Permissions::from_mode(0o777);
        fs::create_dir(&limits.directory).unwrap();
        fs::set_permissions(&limits.directory, open).unwrap();
        refused("other users may write to it; chmod 700 it");
        fs::remove_dir(&limits.directory).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &limits.directory).unwrap();
        refused("no directory");
        if Uid::effective().is_root() {
            fs::remove_file(&limits.directory).unwrap();
            DirBuilder::new().mode(0o700).create(&limits.directory).unwrap();
            std::os::unix::fs::chown(&limits.directory, Some(65534), None).unwrap();
            refused("belongs to uid 65534; remove it");
        }
    }
}
