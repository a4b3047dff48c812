//! The state that keys and samples change; without any I/O.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::sample::{Sample, Wanted};
use super::table::{Order, Row, Table};
use super::view::{Panel, Series, View};

/// Longest filter, in characters.
const FILTER_MAX: usize = 64;

/// The next action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Draw.
    Draw,
    /// End.
    Quit,
    /// Stop until the user's shell continues the program.
    Suspend,
}

/// The state.
#[derive(Default)]
pub struct App {
    series: Series,
    /// The panel on the screen.
    pub view: View,
    /// The panel.
    pub panel: Panel,
    /// The chosen order of each panel; `Some(None)` is that of the router.
    orders: [Option<Option<Order>>; Panel::ALL.len()],
    /// Words that rows must contain.
    pub filter: String,
    /// True while the filter is typed.
    pub is_typing: bool,
    /// True while the help is shown.
    pub is_help: bool,
    /// True if the view stays as it is.
    pub is_frozen: bool,
    /// The reason for which there are no samples.
    pub gone: Option<String>,
    /// The first row shown.
    pub first: usize,
    /// Columns left out behind the first.
    pub shift: usize,
    /// Rows that were drawn at last.
    pub page: usize,
}

impl App {
    /// Begins with a panel.
    pub fn new(panel: Panel) -> Self {
        Self { panel, ..Self::default() }
    }

