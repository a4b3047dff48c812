//! Values in the notation of rules, as sets of numbers.

use std::net::{Ipv4Addr, Ipv6Addr};

use acl::Family;
use acl::text;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::ranges::Ranges;

/// Other names of protocols: those of `/etc/protocols`, which iptables prints.
const PROTOCOLS: [(&str, u8); 9] = [
    ("ip", 0),
    ("hopopt", 0),
    ("ipencap", 4),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("ipv6-nonxt", 59),
    ("comp", 108),
    ("mobility-header", 135),
];

/// Other names of ICMPv6 types: those of nftables.
const ICMP6: [(&str, u8); 13] = [
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
];

/// Other names of DSCPs.
const DSCPS: [(&str, u8); 3] = [("be", 0), ("lephb", 1), ("va", 44)];

const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"];

pub type Read<T = Ranges> = Result<T, String>;

/// Reads a number, in decimal or with `0x`.
pub fn number(word: &str) -> Option<u128> {
    match word.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).ok(),
        None => word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten(),
    }
}

/// Reads a number up to `most`, or two with this sign between them.
pub fn numbers(word: &str, sign: char, most: u128) -> Read {
    let bound = |text: &str| {
        number(text).filter(|number| *number <= most).ok_or_else(|| {
            format!(
                "\"{word}\" is no number or range up to {most}; have the rules listed with numbers"
            )
        })
    };
    match word.split_once(sign) {
        Some((low, high)) => Ok(Ranges::new([(bound(low)?, bound(high)?)])),
        None => bound(word).map(Ranges::one),
    }
}

fn named(word: &str, known: &[(&str, u8)], text: impl Fn(&str) -> Option<u8>) -> Read {
    let other = known.iter().find(|(name, _)| *name == word).map(|(_, number)| *number);
    let found = other.or_else(|| text(word)).map(u128::from);
    let hex = || number(word).filter(|number| *number <= u8::MAX.into());
    found.or_else(hex).map(Ranges::one).ok_or_else(|| format!("\"{word}\" is not known here"))
}

pub fn protocol(word: &str) -> Read {
    match word.split_once('-') {
        Some((low, high)) if number(low).is_some() && number(high).is_some() => {
            numbers(word, '-', 255)
        }
        _ => named(word, &PROTOCOLS, |word| text::protocol(word).ok()),
    }
}

pub fn icmp4(word: &str) -> Read {
    ranged(word).unwrap_or_else(|| named(word, &[], |word| text::icmp_type(Family::Ip4, word).ok()))
}

pub fn icmp6(word: &str) -> Read {
    ranged(word)
        .unwrap_or_else(|| named(word, &ICMP6, |word| text::icmp_type(Family::Ip6, word).ok()))
}

pub fn dscp(word: &str) -> Read {
    let found = named(word, &DSCPS, |word| text::dscp(word).ok())?;
    if found.is_within(&Ranges::all(63)) {
        Ok(found)
    } else {
        Err(format!("dscp {word} is above 63"))
    }
}

/// Reads a range of numbers; `None` for names, which may contain signs, too.
fn ranged(word: &str) -> Option<Read> {
    let (low, high) = word.split_once('-')?;
    (number(low).is_some() && number(high).is_some()).then(|| numbers(word, '-', 255))
}

pub fn ports(word: &str) -> Read {
    numbers(word, '-', 65535)
}

/// Reads a TCP flag.
pub fn flag(word: &str) -> Read<u8> {
    let word = word.to_lowercase();
    if let Some(number) = number(&word).and_then(|number| u8::try_from(number).ok()) {
        return Ok(number);
    }
    let word = if word == "ece" { "ecn" } else { &word };
    let place = FLAGS.iter().position(|flag| *flag == word);
    place.map(|bit| 1 << bit).ok_or_else(|| format!("flag \"{word}\" is not known here"))
}

/// Reads an address, a prefix, a range of addresses, or an address with a mask.
pub fn addresses4(word: &str) -> Read {
    let wrong = || format!("\"{word}\" is no IPv4 address, prefix or range");
    let address = |text: &str| text.parse::<Ipv4Addr>().map(Ipv4Addr::to_bits).map_err(|_| wrong());
    if let Some((low, high)) = word.split_once('-') {
        return Ok(Ranges::new([(address(low)?.into(), address(high)?.into())]));
    }
    let Some((first, length)) = word.split_once('/') else {
        return Ok(Ranges::one(address(word)?.into()));
    };
    let length = match length.parse() {
        Ok(length) => length,
        Err(_) => {
            let mask = address(length)?;
            let length = mask.leading_ones();
            if mask.count_ones() != length {
                return Err(format!("the mask of {word} is no prefix"));
            }
            length as u8
        }
    };
    let net = Ipv4Net::new(Ipv4Addr::from_bits(address(first)?), length).map_err(|_| wrong())?;
    Ok(Ranges::of_net(&IpNet::V4(net)))
}

