//! Cores of forwarders and of everything else: `turnpike.cores`, and `turnpike.forwarders`, which gives only
//! those of the forwarders.

use std::time::Duration;

use dataplane::events::EventOrder;
use dataplane::shed::{Classes, PERCENT_MOST, Shedding};
use dataplane::transmit::frame::Class;

use super::super::script::Statement;
use super::super::value::{Fields, Value, whole_number};
use super::super::{Cores, Events, Filter, Forwarders, Port, Spread};
use super::Context;
use super::rest::{plain, single, wait};
use crate::cores::parse_cores;

/// Keys of `turnpike.forwarders`.
const FORWARDERS: [&str; 13] = [
    "cores",
    "wait",
    "moderation_us",
    "budget",
    "rebalance",
    "control_queue",
    "learned_flows",
    "shed",
    "mode",
    "device",
    "order",
    "receive_core",
    "scheduler_core",
];

/// The event device by default: it needs no hardware and schedules in every order.
const EVENT_DEVICE: &str = "event_sw0";

/// Those that only the mode `events` has.
const EVENTS: [&str; 4] = ["device", "order", "receive_core", "scheduler_core"];

/// The highest number of a core that can be configured.
const CORE_MOST: u64 = 4095;

/// Longest time between two wake-ups that can be configured, in microseconds: a change of the graph waits for it.
const MODERATION_MOST: u64 = 1000;

/// Most learned flows of a device.
const LEARNED_MOST: u64 = 4096;

/// Reads both statements, and the settings of forwarders.
pub(super) fn read<'s>(
    context: &mut Context<'_>,
    cores: impl Iterator<Item = &'s Statement>,
    forwarders: impl Iterator<Item = &'s Statement>,
    filters: (&[Filter], &[String]),
) -> (Cores, Forwarders) {
    let (mut read, mut sharing) = (Cores::default(), Forwarders::default());
    if let Some(statement) = single(context, cores) {
        let mut fields = plain(context, statement, &["control", "forward"]);
        (read.control_line, read.control) = list(&mut fields, "control");
        (read.forward_line, read.forward) = list(&mut fields, "forward");
        not_both(&mut fields, &read);
    }
    if let Some(statement) = single(context, forwarders) {
        let mut fields = plain(context, statement, &FORWARDERS);
        sharing.wait = wait(&mut fields).unwrap_or(sharing.wait);
        if let Some(micros) = fields.number("moderation_us", 1..=MODERATION_MOST) {
            sharing.moderation = Duration::from_micros(micros);
        }
        let budget = fields.number("budget", 1..=u64::from(u16::MAX));
        sharing.budget = budget.map_or(sharing.budget, |budget| budget as u16);
        sharing.rebalance = fields.flag_or("rebalance", sharing.rebalance);
        sharing.control_queue = fields.flag_or("control_queue", sharing.control_queue);
        let learned = fields.number("learned_flows", 0..=LEARNED_MOST);
        sharing.learned_flows = learned.map_or(sharing.learned_flows, |learned| learned as u16);
        sharing.shed = shedding(&mut fields, filters).unwrap_or(sharing.shed);
        sharing.events = events(&mut fields);
        let (line, forward) = list(&mut fields, "cores");
        match read.forward_line.filter(|_| line.is_some()) {
            Some(given) => fields.error(
                "cores",
                format!("cores given on line {given} already, as forward in turnpike.cores; leave one out"),
            ),
            None if line.is_some() => {
                (read.forward_line, read.forward) = (line, forward);
                not_both(&mut fields, &read);
            }
            None => {}
        }
    }
    (read, sharing)
}

