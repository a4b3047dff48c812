//! Arguments of elements, as steps need them.

use std::net::Ipv4Addr;

use ::click::kinds;
use ::click::names::Scope;
use ::click::text::{first_word, unquote};
use ipnet::Ipv4Net;

use super::net::Net;

/// The arguments of an element: positional ones, and those that begin with a keyword.
pub(super) struct Arguments<'a> {
    /// The names that it may use.
    scope: Scope<'a>,
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
        Self { scope: net.scope(number), positional, named }
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
        self.text(index, keyword).map(|text| number(text, keyword, &self.scope)).transpose()
    }

    /// A number that must be given.
    pub(super) fn needed_number(&self, index: usize, keyword: &str) -> Result<i64, String> {
        number(self.needed(index, keyword)?, keyword, &self.scope)
    }

    /// A switch; `None` if it is not given.
    pub(super) fn flag(&self, index: usize, keyword: &str) -> Result<Option<bool>, String> {
        let Some(text) = self.text(index, keyword) else { return Ok(None) };
        let flag = kinds::boolean(text, &self.scope);
        flag.map(Some).map_err(|why| format!("{keyword} \"{text}\": {why}"))
    }

    /// An Ethernet address that must be given.
    pub(super) fn mac(&self, index: usize, keyword: &str) -> Result<String, String> {
        mac(self.needed(index, keyword)?, &self.scope).map_err(|why| format!("{keyword} {why}"))
    }

    /// An IP address that must be given.
    pub(super) fn address(&self, index: usize, keyword: &str) -> Result<Ipv4Addr, String> {
        address(self.needed(index, keyword)?, &self.scope).map_err(|why| format!("{keyword} {why}"))
    }
}

/// Reads a whole number.
pub(super) fn number(text: &str, what: &str, scope: &Scope<'_>) -> Result<i64, String> {
    let read = kinds::integer(i64::MIN..=i64::MAX)(text, scope);
    read.map_err(|_| format!("{what} \"{text}\": expected a whole number"))
}

/// A text without its quotes.
pub(super) fn unquoted(text: &str) -> String {
    String::from_utf8_lossy(&unquote(text)).into_owned()
}

/// Reads an Ethernet address, or a name that has one.
pub(super) fn mac(text: &str, scope: &Scope<'_>) -> Result<String, String> {
    let bytes = kinds::ether(text, scope).map_err(|_| {
        format!("\"{text}\": expected an Ethernet address such as 02:00:00:00:00:01")
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

/// Reads an IP address, or a name that has one.
pub(super) fn address(text: &str, scope: &Scope<'_>) -> Result<Ipv4Addr, String> {
    kinds::ip4(text, scope)
        .map_err(|_| format!("\"{text}\": expected an IP address such as 10.0.0.1"))
}

/// Reads an address and a prefix length: `18.26.4.9/24`, `18.26.4/24`, `1.0.0.0/255.0.0.0`, an address alone, or a name
/// that has such a value.
pub(super) fn net(text: &str, scope: &Scope<'_>) -> Result<Ipv4Net, String> {
    read_net(text, scope)
        .ok_or_else(|| format!("\"{text}\": expected a network such as 10.0.0.0/8"))
}

fn read_net(text: &str, scope: &Scope<'_>) -> Option<Ipv4Net> {
    match kinds::prefix4(text, scope) {
        Ok(prefix) => Ipv4Net::new(prefix.address, prefix.length()?).ok(),
        Err(_) => kinds::ip4(text, scope).ok().map(Ipv4Net::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_in_many_ways() {
        let flat = click::flatten(&click::parse("t", "Idle").unwrap(), &[]).unwrap();
        let net = Net::new(&flat).unwrap();
        let scope = net.scope(0);
        let read_net = |text| super::read_net(text, &scope);
        let number = |text, what| super::number(text, what, &scope);
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