/// Like [`addresses4`], for IPv6.
pub fn addresses6(word: &str) -> Read {
    let wrong = || format!("\"{word}\" is no IPv6 address, prefix or range");
    let address = |text: &str| text.parse::<Ipv6Addr>().map(Ipv6Addr::to_bits).map_err(|_| wrong());
    if let Some((low, high)) = word.split_once('-') {
        return Ok(Ranges::new([(address(low)?, address(high)?)]));
    }
    let Some((first, length)) = word.split_once('/') else {
        return Ok(Ranges::one(address(word)?));
    };
    let length = match length.parse() {
        Ok(length) => length,
        Err(_) => {
            let mask = address(length)?;
            if mask.count_ones() != mask.leading_ones() {
                return Err(format!("the mask of {word} is no prefix"));
            }
            mask.leading_ones() as u8
        }
    };
    let net = Ipv6Net::new(Ipv6Addr::from_bits(address(first)?), length).map_err(|_| wrong())?;
    Ok(Ranges::of_net(&IpNet::V6(net)))
}

/// Returns the values of TCP's flags that agree with `value` in the bits of `mask`.
pub fn flags(value: u8, mask: u8) -> Ranges {
    let fit = (0..=u8::MAX).filter(|flags| flags & mask == value);
    Ranges::new(fit.map(|flags| (flags.into(), flags.into())))
}

/// Returns the known connection states, and the words for others.
pub fn states<'w>(words: impl IntoIterator<Item = &'w str>) -> (Ranges, Vec<String>) {
    let (mut known, mut others) = (Ranges::default(), Vec::new());
    for word in words {
        match ["new", "established", "related"].iter().position(|state| *state == word) {
            Some(place) => known = known.or(&Ranges::one(place as u128)),
            None => others.push(word.to_owned()),
        }
    }
    (known, others)
}

/// Returns the reason for leaving out connections in other states.
pub fn no_state(words: &[String]) -> String {
    format!(
        "no state {} here: such packets are \"new\", or belong to the connection that they seem to",
        words.join(", ")
    )
}

/// Returns true if all these protocols have ports.
pub fn all_have_ports(protocols: &Ranges) -> bool {
    let with: Ranges = Ranges::new([6, 17, 33, 132, 136].map(|number| (number, number)));
    protocols.is_within(&with)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(set: &Ranges) -> String {
        let nets = set.ip4_nets();
        nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn addresses_have_prefixes_masks_and_ranges() {
        assert_eq!(nets(&addresses4("10.1.2.3").unwrap()), "10.1.2.3/32");
        assert_eq!(nets(&addresses4("10.0.0.0/255.128.0.0").unwrap()), "10.0.0.0/9");
        assert_eq!(
            nets(&addresses4("10.0.0.5-10.0.0.8").unwrap()),
            "10.0.0.5/32 10.0.0.6/31 10.0.0.8/32"
        );
        assert!(addresses4("10.0.0.0/255.0.255.0").unwrap_err().contains("no prefix"));
        assert!(addresses4("example.org").is_err());
        assert_eq!(addresses6("2001:db8::/32").unwrap().ip6_nets().len(), 1);
    }

    #[test]
    fn names_and_numbers_are_read() {
        assert_eq!(protocol("ipencap"), Ok(Ranges::one(4)));
        assert_eq!(protocol("ipv6-icmp"), Ok(Ranges::one(58)));
        assert_eq!(protocol("0x2f"), Ok(Ranges::one(47)));
        assert_eq!(icmp6("nd-neighbor-solicit"), Ok(Ranges::one(135)));
        assert_eq!(icmp4("8"), Ok(Ranges::one(8)));
        assert_eq!(dscp("0x2e"), Ok(Ranges::one(46)));
        assert!(dscp("0x40").is_err());
        assert_eq!(ports("22-25"), Ok(Ranges::new([(22, 25)])));
        assert!(ports("ssh").unwrap_err().contains("listed with numbers"));
        assert_eq!(flag("ACK"), Ok(0x10));
    }
}
