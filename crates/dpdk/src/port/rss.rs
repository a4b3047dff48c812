//! Receive-side scaling: a hash of each packet's addresses and ports selects its receive queue through a
//! table.
//!
//! A hash is symmetric if its key consists of two repeated bytes: source and destination, which lie 32 bits
//! apart (ports: 16), meet the same key bits, so that exchanging them changes nothing. Every device with a
//! key supports that; a separate hash function for it (`RTE_ETH_HASH_FUNCTION_SYMMETRIC_TOEPLITZ`) is not
//! needed, and DPDK 22.11 sets one only by way of flow rules.

use dpdk_sys as sys;

use super::{Attached, Port, PortConfig, check_kernel_queues, device_info};
use crate::{Errno, Error};

/// Length of a key if the driver does not report it.
const KEY_BYTES: usize = 40;

/// Entries of the table that DPDK reads and writes together.
const GROUP: usize = sys::RTE_ETH_RETA_GROUP_SIZE as usize;

/// The bytes whose repetition makes a hash symmetric.
pub const SYMMETRIC: [u8; 2] = [0x6d, 0x5a];

/// Selection of receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RssConfig {
    /// True: ports of TCP and UDP are hashed in addition to addresses.
    pub ports: bool,
    /// True: both directions of a flow have the same hash. A configured key must have this property.
    pub symmetric: bool,
    /// The key; `None`: the device's own, or a symmetric one.
    pub key: Option<Vec<u8>>,
    /// The table.
    pub table: RssTable,
}

/// The redirection table: the queue of each hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RssTable {
    /// All queues, evenly.
    #[default]
    Even,
    /// All queues except these, evenly.
    Skip(Vec<u16>),
    /// These queues in rotation: one that is listed twice gets twice as much.
    Pattern(Vec<u16>),
}

impl RssTable {
    /// Returns this many entries for this many queues.
    ///
    /// # Errors
    /// A queue does not exist, or none is left; as text for an operator.
    pub fn entries(&self, size: usize, queues: u16) -> Result<Vec<u16>, String> {
        let pattern: Vec<u16> = match self {
            Self::Even => (0..queues).collect(),
            Self::Skip(skipped) => (0..queues).filter(|queue| !skipped.contains(queue)).collect(),
            Self::Pattern(pattern) => pattern.clone(),
        };
        let (Self::Skip(named) | Self::Pattern(named)) = self else {
            return Ok(repeated(&pattern, size));
        };
        if let Some(queue) = named.iter().find(|&&queue| queue >= queues) {
            let last = queues.saturating_sub(1);
            return Err(format!("queue {queue} is not there; the last one is {last}"));
        }
        if pattern.is_empty() {
            return Err(format!("all {queues} queues are skipped; leave one"));
        }
        if pattern.len() > size {
            return Err(format!("{} entries, and there is room for {size}", pattern.len()));
        }
        Ok(repeated(&pattern, size))
    }
}

fn repeated(pattern: &[u16], size: usize) -> Vec<u16> {
    pattern.iter().copied().cycle().take(size).collect()
}

/// A device's selection of receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The hashed fields, in DPDK's words: `ipv4`, `ipv4-tcp`, …
    pub fields: Vec<&'static str>,
    /// The key; `None`: the driver does not report it.
    pub key: Option<Vec<u8>>,
    /// The queue of each hash; empty: the device has no table, or the driver does not report it.
    pub table: Vec<u16>,
}

/// Hash settings with which a device is configured.
pub(super) struct Hash {
    pub(super) fields: u64,
    /// Empty: the device's own.
    pub(super) key: Vec<u8>,
}

impl Hash {
    /// Plans the hash of a device with this many receive queues; `None`: it has no hash, or only one queue.
    pub(super) fn plan(
        config: &PortConfig,
        info: &sys::rte_eth_dev_info,
        queues: u16,
    ) -> Result<Option<Self>, Error> {
        let known = info.flow_type_rss_offloads;
        let wish = config.rss.as_ref().filter(|_| queues > 1);
        let refuse = |problem: &str| {
            config.refuse(format!(
                "device {}: {problem}; leave rss out, or write spread = \"software\"",
                config.device
            ))
        };
        let fields = match wish {
            None => known & sys::SHIM_RSS_IP_TCP_UDP,
            Some(RssConfig { ports: true, .. }) if known & sys::SHIM_RSS_TCP_UDP == 0 => {
                return Err(refuse("rss: it does not hash the ports of TCP and UDP"));
            }
            Some(RssConfig { ports: true, .. }) => known & sys::SHIM_RSS_IP_TCP_UDP,
            Some(_) if known & sys::SHIM_RSS_IP == 0 => {
                return Err(refuse("rss: it does not hash addresses"));
            }
            Some(_) => known & sys::SHIM_RSS_IP,
        };
        if queues < 2 || fields == 0 {
            return Ok(None);
        }
        let key = match wish {
            Some(wish) => wish.key_for(info).map_err(|problem| refuse(&problem))?,
            None => Vec::new(),
        };
        Ok(Some(Self { fields, key }))
    }
}

