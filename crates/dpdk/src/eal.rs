//! DPDK's environment: its memory, its threads, and its shutdown.

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::{fmt, fs, mem};

use dpdk_sys as sys;

use crate::error::dpdk_errno;
use crate::mbuf::traffic_class;
use crate::{Errno, Error, huge, interrupts, log};

/// Use of hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugeMode {
    /// Use them when enough are free.
    #[default]
    Auto,
    /// Use ordinary memory.
    Never,
}

/// Log messages that DPDK writes to standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Errors only.
    Error,
    /// Errors and warnings.
    #[default]
    Warning,
    /// DPDK's default messages, and notable ones of drivers.
    Notice,
    /// Details of the set-up.
    Info,
    /// Everything.
    Debug,
}

/// The addresses by which devices reach packet memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IovaMode {
    /// Virtual addresses of this process: devices without DMA, or an IOMMU translates.
    #[default]
    Virtual,
    /// Physical addresses: devices without an IOMMU between them and the memory. They need hugepages,
    /// which stay where they are, and the right to read their physical addresses (CAP_SYS_ADMIN).
    Physical,
}

impl IovaMode {
    /// Returns the mode of the EAL, which is up.
    pub(crate) fn current() -> Self {
        // SAFETY: returns a number.
        match unsafe { sys::rte_eal_iova_mode() } {
            sys::RTE_IOVA_PA => Self::Physical,
            _ => Self::Virtual,
        }
    }
}

/// Start parameters of DPDK.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// Megabytes: the amount of ordinary memory without hugepages, and the amount that must be free in
    /// hugepages for them to be used.
    pub memory_mb: usize,
    /// Megabytes of ordinary memory beyond that for later allocations; none of it is taken before it is
    /// used. Hugepages are taken when they are needed anyway.
    pub spare_mb: usize,
    /// Use of hugepages.
    pub huge: HugeMode,
    /// Log messages that DPDK writes to standard error.
    pub log_level: LogLevel,
    /// PCI devices of later ports (`0000:01:00.0`). If there are none, the PCI bus is not probed.
    pub pci: Vec<String>,
    /// The addresses used by the PCI devices' kernel drivers, see [`Device::iova_mode`].
    ///
    /// [`Device::iova_mode`]: crate::Device::iova_mode
    pub iova: IovaMode,
    /// True if other processes may have to map packet memory, for devices that [lend](crate::Device::lends_memory) it.
    pub lends_memory: bool,
    /// More arguments for `rte_eal_init`, as on the command line of a DPDK program.
    pub extra_args: Vec<String>,
    /// The core on which DPDK runs its own work; any core of this process when not given.
    pub main_core: Option<usize>,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            memory_mb: 256,
            spare_mb: 0,
            huge: HugeMode::Auto,
            log_level: LogLevel::default(),
            pci: Vec::new(),
            iova: IovaMode::default(),
            lends_memory: false,
            extra_args: Vec::new(),
            main_core: None,
        }
    }
}

/// The memory that DPDK uses. Its `Display` names it, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages of one size.
    Hugepages {
        /// Kilobytes per page.
        size_kb: usize,
        /// Pages that were free when the EAL started.
        free: usize,
    },
    /// Ordinary pages, taken when the EAL started.
    NoHuge {
        /// Megabytes.
        mb: usize,
        /// Reason for not using hugepages.
        why: String,
        /// True if packets are in memory of this process alone, which the kernel backs with huge pages as far as it has
        /// some. Neither another process nor a device on a bus that has been set up before can use it.
        private: bool,
    },
}

impl Memory {
    /// Returns true if packets are in memory of this process alone.
    pub(crate) fn is_private(&self) -> bool {
        matches!(self, Self::NoHuge { private: true, .. })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hugepages { size_kb, free } => {
                write!(f, "hugepages: {free} of {size_kb} kB were free")
            }
            Self::NoHuge { mb, why, private: false } => {
                write!(f, "{mb} MB without hugepages: {why}")
            }
            Self::NoHuge { mb, why, private: true } => {
                write!(f, "{mb} MB in transparent huge pages, without reserved ones: {why}")
            }
        }
    }
}

