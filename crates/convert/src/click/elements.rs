//! Elements as steps: what each class becomes.

use super::arguments::{Arguments, number, unquoted};
use super::lua::Value;
use super::net::Net;

/// Facts about the packets at an input, which are known when the configuration is converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The place of the packets' data in their frames.
    pub(super) offset: i64,
    /// The place of their IP header, if an element has marked it.
    pub(super) network: Option<i64>,
}

/// A step in place of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: &'static str,
    pub(super) args: Vec<(&'static str, Value)>,
    /// Its outputs in the order of the element's outputs.
    pub(super) outputs: Vec<String>,
    /// Outputs whose packets are dropped.
    pub(super) dropped: Vec<&'static str>,
}

impl Step {
    fn new(kind: &'static str, args: Vec<(&'static str, Value)>, outputs: &[&str]) -> Self {
        let outputs = outputs.iter().map(|&output| output.to_owned()).collect();
        Self { kind, args, outputs, dropped: Vec::new() }
    }

    /// A step with outputs 0, 1, …
    fn numbered(kind: &'static str, mut args: Vec<(&'static str, Value)>, outputs: usize) -> Self {
        args.push(("outputs", Value::Number(outputs as i64)));
        let outputs = (0..outputs).map(|output| output.to_string()).collect();
        Self { kind, args, outputs, dropped: Vec::new() }
    }

    /// A step that moves the beginning of frames by so many bytes.
    pub(super) fn shift(bytes: i64) -> Self {
        let (kind, other) = if bytes > 0 { ("strip", "short") } else { ("unstrip", "full") };
        let args = vec![("bytes", Value::Number(bytes.abs()))];
        Self { dropped: vec![other], ..Self::new(kind, args, &["ok"]) }
    }
}

/// What an element becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Nothing: its packets go on by output 0.
    Nothing,
    /// Steps one behind the other, by their first outputs.
    Steps(Vec<Step>),
    /// Its packets are dropped.
    Drop,
    /// Its packets leave by this device.
    Send(String),
    /// All go on by output 0, copies of those of a colour by output 1.
    Copies(Step, Step),
}

/// Classes that hold facts or act on others; packets do not pass them.
pub(super) const WITHOUT_PACKETS: [&str; 12] = [
    "ControlSocket",
    "AddressInfo",
    "AlignmentInfo",
    "ScheduleInfo",
    "StaticThreadSched",
    "BalancedThreadSched",
    "ThreadSched",
    "DPDKInfo",
    "ErrorElement",
    "PortInfo",
    "ScheduleLinux",
    "NetmapInfo",
];

type Translated = Result<(Piece, State), String>;

