//! VLANs that are found as VLAN devices of the kernel, on host interfaces with `vlans = "kernel"`.
//!
//! No statement names such a VLAN. It has the name and tag of its device, and the filters and other precautions of its
//! parent: an interface that appears by itself must not be open where its parent is not. Advertisements, proxies and
//! relays are the kernel's on interfaces with a host interface.
//!
//! Statements come first: a device whose name or tag a statement has makes no VLAN.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use dataplane::interface::{InterfaceId, MAX_INTERFACES, VrfId};
use dataplane::port::MAX_PORTS;
use dataplane::vlan::{Tag, TagProtocol};
use slowpath::InterfaceSettings;

use super::validate::is_interface_name;
use super::{Config, HostInterface, Interface, PortFilter, Vlan, Vrf};
use crate::netlink::FoundVlan;

/// Numbers of bonds and VLANs that are left to new statements.
const RESERVED: usize = 256;

/// Most VLANs that are found, together with the bonds and VLANs of statements.
const MOST: usize = MAX_INTERFACES - MAX_PORTS - RESERVED;

/// VLAN identifiers; 0 is that of frames with a priority only.
const IDS: RangeInclusive<u16> = 1..=4094;

/// VLANs for VLAN devices, and the reasons why others of the devices make none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The VLANs, by their numbers.
    pub vlans: Vec<Vlan>,
    /// A sentence for each other device.
    pub refused: Vec<String>,
}

/// The interfaces of a configuration while VLANs are found for it.
struct Present<'a> {
    config: &'a Config,
    by_name: HashMap<&'a str, InterfaceId>,
    /// Tags of VLANs, with the interface that has them.
    tags: HashSet<(InterfaceId, TagProtocol, u16)>,
    /// The interfaces whose VLAN devices are found, with the number of tags that these may have.
    followed: BTreeMap<InterfaceId, usize>,
    free: Box<dyn Iterator<Item = InterfaceId>>,
    /// The numbers of VLANs that were found before.
    known: HashMap<&'a str, InterfaceId>,
    /// The VLANs that may be found.
    room: usize,
    found: BTreeMap<InterfaceId, Vlan>,
}

impl Config {
    /// Returns the interfaces on whose host interfaces VLAN devices are found, with the number of tags that these may
    /// have: frames have two at most.
    pub(super) fn followed(&self) -> BTreeMap<InterfaceId, usize> {
        let finds = |of: &Interface| of.host.as_ref().is_some_and(|host| host.finds_vlans);
        let room = |id: InterfaceId| match self.vlan(id) {
            None => 2,
            Some(vlan) => usize::from(self.vlan(vlan.parent).is_none()),
        };
        let followed =
            self.interfaces().filter(|(.., of)| finds(of)).map(|(id, ..)| (id, room(id)));
        followed.filter(|(_, room)| *room > 0).collect()
    }

    /// Returns true if VLAN devices are found on any interface.
    pub fn finds_vlans(&self) -> bool {
        !self.followed().is_empty()
    }

    /// Returns the devices whose VLANs it has.
    pub fn found_devices(&self) -> Vec<FoundVlan> {
        let names: HashMap<_, _> = self.interfaces().map(|(id, name, _)| (id, name)).collect();
        let device = |vlan: &Vlan| {
            let vrf = vlan.interface.settings.vrf;
            let name_of = |vrf| Vrf::name_of(&self.vrfs, vrf).to_owned();
            Some(FoundVlan {
                name: vlan.name.clone(),
                parent: (*names.get(&vlan.parent)?).to_owned(),
                protocol: vlan.tag.protocol.ethertype(),
                id: vlan.tag.id,
                is_plain: true,
                vrf: (vrf != VrfId::DEFAULT).then(|| name_of(vrf)),
                space: vlan.interface.space().map(name_of),
            })
        };
        self.found_vlans().filter_map(device).collect()
    }

    /// Returns the VLANs that it has found.
    pub fn found_vlans(&self) -> impl Iterator<Item = &Vlan> {
        self.vlans.iter().filter(|vlan| vlan.is_found)
    }

