//! A Click configuration as a graph of steps.
//!
//! ```text
//!   on-wire -> port-switch -> the steps of the elements behind each FromDevice -> to-port -> transmit
//! ```

mod becomes;
mod splice;

use std::collections::{BTreeMap, HashMap, HashSet};

use ::click::args::Args;
use ::click::kinds;
use ::click::{Element, Error, Errors};

use super::arguments::{self, bytes};
use super::elements::{Destination, Piece, State, Step, WITHOUT_PACKETS, device, translate};
use super::handlers::Becomes;
use super::lua::{Statements, Value, quoted, settings};
use super::net::{FROM_HOST, Input, Net, TO_HOST, first_place};
use super::pull::{Place, Tree, Trees};

pub(super) use splice::Part;

/// Most ports with a `FromDevice`: outputs of `port-switch` but one.
const PORTS_MOST: usize = 15;

/// Converts a configuration without a router's elements; returns what each element becomes.
pub(super) fn convert(net: &Net<'_>, statements: &mut Statements) -> Result<Becomes, Errors> {
    let mut graph = Graph::new(net)?;
    let devices = graph.devices()?;
    let starts = [net.receivers(), net.makers()].concat();
    let order = graph.order(&starts);
    graph.states(&order)?;
    ports(&devices, statements);
    host_notes(net, statements);
    lock_notes(net, statements);
    graph.steps(&order, &devices)?;
    let first = graph.entry(&devices)?;
    for element in graph.unreached() {
        let element = net.element(element);
        let (place, name) = (&element.place, &element.name);
        statements.note(format!("{place}: no packets reach element \"{name}\""));
    }
    let printed = graph.print(&first, statements);
    Ok(graph.becomes(&devices, &printed))
}

/// A device: its port's name, whether frames to others are received, and its line.
pub(super) struct Device {
    pub(super) port: String,
    pub(super) promiscuous: bool,
    pub(super) line: usize,
    /// The elements whose packets come from it.
    pub(super) from: Vec<usize>,
}

/// The devices of a configuration, by name.
pub(super) type Devices = BTreeMap<String, Device>;

/// Reads the devices.
pub(super) fn devices(net: &Net<'_>) -> Result<Devices, Errors> {
    let (mut devices, mut errors) = (Devices::new(), Vec::new());
    let (from, to) = (net.receivers(), net.senders());
    for &element in from.iter().chain(&to) {
        match device(net, element) {
            Ok(name) => {
                let port = port_name(&name, &devices);
                let device = devices.entry(name).or_insert_with(|| Device {
                    port,
                    promiscuous: false,
                    line: net.line(element),
                    from: Vec::new(),
                });
                if from.contains(&element) {
                    device.from.push(element);
                    match is_promiscuous(net, element) {
                        Ok(promiscuous) => device.promiscuous |= promiscuous,
                        Err(message) => errors.push(net.error(element, &message)),
                    }
                }
                if to.contains(&element)
                    && let Err(message) = sends(net, element)
                {
                    errors.push(net.error(element, &message));
                }
            }
            Err(message) => errors.push(net.error(element, &message)),
        }
    }
    Errors::check(errors)?;
    Ok(devices)
}

/// Keywords of elements that receive from devices whose subject is Turnpike's own business.
const RECEIVING: [&str; 15] = [
    "BURST",
    "METHOD",
    "HEADROOM",
    "TIMESTAMP",
    "VERBOSE",
    "NUMA",
    "QUEUE",
    "N_QUEUES",
    "MINQUEUES",
    "MAXQUEUES",
    "NDESC",
    "MAXTHREADS",
    "THREADOFFSET",
    "SCALE",
    "KEEPALIVE",
];

