//! The earlier states of devices, kept for giving them back, even after a kill.
//!
//! Each bound device has a file in `/run/turnpike/bound`, named by its address and written before
//! anything is changed. A router locks the files of its devices; the lock ends with the process in
//! any case. A restart of the machine empties `/run`, and returns devices to the kernel's drivers.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::kernel::MOMENT;
use crate::Machine;

/// Directory of the files.
const DIRECTORY: &str = "/run/turnpike/bound";

/// The lock of the directory, held while devices are bound and given back.
const LOCK: &str = "lock";

/// Attempts to get a lock that a reader may hold for a moment.
const LOOKS: usize = 10;

/// Largest valid file, in bytes; a longer one is damaged.
const MOST: u64 = 64 << 10;

/// Earlier state of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Vendor and device: another device in the same slot is not given back.
    pub ids: String,
    /// True if a router bound it, and gives it back at its end; false if a command did, and it
    /// stays bound.
    pub by_router: bool,
    /// Its driver.
    pub driver: Option<String>,
    /// The setting `driver_override`.
    pub driver_override: Option<String>,
    /// The kind of its IOMMU group's domain, if that was changed.
    pub domain: Option<String>,
    /// Its kernel interface.
    pub interface: Option<FoundInterface>,
}

/// Earlier state of a kernel interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundInterface {
    /// Its name.
    pub name: String,
    /// True if it was up.
    pub up: bool,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
}

/// The records, locked for changes.
pub struct Records {
    directory: PathBuf,
    _lock: Flock<File>,
}

/// A device's record, locked while a router has the device.
#[derive(Debug)]
pub struct Record {
    /// The device's address.
    pub address: String,
    /// The earlier state.
    pub found: Found,
    path: PathBuf,
    _lock: Flock<File>,
}

impl Records {
    /// Opens the records; waits until no other process changes them.
    ///
    /// # Errors
    /// The directory cannot be created, or users other than its owner can write to it.
    pub fn open(machine: &Machine) -> Result<Self> {
        let directory = machine.path(DIRECTORY);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.with_context(|| {
            format!("{}: cannot be made; run as root (sudo)", directory.display())
        })?;
        check_owner(&directory, 0o077)?;
        if let Some(parent) = directory.parent() {
            check_owner(parent, 0o022)?;
        }
        let path = directory.join(LOCK);
        let file = open(&path).with_context(|| path.display().to_string())?;
        let lock = lock(file, FlockArg::LockExclusive)?.context("the lock was not waited for")?;
        Ok(Self { directory, _lock: lock })
    }

    /// Writes the record of a device before it is changed, replacing one without an owner.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(&self, address: &str, found: Found) -> Result<Record> {
        let path = self.directory.join(address);
        let new = self.directory.join(format!("{address}.new"));
        let write = || -> Result<Flock<File>> {
            let _ = fs::remove_file(&new);
            let mut file = open(&new)?;
            file.write_all(serde_json::to_string(&found)?.as_bytes())?;
            let lock = lock(file, FlockArg::LockExclusiveNonblock)?.context("it is locked")?;
            // Written completely or not at all, and locked from the first moment.
            fs::rename(&new, &path)?;
            Ok(lock)
        };
        let lock = write().with_context(|| format!("writing {}", path.display()))?;
        Ok(Record { address: address.to_owned(), found, path, _lock: lock })
    }

    /// Takes over the record of a device that no process owns any more; `None` if there is none or
    /// it is locked.
    pub fn adopt(&self, address: &str) -> Option<Record> {
        let path = self.directory.join(address);
        let mut file = open_existing(&path).ok()?;
        let found = parse(&mut file)?;
        drop(file);
        // A reader holds the lock for a moment.
        for _ in 0..LOOKS {
            let file = open_existing(&path).ok()?;
            if let Some(lock) = lock(file, FlockArg::LockExclusiveNonblock).ok()? {
                return Some(Record { address: address.to_owned(), found, path, _lock: lock });
            }
            thread::sleep(MOMENT);
        }
        None
    }
}

impl Record {
    /// Removes the record of a device that was given back. Requires the lock of [`Records`].
    pub fn remove(self, _records: &Records) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A record as seen by a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The device's address.
    pub address: String,
    /// The earlier state.
    pub found: Found,
    /// True if a running router has it.
    pub in_use: bool,
}

/// Returns all records; none if this user may not read them.
pub fn all(machine: &Machine) -> Vec<Seen> {
    let names = machine.names(DIRECTORY).into_iter();
    names.filter_map(|address| seen(machine, &address)).collect()
}

/// Returns the record of a device.
pub fn seen(machine: &Machine, address: &str) -> Option<Seen> {
    let directory = machine.path(DIRECTORY);
    check_owner(&directory, 0o077).ok()?;
    // A slash would lead to another directory.
    dpdk::pci_address(address)?;
    let mut file = open_existing(&directory.join(address)).ok()?;
    let found = parse(&mut file)?;
    let in_use = matches!(lock(file, FlockArg::LockSharedNonblock), Ok(None));
    Some(Seen { address: address.to_owned(), found, in_use })
}

