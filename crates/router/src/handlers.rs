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
use dataplane::params::{Arg, Given, Rate};

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
}

/// What a rate counts.
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
];

const COUNTED: &[Handler] = &[reads("count", What::Count), writes("reset_counts", What::Reset)];

const RATED: &[Handler] = &[
    argument("rate", "rate", Form::Packets),
    argument("limit", "limit", Form::Integer(-1, i64::MAX)),
    argument("active", "active", Form::Flag),
    reads("count", What::Count),
];

const INFINITE: &[Handler] = &[
    argument("limit", "limit", Form::Integer(-1, i64::MAX)),
    argument("active", "active", Form::Flag),
    reads("count", What::Count),
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

const SWITCH: &[Handler] = &[argument("switch", "to", Form::Output)];
const PACKET_RATE: &[Handler] = &[argument("rate", "rate", Form::Packets)];
const BANDWIDTH: &[Handler] = &[argument("rate", "rate", Form::Bandwidth)];
const COLOUR: &[Handler] = &[argument("color", "colour", Form::Integer(0, 255))];
const DSCP: &[Handler] = &[argument("dscp", "dscp", Form::Integer(0, 63))];
const BAD: &[Handler] = &[reads("drops", What::Output("bad"))];
const EXPIRED: &[Handler] = &[reads("drops", What::Output("expired"))];
const TCP: &[Handler] = &[reads("port", What::Address), reads("filename", What::Address)];

/// The handlers that a class has beside those of all.
fn own(class: &str) -> &'static [Handler] {
    match class {
        "Counter" | "CounterMP" => COUNTER,
        "AverageCounter" | "AverageCounterMP" => AVERAGE,
        "Queue" | "SimpleQueue" | "ThreadSafeQueue" | "NotifierQueue" | "MSQueue"
        | "MixedQueue" | "FrontDropQueue" => QUEUE,
        "Discard" | "FromDevice" | "PollDevice" | "FromDPDKDevice" | "FromNetmapDevice"
        | "FromOcteon" | "MQFromDevice" => COUNTED,
        "RatedSource" => RATED,
        "InfiniteSource" => INFINITE,
        "Switch" => SWITCH,
        "Shaper" | "RatedSplitter" => PACKET_RATE,
        "BandwidthShaper" | "BandwidthRatedSplitter" => BANDWIDTH,
        "RandomSample" => SAMPLE,
        "Paint" | "CheckPaint" => COLOUR,
        "SetIPDSCP" => DSCP,
        "CheckIPHeader" | "CheckIPHeader2" | "CheckTCPHeader" | "CheckUDPHeader"
        | "CheckICMPHeader" => BAD,
        "DecIPTTL" => EXPIRED,
        "ARPQuerier" | "ARPQuerier2" => ARP,
        "StaticIPLookup" | "LinearIPLookup" | "RadixIPLookup" | "DirectIPLookup"
        | "RangeIPLookup" | "SortedIPLookup" | "LookupIPRoute" | "LookupIPRouteMP"
        | "LookupIPRoute2" => TABLE,
        "ControlSocket" => TCP,
        _ => &[],
    }
}

/// All handlers of a class.
pub fn of_class(class: &str) -> impl Iterator<Item = &'static Handler> + use<> {
    own(class).iter().chain(COMMON)
}

impl Handler {
    /// `r`, `w` or both, and `+` if it is read with an argument.
    pub fn access(&self) -> String {
        let signs = [(self.reads, "r"), (self.writes, "w"), (self.what == What::Lookup, "+")];
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
        for class in ["Counter", "Queue", "RatedSource", "StaticIPLookup", "ARPQuerier"] {
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
