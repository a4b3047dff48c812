//! Handlers of Click's elements: their names, and the form of their values.
//!
//! | elements | handlers |
//! |---|---|
//! | all | `class`, `name`, `config`, `ports`, `handlers` |
//! | those that count | `count`, `byte_count`, `rate`, …, `reset` |
//! | those whose step has an argument that may change | `switch`, `rate`, `limit`, … |
//! | routing tables, `ARPQuerier`s | `table`, `lookup`, `add`, `remove`, …; `insert`, `delete` |
//! | none: the whole configuration | `version`, `list`, `config`, …, `stop` |
//!
//! The owner evaluates them (`owner/handlers.rs`). Here is nothing that runs.

pub mod routes;

use api::report::HandlerAnswer;
use click::kinds;
use click::names::{Names, Scope};
use click::script::{self, CLASSES};
use control::config::Element;
use dataplane::params::{Arg, Given, Rate};
use dataplane::steps::OrderNumber;

/// Statuses of Click's protocol.
pub mod status {
    /// Success.
    pub const OK: u16 = 200;
    /// The command is not understood.
    pub const SYNTAX: u16 = 500;
    /// There is no such command.
    pub const UNIMPLEMENTED: u16 = 501;
    /// There is no such element.
    pub const NO_ELEMENT: u16 = 510;
    /// There is no such handler.
    pub const NO_HANDLER: u16 = 511;
    /// The handler refuses the value.
    pub const HANDLER: u16 = 520;
    /// The value is too long.
    pub const TOO_BIG: u16 = 521;
    /// The handler, or the socket, cannot be written or read.
    pub const PERMISSION: u16 = 530;
    /// Any other failure.
    pub const UNSPECIFIED: u16 = 590;
}

/// A handler of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Handler {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub what: What,
    /// It can be read.
    pub reads: bool,
    /// It can be written.
    pub writes: bool,
}

/// A handler's value, or its effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// The element's class.
    Class,
    /// Its name.
    Name,
    /// Its configuration string; without an element, the configuration.
    Config,
    /// Its ports and what they are connected to.
    Ports,
    /// Its handlers.
    Handlers,
    /// Packets since the last reset.
    Count,
    /// Their bytes.
    Bytes,
    /// Packets, bytes or bits a second, of the last second or two.
    Rate(Unit),
    /// Likewise, since the last reset.
    Average(Unit),
    /// Begins all counts anew.
    Reset,
    /// Drops the packets that a queue holds.
    Empty,
    /// A file has packets that its source has not made yet.
    HasMore,
    /// Lets a source make as many packets as its limit allows once more.
    Restart,
    /// The average that a meter compares.
    MeterRate(Unit),
    /// The rates that it compares it with.
    Meters(Form),
    /// A number of its node in the order of a `schedule`.
    Node(OrderNumber, Form),
    /// The tickets of an output of a switch, or of an input of a scheduler.
    Tickets(usize),
    /// Packets by an output of its step since the last reset.
    Output(&'static str),
    /// Packets that a queue holds.
    Length,
    /// The most that it held on one forwarder.
    MostLength,
    /// The most that it may hold.
    Capacity,
    /// An argument of its step.
    Argument(&'static str, Form),
    /// Routes of a table.
    Table,
    /// The output and the gateway for an address.
    Lookup,
    /// Changes of a table's routes; `None`: several, a line each.
    Routes(Option<routes::Verb>),
    /// Neighbours of an `ARPQuerier`.
    ArpTable,
    /// Sets one.
    ArpInsert,
    /// Forgets one.
    ArpDelete,
    /// The port or path of a control socket.
    Address,
    /// The router's name and version.
    Version,
    /// The elements' names.
    List,
    /// The classes in use.
    Classes,
    /// Packages that the configuration requires.
    Requirements,
    /// The kind of Click.
    Driver,
    /// Ends the router.
    Stop,
    /// The value of a function of its argument.
    Compute,
    /// The value of a script, or its next step.
    Script,
}

/// The unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Bits.
    Bits,
}

/// The form of an argument in a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A whole number in this range.
    Integer(i64, i64),
    /// An output: a number below that of the step's outputs; below 0: none.
    Output,
    /// `true` or `false`.
    Flag,
    /// Packets a second.
    Packets,
    /// Bytes a second, or with a unit.
    Bandwidth,
    /// A probability, of parts per million.
    Share,
    /// One minus that.
    Rest,
    /// A probability as it is.
    Probability,
    /// A time.
    Time,
    /// The time between two packets at a rate.
    Interval,
    /// An Ethernet address.
    Ether,
    /// Any text.
    Text,
}

