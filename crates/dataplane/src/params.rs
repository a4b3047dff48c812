//! Arguments of steps: the parameters that a step declares, and values checked by them.
//!
//! A graph gives arguments to a step by name, as in `{ "ttl-floor", as = "strict", floor = 10 }`. Each kind
//! of value is written as [`Arg`] is displayed, so that a graph can be printed and read again.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;

use crate::words::suggestion;

/// A value in a configuration, before its parameter is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// `true` or `false`.
    Flag(bool),
    /// Any number.
    Number(f64),
    /// Text.
    Text(String),
    /// A list of values.
    List(Vec<Given>),
    /// The name of a type that no parameter has.
    Other(&'static str),
}

/// Type and value, for error messages.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(value) => write!(f, "boolean {value}"),
            Self::Number(value) => write!(f, "number {value}"),
            Self::Text(text) => write!(f, "string \"{text}\""),
            Self::List(list) => write!(f, "a list of {}", list.len()),
            Self::Other(name) => write!(f, "a {name}"),
        }
    }
}

/// Packets or bits in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Bits of frames, without FCS.
    Bits(u64),
    /// Packets.
    Packets(u64),
}

const RATE: [(&str, u64); 4] = [("g", 1_000_000_000), ("m", 1_000_000), ("k", 1000), ("", 1)];

impl Rate {
    /// Reads `10mbit` or `500pps`.
    pub fn read(text: &str) -> Option<Self> {
        let (number, made): (_, fn(u64) -> Self) = match text.strip_suffix("bit") {
            Some(number) => (number, Self::Bits),
            None => (text.strip_suffix("pps")?, Self::Packets),
        };
        scaled(number, &RATE).filter(|&rate| rate > 0).map(made)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, what) = match *self {
            Self::Bits(rate) => (rate, "bit"),
            Self::Packets(rate) => (rate, "pps"),
        };
        let (number, unit) = in_largest(rate, &RATE);
        write!(f, "{number}{unit}{what}")
    }
}

/// Units of durations, in microseconds.
const TIMES: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("min", 60_000_000), ("ms", 1000), ("us", 1), ("s", 1_000_000)];

/// Parses a whole number followed by the first matching unit.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, scale) =
        units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)))?;
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// The number in the largest unit in which it is whole.
fn in_largest<'a>(number: u64, units: &[(&'a str, u64)]) -> (u64, &'a str) {
    let whole = units.iter().filter(|(_, scale)| number.is_multiple_of(*scale));
    let (unit, scale) = whole.max_by_key(|(_, scale)| *scale).copied().unwrap_or(("", 1));
    (number / scale, unit)
}

/// A language of texts.
#[derive(Debug)]
pub struct Grammar {
    /// The expected text, for error messages.
    pub expected: &'static str,
    /// Returns the reason for which a text is none of the language.
    pub check: fn(&str) -> Result<(), String>,
}

/// Grammars are told apart by the texts that they expect.
impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        self.expected == other.expected
    }
}

impl Eq for Grammar {}

