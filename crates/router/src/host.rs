//! Host interfaces: TAP interfaces of the kernel, each with the name and MAC of the port that it belongs to.
//!
//! ```text
//!   routing daemons, ssh, ping …             the network
//!              |                                  |
//!        kernel's stack                        the port
//!              |                                  |
//!     host interface "lan"  <---> slow path <---> forwarder
//! ```
//!
//! Packets for the router itself go up unchanged; frames that the kernel sends leave by the port unchanged, before the
//! traffic that the router forwards. The interface outlives the process, and with it the kernel's routes and addresses:
//! the next start takes it over, after a kill as well. Its carrier outlives the process only if another process has its
//! descriptor, see `fd_store.rs`.
//!
//! It may be made in a network namespace of its own, so that routers can share a machine and the host's own network
//! stays apart.
//!
//! The host interface of a loopback is a TAP without ARP: daemons see the address on an interface that is up, and what
//! the kernel sends by it is dropped.
//!
//! The host interface of an accelerated port is its device, which the kernel has not lost: frames are returned to it
//! there (`host/returned.rs`).
//!
//! The host interface of a VLAN may be the kernel's own VLAN device on another host interface instead (`host/tagged.rs`).
//!
//! One system call carries up to 64 KiB of a TCP connection: large packets of the kernel are segmented here
//! (`host/down.rs`) or by the port's device, and segments for it are coalesced (`host/up.rs`). The frames on the port's
//! wire are the same without this (`host = { segmentation = false }`).

mod down;
mod groups;
mod returned;
mod tagged;
#[cfg(test)]
pub(crate) mod testing;
mod up;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::report;
use control::config::KernelDevice;
use control::netlink::enter_netns;
use dataplane::counters::{Counter, Traffic};
use dataplane::reason::DropReason;
use dpdk::{Mbuf, Mempool, Returner, Tap, VirtioHeader};
use wire::MacAddr;

use super::fd_store::FdStore;
pub use down::DeviceWork;
use down::Down;
use groups::{Groups, GroupsFile};
use returned::ReturnDevice;
use tagged::TaggedDevice;
pub use tagged::Taps;
use up::{Batch, Up};

/// Counters of a host interface.
#[derive(Debug, Default)]
pub struct HostCounters {
    /// Given to the kernel.
    pub up: Traffic,
    /// Taken from the kernel.
    pub down: Traffic,
    /// Not taken by the kernel.
    pub refused: Counter,
}

/// A host interface for reports: its place and its counters.
#[derive(Clone, Debug)]
pub struct HostView {
    /// The kernel's number for it in its namespace.
    pub index: u32,
    /// The file of its network namespace; `None`: the router's own.
    pub netns: Option<PathBuf>,
    /// Its counters.
    pub counters: Arc<HostCounters>,
    /// The kernel's VLAN device that it is; `None`: it is a TAP.
    pub kernel_device: Option<KernelDevice>,
    /// As configured: large frames go to the kernel and come from it whole.
    pub segmentation: bool,
    /// The groups of all interfaces of its namespace.
    file: Arc<GroupsFile>,
    name: String,
}

impl HostView {
    /// The link-layer groups that the kernel listens to on it.
    ///
    /// # Errors
    /// The kernel's list of them cannot be read.
    pub fn groups(&self) -> io::Result<BTreeSet<MacAddr>> {
        self.file.groups_of(&self.name)
    }

    /// As `show ports` has it; `state` is a word and a reason.
    pub fn report(&self, state: (&str, Option<&str>)) -> report::HostInterface {
        let HostCounters { up, down, refused } = &*self.counters;
        report::HostInterface {
            state: state.0.to_owned(),
            reason: state.1.map(str::to_owned),
            index: self.index,
            netns: self.netns.as_ref().map(|path| path.display().to_string()),
            up_packets: up.packets.get(),
            up_bytes: up.bytes.get(),
            up_refused: refused.get(),
            down_packets: down.packets.get(),
            down_bytes: down.bytes.get(),
        }
    }
}