/// Reads `mode` and the settings of an event device.
fn events(fields: &mut Fields<'_, '_>) -> Option<Events> {
    const MODES: &str = "\"run-to-completion\" or \"events\"";
    let mode = fields.text("mode", MODES).unwrap_or("run-to-completion");
    match mode {
        "events" => {}
        "run-to-completion" => {
            fields.refuse(&EVENTS, |key| {
                format!("{key} belongs to mode = \"events\"; add that, or leave {key} out")
            });
            return None;
        }
        other => {
            fields.error(
                "mode",
                format!("mode \"{other}\" unknown; known: run-to-completion, events"),
            );
            return None;
        }
    }
    let device = fields.text("device", "an event device such as \"event_sw0\"");
    let order = fields.text("order", "\"ordered\", \"atomic\" or \"parallel\"");
    let order = order.map(|name| (name, EventOrder::named(name)));
    if let Some((name, None)) = order {
        let known = EventOrder::ALL.map(EventOrder::name).join(", ");
        fields.error("order", format!("order \"{name}\" unknown; known: {known}"));
    }
    let mut core = |key| fields.number(key, 0..=CORE_MOST).map(|core| core as usize);
    let (receive_core, scheduler_core) = (core("receive_core"), core("scheduler_core"));
    Some(Events {
        line: fields.line_of("mode"),
        device: device.unwrap_or(EVENT_DEVICE).to_owned(),
        order: order.and_then(|(_, order)| order).unwrap_or_default(),
        receive_core,
        scheduler_core,
    })
}

/// Checks that nothing else decides which forwarder has a packet, if an event device does.
pub(super) fn check_events(context: &mut Context<'_>, ports: &[Port], forwarders: &Forwarders) {
    let Some(events) = &forwarders.events else { return };
    for port in ports {
        let queues = &port.queues;
        let inward = port.interface.filter_in.as_ref();
        let other = match () {
            () if queues.spread == Spread::Software => "spread = \"software\"",
            () if !queues.rx_cores.is_empty() => "rx_cores",
            () if !queues.tx_cores.is_empty() => "tx_cores",
            () if inward.is_some_and(|filter| filter.forwarders) => "a filter with forwarder",
            () => continue,
        };
        let message = format!(
            "port \"{}\": {other} chooses forwarders, which the event device does with mode = \"events\" (line {}); \
             leave one of them out",
            port.name, events.line
        );
        context.errors.add(Some(port.line), message);
    }
}

/// Reads `shed = { percent = 3, keep = { "control", "established" }, categories = { "games" } }`, or `false`.
fn shedding(
    fields: &mut Fields<'_, '_>,
    (filters, categories): (&[Filter], &[String]),
) -> Option<Shedding> {
    match fields.get("shed")? {
        Value::Bool(false) => return Some(Shedding::OFF),
        Value::Bool(true) => return None,
        _ => {}
    }
    let mut of = fields.table("shed", &["percent", "keep", "categories"])?;
    let mut shedding = Shedding::default();
    if let Some(percent) = of.number("percent", 1..=u64::from(PERCENT_MOST)) {
        shedding.percent = percent as u8;
    }
    if of.get("keep").is_some() {
        let (connections, classes): (Vec<_>, Vec<_>) = of
            .texts("keep", "classes as \"control\"")
            .into_iter()
            .partition(|&name| name == ESTABLISHED);
        let classes = classes.into_iter().filter_map(|name| class(&mut of, name));
        shedding.keep = classes.fold(Classes::NONE, Classes::with);
        shedding.connections.established = !connections.is_empty();
    }
    if shedding.connections.established && !filters.iter().any(|of| of.spec.asks_for_state()) {
        let message = "keep \"established\": no filter matches states, so that no connections are known; add a \
                       rule with state to a filter, or leave it out";
        of.error("keep", message);
    }
    let names = of.texts("categories", "categories of filters as \"games\"");
    let numbers = names.into_iter().filter_map(|name| category(&mut of, name, categories));
    shedding.connections.categories = numbers.fold(0, |all, number| all | 1 << number);
    Some(shedding)
}

/// In place of a class: packets of connections that answer.
const ESTABLISHED: &str = "established";

fn category(of: &mut Fields<'_, '_>, name: &str, known: &[String]) -> Option<usize> {
    let number = known.iter().position(|known| known == name);
    if number.is_none() {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message =
            format!("category \"{name}\" not found in the rules of filters; known: {known}");
        of.error("categories", message);
    }
    number
}

fn class(of: &mut Fields<'_, '_>, name: &str) -> Option<Class> {
    let class = Class::ALL.into_iter().find(|class| class.name() == name);
    if class.is_none() {
        let known = Class::ALL.map(Class::name).join(", ");
        of.error("keep", format!("class \"{name}\" unknown; known: {known}, {ESTABLISHED}"));
    }
    class
}

