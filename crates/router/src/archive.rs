//! A router's configurations on disk (`run --state DIRECTORY`): its history and the last good one survive a restart.
//!
//! ```text
//!   DIRECTORY/index.json            numbers, times, files, reasons; which is the last good one
//!   DIRECTORY/configuration-12.lua  the text of number 12
//!   DIRECTORY/refused.json          a start with the file has failed, and why
//!   DIRECTORY/lock                  one router has the directory
//! ```
//!
//! The last good configuration is the last one with which the router was ready and that does not wait for its
//! confirmation. A thread writes: texts first, then the index, each under another name that is then exchanged, so that
//! a crash or a full disk leaves the state before. Texts that the index does not name are removed.
//!
//! A start that fails after DPDK has begun cannot be repeated in the same process. It leaves a note, by which the next
//! start takes the last good configuration, unless the file has changed meanwhile.
//!
//! A configuration is code that runs as the router's user, so the directory must be that user's alone.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::private::Private;

/// A configuration that was applied.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number, from 1.
    pub number: u64,
    /// The time at which it was applied.
    pub time: SystemTime,
    /// The file it is from.
    pub file: PathBuf,
    /// Its text.
    pub text: Arc<str>,
    /// The reason for which it was applied: `apply`, `rollback to 3`, …
    pub origin: String,
    /// Summary of its changes.
    pub summary: String,
}

/// Begins the names of files that are being written.
const UNFINISHED: &str = ".turnpike-";

/// The last good configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastGood {
    /// Its number.
    pub number: u64,
    /// The file that it was from.
    pub file: PathBuf,
    /// Its text.
    pub text: Arc<str>,
}

/// Contents of the directory.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The configurations, the oldest first.
    pub entries: Vec<Entry>,
    /// The number of the last good one.
    pub good: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    last_good: Option<u64>,
    configurations: Vec<Line>,
}

/// A configuration without its text.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    number: u64,
    time_s: u64,
    file: PathBuf,
    origin: String,
    summary: String,
}

/// Longest reason that a note has, in characters.
const REASON_MOST: usize = 4000;

/// A start with a file has failed.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    reason: String,
    file: Stamp,
}

/// A file in a state of its own, which another text changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    path: PathBuf,
    /// Length, number, and nanoseconds of its time; none of a file that is not there.
    state: Option<(u64, u64, i128)>,
}

impl Stamp {
    fn of(path: &Path) -> Self {
        let state = |found: Metadata| {
            let nanoseconds = i128::from(found.mtime()) * 1_000_000_000;
            (found.len(), found.ino(), nanoseconds + i128::from(found.mtime_nsec()))
        };
        Self { path: path.to_owned(), state: fs::metadata(path).ok().map(state) }
    }
}

/// The directory, which no other router can have.
#[derive(Debug)]
pub struct Claim {
    directory: PathBuf,
    lock: Flock<File>,
    state: State,
    attempt: Attempt,
}

impl Claim {
    /// Takes the directory, which is made if it is not there, for a start with a file, and reads it. What cannot be read
    /// is left out, with a warning in the log.
    ///
    /// # Errors
    /// The directory is not suitable, or another router has it.
    pub fn new(directory: &Path, file: &Path) -> Result<Self> {
        private(directory).open()?;
        let lock = lock(directory)?;
        let state = read(directory).unwrap_or_else(|error| {
            tracing::warn!("{error:#}; the history begins anew");
            State::default()
        });
        // Of a run whose index was not written: their numbers are given again.
        remove_others(directory, &state)?;
        let attempt = Attempt {
            note: directory.join("refused.json"),
            file: Stamp::of(file),
            good: state.last_good().map(|good| good.text),
            is_ready: Arc::default(),
        };
        Ok(Self { directory: directory.to_owned(), lock, state, attempt })
    }

    /// Returns the last good configuration, if there is one.
    pub fn last_good(&self) -> Option<LastGood> {
        self.state.last_good()
    }

