//! Texts for a terminal: numbers with units, and strings without anything that a terminal would obey.

use std::env;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Abilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charset {
    /// False: ASCII.
    pub utf8: bool,
}

impl Charset {
    /// That of the user's locale.
    pub fn of_environment() -> Self {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
        Self::of_locale(&locale.unwrap_or_default())
    }

    fn of_locale(locale: &str) -> Self {
        let locale = locale.to_ascii_lowercase();
        Self { utf8: locale.contains("utf-8") || locale.contains("utf8") }
    }

    /// Replaces characters that move the cursor, take no place of their own, or that the terminal cannot show.
    pub fn clean(self, text: &str) -> String {
        let shown = |c: char| {
            let has_place = c.width().is_some_and(|width| width > 0);
            if has_place && (self.utf8 || c.is_ascii()) { c } else { '?' }
        };
        text.chars().map(shown).collect()
    }

    /// Cuts or fills a text to this width; a cut one ends with a mark.
    pub fn fit(self, text: &str, width: usize, right: bool) -> String {
        let text = self.cut(&self.clean(text), width);
        let space = " ".repeat(width.saturating_sub(text.width()));
        if right { space + &text } else { text + &space }
    }

    fn cut(self, text: &str, width: usize) -> String {
        if text.width() <= width {
            return text.to_owned();
        }
        let (mut cut, mut used) = (String::new(), 0);
        for c in text.chars() {
            used += c.width().unwrap_or(0);
            if used >= width {
                break;
            }
            cut.push(c);
        }
        if width > 0 {
            cut.push(if self.utf8 { '…' } else { '~' });
        }
        cut
    }

    /// The mark of the column by which rows are sorted.
    pub fn sort_mark(self, descending: bool) -> &'static str {
        match (self.utf8, descending) {
            (true, true) => "▼",
            (true, false) => "▲",
            (false, true) => "v",
            (false, false) => "^",
        }
    }
}

/// Formats a number with at most three digits and a unit of thousands: `0`, `1.5`, `999`, `12.3k`, `1.20M`.
pub fn scaled(number: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut number, mut unit) = (number, 0);
    // Values that would be rounded to 1000.
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    let whole = unit == 0 && (number.fract() == 0.0 || number >= 9.95);
    let digits = match number {
        _ if whole => 0,
        ..9.995 if unit > 0 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{}", UNITS[unit])
}

/// Formats a share of 1 in percent.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 99.95 { format!("{percent:.0}") } else { format!("{percent:.1}") }
}

/// Formats seconds: `7s`, `3m`, `5h`, `12d`.
pub fn age(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats a time since a start: `3d 04:05:06`.
pub fn uptime(seconds: u64) -> String {
    let days = seconds / 86_400;
    let of_day = format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    if days == 0 { of_day } else { format!("{days}d {of_day}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTF8: Charset = Charset { utf8: true };
    const ASCII: Charset = Charset { utf8: false };

    #[test]
    fn numbers_have_three_digits_at_most_and_a_unit() {
        for (number, text) in [
            (0.0, "0"),
            (0.44, "0.4"),
            (7.0, "7"),
            (42.4, "42"),
            (999.4, "999"),
            (999.5, "1.00k"),
            (12_345.0, "12.3k"),
            (999_499.0, "999k"),
            (999_500.0, "1.00M"),
            (1_234_000_000.0, "1.23G"),
            (5e19, "50000P"),
        ] {
            assert_eq!(scaled(number), text, "{number}");
        }
        assert_eq!([percent(0.0), percent(0.4567), percent(1.0)], ["0.0", "45.7", "100"]);
        assert_eq!([age(59.9), age(60.0), age(7200.0), age(2e5)], ["59s", "1m", "2h", "2d"]);
        assert_eq!([uptime(3661), uptime(90_061)], ["01:01:01", "1d 01:01:01"]);
    }

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_obey() {
        assert_eq!(UTF8.clean("a\x1b[2Jb\r\n\u{9b}31m"), "a?[2Jb???31m");
        // The direction of text, and a mark that is set on the character before it.
        assert_eq!(UTF8.clean("x\u{202e}y\u{301}z\u{200b}"), "x?y?z?");
        assert_eq!((UTF8.clean("größe"), ASCII.clean("größe")), ("größe".into(), "gr??e".into()));
    }

    #[test]
    fn texts_fit_their_columns_exactly() {
        assert_eq!(UTF8.fit("abc", 5, false), "abc  ");
        assert_eq!(UTF8.fit("abc", 5, true), "  abc");
        assert_eq!(
            (UTF8.fit("abcdef", 4, true), ASCII.fit("abcdef", 4, true)),
            ("abc…".into(), "abc~".into())
        );
        assert_eq!(
            (UTF8.fit("abc", 0, false), UTF8.fit("abc", 1, false)),
            (String::new(), "…".into())
        );
        // Characters that are two columns wide.
        for width in 0..8 {
            assert_eq!(UTF8.fit("日本語x", width, false).width(), width);
        }
    }

    #[test]
    fn the_locale_decides_about_the_characters() {
        for (locale, utf8) in
            [("C", false), ("", false), ("de_DE.UTF-8", true), ("C.utf8", true), ("POSIX", false)]
        {
            assert_eq!(Charset::of_locale(locale).utf8, utf8, "{locale}");
        }
    }
}