/// The type of a parameter, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Integer(RangeInclusive<i64>),
    /// `true` or `false`.
    Flag,
    /// Any text.
    Text,
    /// A time, written with its unit.
    Duration(RangeInclusive<Duration>),
    /// A rate, written with its unit.
    Rate,
    /// A list of texts.
    Texts,
    /// A list of IPv4 and IPv6 prefixes.
    Prefixes,
    /// One of these words.
    Word(&'static [&'static str]),
    /// The name of a port of the router.
    Port,
    /// Names of ports of the router.
    Ports,
    /// A text of this language.
    Parsed(&'static Grammar),
    /// Texts of this language.
    ParsedList(&'static Grammar),
}

impl Kind {
    /// Returns the reason why a text does not fit, if there is more to say than the expected kind.
    fn refusal(&self, given: &Given) -> Option<String> {
        match self {
            Self::Parsed(grammar) | Self::ParsedList(grammar) => {
                texts(given)?.iter().find_map(|text| (grammar.check)(text).err())
            }
            _ => None,
        }
    }

    /// The typed value; `None` if the given one does not fit.
    fn read(&self, given: &Given) -> Option<Arg> {
        match (self, given) {
            (Self::Integer(range), Given::Number(number)) => {
                let whole = *number as i64;
                (whole as f64 == *number && range.contains(&whole)).then_some(Arg::Integer(whole))
            }
            (Self::Flag, Given::Flag(flag)) => Some(Arg::Flag(*flag)),
            (Self::Text | Self::Port, Given::Text(text)) => Some(Arg::Text(text.clone())),
            (Self::Parsed(grammar), Given::Text(text)) => {
                (grammar.check)(text).ok().map(|()| Arg::Text(text.clone()))
            }
            (Self::ParsedList(grammar), given) => {
                let texts = texts(given)?;
                texts.iter().all(|text| (grammar.check)(text).is_ok()).then_some(Arg::Texts(texts))
            }
            (Self::Duration(range), Given::Text(text)) => {
                let time = scaled(text, &TIMES).map(Duration::from_micros);
                time.filter(|time| range.contains(time)).map(Arg::Duration)
            }
            (Self::Rate, Given::Text(text)) => Rate::read(text).map(Arg::Rate),
            (Self::Texts | Self::Ports, given) => texts(given).map(Arg::Texts),
            (Self::Prefixes, given) => {
                let read = |text: String| text.parse::<IpNet>().ok().map(|net| net.trunc());
                let nets: Option<_> = texts(given)?.into_iter().map(read).collect();
                nets.map(Arg::Prefixes)
            }
            (Self::Word(known), Given::Text(text)) => {
                known.iter().find(|word| *word == text).map(|word| Arg::Word(word))
            }
            _ => None,
        }
    }
}

/// One text or a list of texts.
fn texts(given: &Given) -> Option<Vec<String>> {
    let text = |given: &Given| match given {
        Given::Text(text) => Some(text.clone()),
        _ => None,
    };
    match given {
        Given::List(list) => list.iter().map(text).collect(),
        one => Some(vec![text(one)?]),
    }
}

/// The expected value, for error messages.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(range) => {
                write!(f, "a whole number from {} to {}", range.start(), range.end())
            }
            Self::Flag => f.write_str("true or false"),
            Self::Text => f.write_str("text"),
            Self::Duration(range) => {
                let [from, to] = [range.start(), range.end()].map(|&time| Arg::Duration(time));
                write!(f, "a time from {from} to {to}")
            }
            Self::Rate => f.write_str("a rate such as \"10mbit\" or \"500kpps\""),
            Self::Texts => f.write_str("a list of texts"),
            Self::Port => f.write_str("a port's name"),
            Self::Ports => f.write_str("a list of ports' names"),
            Self::Parsed(grammar) => f.write_str(grammar.expected),
            Self::ParsedList(grammar) => write!(f, "a list, each {}", grammar.expected),
            Self::Prefixes => f.write_str("a list of prefixes such as \"10.0.0.0/8\""),
            Self::Word(known) => {
                let known: Vec<_> = known.iter().map(|word| format!("\"{word}\"")).collect();
                f.write_str(&known.join(" or "))
            }
        }
    }
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// Of [`Kind::Integer`].
    Integer(i64),
    /// Of [`Kind::Flag`].
    Flag(bool),
    /// Of [`Kind::Text`].
    Text(String),
    /// Of [`Kind::Duration`], in whole microseconds.
    Duration(Duration),
    /// Of [`Kind::Rate`].
    Rate(Rate),
    /// Of [`Kind::Texts`].
    Texts(Vec<String>),
    /// Of [`Kind::Prefixes`], without host bits.
    Prefixes(Vec<IpNet>),
    /// Of [`Kind::Word`].
    Word(&'static str),
}

impl Arg {
    /// The value as a graph gives it.
    pub fn given(&self) -> Given {
        let texts =
            |texts: &mut dyn Iterator<Item = String>| Given::List(texts.map(Given::Text).collect());
        match self {
            Self::Integer(number) => Given::Number(*number as f64),
            Self::Flag(flag) => Given::Flag(*flag),
            Self::Text(text) => Given::Text(text.clone()),
            Self::Word(word) => Given::Text((*word).to_owned()),
            Self::Texts(list) => texts(&mut list.iter().cloned()),
            Self::Prefixes(list) => texts(&mut list.iter().map(ToString::to_string)),
            // Written with their units, in quotes.
            Self::Duration(_) | Self::Rate(_) => {
                Given::Text(self.to_string().trim_matches('"').to_owned())
            }
        }
    }
}

