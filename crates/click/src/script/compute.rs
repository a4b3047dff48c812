//! Functions of scripts, which are handlers with arguments: `$(add 1 2)`.
//!
//! Numbers are integers of 64 bits where all arguments are, else floating-point. Where Click's would overflow or divide by
//! zero there is an error.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use crate::kinds;
use crate::text::{first_word, split_words, unquote};

/// The functions' names.
pub const FUNCTIONS: [&str; 29] = [
    "add", "sub", "mul", "div", "idiv", "min", "max", "mod", "rem", "neg", "abs", "eq", "ne", "lt",
    "gt", "le", "ge", "not", "and", "or", "nand", "nor", "if", "in", "sprintf", "random", "length",
    "unquote", "now",
];

type Value = Result<String, String>;

/// Longest text of arguments, and longest value, in bytes.
const BYTES_MOST: usize = 64 << 10;

/// Calls a function; `None` if there is none of this name.
pub fn compute(name: &str, arguments: &str) -> Option<Value> {
    if arguments.len() > BYTES_MOST && FUNCTIONS.contains(&name) {
        return Some(Err(format!(
            "arguments of {} bytes; expected at most {BYTES_MOST}",
            arguments.len()
        )));
    }
    let words = split_words(arguments);
    Some(match name {
        "add" | "sub" | "mul" | "div" | "idiv" | "min" | "max" => fold(name, &words),
        "mod" | "rem" => remainder(name, &words),
        "neg" | "abs" => sign(name, &words),
        "eq" | "ne" | "lt" | "gt" | "le" | "ge" => compare(name, &words),
        "not" | "and" | "or" | "nand" | "nor" => logic(name, &words),
        "if" => choose(&words),
        "in" => Ok(is_in(&words).to_string()),
        "sprintf" => format(arguments),
        "random" => random(&words),
        "length" => Ok(arguments.len().to_string()),
        "unquote" => Ok(plain(arguments)),
        "now" => Ok(now()),
        _ => return None,
    })
}

/// Text without a layer of quotes.
pub(super) fn plain(text: &str) -> String {
    String::from_utf8_lossy(&unquote(text)).into_owned()
}

/// A number of a script.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Whole(i64),
    Real(f64),
}

impl Number {
    fn read(word: &str) -> Option<Self> {
        let whole = kinds::whole(word).and_then(|number| i64::try_from(number).ok());
        whole.map(Self::Whole).or_else(|| kinds::number(word).map(Self::Real))
    }

    fn real(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }

    fn text(self) -> Value {
        match self {
            Self::Whole(number) => Ok(number.to_string()),
            // With twelve digits, so that 0.1 + 0.2 is 0.3.
            Self::Real(number) if number.is_finite() => {
                let rounded: f64 = format!("{number:.11e}").parse().unwrap_or(number);
                Ok(rounded.to_string())
            }
            Self::Real(_) => Err("the result is no number".to_owned()),
        }
    }
}

fn numbers(words: &[&str]) -> Result<Vec<Number>, String> {
    let read = words.iter().map(|word| Number::read(word));
    read.collect::<Option<_>>().ok_or_else(|| "expected list of numbers".to_owned())
}

fn two(words: &[&str]) -> Result<(Number, Number), String> {
    match numbers(words).as_deref() {
        Ok([one, other]) => Ok((*one, *other)),
        _ => Err("expected two numbers".to_owned()),
    }
}

fn fold(name: &str, words: &[&str]) -> Value {
    let numbers = numbers(words)?;
    let Some((&first, rest)) = numbers.split_first() else {
        let neutral = if matches!(name, "add" | "sub") { 0 } else { 1 };
        return Number::Whole(neutral).text();
    };
    let divides = matches!(name, "div" | "idiv");
    let first = if divides { Number::Real(first.real()) } else { first };
    let mut sum = first;
    for &next in rest {
        sum = match (sum, next) {
            (Number::Whole(one), Number::Whole(other)) => {
                let done = match name {
                    "add" => one.checked_add(other),
                    "sub" => one.checked_sub(other),
                    "mul" => one.checked_mul(other),
                    "min" => Some(one.min(other)),
                    _ => Some(one.max(other)),
                };
                Number::Whole(done.ok_or("the result is too large")?)
            }
            (one, other) => Number::Real(real(name, one.real(), other.real())?),
        };
    }
    match sum {
        Number::Real(number) if name == "idiv" => Number::Whole(number as i64).text(),
        sum => sum.text(),
    }
}

