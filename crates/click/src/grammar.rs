//! The grammar of Click configurations.
//!
//! ```text
//! file       = { statement }
//! statement  = chain | class | "require" config [ ";" ] | "provide" config | "define" config | ";"
//! class      = "elementclass" NAME ( NAME | compound )
//! chain      = members { ( "->" | "=>" ) members } [ ";" ]
//! members    = member { "," member }
//! member     = [ ports ] ( NAME | compound | "(" { statement } ")" | nothing )
//!              [ "::" ( NAME | compound ) ] [ config ] [ ports ]
//! ports      = "[" [ port { "," port } ] [ "," ] "]"            port = NUMBER [ "-" NUMBER ]
//! compound   = "{" variant { "||" variant } [ "||" "..." ] "}"
//! variant    = [ parameter { "," parameter } ] [ "|" ] { statement }
//! parameter  = [ NAME ] "$" NAME
//! config     = "(" text ")"
//! ```
//!
//! *Nothing* is the pseudoelement `input` before the first arrow and `output` after the last, inside of braces or
//! parentheses only. The library is winnow, which the workspace has already: its parsers are functions, which the
//! language needs, since "(" is a group in one place and the start of free text in the next, and its errors are a
//! type of ours. After an error the parser continues behind the statement, to report further ones.

use std::fmt;
use std::sync::Arc;

use winnow::Parser;
use winnow::combinator::{alt, opt, preceded};
use winnow::error::ParserError;
use winnow::stream::{LocatingSlice, Location, Stateful, Stream};
use winnow::token::{rest, take, take_while};

use crate::error::Errors;
use crate::source::{Directive, Source};
use crate::syntax::{
    Arrow, Ast, Chain, Class, Config, Link, Member, Parameter, PortList, Statement, Subject,
    Variant,
};
use crate::text;

/// Bytes of a configuration.
pub const LONGEST: usize = 1 << 20;
/// Braces and parentheses inside of each other.
const DEEPEST: usize = 48;
/// Highest number of a port.
const HIGHEST_PORT: usize = 4095;
/// Ports in all lists.
const MOST_PORTS: usize = 1 << 19;
/// Parameters of a compound element.
const MOST_PARAMETERS: usize = 256;
/// Errors that are reported at once.
const MOST_ERRORS: usize = 20;

type Input<'i> = Stateful<LocatingSlice<&'i str>, State<'i>>;
type Result<T> = winnow::Result<T, Fault>;

/// A syntax error.
#[derive(Debug)]
struct Fault {
    at: usize,
    message: String,
}

