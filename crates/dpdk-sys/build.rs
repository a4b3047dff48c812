//! Binds the installed DPDK: bindgen over `wrapper.h`, and one C file, written by bindgen, through
//! which Rust calls DPDK's `static inline` functions. Nothing here lists functions by hand: what
//! the headers declare with the prefix `rte_` is bound. `source.c` is compiled with them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest DPDK whose interface the `dpdk` crate was written against.
const OLDEST: &str = "22.11";

/// A source of packets, for benchmarks.
const SOURCE: &str = "source.c";

/// Structs that clang lays out and Rust cannot (an aligned struct inside a packed one). They are
/// bound as opaque bytes of the right size.
const OPAQUE: &[&str] =
    &["rte_arp_hdr", "rte_arp_ipv4", "rte_l2tpv2_combined_msg_hdr", "rte_gtp_psc.*"];

fn main() {
    for file in ["wrapper.h", SOURCE, "source.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let dpdk = pkg_config::Config::new()
        .atleast_version(OLDEST)
        .cargo_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|error| {
            panic!(
                "DPDK {OLDEST} or newer is needed: apt-get install libdpdk-dev pkg-config\n{error}"
            )
        });
    let flags = compiler_flags();
    pin_libclang();

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let inline_c = out.join("inline.c");
    generate(&flags, &out.join("bindings.rs"), &inline_c);
    compile(&flags, &inline_c);

    // After the C file, whose references these libraries resolve.
    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for library in &dpdk.libs {
        println!("cargo:rustc-link-lib={library}");
    }
}

/// The C flags DPDK was built to be used with (`-include rte_config.h`, `-march`), all of them:
/// the pkg-config crate keeps only the include paths.
fn compiler_flags() -> Vec<String> {
    let tool = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = Command::new(&tool)
        .args(["--cflags", "libdpdk"])
        .output()
        .unwrap_or_else(|error| panic!("{tool} --cflags libdpdk: {error}"));
    let flags = String::from_utf8(output.stdout).expect("pkg-config prints UTF-8");
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Makes bindgen load the libclang that belongs to the `clang` on the PATH, and not whichever it
/// finds first: the headers bring intrinsics that only the matching resource directory parses.
fn pin_libclang() {
    if env::var_os("LIBCLANG_PATH").is_some() {
        return;
    }
    let Some(resources) = stdout_of("clang", "-print-resource-dir") else { return };
    // <libdir>/clang/<version>
    let Some(libdir) = Path::new(&resources).ancestors().nth(2) else { return };
    let has_libclang = libdir.read_dir().is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libclang"))
    });
    if has_libclang {
        // SAFETY: a build script has one thread, so nobody reads the environment meanwhile.
        unsafe { env::set_var("LIBCLANG_PATH", libdir) };
    }
}

fn stdout_of(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn generate(flags: &[String], bindings: &Path, inline_c: &Path) {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(flags)
        .allowlist_function("(rte|shim)_.*")
        .allowlist_type("rte_.*|shim_.*")
        .allowlist_var("(rte|RTE|SHIM|MBUF|RING|SOCKET)_.*")
        // Vector types that only some instruction-set-specific functions take.
        .blocklist_function(".*x4|.*_x8|rte_mov.*|rte_memcpy.*")
        .wrap_static_fns(true)
        .wrap_static_fns_path(inline_c)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true);
    for name in OPAQUE {
        builder = builder.opaque_type(name);
    }
    builder
        .generate()
        .unwrap_or_else(|error| panic!("bindgen over the DPDK headers: {error}"))
        .write_to_file(bindings)
        .expect("OUT_DIR is writable");
}

fn compile(flags: &[String], inline_c: &Path) {
    let mut build = cc::Build::new();
    // -O3 whatever the profile: these are the bodies of DPDK's per-burst functions.
    build.file(inline_c).file(SOURCE).include(".").opt_level(3).warnings(false);
    for flag in flags {
        build.flag(flag);
    }
    build.compile("dpdk_inline");
}
