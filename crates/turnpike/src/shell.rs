//! `turnpike shell`: the commands to a running router, typed one after the other.
//!
//! | file | concern |
//! |---|---|
//! | `line.rs` | a line's words, quotes and pipes |
//! | `grammar.rs` | abbreviated words, possible next words: all of it read from clap |
//! | `pipe.rs` | the commands after `\|` |
//! | `engine.rs` | runs a line; telnet uses it as well |
//! | `terminal.rs` | line editing, completion, history |

pub mod engine;
mod grammar;
mod line;
mod pipe;
mod terminal;

use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use api::DEFAULT_SOCKET;
use clap::Args;

use crate::commands::JsonError;
use engine::{Engine, Then};

/// Options of `turnpike shell`.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// Run this line and end; may be given several times
    #[arg(short, long = "command", value_name = "LINE")]
    command: Vec<String>,
    /// The router's socket
    #[arg(long, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// Runs the lines of the arguments, of a user at a terminal, or of a pipe; the last two until the
/// end or `quit`.
///
/// # Errors
/// Without a user at a terminal: the first line that fails, after which no other is run.
pub fn shell(args: &ShellArgs) -> Result<()> {
    let engine = Engine::new(&args.socket);
    if !args.command.is_empty() {
        return run_all(&engine, args.command.iter().cloned().map(Ok));
    }
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return terminal::converse(engine);
    }
    run_all(&engine, io::stdin().lock().lines())
}

fn run_all(engine: &Engine, lines: impl Iterator<Item = io::Result<String>>) -> Result<()> {
    let mut out = io::stdout().lock();
    for (number, line) in (1..).zip(lines) {
        let line = line.context("a line that is no text in UTF-8")?;
        match engine.run(&line, &mut out) {
            Ok(Then::GoOn) => {}
            Ok(Then::Quit) => break,
            Err(error) if error.is::<JsonError>() => return Err(error),
            Err(error) => return Err(anyhow!("line {number}: {line}: {error:#}")),
        }
        match out.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            flushed => flushed?,
        }
    }
    Ok(())
}