/// As a configuration in Lua writes it.
impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: Vec<String>| match &items[..] {
            [] => f.write_str("{}"),
            items => write!(f, "{{ {} }}", items.join(", ")),
        };
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Duration(time) => {
                let (number, unit) = in_largest(time.as_micros() as u64, &TIMES);
                write!(f, "\"{number}{unit}\"")
            }
            Self::Rate(rate) => write!(f, "\"{rate}\""),
            Self::Texts(texts) => list(f, texts.iter().map(|text| quoted(text)).collect()),
            Self::Prefixes(nets) => list(f, nets.iter().map(|net| format!("\"{net}\"")).collect()),
            Self::Word(word) => write!(f, "\"{word}\""),
        }
    }
}

/// Text as a string of Lua.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_ascii_control() => {
                quoted += &format!("\\{:03}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// A parameter that a step declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    name: &'static str,
    kind: Kind,
    default: Option<Arg>,
    doc: &'static str,
}

impl Param {
    /// A required parameter; `doc` explains it in one line.
    pub fn new(name: &'static str, kind: Kind, doc: &'static str) -> Self {
        Self { name, kind, default: None, doc }
    }

    /// The value of a graph that gives none.
    pub fn or(mut self, default: Arg) -> Self {
        self.default = Some(default);
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns true if a graph must give a value.
    pub fn is_required(&self) -> bool {
        self.default.is_none()
    }
}

/// The arguments of a step, by name: those that a graph gives, and the defaults of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    all: BTreeMap<&'static str, Arg>,
    /// The names that were given.
    given: Vec<&'static str>,
}

impl Args {
    /// Checks the arguments that a graph gives.
    ///
    /// # Errors
    /// Everything that is unknown, missing or does not fit: the argument's name and a message that begins
    /// with it.
    pub fn read(
        params: &[Param],
        given: &BTreeMap<String, Given>,
    ) -> Result<Self, Vec<(String, String)>> {
        let (mut args, mut wrong) = (Self::default(), Vec::new());
        let known: Vec<&str> = params.iter().map(|param| param.name).collect();
        for name in given.keys().filter(|name| !known.contains(&name.as_str())) {
            let message = match known.is_empty() {
                true => format!("{name}: it has no parameters"),
                false => format!("{name}: unknown{}", suggestion(name, "known", &known)),
            };
            wrong.push((name.clone(), message));
        }
        for param in params {
            let (name, kind) = (param.name, &param.kind);
            match given.get(name) {
                None => match &param.default {
                    Some(default) => drop(args.all.insert(name, default.clone())),
                    None => {
                        let message = format!("{name}: missing; {}, {kind}", param.doc);
                        wrong.push((name.to_owned(), message));
                    }
                },
                Some(value) => match kind.read(value) {
                    Some(arg) => {
                        args.all.insert(name, arg);
                        args.given.push(name);
                    }
                    None => {
                        let why = kind.refusal(value).map(|why| format!(": {why}"));
                        let why = why.unwrap_or_default();
                        let message = format!("{name}: expected {kind}, got {value}{why}");
                        wrong.push((name.to_owned(), message));
                    }
                },
            }
        }
        if wrong.is_empty() { Ok(args) } else { Err(wrong) }
    }

