//! Fixtures of the tests of DPDK's shutdown: each needs a process of its own.

use dpdk::{Eal, EalConfig, HugeMode, Mempool, MempoolConfig};

/// Megabytes of DPDK's memory.
pub const MEMORY_MB: usize = 128;

pub fn start() -> (Eal, Mempool) {
    let config = EalConfig { memory_mb: MEMORY_MB, huge: HugeMode::Never, ..EalConfig::default() };
    let eal = Eal::init(&config).unwrap();
    let pool = Mempool::new(&eal, &MempoolConfig { count: 511, ..Default::default() }).unwrap();
    (eal, pool)
}

/// Returns the size of the process's address space in megabytes.
pub fn address_space_mb() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1024
}
