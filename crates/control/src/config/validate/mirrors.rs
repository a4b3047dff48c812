//! `turnpike.mirror "NAME" { … }`: copies of the packets of interfaces for an analyser.

use std::net::IpAddr;

use acl::text;
use dataplane::erspan::Erspan;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::mirror_sessions::{Destination, Direction, MirrorTo, SESSIONS_MAX, Session};
use dataplane::plan::Plans;
use dataplane::port::PortId;
use dataplane::words::suggestion;
use wire::gre::ERSPAN_ID_MAX;

use super::super::script::Statement;
use super::super::value::{Fields, Value};
use super::super::{
    Bond, Filter, Mirror, MulticastRoute, NamedNextHop, Neighbour, Port, Route, Vlan,
};
use super::filters::each;
use super::graphs::lacking;
use super::vrfs::{self, Vrfs};
use super::{Context, NAME_RULE, is_name};
use crate::rib::RouteKind;

const KNOWN: &[&str] = &["from", "direction", "to", "erspan", "sample", "vlan"];

const ERSPAN: &[&str] = &["to", "source", "id", "vrf", "dscp", "ttl", "length"];

/// The TTL of copies by the routes, as of the router's own packets (RFC 1700).
const TTL: u8 = 64;

/// The fewest bytes of a frame that a copy may have: an Ethernet header with two tags and an IPv6 header.
const LENGTH_LEAST: u64 = 62;

/// The most packets of which one is copied.
const SAMPLE_MOST: u64 = 1_000_000;

const STEP: &str = "mirror-in";

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<Mirror> {
    let mut mirrors: Vec<Mirror> = Vec::new();
    let known = context.interfaces();
    let all_vrfs = context.vrfs.clone();
    for statement in statements {
        let what = what(&statement.name);
        let mut fields = context.fields(what, statement, KNOWN);
        check_name(&mut fields, &statement.name, &mirrors, &known);
        let from = sources(&mut fields, &known);
        let direction = direction(&mut fields);
        let sample = fields.number("sample", 1..=SAMPLE_MOST).unwrap_or(1) as u32;
        let vlan = fields.number("vlan", 1..=4094).map(|id| id as u16);
        let to = destination(&mut fields, &known, &all_vrfs);
        let (Some(to), line) = (to, statement.line) else { continue };
        let name = statement.name.clone();
        let session = Session { name, from, direction, to, sample, vlan };
        mirrors.push(Mirror { line, session });
    }
    if let Some(mirror) = mirrors.get(SESSIONS_MAX) {
        let message = format!("{} mirrors, {SESSIONS_MAX} is the most; remove some", mirrors.len());
        context.errors.add(Some(mirror.line), message);
    }
    mirrors
}

fn what(name: &str) -> String {
    format!("mirror \"{name}\"")
}

fn check_name(
    fields: &mut Fields<'_, '_>,
    name: &str,
    others: &[Mirror],
    interfaces: &[(String, InterfaceId)],
) {
    if !is_name(name) {
        fields.error("", format!("not a name; {NAME_RULE}"));
    }
    if let Some(other) = others.iter().find(|other| other.session.name == name) {
        let line = other.line;
        fields.error("", format!("the name is taken by the mirror on line {line}; choose another"));
    }
    if interfaces.iter().any(|(other, _)| other == name) {
        fields.error("", "the name is taken by an interface; choose another");
    }
}

/// Finds an interface by its name.
fn interface(
    fields: &mut Fields<'_, '_>,
    key: &str,
    name: &str,
    known: &[(String, InterfaceId)],
) -> Option<InterfaceId> {
    let found = known.iter().find(|(other, _)| other == name);
    if found.is_none() {
        let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
        let known = suggestion(name, "interfaces", &names);
        fields.error(key, format!("{key}: \"{name}\" unknown{known}"));
    }
    found.map(|(_, id)| *id)
}