const fn reads(name: &'static str, what: What) -> Handler {
    Handler { name, what, reads: true, writes: false }
}

const fn writes(name: &'static str, what: What) -> Handler {
    Handler { name, what, reads: false, writes: true }
}

const fn argument(name: &'static str, key: &'static str, form: Form) -> Handler {
    Handler { name, what: What::Argument(key, form), reads: true, writes: true }
}

const fn node(name: &'static str, which: OrderNumber, form: Form) -> Handler {
    Handler { name, what: What::Node(which, form), reads: true, writes: true }
}

const fn tickets(name: &'static str, port: usize) -> Handler {
    Handler { name, what: What::Tickets(port), reads: true, writes: true }
}

/// Of every element.
const COMMON: &[Handler] = &[
    reads("class", What::Class),
    reads("name", What::Name),
    reads("config", What::Config),
    reads("ports", What::Ports),
    reads("handlers", What::Handlers),
];

/// Without an element.
pub const GLOBAL: &[Handler] = &[
    reads("version", What::Version),
    reads("driver", What::Driver),
    reads("config", What::Config),
    reads("flatconfig", What::Config),
    reads("requirements", What::Requirements),
    reads("list", What::List),
    reads("classes", What::Classes),
    reads("handlers", What::Handlers),
    writes("stop", What::Stop),
];

const COUNTER: &[Handler] = &[
    reads("count", What::Count),
    reads("byte_count", What::Bytes),
    reads("rate", What::Rate(Unit::Packets)),
    reads("bit_rate", What::Rate(Unit::Bits)),
    reads("byte_rate", What::Rate(Unit::Bytes)),
    writes("reset", What::Reset),
    writes("reset_counts", What::Reset),
];

const AVERAGE: &[Handler] = &[
    reads("count", What::Count),
    reads("byte_count", What::Bytes),
    reads("rate", What::Average(Unit::Packets)),
    reads("byte_rate", What::Average(Unit::Bytes)),
    writes("reset", What::Reset),
];

const QUEUE: &[Handler] = &[
    reads("length", What::Length),
    reads("highwater_length", What::MostLength),
    Handler { name: "capacity", what: What::Capacity, reads: true, writes: true },
    reads("drops", What::Output("queue-full")),
    writes("reset_counts", What::Reset),
    writes("reset", What::Empty),
];

const COUNTED: &[Handler] = &[reads("count", What::Count), writes("reset_counts", What::Reset)];

const FROM_DUMP: &[Handler] = &[
    reads("active", What::HasMore),
    reads("count", What::Count),
    writes("reset_counts", What::Reset),
];

const RATED: &[Handler] = &[
    argument("rate", "rate", Form::Packets),
    argument("limit", "limit", Form::Integer(-1, i64::MAX)),
    argument("active", "active", Form::Flag),
    reads("count", What::Count),
    writes("reset", What::Restart),
];

const TIMED: &[Handler] = &[
    argument("interval", "rate", Form::Interval),
    argument("limit", "limit", Form::Integer(-1, i64::MAX)),
    argument("active", "active", Form::Flag),
    reads("count", What::Count),
    writes("reset", What::Restart),
];

const INFINITE: &[Handler] = &[
    argument("limit", "limit", Form::Integer(-1, i64::MAX)),
    argument("active", "active", Form::Flag),
    reads("count", What::Count),
    writes("reset", What::Restart),
];

const SAMPLE: &[Handler] = &[
    argument("sampling_prob", "per_million", Form::Share),
    argument("drop_prob", "per_million", Form::Rest),
    reads("drops", What::Output("others")),
];

const TABLE: &[Handler] = &[
    reads("table", What::Table),
    reads("lookup", What::Lookup),
    writes("add", What::Routes(Some(routes::Verb::Add))),
    writes("set", What::Routes(Some(routes::Verb::Set))),
    writes("remove", What::Routes(Some(routes::Verb::Remove))),
    writes("ctrl", What::Routes(None)),
];

const ARP: &[Handler] = &[
    reads("table", What::ArpTable),
    writes("insert", What::ArpInsert),
    writes("delete", What::ArpDelete),
];

const UNQUEUE: &[Handler] = &[
    reads("count", What::Count),
    writes("reset", What::Reset),
    writes("reset_counts", What::Reset),
];

