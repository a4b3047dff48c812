//! Matches as one line of text, in the words in which configurations write them.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use crate::{Matches, text};

impl Display for Matches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        if let Some(family) = self.family {
            words.push(family.to_string());
        }
        list(&mut words, "ethertype", &self.ethertype, |number| format!("{number:#06x}"));
        list(&mut words, "from", &self.from, ToString::to_string);
        list(&mut words, "to", &self.to, ToString::to_string);
        list(&mut words, "from_set", &self.from_set, Clone::clone);
        list(&mut words, "to_set", &self.to_set, Clone::clone);
        list(&mut words, "from_mac", &self.from_mac, ToString::to_string);
        list(&mut words, "to_mac", &self.to_mac, ToString::to_string);
        list(&mut words, "priority", &self.priority, ToString::to_string);
        list(&mut words, "proto", &self.protocol, ToString::to_string);
        list(&mut words, "from_port", &self.from_port, range);
        list(&mut words, "to_port", &self.to_port, range);
        if let Some(flags) = self.flags {
            words.push(format!("flags {:#04x}/{:#04x}", flags.value, flags.mask));
        }
        list(&mut words, "icmp", &self.icmp, ToString::to_string);
        let fragment = match (self.fragment, self.later) {
            (Some(false), _) => Some("no fragment"),
            (_, Some(true)) => Some("later fragment"),
            (Some(true), Some(false)) => Some("first fragment"),
            (Some(true), None) => Some("fragment"),
            (None, Some(false)) => Some("no later fragment"),
            (None, None) => None,
        };
        words.extend(fragment.map(str::to_owned));
        list(&mut words, "routing", &self.routing, ToString::to_string);
        list(&mut words, "extension", &self.extension, |&of| text::extension_name(of).to_owned());
        list(&mut words, "dscp", &self.dscp, ToString::to_string);
        if let Some(ttl) = &self.ttl {
            words.push(format!("ttl {}", range(ttl)));
        }
        if let Some(length) = &self.length {
            words.push(format!("length {}", range(length)));
        }
        list(&mut words, "interface", &self.interface, ToString::to_string);
        list(&mut words, "state", &self.state, |&state| text::state_name(state).to_owned());
        f.write_str(&if words.is_empty() { "anything".to_owned() } else { words.join(" ") })
    }
}

/// The most values of a list that are written out.
const SHOWN: usize = 4;

fn list<T>(words: &mut Vec<String>, key: &str, values: &[T], word: impl Fn(&T) -> String) {
    if values.is_empty() {
        return;
    }
    let mut text = values.iter().take(SHOWN).map(word).collect::<Vec<_>>().join(",");
    if values.len() > SHOWN {
        text += &format!(",… ({})", values.len());
    }
    words.push(format!("{key} {text}"));
}

fn range<T: Display + PartialEq>(range: &RangeInclusive<T>) -> String {
    if range.start() == range.end() {
        return range.start().to_string();
    }
    format!("{}-{}", range.start(), range.end())
}

#[cfg(test)]
mod tests {
    use crate::{Bits, Extension, Family, Matches, State};

    #[test]
    fn every_condition_is_named() {
        assert_eq!(Matches::default().to_string(), "anything");
        let matches = Matches {
            family: Some(Family::Ip4),
            ethertype: vec![0x88cc],
            from: vec!["192.0.2.0/24".parse().unwrap()],
            to: (0..6).map(|n| format!("10.{n}.0.0/16").parse().unwrap()).collect(),
            from_set: vec!["a".into(), "b".into()],
            to_set: vec!["c".into()],
            from_mac: vec!["02:00:00:00:00:01".parse().unwrap()],
            to_mac: vec!["02:00:00:00:00:02".parse().unwrap()],
            priority: vec![5, 6],
            protocol: vec![6],
            from_port: vec![1024..=65535],
            to_port: vec![22..=22, 179..=179],
            flags: Some(Bits { value: 2, mask: 0x12 }),
            icmp: vec![8],
            fragment: Some(false),
            later: None,
            dscp: vec![46],
            ttl: Some(1..=5),
            length: Some(100..=100),
            interface: vec![3],
            state: vec![State::Established, State::Related],
            routing: vec![0, 4],
            extension: vec![Extension::HopByHop],
        };
        assert_eq!(
            matches.to_string(),
            "IPv4 ethertype 0x88cc from 192.0.2.0/24 to 10.0.0.0/16,10.1.0.0/16,10.2.0.0/16,10.3.0.0/16,… (6) from_set a,b to_set c from_mac \
             02:00:00:00:00:01 to_mac 02:00:00:00:00:02 priority 5,6 proto 6 from_port 1024-65535 to_port 22,179 flags 0x02/0x12 icmp 8 no fragment routing 0,4 extension hop-by-hop dscp 46 ttl 1-5 length 100 interface 3 \
             state established,related"
        );
    }

    #[test]
    fn fragments_are_told_apart() {
        let said = |fragment, later| Matches { fragment, later, ..Matches::default() }.to_string();
        assert_eq!(said(Some(true), None), "fragment");
        assert_eq!(said(Some(true), Some(false)), "first fragment");
        assert_eq!(said(Some(true), Some(true)), "later fragment");
        assert_eq!(said(None, Some(false)), "no later fragment");
    }
}
