use std::sync::OnceLock;

use dataplane::graph::MAX_OUTPUTS;
use dataplane::testing::{FrameBuilder, batch_in_segments, batch_of, ones_sum};

use super::*;
use crate::{ForwarderLua, ScriptSource, SharedObjects, Watchdog};

fn watchdog() -> &'static Watchdog {
    static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
    WATCHDOG.get_or_init(|| Watchdog::start().unwrap())
}

/// Objects shared by the scripts of all tests.
fn shared() -> &'static Arc<SharedObjects> {
    static SHARED: OnceLock<Arc<SharedObjects>> = OnceLock::new();
    SHARED.get_or_init(Arc::default)
}

pub(super) fn load(text: &str) -> Result<ForwarderLua, String> {
    // Buckets and tables measure time by the TSC, whose rate is available once DPDK runs.
    dataplane::testing::dpdk();
    let text = format!("local turnpike = require 'turnpike'\n{text}");
    let ports = ["left", "right"].map(str::to_owned);
    let categories = ["new", "known"].map(str::to_owned);
    let peers = Arc::default();
    let source = ScriptSource {
        text: &text,
        file: "router.lua",
        ports: &ports,
        categories: &categories,
        shared: shared(),
        peers: &peers,
    };
    ForwarderLua::load(&source, watchdog()).map_err(|error| error.to_string())
}

pub(super) fn settings(outputs: &[&str]) -> StepSettings {
    StepSettings {
        name: "test".into(),
        outputs: outputs.iter().map(|name| (*name).to_owned()).collect(),
        drops: Vec::new(),
        limit: 0,
        policy: Policy::Bypass,
        budget_us: 20_000,
    }
}

/// A step with this function body.
pub(super) fn step_of(body: &str, outputs: &[&str]) -> LuaStep {
    step_with(body, settings(outputs))
}

pub(super) fn step_with(body: &str, settings: StepSettings) -> LuaStep {
    let names =
        settings.outputs.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",");
    let text = format!(
        "turnpike.step 'test' {{ outputs = {{ {names} }}, process = function(batch, mask, out)\n{body}\nend }}"
    );
    let lua = load(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    lua.into_step(&settings).unwrap()
}

/// Runs the step on these frames; returns the masks of its outputs, and the frames.
pub(super) fn run(step: &mut LuaStep, frames: &[Vec<u8>]) -> (Vec<u64>, Vec<Vec<u8>>) {
    run_on(step, batch_of(frames), frames.len())
}

/// Runs the step on a batch of this many packets.
pub(super) fn run_on(
    step: &mut LuaStep,
    mut batch: Batch,
    count: usize,
) -> (Vec<u64>, Vec<Vec<u8>>) {
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    let input = batch.packets();
    step.process(&mut batch, input, &mut out);
    if let Some(failure) = &*step.status().last_for_tests() {
        println!("{}", failure.message);
    }
    let frames = (0..count).map(|slot| batch.frame(slot).to_vec()).collect();
    let count = step.outputs().len();
    (out[..count].iter().map(|mask| mask.0).collect(), frames)
}

#[test]
fn of_a_packet_in_several_buffers_the_first_can_be_reached_and_the_length_is_the_whole() {
    let frame = FrameBuilder::ip4().udp(1, 2, &[7; 3000]).build();
    let batch = || batch_in_segments(std::slice::from_ref(&frame), 128);
    let whole = frame.len();
    let mut step =
        step_of(&format!("if batch:len(0) == {whole} then return mask end return 0"), &["yes"]);
    assert_eq!(run_on(&mut step, batch(), 1).0[0], 1);
    let read = |at: usize| {
        let mut step = step_of(&format!("return batch:u8(0, {at}) and mask"), &["yes"]);
        run_on(&mut step, batch(), 1);
        step.status().last_for_tests().as_ref().map(|failure| failure.message.clone())
    };
    assert_eq!(read(127), None);
    assert!(read(128).unwrap().contains("128 bytes"), "{:?}", read(128));
}

pub(super) fn udp_to(port: u16) -> Vec<u8> {
    FrameBuilder::ip4().udp(1000, port, b"payload").build()
}

/// Checks the IPv4 header's checksum and that of UDP or TCP.
fn sums_are_right(frame: &[u8]) -> bool {
    let (source, header) = match frame[12..14] {
        [0x08, 0] => (26..34, 34),
        _ => (22..54, 54),
    };
    let protocol = if header == 34 { frame[23] } else { frame[20] };
    let length = (frame.len() - header) as u16;
    let pseudo = [&frame[source], &[0, protocol], &length.to_be_bytes(), &frame[header..]].concat();
    (header == 54 || ones_sum(&frame[14..34]) == 0xffff) && ones_sum(&pseudo) == 0xffff
}