const TO_DUMP: &[Handler] = &[
    reads("count", What::Count),
    reads("filename", What::Argument("file", Form::Text)),
    writes("reset_counts", What::Reset),
];

const METER: &[Handler] =
    &[reads("rate", What::MeterRate(Unit::Packets)), reads("meters", What::Meters(Form::Packets))];

const BANDWIDTH_METER: &[Handler] =
    &[reads("rate", What::MeterRate(Unit::Bytes)), reads("meters", What::Meters(Form::Bandwidth))];

const ETHER_ENCAP: &[Handler] = &[
    argument("src", "source", Form::Ether),
    argument("dst", "destination", Form::Ether),
    argument("ethertype", "ethertype", Form::Integer(0, 0xffff)),
    argument("etht", "ethertype", Form::Integer(0, 0xffff)),
];

const ETHER_REWRITE: &[Handler] =
    &[argument("src", "source", Form::Ether), argument("dst", "destination", Form::Ether)];

const RED: &[Handler] = &[
    node("min_thresh", OrderNumber::Early(0), Form::Integer(0, 0xffff)),
    node("max_thresh", OrderNumber::Early(1), Form::Integer(0, 0xffff)),
    node("max_p", OrderNumber::Early(2), Form::Probability),
    reads("drops", What::Output("queue-red")),
];

/// As many as a scheduler or a switch can have; each element has those of its ports.
const TICKETS: &[Handler] = &[
    tickets("tickets0", 0),
    tickets("tickets1", 1),
    tickets("tickets2", 2),
    tickets("tickets3", 3),
    tickets("tickets4", 4),
    tickets("tickets5", 5),
    tickets("tickets6", 6),
    tickets("tickets7", 7),
    tickets("tickets8", 8),
    tickets("tickets9", 9),
    tickets("tickets10", 10),
    tickets("tickets11", 11),
    tickets("tickets12", 12),
    tickets("tickets13", 13),
    tickets("tickets14", 14),
];

const SWITCH: &[Handler] = &[argument("switch", "to", Form::Output)];
const PULL_SWITCH: &[Handler] = &[node("switch", OrderNumber::First, Form::Output)];
const DELAY: &[Handler] = &[argument("delay", "delay", Form::Time)];
const LENGTH: &[Handler] = &[argument("length", "length", Form::Integer(0, 0xffff))];
const ACTIVE: &[Handler] = &[argument("active", "active", Form::Flag)];
const ETHER: &[Handler] = &[argument("ether", "address", Form::Ether)];
const BROADCASTS: &[Handler] = &[reads("drops", What::Output("l2-broadcast"))];
const PACKET_RATE: &[Handler] = &[argument("rate", "rate", Form::Packets)];
const BANDWIDTH: &[Handler] = &[argument("rate", "rate", Form::Bandwidth)];
const COLOUR: &[Handler] = &[argument("color", "colour", Form::Integer(0, 255))];
const DSCP: &[Handler] = &[argument("dscp", "dscp", Form::Integer(0, 63))];
const BAD: &[Handler] = &[reads("drops", What::Output("bad"))];
const EXPIRED: &[Handler] = &[reads("drops", What::Output("expired"))];
const SCRIPT: &[Handler] = &[
    writes("step", What::Script),
    writes("goto", What::Script),
    Handler { name: "run", what: What::Script, reads: true, writes: true },
];
const TCP: &[Handler] = &[reads("port", What::Address), reads("filename", What::Address)];