/// Returns what an element becomes for packets in this state, and their state behind it.
pub(super) fn translate(net: &Net<'_>, element: usize, state: State) -> Translated {
    let one = |step: Step| Ok((Piece::Steps(vec![step]), state));
    let offset = || ("offset", Value::Number(state.offset));
    let outputs = net.outputs(element).max(1);
    match net.class(element) {
        "Null" | "PushNull" | "PullNull" | "Unqueue" | "Align" => Ok((Piece::Nothing, state)),
        "Tee" | "PullTee" if outputs == 1 => Ok((Piece::Nothing, state)),
        "Tee" | "PullTee" => {
            let count = Arguments::of(net, element, &[]);
            count.check(1)?;
            one(Step::numbered("tee", Vec::new(), outputs))
        }
        "RandomSample" => random_sample(net, element, state),
        "RatedSplitter" | "BandwidthRatedSplitter" => {
            let args = vec![("rate", Value::Text(rate(net, element)?))];
            one(Step::new("rated-splitter", args, &["ok", "others"]))
        }
        "Print" | "IPPrint" => print(net, element, state),
        "Shaper" | "BandwidthShaper" => shaper(net, element, state),
        "InfiniteSource" | "RatedSource" => source(net, element),
        "IPClassifier" => {
            let patterns = ("patterns", Value::List(net.element(element).arguments.clone()));
            let count = net.element(element).arguments.len();
            let outputs = (0..count).map(|output| output.to_string()).collect();
            one(Step {
                outputs,
                ..Step::new("ip-classifier", vec![patterns, network(state)?], &[])
            })
        }
        "IPFilter" => {
            let rules = ("rules", Value::List(net.element(element).arguments.clone()));
            let outputs = (0..outputs).map(|output| output.to_string()).collect();
            one(Step { outputs, ..Step::new("ip-filter", vec![rules, network(state)?], &[]) })
        }
        _ if net.is_queue(element) => queue(net, element, state),
        "Discard" | "Idle" => Ok((Piece::Drop, state)),
        _ if net.is_to_device(element) => Ok((Piece::Send(device(net, element)?), state)),
        "Counter" | "AverageCounter" | "CounterMP" | "AverageCounterMP" => {
            let arguments = Arguments::of(net, element, &["IGNORE"]);
            let needless = arguments.text(usize::MAX, "IGNORE").is_some();
            if needless || !arguments.all().is_empty() {
                return Err("its arguments are not supported yet; leave them out".to_owned());
            }
            one(Step::new("counter", Vec::new(), &["next"]))
        }
        "Paint" => {
            let arguments = Arguments::of(net, element, &["COLOR", "ANNO"]);
            one(Step::new("paint", vec![("colour", colour(&arguments)?)], &["next"]))
        }
        "CheckPaint" => {
            let arguments = Arguments::of(net, element, &["COLOR", "ANNO"]);
            one(Step::new("check-paint", vec![("colour", colour(&arguments)?)], &["ok", "others"]))
        }
        "PaintTee" => {
            let arguments = Arguments::of(net, element, &["COLOR", "ANNO"]);
            let tee = Step::numbered("tee", Vec::new(), 2);
            let check =
                Step::new("check-paint", vec![("colour", colour(&arguments)?)], &["ok", "others"]);
            Ok((Piece::Copies(tee, check), state))
        }
        "PaintSwitch" => {
            let arguments = Arguments::of(net, element, &["ANNO"]);
            no_annotation(&arguments, 0)?;
            one(Step::numbered("paint-switch", Vec::new(), outputs))
        }
        "Switch" | "StaticSwitch" => {
            let to = Arguments::of(net, element, &["OUTPUT"]);
            to.check(1)?;
            let to = to.number(0, "OUTPUT")?.unwrap_or(0).max(-1);
            one(Step::numbered("switch", vec![("to", Value::Number(to))], outputs))
        }
        "HashSwitch" => {
            let arguments = Arguments::of(net, element, &["OFFSET", "LENGTH"]);
            arguments.check(2)?;
            let at = arguments.needed_number(0, "OFFSET")? + state.offset;
            let length = arguments.needed_number(1, "LENGTH")?;
            let args = vec![("offset", Value::Number(at)), ("length", Value::Number(length))];
            one(Step::numbered("hash-switch", args, outputs))
        }
        "RandomSwitch" => {
            plain(net, element, Step::numbered("random-switch", Vec::new(), outputs), state)
        }
        "RoundRobinSwitch" => {
            plain(net, element, Step::numbered("round-robin-switch", Vec::new(), outputs), state)
        }
        "Strip" => {
            let bytes = Arguments::of(net, element, &["LENGTH"]);
            bytes.check(1)?;
            Ok((Piece::Nothing, strip(state, bytes.needed_number(0, "LENGTH")?)?))
        }
        "StripToNetworkHeader" => {
            let network = state.network.ok_or_else(no_header)?;
            Ok((Piece::Nothing, State { offset: network, ..state }))
        }
        "Unstrip" => {
            let bytes = Arguments::of(net, element, &["LENGTH"]);
            bytes.check(1)?;
            Ok(unstrip(state, bytes.needed_number(0, "LENGTH")?))
        }
        "MarkIPHeader" => {
            let at = Arguments::of(net, element, &["OFFSET"]);
            at.check(1)?;
            let at = at.number(0, "OFFSET")?.unwrap_or(0) + state.offset;
            Ok((Piece::Nothing, State { network: Some(at), ..state }))
        }
        "EtherEncap" => ether_encap(net, element, state),
        "EtherMirror" => one(Step::new("ether-mirror", vec![offset()], &["next"])),
        "EtherRewrite" => {
            let arguments = Arguments::of(net, element, &["SRC", "DST"]);
            arguments.check(2)?;
            let args = vec![
                ("source", Value::Text(arguments.mac(0, "SRC")?)),
                ("destination", Value::Text(arguments.mac(1, "DST")?)),
                offset(),
            ];
            one(Step::new("ether-rewrite", args, &["next"]))
        }
        "HostEtherFilter" => host_ether_filter(net, element, state),
        "Classifier" => classifier(net, element, state),
        "CheckLength" => {
            let arguments = Arguments::of(net, element, &["LENGTH"]);
            arguments.check(1)?;
            let args =
                vec![("length", Value::Number(arguments.needed_number(0, "LENGTH")?)), offset()];
            one(Step::new("check-length", args, &["ok", "long"]))
        }
        "DropBroadcasts" => one(Step::new("drop-broadcasts", Vec::new(), &["ok"])),
        "CheckIPHeader" | "CheckIPHeader2" => check_ip_header(net, element, state),
        "CheckTCPHeader" => l4(net, element, state, "tcp"),
        "CheckUDPHeader" => l4(net, element, state, "udp"),
        "CheckICMPHeader" => l4(net, element, state, "icmp"),
        "DecIPTTL" => {
            Arguments::of(net, element, &[]).check(0)?;
            let args = vec![network(state)?];
            one(Step::new("dec-ip-ttl", args, &["ok", "expired"]))
        }
        "SetIPDSCP" => {
            let dscp = Arguments::of(net, element, &["DSCP"]);
            dscp.check(1)?;
            let dscp = Value::Number(dscp.needed_number(0, "DSCP")?);
            one(Step::new("set-ip-dscp", vec![("dscp", dscp), network(state)?], &["next"]))
        }
        "SetIPChecksum" => one(Step::new("set-ip-checksum", vec![network(state)?], &["next"])),
        "GetIPAddress" => get_ip_address(net, element, state),
        class if LOOKUPS.contains(&class) => lookup(net, element, state),
        class => Err(format!(
            "class {class} is not supported yet here; docs/click.md lists the classes that are"
        )),
    }
}