/// Reads a list of cores and its line; empty, with the errors reported, if it is wrong.
fn list(fields: &mut Fields<'_, '_>, key: &str) -> (Option<usize>, Vec<usize>) {
    let cores = match fields.get(key) {
        None => return (None, Vec::new()),
        Some(Value::Text(text)) => {
            parse_cores(text).map_err(|reason| format!("{key} \"{text}\": {reason}"))
        }
        Some(value) => whole_number(value, &(0..=u64::from(u16::MAX)))
            .map(|core| vec![core as usize])
            .ok_or_else(|| format!("{key}: expected cores such as \"1,3-5\", got {value}")),
    };
    let line = Some(fields.line_of(key));
    let cores = cores.unwrap_or_else(|message| {
        fields.error(key, message);
        Vec::new()
    });
    (line, cores)
}

/// Checks that no core is used both for forwarders and for control.
fn not_both(fields: &mut Fields<'_, '_>, Cores { control, forward, control_line, .. }: &Cores) {
    let Some(core) = forward.iter().find(|core| control.contains(core)) else { return };
    let line = control_line.unwrap_or_default();
    let message = format!(
        "core {core} is for forwarders and for control (line {line}); name it once, or leave control out where \
         they have to share it"
    );
    fields.error("", message);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dataplane::catalogue::Catalogue;

    use dataplane::shed::Connections;

    use super::*;

    use super::super::super::{Config, ConfigErrors, Limits, parse};

    fn read(text: &str) -> Result<Config, ConfigErrors> {
        let text = format!(
            "local turnpike = require 'turnpike'\nturnpike.port 'a' {{ device = 'eth0' }}\n{text}"
        );
        parse(Path::new("r.lua"), &text, Limits::default(), &Catalogue::default())
    }

    #[test]
    fn both_statements_name_the_forwarders_cores() {
        let cores = |text| {
            let cores = read(text).unwrap().cores;
            (cores.control, cores.forward)
        };
        assert_eq!(
            cores("turnpike.cores { control = '0', forward = '1-3' }"),
            (vec![0], vec![1, 2, 3])
        );
        assert_eq!(cores("turnpike.cores { control = 4 }"), (vec![4], vec![]));
        assert_eq!(cores("turnpike.forwarders { cores = '2,1' }"), (vec![], vec![1, 2]));
        let both = "turnpike.cores { control = 0 }\nturnpike.forwarders { cores = 1 }";
        assert_eq!(cores(both), (vec![0], vec![1]));
        assert_eq!(cores("turnpike.cores {}\nturnpike.forwarders {}"), (vec![], vec![]));
    }

    #[test]
    fn overload_control_has_a_bound_and_classes() {
        let shed = |shed: &str| {
            let shed = read(&format!("turnpike.forwarders {{ shed = {shed} }}")).unwrap();
            let Shedding { percent, keep, connections } = shed.forwarders.shed;
            assert_eq!(connections, Connections::NONE);
            (percent, keep.iter().collect::<Vec<_>>())
        };
        assert_eq!(read("").unwrap().forwarders.shed, Shedding::default());
        assert_eq!(shed("true"), (3, vec![Class::Control]));
        assert_eq!(shed("false"), (0, vec![]));
        assert_eq!(shed("{ percent = 50 }"), (50, vec![Class::Control]));
        assert_eq!(
            shed("{ keep = { 'voice', 'control' } }"),
            (3, vec![Class::Control, Class::Voice])
        );
        assert_eq!(shed("{ keep = {} }"), (3, vec![]));
    }

    #[test]
    fn connections_and_categories_are_kept() {
        let filter = "turnpike.filter 'f' { { state = 'new', category = 'a' }, { proto = 'udp', category = 'b' } }";
        let shed = "shed = { keep = { 'established', 'voice' }, categories = { 'b' } }";
        let read = read(&format!("{filter}\nturnpike.forwarders {{ {shed} }}")).unwrap();
        let Shedding { keep, connections, .. } = read.forwarders.shed;
        assert!(keep.iter().eq([Class::Voice]));
        assert_eq!(connections, Connections { established: true, categories: 0b10 });
    }

    #[test]
    fn an_event_device_has_defaults() {
        let events = |settings: &str| {
            read(&format!("turnpike.forwarders {{ {settings} }}")).unwrap().forwarders.events
        };
        assert_eq!(events("mode = 'run-to-completion'"), None);
        let found = events("mode = 'events'").unwrap();
        let (device, order) = ("event_sw0".to_owned(), EventOrder::Ordered);
        let all = Events { line: 3, device, order, receive_core: None, scheduler_core: None };
        assert_eq!(found, all);
        let found = events(
            "mode = 'events', device = 'event_dsw0', order = 'atomic', receive_core = 2, scheduler_core = 1",
        );
        let (device, order) = ("event_dsw0".to_owned(), EventOrder::Atomic);
        let all = Events { line: 3, device, order, receive_core: Some(2), scheduler_core: Some(1) };
        assert_eq!(found, Some(all));
    }

    #[test]
    fn nothing_else_chooses_forwarders_beside_an_event_device() {
        let refusal = |queues: &str| {
            let text = format!(
                "turnpike.port 'b' {{ device = 'eth1', {queues} }}\n\
                 turnpike.forwarders {{ mode = 'events', cores = '1,2' }}"
            );
            read(&text).map(drop).unwrap_err().to_string()
        };
        for (queues, other) in [
            ("spread = 'software'", "spread = \"software\""),
            ("rx_cores = 1", "rx_cores"),
            ("tx_cores = 1", "tx_cores"),
        ] {
            let expected = format!(
                "r.lua:3: port \"b\": {other} chooses forwarders, which the event device does with mode = \"events\" \
                 (line 4); leave one of them out"
            );
            assert_eq!(refusal(queues), expected);
        }
    }

    #[test]
    fn wrong_settings_are_explained() {
        for (text, expected) in [
            (
                "turnpike.forwarders { mode = 'event' }",
                "r.lua:3: forwarders: mode \"event\" unknown; known: run-to-completion, events",
            ),
            (
                "turnpike.forwarders { mode = 'events', order = 'none' }",
                "r.lua:3: forwarders: order \"none\" unknown; known: ordered, atomic, parallel",
            ),
            (
                "turnpike.forwarders { receive_core = 1 }",
                "r.lua:3: forwarders: receive_core belongs to mode = \"events\"; add that, or leave receive_core out",
            ),
            (
                "turnpike.forwarders { shed = 3 }",
                "r.lua:3: forwarders: shed: expected a table, got number 3",
            ),
            (
                "turnpike.forwarders { shed = { percent = 0 } }",
                "r.lua:3: forwarders: shed: percent: expected a whole number from 1 to 50, got number 0",
            ),
            (
                "turnpike.forwarders { shed = { keep = 'gold' } }",
                "r.lua:3: forwarders: shed: class \"gold\" unknown; known: control, voice, video, data, default, background, established",
            ),
            (
                "turnpike.forwarders { shed = { keep = 'established' } }",
                "r.lua:3: forwarders: shed: keep \"established\": no filter matches states, so that no connections are \
                 known; add a rule with state to a filter, or leave it out",
            ),
            (
                "turnpike.forwarders { shed = { categories = 'games' } }",
                "r.lua:3: forwarders: shed: category \"games\" not found in the rules of filters; known: none",
            ),
            (
                "turnpike.forwarders { shed = { keep = { 7 } } }",
                "r.lua:3: forwarders: shed: keep: expected classes as \"control\", got number 7",
            ),
            (
                "turnpike.cores { control = '' }",
                "r.lua:3: cores: control \"\": \"\" is not a core or a range; write \"1,3-5\"",
            ),
            (
                "turnpike.cores { control = '0-1',\nforward = '1-3' }",
                "r.lua:3: cores: core 1 is for forwarders and for control (line 3); name it once, or leave control \
                 out where they have to share it",
            ),
            (
                "turnpike.cores { control = 2 }\nturnpike.forwarders { cores = '1-3' }",
                "r.lua:4: forwarders: core 2 is for forwarders and for control (line 3); name it once, or leave \
                 control out where they have to share it",
            ),
            (
                "turnpike.cores {\nforward = 1 }\nturnpike.forwarders { cores = '2' }",
                "r.lua:5: forwarders: cores given on line 4 already, as forward in turnpike.cores; leave one out",
            ),
            (
                "turnpike.cores { forward = {} }",
                "r.lua:3: cores: forward: expected cores such as \"1,3-5\", got a table",
            ),
        ] {
            assert_eq!(read(text).map(drop).unwrap_err().to_string(), expected, "{text}");
        }
    }
}
