//! Kinds of arguments: functions from an argument's text to its value.

use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::classes::nearest_of;
use crate::names::Scope;
use crate::text;

/// IPv4 address and mask; `10.0.0.1/8` keeps its host part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix4 {
    /// Address as written.
    pub address: Ipv4Addr,
    /// Mask, of any bits.
    pub mask: Ipv4Addr,
}

/// IPv6 address and length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix6 {
    /// Address as written.
    pub address: Ipv6Addr,
    /// Length of the prefix in bits.
    pub length: u8,
}

impl Prefix4 {
    /// Length of the mask, if its ones come first.
    pub fn length(&self) -> Option<u8> {
        let mask = self.mask.to_bits();
        (mask.leading_ones() == mask.count_ones()).then(|| mask.leading_ones() as u8)
    }
}

impl Prefix6 {
    /// If it has bits behind the prefix.
    pub fn is_host(&self) -> bool {
        let host = u128::MAX.checked_shr(u32::from(self.length)).unwrap_or(0);
        self.address.to_bits() & host != 0
    }
}

/// `true`, `yes`, `t`, `y`, `1`, and their opposites.
pub fn boolean(text: &str, _: &Scope) -> Result<bool, String> {
    flag(text).ok_or_else(|| "expected true or false".into())
}

pub(crate) fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "y" | "t" | "yes" | "true" => Some(true),
        "0" | "n" | "f" | "no" | "false" => Some(false),
        _ => None,
    }
}

/// An integer in a range: `12`, `0xC`, `014` (octal), `0b1100`, `1_000`.
pub fn integer<T>(range: RangeInclusive<T>) -> impl Fn(&str, &Scope) -> Result<T, String>
where
    T: Copy + Display + PartialOrd + TryFrom<i128>,
{
    move |text, _| {
        let expected = || format!("expected an integer from {} to {}", range.start(), range.end());
        let number = whole(text).and_then(|number| T::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(expected)
    }
}

pub(crate) fn whole(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = i128::from(unsigned(digits)?);
    Some(if negative { -number } else { number })
}

fn unsigned(text: &str) -> Option<u64> {
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &text[2..]),
        [b'0', b'b' | b'B', ..] => (2, &text[2..]),
        [b'0', _, ..] => (8, &text[1..]),
        _ => (10, text),
    };
    let single =
        !digits.starts_with(['_', '+']) && !digits.ends_with('_') && !digits.contains("__");
    single.then(|| u64::from_str_radix(&digits.replace('_', ""), radix).ok())?
}

/// A number with a fraction.
pub fn real(text: &str, _: &Scope) -> Result<f64, String> {
    number(text).ok_or_else(|| "expected a number, such as 0.5".into())
}

pub(crate) fn number(text: &str) -> Option<f64> {
    let allowed = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    text.chars().all(allowed).then(|| text.parse().ok())?.filter(|number: &f64| number.is_finite())
}

/// An IPv4 address, or the name of one.
pub fn ip4(text: &str, scope: &Scope) -> Result<Ipv4Addr, String> {
    let parsed = partial_ip4(text).filter(|(_, bytes)| *bytes == 4).map(|(address, _)| address);
    let found = parsed.or_else(|| scope.ip4(text));
    found.ok_or_else(|| "expected an IPv4 address or a name of AddressInfo".into())
}

/// One to four bytes of an address, and their number.
fn partial_ip4(text: &str) -> Option<(Ipv4Addr, usize)> {
    let mut bytes = [0u8; 4];
    let mut count = 0;
    for part in text.split('.') {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        *bytes.get_mut(count)? = digits.then(|| part.parse().ok())??;
        count += 1;
    }
    Some((bytes.into(), count))
}

/// `1.2.3.0/24`, `1.2.3.0/255.255.255.0`, `10/8`, or a name.
pub fn prefix4(text: &str, scope: &Scope) -> Result<Prefix4, String> {
    let found = written_prefix4(text, scope).or_else(|| scope.prefix4(text));
    found.ok_or_else(|| "expected an IPv4 prefix, such as 10.0.0.0/8 or 10.0.0.0/255.0.0.0".into())
}

fn written_prefix4(text: &str, scope: &Scope) -> Option<Prefix4> {
    let (address, mask) = text.rsplit_once('/')?;
    let named = || scope.ip4(address).map(|address| (address, 4));
    let (address, bytes) = partial_ip4(address).or_else(named)?;
    let digits = !mask.is_empty() && mask.bytes().all(|byte| byte.is_ascii_digit());
    let mask = match digits.then(|| mask.parse()) {
        Some(Ok(length @ 0..=32)) => mask_of(length),
        _ => ip4(mask, scope).ok()?,
    };
    let given = mask_of(8 * bytes as u32);
    (bytes == 4 || mask & given == mask).then_some(Prefix4 { address, mask })
}

fn mask_of(length: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - length).unwrap_or(0))
}

/// A prefix, or an address as one of 32 bits.
pub fn prefix4_or_address(text: &str, scope: &Scope) -> Result<Prefix4, String> {
    let host = |address| Prefix4 { address, mask: Ipv4Addr::BROADCAST };
    written_prefix4(text, scope)
        .or_else(|| ip4(text, scope).ok().map(host))
        .map_or_else(|| prefix4(text, scope), Ok)
}

