//! Draws the state into a buffer of cells.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::app::App;
use super::table::Mood;
use super::text::{Charset, percent, scaled};
use super::view::{Meter, Panel, Throughput, View};

/// The least terminal.
const LEAST: (u16, u16) = (40, 10);

/// Width from which on two meters stand side by side.
const TWO_METERS: u16 = 70;

const HELP: [&str; 16] = [
    "1-5 Tab      panels: interfaces, forwarders, drops, flows, routes",
    "< > F6       sort by the column before or behind; I inverts",
    "/ F4         only rows that contain the words typed; Esc: all rows",
    "arrows       scroll; also PgUp, PgDn, Home, End",
    "space        freeze the view",
    "q F10 ^C     quit",
    "",
    "BUSY%        share of the time in which a forwarder had packets",
    "FILL         packets of a batch; the most is 64",
    "BPS          bits of frames a second, without FCS",
    "RX% TX%      share of the link, with FCS, preamble and gap",
    "MISS/S       frames that the device had no room for",
    "LAST         time since a drop was seen here",
    "CHANGE/S     changes of the table of forwarders",
    "",
    "Any key leads back.",
];

/// The characters and colours of the terminal.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The characters.
    pub set: Charset,
    /// False: attributes such as bold only.
    pub colours: bool,
}

impl Look {
    /// Colours that can be read on dark and on light ground: none is white, black or yellow.
    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn of(self, mood: Mood) -> Style {
        match mood {
            Mood::Usual => Style::new(),
            Mood::Bad => self.colour(Color::Red).add_modifier(Modifier::BOLD),
            Mood::Quiet => Style::new().add_modifier(Modifier::DIM),
        }
    }

    fn load(self, busy: f64) -> Style {
        self.colour(if busy >= 0.9 { Color::Red } else { Color::Green })
    }
}

const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Lines of a buffer, written from the top.
struct Page<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
    look: Look,
}

impl Page<'_> {
    fn write(&mut self, x: u16, y: u16, text: &str, style: Style) {
        let area = self.area;
        if x >= area.width || y >= area.height {
            return;
        }
        let clean = self.look.set.clean(text);
        let room = usize::from(area.width - x);
        self.buffer.set_stringn(area.x + x, area.y + y, clean, room, style);
    }

    fn line(&mut self, y: u16, text: &str, style: Style) {
        let line = self.look.set.fit(text, usize::from(self.area.width), false);
        self.write(0, y, &line, style);
    }
}

/// Draws all of it. Notes in the state how many rows there was room for.
pub fn draw(app: &mut App, look: Look, area: Rect, buffer: &mut Buffer) {
    let mut page = Page { buffer, area, look };
    let (width, height) = LEAST;
    if area.width < width || area.height < height {
        let size = format!("{}x{}: too small", area.width, area.height);
        page.write(0, 0, &size, BOLD);
        page.write(0, 1, &format!("need {width}x{height}"), Style::new());
        return;
    }
    head(app, &mut page);
    let top = meters(&app.view, &mut page);
    tabs(app, &mut page, top);
    let bottom = area.height - 1;
    if app.is_help {
        for (y, text) in (top + 2..bottom).zip(HELP) {
            page.line(y, text, Style::new());
        }
    } else {
        rows(app, &mut page, top + 1, bottom);
    }
    foot(app, &mut page, bottom);
}

fn head(app: &App, page: &mut Page<'_>) {
    let view = &app.view;
    page.line(0, &view.title, BOLD);
    let word = match (&app.gone, app.is_frozen) {
        (Some(_), _) => "router gone, waiting",
        (None, true) => "frozen",
        (None, false) => "",
    };
    let x = page.area.width.saturating_sub(word.len() as u16);
    let style = page.look.of(Mood::Bad).add_modifier(Modifier::REVERSED);
    page.write(x, 0, word, style);
    for (y, line) in (1..).zip(throughput(view, usize::from(page.area.width))) {
        page.line(y, &line, Style::new());
    }
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), scaled)
}

/// The totals of the router, in one line or in two.
pub fn throughput(view: &View, width: usize) -> Vec<String> {
    let of = |name, Throughput { packets, bits }| {
        format!("{name} {} pps {} bps", rate(packets), rate(bits))
    };
    let (received, sent) = (of("in", view.received), of("out", view.sent));
    let drops = format!("drops {}/s", rate(view.drops));
    let line = format!("{received}   {sent}   {drops}");
    match line.len() <= width {
        true => vec![line],
        false => vec![received, format!("{sent} {drops}")],
    }
}

