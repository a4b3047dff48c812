use std::cell::RefCell;
use std::collections::BTreeMap;

use super::*;

/// A device with room for some rules, whose counters the test sets.
#[derive(Default)]
struct Device {
    rules: RefCell<BTreeMap<u32, Traffic>>,
    made: RefCell<u32>,
    room: usize,
    packets: RefCell<u64>,
    /// It refuses to remove rules.
    keeps: RefCell<bool>,
    /// It takes nothing.
    has_none: bool,
}

impl Steering for Device {
    type Rule = u32;

    fn steer(&self, traffic: &Traffic) -> Result<u32, Refused> {
        if self.has_none {
            return Err(Refused { why: "no rte_flow".to_owned(), is_for_good: true });
        }
        if self.rules.borrow().len() >= self.room {
            return Err(Refused { why: "full".to_owned(), is_for_good: false });
        }
        let number = self.made.replace_with(|made| *made + 1);
        self.rules.borrow_mut().insert(number, *traffic);
        Ok(number)
    }

    fn release(&self, rule: u32) -> Result<(), (u32, String)> {
        if *self.keeps.borrow() {
            return Err((rule, "busy".to_owned()));
        }
        assert!(self.rules.borrow_mut().remove(&rule).is_some(), "it is held");
        Ok(())
    }

    fn packets(&self, _: &u32) -> Option<u64> {
        Some(*self.packets.borrow())
    }
}

fn device(room: usize) -> Device {
    Device { room, ..Device::default() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    frame
}

/// An IPv4 packet with these ports, or first bytes.
fn ip4(protocol: u8, source: &str, destination: &str, ports: (u16, u16)) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0];
    for address in [source, destination] {
        let IpAddr::V4(address) = ip(address) else { panic!() };
        packet.extend(address.octets());
    }
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend([0; 36]);
    ethernet(0x0800, &packet)
}

fn ip6(protocol: u8, destination: &str, first: u8) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 24, protocol, 255];
    for address in ["2001:db8::9", destination] {
        let IpAddr::V6(address) = ip(address) else { panic!() };
        packet.extend(address.octets());
    }
    packet.push(first);
    packet.extend([0; 23]);
    ethernet(0x86dd, &packet)
}

fn is_control(own: &[IpAddr], frame: &[u8]) -> bool {
    wanted(own).iter().any(|wanted| wanted.traffic.fits(frame))
}

#[test]
fn protocols_of_the_router_are_control_traffic_and_nothing_that_is_forwarded_is() {
    let own = [ip("10.0.1.1"), ip("2001:db8::1")];
    let to = |protocol, ports| ip4(protocol, "10.0.1.2", "10.0.1.1", ports);
    let through = |protocol, ports| ip4(protocol, "10.0.1.2", "10.0.2.2", ports);
    for control in [
        ethernet(0x0806, &[0; 46]),
        ethernet(0x8809, &[0; 46]),
        to(6, (40000, 179)),
        to(6, (179, 40000)),
        to(6, (40000, 22)),
        to(17, (49152, 3784)),
        to(89, (0, 0)),
        to(112, (0, 0)),
        ip4(89, "10.0.1.2", "224.0.0.5", (0, 0)),
        ip6(58, "ff02::1:ff00:1", 135),
        ip6(58, "2001:db8::1", 136),
        ip6(89, "fe80::1", 0),
    ] {
        assert!(is_control(&own, &control), "{control:?}");
    }
    for other in [
        to(6, (40000, 80)),
        to(1, (0, 0)),
        through(6, (40000, 179)),
        through(6, (179, 40000)),
        through(6, (40000, 22)),
        through(17, (49152, 3784)),
        through(89, (0, 0)),
        // A group that may be routed.
        ip4(89, "10.0.1.2", "224.0.1.5", (0, 0)),
        ip6(58, "2001:db8::2", 135),
        ip6(58, "2001:db8::1", 128),
        ip6(6, "2001:db8::2", 0),
    ] {
        assert!(!is_control(&own, &other), "{other:?}");
    }
}

#[test]
fn a_later_fragment_is_not_taken_for_a_header() {
    let mut fragment = ip4(6, "10.0.1.2", "10.0.1.1", (40000, 179));
    fragment[14 + 7] = 1;
    assert!(!is_control(&[ip("10.0.1.1")], &fragment));
}

#[test]
fn rules_that_stay_are_not_touched_when_addresses_change() {
    let (device, mut steered) = (device(1000), Steered::default());
    steered.follow(&[ip("10.0.1.1")]);
    assert!(steered.is_busy());
    assert_eq!(steered.go_on(&device, || true), None);
    let before = device.rules.borrow().clone();
    assert_eq!(steered.take_report(), Some((before.len(), before.len())));
    assert_eq!(steered.take_report(), None, "it is said once");
    steered.follow(&[ip("10.0.1.1"), ip("10.0.2.1")]);
    steered.go_on(&device, || true);
    assert!(before.iter().all(|(number, rule)| device.rules.borrow()[number] == *rule));
    assert_eq!(device.rules.borrow().len(), before.len() + 8);
    steered.follow(&[ip("10.0.1.1")]);
    steered.go_on(&device, || true);
    assert_eq!(*device.rules.borrow(), before);
    steered.stop();
    steered.go_on(&device, || true);
    assert!(device.rules.borrow().is_empty() && !steered.is_busy());
}