/// An IPv6 address, or the name of one.
pub fn ip6(text: &str, scope: &Scope) -> Result<Ipv6Addr, String> {
    let found = text.parse().ok().or_else(|| scope.ip6(text));
    found.ok_or_else(|| "expected an IPv6 address or a name of AddressInfo".into())
}

/// `2001:db8::/32`, or a name.
pub fn prefix6(text: &str, scope: &Scope) -> Result<Prefix6, String> {
    let written = || {
        let (address, length) = text.rsplit_once('/')?;
        let length = length.parse().ok().filter(|length| *length <= 128)?;
        Some(Prefix6 { address: ip6(address, scope).ok()?, length })
    };
    let found = written().or_else(|| scope.prefix6(text));
    found.ok_or_else(|| "expected an IPv6 prefix, such as 2001:db8::/32".into())
}

/// `00:11:22:33:44:55`, with `-` in place of `:` too, or a name.
pub fn ether(text: &str, scope: &Scope) -> Result<[u8; 6], String> {
    let found = written_ether(text).or_else(|| scope.ether(text));
    found.ok_or_else(|| "expected an Ethernet address, such as 00:11:22:33:44:55".into())
}

fn written_ether(text: &str) -> Option<[u8; 6]> {
    let separator = text.chars().find(|c| *c == ':' || *c == '-')?;
    let mut bytes = [0u8; 6];
    let mut count = 0;
    for part in text.split(separator) {
        let digits =
            matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        *bytes.get_mut(count)? = digits.then(|| u8::from_str_radix(part, 16).ok())??;
        count += 1;
    }
    (count == 6).then_some(bytes)
}

/// `10ms`, `1.5 sec`, `2m`; without a unit, seconds.
pub fn duration(text: &str, _: &Scope) -> Result<Duration, String> {
    time(text).ok_or_else(|| "expected a time, such as 10ms, 1.5s or 2min".into())
}

pub(crate) fn time(text: &str) -> Option<Duration> {
    const UNITS: &[(&str, f64)] = &[
        ("nsec", 1e-9),
        ("ns", 1e-9),
        ("usec", 1e-6),
        ("us", 1e-6),
        ("msec", 1e-3),
        ("ms", 1e-3),
        ("sec", 1.0),
        ("s", 1.0),
        ("min", 60.0),
        ("m", 60.0),
        ("hr", 3600.0),
        ("h", 3600.0),
        ("day", 86400.0),
        ("d", 86400.0),
        ("", 1.0),
    ];
    let seconds = scaled(text, UNITS);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Bytes per second: `100Mbps`, `1.5 GBps`, `384kbaud`; without a unit, bytes per second.
pub fn bandwidth(text: &str, _: &Scope) -> Result<u64, String> {
    let units =
        [("baud", 0.125), ("bps", 0.125), ("b/s", 0.125), ("Bps", 1.0), ("B/s", 1.0), ("", 1.0)];
    let prefixes = [("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("", 1.0)];
    let unit = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let rate = unit.and_then(|(rest, bytes)| {
        let prefixes = if rest.len() == text.len() { &prefixes[4..] } else { &prefixes[..] };
        scaled(rest, prefixes).map(|rate| rate * bytes)
    });
    let rate = rate.filter(|rate| (0.0..1e15).contains(rate));
    rate.map(|rate| rate.round() as u64)
        .ok_or_else(|| "expected a bandwidth, such as 100Mbps or 1.5MBps".into())
}

/// A number with the first of the suffixes that fits.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (digits, factor) = found?;
    Some(number(digits.trim_end())? * factor)
}

/// Text, without quotes.
pub fn string(text: &str, scope: &Scope) -> Result<String, String> {
    String::from_utf8(bytes(text, scope)?).map_err(|_| "expected text in UTF-8".into())
}

/// Bytes, without quotes: `"GET /\r\n"`, `\<00 FF>`.
pub fn bytes(text: &str, _: &Scope) -> Result<Vec<u8>, String> {
    if !text.is_empty() && !text::is_one_word(text) {
        return Err("expected one string; put it in quotes".into());
    }
    Ok(text::unquote(text))
}

/// A text without spaces, quotes and commas.
pub fn word(text: &str, scope: &Scope) -> Result<String, String> {
    let word = string(text, scope)?;
    let plain = word.bytes().all(|byte| (33..127).contains(&byte) && !b"\"'\\,".contains(&byte));
    if plain && !word.is_empty() { Ok(word) } else { Err("expected a word".into()) }
}

/// The argument as written.
pub fn raw(text: &str, _: &Scope) -> Result<String, String> {
    Ok(text.to_owned())
}

/// Number of an element, by its name.
pub fn element(text: &str, scope: &Scope) -> Result<usize, String> {
    let unknown = || match nearest_of(text, scope.elements()) {
        Some(nearest) => format!("no such element; the nearest name is \"{nearest}\""),
        None => "no such element".to_owned(),
    };
    scope.element(text).ok_or_else(unknown)
}
