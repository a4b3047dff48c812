use super::*;
use crate::graph::Outputs;
use crate::mask::Mask;
use crate::params::{Arg, Given, Kind, Param};
use crate::steps::REDIRECTS;
use crate::testing::{FrameBuilder, TestTables, batch_of};
use crate::{Batch, default_graph, default_plan};

/// Packets of even slots go on, the others aside.
struct Split(Vec<Output>);

impl Step for Split {
    fn outputs(&self) -> &[Output] {
        &self.0
    }
    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input & Mask(0x5555_5555_5555_5555);
        out[1] = input.without(out[0]);
    }
}

fn outputs(names: &[&str]) -> Vec<Output> {
    names.iter().map(|name| Output::Next((*name).to_owned().into())).collect()
}

fn catalogue() -> Catalogue {
    let mut catalogue = Catalogue::default();
    let make =
        |_: &MakeContext<'_>| -> Box<dyn Step> { Box::new(Split(outputs(&["next", "odd"]))) };
    catalogue.add(StepSpec::new("split", &outputs(&["next", "odd"]), make)).unwrap();
    catalogue.add(StepSpec::described("noted", outputs(&["next"]))).unwrap();
    // Its argument names its outputs.
    let named = |args: &Args| match args.get("names") {
        Arg::Texts(names) => names.iter().map(|name| Output::Next(name.clone().into())).collect(),
        other => panic!("{other}"),
    };
    let names = Param::new("names", Kind::Texts, "its outputs");
    let make = move |make: &MakeContext<'_>| -> Box<dyn Step> { Box::new(Split(named(make.args))) };
    let fan = StepSpec::new("fan", &[], make).param(names).outputs_by(named);
    catalogue.add(fan).unwrap();
    catalogue
}

/// A step without arguments.
fn new<'a>(catalogue: &'a Catalogue, kind: &str, line: Option<usize>) -> NewStep<'a> {
    NewStep::of(catalogue.find(kind).unwrap(), Args::default(), line)
}

fn path(plan: &mut Plan, catalogue: &Catalogue, from: &str, steps: &[&str]) {
    let mut from = from.to_owned();
    for (line, step) in (1..).zip(steps) {
        if let (Successor::Step(_), false) = (Successor::read(step), plan.has(step)) {
            plan.add(&new(catalogue, step, Some(line))).unwrap();
        }
        plan.lead(&from, &Successor::read(step), Some(line)).unwrap();
        from = (*step).to_owned();
    }
}

/// The plan of IPv4 packets; those of IPv6 and those to groups are dropped.
fn plan(catalogue: &Catalogue) -> Plan {
    let mut plan = Plan::new();
    plan.add(&new(catalogue, "classify", None)).unwrap();
    let steps = [
        "ip4-checksum-offload",
        "ip4-validate",
        "ip4-lookup",
        "ip4-ttl",
        "ip4-mtu",
        "ip4-rewrite",
        "transmit",
    ];
    path(&mut plan, catalogue, "classify.ip4", &steps);
    path(&mut plan, catalogue, "classify.ip6", &["drop"]);
    path(&mut plan, catalogue, "ip4-lookup.multicast", &["drop"]);
    plan
}

fn errors(plan: &Plan, catalogue: &Catalogue) -> Vec<String> {
    let ports = &TestTables::every_kind().interfaces.get();
    let errors = plan.check(catalogue, ports).expect_err("an error was expected");
    errors.iter().map(PlanError::to_string).collect()
}

fn build(plan: &Plan, catalogue: &Catalogue) -> Graph {
    plan.check(catalogue, &TestTables::every_kind().interfaces.get()).unwrap();
    plan.build(catalogue, &TestTables::every_kind(), &[], &mut |_| None).unwrap()
}

fn targets(graph: &Graph, step: &str) -> Vec<String> {
    let steps = &graph.shape().steps;
    let step = steps.iter().find(|found| found.name == step).unwrap();
    let name = |(_, target): &(String, Target)| match target {
        Target::Step(to) => steps[*to].name.clone(),
        other => format!("{other:?}"),
    };
    step.outputs.iter().map(name).collect()
}