/// Checks that the directory belongs to this user and that others have none of these permissions.
fn check_owner(directory: &Path, forbidden: u32) -> Result<()> {
    let shown = directory.display();
    let metadata = fs::symlink_metadata(directory).with_context(|| shown.to_string())?;
    let own = nix::unistd::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != own {
        bail!("{shown} belongs to user {}, not to {own}; remove it", metadata.uid());
    }
    if metadata.mode() & forbidden != 0 {
        let mode = metadata.mode() & 0o777;
        bail!("{shown} has the mode {mode:o}, by which others reach it; chmod 700 {shown}");
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(nix::libc::O_NOFOLLOW).open(path)
}

fn open_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path)
}

fn parse(file: &mut File) -> Option<Found> {
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Locks a file; `None` if another process has the lock.
fn lock(file: File, kind: FlockArg) -> io::Result<Option<Flock<File>>> {
    match Flock::lock(file, kind) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, errno)) => {
            let error = io::Error::from(errno);
            if error.kind() == ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::testing::Tree;

    const ADDRESS: &str = "0000:03:00.0";

    fn found() -> Found {
        let interface = FoundInterface {
            name: "eth1".into(),
            up: true,
            mtu: Some(1500),
            addresses: vec!["10.0.0.1/24".parse().unwrap()],
        };
        Found {
            ids: "8086:10d3".into(),
            by_router: true,
            driver: Some("e1000e".into()),
            interface: Some(interface),
            ..Found::default()
        }
    }

    #[test]
    fn a_record_is_in_use_until_its_process_ends_and_stays_then() {
        let tree = Tree::new(&[]);
        let machine = tree.machine();
        assert_eq!((seen(&machine, ADDRESS), all(&machine)), (None, vec![]));
        let records = Records::open(&machine).unwrap();
        let record = records.create(ADDRESS, found()).unwrap();
        let in_use = Seen { address: ADDRESS.into(), found: found(), in_use: true };
        assert_eq!(seen(&machine, ADDRESS), Some(in_use.clone()));
        assert!(records.adopt(ADDRESS).is_none());
        // The state after a kill.
        drop(record);
        assert_eq!(all(&machine), [Seen { in_use: false, ..in_use }]);
        let record = records.adopt(ADDRESS).unwrap();
        assert_eq!(record.found, found());
        record.remove(&records);
        assert_eq!(all(&machine), []);
    }

    #[test]
    fn damaged_records_and_links_are_none() {
        let tree = Tree::new(&[]);
        let machine = tree.machine();
        let records = Records::open(&machine).unwrap();
        tree.write("run/turnpike/bound/0000:03:00.0", "{\"ids\"");
        tree.write("elsewhere", serde_json::to_string(&found()).unwrap());
        symlink(tree.machine().path("elsewhere"), machine.path("run/turnpike/bound/0000:04:00.0"))
            .unwrap();
        assert!(all(&machine).is_empty());
        assert!(records.adopt(ADDRESS).is_none() && records.adopt("0000:04:00.0").is_none());
        assert_eq!(records.create(ADDRESS, found()).unwrap().found, found());
        assert_eq!(seen(&machine, "../bound/0000:03:00.0"), None);
    }

    #[test]
    fn directories_that_others_can_write_are_refused() {
        let tree = Tree::new(&[("run/turnpike/bound/x", "")]);
        let machine = tree.machine();
        let chmod = |path: &str, mode: u32| {
            fs::set_permissions(machine.path(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        let error = || Records::open(&machine).map(drop).unwrap_err().to_string();
        chmod("run/turnpike/bound", 0o750);
        chmod("run/turnpike", 0o755);
        assert!(error().contains("has the mode 750"), "{}", error());
        chmod("run/turnpike/bound", 0o700);
        assert!(Records::open(&machine).is_ok());
        chmod("run/turnpike", 0o775);
        assert!(error().contains("/run/turnpike has the mode 775"), "{}", error());
        tree.remove("run/turnpike/bound");
        chmod("run/turnpike", 0o700);
        symlink("/tmp", machine.path("run/turnpike/bound")).unwrap();
        assert!(
            error().contains("cannot be made") || error().contains("belongs to"),
            "{}",
            error()
        );
        if nix::unistd::geteuid().is_root() {
            tree.remove("run/turnpike");
            tree.write("run/turnpike/bound/x", "");
            chmod("run/turnpike/bound", 0o700);
            std::os::unix::fs::chown(machine.path("run/turnpike/bound"), Some(65534), None)
                .unwrap();
            assert!(error().contains("belongs to user 65534"), "{}", error());
        }
    }
}
