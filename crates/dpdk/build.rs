//! Compiles the XDP program of ports with a queue for control traffic (`src/port/control.bpf.c`), which the library
//! has in it. The same clang runs that `dpdk-sys` needs to read DPDK's headers.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/port/control.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Type information (-g) describes the maps to libbpf.
    let status = Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c", SOURCE, "-o"])
        .arg(out.join("control.bpf.o"))
        .status()
        .unwrap_or_else(|error| panic!("clang: {error}: apt-get install clang"));
    assert!(status.success(), "{SOURCE}: clang -target bpf: {status}");
}