#[test]
fn a_copy_needs_a_port_that_there_is() {
    let frames = [udp_to(1), udp_to(2)];
    let body = |port: &str| {
        format!("for i in batch:each(mask) do batch:mirror(i, '{port}') end return mask")
    };
    let mut step = step_of(&body("right"), &["next"]);
    assert_eq!(run(&mut step, &frames).0, [0b11, 0]);
    let mut step = step_of(&body("rihgt"), &["next"]);
    assert_eq!(run(&mut step, &frames).0, [0, 0b11]);
    let failure = step.status().last_for_tests().as_ref().unwrap().message.clone();
    assert!(failure.contains("port \"rihgt\": not found; known: left, right"), "{failure}");
    let mut step = step_of("batch:mirror(64, 'left') return mask", &["next"]);
    assert_eq!(run(&mut step, &frames).0, [0, 0b11]);
}

const MARK: &str = "
    for i in batch:each(mask) do
      local ip = batch:ip4(i)
      if ip.protocol == 17 and batch:udp(i).dst == 5060 then ip:set_dscp(46) end
    end
    return mask";

#[test]
fn the_example_marks_what_it_should() {
    let mut step = step_of(MARK, &["next"]);
    // Often enough that it is compiled.
    for round in 0..300 {
        let frames: Vec<_> = (0..64).map(|n| udp_to(if n % 3 == 0 { 5060 } else { 53 })).collect();
        let (out, marked) = run(&mut step, &frames);
        assert_eq!(out, [u64::MAX, 0], "round {round}");
        for (n, (frame, before)) in marked.iter().zip(&frames).enumerate() {
            if n % 3 == 0 {
                assert_eq!(frame[15], 46 << 2);
                assert!(sums_are_right(frame));
            } else {
                assert_eq!(frame, before);
            }
        }
    }
    let [compiled, ..] = step.jit().counts();
    assert!(compiled > 0, "nothing was compiled");
}

#[test]
fn a_later_fragment_has_no_udp_header() {
    let mut later = udp_to(5060);
    later[21] = 10;
    FrameBuilder::fix_ip4_checksum(&mut later);
    let (out, after) = run(&mut step_of(MARK, &["next"]), &[later.clone()]);
    assert_eq!((out, after), (vec![1, 0], vec![later]));
}

#[test]
fn packets_take_the_outputs_of_the_masks() {
    let split = "
        for i in batch:each(mask) do
          if batch:udp(i).dst == 53 then out.dns:add(i) else out.next:add(i) end
        end";
    let frames = [udp_to(53), udp_to(80), udp_to(53)];
    let (out, _) = run(&mut step_of(split, &["next", "dns"]), &frames);
    assert_eq!(out, [0b010, 0b101, 0]);
    let returned = "
        for i in batch:each(mask) do if batch:udp(i).dst == 53 then out.dns:add(i) end end
        return mask - out.dns, out.dns";
    let (out, _) = run(&mut step_of(returned, &["next", "dns"]), &frames);
    assert_eq!(out, [0b010, 0b101, 0]);
    // In two masks: the first wins. Beyond the input: cut off. In none: lost.
    let (out, _) = run(
        &mut step_of("local m = mask:copy() m:add(60) m:remove(0) return m, m", &["a", "b"]),
        &frames,
    );
    assert_eq!(out, [0b110, 0, 0]);
}

