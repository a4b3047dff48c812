//! Splits a line into words and pipes: blanks separate words, `|` separates commands, `'…'` and
//! `"…"` protect both, `\` protects one character, `#` before a word ends the line.

/// A word and its position in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The text without quotes.
    pub text: String,
    /// Byte offset of its start.
    pub start: usize,
    /// Byte offset after its end.
    pub end: usize,
}

/// A line split into words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The words of the command, then those of each pipe.
    pub stages: Vec<Vec<Word>>,
    /// The unclosed quote.
    pub open: Option<char>,
}

impl Line {
    /// Splits any text.
    pub fn read(text: &str) -> Self {
        let mut line = Self { stages: vec![Vec::new()], open: None };
        let mut word: Option<Word> = None;
        let mut escaped = false;
        for (at, c) in text.char_indices() {
            let plain = line.open.is_none() && !escaped;
            match c {
                ' ' | '\t' | '\r' | '\n' if plain => line.end(&mut word),
                '|' if plain => {
                    line.end(&mut word);
                    line.stages.push(Vec::new());
                }
                '#' if plain && word.is_none() => break,
                _ => {
                    let word = word.get_or_insert_with(|| Word {
                        text: String::new(),
                        start: at,
                        end: at,
                    });
                    word.end = at + c.len_utf8();
                    match c {
                        '\\' if !escaped && line.open != Some('\'') => {
                            escaped = true;
                            continue;
                        }
                        '\'' | '"' if plain => line.open = Some(c),
                        _ if !escaped && line.open == Some(c) => line.open = None,
                        _ => word.text.push(c),
                    }
                }
            }
            escaped = false;
        }
        line.end(&mut word);
        line
    }

    fn end(&mut self, word: &mut Option<Word>) {
        if let (Some(word), Some(stage)) = (word.take(), self.stages.last_mut()) {
            stage.push(word);
        }
    }

    /// Returns true if the line contains no command.
    pub fn is_empty(&self) -> bool {
        matches!(&self.stages[..], [only] if only.is_empty())
    }

    /// Returns the texts of each stage.
    pub fn texts(&self) -> Vec<Vec<String>> {
        let texts = |stage: &Vec<Word>| stage.iter().map(|word| word.text.clone()).collect();
        self.stages.iter().map(texts).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(text: &str) -> Vec<Vec<String>> {
        Line::read(text).texts()
    }

    #[test]
    fn words_quotes_and_pipes() {
        assert_eq!(texts(" show  ports\t"), [["show", "ports"]]);
        assert_eq!(
            texts("show ports|grep 'a | b' | count").concat(),
            ["show", "ports", "grep", "a | b", "count"]
        );
        assert_eq!(texts(r#"grep "a \" b" c\ d '\' """#), [["grep", "a \" b", "c d", "\\", ""]]);
        assert_eq!(texts("show ports # | grep x"), [["show", "ports"]]);
        assert_eq!(texts("a#b"), [["a#b"]]);
        assert!(Line::read("  # nothing").is_empty() && Line::read("").is_empty());
        assert!(!Line::read(" | json").is_empty());
    }

    #[test]
    fn places_and_open_quotes_are_known() {
        let line = Line::read("show 'ports");
        assert_eq!(line.open, Some('\''));
        let word = Word { text: "ports".to_owned(), start: 5, end: 11 };
        assert_eq!(line.stages, [vec![Word { text: "show".to_owned(), start: 0, end: 4 }, word]]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<String>()) {
            for word in Line::read(&text).stages.concat() {
                prop_assert!(text.get(word.start..word.end).is_some());
            }
        }

        #[test]
        fn quoted_words_are_read_as_they_are(words in proptest::collection::vec("[^'\\PC]*", 1..5)) {
            let text: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
            prop_assert_eq!(texts(&text.join(" ")), [words]);
        }
    }
}