/// The handlers that a class has beside those of all.
fn own(class: &str) -> &'static [Handler] {
    match class {
        "Counter" | "CounterMP" => COUNTER,
        "AverageCounter" | "AverageCounterMP" => AVERAGE,
        "Queue" | "SimpleQueue" | "ThreadSafeQueue" | "NotifierQueue" | "MSQueue"
        | "MixedQueue" | "FrontDropQueue" => QUEUE,
        "Discard" | "FromDevice" | "PollDevice" | "FromDPDKDevice" | "FromNetmapDevice"
        | "FromOcteon" | "FromHost" => COUNTED,
        "FromDump" => FROM_DUMP,
        "ToDump" => TO_DUMP,
        "Unqueue" => UNQUEUE,
        "RatedSource" | "UDPSource" | "FastUDPSource" => RATED,
        "TimedSource" => TIMED,
        "InfiniteSource" => INFINITE,
        "Switch" => SWITCH,
        "PullSwitch" | "SimplePullSwitch" => PULL_SWITCH,
        "StrideSwitch" | "StrideSched" => TICKETS,
        "RED" => RED,
        "Meter" => METER,
        "BandwidthMeter" => BANDWIDTH_METER,
        "DelayUnqueue" | "DelayShaper" => DELAY,
        "Shaper" | "RatedUnqueue" | "RatedSplitter" => PACKET_RATE,
        "BandwidthShaper" | "BandwidthRatedUnqueue" | "BandwidthRatedSplitter" => BANDWIDTH,
        "RandomSample" => SAMPLE,
        "Paint" | "CheckPaint" => COLOUR,
        "SetIPDSCP" => DSCP,
        "CheckIPHeader" | "CheckIPHeader2" | "CheckTCPHeader" | "CheckUDPHeader"
        | "CheckICMPHeader" | "CheckIP6Header" => BAD,
        "DecIPTTL" | "DecIP6HLIM" => EXPIRED,
        "DropBroadcasts" => BROADCASTS,
        "CheckLength" => LENGTH,
        "Print" | "IPPrint" | "IP6Print" => ACTIVE,
        "EtherEncap" => ETHER_ENCAP,
        "EtherRewrite" => ETHER_REWRITE,
        "HostEtherFilter" => ETHER,
        "ARPQuerier" => ARP,
        "StaticIPLookup" | "LinearIPLookup" | "RadixIPLookup" | "DirectIPLookup"
        | "RangeIPLookup" | "SortedIPLookup" | "LookupIPRouteMP" => TABLE,
        "Script" | "DriverManager" => SCRIPT,
        "ControlSocket" => TCP,
        _ => &[],
    }
}

/// The functions of scripts.
const FUNCTIONS: &[Handler] = &functions();

const fn functions() -> [Handler; script::FUNCTIONS.len()] {
    let mut all = [reads("", What::Compute); script::FUNCTIONS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at].name = script::FUNCTIONS[at];
        at += 1;
    }
    all
}

/// All handlers of a class.
fn of_class(class: &str) -> impl Iterator<Item = &'static Handler> + use<> {
    let functions: &[Handler] = if CLASSES.contains(&class) { FUNCTIONS } else { &[] };
    own(class).iter().chain(functions).chain(COMMON)
}

/// All handlers of an element.
pub fn of(element: &Element) -> impl Iterator<Item = &'static Handler> + use<> {
    let ports = if element.class == "StrideSched" { &element.inputs } else { &element.outputs };
    let ports = ports.len();
    of_class(&element.class)
        .filter(move |handler| !matches!(handler.what, What::Tickets(port) if port >= ports))
}

impl Handler {
    /// `r`, `w` or both, and `+` if it is read with an argument.
    pub fn access(&self) -> String {
        let has_argument = matches!(self.what, What::Lookup | What::Compute);
        let has_argument = has_argument || self.what == What::Script && self.reads;
        let signs = [(self.reads, "r"), (self.writes, "w"), (has_argument, "+")];
        signs.iter().filter(|(is, _)| *is).map(|(_, sign)| *sign).collect()
    }
}

impl What {
    /// Returns true for counters whose rate is sampled.
    pub fn is_rate(self) -> bool {
        matches!(self, Self::Rate(_))
    }
}

/// An answer without data.
pub fn said(code: u16, message: impl Into<String>) -> HandlerAnswer {
    HandlerAnswer { code, messages: vec![message.into()], data: None }
}

/// The answer of a handler that was read.
pub fn read(name: &str, value: Result<String, String>) -> HandlerAnswer {
    match value {
        Ok(data) => {
            let messages = vec![format!("Read handler '{name}' OK")];
            HandlerAnswer { code: status::OK, messages, data: Some(data) }
        }
        Err(why) => failed(status::UNSPECIFIED, format!("Read handler '{name}' error:"), &why),
    }
}

/// The answer of a handler that was written.
pub fn written(name: &str, done: Result<(), String>) -> HandlerAnswer {
    match done {
        Ok(()) => said(status::OK, format!("Write handler '{name}' OK")),
        Err(why) => failed(status::HANDLER, format!("Write handler '{name}' error:"), &why),
    }
}

fn failed(code: u16, what: String, why: &str) -> HandlerAnswer {
    let messages = std::iter::once(what).chain(why.lines().map(str::to_owned)).collect();
    HandlerAnswer { code, messages, data: None }
}

