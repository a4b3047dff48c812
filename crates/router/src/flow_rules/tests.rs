use std::cell::{Cell, RefCell};

use acl::offload::Treated;
use acl::{Action, Filter, Matches, Rule};
use dataplane::filters::{FilterSpec, Treatment};

use super::*;

/// A device with room for some rules, which records the requests made to it.
struct Device {
    room: usize,
    rules: RefCell<HashMap<u32, Order>>,
    next: Cell<u32>,
    said: RefCell<Vec<String>>,
    count: Cell<u64>,
    lets_go: Cell<bool>,
}

impl Device {
    fn new(room: usize) -> Self {
        let (rules, next, said) = (RefCell::default(), Cell::new(0), RefCell::default());
        Self { room, rules, next, said, count: Cell::new(0), lets_go: Cell::new(true) }
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.said.borrow_mut())
    }
}

impl Holder for Device {
    type Rule = u32;

    fn add(&self, order: &Order) -> Result<u32, Refused> {
        if self.room == 0 {
            return Err(Refused { why: "no rules here".to_owned(), is_for_good: true });
        }
        let mut rules = self.rules.borrow_mut();
        if rules.len() >= self.room {
            return Err(Refused { why: "full".to_owned(), is_for_good: false });
        }
        let number = self.next.replace(self.next.get() + 1);
        rules.insert(number, order.clone());
        self.said.borrow_mut().push(format!("+{number}"));
        Ok(number)
    }

    fn remove(&self, rule: u32) -> Result<(), (u32, String)> {
        if !self.lets_go.get() {
            return Err((rule, "busy".to_owned()));
        }
        assert!(self.rules.borrow_mut().remove(&rule).is_some(), "{rule}");
        self.said.borrow_mut().push(format!("-{rule}"));
        Ok(())
    }

    fn count(&self, _: &u32) -> Option<FlowCount> {
        let packets = self.count.get();
        Some(FlowCount { packets, bytes: Some(packets * 100) })
    }

    fn counts(&self, rule: &u32) -> bool {
        *rule != 9
    }
}

/// A filter that drops UDP over IPv4 to these ports, and what a device can do of it.
fn filter(ports: &[u16]) -> Wanted {
    let rule = |&port: &u16| Rule {
        name: None,
        line: 1,
        matches: Matches {
            family: Some(Family::Ip4),
            protocol: vec![17],
            to_port: vec![port..=port],
            ..Matches::default()
        },
        action: if port == 0 { Action::Accept } else { Action::Drop },
    };
    let filter = Filter {
        name: "f".into(),
        rules: ports.iter().map(rule).collect(),
        default: Action::Accept,
    };
    let treatments = vec![Treatment::default(); ports.len()];
    let offloads =
        acl::offload::offload(&filter, |_| Treated::default(), &acl::offload::Port::default());
    let table = FilterTable::new(
        &FilterSpec { filter, treatments, targets: vec![] },
        None,
        &acl::SetReaders::none(),
    )
    .unwrap();
    Wanted { interface: OWN, filter: Arc::new(table), offloads: Ok(offloads) }
}

/// The port's own interface, and a VLAN on it.
const OWN: InterfaceId = InterfaceId::FIRST;

fn reports(placed: &mut Placed<u32>) -> Vec<PlacementReport> {
    placed.take_reports().into_iter().map(|(_, _, report)| report).collect()
}

fn always() -> bool {
    true
}

fn placed(device: &Device, ports: &[u16]) -> Placed<u32> {
    let mut placed = Placed::default();
    placed.follow(vec![filter(ports)], vec![]);
    assert_eq!(placed.go_on(device, always), None);
    placed
}

fn held(placed: &Placed<u32>) -> Vec<usize> {
    (0..).map_while(|rule| placed.whereabouts(OWN, rule)).map(|place| place.held).collect()
}

#[test]
fn what_stays_is_not_touched_and_new_rules_go_in_before_old_ones_go() {
    let device = Device::new(10);
    let mut placed = placed(&device, &[1, 2, 3]);
    assert_eq!(device.said(), ["+0", "+1", "+2"]);
    placed.follow(vec![filter(&[3, 0, 1, 4])], vec![]);
    placed.go_on(&device, always);
    assert_eq!(device.said(), ["+3", "-1"]);
    assert_eq!(held(&placed), [1, 0, 1, 1]);
    placed.follow(vec![], vec![]);
    placed.go_on(&device, always);
    assert_eq!((device.rules.borrow().len(), placed.is_busy()), (0, false));
}