#[test]
fn masks_are_sets() {
    let body = "
        local a, b = mask:copy(), mask:copy()
        a:remove(1) b:remove(0)
        assert(tostring(a) == '{0, 2, 63}', tostring(a)) assert(tostring(a + b) == tostring(mask), tostring(a + b)) 
        assert(tostring(a * b) == '{2, 63}' and tostring(a - b) == '{0}' and (a * b):equals(b * a))
        assert(a:count() == 3 and a:has(63) and not a:has(1) and not a:has(62) and not a:empty())
        assert((a - a):empty())
        local seen = {}
        for i in batch:each(a) do seen[#seen + 1] = i end
        assert(table.concat(seen, ' ') == '0 2 63')
        return mask";
    let mut batch = batch_of(&vec![udp_to(1); 64]);
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    let mut step = step_of(body, &["next"]);
    for round in 0..200 {
        if round == 100 {
            step.interpret_for_tests();
        }
        out = [Mask::EMPTY; MAX_OUTPUTS];
        step.process(&mut batch, Mask(1 << 63 | 0b111), &mut out);
        assert!(step.status().take_failure().is_none_or(|failure| panic!("{}", failure.message)));
    }
    assert_eq!(out[0], Mask(1 << 63 | 0b111));
}

#[test]
fn every_field_reads_what_the_frame_says() {
    let ip4 = "
        local e, ip, u = batch:ethernet(0), batch:ip4(0), batch:udp(0)
        assert(e.type == 0x0800 and e.dst == turnpike.mac '02:00:00:00:00:00')
        assert(turnpike.mac_text(e.src) == '02:00:00:00:02:01')
        assert(ip.version == 4 and ip.header_length == 20 and ip.ttl == 64 and ip.protocol == 17)
        assert(ip.src == turnpike.ip4 '192.0.2.1' and turnpike.ip4_text(ip.dst) == '198.51.100.1')
        assert(ip.total_length == 35 and ip.id == 0x1234 and not ip.df and not ip.mf)
        assert(ip.fragment_offset == 0 and ip.dscp == 0 and ip.ecn == 0)
        assert(u.src == 1000 and u.dst == 53 and u.length == 15)
        assert(batch:len(0) == 49 and batch:port() == 'left')
        assert(turnpike.prefix '192.0.0.0/8':has(ip.src) and not turnpike.prefix '10.0.0.0/8':has(ip.src))
        assert(batch:tcp(0).src == nil and batch:ip6(0).dscp == nil and batch:arp(0).operation == nil)
        assert(batch:u8(0, 23) == 17 and batch:u16(0, 12) == 0x0800)
        assert(batch:u32(0, 26) == turnpike.ip4 '192.0.2.1' and batch:u8(0, 48) == 100)
        return mask";
    let mut step = step_of(ip4, &["next"]);
    let result = run(&mut step, &[udp_to(53)]);
    assert!(step.status().take_failure().is_none_or(|failure| panic!("{}", failure.message)));
    assert_eq!(result.0, [1, 0]);

    let ip6 = "
        local ip, u = batch:ip6(0), batch:udp(0)
        assert(ip.version == 6 and ip.hop_limit == 64 and ip.next_header == 17 and ip.dscp == 0)
        assert(ip.payload_length == 9 and ip.flow == 0 and u.dst == 7)
        local a, b, c, d = ip:dst()
        local e, f, g, h = turnpike.ip6 '2001:db8:ffff::1'
        assert(a == e and b == f and c == g and d == h)
        return mask";
    let mut step = step_of(ip6, &["next"]);
    let result = run(&mut step, &[FrameBuilder::ip6().udp(6, 7, b"x").build()]);
    assert!(step.status().take_failure().is_none_or(|failure| panic!("{}", failure.message)));
    assert_eq!(result.0, [1, 0]);
}

#[test]
fn setters_keep_the_checksums() {
    let ip4 = "
        for i in batch:each(mask) do
          local ip, u = batch:ip4(i), batch:udp(i)
          ip:set_dscp(46) ip:set_ecn(2) ip:set_ttl(7)
          ip:set_src(turnpike.ip4 '203.0.113.7') ip:set_dst(turnpike.ip4 '255.254.253.252')
          u:set_src(4242) u:set_dst(65535)
        end
        return mask";
    let mut step = step_of(ip4, &["next"]);
    for round in 0..100u16 {
        let frames: Vec<_> =
            (0..32).map(|n| FrameBuilder::ip4().udp(round, n, &[n as u8; 3]).build()).collect();
        let (out, after) = run(&mut step, &frames);
        assert_eq!(out[0], u64::from(u32::MAX));
        for frame in &after {
            assert!(sums_are_right(frame), "round {round}: {frame:02x?}");
            assert_eq!((frame[15], frame[22]), (46 << 2 | 2, 7));
            assert_eq!(frame[26..38], [203, 0, 113, 7, 255, 254, 253, 252, 0x10, 0x92, 255, 255]);
        }
    }
    let ip6 = "
        local ip = batch:ip6(0)
        ip:set_dscp(10) ip:set_hop_limit(9)
        ip:set_src(turnpike.ip6 '2001:db8::5') ip:set_dst(turnpike.ip6 'fe80::ffff:1')
        batch:udp(0):set_dst(99)
        return mask";
    let (_, after) =
        run(&mut step_of(ip6, &["next"]), &[FrameBuilder::ip6().udp(6, 7, b"x").build()]);
    assert!(sums_are_right(&after[0]), "{:02x?}", after[0]);
    assert_eq!((after[0][14], after[0][15], after[0][21]), (0x62, 0x80, 9));
}

#[test]
fn udp_without_a_checksum_stays_without() {
    let mut frame = udp_to(53);
    frame[40..42].fill(0);
    let body = "batch:ip4(0):set_src(1) batch:udp(0):set_dst(1) return mask";
    let (_, after) = run(&mut step_of(body, &["next"]), &[frame]);
    assert_eq!(after[0][40..42], [0, 0]);
}

#[test]
fn reading_past_a_packet_is_an_error_and_costs_that_packet() {
    let mut runt = udp_to(53);
    runt.truncate(38);
    let mut short = udp_to(53);
    short.truncate(30);
    let frames = [udp_to(53), runt, udp_to(53), short];
    for (body, dropped) in [
        ("for i in batch:each(mask) do local _ = batch:udp(i).dst end return mask", 0b0010),
        ("for i in batch:each(mask) do local _ = batch:ip4(i).dst end return mask", 0b1000),
        ("for i in batch:each(mask) do local _ = batch:u32(i, 35) end return mask", 0b1010),
        ("for i in batch:each(mask) do local _ = batch:u8(i, -1) end return mask", 0b1111),
        ("for i in batch:each(mask) do local _ = batch:u8(i, 2^40) end return mask", 0b1111),
        ("for i in batch:each(mask) do batch:set_u32(i, 46, 1) end return mask", 0b1111),
        ("local _ = batch:ip4(64).ttl return mask", 0b1111),
        ("local _ = batch:ip4(-1).ttl return mask", 0b1111),
        ("batch:ip4(0).ttl = 3 return mask", 0b1111),
        ("batch:ip4(0).slot = 3 return mask", 0b1111),
        ("local _ = batch:ip4(0)[5] return mask", 0b1111),
        ("local _ = batch:ip4(0) + 5 return mask", 0b1111),
        ("local _ = batch[5] return mask", 0b1111),
        ("local _ = mask[5] return mask", 0b1111),
        ("batch:arp(0):set_x(3) return mask", 0b1111),
    ] {
        let mut step = step_of(body, &["next"]);
        let (out, after) = run(&mut step, &frames);
        assert_eq!(out, [0b1111 & !dropped, dropped], "{body}");
        assert_eq!(after, frames, "{body}");
        let failure = step.status().take_failure().expect(body);
        assert!(failure.message.contains("router.lua:3:"), "{body}: {}", failure.message);
        assert!(failure.message.contains("traceback"), "{body}: {}", failure.message);
    }
}

#[test]
fn a_step_gets_no_way_out_of_its_room() {
    for name in [
        "ffi",
        "jit",
        "debug",
        "io",
        "os",
        "load",
        "loadstring",
        "dofile",
        "getfenv",
        "collectgarbage",
    ] {
        let error = load(&format!("assert({name} == nil, '{name} is there')"));
        assert!(error.is_ok(), "{name}");
    }
    assert!(load("assert(string.dump == nil) assert(('x').dump == nil)").is_ok());
    assert!(load("require 'ffi'").err().unwrap().contains("no module \"ffi\""));
    // Statements are for the configuration.
    assert!(
        load("turnpike.port 'a' { device = 'x' } turnpike.graph:path('a', 'b') turnpike.graph = 1")
            .is_ok()
    );
}

#[test]
fn an_endless_loop_costs_the_packets_over_which_it_runs() {
    let body = "
        for i in batch:each(mask) do
          if batch:udp(i).dst == 666 then
            local n = 0
            while true do n = n + 1 end
          end
        end
        return mask";
    let mut frames = vec![udp_to(53); 10];
    frames[4] = udp_to(666);
    let mut step = step_of(body, &["next"]);
    let (out, _) = run(&mut step, &frames);
    assert_eq!(
        out,
        [0b11_1110_1111 & !(0b11_1110_0000), 0b11_1111_0000],
        "the rest is not waited for"
    );
    let failure = step.status().take_failure().unwrap();
    assert!(failure.message.contains(OVERRUN_TEXT), "{}", failure.message);
    assert_eq!(step.status().failures(), (2, 2));
    // Afterwards it works as before.
    assert_eq!(run(&mut step, &vec![udp_to(53); 10]).0, [0x3ff, 0]);
    // `pcall` does not protect it.
    let mut stubborn =
        step_of("while true do pcall(function() while true do end end) end", &["next"]);
    assert_eq!(run(&mut stubborn, &[udp_to(1)]).0, [0, 1]);
}

const OVERRUN_TEXT: &str = "ran longer than its budget";

#[test]
fn a_step_that_fails_too_often_is_disabled() {
    for (policy, expected) in [(Policy::Bypass, [0b11, 0]), (Policy::Drop, [0, 0b11])] {
        let wanted = StepSettings { limit: 4, policy, ..settings(&["next"]) };
        let mut step = step_with("error('no')", wanted);
        let frames = [udp_to(1), udp_to(2)];
        assert_eq!(run(&mut step, &frames).0, [0, 0b11]);
        assert!(!step.status().is_disabled());
        assert_eq!(run(&mut step, &frames).0, [0, 0b11]);
        assert!(step.status().is_disabled());
        assert_eq!(run(&mut step, &frames).0, expected);
        assert_eq!(step.status().dropped(), 4);
    }
}

#[test]
fn the_sum_of_a_counter_is_that_of_all_forwarders() {
    let text = "local turnpike = require 'turnpike'
        local all, some = turnpike.counter 'all', turnpike.counters('some', 4)
        turnpike.step 'test' { outputs = { 'next', 'many' }, process = function(batch, mask, out)
          all:add(mask:count())
          some:add(3, 2)
          if all:sum() > 5 and some:sum(3) >= 4 and some:sum(0) == 0 then return nil, mask end
          return mask
        end }";
    let (ports, peers) = (["left".to_owned()], Arc::default());
    let source = ScriptSource {
        text,
        file: "router.lua",
        ports: &ports,
        categories: &[],
        shared: shared(),
        peers: &peers,
    };
    let mut steps = [(); 2].map(|()| {
        let lua = ForwarderLua::load(&source, watchdog()).unwrap();
        lua.into_step(&settings(&["next", "many"])).unwrap()
    });
    peers.seal();
    let frames = vec![udp_to(1); 3];
    assert_eq!(run(&mut steps[0], &frames).0, [0b111, 0, 0]);
    assert_eq!(run(&mut steps[1], &frames).0, [0, 0b111, 0], "the other's are among them");
    let wrong = "local c = turnpike.counters('c', 2)
        turnpike.step 'test' { outputs = { 'next' }, process = function() c:sum(2) end }";
    let mut step = load(wrong).unwrap().into_step(&settings(&["next"])).unwrap();
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [0, 1], "no such counter");
}

