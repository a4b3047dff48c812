//! The views, made of two samples; without any I/O.
//!
//! A rate is the difference of a counter between two samples. Where a counter has become smaller, because a port was
//! opened again, all rates of its row are unknown until the next sample.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use api::report::{Families, Flow, Flows, Forwarder, Interface, Port, Vrf};

use super::sample::{MOST_FLOWS, Sample, Timed};
use super::table::{Column, Mood, Order, Row, Table, Value};
use super::text::uptime;

/// Bytes of a frame on the wire beside those that are counted: FCS, preamble and the gap between frames (IEEE 802.3).
const WIRE_BYTES: f64 = 24.0;

/// A table of the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panel {
    /// Interfaces and their rates.
    #[default]
    Interfaces,
    /// Forwarders and their load.
    Forwarders,
    /// Drops by step and reason.
    Drops,
    /// The flows with the most traffic.
    Flows,
    /// Routes by VRF, family and source.
    Routes,
}

impl Panel {
    /// All, in the order of their keys.
    pub const ALL: [Self; 5] =
        [Self::Interfaces, Self::Forwarders, Self::Drops, Self::Flows, Self::Routes];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interfaces => "Interfaces",
            Self::Forwarders => "Forwarders",
            Self::Drops => "Drops",
            Self::Flows => "Flows",
            Self::Routes => "Routes",
        }
    }

    /// Its place among all.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The order of its rows before another is chosen.
    pub fn usual_order(self) -> Option<Order> {
        match self {
            Self::Drops => Some(Order { column: DROPS_LAST, descending: true }),
            Self::Flows => Some(Order { column: 0, descending: true }),
            Self::Interfaces | Self::Forwarders | Self::Routes => None,
        }
    }
}

impl fmt::Display for Panel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().to_lowercase())
    }
}

impl FromStr for Panel {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(|panel| panel.to_string()).join(", ");
        let found = Self::ALL.into_iter().find(|panel| panel.to_string() == name);
        found.ok_or_else(|| format!("no panel of this name; known: {}", known()))
    }
}

static INTERFACES: [Column; 10] = [
    Column::text("INTERFACE", 15),
    Column::text("LINK", 4),
    Column::number("RX PPS", 6),
    Column::number("RX BPS", 6),
    Column::number("RX%", 4),
    Column::number("TX PPS", 6),
    Column::number("TX BPS", 6),
    Column::number("TX%", 4),
    Column::number("MISS/S", 6),
    Column::number("ERR/S", 5),
];

static FORWARDERS: [Column; 9] = [
    Column::text("FWD", 3),
    Column::text("CORE", 4),
    Column::number("BUSY%", 5),
    Column::number("PPS", 6),
    Column::number("FILL", 5),
    Column::text("WAIT", 9),
    Column::text("NOW", 5),
    Column::number("PREEMPT/S", 9),
    Column::text("RECEIVES", 8),
];

static DROPS: [Column; 5] = [
    Column::number("DROP/S", 6),
    Column::number("LAST", 5),
    Column::number("TOTAL", 12),
    Column::text("STEP", 18),
    Column::text("REASON", 18),
];

/// The place of `LAST` among them.
const DROPS_LAST: usize = 1;

static FLOWS: [Column; 8] = [
    Column::number("BPS", 6),
    Column::number("PPS", 6),
    Column::text("PROTO", 5),
    Column::text("FROM", 18),
    Column::text("TO", 18),
    Column::text("STATE", 6),
    Column::number("AGE", 4),
    Column::text("VRF", 7),
];

static ROUTES: [Column; 5] = [
    Column::text("VRF", 15),
    Column::text("FAMILY", 6),
    Column::text("SOURCE", 10),
    Column::number("ROUTES", 9),
    Column::number("CHANGE/S", 8),
];

/// A forwarder's load in short.
#[derive(Clone, Debug, PartialEq)]
pub struct Meter {
    /// Its number; `c` for that of control traffic.
    pub name: String,
    /// The share of the time in which it had packets.
    pub busy: Option<f64>,
    /// Packets a second.
    pub packets: Option<f64>,
    /// Packets of a batch.
    pub fill: Option<f64>,
}

/// Packets and bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throughput {
    /// Packets.
    pub packets: Option<f64>,
    /// Bits of frames.
    pub bits: Option<f64>,
}

/// All that is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The router's version, age and configuration.
    pub title: String,
    /// Received.
    pub received: Throughput,
    /// Sent.
    pub sent: Throughput,
    /// Drops a second.
    pub drops: Option<f64>,
    /// The forwarders.
    pub meters: Vec<Meter>,
    /// By [`Panel::index`].
    pub tables: [Table; Panel::ALL.len()],
}

