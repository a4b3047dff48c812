//! Hostile scripts for tests: generated from bytes, run on packets between guards.
//!
//! A script keeps every value it obtains in places: views, masks, counters, functions, forged objects, wild
//! numbers. It is a list of operations on these, each within `pcall`, some in loops that are compiled: methods
//! with every kind of receiver, fields, arithmetic, the library, statements of the configuration. A value in a
//! place stays there for later batches. The bytes choose; the same bytes make the same script.
#![allow(unsafe_code)] // Reads and writes the room around packets, which nothing else is to touch.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use dataplane::batch::Batch;
use dataplane::graph::{MAX_OUTPUTS, Step};
use dataplane::mask::Mask;
use dataplane::testing::{FrameBuilder, batch_of};

use crate::{ForwarderLua, LuaStep, Policy, ScriptSource, SharedObjects, StepSettings, Watchdog};

/// Number of places for values.
const PLACES: usize = 40;

/// Number of bytes before and after each packet that are checked.
const GUARD: usize = 64;

/// Bytes of a slot that may always be written.
const HEAD: usize = 64;

/// Content of the guards.
const PATTERN: u8 = 0xa5;

/// Most operations of a script at a time.
const OPERATIONS: usize = 60;

const METHODS: &[&str] = &[
    "each",
    "len",
    "port",
    "mirror",
    "ethernet",
    "vlan",
    "arp",
    "ip4",
    "ip6",
    "udp",
    "tcp",
    "icmp",
    "u8",
    "u16",
    "u32",
    "set_u8",
    "set_u16",
    "set_u32",
    "mark",
    "set_mark",
    "category",
    "has",
    "add",
    "remove",
    "count",
    "empty",
    "equals",
    "copy",
    "set_dst",
    "set_src",
    "set_type",
    "set_id",
    "set_pcp",
    "set_dscp",
    "set_ecn",
    "set_ttl",
    "set_hop_limit",
    "src",
    "dst",
    "take",
    "get",
    "set",
    "now",
    "hash",
    "prefix",
    "mac",
    "ports",
    "ip4_text",
    "mac_text",
    "counter",
    "counters",
    "buckets",
    "table",
    "mask",
    "step",
    "rep",
    "format",
    "find",
    "gsub",
    "match",
    "byte",
    "upper",
];

const FIELDS: &[&str] = &[
    "slot",
    "at",
    "size",
    "bits",
    "unused",
    "type",
    "dst",
    "src",
    "id",
    "pcp",
    "ttl",
    "dscp",
    "protocol",
    "total_length",
    "df",
    "checksum",
    "next_header",
    "flow",
    "hop_limit",
    "length",
    "flags",
    "syn",
    "sequence",
    "code",
    "operation",
    "sender_mac",
    "no_such_field",
    "__index",
    "a",
    "b",
];

const LITERALS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "63",
    "64",
    "-1",
    "13",
    "41",
    "42",
    "53",
    "54",
    "65",
    "127",
    "128",
    "1513",
    "1514",
    "2^31",
    "2^31-1",
    "-2^31",
    "2^32",
    "2^45",
    "2^53",
    "2^63",
    "-2^63",
    "0/0",
    "1/0",
    "-1/0",
    "0.5",
    "63.5",
    "63.99999999999999",
    "1-2^-53",
    "4-2^-51",
    "'left'",
    "'right'",
    "'x'",
    "'63'",
    "''",
    "nil",
    "true",
    "false",
    "{}",
    "{1,2,3}",
    "{ slot = 0, at = -10000, bits = -1, size = 2^45 }",
    "('x'):rep(1000)",
    "'%s%d'",
    "'.-'",
    "'10.0.0.1/33'",
    "'fe80::1'",
    "function() return 1 end",
    "function() error({}) end",
];