#[test]
fn a_plan_becomes_the_graph_it_says() {
    let catalogue = catalogue();
    let mut graph = build(&plan(&catalogue), &catalogue);
    let native = default_graph(&TestTables::every_kind()).unwrap();
    let ip4 = |graph: &Graph| -> Vec<String> {
        let names = graph.shape().steps.iter().map(|step| step.name.clone());
        let others = ["faulty", "ip4-multicast", "ip4-prefetch"];
        names.filter(|name| !name.starts_with("ip6") && !others.contains(&name.as_str())).collect()
    };
    assert_eq!(ip4(&graph), ip4(&native));
    let mut batch = batch_of(&[
        FrameBuilder::ip4().destination4("10.0.6.1").udp(1, 2, b"x").build(),
        FrameBuilder::ip6().destination6("2001:db8:6::1").build(),
    ]);
    let ends = graph.run(&mut batch);
    assert_eq!((ends.transmit, ends.drop), (Mask(1), Mask(2)));
    assert_eq!(targets(&graph, "classify")[1], "Drop(ByStep)");
}

#[test]
fn a_step_is_put_behind_another_or_on_one_output() {
    let catalogue = catalogue();
    let mut plan = plan(&catalogue);
    let split = new(&catalogue, "split", Some(9));
    plan.insert_after("ip4-validate", &split).unwrap();
    assert_eq!(
        errors(&plan, &catalogue),
        ["line 9: step \"split\": output \"odd\" leads nowhere; lead it to a step"]
    );
    plan.lead("split.odd", &Successor::Drop, Some(10)).unwrap();
    let graph = build(&plan, &catalogue);
    assert_eq!(targets(&graph, "ip4-validate")[0], "split");
    assert_eq!(targets(&graph, "split"), ["ip4-lookup", "Drop(ByStep)"]);

    let aside = NewStep { name: "aside", ..new(&catalogue, "noted", Some(11)) };
    plan.insert_after("split.odd", &aside).unwrap();
    let graph = plan.build(&catalogue, &TestTables::every_kind(), &[], &mut |kind| {
        assert_eq!(kind, "noted");
        Some(Box::new(Split(outputs(&["next"]))))
    });
    let graph = graph.unwrap();
    assert_eq!(targets(&graph, "split"), ["ip4-lookup", "aside"]);
    assert_eq!(targets(&graph, "aside"), ["Drop(ByStep)"]);
}

#[test]
fn behind_a_step_with_several_outputs_there_is_one_for_each() {
    let catalogue = catalogue();
    let mut plan = plan(&catalogue);
    let noted = new(&catalogue, "noted", None);
    plan.insert_after("classify", &noted).unwrap();
    let names: Vec<_> = plan.names().take(4).collect();
    assert_eq!(names, ["classify", "noted-ip4", "noted-ip6", "ip4-checksum-offload"]);
    assert_eq!(
        plan.insert_after("classify", &noted).unwrap_err().to_string(),
        "step \"noted-ip4\" is in the graph already; give the second one another name"
    );
}

#[test]
fn a_step_is_put_before_another_or_before_an_end() {
    let catalogue = catalogue();
    let mut plan = plan(&catalogue);
    plan.insert_before("transmit", &new(&catalogue, "split", None)).unwrap();
    plan.lead("split.odd", &Successor::Transmit, None).unwrap();
    plan.insert_before("classify", &NewStep { name: "first", ..new(&catalogue, "split", None) })
        .unwrap();
    plan.lead("first.odd", &Successor::Drop, None).unwrap();
    let graph = build(&plan, &catalogue);
    assert_eq!(graph.shape().steps[0].name, "first");
    assert_eq!(targets(&graph, "first"), ["classify", "Drop(ByStep)"]);
    assert_eq!(targets(&graph, "ip4-rewrite"), ["split"]);
    assert_eq!(targets(&graph, "split"), ["Transmit", "Transmit"]);
}

