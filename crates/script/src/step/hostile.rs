//! Scripts that try to escape: all functions within their reach, with all combinations of arguments.

use dataplane::batch::Batch;
use dataplane::testing::{FrameBuilder, batch_of};

use super::tests::{load, run, run_on, settings, step_of, step_with, udp_to};
use super::*;

/// Collects everything within a script's reach, in `all`, by name; functions are in `functions`.
const COLLECT: &str = "
    local counter, counters = turnpike.counter 'one', turnpike.counters('many', 4)
    local buckets = turnpike.buckets 'hostile-buckets' { rate = 1e6 }
    local seen = turnpike.table 'hostile-table' { size = 8, seconds = 1 }
    local function collect(batch, mask, out)
      local all = {
        batch = batch, mask = mask, out = out, counter = counter, counters = counters, buckets = buckets, table = seen, module = turnpike,
        number = 2^45, negative = -10000, nan = 0/0, infinite = 1/0, text = 'x', no = false,
        forged = { slot = 0, at = -10000, bits = -1, size = 2^45 },
        far = { slot = 2^45, at = 2^45, bits = 2^63, size = 2^45 },
        deceitful = setmetatable({}, {
          __index = function() return -2^40 end, __lt = function() return false end,
          __le = function() return true end, __add = function() return -2^40 end,
          __mod = function() return 0 end, __div = function() return 1 end,
          __sub = function() return 2^40 end, __tostring = function() return 'deceitful' end,
        }),
        ethernet = batch:ethernet(0), ip4 = batch:ip4(0), ip6 = batch:ip6(1), udp = batch:udp(0),
        tcp = batch:tcp(2), icmp = batch:icmp(3), absent = batch:ip4(1), own = turnpike.mask(),
      }
      local methods = {
        batch = { 'each', 'len', 'port', 'mirror', 'ethernet', 'vlan', 'arp', 'ip4', 'ip6', 'udp', 'tcp',
                  'icmp', 'u8', 'u16', 'u32', 'set_u8', 'set_u16', 'set_u32', 'mark', 'set_mark' },
        mask = { 'has', 'add', 'remove', 'count', 'empty', 'equals', 'copy' },
        ethernet = { 'set_dst', 'set_src', 'set_type' },
        ip4 = { 'set_dscp', 'set_ecn', 'set_ttl', 'set_src', 'set_dst' },
        ip6 = { 'set_dscp', 'set_ecn', 'set_hop_limit', 'set_src', 'set_dst', 'src', 'dst' },
        udp = { 'set_src', 'set_dst' }, tcp = { 'set_src', 'set_dst' },
        counter = { 'add' }, counters = { 'add' },
        buckets = { 'take' }, table = { 'get', 'set', 'add', 'remove' },
        module = { 'now', 'hash', 'ip4', 'ip6', 'mac', 'prefix', 'set', 'ports', 'buckets', 'table' },
      }
      local functions = { next_slot = batch:each(mask) }
      for owner, names in pairs(methods) do
        for _, name in ipairs(names) do
          functions[owner .. '.' .. name] = all[owner][name]
        end
      end
      return all, functions
    end
";

/// UDP over IPv4 and IPv6, TCP, ICMP.
fn frames() -> Vec<Vec<u8>> {
    vec![
        FrameBuilder::ip4().udp(1, 2, b"four").build(),
        FrameBuilder::ip6().udp(1, 2, b"six").build(),
        FrameBuilder::ip4().protocol(6).payload(&[0; 20]).build(),
        FrameBuilder::ip4().protocol(1).payload(&[0; 8]).build(),
    ]
}

/// A step with this function body, in which `collect` returns everything.
fn with_everything(body: &str, settings: StepSettings) -> LuaStep {
    let code = format!(
        "{COLLECT} turnpike.step 'test' {{ process = function(batch, mask, out) {body} end }}"
    );
    load(&code).unwrap().into_step(&settings).unwrap()
}

#[test]
fn a_method_believes_nothing_but_its_own_object() {
    let body = "
        local all, functions = collect(batch, mask, out)
        local own = { ethernet = true, ip4 = true, ip6 = true, udp = true, tcp = true, counter = true, counters = true,
                      buckets = true, table = true }
        for name, method in pairs(functions) do
          local owner = name:match '^%w+'
          if own[owner] then
            for what, value in pairs(all) do
              if what ~= owner and pcall(method, value, 1, 2, 3, 4) then
                error(name .. ' takes ' .. what)
              end
            end
          end
        end
        return mask";
    let mut step = with_everything(body, settings(&["next"]));
    assert_eq!(run(&mut step, &frames()).0, [0b1111, 0]);
}

#[test]
fn nothing_beside_the_packets_is_written_whatever_is_called_with_whatever() {
    // Every function with every two arguments, and a third of each kind that is a byte count.
    let body = "
        local all, functions = collect(batch, mask, out)
        for name, method in pairs(functions) do
          for _, object in pairs(all) do
            for _, first in pairs(all) do
              for _, second in ipairs { -1, 64, 2^45, 0/0, all.deceitful, all.forged } do
                pcall(method, object, first, second, 255)
              end
            end
          end
        end
        return mask";
    let patient = StepSettings { budget_us: 60_000_000, ..settings(&["next"]) };
    let mut step = with_everything(body, patient);
    // Slots outside the step's mask have packets, too: these must stay as they are, and so must lengths.
    let lengths = |batch: &Batch| *batch.lens();
    let mut batch = batch_of(&frames());
    let before = lengths(&batch);
    let mut out = [Mask::EMPTY; dataplane::graph::MAX_OUTPUTS];
    step.process(&mut batch, Mask(0b1111), &mut out);
    assert_eq!(lengths(&batch), before);
    assert_eq!(out[1], Mask::EMPTY, "{:?}", step.status().last_for_tests());
}

