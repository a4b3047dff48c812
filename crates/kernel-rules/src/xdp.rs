//! Names of XDP programs, which the kernel tells by bpf(2) only, and with `CAP_SYS_ADMIN`.
//!
//! libxdp (xdp-tools) attaches a *dispatcher* to an interface, which calls the programs of several users. It pins these in
//! a BPF file system, in a folder with the numbers of the interface and of the dispatcher.

use std::path::PathBuf;
use std::{env, fs};

use aya::programs::{ProgramInfo, loaded_programs};

use crate::links::Program;

/// The name of libxdp's dispatcher.
const DISPATCHER: &str = "xdp_dispatcher";

/// The program of an AF_XDP socket: Turnpike's, and that of libxdp's sockets.
const SOCKET: &str = "xsk_def_prog";

/// The BPF file system, and libxdp's variable for another.
const BPF_FILES: &str = "/sys/fs/bpf";
const BPF_FILES_VARIABLE: &str = "LIBXDP_BPFFS";

/// A name, and those of the programs that it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    pub own: String,
    /// Those that a dispatcher calls, as far as they can be seen.
    pub called: Vec<String>,
}

impl Name {
    /// Reads the name of a program on an interface; empty if it cannot be read.
    pub fn read(program: u32, interface: u32) -> Self {
        let found = loaded_programs().flatten().find(|one| one.id() == program);
        let own = found.as_ref().map(text).unwrap_or_default();
        let called = if own == DISPATCHER { called(program, interface) } else { Vec::new() };
        Self { own, called }
    }

    /// Returns true for libxdp's dispatcher.
    pub fn is_dispatcher(&self) -> bool {
        self.own == DISPATCHER
    }
}

fn text(program: &ProgramInfo) -> String {
    program.name_as_str().unwrap_or_default().to_owned()
}

/// Returns the names of the programs that a dispatcher calls.
fn called(dispatcher: u32, interface: u32) -> Vec<String> {
    let files = env::var_os(BPF_FILES_VARIABLE).unwrap_or_else(|| BPF_FILES.into());
    let folder = PathBuf::from(files).join(format!("xdp/dispatch-{interface}-{dispatcher}"));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let programs = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with("-prog"));
    let mut names: Vec<String> = programs
        .filter_map(|entry| ProgramInfo::from_pin(entry.path()).ok())
        .map(|program| text(&program))
        .collect();
    names.sort();
    names
}

/// Returns the message about a program on an interface, and the way out.
pub fn words(interface: &str, Program { id, mode, name }: &Program) -> (String, String) {
    let begin = format!("{interface} has an XDP program already: number {id}");
    if name.is_dispatcher() {
        let called = match name.called.is_empty() {
            true => String::new(),
            false => format!(", which calls {}", name.called.join(", ")),
        };
        let message = format!("{begin}, the dispatcher of libxdp (xdp-tools), {mode}{called}");
        return (message, format!("unload its programs: xdp-loader unload {interface} --all"));
    }
    if name.own == SOCKET {
        let message =
            format!("{begin} \"{SOCKET}\", of Turnpike or another user of AF_XDP, {mode}");
        let way_out =
            "stop that process; Turnpike by turnpike accelerate --stop, with its --socket";
        return (message, way_out.to_owned());
    }
    let named = if name.own.is_empty() { String::new() } else { format!(" \"{}\"", name.own) };
    (
        format!("{begin}{named}, {mode}"),
        format!("remove it: ip link set dev {interface} xdp off, or stop what attached it"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_program_and_the_tool_that_removes_it() {
        let program = |own: &str, called: &[&str]| {
            let called = called.iter().map(|&name| name.to_owned()).collect();
            Program { id: 7, mode: "native", name: Name { own: own.to_owned(), called } }
        };
        let (unnamed, _) = words("eth1", &program("", &[]));
        assert_eq!(unnamed, "eth1 has an XDP program already: number 7, native");
        let (named, way_out) = words("eth1", &program("guard", &[]));
        assert_eq!(named, "eth1 has an XDP program already: number 7 \"guard\", native");
        assert!(way_out.contains("ip link set dev eth1 xdp off"), "{way_out}");
        let (_, way_out) = words("eth1", &program(SOCKET, &[]));
        assert!(way_out.contains("turnpike accelerate --stop"), "{way_out}");
        let (dispatcher, way_out) = words("eth1", &program(DISPATCHER, &["first", "second"]));
        assert!(dispatcher.ends_with("(xdp-tools), native, which calls first, second"));
        assert!(way_out.contains("xdp-loader unload eth1 --all"), "{way_out}");
    }
}
