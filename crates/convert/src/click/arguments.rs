//! Kinds of arguments, as steps need them.

use std::net::Ipv4Addr;

use ::click::kinds;
use ::click::names::Scope;
use ::click::text::unquote;
use ipnet::Ipv4Net;

/// A text without its quotes.
pub(super) fn unquoted(text: &str) -> String {
    String::from_utf8_lossy(&unquote(text)).into_owned()
}

/// Any text, without its quotes.
pub(super) fn label(text: &str, _: &Scope<'_>) -> Result<String, String> {
    Ok(unquoted(text))
}

/// A whole number.
pub(super) fn number(text: &str, scope: &Scope<'_>) -> Result<i64, String> {
    kinds::integer(i64::MIN..=i64::MAX)(text, scope).map_err(|_| "expected a whole number".into())
}

/// A number of bytes, or the place of one.
pub(super) fn bytes(text: &str, scope: &Scope<'_>) -> Result<i64, String> {
    kinds::integer(0..=65_535)(text, scope)
}

/// An Ethernet address, or a name that has one, as steps read it.
pub(super) fn mac(text: &str, scope: &Scope<'_>) -> Result<String, String> {
    let bytes = kinds::ether(text, scope)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

/// `0.25` or `25%`.
pub(super) fn probability(text: &str, _: &Scope<'_>) -> Result<f64, String> {
    let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |text| (text, 100.0));
    let share = number.parse::<f64>().ok().map(|number| number / whole);
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
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
    use super::super::net::Net;

    #[test]
    fn networks_are_written_in_many_ways() {
        let flat = click::flatten(&click::parse("t", "Idle").unwrap(), &[]).unwrap();
        let net = Net::new(&flat).unwrap();
        let scope = net.scope(0);
        let read_net = |text| super::read_net(text, &scope);
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
    }
}