#[derive(Debug)]
struct State<'i> {
    text: &'i str,
    faults: Vec<Fault>,
    directives: Vec<Directive>,
    /// Open braces and parentheses.
    depth: usize,
    /// Ports in all lists so far.
    ports: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'i> {
    Word(&'i str),
    Variable(&'i str),
    Sign(&'i str),
    End,
}

/// Parses a configuration; `name` is its file's.
pub fn parse(name: &str, text: &str) -> std::result::Result<Ast, Errors> {
    if text.len() > LONGEST {
        let message = format!("configuration of {} bytes; at most {LONGEST} are read", text.len());
        return Err(Source::new(name, "", Vec::new()).error(0, message).into());
    }
    let state = State { text, faults: Vec::new(), directives: Vec::new(), depth: 0, ports: 0 };
    let mut input = Stateful { input: LocatingSlice::new(text), state };
    let statements = statements(&mut input, Token::End);
    let State { faults, directives, .. } = input.state;
    let source = Source::new(name, text, directives);
    let errors = faults.iter().map(|fault| source.error(fault.at, &fault.message)).collect();
    Errors::check(errors)?;
    Ok(Ast { source, statements })
}

impl<'i> ParserError<Input<'i>> for Fault {
    type Inner = Fault;

    fn from_input(input: &Input<'i>) -> Fault {
        Fault { at: input.current_token_start(), message: "syntax error".into() }
    }

    fn into_inner(self) -> std::result::Result<Fault, Fault> {
        Ok(self)
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(text) | Token::Sign(text) => write!(f, "`{text}`"),
            Token::Variable(name) => write!(f, "`${name}`"),
            Token::End => write!(f, "the end"),
        }
    }
}

// --- tokens ---------------------------------------------------------------------------------------

/// Skips spaces, comments and line directives.
fn space(input: &mut Input<'_>) -> Result<()> {
    loop {
        let at = input.current_token_start();
        let bytes = input.state.text.as_bytes();
        let end = text::skip_space(bytes, at);
        let _ = take(chars(input, at, end)).parse_next(input)?;
        if bytes.get(end) != Some(&b'#') || !at_line_start(bytes, end) {
            return Ok(());
        }
        line_directive(input)?;
    }
}

/// Characters between two positions, in which `take` counts.
fn chars(input: &Input<'_>, start: usize, end: usize) -> usize {
    input.state.text[start..end].chars().count()
}

fn at_line_start(text: &[u8], at: usize) -> bool {
    at == 0 || matches!(text[at - 1], b'\n' | b'\r')
}

/// `# 10 "file"`, `#line 10 "file"`; a first line with `#!` is for the shell.
fn line_directive(input: &mut Input<'_>) -> Result<()> {
    let at = input.current_token_start();
    let length = text::line_length(&input.state.text.as_bytes()[at..]);
    let line = take(chars(input, at, at + length)).parse_next(input)?;
    let directive = directive(at, line);
    let known = input.state.directives.last().is_some_and(|last| last.at >= at);
    match directive {
        _ if known || at == 0 && line.starts_with("#!") => {}
        Some(directive) => input.state.directives.push(directive),
        None => {
            let message = "unknown directive; expected `# LINE \"FILE\"`, or `//` for a comment";
            note(input, Fault { at, message: message.into() });
        }
    }
    Ok(())
}

fn directive(at: usize, line: &str) -> Option<Directive> {
    let line = line.trim_start_matches('#').trim_start_matches([' ', '\t']);
    let line = line.strip_prefix("line").unwrap_or(line).trim_start_matches([' ', '\t']);
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = line[..digits].parse().ok()?;
    let name = line[digits..].trim_start_matches([' ', '\t']).strip_prefix('"');
    let file = name.map(|name| name.split('"').next().unwrap_or_default().trim_end());
    Some(Directive { at, line: number, file: file.map(Arc::from) })
}

/// A name, which may have slashes between its parts, or a number.
fn word<'i>(input: &mut Input<'i>) -> Result<&'i str> {
    let part = || take_while(1.., is_word);
    let more = winnow::combinator::repeat::<_, _, (), _, _>(0.., ('/', part()));
    (part(), more).take().parse_next(input)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '@'
}

fn variable<'i>(input: &mut Input<'i>) -> Result<&'i str> {
    preceded('$', take_while(1.., |c: char| c.is_ascii_alphanumeric() || c == '_'))
        .parse_next(input)
}

fn token<'i>(input: &mut Input<'i>) -> Result<Token<'i>> {
    if input.input.is_empty() {
        return Ok(Token::End);
    }
    let sign = alt(("->", "=>", "::", "||", "...", take(1usize)));
    alt((word.map(Token::Word), variable.map(Token::Variable), sign.map(Token::Sign)))
        .parse_next(input)
}

/// Takes the next token.
fn next<'i>(input: &mut Input<'i>) -> Result<Token<'i>> {
    preceded(space, token).parse_next(input)
}

/// The next token, which stays, and its position.
fn peek<'i>(input: &mut Input<'i>) -> Result<(usize, Token<'i>)> {
    space(input)?;
    let start = input.checkpoint();
    let at = input.current_token_start();
    let token = token(input)?;
    input.reset(&start);
    Ok((at, token))
}

/// Takes a sign if it is next.
fn accept(input: &mut Input<'_>, sign: &'static str) -> Result<bool> {
    let next_is = peek(input)?.1 == Token::Sign(sign);
    if next_is {
        next(input)?;
    }
    Ok(next_is)
}

