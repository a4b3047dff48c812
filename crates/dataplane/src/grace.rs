//! Grace periods of the route tables, answered by the forwarders' quiescent states.

use std::sync::Arc;

use dpdk::qsbr::Qsbr;
use fib::GracePeriod;

/// Determines from the readers' quiescent states if a grace period has passed.
pub struct Grace(pub Arc<Qsbr>);

impl GracePeriod for Grace {
    fn start(&mut self) -> u64 {
        self.0.start().into()
    }

    fn passed(&mut self, token: u64) -> bool {
        self.0.passed(token.into())
    }
}
