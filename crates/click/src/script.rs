//! Scripts: the instructions of `Script` and `DriverManager`, which read and write handlers.
//!
//! ```text
//!  arguments --Script::parse--> instructions
//!                               |
//!  Machine::next_need --> Need: read or write a handler, print, wait, or the end
//!     ^                |
//!     +-- answer ------+    by whoever runs the machine: nothing here does I/O
//! ```
//!
//! | instruction | effect |
//! |---|---|
//! | `set VAR TEXT`, `init VAR TEXT`, `export VAR [TEXT]` | sets a variable: now; when the script is loaded; likewise, and a handler has it |
//! | `print TEXT`, `printn TEXT`, `read HANDLER [ARGS]` | shows text, or what a handler says |
//! | `write HANDLER [ARGS]` | writes a handler; `$?` is 0 if that worked |
//! | `pause [COUNT]`, `wait TIME` | waits for the handler `step`, or for a time |
//! | `label NAME`, `goto NAME [CONDITION]`, `loop` | go on elsewhere; `begin`, `end`, `exit`, `error` and `stop` are labels of all |
//! | `return [VALUE]`, `error [TEXT]`, `end`, `exit`, `stop` | end the script, the last one the router too |
//!
//! Those with a text have a second form with a `q` behind their name (`setq`), which removes quotes.

mod compute;
mod expand;
mod machine;

use std::collections::HashMap;
use std::time::Duration;

use crate::classes::nearest_of;
use crate::kinds;
use crate::text::{first_word, split_arguments};

pub use compute::{FUNCTIONS, compute};
pub use expand::Call;
pub use machine::{End, Machine, Need};

/// Classes whose arguments are a script.
pub const CLASSES: [&str; 2] = ["Script", "DriverManager"];

/// Most instructions of a script.
const INSTRUCTIONS_MOST: usize = 1000;

/// Shortest time to wait for: one that waits less would be busy.
const WAIT_LEAST: Duration = Duration::from_millis(1);

/// Names of instructions.
const WORDS: [&str; 27] = [
    "end",
    "error",
    "errorq",
    "exit",
    "export",
    "exportq",
    "goto",
    "init",
    "initq",
    "label",
    "loop",
    "pause",
    "print",
    "printn",
    "printnq",
    "printq",
    "read",
    "readq",
    "return",
    "returnq",
    "set",
    "setq",
    "stop",
    "wait",
    "wait_step",
    "write",
    "writeq",
];

/// When a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the beginning on.
    Active,
    /// When its handler `run` is called.
    Passive,
    /// From the beginning on; its end is that of the router, and it is asked before others end it.
    Driver,
}

/// A script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    kind: Kind,
    instructions: Vec<Instruction>,
    labels: HashMap<String, usize>,
}

/// A text that is expanded when its instruction is executed; the flag is true if quotes are removed then.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text(String, bool);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Instruction {
    Set(String, Text),
    /// Of `init` and `export`; the flag is true for the latter.
    Init(String, Text, bool),
    /// The flag is true if a newline follows.
    Print(Text, bool),
    Read(Text),
    Write(Text),
    Pause(u32),
    Wait(Duration),
    Label,
    /// A label, and the condition.
    Goto(Target, String),
    Return(Text),
    Error(Text),
    End,
    Exit,
    Stop,
}

/// The place at which a script goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    At(usize),
    End,
    Exit,
    Error,
    Stop,
}

