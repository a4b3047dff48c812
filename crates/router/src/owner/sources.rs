//! Routes of sources outside the router, brought into the RIB a batch at a time.
//!
//! ```text
//!   kernel (thread) --+                    links: at once
//!                     +-- batches --> backlog --> RIB, a batch a turn
//!   zebra (thread) ---+
//! ```
//!
//! Between two batches the owner answers other requests, so a million routes delay no request
//! for longer than one batch. The loss of a link does not wait for the routes before it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::config::{Config, Fpm, Interface, KernelRoutes, Vrf};
use control::fpm::{self, Entrance, FpmSource};
use control::netlink::{
    self, Apart, AuditReport, Following, FoundVlan, KernelConfig, KernelGroups, KernelOrder,
    KernelSource, KernelVrf, Seat, SourceEvent, SourceState, SourceStatus,
};
use control::rib::{self, Rib, Route, RouteSource};
use dataplane::interface::{InterfaceId, InterfaceSet, VrfId};
use tokio::sync::{mpsc, oneshot, watch};
use wire::MacAddr;

use super::Owner;
use super::limiter::Limiter;
use super::links::HostLink;
use super::state::Routing;
use super::turn::Turn;

/// Batches between the sources' threads and the owner.
const CHANNEL: usize = 16;

/// Batches that the owner holds; more stay in the channel, then with the sources.
const BACKLOG: usize = 32;

/// Events that change the RIB together.
const PIECE: usize = 256;

/// The statement that configures zebra's way in.
const FPM: &str = "turnpike.fpm";

/// Interval between progress messages of an unfinished first synchronisation.
const PROGRESS: Duration = Duration::from_secs(5);

/// Comparisons with the kernel's routes.
#[derive(Debug, Default)]
pub(super) struct Audits {
    pub(super) count: u64,
    pub(super) failed: u64,
    pub(super) last: Option<AuditReport>,
    /// The comparison with the kernel is made, that with the FIB continues since then.
    pub(super) under_way: Option<(Instant, AuditReport)>,
}

/// The network namespace of a VRF.
struct Space {
    /// The VRF's name.
    name: String,
    apart: Apart,
    netns: Option<PathBuf>,
    following: Following,
    kernel: KernelSource,
    /// Its first synchronisation is awaited.
    first: bool,
    virtual_macs: Vec<(InterfaceId, MacAddr)>,
    /// VLAN devices that become VLANs; `None` until its thread has read its links.
    vlan_devices: Option<Vec<FoundVlan>>,
}

/// The sources outside the router.
pub struct Sources {
    /// For sources that begin later.
    send: mpsc::Sender<Vec<SourceEvent>>,
    batches: mpsc::Receiver<Vec<SourceEvent>>,
    /// The rests of batches, oldest first.
    backlog: VecDeque<std::vec::IntoIter<SourceEvent>>,
    kernel: Option<KernelSource>,
    /// The namespace that the kernel is listened to in.
    netns: Option<PathBuf>,
    /// The namespaces of VRFs, each of which a thread of its own listens to.
    spaces: BTreeMap<VrfId, Space>,
    /// The host interfaces in them.
    space_of: BTreeMap<InterfaceId, VrfId>,
    /// Number of threads that have listened to them.
    threads: u64,
    /// VRFs whose namespace is not listened to any more, and whose routes the RIB still has.
    left: Vec<VrfId>,
    /// Virtual MACs in the other namespace.
    common_virtual_macs: Vec<(InterfaceId, MacAddr)>,
    /// VLAN devices in the other namespace that become VLANs; `None` until its links have been read.
    common_vlan_devices: Option<Vec<FoundVlan>>,
    /// Set if VLAN devices have changed.
    has_new_vlan_devices: bool,
    /// The ports with a host interface.
    hosts: InterfaceSet,
    /// Those among them whose host interface is their device: the operator's, which no order changes.
    devices: InterfaceSet,
    /// The ports whose host interface takes all multicasts.
    pub(super) all_multicast: InterfaceSet,
    /// Virtual MACs of interfaces.
    pub(super) virtual_macs: Vec<(InterfaceId, MacAddr)>,
    /// Set if forwarders and devices do not know them yet.
    pub(super) has_new_virtual_macs: bool,
    fpm: Option<FpmSource>,
    /// The kernel's routes are wanted, not only its links, addresses and neighbours.
    kernel_routes: bool,
    /// A first synchronisation in progress: its source, and its routes on their way into the RIB.
    pub(super) loading: Option<(RouteSource, Vec<Route>)>,
    /// Sources whose first synchronisation has begun.
    pub(super) begun: [bool; RouteSource::ALL.len()],
    /// The kernel's first synchronisation is awaited.
    pub(super) first: bool,
    next_progress: Instant,
    pub(super) refused: [u64; RouteSource::ALL.len()],
    limiter: Limiter,
    pub(super) audits: Audits,
}