    /// Makes VLANs for these devices, in place of those that it has found. One of the same name keeps its number.
    pub fn find_vlans(&self, devices: &[FoundVlan]) -> Found {
        let statements = || self.interfaces().filter(|(id, ..)| !self.is_found(*id));
        let used: BTreeSet<_> = self.interfaces().map(|(id, ..)| id).collect();
        let numbers =
            (MAX_PORTS..MAX_INTERFACES).filter_map(|number| InterfaceId::new(number as u16));
        let stated = || self.vlans.iter().filter(|vlan| !vlan.is_found);
        let mut present = Present {
            config: self,
            known: self.found_vlans().map(|vlan| (&*vlan.name, vlan.id)).collect(),
            room: MOST.saturating_sub(self.bonds.len() + self.loopbacks.len() + stated().count()),
            by_name: statements().map(|(id, name, _)| (name, id)).collect(),
            followed: self.followed(),
            tags: stated().map(key).collect(),
            free: Box::new(numbers.filter(move |id| !used.contains(id))),
            found: BTreeMap::new(),
        };
        let mut refused = Vec::new();
        let mut waiting: Vec<&FoundVlan> = devices.iter().collect();
        // Devices on devices after those that they are on: two tags are the most.
        for _ in 0..2 {
            let (ready, later): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|device| present.by_name.contains_key(&*device.parent));
            for device in ready {
                if present.follows(device)
                    && let Err(why) = present.add(device)
                {
                    let FoundVlan { name, parent, .. } = device;
                    let place = match present.is_device(parent) {
                        true => format!("{parent} stays with the kernel"),
                        false => format!("host interface {parent} gets no frames"),
                    };
                    refused.push(format!("VLAN device {name} on {place}: {why}"));
                }
            }
            waiting = later;
        }
        Found { vlans: present.found.into_values().collect(), refused }
    }

    /// Replaces the VLANs that it has found.
    pub fn set_found(&mut self, vlans: Vec<Vlan>) {
        self.vlans.retain(|vlan| !vlan.is_found);
        self.vlans.extend(vlans);
        self.vlans.sort_by_key(|vlan| vlan.id);
        // Steps for VLANs cost each packet something: accelerated ports have them while they have VLANs.
        let lowest: BTreeSet<_> = self.vlans.iter().filter_map(|vlan| self.carrier(vlan)).collect();
        for port in self.ports.iter_mut().filter(|port| port.accelerate) {
            port.interface.has_vlans = lowest.contains(&port.id.into());
        }
    }

    fn is_found(&self, id: InterfaceId) -> bool {
        self.vlan(id).is_some_and(|vlan| vlan.is_found)
    }
}

impl<'a> Present<'a> {
    /// Returns true if VLAN devices are found on the parent of this one.
    fn follows(&self, device: &FoundVlan) -> bool {
        let parent = self.by_name.get(&*device.parent);
        parent.and_then(|parent| self.followed.get(parent)).is_some_and(|room| *room > 0)
    }

    fn add(&mut self, device: &'a FoundVlan) -> Result<(), String> {
        let FoundVlan { name, parent: below, protocol, id, is_plain, vrf, space } = device;
        let parent = *self.by_name.get(&**below).ok_or("its parent is no interface")?;
        let space_of_parent = self.below(parent).and_then(Interface::space);
        let space_of_parent = space_of_parent.map(|vrf| Vrf::name_of(&self.config.vrfs, vrf));
        if space_of_parent != space.as_deref() {
            return Err(format!(
                "\"{below}\" of the configuration is in another network namespace"
            ));
        }
        if !is_interface_name(name) {
            return Err(
                "its name has other characters than letters, digits, '-', '_' and '.'".to_owned()
            );
        }
        if self.by_name.contains_key(&**name) {
            return Err(format!("\"{name}\" is another interface of the configuration; rename it"));
        }
        let protocol = TagProtocol::of(*protocol).ok_or("its tag is neither 802.1q nor 802.1ad")?;
        if !IDS.contains(id) {
            return Err(format!("{id} is no VLAN; {} to {} are", IDS.start(), IDS.end()));
        }
        if !is_plain && self.is_device(below) {
            return Err(
                "its MAC is another than that of the interface, or it gives frames priorities \
                        (egress-qos-map), which accelerated packets would not have"
                    .to_owned(),
            );
        }
        let tag = Tag { protocol, id: *id, priority: 0 };
        if self.tags.contains(&(parent, protocol, *id)) {
            return Err(format!("VLAN {id} there is another VLAN of the configuration"));
        }
        let interface = self.interface(parent, vrf.as_deref())?;
        let known = self.known.get(&**name).copied();
        let has_room = self.found.len() < self.room;
        let number = has_room.then(|| known.or_else(|| self.free.next())).flatten();
        let number = number.ok_or_else(|| {
            format!(
                "the router has {MOST} bonds and VLANs, more are not found; {RESERVED} are left to statements"
            )
        })?;
        if let Some(room) = self.followed.get(&parent).copied() {
            self.followed.insert(number, room - 1);
        }
        self.by_name.insert(name, number);
        self.tags.insert((parent, protocol, *id));
        let (line, mtu, name) = (0, None, name.clone());
        let vlan = Vlan { id: number, line, name, parent, tag, is_found: true, mtu, interface };
        self.found.insert(number, vlan);
        Ok(())
    }

