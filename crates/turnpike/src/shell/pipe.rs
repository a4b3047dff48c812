//! Commands after `|`: the output passes through them line by line.

use std::io::{self, Write};

use anyhow::{Result, bail};
use clap::Subcommand;
use regex::bytes::{Regex, RegexBuilder};

/// A pipe as typed.
#[derive(Debug, Subcommand)]
pub enum PipeArgs {
    /// Only lines that match a regular expression
    Grep {
        /// Only lines that do not match
        #[arg(short = 'v', long)]
        invert: bool,
        /// Ignore the case of letters
        #[arg(short, long)]
        ignore_case: bool,
        /// The expression
        pattern: String,
    },
    /// As JSON; must be the first pipe
    Json,
    /// The number of lines
    Count,
}

/// Processing of lines by a pipe.
#[derive(Debug)]
enum Stage {
    Grep { pattern: Regex, invert: bool },
    Count(u64),
}

/// All pipes of a line.
#[derive(Debug, Default)]
pub struct Pipes {
    /// True if the command is to answer in JSON.
    pub json: bool,
    stages: Vec<Stage>,
}

impl Pipes {
    /// Appends a pipe.
    pub fn add(&mut self, pipe: PipeArgs) -> Result<()> {
        match pipe {
            PipeArgs::Json if self.json || !self.stages.is_empty() => {
                bail!("json: goes right behind the command: show ports | json | grep …")
            }
            PipeArgs::Json => self.json = true,
            PipeArgs::Count => self.stages.push(Stage::Count(0)),
            PipeArgs::Grep { pattern, invert, ignore_case } => {
                let built = RegexBuilder::new(&pattern).case_insensitive(ignore_case).build();
                let pattern = built.map_err(|error| anyhow::anyhow!("grep: {error}"))?;
                self.stages.push(Stage::Grep { pattern, invert });
            }
        }
        Ok(())
    }

    /// Returns a writer whose lines pass through the pipes to `out`.
    pub fn to(self, out: &mut dyn Write) -> Piped<'_> {
        Piped { stages: self.stages, line: Vec::new(), out }
    }
}

/// Writes lines through pipes.
pub struct Piped<'a> {
    stages: Vec<Stage>,
    /// The line that is not complete yet.
    line: Vec<u8>,
    out: &'a mut dyn Write,
}

impl Piped<'_> {
    /// Completes the last line, and writes results that depend on the end.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            pass(&mut self.stages, &line, self.out)?;
        }
        let mut rest = &mut self.stages[..];
        while let Some((first, behind)) = rest.split_first_mut() {
            if let Stage::Count(count) = first {
                pass(behind, format!("{count}\n").as_bytes(), self.out)?;
            }
            rest = behind;
        }
        self.out.flush()
    }
}

/// Passes a line with its line ending through the stages, and the result to `out`.
fn pass(stages: &mut [Stage], line: &[u8], out: &mut dyn Write) -> io::Result<()> {
    for stage in stages {
        match stage {
            Stage::Count(count) => {
                *count += 1;
                return Ok(());
            }
            Stage::Grep { pattern, invert } => {
                let text = line.strip_suffix(b"\n").unwrap_or(line);
                if pattern.is_match(text) == *invert {
                    return Ok(());
                }
            }
        }
    }
    out.write_all(line)
}

impl Write for Piped<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stages.is_empty() {
            return self.out.write(bytes);
        }
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.ends_with(b"\n") {
                pass(&mut self.stages, &self.line, self.out)?;
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grep(pattern: &str, invert: bool, ignore_case: bool) -> PipeArgs {
        PipeArgs::Grep { pattern: pattern.to_owned(), invert, ignore_case }
    }

    /// Returns the result for a text that is written byte by byte.
    fn through(pipes: Vec<PipeArgs>, text: &str) -> String {
        let mut all = Pipes::default();
        pipes.into_iter().for_each(|pipe| all.add(pipe).unwrap());
        let mut out = Vec::new();
        let mut piped = all.to(&mut out);
        text.bytes().for_each(|byte| piped.write_all(&[byte]).unwrap());
        piped.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    const TEXT: &str = "left up\nRight up\nright down\nlast";

    #[test]
    fn grep_keeps_lines() {
        assert_eq!(through(vec![], TEXT), TEXT);
        assert_eq!(through(vec![grep("^right", false, false)], TEXT), "right down\n");
        assert_eq!(through(vec![grep("RIGHT", false, true)], TEXT), "Right up\nright down\n");
        assert_eq!(through(vec![grep("right", true, true)], TEXT), "left up\nlast");
        let both = vec![grep("ight", false, false), grep("up$", true, false)];
        assert_eq!(through(both, TEXT), "right down\n");
    }

    #[test]
    fn count_counts_what_comes_to_it() {
        assert_eq!(through(vec![PipeArgs::Count], TEXT), "4\n");
        assert_eq!(through(vec![grep("up", false, false), PipeArgs::Count], TEXT), "2\n");
        assert_eq!(through(vec![PipeArgs::Count, grep("4", false, false)], TEXT), "4\n");
        assert_eq!(through(vec![PipeArgs::Count, PipeArgs::Count], TEXT), "1\n");
        assert_eq!(through(vec![PipeArgs::Count], ""), "0\n");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut pipes = Pipes::default();
        pipes.add(PipeArgs::Count).unwrap();
        assert!(pipes.add(PipeArgs::Json).unwrap_err().to_string().contains("right behind"));
        assert!(pipes.add(grep("(", false, false)).unwrap_err().to_string().contains("grep: "));
    }
}
