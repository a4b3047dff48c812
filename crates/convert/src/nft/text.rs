//! The grammar of `nft list ruleset`.
//!
//! ```text
//! listing   = { table | "flush" … | END }
//! table     = "table" FAMILY NAME "{" { set | map | chain | other } "}"
//! chain     = "chain" NAME "{" [ "type" KIND "hook" HOOK … "priority" PRIORITY ";" "policy" VERDICT ";" ] { rule END } "}"
//! rule      = { statement } [ "comment" STRING ]
//! statement = verdict | counter | log | limit | reject | update | keys vmap | keys [ "&" mask ] [ OP ] values
//! keys      = key { "." key }
//! ```
//!
//! END is the end of a line or a semicolon. A statement that is not among these takes the rest of its rule with it,
//! except for a verdict at its end: thus a rule is known to decide, and reported as such when it is left out.

use winnow::Parser;
use winnow::combinator::{alt, opt, preceded, repeat, separated};
use winnow::error::ContextError;
use winnow::stream::LocatingSlice;
use winnow::token::{any, one_of, take_till, take_while};

use crate::Unreadable;
use crate::nft::syntax::{
    Chain, Hook, Listing, Op, Pairs, Rule, Set, Statement, Tuple, Values, limit,
};
use crate::rules::{Limit, Origin, Verdict};
use crate::values::number;

type Result<T> = winnow::Result<T, ContextError>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    /// In quotes, which are not part of the text.
    Text,
    Sign,
    /// The end of a line.
    Line,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    kind: Kind,
    text: String,
    /// Position in the input.
    span: (usize, usize),
}

type Tokens<'t> = &'t [Token];

// --- tokens ---------------------------------------------------------------------------------------

fn tokens(input: &str) -> std::result::Result<Vec<Token>, usize> {
    let mut rest = LocatingSlice::new(input);
    let mut all = Vec::new();
    loop {
        let _: &str = take_while(0.., (' ', '\t', '\r'))
            .parse_next(&mut rest)
            .map_err(|_: ContextError| 0usize)?;
        let spanned = token.with_span().parse_next(&mut rest);
        let Ok(((kind, text), span)) = spanned else {
            let left = rest.len();
            return if left == 0 { Ok(all) } else { Err(input.len() - left) };
        };
        if let Some(kind) = kind {
            all.push(Token { kind, text: text.to_owned(), span: (span.start, span.end) });
        }
    }
}

/// Parses a token, and returns its text; `None` for a comment.
fn token<'i>(input: &mut LocatingSlice<&'i str>) -> Result<(Option<Kind>, &'i str)> {
    let word = |c: char| c.is_alphanumeric() || "_-.:/@*+\\$%~".contains(c);
    alt((
        take_while(1.., word).map(|text| (Some(Kind::Word), text)),
        ('"', take_till(0.., '"'), '"').map(|(_, text, _)| (Some(Kind::Text), text)),
        ('#', take_till(0.., '\n')).map(|(_, text)| (None, text)),
        "\n".map(|text| (Some(Kind::Line), text)),
        alt(("==", "!=", "<=", ">=", "<<", ">>")).map(|text| (Some(Kind::Sign), text)),
        one_of(['<', '>', '=', '!', '&', '|', '^', '{', '}', '(', ')', ',', ';'])
            .take()
            .map(|text| (Some(Kind::Sign), text)),
    ))
    .parse_next(input)
}

/// Parses a token that is this word or sign.
fn is<'t>(text: &'static str) -> impl Parser<Tokens<'t>, Token, ContextError> {
    any.verify(move |token: &Token| token.kind != Kind::Text && token.text == text)
}

fn word(input: &mut Tokens<'_>) -> Result<String> {
    let is_value =
        |token: Token| (matches!(token.kind, Kind::Word | Kind::Text)).then_some(token.text);
    any.verify_map(is_value).parse_next(input)
}

fn text(input: &mut Tokens<'_>) -> Result<String> {
    any.verify_map(|token: Token| (token.kind == Kind::Text).then_some(token.text))
        .parse_next(input)
}

fn line_end(input: &mut Tokens<'_>) -> Result<()> {
    let end = |token: &Token| token.kind == Kind::Line || token.text == ";";
    any.verify(end).void().parse_next(input)
}

fn line_ends(input: &mut Tokens<'_>) -> Result<()> {
    repeat(0.., line_end).parse_next(input)
}

