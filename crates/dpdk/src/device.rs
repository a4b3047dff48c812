//! Devices of ports: a PCI device, a DPDK virtual device, or a kernel interface.

use std::ffi::CStr;
use std::path::Path;
use std::{fmt, fs};

use crate::{Error, IovaMode};

/// The device of a port. [`Device::parse`] reads the text of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A NIC bound to a DPDK driver, by its address `0000:01:00.0`. [`crate::EalConfig::pci`]
    /// must name it too.
    Pci(String),
    /// A DPDK virtual device, as in `net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`.
    Vdev {
        /// The driver and a number: `net_pcap0`.
        name: String,
        /// The driver's arguments, possibly none: `rx_pcap=in.pcap,tx_pcap=out.pcap`.
        args: String,
    },
    /// A network interface of the kernel, by its name.
    Kernel(String),
}

/// Driver of a kernel interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// AF_XDP sockets: the kernel's stack never sees the packets.
    AfXdp,
    /// Packet sockets: slower, on any interface.
    AfPacket,
}

impl Device {
    /// Reads a device name: a kernel interface of that name, else a PCI address, else a DPDK
    /// virtual device (`net_…` or `eth_…`, with a number and perhaps arguments).
    ///
    /// # Errors
    /// [`Error::DeviceNotFound`] lists the existing interfaces; [`Error::DeviceSyntax`] describes the form of
    /// a virtual device.
    ///
    /// ```
    /// use dpdk::Device;
    /// assert_eq!(Device::parse("01:00.0"), Ok(Device::Pci("0000:01:00.0".into())));
    /// assert_eq!(
    ///     Device::parse("net_null0,size=60"),
    ///     Ok(Device::Vdev { name: "net_null0".into(), args: "size=60".into() }),
    /// );
    /// let error = Device::parse("eth99").unwrap_err().to_string();
    /// assert!(error.starts_with("device eth99 not found; known: "));
    /// ```
    pub fn parse(text: &str) -> Result<Self, Error> {
        let interfaces = kernel_interfaces();
        if interfaces.iter().any(|name| name == text) {
            return Ok(Self::Kernel(text.into()));
        }
        if let Some(address) = pci_address(text) {
            return Ok(Self::Pci(address));
        }
        let (name, args) = text.split_once(',').unwrap_or((text, ""));
        if name.starts_with("net_") || name.starts_with("eth_") {
            return vdev(name, args);
        }
        let known = if interfaces.is_empty() { "none".into() } else { interfaces.join(", ") };
        Err(Error::DeviceNotFound { device: text.into(), known })
    }
}

impl Device {
    /// Returns the addresses by which the device reaches packet memory: physical ones for a PCI device whose
    /// kernel driver has no IOMMU to translate for it.
    pub fn iova_mode(&self) -> IovaMode {
        match self {
            Self::Pci(address) => pci_iova_mode(Path::new("/sys"), address),
            Self::Vdev { .. } | Self::Kernel(_) => IovaMode::Virtual,
        }
    }
}

impl Device {
    /// Returns true if another process, or the kernel, maps packet memory for this device: it can only do so if
    /// [`EalConfig::lends_memory`](crate::EalConfig::lends_memory) said so.
    pub fn lends_memory(&self) -> bool {
        match self {
            // Its peer may be vhost-user, or vhost of the kernel; a memif copies unless it is asked not to.
            Self::Vdev { name, args } => {
                name.contains("virtio_user") || name.contains("memif") && args.contains("zero-copy")
            }
            Self::Pci(_) | Self::Kernel(_) => false,
        }
    }
}

impl Device {
    /// Returns true if the device has interrupts of its own that DPDK can receive: a PCI device with MSI-X
    /// behind vfio-pci. A pin interrupt (INTx) may be shared, and uio_pci_generic supports no other.
    pub fn has_message_interrupts(&self) -> bool {
        match self {
            Self::Pci(address) => pci_has_msix(Path::new("/sys"), address),
            Self::Vdev { .. } | Self::Kernel(_) => false,
        }
    }
}

