//! A simulated kernel made of files, which binds and unbinds.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::Binder;
use super::kernel::Kernel;
use crate::network::Network;
use crate::testing::Tree;

/// The NIC of tests: an e1000e with the interface eth1, in IOMMU group 7.
pub const ADDRESS: &str = "0000:03:00.0";

/// A kernel that changes the files of a [`Tree`] like Linux.
pub struct FakeKernel {
    root: PathBuf,
    /// Settings that were written and programs that were run, in order.
    pub log: Mutex<Vec<String>>,
    /// Drivers that refuse every device.
    pub refusing: Mutex<Vec<&'static str>>,
    /// Settings that cannot be written, by the end of their paths.
    pub broken: Mutex<Vec<&'static str>>,
    /// The name of an interface when it appears.
    pub names: Mutex<&'static str>,
}

/// A machine with a NIC, its kernel, and a binder.
pub struct Lab {
    pub tree: Tree,
    pub kernel: Arc<FakeKernel>,
    pub network: Arc<Mutex<Network>>,
    pub binder: Binder,
}

impl Lab {
    pub fn new() -> Self {
        let tree = Tree::two_nodes();
        for driver in ["e1000e", "vfio-pci", "uio_pci_generic"] {
            tree.write(&format!("sys/bus/pci/drivers/{driver}/new_id"), "");
        }
        add_nic(&tree, ADDRESS, "eth1");
        tree.group(7, "DMA-FQ", &[ADDRESS]);
        let kernel = Arc::new(FakeKernel {
            root: tree.machine().path("/"),
            log: Mutex::default(),
            refusing: Mutex::default(),
            broken: Mutex::default(),
            names: Mutex::new("eth1"),
        });
        let network = Arc::new(Mutex::new(Network::default().with_sessions([])));
        let look = network.clone();
        let binder = Binder {
            machine: tree.machine(),
            kernel: kernel.clone(),
            network: Arc::new(move || look.lock().unwrap().clone()),
        };
        Self { tree, kernel, network, binder }
    }

    pub fn driver(&self) -> Option<String> {
        self.binder.machine.pci_driver(ADDRESS)
    }

    pub fn device(&self, file: &str) -> String {
        self.binder.machine.read(&format!("/sys/bus/pci/devices/{ADDRESS}/{file}")).unwrap()
    }

    /// Returns the requests to the kernel since the last call, abbreviated.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.kernel.log.lock().unwrap())
    }
}

/// Adds an e1000e with an interface, which is up.
pub fn add_nic(tree: &Tree, address: &str, interface: &str) {
    tree.pci(address, Some("e1000e"), "0");
    let base = format!("sys/bus/pci/devices/{address}");
    tree.write(&format!("{base}/vendor"), "0x8086\n");
    tree.write(&format!("{base}/device"), "0x10d3\n");
    tree.write(&format!("{base}/driver_override"), "(null)\n");
    tree.write(&format!("{base}/net/{interface}/flags"), "0x1003");
    add_interface(tree, interface);
}

fn add_interface(tree: &Tree, name: &str) {
    tree.write(&format!("sys/class/net/{name}/flags"), "0x1003\n");
    tree.write(&format!("sys/class/net/{name}/mtu"), "9000\n");
}

impl FakeKernel {
    fn device(&self, address: &str) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(address)
    }

    fn unbind(&self, address: &str) -> io::Result<()> {
        let device = self.device(address);
        fs::remove_file(device.join("driver"))?;
        let names = device.join("net");
        if !names.exists() {
            return Ok(());
        }
        for name in fs::read_dir(&names)? {
            fs::remove_dir_all(self.root.join("sys/class/net").join(name?.file_name()))?;
        }
        fs::remove_dir_all(names)
    }

    fn probe(&self, address: &str) -> io::Result<()> {
        let device = self.device(address);
        let wanted = fs::read_to_string(device.join("driver_override"))?;
        let driver = match wanted.trim() {
            "" | "(null)" => "e1000e",
            other => other,
        };
        if fs::read_link(device.join("driver")).is_ok()
            || self.refusing.lock().unwrap().contains(&driver)
        {
            return Ok(());
        }
        symlink(format!("../../drivers/{driver}"), device.join("driver"))?;
        if driver == "e1000e" {
            let name = *self.names.lock().unwrap();
            fs::create_dir_all(device.join("net").join(name))?;
            let class = self.root.join("sys/class/net").join(name);
            fs::create_dir_all(&class)?;
            fs::write(class.join("flags"), "0x1002")?;
            fs::write(class.join("mtu"), "1500")?;
        }
        Ok(())
    }
}

impl Kernel for FakeKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let path = path.to_string_lossy().into_owned();
        let short = path.split("/sys/").last().unwrap_or_default();
        let short = short.replace("bus/pci/", "").replace("kernel/iommu_", "");
        self.log.lock().unwrap().push(format!("{short}={}", text.trim()));
        if self.broken.lock().unwrap().iter().any(|end| path.ends_with(end)) {
            return Err(io::Error::from_raw_os_error(nix::libc::EINVAL));
        }
        match path.rsplit('/').next() {
            Some("unbind") => self.unbind(text),
            Some("drivers_probe") => self.probe(text),
            _ => fs::write(path, text),
        }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let line = format!("{program} {}", arguments.join(" "));
        self.log.lock().unwrap().push(line);
        match (program, arguments) {
            ("modprobe", ["missing"]) => {
                Err("modprobe: FATAL: Module missing not found".to_owned())
            }
            ("modprobe", [driver]) if *driver != "odd" => {
                fs::create_dir_all(self.root.join("sys/bus/pci/drivers").join(driver)).unwrap();
                Ok(())
            }
            ("ip", ["link", "set", "dev", now, "name", wanted]) => {
                let place = self.device(ADDRESS).join("net");
                fs::rename(place.join(now), place.join(wanted))
                    .map_err(|error| error.to_string())?;
                let class = self.root.join("sys/class/net");
                fs::rename(class.join(now), class.join(wanted)).map_err(|error| error.to_string())
            }
            _ => Ok(()),
        }
    }

    fn wait(&self) {}
}