const LIBRARY: &[&str] = &[
    "string.rep",
    "string.format",
    "string.find",
    "string.gsub",
    "string.sub",
    "string.byte",
    "string.char",
    "string.reverse",
    "table.concat",
    "table.sort",
    "table.insert",
    "table.remove",
    "table.maxn",
    "math.floor",
    "math.random",
    "math.huge",
    "math.max",
    "bit.band",
    "bit.bor",
    "bit.lshift",
    "bit.tobit",
    "bit.tohex",
    "bit.bswap",
    "rawset",
    "rawget",
    "rawequal",
    "setmetatable",
    "getmetatable",
    "tostring",
    "tonumber",
    "type",
    "next",
    "pairs",
    "ipairs",
    "unpack",
    "select",
    "error",
    "assert",
    "pcall",
    "xpcall",
    "require",
    "print",
    "turnpike.hash",
    "turnpike.ip4",
    "turnpike.ip6",
    "turnpike.mac",
    "turnpike.prefix",
    "turnpike.set",
    "turnpike.ports",
    "turnpike.now",
    "turnpike.mask",
    "turnpike.counter",
    "turnpike.counters",
    "turnpike.step",
    "turnpike.buckets",
    "turnpike.table",
    "turnpike.route",
    "turnpike.port",
];

const OPERATORS: &[&str] = &["+", "-", "*", "/", "%", "^", "..", "==", "<", "<=", "and", "or"];

/// Beginning of every script: `T` runs an operation and keeps its result.
const BEGINNING: &str = "
local turnpike = require 'turnpike'
local K = {}
local function keep(place, ok, ...)
  if ok then
    for n = 1, select('#', ...) do
      local value = select(n, ...)
      if value ~= nil then K[(place + n - 2) % 40 + 1] = value end
    end
  end
end
local function T(place, what, ...) keep(place, pcall(what, ...)) end
K[4], K[5] = turnpike.counter 'one', turnpike.counters('many', 4)
K[6] = turnpike.buckets 'hostile-buckets' { rate = 1e6, size = 64 }
K[7] = turnpike.table 'hostile-table' { size = 64, seconds = 1 }
K[8] = turnpike
K[9] = setmetatable({}, {
  __index = function() return -2^40 end, __newindex = function() end, __call = function() return 2^40 end,
  __lt = function() return false end, __le = function() return true end, __eq = function() return true end,
  __add = function() return -2^40 end, __sub = function() return 2^40 end, __mod = function() return 0 end,
  __div = function() return 1 end, __mul = function() return 2^53 end, __concat = function() return '' end,
  __tostring = function() return 'deceitful' end, __len = function() return 2^45 end,
})
K[10] = { slot = 0, at = -10000, bits = -1, size = 2^45 }
K[11] = { slot = 2^45, at = 2^45, bits = 2^63, size = 2^45 }
";