    /// Returns true if the host interface of an interface is its device.
    fn is_device(&self, name: &str) -> bool {
        let of = self.by_name.get(name).and_then(|id| self.below(*id));
        of.and_then(|of| of.host.as_ref()).is_some_and(|host| host.is_device)
    }

    /// Returns the settings of an interface that VLANs may be on.
    fn below(&self, parent: InterfaceId) -> Option<&Interface> {
        let of_found = self.found.get(&parent).map(|vlan| &vlan.interface);
        of_found.or_else(|| self.config.interface(parent))
    }

    /// Returns the settings of a VLAN on an interface.
    fn interface(&self, parent: InterfaceId, vrf: Option<&str>) -> Result<Interface, String> {
        let below = self.below(parent);
        let Some((below, host)) = below.and_then(|below| Some((below, below.host.as_ref()?)))
        else {
            return Err("its parent has no host interface".to_owned());
        };
        let vrfs = &self.config.vrfs;
        let is_apart = |name| vrfs.iter().any(|vrf| vrf.name == name && vrf.namespace.is_some());
        let vrf = match vrf {
            _ if host.of_vrf => below.settings.vrf,
            None => VrfId::DEFAULT,
            Some(name) if is_apart(name) => {
                return Err(format!("VRF \"{name}\" has a network namespace, which it is not in"));
            }
            Some(name) => Vrf::named(vrfs, name).map_err(|why| format!("VRF {why}"))?,
        };
        let software = |filter: &Option<PortFilter>| {
            filter.clone().map(|filter| PortFilter { hardware: false, ..filter })
        };
        let of = &below.settings;
        let (unreachables, redirects, dad) = (of.unreachables, of.redirects, of.dad);
        Ok(Interface {
            settings: InterfaceSettings {
                vrf,
                unreachables,
                redirects,
                dad,
                ..InterfaceSettings::default()
            },
            addresses: Vec::new(),
            unnumbered: None,
            features: below.features.clone(),
            filter_in: software(&below.filter_in),
            filter_out: software(&below.filter_out),
            has_vlans: false,
            is_mirrored: false,
            is_sampled: false,
            is_translated: below.is_translated,
            is_bonded: false,
            host: Some(HostInterface { in_kernel: true, ..host.clone() }),
            ttl_security: below.ttl_security,
            // Its packets are the parent's to limit.
            queue: None,
            shape: None,
        })
    }
}

fn key(vlan: &Vlan) -> (InterfaceId, TagProtocol, u16) {
    (vlan.parent, vlan.tag.protocol, vlan.tag.id)
}

#[cfg(test)]
mod tests {
    use dataplane::catalogue::Catalogue;

    use super::super::{Limits, parse};
    use super::*;

    const BEGIN: &str = "local turnpike = require 'turnpike'
        turnpike.filter 'f' { default = 'drop' }
        turnpike.vrf 'blue' {}
        turnpike.port 'lan' { device = 'eth1', host = { vlans = 'kernel' }, filter = { inward = 'f', hardware = true },
                              ttl_security = 250, reverse_path = 'loose' }
        turnpike.port 'wan' { device = 'eth0', host = true }
        turnpike.vlan 'mine' { parent = 'lan', id = 20, host = 'kernel' }\n";

