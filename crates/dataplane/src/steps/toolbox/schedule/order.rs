//! The language of orders: `rate(10mbit, prio(voice[100], drr(500, a[1000], b[1000 red 50 500 0.02])))`.

use std::ops::Range;

use super::super::Pace;
use super::super::queue::Departures;
use super::super::stride::Stride;
use super::QUEUES_MOST;
use super::tree::{Drr, Node};
use crate::params::Rate;

/// A queue of an order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct QueueConfig {
    pub(super) name: String,
    /// The most packets.
    pub(super) capacity: usize,
    pub(super) early: Option<Early>,
}

/// Random early detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Early {
    pub(super) least: u32,
    pub(super) most: u32,
    pub(super) probability: f64,
    pub(super) stability: u8,
    pub(super) gentle: bool,
    /// The selected packets have an output of their own.
    pub(super) aside: bool,
}

/// Most packets of a queue.
const CAPACITY_MOST: usize = 65_536;

/// Most nested nodes.
const DEPTH_MOST: usize = 16;

/// Characters that end a word.
const MARKS: [char; 5] = ['(', ')', '[', ']', ','];

/// Reads an order; `hz` is the clock of its rates.
pub(super) fn read(text: &str, hz: u64) -> Result<(Node, Vec<QueueConfig>), String> {
    let mut reader = Reader { rest: text.trim(), queues: Vec::new(), depth: 0, outputs: 0, hz };
    let node = reader.node()?;
    if !reader.rest.is_empty() {
        return Err(reader.expected("nothing more"));
    }
    Ok((node, reader.queues))
}

struct Reader<'a> {
    rest: &'a str,
    queues: Vec<QueueConfig>,
    depth: usize,
    /// Outputs that the queues need.
    outputs: usize,
    hz: u64,
}

impl<'a> Reader<'a> {
    fn expected(&self, what: &str) -> String {
        let found: String = self.rest.chars().take(20).collect();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("\"{found}\"") };
        format!("expected {what}, found {found}")
    }

    /// Text up to the next mark.
    fn word(&mut self) -> &'a str {
        let end = self.rest.find(MARKS).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.trim()
    }

    fn accepts(&mut self, mark: char) -> bool {
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }

    fn mark(&mut self, mark: char) -> Result<(), String> {
        if self.accepts(mark) { Ok(()) } else { Err(self.expected(&format!("\"{mark}\""))) }
    }

    fn node(&mut self) -> Result<Node, String> {
        let word = self.word();
        if self.accepts('[') {
            return self.queue(word);
        }
        if !self.accepts('(') {
            return Err(self.expected("\"[\" behind a queue's name, or \"(\""));
        }
        let word = unlabelled(word);
        self.depth += 1;
        if self.depth > DEPTH_MOST {
            return Err(format!("more than {DEPTH_MOST} nodes in each other"));
        }
        let node = match word {
            "prio" => Node::Prio(self.nodes()?),
            "round-robin" => Node::RoundRobin(self.nodes()?, 0),
            "drr" => {
                let quantum = self.number("a quantum in bytes", 1..=1 << 20)?;
                self.mark(',')?;
                let nodes = self.nodes()?;
                let drr = Drr::new(quantum as u64, nodes.len());
                Node::Drr(nodes, drr)
            }
            "stride" => self.stride()?,
            "switch" => {
                let to = self.number("a number, or -1", -1..=QUEUES_MOST as i64)?;
                self.mark(',')?;
                Node::Switch(self.nodes()?, usize::try_from(to).ok())
            }
            "rate" => self.rate()?,
            _ => {
                return Err(format!(
                    "\"{word}\": unknown; known: prio, round-robin, drr, stride, switch, rate"
                ));
            }
        };
        self.depth -= 1;
        self.mark(')')?;
        Ok(node)
    }

    fn nodes(&mut self) -> Result<Vec<Node>, String> {
        let mut nodes = vec![self.node()?];
        while self.accepts(',') {
            nodes.push(self.node()?);
        }
        Ok(nodes)
    }

    /// A number that ends at a mark.
    fn number(&mut self, what: &str, range: std::ops::RangeInclusive<i64>) -> Result<i64, String> {
        let word = self.word();
        let number = word.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            format!("\"{word}\": expected {what}, from {} to {}", range.start(), range.end())
        })
    }

    fn stride(&mut self) -> Result<Node, String> {
        let (mut nodes, mut tickets) = (Vec::new(), Vec::new());
        loop {
            let (number, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
            let number = number.parse().ok().filter(|number| *number <= Stride::TICKETS_MOST);
            tickets.push(number.ok_or_else(|| {
                self.expected(&format!("tickets, up to {}, and a node", Stride::TICKETS_MOST))
            })?);
            self.rest = rest.trim_start();
            nodes.push(self.node()?);
            if !self.accepts(',') {
                return Ok(Node::Stride(nodes, Stride::new(&tickets)));
            }
        }
    }

    fn rate(&mut self) -> Result<Node, String> {
        let word = self.word();
        let rate = Rate::read(word);
        let rate = rate.ok_or_else(|| format!("\"{word}\": expected a rate such as 10mbit"))?;
        self.mark(',')?;
        let departures = Departures::new(Pace { rate, hz: self.hz });
        Ok(Node::Rate(departures, Box::new(self.node()?)))
    }

    fn queue(&mut self, name: &str) -> Result<Node, String> {
        let config = self.word();
        let wrong = |why: String| format!("queue \"{name}\": {why}");
        if name.is_empty() || self.queues.iter().any(|known| known.name == name) {
            return Err(wrong("expected a name of its own".to_owned()));
        }
        let (capacity, early) = config.split_once(' ').unwrap_or((config, ""));
        let capacity = capacity.parse().ok().filter(|most| (1..=CAPACITY_MOST).contains(most));
        let capacity = capacity
            .ok_or_else(|| wrong(format!("expected its capacity, from 1 to {CAPACITY_MOST}")))?;
        let early = match early.trim() {
            "" => None,
            early => Some(self::early(unlabelled(early)).ok_or_else(|| {
                wrong("expected \"red MIN MAX P\" with MIN <= MAX, 0 <= P <= 1".to_owned())
            })?),
        };
        self.mark(']')?;
        self.outputs += 1 + usize::from(early.is_some_and(|early| early.aside));
        if self.outputs > QUEUES_MOST {
            return Err(format!("more than {QUEUES_MOST} queues; aside counts as one"));
        }
        self.queues.push(QueueConfig { name: name.to_owned(), capacity, early });
        Ok(Node::Queue(self.queues.len() - 1))
    }
}