/// Reads the device's list of capabilities (PCI Local Bus 3.0, 6.7) in this `/sys`, of which only root sees
/// all.
fn pci_has_msix(sys: &Path, address: &str) -> bool {
    const STATUS: usize = 0x06;
    const HAS_LIST: u8 = 1 << 4;
    const LIST: usize = 0x34;
    const MSI_X: u8 = 0x11;
    let device = sys.join("bus/pci/devices").join(address);
    let driver = fs::read_link(device.join("driver"));
    if !driver.is_ok_and(|driver| driver.ends_with("vfio-pci")) {
        return false;
    }
    let Ok(config) = fs::read(device.join("config")) else { return false };
    let byte = |at: usize| config.get(at).copied().unwrap_or(0);
    let mut at = if byte(STATUS) & HAS_LIST == 0 { 0 } else { usize::from(byte(LIST) & !3) };
    // A list of four bytes each in 256 has no more entries than that, unless it is circular.
    for _ in 0..64 {
        match (at, byte(at)) {
            (0, _) => return false,
            (_, MSI_X) => return true,
            _ => at = usize::from(byte(at + 1) & !3),
        }
    }
    false
}

/// Determined by the driver of the device in this `/sys`, and by whether vfio-pci works without an IOMMU for
/// it.
fn pci_iova_mode(sys: &Path, address: &str) -> IovaMode {
    let device = sys.join("bus/pci/devices").join(address);
    let name_of = |link: &str| {
        let target = fs::read_link(device.join(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    let without_iommu = || {
        let group = name_of("iommu_group")?;
        let name = sys.join("kernel/iommu_groups").join(group).join("name");
        Some(fs::read_to_string(name).ok()?.trim() == "vfio-noiommu")
    };
    match name_of("driver").as_deref() {
        Some("uio_pci_generic" | "igb_uio") => IovaMode::Physical,
        Some("vfio-pci") if without_iommu() == Some(true) => IovaMode::Physical,
        _ => IovaMode::Virtual,
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(name) | Self::Kernel(name) => f.write_str(name),
            Self::Vdev { name, args } if args.is_empty() => f.write_str(name),
            Self::Vdev { name, args } => write!(f, "{name},{args}"),
        }
    }
}

/// Returns the PCI address with its domain, if the text is one: `[dddd:]bb:dd.f`, in hexadecimal.
pub fn pci_address(text: &str) -> Option<String> {
    let (rest, function) = text.split_once('.')?;
    let mut parts = rest.rsplit(':');
    let (device, bus) = (parts.next()?, parts.next()?);
    let domain = parts.next().unwrap_or("0000");
    let hex =
        |text: &str, len| text.len() == len && text.chars().all(|digit| digit.is_ascii_hexdigit());
    let function_fits = matches!(function.as_bytes(), [b'0'..=b'7']);
    let fits = hex(domain, 4) && hex(bus, 2) && hex(device, 2) && function_fits;
    (fits && parts.next().is_none()).then(|| format!("{domain}:{bus}:{device}.{function}"))
}

fn vdev(name: &str, args: &str) -> Result<Device, Error> {
    let refuse = |problem: &str| {
        let device = if args.is_empty() { name.into() } else { format!("{name},{args}") };
        Err(Error::DeviceSyntax { device, problem: problem.into() })
    };
    if !name.ends_with(|last: char| last.is_ascii_digit()) {
        return refuse("needs a number behind the driver's name, as in net_pcap0");
    }
    if name.len() >= 64 {
        return refuse("has a name of more than 63 characters");
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.') {
        return refuse("has a name with other characters than letters, digits, '_', '-' and '.'");
    }
    Ok(Device::Vdev { name: name.into(), args: args.into() })
}

/// Returns the interfaces of this network namespace, without the loopback. (Not from `/sys`, which shows the
/// namespace it was mounted in.)
fn kernel_interfaces() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: returns an array that ends with an index of 0, or null; freed below, once.
    unsafe {
        let array = libc::if_nameindex();
        if array.is_null() {
            return names;
        }
        let mut entry = array;
        while (*entry).if_index != 0 {
            names.push(CStr::from_ptr((*entry).if_name).to_string_lossy().into_owned());
            entry = entry.add(1);
        }
        libc::if_freenameindex(array);
    }
    names.retain(|name| name != "lo");
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn problem(text: &str) -> String {
        Device::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn pci_addresses_have_a_domain() {
        assert_eq!(pci_address("01:00.0"), Some("0000:01:00.0".into()));
        assert_eq!(pci_address("0002:af:1f.7"), Some("0002:af:1f.7".into()));
        for wrong in ["01:00", "01:00.8", "1:00.0", "0:0000:01:00.0", "00g0:01:00.0", "01:00.00"] {
            assert_eq!(pci_address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn devices_whose_peers_map_packet_memory_lend_it() {
        let lends = |text: &str| Device::parse(text).unwrap().lends_memory();
        for lender in
            ["net_virtio_user0,path=/dev/vhost-net", "net_memif0,role=client,zero-copy=yes"]
        {
            assert!(lends(lender), "{lender}");
        }
        for other in ["net_memif0,role=server", "net_tap0", "net_pcap0,rx_pcap=x", "01:00.0"] {
            assert!(!lends(other), "{other}");
        }
    }

    #[test]
    fn a_device_without_an_iommu_works_with_physical_addresses() {
        let sys = std::env::temp_dir().join(format!("dpdk-iova-{}", std::process::id()));
        let group = |number: &str, name: Option<&str>| {
            let group = sys.join("kernel/iommu_groups").join(number);
            fs::create_dir_all(&group).unwrap();
            name.inspect(|name| fs::write(group.join("name"), format!("{name}\n")).unwrap());
        };
        group("0", None);
        group("1", Some("vfio-noiommu"));
        let mode = |slot: &str, driver: &str, group: Option<&str>| {
            let device = sys.join("bus/pci/devices").join(slot);
            fs::create_dir_all(&device).unwrap();
            let link = |name, target: String| symlink(target, device.join(name)).unwrap();
            link("driver", format!("../../../../bus/pci/drivers/{driver}"));
            group.inspect(|group| {
                link("iommu_group", format!("../../../kernel/iommu_groups/{group}"))
            });
            pci_iova_mode(&sys, slot)
        };
        assert_eq!(mode("0000:00:01.0", "vfio-pci", Some("0")), IovaMode::Virtual);
        assert_eq!(mode("0000:00:02.0", "vfio-pci", Some("1")), IovaMode::Physical);
        assert_eq!(mode("0000:00:03.0", "uio_pci_generic", None), IovaMode::Physical);
        assert_eq!(mode("0000:00:04.0", "uio_pci_generic", Some("0")), IovaMode::Physical);
        assert_eq!(mode("0000:00:05.0", "mlx5_core", Some("0")), IovaMode::Virtual);
        assert_eq!(pci_iova_mode(&sys, "0000:00:06.0"), IovaMode::Virtual, "not there");
        fs::remove_dir_all(sys).unwrap();
    }

    #[test]
    fn message_interrupts_are_found_in_the_list_of_capabilities() {
        let sys = std::env::temp_dir().join(format!("dpdk-msix-{}", std::process::id()));
        let found = |slot: &str, driver: &str, bytes: &[(usize, u8)]| {
            let device = sys.join("bus/pci/devices").join(slot);
            fs::create_dir_all(&device).unwrap();
            symlink(format!("../../../../bus/pci/drivers/{driver}"), device.join("driver"))
                .unwrap();
            let mut config = [0; 256];
            bytes.iter().for_each(|&(at, byte)| config[at] = byte);
            fs::write(device.join("config"), config).unwrap();
            pci_has_msix(&sys, slot)
        };
        let list = [(0x06, 0x10), (0x34, 0x40), (0x40, 0x01), (0x41, 0x50), (0x50, 0x11)];
        assert!(found("0000:00:01.0", "vfio-pci", &list));
        assert!(!found("0000:00:02.0", "uio_pci_generic", &list));
        assert!(!found("0000:00:03.0", "vfio-pci", &list[1..]), "the device has no list");
        assert!(!found("0000:00:04.0", "vfio-pci", &list[..4]));
        let circle = [(0x06, 0x10), (0x34, 0x40), (0x40, 0x01), (0x41, 0x40)];
        assert!(!found("0000:00:05.0", "vfio-pci", &circle));
        assert!(!pci_has_msix(&sys, "0000:00:06.0"), "not there");
        fs::remove_dir_all(sys).unwrap();
    }

    #[test]
    fn virtual_devices_keep_their_arguments() {
        let text = "net_pcap1,rx_pcap=a.pcap,tx_pcap=b.pcap";
        let device = Device::parse(text).unwrap();
        let args = "rx_pcap=a.pcap,tx_pcap=b.pcap".into();
        assert_eq!(device, Device::Vdev { name: "net_pcap1".into(), args });
        assert_eq!(device.to_string(), text);
    }

    #[test]
    fn errors_name_the_device_and_the_way_out() {
        assert!(problem("eth99").starts_with("device eth99 not found; known: "));
        assert!(!problem("eth99").contains("lo,"));
        assert_eq!(
            problem("net_pcap,rx_pcap=a"),
            "device \"net_pcap,rx_pcap=a\" needs a number behind the driver's name, as in net_pcap0"
        );
        assert!(problem("net_pc ap0").contains("other characters"));
        assert!(problem(&format!("net_{}0", "x".repeat(64))).contains("63 characters"));
    }

    #[test]
    fn the_loopback_is_no_device() {
        assert!(problem("lo").starts_with("device lo not found"));
    }
}