fn sources(fields: &mut Fields<'_, '_>, known: &[(String, InterfaceId)]) -> Vec<InterfaceId> {
    let names = fields.texts("from", "an interface's name or a list of names");
    if names.is_empty() && matches!(fields.get("from"), Some(Value::Table(_))) {
        fields.error("from", "from: the list is empty; name a port, whose packets are copied");
    }
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let Some(id) = interface(fields, "from", name, known) else { continue };
        if found.contains(&id) {
            fields.error("from", format!("from: \"{name}\" is given twice; remove one"));
        } else {
            found.push(id);
        }
    }
    found
}

fn direction(fields: &mut Fields<'_, '_>) -> Direction {
    let names = Direction::ALL.map(Direction::name);
    let Some(text) = fields.text("direction", "\"inward\", \"outward\" or \"both\"") else {
        return Direction::Both;
    };
    let found = Direction::ALL.into_iter().find(|direction| direction.name() == text);
    found.unwrap_or_else(|| {
        let known = names.join(", ");
        fields.error("direction", format!("direction \"{text}\" unknown; known: {known}"));
        Direction::Both
    })
}

fn destination(
    fields: &mut Fields<'_, '_>,
    known: &[(String, InterfaceId)],
    all_vrfs: &Vrfs,
) -> Option<Destination> {
    match (fields.get("to").is_some(), fields.get("erspan").is_some()) {
        (true, false) => port(fields, known).map(Destination::Port),
        (false, true) => {
            fields.refuse(&["vlan"], |_| {
                "vlan: copies by the routes have the tags of the routes' interfaces; remove it"
                    .to_owned()
            });
            erspan(fields, all_vrfs).map(Destination::Erspan)
        }
        (true, true) => {
            fields.error("erspan", "to and erspan: copies have one destination; remove one");
            None
        }
        (false, false) => {
            fields.error(
                "",
                "to missing; write to = \"PORT\", a port of its own for the analyser, or erspan = { to = \"ADDRESS\", … }",
            );
            None
        }
    }
}

fn port(fields: &mut Fields<'_, '_>, known: &[(String, InterfaceId)]) -> Option<PortId> {
    let name = fields.text("to", "a port's name")?;
    let port = interface(fields, "to", name, known)?.port();
    if port.is_none() {
        let message = format!(
            "to: \"{name}\" is no port; copies leave by a port of their own: name one, with vlan = ID for a tag"
        );
        fields.error("to", message);
    }
    port
}

/// Reads `erspan = { to = "198.51.100.9", source = "192.0.2.1", id = 7 }`.
fn erspan(fields: &mut Fields<'_, '_>, all_vrfs: &Vrfs) -> Option<Erspan> {
    let mut of = fields.table("erspan", ERSPAN)?;
    let destination = address(&mut of, "to", "the analyser's address");
    let source = address(&mut of, "source", "one of the router's addresses");
    let id = of.number("id", 0..=ERSPAN_ID_MAX.into());
    if of.get("id").is_none() {
        let message = format!("id missing; write id = N, 0 to {ERSPAN_ID_MAX}, as at the analyser");
        of.error("id", message);
    }
    let vrf = vrfs::named(&mut of, "vrf", all_vrfs).unwrap_or(VrfId::DEFAULT);
    let dscps = each(&mut of, "dscp", text::dscp);
    if dscps.len() > 1 {
        of.error("dscp", "dscp: a packet has one; give one");
    }
    let dscp = dscps.first().copied().unwrap_or(0);
    let ttl = of.number("ttl", 1..=255).map_or(TTL, |ttl| ttl as u8);
    let length = of.number("length", LENGTH_LEAST..=u64::from(u16::MAX)).map(|len| len as u16);
    let (destination, source, id) = (destination?, source?, id? as u16);
    if destination.is_ipv4() != source.is_ipv4() {
        let message = format!("source: {source} and {destination} are of different families");
        of.error("source", message);
        return None;
    }
    Some(Erspan { source, destination, vrf, id, dscp, ttl, length })
}