#[test]
fn an_error_has_the_line_of_the_configuration() {
    let text = "
        local function inner() while true do end end
        turnpike.step 'test' { outputs = { 'next' }, process = function(batch, mask)
          if batch:len(0) > 60 then
            inner()
          end
          local nothing
          return nothing.field
        end }";
    let mut step = load(text).unwrap().into_step(&settings(&["next"])).unwrap();
    let message = |step: &mut LuaStep, frame: Vec<u8>| {
        run(step, &[frame]);
        step.status().take_failure().unwrap().message
    };
    let endless = message(&mut step, FrameBuilder::ip4().udp(1, 2, &[0; 60]).build());
    assert!(endless.starts_with(&format!("router.lua:3: {OVERRUN_TEXT}")), "{endless}");
    assert!(endless.contains("router.lua:6: in function"), "{endless}");
    let short = message(&mut step, udp_to(1));
    assert!(short.starts_with("router.lua:9: attempt to index local 'nothing'"), "{short}");
    assert!(!short.contains("test:"), "{short}");
    // Loops that end within the prelude, and a library that is not available.
    let text = "turnpike.step 'test' { outputs = { 'next' }, process = function(batch, mask)
          if mask:count() > 1 then os.exit() end
          while true do for i in batch:each(mask) do end end
        end }";
    let mut step = load(text).unwrap().into_step(&settings(&["next"])).unwrap();
    let within = message(&mut step, udp_to(1));
    assert!(within.starts_with("router.lua:4: ran longer"), "{within}");
    let limit = StepSettings { limit: 1, ..settings(&["next"]) };
    let mut step = load(text).unwrap().into_step(&limit).unwrap();
    run(&mut step, &[udp_to(1), udp_to(2)]);
    let absent = step.status().take_failure().unwrap().message;
    assert!(absent.contains("global 'os' (a nil value); a configuration has no files"), "{absent}");
}