impl RssConfig {
    /// Returns the key to configure; empty: the device's own.
    fn key_for(&self, info: &sys::rte_eth_dev_info) -> Result<Vec<u8>, String> {
        let bytes = key_bytes(info);
        match &self.key {
            Some(key) if key.len() != bytes => {
                Err(format!("rss: the key has {} bytes, and it takes {bytes}", key.len()))
            }
            Some(key) => Ok(key.clone()),
            None if self.symmetric => Ok(SYMMETRIC.iter().copied().cycle().take(bytes).collect()),
            None => Ok(Vec::new()),
        }
    }
}

fn key_bytes(info: &sys::rte_eth_dev_info) -> usize {
    match info.hash_key_size {
        0 => KEY_BYTES,
        bytes => bytes.into(),
    }
}

impl Attached {
    /// Writes the table of a started device if one is configured.
    pub(super) fn write_table(
        &self,
        config: &PortConfig,
        table: &RssTable,
        queues: u16,
    ) -> Result<(), Error> {
        let info = self.info(config)?;
        let refuse = |problem: String| {
            config.refuse(format!("device {}: rss: table: {problem}", config.device))
        };
        if info.reta_size == 0 {
            return match table {
                RssTable::Even => Ok(()),
                _ => Err(refuse("it has none; leave table and skip out".into())),
            };
        }
        let entries = table.entries(info.reta_size.into(), queues).map_err(refuse)?;
        self.check(config, "writing the table of RSS", self.write_entries(&entries))
    }

    /// Writes the whole table; a negative result is DPDK's error.
    fn write_entries(&self, entries: &[u16]) -> i32 {
        let mut groups: Vec<_> = entries.chunks(GROUP).map(group).collect();
        let size = entries.len() as u16;
        // SAFETY: the port is started; as many groups as the table has, for the call.
        unsafe { sys::rte_eth_dev_rss_reta_update(self.id, groups.as_mut_ptr(), size) }
    }

    /// Writes the key to a started device again if the device has another one: some drivers ignore the key
    /// of the initial configuration.
    pub(super) fn ensure_key(&self, config: &PortConfig, hash: &mut Hash) -> Result<(), Error> {
        let info = self.info(config)?;
        if hash.key.is_empty() || read_hash(self.id, &info).is_none_or(|(_, key)| key == hash.key) {
            return Ok(());
        }
        self.write_hash(config, &info, hash)
    }

    /// Configures another hash in a started device.
    fn write_hash(
        &self,
        config: &PortConfig,
        info: &sys::rte_eth_dev_info,
        hash: &mut Hash,
    ) -> Result<(), Error> {
        let mut conf = hash.conf();
        // SAFETY: the port is started; the key lives for the call.
        let result = unsafe { sys::rte_eth_dev_rss_hash_update(self.id, &mut conf) };
        self.check(config, "changing the hash of RSS", result)?;
        match read_hash(self.id, info) {
            Some((_, key)) if !hash.key.is_empty() && key != hash.key => {
                Err(config.refuse(format!(
                    "device {}: rss: it keeps its own key; leave key and symmetric out, or write \
                     spread = \"software\"",
                    config.device
                )))
            }
            _ => Ok(()),
        }
    }
}

impl Hash {
    /// Returns the hash in DPDK's form, which points to the key.
    #[allow(clippy::needless_update, reason = "DPDK 24.11 has one field more")]
    pub(super) fn conf(&mut self) -> sys::rte_eth_rss_conf {
        let key = if self.key.is_empty() { std::ptr::null_mut() } else { self.key.as_mut_ptr() };
        // The longest key of a configuration fits 8 bits.
        sys::rte_eth_rss_conf {
            rss_key: key,
            rss_key_len: self.key.len() as u8,
            rss_hf: self.fields,
            ..Default::default()
        }
    }
}

