//! What this crate's unit tests share: a process has one EAL.

use std::sync::OnceLock;

use crate::{Eal, EalConfig, HugeMode, Mempool, MempoolConfig};

/// The EAL of the test process, in ordinary memory.
pub fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        let config = EalConfig { memory_mb: 384, huge: HugeMode::Never, ..EalConfig::default() };
        Eal::init(&config).unwrap()
    })
}

/// A pool of its own for one test, so that it can count what is in use.
pub fn pool(count: usize) -> Mempool {
    let config =
        MempoolConfig { name: "test".into(), count, cache: 0, data_room: 2048, node: None };
    Mempool::new(eal(), &config).unwrap()
}
