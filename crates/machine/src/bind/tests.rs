//! Tests of binding, refusals and return, on a machine and a kernel made of files.

use std::path::Path;

use control::config::{self, Config, Limits};
use dataplane::catalogue::Catalogue;

use super::ports::{Bindings, wanted};
use super::testing::{ADDRESS, Lab, add_nic};
use super::*;

fn wish(driver: &str) -> Wish {
    Wish { address: ADDRESS.into(), driver: driver.into(), force: false, router: false }
}

fn forced(driver: &str) -> Wish {
    Wish { force: true, ..wish(driver) }
}

fn error(lab: &Lab, wish: Wish) -> String {
    format!("{:#}", lab.binder.bind(&[wish], false).unwrap_err())
}

fn config(text: &str) -> Config {
    let text = format!("local turnpike = require 'turnpike'\n{text}");
    let catalogue = Catalogue::default();
    config::parse(Path::new("r.lua"), &text, Limits::default(), &catalogue).unwrap()
}

fn resolved(lab: &Lab, text: &str) -> Config {
    let mut config = config(text);
    lab.binder.resolve(&mut config).unwrap();
    config
}

const LAN: &str = "turnpike.port 'lan' { device = 'eth1', driver = 'vfio-pci' }";

#[test]
fn a_nic_is_bound_and_given_back_with_its_interface() {
    let lab = Lab::new();
    let bound = lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    assert_eq!(bound[0].before.as_deref(), Some("e1000e"));
    assert_eq!(
        lab.log(),
        [
            "devices/0000:03:00.0/driver_override=vfio-pci",
            "devices/0000:03:00.0/driver/unbind=0000:03:00.0",
            "drivers_probe=0000:03:00.0",
        ]
    );
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    let again = lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    assert_eq!((again[0].before.as_deref(), lab.log()), (Some("vfio-pci"), vec![]));
    let returned = lab.binder.unbind(ADDRESS).unwrap();
    assert_eq!((returned.driver.as_deref(), returned.lost), (Some("e1000e"), vec![]));
    assert_eq!(lab.device("driver_override"), "");
    let log = lab.log();
    assert_eq!(
        log[..3],
        [
            "devices/0000:03:00.0/driver_override=e1000e",
            "devices/0000:03:00.0/driver/unbind=0000:03:00.0",
            "drivers_probe=0000:03:00.0",
        ]
    );
    assert_eq!(log[4..], ["ip link set dev eth1 mtu 9000", "ip link set dev eth1 up"]);
    assert!(record::all(&lab.binder.machine).is_empty());
    assert!(lab.binder.unbind(ADDRESS).unwrap().unchanged);
}

#[test]
fn the_name_and_the_addresses_come_back_and_losses_are_named() {
    let lab = Lab::new();
    let net = "10.0.0.1/24".parse().unwrap();
    lab.network.lock().unwrap().addresses.insert("eth1".into(), vec![net]);
    let bound = lab.binder.bind(&[forced("vfio-pci")], false).unwrap();
    assert_eq!(bound[0].carried, ["10.0.0.1/24 on eth1"]);
    *lab.kernel.names.lock().unwrap() = "eth0";
    lab.log();
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap().lost, Vec::<String>::new());
    let log = lab.log();
    assert_eq!(
        log[4..],
        [
            "ip link set dev eth0 down",
            "ip link set dev eth0 name eth1",
            "ip link set dev eth1 mtu 9000",
            "ip link set dev eth1 up",
            "ip address replace 10.0.0.1/24 dev eth1",
        ]
    );
    // Another interface has the name.
    lab.network.lock().unwrap().addresses.clear();
    lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    lab.tree.write("sys/class/net/eth1/flags", "0x1003");
    let lost = lab.binder.unbind(ADDRESS).unwrap().lost;
    assert!(
        lost.len() == 1 && lost[0].starts_with("its name: ip link set dev eth0 name eth1: "),
        "{lost:?}"
    );
}

