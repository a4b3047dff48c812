//! The text of a configuration, and places in it.

use std::sync::Arc;

use crate::error::{Error, Place};
use crate::text::line_length;

/// A configuration's text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    name: Arc<str>,
    text: Arc<str>,
    /// Positions at which lines begin.
    lines: Vec<usize>,
    /// Characters before each multiple of `BLOCK` bytes: lines may be as long as the text.
    characters: Vec<usize>,
    directives: Vec<Directive>,
}

/// Bytes between two counts of characters.
const BLOCK: usize = 1024;

/// `# LINE "FILE"`: name and number of the lines after it.
#[derive(Clone, Debug)]
pub(crate) struct Directive {
    /// Position of its `#`.
    pub at: usize,
    /// Number of the next line.
    pub line: u32,
    /// An empty name returns to the configuration's own.
    pub file: Option<Arc<str>>,
}

/// Characters of a line that a place keeps.
const KEPT: usize = 160;

impl Source {
    pub fn new(name: &str, text: &str, mut directives: Vec<Directive>) -> Source {
        let mut file: Arc<str> = name.into();
        for directive in &mut directives {
            match directive.file.as_deref() {
                Some("") => file = name.into(),
                Some(named) => file = named.into(),
                None => {}
            }
            directive.file = Some(file.clone());
        }
        let (lines, characters) = (line_starts(text), block_counts(text));
        Source { name: name.into(), text: text.into(), lines, characters, directives }
    }

    pub fn error(&self, at: usize, message: impl Into<String>) -> Error {
        Error::new(&self.place(at), message)
    }

    pub fn place(&self, at: usize) -> Place {
        let number = self.line_number(at);
        let start = self.lines[number];
        let end = self.lines.get(number + 1).copied().unwrap_or(self.text.len());
        let column = self.characters_before(at) - self.characters_before(start) + 1;
        let (file, line) = self.named(at, number);
        Place { file, line, column: column as u32, source: kept(&self.text[start..end]).into() }
    }

    fn characters_before(&self, at: usize) -> usize {
        let block = at / BLOCK;
        self.characters[block] + characters(&self.text.as_bytes()[block * BLOCK..at])
    }

    /// Name of the file and number of the line at a position, as directives have it.
    fn named(&self, at: usize, number: usize) -> (Arc<str>, u32) {
        let before = self.directives.partition_point(|directive| directive.at < at);
        let Some(last) = before.checked_sub(1).map(|last| &self.directives[last]) else {
            return (self.name.clone(), number as u32 + 1);
        };
        let lines = number - self.line_number(last.at);
        let file = last.file.as_ref().unwrap_or(&self.name).clone();
        (file, last.line.saturating_add(lines as u32).saturating_sub(1))
    }

    /// Number, from 0, of the line with a position.
    fn line_number(&self, at: usize) -> usize {
        self.lines.partition_point(|&start| start <= at) - 1
    }
}

/// Number of characters that begin in these bytes.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

fn block_counts(text: &str) -> Vec<usize> {
    let blocks = text.as_bytes().chunks(BLOCK).map(characters);
    let sums = blocks.scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

fn line_starts(text: &str) -> Vec<usize> {
    let mut starts = vec![0];
    let mut at = 0;
    while at < text.len() {
        at += line_length(&text.as_bytes()[at..]);
        if text[..at].ends_with(['\n', '\r']) {
            starts.push(at);
        }
    }
    starts
}

/// The beginning of a line, without its end.
fn kept(line: &str) -> &str {
    let end = line.char_indices().nth(KEPT).map_or(line.len(), |(end, _)| end);
    line[..end].trim_end_matches(['\n', '\r'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_lines_and_directives() {
        let text = "a\r\nb\rc\n# 100 \"x.click\"\nd e\n";
        let directive = Directive { at: 7, line: 100, file: Some("x.click".into()) };
        let source = Source::new("main", text, vec![directive]);
        let place = |text_at: &str| source.place(text.find(text_at).unwrap()).to_string();
        assert_eq!(place("b"), "main:2:1");
        assert_eq!(place("c\n"), "main:3:1");
        assert_eq!(place("e\n"), "x.click:100:3");
        assert_eq!(source.place(text.len()).to_string(), "x.click:101:1");
        assert_eq!(&*source.place(3).source, "b");
    }

    #[test]
    fn columns_count_characters() {
        let text = format!("x\n{}é|", "é-".repeat(2000));
        let source = Source::new("main", &text, Vec::new());
        assert_eq!(source.place(text.len() - 1).to_string(), "main:2:4002");
        assert_eq!(source.place(text.len()).to_string(), "main:2:4003");
    }
}