fn expect(input: &mut Input<'_>, sign: &'static str) -> Result<()> {
    if accept(input, sign)? { Ok(()) } else { Err(unexpected(input, &format!("`{sign}`"))) }
}

fn unexpected(input: &mut Input<'_>, expected: &str) -> Fault {
    match peek(input) {
        Ok((at, found)) => Fault { at, message: format!("found {found}; expected {expected}") },
        Err(fault) => fault,
    }
}

fn note(input: &mut Input<'_>, fault: Fault) {
    let known = input.state.faults.iter().any(|known| known.at == fault.at);
    if input.state.faults.len() < MOST_ERRORS && !known {
        input.state.faults.push(fault);
    }
}

// --- statements -----------------------------------------------------------------------------------

/// Statements up to a closing token, which stays.
fn statements(input: &mut Input<'_>, close: Token<'static>) -> Vec<Statement> {
    let mut all = Vec::new();
    loop {
        match statement(input, close) {
            Ok(Step::Statement(statement)) => all.push(*statement),
            Ok(Step::Nothing) => {}
            Ok(Step::Closed) => return all,
            Err(fault) => {
                note(input, fault);
                // A closing bracket of another kind ends these statements too: their own is missing.
                if !matches!(skip_statement(input), Ok(After::Statement)) && !closes(input, close) {
                    return all;
                }
            }
        }
    }
}

enum Step {
    Statement(Box<Statement>),
    Nothing,
    Closed,
}

fn statement(input: &mut Input<'_>, close: Token<'static>) -> Result<Step> {
    let (at, found) = peek(input)?;
    let statement = match found {
        _ if closes(input, close) => return Ok(Step::Closed),
        Token::End => {
            let missing = format!("found the end; expected {close}");
            note(input, Fault { at, message: missing });
            return Ok(Step::Closed);
        }
        Token::Sign(";") => {
            next(input)?;
            return Ok(Step::Nothing);
        }
        Token::Word("elementclass") => class_declaration(input)?,
        Token::Word("require") => Statement::Require(keyword_config(input)?),
        Token::Word("define") => Statement::Define(keyword_config(input)?),
        Token::Word("provide") => {
            keyword_config(input)?;
            return Ok(Step::Nothing);
        }
        _ => Statement::Chain(chain(input)?),
    };
    Ok(Step::Statement(Box::new(statement)))
}

/// If the next token ends statements with this closing token.
fn closes(input: &mut Input<'_>, close: Token<'static>) -> bool {
    let found = peek(input).map(|(_, found)| found);
    found.is_ok_and(|found| {
        found == close || found == Token::Sign("||") && close == Token::Sign("}")
    })
}

/// Where a wrong statement has been left.
enum After {
    Statement,
    /// Before a closing bracket or the end.
    Bracket,
}

/// Skips to the end of a wrong statement: behind its `;`, or before a closing bracket.
fn skip_statement(input: &mut Input<'_>) -> Result<After> {
    let mut open = 0usize;
    let mut first = true;
    loop {
        let closes = peek(input)?.1;
        match closes {
            Token::End => return Ok(After::Bracket),
            Token::Sign("}" | ")" | "||") if open == 0 && input.state.depth > 0 => {
                return Ok(After::Bracket);
            }
            Token::Word("elementclass" | "require" | "define") if open == 0 && !first => {
                return Ok(After::Statement);
            }
            _ => {}
        }
        let alone = std::mem::take(&mut first) && matches!(closes, Token::Sign("}" | ")" | "||"));
        match next(input)? {
            _ if alone => return Ok(After::Statement),
            Token::Sign(";") if open == 0 => return Ok(After::Statement),
            Token::Sign("(") => {
                if let Err(fault) = config_text(input) {
                    note(input, fault);
                }
            }
            Token::Sign("{") => open += 1,
            Token::Sign("}") => open = open.saturating_sub(1),
            _ => {}
        }
    }
}

/// `require(…)`, `define(…)`
fn keyword_config(input: &mut Input<'_>) -> Result<Config> {
    next(input)?;
    expect(input, "(")?;
    config(input)
}