impl Script {
    /// Reads a configuration string of a class of [`CLASSES`].
    ///
    /// # Errors
    /// The first instruction that is none, or a label that is nowhere.
    pub fn parse(class: &str, config: &str) -> Result<Self, String> {
        let mut script =
            Self { kind: Kind::Active, instructions: Vec::new(), labels: HashMap::new() };
        if class == "DriverManager" {
            script.kind = Kind::Driver;
        }
        // Labels may stand behind those who go to them.
        let mut jumps = Vec::new();
        for argument in split_arguments(config) {
            let (word, rest) = first_word(&argument);
            match word {
                "" => {}
                "TYPE" => script.kind = kind(rest)?,
                _ => {
                    let wrong = |why: String| format!("\"{argument}\": {why}");
                    let at = script.instructions.len();
                    let read = instruction(word, rest).map_err(wrong)?;
                    if read == Instruction::Label {
                        script.labels.entry(rest.to_owned()).or_insert(at);
                    }
                    if let Instruction::Goto(..) = read {
                        jumps.push((
                            at,
                            if word == "loop" { "begin" } else { first_word(rest).0 }.to_owned(),
                        ));
                    }
                    script.instructions.push(read);
                }
            }
        }
        if script.instructions.len() > INSTRUCTIONS_MOST {
            let count = script.instructions.len();
            return Err(format!("{count} instructions; at most {INSTRUCTIONS_MOST}"));
        }
        for (at, label) in jumps {
            let target = script.target(&label)?;
            if let Instruction::Goto(to, _) = &mut script.instructions[at] {
                *to = target;
            }
        }
        Ok(script)
    }

    /// When it runs.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The place of a label.
    fn target(&self, label: &str) -> Result<Target, String> {
        if let Some(&at) = self.labels.get(label) {
            return Ok(Target::At(at));
        }
        match label {
            "begin" => Ok(Target::At(0)),
            "end" => Ok(Target::End),
            "exit" => Ok(Target::Exit),
            "error" => Ok(Target::Error),
            "stop" => Ok(Target::Stop),
            _ => {
                let known = self.labels.keys().map(String::as_str);
                let way_out = match nearest_of(label, known) {
                    Some(nearest) => format!("the nearest known one is {nearest}"),
                    None => "write an instruction label in front of it".to_owned(),
                };
                Err(format!("no label \"{label}\"; {way_out}"))
            }
        }
    }
}

fn kind(word: &str) -> Result<Kind, String> {
    match word {
        "ACTIVE" => Ok(Kind::Active),
        "PASSIVE" => Ok(Kind::Passive),
        "DRIVER" => Ok(Kind::Driver),
        _ => Err(format!("TYPE {word} is not supported; ACTIVE, PASSIVE and DRIVER are")),
    }
}

fn instruction(word: &str, rest: &str) -> Result<Instruction, String> {
    let unquotes = word.ends_with('q');
    let text = || Text(rest.to_owned(), unquotes);
    let nothing = |one: Instruction| match rest {
        "" => Ok(one),
        _ => Err(format!("expected nothing behind {word}")),
    };
    Ok(match word {
        "set" | "setq" => {
            let (name, value) = variable(rest)?;
            if value.is_empty() {
                return Err("expected VAR TEXT".to_owned());
            }
            Instruction::Set(name, Text(value, unquotes))
        }
        "init" | "initq" | "export" | "exportq" => {
            let (name, value) = variable(rest)?;
            Instruction::Init(name, Text(value, unquotes), word.starts_with("export"))
        }
        "print" | "printq" => Instruction::Print(text(), true),
        "printn" | "printnq" => Instruction::Print(text(), false),
        "read" | "readq" => Instruction::Read(handler(text())?),
        "write" | "writeq" => Instruction::Write(handler(text())?),
        "pause" | "wait_step" | "wait_stop" => Instruction::Pause(count(rest)?),
        "wait" if rest.is_empty() => Instruction::Pause(1),
        "wait" | "wait_time" | "wait_for" => Instruction::Wait(time(rest)?),
        "label" => {
            if rest.is_empty() || rest.contains(char::is_whitespace) {
                return Err("expected one name".to_owned());
            }
            Instruction::Label
        }
        "loop" => nothing(Instruction::Goto(Target::At(0), String::new()))?,
        "goto" => {
            let (label, condition) = first_word(rest);
            if label.is_empty() {
                return Err("expected LABEL [CONDITION]".to_owned());
            }
            Instruction::Goto(Target::End, condition.to_owned())
        }
        "return" | "returnq" => Instruction::Return(text()),
        "error" | "errorq" => Instruction::Error(text()),
        "end" => nothing(Instruction::End)?,
        "exit" => nothing(Instruction::Exit)?,
        "stop" => nothing(Instruction::Stop)?,
        _ => {
            let way_out = match nearest_of(word, WORDS.into_iter()) {
                Some(nearest) => format!("the nearest known one is {nearest}"),
                None => format!("known: {}", WORDS.join(", ")),
            };
            return Err(format!("unknown instruction {word}; {way_out}"));
        }
    })
}