    fn read(more: &str) -> Config {
        let text = format!("{BEGIN}{more}");
        let catalogue = Catalogue::default();
        parse("t.lua".as_ref(), &text, Limits::default(), &catalogue).unwrap()
    }

    fn device(name: &str, parent: &str, (protocol, id): (u16, u16)) -> FoundVlan {
        FoundVlan {
            name: name.to_owned(),
            parent: parent.to_owned(),
            protocol,
            id,
            is_plain: true,
            vrf: None,
            space: None,
        }
    }

    fn with(mut config: Config, devices: &[FoundVlan]) -> Config {
        let Found { vlans, refused } = config.find_vlans(devices);
        assert_eq!(refused, [""; 0]);
        config.set_found(vlans);
        config
    }

    #[test]
    fn devices_become_vlans_as_closed_as_their_parents() {
        let blue = FoundVlan { vrf: Some("blue".to_owned()), ..device("b", "lan", (0x8100, 9)) };
        // The inner one comes first.
        let devices =
            [device("lan.s.7", "lan.s", (0x8100, 7)), device("lan.s", "lan", (0x88a8, 300)), blue];
        let config = with(read(""), &devices);
        assert_eq!(config.vlans_on_wire().len(), 4);
        let named = |name: &str| config.vlans.iter().find(|vlan| vlan.name == name).unwrap();
        let (inner, outer) = (named("lan.s.7"), named("lan.s"));
        assert_eq!(inner.parent, outer.id);
        assert_eq!(outer.tag.protocol, TagProtocol::Dot1ad);
        let device = config.kernel_device(inner.id).unwrap();
        assert_eq!((&*device.below, device.tags.len()), ("lan", 2));
        let lan = &config.ports[0].interface;
        assert!(lan.has_vlans && lan.filter_in.as_ref().unwrap().hardware);
        for vlan in [inner, outer] {
            let of = &vlan.interface;
            let filter = of.filter_in.as_ref().unwrap();
            assert_eq!((&*filter.name, filter.hardware), ("f", false));
            assert_eq!((&of.features, of.ttl_security), (&lan.features, Some(250)));
            assert!(of.host.as_ref().unwrap().in_kernel);
        }
        assert_eq!(named("b").interface.settings.vrf, config.vrfs[0].id);
        let again: BTreeSet<_> = config.found_devices().into_iter().map(|of| of.name).collect();
        assert_eq!(again, ["b", "lan.s", "lan.s.7"].map(str::to_owned).into());
        // The listener follows them, with as many tags as there is room for.
        let followed = config.host_vlans().followed;
        let room = |name: &str| followed.get(&named(name).id).copied();
        assert_eq!((room("lan.s"), room("lan.s.7"), room("mine")), (Some(1), None, Some(1)));
        assert_eq!(followed.get(&InterfaceId::FIRST), Some(&2));
    }

    #[test]
    fn accelerated_interfaces_have_the_vlans_of_plain_devices_while_these_exist() {
        let accelerated = |more: &str| {
            let text = format!("require 'turnpike'.accelerate {{ 'eth0', 'eth1'{more} }}\n");
            parse("t.lua".as_ref(), &text, Limits::default(), &Catalogue::default()).unwrap()
        };
        let config = accelerated("");
        assert!(!config.ports[0].interface.has_vlans, "steps for VLANs that there are not");
        assert_eq!(config.host_vlans().devices.len(), 2);
        let plain = device("eth0.100", "eth0", (0x8100, 100));
        let config = with(config, std::slice::from_ref(&plain));
        let host = config.vlans[0].interface.host.as_ref().unwrap();
        assert!(host.in_kernel && host.is_device && !host.segmentation);
        assert!(!config.vlans[0].interface.is_translated);
        let flows = with(accelerated(", flows = true"), std::slice::from_ref(&plain));
        assert!(flows.vlans[0].interface.is_translated, "as its parent");
        assert!(config.ports[0].interface.has_vlans && !config.ports[1].interface.has_vlans);
        let config = with(config, &[]);
        assert!(!config.ports[0].interface.has_vlans);
        let found = config.find_vlans(&[FoundVlan { is_plain: false, ..plain.clone() }]);
        assert!(found.vlans.is_empty());
        assert!(
            found.refused[0]
                .starts_with("VLAN device eth0.100 on eth0 stays with the kernel: its MAC")
        );
        let config = accelerated(", vlans = false");
        let found = config.find_vlans(&[plain]);
        assert!(found.vlans.is_empty() && found.refused.is_empty() && !config.finds_vlans());
    }

