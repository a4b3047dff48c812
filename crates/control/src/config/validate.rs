//! Conversion of statements to a [`Config`]: reads every statement, collects all errors.

mod accelerate;
mod access;
mod advertise;
mod bonds;
mod cores;
mod discovery;
mod exports;
mod filters;
mod graphs;
mod handlers;
mod host;
mod link;
mod listeners;
mod lists;
mod loopbacks;
mod metrics;
mod mirrors;
mod multicast;
mod offloads;
mod ports;
mod proxy;
mod queues;
mod relay;
mod rest;
mod routes;
mod sources;
mod telnet;
mod transmit;
mod vlans;
mod vrfs;

pub(super) use filters::ACTIONS;
pub(super) use routes::by_default_only;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use dataplane::default_plan;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::port::MAX_PORTS;

use super::error::{Collector, ConfigErrors};
use super::network::Networks;
use super::script::{Keyword, Said, Statement};
use super::source::ScriptLines;
use super::value::Fields;
use super::{Config, Script};
use vrfs::Vrfs;

/// State shared by the readers of statements.
pub(super) struct Context<'a> {
    source: ScriptLines<'a>,
    errors: Collector,
    /// Names and lines of the statements of ports, then of bonds, of VLANs and of loopbacks, including those with an error.
    port_names: Vec<(String, usize)>,
    /// The bonds of ports that belong to one, by the ports' names.
    bonded: HashMap<String, String>,
    networks: Networks,
    /// The VRFs besides the default one.
    vrfs: Arc<Vrfs>,
    /// The VRF of each port, bond, VLAN and loopback.
    port_vrfs: Vec<VrfId>,
    /// The number of ports.
    ports: usize,
    /// The position of the first loopback in [`Self::port_names`], once those of other interfaces are known.
    first_loopback: usize,
    /// True if a port has a host interface: its addresses may differ from the configured ones.
    any_host: bool,
    /// True if hosts may have addresses in 240.0.0.0/4.
    class_e: bool,
    /// True if no port had an error: an address on no known network is on none.
    ports_sound: bool,
}

impl<'a> Context<'a> {
    /// Returns the number of the interface at this position of [`Self::port_names`]; `None` if there are too many.
    fn interface_id(&self, position: usize) -> Option<InterfaceId> {
        let number = match position.checked_sub(self.ports) {
            None => position,
            Some(upper) => MAX_PORTS + upper,
        };
        InterfaceId::new(u16::try_from(number).ok()?)
    }

    /// Returns true if the name at this position of [`Self::port_names`] is a loopback's.
    fn is_loopback(&self, position: usize) -> bool {
        position >= self.first_loopback
    }

    /// Returns the names and numbers of all interfaces with frames: ports that do not belong to a bond, bonds and VLANs.
    fn interfaces(&self) -> Vec<(String, InterfaceId)> {
        let known = self.port_names.iter().enumerate().take(self.first_loopback);
        let known = known.filter(|(_, (name, _))| !self.bonded.contains_key(name));
        known.filter_map(|(at, (name, _))| Some((name.clone(), self.interface_id(at)?))).collect()
    }

    /// Returns the reader of a statement's settings; `what` is the statement's name in messages.
    fn fields<'b, 's>(
        &'b mut self,
        what: String,
        statement: &'s Statement,
        known: &'s [&'static str],
    ) -> Fields<'b, 's> {
        let mut fields = self.listed(what, statement, known);
        fields.refuse_items();
        fields
    }

    /// Like [`Self::fields`], for a statement whose settings may also contain values without a key.
    fn listed<'b, 's>(
        &'b mut self,
        what: String,
        statement: &'s Statement,
        known: &'s [&'static str],
    ) -> Fields<'b, 's> {
        let (source, errors) = (&self.source, &mut self.errors);
        Fields::new(what, statement.line, &statement.settings, known, source, errors)
    }
}

pub(super) use filters::of_words as rule_of_words;