#[test]
fn what_the_machine_needs_is_refused_and_named() {
    let lab = Lab::new();
    lab.tree.link("sys/class/net/eth1/upper_br0", "x");
    {
        let mut network = lab.network.lock().unwrap();
        network.default_routes.insert("br0".into());
        let nets = ["10.0.0.1/24", "10.0.0.5/24"].map(|net| net.parse().unwrap());
        network.addresses.insert("br0".into(), nets.to_vec());
        *network = network.clone().with_sessions(["10.0.0.5".parse().unwrap()]);
    }
    assert_eq!(
        error(&lab, wish("vfio-pci")),
        "0000:03:00.0 carries the default route over br0, 10.0.0.1/24 on br0, a session to 10.0.0.5 on br0; \
         take that away (ip address flush dev br0; ip route), or cut it off: turnpike bind 0000:03:00.0 --force"
    );
    assert!(lab.log().is_empty() && record::all(&lab.binder.machine).is_empty());
    let problem = lab.binder.check(&resolved(&lab, LAN), None).unwrap_err().to_string();
    assert!(
        problem.starts_with("r.lua:2: port \"lan\": 0000:03:00.0 carries the default route"),
        "{problem}"
    );
    let start = Bindings::at_start(lab.binder.clone(), &resolved(&lab, LAN)).err().unwrap();
    assert_eq!(start.to_string(), problem);
    lab.binder.bind(&[forced("vfio-pci")], false).unwrap();
    // An interface that is in another namespace.
    let lab = Lab::new();
    lab.tree.remove("sys/bus/pci/devices/0000:03:00.0/net/eth1");
    assert!(
        error(&lab, wish("vfio-pci"))
            .contains("carries an interface in another network namespace;")
    );
}

#[test]
fn a_program_that_has_the_nic_keeps_it_also_by_force() {
    let lab = Lab::new();
    let routers = [("eth1".to_owned(), "process 12".to_owned())];
    lab.network.lock().unwrap().routers = routers.into();
    let expected = "0000:03:00.0 is in use by a router, process 12; stop that first";
    assert_eq!(error(&lab, forced("vfio-pci")), expected);
    lab.network.lock().unwrap().routers.clear();
    lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    lab.tree.link("proc/77/fd/4", "/dev/vfio/7");
    lab.tree.write("proc/77/comm", "dpdk-testpmd\n");
    let expected = "0000:03:00.0 is in use by process 77 (dpdk-testpmd); stop that first";
    assert_eq!(error(&lab, forced("uio_pci_generic")), expected);
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap_err().to_string(), expected);
    assert_eq!(lab.binder.unusable(ADDRESS).as_deref(), Some(expected));
    lab.tree.remove("proc/77");
    assert_eq!(lab.binder.unusable(ADDRESS), None);
    // A router that has not opened it yet.
    lab.binder.unbind(ADDRESS).unwrap();
    let bindings = Bindings::at_start(lab.binder.clone(), &resolved(&lab, LAN)).unwrap();
    let expected = "0000:03:00.0 is in use by another router; stop that first";
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap_err().to_string(), expected);
    assert_eq!(error(&lab, forced("uio_pci_generic")), expected);
    bindings.give_back_all();
    assert!(lab.binder.unbind(ADDRESS).unwrap().unchanged);
}

#[test]
fn devices_that_are_none_and_drivers_that_are_not_there_are_named() {
    let lab = Lab::new();
    lab.tree.write("sys/bus/pci/devices/0000:00:1f.2/class", "0x010601\n");
    let at = |address: &str| Wish { address: address.into(), ..wish("vfio-pci") };
    assert_eq!(
        error(&lab, at("0000:09:00.0")),
        "PCI device 0000:09:00.0 not found; NICs: 0000:03:00.0"
    );
    assert_eq!(
        error(&lab, at("0000:00:1f.2")),
        "PCI device 0000:00:1f.2 is no NIC (class 0x010601); NICs: 0000:03:00.0"
    );
    assert!(lab.binder.unbind("0000:09:00.0").is_err());
    // Without a list of modules, the error is that of modprobe.
    assert_eq!(
        error(&lab, wish("missing")),
        "driver missing is not loaded, and modprobe missing fails: modprobe: FATAL: Module missing not found"
    );
    assert_eq!(
        error(&lab, wish("odd")),
        "odd is loaded and is no driver for PCI devices; name one that is"
    );
    lab.tree.write("lib/modules/6.1.0-41-amd64/modules.dep", "kernel/vfio-pci.ko: x\n");
    assert_eq!(
        error(&lab, wish("missing")),
        "0000:03:00.0: driver missing not found: the kernel 6.1.0-41-amd64 has no such module; known: e1000e, \
         vfio-pci, uio_pci_generic"
    );
    lab.log();
    lab.tree.remove("sys/bus/pci/drivers/vfio-pci");
    lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    assert_eq!(lab.log()[0], "modprobe vfio-pci");
    // DPDK uses the NIC with the kernel's driver in place.
    lab.tree.pci(ADDRESS, Some("mlx5_core"), "0");
    assert_eq!(
        error(&lab, forced("vfio-pci")),
        "0000:03:00.0 is bound to mlx5_core, beside which DPDK drives it; leave the driver as it is"
    );
}

