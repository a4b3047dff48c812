//! Tests of packet expressions: `src tcp port >= 1024`.
//!
//! What a test leaves out follows, in this order, from its value (an address, a port's name), from the test before it,
//! and from Click's rules: `port` means TCP or UDP, no `src` or `dst` means either.

use std::net::Ipv4Addr;

use crate::decision::{Base, Expr, Test};
use crate::ip::Parse;
use crate::kinds;
use crate::names::Scope;

type Result<T> = std::result::Result<T, String>;

/// Ends of a packet that a test is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sides {
    Src,
    Dst,
    Either,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Number(u8),
    TcpOrUdp,
    /// Any, behind the network header.
    Any,
}

const TCP: Protocol = Protocol::Number(6);
const UDP: Protocol = Protocol::Number(17);
const ICMP: Protocol = Protocol::Number(1);
const DCCP: Protocol = Protocol::Number(33);

/// Bits of a header.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Field {
    /// Protocol of a field of the transport header.
    transport: Option<Protocol>,
    offset: usize,
    bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Host,
    Net,
    Ether,
    Protocol,
    Port,
    TcpOption,
    Fragment,
    NoFragment,
    Capable,
    Congested,
    Field(Field),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Number(u32),
    /// Of a name that fits one kind only.
    Named(Kind, u32),
    Host(Ipv4Addr),
    Net(kinds::Prefix4),
    Ether([u8; 6]),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Equal,
    Greater,
    Less,
}

/// A test as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Primitive {
    kind: Option<Kind>,
    sides: Option<Sides>,
    protocol: Option<Protocol>,
    header: Option<Header>,
    mask: Option<Value>,
    op: Option<(Op, bool)>,
    value: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Header {
    Ip,
    Ether,
}

const fn field(offset: usize, bits: u32) -> Kind {
    Kind::Field(Field { transport: None, offset, bits })
}

const ICMP_TYPE: Kind = Kind::Field(Field { transport: Some(ICMP), offset: 0, bits: 8 });
const TCP_WINDOW: Kind = Kind::Field(Field { transport: Some(TCP), offset: 112, bits: 16 });

const KINDS: &[(&str, Kind)] = &[
    ("ce", Kind::Congested),
    ("dscp", field(8, 6)),
    ("ect", Kind::Capable),
    ("frag", Kind::Fragment),
    ("hl", field(4, 4)),
    ("host", Kind::Host),
    ("id", field(32, 16)),
    ("len", field(16, 16)),
    ("net", Kind::Net),
    ("opt", Kind::TcpOption),
    ("port", Kind::Port),
    ("proto", Kind::Protocol),
    ("tos", field(8, 8)),
    ("ttl", field(64, 8)),
    ("type", ICMP_TYPE),
    ("unfrag", Kind::NoFragment),
    ("vers", field(0, 4)),
    ("win", TCP_WINDOW),
];

const PROTOCOLS: &[(&str, Protocol)] = &[
    ("dccp", DCCP),
    ("gre", Protocol::Number(47)),
    ("icmp", ICMP),
    ("igmp", Protocol::Number(2)),
    ("ipip", Protocol::Number(4)),
    ("sctp", Protocol::Number(132)),
    ("tcp", TCP),
    ("tcpudp", Protocol::TcpOrUdp),
    ("transp", Protocol::Any),
    ("udp", UDP),
];

const TCP_OPTIONS: &[(&str, u32)] =
    &[("ack", 16), ("fin", 1), ("psh", 8), ("rst", 4), ("syn", 2), ("urg", 32)];

const ICMP_TYPES: &[(&str, u32)] = &[
    ("echo", 8),
    ("echo-reply", 0),
    ("inforeq", 15),
    ("inforeq-reply", 16),
    ("maskreq", 17),
    ("maskreq-reply", 18),
    ("parameterproblem", 12),
    ("redirect", 5),
    ("routeradvert", 9),
    ("routersolicit", 10),
    ("sourcequench", 4),
    ("timeexceeded", 11),
    ("timestamp", 13),
    ("timestamp-reply", 14),
    ("unreachable", 3),
];

fn known<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
}

