//! Annotations of the configuration language for lua-language-server, by which editors complete statements, keys and
//! words, and show their meaning. The tests compare them with the readers of configurations.

/// The library file: `require "turnpike"` as lua-language-server sees it.
pub const ANNOTATIONS: &str = include_str!("turnpike.d.lua");

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;
    use std::time::Duration;

    use dataplane::catalogue::Catalogue;
    use mlua::{Lua, Table, Value};

    use super::super::{Call, Limits, parse, run_command};
    use super::ANNOTATIONS;

    type Names = BTreeSet<String>;

    const BEGIN: &str =
        "local turnpike = require \"turnpike\"\nturnpike.port \"left\" { device = \"a\" }\n";

    /// Each table of settings, by its class, in a statement that has the unknown key `zzz` in it.
    const TABLES: &[(&str, &str)] = &[
        ("AccelerateSettings", r#"turnpike.accelerate { "eth0", zzz = 1 }"#),
        ("AccessSettings", "turnpike.access { zzz = 1 }"),
        ("AdvertiseSettings", r#"turnpike.port "p" { device = "b", advertise = { zzz = 1 } }"#),
        (
            "AdvertisedPrefix",
            r#"turnpike.port "p" { device = "b", advertise = { prefixes = { { "fd00::/64", zzz = 1 } } } }"#,
        ),
        ("ApiSettings", "turnpike.api { zzz = 1 }"),
        ("BondSettings", r#"turnpike.bond "b" { ports = "left", zzz = 1 }"#),
        ("BucketsSettings", r#"turnpike.buckets "b" { rate = 1, zzz = 1 }"#),
        ("ClassLimits", "turnpike.slowpath { classes = { host = { zzz = 1 } } }"),
        ("CommandSettings", r#"turnpike.command "c" { run = print, zzz = 1 }"#),
        ("ControlSocketSettings", r#"turnpike.control_socket "c" { zzz = 1 }"#),
        ("CoresSettings", "turnpike.cores { zzz = 1 }"),
        (
            "DiscoverySettings",
            r#"turnpike.port "p" { device = "b", router_discovery = { zzz = 1 } }"#,
        ),
        ("ElementSettings", r#"turnpike.element "e" { class = "c", zzz = 1 }"#),
        ("ErspanSettings", r#"turnpike.mirror "m" { from = "left", erspan = { zzz = 1 } }"#),
        ("FibSettings", "turnpike.fib { zzz = 1 }"),
        ("FilterSettings", r#"turnpike.filter "f" { zzz = 1 }"#),
        ("FlowsSettings", "turnpike.flows { zzz = 1 }"),
        ("ForwardersSettings", "turnpike.forwarders { zzz = 1 }"),
        ("ForwardingSettings", "turnpike.forwarding { zzz = 1 }"),
        ("FpmSettings", "turnpike.fpm { zzz = 1 }"),
        ("HostSettings", r#"turnpike.port "p" { device = "b", host = { zzz = 1 } }"#),
        ("IcmpSettings", "turnpike.icmp { zzz = 1 }"),
        ("ImportSettings", "turnpike.import { zzz = 1 }"),
        ("InterfaceFilters", r#"turnpike.port "p" { device = "b", filter = { zzz = 1 } }"#),
        ("IpfixSettings", "turnpike.ipfix { zzz = 1 }"),
        ("LacpSettings", r#"turnpike.bond "b" { ports = "left", lacp = { zzz = 1 } }"#),
        ("LinkSettings", r#"turnpike.port "p" { device = "b", link = { zzz = 1 } }"#),
        ("LogSettings", "turnpike.log { zzz = 1 }"),
        ("LoopbackSettings", r#"turnpike.loopback "l" { zzz = 1 }"#),
        ("Mark", r#"turnpike.filter "f" { { mark = { zzz = 1 } } }"#),
        ("MemorySettings", "turnpike.memory { zzz = 1 }"),
        ("MetricsSettings", "turnpike.metrics { zzz = 1 }"),
        ("MirrorSettings", r#"turnpike.mirror "m" { zzz = 1 }"#),
        (
            "MulticastPort",
            r#"turnpike.multicast "239.1.1.1" { from = "left", to = { { "left", zzz = 1 } } }"#,
        ),
        ("MulticastSettings", r#"turnpike.multicast "239.1.1.1" { zzz = 1 }"#),
        ("NeighbourSettings", r#"turnpike.neighbour "10.0.1.9" { zzz = 1 }"#),
        ("NextHopSettings", r#"turnpike.next_hop "h" { port = "left", zzz = 1 }"#),
        ("OffloadSettings", r#"turnpike.port "p" { device = "b", offloads = { zzz = 1 } }"#),
        ("Path", r#"turnpike.route "10.9.0.0/16" { via = { { "10.0.1.2", zzz = 1 } } }"#),
        ("PathHashSettings", "turnpike.forwarding { hash = { zzz = 1 } }"),
        ("PoliceSettings", r#"turnpike.filter "f" { { police = { zzz = 1 } } }"#),
        ("PortSettings", r#"turnpike.port "p" { device = "b", zzz = 1 }"#),
        (
            "Precolours",
            r#"turnpike.filter "f" { { police = { rate = "1pps", excess = "1", aware = { zzz = 1 } } } }"#,
        ),
        ("PrefixSetSettings", r#"turnpike.prefix_set "s" { zzz = 1 }"#),
        ("QuarantineSettings", "turnpike.quarantine { zzz = 1 }"),
        ("QueueSettings", r#"turnpike.port "p" { device = "b", queue = { zzz = 1 } }"#),
        (
            "QueueWeights",
            r#"turnpike.port "p" { device = "b", queue = { discipline = "drr", weights = { zzz = 1 } } }"#,
        ),
        (
            "ResilientSettings",
            r#"turnpike.route "10.9.0.0/16" { via = "10.0.1.2", resilient = { zzz = 1 } }"#,
        ),
        ("RouteSettings", r#"turnpike.route "10.9.0.0/16" { blackhole = true, zzz = 1 }"#),
        ("RoutesFromSettings", r#"turnpike.routes_from { "kernel", zzz = 1 }"#),
        ("RssSettings", r#"turnpike.port "p" { device = "b", rss = { zzz = 1 } }"#),
        ("Rule", r#"turnpike.filter "f" { { zzz = 1 } }"#),
        ("RxThresholds", r#"turnpike.port "p" { device = "b", rx_thresholds = { zzz = 1 } }"#),
        ("SflowSettings", "turnpike.sflow { zzz = 1 }"),
        ("ShapeSettings", r#"turnpike.port "p" { device = "b", shape = { zzz = 1 } }"#),
        ("ShedSettings", "turnpike.forwarders { shed = { zzz = 1 } }"),
        ("SlowpathClasses", "turnpike.slowpath { classes = { zzz = 1 } }"),
        ("SlowpathSettings", "turnpike.slowpath { zzz = 1 }"),
        ("SnmpSettings", "turnpike.snmp { zzz = 1 }"),
        ("StepSettings", r#"turnpike.step "s" { process = print, zzz = 1 }"#),
        ("TableSettings", r#"turnpike.table "t" { seconds = 1, zzz = 1 }"#),
        ("TelnetSettings", "turnpike.telnet { zzz = 1 }"),
        ("TxSettings", "turnpike.tx { zzz = 1 }"),
        ("TxThresholds", r#"turnpike.port "p" { device = "b", tx_thresholds = { zzz = 1 } }"#),
        ("VlanSettings", r#"turnpike.vlan "v" { parent = "left", id = 1, zzz = 1 }"#),
        ("VrfSettings", r#"turnpike.vrf "v" { zzz = 1 }"#),
    ];

    /// Each set of words, by its alias, in a statement that has the unknown word `zzz` in place of one.
    const WORDS: &[(&str, &str)] = &[
        ("Action", r#"turnpike.filter "f" { { action = "zzz" } }"#),
        (
            "AdvertisedPreference",
            r#"turnpike.port "p" { device = "b", advertise = { preference = "zzz" } }"#,
        ),
        ("BondHash", r#"turnpike.bond "b" { ports = "left", hash = "zzz" }"#),
        ("BondMode", r#"turnpike.bond "b" { ports = "left", mode = "zzz" }"#),
        ("Direction", r#"turnpike.mirror "m" { from = "left", direction = "zzz" }"#),
        ("Discipline", r#"turnpike.port "p" { device = "b", queue = { discipline = "zzz" } }"#),
        ("Driver", r#"turnpike.port "p" { device = "b", driver = "zzz" }"#),
        ("Dscp", r#"turnpike.filter "f" { { dscp = "zzz" } }"#),
        ("Duplex", r#"turnpike.port "p" { device = "b", link = { duplex = "zzz" } }"#),
        ("ElementPort", r#"turnpike.element "e" { class = "c", inputs = "zzz" }"#),
        ("Ethertype", r#"turnpike.filter "f" { { ethertype = "zzz" } }"#),
        ("EventOrder", r#"turnpike.forwarders { mode = "events", order = "zzz" }"#),
        ("Extension", r#"turnpike.filter "f" { { extension = "zzz" } }"#),
        ("Family", r#"turnpike.filter "f" { { family = "zzz" } }"#),
        ("Fec", r#"turnpike.port "p" { device = "b", link = { fec = "zzz" } }"#),
        ("ForwardersMode", r#"turnpike.forwarders { mode = "zzz" }"#),
        ("Icmp4", r#"turnpike.filter "f" { { icmp = "zzz" } }"#),
        ("Icmp6", r#"turnpike.filter "f" { { icmp6 = "zzz" } }"#),
        ("Kept", r#"turnpike.forwarders { shed = { keep = "zzz" } }"#),
        ("LacpRate", r#"turnpike.bond "b" { ports = "left", lacp = { rate = "zzz" } }"#),
        ("LogLevel", r#"turnpike.log { level = "zzz" }"#),
        ("Packets", r#"turnpike.step "s" { process = print, requires = "zzz" }"#),
        ("PathHashFields", r#"turnpike.forwarding { hash = { fields = "zzz" } }"#),
        ("Pause", r#"turnpike.port "p" { device = "b", link = { pause = "zzz" } }"#),
        ("Protocol", r#"turnpike.filter "f" { { proto = "zzz" } }"#),
        ("PuntClass", r#"turnpike.filter "to-router" { { class = "zzz" } }"#),
        ("QueueClass", r#"turnpike.filter "f" { { mark = { class = "zzz" } } }"#),
        ("ReversePath", r#"turnpike.port "p" { device = "b", reverse_path = "zzz" }"#),
        ("RouteSource", r#"turnpike.prefix_set "s" { routes = "zzz" }"#),
        ("RouteTable", r#"turnpike.fib { ipv4 = "zzz" }"#),
        ("RoutingHeader", r#"turnpike.filter "f" { { routing = "zzz" } }"#),
        ("RssFields", r#"turnpike.port "p" { device = "b", rss = { fields = "zzz" } }"#),
        ("Source", r#"turnpike.routes_from { "zzz" }"#),
        ("Speed", r#"turnpike.port "p" { device = "b", link = { speed = "zzz" } }"#),
        ("Spread", r#"turnpike.port "p" { device = "b", spread = "zzz" }"#),
        ("State", r#"turnpike.filter "f" { { state = "zzz" } }"#),
        ("TagProtocol", r#"turnpike.vlan "v" { parent = "left", id = 1, protocol = "zzz" }"#),
        ("Wait", r#"turnpike.forwarders { wait = "zzz" }"#),
    ];

    /// Objects of steps: their classes, and their names in the prelude of forwarders.
    const OBJECTS: &[(&str, &str)] = &[
        ("Arp", "arp"),
        ("Batch", "batches"),
        ("Buckets", "buckets"),
        ("Counter", "counter"),
        ("Counters", "counters"),
        ("Ethernet", "ethernet"),
        ("Icmp", "icmp"),
        ("Ip4", "ip4"),
        ("Ip6", "ip6"),
        ("Mask", "masks"),
        ("Table", "table"),
        ("Tcp", "tcp"),
        ("Udp", "udp"),
        ("VlanTag", "vlan"),
    ];

    #[derive(Debug, Default)]
    struct Class {
        /// True if it is a table of settings.
        is_exact: bool,
        parent: Option<String>,
        fields: Names,
    }

    /// Returns the annotated classes, without `turnpike.` in their names. Items of lists are no fields.
    fn classes() -> BTreeMap<String, Class> {
        let mut classes: BTreeMap<String, Class> = BTreeMap::new();
        let mut current = String::new();
        for line in ANNOTATIONS.lines() {
            if let Some(said) = line.strip_prefix("---@class ") {
                let is_exact = said.starts_with("(exact) ");
                let said = said.trim_start_matches("(exact) ");
                let (name, parent) = said.split_once(": ").unwrap_or((said, ""));
                current = short(name);
                let parent = Some(short(parent)).filter(|name| !name.is_empty());
                let class = Class { is_exact, parent, fields: Names::new() };
                assert!(classes.insert(current.clone(), class).is_none(), "{line}: twice");
            } else if let Some(name) = line.strip_prefix("---@field ").and_then(field) {
                let class = classes.get_mut(&current).unwrap();
                assert!(class.fields.insert(name.to_owned()), "{current}: {line}: twice");
            }
        }
        classes
    }

    fn short(name: &str) -> String {
        name.trim_start_matches("turnpike.").to_owned()
    }

    /// Returns a field's name; `None` for `[1]` and `[integer]`. A visibility may come first, as the language server
    /// reads it: the field `public` must have one.
    fn field(said: &str) -> Option<&str> {
        let (first, rest) = said.split_at(said.find([' ', '?'])?);
        let name = match first {
            "public" | "private" | "protected" | "package" => {
                rest.trim_start().split([' ', '?']).next()?
            }
            name => name,
        };
        Some(name).filter(|name| !name.starts_with('['))
    }

    /// Returns the fields of a class and its parents.
    fn fields(classes: &BTreeMap<String, Class>, name: &str) -> Names {
        let class = classes.get(name).unwrap_or_else(|| panic!("class {name} is not there"));
        let inherited = class.parent.iter().flat_map(|parent| fields(classes, parent));
        inherited.chain(class.fields.iter().cloned()).collect()
    }

    /// Returns the aliases of words: `"a"|"b"`, or a line `| "a"` for each.
    fn aliases() -> BTreeMap<String, Names> {
        let mut aliases: BTreeMap<String, Names> = BTreeMap::new();
        let mut current = String::new();
        for line in ANNOTATIONS.lines() {
            if let Some(said) = line.strip_prefix("---@alias ") {
                let (name, words) = said.split_once(' ').unwrap_or((said, ""));
                current = short(name);
                let words = words.split('|').filter_map(word);
                aliases.insert(current.clone(), words.collect());
            } else if let Some(found) = line.strip_prefix("---| ").and_then(word) {
                let words = aliases.get_mut(&current).unwrap();
                assert!(words.insert(found), "{current}: {line}: twice");
            }
        }
        aliases.into_iter().filter(|(_, words)| !words.is_empty()).collect()
    }

    /// Returns the text in quotation marks at the beginning.
    fn word(text: &str) -> Option<String> {
        Some(text.strip_prefix('"')?.split_once('"')?.0.to_owned())
    }

    /// Returns the names that an error about `zzz` lists as known.
    fn known(statement: &str, about: &str) -> Names {
        let text = format!("{BEGIN}{statement}");
        let read = parse(Path::new("r.lua"), &text, Limits::default(), &Catalogue::default());
        let errors = read.expect_err(statement);
        let mut found = errors.0.iter().filter(|error| error.message.contains(about));
        let (Some(error), None) = (found.next(), found.next()) else {
            panic!("{statement}: not one error about {about}: {errors}");
        };
        listed(&error.message)
    }

    fn listed(message: &str) -> Names {
        let labels = ["known: ", "classes: ", "sources: "];
        let list = labels.iter().find_map(|label| Some(message.split_once(*label)?.1));
        let list = list.unwrap_or_else(|| panic!("no names in: {message}"));
        let list = list.split(';').next().unwrap_or_default();
        let items = list.split(", ").filter(|item| !item.starts_with("or "));
        // The first word: others explain it.
        items.filter_map(|item| item.split(' ').next()).map(str::to_owned).collect()
    }

    fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Names {
        names.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn every_table_has_the_keys_of_its_class() {
        let classes = classes();
        for (class, statement) in TABLES {
            assert_eq!(fields(&classes, class), known(statement, "key \"zzz\""), "{statement}");
        }
        let parents: Names = classes.values().filter_map(|class| class.parent.clone()).collect();
        let exact = classes.iter().filter(|(_, class)| class.is_exact).map(|(name, _)| name);
        let exact: Names = exact.filter(|name| !parents.contains(*name)).cloned().collect();
        assert_eq!(exact, names(TABLES.iter().map(|(class, _)| *class)), "tables to compare");
    }

    #[test]
    fn every_alias_has_the_words_of_its_settings() {
        let aliases = aliases();
        for (alias, statement) in WORDS {
            let words = aliases.get(*alias).unwrap_or_else(|| panic!("alias {alias} is not there"));
            assert_eq!(*words, known(statement, "\"zzz\""), "{statement}");
        }
        let all: Names = aliases.into_keys().collect();
        assert_eq!(all, names(WORDS.iter().map(|(alias, _)| *alias)), "words to compare");
    }

    /// Returns the module that the library file makes.
    fn module(lua: &Lua) -> Table {
        lua.load(ANNOTATIONS).set_name("turnpike.d.lua").eval().unwrap()
    }

    /// Returns the result of a command with this body: names.
    fn run(body: &str) -> Names {
        let body = format!(
            "local function keys(t) local n = {{}} for k in next, t do n[#n + 1] = k end return n end\n{body}"
        );
        let text = format!("{BEGIN}turnpike.command \"c\" {{ run = function() {body} end }}");
        let budget = Duration::from_secs(60);
        let call = Call { text: &text, file: "r.lua", name: "c", arguments: &[], budget };
        let result = run_command(&call, |_| Err("no router".to_owned())).unwrap();
        names(result.as_array().unwrap().iter().map(|name| name.as_str().unwrap()))
    }

    #[test]
    fn every_function_of_the_module_is_annotated() {
        let lua = Lua::new();
        let module = module(&lua);
        let functions = module.pairs::<String, Value>().map(|pair| pair.unwrap().0);
        let declared: Names = functions.chain(fields(&classes(), "turnpike")).collect();
        // That of a configuration, and that of commands, which has more.
        let configured = known("local x = turnpike.zzz", "turnpike.zzz");
        let of_commands = run("return keys(turnpike)");
        assert!(of_commands.contains("show"), "{of_commands:?}");
        assert_eq!(declared, &configured | &of_commands);
    }

    #[test]
    fn every_statement_is_called_as_annotated() {
        let mut settings = None;
        for line in ANNOTATIONS.lines() {
            let class = |from: &str| Some(line.split_once(from)?.1.split(')').next()?.to_owned());
            let named = class("---@return fun(settings: turnpike.").map(|class| (class, " \""));
            let plain = class("---@param settings turnpike.").map(|class| (class, " {"));
            settings = named.or(plain).or(settings);
            let Some(name) = line.strip_prefix("function turnpike.") else { continue };
            let Some((class, form)) = settings.take() else { continue };
            let found = TABLES.iter().find(|(known, _)| *known == class);
            let (_, statement) = found.unwrap_or_else(|| panic!("{line}: no table {class}"));
            let name = name.split('(').next().unwrap();
            assert!(statement.starts_with(&format!("turnpike.{name}{form}")), "{line}: {class}");
        }
    }

    /// Returns the methods of a class, which are functions of a local variable.
    fn methods(class: &str) -> Names {
        let begin = format!("function {class}:");
        let heads = ANNOTATIONS.lines().filter_map(|line| line.strip_prefix(&begin));
        names(heads.filter_map(|head| head.split('(').next()))
    }

    /// Returns the methods and fields of an object in the prelude of forwarders.
    fn in_prelude(name: &str) -> Names {
        let prelude = include_str!("../../../script/src/lua/prelude.lua");
        let method = format!("function {name}.");
        let methods =
            prelude.lines().filter_map(|line| line.strip_prefix(&method)?.split('(').next());
        let begin = format!("local {name}_type = ffi.metatype(");
        let behind = prelude.split_once(&begin).map_or("", |(_, behind)| behind);
        let of_type = behind.split("\n})").next().unwrap_or_default();
        let fields = of_type.split("k == \"").skip(1).filter_map(|rest| rest.split('"').next());
        let functions =
            of_type.lines().filter_map(|line| Some(line.split_once(" = function(")?.0.trim()));
        let functions = functions.filter(|name| !name.starts_with("__"));
        names(methods.chain(fields).chain(functions))
    }

    #[test]
    fn every_object_of_steps_has_its_methods_and_fields() {
        let classes = classes();
        let declared = |class: &str| &fields(&classes, class) | &methods(class);
        for (class, name) in OBJECTS {
            assert_eq!(declared(class), in_prelude(name), "{class}");
        }
        let helpers = [("Prefix", "prefix '10.0.0.0/8'"), ("Set", "set {}"), ("Ports", "ports {}")];
        for (class, object) in helpers {
            let found = run(&format!("return keys(turnpike.{object})"));
            assert_eq!(declared(class), found, "{class}");
        }
        let graph = include_str!("script/graph.rs").split("add_method(\"").skip(1);
        let graph = graph.filter_map(|rest| rest.split('"').next());
        assert_eq!(methods("Graph"), names(graph));
    }

    #[test]
    fn every_type_is_declared() {
        let (classes, aliases) = (classes(), ANNOTATIONS.lines());
        let aliases = aliases.filter_map(|line| line.strip_prefix("---@alias turnpike."));
        let aliases = names(aliases.filter_map(|said| said.split(' ').next()));
        for said in ANNOTATIONS.split("turnpike.").skip(1) {
            let name: String = said.chars().take_while(char::is_ascii_alphanumeric).collect();
            let is_type = name.starts_with(|c: char| c.is_ascii_uppercase());
            let is_known = classes.contains_key(&name) || aliases.contains(&name);
            assert!(!is_type || is_known, "turnpike.{name} is not declared");
        }
    }
}
