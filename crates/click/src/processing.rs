//! Push and pull.
//!
//! Packets are *pushed* through a connection by the element above it or *pulled* by the one below it. Most ports are
//! one or the other; agnostic ones are what the port at the other end of their connection is, and the ports of the
//! same element that packets flow to are the same. What is still open then is push.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::classes::{self, Class};
use crate::error::{Error, Errors};
use crate::flat::{Connection, Element, Flat};
use crate::{Flow, Ports, Processing};

/// Errors that are reported at once.
const MOST_ERRORS: usize = 20;

/// A port, by element, side and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Port {
    element: usize,
    is_output: bool,
    number: usize,
}

/// Decides of each port if packets are pushed or pulled through it.
pub fn resolve(flat: &Flat) -> Result<Processing, Errors> {
    let classes = known_classes(flat)?;
    let mut resolver = Resolver::new(flat, classes);
    resolver.check_counts();
    Errors::check(std::mem::take(&mut resolver.errors))?;
    resolver.spread();
    resolver.check_directions();
    resolver.check_reuse();
    resolver.errors.truncate(MOST_ERRORS);
    Errors::check(std::mem::take(&mut resolver.errors))?;
    Ok(resolver.processing())
}

fn known_classes(flat: &Flat) -> Result<Vec<&'static Class>, Errors> {
    let mut errors = Vec::new();
    let mut known = Vec::with_capacity(flat.elements.len());
    for element in &flat.elements {
        match classes::find(&element.class) {
            Some(class) => known.push(class),
            None if errors.len() < MOST_ERRORS => errors.push(unknown_class(element)),
            None => {}
        }
    }
    Errors::check(errors)?;
    Ok(known)
}

fn unknown_class(element: &Element) -> Error {
    let Element { name, class, .. } = element;
    let nearest = match classes::nearest(class) {
        Some(nearest) => format!("the nearest known one is {nearest}"),
        None => "no known one is like it".to_owned(),
    };
    Error::new(&element.place, format!("element \"{name}\": unknown class {class}; {nearest}"))
}

struct Resolver<'f> {
    flat: &'f Flat,
    classes: Vec<&'static Class>,
    /// Numbers of inputs and outputs of each element.
    counts: Vec<(usize, usize)>,
    /// Connections of each port.
    wires: HashMap<Port, Vec<&'f Connection>>,
    directions: HashMap<Port, Flow>,
    errors: Vec<Error>,
}

fn from(connection: &Connection) -> Port {
    Port { element: connection.from.0, is_output: true, number: connection.from.1 }
}

fn to(connection: &Connection) -> Port {
    Port { element: connection.to.0, is_output: false, number: connection.to.1 }
}