/// Reads the address of a host that routes can lead to.
fn address(of: &mut Fields<'_, '_>, key: &'static str, meaning: &str) -> Option<IpAddr> {
    if of.get(key).is_none() {
        of.error(key, format!("{key} missing; write {key} = \"ADDRESS\", {meaning}"));
    }
    let text = of.text(key, "an address")?;
    let Ok(address) = text.parse::<IpAddr>() else {
        of.error(key, format!("{key}: \"{text}\" is no IP address"));
        return None;
    };
    let is_odd = match address {
        IpAddr::V4(address) => address.is_broadcast() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if is_odd || address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        of.error(key, format!("{key}: {address} is no address of a host behind routers"));
        return None;
    }
    Some(address)
}

/// Other parts of a configuration, by which packets may leave.
pub(super) struct Others<'a> {
    pub(super) routes: &'a [Route],
    pub(super) next_hops: &'a [NamedNextHop],
    pub(super) neighbours: &'a [Neighbour],
    pub(super) multicast: &'a [MulticastRoute],
    pub(super) filters: &'a [Filter],
}

/// Checks that the ports of analysers carry nothing else, and that each interface is in one session of a direction.
pub(super) fn check(
    context: &mut Context<'_>,
    mirrors: &[Mirror],
    (ports, bonds, vlans): (&[Port], &[Bond], &[Vlan]),
    others: &Others<'_>,
) {
    let name_of = |id| name_of(id, (ports, bonds, vlans));
    for (place, mirror) in mirrors.iter().enumerate() {
        let Mirror { line, session } = mirror;
        let mut error = |message: String| {
            context.errors.add(Some(*line), format!("{}: {message}", what(&session.name)));
        };
        for other in &mirrors[..place] {
            if let Some(port) = session.to.port().filter(|_| other.session.to == session.to) {
                let to = name_of(port.into());
                error(format!(
                    "to: port \"{to}\" is that of mirror \"{}\" on line {}; give each its own",
                    other.session.name, other.line
                ));
            }
            if let Some(from) = shared_source(session, &other.session) {
                let from = name_of(from);
                error(format!(
                    "from: \"{from}\" is mirrored by \"{}\" on line {} in the same direction; remove one",
                    other.session.name, other.line
                ));
            }
        }
        let is_named = |filter: &Filter| {
            filter
                .spec
                .treatments
                .iter()
                .any(|of| of.mirror == Some(MirrorTo::Session(place as u8)))
        };
        if session.from.is_empty() && !others.filters.iter().any(is_named) {
            error(
                "from missing; write from = \"PORT\", whose packets are copied, or name the mirror in a rule of a filter"
                    .to_owned(),
            );
        }
        for &from in &session.from {
            if let Some(bond) = bond_below(from, bonds, vlans) {
                error(format!(
                    "from: \"{}\" is a VLAN of a bond, whose packets are not mirrored alone; name bond \"{}\"",
                    name_of(from),
                    bond.name
                ));
            }
        }
        let analyser = ports.iter().find(|port| session.to.port() == Some(port.id));
        let Some(port) = analyser else { continue };
        if let Some((use_, way_out)) = other_use(port, mirrors, vlans, others) {
            error(format!(
                "to: port \"{}\" {use_}; the analyser's port carries copies only: {way_out}",
                port.name
            ));
        }
    }
}

/// Returns an interface that both sessions mirror in a common direction.
fn shared_source(one: &Session, other: &Session) -> Option<InterfaceId> {
    let both = [Direction::Inward, Direction::Outward];
    let is_common = both.into_iter().any(|way| one.direction.has(way) && other.direction.has(way));
    one.from.iter().copied().find(|from| is_common && other.from.contains(from))
}

