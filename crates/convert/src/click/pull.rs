//! Queues from which schedulers pull, as one step each.
//!
//! Click pulls from the far end: a device with room asks a scheduler, which asks its inputs, one of which asks a queue.
//! Queues and schedulers that are connected this way are a tree, and the tree is the argument `order` of a step `schedule`,
//! whose root is the last scheduler. Rates of shapers anywhere in it are nodes as well. Other elements on the way see
//! packets when they have left their queue: each queue has an output of the step, behind which they stand.
//!
//! ```text
//!  Classifier -> Queue -> Counter -> [0] PrioSched -> Shaper -> ToDevice
//!             -> Queue ------------> [1]
//!
//!  classifier -> to-queue -+-> schedule "rate(…, prio(a[1000], b[1000]))" -> counter -+-> to-port
//!             -> to-queue -+                                              ------------+
//! ```
//!
//! `RED` belongs to the queue that it is in front of, or behind. Nodes of elements whose numbers handlers change have the
//! element's name as their label.

use std::collections::HashMap;

use ::click::args::Args;
use ::click::kinds;
use ::click::names::Scope;
use ::click::{Error, Errors};

use super::arguments::probability;
use super::elements::{capacity, device, is_shaper, rate};
use super::net::{DELAYS, Net};

/// Classes that pull from one of several inputs.
const SCHEDULERS: [&str; 9] = [
    "RoundRobinSched",
    "SimpleRoundRobinSched",
    "PrioSched",
    "SimplePrioSched",
    "DRRSched",
    "StrideSched",
    "PullSwitch",
    "SimplePullSwitch",
    "StaticPullSwitch",
];

/// Most queues of a tree.
const QUEUES_MOST: usize = 12;

/// A queue's tree, and its number in there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) root: usize,
    pub(super) number: usize,
}

/// A tree.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) root: usize,
    pub(super) order: String,
    pub(super) queues: Vec<usize>,
    /// The device that pulls from it.
    pub(super) device: Option<String>,
    /// `RED`s with a second output, each with its queue's number.
    pub(super) aside: Vec<(usize, usize)>,
}

/// The trees of a configuration.
#[derive(Debug, Default)]
pub(super) struct Trees {
    trees: Vec<Tree>,
    places: HashMap<usize, Place>,
    /// Schedulers, shapers and `RED`s of trees, with the roots.
    parts: HashMap<usize, usize>,
}

impl Trees {
    pub(super) fn new(net: &Net<'_>) -> Result<Self, Errors> {
        let (mut trees, mut errors) = (Self::default(), Vec::new());
        for root in net.of_class(&SCHEDULERS) {
            match Builder::new(net).tree(root) {
                Ok(Some((order, builder))) => trees.add(root, order, builder),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        let all = 0..net.flat.elements.len();
        for queue in all.filter(|&element| net.is_queue(element)) {
            let red = red_behind(net, queue);
            if trees.places.contains_key(&queue) || red.or(red_in_front(net, queue)).is_none() {
                continue;
            }
            match Builder::new(net).single(queue, red) {
                Ok((order, builder)) => trees.add(queue, order, builder),
                Err(error) => errors.push(error),
            }
        }
        Errors::check(errors)?;
        Ok(trees)
    }

    fn add(&mut self, root: usize, order: String, builder: Builder<'_>) {
        for (number, &queue) in builder.queues.iter().enumerate() {
            self.places.insert(queue, Place { root, number });
        }
        let Builder { queues, parts, device, aside, .. } = builder;
        self.parts.extend(parts.into_iter().map(|part| (part, root)));
        self.trees.push(Tree { root, order, queues, device, aside });
    }

    /// All trees.
    pub(super) fn all(&self) -> Vec<Tree> {
        self.trees.clone()
    }

    /// The place of a queue.
    pub(super) fn place(&self, queue: usize) -> Option<Place> {
        self.places.get(&queue).copied()
    }

    /// Returns true if an element is part of a tree, and no queue.
    pub(super) fn has(&self, element: usize) -> bool {
        self.parts.contains_key(&element)
    }

    /// The root of the tree of which an element is a part.
    pub(super) fn root_of(&self, part: usize) -> Option<usize> {
        self.parts.get(&part).copied()
    }

    /// The queue of a `RED` with a second output.
    pub(super) fn aside(&self, red: usize) -> Option<Place> {
        let of = |tree: &Tree| {
            let (number, _) = tree.aside.iter().find(|(_, element)| *element == red)?;
            Some(Place { root: tree.root, number: *number })
        };
        self.trees.iter().find_map(of)
    }
}

/// The `RED` whose packets are all that a queue gets.
fn red_in_front(net: &Net<'_>, queue: usize) -> Option<usize> {
    let mut at = queue;
    for _ in 0..net.flat.elements.len() {
        let [(before, output)] = net.sources(at)[..] else { return None };
        if net.class(before) == "RED" {
            // Its second output has the packets that it has selected.
            return (output == 0).then_some(before);
        }
        if net.outputs(before) != 1 || net.is_queue(before) {
            return None;
        }
        at = before;
    }
    None
}

/// The `RED` through which all packets of a queue without a scheduler are pulled.
fn red_behind(net: &Net<'_>, queue: usize) -> Option<usize> {
    let mut at = queue;
    for _ in 0..net.flat.elements.len() {
        let (next, _) = net.target(at, 0)?;
        let class = net.class(next);
        if class == "RED" {
            return Some(next);
        }
        let ends = class.ends_with("Unqueue") || net.is_queue(next);
        if ends || net.sources(next).len() != 1 || net.outputs(next) != 1 {
            return None;
        }
        at = next;
    }
    None
}

/// Most schedulers that pull from each other.
const DEPTH_MOST: usize = 8;

struct Builder<'a> {
    net: &'a Net<'a>,
    /// The schedulers around the present one.
    depth: usize,
    queues: Vec<usize>,
    parts: Vec<usize>,
    device: Option<String>,
    /// See [`Tree::aside`].
    aside: Vec<(usize, usize)>,
}

impl<'a> Builder<'a> {
    fn new(net: &'a Net<'a>) -> Self {
        let (queues, parts, aside) = (Vec::new(), Vec::new(), Vec::new());
        Self { net, depth: 0, queues, parts, device: None, aside }
    }