/// Bytes that make the choices. After their end, the first of each kind is chosen.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first.into()
    }

    fn one_of<'b>(&mut self, all: &[&'b str]) -> &'b str {
        all[self.byte() % all.len()]
    }

    fn place(&mut self) -> usize {
        // Places with the batch's own values are chosen as often as all others together.
        let byte = self.byte();
        if byte < 128 { byte % 12 + 1 } else { byte % PLACES + 1 }
    }

    fn value(&mut self) -> String {
        match self.byte() % 3 {
            0 => self.one_of(LITERALS).to_owned(),
            _ => format!("K[{}]", self.place()),
        }
    }

    fn values(&mut self) -> String {
        let count = self.byte() % 5;
        (0..count).map(|_| self.value()).collect::<Vec<_>>().join(", ")
    }

    /// Generates an expression.
    fn expression(&mut self) -> String {
        let (place, kind) = (self.place(), self.byte() % 10);
        match kind {
            0..=2 => {
                let (method, values) = (self.one_of(METHODS), self.values());
                format!("K[{place}]:{method}({values})")
            }
            // The method of one value on another.
            3 => {
                let (method, values) = (self.one_of(METHODS), self.values());
                format!("K[{place}].{method}({values})")
            }
            4 => format!("K[{place}].{}", self.one_of(FIELDS)),
            5 => format!("K[{place}][{}]", self.value()),
            6 => {
                let (one, operator, other) = (self.value(), self.one_of(OPERATORS), self.value());
                format!("({one} {operator} {other})")
            }
            7 => {
                let (function, values) = (self.one_of(LIBRARY), self.values());
                format!("{function}({values})")
            }
            // A packet of the batch, at its end or a little beyond.
            8 if self.byte().is_multiple_of(2) => {
                let (method, slot) = (self.one_of(&METHODS[12..18]), self.byte() % 9);
                format!(
                    "K[1]:{method}({slot}, K[1]:len({slot}) + {}, 90)",
                    (self.byte() % 8) as i32 - 4
                )
            }
            // A view of a packet.
            8 => {
                let view = self.one_of(&METHODS[4..12]);
                format!("K[1]:{view}({})", self.byte() % 9)
            }
            _ => format!("K[{place}]({})", self.values()),
        }
    }

    fn operation(&mut self) -> String {
        let place = self.place();
        match self.byte() % 8 {
            0 => {
                let (field, value) = (self.one_of(FIELDS), self.value());
                format!("T(1, function() K[{place}].{field} = {value} end)")
            }
            // Often enough to be compiled.
            1 => {
                let (expression, value) = (self.expression(), self.value());
                format!(
                    "T({place}, function() local x for n = 1, 90 do x = {expression} end return x end, {value})"
                )
            }
            2 => {
                let expression = self.expression();
                format!(
                    "T(1, function() for i in K[1]:each(K[{place}]) do K[12] = i K[13] = {expression} end end)"
                )
            }
            // Inside an error handler, and outside.
            3 => {
                let (one, other) = (self.expression(), self.expression());
                format!(
                    "T({place}, xpcall, function() return {one} end, function() return {other} end)"
                )
            }
            4 => format!("K[{place}] = {}", self.value()),
            _ => format!("T({place}, function() return {} end)", self.expression()),
        }
    }

    fn operations(&mut self) -> String {
        let (count, mut text) = (self.byte() % OPERATIONS, String::new());
        for _ in 0..count {
            if self.0.is_empty() {
                break;
            }
            let _ = writeln!(text, "{}", self.operation());
        }
        text
    }
}

/// Returns the script that these bytes make.
pub fn hostile_script(bytes: &[u8]) -> String {
    let mut choices = Choices(bytes);
    let answer =
        choices.one_of(&["mask", "out.a", "nil", "K[14]", "K[14], K[15]", "batch", "mask, mask"]);
    let loading = choices.operations();
    let running = choices.operations();
    format!(
        "{BEGINNING}{loading}
turnpike.step 'test' {{ outputs = {{ 'a', 'b' }}, process = function(batch, mask, out)
K[1], K[2], K[3] = batch, mask, out
{running}
return {answer}
end }}"
    )
}

fn watchdog() -> &'static Watchdog {
    static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
    WATCHDOG.get_or_init(|| Watchdog::start().expect("a thread"))
}

/// Returns the step of a script, if the script makes one; failures never disable it.
fn step_of(text: &str) -> Option<LuaStep> {
    let ports = ["left", "right"].map(str::to_owned);
    let categories = ["new".to_owned()];
    let shared = Arc::<SharedObjects>::default();
    let peers = Arc::default();
    let source = ScriptSource {
        text,
        file: "hostile.lua",
        ports: &ports,
        categories: &categories,
        shared: &shared,
        peers: &peers,
    };
    let lua = ForwarderLua::load(&source, watchdog()).ok()?;
    let settings = StepSettings {
        name: "test".into(),
        outputs: vec!["a".into(), "b".into()],
        drops: Vec::new(),
        limit: 0,
        policy: Policy::Bypass,
        budget_us: 20_000,
    };
    lua.into_step(&settings).ok()
}