impl Sources {
    /// Begins to listen to the sources that the configuration names. The host interfaces are there.
    pub fn start(config: &Config) -> Result<Self> {
        let (send, batches) = mpsc::channel(CHANNEL);
        let kernel = kernel_config(config).map(|kernel| netlink::spawn(kernel, send.clone()));
        let kernel = kernel.transpose().context("the kernel's routes and neighbours")?;
        let hosts = config.interfaces().filter(|(.., interface)| interface.host.is_some());
        let is_device =
            |interface: &Interface| interface.host.as_ref().is_some_and(|of| of.is_device);
        let devices = config.interfaces().filter(|(.., interface)| is_device(interface));
        let mut sources = Self {
            devices: devices.map(|(id, ..)| id).collect(),
            netns: netns(config),
            hosts: hosts.map(|(id, ..)| id).collect(),
            ..Self::of((send, batches), kernel, None, config.routes_from.kernel.is_some())
        };
        sources.follow_spaces(config)?;
        if let Some(settings) = &config.fpm {
            let entrance = entrance(config, None, settings)?;
            sources.listen_for_zebra(entrance, settings).context(FPM)?;
        }
        Ok(sources)
    }

    /// Opens what another configuration needs to follow its sources; nothing changes yet.
    ///
    /// # Errors
    /// Zebra cannot be listened for.
    pub(super) fn open_entrance(old: &Config, new: &Config) -> Result<Option<Entrance>> {
        let moves = netns(new) != netns(old);
        let settings = new.fpm.as_ref().filter(|_| moves || new.fpm != old.fpm);
        let before = old.fpm.as_ref().filter(|_| !moves);
        settings.map(|settings| entrance(new, before, settings)).transpose()
    }

    /// Follows the sources of another configuration, with the entrance that was opened for it.
    ///
    /// # Errors
    /// The kernel cannot be listened to; the other sources are followed.
    pub(super) fn follow(&mut self, new: &Config, entrance: Option<Entrance>) -> Result<()> {
        let kernel = self.follow_kernel(new);
        match (&new.fpm, entrance) {
            (Some(settings), Some(entrance)) => {
                self.listen_for_zebra(entrance, settings).context(FPM)?;
            }
            (Some(_), None) => {}
            (None, _) => {
                if let Some(fpm) = self.fpm.take() {
                    tracing::info!("fpm: not listening for zebra any more");
                    fpm.end();
                }
            }
        }
        kernel.context("the kernel's routes")
    }