/// Reads a test, and returns it with what is filled in, for the test behind it.
pub(crate) fn read(
    parse: &mut Parse,
    scope: &Scope,
    last: &Primitive,
    negated: &mut bool,
) -> Result<(Primitive, Expr)> {
    let mut test = Primitive::default();
    let first = parse.peek();
    let qualified = qualifiers(parse, &mut test, negated)?;
    let none = Primitive::default();
    let last = if qualified { &none } else { last };
    if matches!(last.kind, Some(Kind::Ether)) {
        test.header = Some(Header::Ether);
    }
    if qualified && test.kind.is_none() && parse.peek() == Some("[") {
        test.kind = Some(brackets(parse, test.protocol)?);
    }
    test.mask = mask(parse, scope)?;
    test.op = operator(parse);
    test.value = value(parse, scope, &test)?;
    if test.value.is_none() && test.op.is_some() {
        return Err(format!("found {}; expected a value behind the operator", found(parse)));
    }
    if !qualified && test.value.is_none() {
        return Err(format!(
            "\"{}\" is no test, address, port or protocol",
            first.unwrap_or_default()
        ));
    }
    test.complete(last)?;
    let expr = test.expr()?;
    test.keep_protocol();
    Ok((test, expr))
}

fn found(parse: &Parse) -> String {
    parse.peek().map_or("the end".to_owned(), |word| format!("\"{word}\""))
}

/// Reads qualifiers, and returns if there were any.
fn qualifiers(parse: &mut Parse, test: &mut Primitive, negated: &mut bool) -> Result<bool> {
    let mut any = false;
    while let Some(word) = parse.peek() {
        if let Some(kind) = known(KINDS, word) {
            set(&mut test.kind, kind, "kind of test")?;
            if let Kind::Field(Field { transport: Some(protocol), .. }) = kind {
                set(&mut test.protocol, protocol, "protocol")?;
            }
        } else if let Some(sides) = parse.sides() {
            set(&mut test.sides, sides, "`src` or `dst`")?;
            any = true;
            continue;
        } else if let Some(protocol) =
            known(PROTOCOLS, word).filter(|_| test.kind != Some(Kind::Protocol))
        {
            set(&mut test.protocol, protocol, "protocol")?;
        } else if matches!(word, "ip" | "ether") && test.header.is_none() {
            test.header = Some(if word == "ip" { Header::Ip } else { Header::Ether });
        } else if matches!(word, "not" | "!") {
            *negated = !*negated;
        } else {
            break;
        }
        any = true;
        parse.skip(1);
    }
    Ok(any)
}

fn set<T: PartialEq>(place: &mut Option<T>, value: T, what: &str) -> Result<()> {
    match place {
        Some(known) if *known != value => Err(format!("{what} given twice")),
        _ => {
            *place = Some(value);
            Ok(())
        }
    }
}

/// `[POS]`, `[POS:LEN]`, `[POS,LAST]`
fn brackets(parse: &mut Parse, transport: Option<Protocol>) -> Result<Kind> {
    let syntax = || "expected `[POS]` or `[POS:LEN]`".to_owned();
    let mut inside = String::new();
    parse.skip(1);
    loop {
        let word = parse.peek().ok_or_else(syntax)?;
        parse.skip(1);
        if word == "]" {
            break;
        }
        inside.push_str(word);
    }
    let number = |text: &str| text.parse::<usize>().map_err(|_| syntax());
    let (offset, length) = if let Some((offset, length)) = inside.split_once(':') {
        (number(offset)?, number(length)?)
    } else if let Some((first, last)) = inside.split_once(',') {
        (number(first)?, (number(last)? + 1).saturating_sub(number(first)?))
    } else {
        (number(&inside)?, 1)
    };
    if !(1..=4).contains(&length) || offset > 1500 {
        return Err(format!("[{inside}]: fields have 1 to 4 bytes, of the first 1500"));
    }
    if offset / 4 != (offset + length - 1) / 4 {
        return Err(format!("[{inside}]: a field must not cross a boundary of four bytes"));
    }
    Ok(Kind::Field(Field { transport, offset: 8 * offset, bits: 8 * length as u32 }))
}

/// `& MASK`
fn mask(parse: &mut Parse, scope: &Scope) -> Result<Option<Value>> {
    if parse.peek() != Some("&") {
        return Ok(None);
    }
    let word = parse.word(1).unwrap_or_default();
    let number = kinds::integer(1..=u32::MAX)(word, scope).ok().map(Value::Number);
    let host = || kinds::ip4(word, scope).ok().map(Value::Host);
    let ether = || kinds::ether(word, scope).ok().map(Value::Ether);
    let mask = number.or_else(host).or_else(ether);
    let mask = mask.ok_or_else(|| format!("found \"{word}\"; expected a mask other than zero"))?;
    parse.skip(2);
    Ok(Some(mask))
}