/// Classes that look up a destination.
pub(super) const LOOKUPS: [&str; 9] = [
    "StaticIPLookup",
    "LinearIPLookup",
    "RadixIPLookup",
    "DirectIPLookup",
    "RangeIPLookup",
    "SortedIPLookup",
    "LookupIPRoute",
    "LookupIPRouteMP",
    "LookupIPRoute2",
];

/// A step without arguments of its own.
fn plain(net: &Net<'_>, element: usize, step: Step, state: State) -> Translated {
    Arguments::of(net, element, &[]).check(0)?;
    Ok((Piece::Steps(vec![step]), state))
}

fn queue(net: &Net<'_>, element: usize, state: State) -> Translated {
    if net.leads_to_device(element) {
        return Ok((Piece::Nothing, state));
    }
    let arguments = Arguments::of(net, element, &["CAPACITY"]);
    arguments.check(1)?;
    let capacity = arguments.number(0, "CAPACITY")?.unwrap_or(1000);
    let mut args = vec![("capacity", Value::Number(capacity))];
    if let Some(shaper) = net.shaper_behind(element) {
        args.push(("rate", Value::Text(rate(net, shaper)?)));
    }
    Ok((Piece::Steps(vec![Step::new("queue", args, &["next"])]), state))
}

/// Packets picked with a probability.
fn random_sample(net: &Net<'_>, element: usize, state: State) -> Translated {
    let arguments = Arguments::of(net, element, &["P", "SAMPLE", "DROP", "ACTIVE"]);
    arguments.check(1)?;
    let picked = arguments.text(0, "P").or(arguments.text(usize::MAX, "SAMPLE"));
    let picked = match (picked, arguments.text(usize::MAX, "DROP")) {
        (Some(text), _) => probability(text)?,
        (None, Some(text)) => 1.0 - probability(text)?,
        _ => return Err("argument P missing".to_owned()),
    };
    let is_off = arguments.flag(usize::MAX, "ACTIVE")? == Some(false);
    let picked = if is_off { 1.0 } else { picked };
    let args = vec![("per_million", Value::Number((picked * 1e6).round() as i64))];
    Ok((Piece::Steps(vec![Step::new("random-sample", args, &["ok", "others"])]), state))
}