/// Returns an entry group of the table, all to be written.
fn group(entries: &[u16]) -> sys::rte_eth_rss_reta_entry64 {
    let mut group = sys::rte_eth_rss_reta_entry64 {
        mask: u64::MAX >> (GROUP - entries.len()),
        reta: [0; GROUP],
    };
    group.reta[..entries.len()].copy_from_slice(entries);
    group
}

impl Port {
    /// Returns the device's selection of receive queues; `None`: it has one queue, or no hash.
    pub fn rss(&self) -> Option<Rss> {
        let device = &self.open.started.device;
        let info = device_info(device.id).ok()?;
        if self.rx_queues() < 2 || info.flow_type_rss_offloads == 0 {
            return None;
        }
        let (fields, key) = read_hash(device.id, &info).unzip();
        let table = read_table(device.id, info.reta_size);
        Some(Rss { fields: names(fields.unwrap_or(0)), key, table })
    }

    /// Returns the fields that the device hashes, in DPDK's bits; 0: its own choice.
    pub(super) fn rss_fields(&self) -> u64 {
        let device = &self.open.started.device;
        let hash = device_info(device.id).ok().and_then(|info| read_hash(device.id, &info));
        hash.map_or(0, |(fields, _)| fields)
    }

    /// Returns the queue of each hash in the device's table; empty if it has none, or its driver does not report it.
    pub fn rss_table(&self) -> Vec<u16> {
        let device = self.open.started.device.id;
        device_info(device).map_or_else(|_| Vec::new(), |info| read_table(device, info.reta_size))
    }

    /// Replaces the device's table while the port runs. Packets that were received before stay in their queues.
    ///
    /// # Errors
    /// The device's error; `EINVAL` for a table of another length or with a queue that does not
    /// exist.
    pub fn set_rss_table(&self, entries: &[u16]) -> Result<(), Errno> {
        let device = &self.open.started.device;
        let size = device_info(device.id)?.reta_size;
        let queues = self.spread_queues();
        if entries.len() != usize::from(size) || entries.iter().any(|&queue| queue >= queues) {
            return Err(Errno::EINVAL);
        }
        match device.write_entries(entries) {
            result if result < 0 => Err(Errno::from_raw(-result)),
            _ => Ok(()),
        }
    }

    /// Changes hash and table while the port runs.
    ///
    /// # Errors
    /// [`Error::PortConfig`] for unsupported settings, [`Error::Port`] for refused ones.
    pub fn set_rss(&self, config: &PortConfig) -> Result<(), Error> {
        if let crate::Device::Kernel(name) = &config.device {
            check_kernel_queues(config, name)?;
        }
        let device = &self.open.started.device;
        let info = device.info(config)?;
        let queues = self.spread_queues();
        if let Some(mut hash) = Hash::plan(config, &info, queues)? {
            device.write_hash(config, &info, &mut hash)?;
        }
        let table = config.rss.as_ref().map_or(RssTable::Even, |rss| rss.table.clone());
        // A kernel interface's control queue is not in its table.
        let leaves_one_out = self.control_queues().rx && self.open.control.is_none();
        if queues > 1 || table != RssTable::Even || leaves_one_out {
            device.write_table(config, &table, queues)?;
        }
        Ok(())
    }
}

/// Reads the fields and the key of a device's hash; `None` if its driver does not report them.
fn read_hash(port: u16, info: &sys::rte_eth_dev_info) -> Option<(u64, Vec<u8>)> {
    let bytes = key_bytes(info);
    // Room for the longest key, regardless of the length that the driver assumes.
    let mut key = vec![0; usize::from(u8::MAX)];
    let mut conf = sys::rte_eth_rss_conf {
        rss_key: key.as_mut_ptr(),
        rss_key_len: bytes as u8,
        ..Default::default()
    };
    // SAFETY: the port is open; the key has room for all that the driver writes.
    let result = unsafe { sys::rte_eth_dev_rss_hash_conf_get(port, &mut conf) };
    key.truncate(bytes);
    (result == 0).then_some((conf.rss_hf, key))
}