    /// Returns the reason for which the last start with the file, as it still is, has failed. It counts for one start.
    pub fn take_refusal(&self) -> Option<String> {
        let text = fs::read(&self.attempt.note).ok()?;
        if let Err(error) = fs::remove_file(&self.attempt.note) {
            tracing::warn!("{}: {error}", self.attempt.note.display());
        }
        let refusal: Refusal = serde_json::from_slice(&text).ok()?;
        (refusal.file == self.attempt.file).then_some(refusal.reason)
    }

    /// Returns the record of this start.
    pub fn attempt(&self) -> Attempt {
        self.attempt.clone()
    }
}

/// The record of a start. Clones are of one.
#[derive(Clone, Debug)]
pub struct Attempt {
    note: PathBuf,
    file: Stamp,
    good: Option<Arc<str>>,
    is_ready: Arc<AtomicBool>,
}

impl Attempt {
    /// The start with this text has failed: the next one takes the last good configuration, if that is another and this
    /// one never got ready. Returns true if so.
    pub fn failed(&self, text: &str, reason: &str) -> bool {
        let other = self.good.as_ref().is_some_and(|good| **good != *text);
        if !other || self.is_ready.load(Ordering::Relaxed) {
            return false;
        }
        let reason = reason.chars().take(REASON_MOST).collect();
        let refusal = Refusal { reason, file: self.file.clone() };
        let note = serde_json::to_vec(&refusal).map_err(anyhow::Error::from);
        let written = note.and_then(|note| replace(&self.note, &note));
        if let Err(error) = &written {
            tracing::warn!("{error:#}; the next start will not take the last good configuration");
        }
        written.is_ok()
    }
}

impl State {
    fn last_good(&self) -> Option<LastGood> {
        let entry = self.entries.iter().find(|entry| Some(entry.number) == self.good)?;
        let (file, text) = (entry.file.clone(), entry.text.clone());
        Some(LastGood { number: entry.number, file, text })
    }
}

/// Writes the directory.
pub struct Archive {
    states: Option<Sender<State>>,
    writer: Option<JoinHandle<()>>,
    is_ready: Arc<AtomicBool>,
}

impl Archive {
    /// Starts the thread that writes; returns the state of earlier runs, too.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start(claim: Claim) -> Result<(Self, State)> {
        let Claim { directory, lock, state, attempt } = claim;
        let (states, from) = channel();
        let written = state.entries.iter().map(|entry| entry.number).collect();
        let body = move || {
            privileges::keep_to(privileges::Role::Writer);
            write_all(&directory, written, &from);
            drop(lock);
        };
        let writer = thread::Builder::new().name("archive".to_owned()).spawn(body)?;
        let is_ready = attempt.is_ready;
        Ok((Self { states: Some(states), writer: Some(writer), is_ready }, state))
    }

    /// The router is ready: a later failure is not one of its start.
    pub fn ready(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
    }

    /// Writes this state soon; failures are logged.
    pub fn keep(&self, state: State) {
        // The thread ends with this archive.
        let _ = self.states.as_ref().map(|states| states.send(state));
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        drop(self.states.take());
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

fn private(path: &Path) -> Private<'_> {
    Private { what: "state directory", path, elsewhere: "choose another run --state" }
}

fn lock(directory: &Path) -> Result<Flock<File>> {
    let path = directory.join("lock");
    let file = File::options().write(true).create(true).truncate(false).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => anyhow!(
            "state directory {}: another router has it; choose another run --state",
            directory.display()
        ),
        errno => anyhow!("{}: cannot be locked: {errno}", path.display()),
    })
}

fn text_file(number: u64) -> String {
    format!("configuration-{number}.lua")
}

/// Returns the number of a text's file.
fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("configuration-")?.strip_suffix(".lua")?.parse().ok()
}