/// Text behind the label in front of it.
fn unlabelled(text: &str) -> &str {
    let first = text.find([' ', '(']).unwrap_or(text.len());
    text[..first].rfind(':').map_or(text, |colon| &text[colon + 1..])
}

/// Reads `red MIN MAX P [stability N] [gentle] [aside]`.
fn early(text: &str) -> Option<Early> {
    let mut words = text.split_ascii_whitespace();
    if words.next()? != "red" {
        return None;
    }
    let least = words.next()?.parse().ok()?;
    let most = words.next()?.parse().ok().filter(|most| least <= *most && *most <= 0xffff)?;
    let probability = words.next()?.parse().ok().filter(|p| (0.0..=1.0).contains(p))?;
    let mut early = Early { least, most, probability, stability: 4, gentle: false, aside: false };
    while let Some(word) = words.next() {
        match word {
            "stability" => {
                early.stability = words.next()?.parse().ok().filter(|shift| *shift <= 16)?;
            }
            "gentle" => early.gentle = true,
            "aside" => early.aside = true,
            _ => return None,
        }
    }
    Some(early)
}

/// A number of a node, which handlers of Click elements read and change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderNumber {
    /// The first one, of `rate`, `switch` and `drr`.
    First,
    /// The tickets of this child of `stride`.
    Tickets(usize),
    /// This number of `red`: the least and the largest length, the probability.
    Early(usize),
}

/// Returns the place of a number of the node with this label.
fn place(order: &str, label: &str, number: OrderNumber) -> Option<Range<usize>> {
    let labelled = format!("{label}:");
    let is_begin = |at: usize| {
        let before = order[..at].chars().next_back();
        before.is_none_or(|before| before.is_whitespace() || MARKS.contains(&before))
    };
    let mut found = order.match_indices(&labelled).map(|(at, _)| at);
    let node = found.find(|&at| is_begin(at))? + labelled.len();
    let rest = &order[node..];
    let words = |from: usize, to: usize, which: usize| {
        let text = &order[from..to];
        let word = text.split_whitespace().nth(which)?;
        let at = from + (word.as_ptr() as usize - text.as_ptr() as usize);
        Some(at..at + word.len())
    };
    match number {
        OrderNumber::First => {
            let begin = node + rest.find('(')? + 1;
            words(begin, begin + order[begin..].find(',')?, 0)
        }
        OrderNumber::Early(which) => words(node, node + rest.find(']')?, which + 1),
        OrderNumber::Tickets(child) => {
            let begin = node + rest.find('(')? + 1;
            let at = begin + children(&order[begin..]).get(child)?;
            words(at, order.len(), 0)
        }
    }
}

/// The places at which the children of a node begin, in the text behind its parenthesis.
fn children(text: &str) -> Vec<usize> {
    let (mut depth, mut begins) = (0, vec![0]);
    for (at, mark) in text.char_indices() {
        match mark {
            '(' | '[' => depth += 1,
            ')' | ']' if depth == 0 => break,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => begins.push(at + 1),
            _ => {}
        }
    }
    begins
}