/// Returns true if a receiving element takes frames to other stations as well; refuses what is not done.
fn is_promiscuous(net: &Net<'_>, element: usize) -> Result<bool, String> {
    let mut args = net.args(element);
    if net.class(element) == FROM_HOST {
        return of_host(args).map(|_| false);
    }
    let by_dpdk = net.class(element) == "FromDPDKDevice";
    args.required(if by_dpdk { "PORT" } else { "DEVNAME" }, kinds::raw)?;
    let promiscuous = if by_dpdk {
        args.keyword("PROMISC", kinds::boolean)?.unwrap_or(true)
    } else {
        args.optional("PROMISC", kinds::boolean)?.unwrap_or(false)
    };
    args.ignore(&RECEIVING);
    is_active(&mut args)?;
    // Frames are the router's alone, as with `SNIFFER false`.
    if args.keyword("SNIFFER", kinds::boolean)? == Some(true) {
        return Err("SNIFFER true is not supported: the kernel does not see the frames".to_owned());
    }
    if by_dpdk {
        // Queues.
        args.optional("QUEUE", bytes)?;
        args.optional("N_QUEUES", bytes)?;
    }
    args.finish()?;
    Ok(promiscuous)
}

/// Likewise, of elements that send by devices.
const SENDING: [&str; 14] = [
    "BURST",
    "METHOD",
    "DEBUG",
    "VERBOSE",
    "QUEUE",
    "N_QUEUES",
    "MAXQUEUES",
    "MAXTHREADS",
    "NDESC",
    "IQUEUE",
    "BLOCKING",
    "TIMEOUT",
    "ALLOC",
    "LOCK",
];

/// Settings by which a device computes checksums, or cuts segments, that elements leave to it.
const OFFLOADS: [&str; 4] = ["TSO", "IPCO", "TCO", "UCO"];

/// Refuses what an element that sends by a device has that is not done.
fn sends(net: &Net<'_>, element: usize) -> Result<(), String> {
    let (mut args, class) = (net.args(element), net.class(element));
    if class == TO_HOST {
        return to_host(args);
    }
    args.required(if class == "ToDPDKDevice" { "PORT" } else { "DEVNAME" }, kinds::raw)?;
    let second = match class {
        "ToDevice" => "BURST",
        "ToOcteon" => "LOCK",
        _ => "QUEUE",
    };
    args.optional(second, kinds::raw)?;
    args.ignore(&SENDING);
    is_active(&mut args)?;
    for keyword in OFFLOADS {
        if args.keyword(keyword, kinds::boolean)? == Some(true) {
            return Err(format!("{keyword} true is not supported: frames leave as they are"));
        }
    }
    args.finish()
}

fn is_active(args: &mut Args<'_>) -> Result<(), String> {
    match args.keyword("ACTIVE", kinds::boolean)? {
        Some(false) => Err("ACTIVE false is not supported; leave the element out".to_owned()),
        _ => Ok(()),
    }
}

/// Notes the arguments of devices that have no effect, but the user may think they had.
pub(super) fn lock_notes(net: &Net<'_>, statements: &mut Statements) {
    for element in net.of_class(&["ToOcteon"]) {
        if net.element(element).arguments.len() > 1 {
            let Element { place, name, .. } = net.element(element);
            statements.note(format!(
                "{place}: element \"{name}\": the lock has no effect: each forwarder has a transmit queue, or hands \
                 packets to the one that has; their order is that of turnpike.forwarders"
            ));
        }
    }
}

/// Reads a `FromHost`; returns true if it has addresses or routes for the kernel's interface.
fn of_host(mut args: Args<'_>) -> Result<bool, String> {
    args.required("DEVNAME", kinds::raw)?;
    let has_address = args.optional("DST", arguments::net)?.is_some();
    let has_address = args.keyword("DST6", kinds::prefix6)?.is_some() || has_address;
    let has_route = args.keyword("GATEWAY", kinds::raw)?.is_some();
    args.keyword("ETHER", kinds::ether)?;
    takes_frames(&mut args)?;
    args.ignore(&["HEADROOM", "MTU"]);
    args.finish()?;
    Ok(has_address || has_route)
}