fn lines(input: &mut Tokens<'_>) -> Result<()> {
    repeat(0.., any.verify(|token: &Token| token.kind == Kind::Line).void()).parse_next(input)
}

fn number_word(input: &mut Tokens<'_>) -> Result<u64> {
    word.verify_map(|word| number(&word).and_then(|number| u64::try_from(number).ok()))
        .parse_next(input)
}

// --- statements -----------------------------------------------------------------------------------

fn verdict(input: &mut Tokens<'_>) -> Result<Verdict> {
    alt((
        is("accept").value(Verdict::Accept),
        is("drop").value(Verdict::Drop),
        is("return").value(Verdict::Return),
        is("continue").value(Verdict::Continue),
        preceded(is("jump"), word).map(Verdict::Jump),
        preceded(is("goto"), word).map(Verdict::Goto),
        reject,
    ))
    .parse_next(input)
}

fn reject(input: &mut Tokens<'_>) -> Result<Verdict> {
    let icmp = preceded((alt((is("icmpx"), is("icmpv6"), is("icmp"))), opt(is("type"))), word);
    let reset = (is("tcp"), is("reset")).value("tcp reset".to_owned());
    let with = preceded(is("with"), alt((reset, icmp)));
    preceded(is("reject"), opt(with)).map(Verdict::Reject).parse_next(input)
}

fn counter(input: &mut Tokens<'_>) -> Result<Statement> {
    let counts = (is("packets"), word, is("bytes"), word).void();
    let name = (is("name"), word).void();
    (is("counter"), opt(alt((counts, name)))).value(Statement::Counter).parse_next(input)
}

fn log(input: &mut Tokens<'_>) -> Result<Statement> {
    let prefix = preceded(is("prefix"), text).map(Some);
    let flags = (
        is("flags"),
        opt(alt((is("tcp"), is("ip")))),
        separated::<_, _, (), _, _, _, _>(1.., word.void(), is(",")),
    );
    let option = alt((is("level"), is("group"), is("snaplen"), is("queue-threshold")));
    let other = alt(((option, word).void(), flags.void())).value(None);
    let options: Vec<Option<String>> =
        preceded(is("log"), repeat(0.., alt((prefix, other)))).parse_next(input)?;
    Ok(Statement::Log { prefix: options.into_iter().flatten().next() })
}

/// Parses `limit rate [over] 10/second [burst 5 packets]`, `limit rate 100 kbytes/second`.
fn rate(input: &mut Tokens<'_>) -> Result<Limit> {
    let over = opt(is("over"));
    let (over, first) = preceded((is("limit"), is("rate")), (over, word)).parse_next(input)?;
    let (count, unit, per) = match first.split_once('/') {
        Some((count, per)) => (count.to_owned(), "packets".to_owned(), per.to_owned()),
        None => {
            let rate = word.verify_map(|word| {
                word.split_once('/').map(|(unit, per)| (unit.to_owned(), per.to_owned()))
            });
            let (unit, per) = { rate }.parse_next(input)?;
            (first, unit, per)
        }
    };
    let burst = opt(preceded(is("burst"), (number_word, word))).parse_next(input)?;
    let count = number(&count).and_then(|count| u64::try_from(count).ok());
    let burst = burst.as_ref().map(|(burst, unit)| (*burst, unit.as_str()));
    count
        .and_then(|count| limit(count, &unit, &per, burst, over.is_some()))
        .ok_or_else(ContextError::new)
}

const LAYERS: [&str; 11] =
    ["ip", "ip6", "rt", "tcp", "udp", "udplite", "sctp", "dccp", "th", "icmp", "icmpv6"];

/// Keys of `meta` that are written without that word.
const META: [&str; 8] =
    ["iif", "iifname", "oif", "oifname", "l4proto", "nfproto", "iiftype", "oiftype"];

fn key(input: &mut Tokens<'_>) -> Result<String> {
    let layer = word
        .verify(|word: &String| LAYERS.contains(&word.as_str()) || word == "meta" || word == "ct");
    let plain = word.verify(|word: &String| META.contains(&word.as_str()));
    alt((
        plain.map(|name| format!("meta {name}")),
        (layer, word).map(|(layer, field)| format!("{layer} {field}")),
    ))
    .parse_next(input)
}

fn keys(input: &mut Tokens<'_>) -> Result<Vec<String>> {
    separated(1.., key, is(".")).parse_next(input)
}

