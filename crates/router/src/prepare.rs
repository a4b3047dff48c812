//! Prepares the change to another configuration, beside the router's work: reads and checks the text as
//! `turnpike check` does, finds what is different, and makes the graphs that forwarders are to have.
//! Devices that no running port has are opened. Nothing of the running router is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, bail, ensure};
use control::config::{self, Config, Diff, Interface, Strictness};
use control::cores::CorePlacement;
use control::import::{Exchange, read_table};
use control::netlink::FoundVlan;
use dataplane::interface::{InterfaceId, InterfaceInfo, VrfId};
use dataplane::lock::lock;
use dataplane::port::{MAX_PORTS, PortId};
use dpdk::Mempool;
use dpdk::qsbr::Qsbr;
use machine::bind::Binder;
use machine::cores;

use super::archive;
use super::graphs::{ForwarderGraph, GraphMaker};
use super::host::HostInterface;
use super::node_tables::NodeTables;
use super::owner::{self, Edit, NewFibs};
use super::ports::{Known, Opened, Opener};
use super::program::{ConfigSource, Language, Program};
use super::quarantine;
use super::tls;
use super::virtual_drivers;
use super::virtuals::{self, Hosts};

/// The target of a change.
#[derive(Clone)]
pub enum Wanted {
    /// A text that may be wrong.
    Text(PathBuf, Arc<str>),
    /// A text that the router had before.
    Past(PathBuf, Arc<str>),
    /// The file that the router was started with, as it is now.
    File,
    /// A configuration that has been checked.
    Config(Arc<Config>),
    /// The router's configuration with this change.
    Edit(Arc<Edit>),
    /// The router's configuration with the VLANs of these devices of the kernel.
    VlanDevices(Arc<[FoundVlan]>),
}

/// A change that only needs to be made.
pub struct Prepared {
    /// The router's configuration when it was prepared.
    pub base: Arc<Config>,
    /// The new configuration.
    pub config: Arc<Config>,
    /// The strictness of its checks.
    pub strictness: Strictness,
    /// The difference.
    pub diff: Diff,
    /// Imports whose table is another.
    pub imports: Vec<Exchange>,
    /// A graph for each forwarder that runs, if they need others and can have them.
    pub graphs: Vec<ForwarderGraph>,
    /// A graph for each forwarder more.
    pub more: Vec<ForwarderGraph>,
    /// The cores that forwarders are to run on, and everything else.
    pub placement: CorePlacement,
    /// The ports' properties for steps after the change, by number.
    pub ports: Vec<InterfaceInfo>,
    /// The devices and host interfaces already opened for new and changed ports.
    pub ready: BTreeMap<PortId, Ready>,
    /// Host interfaces of bonds and VLANs that have none yet.
    pub hosts: Hosts,
    /// Host interfaces in another network namespace, for interfaces that have one already.
    pub moved: Hosts,
    /// Route tables of another structure, if that is wanted, which the graphs read.
    pub fibs: Option<OtherFibs>,
}

/// Route tables that replace the present ones.
pub struct OtherFibs {
    /// Empty tables, by VRF.
    pub empty: Vec<NewFibs>,
    /// The tables of all units with these as FIBs.
    pub near: NodeTables,
}

/// Prepares changes.
#[derive(Clone)]
pub struct Preparation {
    program: Program,
    maker: Arc<Mutex<GraphMaker>>,
    opener: Opener,
    source: ConfigSource,
    readers: Arc<Qsbr>,
}

impl Preparation {
    /// For a router in this program that this file describes, whose graphs this maker makes, whose ports this
    /// opens, and whose tables have these readers.
    pub fn new(
        maker: GraphMaker,
        opener: Opener,
        (program, source): (Program, ConfigSource),
        readers: Arc<Qsbr>,
    ) -> Self {
        Self { program, maker: Arc::new(Mutex::new(maker)), opener, source, readers }
    }

    /// Makes all graphs from now on for these tables.
    pub fn use_tables(&self, tables: NodeTables) {
        lock(&self.maker).use_tables(tables);
    }

