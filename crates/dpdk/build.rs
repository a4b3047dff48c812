//! Compiles the XDP programs of ports with a queue for control traffic (`src/port/control.bpf.c`) and of accelerated
//! interfaces (`src/port/accelerate.bpf.c`, `src/port/in_kernel.bpf.c`, `src/port/flows.bpf.c`), which the library has in it. The same clang runs that `dpdk-sys` needs to
//! read DPDK's headers.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Included by sources.
const HEADERS: [&str; 5] = [
    "src/port/xdp.bpf.h",
    "src/port/settings.bpf.h",
    "src/port/accelerate.bpf.h",
    "src/port/flows.bpf.h",
    "src/port/open.bpf.h",
];
const SOURCES: [&str; 5] = [
    "src/port/control.bpf.c",
    "src/port/accelerate.bpf.c",
    "src/port/flows.bpf.c",
    "src/port/in_kernel.bpf.c",
    "src/port/unsent.bpf.c",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for header in HEADERS {
        println!("cargo:rerun-if-changed={header}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        compile(source, &out);
    }
}

fn compile(source: &str, out: &Path) {
    let object = Path::new(source).with_extension("o");
    let object = out.join(object.file_name().expect("sources are files"));
    // Type information (-g) describes the maps to libbpf.
    let status = Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c", source, "-o"])
        .arg(object)
        .status()
        .unwrap_or_else(|error| panic!("clang: {error}: apt-get install clang"));
    assert!(status.success(), "{source}: clang -target bpf: {status}");
}