    /// The arguments that the graph gives itself, in the order of the declaration.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &Arg)> {
        self.given.iter().filter_map(|&name| Some((name, self.all.get(name)?)))
    }

    /// An argument, if the step declares it.
    pub fn find(&self, name: &str) -> Option<&Arg> {
        self.all.get(name)
    }

    /// An argument.
    ///
    /// # Panics
    /// The step does not declare it.
    #[track_caller]
    pub fn get(&self, name: &str) -> &Arg {
        self.all.get(name).unwrap_or_else(|| panic!("parameter \"{name}\" is not declared"))
    }

    /// Returns the names of ports in an argument of this parameter.
    pub(crate) fn ports(&self, param: &Param) -> &[String] {
        match (&param.kind, self.all.get(param.name)) {
            (Kind::Port, Some(Arg::Text(name))) => std::slice::from_ref(name),
            (Kind::Ports, Some(Arg::Texts(names))) => names,
            _ => &[],
        }
    }

    /// The value of a switch.
    ///
    /// # Panics
    /// The step does not declare such a parameter.
    #[track_caller]
    pub fn flag(&self, name: &str) -> bool {
        match self.get(name) {
            Arg::Flag(flag) => *flag,
            other => panic!("parameter \"{name}\" is {other}"),
        }
    }

    /// The value of a text.
    ///
    /// # Panics
    /// The step does not declare such a parameter.
    #[track_caller]
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Arg::Text(text) => text,
            other => panic!("parameter \"{name}\" is {other}"),
        }
    }

    /// The value of a list of texts.
    ///
    /// # Panics
    /// The step does not declare such a parameter.
    #[track_caller]
    pub fn texts(&self, name: &str) -> &[String] {
        match self.get(name) {
            Arg::Texts(texts) => texts,
            other => panic!("parameter \"{name}\" is {other}"),
        }
    }

    /// The value of a whole number.
    ///
    /// # Panics
    /// The step does not declare such a parameter.
    #[track_caller]
    pub fn integer(&self, name: &str) -> i64 {
        match self.get(name) {
            Arg::Integer(number) => *number,
            other => panic!("parameter \"{name}\" is {other}"),
        }
    }

    /// The value of a time.
    ///
    /// # Panics
    /// The step does not declare such a parameter.
    #[track_caller]
    pub fn duration(&self, name: &str) -> Duration {
        match self.get(name) {
            Arg::Duration(time) => *time,
            other => panic!("parameter \"{name}\" is {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Vec<Param> {
        let times = Duration::from_millis(1)..=Duration::from_secs(60);
        vec![
            Param::new("floor", Kind::Integer(-1..=255), "the least").or(Arg::Integer(5)),
            Param::new("on", Kind::Flag, "a switch").or(Arg::Flag(false)),
            Param::new("label", Kind::Text, "a text").or(Arg::Text("x".into())),
            Param::new("wait", Kind::Duration(times), "a time").or(Arg::Flag(false)),
            Param::new("rate", Kind::Rate, "its rate"),
            Param::new("names", Kind::Texts, "names").or(Arg::Texts(Vec::new())),
            Param::new("nets", Kind::Prefixes, "prefixes").or(Arg::Prefixes(Vec::new())),
            Param::new("mode", Kind::Word(&["open", "closed"]), "a word").or(Arg::Word("open")),
        ]
    }

    fn text(text: &str) -> Given {
        Given::Text(text.to_owned())
    }

    static EVEN: Grammar = Grammar {
        expected: "an even number",
        check: |text| match text.parse::<u8>() {
            Ok(number) if number % 2 == 0 => Ok(()),
            _ => Err("it is odd".to_owned()),
        },
    };

    #[test]
    fn texts_of_a_language_and_ports_are_told_from_others() {
        let params = [
            Param::new("even", Kind::Parsed(&EVEN), "x").or(Arg::Text("0".into())),
            Param::new("evens", Kind::ParsedList(&EVEN), "x").or(Arg::Texts(Vec::new())),
            Param::new("port", Kind::Port, "x").or(Arg::Text("a".into())),
            Param::new("ports", Kind::Ports, "x").or(Arg::Texts(Vec::new())),
        ];
        let list = |items: &[&str]| Given::List(items.iter().map(|item| text(item)).collect());
        let read = |given: &[(&str, Given)]| {
            let given = given.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            Args::read(&params, &given.collect())
        };
        let args =
            read(&[("even", text("2")), ("evens", list(&["4", "6"])), ("ports", list(&["b"]))]);
        let args = args.unwrap();
        assert_eq!((args.text("even"), args.texts("evens").len()), ("2", 2));
        let ports: Vec<_> = params.iter().flat_map(|param| args.ports(param)).collect();
        assert_eq!(ports, ["a", "b"]);
        let wrong = read(&[("even", text("3")), ("evens", list(&["2", "5"]))]).unwrap_err();
        assert_eq!(wrong[0].1, "even: expected an even number, got string \"3\": it is odd");
        assert_eq!(
            wrong[1].1,
            "evens: expected a list, each an even number, got a list of 2: it is odd"
        );
    }

    fn read(given: &[(&str, Given)]) -> Result<Args, Vec<(String, String)>> {
        let rate = ("rate", text("1pps"));
        let all = std::iter::once(&rate).chain(given);
        Args::read(
            &params(),
            &all.map(|(name, given)| ((*name).to_owned(), given.clone())).collect(),
        )
    }

    #[test]
    fn values_are_typed_and_written_as_they_were_given() {
        let list = |items: &[&str]| Given::List(items.iter().map(|item| text(item)).collect());
        for (name, given, written) in [
            ("floor", Given::Number(-1.0), "-1"),
            ("on", Given::Flag(true), "true"),
            ("label", text("a \"b\"\n\\1"), "\"a \\\"b\\\"\\010\\\\1\""),
            ("wait", text("1500us"), "\"1500us\""),
            ("wait", text("1000us"), "\"1ms\""),
            ("wait", text("60s"), "\"1min\""),
            ("rate", text("10mbit"), "\"10mbit\""),
            ("rate", text("1500pps"), "\"1500pps\""),
            ("rate", text("2000kpps"), "\"2mpps\""),
            ("names", list(&["a", "b"]), "{ \"a\", \"b\" }"),
            ("names", text("a"), "{ \"a\" }"),
            (
                "nets",
                list(&["10.1.2.3/8", "2001:db8::/32"]),
                "{ \"10.0.0.0/8\", \"2001:db8::/32\" }",
            ),
            ("nets", list(&[]), "{}"),
            ("mode", text("closed"), "\"closed\""),
        ] {
            let args = read(&[(name, given)]).unwrap();
            assert_eq!(args.get(name).to_string(), written, "{name}");
            assert!(args.given().any(|(given, _)| given == name));
        }
        let args = read(&[]).unwrap();
        assert_eq!((args.integer("floor"), args.given().count()), (5, 1));
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_does() {
        for (name, given, message) in [
            (
                "floor",
                Given::Number(256.0),
                "floor: expected a whole number from -1 to 255, got number 256",
            ),
            (
                "floor",
                Given::Number(1.5),
                "floor: expected a whole number from -1 to 255, got number 1.5",
            ),
            (
                "floor",
                Given::Number(f64::NAN),
                "floor: expected a whole number from -1 to 255, got number NaN",
            ),
            ("on", Given::Number(1.0), "on: expected true or false, got number 1"),
            (
                "wait",
                text("61s"),
                "wait: expected a time from \"1ms\" to \"1min\", got string \"61s\"",
            ),
            ("wait", text("5"), "wait: expected a time from \"1ms\" to \"1min\", got string \"5\""),
            (
                "rate",
                text("10"),
                "rate: expected a rate such as \"10mbit\" or \"500kpps\", got string \"10\"",
            ),
            (
                "rate",
                text("0bit"),
                "rate: expected a rate such as \"10mbit\" or \"500kpps\", got string \"0bit\"",
            ),
            (
                "rate",
                text("99999999999gbit"),
                "rate: expected a rate such as \"10mbit\" or \"500kpps\", got string \"99999999999gbit\"",
            ),
            (
                "names",
                Given::List(vec![Given::Flag(true)]),
                "names: expected a list of texts, got a list of 1",
            ),
            (
                "nets",
                text("10.0.0.0/33"),
                "nets: expected a list of prefixes such as \"10.0.0.0/8\", got string \"10.0.0.0/33\"",
            ),
            ("mode", text("ajar"), "mode: expected \"open\" or \"closed\", got string \"ajar\""),
            ("label", Given::Other("function"), "label: expected text, got a function"),
            (
                "flor",
                Given::Flag(true),
                "flor: unknown; did you mean \"floor\"? known: floor, on, label, wait, rate, names, nets, mode",
            ),
        ] {
            assert_eq!(
                read(&[(name, given)]).unwrap_err(),
                [(name.to_owned(), message.to_owned())]
            );
        }
        let missing = Args::read(&params(), &BTreeMap::new()).unwrap_err();
        let rate = "rate: missing; its rate, a rate such as \"10mbit\" or \"500kpps\"";
        assert_eq!(missing, [("rate".to_owned(), rate.to_owned())]);
        let none = Args::read(&[], &[("x".to_owned(), Given::Flag(true))].into()).unwrap_err();
        assert_eq!(none[0].1, "x: it has no parameters");
    }
}