/// Frames of every kind that a step has views for, some of them too short.
fn frames(turn: usize) -> Vec<Vec<u8>> {
    let mut tagged = FrameBuilder::ip4().udp(1, 2, b"tagged").build();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    let mut options = FrameBuilder::ip4().protocol(6).payload(&[0; 64]).build();
    options[14] = 0x4f;
    let mut extended = FrameBuilder::ip6().udp(1, 2, b"extended").build();
    extended[20] = 43;
    extended[55] = 0xff;
    let mut all = vec![
        FrameBuilder::ip4().udp(1, 2, b"four").build(),
        FrameBuilder::ip6().udp(1, 2, b"six").build(),
        FrameBuilder::ip4().protocol(6).payload(&[0; 20]).build(),
        FrameBuilder::ip4().protocol(1).payload(&[0; 8]).build(),
        tagged,
        options,
        extended,
        [&[0xff; 12][..], &[8, 6], &[0; 28]].concat(),
        FrameBuilder::ip4().udp(1, 2, &[7; 1400]).build(),
    ];
    // A frame that was long in one batch is short in the next, and its view is kept.
    all.rotate_left(turn % 9);
    let cut = all[0].len().min(20 + turn);
    all[0].truncate(cut);
    all
}

/// Runs a script on some batches.
///
/// # Panics
/// The script has written outside a packet, changed its length, or assigned packets outside its mask.
pub fn run_hostile(text: &str) {
    let Some(mut step) = step_of(text) else { return };
    for turn in 0..3 {
        let frames = frames(turn);
        let mut batch = batch_of(&frames);
        let lens = *batch.lens();
        guard(&mut batch, frames.len(), |byte| *byte = PATTERN);
        // Some packets belong to another step.
        let input = Mask(0b1_1011_0111 >> turn);
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        step.process(&mut batch, input, &mut out);
        assert_eq!(*batch.lens(), lens, "{text}");
        let given = out.iter().fold(Mask::EMPTY, |all, &one| all | one);
        assert_eq!(given.0 & !input.0, 0, "packets of another step\n{text}");
        guard(&mut batch, frames.len(), |byte| {
            assert_eq!(*byte, PATTERN, "beside a packet\n{text}")
        });
    }
}

/// Calls `each` with every byte of the guards around the first `count` packets.
fn guard(batch: &mut Batch, count: usize, mut each: impl FnMut(&mut u8)) {
    let lens = *batch.lens();
    let (heads, _, _) = batch.addresses();
    for (slot, &len) in lens.iter().enumerate().take(count) {
        let behind = usize::from(len).max(HEAD);
        // SAFETY: a buffer of the tests' pool has 128 bytes before its packet, and 2,048 in total; each of
        // these has a packet of at most 1,500 bytes, and no one else has the batch.
        unsafe {
            let head = *heads.add(slot);
            for at in 0..GUARD {
                each(&mut *head.sub(at + 1));
                each(&mut *head.add(behind + at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pseudo-random bytes for a seed (xorshift).
    fn bytes(seed: u64, count: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    /// `SCRIPTS=100000 cargo test -p script hostile_scripts` tries more scripts than CI has time for.
    #[test]
    fn hostile_scripts_harm_nothing_beside_their_packets() {
        let all = std::env::var("SCRIPTS").ok().and_then(|count| count.parse().ok());
        for seed in 1..=all.unwrap_or(300) {
            run_hostile(&hostile_script(&bytes(seed, 1500)));
        }
    }

    #[test]
    fn most_hostile_scripts_are_loaded_and_do_much() {
        let scripts: Vec<_> = (1..=300).map(|seed| hostile_script(&bytes(seed, 1500))).collect();
        let loaded = scripts.iter().take(40).filter(|text| step_of(text).is_some()).count();
        assert!(loaded >= 30, "{loaded} of 40");
        let text = scripts.concat();
        for part in METHODS.iter().chain(FIELDS).chain(LIBRARY).chain(LITERALS) {
            assert!(text.contains(part), "no script has {part}");
        }
    }

    #[test]
    #[should_panic(expected = "beside a packet")]
    fn what_is_written_beside_a_packet_is_seen() {
        let frames = frames(0);
        let mut batch = batch_of(&frames);
        guard(&mut batch, frames.len(), |byte| *byte = PATTERN);
        let mut bytes = 0;
        guard(&mut batch, frames.len(), |byte| {
            bytes += 1;
            *byte ^= u8::from(bytes == 700);
        });
        guard(&mut batch, frames.len(), |byte| assert_eq!(*byte, PATTERN, "beside a packet"));
    }
}
