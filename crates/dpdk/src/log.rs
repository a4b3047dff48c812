//! DPDK's messages, line by line: their listener, and the lines quoted in an error.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use dpdk_sys as sys;

/// Receives DPDK's messages: one line each, without its end.
pub type Listener = fn(&str);

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// The beginning of an unfinished line, and the lines kept for an error.
#[derive(Default)]
struct Said {
    partial: Vec<u8>,
    kept: Option<Vec<String>>,
}

static SAID: Mutex<Said> = Mutex::new(Said { partial: Vec::new(), kept: None });

/// Passes DPDK's messages from now on to a listener; the first one stays. Without a listener they go to
/// standard error.
pub fn listen(listener: Listener) {
    let _ = LISTENER.set(listener);
}

fn pass_on(line: &str) {
    match LISTENER.get() {
        Some(listener) => listener(line),
        None => eprintln!("{line}"),
    }
}

/// Keeps the following lines, for an error.
pub(crate) fn keep() {
    open();
    SAID.lock().unwrap_or_else(PoisonError::into_inner).kept = Some(Vec::new());
}

/// Returns the lines since [`keep`].
pub(crate) fn kept() -> Vec<String> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).kept.take().unwrap_or_default()
}

/// Passes on lines that were kept and are not part of an error.
pub(crate) fn release(lines: &[String]) {
    lines.iter().for_each(|line| pass_on(line));
}

/// The functions of a stream, in the form of glibc's `fopencookie`.
#[repr(C)]
struct Functions {
    read: Option<extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, of: Functions) -> *mut sys::FILE;
}

/// Makes DPDK write to [`write`], once per process.
fn open() {
    static ONCE: Once = Once::new();
    const WRITE: &CStr = c"w";
    ONCE.call_once(|| {
        let functions = Functions { read: None, write: Some(write), seek: None, close: None };
        // SAFETY: the stream's function takes any bytes and keeps no state in the cookie; the stream is
        // never closed. DPDK prefers it to its own, before and after the start of the EAL.
        unsafe {
            let stream = fopencookie(std::ptr::null_mut(), WRITE.as_ptr(), functions);
            if !stream.is_null() {
                sys::rte_openlog_stream(stream);
            }
        }
    });
}

extern "C" fn write(_: *mut c_void, bytes: *const c_char, length: usize) -> isize {
    // SAFETY: glibc passes the bytes of its buffer.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    for line in take(bytes) {
        pass_on(&line);
    }
    length as isize
}

/// Returns the lines that end within these bytes, unless they are kept.
fn take(bytes: &[u8]) -> Vec<String> {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.partial.extend_from_slice(bytes);
    let end = said.partial.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let whole: Vec<u8> = said.partial.drain(..end).collect();
    let text = String::from_utf8_lossy(&whole);
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned);
    match &mut said.kept {
        Some(kept) => {
            kept.extend(lines);
            Vec::new()
        }
        None => lines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_those_of_a_start_are_kept() {
        // The EAL of the other tests may log meanwhile: only these lines are checked.
        let mine = |lines: Vec<String>| -> Vec<String> {
            lines.into_iter().filter(|line| line.starts_with("TEST")).collect()
        };
        crate::testing::eal();
        assert!(mine(take(b"TEST: on")).is_empty());
        assert_eq!(mine(take(b"e\n\nTEST: two\nTEST: th")), ["TEST: one", "TEST: two"]);
        keep();
        assert!(mine(take(b"ree\n")).is_empty());
        assert_eq!(mine(kept()), ["TEST: three"]);
        assert_eq!(mine(take(b"TEST: four\n")), ["TEST: four"]);
    }
}
