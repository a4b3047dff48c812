//! Tables of values: their order, their filter, and the widths of their columns.

use std::cmp::Ordering;

use unicode_width::UnicodeWidthStr;

use super::text::{Charset, age, percent, scaled};

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text, which may come from anybody.
    Text(String),
    /// A number a second; `None`: not known yet.
    Rate(Option<f64>),
    /// A share of 1.
    Share(Option<f64>),
    /// A number that is not rounded.
    Count(u64),
    /// Seconds since an event; `None`: it was not seen.
    Age(Option<f64>),
}

impl Value {
    /// A copy of a text.
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// As shown; its characters are not yet clean.
    pub fn shown(&self) -> String {
        let or_dash =
            |number: Option<f64>, of: fn(f64) -> String| number.map_or_else(|| "-".to_owned(), of);
        match self {
            Self::Text(text) => text.clone(),
            Self::Rate(rate) => or_dash(*rate, scaled),
            Self::Share(share) => or_dash(*share, percent),
            Self::Count(count) => count.to_string(),
            Self::Age(seconds) => or_dash(*seconds, age),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Text(_) => None,
            Self::Rate(number) | Self::Share(number) => *number,
            Self::Count(count) => Some(*count as f64),
            // The most recent is the largest.
            Self::Age(seconds) => seconds.map(|seconds| -seconds),
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            // Unknown ones are the smallest.
            _ => {
                let of = |value: &Self| value.number().unwrap_or(f64::NEG_INFINITY);
                of(self).total_cmp(&of(other))
            }
        }
    }
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// Its least width.
    pub least: usize,
    /// True for numbers: aligned to the right, the largest first.
    pub numeric: bool,
}

impl Column {
    /// A column of texts.
    pub const fn text(title: &'static str, least: usize) -> Self {
        Self { title, least, numeric: false }
    }

    /// A column of numbers.
    pub const fn number(title: &'static str, least: usize) -> Self {
        Self { title, least, numeric: true }
    }
}

/// The look of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As others.
    #[default]
    Usual,
    /// Something is wrong.
    Bad,
    /// Nothing happens.
    Quiet,
}

/// A row: a value for each column.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The values.
    pub values: Vec<Value>,
    /// Its look.
    pub mood: Mood,
}

impl Row {
    fn contains(&self, words: &str) -> bool {
        let texts: Vec<_> = self.values.iter().map(Value::shown).collect();
        texts.join(" ").to_lowercase().contains(&words.to_lowercase())
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Its columns.
    pub columns: &'static [Column],
    /// Its rows.
    pub rows: Vec<Row>,
    /// A sentence about it.
    pub note: Option<String>,
    /// True if the router was not asked for it.
    pub is_pending: bool,
}

/// An order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The column.
    pub column: usize,
    /// The largest first.
    pub descending: bool,
}

impl Order {
    /// The usual direction of a column: the largest number first, texts by the alphabet.
    pub fn by(column: usize, columns: &[Column]) -> Self {
        Self { column, descending: columns.get(column).is_some_and(|column| column.numeric) }
    }
}

impl Table {
    /// The rows that contain the words, in this order or else in the router's. Equal rows keep their order.
    pub fn selected(&self, words: &str, order: Option<Order>) -> Vec<&Row> {
        let mut rows: Vec<_> = self.rows.iter().filter(|row| row.contains(words)).collect();
        if let Some(Order { column, descending }) = order {
            rows.sort_by(|one, other| {
                let values = one.values.get(column).zip(other.values.get(column));
                let order = values.map_or(Ordering::Equal, |(one, other)| one.compare(other));
                if descending { order.reverse() } else { order }
            });
        }
        rows
    }

    /// The columns that fit into a width, with their widths, from the first one and that number behind it on. Of the
    /// last one a part may fit.
    pub fn widths(&self, rows: &[&Row], shift: usize, width: usize) -> Vec<(usize, usize)> {
        const PART: usize = 8;
        let shift = shift.min(self.columns.len().saturating_sub(2));
        let shown = (0..self.columns.len()).filter(|column| *column == 0 || *column > shift);
        let (mut left, mut widths) = (width, Vec::new());
        for column in shown {
            let gap = usize::from(!widths.is_empty());
            let wanted = self.width(column, rows);
            let room = left.saturating_sub(gap);
            if room < wanted.min(PART) || room == 0 {
                break;
            }
            widths.push((column, wanted.min(room)));
            left = room.saturating_sub(wanted);
        }
        widths
    }