/// Returns another use of an analyser's port, and the way to end it.
fn other_use(
    port: &Port,
    mirrors: &[Mirror],
    vlans: &[Vlan],
    others: &Others<'_>,
) -> Option<(String, &'static str)> {
    let id = InterfaceId::from(port.id);
    let paths = |kind: &RouteKind| match kind {
        RouteKind::Unicast(paths) => paths.iter().any(|path| path.interface == Some(id)),
        _ => false,
    };
    let mirrored = mirrors.iter().find(|mirror| mirror.session.from.contains(&id));
    if let Some(mirrored) = mirrored {
        let name = &mirrored.session.name;
        return Some((format!("is mirrored itself by \"{name}\""), "remove it there"));
    }
    let fixed = [
        (!port.interface.addresses.is_empty(), "has addresses", "remove them"),
        (port.interface.host.is_some(), "has a host interface", "write host = false"),
        (
            port.interface.filter_in.is_some() || port.interface.filter_out.is_some(),
            "has a filter",
            "remove it",
        ),
    ];
    if let Some((_, use_, way_out)) = fixed.into_iter().find(|(is, ..)| *is) {
        return Some((use_.to_owned(), way_out));
    }
    if let Some(vlan) = vlans.iter().find(|vlan| vlan.parent == id) {
        return Some((
            format!("has vlan \"{}\"", vlan.name),
            "remove it, or mirror to another port",
        ));
    }
    let route = others.routes.iter().find(|route| paths(&route.kind));
    let hop =
        others.next_hops.iter().find(|hop| hop.paths.iter().any(|path| path.interface == Some(id)));
    let neighbour = others.neighbours.iter().find(|neighbour| neighbour.port == id);
    let multicast = others
        .multicast
        .iter()
        .find(|route| route.from == id || route.to.iter().any(|(to, _)| *to == id));
    let filter = others.filters.iter().find(|filter| {
        filter.spec.treatments.iter().any(|of| of.mirror == Some(MirrorTo::Port(port.id)))
    });
    let named = [
        route.map(|route| format!("is in route \"{}\"", route.prefix)),
        hop.map(|hop| format!("is in next_hop \"{}\"", hop.name)),
        neighbour.map(|neighbour| format!("has neighbour \"{}\"", neighbour.address)),
        multicast.map(|route| format!("is in multicast \"{}\"", route.group)),
        filter.map(|filter| format!("is in filter \"{}\"", filter.name())),
    ];
    named.into_iter().flatten().next().map(|use_| (use_, "remove it there"))
}

/// Returns the port's own interface or the bond that carries an interface's frames. Frames have two tags at most; deeper
/// VLANs, and circles of them, are reported elsewhere.
fn carrier(id: InterfaceId, vlans: &[Vlan]) -> InterfaceId {
    let parent =
        |id: &InterfaceId| vlans.iter().find(|vlan| vlan.id == *id).map(|vlan| vlan.parent);
    std::iter::successors(Some(id), parent).take(3).last().unwrap_or(id)
}

/// Returns the bond that carries a VLAN's frames.
fn bond_below<'a>(vlan: InterfaceId, bonds: &'a [Bond], vlans: &[Vlan]) -> Option<&'a Bond> {
    let below = Some(carrier(vlan, vlans)).filter(|below| *below != vlan)?;
    bonds.iter().find(|bond| bond.id == below)
}

fn name_of<'a>(
    id: InterfaceId,
    (ports, bonds, vlans): (&'a [Port], &'a [Bond], &'a [Vlan]),
) -> &'a str {
    let bond = bonds.iter().find(|bond| bond.id == id).map(|bond| &bond.name);
    let port = ports.iter().find(|port| InterfaceId::from(port.id) == id);
    let vlan = vlans.iter().find(|vlan| vlan.id == id);
    let name = port.map(|port| &port.name).or(bond).or_else(|| vlan.map(|vlan| &vlan.name));
    name.map_or("?", String::as_str)
}