#[test]
fn what_the_device_had_no_room_for_is_tried_when_there_is() {
    let device = Device::new(2);
    let mut placed = placed(&device, &[1, 2, 3]);
    assert_eq!(held(&placed), [1, 1, 0]);
    let full = placed.whereabouts(OWN, 2).unwrap();
    assert_eq!((full.wanted, full.why), (1, vec!["the device says: full".to_owned()]));
    let report = PlacementReport::Held { rules: 3, held: 2, device: 2 };
    assert_eq!(reports(&mut placed), [report]);
    assert_eq!(reports(&mut placed), [], "once");
    device.said();
    // There is no room for the new one beside the old ones.
    placed.follow(vec![filter(&[2, 4])], vec![]);
    placed.go_on(&device, always);
    assert_eq!(
        (device.said(), held(&placed)),
        (vec!["-0".to_owned(), "+2".to_owned()], vec![1, 1])
    );
}

#[test]
fn a_device_that_is_slow_gets_its_rules_by_and_by_and_loses_old_ones_at_once() {
    let device = Device::new(10);
    let mut placed = placed(&device, &[1, 2]);
    device.said();
    placed.follow(vec![filter(&[3, 4])], vec![]);
    placed.go_on(&device, || false);
    assert_eq!((device.said(), placed.is_busy()), (vec!["-0".into(), "-1".into()], true));
    assert_eq!(reports(&mut placed), []);
    assert_eq!(placed.whereabouts(OWN, 0).unwrap().why, ["1 to be given to the device"]);
    placed.go_on(&device, always);
    assert_eq!((device.said().len(), placed.is_busy()), (2, false));
}

#[test]
fn a_device_without_rules_is_asked_once() {
    let device = Device::new(0);
    let mut placed = placed(&device, &[1, 2]);
    assert_eq!((placed.refused(OWN), placed.is_busy()), (Some("no rules here"), false));
    assert_eq!(reports(&mut placed), [PlacementReport::Refused("no rules here".to_owned())]);
    assert_eq!(placed.whereabouts(OWN, 0), None);
}

#[test]
fn what_a_device_does_not_let_go_of_is_tried_again_and_told_once() {
    let device = Device::new(10);
    let mut placed = placed(&device, &[1]);
    device.lets_go.set(false);
    placed.follow(vec![filter(&[2])], vec![]);
    assert_eq!(placed.go_on(&device, always), Some("busy".to_owned()));
    assert_eq!((placed.go_on(&device, always), placed.is_busy()), (None, true));
    // It is wanted again: no harm was done.
    placed.follow(vec![filter(&[1])], vec![]);
    assert_eq!(held(&placed), [1]);
    device.lets_go.set(true);
    placed.go_on(&device, always);
    assert_eq!((device.rules.borrow().len(), placed.is_busy()), (1, false));
}

#[test]
fn counts_are_told_once_and_as_bytes_of_ip_packets() {
    let device = Device::new(10);
    let mut placed = placed(&device, &[1, 0, 2]);
    let mut told = Vec::new();
    let mut read = |placed: &mut Placed<u32>| {
        placed.read(&device, always, |_, rule, (count, is_dropped)| {
            assert!(is_dropped);
            told.push((rule, count.packets, count.bytes));
        });
        std::mem::take(&mut told)
    };
    assert_eq!(read(&mut placed), []);
    device.count.set(3);
    assert_eq!(read(&mut placed), [(0, 3, Some(3 * 86)), (2, 3, Some(3 * 86))]);
    assert_eq!(read(&mut placed), []);
    // A rule that stays continues from its counts, for the rule of the filter that it is of now.
    placed.follow(vec![filter(&[2, 1])], vec![]);
    placed.go_on(&device, always);
    device.count.set(4);
    assert_eq!(read(&mut placed), [(0, 1, Some(86)), (1, 1, Some(86))]);
    // The device has been reset.
    device.count.set(2);
    assert_eq!(read(&mut placed), [(0, 2, Some(172)), (1, 2, Some(172))]);
}

#[test]
fn a_rule_that_is_not_counted_says_so() {
    let device = Device::new(20);
    let ports: Vec<u16> = (1..=10).collect();
    let placed = placed(&device, &ports);
    let counted = |rule| placed.whereabouts(OWN, rule).unwrap().is_counted;
    assert!(counted(8) && !counted(9));
}

/// A filter whose rules bring UDP over IPv4 to a port to these forwarders.
fn steering(forwarders: &[&[u16]]) -> Wanted {
    let ports: Vec<u16> = (0..forwarders.len() as u16).map(|place| 100 + place).collect();
    let mut spec = filter(&ports).filter.spec().clone();
    spec.filter.rules.iter_mut().for_each(|rule| rule.action = Action::Accept);
    for (treatment, of) in spec.treatments.iter_mut().zip(forwarders) {
        treatment.forwarders = Forwarders::new(of);
    }
    let treated = |_| Treated { by_software: None, steers: true };
    let offloads = acl::offload::offload(&spec.filter, treated, &acl::offload::Port::default());
    let table = FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap();
    Wanted { interface: OWN, filter: Arc::new(table), offloads: Ok(offloads) }
}

