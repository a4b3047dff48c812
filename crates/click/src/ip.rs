//! Patterns of `IPClassifier` and `IPFilter`: `src net 10.0.0.0/8 and tcp dst port 80 or 443`.
//!
//! ```text
//! filter = ( "allow" | "deny" | "drop" | OUTPUT ) pattern       an argument of IPFilter
//! pattern = "-" | "any" | "all" | expr                          an argument of IPClassifier
//! expr   = or [ "?" expr ":" expr ]
//! or     = term { ( "or" | "||" ) term }
//! term   = factor { [ "and" | "&&" ] factor }
//! factor = ( "not" | "!" ) factor | "(" expr ")" | "true" | "false" | test
//! test   = { qualifier } [ "&" MASK ] [ "==" | "!=" | "<" | ">" | "<=" | ">=" ] [ value ]
//! ```
//!
//! The qualifiers are `src`, `dst`, `src or dst`, `src and dst`, `ip`, `ether`, names of protocols, `host`, `net`, `port`,
//! `proto`, `opt`, `type`, `win`, `vers`, `hl`, `id`, `tos`, `dscp`, `ttl`, `len`, `ect`, `ce`, `frag`, `unfrag`, and
//! `[POS:LEN]`. Those that are left out follow from the value, or from the test before: `src port 80 or 443`. Tests of
//! ports, TCP and ICMP hold for first fragments only; `port != 5` implies TCP or UDP, `not port 5` does not.
//!
//! ```
//! # use click::{ip::IpClassifier, names::Names};
//! let flat = click::flatten(&click::parse("f", "f :: IPFilter(deny src 10.0.0.0/8, allow all)")?, &[])?;
//! let names = Names::of(&flat)?;
//! let element = &flat.elements[0];
//! let filter = IpClassifier::filter(&element.arguments, &names.scope(element)).unwrap();
//! let mut packet = [0; 20];
//! packet[0] = 0x45;
//! assert_eq!(filter.output(&packet), Some(0));
//! packet[12] = 10;
//! assert_eq!(filter.output(&packet), None);
//! # Ok::<(), click::Errors>(())
//! ```

use winnow::Parser;
use winnow::ascii::multispace0;
use winnow::combinator::{alt, preceded, repeat, terminated};
use winnow::error::ContextError;
use winnow::token::{any, take_while};

use crate::decision::{Expr, Layers, Program};
use crate::names::Scope;
use crate::primitive::{self, Primitive, Sides};
use crate::text;

/// Parentheses and conditions inside of each other.
const DEEPEST: usize = 64;
/// Words of a pattern.
const MOST_WORDS: usize = 4096;

type Result<T> = std::result::Result<T, String>;

/// Compiled patterns.
#[derive(Clone, Debug)]
pub struct IpClassifier {
    program: Program,
    /// Highest output, and one more.
    outputs: usize,
}

impl IpClassifier {
    /// Compiles the arguments of `IPClassifier`: a pattern for each output.
    pub fn classifier(arguments: &[String], scope: &Scope) -> Result<IpClassifier> {
        let numbered = arguments.iter().zip(0u32..);
        IpClassifier::new(
            numbered.map(|(text, output)| Ok((rule(text, output, scope)?, Some(output)))),
        )
    }

    /// Compiles the arguments of `IPFilter`: an action and a pattern each.
    pub fn filter(arguments: &[String], scope: &Scope) -> Result<IpClassifier> {
        let numbered = arguments.iter().zip(0u32..);
        IpClassifier::new(numbered.map(|(text, number)| {
            let unquoted = String::from_utf8_lossy(&text::unquote(text)).into_owned();
            let (word, pattern) = text::first_word(&unquoted);
            let output = action(word)
                .map_err(|problem| format!("pattern {number} \"{text}\": {problem}"))?;
            let pattern = if pattern.is_empty() { "-" } else { pattern };
            Ok((rule(pattern, number, scope)?, output))
        }))
    }

