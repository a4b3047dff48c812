//! Conventions of configuration strings: arguments, words, comments, quotes.
//!
//! A configuration string is split at commas into arguments and an argument at spaces into words. Quotes (`"…"`,
//! `'…'`) and `\<48 65 78>` protect commas and spaces; comments count as a space. Backslashes are escapes inside
//! double quotes only.

/// Splits a configuration string into arguments at commas, without comments; an empty last one is left out.
///
/// ```
/// # use click::text::split_arguments;
/// assert_eq!(split_arguments("a /* ? */ b, \"x, y\", "), ["a b", "\"x, y\""]);
/// ```
pub fn split_arguments(config: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut at = 0;
    while at < config.len() {
        let (argument, end) = uncomment_until(config, at, true);
        if !argument.is_empty() || end < config.len() {
            arguments.push(argument);
        }
        at = end + 1;
    }
    arguments
}

/// Joins arguments to a configuration string that is split into the same arguments.
pub fn join_arguments(arguments: &[String]) -> String {
    let last = if arguments.last().is_some_and(String::is_empty) { "," } else { "" };
    arguments.join(", ") + last
}

/// Splits an argument into words at spaces.
pub fn split_words(argument: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = argument;
    loop {
        let (word, after) = first_word(rest);
        if word.is_empty() {
            return words;
        }
        words.push(word);
        rest = after;
    }
}

/// The first word of an argument, and the text after it; both are empty at the end.
pub fn first_word(argument: &str) -> (&str, &str) {
    let bytes = argument.as_bytes();
    let start = skip_space(bytes, 0);
    let end = skip_word(bytes, start);
    (&argument[start..end], &argument[skip_space(bytes, end)..])
}

/// Removes comments, and spaces at both ends.
pub fn uncomment(text: &str) -> String {
    uncomment_until(text, 0, false).0
}

/// Removes one level of quotes, and carries out escapes.
pub fn unquote(text: &str) -> Vec<u8> {
    let text = uncomment(text);
    let bytes = text.as_bytes();
    let (mut at, mut quote) = (0, None);
    let mut out = Vec::with_capacity(bytes.len());
    while let Some(&byte) = bytes.get(at) {
        let escape = byte == b'\\'
            && at + 1 < bytes.len()
            && (quote == Some(b'"') || quote.is_none() && bytes[at + 1] == b'<');
        if escape {
            at = escaped(bytes, at, &mut out);
            continue;
        }
        match (byte, quote) {
            (b'"' | b'\'', None) => quote = Some(byte),
            (_, Some(open)) if open == byte => quote = None,
            _ => out.push(byte),
        }
        at += 1;
    }
    out
}

/// Text in double quotes that [`unquote`] returns to its first form.
pub fn quote(text: &[u8]) -> String {
    format!("\"{}\"", text.iter().map(|&byte| quoted_byte(byte)).collect::<String>())
}

/// Splits `KEYWORD value`; the value may be empty.
pub fn keyword(argument: &str) -> Option<(&str, &str)> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.:?!".contains(c);
    let end = argument.find(|c| !allowed(c)).unwrap_or(argument.len());
    let (word, rest) = argument.split_at(end);
    let separated = rest.is_empty() || is_space(rest.as_bytes()[0]);
    (!word.is_empty() && separated)
        .then(|| (word, rest.trim_start_matches(|c: char| c == '\x0b' || c.is_ascii_whitespace())))
}

/// If a text is one word: not empty, and without spaces outside of quotes.
pub fn is_one_word(text: &str) -> bool {
    !text.is_empty() && skip_word(text.as_bytes(), 0) == text.len()
}

fn quoted_byte(byte: u8) -> String {
    match byte {
        b'\\' | b'"' | b'$' => format!("\\{}", char::from(byte)),
        b'\t' => "\\t".into(),
        b'\r' => "\\r".into(),
        b'\n' => "\\n".into(),
        32..127 => char::from(byte).into(),
        _ => format!("\\{byte:03o}"),
    }
}

/// `isspace` of C.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

pub(crate) fn is_comment(text: &[u8], at: usize) -> bool {
    text[at] == b'/' && matches!(text.get(at + 1), Some(b'/' | b'*'))
}

/// End of the comment at a position: behind its line, or behind `*/`.
pub(crate) fn skip_comment(text: &[u8], at: usize) -> usize {
    let body = &text[at + 2..];
    let length = if text[at + 1] == b'/' { line_length(body) } else { block_length(body) };
    at + 2 + length
}

/// Length of a line with its end: LF, CR or CR LF.
pub(crate) fn line_length(text: &[u8]) -> usize {
    match text.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        None => text.len(),
        Some(end) if text[end..].starts_with(b"\r\n") => end + 2,
        Some(end) => end + 1,
    }
}

fn block_length(text: &[u8]) -> usize {
    text.windows(2).position(|pair| pair == b"*/").map_or(text.len(), |end| end + 2)
}

/// Position after spaces and comments.
pub(crate) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while at < text.len() {
        if is_space(text[at]) {
            at += 1;
        } else if is_comment(text, at) {
            at = skip_comment(text, at);
        } else {
            break;
        }
    }
    at
}

/// Position behind the quoted string, the hexadecimal string or the single byte at a position.
pub(crate) fn skip_item(text: &[u8], at: usize) -> usize {
    match text[at] {
        b'"' => skip_double_quote(text, at),
        b'\'' => skip_single_quote(text, at),
        b'\\' if text.get(at + 1) == Some(&b'<') => skip_backslash(text, at),
        _ => at + 1,
    }
}

fn skip_single_quote(text: &[u8], at: usize) -> usize {
    text[at + 1..].iter().position(|&byte| byte == b'\'').map_or(text.len(), |end| at + end + 2)
}

