//! Elements as steps: what each class becomes.

mod headers;
mod sources;
mod waiting;

use std::net::IpAddr;

use ::click::args::Args;
use ::click::kinds;

pub(super) use headers::{LOOKUPS, Route, routes};
pub(super) use sources::{device, stop};
pub(super) use waiting::{capacity, is_shaper, rate};

use super::arguments::{bytes, label, mac, number, probability};
use super::lua::Value;
use super::net::{DELAYS, Net, SHAPERS};
use super::pull::{Place, Trees};

/// Facts about the packets at an input, which are known when the configuration is converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The place of the packets' data in their frames.
    pub(super) offset: i64,
    /// The place of their IP header, if an element has marked it.
    pub(super) network: Option<i64>,
    /// Their destination annotation.
    pub(super) destination: Destination,
}

/// The destination annotation of packets, by which tables look them up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Destination {
    /// The destination of their header.
    #[default]
    Header,
    /// One address for all.
    Fixed(IpAddr),
    /// One that depends on the path that they have taken.
    Various,
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

    /// A step with an output for each of these ports, and another one.
    pub(super) fn switch(kind: &'static str, ports: Vec<String>) -> Self {
        let outputs = ports.clone();
        Self { kind, args: vec![("ports", Value::List(ports))], outputs, dropped: Vec::new() }
    }

    /// The step that sorts packets as a routing table does, those without a route like those of the last output.
    pub(super) fn sorter(routes: &[Route], outputs: usize) -> Self {
        let has_default = routes.iter().any(|route| route.prefix.prefix_len() == 0);
        let default = (!has_default).then(|| format!("0.0.0.0/0 {outputs}"));
        let routes = routes.iter().map(|route| format!("{} {}", route.prefix, route.output));
        let routes = routes.chain(default).collect();
        let args = vec![("routes", Value::List(routes)), ("offset", Value::Number(14))];
        Self::numbered("ip-lookup", args, outputs + 1)
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
    /// A step of the default graph.
    Lead(&'static str),
    /// Its packets are dropped.
    Drop,
    /// Its packets leave by this device.
    Send(String),
    /// All go on by output 0, copies of those of a colour by output 1.
    Copies(Step, Step),
    /// Steps by a first one, whose last output leads to copies for all of its outputs.
    ToAll(Step, Step),
    /// They wait in a queue of a tree.
    Wait(Place),
}

/// Classes that hold facts or act on others; packets do not pass them.
pub(super) const WITHOUT_PACKETS: [&str; 12] = [
    "Script",
    "DriverManager",
    "ControlSocket",
    "AddressInfo",
    "AlignmentInfo",
    "ScheduleInfo",
    "StaticThreadSched",
    "BalancedThreadSched",
    "DPDKInfo",
    "PortInfo",
    "ScheduleLinux",
    "NetmapInfo",
];

type Translated = Result<(Piece, State), String>;

/// Classes that change nothing about packets here, with arguments that have no effect therefore.
const NOTHING: [(&str, &[&str]); 11] = [
    ("Null", &[]),
    ("PushNull", &[]),
    ("PullNull", &[]),
    ("Align", &["MODULUS", "OFFSET"]),
    ("SetTimestamp", &["TIMESTAMP", "FIRST"]),
    ("SetPacketType", &["TYPE"]),
    ("MarkMACHeader", &["OFFSET", "LENGTH"]),
    ("EnsureDPDKBuffer", &["FORCE_COPY", "EXTRA_HEADROOM", "FAIL"]),
    ("SpinlockAcquire", &["LOCK"]),
    ("SpinlockRelease", &["LOCK"]),
    ("EnsureEther", &["ETHERTYPE", "SRC", "DST"]),
];

/// Returns what an element becomes for packets in this state, and their state behind it.
pub(super) fn translate(net: &Net<'_>, trees: &Trees, element: usize, state: State) -> Translated {
    let one = |step: Step| Ok((Piece::Steps(vec![step]), state));
    let offset = || ("offset", Value::Number(state.offset));
    let outputs = net.outputs(element).max(1);
    let mut args = net.args(element);
    if let Some(place) = trees.place(element) {
        return Ok((Piece::Wait(place), state));
    }
    match net.class(element) {
        _ if trees.has(element) => Ok((Piece::Nothing, state)),
        class if SHAPERS.contains(&class) => waiting::shaper(net, element, state),
        class if DELAYS.contains(&class) => waiting::delay(net, element, state),
        "EnsureEther" if state.offset != 0 => {
            Err("only whole frames are supported; use EtherEncap".to_owned())
        }
        class if NOTHING.iter().any(|(known, _)| *known == class) => nothing(class, args, state),
        "Unqueue" => waiting::unqueue(args, state),
        "Tee" | "PullTee" => {
            args.optional("N", number)?;
            args.finish()?;
            if outputs == 1 {
                return Ok((Piece::Nothing, state));
            }
            one(Step::numbered("tee", Vec::new(), outputs))
        }
        "RandomSample" => random_sample(args, state),
        "RatedSplitter" | "BandwidthRatedSplitter" => {
            let args = vec![("rate", Value::Text(waiting::rate(net, element)?))];
            one(Step::new("rated-splitter", args, &["ok", "others"]))
        }
        "Meter" | "BandwidthMeter" => waiting::meter(net, element, state),
        "RED" => Err("it has no queue: there must be one path between it and one Queue".to_owned()),
        "Print" | "IPPrint" | "IP6Print" => print(net, element, state),
        class if sources::CLASSES.contains(&class) => sources::source(net, element),
        "FromDump" => sources::from_dump(args),
        "ToDump" => sources::to_dump(args, state),
        "IPClassifier" => {
            let patterns = ("patterns", Value::List(args.rest()));
            let count = net.element(element).arguments.len();
            let outputs = (0..count).map(|output| output.to_string()).collect();
            let args = vec![patterns, headers::network(state)?];
            one(Step { outputs, ..Step::new("ip-classifier", args, &[]) })
        }
        "IPFilter" => headers::ip_filter(args, outputs, state),
        _ if net.is_queue(element) => waiting::queue(net, element, state),
        "Discard" => discard(args, state),
        "Idle" | "ToHostSniffers" => {
            args.optional("DEVNAME", kinds::raw)?;
            args.finish()?;
            Ok((Piece::Drop, state))
        }
        _ if net.is_to_device(element) => Ok((Piece::Send(device(net, element)?), state)),
        "Counter" | "AverageCounter" | "CounterMP" | "AverageCounterMP" => {
            plain(args, Step::new("counter", Vec::new(), &["next"]), state)
        }
        "Paint" => one(Step::new("paint", vec![colour(args)?], &["next"])),
        "CheckPaint" => one(Step::new("check-paint", vec![colour(args)?], &["ok", "others"])),
        "PaintTee" => {
            let tee = Step::numbered("tee", Vec::new(), 2);
            let check = Step::new("check-paint", vec![colour(args)?], &["ok", "others"]);
            Ok((Piece::Copies(tee, check), state))
        }
        "PaintSwitch" => paint_switch(net, args, outputs, state),
        "Switch" | "StaticSwitch" => {
            let to = args.optional("OUTPUT", number)?.unwrap_or(0).max(-1);
            args.finish()?;
            one(Step::numbered("switch", vec![("to", Value::Number(to))], outputs))
        }
        "HashSwitch" => {
            let at = args.required("OFFSET", bytes)? + state.offset;
            let length = args.required("LENGTH", bytes)?;
            args.finish()?;
            let args = vec![("offset", Value::Number(at)), ("length", Value::Number(length))];
            one(Step::numbered("hash-switch", args, outputs))
        }
        "RandomSwitch" => plain(args, Step::numbered("random-switch", vec![], outputs), state),
        "RoundRobinSwitch" => {
            plain(args, Step::numbered("round-robin-switch", vec![], outputs), state)
        }
        "StrideSwitch" => waiting::stride_switch(net, element, state),
        "Strip" => {
            let count = args.required("LENGTH", bytes)?;
            args.finish()?;
            Ok((Piece::Nothing, State { offset: state.offset + count, ..state }))
        }
        "StripToNetworkHeader" => {
            let network = state.network.ok_or_else(headers::no_header)?;
            Ok((Piece::Nothing, State { offset: network, ..state }))
        }
        "Unstrip" => {
            let count = args.required("LENGTH", bytes)?;
            args.finish()?;
            Ok(headers::unstrip(state, count))
        }
        "MarkIPHeader" | "MarkIP6Header" => {
            let at = args.optional("OFFSET", bytes)?.unwrap_or(0) + state.offset;
            args.finish()?;
            Ok((Piece::Nothing, State { network: Some(at), ..state }))
        }
        "EtherEncap" => headers::ether_encap(args, state),
        "EtherMirror" => plain(args, Step::new("ether-mirror", vec![offset()], &["next"]), state),
        "EtherRewrite" => {
            let source = ("source", Value::Text(args.required("SRC", mac)?));
            let destination = ("destination", Value::Text(args.required("DST", mac)?));
            args.finish()?;
            one(Step::new("ether-rewrite", vec![source, destination, offset()], &["next"]))
        }
        "HostEtherFilter" => headers::host_ether_filter(args, state),
        "Classifier" => headers::classifier(args, state),
        "CheckLength" => {
            let length = ("length", Value::Number(args.required("LENGTH", bytes)?));
            args.finish()?;
            one(Step::new("check-length", vec![length, offset()], &["ok", "long"]))
        }
        "DropBroadcasts" => plain(args, Step::new("drop-broadcasts", vec![], &["ok"]), state),
        "CheckIPHeader" | "CheckIPHeader2" => headers::check_ip_header(net, element, state),
        "CheckIP6Header" => headers::check_ip6_header(args, state),
        "CheckTCPHeader" => headers::l4(args, state, "tcp"),
        "CheckUDPHeader" => headers::l4(args, state, "udp"),
        "CheckICMPHeader" => headers::l4(args, state, "icmp"),
        "DecIPTTL" => {
            let step = Step::new("dec-ip-ttl", vec![headers::network(state)?], &["ok", "expired"]);
            plain(args, step, state)
        }
        "DecIP6HLIM" => {
            let step =
                Step::new("dec-ip6-hlim", vec![headers::network(state)?], &["ok", "expired"]);
            plain(args, step, state)
        }
        "SetIPDSCP" => {
            let dscp = ("dscp", Value::Number(args.required("DSCP", kinds::integer(0..=63))?));
            args.finish()?;
            one(Step::new("set-ip-dscp", vec![dscp, headers::network(state)?], &["next"]))
        }
        "SetIPChecksum" => {
            let step = Step::new("set-ip-checksum", vec![headers::network(state)?], &["next"]);
            plain(args, step, state)
        }
        "SetIPAddress" => {
            headers::set_address(args.required("IPADDR", kinds::ip4)?.into(), args, state)
        }
        "SetIP6Address" => {
            headers::set_address(args.required("IPADDR", kinds::ip6)?.into(), args, state)
        }
        "ARPResponder" => headers::responder(net, element, state, "arp-responder"),
        "IP6NDAdvertiser" => headers::responder(net, element, state, "nd-advertiser"),
        "GetIPAddress" => headers::get_address(args, state, 16),
        "GetIP6Address" => headers::get_address(args, state, 24),
        "LookupIP6Route" => headers::lookup6(net, element, state),
        class if LOOKUPS.contains(&class) => headers::lookup(net, element, state),
        class => Err(format!(
            "class {class} is not supported yet here; docs/click.md lists the classes that are"
        )),
    }
}

/// An element of [`NOTHING`].
fn nothing(class: &str, mut args: Args<'_>, state: State) -> Translated {
    let known = NOTHING.iter().find(|(known, _)| *known == class);
    for keyword in known.map_or(&[][..], |(_, keywords)| keywords) {
        args.optional(keyword, kinds::raw)?;
    }
    args.finish()?;
    Ok((Piece::Nothing, state))
}

/// An end of packets.
fn discard(mut args: Args<'_>, state: State) -> Translated {
    if args.keyword("ACTIVE", kinds::boolean)? == Some(false) {
        return Err("ACTIVE false is not supported: it takes packets always".to_owned());
    }
    args.ignore(&["BURST"]);
    args.finish()?;
    Ok((Piece::Drop, state))
}

/// A step without arguments of its own.
fn plain(args: Args<'_>, step: Step, state: State) -> Translated {
    args.finish()?;
    Ok((Piece::Steps(vec![step]), state))
}

/// Packets picked with a probability.
fn random_sample(mut args: Args<'_>, state: State) -> Translated {
    let picked = args.optional("P", probability)?.or(args.keyword("SAMPLE", probability)?);
    let dropped = args.keyword("DROP", probability)?;
    let is_off = args.keyword("ACTIVE", kinds::boolean)? == Some(false);
    args.finish()?;
    let picked = picked.or(dropped.map(|dropped| 1.0 - dropped)).ok_or("argument P is missing")?;
    let picked = if is_off { 1.0 } else { picked };
    let args = vec![("per_million", Value::Number((picked * 1e6).round() as i64))];
    Ok((Piece::Steps(vec![Step::new("random-sample", args, &["ok", "others"])]), state))
}

/// Details of packets that are not shown: their bytes are.
const DETAILS: [&str; 15] = [
    "LENGTH",
    "TIMESTAMP",
    "PRINTANNO",
    "CPU",
    "HEADROOM",
    "ID",
    "TTL",
    "TOS",
    "SWAP",
    "OUTFILE",
    "PAYLOAD",
    "BCONTENTS",
    "AGGREGATE",
    "PAINT",
    "VERBOSE",
];

/// Packets in the log: their first bytes, whatever else is asked for.
fn print(net: &Net<'_>, element: usize, state: State) -> Translated {
    let is_plain = net.class(element) == "Print";
    let mut args = net.args(element);
    let name = &net.element(element).name;
    let label = args.optional("LABEL", label)?.unwrap_or_else(|| name.clone());
    let mut length = if is_plain { args.optional("MAXLENGTH", number)? } else { None };
    if !is_plain {
        length = args.keyword("MAXLENGTH", number)?.or(args.keyword("NBYTES", number)?);
    }
    let contents = args.keyword("CONTENTS", kinds::raw)?;
    let is_off = args.keyword("ACTIVE", kinds::boolean)? == Some(false);
    args.ignore(&DETAILS);
    args.finish()?;
    let length = match (contents.as_deref(), length.unwrap_or(24)) {
        (Some("NONE" | "none"), _) if is_plain => 0,
        (_, ..0) => 64,
        (_, length) => length.min(64),
    };
    let at = if is_plain { None } else { state.network };
    let mut args = vec![
        ("label", Value::Text(label)),
        ("length", Value::Number(length)),
        ("offset", Value::Number(at.unwrap_or(state.offset))),
    ];
    if is_off {
        args.push(("active", Value::Flag(false)));
    }
    Ok((Piece::Steps(vec![Step::new("print", args, &["next"])]), state))
}

/// The argument `colour`.
fn colour(mut args: Args<'_>) -> Result<(&'static str, Value), String> {
    let colour = args.required("COLOR", kinds::integer(0..=255))?;
    args.optional("ANNO", paint)?;
    args.finish()?;
    Ok(("colour", Value::Number(colour)))
}

/// The annotation PAINT.
fn paint(text: &str, _: &::click::names::Scope<'_>) -> Result<(), String> {
    if text == "PAINT" { Ok(()) } else { Err("only PAINT is supported".to_owned()) }
}

/// Packets of colour 255 leave by all outputs: copies are made only where some may have it.
fn paint_switch(net: &Net<'_>, mut args: Args<'_>, outputs: usize, state: State) -> Translated {
    args.optional("ANNO", paint)?;
    args.finish()?;
    let paints = net.of_class(&["Paint"]);
    let to_all = paints.into_iter().any(|paint| {
        net.args(paint).required("COLOR", kinds::integer(0..=255)).is_ok_and(|colour| colour == 255)
    });
    let mut switch = Step::numbered("paint-switch", Vec::new(), outputs);
    if !to_all || outputs == 1 {
        return Ok((Piece::Steps(vec![switch]), state));
    }
    switch.args.push(("all", Value::Flag(true)));
    switch.outputs.push("all".to_owned());
    Ok((Piece::ToAll(switch, Step::numbered("tee", Vec::new(), outputs)), state))
}
