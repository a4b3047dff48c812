//! DMA faults: accesses of devices that the IOMMU refused. Only the kernel's log reports them.
//!
//! A device with an address that it may not access continues as if nothing had happened, and its packets are lost
//! without a counter. The log names the device by its PCI address. The kernel limits the rate of these messages, so the
//! counts are lower bounds.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use tokio::io::unix::AsyncFd;

use super::watch::when_readable;

/// A record with its continuation lines fits.
const RECORD: usize = 8192;

/// Records that are read in one turn.
const TURN: usize = 256;

/// The kernel's log from now on.
pub struct KernelLog(AsyncFd<File>);

impl KernelLog {
    /// Opens the log at its end; within a runtime.
    ///
    /// # Errors
    /// It is not there, or may not be read.
    pub fn open() -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(nix::libc::O_NONBLOCK).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(when_readable(file)?))
    }

    /// Returns the devices of the next faults, one for each; none if there were other messages only.
    ///
    /// # Errors
    /// That of reading the log; nothing more can be read then.
    pub async fn faults(&mut self) -> io::Result<Vec<String>> {
        let mut ready = self.0.readable().await?;
        let mut record = [0; RECORD];
        let mut devices = Vec::new();
        for _ in 0..TURN {
            match ready.get_inner().read(&mut record) {
                Ok(length) => devices.extend(device_of(&record[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break;
                }
                // Records were overwritten before they were read; the next one is the oldest left.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(devices)
    }
}

/// The PCI address of the device that a record of a DMA fault is about.
fn device_of(record: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    // "priority,sequence,time,flags;words", and a line for each property behind.
    let words = text.split_once(';')?.1.lines().next()?;
    device_in(words)
}

/// The same of the words alone, as the kernel's drivers of IOMMUs write them.
fn device_in(words: &str) -> Option<String> {
    let after = |mark: &str| words.split_once(mark).map(|(_, rest)| rest);
    let (before, place) = if words.contains("DMAR:") {
        // intel/dmar.c: "DMAR: [DMA Write NO_PASID] Request device [00:02.0] fault addr 0x0 …"
        ("", after("Request device [")?)
    } else if words.contains("AMD-Vi:") && words.contains("IO_PAGE_FAULT") {
        // amd/iommu.c: "… [IO_PAGE_FAULT device=00:02.0 domain=…", or by the device's own name:
        // "vfio-pci 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=…"
        match after("device=") {
            Some(place) => ("", place),
            None => words.split_once(": AMD-Vi:").map(|(device, _)| (device, ""))?,
        }
    } else if words.contains("arm-smmu") {
        // arm-smmu-v3.c: "event: F_TRANSLATION client: 0000:01:00.0 sid: 0x100 …"
        ("", after("client: ")?)
    } else {
        return None;
    };
    let of_driver = before.rsplit(' ').next().unwrap_or_default();
    let text = if before.is_empty() { place } else { of_driver };
    let end = text.find(|c: char| !c.is_ascii_hexdigit() && c != ':' && c != '.');
    dpdk::pci_address(&text[..end.unwrap_or(text.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_name_the_device_in_several_ways() {
        let second = Some("0000:00:02.0".to_owned());
        for words in [
            // Linux 6.1, QEMU's intel-iommu.
            "DMAR: [DMA Write NO_PASID] Request device [00:02.0] fault addr 0x0 [fault reason 0x05] PTE \
             Write access is not set",
            // Linux 5.4.
            "DMAR: [DMA Read] Request device [00:02.0] fault addr ffe00000 [fault reason 06] PTE Read \
             access is not set",
            // Linux 5.4 and before on AMD, and with a segment since.
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=00:02.0 domain=0x0000 address=0x0 flags=0x0020]",
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:00:02.0 domain=0x000e address=0x1000 \
             flags=0x0000]",
            "vfio-pci 0000:00:02.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000e \
             address=0x7f000 flags=0x0000]",
            "arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: 0000:00:02.0 sid: 0x10 ssid: \
             0x0 iova: 0x1000 ipa: 0x0",
        ] {
            assert_eq!(device_in(words), second, "{words}");
        }
    }

    #[test]
    fn other_words_are_about_no_device() {
        for words in [
            "DMAR: DRHD: handling fault status reg 2",
            "DMAR: Host address width 39",
            "DMAR: [INTR-REMAP] Request device [nonsense] fault index 0x0",
            "AMD-Vi: Interrupt remapping enabled",
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=",
            "vfio-pci 0000:00:02.0: enabling device (0000 -> 0002)",
            "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:",
            "",
        ] {
            assert_eq!(device_in(words), None, "{words}");
        }
    }

    #[test]
    fn a_record_s_words_stand_behind_its_numbers() {
        let record =
            b"3,1093,5140900,-;DMAR: [DMA Write NO_PASID] Request device [03:00.1] fault addr \
                       0x0 [fault reason 0x05] PTE Write access is not set\n SUBSYSTEM=pci\n";
        assert_eq!(device_of(record), Some("0000:03:00.1".into()));
        assert_eq!(device_of(b"no record"), None);
        assert_eq!(device_of(b"6,1,1,-;eth0: up\n DEVICE=Request device [00:02.0]\n"), None);
    }
}
