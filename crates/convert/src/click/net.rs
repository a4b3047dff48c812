//! A flat configuration as a graph.

use ::click::args::Args;
use ::click::names::{Names, Scope};
use ::click::{Element, Error, Errors, Flat, Place};

/// An input of an element: its number and the port.
pub(super) type Input = (usize, usize);

/// The elements of a configuration, and the targets of their outputs.
pub(super) struct Net<'a> {
    pub(super) flat: &'a Flat,
    /// By element and output.
    targets: Vec<Vec<Option<Input>>>,
    /// By element: the outputs that lead to it.
    sources: Vec<Vec<Input>>,
    /// Names of addresses.
    names: Names,
    /// `FromHost` and `ToHost` stand for a device: in graphs, not in IP routers.
    pub(super) has_host_devices: bool,
}

/// Classes whose packets come from a device.
const FROM_DEVICE: [&str; 5] =
    ["FromDevice", "PollDevice", "FromDPDKDevice", "FromNetmapDevice", "FromOcteon"];

/// Classes whose packets leave by a device.
const TO_DEVICE: [&str; 4] = ["ToDevice", "ToDPDKDevice", "ToNetmapDevice", "ToOcteon"];

/// The classes of the kernel's end of a TAP device.
pub(super) const FROM_HOST: &str = "FromHost";
pub(super) const TO_HOST: &str = "ToHost";

/// Classes that make packets.
const SOURCES: [&str; 6] =
    ["InfiniteSource", "RatedSource", "TimedSource", "UDPSource", "FastUDPSource", "FromDump"];

/// Classes that limit the rate of packets behind a queue.
pub(super) const SHAPERS: [&str; 4] =
    ["Shaper", "BandwidthShaper", "RatedUnqueue", "BandwidthRatedUnqueue"];

/// Classes that hold packets back for a time, behind a queue.
pub(super) const DELAYS: [&str; 2] = ["DelayUnqueue", "DelayShaper"];

/// Classes that store packets.
const QUEUES: [&str; 7] = [
    "Queue",
    "SimpleQueue",
    "ThreadSafeQueue",
    "NotifierQueue",
    "MSQueue",
    "MixedQueue",
    "FrontDropQueue",
];

/// Names that mean something else in a graph than a step.
const RESERVED: [&str; 15] = [
    "classify",
    "prohibit",
    "reset",
    "transmit",
    "replicate",
    "drop",
    "receive",
    "spread",
    "graph",
    "to-router",
    "policing",
    "slow-path",
    "on-wire",
    "port-switch",
    "default",
];

/// The place of the first element, or of the file's beginning: for errors about all.
pub(super) fn first_place(flat: &Flat) -> Place {
    let begin = || Place { file: "".into(), line: 1, column: 1, source: "".into() };
    flat.elements.first().map_or_else(begin, |element| element.place.clone())
}

impl<'a> Net<'a> {
    pub(super) fn new(flat: &'a Flat) -> Result<Self, Errors> {
        let mut targets = vec![Vec::new(); flat.elements.len()];
        let mut sources = vec![Vec::new(); flat.elements.len()];
        for connection in &flat.connections {
            let ((from, output), to) = (connection.from, connection.to);
            let of: &mut Vec<Option<Input>> = &mut targets[from];
            if of.len() <= output {
                of.resize(output + 1, None);
            }
            of[output].get_or_insert(to);
            sources[to.0].push(connection.from);
        }
        let names = Names::of(flat)?;
        Ok(Self { flat, targets, sources, names, has_host_devices: false })
    }

