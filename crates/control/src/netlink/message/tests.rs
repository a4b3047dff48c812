//! Tests with messages as sent by a kernel 6.18 and zebra 8.4, and with malformed ones.

use proptest::prelude::*;

use super::*;

fn one(bytes: &[u8]) -> Result<Message, Malformed> {
    Message::parse(&Messages(bytes).next().unwrap()?)
}

/// Returns an IPv4 route of zebra's; without hops for a deletion.
pub(crate) fn zebra_route(kind: u16, net: &str, hop: Option<(u32, [u8; 4])>) -> Vec<u8> {
    let net: Ipv4Net = net.parse().unwrap();
    let typed = if kind == RTM_NEWROUTE { RTN_UNICAST } else { 0 };
    let fixed = [AF_INET, net.prefix_len(), 0, 0, 254, 186, 0, typed, 0, 0, 0, 0];
    let octets = net.network().octets();
    let metric = 20_u32.to_ne_bytes();
    let mut attributes = vec![(RTA_DST, &octets[..]), (RTA_PRIORITY, &metric[..])];
    let (interface, via) = hop.unwrap_or_default();
    let interface = interface.to_ne_bytes();
    if hop.is_some() {
        attributes.extend([(RTA_GATEWAY, &via[..]), (RTA_OIF, &interface[..])]);
    }
    message(kind, &fixed, &attributes)
}

/// Returns an IPv4 route of zebra's over a nexthop object.
pub(crate) fn zebra_route_over(net: &str, nexthop: u32) -> Vec<u8> {
    let net: Ipv4Net = net.parse().unwrap();
    let fixed = [AF_INET, net.prefix_len(), 0, 0, 254, 186, 0, RTN_UNICAST, 0, 0, 0, 0];
    let (octets, id) = (net.network().octets(), nexthop.to_ne_bytes());
    message(RTM_NEWROUTE, &fixed, &[(RTA_DST, &octets[..]), (RTA_NH_ID, &id[..])])
}

/// Returns a nexthop object of zebra's; a deletion contains only its number.
pub(crate) fn zebra_nexthop(kind: u16, id: u32, interface: u32, via: [u8; 4]) -> Vec<u8> {
    let fixed = [AF_INET, 0, 0, 0, 0, 0, 0, 0];
    let (id, interface) = (id.to_ne_bytes(), interface.to_ne_bytes());
    let all = [(NHA_ID, &id[..]), (NHA_GATEWAY, &via[..]), (NHA_OIF, &interface[..])];
    message(kind, &fixed, if kind == RTM_NEWNEXTHOP { &all } else { &all[..1] })
}