fn operator(parse: &mut Parse) -> Option<(Op, bool)> {
    let op = match parse.peek()? {
        "=" | "==" => (Op::Equal, false),
        "!=" => (Op::Equal, true),
        ">" => (Op::Greater, false),
        "<" => (Op::Less, false),
        ">=" => (Op::Less, true),
        "<=" => (Op::Greater, true),
        _ => return None,
    };
    parse.skip(1);
    Some(op)
}

fn value(parse: &mut Parse, scope: &Scope, test: &Primitive) -> Result<Option<Value>> {
    let Some(word) = parse.peek() else { return Ok(None) };
    if let Some(value) = named(word, scope, test)? {
        parse.skip(1);
        return Ok(Some(value));
    }
    if let Ok(number) = kinds::integer(0..=u32::MAX)(word, scope) {
        parse.skip(1);
        return Ok(Some(Value::Number(number)));
    }
    let ip = test.header != Some(Header::Ether);
    let net = test.kind == Some(Kind::Net);
    let value = address(parse, scope, word, net).filter(|_| ip).or_else(|| {
        let ether = kinds::ether(word, scope).ok().filter(|_| test.header != Some(Header::Ip));
        ether.map(|ether| (1, Value::Ether(ether)))
    });
    let Some((words, value)) = value else { return Ok(None) };
    parse.skip(words);
    Ok(Some(value))
}

/// An address, with a mask or without, and its number of words.
fn address(parse: &Parse, scope: &Scope, word: &str, as_net: bool) -> Option<(usize, Value)> {
    let host = kinds::ip4(word, scope).ok();
    let net = kinds::prefix4(word, scope).ok();
    if let (Some(address), Some("mask"), Some(mask)) = (host, parse.word(1), parse.word(2)) {
        let mask = kinds::ip4(mask, scope).ok()?;
        return Some((3, Value::Net(kinds::Prefix4 { address, mask })));
    }
    let (host, net) = (host.map(Value::Host), net.map(Value::Net));
    // A name may be both.
    let value = if as_net { net.or(host) } else { host.or(net) };
    value.map(|value| (1, value))
}

/// The value of a name that fits what the test is about.
fn named(word: &str, scope: &Scope, test: &Primitive) -> Result<Option<Value>> {
    let protocol =
        |allowed: &[Protocol]| test.protocol.is_none_or(|known| allowed.contains(&known));
    let kind = |kind: Kind| test.kind.is_none_or(|known| known == kind);
    let number = |protocol: Protocol| match protocol {
        Protocol::Number(number) => u32::from(number),
        Protocol::TcpOrUdp => 256,
        Protocol::Any => 257,
    };
    let all = [
        (Kind::Protocol, known(PROTOCOLS, word).map(number), true),
        (Kind::Port, scope.port(word).map(u32::from), protocol(&[TCP, UDP, Protocol::TcpOrUdp])),
        (Kind::TcpOption, known(TCP_OPTIONS, word), protocol(&[TCP, Protocol::TcpOrUdp])),
        (ICMP_TYPE, known(ICMP_TYPES, word), protocol(&[ICMP])),
    ];
    let found: Vec<(Kind, u32, bool)> =
        all.into_iter().filter_map(|(kind, value, fits)| Some((kind, value?, fits))).collect();
    let fitting: Vec<&(Kind, u32, bool)> =
        found.iter().filter(|(of, _, fits)| *fits && kind(*of)).collect();
    match fitting[..] {
        [(kind, value, _)] => Ok(Some(Value::Named(*kind, *value))),
        [] if found.is_empty() => Ok(None),
        _ => {
            let tries: Vec<String> =
                found.iter().map(|(kind, _, _)| format!("`{} {word}`", shown(*kind))).collect();
            let problem = if fitting.is_empty() { "meaningless here" } else { "ambiguous" };
            Err(format!("\"{word}\" is {problem}; try {}", tries.join(" or ")))
        }
    }
}