#[test]
fn rules_for_forwarders_lead_to_their_queues_and_follow_them() {
    let device = Device::new(10);
    let fates = || {
        let mut fates: Vec<_> =
            device.rules.borrow().iter().map(|(rule, (_, fate))| (*rule, fate.clone())).collect();
        fates.sort_by_key(|(rule, _)| *rule);
        fates
    };
    let mut placed = Placed::default();
    let one_each: [&[u16]; 3] = [&[0], &[1], &[2]];
    placed.follow(vec![steering(&one_each)], vec![Some(1), Some(0), None]);
    placed.go_on(&device, always);
    assert_eq!(fates(), [(0, queues(&[1])), (1, queues(&[0]))]);
    let places: Vec<_> = (0..3).map(|rule| placed.whereabouts(OWN, rule).unwrap()).collect();
    assert!(places.iter().all(|place| place.steers && !place.drops));
    assert_eq!(places.iter().map(|place| place.held).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(places[2].why, ["forwarder 2 has no receive queue of the port"]);
    let report = PlacementReport::Held { rules: 3, held: 2, device: 2 };
    assert_eq!(reports(&mut placed), [report]);
    device.count.set(5);
    let mut counted = Vec::new();
    placed.read(&device, always, |_, rule, (count, is_dropped)| {
        counted.push((rule, count.packets, is_dropped));
    });
    assert_eq!(counted, [(0, 5, false), (1, 5, false)]);
    // A queue has moved: its rule is replaced, the other one stays.
    placed.follow(vec![steering(&one_each)], vec![Some(1), None, Some(0)]);
    assert_eq!(*placed.queues(), [Some(1), None, Some(0)]);
    placed.go_on(&device, always);
    assert_eq!(fates(), [(0, queues(&[1])), (2, queues(&[0]))]);
    placed.follow(vec![], vec![]);
    placed.go_on(&device, always);
    assert_eq!((fates(), placed.queues().len()), (vec![], 0));
}

fn queues(list: &[u16]) -> Fate {
    Fate::Queues(list.to_vec())
}

#[test]
fn several_forwarders_are_several_queues_if_each_has_one() {
    let device = Device::new(10);
    let mut placed = Placed::default();
    let rules: [&[u16]; 2] = [&[2, 0], &[0, 1]];
    placed.follow(vec![steering(&rules)], vec![Some(1), None, Some(0)]);
    placed.go_on(&device, always);
    let fates: Vec<_> = device.rules.borrow().values().map(|(_, fate)| fate.clone()).collect();
    assert_eq!(fates, [queues(&[1, 0])], "in the order of the forwarders");
    let why = placed.whereabouts(OWN, 1).unwrap().why;
    assert_eq!(why, ["forwarder 1 has no receive queue of the port"]);
}

#[test]
fn filters_of_several_interfaces_share_the_device() {
    let device = Device::new(3);
    let other = InterfaceId::new(300).unwrap();
    let on_vlan = |ports: &[u16]| {
        let tags = wire::pattern::Tags::One(wire::pattern::Tag {
            protocol: 0x8100,
            control: wire::pattern::Masked { value: 7, mask: 0xfff },
        });
        let Wanted { filter, .. } = filter(ports);
        let port = acl::offload::Port { tags, ..Default::default() };
        let rules = &filter.spec().filter;
        let offloads = Ok(acl::offload::offload(rules, |_| Treated::default(), &port));
        Wanted { interface: other, filter, offloads }
    };
    let mut placed = Placed::default();
    placed.follow(vec![filter(&[1, 2]), on_vlan(&[1, 3])], vec![]);
    placed.go_on(&device, always);
    let held = |placed: &Placed<u32>, interface| {
        [0, 1].map(|rule| placed.whereabouts(interface, rule).unwrap().held)
    };
    assert_eq!((held(&placed, OWN), held(&placed, other)), ([1, 1], [1, 0]), "the same, with tags");
    let report = |rules, held| PlacementReport::Held { rules, held, device: held };
    assert_eq!(reports(&mut placed), [report(2, 2), report(2, 1)]);
    // Each counts for the filter of its interface.
    device.count.set(2);
    let mut counted = Vec::new();
    placed.read(&device, always, |table, rule, (count, _)| {
        counted.push((table.spec().filter.rules.len(), rule, count.packets, count.bytes));
    });
    // The tag is no part of IP packets.
    let [untagged, tagged] = [2 * 86, 2 * 82].map(Some);
    assert_eq!(counted, [(2, 0, 2, untagged), (2, 1, 2, untagged), (2, 0, 2, tagged)]);
    // One that is to hold nothing more does not touch the other one's.
    device.said();
    let refused = Wanted { offloads: Err("a reason".to_owned()), ..filter(&[1, 2]) };
    placed.follow(vec![refused, on_vlan(&[1, 3])], vec![]);
    placed.go_on(&device, always);
    assert_eq!(device.said(), ["-0", "-1", "+3"]);
    assert_eq!((placed.refused(OWN), placed.refused(other)), (Some("a reason"), None));
    assert_eq!(held(&placed, other), [1, 1]);
}