    fn error<T>(&self, element: usize, message: &str) -> Result<T, Error> {
        Err(self.net.error(element, message))
    }

    /// The tree of a scheduler; `None` if another scheduler pulls from it.
    fn tree(mut self, root: usize) -> Result<Option<(String, Self)>, Error> {
        let Some(shapers) = self.behind(root)? else { return Ok(None) };
        let order = self.scheduler(root)?;
        Ok(Some((self.shaped(order, shapers)?, self)))
    }

    /// The tree of a queue without a scheduler.
    fn single(mut self, queue: usize, red: Option<usize>) -> Result<(String, Self), Error> {
        let shapers = self.behind(queue)?.unwrap_or_default();
        let order = self.queue(queue, red)?;
        Ok((self.shaped(order, shapers)?, self))
    }

    fn shaped(&mut self, mut order: String, shapers: Vec<usize>) -> Result<String, Error> {
        for shaper in shapers {
            let label = &self.net.element(shaper).name;
            order = format!("{label}:rate({}, {order})", self.rate(shaper)?);
        }
        Ok(order)
    }

    /// The shapers between a root and what pulls from it; `None` if that is another scheduler.
    fn behind(&mut self, root: usize) -> Result<Option<Vec<usize>>, Error> {
        let (mut at, mut shapers) = (root, Vec::new());
        for _ in 0..self.net.flat.elements.len() {
            let Some((next, _)) = self.net.target(at, 0) else { break };
            let class = self.net.class(next);
            if SCHEDULERS.contains(&class) {
                return Ok(None);
            }
            if self.net.is_to_device(next) {
                let device = device(self.net, next);
                self.device = Some(device.map_err(|why| self.net.error(next, &why))?);
            }
            if is_shaper(class) {
                shapers.push(next);
            }
            self.no_delay(next)?;
            let ends = class.ends_with("Unqueue") || self.net.is_queue(next);
            if ends || self.net.sources(next).len() != 1 {
                break;
            }
            at = next;
        }
        Ok(Some(shapers))
    }

    /// Refuses an element that delays packets.
    fn no_delay(&self, element: usize) -> Result<(), Error> {
        if DELAYS.contains(&self.net.class(element)) {
            let message = "a delay is supported behind a Queue without scheduler and RED only; lead its packets \
                           to another Queue in front of these";
            return self.error(element, message);
        }
        Ok(())
    }

    fn rate(&mut self, shaper: usize) -> Result<String, Error> {
        if self.net.outputs(shaper) > 1 {
            return self.error(shaper, "its second output is not supported yet");
        }
        self.parts.push(shaper);
        rate(self.net, shaper).map_err(|why| self.net.error(shaper, &why))
    }

    /// A scheduler with all that it pulls from.
    fn scheduler(&mut self, element: usize) -> Result<String, Error> {
        self.parts.push(element);
        self.depth += 1;
        if self.depth > DEPTH_MOST {
            return self.error(
                element,
                &format!("more than {DEPTH_MOST} schedulers pull from each other"),
            );
        }
        let mut inputs = Vec::new();
        let sources = self.net.sources(element);
        for input in 0..sources.len() {
            let to = Some((element, input));
            let from = sources.iter().find(|(from, output)| self.net.target(*from, *output) == to);
            let Some(&from) = from else {
                return self.error(element, &format!("nothing is connected to input {input}"));
            };
            inputs.push(self.input(from, element)?);
        }
        self.depth -= 1;
        let (name, class) = (&self.net.element(element).name, self.net.class(element));
        let read = discipline(self.net.args(element), (name, class), &inputs);
        read.map_err(|why| self.net.error(element, &why))
    }

