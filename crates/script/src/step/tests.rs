use std::sync::OnceLock;

use dataplane::graph::MAX_OUTPUTS;
use dataplane::testing::{FrameBuilder, batch_in_segments, batch_of, ones_sum};

use super::*;
use crate::{ForwarderLua, Source, Watchdog};

fn watchdog() -> &'static Watchdog {
    static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
    WATCHDOG.get_or_init(|| Watchdog::start().unwrap())
}

pub(super) fn load(text: &str) -> Result<ForwarderLua, String> {
    let text = format!("local turnpike = require 'turnpike'\n{text}");
    let ports = ["left", "right"].map(str::to_owned);
    let source = Source { text: &text, file: "router.lua", ports: &ports };
    ForwarderLua::load(&source, watchdog()).map_err(|error| error.to_string())
}

pub(super) fn settings(outputs: &[&str]) -> StepSettings {
    StepSettings {
        name: "test".into(),
        outputs: outputs.iter().map(|name| (*name).to_owned()).collect(),
        limit: 0,
        policy: Policy::Bypass,
        budget_us: 20_000,
    }
}

/// A step whose function has this body.
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
    lua.into_steps(&[settings]).unwrap().remove(0)
}

/// What the step made of the frames: the masks of its outputs, and the frames.
pub(super) fn run(step: &mut LuaStep, frames: &[Vec<u8>]) -> (Vec<u64>, Vec<Vec<u8>>) {
    run_on(step, batch_of(frames), frames.len())
}

/// What the step made of a batch of so many packets.
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

/// The header's checksum and that of UDP or TCP are right.
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
    // `pcall` does not help it.
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
    let mut step = one.into_steps(&[settings(&["next"])]).unwrap().remove(0);
    let mut marked = udp_to(1);
    marked[15] = 46 << 2;
    for _ in 0..200 {
        run(&mut step, &[udp_to(1), marked.clone(), udp_to(1)]);
    }
    assert_eq!((counters.get(0), counters.get(1), counters.get(47)), (600, 400, 200));
    assert_eq!(others.get(0), 0);
    let out = "local c = turnpike.counters('c', 2)
        turnpike.step 'test' { outputs = { 'next' }, process = function() c:add(2) end }";
    let mut step = load(out).unwrap().into_steps(&[settings(&["next"])]).unwrap().remove(0);
    assert_eq!(run(&mut step, &[udp_to(1)]).0, [0, 1], "no such counter");
}

#[test]
fn a_step_that_the_script_does_not_make_is_named() {
    let error = load("").unwrap().into_steps(&[settings(&["next"])]).err().unwrap().to_string();
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
    // What is interpreted at the beginning and the end of a call: less than a byte a packet.
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
