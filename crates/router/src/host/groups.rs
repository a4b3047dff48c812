//! The link-layer groups that the kernel listens to on a host interface, for IP groups and packet sockets of its
//! programs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use wire::MacAddr;

/// The longest time until a group that the kernel joined or left is noticed.
const AGE: Duration = Duration::from_millis(100);

/// Bytes that are read at once.
const CHUNK: usize = 4096;

/// The groups of all interfaces of the namespace in which it was opened.
#[derive(Debug)]
pub struct GroupsFile(File);

impl GroupsFile {
    fn open() -> Result<Self> {
        const PATH: &str = "/proc/thread-self/net/dev_mcast";
        Ok(Self(File::open(PATH).context(PATH)?))
    }

    /// Those of an interface now.
    pub fn groups_of(&self, interface: &str) -> io::Result<BTreeSet<MacAddr>> {
        let text = self.read()?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().filter_map(|line| parse_group(line, interface)).collect())
    }

    /// Without a place in the file, so that several may read.
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        loop {
            let before = text.len();
            text.resize(before + CHUNK, 0);
            let read = self.0.read_at(&mut text[before..], before as u64)?;
            text.truncate(before + read);
            if read == 0 {
                return Ok(text);
            }
        }
    }
}

/// The groups of one interface, as they were a moment ago.
pub struct Groups {
    file: Arc<GroupsFile>,
    interface: String,
    joined: BTreeSet<MacAddr>,
    read: Option<Instant>,
}

impl Groups {
    /// Of an interface in the caller's network namespace.
    pub fn open(interface: &str) -> Result<Self> {
        let (file, interface) = (Arc::new(GroupsFile::open()?), interface.to_owned());
        Ok(Self { file, interface, joined: BTreeSet::new(), read: None })
    }

    /// The namespace's groups, for others.
    pub fn file(&self) -> Arc<GroupsFile> {
        self.file.clone()
    }

    /// Returns true if the kernel listens to the group.
    pub fn contain(&mut self, group: MacAddr, now: Instant) -> bool {
        if self.read.is_none_or(|read| now.duration_since(read) >= AGE) {
            // Should it fail, what was read before is the best there is.
            if let Ok(joined) = self.file.groups_of(&self.interface) {
                self.joined = joined;
            }
            self.read = Some(now);
        }
        self.joined.contains(&group)
    }
}

/// A line: number and name of the interface, users, global users, MAC in hexadecimal.
fn parse_group(line: &str, interface: &str) -> Option<MacAddr> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let mac = (words.next()? == interface).then(|| words.nth(2))??;
    let mut bytes = [0; 6];
    if mac.len() != 12 || !mac.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(mac.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(MacAddr(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_for_their_interface_only() {
        let text = "1    lo              1     0     333300000001\n\
                    7    lan             2     0     01005e000005\n\
                    7    lan             1     0     0180c200000e\n\
                    8    lan2            1     0     01005e000006\n\
                    7    lan             1     0     01005e0000\n";
        let found: Vec<_> = text
            .lines()
            .filter_map(|line| parse_group(line, "lan"))
            .map(|m| m.to_string())
            .collect();
        assert_eq!(found, ["01:00:5e:00:00:05", "01:80:c2:00:00:0e"]);
    }

    #[test]
    fn a_long_list_is_read_whole_again_and_again() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("the test runs as root");
        let ip = |arguments: &str| {
            let run = std::process::Command::new("ip").args(arguments.split(' ')).status();
            assert!(run.unwrap().success(), "ip {arguments}");
        };
        ip("link add tpg0 type veth peer name tpg1");
        let file = GroupsFile::open().unwrap();
        let before = file.groups_of("tpg0").unwrap().len();
        // Some 50 bytes a line.
        let group =
            |number: usize| format!("33:33:00:01:{:02x}:{:02x}", number / 256, number % 256);
        for number in 0..200 {
            ip(&format!("maddress add {} dev tpg0", group(number)));
        }
        let joined = file.groups_of("tpg0").unwrap();
        assert_eq!(joined.len(), before + 200);
        assert!(joined.contains(&group(199).parse().unwrap()));
        ip(&format!("maddress del {} dev tpg0", group(199)));
        assert_eq!(file.groups_of("tpg0").unwrap().len(), before + 199);
    }
}