/// Returns DPDK's version, as in `DPDK 22.11.11`.
pub fn version() -> String {
    // SAFETY: returns a static C string.
    unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned()
}

/// Returns the version of the DPDK whose headers the program was compiled with, in the same form.
pub fn version_built() -> String {
    let (year, month, minor) = (sys::RTE_VER_YEAR, sys::RTE_VER_MONTH, sys::RTE_VER_MINOR);
    format!("DPDK {year}.{month:02}.{minor}")
}

/// DPDK, started. A process starts it once.
///
/// Dropping it shuts DPDK down, if that happens on the thread that started it and nothing made from it
/// is left: no pool, port, ring, registered thread or packet. Otherwise DPDK stays until the process
/// ends, because its memory may still be in use.
pub struct Eal {
    shared: EalRef,
    starter: ThreadId,
}

/// Reference that everything made from an [`Eal`] holds to keep it alive.
#[derive(Clone)]
pub(crate) struct EalRef(Arc<Shared>);

struct Shared {
    memory: Memory,
    /// Pools without handles, to be freed with the EAL.
    retired: Mutex<Vec<Pool>>,
}

struct Pool {
    pool: NonNull<sys::rte_mempool>,
    /// Packets kept by drivers, which cannot be recovered.
    written_off: usize,
}

// SAFETY: DPDK's mempools may be used from any thread.
unsafe impl Send for Pool {}

impl EalRef {
    pub(crate) fn retire_pool(&self, pool: NonNull<sys::rte_mempool>, written_off: usize) {
        let mut retired = self.0.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(Pool { pool, written_off });
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.0.memory
    }
}

static STARTED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Starts DPDK. The calling thread keeps its CPU affinity.
    ///
    /// # Errors
    /// [`Error::EalStarted`] the second time, [`Error::NoSuchCore`], [`Error::EalArgument`], or
    /// [`Error::EalInit`] with DPDK's messages.
    pub fn init(config: &EalConfig) -> Result<Self, Error> {
        let allowed = Affinity::of_this_thread();
        if let Some(core) = config.main_core.filter(|&core| !allowed.contains(core)) {
            return Err(Error::NoSuchCore { core, allowed: allowed.to_string() });
        }
        let memory = choose_memory(config, Path::new("/sys/kernel/mm/hugepages"));
        if let (IovaMode::Physical, Memory::NoHuge { mb, why, .. }) = (config.iova, &memory) {
            return Err(Error::PhysicalMemory { mb: *mb, why: why.clone() });
        }
        let arguments = arguments(config, &memory, &allowed)
            .into_iter()
            .map(|text| CString::new(text.clone()).map_err(|_| Error::EalArgument(text)))
            .collect::<Result<Vec<_>, _>>()?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(Error::EalStarted);
        }
        log::keep();
        let result = start(arguments);
        let said = log::kept();
        // The EAL pins its caller to the main core.
        allowed.apply_to_this_thread();
        if let Err(errno) = result {
            STARTED.store(false, Ordering::SeqCst);
            return Err(Error::EalInit { memory: memory.to_string(), errno, said });
        }
        traffic_class::reserve().map_err(Error::TrafficClass)?;
        log::release(&said);
        if config.log_level < LogLevel::Info {
            silence_bpf_libraries();
        }
        let shared = EalRef(Arc::new(Shared { memory, retired: Mutex::default() }));
        Ok(Self { shared, starter: thread::current().id() })
    }

    /// Returns the memory that DPDK uses, with the reason.
    pub fn memory(&self) -> &Memory {
        self.shared.memory()
    }

    /// Registers the calling thread with DPDK, which gives it a number and thereby a cache of its own in
    /// every pool. Dropping the guard unregisters it; a thread that was registered before keeps its
    /// number.
    ///
    /// # Errors
    /// [`Error::RegisterThread`] when DPDK has no number left (it has 128).
    pub fn register_thread(&self) -> Result<ThreadRegistration, Error> {
        // SAFETY: reads a per-thread number.
        let known = unsafe { sys::rte_lcore_id() } != sys::SHIM_LCORE_ID_ANY;
        // SAFETY: the EAL is up, and this thread has no number.
        if !known && unsafe { sys::rte_thread_register() } != 0 {
            return Err(Error::RegisterThread(dpdk_errno()));
        }
        Ok(ThreadRegistration { mine: !known, _eal: self.share(), not_send: PhantomData })
    }

    pub(crate) fn share(&self) -> EalRef {
        self.shared.clone()
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        let on_starter = thread::current().id() == self.starter;
        let Some(shared) = Arc::get_mut(&mut self.shared.0).filter(|_| on_starter) else {
            return;
        };
        let pools = mem::take(shared.retired.get_mut().unwrap_or_else(PoisonError::into_inner));
        let in_use = |retired: &Pool| {
            // SAFETY: the pool is alive.
            let out = unsafe { sys::rte_mempool_in_use_count(retired.pool.as_ptr()) as usize };
            out > retired.written_off
        };
        if pools.iter().any(in_use) {
            return;
        }
        for Pool { pool, .. } in pools {
            // SAFETY: no handle is left, no packet is out, no other thread is registered; a thread that
            // is not registered last touches the pool with the store that makes its packet count as
            // free; this thread is here.
            unsafe { sys::rte_mempool_free(pool.as_ptr()) };
        }
        interrupts::hold();
        // SAFETY: nothing made from the EAL is left, this is the thread that started it, and DPDK's own does not run.
        unsafe { sys::rte_eal_cleanup() };
    }
}