fn class_declaration(input: &mut Input<'_>) -> Result<Statement> {
    next(input)?;
    let (at, found) = peek(input)?;
    let Token::Word(name) = found else {
        return Err(unexpected(input, "the name of the class"));
    };
    next(input)?;
    let class = class(input, "`{` or the name of a class")?;
    Ok(Statement::Class { at, name: name.to_owned(), class })
}

fn class(input: &mut Input<'_>, expected: &str) -> Result<Class> {
    match peek(input)? {
        (_, Token::Sign("{")) => compound(input),
        (at, Token::Word(name)) if !is_keyword(name) => {
            next(input)?;
            Ok(Class::Name { at, name: name.to_owned() })
        }
        _ => Err(unexpected(input, expected)),
    }
}

fn is_keyword(word: &str) -> bool {
    matches!(word, "elementclass" | "require" | "provide" | "define")
}

// --- configuration strings ------------------------------------------------------------------------

/// The text up to the closing parenthesis, which is taken; the opening one has been.
fn config(input: &mut Input<'_>) -> Result<Config> {
    let at = input.current_token_start();
    let text = config_text(input)?;
    Ok(Config { at, text })
}

fn config_text(input: &mut Input<'_>) -> Result<String> {
    let bytes = input.state.text.as_bytes();
    let start = input.current_token_start();
    let (mut depth, mut at, mut out) = (1usize, start, String::new());
    let mut copied = start;
    while at < bytes.len() {
        match bytes[at] {
            b'(' => depth += 1,
            b')' if depth == 1 => {
                out.push_str(&input.state.text[copied..at]);
                let _ =
                    take(chars(input, input.current_token_start(), at + 1)).parse_next(input)?;
                return Ok(out);
            }
            b')' => depth -= 1,
            b'#' if at_line_start(bytes, at) => {
                out.push_str(&input.state.text[copied..at]);
                let _ = take(chars(input, input.current_token_start(), at)).parse_next(input)?;
                line_directive(input)?;
                at = input.current_token_start();
                copied = at;
                continue;
            }
            _ => {}
        }
        at = if text::is_comment(bytes, at) {
            text::skip_comment(bytes, at)
        } else {
            text::skip_item(bytes, at)
        };
    }
    let _: &str = rest.parse_next(input)?;
    let opened = start.saturating_sub(1);
    Err(Fault { at: opened, message: "found the end; expected `)` for this `(`".into() })
}

/// If a text in parentheses is read as the same text: its brackets match and its quotes are closed.
pub(crate) fn is_config(text: &str) -> bool {
    let closed = format!("{text})");
    let state =
        State { text: &closed, faults: Vec::new(), directives: Vec::new(), depth: 0, ports: 0 };
    let mut input = Stateful { input: LocatingSlice::new(closed.as_str()), state };
    config_text(&mut input).is_ok_and(|read| read == text) && input.input.is_empty()
}

// --- connections ----------------------------------------------------------------------------------

fn chain(input: &mut Input<'_>) -> Result<Chain> {
    let mut links = vec![Link { arrow: None, members: first_members(input)? }];
    loop {
        let (at, found) = peek(input)?;
        let wide = match found {
            Token::Sign("->") => false,
            Token::Sign("=>") => true,
            Token::Sign(";") => {
                next(input)?;
                break;
            }
            Token::Word(_) | Token::End | Token::Sign("{" | "}" | "[" | ")" | "||") => break,
            _ => return Err(unexpected(input, "`->`, `::` or `;`")),
        };
        next(input)?;
        let members = members(input, false)?;
        if members.is_empty() {
            return Err(unexpected(input, "an element behind the arrow"));
        }
        links.push(Link { arrow: Some(Arrow { at, wide }), members });
    }
    Ok(Chain { links })
}

