//! Arguments of an element, read as Click reads them.
//!
//! An argument is `VALUE` or `KEYWORD VALUE`. An element reads its arguments by their keywords, in a fixed order;
//! those that may be positional take the next one without a keyword. Each keyword may stand anywhere behind the
//! positional arguments; of several with the same keyword the last counts. What nobody has read is an error. Errors do not
//! name the element.
//!
//! ```
//! # use click::args::Args;
//! # use click::{kinds, names::Names};
//! let flat = click::flatten(&click::parse("f", "InfiniteSource(\"data\", LIMIT 5) -> Discard")?, &[])?;
//! let names = Names::of(&flat)?;
//! let mut args = Args::new(&names, &flat.elements[0]);
//! let data = args.optional("DATA", kinds::bytes)?;
//! let limit = args.optional("LIMIT", kinds::integer(-1i64..=i64::MAX))?.unwrap_or(-1);
//! args.finish()?;
//! assert_eq!((data, limit), (Some(b"data".to_vec()), 5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::classes::nearest_of;
use crate::flat::Element;
use crate::names::{Names, Scope};

/// Arguments of an element.
#[derive(Debug)]
pub struct Args<'a> {
    element: &'a Element,
    scope: Scope<'a>,
    /// State of each argument.
    slots: Vec<Slot>,
    /// Keywords that the element has.
    keywords: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    /// Not read; the length of its keyword, 0 without one.
    Free(usize),
    ReadByPosition,
    ReadByKeyword,
}

fn missing(keyword: &str) -> String {
    format!("argument {keyword} is missing")
}

/// Length of the keyword in front of an argument.
fn keyword_length(argument: &str) -> usize {
    let bytes = argument.as_bytes();
    let starts = bytes.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_:.?!".contains(byte);
    let length = if starts { bytes.iter().take_while(|byte| part(byte)).count() } else { 0 };
    let value = argument[length..].trim_start();
    if value.is_empty() || value.len() == argument.len() - length { 0 } else { length }
}

