//! The kernel's driver of a PCI device that is put back while the router runs: the one by which DPDK had it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The kernel makes the driver's files a moment after it has bound it.
const BOUND_WITHIN: Duration = Duration::from_secs(1);

/// The driver that a PCI device is bound to.
pub fn driver(address: &str) -> Option<String> {
    driver_in(Path::new("/sys"), address)
}

/// Binds a PCI device to a driver, unless another one has it already.
///
/// # Errors
/// The other driver, or the step that failed, and the way out.
pub fn bind(address: &str, wanted: &str) -> Result<()> {
    bind_in(Path::new("/sys"), address, wanted)
}

fn device(sys: &Path, address: &str) -> PathBuf {
    sys.join("bus/pci/devices").join(address)
}

fn driver_in(sys: &Path, address: &str) -> Option<String> {
    let link = fs::read_link(device(sys, address).join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

fn bind_in(sys: &Path, address: &str, wanted: &str) -> Result<()> {
    match driver_in(sys, address) {
        Some(driver) if driver == wanted => return Ok(()),
        Some(driver) => bail!(
            "{address} is bound to {driver} now, and was to {wanted}; bind it to {wanted} again: echo \
             {wanted} > /sys/bus/pci/devices/{address}/driver_override; echo {address} > \
             /sys/bus/pci/drivers/{driver}/unbind"
        ),
        None => {}
    }
    let write = |path: PathBuf, words: &str| {
        fs::write(&path, words).with_context(|| format!("{}: writing \"{words}\"", path.display()))
    };
    write(device(sys, address).join("driver_override"), wanted)?;
    write(sys.join("bus/pci/drivers_probe"), address)?;
    let begin = Instant::now();
    while driver_in(sys, address).is_none() {
        if begin.elapsed() > BOUND_WITHIN {
            bail!("{address}: the kernel does not bind it to {wanted}: modprobe {wanted}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ADDRESS: &str = "0000:00:03.0";

    /// A `/sys` with one device, bound to this driver if any.
    fn sys(name: &str, driver: Option<&str>) -> PathBuf {
        let root = std::env::temp_dir().join(format!("turnpike-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(device(&root, ADDRESS)).unwrap();
        if let Some(driver) = driver {
            symlink(format!("../../drivers/{driver}"), device(&root, ADDRESS).join("driver"))
                .unwrap();
        }
        root
    }

    #[test]
    fn a_device_without_a_driver_gets_the_one_it_had() {
        let sys = sys("rebind-none", None);
        let (link, probe) =
            (device(&sys, ADDRESS).join("driver"), sys.join("bus/pci/drivers_probe"));
        // The kernel's part.
        let kernel = std::thread::spawn(move || {
            while !probe.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            symlink("../../drivers/vfio-pci", link).unwrap();
        });
        bind_in(&sys, ADDRESS, "vfio-pci").unwrap();
        kernel.join().unwrap();
        let read = |path: &str| fs::read_to_string(sys.join("bus/pci").join(path)).unwrap();
        assert_eq!(read(&format!("devices/{ADDRESS}/driver_override")), "vfio-pci");
        assert_eq!(read("drivers_probe"), ADDRESS);
        fs::remove_dir_all(sys).unwrap();
    }

    #[test]
    fn a_driver_that_has_the_device_keeps_it() {
        let sys = sys("rebind-other", Some("e1000e"));
        let error = bind_in(&sys, ADDRESS, "vfio-pci").unwrap_err().to_string();
        assert!(
            error.starts_with("0000:00:03.0 is bound to e1000e now, and was to vfio-pci;"),
            "{error}"
        );
        assert!(error.ends_with("> /sys/bus/pci/drivers/e1000e/unbind"), "{error}");
        assert!(bind_in(&sys, ADDRESS, "e1000e").is_ok());
        assert!(!sys.join("bus/pci/drivers_probe").exists());
        fs::remove_dir_all(sys).unwrap();
    }
}