/// A variable and the text behind it.
fn variable(rest: &str) -> Result<(String, String), String> {
    let (name, value) = first_word(rest);
    if name.is_empty() || !name.chars().all(expand::is_name) {
        return Err("expected VAR TEXT; VAR has letters, digits and _".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn handler(text: Text) -> Result<Text, String> {
    if text.0.is_empty() { Err("expected HANDLER [ARGS]".to_owned()) } else { Ok(text) }
}

fn count(rest: &str) -> Result<u32, String> {
    let count = if rest.is_empty() { Some(1) } else { rest.parse().ok() };
    count
        .filter(|count| *count > 0)
        .ok_or_else(|| "expected a number of steps from 1 on".to_owned())
}

fn time(rest: &str) -> Result<Duration, String> {
    let time = kinds::time(rest).ok_or("expected a time, such as 10ms, 1.5s or 2min")?;
    Ok(time.max(WAIT_LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(config: &str) -> String {
        Script::parse("Script", config).unwrap_err()
    }

    #[test]
    fn instructions_are_read() {
        let script =
            Script::parse("Script", "TYPE PASSIVE, label x, wait 0.5, , goto x, wait, loop,")
                .unwrap();
        assert_eq!(script.kind(), Kind::Passive);
        let again = |at| Instruction::Goto(Target::At(at), String::new());
        let expected = [
            Instruction::Label,
            Instruction::Wait(Duration::from_millis(500)),
            again(0),
            Instruction::Pause(1),
            again(0),
        ];
        assert_eq!(script.instructions, expected);
        let script = Script::parse("DriverManager", "pause 2, stop").unwrap();
        assert_eq!(
            (script.kind(), script.instructions[0].clone()),
            (Kind::Driver, Instruction::Pause(2))
        );
        // Time that no machine measures is not waited for.
        let script = Script::parse("Script", "wait 0").unwrap();
        assert_eq!(script.instructions, [Instruction::Wait(WAIT_LEAST)]);
    }

    #[test]
    fn errors_name_the_instruction_and_the_nearest_one() {
        for (config, expected) in [
            ("prnt x", "\"prnt x\": unknown instruction prnt; the nearest known one is print"),
            ("§", "\"§\": unknown instruction §; known: end, error"),
            ("goto there, label their", "no label \"there\"; the nearest known one is their"),
            ("goto", "\"goto\": expected LABEL [CONDITION]"),
            ("set x", "\"set x\": expected VAR TEXT"),
            ("set $x 1", "\"set $x 1\": expected VAR TEXT; VAR has letters"),
            ("write", "\"write\": expected HANDLER [ARGS]"),
            ("wait x", "\"wait x\": expected a time"),
            ("wait -1", "\"wait -1\": expected a time"),
            ("pause 0", "\"pause 0\": expected a number of steps"),
            ("label a b", "\"label a b\": expected one name"),
            ("stop now", "\"stop now\": expected nothing behind stop"),
            ("TYPE SIGNAL INT", "TYPE SIGNAL INT is not supported; ACTIVE, PASSIVE and DRIVER are"),
        ] {
            assert!(error(config).starts_with(expected), "{config}: {}", error(config));
        }
        assert!(error(&"stop,".repeat(1001)).starts_with("1001 instructions; at most 1000"));
    }
}