    #[test]
    fn devices_that_cannot_be_vlans_are_refused_by_name() {
        let config = read("");
        for (of, expected) in [
            (device("wan", "lan", (0x8100, 1)), "\"wan\" is another interface"),
            (device("x", "lan", (0x8100, 20)), "VLAN 20 there is another VLAN"),
            (device("x y", "lan", (0x8100, 1)), "its name has other characters"),
            (device("x", "lan", (0x9100, 1)), "neither 802.1q nor 802.1ad"),
            (device("x", "lan", (0x8100, 0)), "0 is no VLAN; 1 to 4094 are"),
            (device("x", "lan", (0x88a8, 4095)), "4095 is no VLAN"),
            (
                FoundVlan { space: Some("blue".to_owned()), ..device("x", "lan", (0x8100, 1)) },
                "\"lan\" of the configuration is in another network namespace",
            ),
            (
                FoundVlan { vrf: Some("red".to_owned()), ..device("x", "lan", (0x8100, 1)) },
                "VRF \"red\" unknown",
            ),
        ] {
            let found = config.find_vlans(&[of]);
            assert!(found.vlans.is_empty());
            let [refused] = &found.refused[..] else { panic!("{:?}", found.refused) };
            assert!(refused.contains(expected), "{refused}");
        }
        let many = |count: u16| -> Vec<_> {
            let of = |n| {
                device(&format!("v{n}"), "lan", ([0x8100, 0x88a8][usize::from(n % 2)], n / 2 + 100))
            };
            (0..count).map(of).collect()
        };
        let most = (MOST - 1) as u16;
        let found = config.find_vlans(&many(most + 2));
        assert_eq!((found.vlans.len(), found.refused.len()), (most.into(), 2));
        assert!(found.refused[0].contains("256 are left to statements"), "{}", found.refused[0]);
    }

    #[test]
    fn statements_find_room_beside_as_many_found_vlans_as_there_can_be() {
        let of = |n: u16| {
            device(&format!("v{n}"), "lan", ([0x8100, 0x88a8][n as usize % 2], n / 2 + 100))
        };
        let devices: Vec<_> = (0..(MOST - 1) as u16).map(of).collect();
        let base = with(read(""), &devices);
        assert_eq!(base.vlans.len(), MOST);
        let wan = |n: usize| format!("turnpike.vlan 'w{n}' {{ parent = 'wan', id = {} }}\n", n + 1);
        let mut next = read(&(0..RESERVED).map(wan).collect::<String>());
        next.set_found(next.find_vlans(&base.found_devices()).vlans);
        next.align(&base).unwrap();
        let found = next.found_vlans().count();
        assert_eq!((found, next.vlans.len()), (MOST - 1 - RESERVED, MOST));
    }

    const SPACES: &str = "local turnpike = require 'turnpike'
        turnpike.vrf 'blue' { namespace = 'b' }
        turnpike.vrf 'red' {}
        turnpike.port 'lan' { device = 'eth1', host = { vlans = 'kernel' } }
        turnpike.port 'far' { device = 'eth0', host = { vlans = 'kernel' }, vrf = 'blue' }\n";

