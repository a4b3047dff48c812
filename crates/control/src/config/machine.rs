//! Requirements of a configuration on the machine: cores, devices and files that must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;

use wire::MacAddr;

use super::error::{Collector, ConfigErrors, suggestion};
use super::{Config, Cores, Device, Holder, Port};
use crate::cores::{CorePlacement, Supply, parse_cores, supply};
use crate::gate::{gid_of, uid_of};

/// Resources of a machine that configurations refer to.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Cores that are online.
    pub cores: BTreeSet<usize>,
    /// Cores that this process may use.
    pub supply: Supply,
    /// Kernel interfaces of this process's network namespace.
    pub interfaces: BTreeSet<String>,
    /// Network functions on the PCI bus, with their domains.
    pub pci: BTreeSet<String>,
    /// Named network namespaces.
    pub netns: BTreeSet<String>,
    /// DPDK's drivers of virtual devices, by the prefixes of their devices' names; empty: unknown.
    pub vdevs: BTreeSet<String>,
}

impl Machine {
    /// Examines this machine, by the kernel's files in `/sys` and `/proc`.
    ///
    /// # Errors
    /// A file of the kernel cannot be read.
    pub fn here() -> io::Result<Self> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let list = |text: &str| parse_cores(text.trim()).map(BTreeSet::from_iter).map_err(invalid);
        Ok(Self {
            cores: list(&fs::read_to_string("/sys/devices/system/cpu/online")?)?,
            supply: supply()?.clone(),
            interfaces: interfaces(&fs::read_to_string("/proc/self/net/dev")?),
            pci: network_functions(),
            netns: names_in(Path::new("/run/netns")),
            // Filled in by callers with access to DPDK.
            vdevs: BTreeSet::new(),
        })
    }
}

/// Returns the kernel interfaces of this process's network namespace by their MACs. Of several with
/// one MAC the oldest is used: others, such as VLANs and host interfaces, are created over it.
///
/// # Errors
/// The kernel's error.
pub fn interfaces_by_mac() -> io::Result<BTreeMap<MacAddr, String>> {
    let mut interfaces = BTreeMap::new();
    for found in nix::ifaddrs::getifaddrs()? {
        let address = found.address.as_ref().and_then(|address| address.as_link_addr()?.addr());
        let Some(mac) = address.map(MacAddr).filter(|mac| *mac != MacAddr::default()) else {
            continue;
        };
        interfaces.entry(mac).or_insert(found.interface_name);
    }
    Ok(interfaces)
}