fn read(directory: &Path) -> Result<State> {
    let path = directory.join("index.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        Err(error) => return Err(anyhow!(error).context(path.display().to_string())),
    };
    let index: Index = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    let entry = |line: Line| {
        let path = directory.join(text_file(line.number));
        let text = fs::read_to_string(&path).inspect_err(|error| {
            tracing::warn!("{}: {error}; the history is without it", path.display());
        });
        // A number in the far future of a damaged file is no time.
        let time = UNIX_EPOCH.checked_add(Duration::from_secs(line.time_s)).unwrap_or(UNIX_EPOCH);
        let Line { number, file, origin, summary, .. } = line;
        Some(Entry { number, time, file, text: Arc::from(text.ok()?), origin, summary })
    };
    let mut entries: Vec<_> = index.configurations.into_iter().filter_map(entry).collect();
    entries.sort_by_key(|entry| entry.number);
    entries.dedup_by_key(|entry| entry.number);
    Ok(State { entries, good: index.last_good })
}

/// Writes each state, and of several that wait only the last.
fn write_all(directory: &Path, mut written: BTreeSet<u64>, states: &Receiver<State>) {
    while let Ok(mut state) = states.recv() {
        while let Ok(later) = states.try_recv() {
            state = later;
        }
        if let Err(error) = write(directory, &mut written, &state) {
            tracing::warn!(
                "{error:#}; the configurations since then do not survive a restart of the router"
            );
        }
    }
}

fn write(directory: &Path, written: &mut BTreeSet<u64>, state: &State) -> Result<()> {
    for entry in &state.entries {
        if !written.contains(&entry.number) {
            replace(&directory.join(text_file(entry.number)), entry.text.as_bytes())?;
            // The text of a number never changes.
            written.insert(entry.number);
        }
    }
    let line = |entry: &Entry| Line {
        number: entry.number,
        time_s: entry.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        file: entry.file.clone(),
        origin: entry.origin.clone(),
        summary: entry.summary.clone(),
    };
    let configurations = state.entries.iter().map(line).collect();
    let index = Index { last_good: state.good, configurations };
    replace(&directory.join("index.json"), &serde_json::to_vec_pretty(&index)?)?;
    remove_others(directory, state)
}

fn remove_others(directory: &Path, state: &State) -> Result<()> {
    let kept: BTreeSet<u64> = state.entries.iter().map(|entry| entry.number).collect();
    for file in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let file = file?;
        let name = file.file_name();
        let name = name.to_string_lossy();
        let is_old = number_of(&name).is_some_and(|number| !kept.contains(&number));
        // Left by a crash.
        if is_old || name.starts_with(UNFINISHED) {
            fs::remove_file(file.path()).with_context(|| file.path().display().to_string())?;
        }
    }
    Ok(())
}