fn shown(kind: Kind) -> &'static str {
    match kind {
        ICMP_TYPE => "icmp type",
        TCP_WINDOW => "tcp win",
        Kind::TcpOption => "tcp opt",
        kind => KINDS.iter().find(|(_, known)| *known == kind).map_or("field", |(name, _)| name),
    }
}

impl Primitive {
    /// Fills in what has been left out.
    fn complete(&mut self, last: &Primitive) -> Result<()> {
        let implied = if self.kind.is_none() { self.kind_of_value(last)? } else { None };
        let Some(kind) = self.kind.or(implied) else {
            return Err("partial test; expected a value".into());
        };
        self.kind = Some(match (kind, self.header) {
            (Kind::Host | Kind::Net, Some(Header::Ether)) => Kind::Ether,
            (kind, _) => kind,
        });
        let was_implied =
            matches!(kind, Kind::Host | Kind::Net | Kind::Ether | Kind::Port | Kind::TcpOption);
        if was_implied && self.sides.is_none() {
            self.sides = last.sides;
        }
        if kind == Kind::Port && self.protocol.is_none() {
            self.protocol = last.protocol;
        }
        match kind {
            Kind::Port => {
                self.default_protocol(&[TCP, UDP, Protocol::TcpOrUdp, DCCP], Protocol::TcpOrUdp)?
            }
            Kind::TcpOption => self.default_protocol(&[TCP], TCP)?,
            Kind::Field(Field { transport: Some(protocol), .. }) => {
                self.default_protocol(&[protocol], protocol)?
            }
            _ => {}
        }
        Ok(())
    }

    /// `proto 6` is the protocol of the tests behind it, as `tcp` is.
    fn keep_protocol(&mut self) {
        let only = matches!(self.op, None | Some((Op::Equal, false))) && self.mask.is_none();
        if self.kind != Some(Kind::Protocol) {
            return;
        }
        self.protocol = match self.value {
            Some(Value::Number(number) | Value::Named(_, number)) if only => {
                match u8::try_from(number) {
                    Ok(number) => Some(Protocol::Number(number)),
                    Err(_) => Some(if number == 256 { Protocol::TcpOrUdp } else { Protocol::Any }),
                }
            }
            None if only => self.protocol,
            _ => None,
        };
    }

    /// The kind of test that the value, or its absence, tells.
    fn kind_of_value(&self, last: &Primitive) -> Result<Option<Kind>> {
        Ok(match self.value {
            Some(Value::Named(kind, _)) => Some(kind),
            Some(Value::Host(_)) => Some(Kind::Host),
            Some(Value::Net(_)) => Some(Kind::Net),
            Some(Value::Ether(_)) => Some(Kind::Ether),
            Some(Value::Number(number)) => match last.kind {
                Some(kind @ (Kind::Field(_) | Kind::Protocol | Kind::Port)) => Some(kind),
                _ => {
                    return Err(format!(
                        "\"{number}\" does not say what {number} is; expected a field, `port` or `proto` before it"
                    ));
                }
            },
            None => self.protocol.map(|_| Kind::Protocol),
        })
    }

    fn default_protocol(&mut self, allowed: &[Protocol], default: Protocol) -> Result<()> {
        let protocol = *self.protocol.get_or_insert(default);
        if allowed.contains(&protocol) {
            return Ok(());
        }
        Err(format!("`{}` is not a test of this protocol", self.kind.map_or("field", shown)))
    }

    fn expr(&self) -> Result<Expr> {
        let kind = self.kind.ok_or("partial test")?;
        if self.header == Some(Header::Ether) && kind != Kind::Ether {
            return Err(format!(
                "`ether {}` is no test; expected an Ethernet address",
                shown(kind)
            ));
        }
        let test = match kind {
            Kind::Host | Kind::Net => self.host()?,
            Kind::Ether => self.ether()?,
            Kind::Protocol => return self.protocol(),
            Kind::Port => self.port()?,
            Kind::TcpOption => self.tcp_option()?,
            Kind::Fragment => self.fragment(true)?,
            Kind::NoFragment => self.fragment(false)?,
            Kind::Capable => self.capable()?,
            Kind::Congested => self.flag().map(|()| tos(3, 3, false))?,
            Kind::Field(field) => self.field(field)?,
        };
        Ok(self.with_protocol(kind, test))
    }