#[test]
fn without_an_iommu_vfio_names_the_ways_out() {
    let lab = Lab::new();
    lab.tree.remove(&format!("sys/bus/pci/devices/{ADDRESS}/iommu_group"));
    let said = error(&lab, wish("vfio-pci"));
    for way in ["intel_iommu=on", "--driver uio_pci_generic", "enable_unsafe_noiommu_mode"] {
        assert!(said.contains(way), "{said}");
    }
    lab.tree.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    lab.binder.unbind(ADDRESS).unwrap();
    lab.tree.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n");
    lab.binder.bind(&[wish("uio_pci_generic")], false).unwrap();
    assert_eq!(lab.driver().as_deref(), Some("uio_pci_generic"));
}

#[test]
fn uio_gets_a_domain_that_does_not_translate_and_gives_it_back() {
    let lab = Lab::new();
    lab.binder.bind(&[wish("uio_pci_generic")], false).unwrap();
    // The domain can be changed only while the device has no driver.
    assert_eq!(
        lab.log()[1..3],
        ["devices/0000:03:00.0/driver/unbind=0000:03:00.0", "groups/7/type=identity"]
    );
    lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    assert_eq!(lab.log()[2], "groups/7/type=DMA-FQ");
    lab.binder.bind(&[wish("uio_pci_generic")], false).unwrap();
    lab.log();
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap().driver.as_deref(), Some("e1000e"));
    assert_eq!(lab.log()[2], "groups/7/type=DMA-FQ");
    // If the kernel refuses, the device gets its earlier driver back.
    lab.kernel.broken.lock().unwrap().push("groups/7/type");
    let said = error(&lab, wish("uio_pci_generic"));
    assert!(
        said.starts_with(
            "0000:03:00.0 cannot be bound to uio_pci_generic: the IOMMU cannot be told"
        ),
        "{said}"
    );
    assert!(said.contains("start the kernel with iommu=pt"), "{said}");
    assert_eq!(lab.driver().as_deref(), Some("e1000e"));
    assert!(record::all(&lab.binder.machine).is_empty());
    lab.tree.group(7, "DMA-FQ", &["0000:03:00.1"]);
    let said = error(&lab, wish("uio_pci_generic"));
    assert!(said.contains("this one translates for group 7, in which are 0000:03:00.1;"), "{said}");
}

#[test]
fn a_group_is_bound_together_or_not_at_all() {
    let lab = Lab::new();
    let second = "0000:03:00.1";
    add_nic(&lab.tree, second, "eth2");
    lab.tree.group(7, "DMA-FQ", &[second]);
    assert_eq!(
        error(&lab, forced("vfio-pci")),
        "0000:03:00.0 is in IOMMU group 7 with 0000:03:00.1 (e1000e), which the kernel uses, and vfio-pci takes a \
         group as a whole; bind them together: turnpike bind 0000:03:00.0 0000:03:00.1"
    );
    let both = [wish("vfio-pci"), Wish { address: second.into(), ..wish("vfio-pci") }];
    assert_eq!(lab.binder.bind(&both, false).unwrap().len(), 2);
    assert_eq!(lab.binder.machine.pci_driver(second).as_deref(), Some("vfio-pci"));
    lab.binder.unbind(second).unwrap();
    let unusable = lab.binder.unusable(ADDRESS).unwrap();
    assert!(unusable.contains("is in IOMMU group 7 with 0000:03:00.1 (e1000e)"), "{unusable}");
    // A device other than a NIC.
    lab.tree.write(&format!("sys/bus/pci/devices/{second}/class"), "0x0c0330");
    assert!(lab.binder.unusable(ADDRESS).unwrap().ends_with("; put the NIC into another slot"));
}