fn tuple(input: &mut Tokens<'_>) -> Result<Tuple> {
    let value = word.verify(|word: &String| word != "." && word != "set");
    separated(1.., value, is(".")).parse_next(input)
}

/// Skips data beside an element: counters, times, comments.
fn beside(input: &mut Tokens<'_>) -> Result<()> {
    let end =
        |token: &Token| [",", "}", ":"].contains(&token.text.as_str()) && token.kind != Kind::Text;
    repeat(0.., any.verify(move |token: &Token| !end(token)).void()).parse_next(input)
}

fn comma(input: &mut Tokens<'_>) -> Result<()> {
    (lines, is(","), lines).void().parse_next(input)
}

fn elements(input: &mut Tokens<'_>) -> Result<Vec<Tuple>> {
    let element = (tuple, beside).map(|(tuple, ())| tuple);
    let list = separated(0.., element, comma);
    (is("{"), lines, list, lines, opt(is(",")), lines, is("}"))
        .map(|(_, (), list, ..)| list)
        .parse_next(input)
}

fn pairs(input: &mut Tokens<'_>) -> Result<Vec<(Tuple, Verdict)>> {
    let pair = (tuple, beside, is(":"), verdict).map(|(tuple, (), _, verdict)| (tuple, verdict));
    let list = separated(0.., pair, comma);
    (is("{"), lines, list, lines, opt(is(",")), lines, is("}"))
        .map(|(_, (), list, ..)| list)
        .parse_next(input)
}

fn named(input: &mut Tokens<'_>) -> Result<String> {
    word.verify(|word: &String| word.starts_with('@')).parse_next(input)
}

fn vmap(input: &mut Tokens<'_>) -> Result<Statement> {
    let pairs = alt((pairs.map(Pairs::List), named.map(Pairs::Named)));
    (keys, is("vmap"), pairs)
        .map(|(keys, _, pairs)| Statement::Vmap { keys, pairs })
        .parse_next(input)
}

fn update(input: &mut Tokens<'_>) -> Result<Statement> {
    let element = (is("{"), keys, opt(rate), is("}"));
    (alt((is("add"), is("update"))), named, element)
        .map(|(_, _, (_, keys, limit, _))| Statement::Update { keys, limit })
        .parse_next(input)
}

fn flags(input: &mut Tokens<'_>) -> Result<Vec<String>> {
    let sign = || alt((is(","), is("|")));
    alt((
        (is("("), separated(1.., word, sign()), is(")")).map(|(_, flags, _)| flags),
        separated(1.., word, sign()),
    ))
    .parse_next(input)
}

fn op(input: &mut Tokens<'_>) -> Result<Op> {
    alt((
        is("==").value(Op::Eq),
        is("!=").value(Op::Ne),
        is("<=").value(Op::Le),
        is(">=").value(Op::Ge),
        is("<").value(Op::Lt),
        is(">").value(Op::Gt),
        is("!").value(Op::None),
    ))
    .parse_next(input)
}

fn condition(input: &mut Tokens<'_>) -> Result<Statement> {
    let mask = opt(preceded(is("&"), flags));
    let (keys, before, op) = (keys, mask, opt(op)).parse_next(input)?;
    let several = flags.verify(|flags: &Vec<String>| flags.len() > 1);
    let mut values = alt((
        elements.map(Values::Set),
        named.map(Values::Named),
        several.map(Values::Flags),
        tuple.map(Values::One),
    ));
    let values = values.parse_next(input)?;
    let behind = opt(preceded(is("/"), flags)).parse_next(input)?;
    let op = op.unwrap_or(if before.is_some() || behind.is_some() { Op::Eq } else { Op::Implicit });
    Ok(Statement::Match { keys, mask: before.or(behind), op, values })
}

fn peek(input: &Tokens<'_>, text: &str) -> bool {
    input.first().is_some_and(|token| token.text == text)
}

/// Parses `ip dscp set cs1`.
fn mark(input: &mut Tokens<'_>) -> Result<Statement> {
    let key = alt((is("ip").value("ip dscp"), is("ip6").value("ip6 dscp")));
    let (key, _, _, value) = (key, is("dscp"), is("set"), word).parse_next(input)?;
    Ok(Statement::Mark { key: key.to_owned(), value })
}