    /// Prepares a change for a router that has these ports; with `graphs`, so that it can be made.
    pub fn prepare(
        &self,
        base: Arc<Config>,
        known: &BTreeMap<PortId, Known>,
        wanted: Wanted,
        graphs: bool,
    ) -> Result<Prepared> {
        let strictness = match wanted {
            Wanted::Text(..) | Wanted::File => Strictness::New,
            _ => Strictness::Known,
        };
        let is_checked = !matches!(wanted, Wanted::Text(..) | Wanted::Past(..) | Wanted::File);
        let config = match wanted {
            Wanted::Text(file, text) => Arc::new(self.read(&base, &file, &text)?),
            Wanted::Past(file, text) => {
                let config = self.program.parse(&file, &text)?;
                Arc::new(self.check(&base, config, Strictness::Known)?)
            }
            Wanted::File => Arc::new(self.read_again(&base)?),
            Wanted::Config(config) => {
                let mut config = Config::clone(&config);
                find_vlans(&mut config, &base, &base.found_devices())?;
                Arc::new(config)
            }
            Wanted::Edit(edit) => {
                let mut config = Config::clone(&base);
                edit.make(&mut config, &self.program.catalogue)?;
                Arc::new(config)
            }
            Wanted::VlanDevices(devices) => {
                let mut config = Config::clone(&base);
                find_vlans(&mut config, &base, &devices)?;
                Arc::new(config)
            }
        };
        Binder::here().check(&config, Some(&base))?;
        let imports = changed_imports(&base, &config, is_checked)?;
        let diff = Diff::between(&base, &config);
        let made = graphs && diff.fixed().next().is_none();
        let (before, placement) = (cores::place(&base)?.seats(), cores::place(&config)?);
        let cores = &placement.seats()[..];
        let ready = match made {
            true => open(&self.opener, &base, &diff, known, placement.served())?,
            false => BTreeMap::new(),
        };
        let ports = infos(&base, &config, known, &ready)?;
        let (mut hosts, mut moved) = (Hosts::new(), Hosts::new());
        if made {
            let is_new = |id, _: &Interface| has_none_yet(&base, &config, id);
            hosts = open_hosts(&self.opener, &config, &ports, is_new)?;
            let moves = |id, after: &Interface| has_moved(&base, id, after);
            moved = open_hosts(&self.opener, &config, &ports, moves)?;
        }
        let fibs = if made { self.other_fibs(&base, &config)? } else { None };
        let near = fibs.as_ref().map(|fibs| &fibs.near);
        let (mut graphs, mut more) = (Vec::new(), Vec::new());
        if made {
            let (stay, new) = cores.split_at(before.len().min(cores.len()));
            // Those that are to end get one as well: they run until all have changed.
            let running = [stay, &before[stay.len()..]].concat();
            // Counters of steps in Lua are added up over the forwarders whose graphs are made together.
            let joined = config.script.is_some() && !new.is_empty();
            let others = diff.graph || joined || self.move_to_other_nodes(&before, stay);
            let count = if others { running.len() } else { 0 };
            graphs = self.graphs(&[&running[..count], new].concat(), &config, &ports, near)?;
            more = graphs.split_off(count);
        }
        Ok(Prepared {
            base,
            config,
            strictness,
            diff,
            imports,
            graphs,
            more,
            placement,
            ports,
            ready,
            hosts,
            moved,
            fibs,
        })
    }

