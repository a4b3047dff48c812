//! Shared parts of this crate's tests.

use std::sync::{Arc, OnceLock};

use api::report::Route;
use dpdk::{Eal, EalConfig, HugeMode, LogLevel};

/// Returns DPDK's environment, in ordinary memory. A process can start it only once, so all tests
/// share it.
pub fn eal() -> Arc<Eal> {
    static EAL: OnceLock<Arc<Eal>> = OnceLock::new();
    let start = || {
        let config = EalConfig {
            memory_mb: 64,
            huge: HugeMode::Never,
            log_level: LogLevel::Error,
            ..EalConfig::default()
        };
        Arc::new(Eal::init(&config).expect("DPDK starts without hugepages"))
    };
    EAL.get_or_init(start).clone()
}

/// Returns a route of the kernel, as reported.
pub fn route(prefix: &str) -> Route {
    Route {
        vrf: None,
        prefix: prefix.to_owned(),
        source: "kernel".to_owned(),
        kind: "unicast".to_owned(),
        metric: 0,
        origin_as: None,
        active: true,
        inactive: None,
        paths: Vec::new(),
    }
}