fn real(name: &str, one: f64, other: f64) -> Result<f64, String> {
    Ok(match name {
        "add" => one + other,
        "sub" => one - other,
        "mul" => one * other,
        "min" => one.min(other),
        "max" => one.max(other),
        _ if other == 0.0 => return Err("division by zero".to_owned()),
        _ => one / other,
    })
}

fn remainder(name: &str, words: &[&str]) -> Value {
    match two(words)? {
        (_, other) if other.real() == 0.0 => Err("division by zero".to_owned()),
        (Number::Whole(one), Number::Whole(other)) => {
            Number::Whole(one.checked_rem(other).unwrap_or(0)).text()
        }
        (one, other) if name == "rem" => Number::Real(one.real() % other.real()).text(),
        _ => Err("expected two integers".to_owned()),
    }
}

fn sign(name: &str, words: &[&str]) -> Value {
    let numbers = numbers(words).unwrap_or_default();
    let [number] = numbers[..] else { return Err("expected one number".to_owned()) };
    match number {
        Number::Whole(number) if name == "neg" || number < 0 => {
            Number::Whole(number.checked_neg().ok_or("the result is too large")?).text()
        }
        Number::Whole(number) => Number::Whole(number).text(),
        Number::Real(number) if name == "neg" => Number::Real(-number).text(),
        Number::Real(number) => Number::Real(number.abs()).text(),
    }
}

fn compare(name: &str, words: &[&str]) -> Value {
    let [one, other] = words[..] else { return Err("expected two numbers".to_owned()) };
    let order = match (Number::read(one), Number::read(other)) {
        (Some(Number::Whole(one)), Some(Number::Whole(other))) => one.cmp(&other),
        (Some(one), Some(other)) => one.real().total_cmp(&other.real()),
        _ => unquote(one).cmp(&unquote(other)),
    };
    let holds = match name {
        "eq" => order == Ordering::Equal,
        "ne" => order != Ordering::Equal,
        "lt" => order == Ordering::Less,
        "gt" => order == Ordering::Greater,
        "le" => order != Ordering::Greater,
        _ => order != Ordering::Less,
    };
    Ok(holds.to_string())
}

fn flag(word: &str) -> Result<bool, String> {
    kinds::flag(word).ok_or_else(|| "expected true or false".to_owned())
}

fn logic(name: &str, words: &[&str]) -> Value {
    let flags: Vec<bool> = words.iter().map(|word| flag(word)).collect::<Result<_, _>>()?;
    let holds = match name {
        "not" => match flags[..] {
            [one] => !one,
            _ => return Err("expected true or false".to_owned()),
        },
        "and" => flags.iter().all(|&one| one),
        "nand" => !flags.iter().all(|&one| one),
        "or" => flags.iter().any(|&one| one),
        _ => !flags.iter().any(|&one| one),
    };
    Ok(holds.to_string())
}

/// Returns true if the first word is one of the others.
fn is_in(words: &[&str]) -> bool {
    let Some((one, others)) = words.split_first() else { return false };
    let one = unquote(one);
    others.iter().any(|other| unquote(other) == one)
}

fn choose(words: &[&str]) -> Value {
    let (condition, values) = words.split_first().ok_or("expected true or false")?;
    let chosen = values.get(usize::from(!flag(condition)?));
    Ok(chosen.copied().unwrap_or_default().to_owned())
}

/// A number that nobody can predict from the last one.
fn random(words: &[&str]) -> Value {
    let number = u64::from(RandomState::new().hash_one(0u8) as u32) & 0x7fff_ffff;
    let wrong = || "expected two integers, the first of which is not larger".to_owned();
    let integer = |word: &str| word.parse::<u32>().map(u64::from).map_err(|_| wrong());
    let (least, most) = match words[..] {
        [] => (0, 0x7fff_ffff),
        [count] => (0, integer(count)?.checked_sub(1).ok_or_else(wrong)?),
        [least, most] => (integer(least)?, integer(most)?),
        _ => return Err(wrong()),
    };
    let span = most.checked_sub(least).ok_or_else(wrong)? + 1;
    Ok((least + number % span).to_string())
}

fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}", since.as_secs(), since.subsec_micros())
}

/// Widest field of `sprintf`.
const WIDEST: usize = 256;

/// `sprintf FORMAT ARGS…`, with `%d`, `%u`, `%o`, `%x`, `%X`, `%s` and `%%`.
fn format(arguments: &str) -> Value {
    let wrong = || "syntax error".to_owned();
    let (pattern, mut rest) = first_word(arguments);
    let pattern = plain(pattern);
    let mut next = || {
        let (word, after) = first_word(rest);
        rest = after;
        word.to_owned()
    };
    let mut out = String::new();
    let mut parts = pattern.split('%');
    out.push_str(parts.next().unwrap_or_default());
    while let Some(part) = parts.next() {
        if part.is_empty() {
            // `%%`, and the text behind it.
            out.push('%');
            out.push_str(parts.next().ok_or_else(wrong)?);
            continue;
        }
        let end = part.find(|c: char| c.is_ascii_alphabetic() && !"hlLq".contains(c));
        let end = end.ok_or_else(wrong)?;
        let field = Field::read(&part[..end]).ok_or_else(wrong)?;
        out.push_str(&field.write(&part[end..=end], &next()).ok_or_else(wrong)?);
        out.push_str(&part[end + 1..]);
        if out.len() > BYTES_MOST {
            return Err(format!("the result is longer than {BYTES_MOST} bytes"));
        }
    }
    if rest.is_empty() { Ok(out) } else { Err(wrong()) }
}

/// Flags, width and precision of a conversion.
#[derive(Default)]
struct Field {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

impl Field {
    fn read(text: &str) -> Option<Self> {
        let mut field = Self::default();
        let digits = text.trim_start_matches(['-', '0', '+', ' ', '#']);
        for flag in text[..text.len() - digits.len()].chars() {
            match flag {
                '-' => field.left = true,
                '0' => field.zero = true,
                '+' => field.plus = true,
                ' ' => field.space = true,
                _ => field.alternate = true,
            }
        }
        let digits = digits.trim_end_matches(['h', 'l', 'L', 'q']);
        let (width, precision) =
            digits.split_once('.').map_or((digits, None), |(w, p)| (w, Some(p)));
        let number = |text: &str| {
            if text.is_empty() {
                Some(0)
            } else {
                text.parse().ok().filter(|width| *width <= WIDEST)
            }
        };
        field.width = number(width)?;
        field.precision = match precision {
            Some(text) => Some(number(text)?),
            None => None,
        };
        Some(field)
    }

    fn write(&self, conversion: &str, word: &str) -> Option<String> {
        let whole = || kinds::whole(word).and_then(|number| i64::try_from(number).ok());
        let (sign, digits) = match conversion {
            "s" => {
                let text: String =
                    plain(word).chars().take(self.precision.unwrap_or(usize::MAX)).collect();
                return Some(self.pad("", &text, ' '));
            }
            "d" | "i" => {
                let number = whole()?;
                let sign = if number < 0 {
                    "-"
                } else if self.plus {
                    "+"
                } else if self.space {
                    " "
                } else {
                    ""
                };
                (sign, number.unsigned_abs().to_string())
            }
            "u" => ("", (whole()? as u64).to_string()),
            "o" => (if self.alternate { "0" } else { "" }, format!("{:o}", whole()?)),
            "x" => (if self.alternate { "0x" } else { "" }, format!("{:x}", whole()?)),
            "X" => (if self.alternate { "0X" } else { "" }, format!("{:X}", whole()?)),
            _ => return None,
        };
        let digits = format!("{digits:0>width$}", width = self.precision.unwrap_or(0));
        let fill = if self.zero && !self.left && self.precision.is_none() { '0' } else { ' ' };
        Some(self.pad(sign, &digits, fill))
    }