/// Reads `0.25` or `25%`.
fn probability(text: &str) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |text| (text, 100.0));
    let share = number.parse::<f64>().ok().map(|number| number / whole);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("probability \"{text}\": expected a number from 0 to 1"))
}

/// Packets in the log: their first bytes, whatever else is asked for.
fn print(net: &Net<'_>, element: usize, state: State) -> Translated {
    let keywords = [
        "LABEL",
        "MAXLENGTH",
        "LENGTH",
        "NBYTES",
        "CONTENTS",
        "TIMESTAMP",
        "PRINTANNO",
        "CPU",
        "HEADROOM",
        "ACTIVE",
        "ID",
        "TTL",
        "TOS",
        "SWAP",
        "OUTFILE",
        "PAYLOAD",
        "BCONTENTS",
        "AGGREGATE",
        "PAINT",
    ];
    let arguments = Arguments::of(net, element, &keywords);
    arguments.check(2)?;
    if arguments.flag(usize::MAX, "ACTIVE")? == Some(false) {
        return Ok((Piece::Nothing, state));
    }
    let name = &net.element(element).name;
    let label = arguments.text(0, "LABEL").map_or_else(|| name.clone(), unquoted);
    let length = arguments.number(1, "MAXLENGTH").ok().flatten().unwrap_or(24);
    let length = if length < 0 { 64 } else { length.min(64) };
    let at = if net.class(element) == "IPPrint" { state.network } else { None };
    let args = vec![
        ("label", Value::Text(label)),
        ("length", Value::Number(length)),
        ("offset", Value::Number(at.unwrap_or(state.offset))),
    ];
    Ok((Piece::Steps(vec![Step::new("print", args, &["next"])]), state))
}

/// The rate of the queue in front of it, see [`queue`].
fn shaper(net: &Net<'_>, element: usize, state: State) -> Translated {
    if net.outputs(element) > 1 {
        return Err("its second output is not supported yet".to_owned());
    }
    if !net.is_behind_queue(element) {
        return Err(
            "a shaper is supported behind a queue only, with one path between them".to_owned()
        );
    }
    Ok((Piece::Nothing, state))
}

/// The rate of a shaper, as steps read it.
fn rate(net: &Net<'_>, element: usize) -> Result<String, String> {
    let arguments = Arguments::of(net, element, &["RATE"]);
    arguments.check(1)?;
    let text = arguments.text(0, "RATE").ok_or("argument RATE missing")?;
    let wrong =
        || format!("RATE \"{text}\": expected a rate such as 1000 or, of bandwidth, 10Mbps");
    let scope = net.scope(element);
    if matches!(net.class(element), "Shaper" | "RatedSplitter") {
        let rate = ::click::kinds::integer(0..=u64::MAX)(text, &scope);
        return rate.map(|rate| format!("{rate}pps")).map_err(|_| wrong());
    }
    let bytes = ::click::kinds::bandwidth(text, &scope).map_err(|_| wrong())?;
    if bytes > 0 { Ok(format!("{}bit", 8 * bytes)) } else { Err(wrong()) }
}

