//! Two BPF programs of two instructions each, attached by BPF links, which the kernel removes when
//! their descriptor is closed, also when the process is killed. They are loaded by the system call
//! itself: they need none of the features of BPF libraries (object files, maps, relocation), and
//! libbpf-rs or aya would bring a dozen crates or more for two system calls. The system calls about the maps and programs
//! of accelerated interfaces are here as well.
//!
//! Also handles the program of DPDK's AF_XDP driver, which is attached without a link and stays when
//! the process is killed: identifies and removes it, by libbpf, which that driver has loaded.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::{fs, mem, ptr};

use crate::Errno;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_LINK_CREATE: libc::c_long = 28;

/// Attachment of XDP programs.
const BPF_XDP: u32 = 37;

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

/// The part of `union bpf_attr` for `BPF_MAP_CREATE` up to the last field used.
#[repr(C)]
#[derive(Default)]
struct MapAttributes {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: u32,
}

/// The part of `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct TracepointAttributes {
    name: u64,
    program: u32,
    unused: u32,
}

/// The part of `union bpf_attr` for calls about an element of a map.
#[repr(C)]
#[derive(Default)]
struct ElementAttributes {
    map: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct RunAttributes {
    program: u32,
    result: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
    batch_size: u32,
    unused: u32,
}

/// `struct xdp_md`.
#[repr(C)]
#[derive(Default)]
struct XdpContext {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress: u32,
    queue: u32,
    egress: u32,
}

/// A map of BPF programs, with keys and values of these types; of a map with a value for each processor, that is
/// the type of each.
#[derive(Debug)]
pub(super) struct Map<K, V> {
    descriptor: OwnedFd,
    of: PhantomData<(K, V)>,
}

impl<K, V> Map<K, V> {
    /// Creates a map whose keys begin with their number of bits and of which the longest key that fits is found.
    /// Memory is taken as it fills.
    pub(super) fn longest_prefix(most: u32) -> Result<Self, Errno> {
        const LPM_TRIE: u32 = 11;
        const NO_PREALLOC: u32 = 1;
        Self::create(LPM_TRIE, most, NO_PREALLOC, 0)
    }

    /// Creates a map of this type, with this many elements and these flags; `inner`: the descriptor of a map like those that
    /// it holds.
    pub(super) fn create(
        map_type: u32,
        max_entries: u32,
        flags: u32,
        inner: u32,
    ) -> Result<Self, Errno> {
        let (key_size, value_size) = (size_of::<K>() as u32, size_of::<V>() as u32);
        let attributes =
            MapAttributes { map_type, key_size, value_size, max_entries, flags, inner };
        let descriptor = descriptor(call(BPF_MAP_CREATE, attributes)?)?;
        Ok(Self { descriptor, of: PhantomData })
    }

    /// Creates a hash table. Memory of its elements is taken as it fills.
    pub(super) fn hash(most: u32) -> Result<Self, Errno> {
        const HASH: u32 = 1;
        const NO_PREALLOC: u32 = 1;
        Self::create(HASH, most, NO_PREALLOC, 0)
    }

    /// Creates it for the map with this descriptor.
    ///
    /// # Safety
    /// The map has keys and values of these sizes.
    pub(super) unsafe fn of(descriptor: OwnedFd) -> Self {
        Self { descriptor, of: PhantomData }
    }

    /// Returns its descriptor.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Returns its descriptor alone.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// Sets an element.
    pub(super) fn put(&self, key: &K, value: &V) -> Result<(), Errno> {
        self.element(BPF_MAP_UPDATE_ELEM, key, ptr::from_ref(value) as u64)
    }

    /// Removes an element.
    pub(super) fn remove(&self, key: &K) -> Result<(), Errno> {
        self.element(BPF_MAP_DELETE_ELEM, key, 0)
    }

    /// Reads an element.
    pub(super) fn get(&self, key: &K) -> Result<V, Errno>
    where
        V: Default,
    {
        let mut value = V::default();
        self.element(BPF_MAP_LOOKUP_ELEM, key, ptr::from_mut(&mut value) as u64)?;
        Ok(value)
    }

    /// Reads the values of an element of a map with one for each possible processor.
    pub(super) fn get_all(&self, key: &K) -> Result<Vec<V>, Errno>
    where
        V: Clone + Default,
    {
        // A power of two above all processors costs nothing, and one that cannot be read is no reason to fail.
        let processors = possible_processors().unwrap_or(4096);
        let mut values = vec![V::default(); processors];
        self.element(BPF_MAP_LOOKUP_ELEM, key, values.as_mut_ptr() as u64)?;
        Ok(values)
    }

    fn element(&self, command: libc::c_long, key: &K, value: u64) -> Result<(), Errno> {
        let map = self.descriptor.as_raw_fd() as u32;
        let attributes = ElementAttributes { map, key: ptr::from_ref(key) as u64, value, flags: 0 };
        call(command, attributes).map(drop)
    }
}

impl Map<u32, u64> {
    /// Creates a map of one number that can be mapped.
    pub(super) fn mapped_number() -> Result<Self, Errno> {
        const ARRAY: u32 = 2;
        const MMAPABLE: u32 = 1 << 10;
        Self::create(ARRAY, 1, MMAPABLE, 0)
    }

