//! Raw bindings to the DPDK that is installed on the machine that builds, made by bindgen from
//! `wrapper.h`: types, constants, functions, and DPDK's `static inline` functions through one C
//! file that is compiled beside them. Nothing here is safe; the `dpdk` crate is what to use.
//!
//! Names are DPDK's own, and so is their documentation (<https://doc.dpdk.org/api/>). What begins
//! with `shim_`, `SHIM_` or `MBUF_` is explained in `wrapper.h`.

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    unnecessary_transmutes,
    reason = "written by bindgen"
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