/// Refuses what a `ToHost` has that is not done.
fn to_host(mut args: Args<'_>) -> Result<(), String> {
    args.required("DEVNAME", kinds::raw)?;
    takes_frames(&mut args)?;
    if args.keyword("SNIFFERS", kinds::boolean)? == Some(true) {
        return Err("SNIFFERS true is not supported: the kernel's stack gets the frames".to_owned());
    }
    args.finish()
}

fn takes_frames(args: &mut Args<'_>) -> Result<(), String> {
    if args.keyword("TYPE", kinds::word)?.is_some_and(|kind| kind != "ETHER") {
        return Err("only TYPE ETHER is supported".to_owned());
    }
    Ok(())
}

/// Notes which settings of the kernel's interfaces are left to others.
fn host_notes(net: &Net<'_>, statements: &mut Statements) {
    for element in net.of_class(&[FROM_HOST]) {
        if of_host(net.args(element)).is_ok_and(|has_address| has_address) {
            let Element { place, name, .. } = net.element(element);
            statements.note(format!(
                "{place}: addresses and routes of the kernel's interface are not set by element \"{name}\"; \
                 use ip address, ip route and ip link"
            ));
        }
    }
}

/// A name for a device's port: the device's own, or a shorter one.
fn port_name(device: &str, others: &Devices) -> String {
    let of_host =
        device.split_once(",iface=").map(|(_, name)| name.split(',').next().unwrap_or(name));
    let device = of_host.unwrap_or(device);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if device.len() <= 15 && device.chars().all(plain) && !device.is_empty() {
        return device.to_owned();
    }
    format!("port{}", others.len())
}

/// Adds a statement for each device.
fn ports(devices: &Devices, statements: &mut Statements) {
    for (name, device) in devices {
        let mut settings = vec![("device", Value::text(name))];
        if device.promiscuous {
            settings.push(("promiscuous", Value::Flag(true)));
        }
        statements.statement(("port", &device.port), &settings, device.line);
    }
}

/// A step of the graph: its name, and the target of each of its outputs.
struct Placed {
    step: Step,
    line: usize,
    targets: Vec<(String, String)>,
}

struct Graph<'a> {
    net: &'a Net<'a>,
    trees: Trees,
    /// The rest of the configuration, if it is an IP router.
    part: Part,
    /// The packets at each element that some reach.
    states: HashMap<usize, State>,
    /// The steps by name.
    placed: HashMap<String, Placed>,
    /// The name of the first step of each element, or the end that it leads to.
    entries: HashMap<usize, String>,
    /// The step of each element that has one: the last, if it has several.
    own: HashMap<usize, String>,
    /// Outputs that lead back.
    back: HashSet<(usize, usize)>,
    /// Queues in place of such outputs: the step, the element it leads to, and the state of its packets.
    loops: Vec<(String, usize, State)>,
}

impl<'a> Graph<'a> {
    fn new(net: &'a Net<'a>) -> Result<Self, Errors> {
        let (states, placed, entries) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (trees, part) = (Trees::new(net)?, Part::default());
        let (own, back) = (HashMap::new(), HashSet::new());
        Ok(Self { net, trees, part, states, placed, entries, own, back, loops: Vec::new() })
    }

    /// What an element becomes here.
    fn translate(&self, element: usize, state: State) -> Result<(Piece, State), String> {
        match self.part.piece(self.net, &self.trees, element, state) {
            Some(translated) => translated,
            None => translate(self.net, &self.trees, element, state),
        }
    }

    fn devices(&self) -> Result<Devices, Errors> {
        let devices = devices(self.net)?;
        let from = devices.values().filter(|device| !device.from.is_empty()).count();
        let first = first_place(self.net.flat);
        if from == 0 && self.net.makers().is_empty() || devices.is_empty() {
            let message = "no packets come from a device; add FromDevice(NAME) -> …";
            return Err(Error::new(&first, message).into());
        }
        if from > PORTS_MOST {
            let message = format!("packets come from {from} devices; at most {PORTS_MOST}");
            return Err(Error::new(&first, message).into());
        }
        Ok(devices)
    }