#[test]
fn counters_are_the_forwarder_s_own() {
    let text = "
        local all, dscp = turnpike.counter 'all', turnpike.counters('dscp', 64)
        turnpike.step 'test' { outputs = { 'next' }, process = function(batch, mask)
          all:add(mask:count())
          for i in batch:each(mask) do dscp:add(batch:ip4(i).dscp) end
          return mask
        end }";
    let (one, two) = (load(text).unwrap(), load(text).unwrap());
    let (counters, others) = (one.counters(), two.counters());
    let mut step = one.into_step(&settings(&["next"])).unwrap();
    let mut marked = udp_to(1);
    marked[15] = 46 << 2;
    for _ in 0..200 {
        run(&mut step, &[udp_to(1), marked.clone(), udp_to(1)]);
    }
    assert_eq!((counters.get(0), counters.get(1), counters.get(47)), (600, 400, 200));
    assert_eq!(others.get(0), 0);
    let out = "local c = turnpike.counters('c', 2)
        turnpike.step 'test' { outputs = { 'next' }, process = function() c:add(2) end }";
    let mut step = load(out).unwrap().into_step(&settings(&["next"])).unwrap();
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [0, 1], "no such counter");
}

#[test]
fn a_step_that_the_script_does_not_make_is_named() {
    let error = load("").unwrap().into_step(&settings(&["next"])).err().unwrap().to_string();
    assert!(error.contains("step \"test\": the script does not make it"), "{error}");
}

