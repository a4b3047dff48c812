//! Test fixtures of this crate: a process has one EAL.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{Eal, EalConfig, HugeMode, Mempool, MempoolConfig};

/// Returns the EAL of the test process, in ordinary memory.
pub fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        let config = EalConfig { memory_mb: 768, huge: HugeMode::Never, ..EalConfig::default() };
        Eal::init(&config).unwrap()
    })
}

/// Creates a separate pool for one test, so that it can count the packets in use.
pub fn pool(count: usize) -> Mempool {
    let config =
        MempoolConfig { name: "test".into(), count, cache: 0, data_room: 2048, node: None };
    Mempool::new(eal(), &config).unwrap()
}

/// Polls until there is a result. A process that another test is just starting holds a copy of each
/// descriptor of this one until it executes its program: a dropped object may stay in use for that long.
pub fn within_a_minute<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