    /// Opens the device of a port again, for a router that has this configuration and these ports;
    /// `driver` is the kernel's that a PCI device had.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn reopen(
        &self,
        config: &Config,
        known: &BTreeMap<PortId, Known>,
        id: PortId,
        driver: Option<&str>,
    ) -> Result<Reopened> {
        let wanted = config.port(id).context("no such port")?;
        let placement = cores::place(config)?;
        let (cores, forwarders) = (placement.seats(), placement.served());
        // A device that the router has bound itself is bound again when it is opened.
        if let (config::Device::Pci(address), None, Some(driver)) =
            (&wanted.device, wanted.driver, driver)
        {
            Binder::here().rebind(address, driver)?;
        }
        let memory = self.opener.memory(wanted, forwarders)?;
        let opened = self.opener.device(wanted, forwarders, &memory)?;
        let mut infos = infos(config, config, known, &BTreeMap::new())?;
        let before = std::mem::replace(&mut infos[id.index()], opened.port.info);
        virtuals::add_infos(config, &mut infos)?;
        let other = before != opened.port.info;
        let graphs = self.graphs(if other { &cores } else { &[] }, config, &infos, None)?;
        Ok(Reopened { opened, graphs, infos })
    }

    fn read(&self, base: &Config, file: &Path, text: &str) -> Result<Config> {
        self.check(base, self.program.parse(file, text)?, Strictness::New)
    }

    /// The file of the start, in whichever language it is.
    fn read_again(&self, base: &Config) -> Result<Config> {
        let (config, warnings) = self.source.load(&self.program)?;
        let file = config.file.display();
        warnings.iter().for_each(|warning| tracing::warn!("{file}: {warning}"));
        self.check(base, config, Strictness::New)
    }

    /// Returns true if a path leads to the file of the start.
    pub fn is_start_file(&self, path: &Path) -> bool {
        let real = |path: &Path| fs::canonicalize(path).ok();
        real(path).is_some_and(|path| real(&self.source.file) == Some(path))
    }

    /// Writes the router's configuration to the file of the start, so that a start makes this router again. Returns the
    /// file, and false if it has this text already. `is_known` is asked about the file's present text, unless `None`.
    pub fn save(
        &self,
        current: &Config,
        is_known: Option<impl Fn(&[u8]) -> bool>,
    ) -> Result<(PathBuf, bool)> {
        let file = &self.source.file;
        ensure!(
            self.source.language == Language::Turnpike,
            "{}: not in Turnpike's language, and the router's configuration is; start it with `turnpike convert`'s \
             output",
            file.display()
        );
        // Links stay, and so the file is replaced that they lead to.
        let path = match fs::symlink_metadata(file) {
            Ok(_) => fs::canonicalize(file),
            Err(_) => std::path::absolute(file),
        };
        let path = path.with_context(|| file.display().to_string())?;
        let shown = path.display();
        let before = match fs::read(&path) {
            Ok(before) => Some(before),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(anyhow!(error).context(path.display().to_string())),
        };
        let text = &current.text;
        if let (Some(before), Some(is_known)) = (&before, is_known)
            && !is_known(before)
        {
            bail!(
                "{shown}: edited since the router read it; see turnpike plan {shown}, or save --force to replace it"
            );
        }
        let read = self.read(current, &path, text).with_context(|| {
            format!("{shown}: the configuration is refused there, from {}", current.file.display())
        })?;
        let diff = Diff::between(current, &read);
        let imports = (current.imports.len() == read.imports.len())
            && current.imports.iter().zip(&read.imports).all(|(a, b)| a.is_same(b));
        ensure!(
            diff.is_empty() && imports,
            "{shown}: the applied text alone does not describe the running router: handlers have changed it since, or \
             its files are others there ({}); apply it from there",
            first_difference(&diff)
        );
        if before.as_deref() == Some(text.as_bytes()) {
            return Ok((path, false));
        }
        archive::replace(&path, text.as_bytes())?;
        Ok((path, true))
    }

    /// Compares a configuration with the machine and with what the router has.
    fn check(&self, base: &Config, mut config: Config, strictness: Strictness) -> Result<Config> {
        Binder::here().resolve(&mut config)?;
        let accelerated = |config: &Config| {
            let ports = config.ports.iter().filter(|port| port.accelerate);
            ports.map(|port| port.name.clone()).collect::<BTreeSet<_>>()
        };
        ensure!(
            accelerated(&config) == accelerated(base),
            "the accelerated interfaces are those of the start; stop the router and start it with the others"
        );
        config::check_change(&config, base, virtual_drivers(&config), strictness)
            .map_err(|errors| anyhow!("{errors}"))?;
        quarantine::examine(&config.quarantine.directory)?;
        tls::examine(&config, Some(base), strictness)?;
        config.doubts().iter().for_each(|doubt| tracing::warn!("{doubt}"));
        find_vlans(&mut config, base, &base.found_devices())?;
        Ok(config)
    }

    /// Are there forwarders to read other copies of the tables on these cores than on those before?
    fn move_to_other_nodes(&self, before: &[usize], cores: &[usize]) -> bool {
        let maker = lock(&self.maker);
        before.iter().zip(cores).any(|(&before, &core)| !maker.tables().same(before, core))
    }

    /// A graph for a forwarder on each of these cores, which reads other tables if some are given.
    fn graphs(
        &self,
        cores: &[usize],
        config: &Config,
        ports: &[InterfaceInfo],
        other: Option<&NodeTables>,
    ) -> Result<Vec<ForwarderGraph>> {
        let mut maker = lock(&self.maker);
        match other {
            Some(tables) => maker.make_all_for(tables, cores, config, ports),
            None => maker.make_all(cores, config, ports),
        }
    }

    /// Makes route tables of another structure, if the configuration wants that, for the VRFs that there are and
    /// those to come.
    fn other_fibs(&self, base: &Config, config: &Config) -> Result<Option<OtherFibs>> {
        if base.fib == config.fib {
            return Ok(None);
        }
        let present = {
            let maker = lock(&self.maker);
            maker.tables().clone()
        };
        let wanted = config.vrfs.iter().map(|vrf| vrf.id.index() + 1).max().unwrap_or(0);
        let count = present.common().vrfs.count().max(wanted);
        let make = |vrf| owner::new_fibs(vrf, config.fib, &present.nodes(), &self.readers);
        let vrfs = (0..count as u16).map(VrfId::new);
        let empty = vrfs.map(make).collect::<Result<Vec<_>, _>>()?;
        let readers: Vec<_> =
            empty.iter().map(|(fib4, fib6)| (fib4.readers(), fib6.readers())).collect();
        Ok(Some(OtherFibs { empty, near: present.with_fibs(&readers) }))
    }
}

