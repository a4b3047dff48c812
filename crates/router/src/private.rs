//! Directories for the router's user alone: what is in them, others may neither read nor replace. Files that others may
//! not write, or not even read.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::OFlag;
use nix::unistd::Uid;

/// Most bytes of a file.
const FILE_MOST: u64 = 256 << 10;

/// Rights of others on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They may read it.
    Read,
    /// None.
    Nothing,
}

/// Reads a file that is root's or the router's user's, and on which others have no other rights than these.
///
/// # Errors
/// It cannot be read, is too large, or others may do more.
pub fn read(path: &Path, others: Others) -> Result<Vec<u8>> {
    // A pipe does not block.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let about = file.metadata()?;
    ensure!(about.is_file(), "not a file");
    let mode = about.mode() & 0o777;
    match others {
        Others::Nothing if mode & 0o077 != 0 => {
            bail!("mode {mode:o}: others can read it; chmod 600")
        }
        Others::Read if mode & 0o022 != 0 => {
            bail!("mode {mode:o}: others can write it; chmod 644")
        }
        _ => {}
    }
    let owner = about.uid();
    let is_own = [0, Uid::effective().as_raw()].contains(&owner);
    ensure!(is_own, "it is user {owner}'s; chown root");
    let mut bytes = Vec::new();
    file.take(FILE_MOST).read_to_end(&mut bytes)?;
    ensure!((bytes.len() as u64) < FILE_MOST, "larger than {FILE_MOST} bytes");
    Ok(bytes)
}

/// A directory that is made if it is not there. One that another user made, or that others may write to, is refused.
#[derive(Clone, Copy, Debug)]
pub struct Private<'a> {
    /// Its name in errors.
    pub what: &'static str,
    /// Its path.
    pub path: &'a Path,
    /// The way to another one.
    pub elsewhere: &'static str,
}

impl Private<'_> {
    /// Opens the directory, and makes it if it is not there.
    ///
    /// # Errors
    /// It cannot be made or is not suitable.
    pub fn open(self) -> Result<File> {
        let (what, shown) = (self.what, self.path.display());
        let made = DirBuilder::new().recursive(true).mode(0o700).create(self.path);
        made.with_context(|| format!("{what} {shown}"))?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(self.path);
        let opened = opened.with_context(|| format!("{what} {shown}: no directory"))?;
        self.suits(&opened.metadata()?)?;
        Ok(opened)
    }

    /// Checks that the directory can be used, or made, as far as can be seen. Without permission to look there, nothing
    /// is reported.
    ///
    /// # Errors
    /// It cannot.
    pub fn examine(self) -> Result<()> {
        for place in self.path.ancestors() {
            match fs::symlink_metadata(place) {
                Ok(found) if place == self.path => return self.suits(&found),
                // An ancestor may be a link.
                Ok(_) => {
                    let found = fs::metadata(place).with_context(|| place.display().to_string())?;
                    let Self { what, path, elsewhere } = self;
                    ensure!(
                        found.is_dir(),
                        "{what} {}: cannot be made, {} is no directory; {elsewhere}",
                        path.display(),
                        place.display()
                    );
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Is this a directory that only the router's user can write to?
    fn suits(self, found: &Metadata) -> Result<()> {
        let Self { what, elsewhere, .. } = self;
        let (shown, owner) = (self.path.display(), found.uid());
        ensure!(found.is_dir(), "{what} {shown}: no directory; remove it, or {elsewhere}");
        ensure!(
            owner == 0 || owner == Uid::effective().as_raw(),
            "{what} {shown}: belongs to uid {owner}; remove it, or {elsewhere}"
        );
        ensure!(
            found.mode() & 0o022 == 0,
            "{what} {shown}: other users may write to it; chmod 700 it, or {elsewhere}"
        );
        Ok(())
    }
}