    /// The elements that packets from these reach, each behind all that lead to it, without the outputs that lead back.
    fn order(&mut self, starts: &[usize]) -> Vec<usize> {
        let count = self.net.flat.elements.len();
        // 1: on the path to the present element; 2: done.
        let (mut marks, mut order) = (vec![0u8; count], Vec::new());
        for &start in starts {
            if marks[start] != 0 {
                continue;
            }
            let mut path = vec![(start, 0)];
            marks[start] = 1;
            while let Some((element, output)) = path.last_mut() {
                let (at, next) = (*element, *output);
                *output += 1;
                if next >= self.net.outputs(at) {
                    marks[at] = 2;
                    order.push(at);
                    path.pop();
                    continue;
                }
                let Some((to, _)) = self.net.target(at, next) else { continue };
                if !self.part.leads_on(at, next) {
                    continue;
                }
                match marks[to] {
                    0 => {
                        marks[to] = 1;
                        path.push((to, 0));
                    }
                    1 => _ = self.back.insert((at, next)),
                    _ => {}
                }
            }
        }
        order.reverse();
        order
    }

    /// Computes the states of packets along all paths, until those that lead back change nothing more: they only take
    /// away marks of IP headers.
    fn states(&mut self, order: &[usize]) -> Result<(), Errors> {
        for _ in 0..=self.back.len() {
            let before = self.states.clone();
            self.pass(order)?;
            if self.states == before {
                break;
            }
        }
        Ok(())
    }

    fn pass(&mut self, order: &[usize]) -> Result<(), Errors> {
        let mut errors = Vec::new();
        for &element in order {
            let state = self.states.entry(element).or_default();
            let behind = if self.net.receivers().contains(&element) {
                State::default()
            } else {
                let state = *state;
                match self.translate(element, state) {
                    Ok((_, behind)) => behind,
                    Err(message) => {
                        errors.push(self.net.error(element, &message));
                        continue;
                    }
                }
            };
            let targets = self.net.targets(element);
            let targets = targets.filter(|(output, _)| self.part.leads_on(element, *output));
            let targets: Vec<_> = targets.map(|(_, to)| to).collect();
            for (to, _) in targets {
                let known = self.states.entry(to).or_insert(behind);
                // The first path decides where data begin; headers of others move with them.
                let network = behind.network.map(|at| at - behind.offset + known.offset);
                known.network = known.network.filter(|&at| Some(at) == network);
                if known.destination != behind.destination {
                    known.destination = Destination::Various;
                }
            }
        }
        Errors::check(errors)
    }

    /// Places the steps of all elements.
    fn steps(&mut self, order: &[usize], devices: &Devices) -> Result<(), Errors> {
        let mut errors = Vec::new();
        for &element in order.iter().rev() {
            if self.net.receivers().contains(&element) {
                errors.extend(
                    self.no_more_outputs(element, 1).err().map(|why| self.net.error(element, &why)),
                );
                continue;
            }
            let state = self.states.get(&element).copied().unwrap_or_default();
            let placed = match self.translate(element, state) {
                Ok((piece, behind)) => self.place(element, piece, behind, devices),
                Err(message) => Err(message),
            };
            if let Err(message) = placed {
                errors.push(self.net.error(element, &message));
            }
        }
        Errors::check(errors)?;
        for (queue, to, state) in std::mem::take(&mut self.loops) {
            let target = self.target((to, 0), state, to);
            if let Some(placed) = self.placed.get_mut(&queue) {
                placed.targets = vec![("next".to_owned(), target)];
            }
        }
        self.schedules(devices);
        Ok(())
    }

