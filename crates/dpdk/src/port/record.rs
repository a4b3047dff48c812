//! Record of a kernel interface for other processes: that it is in use, and how to restore it if its
//! process is killed.
//!
//! Each interface has a file in `/run/turnpike`. Its name consists of the network namespace's
//! cookie and the interface's index, neither of which the kernel reuses; a restart of the machine
//! empties `/run`. Its lock shows that the process exists, and is released when the process ends,
//! for any reason. Its first line names the process; the others are the lines that
//! [`super::kernel`] wrote there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An interface's record, locked. Dropping it removes the file.
pub(super) struct Record {
    file: File,
    path: PathBuf,
}

/// Result of claiming an interface's record.
pub(super) enum Claim {
    /// It is ours; with the lines that a killed process has left there.
    Ours(Record, Vec<String>),
    /// Another process has it; with that process's name.
    Taken(String),
}

impl Record {
    /// Directory of the records.
    pub(super) const DIRECTORY: &str = "/run/turnpike";

    /// Claims the record of this name.
    pub(super) fn claim(directory: &Path, name: &str) -> io::Result<Claim> {
        let path = directory.join(name);
        loop {
            let mut file = open(directory, &path)?;
            // SAFETY: an open descriptor.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::WouldBlock {
                    return Err(error);
                }
                let lines = lines(&mut file)?;
                return Ok(Claim::Taken(lines.into_iter().next().unwrap_or_default()));
            }
            // It may have been removed between opening and locking: then the lock has no meaning.
            let locked = file.metadata()?;
            if fs::metadata(&path).is_ok_and(|now| now.ino() == locked.ino()) {
                let left = lines(&mut file)?.into_iter().skip(1).collect();
                return Ok(Claim::Ours(Self { file, path }, left));
            }
        }
    }

    /// Returns the process that has the record of this name, if there is one. Takes no exclusive lock, so
    /// that no process that claims the record at this moment is refused.
    pub(super) fn user(directory: &Path, name: &str) -> Option<String> {
        let mut file = File::open(directory.join(name)).ok()?;
        let metadata = file.metadata().ok()?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        let place = format!(" {:02x}:{:02x}:{inode} ", libc::major(device), libc::minor(device));
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find(|line| line.contains("FLOCK") && line.contains(&place))?;
        lines(&mut file).ok()?.into_iter().next()
    }

    /// Returns the path of its file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the record: this process, and these lines.
    pub(super) fn write(&self, lines: &[String]) -> io::Result<()> {
        let mut text = format!("process {}\n", std::process::id());
        for line in lines {
            text += line;
            text.push('\n');
        }
        // In this order: at no moment is an earlier line missing.
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // While it is locked, so that only our own record is removed. The directory is removed with its
        // last file; while there are others, it stays.
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

fn open(directory: &Path, path: &Path) -> io::Result<File> {
    loop {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        match OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
        {
            // The directory's last file, and the directory with it, has just been removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
}

fn lines(file: &mut File) -> io::Result<Vec<String>> {
    file.flush()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of its own for each test.
    fn directory(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("turnpike-record-{}-{name}", std::process::id()))
    }

    fn ours(claim: Claim) -> (Record, Vec<String>) {
        match claim {
            Claim::Ours(record, left) => (record, left),
            Claim::Taken(by) => panic!("taken by {by}"),
        }
    }

    #[test]
    fn a_record_is_taken_until_it_is_dropped_and_leaves_nothing() {
        let directory = directory("taken");
        let (first, left) = ours(Record::claim(&directory, "a").unwrap());
        assert!(left.is_empty());
        first.write(&["one".into()]).unwrap();
        let Claim::Taken(by) = Record::claim(&directory, "a").unwrap() else { panic!("not taken") };
        assert_eq!(by, format!("process {}", std::process::id()));
        assert_eq!(Record::user(&directory, "a"), Some(by));
        assert_eq!(Record::user(&directory, "b"), None);
        let (other, _) = ours(Record::claim(&directory, "b").unwrap());
        drop(first);
        assert!(directory.join("b").exists() && !directory.join("a").exists());
        drop(other);
        assert!(!directory.exists());
        let (_, left) = ours(Record::claim(&directory, "a").unwrap());
        assert!(left.is_empty());
    }

    #[test]
    fn what_a_killed_process_wrote_is_found() {
        let directory = directory("killed");
        let (record, _) = ours(Record::claim(&directory, "a").unwrap());
        record.write(&["one".into(), "two".into(), "three".into()]).unwrap();
        record.write(&["one".into(), "two".into()]).unwrap();
        // The state after a kill: the file, and no lock.
        let Record { file, .. } = &record;
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) }, 0);
        assert_eq!(Record::user(&directory, "a"), None);
        let (again, left) = ours(Record::claim(&directory, "a").unwrap());
        assert_eq!(left, ["one", "two"]);
        drop((again, record));
    }

    #[test]
    fn a_place_that_cannot_be_made_is_an_error() {
        assert!(Record::claim(Path::new("/proc/nowhere"), "a").is_err());
    }
}