/// A device that exchanges frames with the kernel: a TAP interface.
pub trait FrameDevice: Send + Sync {
    /// Takes a frame of the kernel and its header.
    fn read(&self, header: &mut VirtioHeader, frame: &mut [u8]) -> io::Result<usize>;
    /// Gives the kernel a frame in parts, of which the first is its header.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;
    /// Returns true if frames have headers.
    fn has_headers(&self) -> bool;
    /// Sets whether the kernel may leave checksums and segmentation to the reader; only to that of a TAP.
    fn set_segmentation(&self, _on: bool) -> io::Result<()> {
        Ok(())
    }
    /// Returns the descriptor that becomes readable when the kernel has sent a frame; `None`: frames are read elsewhere.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Gives it another MAC and MTU, by its name, on a thread in its namespace; only to a TAP: an interface of the kernel's
    /// has its own.
    fn change(&self, _name: &str, _mac: MacAddr, _mtu: u16) -> Result<()> {
        Ok(())
    }
    /// Sets whether it stays when no process uses it; only a TAP may not.
    fn set_lasting(&self, _lasting: bool) -> io::Result<()> {
        Ok(())
    }
    /// Has the kernel look for nobody behind it, by its name, on a thread in its namespace; only a TAP does.
    fn isolate(&self, _name: &str) -> Result<()> {
        Ok(())
    }
}

impl FrameDevice for Tap {
    fn read(&self, header: &mut VirtioHeader, frame: &mut [u8]) -> io::Result<usize> {
        self.read(header, frame)
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.write(parts)
    }

    fn has_headers(&self) -> bool {
        self.has_headers()
    }

    fn set_segmentation(&self, on: bool) -> io::Result<()> {
        self.set_segmentation(on)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn change(&self, name: &str, mac: MacAddr, mtu: u16) -> Result<()> {
        Ok(self.change(name, mac.0, mtu)?)
    }

    fn set_lasting(&self, lasting: bool) -> io::Result<()> {
        self.set_lasting(lasting)
    }

    fn isolate(&self, name: &str) -> Result<()> {
        Ok(self.isolate(name)?)
    }
}

/// The treatment of frames larger than the MTU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segmentation {
    /// There are none.
    Off,
    /// The kernel sends them, and segments for it are coalesced.
    On,
    /// Wanted, but the device has no room for what they need.
    Impossible,
}

/// A kind of host interface.
enum Kind {
    /// A TAP.
    Tap,
    /// A loopback's TAP, which sends nothing.
    Isolated,
    /// The kernel's VLAN device on another host interface.
    KernelDevice(Box<KernelDevice>),
    /// The kernel's VLAN device on the device of an accelerated port.
    DeviceOnDevice(Box<KernelDevice>),
    /// The device of an accelerated port.
    Device,
}

/// A host interface, up.
pub struct HostInterface {
    device: Arc<dyn FrameDevice>,
    kind: Kind,
    name: String,
    index: u32,
    groups: Groups,
    counters: Arc<HostCounters>,
    netns: Option<PathBuf>,
    down: Down,
    up: Up,
    segmentation: Segmentation,
    /// True if it was removed by another process.
    lost: bool,
    /// The first of the last attempts to read, none of which succeeded.
    failing: Option<Instant>,
    /// True if the kernel takes all multicasts, not only those joined.
    all_multicasts: bool,
    /// True if this router has just made it, and may still give it up.
    new: bool,
}

impl HostInterface {
    /// Makes an interface with this name, MAC and MTU, in the network namespace whose file this
    /// is, else in the router's own. With `segmentation` large frames go both ways.
    ///
    /// # Errors
    /// The namespace or the step that failed, and the way out.
    pub fn open(
        name: &str,
        mac: MacAddr,
        mtu: u16,
        netns: Option<&Path>,
        segmentation: bool,
        store: &mut FdStore,
    ) -> Result<Self> {
        let (tap, groups, new) = in_netns(netns, || {
            let new = !dpdk::interface_exists(name);
            let tap = tap(name, mac, mtu, store)?;
            let groups = Groups::open(name)?;
            Ok((tap, groups, new))
        })?;
        let index = tap.index();
        let mut interface = Self::over(Arc::new(tap), name, groups);
        (interface.index, interface.netns) = (index, netns.map(Path::to_owned));
        interface.new = new;
        interface.set_segmentation(segmentation)?;
        Ok(interface)
    }