/// Gives a configuration the VLANs of these devices of the kernel, and the numbers that the running one has.
fn find_vlans(config: &mut Config, base: &Config, devices: &[FoundVlan]) -> Result<()> {
    config.set_found(config.find_vlans(devices).vlans);
    config.align(base).map_err(|error| anyhow!("{}: {error}", config.file.display()))
}

/// Reads the tables of imports that are new or other. With `is_checked` the router rolls back to a configuration that
/// it had, which must not fail for want of a file: an import whose file cannot be read any more keeps its routes.
fn changed_imports(base: &Config, config: &Config, is_checked: bool) -> Result<Vec<Exchange>> {
    let mut exchanges = Vec::new();
    for (metric, import) in (0..).zip(&config.imports) {
        if base.imports.get(metric as usize).is_some_and(|before| before.is_same(import)) {
            continue;
        }
        match read_table(&import.file, &mut |_, _, _| true) {
            Ok(table) => exchanges.push(Exchange::to_table(import, metric, table)),
            Err(error) if is_checked => {
                tracing::error!("{error}; this import keeps the routes it has now")
            }
            Err(error) => {
                let place = format!("{}:{}", config.file.display(), import.line);
                return Err(anyhow::Error::new(error).context(place));
            }
        }
    }
    let removed = (0..).zip(&base.imports).skip(config.imports.len());
    exchanges.extend(removed.map(|(metric, _)| Exchange::to_nothing(metric)));
    Ok(exchanges)
}

/// Names a difference.
fn first_difference(diff: &Diff) -> String {
    let setting = diff.settings.first().map(|setting| setting.what.clone());
    setting.unwrap_or_else(|| "routes or imports".to_owned())
}

/// A port whose device is back.
pub struct Reopened {
    /// The port.
    pub opened: Opened,
    /// A graph for each forwarder, if steps must know of another MAC.
    pub graphs: Vec<ForwarderGraph>,
    /// The ports' new properties for steps, by number.
    pub infos: Vec<InterfaceInfo>,
}

/// The parts of a port that are opened before anything that runs is touched.
pub struct Ready {
    /// Its device, or packet memory for it where a running port has that device until then.
    pub device: Result<Opened, Mempool>,
    /// Its host interface, unless it has that already.
    pub host: Option<HostInterface>,
}