/// Sets the ports that need the step `mirror-in`: those whose received packets are mirrored, and those of analysers.
pub(super) fn tell_ports(
    mirrors: &[Mirror],
    ports: &mut [Port],
    (bonds, vlans): (&[Bond], &[Vlan]),
) {
    let members = |id: InterfaceId| bonds.iter().find(|bond| bond.id == id).map(|bond| &bond.ports);
    for Mirror { session, .. } in mirrors {
        let is_inward = session.direction.has(Direction::Inward);
        let inward = session.from.iter().filter(|_| is_inward).flat_map(|&id| match members(id) {
            Some(ports) => ports.clone(),
            None => carrier(id, vlans).port().into_iter().collect(),
        });
        for id in inward.chain(session.to.port()) {
            ports.iter_mut().filter(|port| port.id == id).for_each(|port| {
                port.interface.is_mirrored = true;
            });
        }
    }
}

/// Refuses graphs that lack the step for inward sessions.
pub(super) fn check_graphs(
    context: &mut Context<'_>,
    mirrors: &[Mirror],
    plans: &Plans,
    ports: &[Port],
) {
    let Some(mirror) = mirrors.first() else { return };
    if let Some(port) = lacking(plans, ports, STEP, |port| port.interface.is_mirrored) {
        let message = format!(
            "{}: the graph of port \"{}\" has no step {STEP}; put it first: \
             turnpike.new_graph \"{STEP}\"",
            what(&mirror.session.name),
            port.name
        );
        context.errors.add(Some(mirror.line), message);
    }
}

#[cfg(test)]
mod tests {
    use dataplane::catalogue::Catalogue;
    use dataplane::interface::VrfId;
    use dataplane::mirror_sessions::{Destination, Direction, MIRROR, MirrorTo};

    use super::super::super::{Config, ConfigErrors, Diff, Effect, Limits, Mirror, parse};

    use crate::rib::Path;

    const PORTS: &str = "local turnpike = require 'turnpike'
        turnpike.port 'wan' { device = 'eth0', address = '10.0.1.1/24' }
        turnpike.port 'lan' { device = 'eth1' }
        turnpike.vlan 'lan.5' { parent = 'lan', id = 5, address = '10.0.5.1/24' }
        turnpike.vlan 'lan.5.6' { parent = 'lan.5', id = 6 }
        turnpike.port 'span' { device = 'eth2' }
        turnpike.port 'span2' { device = 'eth3' }\n";

    fn read(more: &str) -> Result<Config, ConfigErrors> {
        parse("t.lua".as_ref(), &format!("{PORTS}{more}"), Limits::default(), &Catalogue::default())
    }

    fn port_of(mirror: &Mirror) -> usize {
        mirror.session.to.port().unwrap().index()
    }

    #[test]
    fn sessions_are_read_and_their_ports_ask_for_the_step() {
        let config = read(
            "turnpike.mirror 'tap' { from = 'wan', to = 'span' }
             turnpike.mirror 'vlan' { from = { 'lan.5.6', 'lan.5' }, direction = 'inward', to = 'span2',
               sample = 100, vlan = 999 }",
        )
        .unwrap();
        let [tap, vlan] = &config.mirrors[..] else { panic!("{:?}", config.mirrors) };
        assert_eq!((tap.session.direction, port_of(tap)), (Direction::Both, 2));
        assert_eq!((tap.session.sample, tap.session.vlan), (1, None));
        let from: Vec<_> = vlan.session.from.iter().map(|from| from.index()).collect();
        assert_eq!((from, vlan.session.sample, vlan.session.vlan), (vec![65, 64], 100, Some(999)));
        let asks = |config: &Config| -> Vec<bool> {
            let ports = config.ports.iter();
            ports.map(|port| port.interface.features().has(MIRROR)).collect()
        };
        assert_eq!(asks(&config), [true, true, true, true]);
        let outward = "turnpike.mirror 'tap' { from = 'wan', direction = 'outward', to = 'span' }";
        assert_eq!(asks(&read(outward).unwrap()), [false, false, true, false]);
    }