#[test]
fn counters_take_places_that_there_are() {
    let code = "
        local numbers = turnpike.counters('numbers', 4)
        local deceitful = setmetatable({}, {
          __lt = function() return false end, __le = function() return true end,
          __add = function() return 2^40 end,
        })
        turnpike.step 'test' { process = function(batch, mask)
          for _, k in ipairs { -1, 4, 0/0, 1/0, -1/0, 2^45, 'x', {}, deceitful } do
            if pcall(numbers.add, numbers, k) then error(tostring(k)) end
          end
          numbers:add(3)
          return mask
        end }";
    let lua = load(code).unwrap();
    let counters = lua.counters();
    let mut step = lua.into_step(&settings(&["next"])).unwrap();
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [1, 0], "{:?}", step.status().last_for_tests());
    assert_eq!([0, 1, 2, 3, 4].map(|index| counters.get(index)), [0, 0, 0, 1, 0]);
    assert!(load("turnpike.counters('numbers', '4')").is_err());
}

/// The last counter of all, by an index below the number of counters that becomes equal to it in an
/// addition.
#[test]
fn an_index_that_is_rounded_up_stays_in_its_counter() {
    let code = format!(
        "local before = turnpike.counters('before', {}) local last = turnpike.counters('last', 1)
         turnpike.step 'test' {{ process = function(batch, mask)
           for _ = 1, 100 do if pcall(last.add, last, 1 - 2^-53) then error('beyond the last') end end
           last:add(0.5)
           return mask
         end }}",
        crate::COUNTERS_MAX - 1
    );
    let lua = load(&code).unwrap();
    let counters = lua.counters();
    let mut step = lua.into_step(&settings(&["next"])).unwrap();
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [1, 0], "{:?}", step.status().last_for_tests());
    assert_eq!(counters.get(crate::COUNTERS_MAX - 1), 1);
}

/// The code that calls a step is made from strings; a script that replaces string methods must not
/// control it.
#[test]
fn methods_of_strings_that_a_script_replaces_are_its_own_affair() {
    let code = "
        local code = 'ffi = nil; return function() end, _G'
        for _, name in ipairs { 'format', 'find', 'sub', 'gsub', 'match', 'rep', 'lower', 'upper' } do
          string[name] = function() return 'while true do end' end
        end
        turnpike.step 'test' { outputs = { 'a', 'b' }, process = function(batch, mask)
          pcall(batch.u8, batch, 99, 1)
          return mask
        end }";
    let lua = load(code).unwrap();
    let mut step = lua.into_step(&settings(&["a", "b"])).unwrap();
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [1, 0, 0]);
}

#[test]
fn a_script_that_does_not_end_on_a_forwarder_is_an_error() {
    for endless in [
        "while true do end",
        "pcall(function() while true do end end) while true do end",
        "local t = setmetatable({}, { __index = function() while true do end end }) turnpike.step(t.x) {}",
        "turnpike.step 'test' { process = 1 } for _ in function() return 1 end do end",
    ] {
        let error = load(endless).err().unwrap_or_default();
        assert!(error.contains(OVERRUN_TEXT), "{endless}: {error}");
    }
}

/// Part of an overrun's error message.
const OVERRUN_TEXT: &str = "ran longer than its budget";

#[test]
fn a_pattern_cannot_keep_a_step_from_being_stopped() {
    let body = r#"return ("a"):rep(3000):find((".-"):rep(8) .. "b") and mask or mask"#;
    let patient = StepSettings { budget_us: 10_000_000, ..settings(&["next"]) };
    let mut step = step_with(body, patient);
    assert_eq!(run_on(&mut step, batch_of(&[udp_to(1)]), 1).0, [0, 1]);
    let failure = step.status().take_failure().unwrap().message;
    assert!(failure.contains("takes too many steps on 3000 bytes"), "{failure}");
}

#[test]
fn a_step_that_answers_nothing_has_failed() {
    let mut step = step_of("", &["next"]);
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [0, 1]);
    let mut step = step_of("", &["a", "b"]);
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [0, 0, 1]);
    let failure = step.status().take_failure().unwrap().message;
    assert!(failure.contains("returned no mask for any output, and filled none"), "{failure}");
    let mut step = step_of("out.b:add(0)", &["a", "b"]);
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [0, 1, 0]);
}

#[test]
fn buckets_and_tables_are_made_before_packets_come() {
    for make in ["turnpike.buckets 'late' { rate = 1 }", "turnpike.table 'late' { seconds = 1 }"] {
        let mut step = step_of(&format!("local late = {make} return mask"), &["next"]);
        assert_eq!(run(&mut step, &[udp_to(1)]).0, [0, 1]);
        let failure = step.status().last_for_tests().as_ref().unwrap().message.clone();
        assert!(failure.contains("make it once, before the step"), "{failure}");
    }
}
