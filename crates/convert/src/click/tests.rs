//! Small configurations, and the Lua that they become.

use super::*;

/// The Lua behind the first two lines, without the statements of elements, and the notes.
fn converted(text: &str) -> (Vec<String>, Vec<String>) {
    let Converted { lua, lines, notes } =
        convert("t.click", text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(lua.lines().count(), lines.len());
    let lua = lua.lines().skip(2).filter(|line| !line.starts_with("turnpike.element "));
    (lua.map(str::to_owned).collect(), notes)
}

fn lua(text: &str) -> Vec<String> {
    converted(text).0
}

fn errors(text: &str) -> String {
    convert("t.click", text).unwrap_err().to_string()
}

#[test]
fn frames_go_from_port_to_port() {
    let text = "FromDevice(eth0) -> Queue -> ToDevice(eth1); FromDevice(eth1, PROMISC true) -> Queue -> ToDevice(eth0);";
    assert_eq!(
        lua(text),
        [
            r#"turnpike.port "eth0" { device = "eth0" }"#,
            r#"turnpike.port "eth1" { device = "eth1", promiscuous = true }"#,
            r#"local graph = turnpike.new_graph "on-wire""#,
            r#"graph:path("on-wire.ok", { "port-switch", ports = { "eth0", "eth1" } })"#,
            r#"graph:path("port-switch.others", "drop")"#,
            r#"graph:path("port-switch.eth0", { "to-port", as = "ToDevice@3", port = "eth1" })"#,
            r#"graph:path("ToDevice@3.transmit", "transmit")"#,
            r#"graph:path("port-switch.eth1", { "to-port", as = "ToDevice@6", port = "eth0" })"#,
            r#"graph:path("ToDevice@6.transmit", "transmit")"#,
            "turnpike.graph = graph",
        ]
    );
}

/// The steps of a graph without those around: `NAME = KIND { … }` and `FROM.OUTPUT -> TO`.
fn steps(text: &str) -> Vec<String> {
    let around = |line: &String| {
        ["turnpike.", "local ", "graph:path(\"on-wire", "graph:path(\"port-switch.others"]
            .iter()
            .any(|begin| line.starts_with(begin))
    };
    let mut lines = lua(text);
    lines.retain(|line| !around(line));
    lines
        .iter()
        .map(|line| line.trim_start_matches("graph:path(").trim_end_matches(')').to_owned())
        .collect()
}

#[test]
fn the_place_of_data_is_known_when_it_is_converted() {
    let text = "FromDevice(eth0) -> Strip(14) -> c :: CheckIPHeader -> d :: DecIPTTL
        -> e :: EtherEncap(0x0800, 2:0:0:0:0:1, 02-00-00-00-00-02) -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text),
        [
            r#""port-switch.eth0", { "check-ip-header", as = "c", offset = 14 }"#,
            r#""c.ok", { "dec-ip-ttl", as = "d", offset = 14 }"#,
            r#""d.ok", { "ether-encap", as = "e", ethertype = 2048, source = "02:00:00:00:00:01", destination = "02:00:00:00:00:02", offset = 14 }"#,
            r#""e.next", { "to-port", as = "t", port = "eth1" }"#,
            r#""t.transmit", "transmit""#,
            r#""d.expired", "drop""#,
            r#""c.bad", "drop""#,
        ]
    );
}