impl Form {
    /// The value of an argument.
    pub fn write(self, arg: &Arg) -> String {
        match (self, arg) {
            (Self::Share, Arg::Integer(parts)) => number(*parts as f64 / 1e6),
            (Self::Rest, Arg::Integer(parts)) => number(1.0 - *parts as f64 / 1e6),
            (Self::Interval, Arg::Rate(Rate::Packets(rate))) => number(1.0 / *rate as f64),
            (Self::Ether, Arg::Text(mac)) => mac.replace(':', "-").to_uppercase(),
            (_, Arg::Text(text)) => text.clone(),
            (_, Arg::Duration(time)) => number(time.as_secs_f64()),
            (_, Arg::Integer(integer)) => integer.to_string(),
            (_, Arg::Flag(flag)) => flag.to_string(),
            (_, Arg::Rate(Rate::Packets(rate))) => rate.to_string(),
            (_, Arg::Rate(Rate::Bits(rate))) => format!("{}Bps", rate / 8),
            (_, other) => other.to_string(),
        }
    }

    /// Reads a value for a step with so many outputs.
    ///
    /// # Errors
    /// It has another form; the text is Click's, or like it.
    pub fn read(self, text: &str, outputs: usize) -> Result<Given, String> {
        let text = text.trim();
        with_scope(|scope| match self {
            Self::Integer(least, most) => integer(text, scope, least, most),
            Self::Output => match kinds::integer(i64::MIN..=i64::MAX)(text, scope) {
                Ok(to) if to >= outputs as i64 => Err(format!("output must be < {outputs}")),
                Ok(to) => Ok(Given::Number(to.max(-1) as f64)),
                Err(_) => Err("syntax error: expected integer".to_owned()),
            },
            Self::Flag => kinds::boolean(text, scope)
                .map(Given::Flag)
                .map_err(|_| "syntax error: expected true or false".to_owned()),
            Self::Packets => {
                let rate = integer(text, scope, 1, 1_000_000_000)?;
                let Given::Number(rate) = rate else { return Ok(rate) };
                Ok(Given::Text(format!("{rate}pps")))
            }
            Self::Bandwidth => match kinds::bandwidth(text, scope) {
                Ok(bytes) if (1..=u64::MAX / 8).contains(&bytes) => {
                    Ok(Given::Text(format!("{}bit", 8 * bytes)))
                }
                _ => Err("expected a bandwidth such as 10Mbps".to_owned()),
            },
            Self::Share | Self::Rest => {
                let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                let share: f64 = share.ok_or("expected a probability from 0 to 1")?;
                let share = if self == Self::Rest { 1.0 - share } else { share };
                Ok(Given::Number((share * 1e6).round()))
            }
            Self::Probability => {
                let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                Ok(Given::Number(share.ok_or("expected a probability from 0 to 1")?))
            }
            Self::Time => {
                let time = kinds::duration(text, scope);
                let time = time.map_err(|_| "expected a time in seconds, such as 0.02 or 20ms")?;
                Ok(Given::Text(format!("{}us", time.as_micros())))
            }
            Self::Interval => {
                let time = kinds::duration(text, scope).ok().map(|time| time.as_secs_f64());
                let time = time.filter(|time| (1e-6..=1.0).contains(time));
                let time = time.ok_or("expected a time from 1us to 1s")?;
                Ok(Given::Text(format!("{}pps", (1.0 / time).round())))
            }
            Self::Ether => {
                let bytes =
                    kinds::ether(text, scope).map_err(|_| "expected an Ethernet address")?;
                let bytes = bytes.map(|byte| format!("{byte:02x}"));
                Ok(Given::Text(bytes.join(":")))
            }
            Self::Text => Ok(Given::Text(text.to_owned())),
        })
    }
}

fn integer(text: &str, scope: &Scope<'_>, least: i64, most: i64) -> Result<Given, String> {
    match kinds::integer(i64::MIN..=i64::MAX)(text, scope) {
        // Numbers of configurations are floating-point.
        Ok(number) if (least..=most.min(1 << 53)).contains(&number) => {
            Ok(Given::Number(number as f64))
        }
        Ok(_) => Err(format!("expected a number from {least} to {most}")),
        Err(_) => Err("syntax error: expected integer".to_owned()),
    }
}

