//! The devices of a router's ports: bound before DPDK probes them, given back when their ports are
//! closed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use anyhow::{Result, anyhow, bail};
use control::config::{Config, Device, Port};

use super::check::in_use;
use super::record::{Record, Records};
use super::{Binder, Wish, record, users};
use crate::place::of_port;

/// Devices bound by a router.
pub struct Bindings {
    binder: Binder,
    taken: Mutex<Vec<Taken>>,
}

/// Marks a device as in use; it is not given back before this is dropped.
pub type Hold = Arc<()>;

struct Taken {
    record: Record,
    hold: Hold,
}

impl Binder {
    /// Replaces kernel interfaces whose NICs are to be bound by PCI addresses. A missing interface
    /// is looked up among those that routers have bound.
    ///
    /// # Errors
    /// Interfaces that are not PCI NICs, and devices used by two ports.
    pub fn resolve(&self, config: &mut Config) -> Result<()> {
        let mut problems = Vec::new();
        let file = config.file.clone();
        for port in config.ports.iter_mut().filter(|port| is_bound(port)) {
            let Device::Kernel(name) = &port.device else { continue };
            match self.address_of(name) {
                Some(address) => port.device = Device::Pci(address),
                None if self.machine.interfaces().contains(name) => problems.push(said(
                    &file,
                    port,
                    &format!(
                        "device {name} is no PCI NIC, which its driver needs; leave driver out"
                    ),
                )),
                // Reported with the known ones when devices are looked up.
                None => {}
            }
        }
        for (place, port) in config.ports.iter().enumerate() {
            let same = |other: &&Port| other.device == port.device;
            if let Some(other) = config.ports[..place].iter().find(same) {
                let problem = format!(
                    "device {} is taken by port \"{}\" on line {}; a device makes one port",
                    port.device, other.name, other.line
                );
                problems.push(said(&file, port, &problem));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(anyhow!(problems.join("\n"))) }
    }

    /// Returns the address of the NIC to which a kernel interface belongs, or belonged before the
    /// NIC was bound.
    fn address_of(&self, name: &str) -> Option<String> {
        let was = |seen: &record::Seen| {
            seen.found.interface.as_ref().is_some_and(|interface| interface.name == name)
        };
        let here = self.machine.pci_of_interface(name);
        here.or_else(|| record::all(&self.machine).into_iter().find(was).map(|seen| seen.address))
    }

    /// Checks the PCI NICs and kernel interfaces of a configuration, except missing ones and those
    /// of a running router with the configuration `base`.
    ///
    /// # Errors
    /// The reasons why ports cannot have their devices, a line each.
    pub fn check(&self, config: &Config, base: Option<&Config>) -> Result<()> {
        let has = |port: &&Port| {
            base.is_none_or(|base| !base.ports.iter().any(|before| before.device == port.device))
        };
        let is_there = |port: &&Port| match &port.device {
            Device::Pci(address) => self.machine.pci_nic(address).is_some(),
            _ => false,
        };
        let ports: Vec<&Port> = config.ports.iter().filter(has).filter(is_there).collect();
        let (bound, others): (Vec<&Port>, _) = ports.into_iter().partition(|port| is_bound(port));
        let wishes: Vec<Wish> = bound.iter().filter_map(|port| wish(port)).collect();
        let obstacles =
            self.obstacles(&wishes).into_iter().map(|(place, problem)| (bound[place], problem));
        let unusable = others.into_iter().filter_map(|port| match &port.device {
            Device::Pci(address) => Some((port, self.unusable(address)?)),
            _ => None,
        });
        let carrying = self.carrying(config).into_iter();
        let carrying = carrying.filter(|(port, _)| has(port) && !port.take_over).map(|(port, carried)| {
            let problem = format!(
                "device {carried}: lost to the machine until the router ends; take it away (ip address flush dev {0}, ip \
                 route), or write take_over = true if that is meant",
                port.device
            );
            (port, problem)
        });
        let mut problems: Vec<_> = obstacles.chain(unusable).chain(carrying).collect();
        problems.sort_by_key(|(port, _)| port.line);
        let lines: Vec<_> =
            problems.iter().map(|(port, problem)| said(&config.file, port, problem)).collect();
        if lines.is_empty() { Ok(()) } else { Err(anyhow!(lines.join("\n"))) }
    }

    /// Returns the needs of the machine that this configuration overrides by `take_over`, a line
    /// for each interface.
    pub fn taken_over(&self, config: &Config) -> Vec<String> {
        let taken = self.carrying(config).into_iter().filter(|(port, _)| port.take_over);
        let warning = |(port, carried): (&Port, String)| {
            let name = &port.name;
            format!(
                "port \"{name}\": device {carried}: lost to the machine until the router ends (take_over)"
            )
        };
        taken.map(warning).collect()
    }

    /// Returns the ports whose devices are kernel interfaces that the machine itself needs, with
    /// the reasons.
    fn carrying<'c>(&self, config: &'c Config) -> Vec<(&'c Port, String)> {
        // An accelerated interface goes on to serve the machine.
        let taken = config.ports.iter().filter(|port| !port.accelerate);
        let kernel = taken.filter(|port| matches!(port.device, Device::Kernel(_)));
        let kernel: Vec<&Port> = kernel.collect();
        if kernel.is_empty() {
            return Vec::new();
        }
        let network = (self.network)();
        let carried = |port: &&'c Port| {
            let Device::Kernel(name) = &port.device else { return None };
            let users = users::of_interface(&self.machine, &network, name);
            let needs: Vec<_> =
                users.iter().filter(|user| !user.is_program()).map(ToString::to_string).collect();
            (!needs.is_empty()).then(|| (*port, format!("{name} carries {}", needs.join(", "))))
        };
        kernel.iter().filter_map(carried).collect()
    }

    /// Binds a device again that was removed while a port used it, unless another driver has it.
    ///
    /// # Errors
    /// The other driver, or the failed step, with a remedy.
    pub fn rebind(&self, address: &str, driver: &str) -> Result<()> {
        let nic = self.nic(address)?;
        match nic.driver.as_deref() {
            Some(now) if now == driver => Ok(()),
            Some(now) => bail!(
                "{address} is bound to {now} now, and was to {driver}; bind it again: turnpike bind {address} \
                 --driver {driver}"
            ),
            None => {
                self.load(driver)?;
                let domain = self.domain_for(&nic, driver, None);
                self.switch(&nic, Some(driver), domain.as_deref())
            }
        }
    }

    /// Gives back the devices that killed routers left bound, except those of this configuration.
    pub fn give_back_left(&self, config: &Config) {
        let wanted = wanted(config);
        let left = record::all(&self.machine).into_iter();
        let left = left.filter(|seen| seen.found.by_router && !seen.in_use);
        for seen in left.filter(|seen| !wanted.contains(&seen.address)) {
            let (address, driver) = (&seen.address, seen.found.driver.as_deref());
            let nic = self.machine.pci_nic(address);
            let problem = nic.and_then(|nic| in_use(&nic, &self.users(&nic)));
            let give_back = || {
                let records = Records::open(&self.machine)?;
                let record = records.adopt(address);
                record.map_or(Ok(Vec::new()), |record| self.give_back(&records, record))
            };
            report(
                address,
                driver,
                problem.map_or_else(give_back, |problem| Err(anyhow!(problem))),
            );
        }
    }

    /// Returns the driver of a PCI device.
    pub fn driver(&self, address: &str) -> Option<String> {
        self.machine.pci_driver(address)
    }
}

