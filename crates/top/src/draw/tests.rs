use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::table::{Column, Row, Table, Value};

static COLUMNS: [Column; 3] =
    [Column::text("INTERFACE", 15), Column::number("RX PPS", 6), Column::number("TX PPS", 6)];

fn row(name: &str, rate: f64, mood: Mood) -> Row {
    Row { values: vec![Value::text(name), Value::Rate(Some(rate)), Value::Rate(None)], mood }
}

fn app() -> App {
    let mut app = App::default();
    let meter = |n: usize| Meter {
        name: n.to_string(),
        busy: Some(0.5 * n as f64),
        packets: Some(1.25e6),
        fill: Some(31.6),
    };
    let both = |packets, bits| Throughput { packets: Some(packets), bits: Some(bits) };
    app.view = View {
        title: "turnpike 0.1.0  up 00:01:00  configuration 3".into(),
        received: both(1.25e6, 9.5e9),
        sent: both(1e6, 8e9),
        drops: Some(12.0),
        meters: (0..3).map(meter).collect(),
        ..View::default()
    };
    let rows = vec![row("lan", 2e6, Mood::Usual), row("wan", 5.0, Mood::Bad)];
    app.view.tables[0] = Table { columns: &COLUMNS, rows, ..Table::default() };
    app
}

const PLAIN: Look = Look { set: Charset { utf8: true }, colours: false };

/// The screen, lines without the space at their ends.
fn screen(app: &mut App, look: Look, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, look, frame.area(), frame.buffer_mut())).unwrap();
    let cells = terminal.backend().buffer().content();
    let line = |line: &[ratatui::buffer::Cell]| {
        line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    };
    cells.chunks(width.into()).map(line).collect()
}

fn press(app: &mut App, code: KeyCode) {
    app.press(KeyEvent::new(code, KeyModifiers::NONE));
}

#[test]
fn a_screen_of_80_columns() {
    let mut app = app();
    let expected = "\
turnpike 0.1.0  up 00:01:00  configuration 3
in 1.25M pps 9.50G bps   out 1.00M pps 8.00G bps   drops 12/s
  0[          0.0%] 1.25M pps fill 32   2[||||||||||||100%] 1.25M pps fill 32
  1[||||||||50.0%] 1.25M pps fill 32
 1 Interfaces  2 Forwarders  3 Drops  4 Flows  5 Routes
INTERFACE        RX PPS  TX PPS
lan               2.00M       -
wan                   5       -";
    let lines = screen(&mut app, PLAIN, (80, 24));
    // Bars are as wide as the terminal leaves them.
    let squeezed = |text: &str| text.replace(' ', "");
    for (line, expected) in lines.iter().zip(expected.lines()) {
        if !line.contains('[') {
            assert_eq!(line, expected);
        }
    }
    assert_eq!(lines[2].len(), 79, "{}", lines[2]);
    assert!(squeezed(&lines[2]).starts_with("0[0.0%]1.25Mppsfill322[||||"), "{}", lines[2]);
    assert!(lines[3].contains("|||") && lines[3].contains("50.0%]"), "{}", lines[3]);
    assert_eq!(lines[23], "F1Help F4FilterF6SortSpFreezeF10Quit");
    assert_eq!(app.page, 17);
}

#[test]
fn small_terminals_have_less_and_very_small_ones_say_so() {
    let lines = screen(&mut app(), PLAIN, (40, 12));
    assert_eq!(lines[1], "in 1.25M pps 9.50G bps");
    assert_eq!(lines[2], "out 1.00M pps 8.00G bps drops 12/s");
    assert!(
        lines.iter().any(|line| line == "3 forwarders, see 2" || line.starts_with("  2[")),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("lan")), "{lines:?}");
    assert_eq!(screen(&mut app(), PLAIN, (39, 12))[..2], ["39x12: too small", "need 40x10"]);
    assert_eq!(screen(&mut app(), PLAIN, (80, 9))[0], "80x9: too small");
    for size in [(1, 1), (3, 2), (40, 10), (200, 100)] {
        screen(&mut app(), PLAIN, size);
    }
}

