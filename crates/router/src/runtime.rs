//! Runtimes for the router's threads, which keep a thread for blocking work.
//!
//! tokio makes such threads when there is work for them, ends them when there was none for a while, and panics where
//! the machine has no thread for the first of them. A runtime made here has its first from the start, and keeps it:
//! without another, work waits for this one.

use std::io;
use std::time::Duration;

use privileges::Role;
use tokio::runtime::{Builder, Runtime};

/// A thread without work is kept for so long.
const ALWAYS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Most threads for blocking work; more work waits.
const MOST: usize = 64;

/// Makes a runtime for the calling thread; threads for its blocking work have this name, and keep to this role.
///
/// # Errors
/// The machine has no thread or no descriptor for it.
pub fn build(name: &str, role: Option<Role>) -> io::Result<Runtime> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name(name)
        .thread_keep_alive(ALWAYS)
        .max_blocking_threads(MOST)
        .on_thread_start(move || role.into_iter().for_each(privileges::keep_to))
        .build()?;
    // Without a thread, this one is an error and tokio's a panic. It has ended when tokio's begins.
    let _ = std::thread::Builder::new().spawn(|| ())?.join();
    runtime.spawn_blocking(|| ());
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn its_thread_is_there_before_the_work() {
        let named = || {
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")));
            names.filter(|name| name.as_ref().is_ok_and(|name| name == "of-a-test\n")).count()
        };
        let runtime = build("of-a-test", None).unwrap();
        // A thread names itself.
        while named() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(named(), 1);
        drop(runtime);
    }
}