/// The last two samples, and the drops that were seen.
#[derive(Default)]
pub struct Series {
    before: Option<Sample>,
    now: Option<Sample>,
    /// The times at which drops by step and reason were last seen to increase.
    seen: BTreeMap<(String, String), Duration>,
}

impl Series {
    /// Adds a sample. It has nothing to do with those before if the router `is_new`.
    pub fn push(&mut self, sample: Sample, is_new: bool) {
        let age = self.now.as_ref().map(|now| now.status.uptime_s);
        if is_new || age.is_some_and(|age| age > sample.status.uptime_s) {
            *self = Self::default();
        }
        self.before = self.now.replace(sample);
        self.note_drops();
    }

    fn note_drops(&mut self) {
        let (Some(before), Some(now)) = (&self.before, &self.now) else { return };
        for (step, reason, count) in drops_of(now) {
            let former = before.counters.of.dropped_by_step.get(step).and_then(|of| of.get(reason));
            if count > former.copied().unwrap_or(0) {
                self.seen.insert((step.to_owned(), reason.to_owned()), now.counters.at);
            }
        }
    }

    /// The view of the last sample, if there is one.
    pub fn view(&self) -> Option<View> {
        let now = self.now.as_ref()?;
        let pair = Pair { before: self.before.as_ref(), now };
        let (received, sent) = pair.throughput();
        let [dropped] = rates_of(pair.counters(|of| [of.dropped_total]));
        Some(View {
            title: title(now),
            received,
            sent,
            drops: dropped,
            meters: pair.forwarders().map(|of| of.meter()).collect(),
            tables: [
                pair.interface_table(),
                table(&FORWARDERS, pair.forwarders().map(|of| of.row()).collect()),
                pair.drop_table(&self.seen),
                pair.flow_table(),
                pair.route_table(),
            ],
        })
    }
}

fn table(columns: &'static [Column], rows: Vec<Row>) -> Table {
    Table { columns, rows, ..Table::default() }
}

fn pending(columns: &'static [Column]) -> Table {
    Table { columns, is_pending: true, ..Table::default() }
}

fn title(now: &Sample) -> String {
    let status = &now.status;
    let unconfirmed = if status.unconfirmed { " (unconfirmed)" } else { "" };
    let up = uptime(status.uptime_s);
    format!(
        "turnpike {}  up {up}  configuration {}{unconfirmed}",
        status.version, status.configuration
    )
}

/// Each drop that was counted: step, reason, packets.
fn drops_of(sample: &Sample) -> impl Iterator<Item = (&str, &str, u64)> {
    let by_step = sample.counters.of.dropped_by_step.iter();
    by_step.flat_map(|(step, reasons)| {
        reasons.iter().map(|(reason, &count)| (step.as_str(), reason.as_str(), count))
    })
}

/// Differences of counters a second; unknown if one has become smaller.
fn rates<const N: usize>(before: [u64; N], now: [u64; N], seconds: f64) -> Option<[f64; N]> {
    let grown = seconds > 0.0 && before.iter().zip(&now).all(|(before, now)| before <= now);
    grown.then(|| std::array::from_fn(|n| (now[n] - before[n]) as f64 / seconds))
}

fn rates_of<const N: usize>(rates: Option<[f64; N]>) -> [Option<f64>; N] {
    std::array::from_fn(|n| rates.map(|rates| rates[n]))
}

/// The sum of those that are known; unknown if none is.
fn sum(rates: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    rates.flatten().reduce(|one, other| one + other)
}

/// Two samples.
#[derive(Clone, Copy)]
struct Pair<'s> {
    before: Option<&'s Sample>,
    now: &'s Sample,
}

/// A part of two samples, and the seconds between them.
struct Parts<'s, T> {
    before: Option<&'s T>,
    now: &'s T,
    seconds: f64,
}

impl<'s> Pair<'s> {
    fn parts<T>(self, of: impl Fn(&'s Sample) -> Option<&'s Timed<T>>) -> Option<Parts<'s, T>> {
        let (before, now) = (self.before.and_then(&of), of(self.now)?);
        let since = before.map(|before| now.at.saturating_sub(before.at)).unwrap_or_default();
        let before = before.map(|before| &before.of);
        Some(Parts { before, now: &now.of, seconds: since.as_secs_f64() })
    }