#[test]
fn a_driver_that_refuses_leaves_the_nics_as_they_were() {
    let lab = Lab::new();
    let second = "0000:04:00.0";
    add_nic(&lab.tree, second, "eth2");
    lab.tree.group(8, "DMA-FQ", &[second]);
    lab.kernel.refusing.lock().unwrap().push("uio_pci_generic");
    let other = Wish { address: second.into(), ..wish("uio_pci_generic") };
    let said = format!("{:#}", lab.binder.bind(&[wish("vfio-pci"), other], true).unwrap_err());
    assert_eq!(
        said,
        "0000:04:00.0 cannot be bound to uio_pci_generic: the driver does not take it; dmesg may say why"
    );
    assert_eq!(lab.driver().as_deref(), Some("e1000e"));
    assert_eq!(lab.binder.machine.pci_driver(second).as_deref(), Some("e1000e"));
    assert!(record::all(&lab.binder.machine).is_empty());
    assert!(!remember::has(&lab.binder.machine, ADDRESS));
    // If it cannot be given back either, the record stays, and the error reports it.
    lab.kernel.refusing.lock().unwrap().push("e1000e");
    let said = error(&lab, wish("uio_pci_generic"));
    assert!(
        said.contains(
            "and it cannot be given back: 0000:03:00.0: giving it back to its driver (e1000e)"
        ),
        "{said}"
    );
    assert_eq!(record::all(&lab.binder.machine)[0].found.driver.as_deref(), Some("e1000e"));
    let said = format!("{:#}", lab.binder.unbind(ADDRESS).unwrap_err());
    assert!(said.contains("the driver does not take it"), "{said}");
    lab.kernel.refusing.lock().unwrap().clear();
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap().driver.as_deref(), Some("e1000e"));
}

#[test]
fn what_is_remembered_is_written_and_removed() {
    let lab = Lab::new();
    let bound = lab.binder.bind(&[wish("vfio-pci")], true).unwrap();
    let rule = bound[0].rule.clone().unwrap();
    assert!(rule.exists() && lab.binder.devices().nics[0].remembered);
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap().rule, Some(rule.clone()));
    assert!(!rule.exists());
    // After a restart of the machine there is no record, and the kernel selects the driver.
    lab.binder.bind(&[wish("vfio-pci")], true).unwrap();
    lab.tree.remove("run");
    lab.log();
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap().driver.as_deref(), Some("e1000e"));
    assert_eq!(lab.log()[0], "devices/0000:03:00.0/driver_override=");
    lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    lab.tree.remove("run");
    lab.kernel.refusing.lock().unwrap().push("e1000e");
    let said = lab.binder.unbind(ADDRESS).unwrap_err().to_string();
    assert!(
        said.starts_with("0000:03:00.0 has no driver now: none of the kernel takes it"),
        "{said}"
    );
}

#[test]
fn a_router_binds_by_the_interface_s_name_and_gives_back() {
    let lab = Lab::new();
    let config = resolved(&lab, LAN);
    assert_eq!(config.ports[0].device.to_string(), ADDRESS);
    let bindings = Bindings::at_start(lab.binder.clone(), &config).unwrap();
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    // While it runs, its interface is found by the record.
    assert_eq!(resolved(&lab, LAN).ports[0].device.to_string(), ADDRESS);
    let hold = bindings.take(&config.ports[0]).unwrap();
    // The device is unplugged and plugged in again.
    lab.tree.remove(&format!("sys/bus/pci/devices/{ADDRESS}/driver"));
    assert!(bindings.take(&config.ports[0]).unwrap().is_some());
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    // The port is removed, and then its device is released.
    let none = Default::default();
    bindings.give_back_unused(&wanted(&config), |_| false);
    bindings.give_back_unused(&none, |_| false);
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"), "held");
    drop(hold);
    assert!(!bindings.are_changing());
    bindings.give_back_unused(&none, |address| bindings.are_changing() && address == ADDRESS);
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"), "open");
    bindings.give_back_unused(&none, |_| false);
    assert_eq!(lab.driver().as_deref(), Some("e1000e"));
    bindings.give_back_all();
    assert!(record::all(&lab.binder.machine).is_empty());
}