/// An element that makes packets.
fn source(net: &Net<'_>, element: usize) -> Translated {
    let is_rated = net.class(element) == "RatedSource";
    let keywords =
        ["DATA", "LENGTH", "RATE", "BANDWIDTH", "LIMIT", "BURST", "ACTIVE", "STOP", "DATASIZE"];
    let arguments = Arguments::of(net, element, &keywords);
    arguments.check(if is_rated { 4 } else { 5 })?;
    for keyword in ["BANDWIDTH", "DATASIZE"] {
        if arguments.text(usize::MAX, keyword).is_some() {
            return Err(format!("{keyword} is not supported yet"));
        }
    }
    let mut data = match arguments.text(0, "DATA") {
        Some(text) => ::click::text::unquote(text),
        None => b"Random bullshit in a packet, at least 64 bytes long. Well, now it is.".to_vec(),
    };
    if let Some(length) = arguments.number(usize::MAX, "LENGTH")? {
        data.resize(usize::try_from(length).unwrap_or(0).min(1518), 0);
    }
    if data.is_empty() || data.len() > 1518 {
        return Err(format!("DATA has {} bytes; expected 1 to 1518", data.len()));
    }
    let (limit, active) = if is_rated { (2, 3) } else { (1, 3) };
    let limit = arguments.number(limit, "LIMIT")?.unwrap_or(-1).max(-1);
    let frame: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut args = vec![("frame", Value::Text(frame)), ("limit", Value::Number(limit))];
    if arguments.flag(active, "ACTIVE")? == Some(false) {
        args.push(("active", Value::Flag(false)));
    }
    if is_rated {
        let rate = arguments.number(1, "RATE")?.unwrap_or(10);
        if rate < 1 {
            return Err(format!("RATE {rate}: expected packets per second"));
        }
        args.push(("rate", Value::Text(format!("{rate}pps"))));
    }
    Ok((Piece::Steps(vec![Step::new("packets", args, &["next"])]), State::default()))
}

/// The device of an element: the kernel's name of an interface, or a PCI address.
pub(super) fn device(net: &Net<'_>, element: usize) -> Result<String, String> {
    let Some(first) = net.element(element).arguments.first() else {
        return Err("argument DEVNAME missing".to_owned());
    };
    let first = first.strip_prefix("DEVNAME ").or(first.strip_prefix("PORT ")).unwrap_or(first);
    let name = unquoted(first);
    let name = match name.strip_prefix("netmap:") {
        // A queue of the device follows its name.
        Some(name) => name.rsplit_once('-').map_or(name, |(name, _)| name).to_owned(),
        None => name,
    };
    if name.is_empty() || name.chars().all(|digit| digit.is_ascii_digit()) {
        return Err(format!(
            "device \"{name}\": devices have names here, not numbers; write that of a kernel interface (eth0) or a \
             PCI address (0000:03:00.0)"
        ));
    }
    Ok(name)
}

fn colour(arguments: &Arguments<'_>) -> Result<Value, String> {
    no_annotation(arguments, 1)?;
    let colour = arguments.needed_number(0, "COLOR")?;
    if !(0..=255).contains(&colour) {
        return Err(format!("COLOR {colour}: expected a number from 0 to 255"));
    }
    Ok(Value::Number(colour))
}

/// Refuses other annotations than PAINT behind so many arguments.
fn no_annotation(arguments: &Arguments<'_>, index: usize) -> Result<(), String> {
    arguments.check(index + 1)?;
    match arguments.text(index, "ANNO") {
        None | Some("PAINT") => Ok(()),
        Some(other) => Err(format!("ANNO {other}: only PAINT is supported")),
    }
}

fn no_header() -> String {
    "packets have no IP header mark here; put CheckIPHeader or MarkIPHeader in front of it"
        .to_owned()
}

/// The argument `offset` of a step that takes IP packets.
fn network(state: State) -> Result<(&'static str, Value), String> {
    state.network.map(|at| ("offset", Value::Number(at))).ok_or_else(no_header)
}

fn strip(state: State, bytes: i64) -> Result<State, String> {
    if bytes < 0 {
        return Err(format!("LENGTH {bytes}: expected a number of bytes"));
    }
    Ok(State { offset: state.offset + bytes, ..state })
}

/// Moves the data's beginning back: into what was stripped, and beyond by a step.
fn unstrip(state: State, bytes: i64) -> (Piece, State) {
    let missing = bytes - state.offset;
    if missing <= 0 {
        return (Piece::Nothing, State { offset: state.offset - bytes, ..state });
    }
    let network = state.network.map(|at| at + missing);
    (Piece::Steps(vec![Step::shift(-missing)]), State { offset: 0, network })
}