    fn follow_kernel(&mut self, new: &Config) -> Result<(), netlink::Error> {
        let routes = new.routes_from.kernel.is_some();
        if routes != self.kernel_routes {
            // Its first synchronisation, as at the start.
            self.begun[RouteSource::Kernel.index()] = false;
            self.kernel_routes = routes;
            self.audits = Audits::default();
        }
        match (&mut self.kernel, kernel_config(new)) {
            (Some(kernel), _) => {
                kernel.order(KernelOrder::Follow(following(new)));
                kernel.follow_multicast(new.routes_from.any())?;
            }
            (None, Some(wanted)) => {
                self.netns.clone_from(&wanted.netns);
                self.kernel = Some(netlink::spawn(wanted, self.send.clone())?);
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn listen_for_zebra(
        &mut self,
        entrance: Entrance,
        settings: &Fpm,
    ) -> Result<(), netlink::Error> {
        match (&mut self.fpm, &self.kernel) {
            (Some(fpm), _) => fpm.set(entrance, settings.keep),
            (None, Some(kernel)) => {
                let (interfaces, send) = (kernel.interfaces(), self.send.clone());
                let fpm = fpm::spawn(entrance, settings.keep, interfaces, send)?;
                tracing::info!("listening for zebra on {}", fpm.local_addr());
                self.fpm = Some(fpm);
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// These ports have a host interface from now on, by these names; others have none any more.
    pub(super) fn follow_hosts(
        &mut self,
        config: &Config,
        ports: Vec<(InterfaceId, String)>,
    ) -> Result<()> {
        self.hosts = ports.iter().map(|(port, _)| *port).collect();
        self.follow_spaces(config)?;
        let space = |id: InterfaceId| config.interface(id).and_then(Interface::space);
        let mut common = Vec::new();
        let mut apart: BTreeMap<VrfId, Vec<_>> = BTreeMap::new();
        for (id, name) in ports {
            match space(id) {
                Some(vrf) => apart.entry(vrf).or_default().push((id, name)),
                None => common.push((id, name)),
            }
        }
        let vlans = config.host_vlans();
        for (vrf, space) in &self.spaces {
            space.kernel.order(KernelOrder::Vlans(vlans.clone()));
            space.kernel.order(KernelOrder::Ports(apart.remove(vrf).unwrap_or_default()));
        }
        let ports = common;
        if ports.is_empty() || self.kernel.is_some() {
            self.order(KernelOrder::Vlans(vlans));
            self.order(KernelOrder::Ports(ports));
        } else if let Some(wanted) = kernel_config(config) {
            let place = netns(config);
            let kernel = netlink::spawn(KernelConfig { ports, ..wanted }, self.send.clone());
            self.kernel = Some(kernel.context("the kernel's addresses and neighbours")?);
            self.netns = place;
        }
        Ok(())
    }

    /// Listens to the namespaces of a configuration's VRFs, each in a thread, and to no others.
    ///
    /// # Errors
    /// One of them cannot be listened to.
    pub(super) fn follow_spaces(&mut self, config: &Config) -> Result<()> {
        let following = Following { audit: None, ..following(config) };
        let hosts = config.interfaces().filter_map(|(id, _, of)| Some((id, of.space()?)));
        self.space_of = hosts.collect();
        let is_wanted = |vrf: &&Vrf| {
            vrf.namespace.is_some()
                && (following.routes || self.space_of.values().any(|of| *of == vrf.id))
        };
        let wanted: Vec<_> = config.vrfs.iter().filter(is_wanted).collect();
        let stays = |vrf: &VrfId, space: &Space| {
            wanted.iter().any(|wanted| wanted.id == *vrf && wanted.netns_path() == space.netns)
        };
        let left = self.spaces.iter().filter(|(vrf, space)| !stays(vrf, space));
        self.left.extend(left.map(|(vrf, _)| *vrf));
        self.has_new_vlan_devices |= self.spaces.iter().any(|(vrf, space)| !stays(vrf, space));
        self.spaces.retain(|vrf, space| stays(vrf, space));
        for vrf in wanted {
            if let Some(space) = self.spaces.get_mut(&vrf.id) {
                if space.following != following {
                    space.following = following;
                    space.kernel.order(KernelOrder::Follow(following));
                }
                continue;
            }
            let space = self.space(config, vrf, following);
            let space = space.with_context(|| format!("vrf \"{}\"", vrf.name))?;
            self.spaces.insert(vrf.id, space);
        }
        Ok(())
    }

    /// Begins to listen to a VRF's namespace.
    fn space(&mut self, config: &Config, vrf: &Vrf, following: Following) -> Result<Space> {
        self.threads += 1;
        let apart = Apart { vrf: vrf.id, thread: self.threads };
        let hosts = config.interfaces().filter(|(.., of)| of.space() == Some(vrf.id));
        let wanted = KernelConfig {
            netns: vrf.netns_path(),
            ports: hosts.map(|(id, name, _)| (id, name.to_owned())).collect(),
            vlans: config.host_vlans(),
            vrfs: Vec::new(),
            following,
            multicast: false,
            apart: Some(apart),
        };
        let (netns, first) = (wanted.netns.clone(), following.routes);
        let kernel = netlink::spawn(wanted, self.send.clone())?;
        Ok(Space {
            name: vrf.name.clone(),
            apart,
            netns,
            following,
            kernel,
            first,
            virtual_macs: Vec::new(),
            vlan_devices: None,
        })
    }

    /// Returns the VRFs whose namespace is not listened to any more, for the RIB to forget what they had from it.
    pub(super) fn take_left(&mut self) -> Vec<VrfId> {
        std::mem::take(&mut self.left)
    }

    /// Returns true for an event of a thread that is listened to, about a host interface that is there now. Others were
    /// sent before the host interface was removed, or moved to where another thread listens.
    pub(super) fn is_current(&self, event: &SourceEvent) -> bool {
        let vrf = match event {
            SourceEvent::Apart(apart, _) => {
                if self.spaces.get(&apart.vrf).is_none_or(|space| space.apart != *apart) {
                    return false;
                }
                Some(apart.vrf)
            }
            _ => None,
        };
        match event.inner() {
            SourceEvent::Link { port, .. }
            | SourceEvent::AllMulticast { port, .. }
            | SourceEvent::Addresses { port, .. }
            | SourceEvent::Neighbour { port, .. } => {
                self.is_host(*port) && self.space_of.get(port).copied() == vrf
            }
            _ => true,
        }
    }

    /// The routes of a VRF's namespace are complete.
    pub(super) fn space_is_read(&mut self, vrf: VrfId) {
        self.spaces.get_mut(&vrf).into_iter().for_each(|space| space.first = false);
    }

    /// Sets the virtual MACs in a VRF's namespace, or in that of all other VRFs.
    pub(super) fn set_virtual_macs(
        &mut self,
        vrf: Option<VrfId>,
        macs: Vec<(InterfaceId, MacAddr)>,
    ) {
        let place = match vrf {
            None => Some(&mut self.common_virtual_macs),
            Some(vrf) => self.spaces.get_mut(&vrf).map(|space| &mut space.virtual_macs),
        };
        place.into_iter().for_each(|place| place.clone_from(&macs));
        let of_spaces = self.spaces.values().flat_map(|space| &space.virtual_macs);
        self.virtual_macs = self.common_virtual_macs.iter().chain(of_spaces).copied().collect();
        self.has_new_virtual_macs = true;
    }

    /// Sets the VLAN devices in a VRF's namespace, or in that of all other VRFs.
    pub(super) fn set_vlan_devices(&mut self, vrf: Option<VrfId>, mut devices: Vec<FoundVlan>) {
        let place = match vrf {
            None => &mut self.common_vlan_devices,
            Some(vrf) => {
                let Some(space) = self.spaces.get_mut(&vrf) else { return };
                devices.iter_mut().for_each(|device| device.space = Some(space.name.clone()));
                &mut space.vlan_devices
            }
        };
        *place = Some(devices);
        self.has_new_vlan_devices = true;
    }

    /// Returns true while a namespace that is listened to may have VLAN devices that are not known yet. One that cannot
    /// be listened to is not waited for.
    pub(super) fn vlan_devices_are_missing(&self) -> bool {
        let is_read = |kernel: &KernelSource, devices: &Option<_>| {
            devices.is_some() || kernel.status().state == SourceState::Failed
        };
        let common = self.kernel.as_ref();
        !common.is_none_or(|kernel| is_read(kernel, &self.common_vlan_devices))
            || !self.spaces.values().all(|space| is_read(&space.kernel, &space.vlan_devices))
    }

    /// Returns the VLAN devices of all namespaces that become VLANs.
    pub(super) fn vlan_devices(&self) -> Vec<FoundVlan> {
        let of_spaces = self.spaces.values().map(|space| &space.vlan_devices);
        let all = std::iter::once(&self.common_vlan_devices).chain(of_spaces);
        all.flatten().flatten().cloned().collect()
    }

    /// Returns true if these have changed since the last call.
    pub(super) fn take_new_vlan_devices(&mut self) -> bool {
        std::mem::take(&mut self.has_new_vlan_devices)
    }

    /// Returns true if the kernel is followed in another namespace than this configuration has it.
    pub(super) fn is_elsewhere(&self, config: &Config) -> bool {
        self.kernel.is_some() && kernel_config(config).is_some() && self.netns != netns(config)
    }

    /// Follows the kernel, and listens for zebra by this entrance, in the namespace that a configuration names. Routes of
    /// the one before are withdrawn: a zebra there names interfaces by numbers of its namespace. Returns a channel that
    /// is closed when the namespace before is not followed any more.
    ///
    /// # Errors
    /// The namespace cannot be followed.
    pub(super) fn move_to(
        &mut self,
        config: &Config,
        seats: Vec<Seat>,
        entrance: Option<Entrance>,
    ) -> Result<Option<oneshot::Receiver<()>>> {
        let place = netns(config);
        let moved = self.kernel.as_mut().map(|kernel| kernel.move_to(place.clone(), seats));
        self.netns = place;
        if let (Some(settings), Some(entrance)) = (&config.fpm, entrance) {
            if let Some(fpm) = self.fpm.take() {
                fpm.end();
            }
            if let Err(error) = self.listen_for_zebra(entrance, settings) {
                tracing::error!("{FPM}: {error}");
            }
        }
        Ok(moved.transpose()?)
    }

    /// Returns true if a port has a host interface.
    pub(super) fn is_host(&self, port: InterfaceId) -> bool {
        self.hosts.contains(port)
    }

    /// Returns true if a port has a host interface that takes all multicasts.
    pub(super) fn takes_all_multicasts(&self, port: InterfaceId) -> bool {
        self.is_host(port) && self.all_multicast.contains(port)
    }

    fn of(
        (send, batches): (mpsc::Sender<Vec<SourceEvent>>, mpsc::Receiver<Vec<SourceEvent>>),
        kernel: Option<KernelSource>,
        fpm: Option<FpmSource>,
        kernel_routes: bool,
    ) -> Self {
        Self {
            send,
            batches,
            netns: None,
            spaces: BTreeMap::new(),
            space_of: BTreeMap::new(),
            threads: 0,
            left: Vec::new(),
            common_virtual_macs: Vec::new(),
            common_vlan_devices: None,
            has_new_vlan_devices: false,
            hosts: InterfaceSet::EMPTY,
            devices: InterfaceSet::EMPTY,
            all_multicast: InterfaceSet::EMPTY,
            virtual_macs: Vec::new(),
            has_new_virtual_macs: false,
            backlog: VecDeque::new(),
            kernel_routes,
            first: kernel_routes,
            kernel,
            fpm,
            loading: None,
            begun: [false; RouteSource::ALL.len()],
            next_progress: Instant::now() + PROGRESS,
            refused: [0; RouteSource::ALL.len()],
            limiter: Limiter::default(),
            audits: Audits::default(),
        }
    }

    /// Returns the status of a source outside the router; `None` for others.
    pub(super) fn status(&self, source: RouteSource) -> Option<SourceStatus> {
        match source {
            RouteSource::Kernel if self.kernel_routes => {
                self.kernel.as_ref().map(KernelSource::status)
            }
            RouteSource::Fpm => self.fpm.as_ref().map(FpmSource::status),
            _ => None,
        }
    }

    /// The comparisons with a source.
    pub(super) fn audits(&self, source: RouteSource) -> Option<&Audits> {
        (source == RouteSource::Kernel && self.kernel_routes).then_some(&self.audits)
    }

    /// Changes of a source that the RIB refused.
    pub(super) fn refused(&self, source: RouteSource) -> u64 {
        self.refused[source.index()]
    }

    /// The kernel's multicast routes, if they are wanted.
    pub fn groups(&self) -> Option<watch::Receiver<KernelGroups>> {
        self.kernel.as_ref()?.groups()
    }

    /// Asks the kernel of the host interfaces for something, if there is one.
    pub(super) fn order(&self, order: KernelOrder) {
        let is_change = !matches!(order, KernelOrder::Resolve { .. });
        if is_change && order.port().is_some_and(|port| self.devices.contains(port)) {
            return;
        }
        let space = order.port().and_then(|port| self.space_of.get(&port));
        let space = space.and_then(|vrf| self.spaces.get(vrf)).map(|space| &space.kernel);
        if let Some(kernel) = space.or(self.kernel.as_ref()) {
            kernel.order(order);
        }
    }

    /// Returns the kernel's number for the host interface of a VLAN, if there is one.
    pub(super) fn index_of(&self, id: InterfaceId) -> Option<u32> {
        let space = self.space_of.get(&id).and_then(|vrf| self.spaces.get(vrf));
        let kernel = space.map(|space| &space.kernel).or(self.kernel.as_ref())?;
        let interfaces = kernel.interfaces();
        let known = interfaces.borrow();
        known.by_index.iter().find(|(_, port)| **port == Some(id)).map(|(index, _)| *index)
    }

    /// Returns the kernel's numbers of the host interfaces in the namespace of accelerated ones. That of a VLAN is there
    /// only while its device has its tag.
    pub(super) fn device_numbers(&self) -> HashMap<InterfaceId, u32> {
        let Some(kernel) = &self.kernel else { return HashMap::new() };
        let interfaces = kernel.interfaces();
        let known = interfaces.borrow();
        let number = |(index, port): (&u32, &Option<InterfaceId>)| Some(((*port)?, *index));
        known.by_index.iter().filter_map(number).collect()
    }

    /// Orders to the kernel for which there was no room.
    pub(super) fn lost_orders(&self) -> u64 {
        let of_spaces: u64 = self.spaces.values().map(|space| space.kernel.lost()).sum();
        of_spaces + self.kernel.as_ref().map_or(0, KernelSource::lost)
    }

    /// The next batch, when there is one and room for it.
    pub(super) async fn receive(&mut self) -> Vec<SourceEvent> {
        if self.backlog.len() < BACKLOG
            && let Some(batch) = self.batches.recv().await
        {
            return batch;
        }
        // Full, or all sources have ended.
        std::future::pending().await
    }

    /// There is a batch to apply.
    pub(super) fn has_work(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Counts a refusal and says it, unless there were many lately.
    pub(super) fn refuse(&mut self, source: RouteSource, error: &rib::Error) {
        self.refused[source.index()] += 1;
        self.warn(format_args!("{}: {error}", source.name()));
    }

    /// Says something that may be said often, unless there was much lately.
    pub(super) fn warn(&mut self, what: std::fmt::Arguments<'_>) {
        if self.limiter.allows(Instant::now()) {
            tracing::warn!("{what}");
        }
    }

    /// Says what the RIB could not put into the FIB and tries again; it has counted that itself.
    pub(super) fn log_pending(&mut self, rib: &mut Rib) {
        for error in rib.drain_refusals() {
            self.warn(format_args!("{error}"));
        }
    }
}

/// The VRFs, of which the kernel may have routes and devices.
pub(super) fn kernel_vrfs(config: &Config) -> Vec<KernelVrf> {
    let mut ports: BTreeMap<VrfId, BTreeSet<InterfaceId>> = BTreeMap::new();
    for (id, _, interface) in config.interfaces() {
        ports.entry(interface.settings.vrf).or_default().insert(id);
    }
    let vrf = |vrf: &Vrf| -> KernelVrf {
        let ports = ports.remove(&vrf.id).unwrap_or_default();
        KernelVrf { id: vrf.id, name: vrf.name.clone(), table: vrf.table, ports }
    };
    config.vrfs.iter().filter(|vrf| vrf.namespace.is_none()).map(vrf).collect()
}

/// The file of the namespace that the host interfaces are in, except those of VRFs with namespaces; `None`: the router's
/// own.
fn netns(config: &Config) -> Option<std::path::PathBuf> {
    let mut hosts = config.interfaces().filter_map(|(.., interface)| interface.host.as_ref());
    hosts.find(|host| !host.of_vrf)?.netns_path()
}

/// Returns the configuration of the kernel's listener; `None` if it is not needed.
fn kernel_config(config: &Config) -> Option<KernelConfig> {
    let is_common = |of: &Interface| of.host.as_ref().is_some_and(|host| !host.of_vrf);
    let hosts = config.interfaces().filter(|(.., interface)| is_common(interface));
    let ports: Vec<_> = hosts.map(|(id, name, _)| (id, name.to_owned())).collect();
    if ports.is_empty() && !config.routes_from.any() {
        return None;
    }
    Some(KernelConfig {
        netns: netns(config),
        ports,
        vlans: config.host_vlans(),
        vrfs: kernel_vrfs(config),
        following: following(config),
        // Zebra's module does not report multicast routes: with FPM, too, they are read from the kernel.
        multicast: config.routes_from.any(),
        apart: None,
    })
}

/// The entrance for zebra, beside the one that there was before.
fn entrance(config: &Config, before: Option<&Fpm>, wanted: &Fpm) -> Result<Entrance> {
    let listen =
        before.is_none_or(|before| before.listen != wanted.listen).then_some(wanted.listen);
    Entrance::open(netns(config), listen, wanted.users.clone()).context(FPM)
}

/// Returns the parts of the kernel that are followed besides the host interfaces' links, addresses and neighbours.
fn following(config: &Config) -> Following {
    let routes = config.routes_from.kernel.is_some();
    let KernelRoutes { audit, receive_buffer } = config.routes_from.kernel.unwrap_or_default();
    // The kernel forwards what accelerated interfaces do not take.
    let exact = config.ports.iter().any(|port| port.accelerate);
    Following { routes, exact, audit: audit.filter(|_| routes), receive_buffer }
}

impl Owner {
    /// Takes batches in as far as there is room; events of links are applied at once.
    pub(super) fn take_in(&mut self, first: Vec<SourceEvent>) {
        let mut next = Some(first);
        while let Some(batch) = next {
            for event in &batch {
                if let &SourceEvent::Link { port, admin_up, carrier, mtu, gone } = event.inner()
                    && self.routing.sources.is_current(event)
                {
                    self.host_link(port, HostLink { admin_up, carrier, gone }, mtu);
                }
            }
            self.routing.sources.backlog.push_back(batch.into_iter());
            let room = self.routing.sources.backlog.len() < BACKLOG;
            next = room.then(|| self.routing.sources.batches.try_recv().ok()).flatten();
        }
    }

    /// Brings as much of what waits into the RIB as there is time for, oldest first.
    pub(super) fn apply_some(&mut self) {
        let turn = Turn::begin();
        while turn.has_time() && self.slow_path.orders.have_room() {
            let Some(batch) = self.routing.sources.backlog.front_mut() else { return };
            let piece: Vec<_> = batch.take(PIECE).collect();
            if batch.len() == 0 {
                self.routing.sources.backlog.pop_front();
            }
            let Routing { rib, sources, .. } = &mut self.routing;
            let orders = &self.slow_path.orders;
            if sources.loading.is_some() {
                piece.into_iter().for_each(|event| sources.apply(rib, orders, event));
            } else {
                rib.batch(|rib| {
                    piece.into_iter().for_each(|event| sources.apply(rib, orders, event));
                });
            }
            if self.routing.sources.has_new_virtual_macs {
                self.follow_virtual_macs();
            }
        }
    }

    /// Says how far a first synchronisation is, now and then, and when it is complete.
    pub(super) fn watch_first_synchronisation(&mut self) {
        self.routing.sources.report_suppressed();
        if self.serving.ready {
            return;
        }
        if !self.routing.sources.first_is_missing() && self.found_vlans.are_settled() {
            self.serving.ready = true;
            self.say_ready();
        } else if Instant::now() >= self.routing.sources.next_progress {
            self.routing.sources.next_progress = Instant::now() + PROGRESS;
            let routes =
                self.routing.sources.status(RouteSource::Kernel).map_or(0, |status| status.routes);
            tracing::info!("not ready yet: {routes} routes of the kernel read so far");
        }
    }
}

impl Sources {
    /// The kernel's routes are wanted and not complete yet. A kernel that cannot be listened to
    /// is not waited for: its thread has said why.
    fn first_is_missing(&self) -> bool {
        let failed =
            self.status(RouteSource::Kernel).is_some_and(|s| s.state == SourceState::Failed);
        let waits =
            |space: &Space| space.first && space.kernel.status().state != SourceState::Failed;
        self.first && !failed || self.spaces.values().any(waits)
    }

    fn report_suppressed(&mut self) {
        if let Some(count) = self.limiter.suppressed(Instant::now()) {
            tracing::warn!("{count} more lines like those above were left out; see show sources");
        }
    }
}

#[cfg(test)]
mod tests;
