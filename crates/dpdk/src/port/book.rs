//! Book of this process's changes to kernel interfaces, for a process that has to end although the owners
//! of the ports cannot undo them.
//!
//! Each [`super::kernel::KernelInterface`] keeps its page here as long as it has changes to undo, written
//! before each change. The records of [`super::record`] hold the same for other processes; the book needs
//! neither the port nor its owner.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::kernel::Changes;

/// Time between two passes of undoing: a change that was begun before the book was closed is made by then.
const MOMENT: Duration = Duration::from_millis(20);

/// An interface's page.
pub(super) struct Page {
    /// The changes to undo.
    pub(super) changes: Changes,
    /// Its record.
    pub(super) record: Option<PathBuf>,
}

#[derive(Default)]
struct Book {
    /// True once changes are refused: threads that would make more wait for the end of the process.
    closed: bool,
    last: u64,
    pages: BTreeMap<u64, Page>,
}

static BOOK: Mutex<Book> = Mutex::new(Book { closed: false, last: 0, pages: BTreeMap::new() });

fn book() -> MutexGuard<'static, Book> {
    BOOK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an unused page number.
pub(super) fn new_page() -> u64 {
    let mut book = book();
    book.last += 1;
    book.last
}

/// Writes a page, replacing its content. Does not return once the book is closed.
pub(super) fn write(number: u64, page: Page) {
    let mut book = book();
    if book.closed {
        drop(book);
        loop {
            std::thread::park();
        }
    }
    book.pages.insert(number, page);
}

/// Removes a page from the book, and returns its changes.
#[cfg(test)]
pub(super) fn take(number: u64) -> Option<Changes> {
    book().pages.remove(&number).map(|page| page.changes)
}

/// Removes a page whose changes are undone.
pub(super) fn tear_out(number: u64) {
    book().pages.remove(&number);
}

/// Restores all kernel interfaces, regardless of their owners, and removes their records. For a
/// process that ends now: its ports stop working, and threads that open one are blocked for ever.
pub fn give_back_interfaces() {
    let mut pages = {
        let mut book = book();
        book.closed = true;
        std::mem::take(&mut book.pages)
    };
    give_back(&mut pages);
}

fn give_back(pages: &mut BTreeMap<u64, Page>) {
    for _ in 0..2 {
        pages.values_mut().rev().for_each(|page| page.changes.revert_all());
        std::thread::sleep(MOMENT);
    }
    for page in pages.values() {
        if let Some(record) = &page.record {
            // Like a dropped record: the directory is removed with its last file.
            let _ = fs::remove_file(record);
            let _ = record.parent().map(fs::remove_dir);
        }
    }
}

/// Ends the process at once: without destructors, functions of `atexit`, or waiting for other threads.
pub fn leave(status: i32) -> ! {
    // SAFETY: does not return, and touches nothing that other threads use.
    unsafe { libc::_exit(status) }
}