impl<'a> Args<'a> {
    /// Arguments of an element, with names of its configuration.
    pub fn new(names: &'a Names, element: &'a Element) -> Args<'a> {
        let slots = element.arguments.iter().map(|text| Slot::Free(keyword_length(text)));
        let (slots, scope) = (slots.collect(), names.scope(element));
        Args { element, scope, slots, keywords: Vec::new() }
    }

    /// A mandatory argument, by position or keyword.
    pub fn required<T>(
        &mut self,
        keyword: &str,
        kind: impl Fn(&str, &Scope) -> Result<T, String>,
    ) -> Result<T, String> {
        let text = self.find(keyword, true, true);
        let text = text.ok_or_else(|| missing(keyword))?;
        self.value(keyword, &text, &kind)
    }

    /// An argument that may be left out, by position or keyword.
    pub fn optional<T>(
        &mut self,
        keyword: &str,
        kind: impl Fn(&str, &Scope) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let text = self.find(keyword, true, false);
        text.map(|text| self.value(keyword, &text, &kind)).transpose()
    }

    /// An argument that may be left out, by keyword only.
    pub fn keyword<T>(
        &mut self,
        keyword: &str,
        kind: impl Fn(&str, &Scope) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let text = self.find(keyword, false, false);
        text.map(|text| self.value(keyword, &text, &kind)).transpose()
    }

    /// A mandatory argument, by keyword only.
    pub fn required_keyword<T>(
        &mut self,
        keyword: &str,
        kind: impl Fn(&str, &Scope) -> Result<T, String>,
    ) -> Result<T, String> {
        let text = self.find(keyword, false, true).ok_or_else(|| missing(keyword))?;
        self.value(keyword, &text, &kind)
    }

    /// Reads the arguments of these keywords without a use for them.
    pub fn ignore(&mut self, keywords: &[&str]) {
        for keyword in keywords {
            self.find(keyword, false, false);
        }
    }

    /// Names that the element may use.
    pub fn scope(&self) -> Scope<'a> {
        self.scope
    }

    /// Values of all arguments with a keyword.
    pub fn all<T>(
        &mut self,
        keyword: &str,
        kind: impl Fn(&str, &Scope) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        self.keywords.push(keyword.to_owned());
        let mut values = Vec::new();
        for index in 0..self.slots.len() {
            if self.has_keyword(index, keyword) {
                self.slots[index] = Slot::ReadByKeyword;
                values.push(self.value(keyword, &self.text(index, keyword.len()), &kind)?);
            }
        }
        Ok(values)
    }

    /// All arguments without a known keyword that nobody has read, as written.
    pub fn rest(&mut self) -> Vec<String> {
        let element = self.element;
        let left = self.slots.iter_mut().zip(&element.arguments);
        let left = left.filter(|(slot, _)| matches!(slot, Slot::Free(_)));
        left.map(|(slot, text)| {
            *slot = Slot::ReadByPosition;
            text.clone()
        })
        .collect()
    }

    /// Checks that all arguments have been read.
    pub fn finish(self) -> Result<(), String> {
        for (slot, text) in self.slots.iter().zip(&self.element.arguments) {
            match *slot {
                Slot::Free(0) => return Err(format!("one argument too many: {text}")),
                Slot::Free(length) => return Err(self.unknown(&text[..length])),
                _ => {}
            }
        }
        Ok(())
    }

    fn unknown(&self, keyword: &str) -> String {
        let known = self.keywords.iter().map(String::as_str);
        let way_out = match nearest_of(keyword, known) {
            Some(nearest) => format!("the nearest known one is {nearest}"),
            None if self.keywords.is_empty() => "it has none".to_owned(),
            None => format!("known: {}", self.keywords.join(", ")),
        };
        format!("unknown argument {keyword}; {way_out}")
    }

    fn value<T>(
        &self,
        keyword: &str,
        text: &str,
        kind: &impl Fn(&str, &Scope) -> Result<T, String>,
    ) -> Result<T, String> {
        let wrong = |problem| format!("{keyword} \"{text}\": {problem}");
        kind(text, &self.scope).map_err(wrong)
    }

    fn has_keyword(&self, index: usize, keyword: &str) -> bool {
        self.slots[index] == Slot::Free(keyword.len())
            && self.element.arguments[index].starts_with(keyword)
            && !keyword.is_empty()
    }

    fn text(&self, index: usize, keyword: usize) -> String {
        let text = &self.element.arguments[index];
        if keyword == 0 { text.clone() } else { text[keyword..].trim_start().to_owned() }
    }

    /// Text of the argument with a keyword or at the next position.
    fn find(&mut self, keyword: &str, positional: bool, mandatory: bool) -> Option<String> {
        self.keywords.push(keyword.to_owned());
        let next = self.slots.iter().position(|slot| *slot != Slot::ReadByPosition);
        let next = next.and_then(|next| match self.slots[next] {
            Slot::Free(length) => Some((next, length)),
            _ => None,
        });
        let mut found = None;
        for index in 0..self.slots.len() {
            if self.has_keyword(index, keyword) {
                self.slots[index] = Slot::ReadByKeyword;
                found = Some((index, keyword.len()));
            }
        }
        let takes = |(index, length): (usize, usize)| {
            let free = matches!(self.slots[index], Slot::Free(_));
            positional && free && (length == 0 || found.is_none() && mandatory)
        };
        if let Some((index, _)) = next.filter(|next| takes(*next)) {
            self.slots[index] = Slot::ReadByPosition;
            found = found.filter(|(by_keyword, _)| *by_keyword > index).or(Some((index, 0)));
        }
        found.map(|(index, length)| self.text(index, length))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;
    use crate::kinds::{self, Prefix4};
    use crate::{flatten, parse};

    fn with<T>(
        text: &str,
        read: impl FnOnce(&mut Args<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let flat = flatten(&parse("f", text).unwrap(), &[]).unwrap();
        let names = Names::of(&flat).unwrap();
        let mut args = Args::new(&names, flat.elements.last().unwrap());
        read(&mut args).and_then(|read| args.finish().map(|()| read))
    }

    fn value<T>(text: &str, kind: impl Fn(&str, &Scope) -> Result<T, String>) -> Result<T, String> {
        with(&format!("e :: E({text})"), |args| args.required("X", kind))
    }

    #[test]
    fn arguments_are_read_by_position_and_keyword() {
        let read = |text: &str| {
            with(&format!("e :: E({text})"), |args| {
                let a = args.required("A", kinds::raw)?;
                let b = args.optional("B", kinds::raw)?;
                let c = args.keyword("C", kinds::raw)?;
                Ok((a, b, c))
            })
        };
        let values = |a: &str, b: Option<&str>, c: Option<&str>| {
            Ok((a.into(), b.map(Into::into), c.map(Into::into)))
        };
        assert_eq!(read("1"), values("1", None, None));
        assert_eq!(read("1, 2, C 3"), values("1", Some("2"), Some("3")));
        assert_eq!(read("B 2, A 1"), values("1", Some("2"), None));
        assert_eq!(read("A 1, A 4"), values("4", None, None));
        assert_eq!(read("x y"), values("x y", None, None));
        assert_eq!(read("1, C 3, 2").unwrap_err(), "one argument too many: 2");
        assert_eq!(read("").unwrap_err(), "argument A is missing");
        assert_eq!(read("1, D 2").unwrap_err(), "unknown argument D; known: A, B, C");
        assert_eq!(read("1, 2, 3").unwrap_err(), "one argument too many: 3");
    }

    #[test]
    fn repeated_keywords_and_the_rest() {
        let read =
            with("e :: E(K 1, a, K 2, b)", |args| Ok((args.all("K", kinds::raw)?, args.rest())));
        assert_eq!(read, Ok((vec!["1".into(), "2".into()], vec!["a".into(), "b".into()])));
        let near = with("e :: E(LIMITT 1)", |args| args.keyword("LIMIT", kinds::raw));
        assert_eq!(near.unwrap_err(), "unknown argument LIMITT; the nearest known one is LIMIT");
    }

    #[test]
    fn numbers() {
        let read = |text| value(text, kinds::integer(-10i64..=1000));
        assert_eq!((read("12"), read("-10"), read("0x1F")), (Ok(12), Ok(-10), Ok(31)));
        assert_eq!((read("017"), read("1_000"), read("0")), (Ok(15), Ok(1000), Ok(0)));
        for wrong in ["1001", "-11", "0x", "1__0", "09", "1.5", "x"] {
            assert!(
                read(wrong).unwrap_err().contains("expected an integer from -10 to 1000"),
                "{wrong}"
            );
        }
        assert_eq!(value("0.5", kinds::real), Ok(0.5));
        assert!(value("inf", kinds::real).is_err());
        assert_eq!(
            (value("yes", kinds::boolean), value("0", kinds::boolean)),
            (Ok(true), Ok(false))
        );
        assert!(value("maybe", kinds::boolean).is_err());
    }

    #[test]
    fn times_and_bandwidths() {
        assert_eq!(value("10ms", kinds::duration), Ok(Duration::from_millis(10)));
        assert_eq!(value("1.5", kinds::duration), Ok(Duration::from_millis(1500)));
        assert_eq!(value("2 min", kinds::duration), Ok(Duration::from_secs(120)));
        assert_eq!(value("3e6 usec", kinds::duration), Ok(Duration::from_secs(3)));
        assert!(
            value("-1s", kinds::duration).is_err() && value("1e300h", kinds::duration).is_err()
        );
        assert_eq!(value("100Mbps", kinds::bandwidth), Ok(12_500_000));
        assert_eq!(value("384kbaud", kinds::bandwidth), Ok(48_000));
        assert_eq!(value("1.5 MBps", kinds::bandwidth), Ok(1_500_000));
        assert_eq!(value("1000", kinds::bandwidth), Ok(1000));
        assert!(value("10 parsecs", kinds::bandwidth).is_err());
    }

    #[test]
    fn addresses_and_names() {
        let info = "AddressInfo(h 10.1.2.3/16 0:1:2:3:4:a, g 1.2.3.4);";
        let read = |text: &str| {
            with(&format!("{info} e :: E({text})"), |args| args.required("X", kinds::ip4))
        };
        assert_eq!(read("18.26.4.9"), Ok(Ipv4Addr::new(18, 26, 4, 9)));
        assert_eq!(read("h"), Ok(Ipv4Addr::new(10, 1, 2, 3)));
        assert_eq!(read("h:bcast"), Ok(Ipv4Addr::new(10, 1, 255, 255)));
        assert_eq!(read("g:ip"), Ok(Ipv4Addr::new(1, 2, 3, 4)));
        assert!(read("1.2.3").is_err() && read("1.2.3.256").is_err() && read("nobody").is_err());
        let prefix = |text: &str| {
            with(&format!("{info} e :: E({text})"), |args| {
                args.required("X", kinds::prefix4_or_address)
            })
        };
        let known = |address: [u8; 4], mask: [u8; 4]| {
            Ok(Prefix4 { address: address.into(), mask: mask.into() })
        };
        assert_eq!(prefix("10/8"), known([10, 0, 0, 0], [255, 0, 0, 0]));
        assert_eq!(prefix("1.2.3.0/255.255.255.0"), known([1, 2, 3, 0], [255, 255, 255, 0]));
        assert_eq!(prefix("0/0"), known([0; 4], [0; 4]));
        assert_eq!(prefix("h:ipnet"), known([10, 1, 2, 3], [255, 255, 0, 0]));
        assert_eq!(prefix("1.2.3.4"), known([1, 2, 3, 4], [255; 4]));
        assert!(prefix("10/16").is_err() && prefix("10.0.0.0/33").is_err());
        let ether = with(&format!("{info} e :: E(h)"), |args| args.required("X", kinds::ether));
        assert_eq!(ether, Ok([0, 1, 2, 3, 4, 10]));
        assert_eq!(value("2001:db8::1/32", kinds::prefix6).unwrap().length, 32);
    }

    #[test]
    fn names_are_known_within_their_compound() {
        let text =
            "elementclass C { AddressInfo(h 1.1.1.1); e :: E(h) } AddressInfo(h 2.2.2.2); c :: C;";
        assert_eq!(
            with(text, |args| args.required("X", kinds::ip4)),
            Ok(Ipv4Addr::new(1, 1, 1, 1))
        );
        let element = with("elementclass C { q :: Queue; e :: E(q) } c :: C; q :: Queue", |args| {
            args.required("X", kinds::element)
        });
        assert_eq!(element, Ok(1));
        let outer = "elementclass C { e :: E(h) } AddressInfo(h 2.2.2.2); c :: C;";
        let address = with(outer, |args| args.required("X", kinds::ip4));
        assert_eq!(address, Ok(Ipv4Addr::new(2, 2, 2, 2)));
        let near = with("qu :: Queue; e :: E(qu1)", |args| args.required("X", kinds::element));
        assert!(near.unwrap_err().contains("the nearest name is \"qu\""));
    }

    #[test]
    fn texts() {
        assert_eq!(value("\"a b\\n\"", kinds::string), Ok("a b\n".into()));
        assert_eq!(value("\\<00 ff>", kinds::bytes), Ok(vec![0, 255]));
        assert!(value("a b", kinds::bytes).is_err() && value("\"a b\"", kinds::word).is_err());
        assert_eq!(value("eth0", kinds::word), Ok("eth0".into()));
    }
}