/// Returns true if the port's configuration binds its NIC.
fn is_bound(port: &Port) -> bool {
    port.driver.is_some_and(|driver| driver.is_pci())
}

/// Returns the addresses of the devices to be bound for a configuration.
pub fn wanted(config: &Config) -> BTreeSet<String> {
    config.ports.iter().filter_map(|port| Some(wish(port)?.address)).collect()
}

fn wish(port: &Port) -> Option<Wish> {
    let Device::Pci(address) = &port.device else { return None };
    let driver = port.driver.filter(|driver| driver.is_pci())?.name().to_owned();
    Some(Wish { address: address.clone(), driver, force: false, router: true })
}

fn said(file: &Path, port: &Port, problem: &str) -> String {
    format!("{}:{}: port \"{}\": {problem}", file.display(), port.line, port.name)
}

impl Bindings {
    /// Binds the devices of a configuration, all or none.
    ///
    /// # Errors
    /// A reason why one cannot be bound, or the failed step.
    pub fn at_start(binder: Binder, config: &Config) -> Result<Arc<Self>> {
        let bindings = Arc::new(Self { binder, taken: Mutex::default() });
        bindings.binder.check(config, None)?;
        for port in &config.ports {
            if let Err(error) = bindings.take(port) {
                bindings.give_back_all();
                return Err(of_port(error, &port.name));
            }
        }
        Ok(bindings)
    }