    fn new(rules: impl Iterator<Item = Result<(Expr, Option<u32>)>>) -> Result<IpClassifier> {
        let rules: Vec<_> = rules.collect::<Result<_>>()?;
        let outputs = rules.iter().filter_map(|(_, output)| *output).max();
        let outputs = outputs.map_or(0, |last| last as usize + 1);
        let program = Program::new(&rules).ok_or("patterns too large for a program")?;
        Ok(IpClassifier { program, outputs })
    }

    /// Outputs that the patterns use: one more than the highest.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The output for a packet from its IPv4 header on; `None` if the packet is to be dropped.
    #[inline]
    pub fn output(&self, network: &[u8]) -> Option<usize> {
        self.output_of_frame(&[], network)
    }

    /// The output for a packet with its Ethernet header, for patterns such as `ether host`.
    #[inline]
    pub fn output_of_frame(&self, mac: &[u8], network: &[u8]) -> Option<usize> {
        self.program.run(&layers(mac, network)).map(|output| output as usize)
    }
}

#[inline]
fn layers<'p>(mac: &'p [u8], network: &'p [u8]) -> Layers<'p> {
    let header = network.first().map_or(0, |byte| usize::from(byte & 15) * 4);
    let transport = network.get(header..).unwrap_or_default();
    Layers { start: network, network, transport, mac }
}

fn action(word: &str) -> Result<Option<u32>> {
    match word {
        "allow" => Ok(Some(0)),
        "deny" | "drop" => Ok(None),
        number => match number.parse() {
            Ok(output @ 0..=4095) => Ok(Some(output)),
            _ => Err(format!("action \"{word}\"; expected allow, deny, drop or an output")),
        },
    }
}

fn rule(pattern: &str, number: u32, scope: &Scope) -> Result<Expr> {
    let unquoted = String::from_utf8_lossy(&text::unquote(pattern)).into_owned();
    let read = match unquoted.trim() {
        "-" | "any" | "all" => Ok(Expr::Const(true)),
        _ => Parse::new(&unquoted, scope).and_then(Parse::pattern),
    };
    read.map_err(|problem| format!("pattern {number} \"{pattern}\": {problem}"))
}

/// Words and signs of a pattern.
fn words<'t>(input: &mut &'t str) -> winnow::Result<Vec<&'t str>, ContextError> {
    let word = take_while(1.., |c: char| c.is_ascii_alphanumeric() || "-./@_:".contains(c));
    let signs = alt(("&&", "||", "<=", ">=", "!=", "=="));
    let one = alt((signs, word, any.take()));
    preceded(multispace0, repeat(0.., terminated(one, multispace0))).parse_next(input)
}

/// A pattern that is being read.
pub(crate) struct Parse<'t, 's> {
    words: Vec<&'t str>,
    at: usize,
    scope: &'s Scope<'s>,
    depth: usize,
    /// The test before, whose qualifiers the next may leave out.
    last: Primitive,
}

impl<'t, 's> Parse<'t, 's> {
    fn new(text: &'t str, scope: &'s Scope<'s>) -> Result<Parse<'t, 's>> {
        let words = words.parse(text).map_err(|_| "not a pattern".to_owned())?;
        if words.len() > MOST_WORDS {
            return Err(format!("more than {MOST_WORDS} words"));
        }
        Ok(Parse { words, at: 0, scope, depth: 0, last: Primitive::default() })
    }

    fn pattern(mut self) -> Result<Expr> {
        let expr = self.expr()?;
        match self.peek() {
            None => Ok(expr),
            Some(word) => Err(format!("found \"{word}\"; expected `and`, `or` or the end")),
        }
    }