/// Returns a number of the node with this label, as it is written.
pub fn order_number<'a>(order: &'a str, label: &str, which: OrderNumber) -> Option<&'a str> {
    order.get(place(order, label, which)?)
}

/// Returns the order with another number in the node with this label.
pub fn with_order_number(
    order: &str,
    label: &str,
    which: OrderNumber,
    value: &str,
) -> Option<String> {
    let place = place(order, label, which)?;
    let mut changed = order.to_owned();
    changed.replace_range(place, value);
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_labelled_nodes_are_found_and_changed() {
        let order = "x/s:rate(10mbit, s:stride(3 a[100 r:red 5 50 0.02 gentle], 1 p:switch(-1, b[7], c[8])))";
        assert!(read(order, 1000).is_ok());
        for (label, which, expected) in [
            ("x/s", OrderNumber::First, Some("10mbit")),
            ("p", OrderNumber::First, Some("-1")),
            ("s", OrderNumber::Tickets(0), Some("3")),
            ("s", OrderNumber::Tickets(1), Some("1")),
            ("s", OrderNumber::Tickets(2), None),
            ("r", OrderNumber::Early(0), Some("5")),
            ("r", OrderNumber::Early(2), Some("0.02")),
            ("q", OrderNumber::First, None),
        ] {
            assert_eq!(order_number(order, label, which), expected, "{label} {which:?}");
        }
        let changed = with_order_number(order, "s", OrderNumber::Tickets(1), "20").unwrap();
        assert_eq!(changed, order.replace("1 p:", "20 p:"));
        assert!(read(&changed, 1000).is_ok());
        assert_eq!(with_order_number(order, "q", OrderNumber::First, "1"), None);
    }

    #[test]
    fn orders_are_read() {
        let text = "rate(1mbit, prio(v[100], drr(500, a[5 red 1 2 0.5 stability 0 gentle], b/c@1[6]), \
                    stride(5 d[1], 0 e[1]), switch(-1, f[1]), round-robin(g[65536])))";
        let (node, queues) = read(text, 1000).unwrap();
        let names: Vec<_> = queues.iter().map(|queue| (&*queue.name, queue.capacity)).collect();
        let expected =
            [("v", 100), ("a", 5), ("b/c@1", 6), ("d", 1), ("e", 1), ("f", 1), ("g", 65_536)];
        assert_eq!(names, expected);
        assert_eq!(
            queues[1].early,
            Some(Early {
                least: 1,
                most: 2,
                probability: 0.5,
                stability: 0,
                gentle: true,
                aside: false
            })
        );
        let front = |queue: usize| (queue == 4 || queue == 5).then_some(60);
        assert_eq!(node.next(&front, 0), None, "no tickets, and no number");
        assert_eq!(node.next(&|queue| (queue >= 3).then_some(60), 0), Some(3));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, expected) in [
            ("", "expected \"[\" behind a queue's name, or \"(\", found the end"),
            ("a", "found the end"),
            ("a[0]", "queue \"a\": expected its capacity, from 1 to 65536"),
            ("a[1] b", "expected nothing more, found \"b\""),
            ("prio(a[1], a[2])", "queue \"a\": expected a name of its own"),
            ("[1]", "queue \"\": expected a name"),
            ("pro(a[1])", "\"pro\": unknown; known: prio, "),
            ("prio(a[1]", "expected \")\", found the end"),
            ("drr(0, a[1])", "\"0\": expected a quantum in bytes, from 1 to 1048576"),
            ("stride(a[1])", "expected tickets, up to 32768, and a node"),
            ("stride(99999 a[1])", "expected tickets"),
            ("rate(1, a[1])", "\"1\": expected a rate"),
            ("switch(x, a[1])", "\"x\": expected a number, or -1"),
            ("a[1 red 5 4 0.1]", "queue \"a\": expected \"red MIN MAX P\""),
            ("a[1 red 1 4 1.1]", "queue \"a\": expected \"red MIN MAX P\""),
            ("a[1 red 1 4 0.1 x]", "queue \"a\": expected \"red MIN MAX P\""),
            ("a[1 codel]", "queue \"a\": expected \"red MIN MAX P\""),
        ] {
            let error = read(text, 1).err().unwrap_or_default();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let deep = format!("{}a[1]{}", "prio(".repeat(17), ")".repeat(17));
        assert!(read(&deep, 1).is_err());
        let many: Vec<_> = (0..13).map(|number| format!("q{number}[1]")).collect();
        assert!(read(&format!("prio({})", many.join(",")), 1).is_err());
        assert!(read(&format!("prio({})", many[1..].join(",")), 1).is_ok());
        let aside = format!("prio({},x[1 red 1 2 1 aside])", many[..11].join(","));
        assert!(read(&aside, 1).unwrap_err().contains("more than 12 queues; aside counts"));
    }
}
