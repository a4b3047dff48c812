//! Arguments of elements, as steps need them.

use std::net::Ipv4Addr;

use ::click::text::{first_word, split_words, unquote};
use ipnet::Ipv4Net;

use super::net::Net;

/// The arguments of an element: positional ones, and those that begin with a keyword.
pub(super) struct Arguments<'a> {
    net: &'a Net<'a>,
    positional: Vec<String>,
    named: Vec<(String, String)>,
}

impl<'a> Arguments<'a> {
    /// Reads the arguments of an element, whose class has these keywords.
    pub(super) fn of(net: &'a Net<'a>, number: usize, keywords: &[&str]) -> Self {
        let (mut positional, mut named) = (Vec::new(), Vec::new());
        for argument in &net.element(number).arguments {
            let (word, rest) = first_word(argument);
            if keywords.contains(&word) {
                named.push((word.to_owned(), rest.to_owned()));
            } else {
                positional.push(argument.clone());
            }
        }
        Self { net, positional, named }
    }

    /// Returns an error if there are more positional arguments than so many, or a repeated keyword.
    pub(super) fn check(&self, most: usize) -> Result<(), String> {
        if let Some(further) = self.positional.get(most) {
            return Err(format!("argument \"{further}\": unknown, or one too many"));
        }
        let mut seen: Vec<&str> = Vec::new();
        for (name, _) in &self.named {
            if seen.contains(&name.as_str()) {
                return Err(format!("{name} given twice; remove one"));
            }
            seen.push(name);
        }
        Ok(())
    }

    /// The argument of a keyword, else the positional one at this index.
    pub(super) fn text(&self, index: usize, keyword: &str) -> Option<&str> {
        let named = self.named.iter().find(|(name, _)| name == keyword);
        named.map(|(_, value)| value.as_str()).or(self.positional.get(index).map(String::as_str))
    }

    /// All positional arguments.
    pub(super) fn all(&self) -> &[String] {
        &self.positional
    }

    fn needed(&self, index: usize, keyword: &str) -> Result<&str, String> {
        self.text(index, keyword).ok_or_else(|| format!("argument {keyword} missing"))
    }

    /// A number; `None` if it is not given.
    pub(super) fn number(&self, index: usize, keyword: &str) -> Result<Option<i64>, String> {
        self.text(index, keyword).map(|text| number(text, keyword)).transpose()
    }

    /// A number that must be given.
    pub(super) fn needed_number(&self, index: usize, keyword: &str) -> Result<i64, String> {
        number(self.needed(index, keyword)?, keyword)
    }

    /// A switch; `None` if it is not given.
    pub(super) fn flag(&self, index: usize, keyword: &str) -> Result<Option<bool>, String> {
        let Some(text) = self.text(index, keyword) else { return Ok(None) };
        match text {
            "1" | "true" | "yes" => Ok(Some(true)),
            "0" | "false" | "no" => Ok(Some(false)),
            other => Err(format!("{keyword} \"{other}\": expected true or false")),
        }
    }

    /// An Ethernet address that must be given.
    pub(super) fn mac(&self, index: usize, keyword: &str) -> Result<String, String> {
        mac(self.net, self.needed(index, keyword)?).map_err(|why| format!("{keyword} {why}"))
    }

    /// An IP address that must be given.
    pub(super) fn address(&self, index: usize, keyword: &str) -> Result<Ipv4Addr, String> {
        address(self.net, self.needed(index, keyword)?).map_err(|why| format!("{keyword} {why}"))
    }
}

/// Reads a whole number, in hexadecimal after `0x`, in octal after `0`.
pub(super) fn number(text: &str, what: &str) -> Result<i64, String> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let read = match (digits.strip_prefix("0x").or(digits.strip_prefix("0X")), digits) {
        (Some(hex), _) => i64::from_str_radix(hex, 16),
        (None, "0") => Ok(0),
        (None, _) if digits.starts_with('0') => i64::from_str_radix(digits, 8),
        (None, _) => digits.parse(),
    };
    let number = read.map_err(|_| format!("{what} \"{text}\": expected a whole number"))?;
    Ok(if negative { -number } else { number })
}

/// A text without its quotes.
pub(super) fn unquoted(text: &str) -> String {
    String::from_utf8_lossy(&unquote(text)).into_owned()
}