    fn counters<const N: usize>(
        self,
        of: impl Fn(&api::report::Counters) -> [u64; N],
    ) -> Option<[f64; N]> {
        let parts = self.parts(|sample| Some(&sample.counters))?;
        rates(of(parts.before?), of(parts.now), parts.seconds)
    }

    fn throughput(self) -> (Throughput, Throughput) {
        let [received, sent] = rates_of(self.counters(|of| [of.received, of.sent]));
        let ports = self.ports();
        let bits = |place| sum(ports.values().map(|port| port.traffic.map(|of| 8.0 * of[place])));
        (
            Throughput { packets: received, bits: bits(1) },
            Throughput { packets: sent, bits: bits(3) },
        )
    }

    /// The ports by name.
    fn ports(self) -> BTreeMap<&'s str, PortRates> {
        let Some(parts) = self.parts(|sample| Some(&sample.ports)) else { return BTreeMap::new() };
        let before: HashMap<_, _> =
            parts.before.into_iter().flatten().map(|port| (port.name.as_str(), port)).collect();
        let rates = |port: &'s Port| {
            let before = before.get(port.name.as_str()).copied();
            (port.name.as_str(), PortRates::of(before, port, parts.seconds))
        };
        parts.now.iter().map(rates).collect()
    }

    fn interface_table(self) -> Table {
        let Some(parts) = self.parts(|sample| sample.interfaces.as_ref()) else {
            return pending(&INTERFACES);
        };
        let before: HashMap<_, _> =
            parts.before.into_iter().flatten().map(|of| (of.name.as_str(), of)).collect();
        let (ports, mut depths) = (self.ports(), HashMap::new());
        let row = |of: &'s Interface| {
            let above = of.parent.as_ref().and_then(|parent| depths.get(parent.as_str()));
            let depth = above.map_or(0, |depth| depth + 1);
            depths.insert(of.name.as_str(), depth);
            let traffic = before.get(of.name.as_str());
            let traffic =
                traffic.and_then(|before| rates(traffic_of(before), traffic_of(of), parts.seconds));
            let port = ports.get(of.name.as_str()).filter(|_| of.kind == "port");
            interface_row(of, depth, traffic, port)
        };
        table(&INTERFACES, parts.now.iter().map(row).collect())
    }

    fn forwarders(self) -> impl Iterator<Item = Load<'s>> {
        let parts = self.parts(|sample| Some(&sample.forwarders));
        let hertz = self.now.status.tsc_hz as f64;
        parts.into_iter().flat_map(move |parts| {
            let before: HashMap<_, _> = parts
                .before
                .into_iter()
                .flat_map(|all| &all.forwarders)
                .map(|of| (of.number, of))
                .collect();
            let load = move |now: &'s Forwarder| {
                let rates = before
                    .get(&now.number)
                    .and_then(|before| rates(work_of(before), work_of(now), parts.seconds));
                Load { of: now, rates, hertz }
            };
            parts.now.forwarders.iter().map(load)
        })
    }

    fn drop_table(self, seen: &BTreeMap<(String, String), Duration>) -> Table {
        let at = self.now.counters.at;
        let parts = self.parts(|sample| Some(&sample.counters));
        let row = |(step, reason, count): (&str, &str, u64)| {
            let rate = parts.as_ref().and_then(|parts| {
                let former = parts.before?.dropped_by_step.get(step).and_then(|of| of.get(reason));
                rates([former.copied().unwrap_or(0)], [count], parts.seconds).map(|[rate]| rate)
            });
            let last = seen.get(&(step.to_owned(), reason.to_owned()));
            let last = last.map(|last| at.saturating_sub(*last).as_secs_f64());
            let is_going_on = rate.is_some_and(|rate| rate > 0.0);
            Row {
                values: vec![
                    Value::Rate(rate),
                    Value::Age(last),
                    Value::Count(count),
                    Value::text(step),
                    Value::text(reason),
                ],
                mood: if is_going_on { Mood::Bad } else { Mood::Quiet },
            }
        };
        let counted = drops_of(self.now).filter(|(.., count)| *count > 0);
        let mut rows: Vec<_> = counted.map(row).collect();
        // Of those that were last seen together, the most frequent first.
        let rate = |row: &Row| match row.values[..] {
            [Value::Rate(rate), ..] => rate.unwrap_or(-1.0),
            _ => -1.0,
        };
        rows.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
        let nothing = rows.is_empty().then(|| "no packet was dropped".to_owned());
        Table { columns: &DROPS, rows, note: nothing, is_pending: false }
    }

    fn flow_table(self) -> Table {
        let Some(parts) = self.parts(|sample| sample.flows.as_ref()) else {
            return pending(&FLOWS);
        };
        if parts.now.room == 0 {
            let why = "no filter has a rule with `state`, so the router tracks no flows";
            return Table { columns: &FLOWS, note: Some(why.to_owned()), ..Table::default() };
        }
        let before: HashMap<_, _> = parts
            .before
            .into_iter()
            .flat_map(|all| &all.flows)
            .map(|flow| (flow_key(flow), flow))
            .collect();
        let row = |flow: &Flow| {
            let former = before.get(&flow_key(flow)).map(|before| flow_counts(before));
            // One that began meanwhile has counted from zero.
            let is_young = (flow.age_s as f64) < parts.seconds;
            let former = former.or_else(|| is_young.then_some([0, 0]));
            flow_row(flow, former.and_then(|of| rates(of, flow_counts(flow), parts.seconds)))
        };
        let rows = parts.now.flows.iter().map(row).collect();
        Table { columns: &FLOWS, rows, note: flow_note(parts.now), is_pending: false }
    }

    fn route_table(self) -> Table {
        let Some(parts) = self.parts(|sample| sample.vrfs.as_ref()) else {
            return pending(&ROUTES);
        };
        let before: HashMap<_, _> =
            parts.before.into_iter().flatten().map(|vrf| (vrf.name.as_str(), vrf)).collect();
        let rows = |vrf: &Vrf| {
            let changes = |of: &Vrf| [of.changes.ipv4, of.changes.ipv6];
            let former = before.get(vrf.name.as_str());
            route_rows(vrf, former.and_then(|of| rates(changes(of), changes(vrf), parts.seconds)))
        };
        table(&ROUTES, parts.now.iter().flat_map(rows).collect())
    }
}