/// Reads the device's table; empty if it has none or does not report it.
fn read_table(port: u16, size: u16) -> Vec<u16> {
    let count = usize::from(size).div_ceil(GROUP);
    let all = sys::rte_eth_rss_reta_entry64 { mask: u64::MAX, reta: [0; GROUP] };
    let mut groups = vec![all; count];
    // SAFETY: the port is open; as many groups as the table has, for the call.
    let result = unsafe { sys::rte_eth_dev_rss_reta_query(port, groups.as_mut_ptr(), size) };
    if size == 0 || result != 0 {
        return Vec::new();
    }
    groups.iter().flat_map(|group| group.reta).take(size.into()).collect()
}

/// Returns hash fields in DPDK's words.
fn names(fields: u64) -> Vec<&'static str> {
    const NAMES: [(u32, &str); 15] = [
        (2, "ipv4"),
        (3, "ipv4-frag"),
        (4, "ipv4-tcp"),
        (5, "ipv4-udp"),
        (6, "ipv4-sctp"),
        (7, "ipv4-other"),
        (8, "ipv6"),
        (9, "ipv6-frag"),
        (10, "ipv6-tcp"),
        (11, "ipv6-udp"),
        (12, "ipv6-sctp"),
        (13, "ipv6-other"),
        (15, "ipv6-ex"),
        (16, "ipv6-tcp-ex"),
        (17, "ipv6-udp-ex"),
    ];
    NAMES.iter().filter(|(bit, _)| fields >> bit & 1 != 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_repeat_skip_and_weigh_queues() {
        let even = RssTable::Even.entries(8, 3);
        assert_eq!(even.unwrap(), [0, 1, 2, 0, 1, 2, 0, 1]);
        let skip = RssTable::Skip(vec![0, 2]).entries(6, 4);
        assert_eq!(skip.unwrap(), [1, 3, 1, 3, 1, 3]);
        let pattern = RssTable::Pattern(vec![0, 0, 1]).entries(6, 2);
        assert_eq!(pattern.unwrap(), [0, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn tables_that_no_queue_serves_are_refused() {
        for (table, size, problem) in [
            (RssTable::Skip(vec![0, 1]), 8, "all 2 queues are skipped; leave one"),
            (RssTable::Skip(vec![2]), 8, "queue 2 is not there; the last one is 1"),
            (RssTable::Pattern(vec![0, 7]), 8, "queue 7 is not there; the last one is 1"),
            (RssTable::Pattern(vec![0, 1, 0]), 2, "3 entries, and there is room for 2"),
        ] {
            assert_eq!(table.entries(size, 2).unwrap_err(), problem);
        }
    }

    fn info(fields: u64, key: u8) -> sys::rte_eth_dev_info {
        sys::rte_eth_dev_info {
            flow_type_rss_offloads: fields,
            hash_key_size: key,
            ..Default::default()
        }
    }

    fn plan(rss: Option<RssConfig>, known: u64, queues: u16) -> Result<Option<Hash>, Error> {
        let device = crate::Device::Pci("0000:00:02.0".into());
        let config = PortConfig { rss, ..PortConfig::new("wan", device) };
        Hash::plan(&config, &info(known, 52), queues)
    }

    #[test]
    fn fields_and_key_are_those_that_the_device_has() {
        let all = sys::SHIM_RSS_IP_TCP_UDP;
        let rss = |ports, symmetric| RssConfig { ports, symmetric, ..RssConfig::default() };
        let hash = plan(None, all | 1 << 14, 4).unwrap().unwrap();
        assert_eq!((hash.fields, hash.key.len()), (all, 0));
        let hash = plan(Some(rss(false, true)), all, 4).unwrap().unwrap();
        assert_eq!((hash.fields, hash.key), (sys::SHIM_RSS_IP, SYMMETRIC.repeat(26)));
        assert!(plan(Some(rss(true, false)), all, 1).unwrap().is_none(), "one queue: no choice");
        assert!(plan(None, 0, 4).unwrap().is_none());
        for (rss, known, problem) in [
            (rss(true, false), sys::SHIM_RSS_IP, "it does not hash the ports of TCP and UDP"),
            (rss(false, false), 0, "it does not hash addresses"),
            (
                RssConfig { key: Some(vec![0; 40]), ..rss(true, false) },
                all,
                "the key has 40 bytes, and it takes 52",
            ),
        ] {
            let error = plan(Some(rss), known, 4).map(drop).unwrap_err().to_string();
            let expected = format!(
                "port \"wan\": device 0000:00:02.0: rss: {problem}; leave rss out, or write spread = \"software\""
            );
            assert_eq!(error, expected);
        }
    }
}