#[test]
fn a_router_that_is_gone_and_a_frozen_view_are_marked() {
    let mut app = app();
    app.lose("socket /x: cannot reach a router".into());
    let lines = screen(&mut app, PLAIN, (80, 24));
    assert!(lines[0].ends_with("router gone, waiting") && lines[23].starts_with("socket /x"));
    // The last values stay.
    assert!(lines.iter().any(|line| line.starts_with("lan ")));
    app.gone = None;
    press(&mut app, KeyCode::Char(' '));
    app.view.title = "t".into();
    assert!(screen(&mut app, PLAIN, (80, 24))[0].ends_with("frozen"));
    // A panel that was not shown has nothing to show now.
    app.view.tables[0].is_pending = true;
    app.view.tables[0].rows.clear();
    let lines = screen(&mut app, PLAIN, (80, 24));
    assert!(lines[6].ends_with("space continues"), "{lines:?}");
    press(&mut app, KeyCode::Char(' '));
}

#[test]
fn keys_change_the_screen() {
    let mut app = app();
    press(&mut app, KeyCode::Char('/'));
    press(&mut app, KeyCode::Char('w'));
    let lines = screen(&mut app, PLAIN, (80, 24));
    assert_eq!(lines[23], "Filter: w_");
    assert!(lines.iter().all(|line| !line.starts_with("lan")), "{lines:?}");
    press(&mut app, KeyCode::Enter);
    let lines = screen(&mut app, PLAIN, (80, 24));
    assert!(lines[4].ends_with("filter: w"), "{lines:?}");
    press(&mut app, KeyCode::F(1));
    let help = screen(&mut app, PLAIN, (80, 24));
    assert!(help.iter().any(|line| line.starts_with("q F10 ^C")) && help != lines);
    press(&mut app, KeyCode::F(1));
    for _ in 0..2 {
        press(&mut app, KeyCode::Char('>'));
    }
    let lines = screen(&mut app, PLAIN, (80, 24));
    assert_eq!(lines[5], "INTERFACE       RX PPS▼  TX PPS");
}

#[test]
fn ascii_terminals_get_ascii_and_names_move_no_cursor() {
    let ascii = Look { set: Charset { utf8: false }, colours: true };
    let mut app = app();
    let name = "\x1b[2J\x07größe-of-a-long-name";
    app.view.tables[0].rows.push(row(name, 1.0, Mood::Quiet));
    app.view.title = "turnpike\x1b]0;x\x07".into();
    press(&mut app, KeyCode::Char('>'));
    let lines = screen(&mut app, ascii, (80, 24));
    assert!(lines.iter().all(|line| line.is_ascii()), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("?[2J?gr??e")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
    for key in ['/', 'g', 'ö'] {
        press(&mut app, KeyCode::Char(key));
    }
    assert_eq!(screen(&mut app, ascii, (80, 24))[23], "Filter: g?_");
}

fn colours(look: Look) -> Vec<Color> {
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    draw(&mut app(), look, buffer.area, &mut buffer);
    buffer
        .content()
        .iter()
        .flat_map(|cell| [cell.fg, cell.bg])
        .filter(|c| *c != Color::Reset)
        .collect()
}

#[test]
fn colours_are_off_or_readable_on_any_ground() {
    assert!(colours(PLAIN).is_empty());
    let coloured = colours(Look { colours: true, ..PLAIN });
    assert!(coloured.contains(&Color::Red) && coloured.contains(&Color::Green));
    assert!(coloured.iter().all(|colour| matches!(colour, Color::Red | Color::Green)));
}

proptest! {
    /// No name, size and key makes it panic or write a control character.
    #[test]
    fn any_state_is_drawn(
        names in proptest::collection::vec("[\\PC\\x00-\\x1f\u{80}-\u{9f}]{0,30}", 0..40),
        keys in proptest::collection::vec(prop_oneof![
            any::<char>().prop_map(KeyCode::Char),
            Just(KeyCode::Tab), Just(KeyCode::End), Just(KeyCode::Right), Just(KeyCode::PageDown), Just(KeyCode::Esc),
            Just(KeyCode::F(6)), Just(KeyCode::Enter),
        ], 0..12),
        (width, height) in (1_u16..120, 1_u16..50),
        utf8: bool,
    ) {
        let mut app = app();
        app.view.tables[0].rows = names.iter().map(|name| row(name, 1.0, Mood::Usual)).collect();
        for key in keys {
            press(&mut app, key);
            let look = Look { set: Charset { utf8 }, colours: true };
            let lines = screen(&mut app, look, (width, height));
            prop_assert!(lines.iter().all(|line| !line.contains(char::is_control)));
            prop_assert!(utf8 || lines.iter().all(|line| line.is_ascii()));
        }
    }
}
