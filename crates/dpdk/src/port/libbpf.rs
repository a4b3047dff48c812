//! libbpf, as the library that DPDK's AF_XDP driver has loaded.
//!
//! libbpf-rs would link a second libbpf, built from source, and add the headers of libelf and zlib to what a build
//! needs; aya 0.13 takes a map that exists already from a pinned file only, and neither the driver nor the router pins
//! any.

use std::ffi::{c_char, c_int, c_void};

use super::bpf::function_of_libbpf;
use crate::Errno;

/// Functions of libbpf, which the AF_XDP driver has loaded.
#[derive(Clone, Copy)]
pub(super) struct Libbpf {
    pub(super) open: unsafe extern "C" fn(*const c_void, usize, *const c_void) -> *mut c_void,
    pub(super) find_map: unsafe extern "C" fn(*const c_void, *const c_char) -> *mut c_void,
    pub(super) reuse: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub(super) load: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) find_program: unsafe extern "C" fn(*const c_void, *const c_char) -> *mut c_void,
    pub(super) first_program: unsafe extern "C" fn(*const c_void, *mut c_void) -> *mut c_void,
    pub(super) program: unsafe extern "C" fn(*const c_void) -> c_int,
    pub(super) map: unsafe extern "C" fn(*const c_void) -> c_int,
    pub(super) close: unsafe extern "C" fn(*mut c_void),
    pub(super) attached: unsafe extern "C" fn(u32) -> c_int,
    pub(super) attach: unsafe extern "C" fn(c_int, c_int, u32, *const AttachOptions) -> c_int,
    pub(super) put: unsafe extern "C" fn(c_int, *const c_void, *const c_void, u64) -> c_int,
    pub(super) get: unsafe extern "C" fn(c_int, *const c_void, *mut c_void) -> c_int,
    pub(super) delete: unsafe extern "C" fn(c_int, *const c_void) -> c_int,
}

/// `struct bpf_xdp_attach_opts`.
#[repr(C)]
pub(super) struct AttachOptions {
    pub(super) size: usize,
    pub(super) old: c_int,
    /// libbpf refuses unknown fields unless they are zero.
    pub(super) rest: c_int,
}

impl Libbpf {
    /// Finds the functions; `None`: the library lacks one.
    pub(super) fn find() -> Option<Self> {
        // SAFETY: the types that libbpf declares (libbpf.h, bpf.h of 0.8 and later).
        unsafe {
            Some(Self {
                open: function_of_libbpf(c"bpf_object__open_mem")?,
                find_map: function_of_libbpf(c"bpf_object__find_map_by_name")?,
                reuse: function_of_libbpf(c"bpf_map__reuse_fd")?,
                load: function_of_libbpf(c"bpf_object__load")?,
                find_program: function_of_libbpf(c"bpf_object__find_program_by_name")?,
                first_program: function_of_libbpf(c"bpf_object__next_program")?,
                program: function_of_libbpf(c"bpf_program__fd")?,
                map: function_of_libbpf(c"bpf_map__fd")?,
                close: function_of_libbpf(c"bpf_object__close")?,
                attached: function_of_libbpf(c"bpf_prog_get_fd_by_id")?,
                attach: function_of_libbpf(c"bpf_xdp_attach")?,
                put: function_of_libbpf(c"bpf_map_update_elem")?,
                get: function_of_libbpf(c"bpf_map_lookup_elem")?,
                delete: function_of_libbpf(c"bpf_map_delete_elem")?,
            })
        }
    }
}

/// Returns the error of a function that returns it as a negative number.
pub(super) fn errno(result: c_int) -> Result<(), Errno> {
    if result < 0 { Err(Errno::from_raw(-result)) } else { Ok(()) }
}