#[test]
fn refused_rules_are_named_and_tried_again_when_others_are_wanted() {
    let (mut device, mut steered) = (device(3), Steered::default());
    steered.follow(&[ip("10.0.1.1")]);
    steered.go_on(&device, || true);
    let shown = steered.shown(&device);
    assert_eq!((&*shown[0].what, shown[0].packets, shown[0].why.is_none()), ("ARP", Some(0), true));
    let last = shown.last().unwrap();
    assert_eq!(last.what, "VRRP to 10.0.1.1");
    assert_eq!(last.why.as_deref(), Some("the device says: full"));
    assert!(!steered.is_busy(), "it does not ask again and again");
    device.room = 1000;
    steered.follow(&[]);
    steered.go_on(&device, || true);
    assert!(steered.shown(&device).iter().all(|rule| rule.why.is_none()));
}

#[test]
fn many_own_addresses_do_not_fill_the_device_and_it_is_shown() {
    let (device, mut steered) = (device(10_000), Steered::default());
    let own: Vec<_> = (0..35).map(|last| IpAddr::from([10, 0, 2, last])).collect();
    steered.follow(&own[..32]);
    steered.go_on(&device, || true);
    let rules = device.rules.borrow().len();
    steered.follow(&own);
    steered.go_on(&device, || true);
    assert_eq!(device.rules.borrow().len(), rules);
    let shown = steered.shown(&device);
    let more = shown.last().unwrap();
    assert_eq!(more.what, "further own addresses: 3");
    assert_eq!(more.why.as_deref(), Some("rules are for the first 32 addresses"));
}

#[test]
fn a_device_without_rules_is_asked_once() {
    let (device, mut steered) = (Device { has_none: true, ..device(9) }, Steered::default());
    steered.follow(&[ip("10.0.1.1")]);
    steered.go_on(&device, || true);
    assert_eq!((steered.refused(), steered.is_busy()), (Some("no rte_flow"), false));
    steered.learn(&device, flow(1), 9, Instant::now());
    assert_eq!(steered.counts(), Counts::default());
}

#[test]
fn a_rule_that_the_device_keeps_is_tried_again_and_complained_of_once() {
    let (device, mut steered) = (device(1000), Steered::default());
    steered.follow(&[]);
    steered.go_on(&device, || true);
    *device.keeps.borrow_mut() = true;
    steered.stop();
    assert_eq!(steered.go_on(&device, || true).as_deref(), Some("busy"));
    assert_eq!(steered.go_on(&device, || true), None);
    assert!(steered.is_busy());
    *device.keeps.borrow_mut() = false;
    steered.go_on(&device, || true);
    assert!(device.rules.borrow().is_empty() && !steered.is_busy());
}

fn flow(port: u16) -> HostFlow {
    HostFlow {
        protocol: PROTOCOL_TCP,
        source: ip("10.0.1.1"),
        source_port: port,
        destination: ip("10.0.1.2"),
        destination_port: 443,
    }
}

#[test]
fn replies_of_a_flow_are_learned_and_nothing_else() {
    let (device, mut steered) = (device(9), Steered::default());
    steered.learn(&device, flow(40000), 9, Instant::now());
    let rule = *device.rules.borrow().values().next().unwrap();
    assert!(rule.fits(&ip4(6, "10.0.1.2", "10.0.1.1", (443, 40000))));
    for other in [
        ip4(6, "10.0.1.2", "10.0.1.1", (443, 40001)),
        ip4(6, "10.0.1.2", "10.0.1.1", (444, 40000)),
        ip4(6, "10.0.1.3", "10.0.1.1", (443, 40000)),
        ip4(6, "10.0.1.2", "10.0.2.1", (443, 40000)),
        ip4(17, "10.0.1.2", "10.0.1.1", (443, 40000)),
    ] {
        assert!(!rule.fits(&other));
    }
}

#[test]
fn the_flow_that_was_used_least_recently_makes_room() {
    let (device, mut steered, start) = (device(9), Steered::default(), Instant::now());
    let second = Duration::from_secs(1);
    for (at, port) in (0..).zip([1, 2, 3]) {
        steered.learn(&device, flow(port), 3, start + at * second);
    }
    steered.learn(&device, flow(1), 3, start + 4 * second);
    steered.learn(&device, flow(4), 3, start + 5 * second);
    let flows = steered.flows(start + 5 * second);
    assert_eq!(flows, [(flow(4), Duration::ZERO), (flow(1), second), (flow(3), 3 * second)]);
    assert_eq!(device.rules.borrow().len(), 3);
    let counts = Counts { learned: 4, displaced: 1, ..Counts::default() };
    assert_eq!(steered.counts(), counts);
    steered.age(&device, 1, start + 5 * second);
    assert_eq!((steered.flows(start + 5 * second).len(), device.rules.borrow().len()), (1, 1));
}

#[test]
fn a_flow_that_nobody_uses_goes_and_one_whose_replies_come_stays() {
    let (device, mut steered, start) = (device(9), Steered::default(), Instant::now());
    steered.learn(&device, flow(1), 9, start);
    steered.age(&device, 9, start + IDLE - Duration::from_secs(1));
    assert_eq!(steered.flows(start).len(), 1);
    *device.packets.borrow_mut() = 7;
    steered.age(&device, 9, start + IDLE);
    assert_eq!(steered.flows(start + IDLE), [(flow(1), Duration::ZERO)], "its replies came");
    steered.age(&device, 9, start + 2 * IDLE);
    assert!(steered.flows(start).is_empty() && device.rules.borrow().is_empty());
    assert_eq!(steered.counts().aged, 1);
}

#[test]
fn a_device_without_room_learns_nothing_and_it_is_counted() {
    let (device, mut steered) = (device(1), Steered::default());
    for port in 1..4 {
        steered.learn(&device, flow(port), 9, Instant::now());
    }
    assert_eq!(steered.counts(), Counts { learned: 1, refused: 2, ..Counts::default() });
}
