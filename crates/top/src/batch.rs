//! The view as text, for scripts: `turnpike top --batch -n 3`.

use std::io::{self, ErrorKind, Write};
use std::thread;

use anyhow::{Context, Result};

use super::Options;
use super::draw::throughput;
use super::sample::{Source, Wanted};
use super::text::Charset;
use super::view::{Panel, Series, View};

/// Prints a view for each sample behind the first, so that all have rates. A reader that closes the output ends it.
pub fn run(options: &Options) -> Result<()> {
    let mut source = Source::new(&options.socket);
    let panels = options.panel.as_ref().map_or(&Panel::ALL[..], std::slice::from_ref);
    let wants = |panel| panels.contains(&panel);
    let wanted = Wanted {
        interfaces: wants(Panel::Interfaces),
        flows: wants(Panel::Flows),
        vrfs: wants(Panel::Routes),
    };
    let (mut series, set) = (Series::default(), Charset::of_environment());
    let (sample, is_new) = source.sample(wanted)?;
    series.push(sample, is_new);
    let mut printed = 0;
    while options.count.is_none_or(|count| printed < count) {
        thread::sleep(options.delay);
        let (sample, is_new) = source.sample(wanted)?;
        series.push(sample, is_new);
        let view = series.view().context("no sample: a defect, please report")?;
        let gap = if printed > 0 { "\n" } else { "" };
        match write(&(gap.to_owned() + &text(&view, panels, set))) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        printed += 1;
    }
    Ok(())
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The head, and a table for each panel.
fn text(view: &View, panels: &[Panel], set: Charset) -> String {
    let mut lines = vec![set.clean(&view.title)];
    lines.extend(throughput(view, usize::MAX));
    for &panel in panels {
        let (table, order) = (&view.tables[panel.index()], panel.usual_order());
        let rows = table.selected("", order);
        let widths = table.widths(&rows, 0, usize::MAX);
        lines.push(format!("\n{}", panel.name()));
        if !rows.is_empty() {
            lines.push(table.title_line(&widths, None, set));
        }
        lines.extend(rows.iter().map(|row| table.line(row, &widths, set)));
        lines.extend(table.note.clone());
    }
    let trimmed = lines.iter().map(|line| line.trim_end());
    trimmed.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Column, Mood, Row, Table, Value};

    static COLUMNS: [Column; 2] = [Column::number("DROP/S", 6), Column::text("STEP", 6)];

    #[test]
    fn a_batch_is_lines_of_columns() {
        let mut view = View { title: "turnpike\x1b[2J".into(), ..View::default() };
        let row = |step: &str| Row {
            values: vec![Value::Rate(Some(5.0)), Value::text(step)],
            mood: Mood::Usual,
        };
        let rows = vec![row("ttl\n"), row(&"x".repeat(100))];
        view.tables[Panel::Drops.index()] = Table { columns: &COLUMNS, rows, ..Table::default() };
        view.tables[Panel::Flows.index()].note = Some("none".into());
        let text = text(&view, &[Panel::Drops, Panel::Flows], Charset { utf8: false });
        let long = "x".repeat(100);
        let expected = format!(
            "turnpike?[2J\nin - pps - bps   out - pps - bps   drops -/s\n\nDrops\n DROP/S STEP\n      5 {long}\n      \
             5 ttl?\n\nFlows\nnone\n"
        );
        assert_eq!(text, expected);
    }
}
