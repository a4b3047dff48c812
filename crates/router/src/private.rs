//! Directories for the router's user alone: what is in them, others may neither read nor replace.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::fcntl::OFlag;
use nix::unistd::Uid;

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