/// The rule of [`is_name`], for messages.
const NAME_RULE: &str = "begin with a letter or digit and use letters, digits, '-', '_' and '.'";

/// Returns true for a valid name of a port or a VRF, apart from its length.
fn is_name(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(letters)
}

/// Returns true for a name that an interface may have.
pub(super) fn is_interface_name(name: &str) -> bool {
    name.len() <= ports::NAME_MOST && is_name(name)
}

pub(super) fn validate(file: &Path, text: &str, said: Said) -> Result<Config, ConfigErrors> {
    let Said { statements, graphs, steps, counters, commands, errors } = said;
    let mut context = Context {
        source: ScriptLines::new(text),
        errors,
        port_names: Vec::new(),
        bonded: HashMap::new(),
        networks: Networks::default(),
        vrfs: Arc::default(),
        port_vrfs: Vec::new(),
        ports: 0,
        first_loopback: usize::MAX,
        any_host: false,
        class_e: false,
        ports_sound: true,
    };
    let of = |keyword: Keyword| statements.iter().filter(move |s| s.keyword == keyword);
    let forwarding = rest::forwarding(&mut context, of(Keyword::Forwarding));
    context.class_e = forwarding.class_e;
    let mut routes_from = sources::routes_from(&mut context, of(Keyword::RoutesFrom));
    let (of_ports, acceleration) =
        accelerate::ports(&mut context, of(Keyword::Accelerate), of(Keyword::Port));
    if accelerate::is_any(&of_ports) {
        accelerate::follow_kernel(&mut routes_from);
    }
    let of_ports: Vec<&Statement> = of_ports.iter().map(|of| &**of).collect();
    let vrfs = vrfs::read(&mut context, of(Keyword::Vrf), routes_from.any());
    context.vrfs = Arc::new(Vrfs::new(vrfs));
    let features = graphs.catalogue.features();
    let all = statements.iter();
    let filter_names: Vec<_> = of(Keyword::Filter).map(|filter| filter.name.as_str()).collect();
    let others = routes_from.any();
    let statements = of_ports.iter().copied();
    let mut ports = ports::read(&mut context, statements, others, &features, &filter_names);
    accelerate::follow_flows(&acceleration, &mut ports);
    accelerate::find_vlans(&mut ports, &acceleration);
    if acceleration.in_kernel {
        let is_own = default_plan(&graphs.catalogue).is_ok_and(|plan| plan != graphs.main);
        let has_steps = is_own || !graphs.by_port.is_empty() || !steps.is_empty();
        let others = (&forwarding.hash, has_steps);
        accelerate::in_kernel(&mut context, &mut ports, (&of_ports, all), others);
    }
    let (bonds, of_ports) = (of(Keyword::Bond), (&mut ports[..], &of_ports[..]));
    let mut bonds = bonds::read(&mut context, bonds, of_ports, &features, &filter_names);
    let (vlans, parents) = (of(Keyword::Vlan), (&mut ports[..], &mut bonds[..]));
    let mut vlans = vlans::read(&mut context, vlans, parents, &features, &filter_names);
    let others = (&ports[..], &bonds[..], &vlans[..], routes_from.any());
    let loopbacks = loopbacks::read(&mut context, of(Keyword::Loopback), others, &features);
    loopbacks::lend(&mut context, &loopbacks, (&mut ports, &mut bonds, &mut vlans));
    host::check(&mut context, (&ports, &bonds, &vlans, &loopbacks));
    context.ports_sound = context.errors.is_empty();
    let next_hops = routes::next_hops(&mut context, of(Keyword::NextHop));
    let sets = filters::sets(&mut context, of(Keyword::PrefixSet));
    let mirrors = mirrors::read(&mut context, of(Keyword::Mirror));
    let others = (&*next_hops, &*sets, &*mirrors);
    let (filters, categories) = filters::read(&mut context, of(Keyword::Filter), others);
    filters::tell_ports(&mut context, (&mut ports, &mut bonds, &mut vlans), &filters);
    let (cores, forwarders) = cores::read(
        &mut context,
        of(Keyword::Cores),
        of(Keyword::Forwarders),
        (&filters, &categories),
    );
    queues::check(&mut context, &ports, &cores);
    cores::check_events(&mut context, &ports, &forwarders);
    queues::settle_control(&mut ports, &forwarders);
    filters::check_forwarders(&mut context, &ports, &filters, &cores);
    let routes = routes::read(&mut context, of(Keyword::Route));
    let imports = routes::imports(&mut context, of(Keyword::Import), file);
    let others = routes_from.any();
    routes::check_recursion(&mut context, (&routes, &next_hops), &imports, others, &forwarding);
    mirrors::tell_ports(&mirrors, &mut ports, (&bonds, &vlans));
    let sflow = exports::sflow(&mut context, of(Keyword::Sflow), (&ports, &bonds));
    let ipfix = exports::ipfix(&mut context, of(Keyword::Ipfix), (&ports, &bonds));
    exports::tell_ports((sflow.as_ref(), ipfix.as_ref()), &mut ports);
    let graphs =
        graphs::read(&mut context, graphs, (&ports, &bonds, &vlans), (&filters, &categories));
    mirrors::check_graphs(&mut context, &mirrors, &graphs, &ports);
    let exporter = of(Keyword::Sflow).chain(of(Keyword::Ipfix)).next();
    exports::check_graphs(&mut context, exporter, &graphs, &ports);
    let neighbours = rest::neighbours(&mut context, &routes, of(Keyword::Neighbour));
    let multicast = multicast::read(&mut context, of(Keyword::Multicast));
    let others = mirrors::Others {
        routes: &routes,
        next_hops: &next_hops,
        neighbours: &neighbours,
        multicast: &multicast,
        filters: &filters,
    };
    mirrors::check(&mut context, &mirrors, (&ports, &bonds, &vlans), &others);
    let steps: Vec<_> = steps.into_iter().map(|step| step.settle(&graphs)).collect();
    let slowpath = rest::slowpath(&mut context, of(Keyword::Slowpath));
    accelerate::check(&mut context, (&ports, &bonds, &vlans), &slowpath);
    let script = (!steps.is_empty()).then_some(Script { steps, counters });
    let elements = handlers::elements(&mut context, of(Keyword::Element), &graphs);
    let api = access::api(&mut context, of(Keyword::Api));
    let config = Config {
        file: file.to_owned(),
        text: text.into(),
        commands,
        graphs,
        script,
        vrfs: context.vrfs.to_vec(),
        ports,
        bonds,
        vlans,
        loopbacks,
        fpm: sources::fpm(&mut context, of(Keyword::Fpm), &routes_from),
        routes_from,
        neighbours,
        routes,
        next_hops,
        sets,
        filters,
        categories,
        imports,
        multicast,
        mirrors,
        forwarding,
        cores,
        forwarders,
        tx: rest::tx(&mut context, of(Keyword::Tx)),
        slowpath,
        flows: rest::flows(&mut context, of(Keyword::Flows)),
        icmp: rest::icmp(&mut context, of(Keyword::Icmp)),
        memory: rest::memory(&mut context, of(Keyword::Memory)),
        fib: rest::fib(&mut context, of(Keyword::Fib)),
        log: rest::log(&mut context, of(Keyword::Log)),
        acceleration,
        quarantine: rest::quarantine(&mut context, of(Keyword::Quarantine)),
        telnet: telnet::read(&mut context, of(Keyword::Telnet)),
        elements,
        control_sockets: handlers::sockets(&mut context, of(Keyword::ControlSocket)),
        metrics: metrics::read(&mut context, of(Keyword::Metrics)),
        access: access::roles(&mut context, of(Keyword::Access), api.as_ref()),
        api,
        sflow,
        ipfix,
        snmp: exports::snmp(&mut context, of(Keyword::Snmp)),
    };
    context.errors.finish().map(|()| config)
}