/// Returns the names in `/proc/self/net/dev`, which unlike `/sys` always shows the process's own
/// network namespace.
fn interfaces(table: &str) -> BTreeSet<String> {
    let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Returns the names in a directory; none if it does not exist.
fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the PCI functions of class 02, network controller; none if there is no PCI bus.
fn network_functions() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir("/sys/bus/pci/devices") else { return BTreeSet::new() };
    entries
        .flatten()
        .filter(|entry| {
            fs::read_to_string(entry.path().join("class")).is_ok_and(|c| c.starts_with("0x02"))
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The strictness of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// For a new configuration: all of it must exist.
    New,
    /// For one that may have been accepted before: holders of roles may be gone since, and hold nothing then.
    Known,
}

/// Checks a configuration against this machine, whose DPDK has these drivers of virtual devices.
///
/// # Errors
/// Every missing core, device, file or user.
pub fn check_machine(
    config: &Config,
    vdevs: BTreeSet<String>,
    strictness: Strictness,
) -> Result<(), ConfigErrors> {
    check_here(config, &[], vdevs, strictness)
}

/// Like [`check_machine`], for a router that has the ports of another configuration: their devices
/// may be missing for a while.
///
/// # Errors
/// Those of [`check_machine`].
pub fn check_change(
    config: &Config,
    base: &Config,
    vdevs: BTreeSet<String>,
    strictness: Strictness,
) -> Result<(), ConfigErrors> {
    check_here(config, &base.ports, vdevs, strictness)
}

fn check_here(
    config: &Config,
    open: &[Port],
    vdevs: BTreeSet<String>,
    strictness: Strictness,
) -> Result<(), ConfigErrors> {
    let mut errors = Collector::new(&config.file);
    match Machine::here() {
        Ok(mut machine) => {
            machine.vdevs = vdevs;
            for port in open {
                match &port.device {
                    Device::Kernel(name) => machine.interfaces.insert(name.clone()),
                    Device::Pci(address) => machine.pci.insert(address.clone()),
                    Device::Vdev(_) => false,
                };
            }
            return check_machine_with(config, &machine, strictness);
        }
        Err(error) => errors.add(None, format!("the machine cannot be examined: {error}")),
    }
    errors.finish()
}

/// Like [`check_machine`], for a given machine.
///
/// # Errors
/// Those of [`check_machine`].
pub fn check_machine_with(
    config: &Config,
    machine: &Machine,
    strictness: Strictness,
) -> Result<(), ConfigErrors> {
    let mut errors = Collector::new(&config.file);
    check_cores(config, machine, &mut errors);
    for port in &config.ports {
        let (kind, name, known) = match &port.device {
            Device::Kernel(name) => ("device", name, &machine.interfaces),
            Device::Pci(address) => ("PCI device", address, &machine.pci),
            Device::Vdev(name) => {
                check_vdev(port, name, &machine.vdevs, &mut errors);
                continue;
            }
        };
        if !known.contains(name) {
            let rest = suggestion_or_none(name, known);
            let message = format!("port \"{}\": {kind} {name} not found{rest}", port.name);
            errors.add(Some(port.line), message);
        }
    }
    check_namespaces(config, machine, &mut errors);
    check_users(config, &mut errors);
    if strictness == Strictness::New {
        check_holders(config, &mut errors);
    }
    for import in &config.imports {
        if let Err(error) = readable(&import.file) {
            let file = import.file.display();
            errors.add(Some(import.line), format!("import: file {file} cannot be read: {error}"));
        }
    }
    errors.finish()
}

/// Checks that a virtual device's name begins with that of its driver.
fn check_vdev(port: &Port, device: &str, known: &BTreeSet<String>, errors: &mut Collector) {
    // Names without `net_` may be aliases of drivers, which DPDK does not list.
    let of_driver = !known.is_empty() && device.starts_with("net_");
    if !of_driver || known.iter().any(|driver| device.starts_with(driver.as_str())) {
        return;
    }
    let name = device.split(',').next().unwrap_or(device);
    let driver = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let rest = suggestion_or_none(driver, known);
    let message =
        format!("port \"{}\": device {name}: DPDK has no driver {driver}{rest}", port.name);
    errors.add(Some(port.line), message);
}

/// Checks the network namespaces of host interfaces. A path is only checked for existence.
fn check_namespaces(config: &Config, machine: &Machine, errors: &mut Collector) {
    for port in &config.ports {
        let Some(name) = port.interface.host.as_ref().and_then(|host| host.netns.as_ref()) else {
            continue;
        };
        let is_there = match name.starts_with('/') {
            true => Path::new(name).exists(),
            false => machine.netns.contains(name),
        };
        if !is_there {
            let known = list_or_none(machine.netns.iter());
            let message = format!(
                "port \"{}\": host: network namespace \"{name}\" not found; known: {known}; make it: ip netns \
                 add NAME",
                port.name
            );
            errors.add(Some(port.line), message);
        }
    }
}

/// Checks the users that may connect to telnet, FPM and control sockets, and groups.
fn check_users(config: &Config, errors: &mut Collector) {
    let telnet = config.telnet.iter().map(|telnet| ("telnet", &telnet.users));
    let fpm = config.fpm.iter().map(|fpm| ("fpm", &fpm.users));
    let sockets = config.control_sockets.iter().map(|socket| ("control_socket", &socket.users));
    for (what, users) in telnet.chain(fpm).chain(sockets) {
        for reason in users.iter().filter_map(|user| uid_of(user).err()) {
            errors.add(None, format!("{what}: users: {reason}"));
        }
    }
    let metrics = config.metrics.iter().map(|metrics| ("metrics", &metrics.group));
    let api = config.api.iter().map(|api| ("api", &api.at.group));
    let access = config.access.iter().map(|access| ("access", &access.group));
    for (what, group) in metrics.chain(api).chain(access) {
        if let Some(reason) = group.as_ref().and_then(|group| gid_of(group).err()) {
            errors.add(None, format!("{what}: {reason}"));
        }
    }
}

/// Checks the holders of roles.
fn check_holders(config: &Config, errors: &mut Collector) {
    let roles = config.access.iter().flat_map(|access| {
        [("read", &access.read), ("operate", &access.operate), ("configure", &access.configure)]
    });
    for (role, holder) in roles.flat_map(|(role, all)| all.iter().map(move |one| (role, one))) {
        let found = match holder {
            Holder::User(name) => uid_of(name),
            Holder::Group(name) => gid_of(name),
            // An authority gives it.
            Holder::Certificate(_) => continue,
        };
        if let Err(reason) = found {
            errors.add(None, format!("access: {role}: {reason}"));
        }
    }
}

fn check_cores(config: &Config, machine: &Machine, errors: &mut Collector) {
    let Cores { control_line, control, forward_line, forward } = &config.cores;
    for (what, line, cores) in
        [("forwarders", forward_line, forward), ("control", control_line, control)]
    {
        for core in cores {
            let message = if !machine.cores.contains(core) {
                let online = list_or_none(machine.cores.iter());
                format!("{what}: core {core} does not exist; this machine has {online}")
            } else if !machine.supply.allowed.contains(core) {
                let allowed = list_or_none(machine.supply.allowed.iter());
                format!(
                    "{what}: core {core} is not allowed to this process (cpuset or taskset); allowed: {allowed}"
                )
            } else {
                continue;
            };
            errors.add(*line, message);
        }
    }
    let placement = match CorePlacement::new(control, forward, &machine.supply) {
        Ok(placement) => placement,
        Err(reason) => return errors.add(*control_line, format!("cores: {reason}")),
    };
    let Some(events) = &config.forwarders.events else { return };
    for (key, core) in
        [("receive_core", events.receive_core), ("scheduler_core", events.scheduler_core)]
    {
        if let Some(core) = core.filter(|core| !machine.supply.allowed.contains(core)) {
            let allowed = list_or_none(machine.supply.allowed.iter());
            let message = format!(
                "forwarders: {key}: core {core} does not exist or is not allowed to this process; allowed: {allowed}"
            );
            errors.add(Some(events.line), message);
        }
    }
    if let Err(reason) = placement.around_events(events.receive_core) {
        errors.add(Some(events.line), format!("forwarders: {reason}"));
    }
}

/// Checks for a file that can be opened and is not a directory.
fn readable(path: &std::path::Path) -> io::Result<()> {
    if File::open(path)?.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    Ok(())
}

/// Returns a [`suggestion`] from the machine's resources, which may be none.
fn suggestion_or_none(word: &str, known: &BTreeSet<String>) -> String {
    if known.is_empty() {
        return "; known: none".to_owned();
    }
    suggestion(word, "known", &known.iter().map(String::as_str).collect::<Vec<_>>())
}

fn list_or_none(items: impl Iterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dataplane::catalogue::Catalogue;

    use super::super::{Limits, parse};
    use super::*;

    fn machine() -> Machine {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Machine {
            cores: BTreeSet::from([0, 1, 2]),
            supply: Supply { allowed: BTreeSet::from([0, 1]), isolated: BTreeSet::new() },
            interfaces: names(&["lo", "eth0", "eth1"]),
            pci: BTreeSet::new(),
            netns: names(&["blue"]),
            vdevs: names(&["net_null", "net_tap"]),
        }
    }

    fn errors(text: &str) -> String {
        errors_of(text, Strictness::New)
    }

    fn errors_of(text: &str, strictness: Strictness) -> String {
        let text = format!("local turnpike = require 'turnpike'\n{text}");
        let catalogue = Catalogue::default();
        let config = parse(Path::new("r.lua"), &text, Limits::default(), &catalogue).unwrap();
        let checked = check_machine_with(&config, &machine(), strictness);
        checked.map_or_else(|e| e.to_string(), |()| String::new())
    }

    #[test]
    fn what_is_there_is_accepted() {
        let text = "turnpike.port 'a' { device = 'eth0', host = { netns = 'blue' } }\n\
                    turnpike.port 'b' { device = 'net_null0' }\n\
                    turnpike.port 'c' { device = 'virtio_user7,path=/x' }\n\
                    turnpike.forwarders { cores = '0-1' }";
        assert_eq!(errors(text), "");
    }

    #[test]
    fn what_is_missing_is_named_with_what_there_is() {
        for (text, expected) in [
            (
                "turnpike.port 'a' { device = 'eth9' }",
                "r.lua:2: port \"a\": device eth9 not found; did you mean \"eth0\"? known: eth0, eth1, lo",
            ),
            (
                "turnpike.port 'a' { device = 'wan' }",
                "r.lua:2: port \"a\": device wan not found; known: eth0, eth1, lo",
            ),
            (
                "turnpike.port 'a' { device = '03:00.0' }",
                "r.lua:2: port \"a\": PCI device 0000:03:00.0 not found; known: none",
            ),
            (
                "turnpike.port 'a' { device = 'eth0' }\nturnpike.forwarders { cores = '1-3' }",
                "r.lua:3: forwarders: core 2 is not allowed to this process (cpuset or taskset); allowed: 0, 1\n\
                 r.lua:3: forwarders: core 3 does not exist; this machine has 0, 1, 2",
            ),
            (
                "turnpike.port 'a' { device = 'eth0' }\nturnpike.cores { control = '2-3', forward = 1 }",
                "r.lua:3: control: core 2 is not allowed to this process (cpuset or taskset); allowed: 0, 1\n\
                 r.lua:3: control: core 3 does not exist; this machine has 0, 1, 2",
            ),
            (
                "turnpike.port 'a' { device = 'eth0' }\nturnpike.cores { control = '0-1' }",
                "r.lua:3: cores: control has every core that this process may use (0, 1), and none is left for \
                 forwarders; name fewer, or leave control out on a machine of one core",
            ),
            (
                "turnpike.port 'a' { device = 'eth0', address = '10.0.0.1/24' }\n\
                 turnpike.import { file = '/nonexistent/t', via = '10.0.0.2' }",
                "r.lua:3: import: file /nonexistent/t cannot be read: No such file or directory (os error 2)",
            ),
            (
                "turnpike.port 'a' { device = 'eth0', address = '10.0.0.1/24' }\n\
                 turnpike.import { file = '/', via = '10.0.0.2' }",
                "r.lua:3: import: file / cannot be read: it is a directory",
            ),
            (
                "turnpike.port 'a' { device = 'net_tup0,iface=x' }",
                "r.lua:2: port \"a\": device net_tup0: DPDK has no driver net_tup; did you mean \"net_tap\"? known: \
                 net_null, net_tap",
            ),
            (
                "turnpike.port 'a' { device = 'eth0', host = { netns = 'red' } }",
                "r.lua:2: port \"a\": host: network namespace \"red\" not found; known: blue; make it: ip netns add NAME",
            ),
            (
                "turnpike.port 'a' { device = 'eth0' }\nturnpike.telnet { users = { 'root', '7', 'no-one-here' } }",
                "r.lua: telnet: users: user \"no-one-here\" unknown; `getent passwd` lists those there are; a \
                 number such as \"1000\" will do",
            ),
        ] {
            assert_eq!(errors(text), expected, "{text}");
        }
    }

    /// An account that is deleted keeps no router from starting.
    #[test]
    fn holders_of_roles_may_be_gone_later() {
        let text = "turnpike.port 'a' { device = 'eth0' }\n\
                    turnpike.access { read = { 'group:no-group-here' }, operate = { 'no-one-here' } }";
        let found = errors(text);
        assert!(found.contains("access: read: group \"no-group-here\" unknown"), "{found}");
        assert!(found.contains("access: operate: user \"no-one-here\" unknown"), "{found}");
        assert_eq!(errors_of(text, Strictness::Known), "");
    }

    #[test]
    fn this_machine_has_a_core_and_a_loopback_interface() {
        let machine = Machine::here().unwrap();
        assert!(
            machine.supply.allowed.is_subset(&machine.cores) && !machine.supply.allowed.is_empty()
        );
        assert!(machine.interfaces.contains("lo"), "{machine:?}");
    }

    #[test]
    fn the_kernels_table_of_interfaces_is_read() {
        let table = "Inter-|   Receive\n face |bytes\n    lo: 1 2 3\ntp-left: 4 5\n eth0.5:6\n";
        let expected = ["eth0.5", "lo", "tp-left"].map(str::to_owned);
        assert_eq!(interfaces(table), BTreeSet::from(expected));
    }
}