/// Opens what can be opened beside the running ports.
fn open(
    opener: &Opener,
    base: &Config,
    diff: &Diff,
    known: &BTreeMap<PortId, Known>,
    forwarders: usize,
) -> Result<BTreeMap<PortId, Ready>> {
    let mut all = BTreeMap::new();
    for port in diff.ports.added.iter().chain(diff.ports.changed.iter().map(|(_, after)| after)) {
        let holder = base.ports.iter().find(|other| other.device.is_same(&port.device));
        let memory = opener.memory(port, forwarders)?;
        let device = match holder {
            None => Ok(opener.device(port, forwarders, &memory)?),
            Some(_) => Err(memory),
        };
        let info = match &device {
            Ok(opened) => opened.port.info,
            Err(_) => {
                holder.map_or(InterfaceInfo::NONE, |holder| info_by(port, known.get(&holder.id)))
            }
        };
        let has_host = base.port(port.id).is_some_and(|before| before.interface.host.is_some());
        let open = device.as_ref().ok().map(|opened| &opened.port);
        let host = if has_host { None } else { opener.host(port, info, open)? };
        host.iter().for_each(HostInterface::set_provisional);
        all.insert(port.id, Ready { device, host });
    }
    Ok(all)
}

/// Returns the future properties of a port whose device is now held by another port, or by its former self.
fn info_by(port: &config::Port, holder: Option<&Known>) -> InterfaceInfo {
    let Some(&Known { info, device_mac }) = holder else { return InterfaceInfo::NONE };
    InterfaceInfo {
        mac: port.mac.unwrap_or(device_mac),
        mtu: port.mtu.unwrap_or(info.mtu),
        vrf: port.interface.settings.vrf,
        host: port.interface.host.is_some(),
        features: port.interface.features(),
        ..info
    }
}

/// Returns the properties of all interfaces for steps, by number, those to be removed included.
fn infos(
    base: &Config,
    config: &Config,
    known: &BTreeMap<PortId, Known>,
    ready: &BTreeMap<PortId, Ready>,
) -> Result<Vec<InterfaceInfo>> {
    let mut infos = vec![InterfaceInfo::NONE; MAX_PORTS];
    for (id, known) in known {
        infos[id.index()] = known.info;
    }
    for port in &config.ports {
        let opened = ready.get(&port.id).and_then(|ready| ready.device.as_ref().ok());
        let same = |other: &&config::Port| other.device.is_same(&port.device);
        let holder = base.ports.iter().find(same).and_then(|holder| known.get(&holder.id));
        infos[port.id.index()] = match opened {
            Some(opened) => opened.port.info,
            None => info_by(port, holder),
        };
    }
    // Bonds and VLANs to be removed exist until forwarders have changed; their errors were reported when they were added.
    let _ = virtuals::add_infos(base, &mut infos);
    virtuals::add_infos(config, &mut infos)?;
    Ok(infos)
}

/// Opens host interfaces for the interfaces that ask for them and are chosen, to be given up unless the change is made.
fn open_hosts(
    opener: &Opener,
    config: &Config,
    infos: &[InterfaceInfo],
    is_chosen: impl Fn(InterfaceId, &Interface) -> bool,
) -> Result<Hosts> {
    let mut hosts = Hosts::new();
    for (id, name, interface) in config.interfaces().filter(|(id, _, of)| is_chosen(*id, of)) {
        let kind = config.virtual_interface(id).map_or("port", |of| of.kind);
        let info = infos.get(id.index()).copied().unwrap_or(InterfaceInfo::NONE);
        let device = config.kernel_device(id);
        if let Some(host) = opener.host_of(kind, name, interface.host.as_ref(), device, info)? {
            host.set_provisional();
            hosts.insert(id, host);
        }
    }
    Ok(hosts)
}

/// Returns true for a bond or VLAN that has no host interface yet, or another kind: a TAP, the kernel's VLAN device.
fn has_none_yet(base: &Config, config: &Config, id: InterfaceId) -> bool {
    id.port().is_none()
        && (base.interface(id).is_none_or(|before| before.host.is_none())
            || base.kernel_device(id) != config.kernel_device(id))
}

/// Returns true for an interface whose host interface is to be in another network namespace, beside the one that it
/// replaces.
fn has_moved(base: &Config, id: InterfaceId, after: &Interface) -> bool {
    let before = base.interface(id).and_then(|before| before.host.as_ref());
    before.zip(after.host.as_ref()).is_some_and(|(before, after)| {
        before.netns != after.netns && before.in_kernel == after.in_kernel
    })
}
