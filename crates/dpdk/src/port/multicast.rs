//! Multicast filters: the groups whose frames a device receives.
//!
//! A device receives all multicasts when it is opened, until the needed groups are listed. A driver of
//! DPDK's takes the list as a whole; virtio takes each group as a further address. On a kernel interface the
//! groups are joined by a packet socket: the memberships end with its descriptor, after a kill as well.
//! Filters of devices may be coarse (a hash of the address), so that frames to other groups are received
//! too.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{MutexGuard, PoisonError};

use dpdk_sys as sys;

use super::{Port, Started};
use crate::Errno;

/// Drivers that take groups as further addresses, by `rte_eth_dev_mac_addr_add`.
const BY_ADDRESS: [&str; 1] = ["net_virtio"];

/// The multicasts requested for a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Multicasts {
    /// All of them.
    All,
    /// Those to these groups, by their MAC addresses.
    Groups(BTreeSet<[u8; 6]>),
}

/// The multicasts that a device receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MulticastFilter {
    /// All of them, as requested.
    All,
    /// Those to these groups, and perhaps others that a coarse filter does not exclude.
    Groups(BTreeSet<[u8; 6]>),
    /// All of them, because the device refused the list of this many groups.
    Refused(usize, Errno),
    /// All of them: the driver has no filter.
    Unfiltered,
}

/// The filter of a started device.
#[derive(Debug)]
pub(super) struct State {
    filter: MulticastFilter,
    /// Groups added as addresses.
    added: BTreeSet<[u8; 6]>,
    /// Further addresses of the port, see [`Port::set_addresses`].
    pub(super) addresses: BTreeSet<[u8; 6]>,
}

impl State {
    /// Creates the state of a device that receives all multicasts.
    pub(super) fn new(has_filter: bool) -> Self {
        let filter = if has_filter { MulticastFilter::All } else { MulticastFilter::Unfiltered };
        Self { filter, added: BTreeSet::new(), addresses: BTreeSet::new() }
    }
}

impl Port {
    /// Makes the device receive these multicasts. If it refuses the list, it receives all.
    ///
    /// # Errors
    /// The device neither accepts the list nor receives all multicasts.
    pub fn set_multicasts(&self, wanted: &Multicasts) -> Result<MulticastFilter, Errno> {
        let started = &self.open.started;
        let mut state = self.state();
        if state.filter == MulticastFilter::Unfiltered {
            return Ok(MulticastFilter::Unfiltered);
        }
        state.filter = match (&self.open.kernel, wanted) {
            (Some(kernel), _) => kernel.set_multicasts(wanted)?,
            (None, Multicasts::All) => {
                started.pass_all(true)?;
                MulticastFilter::All
            }
            (None, Multicasts::Groups(groups)) => {
                let listed = started.list(groups, &mut state.added);
                match listed.and_then(|()| started.pass_all(false)) {
                    Ok(()) => MulticastFilter::Groups(groups.clone()),
                    Err(errno) => {
                        started.pass_all(true)?;
                        MulticastFilter::Refused(groups.len(), errno)
                    }
                }
            }
        };
        Ok(state.filter.clone())
    }