    /// Maps the number of [`Self::mapped_number`].
    pub(super) fn map_number(&self) -> Result<Mapped, Errno> {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (none, size, file) = (ptr::null_mut(), size_of::<u64>(), self.descriptor.as_raw_fd());
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let place = unsafe { libc::mmap(none, size, access, shared, file, 0) };
        if place == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        NonNull::new(place.cast()).map(Mapped).ok_or(Errno::ENOMEM)
    }
}

/// A number shared with BPF programs.
#[derive(Debug)]
pub(super) struct Mapped(NonNull<AtomicU64>);

// SAFETY: an atomic number, mapped as long as this exists.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Returns the number.
    pub(super) fn number(&self) -> &AtomicU64 {
        // SAFETY: mapped as long as this exists, at the beginning of a page.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping, which no one uses any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<u64>()) };
    }
}

/// Returns the number of processors for which maps have a value.
fn possible_processors() -> Option<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    last_of(text.trim()).map(|last| last + 1)
}

/// Returns the last number of a list such as `0-3,8`.
fn last_of(list: &str) -> Option<usize> {
    list.rsplit([',', '-']).next()?.parse().ok()
}

/// Attaches an XDP program to an interface, with `XDP_FLAGS_*`, for as long as the descriptor is open.
pub(super) fn link_xdp(program: &impl AsFd, interface: u32, flags: u32) -> Result<OwnedFd, Errno> {
    let program = program.as_fd().as_raw_fd() as u32;
    let (attach_type, rest) = (BPF_XDP, [0; 4]);
    bpf(BPF_LINK_CREATE, LinkAttributes { program, interface, attach_type, flags, rest })
}

/// Attaches a program to the tracepoint of this name, for as long as the descriptor is open.
pub(super) fn attach_tracepoint(program: &impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let (name, program) = (name.as_ptr() as u64, program.as_fd().as_raw_fd() as u32);
    bpf(BPF_RAW_TRACEPOINT_OPEN, TracepointAttributes { name, program, unused: 0 })
}

/// Runs an XDP program over a frame as if an interface had received it, with the effects of its verdict.
pub(super) fn run_live(program: &impl AsFd, interface: u32, frame: &[u8]) -> Result<(), Errno> {
    const LIVE_FRAMES: u32 = 1 << 1;
    let data_end = frame.len() as u32;
    let context = XdpContext { data_end, ingress: interface, ..XdpContext::default() };
    let attributes = RunAttributes {
        program: program.as_fd().as_raw_fd() as u32,
        data_size_in: data_end,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        context_size_in: size_of::<XdpContext>() as u32,
        context_in: ptr::from_ref(&context) as u64,
        flags: LIVE_FRAMES,
        batch_size: 1,
        ..RunAttributes::default()
    };
    call(BPF_PROG_TEST_RUN, attributes).map(drop)
}

/// Runs an XDP program over a frame as if an interface had received it; returns its verdict and the frame behind it.
#[cfg(test)]
pub(super) fn run(
    program: &impl AsFd,
    interface: u32,
    frame: &[u8],
) -> Result<(u32, Vec<u8>), Errno> {
    let data_end = frame.len() as u32;
    let context = XdpContext { data_end, ingress: interface, ..XdpContext::default() };
    let mut out = vec![0; frame.len()];
    let mut attributes = RunAttributes {
        program: program.as_fd().as_raw_fd() as u32,
        data_size_in: data_end,
        data_size_out: data_end,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat: 1,
        context_size_in: size_of::<XdpContext>() as u32,
        context_in: ptr::from_ref(&context) as u64,
        ..RunAttributes::default()
    };
    let size = size_of::<RunAttributes>();
    // SAFETY: the kernel writes the attributes, and no more than the frame's length into the memory behind it.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &mut attributes, size) };
    Errno::result(done)?;
    Ok((attributes.result, out))
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
    bpf(BPF_LINK_CREATE, attributes)
}

/// Checks that the kernel can run programs in live mode, by a frame of a type that no protocol has.
pub(super) fn examine_live(interface: u32) -> Result<(), Errno> {
    let mut frame = [0; 60];
    // For local experiments (IEEE 802).
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    run_live(&load(XDP_PASS)?, interface, &frame)
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
    bpf(BPF_PROG_LOAD, attributes)
}

/// Makes a call that returns a descriptor.
fn bpf<T>(command: libc::c_long, attributes: T) -> Result<OwnedFd, Errno> {
    descriptor(call(command, attributes)?)
}

fn descriptor(result: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: a descriptor that the kernel has just created for us.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn call<T>(command: libc::c_long, mut attributes: T) -> Result<i32, Errno> {
    let size = size_of::<T>();
    // SAFETY: the kernel reads and writes no more than the attributes, and reads memory to which they point, which lives
    // until the call returns. It writes into that for `Map::get` only, which has room for a value, and `Map::get_all`,
    // which has room for those of all processors.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &mut attributes, size) };
    if result < 0 { Err(Errno::last()) } else { Ok(result as i32) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_of_a_list_is_found() {
        assert_eq!(last_of("0"), Some(0));
        assert_eq!(last_of("0-15"), Some(15));
        assert_eq!(last_of("0-3,8-11"), Some(11));
        assert_eq!(last_of(""), None);
        assert!(possible_processors().unwrap() >= 1);
    }
}