/// Returns a device of this kind, with attribute 1 of the kind's own data.
pub(crate) fn device(kind: u16, index: u8, name: &str, of: &str, value: u32) -> Vec<u8> {
    let fixed = [AF_UNSPEC, 0, 0, 0, index, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let (name, of) = (format!("{name}\0"), format!("{of}\0"));
    let data = message(0, &[], &[(IFLA_VRF_TABLE, &value.to_ne_bytes())]);
    let info = [(IFLA_INFO_KIND, of.as_bytes()), (IFLA_INFO_DATA, &data[HEADER..])];
    let info = message(0, &[], &info);
    message(kind, &fixed, &[(IFLA_IFNAME, name.as_bytes()), (IFLA_LINKINFO, &info[HEADER..])])
}

/// Returns a VLAN device on the interface `parent`.
pub(crate) fn vlan_device(
    kind: u16,
    index: u8,
    name: &str,
    parent: u32,
    (protocol, id): (u16, u16),
) -> Vec<u8> {
    vlan_device_with(
        kind,
        index,
        name,
        parent,
        &[(IFLA_VLAN_ID, &id.to_ne_bytes()), (IFLA_VLAN_PROTOCOL, &protocol.to_be_bytes())],
    )
}

fn vlan_device_with(
    kind: u16,
    index: u8,
    name: &str,
    parent: u32,
    data: &[(u16, &[u8])],
) -> Vec<u8> {
    let fixed = [AF_UNSPEC, 0, 0, 0, index, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let (name, data) = (format!("{name}\0"), message(0, &[], data));
    let info = [(IFLA_INFO_KIND, &b"vlan\0"[..]), (IFLA_INFO_DATA, &data[HEADER..])];
    let info = message(0, &[], &info);
    message(
        kind,
        &fixed,
        &[
            (IFLA_IFNAME, name.as_bytes()),
            (IFLA_LINK, &parent.to_ne_bytes()),
            (IFLA_LINKINFO, &info[HEADER..]),
        ],
    )
}

#[test]
fn a_vlan_device_tells_its_parent_and_tag() {
    let vlan = |bytes: &[u8]| match one(bytes) {
        Ok(Message::Link(link)) => Ok(link.vlan),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    let device =
        |protocol, id| Ok(Some(VlanDevice { parent: Some(3), protocol, id, marks: false }));
    let service = vlan_device(RTM_NEWLINK, 7, "lan.7", 3, (0x88a8, 4094));
    assert_eq!(vlan(&service), device(0x88a8, 4094));
    let with = |data: &[(u16, &[u8])]| vlan(&vlan_device_with(RTM_NEWLINK, 7, "lan.7", 3, data));
    let id = (IFLA_VLAN_ID, &100_u16.to_ne_bytes()[..]);
    assert_eq!(with(&[id]), device(0x8100, 100), "without a protocol");
    assert_eq!(with(&[]), Ok(None), "without an identifier");
    let marks = |data: &[u8]| with(&[id, (IFLA_VLAN_EGRESS_QOS, data)]).unwrap().map(|of| of.marks);
    assert_eq!(
        (marks(&[]), marks(&[12, 0, 1, 0, 0, 0, 0, 0, 5, 0, 0, 0])),
        (Some(false), Some(true))
    );
    let bad = Err(Malformed::Attribute { kind: RTM_NEWLINK, attribute: IFLA_VLAN_ID });
    assert_eq!(with(&[(IFLA_VLAN_ID, &[1])]), bad);
    // Its parent is in another namespace.
    let mut moved = service;
    moved.extend([8, 0, IFLA_LINK_NETNSID as u8, 0, 1, 0, 0, 0]);
    let length = moved.len() as u32;
    moved[..4].copy_from_slice(&length.to_ne_bytes());
    assert_eq!(
        vlan(&moved),
        Ok(Some(VlanDevice { parent: None, protocol: 0x88a8, id: 4094, marks: false }))
    );
}

#[test]
fn a_vrf_device_tells_its_table() {
    let table = |of| match one(&device(RTM_NEWLINK, 7, "blue", of, 1001)) {
        Ok(Message::Link(link)) => (link.name.unwrap(), link.table),
        other => panic!("{other:?}"),
    };
    assert_eq!(table("vrf"), ("blue".to_owned(), Some(1001)));
    assert_eq!(table("dummy"), ("blue".to_owned(), None));
}

/// Returns a message of a type from its fixed part and attributes.
fn message(kind: u16, fixed: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(fixed);
    for (kind, value) in attributes {
        bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

const IPV4_24: [u8; 12] = [AF_INET, 24, 0, 0, 254, 3, 0, RTN_UNICAST, 0, 0, 0, 0];

#[test]
fn a_route_is_read() {
    let bytes = message(
        RTM_NEWROUTE,
        &IPV4_24,
        &[
            (RTA_DST, &[192, 0, 2, 0]),
            (RTA_TABLE, &300_u32.to_ne_bytes()),
            (RTA_PRIORITY, &20_u32.to_ne_bytes()),
            (RTA_GATEWAY, &[10, 0, 0, 1]),
            (RTA_OIF, &7_u32.to_ne_bytes()),
            (199, b"unknown"),
        ],
    );
    let Ok(Message::Route(route)) = one(&bytes) else { panic!("{:?}", one(&bytes)) };
    assert_eq!(route.prefix, "192.0.2.0/24".parse().unwrap());
    assert_eq!((route.table, route.metric, route.protocol), (300, 20, 3));
    let via = Some("10.0.0.1".parse().unwrap());
    let hop = Hop { interface: 7, via, weight: 1, on_link: false, encap: false };
    assert_eq!(route.hops[..], [hop]);
}

#[test]
fn a_prefix_with_host_bits_is_malformed() {
    let bytes = message(RTM_NEWROUTE, &IPV4_24, &[(RTA_DST, &[192, 0, 2, 77])]);
    let Err(malformed) = one(&bytes) else { panic!("{:?}", one(&bytes)) };
    assert!(malformed.to_string().contains("a prefix with host bits"), "{malformed}");
}

/// `struct rtnexthop`: length, flags, weight less one, interface; the second over IPv6.
#[test]
fn several_paths_are_read() {
    let mut hops = Vec::new();
    hops.extend_from_slice(&[16, 0, RTNH_F_ONLINK, 9, 7, 0, 0, 0]);
    hops.extend_from_slice(&[8, 0, 5, 0, 10, 0, 0, 1]);
    hops.extend_from_slice(&[32, 0, RTNH_F_DEAD, 255, 8, 0, 0, 0]);
    hops.extend_from_slice(&[22, 0, 18, 0, 10, 0]);
    hops.extend_from_slice(&"fe80::5".parse::<Ipv6Addr>().unwrap().octets());
    hops.extend_from_slice(&[0, 0]);
    let bytes =
        message(RTM_NEWROUTE, &IPV4_24, &[(RTA_DST, &[192, 0, 2, 0]), (RTA_MULTIPATH, &hops)]);
    let Ok(Message::Route(route)) = one(&bytes) else { panic!("{:?}", one(&bytes)) };
    let told: Vec<_> = route.hops.iter().map(|h| (h.interface, h.weight, h.on_link)).collect();
    assert_eq!(told, [(7, 10, true), (8, 256, false)]);
    assert_eq!(route.hops[1].via, Some("fe80::5".parse().unwrap()));
    assert_eq!(route.dead, 2);
}

#[test]
fn nexthop_objects_are_read() {
    let group: [u8; 16] = [1, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 255, 1, 0, 0];
    let buckets: [u8; 8] = [6, 0, 1, 0, 64, 0, 0, 0];
    let fixed = [0; 8];
    let id = (NHA_ID, &10_u32.to_ne_bytes()[..]);
    let bytes = message(
        RTM_NEWNEXTHOP,
        &fixed,
        &[id, (NHA_GROUP, &group), (NHA_GROUP_TYPE, &[1, 0]), (NHA_RES_GROUP, &buckets)],
    );
    let nexthop = Nexthop::Group { members: vec![(1, 5), (2, 512)], buckets: Some(64) };
    assert_eq!(one(&bytes), Ok(Message::Nexthop(NexthopMessage { id: 10, nexthop })));
    let blackhole = message(RTM_NEWNEXTHOP, &fixed, &[id, (NHA_BLACKHOLE, &[])]);
    let expected = NexthopMessage { id: 10, nexthop: Nexthop::Blackhole };
    assert_eq!(one(&blackhole), Ok(Message::Nexthop(expected)));
    assert!(one(&message(RTM_NEWNEXTHOP, &fixed, &[id])).is_err(), "it leads nowhere");
    assert!(one(&message(RTM_DELNEXTHOP, &fixed, &[id])).is_ok(), "a deletion tells the number");
}

#[test]
fn addresses_without_a_network_of_their_own_have_none() {
    let fixed = [AF_INET, 24, 0, 0, 3, 0, 0, 0];
    let address = |attributes: &[(u16, &[u8])]| match one(&message(RTM_NEWADDR, &fixed, attributes))
    {
        Ok(Message::Address(address)) => address.address.to_string(),
        other => panic!("{other:?}"),
    };
    let own: (u16, &[u8]) = (IFA_LOCAL, &[10, 0, 0, 1]);
    assert_eq!(address(&[own, (IFA_ADDRESS, &[10, 0, 0, 1])]), "10.0.0.1/24");
    assert_eq!(address(&[own, (IFA_ADDRESS, &[10, 0, 0, 2])]), "10.0.0.1/32", "a peer");
    let flags = (IFA_FLAGS, &IFA_F_NOPREFIXROUTE.to_ne_bytes()[..]);
    assert_eq!(address(&[own, flags]), "10.0.0.1/32", "noprefixroute");
}

#[test]
fn rules_that_hold_for_some_packets_are_told() {
    let header =
        |to, from, flags: u8| [AF_INET, to, from, 0, 254, 0, 0, FR_ACT_TO_TBL, flags, 0, 0, 0];
    let rule = |fixed: &[u8], attributes: &[(u16, &[u8])]| match one(&message(
        RTM_NEWRULE,
        fixed,
        attributes,
    )) {
        Ok(Message::Rule(rule)) => (rule.table, rule.unsupported),
        other => panic!("{other:?}"),
    };
    let nothing = [255; 4];
    let plain = header(0, 0, 0);
    let table: (u16, &[u8]) = (FRA_TABLE, &[44, 1, 0, 0]);
    assert_eq!(rule(&plain, &[table, (FRA_SUPPRESS_PREFIXLEN, &nothing)]), (Some(300), None));
    assert_eq!(rule(&plain, &[(FRA_SUPPRESS_PREFIXLEN, &[0; 4])]).1, Some("suppress"));
    assert_eq!(rule(&plain, &[(FRA_L3MDEV, &[1])]), (None, None), "about packets of VRFs");
    assert_eq!(rule(&plain, &[(FRA_L3MDEV, &[0])]), (Some(254), None));
    assert_eq!(rule(&plain, &[(FRA_FWMARK, &[1, 0, 0, 0])]).1, Some("fwmark"));
    assert_eq!(rule(&plain, &[(FRA_IIFNAME, b"lan\0")]).1, Some("iif"));
    assert_eq!(rule(&header(0, 8, 0), &[]).1, Some("from"));
    assert_eq!(rule(&header(8, 0, 0), &[]).1, Some("to"));
    assert_eq!(rule(&header(0, 0, 2), &[]).1, Some("not"));
}

#[test]
fn faults_are_told_apart() {
    let short = [HEADER as u8, 0, 0, 0, RTM_NEWROUTE as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(one(&short), Err(Malformed::Short { kind: 24, length: 0, expected: 12 }));
    assert_eq!(one(&[64, 0, 0, 0]), Err(Malformed::Length { length: 64, left: 4 }));
    let wrong = |kind, attribute: (u16, &[u8])| one(&message(kind, &IPV4_24, &[attribute]));
    let bad = |attribute| Err(Malformed::Attribute { kind: 24, attribute });
    assert_eq!(wrong(RTM_NEWROUTE, (RTA_DST, &[1, 2, 3])), bad(RTA_DST));
    assert_eq!(wrong(RTM_NEWROUTE, (RTA_OIF, &[1])), bad(RTA_OIF));
    assert_eq!(wrong(RTM_NEWROUTE, (RTA_VIA, &[10, 0, 1, 2, 3, 4])), bad(RTA_VIA));
    assert_eq!(wrong(RTM_NEWROUTE, (RTA_MULTIPATH, &[8, 0, 0, 0, 1, 0, 0])), bad(RTA_MULTIPATH));
    assert_eq!(wrong(RTM_NEWROUTE, (RTA_MULTIPATH, &[4, 0, 0, 0, 1, 0, 0, 0])), bad(RTA_MULTIPATH));
    assert!(matches!(wrong(RTM_NEWROUTE, (RTA_DST, &[0; 16])), Err(Malformed::Value { .. })));
    let long = [AF_INET, 33, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    assert!(matches!(one(&message(RTM_NEWROUTE, &long, &[])), Err(Malformed::Value { .. })));
    let mut cut = message(RTM_NEWROUTE, &IPV4_24, &[(RTA_DST, &[192, 0, 2, 0])]);
    cut[28] = 200;
    assert_eq!(one(&cut), bad(0), "an attribute that leads out of its message");
}

proptest! {
    /// Arbitrary bytes do no harm, and the messages of a buffer end.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for message in Messages(&bytes).flatten() {
            let _ = Message::parse(&message);
        }
    }

    /// Well-formed messages with arbitrary contents do no harm either.
    #[test]
    fn any_attributes(
        kind in prop::sample::select(vec![16_u16, 17, 20, 21, 24, 25, 28, 29, 32, 33, 104, 105]),
        mut fixed in prop::collection::vec(any::<u8>(), 0..20),
        family in prop::sample::select(vec![0_u8, 2, 10]),
        attributes in prop::collection::vec(
            (0..34_u16, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
    ) {
        if let Some(first) = fixed.first_mut() {
            *first = family;
        }
        let attributes: Vec<(u16, &[u8])> = attributes.iter().map(|(k, v)| (*k, &v[..])).collect();
        let _ = one(&message(kind, &fixed, &attributes));
    }
}

/// (10.0.1.2, 239.1.1.1) from interface 7 to 8 and 9, as a kernel 6.18 sent it.
fn multicast_route(family: u8, source: &[u8], group: &[u8], hops: &[u8]) -> Vec<u8> {
    let length = (source.len() * 8) as u8;
    let fixed = [family, length, length, 0, 253, 17, 0, RTN_MULTICAST, 0, 0, 0, 0];
    let (table, from) = (253_u32.to_ne_bytes(), 7_u32.to_ne_bytes());
    let attributes = [
        (RTA_TABLE, &table[..]),
        (RTA_SRC, source),
        (RTA_DST, group),
        (RTA_IIF, &from),
        (RTA_MULTIPATH, hops),
    ];
    message(RTM_NEWROUTE, &fixed, &attributes)
}

fn multicast_hop(interface: u32, ttl: u8) -> Vec<u8> {
    [&8_u16.to_ne_bytes()[..], &[0, ttl], &interface.to_ne_bytes()].concat()
}

fn multicast(bytes: &[u8]) -> Result<Option<MulticastMessage>, Malformed> {
    MulticastMessage::parse(&Messages(bytes).next().unwrap()?)
}

#[test]
fn multicast_routes_are_read() {
    let hops = [multicast_hop(8, 1), multicast_hop(9, 16)].concat();
    let bytes = multicast_route(RTNL_FAMILY_IPMR, &[10, 0, 1, 2], &[239, 1, 1, 1], &hops);
    let expected = MulticastMessage {
        source: "10.0.1.2".parse().unwrap(),
        group: "239.1.1.1".parse().unwrap(),
        from: Some(7),
        to: vec![(8, 1), (9, 16)],
    };
    assert_eq!(multicast(&bytes).unwrap(), Some(expected.clone()));
    assert_eq!(one(&bytes).unwrap(), Message::Other, "no unicast route");
    let ff0e: Vec<u8> = [&[0xff, 0x0e][..], &[0; 13], &[1]].concat();
    let bytes = multicast_route(RTNL_FAMILY_IP6MR, &[0; 16], &ff0e, &hops);
    let read = multicast(&bytes).unwrap().unwrap();
    assert_eq!((read.source.is_unspecified(), read.group), (true, "ff0e::1".parse().unwrap()));
    assert_eq!(read.to, expected.to);
}

#[test]
fn malformed_multicast_routes_are_refused() {
    let good = multicast_hop(8, 1);
    let v4 = |source: &[u8], group: &[u8], hops: &[u8]| {
        multicast(&multicast_route(RTNL_FAMILY_IPMR, source, group, hops))
    };
    assert!(v4(&[10, 0, 1, 2], &[239, 1, 1, 1], &good).is_ok());
    assert!(v4(&[10, 0, 1, 2], &[10, 1, 1, 1], &good).is_err(), "not a group");
    assert!(v4(&[0; 16], &[239, 1, 1, 1], &good).is_err(), "a source of the other family");
    assert!(v4(&[10, 0, 1, 2], &[239, 1, 1, 1], &good[..7]).is_err(), "a hop cut off");
    assert!(v4(&[10, 0, 1, 2], &[239, 1, 1, 1], &[0; 8]).is_err(), "a hop of no length");
    assert!(v4(&[10, 0, 1], &[239, 1, 1, 1], &good).is_err(), "three bytes of an address");
}