fn statement(input: &mut Tokens<'_>) -> Result<Statement> {
    alt((
        verdict.map(Statement::Verdict),
        mark,
        counter,
        log,
        rate.map(Statement::Limit),
        update,
        vmap,
        condition,
    ))
    .parse_next(input)
}

/// Statements that are actions, by their first word.
const DOING: [&str; 17] = [
    "masquerade",
    "snat",
    "dnat",
    "redirect",
    "queue",
    "dup",
    "fwd",
    "notrack",
    "synproxy",
    "tproxy",
    "flow",
    "set",
    "delete",
    "add",
    "update",
    "quota",
    "reset",
];

fn statements(mut input: Tokens<'_>) -> (Vec<Statement>, Option<String>) {
    let (mut all, mut comment) = (Vec::new(), None);
    while let Some(first) = input.first() {
        let mut said = preceded(is("comment"), text);
        if let Ok(said) = said.parse_next(&mut { input }) {
            comment = Some(said);
            input = &input[2..];
            continue;
        }
        let mut next = input;
        match statement(&mut next) {
            Ok(found) => {
                all.push(found);
                input = next;
            }
            Err(_) => {
                let (rest, end) = split_end(input);
                let words: Vec<&str> = rest.iter().map(|token| token.text.as_str()).collect();
                let is_done = DOING.contains(&first.text.as_str()) || words.contains(&"set");
                let text = words.join(" ");
                all.push(Statement::Other { text, is_condition: !is_done });
                all.extend(end.map(Statement::Verdict));
                return (all, comment);
            }
        }
    }
    (all, comment)
}

/// Splits off the verdict at the end of a rule; returns the part before it and the verdict.
fn split_end(input: Tokens<'_>) -> (Tokens<'_>, Option<Verdict>) {
    let ends = (1..input.len()).filter_map(|at| {
        let mut rest = &input[at..];
        let found = verdict(&mut rest).ok()?;
        let _ = opt((is("comment"), text)).parse_next(&mut rest);
        rest.is_empty().then_some((at, found))
    });
    match { ends }.next() {
        Some((at, verdict)) => (&input[..at], Some(verdict)),
        None => (input, None),
    }
}

// --- tables ---------------------------------------------------------------------------------------

/// Takes the tokens up to the end of a line outside of braces, or up to a closing brace.
fn one_line<'t>(input: &mut Tokens<'t>) -> Result<Tokens<'t>> {
    let mut depth = 0;
    let mut length = 0;
    for token in input.iter() {
        match (&token.kind, token.text.as_str()) {
            (Kind::Sign, "{") => depth += 1,
            (Kind::Sign, "}") if depth == 0 => break,
            (Kind::Sign, "}") => depth -= 1,
            (Kind::Line, _) | (Kind::Sign, ";") if depth == 0 => break,
            _ => {}
        }
        length += 1;
    }
    let (line, rest) = input.split_at(length);
    *input = rest;
    Ok(line)
}

fn priority(input: &mut Tokens<'_>) -> Result<i64> {
    let first = word.parse_next(input)?;
    let named = match first.as_str() {
        "raw" => Some(-300),
        "mangle" => Some(-150),
        "dstnat" => Some(-100),
        "filter" => Some(0),
        "security" => Some(50),
        "srcnat" => Some(100),
        other => other.parse().ok(),
    };
    let named = named.ok_or_else(ContextError::new)?;
    let more = opt((alt((is("+"), is("-"))), number_word)).parse_next(input)?;
    Ok(match more {
        Some((sign, by)) if sign.text == "-" => named - by as i64,
        Some((_, by)) => named + by as i64,
        None => named,
    })
}

fn hook(input: &mut Tokens<'_>) -> Result<Hook> {
    let device = opt(alt(((is("device"), word).void(), (is("devices"), is("="), elements).void())));
    let (_, kind, _, hook, _, _, priority) =
        (is("type"), word, is("hook"), word, device, is("priority"), priority).parse_next(input)?;
    let policy = preceded((is(";"), is("policy")), word);
    let policy = opt(policy).parse_next(input)?;
    line_ends.parse_next(input)?;
    Ok(Hook { kind, hook, priority, accepts: policy.is_none_or(|policy| policy == "accept") })
}

struct Reader<'i> {
    input: &'i str,
}

