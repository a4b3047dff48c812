//! VLAN devices on host interfaces that become VLANs by themselves.
//!
//! ```text
//!   TAP lan (followed) <-- lan.100 <-- lan.100.7
//!          room: 2           room: 1     room: 0, no VLAN device on it is found
//! ```
//!
//! A device is found on a followed host interface, and on a device found there, while its frames have no more than two
//! tags. One that a statement of the configuration means is not: it is that statement's. Nor is one in a bridge, in a
//! bond or in a VRF device that is none of the configuration's.
//!
//! A device is in the VRF whose device it is in, as its routes are; where VRFs have no devices, in that of its parent.
//!
//! All are reported together, some time after the last change: a machine that boots makes hundreds, one after the other.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use dataplane::interface::InterfaceId;

use super::super::event::{FoundVlan, HostVlan, HostVlans, SourceEvent};
use super::{KernelVrf, Link, Model, VlanDevice};

/// Most VLAN devices on a port that are found: as many as there are VLANs without service tags.
const FOUND_MOST: usize = 4094;

/// Most tags of a frame.
pub(super) const TAGS_MOST: usize = 2;

/// The search for VLAN devices, and its last result.
#[derive(Debug, Default)]
pub(super) struct Finder {
    /// The interfaces whose VLAN devices are found, with the number of tags that these may have.
    followed: BTreeMap<InterfaceId, usize>,
    /// The interfaces whose host interfaces are their devices.
    devices: BTreeSet<InterfaceId>,
    /// Parents and tags of statements.
    statements: HashSet<(InterfaceId, u16, u16)>,
    /// The VRF devices, with the names of their VRFs.
    vrf_devices: BTreeMap<u32, String>,
    /// The interfaces in VRFs that have no device, with the names of these.
    vrf_of: HashMap<InterfaceId, String>,
    /// The devices that were reported; `None` before the first report.
    found: Option<Vec<FoundVlan>>,
    /// The number of devices beyond the most, when that was last logged.
    too_many: usize,
    /// True if something has changed since the last search.
    pub(super) due: bool,
    /// True while the links are being read, of which only a part is known.
    pub(super) reading: bool,
}

/// Properties of VLAN devices on an interface.
#[derive(Clone, Copy)]
struct Above<'a> {
    /// The number of tags that they may have.
    room: usize,
    /// The VRF of those that are in no VRF device.
    vrf: Option<&'a str>,
}

impl Finder {
    /// Finds nothing until the links have been read.
    pub(super) fn new(vlans: &HostVlans) -> Self {
        let mut finder = Self { reading: true, ..Self::default() };
        finder.follow(vlans);
        finder
    }

    /// Follows the interfaces that these VLANs say.
    pub(super) fn follow(&mut self, HostVlans { vlans, followed, devices }: &HostVlans) {
        self.followed.clone_from(followed);
        self.devices.clone_from(devices);
        let statements = vlans.iter().filter(|vlan| !vlan.is_found);
        let key = |vlan: &HostVlan| (vlan.parent, vlan.protocol, vlan.id);
        self.statements = statements.map(key).collect();
        self.due = true;
    }

    /// Returns true if the host interface of this one is its device.
    pub(super) fn is_device(&self, interface: InterfaceId) -> bool {
        self.devices.contains(&interface)
    }
}

impl Model {
    /// Takes up the VRFs and their devices.
    pub(super) fn find_in_vrfs(&mut self) {
        let (mut devices, mut vrf_of) = (BTreeMap::new(), HashMap::new());
        for vrf @ KernelVrf { name, ports, .. } in &self.vrfs {
            match self.device_of(vrf) {
                Some(device) => drop(devices.insert(device, name.clone())),
                None => vrf_of.extend(ports.iter().map(|port| (*port, name.clone()))),
            }
        }
        (self.finder.vrf_devices, self.finder.vrf_of) = (devices, vrf_of);
        self.finder.due = true;
    }

    /// Reports the VLAN devices that become VLANs, if they are others than before. The first report of all links, which
    /// the router waits for, is made even if there are none.
    pub(in super::super) fn send_found(&mut self) {
        if self.finder.reading || !std::mem::take(&mut self.finder.due) {
            return;
        }
        if self.finder.followed.is_empty() && self.finder.found.is_none() {
            return;
        }
        let (found, too_many) = self.find();
        if too_many > self.finder.too_many {
            tracing::warn!(
                "kernel: {too_many} VLAN devices get no frames: {FOUND_MOST} on a port's host interface are the most; \
                 remove some"
            );
        }
        self.finder.too_many = too_many;
        if self.finder.found.as_ref() != Some(&found) {
            self.finder.found = Some(found.clone());
            self.routes.push(SourceEvent::VlanDevices(found));
        }
    }

    /// Returns true for a VLAN device that becomes a VLAN by itself.
    pub(super) fn is_found(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(|link| self.found(link, TAGS_MOST).is_some())
    }