#[test]
fn a_device_that_a_router_found_bound_stays_so() {
    let lab = Lab::new();
    lab.binder.bind(&[wish("vfio-pci")], false).unwrap();
    let config = resolved(&lab, LAN);
    assert_eq!(config.ports[0].device.to_string(), ADDRESS, "by the record");
    Bindings::at_start(lab.binder.clone(), &config).unwrap().give_back_all();
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    // Another driver would lose the state recorded by the command.
    let other = LAN.replace("vfio-pci", "uio_pci_generic");
    let said = lab.binder.check(&resolved(&lab, &other), None).unwrap_err().to_string();
    assert!(
        said.contains("is bound to vfio-pci by turnpike bind; write driver = \"vfio-pci\", or:"),
        "{said}"
    );
    lab.binder.unbind(ADDRESS).unwrap();
    // Without a driver, and with an existing override.
    lab.tree.remove(&format!("sys/bus/pci/devices/{ADDRESS}/driver"));
    lab.tree.write(&format!("sys/bus/pci/devices/{ADDRESS}/driver_override"), "none\n");
    let direct = LAN.replace("eth1", ADDRESS);
    Bindings::at_start(lab.binder.clone(), &self::config(&direct)).unwrap().give_back_all();
    assert_eq!((lab.driver(), lab.device("driver_override").as_str()), (None, "none"));
}

#[test]
fn after_a_kill_the_next_router_gives_back_and_unbind_does() {
    let lab = Lab::new();
    let config = resolved(&lab, LAN);
    let kill = || drop(Bindings::at_start(lab.binder.clone(), &resolved(&lab, LAN)).unwrap());
    kill();
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    assert_eq!(lab.binder.devices().nics[0].driver_before.as_deref(), Some("e1000e"));
    // The same router takes it over, and gives it back at its end.
    let config_now = resolved(&lab, LAN);
    assert_eq!(config_now.ports[0].device, config.ports[0].device);
    lab.binder.give_back_left(&config_now);
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    Bindings::at_start(lab.binder.clone(), &config_now).unwrap().give_back_all();
    assert_eq!(lab.driver().as_deref(), Some("e1000e"));
    // Another router gives it back immediately.
    kill();
    let other = self::config("turnpike.port 'a' { device = 'net_null0' }");
    lab.tree.link("proc/77/fd/4", "/dev/vfio/7");
    lab.binder.give_back_left(&other);
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"), "a program has it");
    lab.tree.remove("proc/77");
    lab.binder.give_back_left(&other);
    assert_eq!(lab.driver().as_deref(), Some("e1000e"));
    assert!(record::all(&lab.binder.machine).is_empty());
    // A command gives it back, too.
    kill();
    assert_eq!(lab.binder.unbind(ADDRESS).unwrap().driver.as_deref(), Some("e1000e"));
    // Killed before it had bound anything: the record exists, and is right.
    kill();
    add_nic(&lab.tree, ADDRESS, "eth1");
    lab.binder.give_back_left(&other);
    assert!(record::all(&lab.binder.machine).is_empty());
    // The record does not apply to another card in the slot.
    kill();
    lab.tree.write(&format!("sys/bus/pci/devices/{ADDRESS}/device"), "0x1234\n");
    lab.binder.give_back_left(&other);
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    assert!(record::all(&lab.binder.machine).is_empty());
}

#[test]
fn a_device_that_this_process_has_open_is_left_bound() {
    let lab = Lab::new();
    let bindings = Bindings::at_start(lab.binder.clone(), &resolved(&lab, LAN)).unwrap();
    lab.tree.link("proc/self/fd/9", "anon_inode:[vfio-device]");
    bindings.give_back_all();
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
    assert_eq!(record::all(&lab.binder.machine)[0].found.driver.as_deref(), Some("e1000e"));
}