#[test]
fn flushed_traces_are_compiled_again() {
    let mut step = step_of(MARK, &["next"]);
    let frames: Vec<_> = (0..64).map(|n| udp_to(if n % 3 == 0 { 5060 } else { 53 })).collect();
    for _ in 0..10 {
        for _ in 0..100 {
            assert_eq!(run(&mut step, &frames).0[0], u64::MAX);
        }
        step.flush().unwrap();
    }
    let [compiled, _, flushed] = step.jit().counts();
    assert_eq!(flushed, 10);
    assert!(compiled >= 10, "{compiled}");
}

#[test]
fn views_of_packets_are_no_garbage() {
    let mut step = step_of(MARK, &["next"]);
    let frames: Vec<_> = (0..64).map(|n| udp_to(if n % 3 == 0 { 5060 } else { 53 })).collect();
    let mut batch = batch_of(&frames);
    let input = batch.packets();
    let mut batches = |count| {
        for _ in 0..count {
            step.process(&mut batch, input, &mut [Mask::EMPTY; MAX_OUTPUTS]);
        }
        step.memory_without_collection()
    };
    let before = batches(1000);
    let made = batches(1000) - before;
    // Allocation by code interpreted at the beginning and the end of a call: less than a byte a packet.
    assert!(made < 64_000, "{made} bytes in 64,000 packets");
}

#[test]
fn a_view_that_is_kept_reads_no_further_than_the_packet_that_is_there_now() {
    let body = "
        kept = kept or batch:udp(0)
        if kept.dst ~= 53 then error('another packet') end
        kept:set_dst(53)
        return mask";
    let mut step = step_of(body, &["next"]);
    assert_eq!(run(&mut step, &[udp_to(53)]).0, [1, 0]);
    let mut short = udp_to(53);
    short.truncate(41);
    let (out, after) = run(&mut step, &[short.clone()]);
    assert_eq!((out, after), (vec![0, 1], vec![short]));
    let failure = step.status().take_failure().unwrap();
    assert!(failure.message.contains("reaches past the packet's 41 bytes"), "{}", failure.message);
}

/// Runs a step with these settings on this many packets, received at this time; returns the masks.
fn masks_at(step: &mut LuaStep, now: u64, count: usize) -> Vec<u64> {
    let frames: Vec<_> = (0..count).map(|_| udp_to(1)).collect();
    let mut batch = batch_of(&frames);
    batch.now = now;
    run_on(step, batch, count).0
}

#[test]
fn time_is_that_of_the_batch() {
    let second = dpdk::tsc_hz();
    let began = dpdk::tsc();
    let mut step = load(
        "local before
         turnpike.step 'test' { process = function(batch, mask)
           local now = turnpike.now()
           assert(now == turnpike.now())
           if before then
             assert(math.abs(now - before - 2e9) < 1e3, now - before)
             return turnpike.mask()
           end
           before = now
           return mask
         end }",
    )
    .unwrap()
    .into_step(&settings(&["first"]))
    .unwrap();
    assert_eq!(masks_at(&mut step, began, 1), [1, 0]);
    assert_eq!(masks_at(&mut step, began + 2 * second, 1), [0, 0]);
}

/// A step that passes this many packets of a source at once, and drops others as `over`.
fn limiter(name: &str) -> LuaStep {
    let settings = StepSettings { drops: vec!["over".to_owned()], ..settings(&["next"]) };
    let text = format!(
        "local limit = turnpike.buckets '{name}' {{ rate = 10, burst = 3, size = 1024 }}
         turnpike.step 'test' {{ drops = {{ 'over' }}, process = function(batch, mask, out)
           for i in batch:each(mask) do
             local to = limit:take(1, batch:ip4(i).src) and out.next or out.over
             to:add(i)
           end
         end }}"
    );
    load(&text).unwrap().into_step(&settings).unwrap()
}

#[test]
fn forwarders_have_their_buckets_together_and_drops_have_names() {
    let now = dpdk::tsc();
    let (mut one, mut other) = (limiter("together"), limiter("together"));
    let expected =
        [Output::next("next"), Output::DropAs("over".into()), Output::Drop(DropReason::StepFailed)];
    assert_eq!(one.outputs(), expected);
    assert_eq!(masks_at(&mut one, now, 2), [0b11, 0, 0]);
    assert_eq!(masks_at(&mut other, now, 3), [0b001, 0b110, 0]);
    // A tenth of a second later there is a token again.
    assert_eq!(masks_at(&mut one, now + dpdk::tsc_hz() / 10 + 10, 2), [0b01, 0b10, 0]);
    drop((one, other));
    // No step held the objects any more.
    assert_eq!(masks_at(&mut limiter("together"), now, 3), [0b111, 0, 0]);
}