    #[test]
    fn a_device_is_on_an_interface_of_its_own_namespace() {
        let far = |of| FoundVlan { space: Some("blue".to_owned()), ..of };
        let parsed = |text: &str| {
            parse("t.lua".as_ref(), text, Limits::default(), &Catalogue::default()).unwrap()
        };
        // Of two with a name, one in each namespace, the second is refused, and what is on it is not on the first.
        let devices = [
            device("v", "lan", (0x8100, 1)),
            far(device("v", "far", (0x8100, 1))),
            far(device("v.7", "v", (0x8100, 7))),
            far(device("far.2", "far", (0x8100, 2))),
        ];
        let config = parsed(SPACES);
        let found = config.find_vlans(&devices);
        let names: Vec<_> = found.vlans.iter().map(|vlan| &*vlan.name).collect();
        assert_eq!(names, ["v", "far.2"]);
        let [same_name, above] = &found.refused[..] else { panic!("{:?}", found.refused) };
        assert!(same_name.contains("\"v\" is another interface"), "{same_name}");
        assert!(above.contains("\"v\" of the configuration is in another network"), "{above}");
        // They are the same again for another configuration, whose VRFs have other numbers.
        let base = with(config, &[devices[0].clone(), devices[3].clone()]);
        let again = base.found_devices();
        assert_eq!(
            again.iter().map(|of| of.space.as_deref()).collect::<Vec<_>>(),
            [None, Some("blue")]
        );
        let first = "turnpike.vrf 'blue' { namespace = 'b' }";
        let next = parsed(&SPACES.replace(first, &format!("turnpike.vrf 'new' {{}} {first}")));
        assert_eq!(next.find_vlans(&again).vlans.len(), 2);
        // The port leaves the VRF, and with it the namespace: its devices are elsewhere.
        let next = parsed(&SPACES.replace(", vrf = 'blue'", ""));
        let [left] = &next.find_vlans(&again).refused[..] else { panic!("one is refused") };
        assert!(left.starts_with("VLAN device far.2"), "{left}");
    }

    #[test]
    fn no_device_outside_the_namespace_of_a_vrf_is_in_that_vrf() {
        let text = SPACES.replace("'red' {}", "'red' { namespace = 'r' }");
        let red = FoundVlan { vrf: Some("red".to_owned()), ..device("x", "lan", (0x8100, 1)) };
        let found = |text: &str| {
            let limits = Limits::default();
            let config = parse("t.lua".as_ref(), text, limits, &Catalogue::default()).unwrap();
            config.find_vlans(std::slice::from_ref(&red))
        };
        assert_eq!(found(SPACES).vlans.len(), 1);
        let [refused] = &found(&text).refused[..] else { panic!("it is refused") };
        assert!(refused.contains("VRF \"red\" has a network namespace"), "{refused}");
    }

    #[test]
    fn found_vlans_keep_their_numbers_when_others_go_and_the_configuration_changes() {
        let (one, two) = (device("one", "lan", (0x8100, 1)), device("two", "lan", (0x8100, 2)));
        let base = with(read(""), &[one.clone(), two.clone()]);
        let number = |config: &Config, name: &str| {
            config.vlans.iter().find(|vlan| vlan.name == name).map(|vlan| vlan.id.index())
        };
        assert_eq!((number(&base, "one"), number(&base, "two")), (Some(65), Some(66)));
        let later = with(base.clone(), &[two.clone(), device("three", "lan", (0x8100, 3))]);
        assert_eq!((number(&later, "one"), number(&later, "two")), (None, Some(66)));
        assert_eq!(number(&later, "three"), Some(67), "no number of one that is still in graphs");
        // A statement in front of them, another that takes one over, and a filter that goes.
        let text = "turnpike.vlan 'new' { parent = 'wan', id = 1 }
                    turnpike.vlan 'one' { parent = 'lan', id = 1, host = 'kernel' }";
        let mut next = read(text);
        next.set_found(next.find_vlans(&base.found_devices()).vlans);
        next.align(&base).unwrap();
        assert_eq!((number(&next, "one"), number(&next, "two")), (Some(65), Some(66)));
        assert_eq!(next.found_devices(), [two]);
        assert!(!super::super::Diff::between(&base, &next).vlans.changed.iter().any(|_| true));
    }

    #[test]
    fn without_the_setting_there_are_none() {
        let base = with(read(""), &[device("one", "lan", (0x8100, 1))]);
        let text = BEGIN.replace("{ vlans = 'kernel' }", "true");
        let plain =
            parse("t.lua".as_ref(), &text, Limits::default(), &Catalogue::default()).unwrap();
        assert!(plain.host_vlans().followed.is_empty());
        assert_eq!(plain.find_vlans(&base.found_devices()).vlans, []);
    }
}
