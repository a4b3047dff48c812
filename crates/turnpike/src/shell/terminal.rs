//! The shell at a terminal: line editing, completion by Tab, possible next words by `?`, history.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, fs};

use anyhow::Result;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext,
    EventHandler, ExternalPrinter, Helper, Highlighter, Hinter, KeyEvent, RepeatCount, Validator,
};

use super::engine::{Engine, Then, may_ask, quoted};
use super::grammar::Kind;

const PROMPT: &str = "turnpike> ";

/// Lines kept in the history.
const HISTORY: usize = 1000;

/// Reads and runs lines until `quit` or Ctrl-D. Ctrl-C ends the output of a command, or drops the
/// line.
pub fn converse(engine: Engine) -> Result<()> {
    let engine = Arc::new(engine);
    let mut editor = editor(&engine)?;
    let history = history_file();
    if let Some(file) = &history {
        // There is no history file the first time.
        let _ = editor.load_history(file);
    }
    let stopped = watch_interrupts()?;
    println!("? says what can come next, Tab completes, help lists the commands, quit leaves.");
    loop {
        let line = match editor.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        if !line.trim().is_empty() {
            editor.add_history_entry(&line)?;
            // Saved immediately, in case the shell is killed. Without a file there is no history.
            let _ = history.as_deref().map(|file| keep(&mut editor, file));
        }
        stopped.store(false, Ordering::Relaxed);
        let mut out = Stoppable { out: io::stdout().lock(), stopped: &stopped };
        // Pasted text may have several lines.
        for line in line.lines() {
            match engine.run(line, &mut out) {
                Ok(Then::GoOn) => {}
                Ok(Then::Quit) => return Ok(()),
                Err(error) => {
                    eprintln!("{error:#}");
                    break;
                }
            }
        }
    }
    Ok(())
}

type LineEditor = Editor<Completion, FileHistory>;

fn editor(engine: &Arc<Engine>) -> Result<LineEditor> {
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .completion_show_all_if_ambiguous(true)
        .history_ignore_space(true)
        .max_history_size(HISTORY)?
        .build();
    let history = FileHistory::with_config(&config);
    let mut editor = Editor::with_history(config, history)?;
    editor.set_helper(Some(Completion(engine.clone())));
    // A terminal that cannot print beside the line accepts `?` with Enter.
    if let Ok(printer) = editor.create_external_printer() {
        let ask = Ask { engine: engine.clone(), printer: Mutex::new(Box::new(printer)) };
        editor.bind_sequence(KeyEvent::from('?'), EventHandler::Conditional(Box::new(ask)));
    }
    Ok(editor)
}

/// Returns `$XDG_STATE_HOME/turnpike/history`, or the file in `~/.local/state`; none without a home
/// directory.
fn history_file() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("turnpike/history"))
}

fn keep(editor: &mut LineEditor, file: &Path) -> Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    Ok(editor.append_history(file)?)
}

/// Returns a flag that Ctrl-C sets. A second Ctrl-C before the flag is checked ends the shell.
fn watch_interrupts() -> Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = stopped.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    Ok(stopped)
}

/// Writes until Ctrl-C, then behaves like a closed pipe.
struct Stoppable<'a, W> {
    out: W,
    stopped: &'a AtomicBool,
}

impl<W: Write> Write for Stoppable<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Handler of `?`.
struct Ask {
    engine: Arc<Engine>,
    printer: Mutex<Box<dyn ExternalPrinter + Send>>,
}

impl ConditionalEventHandler for Ask {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, at: &EventContext) -> Option<Cmd> {
        let line = at.line().get(..at.pos())?;
        if !may_ask(line) {
            return None;
        }
        let answer = self.engine.explain(line).unwrap_or_else(|error| format!("{error:#}\n"));
        let mut printer = self.printer.lock().unwrap_or_else(PoisonError::into_inner);
        printer.print(format!("{PROMPT}{line}?\n{answer}")).ok()?;
        Some(Cmd::Noop)
    }
}

/// Handler of Tab.
#[derive(Helper, Hinter, Highlighter, Validator)]
struct Completion(Arc<Engine>);

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let line = line.get(..at).unwrap_or_default();
        let Ok(choice) = self.0.next(line) else { return Ok((at, Vec::new())) };
        let mut pairs = Vec::new();
        for next in &choice.next {
            if next.kind == Kind::File {
                pairs.extend(files(&line[choice.start..]));
            } else if next.kind == Kind::Word || line[choice.start..].starts_with('-') {
                let word = quoted(next).map(|word| word + " ");
                pairs.extend(word.map(|replacement| {
                    let display = replacement.trim_end().to_owned();
                    Pair { display, replacement }
                }));
            }
        }
        Ok((choice.start, pairs))
    }
}

/// Returns the files whose path begins like this.
fn files(partial: &str) -> Vec<Pair> {
    let (directory, name) = partial.rsplit_once('/').map_or(("", partial), |(d, n)| (d, n));
    let directory = if partial.contains('/') { format!("{directory}/") } else { String::new() };
    let place = if directory.is_empty() { "." } else { &directory };
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let mut pairs = Vec::new();
    for entry in entries.flatten() {
        let Ok(found) = entry.file_name().into_string() else { continue };
        if found.starts_with(name) && (!found.starts_with('.') || name.starts_with('.')) {
            let end = if entry.path().is_dir() { "/" } else { " " };
            let replacement = format!("{directory}{found}{end}");
            pairs.push(Pair { display: found, replacement });
        }
    }
    pairs.sort_by(|a, b| a.display.cmp(&b.display));
    pairs
}