/// A thread's registration with DPDK, which ends when this is dropped.
pub struct ThreadRegistration {
    mine: bool,
    _eal: EalRef,
    not_send: PhantomData<*mut ()>,
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        if self.mine {
            // SAFETY: this thread was registered by us; the guard cannot leave it.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}

/// Calls `rte_eal_init`.
fn start(arguments: Vec<CString>) -> Result<(), Errno> {
    // DPDK may keep pointers into its arguments, so these and the array of pointers are leaked, once per
    // process.
    let mut argv: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
    let argc = argv.len() as i32;
    argv.push(std::ptr::null_mut());
    let argv = argv.leak();
    // SAFETY: `argv` is an array of `argc` C strings that live for ever, ended by a null.
    let result = unsafe { sys::rte_eal_init(argc, argv.as_mut_ptr()) };
    if result < 0 { Err(dpdk_errno()) } else { Ok(()) }
}

/// Silences the libraries below DPDK's AF_XDP driver on standard error, where they write a dozen lines
/// about each port that works. A port that does not work reports it in its notes.
fn silence_bpf_libraries() {
    let printers = [
        (c"libxdp.so.1", c"libxdp_set_print"),
        (c"libbpf.so.1", c"libbpf_set_print"),
        (c"libbpf.so.0", c"libbpf_set_print"),
    ];
    for (library, function) in printers {
        // SAFETY: finds a library only if it is loaded already, and never unloads it; both
        // functions take a function pointer, for which null means silence, and return the old one.
        unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() {
                continue;
            }
            let function = libc::dlsym(library, function.as_ptr());
            if !function.is_null() {
                type SetPrint = extern "C" fn(*const c_void) -> *const c_void;
                mem::transmute::<*mut c_void, SetPrint>(function)(std::ptr::null());
            }
        }
    }
}

/// Returns the command line for `rte_eal_init`.
fn arguments(config: &EalConfig, memory: &Memory, allowed: &Affinity) -> Vec<String> {
    let mut list: Vec<String> = vec!["dpdk".into(), "--no-telemetry".into()];
    list.push(match config.iova {
        IovaMode::Virtual => "--iova-mode=va".into(),
        IovaMode::Physical => "--iova-mode=pa".into(),
    });
    // One EAL thread, number 0, which is the caller; forwarders are registered later.
    list.push(match config.main_core {
        Some(core) => format!("--lcores=0@{core}"),
        None => format!("--lcores=0@({allowed})"),
    });
    match memory {
        // Takes hugepages without a mount of hugetlbfs, and leaves no files behind.
        Memory::Hugepages { .. } => list.push("--in-memory".into()),
        // Cannot be combined with --in-memory.
        Memory::NoHuge { mb, .. } => {
            list.extend(["--no-huge".into(), "--no-shconf".into(), "-m".into(), mb.to_string()]);
        }
    }
    if config.pci.is_empty() {
        list.push("--no-pci".into());
    }
    list.extend(config.pci.iter().flat_map(|address| ["-a".into(), address.clone()]));
    list.extend(log_arguments(config.log_level));
    list.extend(config.extra_args.iter().cloned());
    list
}

fn log_arguments(level: LogLevel) -> Vec<String> {
    let name = match level {
        LogLevel::Error => "error",
        LogLevel::Warning => "warning",
        LogLevel::Notice => "notice",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
    };
    let mut list = vec![format!("--log-level={name}")];
    if level == LogLevel::Info || level == LogLevel::Debug {
        list.push(format!("--log-level=*:{name}"));
    }
    list
}

/// Chooses hugepages if the free ones of one size provide the requested memory.
fn choose_memory(config: &EalConfig, sysfs: &Path) -> Memory {
    // Drivers of the PCI bus tell the IOMMU the pages of all memory when they start.
    let private = config.pci.is_empty() && !config.lends_memory && huge::are_given();
    let ordinary = |why| Memory::NoHuge { mb: config.memory_mb + config.spare_mb, why, private };
    if config.huge == HugeMode::Never {
        return ordinary("as configured".into());
    }
    let pages = free_hugepages(sysfs);
    let enough = |&(size_kb, free): &(usize, usize)| size_kb * free >= config.memory_mb * 1024;
    if let Some(&(size_kb, free)) = pages.iter().find(|page| enough(page)) {
        return Memory::Hugepages { size_kb, free };
    }
    let free_kb: usize = pages.iter().map(|(size_kb, free)| size_kb * free).max().unwrap_or(0);
    ordinary(format!("{} MB of hugepages are free", free_kb / 1024))
}

/// Returns page size in kB and number of free pages, for each size of the kernel.
fn free_hugepages(sysfs: &Path) -> Vec<(usize, usize)> {
    let Ok(entries) = fs::read_dir(sysfs) else { return Vec::new() };
    let page = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let size_kb = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free = fs::read_to_string(entry.path().join("free_hugepages")).ok()?;
        Some((size_kb, free.trim().parse().ok()?))
    };
    let mut pages: Vec<_> = entries.flatten().filter_map(page).collect();
    pages.sort_unstable();
    pages
}