/// The first members of a chain, of which those in front share the class of the last: `a, b :: Class`.
fn first_members(input: &mut Input<'_>) -> Result<Vec<Member>> {
    let mut members = members(input, true)?;
    if members.is_empty() {
        return Err(unexpected(input, "an element, `elementclass`, `require` or `define`"));
    }
    let connects = matches!(peek(input)?.1, Token::Sign("->" | "=>"));
    let plain = |member: &Member| member.inputs.is_none() && member.outputs.is_none();
    let implicit = |member: &Member| matches!(member.subject, Subject::Implicit(_));
    if !connects && members.iter().all(plain) && !members.iter().any(implicit) {
        share_class(&mut members);
    }
    Ok(members)
}

fn share_class(members: &mut [Member]) {
    let Some((last, before)) = members.split_last_mut() else { return };
    let bare = |member: &Member| {
        matches!(member.subject, Subject::Name(_))
            && member.class.is_none()
            && member.config.is_none()
    };
    if last.class.is_some() && before.iter().all(bare) {
        for member in before {
            member.class.clone_from(&last.class);
            member.config.clone_from(&last.config);
        }
    }
}

/// Elements separated by commas; none, if there is no element.
fn members(input: &mut Input<'_>, first: bool) -> Result<Vec<Member>> {
    let mut all = Vec::new();
    while let Some(member) = member(input, first, all.is_empty())? {
        all.push(member);
        if !accept(input, ",")? {
            break;
        }
    }
    let implicit = |member: &Member| matches!(member.subject, Subject::Implicit(_));
    let (at, found) = peek(input)?;
    if !first && all.iter().any(implicit) && matches!(found, Token::Sign("->" | "=>")) {
        let message = format!("found {found}; expected an element between the arrows");
        return Err(Fault { at, message });
    }
    Ok(all)
}

fn member(input: &mut Input<'_>, first: bool, alone: bool) -> Result<Option<Member>> {
    let inputs = port_list(input)?;
    let (at, found) = peek(input)?;
    let subject = match found {
        Token::Word(name) if !is_keyword(name) => {
            next(input)?;
            Subject::Name(name.to_owned())
        }
        Token::Sign("{") => Subject::Compound(Arc::new(compound(input)?)),
        Token::Sign("(") => group(input)?,
        found => return implicit(input, (at, found), first, alone, inputs),
    };
    let class = if accept(input, "::")? {
        Some(Arc::new(class(input, "the class of the element")?))
    } else {
        None
    };
    let config = if accept(input, "(")? { Some(config(input)?) } else { None };
    let outputs = port_list(input)?;
    Ok(Some(Member { at, inputs, subject, class, config, outputs }))
}

/// The pseudoelement that nothing stands for, if one may stand here.
fn implicit(
    input: &mut Input<'_>,
    (at, found): (usize, Token<'_>),
    first: bool,
    alone: bool,
    ports: Option<PortList>,
) -> Result<Option<Member>> {
    let may_begin = ports.is_some() || alone;
    let stands = input.state.depth > 0
        && match found {
            Token::Sign("->" | "=>") => first && may_begin,
            Token::Sign(",") => ports.is_some(),
            Token::Sign("::") => false,
            _ => !first && may_begin,
        };
    if !stands {
        return match ports {
            Some(_) => Err(unexpected(input, "an element behind its input ports")),
            None => Ok(None),
        };
    }
    let (name, inputs, outputs) =
        if first { ("input", None, ports) } else { ("output", ports, None) };
    let subject = Subject::Implicit(name);
    Ok(Some(Member { at, inputs, subject, class: None, config: None, outputs }))
}

fn group(input: &mut Input<'_>) -> Result<Subject> {
    let statements = nested(input, |input| {
        let statements = statements(input, Token::Sign(")"));
        expect(input, ")")?;
        Ok(statements)
    })?;
    Ok(Subject::Group(statements))
}

/// Reads what stands between an opening and a closing bracket.
fn nested<T>(input: &mut Input<'_>, inside: impl FnOnce(&mut Input<'_>) -> Result<T>) -> Result<T> {
    let at = peek(input)?.0;
    next(input)?;
    if input.state.depth == DEEPEST {
        let _: &str = rest.parse_next(input)?;
        let message = format!("compound elements nested more than {DEEPEST} deep");
        return Err(Fault { at, message });
    }
    input.state.depth += 1;
    let read = inside(input);
    input.state.depth -= 1;
    read
}

