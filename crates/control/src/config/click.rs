//! Configuration files of Click, converted to statements of Turnpike (crate `convert`).

use std::path::Path;

use convert::click::{Converted, convert};
use dataplane::catalogue::Catalogue;

use super::error::{ConfigError, ConfigErrors};
use super::{Config, Limits};

/// A configuration, with notes about parts of the file without effect.
pub struct Loaded {
    /// The converted configuration; its text is Lua, its lines are the file's.
    pub config: Config,
    /// Elements without effect, and what applies instead.
    pub notes: Vec<String>,
}

/// Loads a Click file.
///
/// # Errors
/// All faults of the file, or the error of reading it.
pub fn load(path: &Path, catalogue: &Catalogue) -> Result<Loaded, ConfigErrors> {
    parse(path, &super::text_of(path)?, catalogue)
}

/// Like [`load`], for a given text.
fn parse(path: &Path, text: &str, catalogue: &Catalogue) -> Result<Loaded, ConfigErrors> {
    let name = path.display().to_string();
    let converted = convert(&name, text).map_err(|errors| {
        let errors = errors.all().iter().map(|error| {
            let text = error.to_string();
            // The error begins with its place, which is more than a line.
            let place = error.place.to_string();
            let message = text.strip_prefix(&format!("{place}: ")).unwrap_or(&text).to_owned();
            ConfigError { file: place.into(), line: None, message }
        });
        ConfigErrors(errors.collect())
    })?;
    let Converted { lua, lines, notes } = converted;
    let of = |line: usize| lines.get(line.saturating_sub(1)).copied().flatten();
    let mut config =
        super::parse(path, &lua, Limits::default(), catalogue).map_err(|mut errors| {
            errors.0.iter_mut().for_each(|error| error.line = error.line.and_then(of));
            errors
        })?;
    config.ports.iter_mut().for_each(|port| port.line = of(port.line).unwrap_or(port.line));
    config.routes.iter_mut().for_each(|route| route.line = of(route.line).unwrap_or(route.line));
    Ok(Loaded { config, notes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROUTER: &str = include_str!("../../../../examples/click/ip-router.click");

    /// Elements in any order, connected in any way.
    const ANY: [&str; 40] = [
        "FromDevice(eth0)",
        "FromDevice(eth1)",
        "FromOcteon(eth2)",
        "ToDevice(eth0)",
        "ToDevice(eth1)",
        "ToOcteon(eth2, LOCK true)",
        "Queue(5)",
        "MixedQueue",
        "Discard",
        "Tee",
        "Null",
        "Counter",
        "Paint(1)",
        "Paint(255)",
        "PaintTee(1)",
        "CheckPaint(1)",
        "PaintSwitch",
        "Strip(14)",
        "Unstrip(14)",
        "CheckIPHeader",
        "MarkIPHeader",
        "DecIPTTL",
        "CheckLength(100)",
        "Classifier(12/0800, -)",
        "IPClassifier(udp, -)",
        "IPFilter(allow tcp, 1 udp)",
        "RoundRobinSwitch",
        "StaticIPLookup(0/0 0, 10.0.0.0/8 10.0.0.1 1)",
        "ARPQuerier(10.0.0.1, 2:0:0:0:0:1)",
        "ARPResponder(10.0.0.1 2:0:0:0:0:1)",
        "ICMPError(10.0.0.1, timeexceeded)",
        "IPFragmenter(1500)",
        "EtherEncap(0x0800, 2:0:0:0:0:1, 2:0:0:0:0:2)",
        "InfiniteSource(LIMIT 5, STOP true)",
        "Shaper(10)",
        "Unqueue",
        "Print(x)",
        "PrioSched",
        "RED(5, 50, 0.02)",
        "Meter(100)",
    ];

    /// Elements that are put into an IP router at any place of it.
    const MORE: [&str; 24] = [
        "IPFilter(deny src 10.9.0.0/16, allow all)",
        "IPFilter(1 udp, allow all)",
        "IPClassifier(tcp)",
        "Counter",
        "Print(x)",
        "IPPrint",
        "Switch(0)",
        "CheckLength(1000)",
        "SetIPDSCP(46)",
        "CheckTCPHeader",
        "RandomSample(0.5)",
        "RatedSplitter(100)",
        "CheckPaint(1)",
        "PaintSwitch",
        "Queue(7)",
        "Queue -> Shaper(100) -> Unqueue",
        "Queue -> DelayUnqueue(0.1)",
        "Queue -> RED(5, 50, 0.02) -> PrioSched -> Unqueue",
        "Shaper(100)",
        "Tee",
        "Null",
        "Strip(2)",
        "MarkIPHeader",
        "EtherMirror",
    ];

    fn read(text: &str) -> Result<Loaded, ConfigErrors> {
        parse(Path::new("t.click"), text, &Catalogue::default())
    }

    /// What is converted is a configuration; what is not has a fault with a place in the file.
    fn check(text: &str) -> Result<(), TestCaseError> {
        match convert("t.click", text) {
            Ok(converted) => {
                if let Err(errors) = read(text) {
                    return Err(TestCaseError::fail(format!(
                        "{errors}\n{text}\n{}",
                        converted.lua
                    )));
                }
            }
            Err(errors) => {
                prop_assert!(!errors.all().is_empty());
                for error in errors.all() {
                    prop_assert!(error.to_string().starts_with("t.click:"), "{error}\n{text}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn elements_in_a_router_are_a_configuration() {
        for (from, to) in [
            ("-> table;\nleft", "-> IPFilter(deny udp, allow all) -> table;\nleft"),
            ("c[2] -> Paint", "c[2] -> Print(x) -> MarkIPHeader(14) -> IPClassifier(tcp) -> Paint"),
            ("table[1] -> left", "table[1] -> IPFilter(deny udp, allow all) -> Counter -> left"),
            (
                "table[0] -> Ether",
                "table[0] -> f :: IPFilter(1 tcp, allow all);
                 f[1] -> ICMPError(10.0.1.1, unreachable, filterprohibited) -> table; f -> Ether",
            ),
            ("Queue(200) -> To", "Queue(200) -> BandwidthShaper(1Mbps) -> To"),
            (
                "-> queue;\n\n    c[0]",
                "-> k :: IPClassifier(ip dscp 46, -);
                 k[0] -> Queue -> [0] s :: PrioSched -> Unqueue -> queue; k[1] -> Queue -> [1] s;
                 c[0]",
            ),
        ] {
            let text = ROUTER.replace(from, to);
            assert_ne!(text, ROUTER, "{from}");
            let loaded = read(&text).unwrap_or_else(|errors| panic!("{to}: {errors}"));
            let graph = loaded.config.graphs.main.to_string();
            assert!(graph.contains("click-in") || graph.contains("click-out"), "{graph}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_converted_is_a_configuration(
            elements in proptest::collection::vec(proptest::sample::select(&ANY[..]), 1..4),
            wires in proptest::collection::vec((0usize..4, 0usize..3, 0usize..4, 0usize..2), 0..4),
        ) {
            // A chain from a device, and more of anything.
            let mut text = String::from("f :: FromDevice(eth3)");
            for (number, element) in elements.iter().enumerate() {
                text += &format!(" -> e{number} :: {element}");
            }
            text += " -> Discard;\n";
            let count = elements.len();
            for (from, output, to, input) in wires {
                text += &format!("e{} [{output}] -> [{input}] e{};\n", from % count, to % count);
            }
            check(&text)?;
        }

        #[test]
        fn routers_with_any_elements_are_configurations_or_refused(
            places in proptest::collection::vec((0usize..40, proptest::sample::select(&MORE[..])), 1..4),
        ) {
            let parts: Vec<&str> = ROUTER.split("-> ").collect();
            let mut text = String::new();
            for (number, part) in parts.iter().enumerate() {
                for (_, element) in places.iter().filter(|(at, _)| at % parts.len() == number && number > 0) {
                    text += &format!("{element} -> ");
                }
                text += part;
                text += if number + 1 < parts.len() { "-> " } else { "" };
            }
            check(&text)?;
        }
    }
}