    fn width(&self, column: usize, rows: &[&Row]) -> usize {
        let Column { title, least, .. } = self.columns[column];
        let values = rows.iter().filter_map(|row| row.values.get(column));
        let widest = values.map(|value| value.shown().width()).max().unwrap_or(0);
        // The mark of the order stands behind the title.
        widest.max(least).max(title.width() + 1)
    }

    /// A line of the titles.
    pub fn title_line(
        &self,
        widths: &[(usize, usize)],
        order: Option<Order>,
        set: Charset,
    ) -> String {
        let titles = widths.iter().map(|&(column, width)| {
            let Column { title, numeric, .. } = self.columns[column];
            let order = order.filter(|order| order.column == column);
            let mark = order.map_or("", |order| set.sort_mark(order.descending));
            // The mark is not the router's.
            let space = " ".repeat(width.saturating_sub(title.width() + mark.width()));
            let text = format!("{title}{mark}");
            match (text.width() > width, numeric) {
                (true, _) => set.fit(title, width, numeric),
                (false, true) => space + &text,
                (false, false) => text + &space,
            }
        });
        titles.collect::<Vec<_>>().join(" ")
    }

    /// A line of a row.
    pub fn line(&self, row: &Row, widths: &[(usize, usize)], set: Charset) -> String {
        let cells = widths.iter().map(|&(column, width)| {
            let text = row.values.get(column).map_or_else(String::new, Value::shown);
            set.fit(&text, width, self.columns[column].numeric)
        });
        cells.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] =
        [Column::text("NAME", 6), Column::number("RATE", 5), Column::text("WHY", 3)];

    fn row(name: &str, rate: Option<f64>, why: &str) -> Row {
        let values = vec![Value::text(name), Value::Rate(rate), Value::text(why)];
        Row { values, mood: Mood::Usual }
    }

    fn table() -> Table {
        let rows =
            vec![row("b", Some(2e6), "Sun"), row("a", None, "rain"), row("c", Some(5.0), "")];
        Table { columns: &COLUMNS, rows, ..Table::default() }
    }

    fn names(rows: &[&Row]) -> String {
        rows.iter().map(|row| row.values[0].shown()).collect()
    }

    #[test]
    fn rows_are_selected_and_sorted() {
        let table = table();
        assert_eq!(names(&table.selected("", None)), "bac");
        let by = |column| Some(Order::by(column, &COLUMNS));
        assert_eq!(names(&table.selected("", by(0))), "abc");
        // Unknown rates come last.
        assert_eq!(names(&table.selected("", by(1))), "bca");
        let ascending = Some(Order { column: 1, descending: false });
        assert_eq!(names(&table.selected("", ascending)), "acb");
        assert_eq!(names(&table.selected("SUN", None)), "b");
        assert_eq!(names(&table.selected("2.00m", None)), "b");
        assert_eq!(names(&table.selected("", Some(Order { column: 9, descending: true }))), "bac");
    }

    #[test]
    fn recent_events_come_first() {
        let age = |seconds| Row { values: vec![Value::Age(seconds)], mood: Mood::Usual };
        let (columns, rows) = (&COLUMNS[1..2], vec![age(None), age(Some(9.0)), age(Some(1.0))]);
        let columns: &'static [Column] = columns;
        let table = Table { columns, rows, ..Table::default() };
        let sorted = table.selected("", Some(Order { column: 0, descending: true }));
        let shown: Vec<_> = sorted.iter().map(|row| row.values[0].shown()).collect();
        assert_eq!(shown, ["1s", "9s", "-"]);
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out() {
        let table = table();
        let rows = table.selected("", None);
        assert_eq!(table.widths(&rows, 0, 80), [(0, 6), (1, 5), (2, 4)]);
        assert_eq!(table.widths(&rows, 0, 12), [(0, 6), (1, 5)]);
        assert_eq!(table.widths(&rows, 0, 11), [(0, 6)]);
        assert_eq!(table.widths(&rows, 1, 11), [(0, 6), (2, 4)]);
        // Never less than the first and one other.
        assert_eq!(table.widths(&rows, 7, 11), [(0, 6), (2, 4)]);
        assert_eq!(table.widths(&rows, 0, 0), []);
    }

    #[test]
    fn lines_stand_below_their_titles() {
        let (table, set) = (table(), Charset { utf8: false });
        let rows = table.selected("", None);
        let widths = table.widths(&rows, 0, 80);
        assert_eq!(
            table.title_line(&widths, Some(Order::by(1, &COLUMNS)), set),
            "NAME   RATEv WHY "
        );
        assert_eq!(table.line(rows[0], &widths, set), "b      2.00M Sun ");
    }
}