/// Writes a file, whole or not at all, also if the machine fails. One that is there keeps its mode and owner.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let write = || -> Result<()> {
        let directory = path.parent().context("no file")?;
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(directory)?;
        file.write_all(content)?;
        if let Ok(before) = fs::metadata(path) {
            // In this order: the mode of another user's file is not everybody's to set.
            file.as_file().set_permissions(before.permissions())?;
            fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
        }
        file.as_file().sync_all()?;
        file.persist(path)?;
        // The new name, too.
        Ok(File::open(directory)?.sync_all()?)
    };
    write().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn entry(number: u64, text: &str) -> Entry {
        let (time, file) = (SystemTime::now(), PathBuf::from(FILE));
        let (origin, summary) = ("apply".to_owned(), "1 route added".to_owned());
        Entry { number, time, file, text: text.into(), origin, summary }
    }

    const FILE: &str = "/etc/turnpike/turnpike.lua";

    fn claim(directory: &Path) -> Claim {
        Claim::new(directory, FILE.as_ref()).unwrap()
    }

    fn last_good(directory: &Path) -> Option<LastGood> {
        claim(directory).last_good()
    }

    fn open(directory: &Path) -> (Archive, State) {
        Archive::start(claim(directory)).unwrap()
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("state");
        let (archive, state) = open(&directory);
        assert!(state.entries.is_empty() && state.good.is_none());
        archive.keep(State { entries: vec![entry(1, "one")], good: None });
        archive.keep(State { entries: vec![entry(1, "one"), entry(2, "two")], good: Some(1) });
        drop(archive);
        let mode = fs::metadata(&directory).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700);
        assert_eq!(&*last_good(&directory).unwrap().text, "one");
        let (archive, state) = open(&directory);
        let texts: Vec<_> = state.entries.iter().map(|entry| &*entry.text).collect();
        assert_eq!((texts, state.good), (vec!["one", "two"], Some(1)));
        fs::write(directory.join(".turnpike-x1y2z3"), "of a crash").unwrap();
        archive.keep(State { entries: state.entries[1..].to_vec(), good: Some(2) });
        drop(archive);
        assert_eq!(names(&directory), ["configuration-2.lua", "index.json", "lock"]);
        let good = last_good(&directory).unwrap();
        assert_eq!((good.number, &*good.text), (2, "two"));
    }

    #[test]
    fn a_directory_is_one_routers_and_nobody_elses() {
        let place = tempfile::tempdir().unwrap();
        let first = open(place.path());
        let error = Claim::new(place.path(), FILE.as_ref()).unwrap_err().to_string();
        assert!(error.contains("another router has it"), "{error}");
        drop(first);
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = Claim::new(place.path(), FILE.as_ref()).unwrap_err().to_string();
        assert!(error.contains("other users may write to it"), "{error}");
    }

    #[test]
    fn damage_costs_the_history_but_not_the_start() {
        let place = tempfile::tempdir().unwrap();
        let (archive, _) = open(place.path());
        archive.keep(State { entries: vec![entry(1, "one"), entry(2, "two")], good: Some(1) });
        drop(archive);
        fs::remove_file(place.path().join("configuration-1.lua")).unwrap();
        let (archive, state) = open(place.path());
        assert_eq!(state.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [2]);
        drop(archive);
        assert_eq!(last_good(place.path()), None);
        for damage in ["", "{", "[]", "{\"last_good\":-1,\"configurations\":[]}", "\0\u{ff}"] {
            fs::write(place.path().join("index.json"), damage).unwrap();
            assert_eq!(last_good(place.path()), None, "{damage}");
            let (archive, state) = open(place.path());
            assert!(state.entries.is_empty(), "{damage}");
            // Another text under the number of one that was lost.
            let mut second = entry(2, damage);
            second.text = format!("after {damage}").into();
            archive.keep(State { entries: vec![second.clone()], good: Some(2) });
            drop(archive);
            assert_eq!(last_good(place.path()).unwrap().text, second.text);
        }
    }

    #[test]
    fn a_failure_leaves_the_file_before() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("r.lua");
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let error = replace(&place.path().join("none/r.lua"), b"x").unwrap_err();
        assert!(format!("{error:#}").contains("none/r.lua: No such file"), "{error:#}");
        assert_eq!(names(place.path()), ["r.lua"]);
    }

    #[test]
    fn a_start_that_failed_counts_once_and_for_the_same_file() {
        let place = tempfile::tempdir().unwrap();
        let (state, file) = (place.path().join("state"), place.path().join("r.lua"));
        let start = || Claim::new(&state, &file).unwrap();
        fs::write(&file, "new").unwrap();
        // Without a good one there is nothing to go back to.
        assert!(!start().attempt().failed("new", "no device"));
        let (archive, _) = Archive::start(start()).unwrap();
        archive.keep(State { entries: vec![entry(1, "good")], good: Some(1) });
        drop(archive);
        assert_eq!(start().take_refusal(), None);
        assert!(!start().attempt().failed("good", "no device"));
        assert!(start().attempt().failed("new", "no device"));
        assert_eq!(start().take_refusal().unwrap(), "no device");
        assert_eq!(start().take_refusal(), None);
        // The file was mended.
        assert!(start().attempt().failed("new", "no device"));
        fs::write(&file, "other").unwrap();
        assert_eq!(start().take_refusal(), None);
        // The router was ready.
        let claim = start();
        let attempt = claim.attempt();
        let (archive, _) = Archive::start(claim).unwrap();
        archive.ready();
        assert!(!attempt.failed("new", "a leak"));
    }
}