    /// The names that an element may use.
    pub(super) fn scope(&self, number: usize) -> Scope<'_> {
        self.names.scope(self.element(number))
    }

    /// The name of an element's step.
    pub(super) fn step_name(&self, number: usize) -> String {
        let mangled = self.element(number).name.replace('.', "_");
        if RESERVED.contains(&mangled.as_str()) { format!("{mangled}_") } else { mangled }
    }

    /// The arguments of an element.
    pub(super) fn args(&self, number: usize) -> Args<'_> {
        Args::new(&self.names, self.element(number))
    }

    pub(super) fn element(&self, number: usize) -> &'a Element {
        &self.flat.elements[number]
    }

    /// The elements of one of these classes.
    pub(super) fn of_class(&self, classes: &[&str]) -> Vec<usize> {
        let all = 0..self.flat.elements.len();
        all.filter(|&number| classes.contains(&self.class(number))).collect()
    }

    pub(super) fn class(&self, number: usize) -> &'a str {
        &self.element(number).class
    }

    /// The elements whose packets come from devices.
    pub(super) fn receivers(&self) -> Vec<usize> {
        let all = 0..self.flat.elements.len();
        all.filter(|&element| self.is_from_device(element)).collect()
    }

    fn is_from_device(&self, number: usize) -> bool {
        let class = self.class(number);
        FROM_DEVICE.contains(&class) || self.has_host_devices && class == FROM_HOST
    }

    pub(super) fn is_to_device(&self, number: usize) -> bool {
        let class = self.class(number);
        TO_DEVICE.contains(&class) || self.has_host_devices && class == TO_HOST
    }

    pub(super) fn senders(&self) -> Vec<usize> {
        let all = 0..self.flat.elements.len();
        all.filter(|&element| self.is_to_device(element)).collect()
    }

    pub(super) fn is_queue(&self, number: usize) -> bool {
        QUEUES.contains(&self.class(number))
    }

    /// The target of an output.
    pub(super) fn target(&self, number: usize, output: usize) -> Option<Input> {
        self.targets[number].get(output).copied().flatten()
    }

    /// The targets of all outputs.
    pub(super) fn targets(&self, number: usize) -> impl Iterator<Item = (usize, Input)> + '_ {
        let outputs = self.targets[number].iter().enumerate();
        outputs.filter_map(|(output, to)| to.map(|to| (output, to)))
    }

    /// The number of outputs that are in use, from the first to the last.
    pub(super) fn outputs(&self, number: usize) -> usize {
        self.targets[number].len()
    }

    /// The outputs that lead to an element.
    pub(super) fn sources(&self, number: usize) -> &[Input] {
        &self.sources[number]
    }

    /// An error about an element: `MESSAGE` follows its name and class.
    pub(super) fn error(&self, number: usize, message: &str) -> Error {
        let element = self.element(number);
        let message = format!("element \"{}\" ({}): {message}", element.name, element.class);
        Error::new(&element.place, message)
    }

    /// The line of an element's declaration.
    pub(super) fn line(&self, number: usize) -> usize {
        self.element(number).place.line as usize
    }

    /// The elements that make packets themselves.
    pub(super) fn makers(&self) -> Vec<usize> {
        self.of_class(&SOURCES)
    }

    /// The shaper behind a queue, with one path between them.
    pub(super) fn shaper_behind(&self, queue: usize) -> Option<usize> {
        self.behind(queue, &SHAPERS)
    }

    /// Likewise, the element that delays its packets.
    pub(super) fn delay_behind(&self, queue: usize) -> Option<usize> {
        self.behind(queue, &DELAYS)
    }

    /// The first element of these classes behind a queue, with one path between them.
    fn behind(&self, queue: usize, classes: &[&str]) -> Option<usize> {
        let mut at = queue;
        for _ in 0..self.flat.elements.len() {
            let (next, _) = self.target(at, 0)?;
            match self.class(next) {
                class if classes.contains(&class) => return Some(next),
                _ if self.is_queue(next) || self.outputs(next) != 1 => return None,
                _ if self.sources(next).len() != 1 => return None,
                _ => at = next,
            }
        }
        None
    }

    /// The queue whose packets an element limits or delays.
    pub(super) fn queue_of(&self, element: usize) -> Option<usize> {
        let mut queues = (0..self.flat.elements.len()).filter(|&queue| self.is_queue(queue));
        queues.find(|&queue| {
            [self.shaper_behind(queue), self.delay_behind(queue)].contains(&Some(element))
        })
    }

    /// Packets that arrive at an element of the classes of queues go on at once, since the port behind it has a queue of
    /// its own: there are only elements with one way between it and the device.
    pub(super) fn leads_to_device(&self, queue: usize) -> bool {
        if self.shaper_behind(queue).or(self.delay_behind(queue)).is_some() {
            return false;
        }
        let mut at = queue;
        for _ in 0..self.flat.elements.len() {
            let Some((next, _)) = self.target(at, 0) else { return false };
            if self.is_to_device(next) {
                return true;
            }
            let is_plain = self.outputs(next) <= 1 && self.sources(next).len() == 1;
            if !is_plain && !matches!(self.class(next), "Discard" | "Unqueue") {
                return false;
            }
            if matches!(self.class(next), "Discard" | "Unqueue" | "ToHost" | "ToHostSniffers") {
                return true;
            }
            at = next;
        }
        false
    }
}