    fn pad(&self, sign: &str, text: &str, fill: char) -> String {
        let missing = self.width.saturating_sub(sign.len() + text.chars().count());
        let padding = fill.to_string().repeat(missing);
        match (self.left, fill) {
            (true, _) => format!("{sign}{text}{padding}"),
            (false, '0') => format!("{sign}{padding}{text}"),
            (false, _) => format!("{padding}{sign}{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        let (name, arguments) = first_word(text);
        compute(name, arguments).unwrap_or_else(|| panic!("no function {name}"))
    }

    #[test]
    fn functions_are_those_of_click() {
        for (text, expected) in [
            ("add 10 5 2", "17"),
            ("add", "0"),
            ("add 0.1 0.2", "0.3"),
            ("sub 10 5 2", "3"),
            ("sub 1 2.5", "-1.5"),
            ("mul 2 3 0x10", "96"),
            ("div 7 2", "3.5"),
            ("div 6 2", "3"),
            ("idiv 7 2", "3"),
            ("min 5 10 2", "2"),
            ("max 5 10.5 2", "10.5"),
            ("mod 7 3", "1"),
            ("rem 7.5 2", "1.5"),
            ("neg 3", "-3"),
            ("abs -2.5", "2.5"),
            ("eq 10 0xA", "true"),
            ("eq 10x 10x", "true"),
            ("le 9 8", "false"),
            ("lt abc abd", "true"),
            ("ge 1.5 1.5", "true"),
            ("ne \"a\" a", "false"),
            ("not true", "false"),
            ("and 1 yes 0", "false"),
            ("nor false false", "true"),
            ("if true a b", "a"),
            ("if 0 a b", "b"),
            ("in foo bar foo", "true"),
            ("in foo bar", "false"),
            ("sprintf \"%05x\" 127", "0007f"),
            ("sprintf \"%d%% of %-4s|%+3d|%.2d\" 50 ab 7 5", "50% of ab  | +7|05"),
            ("sprintf \"%lu %#o\" 8 8", "8 010"),
            ("length abcdef", "6"),
            ("unquote \"a b\"", "a b"),
            ("random 1", "0"),
            ("random 7 7", "7"),
        ] {
            assert_eq!(value(text).as_deref(), Ok(expected), "{text}");
        }
        let some: Vec<u32> =
            (0..64).map(|_| value("random 3 5").unwrap().parse().unwrap()).collect();
        assert!(
            some.iter().all(|number| (3..=5).contains(number))
                && some.iter().any(|&one| one != some[0])
        );
        assert!(value("now").unwrap().split_once('.').is_some_and(|(_, micros)| micros.len() == 6));
    }

    #[test]
    fn arguments_and_values_are_bounded() {
        let many = "a ".repeat(BYTES_MOST / 2);
        assert_eq!(value(&format!("length {}", &many[1..])), Ok((BYTES_MOST - 2).to_string()));
        for name in ["in", "length", "add"] {
            let why = compute(name, &format!("{many}b")).unwrap().unwrap_err();
            assert_eq!(why, "arguments of 65537 bytes; expected at most 65536", "{name}");
        }
        assert!(compute("nothing", &format!("{many}b")).is_none());
        let wide = |count: usize| format!("sprintf \"{}\"", "%256s".repeat(count));
        assert_eq!(value(&wide(256)).map(|text| text.len()), Ok(BYTES_MOST));
        assert_eq!(value(&wide(257)), Err("the result is longer than 65536 bytes".to_owned()));
    }

    #[test]
    fn what_is_no_number_is_an_error() {
        for text in [
            "add x",
            "div 1 0",
            "mod 1 0",
            "mod 1.5 1",
            "add 9223372036854775807 1",
            "neg -9223372036854775808",
            "eq 1",
            "not",
            "not maybe",
            "and x",
            "if",
            "random 0",
            "random 5 3",
            "random x",
            "neg",
            "neg 1 2",
            "sprintf \"%\" 1",
            "sprintf \"%d\"",
            "sprintf \"%d\" x",
            "sprintf \"%999d\" 1",
            "sprintf \"%q\" 1",
            "sprintf \"x\" 1",
            "sprintf \"%z\" 1",
            "mul 1e300 1e300",
        ] {
            assert!(value(text).is_err(), "{text}: {:?}", value(text));
        }
        assert!(compute("nothing", "").is_none());
        assert!(FUNCTIONS.iter().all(|name| compute(name, "").is_some()));
    }
}
