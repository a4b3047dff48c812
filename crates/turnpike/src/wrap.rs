//! Wrapping of text at word boundaries.

/// Returns lines of at most `width` characters, unless a word is longer. Existing line breaks are
/// kept.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let length = line.chars().count() + 1 + word.chars().count();
            if !line.is_empty() && length > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn words_stay_whole() {
        assert_eq!(wrap("one two  three\nfour", 7), ["one two", "three", "four"]);
        assert_eq!(wrap("µµµ µµµ extraordinary", 7), ["µµµ µµµ", "extraordinary"]);
        assert_eq!(wrap("a\n\nb", 7), ["a", "", "b"]);
    }
}
