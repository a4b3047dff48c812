//! The kernel: its release, its command line, its modules, and the limits of this process.

use super::Machine;

/// A kernel module, or code that could be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// Loaded, or part of the kernel.
    Loaded,
    /// Installed: `modprobe` can load it.
    Available,
    /// Neither loaded nor installed.
    Absent,
    /// The kernel's modules are not visible here, as in a container.
    Unknown,
}

/// A bit of `/proc/self/status`'s `CapEff`, by `linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its name.
    pub name: &'static str,
    bit: u32,
}

impl Capability {
    /// Creates and changes network interfaces.
    pub const NET_ADMIN: Self = Self { name: "CAP_NET_ADMIN", bit: 12 };
    /// Opens packet sockets.
    pub const NET_RAW: Self = Self { name: "CAP_NET_RAW", bit: 13 };
    /// Locks memory without a limit.
    pub const IPC_LOCK: Self = Self { name: "CAP_IPC_LOCK", bit: 14 };
    /// Operations without a capability of their own; on older kernels also BPF.
    pub const SYS_ADMIN: Self = Self { name: "CAP_SYS_ADMIN", bit: 21 };
    /// Loads BPF programs, on Linux 5.8 and later.
    pub const BPF: Self = Self { name: "CAP_BPF", bit: 39 };
}

/// A resource limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    Unlimited,
    /// This many bytes.
    Bytes(u64),
}

impl Machine {
    /// Returns the kernel's release, such as `6.1.0-41-amd64`.
    pub fn release(&self) -> Option<String> {
        self.read("/proc/sys/kernel/osrelease").filter(|release| !release.is_empty())
    }

    /// Returns the first two numbers of the release.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let release = self.release()?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// Returns the value of a parameter of the kernel's command line; the last one if there are
    /// several, empty for one without a value.
    pub fn boot_parameter(&self, name: &str) -> Option<String> {
        let line = self.read("/proc/cmdline")?;
        let value = |word: &str| match word.split_once('=') {
            Some((key, value)) => (key == name).then(|| value.trim_matches('"').to_owned()),
            None => (word == name).then(String::new),
        };
        line.split_whitespace().filter_map(value).next_back()
    }

    /// Returns the state of a module: loaded, available or absent.
    pub fn module(&self, name: &str) -> Module {
        let plain = name.replace('-', "_");
        if self.has(&format!("/sys/module/{plain}")) {
            return Module::Loaded;
        }
        let Some(release) = self.release() else { return Module::Unknown };
        let base = format!("/lib/modules/{release}");
        let listed = |file: &str| {
            let text = self.read(&format!("{base}/{file}"))?;
            let file_of = |line: &str| {
                let path = line.split(':').next().unwrap_or_default();
                let file = path.rsplit('/').next().unwrap_or_default();
                file.split('.').next().unwrap_or_default().replace('-', "_")
            };
            Some(text.lines().any(|line| file_of(line) == plain))
        };
        match (listed("modules.builtin"), listed("modules.dep")) {
            (Some(true), _) => Module::Loaded,
            (_, Some(true)) => Module::Available,
            (_, Some(false)) => Module::Absent,
            (_, None) => Module::Unknown,
        }
    }

    /// Returns true if this process has a capability.
    pub fn may(&self, capability: Capability) -> Option<bool> {
        let bits = self.status("CapEff")?;
        let bits = u64::from_str_radix(&bits, 16).ok()?;
        Some(bits >> capability.bit & 1 == 1)
    }

    /// Returns the effective user of this process.
    pub fn user(&self) -> Option<u32> {
        // Real, effective, saved and file system user.
        self.status("Uid")?.split_whitespace().nth(1)?.parse().ok()
    }

    fn status(&self, name: &str) -> Option<String> {
        let status = self.read("/proc/self/status")?;
        let value = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key == name).then(|| value.trim().to_owned())
        };
        status.lines().find_map(value)
    }

    /// Returns the memory that this process may lock (`RLIMIT_MEMLOCK`), by its soft limit.
    pub fn locked_memory(&self) -> Option<Limit> {
        let limits = self.read("/proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        match line.split_whitespace().next()? {
            "unlimited" => Some(Limit::Unlimited),
            bytes => bytes.parse().ok().map(Limit::Bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    #[test]
    fn releases_and_parameters_are_read() {
        let tree = Tree::new(&[
            ("proc/sys/kernel/osrelease", "6.12.48+deb13-amd64\n"),
            ("proc/cmdline", "quiet isolcpus=1 rcu_nocbs=\"2-3\" isolcpus=domain,4-5\n"),
        ]);
        let machine = tree.machine();
        assert_eq!(machine.kernel_version(), Some((6, 12)));
        let values = ["isolcpus", "rcu_nocbs", "quiet", "nohz_full"]
            .map(|name| machine.boot_parameter(name));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(values, [some("domain,4-5"), some("2-3"), some(""), None]);
        tree.write("proc/sys/kernel/osrelease", "unknown");
        assert_eq!(
            (tree.machine().kernel_version(), Tree::new(&[]).machine().release()),
            (None, None)
        );
    }

    #[test]
    fn modules_are_loaded_available_or_absent() {
        let tree = Tree::new(&[
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("sys/module/vfio_pci/refcnt", "0"),
            (
                "lib/modules/6.1.0/modules.dep",
                "kernel/drivers/uio/uio_pci_generic.ko.xz: kernel/drivers/uio/uio.ko.xz\n",
            ),
            ("lib/modules/6.1.0/modules.builtin", "kernel/drivers/virtio/virtio-pci.ko\n"),
        ]);
        let module = |name| tree.machine().module(name);
        assert_eq!((module("vfio-pci"), module("virtio_pci")), (Module::Loaded, Module::Loaded));
        assert_eq!((module("uio_pci_generic"), module("uio")), (Module::Available, Module::Absent));
        tree.remove("lib/modules");
        assert_eq!(
            (module("uio_pci_generic"), module("vfio-pci")),
            (Module::Unknown, Module::Loaded)
        );
    }

    #[test]
    fn limits_and_capabilities_are_those_of_the_process() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         8388608              unlimited            bytes\n";
        let tree = Tree::new(&[
            ("proc/self/limits", limits),
            ("proc/self/status", "Name:\tx\nUid:\t0\t1000\t0\t0\nCapEff:\t0000000000004000\n"),
        ]);
        let machine = tree.machine();
        assert_eq!(machine.locked_memory(), Some(Limit::Bytes(8 << 20)));
        let may = [Capability::IPC_LOCK, Capability::BPF].map(|capability| machine.may(capability));
        assert_eq!((may, machine.user()), ([Some(true), Some(false)], Some(1000)));
        tree.write("proc/self/limits", limits.replace("8388608  ", "unlimited"));
        tree.write("proc/self/status", "CapEff:\tnone\nUid:\t0\n");
        assert_eq!(machine.locked_memory(), Some(Limit::Unlimited));
        assert_eq!((machine.may(Capability::BPF), machine.user()), (None, None));
    }

    #[test]
    fn this_process_has_limits() {
        let machine = Machine::here();
        assert!(machine.locked_memory().is_some() && machine.may(Capability::BPF).is_some());
        assert!(!machine.cpus().cores.is_empty() && !machine.memory().is_empty());
    }
}