fn ether_encap(net: &Net<'_>, element: usize, state: State) -> Translated {
    let arguments = Arguments::of(net, element, &["ETHERTYPE", "SRC", "DST"]);
    arguments.check(3)?;
    let ethertype = arguments.text(0, "ETHERTYPE").ok_or("argument ETHERTYPE missing")?;
    // Click reads this number in hexadecimal or decimal.
    let ethertype = Value::Number(number(ethertype, "ETHERTYPE", &net.scope(element))?);
    let (source, destination) = (arguments.mac(1, "SRC")?, arguments.mac(2, "DST")?);
    let (piece, behind) = unstrip(state, 14);
    let mut steps = match piece {
        Piece::Steps(steps) => steps,
        _ => Vec::new(),
    };
    let args = vec![
        ("ethertype", ethertype),
        ("source", Value::Text(source)),
        ("destination", Value::Text(destination)),
        ("offset", Value::Number(behind.offset + 14)),
    ];
    steps.push(Step::new("ether-encap", args, &["next"]));
    Ok((Piece::Steps(steps), behind))
}

fn host_ether_filter(net: &Net<'_>, element: usize, state: State) -> Translated {
    let keywords = ["ETHER", "DROP_OWN", "DROP_OTHER", "OFFSET"];
    let arguments = Arguments::of(net, element, &keywords);
    arguments.check(3)?;
    if arguments.flag(2, "DROP_OTHER")? == Some(false) {
        return Err("DROP_OTHER false is not supported yet".to_owned());
    }
    let at = state.offset + arguments.number(usize::MAX, "OFFSET")?.unwrap_or(0);
    let args = vec![
        ("address", Value::Text(arguments.mac(0, "ETHER")?)),
        ("drop_own", Value::Flag(arguments.flag(1, "DROP_OWN")?.unwrap_or(false))),
        ("offset", Value::Number(at)),
    ];
    Ok((Piece::Steps(vec![Step::new("host-ether-filter", args, &["ok", "others"])]), state))
}

fn classifier(net: &Net<'_>, element: usize, state: State) -> Translated {
    let patterns = net.element(element).arguments.clone();
    if patterns.is_empty() {
        return Err("patterns missing, one for each output".to_owned());
    }
    let outputs = (0..patterns.len()).map(|output| output.to_string()).collect();
    let args = vec![("patterns", Value::List(patterns)), ("offset", Value::Number(state.offset))];
    let step = Step { outputs, ..Step::new("classifier", args, &[]) };
    Ok((Piece::Steps(vec![step]), state))
}

const CHECK_KEYWORDS: [&str; 7] =
    ["OFFSET", "INTERFACES", "BADSRC", "GOODDST", "CHECKSUM", "VERBOSE", "DETAILS"];

fn check_ip_header(net: &Net<'_>, element: usize, state: State) -> Translated {
    let arguments = Arguments::of(net, element, &CHECK_KEYWORDS);
    arguments.check(2)?;
    let scope = net.scope(element);
    // The first argument was a list of bad sources once.
    let (at, list) = match arguments.all() {
        [] => (0, None),
        [one] if one.chars().all(|c| c.is_ascii_digit()) => (number(one, "OFFSET", &scope)?, None),
        [list] => (0, Some(list.as_str())),
        [list, at, ..] => (number(at, "OFFSET", &scope)?, Some(list.as_str())),
    };
    let at = state.offset + arguments.number(usize::MAX, "OFFSET")?.unwrap_or(at);
    let mut bad = Vec::new();
    if let Some(interfaces) = arguments.text(usize::MAX, "INTERFACES") {
        bad = vec!["0.0.0.0/32".to_owned(), "255.255.255.255/32".to_owned()];
        for word in ::click::text::split_words(interfaces) {
            let interface = super::arguments::net(word, &scope)?;
            bad.push(format!("{}/32", interface.broadcast()));
        }
    }
    for list in [list, arguments.text(usize::MAX, "BADSRC")].into_iter().flatten() {
        for word in ::click::text::split_words(list) {
            bad.push(format!("{}/32", super::arguments::address(word, &scope)?));
        }
    }
    let is_two = net.class(element) == "CheckIPHeader2";
    let checksum = arguments.flag(usize::MAX, "CHECKSUM")?.unwrap_or(!is_two);
    let mut args = vec![("offset", Value::Number(at))];
    if !bad.is_empty() {
        args.push(("bad_sources", Value::List(bad)));
    }
    if !checksum {
        args.push(("checksum", Value::Flag(false)));
    }
    let step = Step::new("check-ip-header", args, &["ok", "bad"]);
    Ok((Piece::Steps(vec![step]), State { network: Some(at), ..state }))
}