    /// Adds the tests for the protocol and the first fragment.
    fn with_protocol(&self, kind: Kind, test: Expr) -> Expr {
        let mut all: Vec<Expr> = self.protocol.and_then(is_protocol).into_iter().collect();
        let transport = matches!(
            kind,
            Kind::Port | Kind::TcpOption | Kind::Field(Field { transport: Some(_), .. })
        );
        if transport {
            all.push(Expr::Test(Test::equal(Base::Network, 4, 0x1fff, 0)));
        }
        all.push(test);
        Expr::And(all)
    }

    fn operator(&self) -> (Op, bool) {
        self.op.unwrap_or((Op::Equal, false))
    }

    /// If the test is for `!=`; no other comparison fits.
    fn only_equal(&self) -> Result<bool> {
        match self.operator() {
            (Op::Equal, negated) => Ok(negated),
            _ => Err(format!(
                "`{}` takes the operators == and != only",
                self.kind.map_or("field", shown)
            )),
        }
    }

    fn missing(&self) -> String {
        format!("`{}`: value missing", self.kind.map_or("field", shown))
    }

    /// Nothing but the name of the test.
    fn flag(&self) -> Result<()> {
        if self.value.is_some() || self.mask.is_some() {
            return Err(format!("`{}` takes no value", self.kind.map_or("field", shown)));
        }
        Ok(())
    }

    fn host(&self) -> Result<Expr> {
        let (address, mask) = match self.value {
            Some(Value::Host(address)) if self.kind == Some(Kind::Host) => {
                (address, Ipv4Addr::BROADCAST)
            }
            Some(Value::Net(net)) if self.kind == Some(Kind::Net) => (net.address, net.mask),
            _ => return Err(self.missing()),
        };
        let mask = match self.mask {
            None => mask,
            Some(Value::Host(mask)) => mask,
            Some(_) => return Err("mask of an address; expected an address".into()),
        };
        let negated = self.only_equal()?;
        let test = |offset| {
            let test = Test::equal(Base::Network, offset, mask.to_bits(), address.to_bits());
            Expr::Test(Test { negated, ..test })
        };
        Ok(self.of_sides(test(12), test(16), negated))
    }

    fn ether(&self) -> Result<Expr> {
        let Some(Value::Ether(address)) = self.value else { return Err(self.missing()) };
        let mask = match self.mask {
            None => [0xff; 6],
            Some(Value::Ether(mask)) => mask,
            Some(_) => return Err("mask of an Ethernet address; expected one".into()),
        };
        let negated = self.only_equal()?;
        let test = |offset, mask, address| {
            let test = Test::equal(Base::Mac, offset, mask, address);
            Expr::Test(Test { negated, ..test })
        };
        let ((first, last), (first_mask, last_mask)) = (words_of(address), words_of(mask));
        let side = |offset| {
            let all = vec![test(offset, first_mask, first), test(offset + 4, last_mask, last)];
            joined(all, negated)
        };
        Ok(self.of_sides(side(6), side(0), negated))
    }

    fn protocol(&self) -> Result<Expr> {
        let number = match (self.value, self.protocol) {
            (Some(Value::Number(number) | Value::Named(Kind::Protocol, number)), None) => number,
            (None, Some(Protocol::Number(number))) => u32::from(number),
            (None, Some(protocol)) if self.op.is_none() && self.mask.is_none() => {
                return Ok(is_protocol(protocol).unwrap_or(Expr::Const(true)));
            }
            (Some(_), Some(_)) => return Err("protocol given twice".into()),
            _ => return Err(self.missing()),
        };
        if let (256.., Some(Value::Named(..))) = (number, self.value) {
            let protocol = if number == 256 { Protocol::TcpOrUdp } else { Protocol::Any };
            return match (self.op, self.mask) {
                (None, None) => Ok(is_protocol(protocol).unwrap_or(Expr::Const(true))),
                _ => Err("`tcpudp` and `transp` take no operator and no mask".into()),
            };
        }
        self.compared(number, Base::Network, 72, 8)
    }

    fn port(&self) -> Result<Expr> {
        let (Some(Value::Number(port)) | Some(Value::Named(Kind::Port, port))) = self.value else {
            return Err(self.missing());
        };
        // As in Click, `<` is `not >`, so `src and dst port < 5` is one of both below, and `port < 5` both.
        let (op, negated) = self.operator();
        let negated = negated != (op == Op::Less);
        let src = self.compared(port, Base::Transport, 0, 16)?;
        let dst = self.compared(port, Base::Transport, 16, 16)?;
        Ok(self.of_sides(src, dst, negated))
    }