// --- ports ----------------------------------------------------------------------------------------

fn port_list(input: &mut Input<'_>) -> Result<Option<PortList>> {
    if !accept(input, "[")? {
        return Ok(None);
    }
    let mut ports = Vec::new();
    loop {
        if accept(input, "]")? {
            if ports.is_empty() {
                ports.push(0);
            }
            return Ok(Some(PortList { ports, open: true }));
        }
        port_range(input, &mut ports)?;
        if accept(input, "]")? {
            return Ok(Some(PortList { ports, open: false }));
        }
        expect(input, ",")
            .map_err(|fault| Fault { at: fault.at, message: fault.message + " or `]`" })?;
    }
}

fn port_range(input: &mut Input<'_>, ports: &mut Vec<usize>) -> Result<()> {
    let first = port(input)?;
    let last = if accept(input, "-")? { port(input)? } else { first };
    let count = (last + 1).saturating_sub(first);
    let at = input.current_token_start();
    if ports.len() + count > HIGHEST_PORT + 1 {
        return Err(Fault { at, message: format!("more than {} ports", HIGHEST_PORT + 1) });
    }
    if input.state.ports + count > MOST_PORTS {
        return Err(Fault { at, message: format!("more than {MOST_PORTS} ports in all lists") });
    }
    input.state.ports += count;
    ports.extend(first..=last);
    Ok(())
}

fn port(input: &mut Input<'_>) -> Result<usize> {
    let (at, found) = peek(input)?;
    let Token::Word(word) = found else { return Err(unexpected(input, "the number of a port")) };
    let number = match word.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16),
        None => word.parse(),
    };
    match number {
        Ok(number) if number <= HIGHEST_PORT => {
            next(input)?;
            Ok(number)
        }
        Ok(_) => Err(Fault { at, message: format!("port {word}; the highest is {HIGHEST_PORT}") }),
        Err(_) => Err(unexpected(input, "the number of a port")),
    }
}

// --- compound elements ----------------------------------------------------------------------------

fn compound(input: &mut Input<'_>) -> Result<Class> {
    let at = peek(input)?.0;
    nested(input, |input| {
        let mut variants: Vec<Variant> = Vec::new();
        let mut extends = false;
        loop {
            if !variants.is_empty() && accept(input, "...")? {
                extends = true;
                break;
            }
            variants.push(variant(input)?);
            if !accept(input, "||")? {
                break;
            }
        }
        expect(input, "}")?;
        Ok(Class::Compound { at, variants, extends })
    })
}

fn variant(input: &mut Input<'_>) -> Result<Variant> {
    let at = peek(input)?.0;
    let parameters = parameters(input)?;
    let statements = statements(input, Token::Sign("}"));
    Ok(Variant { at, parameters, statements })
}

