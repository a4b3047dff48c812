//! Locations of a filter's rules, in `show filters`.

use api::report::{Filter, FilterRule, RuleInHardware};

/// Returns the location of a rule, and the number of packets that devices have dropped or brought to a queue by it.
pub(super) fn of_rule(rule: &FilterRule) -> [String; 2] {
    let place = |of: &RuleInHardware| match (of.held, of.why.is_empty()) {
        (0, _) => "software",
        (_, true) => "hardware",
        (_, false) => "in part",
    };
    let places = match &rule.hardware[..] {
        [] => "software".to_owned(),
        [one, others @ ..] if others.iter().all(|other| place(other) == place(one)) => {
            place(one).to_owned()
        }
        all => {
            let of: Vec<_> = all.iter().map(|of| format!("{}: {}", of.port, place(of))).collect();
            of.join(", ")
        }
    };
    let held = || rule.hardware.iter().filter(|of| of.held > 0);
    let packets = match (held().count(), held().all(|of| of.counted)) {
        (0, _) if rule.device_packets == 0 => "-".to_owned(),
        (_, true) => rule.device_packets.to_string(),
        // The counts of other devices, or of this one before, are missing.
        (_, false) => "unknown".to_owned(),
    };
    [places, packets]
}

/// Lists the reasons why devices do not have all rules that drop or select a forwarder, a line each.
pub(super) fn reasons(filter: &Filter) -> String {
    let ports = filter.hardware.iter();
    let ports =
        ports.filter_map(|of| Some(format!("in software on {}: {}", of.port, of.why.as_ref()?)));
    let rules = filter.rules.iter().flat_map(|rule| {
        let asked = |of: &&RuleInHardware| (of.drops || of.steers) && !of.why.is_empty();
        let of = rule.hardware.iter().filter(asked);
        of.map(move |of| {
            let part = if of.held > 0 { "in part " } else { "" };
            let name = rule.name.as_ref().map_or_else(String::new, |name| format!(" \"{name}\""));
            let why = of.why.join("; ");
            format!("rule {}{name} {part}in software on {}: {why}", rule.number, of.port)
        })
    });
    ports.chain(rules).map(|line| format!("\n{line}")).collect()
}