    #[test]
    fn a_change_of_a_session_makes_new_graphs_and_follows_the_ports_numbers() {
        let before = read("turnpike.mirror 'tap' { from = 'lan.5', to = 'span' }").unwrap();
        let text = format!(
            "local turnpike = require 'turnpike'
             turnpike.port 'new' {{ device = 'eth9' }}\n{}
             turnpike.mirror 'tap' {{ from = 'lan.5', to = 'span', sample = 2 }}",
            PORTS.split_once('\n').unwrap().1
        );
        let mut after =
            parse("t.lua".as_ref(), &text, Limits::default(), &Catalogue::default()).unwrap();
        assert_eq!(port_of(&after.mirrors[0]), 3);
        after.align(&before).unwrap();
        assert_eq!(after.mirrors[0].session.to, before.mirrors[0].session.to);
        assert_eq!(after.mirrors[0].session.from, before.mirrors[0].session.from);
        let diff = Diff::between(&before, &after);
        let changed: Vec<_> =
            diff.settings.iter().filter(|setting| setting.what.starts_with("mirror")).collect();
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert_eq!(changed[0].what, "mirror \"tap\"");
        assert_eq!(changed[0].from.as_deref(), Some("lan.5 both -> span"));
        assert_eq!(changed[0].to.as_deref(), Some("lan.5 both -> span, one of 2"));
        assert_eq!(changed[0].effect, Effect::Graph);
        assert!(diff.graph);
    }