    /// Makes the host interface of a VLAN from the kernel's VLAN device on another host interface, one of `taps`. The device
    /// is the operator's, and need not exist. With `is_accelerated` that one is the device of an accelerated port.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn on(
        device: KernelDevice,
        taps: &Taps,
        name: &str,
        netns: Option<&Path>,
        (is_accelerated, segmentation): (bool, bool),
    ) -> Result<Self> {
        let groups = in_netns(netns, || Groups::open(name))?;
        let tagged = TaggedDevice::new(taps.get(&device.below), &device.tags);
        let mut interface = Self::over(Arc::new(tagged), name, groups);
        let kind = if is_accelerated { Kind::DeviceOnDevice } else { Kind::KernelDevice };
        (interface.kind, interface.netns) = (kind(device.into()), netns.map(Path::to_owned));
        interface.set_segmentation(segmentation)?;
        Ok(interface)
    }

    /// Makes the host interface of an accelerated port, which is its device: the kernel gets frames by this way, and
    /// sends its own without the router.
    ///
    /// # Errors
    /// The kernel's list of groups cannot be read.
    pub fn of_device(name: &str, returner: Returner) -> Result<Self> {
        let index = returner.interface();
        let groups = Groups::open(name)?;
        let mut interface = Self::over(Arc::new(ReturnDevice(returner)), name, groups);
        (interface.index, interface.kind) = (index, Kind::Device);
        Ok(interface)
    }

    /// Returns true if the kernel is to get all that forwarders do not send: it is the device of an accelerated port, or a
    /// VLAN device on that.
    pub fn takes_all(&self) -> bool {
        matches!(self.kind, Kind::Device | Kind::DeviceOnDevice(_))
    }

    /// Large frames go both ways, or not any more.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_segmentation(&mut self, on: bool) -> Result<()> {
        let name = &self.name;
        self.device
            .set_segmentation(on)
            .with_context(|| format!("host interface {name}: setting its offloads"))?;
        self.segmentation = match on {
            true if self.device.has_headers() => Segmentation::On,
            true => Segmentation::Impossible,
            false => Segmentation::Off,
        };
        if self.segmentation == Segmentation::Impossible {
            tracing::warn!(
                "host interface {name}: kept open from an older router, which made it without room for \
                 large frames: they go one by one until the service is stopped and started"
            );
        }
        Ok(())
    }

    fn over(device: Arc<dyn FrameDevice>, name: &str, groups: Groups) -> Self {
        let (counters, name) = (Arc::default(), name.to_owned());
        Self {
            device,
            kind: Kind::Tap,
            name,
            index: 0,
            groups,
            counters,
            netns: None,
            down: Down::new(),
            up: Up::default(),
            segmentation: Segmentation::Off,
            lost: false,
            failing: None,
            all_multicasts: false,
            new: false,
        }
    }

    /// Gives it the MAC and the MTU that its port has now.
    ///
    /// # Errors
    /// The step that failed.
    pub fn change(&self, mac: MacAddr, mtu: u16) -> Result<()> {
        // The device may not be shared with another thread, but lent to one.
        let (device, name) = (&self.device, &self.name);
        let is_isolated = self.is_isolated();
        in_netns(self.netns.as_deref(), move || {
            device.change(name, mac, mtu)?;
            if is_isolated { device.isolate(name) } else { Ok(()) }
        })
    }

    /// Makes it a loopback's: the kernel resolves no neighbours on it, and what it sends goes nowhere.
    ///
    /// # Errors
    /// The step that failed.
    pub fn isolate(&mut self) -> Result<()> {
        self.kind = Kind::Isolated;
        let (device, name) = (&self.device, &self.name);
        in_netns(self.netns.as_deref(), move || device.isolate(name))
    }

    /// Returns true if nothing that the kernel sends on it leaves the router.
    pub fn is_isolated(&self) -> bool {
        matches!(self.kind, Kind::Isolated)
    }

    /// Marks an interface just made by the router for removal when this is dropped, with its addresses and routes;
    /// others stay as they were found.
    pub fn set_provisional(&self) {
        if self.new {
            self.set_lasting(false);
        }
    }

    /// Keeps the interface when this is dropped, and its carrier as well if there is a keeper: called once a port has
    /// it.
    pub fn keep(&self, store: &mut FdStore, taps: &Taps) {
        let (device, name) = (&self.device, &self.name);
        if matches!(self.kind, Kind::Device) {
            taps.set(name, device);
        }
        if device.fd().is_none() {
            return;
        }
        self.set_lasting(true);
        taps.set(name, device);
        let keep = move || device.fd().map_or(Ok(()), |fd| store.keep(name, fd));
        let kept = in_netns(self.netns.as_deref(), keep);
        if let Err(error) = kept {
            tracing::warn!("host interface {name}: not kept over a restart: {error:#}");
        }
    }

    /// Gives up an interface that no port uses after all: if the router made it, it is removed when this is dropped.
    pub fn give_up(&self, store: &mut FdStore) {
        self.set_provisional();
        self.forget(store);
    }

    /// Removes it from the kernel, with its addresses and routes, and from the keeper.
    pub fn remove(self, store: &mut FdStore) {
        self.set_lasting(false);
        self.forget(store);
    }

    fn forget(&self, store: &mut FdStore) {
        if self.device.fd().is_none() {
            return;
        }
        let name = &self.name;
        let forgotten = in_netns(self.netns.as_deref(), move || store.forget(name));
        if let Err(error) = forgotten {
            tracing::warn!("host interface {name}: it is kept: {error:#}");
        }
    }

    fn set_lasting(&self, lasting: bool) {
        if let Err(error) = self.device.set_lasting(lasting) {
            tracing::warn!("host interface {}: {error}", self.name);
        }
    }

    /// An interface over something else than the kernel, without groups.
    #[cfg(test)]
    pub fn for_test(device: Box<dyn FrameDevice>) -> Self {
        Self::over(device.into(), "test", Groups::open("test").expect("every machine has groups"))
    }

    /// Returns its view for reports.
    pub fn view(&self) -> HostView {
        let kernel_device = match &self.kind {
            Kind::KernelDevice(device) | Kind::DeviceOnDevice(device) => {
                Some(KernelDevice::clone(device))
            }
            Kind::Tap | Kind::Isolated | Kind::Device => None,
        };
        HostView {
            index: self.index,
            netns: self.netns.clone(),
            kernel_device,
            segmentation: self.segmentation != Segmentation::Off,
            counters: self.counters.clone(),
            file: self.groups.file(),
            name: self.name.clone(),
        }
    }

    /// Gives the kernel a frame, at once or with others by [`Self::flush`]. `done` is called with frames and
    /// their result.
    pub fn give(&mut self, packet: Mbuf, done: &mut impl FnMut(&[Mbuf], Result<(), DropReason>)) {
        let Self { device, counters, up, .. } = self;
        let mut write = |batch: Batch<'_>| done(batch.packets, write(&**device, counters, &batch));
        if self.segmentation == Segmentation::On {
            up.give(packet, &mut write);
        } else {
            up::write_one(&packet, &mut write);
        }
    }

    /// Gives the kernel what was collected.
    pub fn flush(&mut self, done: &mut impl FnMut(&[Mbuf], Result<(), DropReason>)) {
        let Self { device, counters, up, .. } = self;
        up.flush(&mut |batch| done(batch.packets, write(&**device, counters, &batch)));
    }

    /// Leaves this to the device of the port from the next frame on.
    pub fn set_device(&mut self, device: DeviceWork) {
        self.down.set_device(device);
    }

    /// Leaves to the device of the port what another interface has left to it.
    pub fn follow(&mut self, other: &Self) {
        self.down.set_device(other.down.device());
    }

    /// Returns true if frames of the kernel leave in packets of many buffers.
    pub fn has_large_packets(&self) -> bool {
        self.down.has_large_packets()
    }

    /// Makes the next frame for the port, of those that the kernel sent, in an empty packet and more of the pool if
    /// needed; `None` if there is none now, or there are too few packets.
    ///
    /// # Errors
    /// The reason to drop it; the packet has its first bytes.
    pub fn take(&mut self, packet: &mut Mbuf, pool: &Mempool) -> Option<Result<(), DropReason>> {
        if self.down.is_empty()
            && let Err(reason) = self.read(pool.data_room().into())?
        {
            self.counters.down.packets.add(1);
            let frame = self.down.frame();
            // As much of it as the packet has room for.
            let _ = packet.extend(&frame[..frame.len().min(pool.data_room().into())]);
            return Some(Err(reason));
        }
        let made = self.down.next(packet, pool)?;
        self.counters.down.packets.add(1);
        self.counters.down.bytes.add(made.unwrap_or_default() as u64);
        Some(made.map(drop))
    }

    /// Reads the next frame of the kernel; `None` if there is none now.
    fn read(&mut self, room: usize) -> Option<Result<(), DropReason>> {
        if self.lost {
            return None;
        }
        let Self { down, device, name, .. } = self;
        match down.fill(room, |header, frame| device.read(header, frame)) {
            Ok(result) => {
                self.failing = None;
                Some(result)
            }
            Err(error) => {
                let nothing =
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                if nothing {
                    self.failing = None;
                    return None;
                }
                if self.failing.is_none() {
                    tracing::warn!("host interface {name}: cannot be read: {error}");
                }
                let since = self.failing.get_or_insert_with(Instant::now);
                if let Some(why) = final_error(&error, since.elapsed()) {
                    tracing::error!("host interface {name}: {error}; {why}: restart the router");
                    self.lost = true;
                }
                None
            }
        }
    }

    /// The kernel takes all multicasts from now on, or only those joined.
    pub fn take_all_multicasts(&mut self, all: bool) {
        self.all_multicasts = all;
    }

    /// Returns true if the kernel listens to this link-layer group on it.
    pub fn has_joined(&mut self, group: MacAddr) -> bool {
        self.all_multicasts || self.groups.contain(group, Instant::now())
    }

    /// Returns the descriptor to poll for frames; `None` if they are read elsewhere, and once the interface is lost.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd().filter(|_| !self.lost)
    }
}