/// A number without needless digits.
pub fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Words of handlers have no names of a configuration.
fn with_scope<T>(read: impl FnOnce(&Scope<'_>) -> Result<T, String>) -> Result<T, String> {
    let place = click::Place { file: "".into(), line: 1, column: 1, source: "".into() };
    let element = click::Element {
        name: String::new(),
        class: String::new(),
        arguments: Vec::new(),
        config: String::new(),
        place,
    };
    let names = Names::of(&click::Flat::default()).map_err(|errors| errors.to_string())?;
    read(&names.scope(&element))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(class: &str, name: &str) -> Option<&'static Handler> {
        of_class(class).find(|handler| handler.name == name)
    }

    #[test]
    fn handlers_are_those_of_click() {
        assert_eq!(of("Null", "class").unwrap().access(), "r");
        assert_eq!(of("Switch", "switch").unwrap().access(), "rw");
        assert_eq!(of("Counter", "reset").unwrap().access(), "w");
        assert_eq!(of("RadixIPLookup", "lookup").unwrap().access(), "r+");
        assert_eq!(of("PaintSwitch", "switch"), None);
        assert_eq!(of("Queue", "reset").unwrap().access(), "w");
        assert_eq!(of("RED", "max_p").unwrap().access(), "rw");
        for class in ["Counter", "Queue", "RatedSource", "StaticIPLookup", "ARPQuerier", "RED"] {
            let mut names: Vec<_> = of_class(class).map(|handler| handler.name).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{class}");
        }
    }

    #[test]
    fn arguments_are_read_and_written_as_click_does() {
        let read = |form: Form, text: &str| form.read(text, 3);
        let number = |number: f64| Ok(Given::Number(number));
        let text = |text: &str| Ok(Given::Text(text.to_owned()));
        assert_eq!(read(Form::Output, " 2\n"), number(2.0));
        assert_eq!(read(Form::Output, "-7"), number(-1.0));
        assert_eq!(read(Form::Output, "3"), Err("output must be < 3".to_owned()));
        assert_eq!(read(Form::Output, "x"), Err("syntax error: expected integer".to_owned()));
        assert_eq!(read(Form::Packets, "1000"), text("1000pps"));
        assert!(read(Form::Packets, "0").is_err());
        assert_eq!(read(Form::Bandwidth, "1000"), text("8000bit"));
        assert_eq!(read(Form::Bandwidth, "8Mbps"), text("8000000bit"));
        assert!(read(Form::Bandwidth, "18446744073709551615").is_err());
        assert_eq!(read(Form::Share, "0.25"), number(250_000.0));
        assert_eq!(read(Form::Rest, "0.25"), number(750_000.0));
        assert!(read(Form::Share, "1.5").is_err() && read(Form::Share, "NaN").is_err());
        assert_eq!(read(Form::Flag, "false"), Ok(Given::Flag(false)));
        assert!(read(Form::Integer(0, 255), "256").is_err());
        assert_eq!(read(Form::Time, "0.02"), text("20000us"));
        assert_eq!(read(Form::Time, "20ms"), text("20000us"));
        assert_eq!(read(Form::Interval, "0.5"), text("2pps"));
        assert!(read(Form::Interval, "2").is_err() && read(Form::Interval, "0").is_err());
        assert_eq!(read(Form::Ether, "0:1:2:3:4:AB"), text("00:01:02:03:04:ab"));
        assert!(read(Form::Ether, "x").is_err());
        assert_eq!(read(Form::Probability, "0.02"), number(0.02));
        assert!(read(Form::Probability, "1.1").is_err());
        let mac = Arg::Text("00:01:02:03:04:ab".to_owned());
        assert_eq!(Form::Ether.write(&mac), "00-01-02-03-04-AB");
        assert_eq!(Form::Text.write(&Arg::Text("/a b".to_owned())), "/a b");
        let time = std::time::Duration::from_millis(20);
        assert_eq!(Form::Time.write(&Arg::Duration(time)), "0.02");
        assert_eq!(Form::Interval.write(&Arg::Rate(Rate::Packets(4))), "0.25");
        assert_eq!(Form::Share.write(&Arg::Integer(250_000)), "0.25");
        assert_eq!(Form::Rest.write(&Arg::Integer(250_000)), "0.75");
        assert_eq!(Form::Packets.write(&Arg::Rate(Rate::Packets(7))), "7");
        assert_eq!(Form::Bandwidth.write(&Arg::Rate(Rate::Bits(8000))), "1000Bps");
        assert_eq!(Form::Output.write(&Arg::Integer(-1)), "-1");
    }

    #[test]
    fn numbers_have_no_needless_digits() {
        let texts = [0.0, 1.0, 12.5, 1e6, 0.1 + 0.2].map(number);
        assert_eq!(texts, ["0", "1", "12.5", "1000000", "0.3"]);
    }
}
