//! Shared parts of this crate's tests.

use std::sync::{Arc, OnceLock};

use dpdk::{Eal, EalConfig, HugeMode, LogLevel};

/// Returns DPDK's environment, in ordinary memory. A process can start it only once, so all tests
/// share it.
pub fn eal() -> Arc<Eal> {
    static EAL: OnceLock<Arc<Eal>> = OnceLock::new();
    let start = || {
        let config = EalConfig {
            // DPDK's route tables need 512 MB, the other tests' packets 64.
            memory_mb: 576,
            huge: HugeMode::Never,
            log_level: LogLevel::Error,
            extra_args: vec!["--force-max-simd-bitwidth=512".into()],
            ..EalConfig::default()
        };
        Arc::new(Eal::init(&config).expect("DPDK starts without hugepages"))
    };
    EAL.get_or_init(start).clone()
}