    /// Returns the VLAN devices that become VLANs, and the number of those beyond the most on a port.
    fn find(&self) -> (Vec<FoundVlan>, usize) {
        let (mut found, mut too_many) = (Vec::new(), 0);
        let mut on_port: BTreeMap<u32, usize> = BTreeMap::new();
        for link in self.links.values() {
            let Some((device, parent, index)) = self.parent(link) else { continue };
            let Some(Above { vrf, .. }) = self.found(link, TAGS_MOST) else { continue };
            let lowest = self.parent(parent).map_or(index, |(.., below)| below);
            let count = on_port.entry(lowest).or_default();
            *count += 1;
            if *count > FOUND_MOST {
                too_many += 1;
                continue;
            }
            let VlanDevice { protocol, id, marks, .. } = device;
            let is_plain = !marks && link.mac == parent.mac;
            let (name, parent) = (link.name.clone(), parent.name.clone());
            let vrf = vrf.map(str::to_owned);
            found.push(FoundVlan { name, parent, protocol, id, is_plain, vrf, space: None });
        }
        (found, too_many)
    }

    /// Returns a VLAN device's tag, the interface that it is on, and the index of that.
    fn parent(&self, link: &Link) -> Option<(VlanDevice, &Link, u32)> {
        let device = link.vlan?;
        let index = device.parent?;
        Some((device, self.links.get(&index)?, index))
    }