    /// Places the steps of trees of queues, each with the paths behind its queues.
    fn schedules(&mut self, devices: &Devices) {
        for Tree { root, order, queues, device, aside } in self.trees.all() {
            let mut targets = Vec::new();
            for (number, &queue) in queues.iter().enumerate() {
                let state = self.states.get(&queue).copied().unwrap_or_default();
                // Not `follow`: what they hold leaves later in any case.
                let to = self.net.target(queue, 0);
                let to = to.map_or("drop".to_owned(), |to| self.target(to, state, queue));
                targets.push((number.to_string(), to));
            }
            for (number, red) in aside {
                let state = self.states.get(&red).copied().unwrap_or_default();
                let to = self.net.target(red, 1);
                let to = to.map_or("drop".to_owned(), |to| self.target(to, state, red));
                targets.push((format!("early-{number}"), to));
            }
            let mut args = vec![("order", Value::Text(order))];
            if let Some(device) = device.and_then(|device| devices.get(&device)) {
                args.push(("port", Value::text(&device.port)));
            }
            let outputs = targets.iter().map(|(output, _)| output.clone()).collect();
            let step = Step { kind: "schedule", args, outputs, dropped: Vec::new() };
            let line = self.net.line(root);
            self.placed.insert(self.net.step_name(root), Placed { step, line, targets });
        }
    }

    /// The steps in front of all others.
    fn entry(&mut self, devices: &Devices) -> Result<String, Errors> {
        let mut names = Vec::new();
        let mut targets = vec![("others".to_owned(), "drop".to_owned())];
        for device in devices.values().filter(|device| !device.from.is_empty()) {
            names.push(device.port.clone());
            let Some(&from) = device.from.first() else { continue };
            if let [_, second, ..] = device.from[..] {
                // Several elements of one device are its queues: Turnpike spreads by itself.
                let first = self.net.target(from, 0);
                let same = device.from.iter().all(|&other| self.net.target(other, 0) == first);
                if !same {
                    let message = "a second element for the device, with another path; join them";
                    return Err(self.net.error(second, message).into());
                }
            }
            let target = match self.net.target(from, 0) {
                Some(to) => self.target(to, State::default(), from),
                None => "drop".to_owned(),
            };
            targets.push((device.port.clone(), target));
        }
        let line = devices.values().map(|device| device.line).min().unwrap_or(1);
        let outputs = targets.iter().map(|(output, _)| output.clone()).collect();
        let args = vec![("ports", Value::List(names))];
        let switch = Step { kind: "port-switch", args, outputs, dropped: Vec::new() };
        self.placed.insert("port-switch".to_owned(), Placed { step: switch, line, targets });
        let outputs = vec!["ok".to_owned()];
        let step = Step { kind: "on-wire", args: Vec::new(), outputs, dropped: Vec::new() };
        let targets = vec![("ok".to_owned(), "port-switch".to_owned())];
        self.placed.insert("on-wire".to_owned(), Placed { step, line, targets });
        Ok("on-wire".to_owned())
    }

    /// Refuses outputs in use that an element does not have here: packets would never leave by them.
    fn no_more_outputs(&self, element: usize, has: usize) -> Result<(), String> {
        let used = self.net.outputs(element);
        let mut targets = self.net.targets(element);
        if targets.any(|(output, _)| output >= has) {
            return Err(format!("{used} outputs in use; it has {has} here"));
        }
        Ok(())
    }