fn l4(net: &Net<'_>, element: usize, state: State, protocol: &str) -> Translated {
    let arguments = Arguments::of(net, element, &["VERBOSE", "DETAILS"]);
    arguments.check(0)?;
    let args = vec![("protocol", Value::text(protocol)), network(state)?];
    Ok((Piece::Steps(vec![Step::new("check-l4-header", args, &["ok", "bad"])]), state))
}

/// The destination annotation is always the header's destination, which lookups read.
fn get_ip_address(net: &Net<'_>, element: usize, state: State) -> Translated {
    let arguments = Arguments::of(net, element, &["OFFSET", "ANNO", "IP"]);
    arguments.check(1)?;
    let at = state.offset + arguments.needed_number(0, "OFFSET")?;
    if state.network.is_none_or(|network| network + 16 != at) {
        return Err("only the destination of a marked IP header is supported".to_owned());
    }
    Ok((Piece::Nothing, state))
}

/// A route of a lookup: its prefix, its gateway, its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) prefix: ipnet::Ipv4Net,
    pub(super) gateway: Option<std::net::Ipv4Addr>,
    pub(super) output: usize,
}

/// The routes of a lookup. Of equal prefixes the last one counts.
pub(super) fn routes(net: &Net<'_>, element: usize) -> Result<Vec<Route>, String> {
    let mut routes: Vec<Route> = Vec::new();
    let scope = net.scope(element);
    for argument in &net.element(element).arguments {
        let words = ::click::text::split_words(argument);
        let form = || format!("route \"{argument}\": expected ADDRESS/MASK [GATEWAY] OUTPUT");
        let (prefix, gateway, output) = match words[..] {
            [prefix, output] => (prefix, None, output),
            [prefix, gateway, output] => (prefix, Some(gateway), output),
            _ => return Err(form()),
        };
        let prefix = super::arguments::net(prefix, &scope)
            .map_err(|why| format!("route \"{argument}\": {why}"))?
            .trunc();
        let gateway = match gateway {
            None | Some("-") => None,
            Some(gateway) => Some(
                super::arguments::address(gateway, &scope)
                    .map_err(|why| format!("route \"{argument}\": {why}"))?,
            ),
        };
        let output = output.parse().map_err(|_| form())?;
        let gateway = gateway.filter(|gateway| !gateway.is_unspecified());
        routes.retain(|route| route.prefix != prefix);
        routes.push(Route { prefix, gateway, output });
    }
    Ok(routes)
}

fn lookup(net: &Net<'_>, element: usize, state: State) -> Translated {
    let routes = routes(net, element)?;
    if let Some(route) = routes.iter().find(|route| route.gateway.is_some()) {
        return Err(format!(
            "the gateway of route {} has no effect without an ARPQuerier; leave it out",
            route.prefix
        ));
    }
    let most = routes.iter().map(|route| route.output + 1).max().unwrap_or(1);
    let routes = routes.iter().map(|route| format!("{} {}", route.prefix, route.output)).collect();
    let outputs = net.outputs(element).max(1);
    if most > outputs {
        return Err(format!("a route leads to output {}, which leads nowhere", most - 1));
    }
    let args = vec![("routes", Value::List(routes)), network(state)?];
    Ok((Piece::Steps(vec![Step::numbered("ip-lookup", args, outputs)]), state))
}