/// The interface that was kept for this router, else one that there is or a new one.
fn tap(name: &str, mac: MacAddr, mtu: u16, store: &mut FdStore) -> Result<Tap> {
    let kept = store.take(name).and_then(|held| {
        let taken = Tap::take_over(held, name, mac.0, mtu);
        taken.inspect_err(|error| tracing::warn!("{error}; made anew")).ok()
    });
    Ok(kept.map_or_else(|| Tap::create(name, mac.0, mtu), Ok)?)
}

/// Gives the kernel frames that go together.
fn write(
    device: &dyn FrameDevice,
    counters: &HostCounters,
    batch: &Batch<'_>,
) -> Result<(), DropReason> {
    match device.write(batch.parts) {
        Ok(()) => {
            counters.up.packets.add(batch.packets.len() as u64);
            counters.up.bytes.add(batch.bytes);
            Ok(())
        }
        Err(error) => {
            counters.refused.add(batch.packets.len() as u64);
            Err(refusal(&error))
        }
    }
}

/// Returns the drop reason for a frame that was not taken.
fn refusal(error: &io::Error) -> DropReason {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => DropReason::HostFull,
        _ if error.raw_os_error() == Some(nix::libc::ENOBUFS) => DropReason::HostFull,
        // EIO while it is down, EBADFD when it was removed.
        _ => DropReason::HostDown,
    }
}