    /// Places what an element becomes, behind which packets have this state.
    fn place(
        &mut self,
        element: usize,
        piece: Piece,
        behind: State,
        devices: &Devices,
    ) -> Result<(), String> {
        let name = self.net.step_name(element);
        let mut own = None;
        match piece {
            Piece::Drop if self.net.class(element) == "Idle" => {}
            _ if self.part.is_quiet(element) => {}
            Piece::Send(_) | Piece::Drop => self.no_more_outputs(element, 0)?,
            Piece::Nothing if self.trees.aside(element).is_some() => {}
            Piece::Nothing | Piece::Wait(_) => self.no_more_outputs(element, 1)?,
            _ => {}
        }
        let entry = match piece {
            Piece::Drop => "drop".to_owned(),
            Piece::Lead(step) => step.to_owned(),
            Piece::Nothing => self.follow(element, self.part.main_output(element), behind),
            Piece::Send(device) => {
                let port = &devices[&device].port;
                let outputs = vec!["transmit".to_owned()];
                let args = vec![("port", Value::text(port))];
                let step = Step { kind: "to-port", args, outputs, dropped: Vec::new() };
                let end = self.put(name.clone(), element, step, vec!["transmit".to_owned()]);
                own = Some(end.clone());
                if behind.offset == 0 {
                    end
                } else {
                    let strip = Step::shift(behind.offset);
                    self.put(format!("{name}:strip"), element, strip, vec![end])
                }
            }
            Piece::Wait(Place { root, .. }) if root == element => {
                own = Some(name.clone());
                name
            }
            Piece::Wait(Place { root, number }) => {
                let args = vec![("number", Value::Number(number as i64))];
                let step = Step {
                    kind: "to-queue",
                    args,
                    outputs: vec!["next".to_owned()],
                    dropped: vec![],
                };
                let schedule = self.net.step_name(root);
                own.insert(self.put(name, element, step, vec![schedule])).clone()
            }
            Piece::ToAll(first, tee) => {
                let mut targets: Vec<String> = (0..tee.outputs.len())
                    .map(|output| self.follow(element, output, behind))
                    .collect();
                let tee = self.put(format!("{name}:all"), element, tee, targets.clone());
                targets.push(tee);
                own.insert(self.put(name, element, first, targets)).clone()
            }
            Piece::Copies(tee, check) => {
                let (all, some) =
                    (self.follow(element, 0, behind), self.follow(element, 1, behind));
                let check = self.put(
                    format!("{name}:check"),
                    element,
                    check,
                    vec![some, "drop".to_owned()],
                );
                own.insert(self.put(name, element, tee, vec![all, check])).clone()
            }
            Piece::Steps(steps) => {
                let last = steps.len() - 1;
                let ways = steps[last].outputs.len();
                self.no_more_outputs(element, ways)?;
                let targets = (0..ways).map(|output| self.follow(element, output, behind));
                let mut targets: Vec<String> = targets.collect();
                let mut entry = String::new();
                for (number, step) in steps.into_iter().enumerate().rev() {
                    let its =
                        if number == last { name.clone() } else { format!("{name}:{number}") };
                    entry = self.put(its, element, step, targets);
                    own.get_or_insert_with(|| entry.clone());
                    targets = vec![entry.clone()];
                }
                entry
            }
        };
        self.entries.insert(element, entry);
        self.own.extend(own.map(|step| (element, step)));
        Ok(())
    }

    /// Places a step, under another name if there is one of this name; returns its name.
    fn put(&mut self, name: String, element: usize, step: Step, to: Vec<String>) -> String {
        let further = (2..).map(|number| format!("{name}:{number}"));
        let mut names = std::iter::once(name.clone()).chain(further);
        let name = names.find(|name| !self.placed.contains_key(name)).unwrap_or(name);
        let dropped = step.dropped.iter().map(|output| ((*output).to_owned(), "drop".to_owned()));
        let targets = step.outputs.iter().cloned().zip(to).chain(dropped).collect();
        let line = self.net.line(element);
        self.placed.insert(name.clone(), Placed { step, line, targets });
        name
    }

