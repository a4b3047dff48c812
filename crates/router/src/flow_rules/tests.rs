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
        rules.insert(number, *order);
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
    (Arc::new(table), Ok(offloads), Vec::new())
}

fn always() -> bool {
    true
}

fn placed(device: &Device, ports: &[u16]) -> Placed<u32> {
    let mut placed = Placed::default();
    placed.follow(Some(filter(ports)));
    assert_eq!(placed.go_on(device, always), None);
    placed
}

fn held(placed: &Placed<u32>) -> Vec<usize> {
    (0..).map_while(|rule| placed.whereabouts(rule)).map(|place| place.held).collect()
}

#[test]
fn what_stays_is_not_touched_and_new_rules_go_in_before_old_ones_go() {
    let device = Device::new(10);
    let mut placed = placed(&device, &[1, 2, 3]);
    assert_eq!(device.said(), ["+0", "+1", "+2"]);
    placed.follow(Some(filter(&[3, 0, 1, 4])));
    placed.go_on(&device, always);
    assert_eq!(device.said(), ["+3", "-1"]);
    assert_eq!(held(&placed), [1, 0, 1, 1]);
    placed.follow(None);
    placed.go_on(&device, always);
    assert_eq!((device.rules.borrow().len(), placed.is_busy()), (0, false));
}

#[test]
fn what_the_device_had_no_room_for_is_tried_when_there_is() {
    let device = Device::new(2);
    let mut placed = placed(&device, &[1, 2, 3]);
    assert_eq!(held(&placed), [1, 1, 0]);
    let full = placed.whereabouts(2).unwrap();
    assert_eq!((full.wanted, full.why), (1, vec!["the device says: full".to_owned()]));
    let report = placed.take_report();
    assert_eq!(report, Some(PlacementReport::Held { rules: 3, held: 2, device: 2 }));
    assert_eq!(placed.take_report(), None, "once");
    device.said();
    // There is no room for the new one beside the old ones.
    placed.follow(Some(filter(&[2, 4])));
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
    placed.follow(Some(filter(&[3, 4])));
    placed.go_on(&device, || false);
    assert_eq!((device.said(), placed.is_busy()), (vec!["-0".into(), "-1".into()], true));
    assert_eq!(placed.take_report(), None);
    assert_eq!(placed.whereabouts(0).unwrap().why, ["1 to be given to the device"]);
    placed.go_on(&device, always);
    assert_eq!((device.said().len(), placed.is_busy()), (2, false));
}

#[test]
fn a_device_without_rules_is_asked_once() {
    let device = Device::new(0);
    let mut placed = placed(&device, &[1, 2]);
    assert_eq!((placed.refused(), placed.is_busy()), (Some("no rules here"), false));
    assert_eq!(placed.take_report(), Some(PlacementReport::Refused("no rules here".to_owned())));
    assert_eq!(placed.whereabouts(0), None);
}

#[test]
fn what_a_device_does_not_let_go_of_is_tried_again_and_told_once() {
    let device = Device::new(10);
    let mut placed = placed(&device, &[1]);
    device.lets_go.set(false);
    placed.follow(Some(filter(&[2])));
    assert_eq!(placed.go_on(&device, always), Some("busy".to_owned()));
    assert_eq!((placed.go_on(&device, always), placed.is_busy()), (None, true));
    // It is wanted again: no harm was done.
    placed.follow(Some(filter(&[1])));
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
    placed.follow(Some(filter(&[2, 1])));
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
    let counted = |rule| placed.whereabouts(rule).unwrap().is_counted;
    assert!(counted(8) && !counted(9));
}

/// A filter whose rules bring UDP over IPv4 to a port to these forwarders, which have these queues.
fn steering(forwarders: &[u16], queues: &[Option<u16>]) -> Wanted {
    let ports: Vec<u16> = (0..forwarders.len() as u16).map(|place| 100 + place).collect();
    let (table, _, _) = filter(&ports);
    let mut spec = table.spec().clone();
    spec.filter.rules.iter_mut().for_each(|rule| rule.action = Action::Accept);
    let treated = |rule: usize| Treated { by_software: None, forwarder: Some(forwarders[rule]) };
    let offloads = acl::offload::offload(&spec.filter, treated, &acl::offload::Port::default());
    (table, Ok(offloads), queues.to_vec())
}

#[test]
fn rules_for_forwarders_lead_to_their_queues_and_follow_them() {
    let device = Device::new(10);
    let fates = || {
        let mut fates: Vec<_> =
            device.rules.borrow().iter().map(|(rule, (_, fate))| (*rule, *fate)).collect();
        fates.sort_by_key(|(rule, _)| *rule);
        fates
    };
    let mut placed = Placed::default();
    placed.follow(Some(steering(&[0, 1, 2], &[Some(1), Some(0), None])));
    placed.go_on(&device, always);
    assert_eq!(fates(), [(0, Fate::Queue(1)), (1, Fate::Queue(0))]);
    let places: Vec<_> = (0..3).map(|rule| placed.whereabouts(rule).unwrap()).collect();
    assert!(places.iter().all(|place| place.steers && !place.drops));
    assert_eq!(places.iter().map(|place| place.held).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(places[2].why, ["forwarder 2 has no receive queue of the port"]);
    let report = PlacementReport::Held { rules: 3, held: 2, device: 2 };
    assert_eq!(placed.take_report(), Some(report));
    device.count.set(5);
    let mut counted = Vec::new();
    placed.read(&device, always, |_, rule, (count, is_dropped)| {
        counted.push((rule, count.packets, is_dropped));
    });
    assert_eq!(counted, [(0, 5, false), (1, 5, false)]);
    // A queue has moved: its rule is replaced, the other one stays.
    placed.follow(Some(steering(&[0, 1, 2], &[Some(1), None, Some(0)])));
    assert_eq!(*placed.queues(), [Some(1), None, Some(0)]);
    placed.go_on(&device, always);
    assert_eq!(fates(), [(0, Fate::Queue(1)), (2, Fate::Queue(0))]);
    placed.follow(None);
    placed.go_on(&device, always);
    assert_eq!((fates(), placed.queues().len()), (vec![], 0));
}
