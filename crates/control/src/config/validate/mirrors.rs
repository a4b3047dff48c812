//! `turnpike.mirror "NAME" { … }`: copies of the packets of interfaces for an analyser.

use dataplane::interface::InterfaceId;
use dataplane::mirror_sessions::{Direction, SESSIONS_MAX, Session};
use dataplane::plan::Plans;
use dataplane::port::PortId;
use dataplane::words::suggestion;

use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{
    Bond, Filter, Mirror, MulticastRoute, NamedNextHop, Neighbour, Port, Route, Vlan,
};
use super::{Context, NAME_RULE, is_name};
use crate::rib::RouteKind;

const KNOWN: &[&str] = &["from", "direction", "to", "sample", "vlan"];

/// The most packets of which one is copied.
const SAMPLE_MOST: u64 = 1_000_000;

const STEP: &str = "mirror-in";

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<Mirror> {
    let mut mirrors: Vec<Mirror> = Vec::new();
    let known = context.interfaces();
    for statement in statements {
        let what = what(&statement.name);
        let mut fields = context.fields(what, statement, KNOWN);
        check_name(&mut fields, &statement.name, &mirrors, &known);
        let from = sources(&mut fields, &known);
        let direction = direction(&mut fields);
        let to = destination(&mut fields, &known);
        let sample = fields.number("sample", 1..=SAMPLE_MOST).unwrap_or(1) as u32;
        let vlan = fields.number("vlan", 1..=4094).map(|id| id as u16);
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
    let is_empty = matches!(fields.get("from"), None | Some(super::super::value::Value::Table(_)));
    if names.is_empty() && is_empty {
        fields.error("from", "from missing; write from = \"PORT\", whose packets are copied");
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

fn destination(fields: &mut Fields<'_, '_>, known: &[(String, InterfaceId)]) -> Option<PortId> {
    if fields.get("to").is_none() {
        fields.error("", "to missing; write to = \"PORT\", a port of its own for the analyser");
    }
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
            if other.session.to == session.to {
                let to = name_of(session.to.into());
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
        for &from in &session.from {
            if let Some(bond) = bond_below(from, bonds, vlans) {
                error(format!(
                    "from: \"{}\" is a VLAN of a bond, whose packets are not mirrored alone; name bond \"{}\"",
                    name_of(from),
                    bond.name
                ));
            }
        }
        let Some(port) = ports.iter().find(|port| port.id == session.to) else { continue };
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
    let filter = others
        .filters
        .iter()
        .find(|filter| filter.spec.treatments.iter().any(|of| of.mirror == Some(port.id)));
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
        for id in inward.chain([session.to]) {
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
    let by_port = |port: &Port| plans.by_port.iter().find(|(ids, _)| ids.contains(&port.id));
    let lacks = |port: &&Port| {
        let plan = by_port(port).map_or(&plans.main, |(_, plan)| plan);
        port.interface.is_mirrored && !plan.kinds().any(|kind| kind == STEP)
    };
    if let Some(port) = ports.iter().find(lacks) {
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
    use dataplane::mirror_sessions::{Direction, MIRROR};

    use super::super::super::{Config, ConfigErrors, Diff, Effect, Limits, parse};

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

    #[test]
    fn sessions_are_read_and_their_ports_ask_for_the_step() {
        let config = read(
            "turnpike.mirror 'tap' { from = 'wan', to = 'span' }
             turnpike.mirror 'vlan' { from = { 'lan.5.6', 'lan.5' }, direction = 'inward', to = 'span2',
               sample = 100, vlan = 999 }",
        )
        .unwrap();
        let [tap, vlan] = &config.mirrors[..] else { panic!("{:?}", config.mirrors) };
        assert_eq!((tap.session.direction, tap.session.to.index()), (Direction::Both, 2));
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
        assert_eq!(after.mirrors[0].session.to.index(), 3);
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
            ("turnpike.mirror 'm' { from = {}, to = 'span' }", "from missing"),
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
                "key \"erspan\" unknown",
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