/// Rates of a port.
struct PortRates {
    /// Packets and bytes received and sent.
    traffic: Option<[f64; 4]>,
    /// Packets missed, and errors.
    troubles: Option<[f64; 2]>,
    /// Bits a second of its link.
    speed: Option<f64>,
}

impl PortRates {
    fn of(before: Option<&Port>, now: &Port, seconds: f64) -> Self {
        let traffic = |of: &Port| [of.rx_packets, of.rx_bytes, of.tx_packets, of.tx_bytes];
        let troubles = |of: &Port| [of.rx_missed, of.rx_errors + of.tx_errors + of.dma_faults];
        // Some drivers report that they do not know it.
        let known = now.link_details.speed_mbps.filter(|mbps| (1..u32::MAX).contains(mbps));
        Self {
            traffic: before.and_then(|of| rates(traffic(of), traffic(now), seconds)),
            troubles: before.and_then(|of| rates(troubles(of), troubles(now), seconds)),
            speed: known.map(|mbps| 1e6 * f64::from(mbps)),
        }
    }
}

fn traffic_of(of: &Interface) -> [u64; 4] {
    [of.rx_packets, of.rx_bytes, of.tx_packets, of.tx_bytes]
}

fn interface_row(
    of: &Interface,
    depth: usize,
    traffic: Option<[f64; 4]>,
    port: Option<&PortRates>,
) -> Row {
    let [rx_packets, rx_bytes, tx_packets, tx_bytes] = rates_of(traffic);
    let [missed, errors] = rates_of(port.and_then(|port| port.troubles));
    let speed = port.and_then(|port| port.speed);
    let share = |packets: Option<f64>, bytes: Option<f64>| {
        let on_wire = 8.0 * (bytes? + WIRE_BYTES * packets?);
        Some((on_wire / speed?).min(1.0))
    };
    let bits = |bytes: Option<f64>| Value::Rate(bytes.map(|bytes| 8.0 * bytes));
    let in_trouble = [missed, errors].into_iter().flatten().any(|rate| rate > 0.0);
    let is_quiet = traffic.is_some_and(|rates| rates == [0.0; 4]);
    Row {
        values: vec![
            Value::Text("  ".repeat(depth) + &of.name),
            Value::text(&of.link),
            Value::Rate(rx_packets),
            bits(rx_bytes),
            Value::Share(share(rx_packets, rx_bytes)),
            Value::Rate(tx_packets),
            bits(tx_bytes),
            Value::Share(share(tx_packets, tx_bytes)),
            Value::Rate(missed),
            Value::Rate(errors),
        ],
        mood: match (in_trouble || of.link != "up", is_quiet) {
            (true, _) => Mood::Bad,
            (false, true) => Mood::Quiet,
            (false, false) => Mood::Usual,
        },
    }
}