    /// The questions that the panel needs.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            interfaces: self.panel == Panel::Interfaces,
            flows: self.panel == Panel::Flows,
            vrfs: self.panel == Panel::Routes,
        }
    }

    /// Takes a sample. The view of a frozen one stays.
    pub fn push(&mut self, sample: Sample, is_new: bool) {
        self.gone = None;
        self.series.push(sample, is_new);
        if !self.is_frozen {
            self.view = self.series.view().unwrap_or_default();
        }
    }

    /// The router cannot be asked.
    pub fn lose(&mut self, reason: String) {
        self.gone = Some(reason);
    }

    /// The table of the panel.
    pub fn table(&self) -> &Table {
        &self.view.tables[self.panel.index()]
    }

    /// A sentence about the panel.
    pub fn note(&self) -> Option<&str> {
        let table = self.table();
        match (table.is_pending, self.is_frozen) {
            (true, true) => Some("not shown before the view was frozen; space continues"),
            (true, false) => Some("asking the router"),
            (false, _) => table.note.as_deref(),
        }
    }

    /// The order of the panel's rows.
    pub fn order(&self) -> Option<Order> {
        self.orders[self.panel.index()].unwrap_or_else(|| self.panel.usual_order())
    }

    /// The rows of the panel, in order, those that the filter leaves out excepted.
    pub fn rows(&self) -> Vec<&Row> {
        self.table().selected(&self.filter, self.order())
    }

    /// Takes a key.
    pub fn press(&mut self, key: KeyEvent) -> Then {
        if key.kind == KeyEventKind::Release {
            return Then::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return self.press_control(key.code);
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Then::Draw;
        }
        if std::mem::take(&mut self.is_help) && !matches!(key.code, KeyCode::F(10)) {
            return Then::Draw;
        }
        self.press_plain(key.code)
    }

    fn press_control(&mut self, code: KeyCode) -> Then {
        match code {
            KeyCode::Char('c') => Then::Quit,
            KeyCode::Char('z') => Then::Suspend,
            _ => Then::Draw,
        }
    }

    fn press_plain(&mut self, code: KeyCode) -> Then {
        match code {
            KeyCode::Char('q') | KeyCode::F(10) => return Then::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Char('/' | '\\') | KeyCode::F(3 | 4) => self.is_typing = true,
            KeyCode::Char(' ') => self.freeze(),
            KeyCode::Char('>' | '.') | KeyCode::F(6) => self.sort_by_next(1),
            KeyCode::Char('<' | ',') => self.sort_by_next(-1),
            KeyCode::Char('I') => self.invert(),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab => self.turn_to(self.panel.index() + 1),
            KeyCode::BackTab => self.turn_to(self.panel.index() + Panel::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => self.turn_to(digit as usize - '1' as usize),
            other => self.scroll(other),
        }
        Then::Draw
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            _ => {}
        }
        self.first = 0;
    }

    fn freeze(&mut self) {
        self.is_frozen = !self.is_frozen;
        if !self.is_frozen {
            self.view = self.series.view().unwrap_or_default();
        }
    }

    fn turn_to(&mut self, panel: usize) {
        self.panel = Panel::ALL[panel % Panel::ALL.len()];
        (self.first, self.shift) = (0, 0);
    }

    /// Behind the last column, and before the first, is the order of the router.
    fn sort_by_next(&mut self, step: isize) {
        let columns = self.table().columns;
        // 0 is the router's.
        let now = self.order().map_or(0, |order| order.column as isize + 1);
        let next = (now + step).rem_euclid(columns.len() as isize + 1);
        let order = (next > 0).then(|| Order::by(next as usize - 1, columns));
        self.orders[self.panel.index()] = Some(order);
    }

    fn invert(&mut self) {
        let inverted = |order: Order| Order { descending: !order.descending, ..order };
        self.orders[self.panel.index()] = Some(self.order().map(inverted));
    }

    fn scroll(&mut self, code: KeyCode) {
        let (page, last) = (self.page.max(1), self.rows().len().saturating_sub(self.page.max(1)));
        let first = match code {
            KeyCode::Up => self.first.saturating_sub(1),
            KeyCode::Down => self.first + 1,
            KeyCode::PageUp => self.first.saturating_sub(page),
            KeyCode::PageDown => self.first + page,
            KeyCode::Home => 0,
            KeyCode::End => last,
            KeyCode::Left => {
                self.shift = self.shift.saturating_sub(1);
                self.first
            }
            KeyCode::Right => {
                self.shift = (self.shift + 1).min(self.table().columns.len().saturating_sub(2));
                self.first
            }
            _ => self.first,
        };
        self.first = first.min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Column, Mood, Value};
    use crate::view::tests::sample;

    const COLUMNS: [Column; 3] =
        [Column::text("NAME", 6), Column::number("RATE", 5), Column::number("MORE", 5)];

    fn app() -> App {
        let mut app = App::new(Panel::Interfaces);
        let row = |n: u64| {
            let values = vec![Value::Text(format!("p{n}")), Value::Count(n), Value::Count(100 - n)];
            Row { values, mood: Mood::Usual }
        };
        app.view.tables[0] =
            Table { columns: &COLUMNS, rows: (0..30).map(row).collect(), ..Table::default() };
        app.page = 10;
        app
    }

    fn press(app: &mut App, codes: impl IntoIterator<Item = KeyCode>) -> Then {
        let press = |then, code| match then {
            Then::Draw => app.press(KeyEvent::new(code, KeyModifiers::NONE)),
            other => other,
        };
        codes.into_iter().fold(Then::Draw, press)
    }

    fn type_in(app: &mut App, keys: &str) -> Then {
        press(app, keys.chars().map(KeyCode::Char))
    }

    fn first(app: &App) -> String {
        app.rows()[0].values[0].shown()
    }

    #[test]
    fn keys_are_those_of_htop() {
        for code in [KeyCode::Char('q'), KeyCode::F(10)] {
            assert_eq!(press(&mut app(), [code]), Then::Quit);
        }
        let control = |c| app().press(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL));
        assert_eq!(
            (control('c'), control('z'), control('q')),
            (Then::Quit, Then::Suspend, Then::Draw)
        );
        let mut app = app();
        press(&mut app, [KeyCode::F(1)]);
        assert!(app.is_help);
        // Any key ends the help and does nothing else.
        assert_eq!(type_in(&mut app, "q"), Then::Draw);
        assert!(!app.is_help);
    }

    #[test]
    fn panels_are_turned_to_by_tab_and_number_and_ask_for_their_data() {
        let mut app = app();
        press(&mut app, [KeyCode::BackTab]);
        assert_eq!(
            (app.panel, app.wanted()),
            (Panel::Routes, Wanted { vrfs: true, ..Wanted::default() })
        );
        press(&mut app, [KeyCode::Tab]);
        let interfaces = Wanted { interfaces: true, ..Wanted::default() };
        assert_eq!((app.panel, app.wanted()), (Panel::Interfaces, interfaces));
        type_in(&mut app, "4");
        assert_eq!(
            (app.panel, app.wanted()),
            (Panel::Flows, Wanted { flows: true, ..Wanted::default() })
        );
        type_in(&mut app, "9");
        assert_eq!(app.panel, Panel::Flows);
    }

    #[test]
    fn the_order_goes_through_all_columns_and_back_to_the_router_s() {
        let mut app = app();
        let mut orders = Vec::new();
        for _ in 0..4 {
            type_in(&mut app, ">");
            orders.push(app.order());
        }
        let by = |column| Some(Order::by(column, &COLUMNS));
        assert_eq!(orders, [by(0), by(1), by(2), None]);
        type_in(&mut app, "<<");
        assert_eq!((app.order(), &*first(&app)), (by(1), "p29"));
        type_in(&mut app, "I");
        assert_eq!(first(&app), "p0");
        // Each panel has its own.
        type_in(&mut app, "3");
        assert_eq!(app.order(), Panel::Drops.usual_order());
        type_in(&mut app, "1");
        assert_eq!(app.order(), Some(Order { column: 1, descending: false }));
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let mut app = app();
        type_in(&mut app, "/P29qq");
        press(&mut app, [KeyCode::Backspace, KeyCode::Backspace]);
        assert_eq!((app.rows().len(), &*first(&app), app.is_typing), (1, "p29", true));
        press(&mut app, [KeyCode::Enter]);
        assert!(!app.is_typing && app.rows().len() == 1);
        press(&mut app, [KeyCode::Esc]);
        assert_eq!(app.rows().len(), 30);
        type_in(&mut app, &format!("/{}", "x".repeat(500)));
        assert_eq!(app.filter.len(), FILTER_MAX);
        press(&mut app, [KeyCode::Esc]);
        assert!(!app.is_typing && app.filter.is_empty());
    }

    #[test]
    fn a_frozen_view_stays_until_it_is_continued() {
        let mut app = App::default();
        app.push(sample(0, 1), true);
        type_in(&mut app, " ");
        let frozen = app.view.clone();
        app.push(sample(1000, 2), false);
        assert_eq!(app.view, frozen);
        type_in(&mut app, " ");
        assert_ne!(app.view, frozen);
    }

    #[test]
    fn a_router_that_is_gone_is_there_again_with_its_next_sample() {
        let mut app = App::default();
        app.push(sample(0, 1), true);
        app.lose("why".into());
        assert_eq!((app.gone.as_deref(), app.view.title.is_empty()), (Some("why"), false));
        app.push(sample(0, 0), true);
        assert_eq!(app.gone, None);
    }

    #[test]
    fn rows_scroll_within_the_table() {
        let mut app = app();
        press(&mut app, [KeyCode::Up, KeyCode::PageDown, KeyCode::Down]);
        assert_eq!(app.first, 11);
        press(&mut app, [KeyCode::PageDown, KeyCode::PageDown, KeyCode::Down]);
        assert_eq!(app.first, 20);
        press(&mut app, [KeyCode::Home, KeyCode::End]);
        assert_eq!(app.first, 20);
        press(&mut app, [KeyCode::Right, KeyCode::Right, KeyCode::Right, KeyCode::Left]);
        assert_eq!(app.shift, 0);
        type_in(&mut app, "/p1");
        assert_eq!(app.first, 0);
    }
}