    #[test]
    fn wrong_sessions_are_refused_by_name() {
        for (text, expected) in [
            ("turnpike.mirror 'm' { to = 'span' }", "mirror \"m\": from missing; write from"),
            ("turnpike.mirror 'm' { from = {}, to = 'span' }", "from: the list is empty"),
            ("turnpike.mirror 'm' { from = 'wan' }", "mirror \"m\": to missing; write to"),
            ("turnpike.mirror 'm' { from = 'wna', to = 'span' }", "from: \"wna\" unknown"),
            ("turnpike.mirror 'm' { from = 'wan', to = 'spam' }", "to: \"spam\" unknown"),
            ("turnpike.mirror 'm' { from = { 'wan', 'wan' }, to = 'span' }", "given twice"),
            ("turnpike.mirror 'm' { from = 'wan', to = 'lan.5' }", "to: \"lan.5\" is no port"),
            ("turnpike.mirror 'm' { from = 'lan', to = 'wan' }", "port \"wan\" has addresses"),
            ("turnpike.mirror 'm' { from = 'wan', to = 'lan' }", "\"lan\" has vlan \"lan.5\""),
            (
                "turnpike.mirror 'm' { from = { 'wan', 'span' }, to = 'span' }",
                "port \"span\" is mirrored itself by \"m\"",
            ),
            (
                "turnpike.mirror 'm' { from = 'wan', direction = 'in', to = 'span' }",
                "direction \"in\" unknown; known: inward, outward, both",
            ),
            ("turnpike.mirror 'm' { from = 'wan', to = 'span', sample = 0 }", "sample"),
            ("turnpike.mirror 'm' { from = 'wan', to = 'span', vlan = 4095 }", "vlan"),
            (
                "turnpike.mirror 'm' { from = 'wan', to = 'span', erspan = {} }",
                "to and erspan: copies have one destination",
            ),
            (
                "turnpike.mirror 'wan' { from = 'wan', to = 'span' }",
                "the name is taken by an interface",
            ),
            ("turnpike.mirror 'a b' { from = 'wan', to = 'span' }", "not a name"),
            (
                "turnpike.mirror 'a' { from = 'wan', to = 'span' }
                 turnpike.mirror 'b' { from = 'lan', to = 'span' }",
                "mirror \"b\": to: port \"span\" is that of mirror \"a\"",
            ),
            (
                "turnpike.mirror 'a' { from = 'wan', to = 'span' }
                 turnpike.mirror 'b' { from = 'wan', direction = 'inward', to = 'span2' }",
                "mirror \"b\": from: \"wan\" is mirrored by \"a\"",
            ),
            (
                "turnpike.route '2001:db8::/32' { via = 'fe80::1', port = 'span' }
                 turnpike.mirror 'm' { from = 'wan', to = 'span' }",
                "port \"span\" is in route \"2001:db8::/32\"",
            ),
            (
                "turnpike.multicast '239.1.1.1' { from = 'wan', to = 'span' }
                 turnpike.mirror 'm' { from = 'wan', to = 'span' }",
                "port \"span\" is in multicast \"239.1.1.1\"",
            ),
            // VLANs in a circle end the search for their port, too.
            (
                "turnpike.vlan 'a' { parent = 'a', id = 5 }
                 turnpike.mirror 'm' { from = 'a', to = 'span' }",
                "more than two tags",
            ),
            (
                "turnpike.filter 'f' { { mirror = 'span' } }
                 turnpike.mirror 'm' { from = 'wan', to = 'span' }",
                "port \"span\" is in filter \"f\"",
            ),
        ] {
            let error = read(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let two = "turnpike.mirror 'a' { from = 'wan', direction = 'outward', to = 'span' }
                   turnpike.mirror 'b' { from = 'wan', direction = 'inward', to = 'span2' }";
        assert!(read(two).is_ok(), "different directions");
    }

    /// A session with these settings of `erspan`.
    fn erspan(settings: &str) -> String {
        format!("turnpike.mirror 'm' {{ from = 'wan', erspan = {{ {settings} }} }}")
    }

    #[test]
    fn an_analyser_behind_routers_is_a_next_hop() {
        let plain = read(&erspan("to = '198.51.100.9', source = '10.0.1.1', id = 7")).unwrap();
        let Destination::Erspan(to) = plain.mirrors[0].session.to else { panic!() };
        assert_eq!((to.id, to.dscp, to.ttl, to.length), (7, 0, 64, None));
        let [hop] = &plain.all_next_hops()[..] else { panic!("{:?}", plain.all_next_hops()) };
        assert_eq!(hop.name, "mirror m");
        assert_eq!(hop.paths, [Path::recursive(VrfId::DEFAULT, "198.51.100.9".parse().unwrap())]);
        assert!(plain.next_hops.is_empty());
        let all =
            "to = '2001:db8::9', source = '2001:db8::1', id = 1023, vrf = 'mgmt', dscp = 'cs1',
            ttl = 255, length = 128";
        let full = read(&format!("turnpike.vrf 'mgmt' {{}}\n{}", erspan(all))).unwrap();
        let Destination::Erspan(to) = full.mirrors[0].session.to else { panic!() };
        assert_eq!((to.vrf, to.dscp, to.ttl, to.length), (VrfId::new(1), 8, 255, Some(128)));
        let diff = Diff::between(&plain, &full);
        let changed: Vec<_> =
            diff.settings.iter().filter(|setting| setting.what.starts_with("mirror")).collect();
        assert_eq!(
            changed[0].from.as_deref(),
            Some("wan both -> 198.51.100.9 from 10.0.1.1, erspan 7, ttl 64")
        );
        assert_eq!(
            changed[0].to.as_deref(),
            Some(
                "wan both -> 2001:db8::9 from 2001:db8::1, erspan 1023, vrf mgmt, dscp 8, ttl 255, length 128"
            )
        );
        // No analyser's port: the step is there for the source only.
        let asks: Vec<_> =
            plain.ports.iter().map(|port| port.interface.features().has(MIRROR)).collect();
        assert_eq!(asks, [true, false, false, false]);
    }

    #[test]
    fn a_wrong_analyser_behind_routers_is_refused() {
        let good = "to = '198.51.100.9', source = '10.0.1.1', id = 7";
        for (settings, expected) in [
            (
                "source = '10.0.1.1', id = 7",
                "mirror \"m\": erspan: to missing; write to = \"ADDRESS\"",
            ),
            ("to = '198.51.100.9', id = 7", "erspan: source missing"),
            (
                "to = '198.51.100.9', source = '10.0.1.1'",
                "erspan: id missing; write id = N, 0 to 1023",
            ),
            (
                "to = '198.51.100.9', source = '10.0.1.1', id = 1024",
                "id: expected a whole number from 0 to 1023",
            ),
            ("to = 'analyser', source = '10.0.1.1', id = 7", "to: \"analyser\" is no IP address"),
            (
                "to = '239.1.1.1', source = '10.0.1.1', id = 7",
                "to: 239.1.1.1 is no address of a host",
            ),
            ("to = 'fe80::1', source = 'fd00::1', id = 7", "to: fe80::1 is no address of a host"),
            ("to = '0.0.0.0', source = '10.0.1.1', id = 7", "to: 0.0.0.0 is no address of a host"),
            (
                "to = '198.51.100.9', source = '127.0.0.1', id = 7",
                "source: 127.0.0.1 is no address",
            ),
            ("to = '198.51.100.9', source = 'fd00::1', id = 7", "are of different families"),
            (&format!("{good}, vrf = 'x'"), "vrf \"x\" unknown"),
            (&format!("{good}, dscp = {{ 1, 2 }}"), "dscp: a packet has one"),
            (&format!("{good}, ttl = 0"), "ttl: expected a whole number from 1 to 255"),
            (&format!("{good}, length = 20"), "length: expected a whole number from 62"),
            (&format!("{good}, port = 'wan'"), "key \"port\" unknown"),
        ] {
            let error = read(&erspan(settings)).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{settings}: {error}");
        }
        let tagged = erspan(good).replace("erspan =", "vlan = 5, erspan =");
        let error = read(&tagged).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("vlan: copies by the routes have the tags"), "{error}");
        let neither = read("turnpike.mirror 'm' { from = 'wan', erspan = 7 }").map(|_| ());
        assert!(neither.unwrap_err().to_string().contains("erspan: expected a table"));
    }

    #[test]
    fn rules_name_sessions_which_then_need_no_interfaces() {
        let session = "turnpike.mirror 'm' { to = 'span' }\nturnpike.mirror 'n' { from = 'wan', to = 'span2' }\n";
        let rules = "turnpike.filter 'f' { { mirror = 'n' }, { mirror = 'm', action = 'continue' }, { mirror = 'lan' } }";
        let config = read(&format!("{rules}\n{session}")).unwrap();
        let mirrors: Vec<_> =
            config.filters[0].spec.treatments.iter().map(|treatment| treatment.mirror).collect();
        let lan = MirrorTo::Port(config.ports[1].id);
        assert_eq!(mirrors, [MirrorTo::Session(1), MirrorTo::Session(0), lan].map(Some));
        let diff = Diff::between(&read("").unwrap(), &config);
        let said: Vec<_> = diff.settings.iter().filter_map(|of| of.to.as_deref()).collect();
        assert!(said.iter().any(|text| text.ends_with("mirrored by m")), "{said:?}");
        for (text, expected) in [
            (
                "turnpike.filter 'f' { { mirror = 'x' } }\nturnpike.mirror 'm' { from = 'wan', to = 'span' }",
                "mirror: \"x\" unknown",
            ),
            ("turnpike.filter 'f' { { mirror = 'lan.5' } }", "copies leave by ports"),
            ("turnpike.mirror 'm' { to = 'span' }", "or name the mirror in a rule of a filter"),
            (
                "turnpike.filter 'f' { { mirror = 'span' } }\nturnpike.mirror 'm' { from = 'wan', to = 'span' }",
                "is in filter \"f\"",
            ),
        ] {
            let error = read(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_graph_without_the_step_is_refused() {
        let graph = "turnpike.graph = turnpike.new_graph 'vlan-input'
             turnpike.graph:path('vlan-input', 'classify')
             turnpike.graph:path('classify.ip4', 'drop')
             turnpike.graph:path('classify.ip6', 'drop')\n";
        let inward = "turnpike.mirror 'm' { from = 'wan', to = 'span' }";
        let error = read(&format!("{graph}{inward}")).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("mirror \"m\": the graph of port \"wan\" has no step mirror-in"),
            "{error}"
        );
        assert!(read(graph).is_ok());
    }
}