    pub fn peek(&self) -> Option<&'t str> {
        self.words.get(self.at).copied()
    }

    pub fn word(&self, ahead: usize) -> Option<&'t str> {
        self.words.get(self.at + ahead).copied()
    }

    pub fn skip(&mut self, words: usize) {
        self.at += words;
    }

    fn accept(&mut self, words: &[&str]) -> bool {
        let accepted = self.peek().is_some_and(|word| words.contains(&word));
        self.at += usize::from(accepted);
        accepted
    }

    fn found(&self) -> String {
        self.peek().map_or("the end".to_owned(), |word| format!("\"{word}\""))
    }

    fn expr(&mut self) -> Result<Expr> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("expressions nested more than {DEEPEST} deep"));
        }
        let condition = self.any_of()?;
        let mut expr = condition;
        if self.accept(&["?"]) {
            let yes = self.expr()?;
            if !self.accept(&[":"]) {
                return Err(format!("found {}; expected `:` of `?`", self.found()));
            }
            let no = self.expr()?;
            expr = Expr::If(Box::new([expr, yes, no]));
        }
        self.depth -= 1;
        Ok(expr)
    }

    fn any_of(&mut self) -> Result<Expr> {
        let mut all = vec![self.all_of()?];
        while self.accept(&["or", "||"]) {
            all.push(self.all_of()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::Or(all) })
    }

    fn all_of(&mut self) -> Result<Expr> {
        let mut all = vec![self.factor()?];
        loop {
            let joined = self.accept(&["and", "&&"]);
            let ends = self.peek().is_none_or(|word| matches!(word, ")" | "or" | "||" | "?" | ":"));
            if ends && !joined {
                return Ok(if all.len() == 1 { all.remove(0) } else { Expr::And(all) });
            }
            all.push(self.factor()?);
        }
    }

    fn factor(&mut self) -> Result<Expr> {
        let mut negated = false;
        while self.accept(&["not", "!"]) {
            negated = !negated;
        }
        let expr = match self.peek() {
            None | Some(")" | "or" | "||" | "and" | "&&" | "?" | ":") => {
                return Err(format!(
                    "found {}; expected a test, such as `tcp dst port 80`",
                    self.found()
                ));
            }
            Some("(") => {
                self.skip(1);
                let inner = self.expr()?;
                if !self.accept(&[")"]) {
                    return Err(format!("found {}; expected `)`", self.found()));
                }
                inner
            }
            Some("true") => self.constant(true),
            Some("false") => self.constant(false),
            Some(_) => self.test(&mut negated)?,
        };
        Ok(if negated { Expr::Not(Box::new(expr)) } else { expr })
    }

    fn constant(&mut self, value: bool) -> Expr {
        self.skip(1);
        Expr::Const(value)
    }

    /// Reads a test; `not` among its qualifiers negates it.
    fn test(&mut self, negated: &mut bool) -> Result<Expr> {
        let (scope, last) = (self.scope, self.last.clone());
        let (primitive, expr) = primitive::read(self, scope, &last, negated)?;
        self.last = primitive;
        Ok(expr)
    }

    /// `src`, `dst`, `src or dst`, `src and dst`
    pub fn sides(&mut self) -> Option<Sides> {
        let first = self.peek()?;
        if matches!(first, "dst" | "dest") {
            self.skip(1);
            return Some(Sides::Dst);
        }
        let second = matches!(self.word(2), Some("dst" | "dest"));
        let (words, sides) = match (first, self.word(1)) {
            ("src", Some("and" | "&&")) if second => (3, Sides::Both),
            ("src", Some("or" | "||")) if second => (3, Sides::Either),
            ("src", _) => (1, Sides::Src),
            _ => return None,
        };
        self.skip(words);
        Some(sides)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decision::tests::reference;
    use crate::flat::{Element, Flat};
    use crate::names::Names;

    fn with_scope<T>(body: impl FnOnce(&Scope) -> T) -> T {
        let text = "AddressInfo(me 10.0.0.1, here 18.26.4.0/24, eth 0:1:2:3:4:5); PortInfo(control 7777); e :: IPFilter();";
        let flat: Flat = crate::flatten(&crate::parse("f", text).unwrap(), &[]).unwrap();
        let element: &Element = flat.elements.last().unwrap();
        let names = Names::of(&flat).unwrap();
        body(&names.scope(element))
    }

    /// An IPv4 packet with ports, and a change.
    fn packet(protocol: u8, change: impl FnOnce(&mut [u8; 40])) -> [u8; 40] {
        let mut packet = [0u8; 40];
        packet[0] = 0x45;
        packet[8] = 64;
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
        packet[16..20].copy_from_slice(&[18, 26, 4, 44]);
        packet[20..24].copy_from_slice(&[0, 80, 31, 64]);
        change(&mut packet);
        packet
    }

    fn holds(pattern: &str, packet: &[u8]) -> bool {
        with_scope(|scope| {
            let classifier = IpClassifier::classifier(&[pattern.to_owned()], scope);
            classifier
                .unwrap_or_else(|problem| panic!("{problem}"))
                .output_of_frame(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], packet)
                .is_some()
        })
    }

    fn error(pattern: &str) -> String {
        with_scope(|scope| {
            IpClassifier::classifier(&[pattern.to_owned()], scope).expect_err(pattern)
        })
    }

    #[test]
    fn tests_of_addresses() {
        let tcp = packet(6, |_| ());
        for yes in [
            "host 10.0.0.1",
            "src host 10.0.0.1",
            "src 10.0.0.1",
            "10.0.0.1",
            "src me",
            "host me:ip",
            "dst net 18.26.4.0/24",
            "dst 18.26/16",
            "dst net 18.26.4.0 mask 255.255.255.0",
            "src or dst net here",
            "src host != 10.0.0.2",
            "not dst 10.0.0.1",
            "src and dst net 0/0",
            "src host & 255.0.0.0 == 10.0.0.0",
            "ether host 0:1:2:3:4:5",
            "ether dst host eth",
            "src ether host 06-07-08-09-0a-0b",
            "src net 10/8 and dst net 18/8",
            "ip host 10.0.0.1",
            "-",
            "any",
            "true",
            "! false",
        ] {
            assert!(holds(yes, &tcp), "{yes}");
        }
        for no in [
            "src 18.26.4.44",
            "src and dst host 10.0.0.1",
            "dst net 10.0.0.0/8",
            "host != 10.0.0.1",
            "false",
            "src ether host 0:1:2:3:4:5",
        ] {
            assert!(!holds(no, &tcp), "{no}");
        }
    }

    #[test]
    fn tests_of_ports_and_protocols() {
        let tcp = packet(6, |packet| packet[33] = 0x12);
        let udp = packet(17, |_| ());
        for both in [
            "src port 80",
            "src port www",
            "port 8000",
            "dst port > 1023",
            "port 80 or 81",
            "src port 81 or 80",
            "dst port 1 or 2 or 8000",
            "port >= 80",
            "dst port <= 8000",
            "dst port < 8001",
            "src port & 0xF0 == 0x50",
            "tcpudp",
            "src port != 81",
        ] {
            assert!(holds(both, &tcp) && holds(both, &udp), "{both}");
        }
        for tcp_only in [
            "tcp",
            "ip proto tcp",
            "ip proto 6",
            "proto 6",
            "tcp port 80",
            "tcp opt syn",
            "syn",
            "tcp opt ack",
            "syn && ack",
            "tcp opt syn ack",
            "tcp src port www",
            "proto != 17",
            "src tcp port != 5",
        ] {
            assert!(holds(tcp_only, &tcp) && !holds(tcp_only, &udp), "{tcp_only}");
        }
        for neither in [
            "src port 8000",
            "dst port > 8000",
            "dst port < 8000",
            "port 81",
            "tcp opt fin",
            "icmp type echo",
            "src port ssh",
            "src port != 80",
        ] {
            assert!(!holds(neither, &tcp) && !holds(neither, &udp), "{neither}");
        }
        // Click's way with both ends and an order.
        assert!(holds("src and dst port < 81", &tcp) && !holds("port < 81", &tcp));
        assert!(!holds("src and dst port >= 81", &tcp) && holds("port >= 81", &tcp));
        assert!(holds("proto 6 and www", &tcp) && !holds("(proto 6 or www) and not tcp", &udp));
        let icmp = packet(1, |packet| packet[20] = 8);
        assert!(
            holds("icmp type echo", &icmp)
                && holds("icmp", &icmp)
                && holds("icmp type 8", &icmp)
                && holds("not port 5", &icmp)
        );
        assert!(
            !holds("icmp type echo-reply", &icmp)
                && !holds("port != 5", &icmp)
                && !holds("icmp type != 8", &icmp)
        );
        assert!(holds(
            "dst port control",
            &packet(6, |packet| packet[22..24].copy_from_slice(&7777u16.to_be_bytes()))
        ));
    }

    #[test]
    fn tests_of_fields() {
        let plain = packet(17, |packet| {
            packet[1] = 0xb9;
            packet[2..4].copy_from_slice(&[0, 40]);
        });
        for yes in [
            "ip tos 0xb9",
            "ip dscp 46",
            "dscp 46",
            "ip ttl 64",
            "ttl > 63",
            "ip len 40",
            "ip vers 4",
            "ip hl 5",
            "ip id 0",
            "unfrag",
            "ip unfrag",
            "ip ect",
            "not ce",
            "ip[8] 64",
            "ip[12:4] = 0x0a000001",
            "udp[0:2] == 80",
            "transp[2:2] 8000",
            "ip ttl & 0x40 == 0x40",
            "ip[0] & 0xf0 == 0x40",
        ] {
            assert!(holds(yes, &plain), "{yes}");
        }
        for no in ["frag", "ip tos 0", "ip ttl < 64", "tcp[0:2] == 80", "ip ce", "ip ttl != 64"] {
            assert!(!holds(no, &plain), "{no}");
        }
        let fragment = packet(17, |packet| packet[7] = 1);
        assert!(
            holds("frag", &fragment) && !holds("src port 80", &fragment) && holds("udp", &fragment)
        );
        let first = packet(17, |packet| packet[6] = 0x20);
        assert!(holds("ip frag", &first) && holds("src port 80", &first));
        let options = packet(6, |packet| {
            packet[0] = 0x46;
            packet[24..26].copy_from_slice(&[0, 22]);
        });
        assert!(holds("tcp src port ssh", &options));
        assert!(!holds("tcp src port ssh", &options[..25]));
    }

    #[test]
    fn expressions() {
        let tcp = packet(6, |_| ());
        for yes in [
            "tcp and src port 80 or udp",
            "udp or (tcp and (src port 80))",
            "!(udp or icmp)",
            "not not tcp",
            "tcp ? src port 80 : false",
            "udp ? false : tcp",
            "udp ? false : icmp ? false : true",
            "tcp src port 80 dst port 8000",
            "\"tcp\"",
        ] {
            assert!(holds(yes, &tcp), "{yes}");
        }
        assert!(!holds("tcp and (udp or icmp)", &tcp));
    }

    #[test]
    fn filters_have_actions() {
        let filter = |arguments: &str, packet: &[u8]| {
            with_scope(|scope| {
                IpClassifier::filter(&text::split_arguments(arguments), scope)
                    .unwrap()
                    .output(packet)
            })
        };
        let (tcp, udp) = (packet(6, |_| ()), packet(17, |_| ()));
        assert_eq!(filter("deny udp, allow all", &tcp), Some(0));
        assert_eq!(filter("deny udp, allow all", &udp), None);
        assert_eq!(filter("2 tcp, 1 udp", &tcp), Some(2));
        assert_eq!(filter("2 tcp, 1 udp", &udp), Some(1));
        assert_eq!(filter("drop tcp, 3", &tcp), None);
        assert_eq!(filter("drop tcp, 3", &udp), Some(3));
        assert_eq!(filter("drop tcp", &udp), None);
    }

    #[test]
    fn wrong_patterns_are_errors() {
        for (pattern, expected) in [
            ("src port", "value missing"),
            ("tcp and", "found the end; expected a test"),
            ("(tcp", "expected `)`"),
            ("tcp ? udp", "expected `:`"),
            ("tcp )", "found \")\""),
            ("host 1.2.3", "`host`: value missing"),
            ("src port 80000", "from 0 to 65535"),
            ("icmp port 80", "protocol"),
            ("proto 300", "from 0 to 255"),
            ("quux", "\"quux\""),
            ("80", "what 80 is"),
            ("echo", "ambiguous"),
            ("ip[3:2] 5", "four bytes"),
            ("ip[0:5] 5", "1 to 4 bytes"),
            ("src host > 10.0.0.1", "operator"),
        ] {
            assert!(error(pattern).contains(expected), "{pattern}: {}", error(pattern));
        }
        assert!(error(&"(".repeat(1000)).contains("nested more than 64 deep"));
        with_scope(|scope| {
            let error = IpClassifier::filter(&["permit tcp".to_owned()], scope).unwrap_err();
            assert!(error.contains("action \"permit\"; expected allow, deny, drop or an output"));
        });
    }

    fn pattern() -> impl Strategy<Value = String> {
        let test = prop::sample::select(vec![
            "tcp",
            "udp",
            "icmp type echo",
            "src port 80",
            "dst port > 1",
            "port < 3",
            "src host 1.0.0.0",
            "dst net 1/8",
            "host != 0.0.0.1",
            "ip frag",
            "ip ttl <= 1",
            "syn",
            "ip[1:2] & 0x101 == 1",
            "src or dst port != 1",
            "src and dst host != 1.0.0.0",
            "tcp[13] & 3 > 1",
            "true",
            "false",
        ]);
        let leaf = test.prop_map(str::to_owned);
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) and ({b})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) or ({b})")),
                inner.clone().prop_map(|a| format!("not ({a})")),
                (inner.clone(), inner.clone(), inner)
                    .prop_map(|(a, b, c)| format!("({a}) ? ({b}) : ({c})")),
            ]
        })
    }

    proptest! {
        #[test]
        fn programs_agree_with_the_reference(
            patterns in prop::collection::vec(pattern(), 1..4),
            packet in prop::collection::vec(prop::sample::select(vec![0u8, 1, 6, 17, 80, 8]), 0..44),
        ) {
            let mut packet = packet;
            packet.iter_mut().take(1).for_each(|byte| *byte = 0x45);
            with_scope(|scope| {
                let rules: Vec<_> = patterns.iter().zip(0u32..).map(|(text, n)| (rule(text, n, scope).unwrap(), Some(n))).collect();
                let expected = reference(&rules, &layers(&[], &packet)).map(|output| output as usize);
                let classifier = IpClassifier::classifier(&patterns, scope).unwrap();
                prop_assert_eq!(classifier.output(&packet), expected);
                Ok(())
            })?;
        }

        #[test]
        fn no_pattern_is_too_odd(
            pattern in "((src|dst|host|port|tcp|and|or|not|!|\\(|\\)|\\?|:|&|\\[|\\]|=|<|>=|10\\.0\\.0\\.1|10/8|mask|80|ip|ether|opt|syn|ttl|é) ?){0,12}"
        ) {
            with_scope(|scope| {
                let _ = IpClassifier::classifier(std::slice::from_ref(&pattern), scope);
                let _ = IpClassifier::filter(std::slice::from_ref(&pattern), scope);
            });
        }
    }
}