    /// Binds the device of a port, if configured, and keeps it until the result is dropped. A
    /// device that the router bound before and that was unplugged in the meantime is bound again.
    ///
    /// # Errors
    /// A reason why it cannot be bound, or the failed step.
    pub fn take(&self, port: &Port) -> Result<Option<Hold>> {
        let Some(wish) = wish(port) else { return Ok(None) };
        let mut taken = self.taken();
        let nic = self.binder.nic(&wish.address)?;
        if let Some(taken) = taken.iter().find(|taken| taken.record.address == wish.address) {
            if nic.driver.as_deref() != Some(&wish.driver) {
                self.take_again(&taken.record, &wish)?;
            }
            return Ok(Some(taken.hold.clone()));
        }
        let records = Records::open(&self.binder.machine)?;
        let Some(record) = self.binder.take(&records, &nic, &wish)? else { return Ok(None) };
        let before = record.found.driver.as_deref().unwrap_or("no driver");
        tracing::info!(
            "port \"{}\": {} bound to {}; {before} gets it back",
            port.name,
            wish.address,
            wish.driver
        );
        let hold = Hold::default();
        taken.push(Taken { record, hold: hold.clone() });
        Ok(Some(hold))
    }

    fn take_again(&self, record: &Record, wish: &Wish) -> Result<()> {
        let binder = &self.binder;
        let nic = binder.nic(&wish.address)?;
        let mut users = binder.users(&nic);
        // The only program is this router itself.
        users.retain(|user| !user.is_program());
        if let Some(problem) = binder.of_the_machine(&nic, wish, &users) {
            bail!(problem);
        }
        binder.load(&wish.driver)?;
        let domain = binder.domain_for(&nic, &wish.driver, record.found.domain.as_deref());
        binder.switch(&nic, Some(&wish.driver), domain.as_deref())
    }

    /// Gives back devices that are not [`wanted`] and not in use. `is_open` returns true if DPDK
    /// has the device.
    pub fn give_back_unused(&self, wanted: &BTreeSet<String>, is_open: impl Fn(&str) -> bool) {
        let mut taken = self.taken();
        let unused = |taken: &mut Taken| {
            let address = &taken.record.address;
            !wanted.contains(address) && Arc::strong_count(&taken.hold) == 1 && !is_open(address)
        };
        for taken in taken.extract_if(.., unused) {
            self.give_back(taken.record);
        }
    }

    /// Returns the addresses of the devices; none while they are being changed.
    pub fn addresses(&self) -> Vec<String> {
        let Ok(taken) = self.taken.try_lock() else { return Vec::new() };
        taken.iter().map(|taken| taken.record.address.clone()).collect()
    }

    /// Returns true while devices are being bound or given back.
    pub fn are_changing(&self) -> bool {
        matches!(self.taken.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Gives all devices back at the end, after DPDK has closed them.
    pub fn give_back_all(&self) {
        for taken in self.taken().drain(..) {
            let address = &taken.record.address;
            let by_vfio = self.binder.driver(address).as_deref() == Some("vfio-pci");
            if by_vfio && self.binder.has_vfio_device() {
                tracing::warn!(
                    "{address} is open still and stays bound to vfio-pci; give it back: turnpike unbind {address}"
                );
                continue;
            }
            self.give_back(taken.record);
        }
    }

    fn give_back(&self, record: Record) {
        let (address, driver) = (record.address.clone(), record.found.driver.clone());
        let give_back = || self.binder.give_back(&Records::open(&self.binder.machine)?, record);
        report(&address, driver.as_deref(), give_back());
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(address: &str, driver: Option<&str>, outcome: Result<Vec<String>>) {
    match outcome {
        Ok(lost) => {
            tracing::info!("{address}: given back to {}", driver.unwrap_or("no driver"));
            lost.iter().for_each(|lost| tracing::warn!("{address}: not as it was: {lost}"));
        }
        Err(error) => tracing::warn!("{error:#}; try again: turnpike unbind {address}"),
    }
}