#[test]
fn a_table_holds_what_steps_of_any_forwarder_write() {
    let make = |body: &str| {
        let text = format!(
            "local seen = turnpike.table 'shared' {{ seconds = 1 }}
             turnpike.step 'test' {{ process = function(batch, mask) {body} return mask end }}"
        );
        load(&text).unwrap().into_step(&settings(&["next"])).unwrap()
    };
    let (now, second) = (dpdk::tsc(), dpdk::tsc_hz());
    let mut write = make(
        "seen:set(5, 1) seen:set(7, 1, 2, 3, 4) assert(seen:add(2, 1) == 7 and seen:get(9) == nil)
         seen:add(1, 8) seen:remove(8) assert(seen:get(8) == nil)",
    );
    assert_eq!(masks_at(&mut write, now, 1), [1, 0]);
    let mut read = make("assert(seen:get(1) == 7 and seen:get(1, 2, 3, 4) == 7)");
    assert_eq!(masks_at(&mut read, now + second / 2, 1), [1, 0]);
    assert_eq!(masks_at(&mut read, now + 2 * second, 1), [0, 1], "it has expired");
    let mut wrong = make("seen:set('x', 1)");
    assert_eq!(masks_at(&mut wrong, now, 1), [0, 1]);
}

#[test]
fn a_mark_is_there_for_the_next_step_and_gone_with_the_batch() {
    let mut note = step_of(
        "for i in batch:each(mask) do if i % 2 == 1 then batch:set_mark(i, 4294967295 - i) end end return mask",
        &["next"],
    );
    let mut look = step_of(
        "for i in batch:each(mask) do
           assert(batch:mark(i) == (i % 2 == 1 and 4294967295 - i or 0))
         end return mask",
        &["next"],
    );
    let mut batch = batch_of(&[udp_to(1), udp_to(2), udp_to(3), udp_to(4)]);
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    let input = batch.packets();
    note.process(&mut batch, input, &mut out);
    out = [Mask::EMPTY; MAX_OUTPUTS];
    look.process(&mut batch, input, &mut out);
    assert_eq!(out[0], input, "{:?}", look.status().last_for_tests());
    assert_eq!(batch.marks.marked, Mask(0b1010));
    let mut wrong = step_of("batch:set_mark(0, -1) return mask", &["next"]);
    assert_eq!(run(&mut wrong, &[udp_to(1)]).0, [0, 1]);
}

#[test]
fn categories_are_masks_of_the_packets_that_the_step_takes() {
    let body = "local new = batch:category 'new' return mask - new, new * batch:category 'known'";
    let mut step = step_of(body, &["next", "other"]);
    let frames = vec![FrameBuilder::ip4().build(); 4];
    let mut batch = batch_of(&frames);
    batch.categories.add(0, 0b01);
    batch.categories.add(1, 0b11);
    batch.categories.add(3, 0b11);
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    step.process(&mut batch, Mask(0b111), &mut out);
    assert_eq!((out[0], out[1]), (Mask(0b100), Mask(0b010)));
    let mut wrong = step_of("return batch:category 'old'", &["next"]);
    wrong.process(&mut batch, Mask(1), &mut out);
    let failure = format!("{:?}", wrong.status().last_for_tests());
    assert!(
        failure.replace('\\', "").contains("category \"old\": no rule names it; known: known, new"),
        "{failure}"
    );
}

#[test]
fn sets_hold_what_they_were_made_of() {
    let mut step = step_of(
        "local nets = turnpike.set { '10.0.0.0/8', '192.0.2.1', '224.0.0.0/4', '2001:db8::/33',
                                     'fe80::1', 'fc00::/7' }
         local four, six = turnpike.ip4, turnpike.ip6
         for _, text in ipairs { '10.0.0.0', '10.255.255.255', '192.0.2.1', '239.1.2.3' } do
           assert(nets:has(four(text)), text)
         end
         for _, text in ipairs { '9.255.255.255', '11.0.0.0', '192.0.2.0', '192.0.2.2', '240.0.0.0' } do
           assert(not nets:has(four(text)), text)
         end
         for _, text in ipairs { '2001:db8::', '2001:db8:7fff:ffff::1', 'fe80::1', 'fdff::1' } do
           assert(nets:has(six(text)), text)
         end
         for _, text in ipairs { '2001:db8:8000::', '2001:db9::', 'fe80::2', 'fe80::1:0:0:1', 'fe00::', '::' } do
           assert(not nets:has(six(text)), text)
         end
         assert(not turnpike.set {}:has(0) and turnpike.set { '0.0.0.0/0' }:has(-1))
         assert(turnpike.set { '::/0' }:has(six '::') and not nets:has(nil))
         for _, wrong in ipairs { '10.0.0.0/33', 'x', '2001::/129', '1.2.3/8', '' } do
           assert(not pcall(turnpike.set, { wrong }), wrong)
         end
         local ports = turnpike.ports { 22, '1024-2000', '2001-65535', 179 }
         for _, port in ipairs { 22, 179, 1024, 2000, 2001, 65535 } do assert(ports:has(port), port) end
         for _, port in ipairs { 0, 21, 23, 180, 1023 } do assert(not ports:has(port), port) end
         for _, wrong in ipairs { '5-4', 65536, -1, 1.5, 'x' } do
           assert(not pcall(turnpike.ports, { wrong }), wrong)
         end
         return mask",
        &["next"],
    );
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [1, 0], "{:?}", step.status().last_for_tests());
}