impl<'f> Resolver<'f> {
    fn new(flat: &'f Flat, classes: Vec<&'static Class>) -> Resolver<'f> {
        let mut counts = vec![(0, 0); flat.elements.len()];
        let mut wires: HashMap<Port, Vec<&Connection>> = HashMap::new();
        for connection in &flat.connections {
            let (from, to) = (from(connection), to(connection));
            counts[from.element].1 = counts[from.element].1.max(from.number + 1);
            counts[to.element].0 = counts[to.element].0.max(to.number + 1);
            wires.entry(from).or_default().push(connection);
            wires.entry(to).or_default().push(connection);
        }
        Resolver { flat, classes, counts, wires, directions: HashMap::new(), errors: Vec::new() }
    }

    fn name(&self, port: Port) -> String {
        let side = if port.is_output { "output" } else { "input" };
        format!("\"{}\" {side} {}", self.flat.elements[port.element].name, port.number)
    }

    // --- numbers of ports ---

    fn check_counts(&mut self) {
        for element in 0..self.flat.elements.len() {
            if self.errors.len() >= MOST_ERRORS {
                return;
            }
            let class = self.classes[element];
            let inputs = self.check_count(element, false, class.inputs());
            let outputs = self.check_count(element, true, class.outputs(inputs));
            self.counts[element] = (inputs, outputs);
        }
    }

    /// Checks one side of an element, and returns its number of ports.
    fn check_count(&mut self, element: usize, is_output: bool, allowed: classes::Count) -> usize {
        let (inputs, outputs) = self.counts[element];
        let used = if is_output { outputs } else { inputs };
        let plural = if allowed.most == 1 { "" } else { "s" };
        let side = format!("{}{plural}", if is_output { "output" } else { "input" });
        let class = self.classes[element].name;
        let port = |number| Port { element, is_output, number };
        if used > allowed.most {
            let first = (allowed.most..used).find_map(|number| self.wires.get(&port(number)));
            let place = first.map_or(&self.flat.elements[element].place, |wires| &wires[0].place);
            let message = format!(
                "{} does not exist; {class} has {allowed} {side}",
                self.name(port(used - 1))
            );
            self.errors.push(Error::new(place, message));
            return used;
        }
        let count = used.max(allowed.least);
        let open = (0..count).find(|&number| !self.wires.contains_key(&port(number)));
        if let Some(number) = open {
            let place = &self.flat.elements[element].place;
            let way_out = if is_output {
                "connect it, to a Discard for instance"
            } else {
                "connect it, to an Idle for instance"
            };
            let message = format!(
                "{} is not connected ({class} has {allowed} {side}); {way_out}",
                self.name(port(number))
            );
            self.errors.push(Error::new(place, message));
        }
        count
    }

    // --- directions ---

    /// Gives ports the directions of their classes, and carries those to agnostic ports.
    fn spread(&mut self) {
        let ports: Vec<Port> = self.ports().collect();
        let mut open = VecDeque::new();
        for &port in &ports {
            let class = self.classes[port.element];
            let direction =
                if port.is_output { class.output(port.number) } else { class.input(port.number) };
            if let Some(direction) = direction {
                self.directions.insert(port, direction);
                open.push_back(port);
            }
        }
        self.carry(open);
        for port in ports {
            self.directions.entry(port).or_insert(Flow::Push);
        }
    }

    fn carry(&mut self, mut open: VecDeque<Port>) {
        while let Some(port) = open.pop_front() {
            let direction = self.directions[&port];
            for next in self.other_ends(port).into_iter().chain(self.flows(port)) {
                if let Entry::Vacant(place) = self.directions.entry(next) {
                    place.insert(direction);
                    open.push_back(next);
                }
            }
        }
    }

    fn ports(&self) -> impl Iterator<Item = Port> + '_ {
        (0..self.flat.elements.len()).flat_map(|element| {
            let (inputs, outputs) = self.counts[element];
            let inputs = (0..inputs).map(move |number| Port { element, is_output: false, number });
            inputs.chain((0..outputs).map(move |number| Port { element, is_output: true, number }))
        })
    }

    fn other_ends(&self, port: Port) -> Vec<Port> {
        let wires = self.wires.get(&port).into_iter().flatten();
        wires.map(|wire| if port.is_output { to(wire) } else { from(wire) }).collect()
    }

    fn is_agnostic(&self, port: Port) -> bool {
        let class = self.classes[port.element];
        let direction =
            if port.is_output { class.output(port.number) } else { class.input(port.number) };
        direction.is_none()
    }

    /// Agnostic ports at the other side of the same element, to or from which packets of an agnostic port flow.
    fn flows(&self, port: Port) -> Vec<Port> {
        if !self.is_agnostic(port) {
            return Vec::new();
        }
        let Port { element, is_output, number } = port;
        let (inputs, outputs) = self.counts[element];
        let class = self.classes[element];
        let others = 0..if is_output { inputs } else { outputs };
        let others = others.map(|number| Port { element, is_output: !is_output, number });
        let flows = |other: &Port| match is_output {
            true => class.flows(other.number, number),
            false => class.flows(number, other.number),
        };
        others.filter(|other| self.is_agnostic(*other) && flows(other)).collect()
    }

    fn check_directions(&mut self) {
        for connection in &self.flat.connections {
            let (from, to) = (from(connection), to(connection));
            if self.directions[&from] != self.directions[&to] && self.errors.len() < MOST_ERRORS {
                self.errors.push(self.mismatch(connection));
            }
        }
        for port in self.ports().collect::<Vec<_>>() {
            if port.is_output || self.errors.len() >= MOST_ERRORS {
                continue;
            }
            let mixed = self
                .flows(port)
                .into_iter()
                .find(|other| self.directions[other] != self.directions[&port]);
            if let Some(other) = mixed {
                self.errors.push(self.mixed(port, other));
            }
        }
    }

    fn mismatch(&self, connection: &Connection) -> Error {
        let (from, to) = (from(connection), to(connection));
        let (above, below) = (self.directions[&from], self.directions[&to]);
        let between = if above == Flow::Push { "a Queue" } else { "an Unqueue" };
        let places = [from, to].map(|port| &self.flat.elements[port.element].place);
        let message = format!(
            "{above} {} (declared at {}) connected to {below} {} (declared at {}); put {between} between them",
            self.name(from),
            places[0],
            self.name(to),
            places[1],
        );
        Error::new(&connection.place, message)
    }

    /// An agnostic element between a push and a pull one.
    fn mixed(&self, input: Port, output: Port) -> Error {
        let (above, below) = (self.directions[&input], self.directions[&output]);
        let between = if above == Flow::Push { "a Queue" } else { "an Unqueue" };
        let end = |port: Port| {
            let end = self.other_ends(port).first().copied();
            end.map_or(String::new(), |end| {
                format!(" ({} at {})", self.name(end), self.flat.elements[end.element].place)
            })
        };
        let element = &self.flat.elements[input.element];
        let message = format!(
            "agnostic \"{}\" in mixed context: {above} input {}{}, {below} output {}{}; put {between} before or behind it",
            element.name,
            input.number,
            end(input),
            output.number,
            end(output),
        );
        Error::new(&element.place, message)
    }

    /// A push output has one place to go to, a pull input one to take from.
    fn check_reuse(&mut self) {
        for port in self.ports().collect::<Vec<_>>() {
            let direction = self.directions[&port];
            let single = if port.is_output { Flow::Push } else { Flow::Pull };
            let wires = self.wires.get(&port).map_or(&[][..], Vec::as_slice);
            let (Some(first), Some(second)) = (wires.first(), wires.get(1)) else { continue };
            if direction == single && self.errors.len() < MOST_ERRORS {
                let way_out = if port.is_output {
                    "put a Tee behind it"
                } else {
                    "put a scheduler, such as RoundRobinSched, before it"
                };
                let message = format!(
                    "{direction} {} is connected twice, first at {}; {way_out}",
                    self.name(port),
                    first.place
                );
                self.errors.push(Error::new(&second.place, message));
            }
        }
    }

    fn processing(&self) -> Processing {
        let mut elements: Vec<Ports> = vec![Ports::default(); self.flat.elements.len()];
        for port in self.ports() {
            let ports = &mut elements[port.element];
            let side = if port.is_output { &mut ports.outputs } else { &mut ports.inputs };
            side.push(self.directions[&port]);
        }
        Processing { elements }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flatten, parse};

    fn resolved(text: &str) -> Result<Processing, Errors> {
        resolve(&flatten(&parse("f", text)?, &[])?)
    }

    fn errors(text: &str) -> Vec<String> {
        let errors = resolved(text).expect_err(text);
        errors.all().iter().map(|error| format!("{}: {}", error.place, error.message)).collect()
    }

    /// `h` and `l` of inputs and outputs, by elements.
    fn codes(text: &str) -> String {
        let letter = |flow: &Flow| if *flow == Flow::Push { 'h' } else { 'l' };
        let code = |ports: &Ports| {
            let inputs: String = ports.inputs.iter().map(letter).collect();
            format!("{inputs}/{}", ports.outputs.iter().map(letter).collect::<String>())
        };
        let processing = resolved(text).unwrap();
        processing.elements.iter().map(code).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn agnostic_ports_take_the_direction_of_their_neighbours() {
        assert_eq!(
            codes("FromDevice(a) -> Strip(1) -> Counter -> Queue -> Paint(1) -> ToDevice(b);"),
            "/h h/h h/h h/l l/l l/"
        );
        assert_eq!(codes("InfiniteSource -> Null -> Discard;"), "/h h/h h/");
        assert_eq!(
            codes("RatedSource -> c :: CheckIPHeader -> ToDevice(a); c[1] -> Discard;"),
            "/l l/lh l/ h/"
        );
        assert_eq!(
            codes(
                "s :: Suppressor; RatedSource -> s -> Discard; RatedSource -> [1] s [1] -> ToDevice(a)"
            ),
            "hl/hl /h h/ /l l/"
        );
    }

    #[test]
    fn a_push_output_does_not_fit_a_pull_input() {
        assert_eq!(
            errors("f :: FromDevice(a) -> \n t :: ToDevice(b);"),
            [
                "f:1:20: push \"f\" output 0 (declared at f:1:1) connected to pull \"t\" input 0 (declared at f:2:2); put a Queue between them"
            ]
        );
        assert_eq!(
            errors("f :: FromDevice(a) -> c :: Counter -> t :: ToDevice(b);"),
            [
                "f:1:23: agnostic \"c\" in mixed context: push input 0 (\"f\" output 0 at f:1:1), pull output 0 (\"t\" input 0 at f:1:39); put a Queue before or behind it"
            ]
        );
        let unqueue = errors("Idle -> q :: Queue -> Switch(0) -> Discard;");
        assert!(unqueue[0].contains("put an Unqueue between them"), "{unqueue:?}");
    }

    #[test]
    fn push_outputs_and_pull_inputs_have_one_connection() {
        assert_eq!(
            errors("f :: FromDevice(a); f -> Discard;\nf -> d :: Discard"),
            ["f:2:3: push \"f\" output 0 is connected twice, first at f:1:23; put a Tee behind it"]
        );
        assert_eq!(
            errors("t :: ToDevice(a); a, b :: Queue; Idle => a, b -> t; Idle -> b"),
            [
                "f:1:47: pull \"t\" input 0 is connected twice, first at f:1:47; put a scheduler, such as RoundRobinSched, before it"
            ]
        );
        assert!(resolved("q :: Queue; q -> Discard; q -> Discard; Idle -> q; Idle -> q").is_ok());
    }

    #[test]
    fn ports_are_counted() {
        assert_eq!(
            errors("d :: Discard;"),
            [
                "f:1:1: \"d\" input 0 is not connected (Discard has 1 input); connect it, to an Idle for instance"
            ]
        );
        assert_eq!(
            errors("Idle -> t :: Tee; t [1] -> Discard;")[0],
            "f:1:9: \"t\" output 0 is not connected (Tee has 1 or more outputs); connect it, to a Discard for instance"
        );
        assert_eq!(
            errors("Idle -> s :: Strip(1) -> Discard; s [1] -> Discard")[0],
            "f:1:41: \"s\" output 1 does not exist; Strip has 1 output"
        );
        assert!(
            errors("s :: Suppressor; Idle -> s; Idle -> [1] s; s -> Discard")[0]
                .contains("output 1 is not connected")
        );
    }

    #[test]
    fn an_unknown_class_is_an_error_with_the_nearest_known_one() {
        assert_eq!(
            errors("Idle -> c :: CheckIpHeader -> Discard;"),
            [
                "f:1:9: element \"c\": unknown class CheckIpHeader; the nearest known one is CheckIPHeader"
            ]
        );
    }
}