    /// Returns the multicasts that the device receives.
    pub fn multicast_filter(&self) -> MulticastFilter {
        self.state().filter.clone()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.open.multicast.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Started {
    /// Sets whether the device receives all multicasts.
    fn pass_all(&self, all: bool) -> Result<(), Errno> {
        let id = self.device.id;
        // SAFETY: the port is started.
        let result = unsafe {
            match all {
                true => sys::rte_eth_allmulticast_enable(id),
                false => sys::rte_eth_allmulticast_disable(id),
            }
        };
        done(result)
    }

    /// Configures a list of groups; `added` holds those added as addresses.
    fn list(&self, groups: &BTreeSet<[u8; 6]>, added: &mut BTreeSet<[u8; 6]>) -> Result<(), Errno> {
        if BY_ADDRESS.contains(&self.driver.as_str()) {
            return self.list_by_address(groups, added);
        }
        let mut list: Vec<_> =
            groups.iter().map(|&group| sys::rte_ether_addr { addr_bytes: group }).collect();
        // SAFETY: the port is started; the list, of this length, lives for the call.
        done(unsafe {
            sys::rte_eth_dev_set_mc_addr_list(self.device.id, list.as_mut_ptr(), list.len() as u32)
        })
    }

    /// Makes these the device's further addresses of one kind; `added` holds those that it has.
    pub(super) fn list_by_address(
        &self,
        groups: &BTreeSet<[u8; 6]>,
        added: &mut BTreeSet<[u8; 6]>,
    ) -> Result<(), Errno> {
        let id = self.device.id;
        // First remove the groups that are no longer needed: the table is small.
        for group in &*added - groups {
            let mut address = sys::rte_ether_addr { addr_bytes: group };
            // SAFETY: the port is started; an address for the call. One that stays is kept in `added`.
            if unsafe { sys::rte_eth_dev_mac_addr_remove(id, &mut address) } == 0 {
                added.remove(&group);
            }
        }
        for group in groups - &*added {
            let mut address = sys::rte_ether_addr { addr_bytes: group };
            // SAFETY: the port is started; an address for the call; no pool of a device with virtual
            // machines.
            done(unsafe { sys::rte_eth_dev_mac_addr_add(id, &mut address, 0) })?;
            added.insert(group);
        }
        Ok(())
    }
}

fn done(result: i32) -> Result<(), Errno> {
    if result < 0 { Err(Errno::from_raw(-result)) } else { Ok(()) }
}

/// The link-layer groups joined on a kernel interface, for as long as this exists.
#[derive(Debug)]
pub(super) struct Memberships {
    /// A packet socket that receives nothing.
    socket: OwnedFd,
    index: u32,
    all: bool,
    groups: BTreeSet<[u8; 6]>,
    /// Further addresses of the interface.
    addresses: BTreeSet<[u8; 6]>,
}

impl Memberships {
    /// Joins all multicasts on the interface with this number in the caller's network namespace.
    pub(super) fn all(index: u32) -> Result<Self, Errno> {
        // SAFETY: makes a descriptor.
        let socket =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a descriptor that the kernel has just created for us.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let mut joined =
            Self { socket, index, all: false, groups: BTreeSet::new(), addresses: BTreeSet::new() };
        joined.set_all(true)?;
        Ok(joined)
    }

    /// Joins the requested groups before it leaves the others.
    pub(super) fn set(&mut self, wanted: &Multicasts) -> Result<MulticastFilter, Errno> {
        let groups = match wanted {
            Multicasts::All => {
                self.set_all(true)?;
                return Ok(MulticastFilter::All);
            }
            Multicasts::Groups(groups) => groups,
        };
        if let Err(errno) = self.join(groups) {
            self.set_all(true)?;
            return Ok(MulticastFilter::Refused(groups.len(), errno));
        }
        self.set_all(false)?;
        Ok(MulticastFilter::Groups(groups.clone()))
    }

    /// Has the interface receive frames to these addresses besides its own. One that is full becomes promiscuous.
    pub(super) fn set_addresses(&mut self, wanted: &BTreeSet<[u8; 6]>) -> Result<(), Errno> {
        let mut addresses = std::mem::take(&mut self.addresses);
        let done = self.list(libc::PACKET_MR_UNICAST, &mut addresses, wanted);
        self.addresses = addresses;
        done
    }

    fn join(&mut self, groups: &BTreeSet<[u8; 6]>) -> Result<(), Errno> {
        let mut joined = std::mem::take(&mut self.groups);
        let done = self.list(libc::PACKET_MR_MULTICAST, &mut joined, groups);
        self.groups = joined;
        done
    }

    /// Adds the wanted memberships of a kind before it drops the others; `have` follows.
    fn list(
        &self,
        kind: i32,
        have: &mut BTreeSet<[u8; 6]>,
        wanted: &BTreeSet<[u8; 6]>,
    ) -> Result<(), Errno> {
        for address in wanted - &*have {
            self.change(libc::PACKET_ADD_MEMBERSHIP, kind, Some(address))?;
            have.insert(address);
        }
        for address in &*have - wanted {
            self.change(libc::PACKET_DROP_MEMBERSHIP, kind, Some(address))?;
            have.remove(&address);
        }
        Ok(())
    }

    fn set_all(&mut self, all: bool) -> Result<(), Errno> {
        if self.all != all {
            let option = match all {
                true => libc::PACKET_ADD_MEMBERSHIP,
                false => libc::PACKET_DROP_MEMBERSHIP,
            };
            self.change(option, libc::PACKET_MR_ALLMULTI, None)?;
            self.all = all;
        }
        Ok(())
    }

    fn change(&self, option: i32, kind: i32, group: Option<[u8; 6]>) -> Result<(), Errno> {
        let mut request = libc::packet_mreq {
            mr_ifindex: self.index as i32,
            mr_type: kind as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        if let Some(group) = group {
            request.mr_alen = group.len() as u16;
            request.mr_address[..group.len()].copy_from_slice(&group);
        }
        let size = size_of_val(&request) as libc::socklen_t;
        // SAFETY: a request and its size, for the call.
        let result = unsafe {
            let place = (&raw const request).cast();
            libc::setsockopt(self.socket.as_raw_fd(), libc::SOL_PACKET, option, place, size)
        };
        if result < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OSPF: [u8; 6] = [0x01, 0x00, 0x5e, 0, 0, 5];
    const ISIS: [u8; 6] = [0x09, 0, 0x2b, 0, 0, 5];

    fn groups(of: &[[u8; 6]]) -> Multicasts {
        Multicasts::Groups(of.iter().copied().collect())
    }

    fn ip(arguments: &str) -> String {
        let output = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Membership of the test's groups and of all, as the kernel reports it.
    fn state() -> (bool, bool, bool) {
        let joined = std::fs::read_to_string("/proc/thread-self/net/dev_mcast").unwrap();
        let has = |mac: &str| joined.lines().any(|l| l.contains("tpm0") && l.contains(mac));
        let all = ip("-d link show tpm0").contains("allmulti 1");
        (has("01005e000005"), has("09002b000005"), all)
    }

    #[test]
    fn groups_of_a_kernel_interface_are_joined_and_left() {
        // SAFETY: no memory is involved.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "this test makes a network namespace and needs root");
        ip("link add tpm0 type veth peer name tpm1");
        std::fs::write("/proc/sys/net/ipv6/conf/tpm0/disable_ipv6", "1").unwrap();
        let index = crate::interface_index("tpm0").unwrap();
        let mut joined = Memberships::all(index).unwrap();
        assert_eq!(state(), (false, false, true));
        let both = groups(&[OSPF, ISIS]);
        let list: BTreeSet<_> = [OSPF, ISIS].into();
        assert_eq!(joined.set(&both), Ok(MulticastFilter::Groups(list)));
        assert_eq!(state(), (true, true, false));
        joined.set(&groups(&[ISIS])).unwrap();
        assert_eq!(state(), (false, true, false));
        assert_eq!(joined.set(&Multicasts::All), Ok(MulticastFilter::All));
        assert!(state().2);
        joined.set(&groups(&[OSPF])).unwrap();
        assert_eq!(state(), (true, false, false));
        drop(joined);
        // The memberships end with the descriptor.
        let gone = || (state() == (false, false, false)).then_some(());
        crate::testing::within_a_minute("memberships that go with their descriptor", gone);
        let missing = Memberships::all(9999).map(drop);
        assert_eq!(missing, Err(Errno::ENODEV));
    }
}