#[test]
fn a_hash_spreads_what_differs_in_one_bit() {
    let mut step = step_with(
        "local full = {}
         for k = 1, 16 do full[k] = 0 end
         for n = 0, 15999 do
           local hash = turnpike.hash(n)
           assert(hash >= 0 and hash < 4294967296 and hash % 1 == 0 and hash == turnpike.hash(n, 0, 0, 0))
           full[1 + hash % 16] = full[1 + hash % 16] + 1
         end
         for k = 1, 16 do assert(full[k] > 800 and full[k] < 1200, full[k]) end
         local a, b, c = turnpike.hash(1, 2), turnpike.hash(2, 1), turnpike.hash(-1)
         assert(a ~= b and b ~= c)
         return mask",
        StepSettings { budget_us: 100_000_000, ..settings(&["next"]) },
    );
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [1, 0], "{:?}", step.status().last_for_tests());
}

/// Builds an IPv6 frame with UDP to port 53 after these extension headers, the first of which has this number.
fn behind(first: u8, headers: &[u8]) -> Vec<u8> {
    let mut udp = vec![0x10, 0, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
    let whole = FrameBuilder::ip6().protocol(first).payload(&[headers, &udp].concat()).build();
    // The checksum covers the pseudo header of RFC 8200 8.1.
    let length = [0, 12];
    let sum = ones_sum(&[&whole[22..54], &length, &[0, 17], &udp].concat());
    udp[6..8].copy_from_slice(&(!sum).to_be_bytes());
    FrameBuilder::ip6().protocol(first).payload(&[headers, &udp].concat()).build()
}

#[test]
fn transport_headers_behind_ip6_extension_headers_are_found_and_kept_right() {
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let (hop, routing) = ([60, 0, 1, 4, 0, 0, 0, 0], [17, 0, 4, 0, 0, 0, 0, 0]);
    let first_fragment = [17, 0, 0, 1, 0, 0, 0, 1];
    let later_fragment = [17, 0, 0, 9, 0, 0, 0, 1];
    let authentication = [17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9];
    let longer = [&[17, 1], [1; 14].as_slice()].concat();
    let found = [
        behind(17, &[]),
        behind(60, &options),
        behind(0, &[hop, options].concat()),
        behind(43, &routing),
        behind(44, &first_fragment),
        behind(51, &authentication),
        behind(60, &longer),
    ];
    let not = [
        behind(44, &later_fragment),
        // Extension headers that extend beyond the packet, too many of them, no next header.
        behind(60, &[60, 200, 1, 4, 0, 0, 0, 0]),
        behind(60, &[60, 0, 1, 4, 0, 0, 0, 0].repeat(9)),
        behind(59, &[]),
    ];
    let mut step = step_of(
        "local yes = turnpike.mask()
         for i in batch:each(mask) do
           if batch:udp(i).dst == 53 then
             yes:add(i)
             local ip = batch:ip6(i)
             ip:set_src(turnpike.ip6 '2001:db8::77')
           end
         end
         return yes, mask - yes",
        &["yes", "no"],
    );
    let frames = [found.as_slice(), &not].concat();
    let (masks, frames) = run(&mut step, &frames);
    assert_eq!(masks, [0x7f, 0x780, 0], "{:?}", step.status().last_for_tests());
    let (masks, _) = run(&mut step, &[behind(60, &[17, 200, 1, 4, 0, 0, 0, 0])]);
    assert_eq!(masks, [0, 0, 1], "UDP that would begin beyond the packet is an error");
    for (number, frame) in frames[..found.len()].iter().enumerate() {
        let udp = &frame[frame.len() - 12..];
        let pseudo = [&frame[22..54], &[0, 12], &[0, 17], udp].concat();
        assert_eq!(ones_sum(&pseudo), 0xffff, "frame {number}");
    }
}