#[test]
fn ports_without_a_driver_need_one_that_dpdk_can_use() {
    let lab = Lab::new();
    let config = config(&format!("turnpike.port 'wan' {{ device = '{ADDRESS}' }}"));
    let said = || lab.binder.check(&config, None).map_err(|error| error.to_string());
    let way = "bind it: turnpike bind 0000:03:00.0, or write driver = \"vfio-pci\"";
    let bound =
        "r.lua:2: port \"wan\": 0000:03:00.0 is bound to e1000e, which leaves it to the kernel";
    assert_eq!(said(), Err(format!("{bound}; {way}")));
    assert_eq!(lab.binder.check(&config, Some(&config)).map_err(|error| error.to_string()), Ok(()));
    lab.tree.pci(ADDRESS, Some("mlx5_core"), "0");
    assert_eq!(said(), Ok(()));
    lab.tree.remove(&format!("sys/bus/pci/devices/{ADDRESS}/driver"));
    assert_eq!(said(), Err(format!("r.lua:2: port \"wan\": 0000:03:00.0 has no driver; {way}")));
    lab.tree.remove(&format!("sys/bus/pci/devices/{ADDRESS}"));
    assert_eq!(said(), Ok(()), "named with those that are known");
}

#[test]
fn interfaces_that_are_no_nics_and_devices_named_twice_are_refused() {
    let lab = Lab::new();
    lab.tree.write("proc/self/net/dev", "Inter-|\n face |\n lo: 0\n veth0: 0\n");
    let resolve =
        |text: &str| lab.binder.resolve(&mut config(text)).map_err(|error| error.to_string());
    assert_eq!(
        resolve(&LAN.replace("eth1", "veth0")),
        Err("r.lua:2: port \"lan\": device veth0 is no PCI NIC, which its driver needs; leave driver out".into())
    );
    assert_eq!(resolve(&LAN.replace("eth1", "eth9")), Ok(()), "named with those that are known");
    let second = format!("{LAN}\nturnpike.port 'wan' {{ device = '{ADDRESS}' }}");
    assert_eq!(
        resolve(&second),
        Err("r.lua:3: port \"wan\": device 0000:03:00.0 is taken by port \"lan\" on line 2; a device makes one port".into())
    );
    assert_eq!(resolve("turnpike.port 'a' { device = 'veth0', driver = 'af_packet' }"), Ok(()));
}

#[test]
fn a_returning_device_is_bound_as_it_was() {
    let lab = Lab::new();
    let said = lab.binder.rebind(ADDRESS, "vfio-pci").unwrap_err().to_string();
    assert_eq!(
        said,
        "0000:03:00.0 is bound to e1000e now, and was to vfio-pci; bind it again: turnpike bind 0000:03:00.0 \
         --driver vfio-pci"
    );
    assert!(lab.binder.rebind(ADDRESS, "e1000e").is_ok() && lab.log().is_empty());
    lab.tree.remove(&format!("sys/bus/pci/devices/{ADDRESS}/driver"));
    lab.binder.rebind(ADDRESS, "vfio-pci").unwrap();
    assert_eq!(lab.driver().as_deref(), Some("vfio-pci"));
}

#[test]
fn devices_are_listed_with_their_users() {
    let lab = Lab::new();
    lab.tree.write("proc/self/net/dev", "Inter-|\n face |\n lo: 0\n eth1: 0\n br0: 0\n");
    lab.tree.write("sys/class/net/br0/flags", "0x1003\n");
    lab.tree.write("sys/class/net/br0/carrier", "0\n");
    let state = || {
        let nic = lab.binder.devices().nics.remove(0);
        (nic.state, nic.driver.unwrap_or_default(), nic.used_by)
    };
    assert_eq!(state(), ("idle", "e1000e".into(), vec![]));
    lab.network.lock().unwrap().default_routes.insert("eth1".into());
    assert_eq!(state(), ("kernel", "e1000e".into(), vec!["the default route over eth1".into()]));
    let devices = lab.binder.devices();
    assert_eq!(
        (devices.interfaces[0].name.as_str(), devices.interfaces[0].link),
        ("br0", "no carrier")
    );
    assert_eq!((devices.interfaces.len(), devices.nics[0].iommu_group), (1, Some(7)));
    lab.binder.bind(&[forced("vfio-pci")], false).unwrap();
    assert_eq!(state(), ("free", "vfio-pci".into(), vec![]));
    lab.tree.link("proc/77/fd/4", "/dev/vfio/7");
    lab.tree.write("proc/77/comm", "turnpike\n");
    assert_eq!(state(), ("program", "vfio-pci".into(), vec!["process 77 (turnpike)".into()]));
}