/// Returns the reason for which an interface that cannot be read since so long never will be; `None` if it may be.
fn final_error(error: &io::Error, failing: Duration) -> Option<&'static str> {
    const LONGEST: Duration = Duration::from_secs(10);
    let removed = [nix::libc::EBADFD, nix::libc::EBADF];
    if error.raw_os_error().is_some_and(|errno| removed.contains(&errno)) {
        return Some("it was removed");
    }
    (failing >= LONGEST).then_some("it could not be read for 10 s")
}

/// Does something in a network namespace, on a thread of its own: a namespace belongs to a thread.
pub fn in_netns<T: Send>(
    netns: Option<&Path>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(path) = netns else { return work() };
    let enter = || {
        enter_netns(path)?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, enter);
        match thread.context("a thread for a network namespace")?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_has_a_reason() {
        let reason = |errno| refusal(&io::Error::from_raw_os_error(errno));
        assert_eq!(reason(nix::libc::EAGAIN), DropReason::HostFull);
        assert_eq!(reason(nix::libc::ENOMEM), DropReason::HostFull);
        assert_eq!(reason(nix::libc::ENOBUFS), DropReason::HostFull);
        assert_eq!(reason(nix::libc::EIO), DropReason::HostDown);
        assert_eq!(reason(nix::libc::EBADFD), DropReason::HostDown);
    }

    #[test]
    fn an_interface_is_lost_when_it_was_removed_and_not_by_an_error_that_passes() {
        let after = |errno, seconds| {
            final_error(&io::Error::from_raw_os_error(errno), Duration::from_secs(seconds))
        };
        assert_eq!(after(nix::libc::EBADFD, 0), Some("it was removed"));
        assert!(after(nix::libc::EIO, 0).is_none() && after(nix::libc::ENOMEM, 9).is_none());
        assert_eq!(after(nix::libc::EIO, 10), Some("it could not be read for 10 s"));
    }

    #[test]
    fn a_namespace_that_is_not_there_is_named() {
        let missing = Path::new("/run/netns/turnpike-none");
        let error = HostInterface::open(
            "tph0",
            MacAddr([2; 6]),
            1500,
            Some(missing),
            true,
            &mut FdStore::default(),
        );
        let error = format!("{:#}", error.map(drop).unwrap_err());
        let expected = "network namespace /run/netns/turnpike-none: No such file";
        assert!(error.starts_with(expected) && error.contains("ip netns add"), "{error}");
    }
}