/// Values that `AddressInfo` elements give a name, without what was asked for by `name:kind`; none if elements of
/// several compounds give it different ones.
fn info<'a>(net: &'a Net<'_>, name: &str) -> Vec<&'a str> {
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    let mut found: Vec<Vec<&str>> = Vec::new();
    for number in net.of_class(&["AddressInfo"]) {
        let mut values = Vec::new();
        for argument in &net.element(number).arguments {
            let mut words = split_words(argument).into_iter();
            if words.next() == Some(name) {
                values.extend(words);
            }
        }
        if !values.is_empty() {
            found.push(values);
        }
    }
    match &found[..] {
        [] => Vec::new(),
        [first, others @ ..] if others.iter().all(|other| other == first) => first.clone(),
        _ => Vec::new(),
    }
}

/// Reads an Ethernet address, or a name that has one.
pub(super) fn mac(net: &Net<'_>, text: &str) -> Result<String, String> {
    let read = |text: &str| {
        let parts: Vec<&str> = text.split([':', '-']).collect();
        let bytes: Option<Vec<u8>> =
            parts.iter().map(|part| u8::from_str_radix(part, 16).ok()).collect();
        bytes.filter(|bytes| bytes.len() == 6)
    };
    let found = read(text).or_else(|| info(net, text).into_iter().find_map(read));
    let bytes = found.ok_or_else(|| {
        format!("\"{text}\": expected an Ethernet address such as 02:00:00:00:00:01")
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

/// Reads an IP address, or a name that has one.
pub(super) fn address(net: &Net<'_>, text: &str) -> Result<Ipv4Addr, String> {
    let read = |text: &str| {
        let text = text.split_once('/').map_or(text, |(address, _)| address);
        text.parse::<Ipv4Addr>().ok()
    };
    let found = text.parse().ok().or_else(|| info(net, text).into_iter().find_map(read));
    found.ok_or_else(|| format!("\"{text}\": expected an IP address such as 10.0.0.1"))
}

/// Reads an address and a prefix length: `18.26.4.9/24`, `18.26.4/24`, `1.0.0.0/255.0.0.0`, an address alone, or a name
/// that has such a value.
pub(super) fn net(net: &Net<'_>, text: &str) -> Result<Ipv4Net, String> {
    let found = read_net(text).or_else(|| {
        let values = info(net, text);
        let prefix = values.iter().find(|value| value.contains('/') && read_net(value).is_some());
        prefix.or(values.first()).and_then(|value| read_net(value))
    });
    found.ok_or_else(|| format!("\"{text}\": expected a network such as 10.0.0.0/8"))
}

fn read_net(text: &str) -> Option<Ipv4Net> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let mut octets = [0; 4];
    let parts: Vec<&str> = address.split('.').collect();
    // Missing octets are 0, if there is a length.
    if parts.len() > 4 || length.is_none() && parts.len() < 4 {
        return None;
    }
    for (octet, part) in octets.iter_mut().zip(parts) {
        *octet = part.parse().ok()?;
    }
    let length = match length {
        None => 32,
        Some(length) => match length.parse::<u8>() {
            Ok(length) => length,
            Err(_) => {
                let mask = u32::from(length.parse::<Ipv4Addr>().ok()?);
                let length = mask.leading_ones();
                if length < 32 && mask << length != 0 {
                    return None;
                }
                length as u8
            }
        },
    };
    Ipv4Net::new(octets.into(), length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_in_many_ways() {
        for (text, expected) in [
            ("18.26.4.9/24", "18.26.4.9/24"),
            ("18.26.4/24", "18.26.4.0/24"),
            ("0/0", "0.0.0.0/0"),
            ("1.0.0.0/255.0.0.0", "1.0.0.0/8"),
            ("1.2.3.4/255.255.255.255", "1.2.3.4/32"),
            ("0.0.0.0/0.0.0.0", "0.0.0.0/0"),
            ("1.2.3.4", "1.2.3.4/32"),
        ] {
            assert_eq!(read_net(text).unwrap().to_string(), expected, "{text}");
        }
        for text in
            ["1.2.3", "1.2.3.4.5/8", "1.2.3.4/33", "1.2.3.4/255.0.255.0", "x/8", "256.0.0.0/8"]
        {
            assert_eq!(read_net(text), None, "{text}");
        }
        assert_eq!((number("0x0800", "X"), number("-1", "X")), (Ok(2048), Ok(-1)));
        assert_eq!((number("017", "X"), number("0", "X")), (Ok(15), Ok(0)));
        assert!(number("1x", "X").is_err() && number("08", "X").is_err());
    }
}