impl Reader<'_> {
    fn place(&self, token: &Token) -> String {
        let line = self.input[..token.span.0].bytes().filter(|byte| *byte == b'\n').count() + 1;
        format!("line {line}")
    }

    fn origin(&self, tokens: Tokens<'_>) -> Origin {
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
            return Origin::default();
        };
        let text = &self.input[first.span.0..last.span.1];
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Origin { place: self.place(first), text }
    }

    fn chain(&self, input: &mut Tokens<'_>) -> Result<Chain> {
        let head = *input;
        let (_, name, _, ()) = (is("chain"), word, is("{"), line_ends).parse_next(input)?;
        let mut chain = Chain { name, origin: self.origin(&head[..2]), ..Chain::default() };
        loop {
            line_ends.parse_next(input)?;
            if opt(is("}")).parse_next(input)?.is_some() {
                return Ok(chain);
            }
            if let Ok(found) = hook(&mut { *input }) {
                hook(input)?;
                chain.hook = Some(found);
                continue;
            }
            let line = one_line(input)?;
            if line.is_empty() {
                return Err(ContextError::new());
            }
            // `comment "…"` and `flags …` of the chain itself.
            let is_own =
                matches!(line, [first, _] if first.text == "comment") || line[0].text == "flags";
            if !is_own {
                let (statements, comment) = statements(line);
                chain.rules.push(Rule { origin: self.origin(line), statements, comment });
            }
        }
    }

    fn set(input: &mut Tokens<'_>) -> Result<(String, Set)> {
        let (_, name, _) = (alt((is("set"), is("map"))), word, is("{")).parse_next(input)?;
        let mut set = Set::default();
        loop {
            line_ends.parse_next(input)?;
            if opt(is("}")).parse_next(input)?.is_some() {
                return Ok((name, set));
            }
            let mut line = one_line(input)?;
            let Some(first) = line.first() else { return Err(ContextError::new()) };
            match first.text.as_str() {
                "timeout" => set.is_dynamic = true,
                "flags" => {
                    set.is_dynamic |= line
                        .iter()
                        .any(|token| ["dynamic", "timeout"].contains(&token.text.as_str()));
                }
                "elements" => {
                    line = line.get(2..).unwrap_or_default();
                    match elements(&mut { line }) {
                        Ok(found) if !line.iter().any(|token| token.text == ":") => {
                            set.elements = found;
                        }
                        _ => set.verdicts = pairs(&mut line)?,
                    }
                }
                _ => {}
            }
        }
    }

    /// Skips an object that rules name: a counter, a flowtable, ….
    fn object(input: &mut Tokens<'_>) -> Result<()> {
        let before = input.len();
        one_line(input)?;
        if input.len() == before { Err(ContextError::new()) } else { Ok(()) }
    }

    fn table(&self, listing: &mut Listing, input: &mut Tokens<'_>) -> Result<()> {
        let (_, family, table, _) = (is("table"), word, word, is("{")).parse_next(input)?;
        loop {
            line_ends.parse_next(input)?;
            if opt(is("}")).parse_next(input)?.is_some() {
                return Ok(());
            }
            if peek(input, "chain") {
                let chain = self.chain(input)?;
                listing.chains.push(Chain {
                    family: family.clone(),
                    table: table.clone(),
                    ..chain
                });
            } else if let Ok((name, set)) = Self::set(&mut { *input }) {
                Self::set(input)?;
                listing.sets.insert((family.clone(), table.clone(), name), set);
            } else {
                Self::object(input)?;
            }
        }
    }
}

pub fn read(input: &str) -> std::result::Result<Listing, Unreadable> {
    let reader = Reader { input };
    let wrong = |at: usize| {
        let line = input[..at.min(input.len())].bytes().filter(|byte| *byte == b'\n').count() + 1;
        Unreadable(format!(
            "line {line}: not what `nft list ruleset` prints; load the file and convert that listing"
        ))
    };
    let tokens = tokens(input).map_err(wrong)?;
    let mut rest = &tokens[..];
    let mut listing = Listing::default();
    loop {
        let at = |rest: Tokens<'_>| rest.first().map_or(input.len(), |token| token.span.0);
        line_ends(&mut rest).map_err(|_| wrong(at(rest)))?;
        if rest.is_empty() {
            return Ok(listing);
        }
        if peek(&rest, "flush") {
            one_line(&mut rest).map_err(|_| wrong(at(rest)))?;
        } else {
            reader.table(&mut listing, &mut rest).map_err(|_| wrong(at(rest)))?;
        }
    }
}