#[test]
fn what_led_to_a_removed_step_leads_to_what_followed() {
    let catalogue = catalogue();
    let mut plan = plan(&catalogue);
    plan.remove("ip4-checksum-offload", None).unwrap();
    let graph = build(&plan, &catalogue);
    assert_eq!(targets(&graph, "classify")[0], "ip4-validate");
    plan.remove("classify", None).unwrap();
    assert_eq!(plan.names().next(), Some("ip4-validate"));
    assert_eq!(
        plan.remove("ip4-wash", Some(3)).unwrap_err().to_string(),
        "line 3: step \"ip4-wash\" not found in the graph; known: ip4-validate, ip4-lookup, ip4-ttl, \
         ip4-mtu, ip4-rewrite"
    );
}

#[test]
fn mistakes_are_named_with_step_and_line() {
    let catalogue = catalogue();
    let good = plan(&catalogue);

    let mut plan = good.clone();
    plan.lead("ip4-ttl", &Successor::Step("ip4-validate".into()), Some(7)).unwrap();
    plan.remove("ip4-mtu", None).unwrap();
    plan.remove("ip4-rewrite", None).unwrap_or(());
    assert_eq!(
        errors(&plan, &catalogue),
        [
            "line 7: steps ip4-validate, ip4-lookup, ip4-ttl form a circle; lead one of them elsewhere"
        ]
    );

    let mut plan = good.clone();
    plan.remove("ip4-lookup", Some(5)).unwrap();
    assert_eq!(
        errors(&plan, &catalogue),
        [
            "line 5: \"ip4-mtu\" requires routed valid IPv4 packets, but \"ip4-ttl.ok\" provides valid IPv4 packets",
        ]
    );

    let mut plan = good.clone();
    plan.lead("ip4-validate", &Successor::Drop, Some(4)).unwrap();
    assert_eq!(
        errors(&plan, &catalogue),
        ["line 3: step \"ip4-lookup\": no path leads to it; lead one there or remove it"]
    );

    let mut plan = good;
    assert_eq!(
        plan.lead("classify.ip5", &Successor::Drop, Some(2)).unwrap_err().to_string(),
        "line 2: step \"classify\": output \"ip5\" not found; did you mean \"ip4\"? known: ip4, ip6"
    );
    plan.lead("classify.ip6", &Successor::Step("ip4-validate".into()), Some(4)).unwrap();
    assert_eq!(
        errors(&plan, &catalogue),
        [
            "line 4: \"ip4-validate\" requires IPv4 packets, but \"classify.ip6\" provides IPv6 packets"
        ]
    );
    assert_eq!(errors(&Plan::new(), &catalogue), ["the graph has no steps; add one"]);
    for name in ["a.b", "drop", "transmit", "slow-path", "to-router"] {
        let step = NewStep { name, ..new(&catalogue, "split", Some(1)) };
        let message = plan.add(&step).unwrap_err().to_string();
        assert!(message.contains("not a name for a step"), "{message}");
    }
}

#[test]
fn a_step_that_no_port_asks_for_is_left_out() {
    let catalogue = catalogue();
    let mut plan = plan(&catalogue);
    let redirect = new(&catalogue, "ip4-redirect", None);
    let wanted = NewStep { only_if: redirect.spec.feature(), ..redirect };
    plan.insert_after("ip4-ttl", &wanted).unwrap();
    let graph = build(&plan, &catalogue);
    assert_eq!(targets(&graph, "ip4-ttl")[0], "ip4-mtu");
    let tables = TestTables::every_kind();
    let mut ports = tables.interfaces.get();
    ports[2].features = ports[2].features.with(REDIRECTS, 1);
    tables.interfaces.set(ports);
    let graph = plan.build(&catalogue, &tables, &[], &mut |_| None).unwrap();
    assert_eq!(targets(&graph, "ip4-ttl")[0], "ip4-redirect");
}