    /// What an output gives to a scheduler.
    fn input(&mut self, (mut at, output): (usize, usize), by: usize) -> Result<String, Error> {
        let (mut red, mut rates) = (None, Vec::new());
        let mut output = output;
        for _ in 0..self.net.flat.elements.len() {
            let class = self.net.class(at);
            if output > 0 {
                return self.error(at, "its second output cannot be pulled from here");
            }
            if SCHEDULERS.contains(&class) && red.is_some() {
                return self.error(at, "RED behind a scheduler is not supported yet");
            }
            let found = if SCHEDULERS.contains(&class) {
                Some(self.scheduler(at)?)
            } else if self.net.is_queue(at) {
                Some(self.queue(at, red)?)
            } else {
                None
            };
            if let Some(found) = found {
                return self.shaped(found, rates);
            }
            if is_shaper(class) {
                rates.insert(0, at);
            }
            if class == "RED" {
                red = Some(at);
            }
            self.no_delay(at)?;
            let [source] = self.net.sources(at)[..] else { break };
            (at, output) = source;
        }
        self.error(by, "it can pull from queues only; put a Queue in front of each of its inputs")
    }

    fn queue(&mut self, queue: usize, red_behind: Option<usize>) -> Result<String, Error> {
        if self.queues.contains(&queue) {
            return self.error(queue, "two inputs pull from it");
        }
        if self.queues.len() >= QUEUES_MOST {
            return self.error(queue, &format!("at most {QUEUES_MOST} queues for one scheduler"));
        }
        self.queues.push(queue);
        let capacity = capacity(self.net, queue).map_err(|why| self.net.error(queue, &why))?;
        let name = self.net.step_name(queue);
        let early = match red_behind.or_else(|| red_in_front(self.net, queue)) {
            Some(red) => self.red(red, queue)?,
            None => String::new(),
        };
        Ok(format!("{name}[{capacity}{early}]"))
    }

    /// The early drops of the latest queue.
    fn red(&mut self, red: usize, queue: usize) -> Result<String, Error> {
        self.parts.push(red);
        let early = early(self.net.args(red)).map_err(|why| self.net.error(red, &why))?;
        let aside = if self.net.target(red, 1).is_some() { " aside" } else { "" };
        if !aside.is_empty() {
            let is_next = [(queue, red), (red, queue)]
                .iter()
                .any(|&(from, to)| self.net.target(from, 0) == Some((to, 0)));
            if !is_next {
                let message = "with a second output it must be next to its Queue; put other elements elsewhere";
                return self.error(red, message);
            }
            self.aside.push((self.queues.len() - 1, red));
            if self.queues.len() + self.aside.len() > QUEUES_MOST {
                let message = format!(
                    "at most {QUEUES_MOST} queues and second outputs of RED for one scheduler"
                );
                return self.error(red, &message);
            }
        }
        Ok(format!(" {}:{early}{aside}", self.net.element(red).name))
    }
}

/// Most tickets; Click takes more as so many, too.
const TICKETS_MOST: u64 = 1 << 15;

/// Tickets of an input or an output.
pub(super) fn tickets(text: &str, scope: &Scope<'_>) -> Result<u64, String> {
    kinds::integer(0..=u64::MAX)(text, scope).map(|tickets| tickets.min(TICKETS_MOST))
}

/// A scheduler of this class over these inputs.
fn discipline(
    mut args: Args<'_>,
    (name, class): (&str, &str),
    inputs: &[String],
) -> Result<String, String> {
    let all = inputs.join(", ");
    let order = match class {
        "PrioSched" | "SimplePrioSched" => format!("prio({all})"),
        "DRRSched" => {
            let quantum = args.optional("QUANTUM", kinds::integer(1..=1 << 20))?.unwrap_or(500);
            format!("drr({quantum}, {all})")
        }
        "StrideSched" => {
            let mut shares = Vec::new();
            for input in inputs {
                let tickets = args.required("TICKETS", tickets)?;
                shares.push(format!("{tickets} {input}"));
            }
            format!("{name}:stride({})", shares.join(", "))
        }
        "PullSwitch" | "SimplePullSwitch" | "StaticPullSwitch" => {
            let to = args.optional("INPUT", kinds::integer(i64::MIN..=inputs.len() as i64 - 1))?;
            format!("{name}:switch({}, {all})", to.unwrap_or(0).max(-1))
        }
        _ => format!("round-robin({all})"),
    };
    args.finish()?;
    Ok(order)
}

/// The settings of `RED`, behind a queue's capacity.
fn early(mut args: Args<'_>) -> Result<String, String> {
    let least = args.required("MIN_THRESH", kinds::integer(0..=0xffff))?;
    let most = args.required("MAX_THRESH", kinds::integer(0..=0xffff))?;
    let probability = args.required("MAX_P", probability)?;
    let stability = args.keyword("STABILITY", kinds::integer(0..=16))?.unwrap_or(4);
    let gentle = args.keyword("GENTLE", kinds::boolean)?.unwrap_or(true);
    if args.keyword("QUEUES", kinds::raw)?.is_some() {
        return Err("QUEUES is not supported yet: it is the queue next to it".to_owned());
    }
    args.finish()?;
    if least > most {
        return Err(format!("MIN_THRESH {least} is above MAX_THRESH {most}"));
    }
    let gentle = if gentle { " gentle" } else { "" };
    Ok(format!("red {least} {most} {probability} stability {stability}{gentle}"))
}
