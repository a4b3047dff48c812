//! Two BPF programs of two instructions each, attached by BPF links, which the kernel removes when
//! their descriptor is closed, also when the process is killed. They are loaded by the system call
//! itself: they need none of the features of BPF libraries (object files, maps, relocation), and
//! libbpf-rs or aya would bring a dozen crates or more for two system calls.
//!
//! Also handles the program of DPDK's AF_XDP driver, which is attached without a link and stays when
//! the process is killed: identifies and removes it, by libbpf, which that driver has loaded.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::{mem, ptr};

use crate::Errno;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;

/// Attachment of a program, and its verdict on every packet.
#[derive(Clone, Copy)]
pub(super) struct Hook {
    program_type: u32,
    attach_type: u32,
    program_flags: u32,
    link_flags: u32,
    verdict: i32,
}

/// XDP in the driver: pass every packet. Its purpose is its presence: the kernel stops the peer of a
/// veth interface from sending super-frames (TCP segmentation is done in software), because XDP
/// programs cannot take them. It is marked as accepting packets in several pieces; otherwise the
/// kernel refuses it on links with more than about 3,500 bytes of MTU.
pub(super) const XDP_PASS_NATIVE: Hook = Hook {
    program_type: 6,
    attach_type: 37,
    program_flags: 1 << 5,
    link_flags: 1 << 2,
    verdict: 2,
};

/// XDP in any way that the interface supports: to test whether there is one.
pub(super) const XDP_PASS: Hook = Hook { program_flags: 0, link_flags: 0, ..XDP_PASS_NATIVE };

/// Traffic control, on reception: drop every packet. Packet sockets have seen it by then; the
/// host's network stack does not. Needs Linux 6.6.
pub(super) const TC_DROP: Hook =
    Hook { program_type: 3, attach_type: 46, program_flags: 0, link_flags: 0, verdict: 2 };

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The part of `union bpf_attr` for `BPF_PROG_LOAD` up to the last field used.
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE` up to the last field used, padded to the
/// minimum that the kernel reads.
#[repr(C)]
#[derive(Default)]
struct LinkAttributes {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 4],
}

/// Attaches the hook's program to an interface, for as long as the descriptor is open.
pub(super) fn attach(hook: Hook, interface: u32) -> Result<OwnedFd, Errno> {
    let program = load(hook)?;
    let attributes = LinkAttributes {
        program: program.as_raw_fd() as u32,
        interface,
        attach_type: hook.attach_type,
        flags: hook.link_flags,
        ..LinkAttributes::default()
    };
    bpf(BPF_LINK_CREATE, &attributes)
}

fn load(hook: Hook) -> Result<OwnedFd, Errno> {
    // r0 = verdict; exit
    let program = [
        Instruction { code: 0xb7, registers: 0, offset: 0, immediate: hook.verdict },
        Instruction { code: 0x95, registers: 0, offset: 0, immediate: 0 },
    ];
    let attributes = LoadAttributes {
        program_type: hook.program_type,
        instruction_count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        flags: hook.program_flags,
        name: *b"turnpike\0\0\0\0\0\0\0\0",
        expected_attach_type: hook.attach_type,
        ..LoadAttributes::default()
    };
    bpf(BPF_PROG_LOAD, &attributes)
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> Result<OwnedFd, Errno> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of attributes, whose pointers lead to arrays
    // that live until the call returns; it writes nothing (no log was requested).
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor that the kernel has just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Returns a function of libbpf, if the library is loaded and has it.
fn libbpf(function: &CStr) -> Option<NonNull<c_void>> {
    [c"libbpf.so.1", c"libbpf.so.0"].into_iter().find_map(|library| {
        // SAFETY: two C strings; finds a library only if it is loaded already, and never unloads
        // it.
        unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            let library = NonNull::new(library)?;
            NonNull::new(libc::dlsym(library.as_ptr(), function.as_ptr()))
        }
    })
}

/// Returns a function of libbpf, if the library is loaded and has it.
///
/// # Safety
/// `F` is a pointer to a function of the type that libbpf declares.
pub(super) unsafe fn function_of_libbpf<F: Copy>(function: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = libbpf(function)?.as_ptr();
    // SAFETY: a pointer of the same size to such a function, by the caller.
    Some(unsafe { mem::transmute_copy::<*mut c_void, F>(&found) })
}

/// Returns the number of the XDP program on an interface; `None` without one.
pub(super) fn xdp_program(interface: u32) -> Option<u32> {
    type Query = extern "C" fn(c_int, c_int, *mut u32) -> c_int;
    // SAFETY: the type that libbpf declares.
    let query: Query = unsafe { function_of_libbpf(c"bpf_xdp_query_id")? };
    let mut program = 0;
    (query(interface as c_int, 0, &mut program) == 0 && program != 0).then_some(program)
}

/// Detaches the XDP program from an interface, in whichever way it is attached.
pub(super) fn detach_xdp(interface: u32) {
    type Detach = extern "C" fn(c_int, u32, *const c_void) -> c_int;
    const AS_THE_DRIVER_CAN: u32 = 0;
    const GENERIC: u32 = 1 << 1;
    // SAFETY: the type that libbpf declares; null means no options.
    let found: Option<Detach> = unsafe { function_of_libbpf(c"bpf_xdp_detach") };
    let Some(detach) = found else { return };
    for mode in [AS_THE_DRIVER_CAN, GENERIC] {
        if xdp_program(interface).is_some() {
            detach(interface as c_int, mode, ptr::null());
        }
    }
}