#[test]
fn a_plan_is_written_as_a_configuration_would() {
    let catalogue = catalogue();
    let mut plan = plan(&catalogue);
    let split = NewStep { name: "halve", ..new(&catalogue, "split", None) };
    plan.insert_after("ip4-lookup.forward", &split).unwrap();
    plan.lead("halve.odd", &Successor::Step("ip4-mtu".into()), None).unwrap();
    assert_eq!(
        plan.to_string(),
        "\
local graph = turnpike.new_graph \"classify\"
graph:path(\"classify.ip4\",
    \"ip4-checksum-offload\",
    \"ip4-validate\",
    \"ip4-lookup\",
    { \"split\", as = \"halve\" },
    \"ip4-ttl\",
    \"ip4-mtu\",
    \"ip4-rewrite\",
    \"transmit\")
graph:path(\"classify.ip6\",
    \"drop\")
graph:path(\"ip4-lookup.multicast\",
    \"drop\")
graph:path(\"halve.odd\",
    \"ip4-mtu\")
"
    );
}

#[test]
fn a_port_with_a_plan_of_its_own_is_told_apart() {
    let catalogue = catalogue();
    let mut closed = Plan::new();
    closed.add(&new(&catalogue, "split", None)).unwrap();
    closed.lead("split.next", &Successor::Drop, None).unwrap();
    closed.lead("split.odd", &Successor::Drop, None).unwrap();
    let port = |n| PortId::new(n).unwrap();
    let plans = Plans { main: plan(&catalogue), by_port: vec![(vec![port(1), port(2)], closed)] };
    let tables = TestTables::every_kind();
    plans.check(&catalogue, &tables.interfaces.get()).unwrap();
    let names: Vec<String> = (0..5).map(|n| format!("p{n}")).collect();
    let mut graph = plans.build(&catalogue, &tables, &names, &mut |_| None).unwrap();
    assert_eq!(targets(&graph, "by-port"), ["classify", "p1+p2:split"]);
    for (n, sent) in [(0, 1), (1, 0), (2, 0), (3, 1)] {
        let frame = FrameBuilder::ip4().destination4("10.0.6.1").udp(1, 2, b"x").build();
        let mut batch = batch_of(&[frame]);
        batch.in_port = port(n);
        assert_eq!(graph.run(&mut batch).transmit.count(), sent, "port {n}");
    }
}

/// A step with these outputs, under a name of its own.
fn fan<'a>(catalogue: &'a Catalogue, name: &'a str, outputs: &[&str]) -> NewStep<'a> {
    let spec = catalogue.find("fan").unwrap();
    let list = outputs.iter().map(|name| Given::Text((*name).to_owned())).collect();
    let args = Args::read(spec.params(), &[("names".to_owned(), Given::List(list))].into());
    NewStep { name, ..NewStep::of(spec, args.unwrap(), None) }
}

#[test]
fn instances_of_a_kind_have_arguments_and_outputs_of_their_own() {
    let catalogue = catalogue();
    let mut plan = plan(&catalogue);
    plan.insert_after("ip4-validate", &fan(&catalogue, "one", &["on", "off"])).unwrap();
    plan.insert_after("one.on", &fan(&catalogue, "other", &["a", "b", "c"])).unwrap();
    for place in ["one.off", "other.b", "other.c"] {
        plan.lead(place, &Successor::Drop, None).unwrap();
    }
    let graph = build(&plan, &catalogue);
    assert_eq!(targets(&graph, "one"), ["other", "Drop(ByStep)"]);
    assert_eq!(targets(&graph, "other"), ["ip4-lookup", "Drop(ByStep)", "Drop(ByStep)"]);
    assert_eq!(
        plan.lead("one.c", &Successor::Drop, None).unwrap_err().to_string(),
        "step \"one\": output \"c\" not found; known: on, off"
    );
    let text = plan.to_string();
    assert!(text.contains("{ \"fan\", as = \"one\", names = { \"on\", \"off\" } }"), "{text}");
    let described: Vec<_> = plan.described().filter(|(what, _)| what == "step \"one\"").collect();
    assert_eq!(described[0].1, "{ \"fan\", as = \"one\", names = { \"on\", \"off\" } }");
}

#[test]
fn a_step_with_other_outputs_than_its_kind_s_is_refused() {
    let mut catalogue = catalogue();
    let make =
        |_: &MakeContext<'_>| -> Box<dyn Step> { Box::new(Split(outputs(&["next", "odd"]))) };
    catalogue.add(StepSpec::new("liar", &outputs(&["next"]), make)).unwrap();
    let mut plan = plan(&catalogue);
    plan.insert_after("ip4-validate", &new(&catalogue, "liar", Some(6))).unwrap();
    let error =
        plan.build(&catalogue, &TestTables::every_kind(), &[], &mut |_| None).err().unwrap();
    assert_eq!(
        error.to_string(),
        "line 6: step \"liar\": its outputs are not those that \"liar\" declares"
    );
}

#[test]
fn the_default_plan_is_sound_and_built() {
    let (catalogue, tables) = (Catalogue::default(), TestTables::every_kind());
    let plan = default_plan(&catalogue).unwrap();
    plan.check(&catalogue, &tables.interfaces.get()).unwrap();
    assert_eq!(build(&plan, &catalogue).shape(), default_graph(&tables).unwrap().shape());
}

/// A plan of these paths, of steps under the names of their kinds.
fn plan_of(first: &str, paths: &[(&str, &str)]) -> Plan {
    let catalogue = Catalogue::default();
    let mut plan = Plan::new();
    let add = |plan: &mut Plan, name: &str| {
        let spec = catalogue.find(name).unwrap();
        let args = Args::read(spec.params(), &Default::default()).unwrap();
        plan.add(&NewStep::of(spec, args, None)).unwrap();
    };
    add(&mut plan, first);
    for (from, to) in paths {
        let name = from.split('.').next().unwrap();
        if !plan.has(name) {
            add(&mut plan, name);
        }
        let to = Successor::read(to);
        if matches!(&to, Successor::Step(name) if !plan.has(name)) {
            add(&mut plan, to.name());
        }
        plan.lead(from, &to, None).unwrap();
    }
    plan
}

#[test]
fn only_deferred_outputs_may_lead_back() {
    let catalogue = Catalogue::default();
    let back = [("counter.next", "paint"), ("paint.next", "queue"), ("queue.next", "paint")];
    assert_eq!(plan_of("counter", &back).check(&catalogue, &[]), Ok(()));
    let back = [("counter.next", "paint"), ("paint.next", "counter")];
    let errors = plan_of("counter", &back).check(&catalogue, &[]).unwrap_err();
    assert!(errors[0].to_string().contains("form a circle"), "{errors:?}");
    // Nothing is known of packets that were held.
    let lost = [
        ("classify.ip4", "queue"),
        ("classify.ip6", "drop"),
        ("queue.next", "ip4-ttl"),
        ("ip4-ttl.ok", "drop"),
    ];
    let errors = plan_of("classify", &lost).check(&catalogue, &[]).unwrap_err();
    assert!(errors[0].to_string().contains("\"ip4-ttl\" requires IPv4 packets"), "{errors:?}");
}

#[test]
fn a_step_that_makes_packets_needs_no_predecessor_and_is_printed() {
    let catalogue = Catalogue::default();
    let plan = plan_of(
        "counter",
        &[("counter.next", "drop"), ("packets.next", "paint"), ("paint.next", "drop")],
    );
    assert_eq!(plan.check(&catalogue, &[]), Ok(()));
    let text = plan.to_string();
    assert!(text.contains("graph:add { \"packets\" }\n"), "{text}");
    assert!(text.contains("graph:path(\"packets.next\",\n    \"paint\""), "{text}");
    let lonely = plan_of("counter", &[("counter.next", "drop"), ("paint.next", "drop")]);
    assert!(
        lonely.check(&catalogue, &[]).unwrap_err()[0].to_string().contains("no path leads to it")
    );
}