    fn tcp_option(&self) -> Result<Expr> {
        let (Some(Value::Number(option)) | Some(Value::Named(Kind::TcpOption, option))) =
            self.value
        else {
            return Err(self.missing());
        };
        if self.op.is_some() || self.mask.is_some() || option > 255 {
            return Err(
                "`tcp opt` takes the name of a flag or its bits up to 255, no operator and no mask"
                    .into(),
            );
        }
        Ok(Expr::Test(Test::equal(Base::Transport, 12, option << 16, option << 16)))
    }

    fn fragment(&self, wanted: bool) -> Result<Expr> {
        self.flag()?;
        let test = Test::equal(Base::Network, 4, 0x3fff, 0);
        Ok(Expr::Test(Test { negated: wanted, ..test }))
    }

    fn capable(&self) -> Result<Expr> {
        match self.value {
            None => Ok(tos(3, 0, true)),
            Some(Value::Number(number)) => self.compared(number, Base::Network, 14, 2),
            _ => Err(self.missing()),
        }
    }

    fn field(&self, field: Field) -> Result<Expr> {
        let value = match self.value {
            Some(Value::Number(value)) => value,
            Some(Value::Named(kind, value)) if self.kind == Some(kind) => value,
            _ => return Err(self.missing()),
        };
        let base = if field.transport.is_some() { Base::Transport } else { Base::Network };
        self.compared(value, base, field.offset, field.bits)
    }

    /// Compares bits, which do not cross a boundary of four bytes, with a number.
    fn compared(&self, value: u32, base: Base, first: usize, bits: u32) -> Result<Expr> {
        let full = u32::MAX >> (32 - bits);
        let mask = match self.mask {
            None => full,
            Some(Value::Number(mask)) if mask <= full => mask,
            Some(_) => {
                return Err(format!("mask out of range; expected a number from 1 to {full:#x}"));
            }
        };
        let (op, negated) = self.operator();
        let always = match op {
            Op::Less if value == 0 => Some(negated),
            Op::Less if value > mask => Some(!negated),
            Op::Greater if value >= mask => Some(negated),
            _ => None,
        };
        if let Some(always) = always {
            return Ok(Expr::Const(always));
        }
        if value > full {
            return Err(format!("{value} is out of range; expected a number from 0 to {full}"));
        }
        let (value, negated) =
            if op == Op::Less { (value - 1, !negated) } else { (value, negated) };
        let shift = 32 - bits - (first % 32) as u32;
        let (offset, mask) = (first / 32 * 4, mask << shift);
        // A greater-than holds of whole words as of fields: bits beside the field are masked.
        let greater = op != Op::Equal;
        let value = if greater { value << shift } else { (value << shift) & mask };
        Ok(Expr::Test(Test { base, offset, mask, value, greater, negated }))
    }

    /// Tests of source and destination, joined; a negated test of either is one of both.
    fn of_sides(&self, src: Expr, dst: Expr, negated: bool) -> Expr {
        match self.sides.unwrap_or(Sides::Either) {
            Sides::Src => src,
            Sides::Dst => dst,
            Sides::Both => joined(vec![src, dst], negated),
            Sides::Either => joined(vec![src, dst], !negated),
        }
    }
}

/// An Ethernet address as the values of two tests.
fn words_of([a, b, c, d, e, f]: [u8; 6]) -> (u32, u32) {
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, 0, 0]))
}

fn joined(all: Vec<Expr>, any: bool) -> Expr {
    if any { Expr::Or(all) } else { Expr::And(all) }
}

fn tos(mask: u32, value: u32, negated: bool) -> Expr {
    let test = Test::equal(Base::Network, 0, mask << 16, value << 16);
    Expr::Test(Test { negated, ..test })
}

/// The test for a protocol; `None` if it is any.
fn is_protocol(protocol: Protocol) -> Option<Expr> {
    let test = |number: u32| Expr::Test(Test::equal(Base::Network, 8, 0x00ff_0000, number << 16));
    match protocol {
        Protocol::Number(number) => Some(test(u32::from(number))),
        Protocol::TcpOrUdp => Some(Expr::Or(vec![test(6), test(17)])),
        Protocol::Any => None,
    }
}