fn parameters(input: &mut Input<'_>) -> Result<Vec<Parameter>> {
    let mut all = Vec::new();
    loop {
        let start = input.checkpoint();
        let at = peek(input)?.0;
        let mut parameter = opt((opt(preceded(space, word)), preceded(space, variable)));
        let Some((keyword, name)) = parameter.parse_next(input)? else {
            input.reset(&start);
            if all.is_empty() {
                accept(input, "|")?;
                return Ok(all);
            }
            return Err(unexpected(input, "a parameter `$NAME` or `KEYWORD $NAME`"));
        };
        let keyword = keyword.unwrap_or_default().to_owned();
        if all.len() == MOST_PARAMETERS {
            return Err(Fault { at, message: format!("more than {MOST_PARAMETERS} parameters") });
        }
        all.push(Parameter { at, keyword, name: name.to_owned() });
        if accept(input, "|")? {
            return Ok(all);
        }
        if !accept(input, ",")? {
            return Err(unexpected(input, "`,` or `|` behind the parameter"));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn errors(text: &str) -> String {
        match parse("f.click", text) {
            Ok(_) => String::new(),
            Err(errors) => {
                let lines = errors.all().iter().map(|e| format!("{}: {}", e.place, e.message));
                lines.collect::<Vec<_>>().join("\n")
            }
        }
    }

    #[test]
    fn the_whole_language_is_read() {
        let text = "#!/usr/bin/click\nrequire(package \"x\"); define($a 1, $b (2))\n\
            elementclass C { $x, K $y, __REST__ $z | input [0] -> [1] output; || $x | -> Q(\")\", $x) -> \n || ... }\n\
            elementclass D C\n a, b :: C(1 /* ) */, // )\n 2); a[1,2] => [0-1] b, (-> d -> ), [0,]{ -> } [] => c :: D\n\
            # 12 \"other\"\n Idle -> Discard e -> f;; x/y@1 -> z";
        assert_eq!(errors(text), "");
    }

    #[test]
    fn errors_name_the_place_and_what_was_expected() {
        assert_eq!(errors("a ->;"), "f.click:1:5: found `;`; expected an element behind the arrow");
        assert_eq!(
            errors("-> Null;"),
            "f.click:1:1: found `->`; expected an element, `elementclass`, `require` or `define`"
        );
        assert_eq!(errors("a :: 'x'"), "f.click:1:6: found `'`; expected the class of the element");
        assert_eq!(errors("a(1, 2"), "f.click:1:2: found the end; expected `)` for this `(`");
        assert_eq!(errors("a[x] -> b"), "f.click:1:3: found `x`; expected the number of a port");
        assert_eq!(errors("a[1 -> b"), "f.click:1:5: found `->`; expected `,` or `]`");
        assert_eq!(
            errors("elementclass A { $a $b | }"),
            "f.click:1:21: found `$b`; expected `,` or `|` behind the parameter"
        );
        assert_eq!(errors("a $b"), "f.click:1:3: found `$b`; expected `->`, `::` or `;`");
        assert_eq!(
            errors("# x\na -> b"),
            "f.click:1:1: unknown directive; expected `# LINE \"FILE\"`, or `//` for a comment"
        );
        assert_eq!(errors("elementclass A { x"), "f.click:1:19: found the end; expected `}`");
    }

    #[test]
    fn several_errors_are_reported_at_once() {
        let text = "a -> ;\nb :: {x -> [z] y; u :: ; v } -> w;\n)\nc ( ] -> d;";
        let found = errors(text);
        let lines: Vec<&str> = found.lines().map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(
            lines,
            ["f.click:1:6", "f.click:2:13", "f.click:2:24", "f.click:3:1", "f.click:4:3"]
        );
    }

    #[test]
    fn nesting_and_size_are_bounded() {
        let deep = "{".repeat(100_000);
        assert!(
            errors(&deep).contains("compound elements nested more than 48 deep"),
            "{}",
            errors(&deep)
        );
        let deep = "a -> (".repeat(100_000);
        assert!(errors(&deep).contains("compound elements nested more than 48 deep"));
        assert!(errors(&" ".repeat(LONGEST + 1)).contains("at most 1048576"));
        assert!(errors("a [0-4000, 0-4000] -> b").contains("more than 4096 ports"));
        let lists = errors(&"a [0-4000] => [0-4000] b;".repeat(1000));
        assert!(lists.contains("more than 524288 ports in all lists"), "{lists}");
        assert!(errors("a [4096] -> b").contains("the highest is 4095"));
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text: String) {
            let _ = parse("f", &text);
        }

        #[test]
        fn no_tokens_are_too_odd(
            text in "(a|B|[ \\n]|::|->|=>|\\{|\\}|\\(|\\)|\\[|\\]|[0-9]|,|;|\\|\\||\\||\\.\\.\\.|\\$a|#|\"|'|elementclass|define|//|/\\*|\\*/|é){0,60}"
        ) {
            if let Err(errors) = parse("f", &text) {
                prop_assert!(errors.all().len() <= MOST_ERRORS);
            }
        }
    }
}