/// The cores on which a thread may run.
struct Affinity(libc::cpu_set_t);

impl Affinity {
    fn of_this_thread() -> Self {
        // SAFETY: a `cpu_set_t` is an array of integers, for which zeros are a value.
        let mut set = unsafe { mem::zeroed() };
        // SAFETY: the kernel fills at most the given size. If the call fails (a machine with more than
        // 1,024 cores), the set stays empty.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
        Self(set)
    }

    fn apply_to_this_thread(&self) {
        // SAFETY: the set is initialised; an empty one is refused and changes nothing.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) };
    }

    fn contains(&self, core: usize) -> bool {
        // SAFETY: `CPU_ISSET` indexes the set by `core`, which is checked to be inside.
        core < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(core, &self.0) }
    }
}

/// The list in the EAL's form: `0,1,5`.
impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = (0..libc::CPU_SETSIZE as usize).filter(|&core| self.contains(core));
        let names: Vec<String> = cores.map(|core| core.to_string()).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// A `/sys/kernel/mm/hugepages` with these page sizes in kB and free pages.
    fn sysfs(name: &str, pages: &[(usize, usize)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("dpdk-eal-{name}-{}", std::process::id()));
        for (size_kb, free) in pages {
            let folder = root.join(format!("hugepages-{size_kb}kB"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("free_hugepages"), format!("{free}\n")).unwrap();
        }
        root
    }

    #[test]
    fn hugepages_are_used_when_enough_are_free() {
        let root = sysfs("enough", &[(2048, 64), (1_048_576, 0)]);
        let mut config = EalConfig { memory_mb: 128, lends_memory: true, ..EalConfig::default() };
        let memory = choose_memory(&config, &root);
        assert_eq!(memory, Memory::Hugepages { size_kb: 2048, free: 64 });
        assert_eq!(memory.to_string(), "hugepages: 64 of 2048 kB were free");

        config.memory_mb = 129;
        let memory = choose_memory(&config, &root).to_string();
        assert_eq!(memory, "129 MB without hugepages: 128 MB of hugepages are free");

        config = EalConfig { memory_mb: 1, spare_mb: 2, huge: HugeMode::Never, ..config };
        let memory = choose_memory(&config, &root).to_string();
        assert_eq!(memory, "3 MB without hugepages: as configured");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_kernel_without_hugepages_is_no_error() {
        let memory = choose_memory(&EalConfig::default(), Path::new("/nonexistent"));
        let why = "0 MB of hugepages are free".into();
        let private = huge::are_given();
        assert_eq!(memory, Memory::NoHuge { mb: 256, why, private });
    }

    #[test]
    fn memory_that_devices_share_is_never_the_process_s_own() {
        let is_private =
            |config: &EalConfig| choose_memory(config, Path::new("/nonexistent")).is_private();
        let never = HugeMode::Never;
        let with_pci =
            EalConfig { pci: vec!["0000:01:00.0".into()], huge: never, ..EalConfig::default() };
        let lends = EalConfig { lends_memory: true, huge: never, ..EalConfig::default() };
        assert!(!is_private(&with_pci) && !is_private(&lends));
        assert_eq!(is_private(&EalConfig::default()), huge::are_given());
    }

    #[test]
    fn memory_options_are_never_combined_wrongly() {
        let allowed = Affinity::of_this_thread();
        let config = EalConfig { pci: vec!["0000:01:00.0".into()], ..EalConfig::default() };
        let huge = Memory::Hugepages { size_kb: 2048, free: 1 };
        let list = arguments(&config, &huge, &allowed);
        assert!(list.contains(&"--in-memory".into()) && !list.contains(&"--no-huge".into()));
        assert!(!list.contains(&"--no-pci".into()));
        let ordinary = Memory::NoHuge { mb: 77, why: String::new(), private: false };
        let list = arguments(&EalConfig::default(), &ordinary, &allowed).join(" ");
        assert!(list.contains("--no-huge --no-shconf -m 77 --no-pci"), "{list}");
        assert!(!list.contains("--in-memory"), "{list}");
    }

    #[test]
    fn physical_addresses_need_hugepages() {
        let (iova, huge) = (IovaMode::Physical, HugeMode::Never);
        let config = EalConfig { memory_mb: 128, iova, huge, ..EalConfig::default() };
        let error = Eal::init(&config).map(drop).unwrap_err().to_string();
        let end = "reserve them: echo 64 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        assert!(error.contains("(as configured)") && error.ends_with(end), "{error}");
        let memory = Memory::Hugepages { size_kb: 2048, free: 64 };
        let list = arguments(&config, &memory, &Affinity::of_this_thread());
        assert!(list.contains(&"--iova-mode=pa".into()), "{list:?}");
    }

    #[test]
    fn the_eal_starts_once_and_leaves_the_affinity_alone() {
        let before = Affinity::of_this_thread().to_string();
        testing::eal();
        assert_eq!(Affinity::of_this_thread().to_string(), before);
        assert_eq!(Eal::init(&EalConfig::default()).map(drop), Err(Error::EalStarted));
        assert!(crate::tsc_hz() > 1_000_000);
        assert!(version().starts_with("DPDK "));
    }

    #[test]
    fn a_core_that_does_not_exist_is_named() {
        let config = EalConfig { main_core: Some(1000), ..EalConfig::default() };
        let error = Eal::init(&config).map(drop).unwrap_err().to_string();
        let start = "core 1000 does not exist or is not allowed to this process; allowed: ";
        assert!(error.starts_with(start), "{error}");
        assert!(error.len() > start.len(), "{error}");
    }

    #[test]
    fn a_registered_thread_has_a_number_until_its_guard_goes() {
        let number = || {
            // SAFETY: reads a per-thread number.
            unsafe { sys::rte_lcore_id() }
        };
        let eal = testing::eal();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(number(), sys::SHIM_LCORE_ID_ANY);
                let first = eal.register_thread().unwrap();
                assert_ne!(number(), sys::SHIM_LCORE_ID_ANY);
                drop(eal.register_thread().unwrap());
                assert_ne!(number(), sys::SHIM_LCORE_ID_ANY, "the first guard keeps it");
                drop(first);
                assert_eq!(number(), sys::SHIM_LCORE_ID_ANY);
            });
        });
    }
}