/// Draws a bar for each forwarder, as far as a third of the height has room. Returns the line below.
fn meters(view: &View, page: &mut Page<'_>) -> u16 {
    let top = 1 + throughput(view, usize::from(page.area.width)).len() as u16;
    let across: u16 = if page.area.width >= TWO_METERS { 2 } else { 1 };
    let lines = (view.meters.len() as u16).div_ceil(across);
    let shown = lines.min((page.area.height / 3).max(2) - 1);
    let width = page.area.width / across;
    // As in htop, one below the other.
    for (place, of) in view.meters.iter().enumerate() {
        let place = place as u16;
        let (column, line) = (place / lines, place % lines);
        if line < shown {
            meter(of, page, (column * width, top + line), usize::from(width - 1));
        }
    }
    if shown < lines {
        let text = format!("{} forwarders, see 2", view.meters.len());
        page.line(top + shown, &text, Style::new().add_modifier(Modifier::DIM));
        return top + shown + 1;
    }
    top + lines
}

fn meter(of: &Meter, page: &mut Page<'_>, (x, y): (u16, u16), width: usize) {
    let fill = of.fill.map_or_else(|| "-".to_owned(), |fill| format!("{fill:.0}"));
    let detail = format!("]{:>6} pps fill {fill:>2}", rate(of.packets));
    let room = width.saturating_sub(4 + detail.len());
    let busy = of.busy.unwrap_or(0.0);
    let number = of.busy.map_or_else(|| "-".to_owned(), |busy| percent(busy) + "%");
    let bars = (busy * room as f64).round() as usize;
    let bar = format!("{:<room$}", "|".repeat(bars.min(room)));
    page.write(x, y, &format!("{:>3}[", of.name), BOLD);
    page.write(x + 4, y, &bar, page.look.load(busy));
    let end = x + 4 + room as u16;
    page.write(end.saturating_sub(number.len() as u16), y, &number, BOLD);
    page.write(end, y, &detail, Style::new());
}

fn tabs(app: &App, page: &mut Page<'_>, y: u16) {
    let mut x = 0;
    for (number, panel) in (1..).zip(Panel::ALL) {
        // Names are cut where there is no room for all.
        let name = if page.area.width < TWO_METERS { &panel.name()[..5] } else { panel.name() };
        let text = format!(" {number} {name} ");
        let style = if panel == app.panel { BAR } else { Style::new() };
        page.write(x, y, &text, style);
        x += text.len() as u16;
    }
    if !app.filter.is_empty() && !app.is_typing {
        page.write(x + 1, y, &format!("filter: {}", app.filter), BOLD);
    }
}

/// Draws the table from this line on, and a note below its rows.
fn rows(app: &mut App, page: &mut Page<'_>, top: u16, bottom: u16) {
    let room = usize::from(bottom.saturating_sub(top + 1));
    let note = app.note().map(str::to_owned);
    app.page = room.saturating_sub(usize::from(note.is_some()));
    let rows = app.rows();
    let first = app.first.min(rows.len().saturating_sub(app.page));
    let (table, set) = (app.table(), page.look.set);
    let widths = table.widths(&rows, app.shift, usize::from(page.area.width));
    page.line(top, "", BAR);
    page.write(0, top, &table.title_line(&widths, app.order(), set), BAR);
    let mut y = top + 1;
    for row in rows.iter().skip(first).take(app.page) {
        let mood = if app.gone.is_some() { Mood::Quiet } else { row.mood };
        page.line(y, &table.line(row, &widths, set), page.look.of(mood));
        y += 1;
    }
    let nothing = rows.is_empty() && !table.rows.is_empty();
    let note = if nothing { Some("no row contains these words".to_owned()) } else { note };
    if let Some(note) = note {
        page.line(y, &note, Style::new().add_modifier(Modifier::DIM));
    }
    app.first = first;
}

fn foot(app: &App, page: &mut Page<'_>, y: u16) {
    if app.is_typing {
        page.line(y, &format!("Filter: {}_", app.filter), BAR);
        return;
    }
    if let Some(reason) = &app.gone {
        page.line(y, reason, page.look.of(Mood::Bad));
        return;
    }
    let keys =
        [("F1", "Help "), ("F4", "Filter"), ("F6", "Sort"), ("Sp", "Freeze"), ("F10", "Quit")];
    let mut x = 0;
    for (key, action) in keys {
        page.write(x, y, key, BOLD);
        x += key.len() as u16;
        page.write(x, y, action, BAR);
        x += action.len() as u16;
    }
}

#[cfg(test)]
mod tests;
