//! The report as text, for terminals of 80 columns; commands are never broken, so that they can be copied.

use super::{Finding, Report, Severity};
use crate::wrap::wrap;

pub(super) const WIDTH: usize = 80;

/// Columns before the text that follows a finding's severity.
pub(super) const INDENT: usize = 9;

/// Returns the findings, the most severe first, then the number of each severity.
pub fn text(report: &Report) -> String {
    let mut lines: Vec<String> = report.findings.iter().flat_map(finding).collect();
    lines.push(format!("\n{}", counts(&report.findings)));
    lines.join("\n")
}

/// Returns the number of findings of each severity.
pub(super) fn counts(findings: &[Finding]) -> String {
    let count =
        |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    format!(
        "errors {}, warnings {}, notes {}, ok {}",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note),
        count(Severity::Ok)
    )
}

/// Returns the lines of a finding.
pub(super) fn finding(finding: &Finding) -> Vec<String> {
    let Finding { check, severity, found, cost, mend } = finding;
    let mut lines = Vec::new();
    for (index, line) in wrap(&format!("{check}: {found}"), WIDTH - INDENT).into_iter().enumerate()
    {
        let margin = if index == 0 { severity.name() } else { "" };
        lines.push(format!("{margin:<INDENT$}{line}"));
    }
    let indented = |line: String| format!("{:INDENT$}{line}", "");
    lines.extend(cost.iter().flat_map(|cost| wrap(cost, WIDTH - INDENT)).map(indented));
    lines.extend(mend.iter().map(|command| format!("{:INDENT$}  {command}", "")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_and_commands_are_not() {
        let long = "word ".repeat(30);
        let command = format!("echo {}", "x".repeat(100));
        let finding =
            Finding::warning("test", long.trim()).cost("It costs.").mend([command.clone()]);
        let ok = Finding::ok("other", "fine");
        let report = Report { file: None, worst: Severity::Warning, findings: vec![finding, ok] };
        let text = text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("warning  test: word word"), "{text}");
        assert!(lines[1].starts_with("         word"), "{text}");
        assert!(lines.iter().all(|line| line.len() <= WIDTH || line.ends_with(&command)), "{text}");
        assert!(text.contains(&format!("\n         It costs.\n           {command}\n")), "{text}");
        assert!(
            text.ends_with("ok       other: fine\n\nerrors 0, warnings 1, notes 0, ok 1"),
            "{text}"
        );
    }
}
