//! `ip-filter`: accepts and drops IPv4 packets by rules over their headers.
//!
//! Takes frames with an IPv4 header at `offset`. The first rule that matches decides; a packet that none matches is
//! dropped. Rules are those of Click's `IPFilter`: `allow`, `drop` (`deny`) or the number of an output, and a pattern as
//! for `ip-classifier`.
//!
//! | output | packets |
//! |---|---|
//! | `0` | allowed |
//! | `1`, … | of rules with this number |
//! | drop `denied` | all others |
//!
//! ```lua
//! graph:path("check.ok", { "ip-filter", rules = { "drop src net 10.0.0.0/8", "allow all" } })
//! ```

use click::ip::IpClassifier;

use super::ip_classifier::{Sorter, all, read};
use super::{IP, offset};
use crate::catalogue::StepSpec;
use crate::graph::Output;
use crate::params::{Arg, Args, Grammar, Kind, Param};

/// A rule.
static RULE: Grammar = Grammar {
    expected: "a rule such as \"drop src net 10.0.0.0/8\" or \"allow all\"",
    check: |text| rules(&[text.to_owned()]).map(drop),
};

pub(super) fn spec() -> StepSpec {
    let param = Param::new("rules", Kind::ParsedList(&RULE), "the rules");
    let spec = StepSpec::new("ip-filter", &[], |context| {
        Box::new(Sorter::new(context, "rules", rules, outputs(context.args)))
    });
    spec.outputs_by(outputs)
        .param(param.or(Arg::Texts(vec!["allow all".to_owned()])))
        .param(offset(IP, "the IPv4 header's place"))
}

fn outputs(args: &Args) -> Vec<Output> {
    let count = rules(args.texts("rules")).map_or(1, |rules| rules.outputs());
    all(count.max(1), "denied")
}

fn rules(texts: &[String]) -> Result<IpClassifier, String> {
    read(texts, IpClassifier::filter)
}

#[cfg(test)]
mod tests {
    use super::super::{list, make};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn the_first_rule_that_matches_decides() {
        let frame =
            |source, port| FrameBuilder::ip4().source4(source).udp(1000, port, b"x").build();
        let frames = [frame("10.0.0.1", 1), frame("192.0.2.1", 1), frame("192.0.2.1", 7)];
        let texts = list(&["deny src net 10.0.0.0/8", "1 dst port 7", "allow udp"]);
        let (result, _) = run_step(&mut *make("ip-filter", &[("rules", texts)]), &frames);
        assert_eq!(
            ["denied", "0", "1"].map(|output| result[output].clone()),
            [vec![0], vec![1], vec![2]]
        );
        let texts = list(&["drop all"]);
        let (result, _) = run_step(&mut *make("ip-filter", &[("rules", texts)]), &frames);
        assert_eq!(result["denied"], [0, 1, 2]);
    }
}