/// A forwarder's load between two samples.
struct Load<'s> {
    of: &'s Forwarder,
    rates: Option<[f64; 4]>,
    hertz: f64,
}

/// Busy cycles, packets, batches, preemptions.
fn work_of(of: &Forwarder) -> [u64; 4] {
    let preempted = of.interference.as_ref().map_or(0, |of| of.involuntary_switches);
    [of.busy_cycles, of.packets, of.bursts, preempted]
}

impl Load<'_> {
    fn meter(&self) -> Meter {
        let [cycles, packets, batches, _] = rates_of(self.rates);
        let share =
            |cycles: f64| if self.hertz > 0.0 { (cycles / self.hertz).min(1.0) } else { 0.0 };
        let fill = packets.zip(batches).filter(|(_, batches)| *batches > 0.0);
        let control = if self.of.control { "c".to_owned() } else { self.of.number.to_string() };
        Meter {
            name: control,
            busy: cycles.map(share),
            packets,
            fill: fill.map(|(packets, batches)| packets / batches),
        }
    }

    fn row(&self) -> Row {
        let Meter { name, busy, packets, fill } = self.meter();
        let (of, [.., preempted]) = (self.of, rates_of(self.rates));
        let core = if of.control { "control".to_owned() } else { of.core.to_string() };
        Row {
            values: vec![
                Value::Text(name),
                Value::Text(core),
                Value::Share(busy),
                Value::Rate(packets),
                Value::Rate(fill),
                Value::text(&of.waiting.wait),
                Value::text(if of.waiting.blocking { "blocks" } else { "runs" }),
                Value::Rate(preempted),
                Value::Text(of.rx.join(" ")),
            ],
            mood: if busy.is_some_and(|busy| busy >= 0.9) { Mood::Bad } else { Mood::Usual },
        }
    }
}

fn flow_key(flow: &Flow) -> (&str, &str, &str, &str) {
    (&flow.vrf, &flow.protocol, &flow.from, &flow.to)
}

/// Packets and bytes of both directions.
fn flow_counts(flow: &Flow) -> [u64; 2] {
    [flow.packets_there + flow.packets_back, flow.bytes_there + flow.bytes_back]
}

fn flow_row(flow: &Flow, rates: Option<[f64; 2]>) -> Row {
    let [packets, bytes] = rates_of(rates);
    let is_quiet = packets == Some(0.0);
    Row {
        values: vec![
            Value::Rate(bytes.map(|bytes| 8.0 * bytes)),
            Value::Rate(packets),
            Value::text(&flow.protocol),
            Value::text(&flow.from),
            Value::text(&flow.to),
            Value::text(&flow.state),
            Value::Age(Some(flow.age_s as f64)),
            Value::text(&flow.vrf),
        ],
        mood: if is_quiet { Mood::Quiet } else { Mood::Usual },
    }
}

fn flow_note(flows: &Flows) -> Option<String> {
    match flows.total {
        0 => Some("no flow is tracked now".to_owned()),
        total if total > MOST_FLOWS => {
            Some(format!("the {MOST_FLOWS} flows with the most bytes, of {total}"))
        }
        _ => None,
    }
}

fn route_rows(vrf: &Vrf, changes: Option<[f64; 2]>) -> Vec<Row> {
    let [ipv4, ipv6] = rates_of(changes);
    let mut rows = family_rows(vrf, "ipv4", |of| of.ipv4, ipv4);
    rows.extend(family_rows(vrf, "ipv6", |of| of.ipv6, ipv6));
    rows
}

/// The routes that forwarders have, and those of each source.
fn family_rows(
    vrf: &Vrf,
    family: &str,
    count: fn(&Families) -> usize,
    changes: Option<f64>,
) -> Vec<Row> {
    let row = |source: &str, of: &Families, change: Value, mood: Mood| {
        let texts = [&*vrf.name, family, source].map(Value::text);
        let numbers = [Value::Count(count(of) as u64), change];
        Row { values: texts.into_iter().chain(numbers).collect(), mood }
    };
    let in_use = row(IN_USE, &vrf.fib, Value::Rate(changes), Mood::Usual);
    let sources = vrf.sources.iter().filter(|(_, of)| count(of) > 0);
    let of_source = |(name, of): (&String, &Families)| row(name, of, Value::text(""), Mood::Quiet);
    std::iter::once(in_use).chain(sources.map(of_source)).collect()
}

/// In place of a source: the routes in the tables of forwarders.
const IN_USE: &str = "in use";

#[cfg(test)]
pub(super) mod tests;