fn skip_double_quote(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at = skip_backslash(text, at),
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn skip_backslash(text: &[u8], at: usize) -> usize {
    let end = match text.get(at + 1) {
        Some(b'<') => skip_hex(text, at + 2),
        Some(b'\r') if text.get(at + 2) == Some(&b'\n') => at + 3,
        _ => at + 2,
    };
    end.min(text.len())
}

/// Position behind the `>` of `\<48 65>`.
fn skip_hex(text: &[u8], mut at: usize) -> usize {
    while at < text.len() {
        if text[at] == b'>' {
            return at + 1;
        }
        at = if is_comment(text, at) { skip_comment(text, at) } else { at + 1 };
    }
    at
}

fn skip_word(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && !is_space(text[at]) && !is_comment(text, at) {
        at = skip_item(text, at);
    }
    at
}

/// Text from a position to a comma (or to the end) without comments, and the position of its end.
fn uncomment_until(text: &str, start: usize, comma: bool) -> (String, usize) {
    let bytes = text.as_bytes();
    let mut at = skip_space(bytes, start);
    let (mut left, mut right, mut closed) = (at, at, false);
    let mut out = String::new();
    while at < bytes.len() && !(comma && bytes[at] == b',') {
        if is_space(bytes[at]) {
            at += 1;
        } else if is_comment(bytes, at) {
            at = skip_comment(bytes, at);
            closed = true;
        } else {
            if std::mem::take(&mut closed) {
                out.push_str(&text[left..right]);
                out.push(' ');
                left = at;
            }
            at = skip_item(bytes, at);
            right = at;
        }
    }
    out.push_str(&text[left..right]);
    (out, at)
}

/// Carries out the escape at a position, and returns the position behind it.
fn escaped(text: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    match text[at + 1] {
        b'\r' | b'\n' => return skip_backslash(text, at),
        b'0'..=b'7' => return octal(text, at + 1, out),
        b'x' => return hex(text, at + 2, out),
        b'<' => return hex_string(text, at + 2, out),
        letter => out.push(control(letter)),
    }
    at + 2
}

fn control(letter: u8) -> u8 {
    match letter {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        other => other,
    }
}

fn octal(text: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    let digits = text[at..].iter().take(3).take_while(|byte| matches!(byte, b'0'..=b'7'));
    let (mut value, mut count) = (0u32, 0);
    for digit in digits {
        value = value * 8 + u32::from(digit - b'0');
        count += 1;
    }
    out.push(value as u8);
    at + count
}

/// `\x` has any number of digits, of which the last two count.
fn hex(text: &[u8], at: usize, out: &mut Vec<u8>) -> usize {
    let (mut value, mut count) = (0u8, 0);
    while let Some(digit) = text.get(at + count).and_then(|&byte| char::from(byte).to_digit(16)) {
        value = value.wrapping_mul(16).wrapping_add(digit as u8);
        count += 1;
    }
    out.push(value);
    at + count
}

fn hex_string(text: &[u8], mut at: usize, out: &mut Vec<u8>) -> usize {
    let mut high = None;
    while at < text.len() && text[at] != b'>' {
        if is_comment(text, at) {
            at = skip_comment(text, at);
            continue;
        }
        if let Some(digit) = char::from(text[at]).to_digit(16) {
            match high.take() {
                None => high = Some(digit),
                Some(high) => out.push((high * 16 + digit) as u8),
            }
        }
        at += 1;
    }
    (at + 1).min(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arguments_are_split_at_commas_outside_of_quotes_and_comments() {
        assert_eq!(split_arguments(""), Vec::<String>::new());
        assert_eq!(split_arguments("a, b, c"), ["a", "b", "c"]);
        assert_eq!(split_arguments("  a /*?,*/ b,  c, "), ["a b", "c"]);
        assert_eq!(split_arguments("\"x, y\" // ?, ?"), ["\"x, y\""]);
        assert_eq!(
            split_arguments(r#"'a,"', \<2C , 2c>,"\",""#),
            ["'a,\"'", r"\<2C , 2c>", r#""\",""#]
        );
        assert_eq!(split_arguments(", a"), ["", "a"]);
    }

    #[test]
    fn words_are_split_at_spaces_outside_of_quotes() {
        assert_eq!(split_words("a  b, c"), ["a", "b,", "c"]);
        assert_eq!(split_words("  'a /*?*/ b'c /* x */ d"), ["'a /*?*/ b'c", "d"]);
    }

    #[test]
    fn quotes_are_removed_and_escapes_carried_out() {
        assert_eq!(unquote(r#""\n" abc /* 123 */ '/* def */'"#), b"\n abc /* def */");
        assert_eq!(unquote(r#"\<48656c6C 6f 2 /* And finally */ 1>"#), b"Hello!");
        assert_eq!(unquote(r#""\x41\102\$\"""#), b"AB$\"");
        assert_eq!(unquote(r"a\nb"), br"a\nb");
        assert_eq!(unquote("\"a\\\r\nb\""), b"ab");
    }

    proptest! {
        #[test]
        fn quoting_is_undone_by_unquoting(bytes: Vec<u8>) {
            prop_assert_eq!(unquote(&quote(&bytes)), bytes);
        }

        #[test]
        fn joined_arguments_are_split_into_the_same(config in "[a ,\"'\\\\<>/*b\n1]{0,20}") {
            let arguments = split_arguments(&config);
            let open = arguments.iter().any(|a| a.contains(['"', '\'', '\\', '/']));
            if !open {
                prop_assert_eq!(split_arguments(&join_arguments(&arguments)), arguments);
            }
        }

        #[test]
        fn no_text_is_too_odd(text: String) {
            split_arguments(&text);
            split_words(&text);
            unquote(&text);
        }
    }
}