#[test]
fn frames_are_moved_only_where_they_must_be() {
    let text = "FromDevice(eth0) -> Strip(20) -> Unstrip(2) -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text),
        [
            r#""port-switch.eth0", { "strip", as = "t:strip", bytes = 18 }"#,
            r#""t:strip.ok", { "to-port", as = "t", port = "eth1" }"#,
            r#""t.transmit", "transmit""#,
            r#""t:strip.short", "drop""#,
        ]
    );
    let text = "FromDevice(eth0) -> Unstrip(4) -> e :: EtherEncap(0x0806, 2:0:0:0:0:1, 2:0:0:0:0:2)
        -> Queue -> t :: ToDevice(eth1);";
    let found = steps(text);
    assert!(
        found.iter().any(|line| line.contains(r#"{ "unstrip", as = "e:0", bytes = 14 }"#)),
        "{found:?}"
    );
    assert!(
        found.iter().any(|line| line.contains("destination = \"02:00:00:00:00:02\", offset = 14"))
    );
    // Paths with data at different places.
    let text = "FromDevice(eth0) -> c :: Classifier(12/0800, -); c[0] -> Strip(14) -> k :: Counter;
        c[1] -> k -> Queue -> t :: ToDevice(eth1);";
    let found = steps(text);
    assert!(
        found.iter().any(|line| line.contains("\"unstrip\"") || line.contains("\"strip\"")),
        "{found:?}"
    );
}

#[test]
fn names_that_mean_something_else_are_changed() {
    let text = "FromDevice(eth0) -> drop :: Counter -> transmit :: Paint(7) -> Discard;";
    assert_eq!(
        steps(text),
        [
            r#""port-switch.eth0", { "counter", as = "drop_" }"#,
            r#""drop_.next", { "paint", as = "transmit_", colour = 7 }"#,
            r#""transmit_.next", "drop""#,
        ]
    );
}

#[test]
fn classes_become_steps() {
    for (element, step) in [
        ("Switch(1)", r#"{ "switch", as = "x", to = 1, outputs = 2 }"#),
        ("Switch(-5)", r#"{ "switch", as = "x", to = -1, outputs = 2 }"#),
        (
            "HashSwitch(26, 8)",
            r#"{ "hash-switch", as = "x", offset = 26, length = 8, outputs = 2 }"#,
        ),
        ("StrideSwitch(3, 99999)", r#"{ "stride-switch", as = "x", tickets = "3 32768" }"#),
        ("RandomSwitch", r#"{ "random-switch", as = "x", outputs = 2 }"#),
        ("RoundRobinSwitch", r#"{ "round-robin-switch", as = "x", outputs = 2 }"#),
        ("PaintSwitch", r#"{ "paint-switch", as = "x", outputs = 2 }"#),
        ("CheckPaint(3)", r#"{ "check-paint", as = "x", colour = 3 }"#),
        ("CheckLength(1500)", r#"{ "check-length", as = "x", length = 1500, offset = 0 }"#),
        (
            "HostEtherFilter(2:0:0:0:0:1, true)",
            r#"{ "host-ether-filter", as = "x", address = "02:00:00:00:00:01", drop_own = true, offset = 0 }"#,
        ),
        ("RandomSample(0.25)", r#"{ "random-sample", as = "x", per_million = 250000 }"#),
        ("RatedSplitter(1000)", r#"{ "rated-splitter", as = "x", rate = "1000pps" }"#),
        ("BandwidthRatedSplitter(1000)", r#"{ "rated-splitter", as = "x", rate = "8000bit" }"#),
        (
            "BandwidthRatedSplitter(2MBps)",
            r#"{ "rated-splitter", as = "x", rate = "16000000bit" }"#,
        ),
        (
            "Classifier(12/0806 20/0001, -)",
            r#"{ "classifier", as = "x", patterns = { "12/0806 20/0001", "-" }, offset = 0 }"#,
        ),
        (
            "CheckIPHeader(BADSRC 10.0.0.1, OFFSET 14, CHECKSUM false)",
            r#"{ "check-ip-header", as = "x", offset = 14, bad_sources = { "10.0.0.1/32" }, checksum = false }"#,
        ),
    ] {
        let text = format!("FromDevice(eth0) -> x :: {element}; x[0] -> Discard; x[1] -> Discard;");
        assert_eq!(steps(&text)[0], format!(r#""port-switch.eth0", {step}"#));
    }
    for (element, step) in [
        ("EtherMirror", r#"{ "ether-mirror", as = "x", offset = 0 }"#),
        (
            "ARPResponder(10.0.0.1 11.0.0.0/8 2:0:0:0:0:1, 12.0.0.0/8 2:0:0:0:0:2)",
            r#"{ "arp-responder", as = "x", entries = { "10.0.0.1/32 02:00:00:00:00:01", "11.0.0.0/8 02:00:00:00:00:01", "12.0.0.0/8 02:00:00:00:00:02" }, offset = 0 }"#,
        ),
        (
            "IP6NDAdvertiser(2001:db8::1/64 2:0:0:0:0:1)",
            r#"{ "nd-advertiser", as = "x", entries = { "2001:db8::/64 02:00:00:00:00:01" }, offset = 0 }"#,
        ),
        (
            "EtherRewrite(2:0:0:0:0:1, 2:0:0:0:0:2)",
            r#"{ "ether-rewrite", as = "x", source = "02:00:00:00:00:01", destination = "02:00:00:00:00:02", offset = 0 }"#,
        ),
        (
            "MarkIPHeader(14) -> y :: SetIPDSCP(46)",
            r#"{ "set-ip-dscp", as = "y", dscp = 46, offset = 14 }"#,
        ),
        (
            "MarkIPHeader(14) -> y :: SetIPChecksum",
            r#"{ "set-ip-checksum", as = "y", offset = 14 }"#,
        ),
        (
            "MarkIPHeader(14) -> y :: CheckUDPHeader",
            r#"{ "check-l4-header", as = "y", protocol = "udp", offset = 14 }"#,
        ),
        (
            "MarkIPHeader(14) -> GetIPAddress(30) -> y :: StaticIPLookup(10.0.0.0/8 0)",
            r#"{ "ip-lookup", as = "y", routes = { "10.0.0.0/8 0" }, offset = 14, outputs = 1 }"#,
        ),
        (
            "SetIPAddress(10.0.0.1) -> y :: StaticIPLookup(10.0.0.0/8 0)",
            r#"{ "ip-lookup", as = "y", routes = { "10.0.0.0/8 0" }, address = "10.0.0.1", outputs = 1 }"#,
        ),
        (
            "SetIPAddress(10.0.0.1) -> CheckIPHeader(14) -> y :: StaticIPLookup(10.0.0.0/8 0)",
            r#"{ "check-ip-header", as = "CheckIPHeader@3", offset = 14 }"#,
        ),
        (
            "SetIP6Address(2001:db8::1) -> y :: LookupIP6Route(2001:db8::/32 0)",
            r#"{ "lookup-ip6", as = "y", routes = { "2001:db8::/32 0" }, address = "2001:db8::1", outputs = 1 }"#,
        ),
        ("Print(\"a b\", 8)", r#"{ "print", as = "x", label = "a b", length = 8, offset = 0 }"#),
        (
            "Null -> y :: Print(ACTIVE false) -> z :: EtherMirror",
            r#"{ "print", as = "y", label = "y", length = 24, offset = 0, active = false }"#,
        ),
        ("DropBroadcasts", r#"{ "drop-broadcasts", as = "x" }"#),
    ] {
        let text = format!("FromDevice(eth0) -> x :: {element} -> Discard;");
        assert_eq!(steps(&text)[0], format!(r#""port-switch.eth0", {step}"#));
    }
}

#[test]
fn errors_name_the_element_and_its_place() {
    for (text, expected) in [
        ("FromDevice(0) -> Discard;", "device \"0\": devices have names here"),
        (
            "FromDevice(eth0) -> p :: Paint(300) -> Discard;",
            "element \"p\" (Paint): COLOR \"300\": expected an integer from 0 to 255",
        ),
        ("FromDevice(eth0) -> p :: Paint(1, PAINT, 3) -> Discard;", "one argument too many: 3"),
        ("FromDevice(eth0) -> d :: DecIPTTL -> Discard;", "no IP header mark here"),
        ("Idle -> Discard;", "no packets come from a device"),
        (
            "FromDevice(eth0) -> w :: IPGWOptions(1.0.0.1) -> Discard;",
            "class IPGWOptions is not supported yet",
        ),
        ("FromDevice(eth0) -> RED(5, 50, 0.02) -> Discard;", "it has no queue"),
        (
            "FromDevice(eth0) -> ARPResponder(10.0.0.1) -> Discard;",
            "entry \"10.0.0.1\": expected an Ethernet",
        ),
        ("FromDevice(eth0) -> ARPResponder -> Discard;", "entries missing"),
        (
            "FromDevice(eth0) -> IP6NDAdvertiser(::1 ::2 2:0:0:0:0:1) -> Discard;",
            "expected IP6/LENGTH ETH",
        ),
        (
            "FromDevice(eth0) -> Queue -> s :: Shaper(x) -> ToDevice(eth0);",
            "RATE \"x\": expected a rate",
        ),
        ("FromDevice(eth0) -> r :: RatedSource -> Discard;", "r"),
        ("FromDevice(eth0) -> StripX(14) -> Discard;", "Strip"),
        (
            "FromDevice(eth0) -> p :: Paint(COLOUR 3) -> Discard;",
            "element \"p\" (Paint): COLOR \"COLOUR 3\": expected an integer",
        ),
        ("FromDevice(eth0, SNIFFER true) -> Discard;", "SNIFFER true is not supported"),
        (
            "FromDevice(eth0, BRST 3) -> Discard;",
            "unknown argument BRST; the nearest known one is BURST",
        ),
    ] {
        let errors = errors(text);
        assert!(errors.starts_with("t.click:1:") && errors.contains(expected), "{text}: {errors}");
    }
}

#[test]
fn the_elements_of_octeon_are_devices() {
    let text = "FromOcteon(eth0) -> Paint(1) -> t :: ToOcteon(eth1);";
    assert_eq!(steps(text)[1], r#""Paint@2.next", { "to-port", as = "t", port = "eth1" }"#);
    assert_eq!(converted(text).1, [""; 0]);
    let (lua, notes) = converted(&text.replace("eth1)", "eth1, LOCK true)"));
    assert_eq!(lua, self::lua(text));
    assert!(notes.len() == 1 && notes[0].contains("element \"t\": the lock has no effect"));
    assert!(errors("FromOcteon(eth0) -> ToOcteon(eth1, x, y);").contains("one argument too many"));
}

#[test]
fn arguments_without_an_effect_are_refused() {
    for (elements, expected) in [
        ("Queue -> t :: ToDevice(eth1, FOO 1)", "\"t\" (ToDevice): unknown argument FOO"),
        ("t :: ToDPDKDevice(eth1, TCO true)", "\"t\" (ToDPDKDevice): TCO true is not supported"),
        ("t :: ToDPDKDevice(eth1, ACTIVE false)", "ACTIVE false is not supported"),
        ("Queue -> u :: Unqueue(LIMIT 10) -> Discard", "\"u\" (Unqueue): LIMIT is not supported"),
        ("Queue -> Unqueue(ACTIVE false) -> Discard", "ACTIVE false is not supported"),
        ("Queue -> b :: Burster(0.1) -> Discard", "class Burster is not supported"),
        (
            "MarkIPHeader(14) -> IPFilter(1 udp, allow all) -> Discard",
            "a rule leads to output 1, which",
        ),
        (
            "MarkIPHeader(14) -> f :: IPFilter(allow all) -> Discard; f[1] -> Discard",
            "it has 1 here",
        ),
        (
            "MarkIPHeader(14) -> f :: IPFilter(alow all) -> Discard",
            "\"f\" (IPFilter): pattern 0 \"alow all\"",
        ),
        ("Null(3) -> Discard", "one argument too many: 3"),
        ("Queue -> Discard(ACTIVE false)", "ACTIVE false is not supported"),
        ("Queue(5, 6) -> ToDevice(eth1)", "one argument too many: 6"),
        ("Strip(14) -> EnsureEther -> Discard", "only whole frames are supported"),
        ("m :: MixedQueue -> ToDevice(eth1); Idle -> [1] m", "input 1, from which"),
        (
            "q :: Queue -> ToDevice(eth1); q[1] -> Discard",
            "\"q\" (Queue): 2 outputs in use; it has 1",
        ),
        ("Queue -> t :: ToDevice(eth1); t[0] -> Discard", "\"t\" (ToDevice): 1 outputs in use"),
        ("q :: Queue -> PrioSched -> ToDevice(eth1); q[1] -> Discard", "it has 1 here"),
    ] {
        let errors = errors(&format!("FromDevice(eth0) -> {elements};"));
        assert!(errors.contains(expected), "{elements}: {errors}");
    }
    let errors = self::errors("f :: FromDevice(eth0) -> Discard; f[1] -> Discard;");
    assert!(errors.contains("\"f\" (FromDevice): 2 outputs in use; it has 1 here"), "{errors}");
    let errors = self::errors("FromDPDKDevice(eth0, ACTIVE false) -> Discard;");
    assert!(errors.contains("ACTIVE false"), "{errors}");
    for elements in [
        "Queue -> ToDevice(eth1, BURST 8, METHOD LINUX)",
        "ToDPDKDevice(eth1, 0, N_QUEUES 2, BLOCKING false)",
        "Queue -> Unqueue(8, ACTIVE true, LIMIT -1) -> SetTimestamp -> Align(4, 2) -> Discard(BURST 3)",
    ] {
        assert_eq!(converted(&format!("FromDevice(eth0) -> {elements};")).1, [""; 0]);
    }
}

#[test]
fn own_addresses_of_a_check_have_any_source() {
    let text = |check: &str| format!("FromDevice(eth0) -> c :: {check} -> Discard;");
    for (check, expected) in [
        (
            "CheckIPHeader(INTERFACES 10.0.0.1/24, GOODDST \"10.0.9.9 10.0.9.8\", OFFSET 14)",
            r#"bad_sources = { "0.0.0.0/32", "255.255.255.255/32", "10.0.0.255/32" }, good_destinations = { "10.0.0.1/32", "10.0.9.9/32", "10.0.9.8/32" } }"#,
        ),
        (
            "CheckIPHeader(10.0.0.255, 14)",
            r#"bad_sources = { "0.0.0.0/32", "255.255.255.255/32", "10.0.0.255/32" } }"#,
        ),
    ] {
        assert!(steps(&text(check))[0].ends_with(expected), "{:?}", steps(&text(check)));
    }
}

#[test]
fn sources_end_the_router_if_they_are_told_to() {
    let script = |element: &str| {
        let text = format!("s :: {element} -> Unqueue -> Discard; FromDevice(eth0) -> Discard;");
        let text =
            if element.starts_with("Timed") { text.replace("-> Unqueue ", "") } else { text };
        let text = text.replace("-> Unqueue", "-> Queue -> Unqueue");
        handlers(&text).into_iter().find(|line| line.starts_with("element \"s@stop\""))
    };
    let limited = "label again, wait 10ms, goto again $(or $(not $(s.active)) $(lt $(s.limit) 0) $(lt $(s.count) $(s.limit))), write stop";
    for (element, expected) in [
        ("InfiniteSource(\"a\", 5, STOP true)", limited),
        ("RatedSource(\"a\", 9, 5, true, true)", limited),
        ("TimedSource(0.1, \"a\", LIMIT 5, STOP true)", limited),
        (
            "FromDump(a.pcap, STOP true)",
            "label again, wait 10ms, goto again $(s.active), write stop",
        ),
    ] {
        let found = script(element).unwrap_or_else(|| panic!("{element}"));
        let expected =
            format!("element \"s@stop\" {{ class = \"Script\", config = \"{expected}\" }}");
        assert_eq!(found, expected);
    }
    assert_eq!(script("InfiniteSource(\"a\", 5, STOP false)"), None);
    assert_eq!(script("FromDump(a.pcap)"), None);
}

#[test]
fn packets_that_wait_are_in_queues() {
    let text = "FromDevice(eth0) -> q :: Queue(20) -> BandwidthShaper(1Mbps) -> Unqueue -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[..2],
        [
            r#""port-switch.eth0", { "queue", as = "q", capacity = 20, rate = "1000000bit" }"#,
            r#""q.next", { "to-port", as = "t", port = "eth1" }"#,
        ]
    );
    let text = "FromDevice(eth0) -> q :: Queue -> Shaper(500) -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[0],
        r#""port-switch.eth0", { "queue", as = "q", capacity = 1000, rate = "500pps" }"#
    );
    let text = "FromDevice(eth0) -> q :: Queue -> Unqueue -> x :: Paint(1) -> Discard;";
    assert!(
        steps(text)[0].contains("\"paint\""),
        "a queue in front of Discard and Unqueue holds nothing: {:?}",
        steps(text)
    );
}

#[test]
fn delays_are_those_of_their_queue() {
    let text =
        "FromDevice(eth0) -> q :: Queue(20) -> DelayUnqueue(0.02) -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[..2],
        [
            r#""port-switch.eth0", { "queue", as = "q", capacity = 20, delay = "20000us" }"#,
            r#""q.next", { "to-port", as = "t", port = "eth1" }"#,
        ]
    );
    let text = "FromDevice(eth0) -> q :: Queue -> Shaper(9) -> d :: DelayShaper(1.5ms) -> t :: ToDevice(eth1);";
    let expected = r#"{ "queue", as = "q", capacity = 1000, rate = "9pps", delay = "1500us" }"#;
    assert!(steps(text)[0].ends_with(expected), "{:?}", steps(text));
    let step = handlers(text).into_iter().find(|line| line.starts_with("element \"d\""));
    assert!(step.unwrap().ends_with(r#"step = "q" }"#));
    for (between, expected) in [
        ("DelayUnqueue(61)", "DELAY of 61 seconds; at most 60"),
        ("DelayUnqueue", "argument DELAY is missing"),
        ("DelayUnqueue(1) -> Null -> Queue -> DelayShaper(x)", "DELAY \"x\": expected"),
        (
            "DelayShaper(1) -> d :: DelayUnqueue(2)",
            "element \"d\" (DelayUnqueue): a delay is supported",
        ),
    ] {
        let errors = errors(&format!("FromDevice(eth0) -> Queue -> {between} -> Discard;"));
        assert!(errors.contains(expected), "{between}: {errors}");
    }
}

#[test]
fn annotations_of_several_paths_are_not_looked_up() {
    let text = |behind: &str| {
        format!(
            "FromDevice(eth0) -> CheckIPHeader(14) -> c :: Tee; c[0] -> SetIPAddress(10.0.0.1) -> n :: Null;
             c[1] -> {behind}; n -> l :: StaticIPLookup(10.0.0.0/8 0) -> Discard;"
        )
    };
    assert!(errors(&text("n")).contains("element \"l\" (StaticIPLookup): packets have different"));
    assert!(errors(&text("SetIPAddress(10.0.0.2) -> n")).contains("different destination"));
    let same = steps(&text("SetIPAddress(10.0.0.1) -> n"));
    assert!(same.iter().any(|line| line.contains(r#"address = "10.0.0.1""#)), "{same:?}");
    let errors =
        errors("FromDevice(eth0) -> SetIPAddress(10.0.0.1) -> LookupIP6Route(::/0 0) -> Discard;");
    assert!(errors.contains("of the other family"), "{errors}");
}

#[test]
fn the_kernel_has_the_other_end_of_a_tap_device() {
    let text = "f :: FromHost(fake0, 192.0.2.1/24, ETHER 2:0:0:0:0:1) -> Queue -> ToDevice(eth0);
        FromDevice(eth0) -> t :: ToHost(fake0);";
    let (lua, notes) = converted(text);
    for expected in [
        r#"turnpike.port "fake0" { device = "net_tap_fake0,iface=fake0,mac=02:00:00:00:00:01" }"#,
        r#"graph:path("port-switch.eth0", { "to-port", as = "t", port = "fake0" })"#,
        r#"graph:path("port-switch.fake0", { "to-port", as = "ToDevice@3", port = "eth0" })"#,
    ] {
        assert!(lua.contains(&expected.to_owned()), "{expected}: {lua:?}");
    }
    assert!(notes.len() == 1 && notes[0].contains("are not set by element \"f\""), "{notes:?}");
    let two = "FromHost(a) -> ToHost(b); FromHost(b) -> ToHost(a);";
    assert_eq!(converted(two).1, [""; 0]);
    assert!(self::lua(two).iter().any(|line| line.contains("net_tap_b,iface=b")));
    // The first one has an argument more, but no address; addresses may stand anywhere.
    for (text, expected) in [
        ("FromHost(a, HEADROOM 8) -> ToHost(a);", 0),
        ("FromHost(a, MTU 1500, DST 192.0.2.1/24) -> ToHost(a);", 1),
        ("FromHost(a, DST6 2001:db8::1/64) -> ToHost(a);", 1),
        ("FromHost(ETHER 2:0:0:0:0:1, DEVNAME a) -> ToHost(a);", 0),
    ] {
        let notes = converted(text).1;
        assert_eq!(notes.len(), expected, "{text}: {notes:?}");
    }
    for (text, expected) in [
        (
            "FromDevice(eth0) -> t :: ToHost(x);",
            "element \"t\" (ToHost): no FromHost(x) makes this interface",
        ),
        ("FromDevice(eth0) -> t :: ToHost;", "element \"t\" (ToHost): argument DEVNAME is missing"),
        ("FromHost(a/b) -> Discard;", "DEVNAME \"a/b\": expected 1 to 15 letters"),
        ("FromHost(a, TYPE IP) -> Discard;", "only TYPE ETHER is supported"),
        ("FromHost(a, GATEWY 1.0.0.1) -> Discard;", "GATEWY"),
        ("FromHost(a) -> t :: ToHost(a, SNIFER true);", "(ToHost): unknown argument SNIFER"),
        ("FromHost(a) -> t :: ToHost(a, TYPE IP);", "only TYPE ETHER is supported"),
    ] {
        assert!(errors(text).contains(expected), "{text}: {}", errors(text));
    }
}

#[test]
fn packets_that_red_selects_take_its_second_output() {
    // They may go to another queue of the same scheduler.
    let text = two_classes(
        "a -> r :: RED(5, 50, 1) -> [0] s :: PrioSched -> t; r[1] -> x :: Counter -> b -> [1] s",
    );
    let found = steps(&text);
    for expected in [
        r#"order = "prio(a[20 r:red 5 50 1 stability 4 gentle aside], b[1000])""#,
        r#""s.early-0", { "counter", as = "x" }"#,
        r#""x.next", { "to-queue", as = "b", number = 1 }"#,
    ] {
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:?}");
    }
    // Its second output leads to a queue that has none of its early drops.
    let other = "FromDevice(eth0) -> r :: RED(5, 50, 1) -> q :: Queue -> s :: PrioSched -> Unqueue -> Discard; r[1] -> z :: Queue(7) -> [1] s;";
    assert!(
        steps(other).iter().any(|line| line.contains("gentle aside], z[7])")),
        "{:?}",
        steps(other)
    );
    let in_front = "FromDevice(eth0) -> r :: RED(5, 50, 1) -> q :: Queue -> Shaper(7) -> Unqueue -> Discard; r[1] -> x :: Counter -> Discard;";
    let found = handlers(in_front);
    let line = |name: &str| {
        let begin = format!("element \"{name}\" ");
        found.iter().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("{found:?}"))
    };
    assert!(line("x").contains(r#"counts = { "q.early-0" }"#), "{found:?}");
    assert!(
        line("r").ends_with(r#"step = "q" }"#) && line("Shaper@4").ends_with(r#"step = "q" }"#)
    );
}

/// Two classes and the schedulers behind them.
fn two_classes(behind: &str) -> String {
    format!(
        "t :: ToDevice(eth1); FromDevice(eth0) -> c :: Classifier(12/0800, -); a :: Queue(20); b :: Queue;
         c[0] -> a; c[1] -> b; {behind};"
    )
}

#[test]
fn schedulers_and_their_queues_are_one_step() {
    let text = two_classes(
        "a -> x :: Counter -> [0] s :: PrioSched; b -> [1] s; s -> Shaper(500) -> Unqueue -> Queue -> t",
    );
    assert_eq!(
        steps(&text),
        [
            r#""port-switch.eth0", { "classifier", as = "c", patterns = { "12/0800", "-" }, offset = 0 }"#,
            r#""c.0", { "to-queue", as = "a", number = 0 }"#,
            r#""a.next", { "schedule", as = "s", order = "Shaper@8:rate(500pps, prio(a[20], b[1000]))" }"#,
            r#""s.0", { "counter", as = "x" }"#,
            r#""x.next", { "to-port", as = "t", port = "eth1" }"#,
            r#""t.transmit", "transmit""#,
            r#""s.1", "t""#,
            r#""c.1", { "to-queue", as = "b", number = 1 }"#,
            r#""b.next", "s""#,
        ]
    );
    for (behind, order) in [
        (
            "a -> s :: RoundRobinSched -> t; b -> [1] s",
            r#"round-robin(a[20], b[1000])", port = "eth1""#,
        ),
        ("a -> s :: DRRSched(900) -> t; b -> [1] s", r#"drr(900, a[20], b[1000])", port = "eth1""#),
        (
            "a -> [1] s :: StrideSched(5, 6) -> t; b -> [0] s",
            r#"s:stride(5 b[1000], 6 a[20])", port = "eth1""#,
        ),
        (
            "a -> s :: PullSwitch(1) -> t; b -> [1] s",
            r#"s:switch(1, a[20], b[1000])", port = "eth1""#,
        ),
        (
            "a -> s :: SimplePrioSched -> BandwidthRatedUnqueue(1Mbps) -> Queue -> t; b -> [1] s",
            r#"BandwidthRatedUnqueue@7:rate(1000000bit, prio(a[20], b[1000]))""#,
        ),
        (
            "a -> Shaper(3) -> s :: PrioSched -> [0] r :: RoundRobinSched -> t; b -> [1] s; InfiniteSource -> d :: Queue(5) -> [1] r",
            r#"round-robin(prio(Shaper@6:rate(3pps, a[20]), b[1000]), d[5])", port = "eth1""#,
        ),
        (
            "a -> RED(5, 50, 0.02) -> s :: PrioSched -> t; b -> [1] s",
            r#"prio(a[20 RED@6:red 5 50 0.02 stability 4 gentle], b[1000])", port = "eth1""#,
        ),
    ] {
        let found = steps(&two_classes(behind));
        let expected = format!("order = \"{order} }}\"");
        let expected = expected.trim_end_matches('"');
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:?}");
    }
}

#[test]
fn early_drops_are_those_of_their_queue() {
    let text = "FromDevice(eth0) -> RED(5, 50, 2%, GENTLE false, STABILITY 0) -> q :: Queue(100) -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[..2],
        [
            r#""port-switch.eth0", { "schedule", as = "q", order = "q[100 RED@2:red 5 50 0.02 stability 0]", port = "eth1" }"#,
            r#""q.0", { "to-port", as = "t", port = "eth1" }"#,
        ]
    );
    let behind = "FromDevice(eth0) -> q :: Queue(100) -> RED(5, 50, 2%, GENTLE false, STABILITY 0) -> t :: ToDevice(eth1);";
    let named = |text: &str| steps(&text.replace("RED(", "r :: RED("));
    assert_eq!(named(text), named(behind));
    let text = "FromDevice(eth0) -> RED(5, 50, 1) -> Paint(1) -> q :: Queue -> Shaper(7) -> Unqueue -> Discard;";
    assert!(
        steps(text)[1].contains(
            "order = \"Shaper@5:rate(7pps, q[1000 RED@2:red 5 50 1 stability 4 gentle])\" }"
        ),
        "{:?}",
        steps(text)
    );
}

#[test]
fn what_cannot_be_pulled_is_refused() {
    for (behind, expected) in [
        (
            "Idle -> s :: PrioSched -> t; a -> [1] s; b -> Discard",
            "element \"s\" (PrioSched): it can pull from queues only",
        ),
        ("a -> s :: StrideSched(1) -> t; b -> [1] s", "argument TICKETS is missing"),
        (
            "a -> s :: PrioSched -> r :: RED(1, 2, 0.5) -> [0] z :: PrioSched -> t; b -> [1] s",
            "element \"s\" (PrioSched): RED behind a scheduler",
        ),
        (
            "a -> r :: RED(9, 2, 0.5) -> s :: PrioSched -> t; b -> [1] s",
            "element \"r\" (RED): MIN_THRESH 9 is above MAX_THRESH 2",
        ),
        (
            "a -> Counter -> r :: RED(2, 9, 0.5) -> s :: PrioSched -> t; b -> [1] s; r[1] -> Discard",
            "element \"r\" (RED): with a second output it must be next to its Queue",
        ),
        (
            "a -> d :: DelayShaper(1) -> s :: PrioSched -> t; b -> [1] s",
            "element \"d\" (DelayShaper): a delay is supported behind a Queue without scheduler",
        ),
        (
            "a -> s :: PrioSched -> d :: DelayUnqueue(1) -> Queue -> t; b -> [1] s",
            "element \"d\" (DelayUnqueue): a delay is supported behind a Queue without scheduler",
        ),
        (
            "a -> s :: PullSwitch(2) -> t; b -> [1] s",
            "element \"s\" (PullSwitch): INPUT \"2\": expected an integer",
        ),
    ] {
        let errors = errors(&two_classes(behind));
        assert!(errors.contains(expected), "{behind}: {errors}");
    }
    let text: String =
        (0..13).map(|n| format!("FromDevice(eth{n}) -> Queue -> [{n}] s;")).collect();
    let errors = errors(&format!("s :: PrioSched; {text} s -> Unqueue -> Discard;"));
    assert!(errors.contains("at most 12 queues for one scheduler"), "{errors}");
    let chain = "[0] PrioSched -> ".repeat(9);
    let errors = self::errors(&format!("FromDevice(eth0) -> Queue -> {chain} Unqueue -> Discard;"));
    assert!(errors.contains("more than 8 schedulers pull from each other"), "{errors}");
    let errors = self::errors("FromDevice(eth0) -> r :: RED(5, 50, 0.02) -> Discard;");
    assert!(errors.contains("element \"r\" (RED): it has no queue"), "{errors}");
}

#[test]
fn meters_have_an_output_more_than_rates() {
    let text = "FromDevice(eth0) -> m :: Meter(100, 200); m[0] -> Discard; m[1] -> Discard; m[2] -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[..2],
        [
            r#""port-switch.eth0", { "meter", as = "m", rates = "100pps 200pps" }"#,
            r#""m.0", "drop""#,
        ]
    );
    let text = "FromDevice(eth0) -> m :: BandwidthMeter(20kBps); m[0] -> Discard; m[1] -> Discard;";
    assert_eq!(steps(text)[0], r#""port-switch.eth0", { "meter", as = "m", rates = "160000bit" }"#);
    let errors = errors(&text.replace("20kBps", "fast"));
    assert!(errors.contains("RATE \"fast\": expected a rate such as 10Mbps"), "{errors}");
}

#[test]
fn colour_255_is_copied_where_it_occurs() {
    let text = "FromDevice(eth0) -> Paint(255) -> x :: PaintSwitch; x[0] -> Discard; x[1] -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[1..],
        [
            r#""Paint@2.next", { "paint-switch", as = "x", outputs = 2, all = true }"#,
            r#""x.0", "drop""#,
            r#""x.1", { "to-port", as = "t", port = "eth1" }"#,
            r#""t.transmit", "transmit""#,
            r#""x.all", { "tee", as = "x:all", outputs = 2 }"#,
            r#""x:all.0", "drop""#,
            r#""x:all.1", "t""#,
        ]
    );
    let text = text.replace("255", "254");
    assert!(steps(&text)[1].ends_with(r#"{ "paint-switch", as = "x", outputs = 2 }"#));
}

#[test]
fn a_udp_source_makes_whole_frames() {
    let text = "FastUDPSource(100, 5, 60, 2:0:0:0:0:1, 10.0.0.1, 1000, 2:0:0:0:0:2, 10.0.0.2, 2000)
        -> Unqueue -> Queue -> ToDevice(eth0);";
    let found = &steps(text)[0];
    // An Ethernet, an IPv4 header with TTL 250, a UDP header; computed by scapy.
    let frame =
        "02000000000202000000000108004500002e00000000fa11acbc0a0000010a00000203e807d0001adfff";
    assert!(found.contains(&format!("frame = \"{frame}{}\"", "00".repeat(18))), "{found}");
    assert!(found.ends_with("limit = 5, rate = \"100pps\" }"), "{found}");
    let errors = errors(&text.replace("100, 5, 60", "100, 5, 1515"));
    assert!(errors.contains("LENGTH \"1515\": expected an integer from 0 to 1514"), "{errors}");
}

#[test]
fn dumps_are_files() {
    let text =
        "FromDump(/tmp/a.pcap, TIMING true, STOP true) -> d :: ToDump(\"b c.pcap\", SNAPLEN 96)
        -> Strip(14) -> e :: ToDump(c, 0, IP); FromDevice(eth0) -> Discard;";
    assert_eq!(
        steps(text)[..4],
        [
            r#"graph:add { "from-dump", as = "FromDump@1", file = "/tmp/a.pcap", timing = true }"#,
            r#""port-switch.eth0", "drop""#,
            r#""FromDump@1.next", { "to-dump", as = "d", file = "b c.pcap", length = 96, link = "ethernet", offset = 0 }"#,
            r#""d.next", { "to-dump", as = "e", file = "c", length = 2048, link = "ip", offset = 14 }"#,
        ]
    );
    for (from, to, expected) in [
        ("TIMING true", "FORCE_IP true", "FORCE_IP true is not supported yet"),
        ("TIMING true", "SAMPLE 0.5", "unknown argument SAMPLE"),
        ("0, IP", "0, ATM", "ENCAP ATM is not supported; ETHER and IP are"),
    ] {
        let errors = errors(&text.replace(from, to));
        assert!(errors.contains(expected), "{errors}");
    }
}

#[test]
fn ip6_elements_become_steps() {
    let text =
        "FromDevice(eth0) -> Strip(14) -> c :: CheckIP6Header(2001:db8::1) -> GetIP6Address(24)
        -> l :: LookupIP6Route(2001:db8:1::/48 0, ::/0 ::0 1);
        l[0] -> d :: DecIP6HLIM -> Discard; l[1] -> Discard;";
    assert_eq!(
        steps(text)[..4],
        [
            r#""port-switch.eth0", { "check-ip6-header", as = "c", offset = 14, bad_sources = { "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", "2001:db8::1/128" } }"#,
            r#""c.ok", { "lookup-ip6", as = "l", routes = { "2001:db8:1::/48 0", "::/0 1" }, offset = 14, outputs = 2 }"#,
            r#""l.0", { "dec-ip6-hlim", as = "d", offset = 14 }"#,
            r#""d.ok", "drop""#,
        ]
    );
    let errors = errors(&text.replace("::/0 ::0 1", "::/0 fe80::1 1"));
    assert!(errors.contains("the gateway of route"), "{errors}");
}

#[test]
fn copies_of_a_colour_take_the_second_output() {
    let text = "FromDevice(eth0) -> x :: PaintTee(3); x[0] -> Discard; x[1] -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[..5],
        [
            r#""port-switch.eth0", { "tee", as = "x", outputs = 2 }"#,
            r#""x.0", "drop""#,
            r#""x.1", { "check-paint", as = "x:check", colour = 3 }"#,
            r#""x:check.ok", { "to-port", as = "t", port = "eth1" }"#,
            r#""t.transmit", "transmit""#,
        ]
    );
}

proptest::proptest! {
    /// Whatever elements are connected in whatever way, there are errors or Lua, of which each line has its own.
    #[test]
    fn no_configuration_is_too_odd(
        elements in proptest::collection::vec(proptest::sample::select(ANY), 1..8),
        wires in proptest::collection::vec((0usize..8, 0usize..3, 0usize..8), 0..16),
    ) {
        let mut text = String::new();
        for (number, element) in elements.iter().enumerate() {
            text += &format!("e{number} :: {element};\n");
        }
        let count = elements.len();
        for (from, output, to) in wires {
            text += &format!("e{} [{output}] -> e{};\n", from % count, to % count);
        }
        if let Ok(Converted { lua, lines, .. }) = convert("t.click", &text) {
            proptest::prop_assert_eq!(lua.lines().count(), lines.len());
            proptest::prop_assert!(lines.iter().flatten().all(|&line| line <= text.lines().count()));
        }
    }
}

const ANY: &[&str] = &[
    "FromDevice(eth0)",
    "FromDevice(eth1)",
    "ToDevice(eth0)",
    "ToDevice(eth1)",
    "Queue(5)",
    "Discard",
    "Tee",
    "Null",
    "Paint(1)",
    "PaintTee(1)",
    "Strip(14)",
    "Unstrip(14)",
    "CheckIPHeader",
    "DecIPTTL",
    "Classifier(12/0800, -)",
    "RoundRobinSwitch",
    "StaticIPLookup(0/0 0, 10.0.0.0/8 10.0.0.1 1)",
    "ARPQuerier(10.0.0.1, 2:0:0:0:0:1)",
    "ICMPError(10.0.0.1, timeexceeded)",
    "InfiniteSource",
    "Shaper(10)",
    "Unqueue",
    "Print(x)",
    "ToHost",
    "Idle",
    "EtherEncap(0x0800, 2:0:0:0:0:1, 2:0:0:0:0:2)",
    "ARPResponder(10.0.0.1 2:0:0:0:0:1)",
    "IPFragmenter(1500)",
    "PrioSched",
    "StrideSched(1, 2)",
    "RED(5, 50, 0.02)",
    "Meter(100)",
    "PaintSwitch",
    "Paint(255)",
];

#[test]
fn copies_loops_and_sources_are_deferred() {
    let text =
        "FromDevice(eth0) -> x :: Tee(2); x[0] -> Discard; x[1] -> Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        steps(text)[..3],
        [
            r#""port-switch.eth0", { "tee", as = "x", outputs = 2 }"#,
            r#""x.0", "drop""#,
            r#""x.1", { "to-port", as = "t", port = "eth1" }"#,
        ]
    );
    let text =
        "FromDevice(eth0) -> a :: Paint(1) -> b :: RoundRobinSwitch; b[0] -> Discard; b[1] -> a;";
    let found = steps(text);
    assert!(found.contains(&r#""b.1", { "queue", as = "b:1:again" }"#.to_owned()), "{found:?}");
    assert!(found.contains(&r#""b:1:again.next", "a""#.to_owned()), "{found:?}");
    let text = r#"r :: RatedSource("ab", 100, 5) -> Queue -> t :: ToDevice(eth1); FromDevice(eth1) -> Discard;"#;
    let found = steps(text);
    assert_eq!(
        found[0],
        r#"graph:add { "packets", as = "r", frame = "6162", limit = 5, rate = "100pps" }"#
    );
    assert!(
        found.contains(&r#""r.next", { "to-port", as = "t", port = "eth1" }"#.to_owned()),
        "{found:?}"
    );
}

#[test]
fn patterns_over_ip_headers_are_kept() {
    let text = "FromDevice(eth0) -> MarkIPHeader(14) -> f :: IPFilter(deny src 10.0.0.0/8, allow all) -> Discard;";
    assert_eq!(
        steps(text)[0],
        r#""port-switch.eth0", { "ip-filter", as = "f", rules = { "deny src 10.0.0.0/8", "allow all" }, offset = 14 }"#
    );
    let text = "FromDevice(eth0) -> MarkIPHeader(14) -> f :: IPClassifier(tcp, -); f[0] -> Discard; f[1] -> Discard;";
    assert_eq!(
        steps(text)[0],
        r#""port-switch.eth0", { "ip-classifier", as = "f", patterns = { "tcp", "-" }, offset = 14 }"#
    );
}

#[test]
fn elements_without_packets_are_noted() {
    let (_, notes) = converted("FromDevice(eth0) -> Discard; Idle -> c :: Counter -> Discard;");
    assert!(
        notes.iter().any(|note| note.starts_with("t.click:1:") && note.contains("\"c\"")),
        "{notes:?}"
    );
}

/// The router of Click's make-ip-conf.pl, with two interfaces.
const ROUTER: &str = r#"
ip :: Strip(14)
    -> CheckIPHeader(INTERFACES 18.26.4.92/255.255.255.0 1.0.0.1/255.0.0.0)
    -> rt :: StaticIPLookup(
	18.26.4.92/32 0, 18.26.4.255/32 0, 18.26.4.0/32 0, 1.0.0.1/32 0, 1.255.255.255/32 0, 1.0.0.0/32 0,
	18.26.4.0/255.255.255.0 1, 1.0.0.0/255.0.0.0 2, 255.255.255.255/32 0.0.0.0 0, 0.0.0.0/32 0,
	0.0.0.0/0.0.0.0 18.26.4.1 1);
arpt :: Tee(3);
c0 :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
PollDevice(eth0) -> c0;
out0 :: Queue(200) -> todevice0 :: ToDevice(eth0);
c0[0] -> ar0 :: ARPResponder(18.26.4.92 00:00:C0:3B:71:EF) -> out0;
arpq0 :: ARPQuerier(18.26.4.92, 00:00:C0:3B:71:EF) -> out0;
c0[1] -> arpt;
arpt[0] -> [1]arpq0;
c0[2] -> Paint(1) -> ip;
c0[3] -> Print("eth0 non-IP") -> Discard;
c1 :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
FromDevice(eth1) -> c1;
out1 :: Queue(200) -> todevice1 :: ToDevice(eth1);
c1[0] -> ar1 :: ARPResponder(1.0.0.1 00:00:C0:CA:68:EF, 9.0.0.0/8 00:00:C0:CA:68:EF) -> out1;
arpq1 :: ARPQuerier(1.0.0.1, 00:00:C0:CA:68:EF) -> out1;
c1[1] -> arpt;
arpt[1] -> [1]arpq1;
c1[2] -> Paint(2) -> ip;
c1[3] -> Print("eth1 non-IP") -> Discard;
toh :: ToHost;
arpt[2] -> toh;
rt[0] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> toh;
rt[1] -> DropBroadcasts -> cp0 :: PaintTee(1) -> gio0 :: IPGWOptions(18.26.4.92) -> FixIPSrc(18.26.4.92)
    -> dt0 :: DecIPTTL -> fr0 :: IPFragmenter(1500) -> [0]arpq0;
dt0[1] -> ICMPError(18.26.4.92, timeexceeded) -> rt;
fr0[1] -> ICMPError(18.26.4.92, unreachable, needfrag) -> rt;
gio0[1] -> ICMPError(18.26.4.92, parameterproblem) -> rt;
cp0[1] -> ICMPError(18.26.4.92, redirect, host) -> rt;
rt[2] -> DropBroadcasts -> cp1 :: PaintTee(2) -> gio1 :: IPGWOptions(1.0.0.1) -> FixIPSrc(1.0.0.1)
    -> dt1 :: DecIPTTL -> fr1 :: IPFragmenter(1400) -> [0]arpq1;
dt1[1] -> ICMPError(1.0.0.1, timeexceeded) -> rt;
fr1[1] -> ICMPError(1.0.0.1, unreachable, needfrag) -> rt;
gio1[1] -> ICMPError(1.0.0.1, parameterproblem) -> rt;
cp1[1] -> ICMPError(1.0.0.1, redirect, host) -> rt;
"#;

#[test]
fn an_ip_router_becomes_addresses_and_routes() {
    let (lua, notes) = converted(ROUTER);
    assert_eq!(
        lua,
        [
            r#"turnpike.port "eth0" { device = "eth0", mac = "00:00:c0:3b:71:ef", address = { "18.26.4.92/24" }, redirects = true }"#,
            r#"turnpike.port "eth1" { device = "eth1", mac = "00:00:c0:ca:68:ef", address = { "1.0.0.1/8" }, mtu = 1400, redirects = true, proxy = { "9.0.0.0/8" } }"#,
            r#"turnpike.route "0.0.0.0/0" { via = "18.26.4.1", port = "eth0" }"#,
        ]
    );
    assert!(notes.iter().any(|note| note.contains("answered by Turnpike itself")), "{notes:?}");
}

#[test]
fn a_router_s_pings_and_macs_are_its_own() {
    let pings = ROUTER.replace(
        "rt[0] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> toh;",
        "rt[0] -> IPReassembler -> ping_ipc :: IPClassifier(icmp type echo, -);
         ping_ipc[0] -> ICMPPingResponder -> [0]rt;
         ping_ipc[1] -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> toh;",
    );
    assert_ne!(pings, ROUTER);
    assert_eq!(lua(&pings), lua(ROUTER));
    let fixed = ROUTER
        .replace(
            "arpq1 :: ARPQuerier(1.0.0.1, 00:00:C0:CA:68:EF) -> out1;",
            "arpq1 :: EtherEncap(0x0800, 00:00:C0:CA:68:EF, 2:0:0:0:0:9) -> out1;",
        )
        .replace("arpt[1] -> [1]arpq1;", "arpt[1] -> Discard;");
    let lua = lua(&fixed);
    assert!(lua[1].contains(r#"address = { "1.0.0.1/32" }"#), "{lua:?}");
    assert!(
        lua.contains(
            &r#"turnpike.neighbour "fe80::ff:fe00:9" { port = "eth1", mac = "02:00:00:00:00:09" }"#
                .to_owned()
        ),
        "{lua:?}"
    );
    assert!(
        lua.contains(
            &r#"turnpike.route "1.0.0.0/8" { via = "fe80::ff:fe00:9", port = "eth1" }"#.to_owned()
        ),
        "{lua:?}"
    );
}

#[test]
fn a_fixed_annotation_is_the_gateway_of_its_routes() {
    let text = ROUTER
        .replace("rt[1] -> DropBroadcasts", "rt[1] -> SetIPAddress(18.26.4.9) -> DropBroadcasts");
    assert_ne!(text, ROUTER);
    let lua = lua(&text);
    for route in [
        r#"turnpike.route "0.0.0.0/0" { via = "18.26.4.9", port = "eth0" }"#,
        r#"turnpike.route "18.26.4.0/24" { via = "18.26.4.9", port = "eth0" }"#,
    ] {
        assert!(lua.contains(&route.to_owned()), "{lua:?}");
    }
    assert!(lua[0].contains(r#"address = { "18.26.4.92/24" }"#), "{lua:?}");
}

#[test]
fn what_is_no_part_of_a_router_is_refused_there() {
    for (from, to, expected) in [
        (
            "-> Paint(1) -> ip",
            "-> Paint(1) -> x :: EtherMirror -> ip",
            "element \"x\" (EtherMirror): it is no part of an IP router",
        ),
        (
            "rt[1] -> DropBroadcasts",
            "rt[1] -> x :: SetIPChecksum -> DropBroadcasts",
            "element \"x\" (SetIPChecksum)",
        ),
        (
            "-> fr1 :: IPFragmenter(1400) -> [0]arpq1",
            "-> fr1 :: IPFragmenter(1400) -> x :: Queue -> Shaper(5) -> Unqueue -> [0]arpq1",
            "(Shaper): it is no part of an IP router",
        ),
        (
            "toh :: ToHost;",
            "toh :: ToHost; FromDevice(eth2) -> x :: SetIPDSCP(3) -> Discard;",
            "element \"x\" (SetIPDSCP)",
        ),
        (
            "12/0806 20/0001, 12/0806 20/0002, 12/0800, -);\nPoll",
            "12/0806 20/0001, 12/0806 20/0002, 12/0899, -);\nPoll",
            "pattern \"12/0899\"",
        ),
        (
            "0.0.0.0/0.0.0.0 18.26.4.1 1",
            "0.0.0.0/0.0.0.0 18.26.4.1 x",
            "expected ADDRESS/MASK [GATEWAY] OUTPUT",
        ),
    ] {
        let text = ROUTER.replace(from, to);
        assert_ne!(text, ROUTER, "{from}");
        let errors = errors(&text);
        assert!(errors.contains(expected), "{to}: {errors}");
    }
}

#[test]
fn arguments_of_the_elements_of_a_router_are_read() {
    for (from, to, expected) in [
        (
            "ip :: Strip(14)",
            "ip :: Strip(18)",
            "(StaticIPLookup): data of packets begin at byte 18",
        ),
        ("ip :: Strip(14)", "ip :: Strip(14, 1)", "\"ip\" (Strip): one argument too many: 1"),
        ("ToHost;", "ToHost(fake0, FOO 1);", "\"toh\" (ToHost): unknown argument FOO"),
        (
            "todevice0 :: ToDevice(eth0)",
            "todevice0 :: ToDevice(eth0, FOO 1)",
            "unknown argument FOO",
        ),
        (
            "out0 :: Queue(200)",
            "out0 :: Queue(200, 3)",
            "\"out0\" (Queue): one argument too many: 3",
        ),
        ("Paint(1) -> ip", "Paint(1, PAINT, 3) -> ip", "one argument too many: 3"),
        (
            "CheckIPHeader(INTERFACES",
            "k :: CheckIPHeader(BADSRC 10.9.9.9, INTERFACES",
            "\"k\" (CheckIPHeader): source 10.9.9.9: here it refuses broadcast addresses",
        ),
        (
            "CheckIPHeader(INTERFACES",
            "CheckIPHeader(GOODDST 10.9.9.9, INTERFACES",
            "GOODDST is not supported here",
        ),
        (
            "PollDevice(eth0) -> c0",
            "PollDevice(eth0) -> h :: HostEtherFilter(2:0:0:0:0:1) -> c0",
            "\"h\" (HostEtherFilter): 02:00:00:00:00:01 is not the MAC of \"eth0\"",
        ),
        (
            "dt0 :: DecIPTTL",
            "dt0 :: DecIPTTL(MULTICAST false)",
            "\"dt0\" (DecIPTTL): unknown argument MULTICAST",
        ),
        (
            "fr0 :: IPFragmenter(1500)",
            "fr0 :: IPFragmenter(1500, false)",
            "\"fr0\" (IPFragmenter): HONOR_DF false is not supported",
        ),
        ("cp0 :: PaintTee(1)", "cp0 :: PaintTee(1, PAINT, 4)", "one argument too many: 4"),
        (
            "FixIPSrc(18.26.4.92)",
            "x :: FixIPSrc(18.26.4.93)",
            "\"x\" (FixIPSrc): 18.26.4.93 is no address of the router",
        ),
        (
            "ICMPError(18.26.4.92, timeexceeded)",
            "x :: ICMPError(18.26.4.92, timeexceeded, reassembly)",
            "\"x\" (ICMPError): type 11 with code 1 in place of type 11 with code 0",
        ),
        (
            "ICMPError(18.26.4.92, redirect, host)",
            "x :: ICMPError(10.9.9.9, redirect, host)",
            "\"x\" (ICMPError): 10.9.9.9 is no address of the router",
        ),
        (
            "arpq0 :: ARPQuerier(18.26.4.92, 00:00:C0:3B:71:EF)",
            "arpq0 :: ARPQuerier(18.26.4.92, 00:00:C0:3B:71:EF, BROADCAST 1.2.3.4)",
            "\"arpq0\" (ARPQuerier): unknown argument BROADCAST",
        ),
    ] {
        let text = ROUTER.replace(from, to);
        assert_ne!(text, ROUTER, "{from}");
        let errors = errors(&text);
        assert!(errors.contains(expected), "{to}: {errors}");
    }
    for (from, to) in [
        (
            "CheckIPHeader(INTERFACES 18.26.4.92/255.255.255.0 1.0.0.1/255.0.0.0)",
            "CheckIPHeader(18.26.4.255 1.255.255.255)",
        ),
        ("PollDevice(eth0) -> c0", "PollDevice(eth0) -> HostEtherFilter(00:00:C0:3B:71:EF) -> c0"),
        ("arpq0 :: ARPQuerier(18.26.4.92, 00", "arpq0 :: ARPQuerier(18.26.4.92/24, 00"),
    ] {
        let text = ROUTER.replace(from, to);
        assert_ne!(text, ROUTER, "{from}");
        assert_eq!(lua(&text), lua(ROUTER), "{to}");
    }
}

/// The statements that change the default graph for the router with this change.
fn spliced(from: &str, to: &str) -> Vec<String> {
    let text = ROUTER.replace(from, to);
    assert_ne!(text, ROUTER, "{from}");
    let lines = lua(&text).into_iter().filter(|line| line.starts_with("turnpike.graph:"));
    lines.map(|line| line.trim_start_matches("turnpike.graph:").to_owned()).collect()
}

#[test]
fn elements_in_front_of_the_table_are_steps_before_it() {
    assert_eq!(
        spliced(
            "-> rt :: Static",
            "-> f :: IPFilter(deny src 10.0.0.0/8, allow all) -> rt :: Static"
        ),
        [
            r#"insert_before("ip4-lookup", { "port-switch", as = "click-in", ports = { "eth0", "eth1" } })"#,
            r#"path("click-in.eth0", { "ip-filter", as = "f", rules = { "deny src 10.0.0.0/8", "allow all" }, offset = 14 })"#,
            r#"path("f.0", "ip4-lookup")"#,
            r#"path("click-in.eth1", "f")"#,
        ]
    );
    // Of one device only; what the filter refuses is answered.
    let to = "-> Paint(1) -> MarkIPHeader(14) -> f :: IPClassifier(dst port 7, icmp, -); f[2] -> n :: Counter -> ip;
        f[0] -> ICMPError(18.26.4.92, unreachable, filterprohibited) -> rt; f[1] -> Discard;";
    assert_eq!(
        spliced("-> Paint(1) -> ip;", to),
        [
            r#"insert_before("ip4-lookup", { "port-switch", as = "click-in", ports = { "eth0" } })"#,
            r#"path("click-in.eth0", { "ip-classifier", as = "f", patterns = { "dst port 7", "icmp", "-" }, offset = 14 })"#,
            r#"path("f.0", "prohibit")"#,
            r#"path("f.1", "drop")"#,
            r#"path("f.2", { "counter", as = "n" })"#,
            r#"path("n.next", "ip4-lookup")"#,
        ]
    );
    let found = handlers(&ROUTER.replace("-> Paint(1) -> ip;", to));
    let has = |begin: &str, end: &str| {
        let begin = format!("element \"{begin}\"");
        found.iter().any(|line| line.starts_with(&begin) && line.ends_with(end))
    };
    assert!(has("f", r#"counts = { "click-in.eth0" }, step = "f" }"#), "{found:?}");
    assert!(has("n", r#"counts = { "f.2" }, step = "n" }"#), "{found:?}");
    assert!(has("rt", r#"ways = { "local", "eth0", "eth1" } }"#), "{found:?}");
    assert!(has("todevice0", r#"inputs = { "pull" }, port = "eth0" }"#), "{found:?}");
}

#[test]
fn elements_behind_the_table_are_sorted_as_it_sorts() {
    let found = spliced(
        "rt[1] -> DropBroadcasts",
        "rt[1] -> f :: IPFilter(deny udp, allow all) -> l :: CheckLength(1000) -> DropBroadcasts",
    );
    assert_eq!(
        found[0],
        r#"insert_before("ip4-lookup", { "port-switch", as = "click-in", ports = { "eth0", "eth1" } })"#
    );
    assert!(
        found[1].starts_with(
            r#"path("click-in.eth0", { "ip-lookup", as = "rt", routes = { "18.26.4.92/32 0", "#
        ) && found[1].ends_with(r#""0.0.0.0/0 1" }, offset = 14, outputs = 4 })"#),
        "{found:?}"
    );
    assert_eq!(
        found[2..],
        [
            r#"path("rt.0", "ip4-lookup")"#,
            r#"path("rt.1", { "ip-filter", as = "f", rules = { "deny udp", "allow all" }, offset = 14 })"#,
            r#"path("f.0", { "check-length", as = "l", length = 1000, offset = 14 })"#,
            r#"path("l.ok", "ip4-lookup")"#,
            r#"path("l.long", "drop")"#,
            r#"path("rt.2", "ip4-lookup")"#,
            r#"path("rt.3", "ip4-lookup")"#,
            r#"path("click-in.eth1", "rt")"#,
        ]
    );
    // Packets to the router itself, of which some are refused.
    let found = spliced(
        "rt[0] -> EtherEncap",
        "rt[0] -> f :: IPClassifier(icmp, -); f[1] -> Discard; f[0] -> EtherEncap",
    );
    assert!(found.contains(&r#"path("f.0", "ip4-lookup")"#.to_owned()), "{found:?}");
    assert!(found.contains(&r#"path("f.1", "drop")"#.to_owned()), "{found:?}");
    assert!(found.contains(&r#"path("rt.1", "ip4-lookup")"#.to_owned()), "{found:?}");
}

#[test]
fn elements_in_front_of_a_device_are_steps_behind_the_rewrite() {
    let shaped =
        ("out1 :: Queue(200) -> todevice1", "out1 :: Queue(200) -> s :: Shaper(100) -> todevice1");
    assert_eq!(
        spliced(shaped.0, shaped.1),
        [
            r#"insert_after("ip4-rewrite.transmit", { "egress-switch", as = "click-out", ports = { "eth1" } })"#,
            r#"path("click-out.eth1", { "queue", as = "out1", capacity = 200, rate = "100pps" })"#,
            r#"path("out1.next", { "to-port", as = "todevice1", port = "eth1" })"#,
            r#"path("todevice1.transmit", "transmit")"#,
        ]
    );
    let (_, notes) = converted(&ROUTER.replace(shaped.0, shaped.1));
    assert!(
        notes
            .iter()
            .any(|note| note.contains("elements behind ARPQuerier see no packets of the router"))
    );
    let found = spliced(
        "arpq1 :: ARPQuerier(1.0.0.1, 00:00:C0:CA:68:EF) -> out1;",
        "arpq1 :: ARPQuerier(1.0.0.1, 00:00:C0:CA:68:EF) -> k :: IPClassifier(ip dscp 46, -);
         k[0] -> a :: Queue(7) -> p :: PrioSched -> Unqueue -> out1; k[1] -> b :: Queue -> [1] p;",
    );
    for expected in [
        r#"path("click-out.eth1", { "ip-classifier", as = "k", patterns = { "ip dscp 46", "-" }, offset = 14 })"#,
        r#"path("k.0", { "to-queue", as = "a", number = 0 })"#,
        r#"path("a.next", { "schedule", as = "p", order = "prio(a[7], b[1000])" })"#,
        r#"path("p.0", { "to-port", as = "todevice1", port = "eth1" })"#,
    ] {
        assert!(found.iter().any(|line| line == expected), "{expected}: {found:?}");
    }
    let refused = ROUTER.replace(
        "arpq1 :: ARPQuerier(1.0.0.1, 00:00:C0:CA:68:EF) -> out1;",
        "arpq1 :: ARPQuerier(1.0.0.1, 00:00:C0:CA:68:EF) -> k :: IPClassifier(udp, -); k[1] -> out1; k[0] -> Discard;",
    );
    assert!(errors(&refused).contains("put them in front of ARPQuerier"), "{}", errors(&refused));
}

#[test]
fn a_table_refuses_networks() {
    let text = ROUTER
        .replace("0.0.0.0/0.0.0.0 18.26.4.1 1)", "10.0.0.0/8 3, 11.0.0.0/8 4, 0.0.0.0/0 3)")
        + "rt[3] -> ICMPError(1.0.0.1, unreachable, net) -> rt; rt[4] -> ICMPError(1.0.0.1, unreachable, 13) -> rt;";
    let routes: Vec<_> = lua(&text).into_iter().filter(|line| line.contains("route")).collect();
    assert_eq!(
        routes,
        [
            r#"turnpike.route "10.0.0.0/8" { unreachable = true }"#,
            r#"turnpike.route "11.0.0.0/8" { prohibit = true }"#,
        ]
    );
    let errors = errors(&text.replace("unreachable, 13", "unreachable, port"));
    assert!(errors.contains("behind a table only unreachable is supported"), "{errors}");
}

#[test]
fn a_router_notes_what_it_does_otherwise() {
    let text = ROUTER.replace("1.0.0.1/32 0,", "1.0.0.1/32 3,") + "rt[3] -> Discard;";
    let found = converted(&text).1.join("\n");
    assert!(
        found.contains("packets to 1.0.0.1, an address of the router, are answered"),
        "{found}"
    );
    let text = ROUTER
        .replace("-> dt1 :: DecIPTTL -> fr1", "-> fr1")
        .replace("dt1[1] -> ICMPError(1.0.0.1, timeexceeded) -> rt;", "");
    let found = converted(&text).1.join("\n");
    assert!(found.contains("\"todevice1\" pass no DecIPTTL"), "{found}");
    let text = ROUTER
        .replace("arpt[2] -> toh;", "arpt[2] -> Discard;")
        .replace("toh :: ToHost;", "")
        .replace("2:2:2:2:2:2) -> toh;", "2:2:2:2:2:2) -> Discard;");
    let found = converted(&text).1.join("\n");
    assert!(
        found.contains("packets for the router are answered by Turnpike itself, not dropped"),
        "{found}"
    );
}

/// The statements of elements and control sockets.
fn handlers(text: &str) -> Vec<String> {
    let lua = convert("t.click", text).unwrap_or_else(|errors| panic!("{errors}")).lua;
    let begins = ["turnpike.element ", "turnpike.control_socket "];
    let of = |line: &&str| begins.iter().any(|begin| line.starts_with(begin));
    lua.lines().filter(of).map(|line| line.trim_start_matches("turnpike.").to_owned()).collect()
}

#[test]
fn each_element_says_what_it_has_become() {
    let text = "FromDevice(eth0) -> n :: Null -> drop :: Counter -> s :: Switch(1);
        s[0] -> d :: Discard; s[1] -> n2 :: Null -> d; s[2] -> q :: Queue -> t :: ToDevice(eth1);";
    assert_eq!(
        handlers(text),
        [
            r#"element "FromDevice@1" { class = "FromDevice", config = "eth0", outputs = { "push" }, to = { "0 0 n" }, counts = { "port-switch.eth0" }, port = "eth0" }"#,
            r#"element "n" { class = "Null", inputs = { "push~" }, outputs = { "push~" }, to = { "0 0 drop" }, counts = { "port-switch.eth0" } }"#,
            r#"element "drop" { class = "Counter", inputs = { "push~" }, outputs = { "push~" }, to = { "0 0 s" }, counts = { "port-switch.eth0" }, step = "drop_" }"#,
            r#"element "s" { class = "Switch", config = "1", inputs = { "push" }, outputs = { "push", "push", "push" }, to = { "0 0 d", "1 0 n2", "2 0 q" }, counts = { "drop_.next" }, step = "s" }"#,
            r#"element "d" { class = "Discard", inputs = { "push~" }, counts = { "s.0", "s.1" } }"#,
            r#"element "n2" { class = "Null", inputs = { "push~" }, outputs = { "push~" }, to = { "0 0 d" }, counts = { "s.1" } }"#,
            r#"element "q" { class = "Queue", inputs = { "push" }, outputs = { "pull" }, to = { "0 0 t" }, counts = { "s.2" } }"#,
            r#"element "t" { class = "ToDevice", config = "eth1", inputs = { "pull" }, counts = { "s.2" }, step = "t", port = "eth1" }"#,
        ]
    );
    let text = "FromDevice(eth0) -> c :: Classifier(12/0800, -);
        c[0] -> default :: Queue(9) -> n :: Null -> [0] s :: PrioSched -> ToDevice(eth0); c[1] -> b :: Queue -> [1] s;";
    let found = handlers(text);
    let line = |name: &str| {
        let begin = format!("element \"{name}\" ");
        found.iter().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("{found:?}"))
    };
    // The gauge of a queue has its step's name, and what is behind it does not count what it drops.
    assert!(line("default").contains(r#"counts = { "c.0" }, step = "default_""#), "{found:?}");
    assert!(line("n").contains(r#"counts = { "s.0" }"#), "{found:?}");
    assert!(line("b").contains(r#"counts = { "c.1" }, step = "b""#), "{found:?}");
    assert!(lua(text).iter().any(|line| line.contains("prio(default_[9], b[1000])")));
    let text = "FromDevice(eth0) -> p :: Paint(255) -> x :: PaintSwitch -> a :: Discard; x[1] -> b :: Counter -> Discard;";
    let found = handlers(text);
    let line =
        |name: &str| found.iter().find(|line| line.starts_with(&format!("element \"{name}\" ")));
    assert!(line("a").unwrap().contains(r#"counts = { "x.0", "x:all.0" }"#), "{found:?}");
    assert!(line("b").unwrap().contains(r#"counts = { "x.1", "x:all.1" }"#), "{found:?}");
    assert!(line("x").unwrap().contains(r#"step = "x""#), "{found:?}");
    let text = "FromDevice(eth0) -> p :: PaintTee(3); p[0] -> t :: Tee -> a :: Null -> t2 :: RoundRobinSwitch;
        t2[0] -> a; t2[1] -> q :: Queue -> x :: Shaper(7) -> Unqueue -> d :: Discard; p[1] -> e :: Discard;";
    let found = handlers(text);
    let counts = |name: &str| {
        let line = found.iter().find(|line| line.starts_with(&format!("element \"{name}\" ")));
        line.and_then(|line| line.split_once("counts = { ")).unwrap().1.to_owned()
    };
    assert!(counts("e").starts_with(r#""p:check.ok" }"#), "{found:?}");
    assert!(counts("a").starts_with(r#""p.0", "t2:0:again.next" }"#), "{found:?}");
    assert!(counts("x").contains(r#"step = "q""#), "{found:?}");
    assert!(counts("d").starts_with(r#""q.next" }"#), "{found:?}");
}

#[test]
fn the_elements_of_a_router_have_ports() {
    let found = handlers(ROUTER);
    let has = |begin: &str, end: &str| {
        found
            .iter()
            .any(|line| line.starts_with(&format!("element {begin}")) && line.ends_with(end))
    };
    assert!(has("\"rt\"", r#"ways = { "local", "eth0", "eth1" } }"#), "{found:?}");
    assert!(
        has("\"arpq0\"", r#"port = "eth0" }"#) && has("\"arpq1\"", r#"port = "eth1" }"#),
        "{found:?}"
    );
}

#[test]
fn control_sockets_are_local_unless_told_otherwise() {
    let socket = |arguments: &str| {
        let text = format!("FromDevice(eth0) -> Discard; cs :: ControlSocket({arguments});");
        let notes = convert("t.click", &text).map(|converted| converted.notes);
        notes.map(|notes| {
            assert_eq!(notes, [""; 0]);
            handlers(&text)[0].clone()
        })
    };
    for (arguments, settings) in [
        ("TCP, 7777", r#"listen = "127.0.0.1:7777""#),
        (
            "\"tcp\", 7777, LOCALHOST true, READONLY true",
            r#"listen = "127.0.0.1:7777", read_only = true"#,
        ),
        ("TCP, 7777, LOCALHOST false", r#"listen = "0.0.0.0:7777", public = true"#),
        ("unix, \"/run/c s\", VERBOSE true", r#"unix = "/run/c s", verbose = true"#),
    ] {
        let expected = format!("control_socket \"cs\" {{ {settings} }}");
        assert_eq!(socket(arguments).unwrap(), expected);
    }
    for (arguments, error) in [
        ("", "argument TYPE is missing"),
        ("TCP", "argument PORT is missing"),
        ("TCP, 0", "PORT \"0\": expected an integer from 1 to 65535"),
        ("TCP, 7777+", "PORT \"7777+\": expected an integer"),
        ("SOCKET, 3", "TYPE SOCKET: expected TCP or UNIX"),
        ("TCP, 7777, PROXY x", "unknown argument PROXY"),
        ("TCP, 7777, READONLY maybe", "READONLY \"maybe\""),
        ("TCP, 7777, 8", "one argument too many: 8"),
    ] {
        let found = socket(arguments).unwrap_err().to_string();
        assert!(found.contains(error), "{arguments}: {found}");
    }
}