    /// Returns the properties of a VLAN device that becomes a VLAN: its VRF, and the number of tags of those on it. No
    /// more than `tags` devices below it are looked at.
    fn found(&self, link: &Link, tags: usize) -> Option<Above<'_>> {
        let (device, parent, _) = self.parent(link)?;
        let Above { room, vrf } = self.above(parent, tags)?;
        let room = room.checked_sub(1)?;
        let VlanDevice { protocol, id, .. } = device;
        let is_statement = |port| self.finder.statements.contains(&(port, protocol, id));
        if parent.port.is_some_and(is_statement) {
            return None;
        }
        let vrf = match link.master {
            None => vrf,
            Some(master) => Some(self.finder.vrf_devices.get(&master)?.as_str()),
        };
        Some(Above { room, vrf })
    }

    /// Returns the properties of VLAN devices on an interface, if they become VLANs.
    fn above(&self, link: &Link, tags: usize) -> Option<Above<'_>> {
        if let Some(port) = link.port
            && let Some(&room) = self.finder.followed.get(&port)
        {
            return Some(Above { room, vrf: self.finder.vrf_of.get(&port).map(String::as_str) });
        }
        let Above { room, vrf } = self.found(link, tags.checked_sub(1)?)?;
        Some(Above { room, vrf: vrf.filter(|_| link.master.is_none()) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::tests::{device, vlan_device};
    use super::super::tests::{model, receive};
    use super::*;
    use crate::netlink::message::{RTM_DELLINK, RTM_NEWLINK};

    fn interface(index: u16) -> InterfaceId {
        InterfaceId::new(index).unwrap()
    }

    /// A model with a followed port `lan`, and a port `wan`.
    fn following() -> Model {
        let mut model = model(None);
        let followed = [(interface(0), 2)].into();
        model.set_vlans(HostVlans { followed, ..HostVlans::default() });
        model.set_ports(&[(interface(0), "lan".to_owned()), (interface(1), "wan".to_owned())]);
        receive(&mut model, &device(RTM_NEWLINK, 3, "lan", "tun", 0));
        receive(&mut model, &device(RTM_NEWLINK, 4, "wan", "tun", 0));
        model.finder.reading = false;
        model
    }

    /// The names of the devices reported now; `None` if nothing is.
    fn sent(model: &mut Model) -> Option<Vec<String>> {
        model.routes.take_events();
        model.send_found();
        let events = model.routes.take_events();
        events.into_iter().find_map(|event| match event {
            SourceEvent::VlanDevices(found) => {
                Some(found.into_iter().map(|device| device.name).collect())
            }
            _ => None,
        })
    }

    #[test]
    fn vlan_devices_with_up_to_two_tags_on_a_followed_host_interface_are_found() {
        let mut model = following();
        assert_eq!(sent(&mut model), Some(Vec::new()), "the first report");
        assert_eq!(sent(&mut model), None);
        // Upper devices first: the kernel's order is that of their numbers.
        for (index, name, parent, protocol, id) in [
            (5, "deep", 6, 0x8100, 1),
            (6, "lan.s.7", 7, 0x8100, 7),
            (7, "lan.s", 3, 0x88a8, 300),
            (8, "wan.1", 4, 0x8100, 1),
            (9, "lan.1", 3, 0x8100, 1),
        ] {
            receive(&mut model, &vlan_device(RTM_NEWLINK, index, name, parent, (protocol, id)));
        }
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(sent(&mut model), names(&["lan.s.7", "lan.s", "lan.1"]));
        assert!(model.is_found(6) && !model.is_found(5) && !model.is_found(8));
        assert_eq!(sent(&mut model), None, "nothing has changed");
        receive(&mut model, &vlan_device(RTM_DELLINK, 7, "lan.s", 3, (0x88a8, 300)));
        assert_eq!(sent(&mut model), names(&["lan.1"]), "nor is one on it found");
        // A statement has the tag.
        let vlan = HostVlan {
            interface: interface(64),
            name: "mine".to_owned(),
            parent: interface(0),
            protocol: 0x8100,
            id: 1,
            in_kernel: false,
            is_found: false,
        };
        let followed = [(interface(0), 2)].into();
        model.set_vlans(HostVlans { vlans: vec![vlan], followed, ..HostVlans::default() });
        assert_eq!(sent(&mut model), names(&[]));
    }

    #[test]
    fn devices_that_are_each_other_s_parents_end_the_search() {
        let mut model = following();
        for (index, parent) in [(5, 6), (6, 5)] {
            receive(&mut model, &vlan_device(RTM_NEWLINK, index, "odd", parent, (0x8100, 1)));
        }
        assert_eq!(sent(&mut model), Some(Vec::new()));
    }

    #[test]
    fn nothing_is_reported_before_an_interface_is_followed() {
        let mut model = following();
        model.set_vlans(HostVlans::default());
        receive(&mut model, &vlan_device(RTM_NEWLINK, 5, "lan.1", 3, (0x8100, 1)));
        assert_eq!(sent(&mut model), None);
        let followed = [(interface(0), 2)].into();
        model.set_vlans(HostVlans { followed, ..HostVlans::default() });
        assert_eq!(sent(&mut model), Some(vec!["lan.1".to_owned()]));
        model.set_vlans(HostVlans::default());
        assert_eq!(sent(&mut model), Some(Vec::new()));
    }

    #[test]
    fn a_found_device_is_in_the_vrf_of_its_device_else_of_its_parent() {
        let mut model = following();
        receive(&mut model, &vlan_device(RTM_NEWLINK, 5, "lan.1", 3, (0x8100, 1)));
        receive(&mut model, &vlan_device(RTM_NEWLINK, 6, "lan.1.1", 5, (0x8100, 1)));
        let vrfs = |model: &Model| -> Vec<_> {
            model.find().0.into_iter().map(|device| device.vrf).collect()
        };
        // `lan` is in VRF blue, which has no device.
        let blue = || Some("blue".to_owned());
        assert_eq!(vrfs(&model), [blue(), blue()]);
        receive(&mut model, &device(RTM_NEWLINK, 7, "blue", "vrf", 100));
        assert_eq!(vrfs(&model), [None, None], "they are not in its device");
        let put = |model: &mut Model, index: u32, master| {
            let link = Link { master, ..model.links[&index].clone() };
            model.link(link.message(index));
        };
        put(&mut model, 5, Some(7));
        assert_eq!(vrfs(&model), [blue(), None]);
        put(&mut model, 5, Some(99));
        assert_eq!(vrfs(&model), [], "a bridge's");
    }

    #[test]
    fn devices_with_a_mac_or_priorities_of_their_own_are_not_plain() {
        let mut model = following();
        receive(&mut model, &vlan_device(RTM_NEWLINK, 5, "lan.1", 3, (0x8100, 1)));
        let is_plain = |model: &Model| model.find().0[0].is_plain;
        assert!(is_plain(&model));
        let mac = Some(wire::MacAddr([2; 6]));
        let own = Link { mac, ..model.links[&5].clone() };
        model.link(own.message(5));
        assert!(!is_plain(&model) && model.finder.due, "its parent has another");
        let parent = Link { mac, ..model.links[&3].clone() };
        model.link(parent.message(3));
        assert!(is_plain(&model));
        let marks = own.vlan.map(|of| VlanDevice { marks: true, ..of });
        model.link(Link { vlan: marks, ..own }.message(5));
        assert!(!is_plain(&model));
    }

    #[test]
    fn devices_beyond_the_most_on_a_port_are_counted() {
        let mut model = following();
        for index in 0..FOUND_MOST as u32 + 3 {
            let vlan =
                VlanDevice { parent: Some(3), protocol: 0x8100, id: index as u16, marks: false };
            let link = Link { name: format!("v{index}"), vlan: Some(vlan), ..Link::default() };
            model.links.insert(100 + index, link);
        }
        let (found, too_many) = model.find();
        assert_eq!((found.len(), too_many), (FOUND_MOST, 3));
    }

    #[test]
    fn nothing_is_reported_of_links_that_are_half_read() {
        use super::super::Part;
        let mut model = following();
        receive(&mut model, &vlan_device(RTM_NEWLINK, 5, "lan.1", 3, (0x8100, 1)));
        assert_eq!(sent(&mut model), Some(vec!["lan.1".to_owned()]));
        // Another namespace, first with the same device and then without it.
        for is_there in [true, false] {
            model.leave();
            model.begin_part(Part::Links);
            receive(&mut model, &device(RTM_NEWLINK, 3, "lan", "tun", 0));
            assert_eq!(sent(&mut model), None);
            if is_there {
                receive(&mut model, &vlan_device(RTM_NEWLINK, 5, "lan.1", 3, (0x8100, 1)));
            }
            model.end_part(Part::Links);
            assert_eq!(sent(&mut model), (!is_there).then(Vec::new));
        }
    }
}