    /// The target of an output whose packets have this state.
    fn follow(&mut self, element: usize, output: usize, state: State) -> String {
        if let Some(name) = self.part.led.get(&(element, output)) {
            return name.clone();
        }
        if self.part.direct.contains(&(element, output)) {
            return "ip4-lookup".to_owned();
        }
        let Some(to) = self.net.target(element, output) else { return "drop".to_owned() };
        if !self.back.contains(&(element, output)) {
            return self.target(to, state, element);
        }
        // Packets make another pass through the graph: see `queue`.
        let name = format!("{}:{output}:again", self.net.step_name(element));
        let outputs = vec!["next".to_owned()];
        let step = Step { kind: "queue", args: Vec::new(), outputs, dropped: Vec::new() };
        let name = self.put(name, element, step, vec!["drop".to_owned()]);
        self.loops.push((name.clone(), to.0, state));
        name
    }

    /// The step at an input, behind one that moves the data to where the element expects them.
    fn target(&mut self, (to, _): Input, state: State, from: usize) -> String {
        let entry = self.entries.get(&to).cloned().unwrap_or_else(|| "drop".to_owned());
        let expected = self.states.get(&to).copied().unwrap_or_default();
        let shift = state.offset - expected.offset;
        if shift == 0 || entry == "drop" {
            return entry;
        }
        let name = format!("{}:{}", self.net.step_name(from), self.net.step_name(to));
        self.put(name, to, Step::shift(shift), vec![entry])
    }

    /// Elements for packets that none reach.
    fn unreached(&self) -> Vec<usize> {
        let all = 0..self.net.flat.elements.len();
        all.filter(|element| !self.states.contains_key(element))
            .filter(|&element| !WITHOUT_PACKETS.contains(&self.net.class(element)))
            .collect()
    }

    /// Writes the steps that are reached from the first one, each behind one that leads to it; returns their names.
    fn print(&self, first: &str, statements: &mut Statements) -> Vec<String> {
        let Some(placed) = self.placed.get(first) else { return Vec::new() };
        statements.add(format!("local graph = turnpike.new_graph {}", quoted(first)), placed.line);
        let mut known = vec![first.to_owned()];
        let mut open: Vec<(String, usize)> = edges(first, placed).rev().collect();
        for maker in self.net.makers() {
            let name = self.net.step_name(maker);
            if let Some(made) = self.placed.get(&name) {
                statements.add(format!("graph:add {}", written(&name, &made.step)), made.line);
                let further: Vec<_> = edges(&name, made).rev().collect();
                open.splice(0..0, further).for_each(drop);
                known.push(name);
            }
        }
        self.paths("graph", &mut known, open, statements);
        statements.add("turnpike.graph = graph".to_owned(), placed.line);
        known
    }

    /// Writes paths of a graph from these edges on; `known` are the steps that are written already.
    fn paths(
        &self,
        graph: &str,
        known: &mut Vec<String>,
        mut open: Vec<(String, usize)>,
        statements: &mut Statements,
    ) {
        while let Some((from, edge)) = open.pop() {
            let Some(placed) = self.placed.get(&from) else { continue };
            let (output, to) = &placed.targets[edge];
            let is_end = matches!(to.as_str(), "drop" | "transmit");
            let written = match self.placed.get(to) {
                Some(next) if !is_end && !known.contains(to) => {
                    known.push(to.clone());
                    open.extend(edges(to, next).rev());
                    written(to, &next.step)
                }
                _ => quoted(to),
            };
            let line = self.placed.get(to).map_or(placed.line, |next| next.line);
            let place = quoted(&format!("{from}.{output}"));
            statements.add(format!("{graph}:path({place}, {written})"), line);
        }
    }
}

fn edges<'a>(
    name: &'a str,
    placed: &'a Placed,
) -> impl DoubleEndedIterator<Item = (String, usize)> + 'a {
    (0..placed.targets.len()).map(move |edge| (name.to_owned(), edge))
}

/// A step as an element of a path.
fn written(name: &str, step: &Step) -> String {
    let kind = quoted(step.kind);
    let mut text = format!("{{ {kind}");
    if name != step.kind {
        text += &format!(", as = {}", quoted(name));
    }
    if !step.args.is_empty() {
        text += &format!(", {}", settings(&step.args));
    }
    text + " }"
}
