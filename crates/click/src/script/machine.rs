//! The execution of a script, as a machine that says what it needs next.

use std::sync::Arc;
use std::time::Duration;

use super::compute::plain;
use super::expand::{Call, Expander, LONGEST, Stopped};
use super::{Instruction, Kind, Script, Target, Text};
use crate::kinds;

/// Jumps of a script that does not wait; as in Click.
const JUMPS_MOST: usize = 1000;

/// Most handlers that one instruction reads.
const ANSWERS_MOST: usize = 100;

/// Most bytes of all variables, and of the handlers' values that one instruction reads.
const BYTES_MOST: usize = 4 << 20;

/// Most instructions, each once more for each handler that it reads, of a script that does not wait.
const WORK_MOST: usize = 10_000;

/// Work after which others have a turn.
const WORK_AT_ONCE: usize = 64;

/// State with which a script goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The value of a handler, for [`Machine::answer`].
    Read(Call),
    /// A handler to be written; [`Machine::written`] has the result.
    Write(Call),
    /// Text to be shown: on the log, or at the end of a file or in place of its content.
    Print {
        /// The text.
        text: String,
        /// The file, and whether its content stays.
        file: Option<(String, bool)>,
    },
    /// A fault of the script, with which it goes on.
    Complain(String),
    /// Nothing; but others shall have a turn first.
    Yield,
    /// A time, for [`Machine::time_is_over`]; a step ends it as well.
    Wait(Duration),
    /// A step.
    Pause,
    /// Nothing: it has ended.
    Done(End),
}

/// The end of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The last instruction, `end` or `exit`.
    End,
    /// `return`, with its value.
    Return(String),
    /// `error`, with its text, or a bound that the script has reached.
    Error(String),
    /// `stop`: the router ends.
    Stop,
}

/// A script in execution.
#[derive(Debug)]
pub struct Machine {
    script: Arc<Script>,
    at: usize,
    /// Variables are set before the first instruction, in the order of `init` and `export`.
    is_new: bool,
    variables: Vec<(String, String)>,
    exported: Vec<String>,
    /// Values of handlers of the present instruction.
    answers: Vec<String>,
    /// The result of the last `write`.
    status: i32,
    /// The arguments of `run`.
    arguments: String,
    jumps: usize,
    /// Instructions and answers since it has last waited.
    work: usize,
    /// Steps that have not been used.
    steps: u32,
    /// Steps of the present `pause`.
    paused: u32,
    /// The time of the present `wait` is over.
    is_late: bool,
}

impl Machine {
    /// At the beginning of a script.
    pub fn new(script: Arc<Script>) -> Self {
        Self {
            script,
            at: 0,
            is_new: true,
            variables: Vec::new(),
            exported: Vec::new(),
            answers: Vec::new(),
            status: 0,
            arguments: String::new(),
            jumps: 0,
            work: 0,
            steps: 0,
            paused: 0,
            is_late: false,
        }
    }

    /// Begins at the first instruction, with arguments.
    pub fn run(&mut self, arguments: &str) {
        self.jump(0);
        (self.jumps, self.work, self.steps) = (0, 0, 0);
        self.arguments = arguments.to_owned();
    }

    /// Goes on at a label.
    ///
    /// # Errors
    /// There is none.
    pub fn go_to(&mut self, label: &str) -> Result<(), String> {
        let Target::At(at) = self.script.target(label)? else {
            return Err("jump to nonexistent label".to_owned());
        };
        self.jump(at);
        (self.jumps, self.work, self.steps) = (0, 0, 0);
        Ok(())
    }

    /// Lets it go on behind so many blocking instructions.
    pub fn step(&mut self, count: u32) {
        self.steps = self.steps.saturating_add(count);
    }

    /// Gives it the value of the handler that it needs.
    pub fn answer(&mut self, value: String) {
        self.answers.push(value);
    }

    /// Tells it how the writing of a handler has ended.
    pub fn written(&mut self, is_done: bool) {
        self.status = if is_done { 0 } else { -1 };
        self.advance();
    }

    /// Tells it that the time is over for which it waits.
    pub fn time_is_over(&mut self) {
        self.is_late = true;
    }

    /// The variables that handlers have.
    pub fn exported(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(|(name, _)| self.exported.iter().any(|known| known == name))
    }

    /// Executes instructions until something is needed. The first end of a passive script is that of its beginning.
    pub fn next_need(&mut self) -> Need {
        loop {
            if let Some(need) = self.count_work() {
                return need;
            }
            let script = self.script.clone();
            let Some(instruction) = script.instructions.get(self.at) else {
                if self.is_new {
                    (self.is_new, self.at) = (false, 0);
                    if script.kind() == Kind::Passive {
                        return self.done(End::End);
                    }
                    continue;
                }
                let ends = script.kind() == Kind::Driver;
                return self.done(if ends { End::Stop } else { End::End });
            };
            let done =
                if self.is_new { self.initialize(instruction) } else { self.execute(instruction) };
            match done {
                Ok(Some(need)) => return need,
                Ok(None) => {}
                Err(Stopped::Needs(_)) if self.bytes_of_answers() > BYTES_MOST => {
                    return self
                        .fails(&format!("an instruction reads more than {BYTES_MOST} bytes"));
                }
                Err(Stopped::Needs(call)) if self.answers.len() < ANSWERS_MOST => {
                    return Need::Read(call);
                }
                Err(Stopped::Needs(_)) => {
                    return self
                        .fails(&format!("more than {ANSWERS_MOST} handlers in one instruction"));
                }
                Err(Stopped::TooLong) => {
                    return self
                        .fails(&format!("a text is longer than {LONGEST} bytes, or too deep"));
                }
            }
        }
    }

    /// Counts an instruction that is now begun, or begun anew with an answer more.
    fn count_work(&mut self) -> Option<Need> {
        self.work += 1;
        if self.work > WORK_MOST {
            let why = format!("{WORK_MOST} instructions without a pause; it is stopped");
            return Some(self.fails(&why));
        }
        self.work.is_multiple_of(WORK_AT_ONCE).then_some(Need::Yield)
    }

    /// Executes an instruction before the script begins.
    fn initialize(&mut self, instruction: &Instruction) -> Result<Option<Need>, Stopped> {
        if let Instruction::Init(name, text, is_exported) = instruction {
            let value = self.text(text)?;
            if *is_exported && !self.exported.contains(name) {
                self.exported.push(name.clone());
            }
            return Ok(self.set(name, value));
        }
        self.advance();
        Ok(None)
    }

    fn execute(&mut self, instruction: &Instruction) -> Result<Option<Need>, Stopped> {
        match instruction {
            Instruction::Set(name, text) => {
                let value = self.text(text)?;
                return Ok(self.set(name, value));
            }
            Instruction::Print(text, is_line) => {
                let (text, file) = self.printed(text, *is_line)?;
                self.advance();
                return Ok(Some(Need::Print { text, file }));
            }
            Instruction::Read(text) => {
                let (call, value) = self.read(text)?;
                self.advance();
                let text = format!("{}:\n{value}\n", call.handler);
                return Ok(Some(Need::Print { text, file: None }));
            }
            Instruction::Write(text) => return Ok(Some(Need::Write(Call::of(&self.text(text)?)))),
            Instruction::Pause(count) => return Ok(self.pause(*count)),
            Instruction::Wait(time) => return Ok(self.wait(*time)),
            Instruction::Goto(target, condition) => return self.goto(*target, condition),
            Instruction::Return(text) => {
                let value = self.text(text)?;
                return Ok(Some(self.done(End::Return(value))));
            }
            Instruction::Error(text) => {
                let text = self.text(text)?;
                return Ok(Some(self.done(End::Error(text))));
            }
            Instruction::End | Instruction::Exit => return Ok(Some(self.done(End::End))),
            Instruction::Stop => return Ok(Some(self.done(End::Stop))),
            Instruction::Label | Instruction::Init(..) => self.advance(),
        }
        Ok(None)
    }

    fn bytes_of_answers(&self) -> usize {
        self.answers.iter().map(String::len).sum()
    }

    /// Goes on to the next instruction.
    fn advance(&mut self) {
        self.jump(self.at + 1);
    }

    fn jump(&mut self, to: usize) {
        self.at = to;
        self.answers.clear();
        (self.paused, self.is_late) = (0, false);
    }

    /// It has ended where it is.
    fn done(&mut self, end: End) -> Need {
        self.answers.clear();
        (self.jumps, self.work, self.steps) = (0, 0, 0);
        Need::Done(end)
    }

    /// It can go on no more, until it is run again.
    fn fails(&mut self, why: &str) -> Need {
        self.at = self.script.instructions.len();
        self.is_new = false;
        self.done(End::Error(why.to_owned()))
    }

    fn variable(&self, name: &str) -> Option<String> {
        if let Some((_, value)) = self.variables.iter().find(|(known, _)| known == name) {
            return Some(value.clone());
        }
        let mut words = self.arguments.split_whitespace();
        match name {
            "?" => Some(self.status.to_string()),
            "args" => Some(self.arguments.clone()),
            "#" => Some(words.count().to_string()),
            number => {
                let number = number.parse::<usize>().ok()?.checked_sub(1)?;
                Some(words.nth(number).unwrap_or_default().to_owned())
            }
        }
    }

    fn set(&mut self, name: &str, value: String) -> Option<Need> {
        match self.variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name.to_owned(), value)),
        }
        let bytes: usize = self.variables.iter().map(|(_, value)| value.len()).sum();
        if bytes > BYTES_MOST {
            self.variables.clear();
            return Some(self.fails(&format!("its variables have more than {BYTES_MOST} bytes")));
        }
        self.advance();
        None
    }

    /// A text with its substitutions.
    fn text(&self, Text(text, unquotes): &Text) -> Result<String, Stopped> {
        let variable = |name: &str| self.variable(name);
        let text = Expander { variable: &variable, answers: self.answers.iter() }.expand(text)?;
        Ok(if *unquotes { plain(&text) } else { text })
    }

    /// A handler and its value.
    fn read(&self, Text(text, unquotes): &Text) -> Result<(Call, String), Stopped> {
        let variable = |name: &str| self.variable(name);
        let mut expander = Expander { variable: &variable, answers: self.answers.iter() };
        let text = expander.expand(text)?;
        let call = Call::of(&if *unquotes { plain(&text) } else { text });
        match expander.answers.next() {
            Some(value) if value.len() > LONGEST => Err(Stopped::TooLong),
            Some(value) => Ok((call, value.clone())),
            None => Err(Stopped::Needs(call)),
        }
    }

    /// The text that `print` shows, and the file that gets it.
    fn printed(
        &self,
        Text(text, unquotes): &Text,
        is_line: bool,
    ) -> Result<(String, Option<(String, bool)>), Stopped> {
        let (file, rest) = match text.strip_prefix('>') {
            None => (None, text.as_str()),
            Some(rest) => {
                let (stays, rest) =
                    rest.strip_prefix('>').map_or((false, rest), |rest| (true, rest));
                let (name, rest) = crate::text::first_word(rest);
                (Some((plain(name), stays)), rest)
            }
        };
        let names_handler = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '@';
        let mut shown = if rest.starts_with(names_handler) {
            self.read(&Text(rest.to_owned(), *unquotes))?.1
        } else {
            self.text(&Text(rest.to_owned(), true))?
        };
        if is_line && !shown.ends_with('\n') {
            shown.push('\n');
        }
        Ok((shown, file.filter(|(name, _)| !matches!(name.as_str(), "" | "-"))))
    }

    fn pause(&mut self, count: u32) -> Option<Need> {
        let used = self.steps.min(count - self.paused);
        (self.steps, self.paused) = (self.steps - used, self.paused + used);
        if self.paused < count {
            (self.jumps, self.work) = (0, 0);
            return Some(Need::Pause);
        }
        self.advance();
        None
    }

    fn wait(&mut self, time: Duration) -> Option<Need> {
        if self.steps == 0 && !self.is_late {
            (self.jumps, self.work) = (0, 0);
            return Some(Need::Wait(time));
        }
        self.steps -= u32::from(!self.is_late);
        self.advance();
        None
    }

    fn goto(&mut self, target: Target, condition: &str) -> Result<Option<Need>, Stopped> {
        let condition = self.text(&Text(condition.to_owned(), false))?;
        let Some(jumps) = (if condition.is_empty() { Some(true) } else { kinds::flag(&condition) })
        else {
            self.advance();
            return Ok(Some(Need::Complain(format!("bad condition \"{condition}\""))));
        };
        if !jumps {
            self.advance();
            return Ok(None);
        }
        self.jumps += 1;
        if self.jumps > JUMPS_MOST {
            let why = format!("{JUMPS_MOST} jumps without a pause; it is stopped");
            return Ok(Some(self.fails(&why)));
        }
        Ok(match target {
            Target::At(at) => {
                self.jump(at);
                None
            }
            Target::End | Target::Exit => Some(self.done(End::End)),
            Target::Error => Some(self.done(End::Error(String::new()))),
            Target::Stop => Some(self.done(End::Stop)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::compute::compute;
    use super::*;

    /// Runs a script on handlers until it waits or ends; returns what it has shown and written, and the last need.
    fn run(machine: &mut Machine) -> (Vec<String>, Need) {
        let mut shown = Vec::new();
        loop {
            match machine.next_need() {
                Need::Read(Call { handler, argument }) => {
                    let value = match handler.as_str() {
                        "c.count" => "42".to_owned(),
                        name => compute(name, &argument)
                            .unwrap_or(Ok(format!("<{name} {argument}>")))
                            .unwrap(),
                    };
                    machine.answer(value);
                }
                Need::Write(Call { handler, argument }) => {
                    shown.push(format!("{handler}={argument}"));
                    machine.written(handler != "bad.handler");
                }
                Need::Print { text, file: None } => shown.push(text),
                Need::Print { text, file: Some((name, stays)) } => {
                    shown.push(format!("{name} {stays} {text}"))
                }
                Need::Complain(text) => shown.push(text),
                Need::Yield => {}
                need => return (shown, need),
            }
        }
    }

    fn machine(config: &str) -> Machine {
        Machine::new(Arc::new(Script::parse("Script", config).unwrap()))
    }

    fn shown(config: &str) -> Vec<String> {
        run(&mut machine(config)).0
    }

    #[test]
    fn loops_count_as_in_clicks_manual() {
        let text = "set x 0, label again, print $x, set x $(add $x 1), goto again $(lt $x 5), stop";
        let (shown, need) = run(&mut machine(text));
        assert_eq!(shown, ["0\n", "1\n", "2\n", "3\n", "4\n"]);
        assert_eq!(need, Need::Done(End::Stop));
    }

    #[test]
    fn quotes_are_removed_where_clicks_manual_says() {
        let text = r#"set x $(c.count), print $x, set x "$(c.count)", print '$x', print $x, setq x "$(c.count)", print $x"#;
        assert_eq!(shown(text), ["42\n", "$x\n", "42\n", "42\n"]);
        let text = r#"print c.count, print "c.count", print '"c.count"', set x c.count, print $x, print $($x), printn z"#;
        assert_eq!(
            shown(text),
            ["42\n", "c.count\n", "\"c.count\"\n", "c.count\n", "42\n", "<z >"]
        );
        assert_eq!(shown("read c.count, readq \"c.count\""), ["c.count:\n42\n", "c.count:\n42\n"]);
        let files = "print >/tmp/x c.count, print >>\"/tmp/y z\" 'a', print >- 1";
        assert_eq!(shown(files), ["/tmp/x false 42\n", "/tmp/y z true a\n", "1\n"]);
    }

    #[test]
    fn handlers_are_written_and_their_status_is_known() {
        let text =
            "write s.switch $(add 1 2), print $?, write bad.handler, print $?, writeq t.x \"a b\"";
        assert_eq!(shown(text), ["s.switch=3", "0\n", "bad.handler=", "-1\n", "t.x=a b"]);
    }

    #[test]
    fn scripts_wait_for_steps_and_for_times() {
        let mut one = machine("print 1, pause 2, print 2, wait 3, print 3, wait 3, pause");
        assert_eq!(run(&mut one), (vec!["1\n".to_owned()], Need::Pause));
        one.step(1);
        assert_eq!(run(&mut one), (vec![], Need::Pause));
        one.step(1);
        let wait = Need::Wait(Duration::from_secs(3));
        assert_eq!(run(&mut one), (vec!["2\n".to_owned()], wait.clone()));
        assert_eq!(run(&mut one), (vec![], wait.clone()));
        one.time_is_over();
        assert_eq!(run(&mut one), (vec!["3\n".to_owned()], wait));
        // Two steps: over the wait, and over the pause.
        one.step(2);
        assert_eq!(run(&mut one), (vec![], Need::Done(End::End)));
        // Steps do not last over the end.
        one.step(5);
        run(&mut one);
        one.run("");
        assert_eq!(run(&mut one).1, Need::Pause);
    }

    #[test]
    fn passive_scripts_have_arguments_and_a_value() {
        let mut one = machine(
            "TYPE PASSIVE, goto more $(gt $# 1), return \"$1\", label more, returnq \"$2-$args-$3\"",
        );
        assert_eq!(run(&mut one).1, Need::Done(End::End));
        for (arguments, value) in [("a", "\"a\""), ("a b", "b-a b-"), ("", "\"\"")] {
            one.run(arguments);
            assert_eq!(run(&mut one).1, Need::Done(End::Return(value.to_owned())));
        }
    }

    #[test]
    fn variables_are_initialized_once_and_exported() {
        let mut one = machine("set x 1, init x 7, export y $(add $x 1), pause, set y 9, loop");
        assert_eq!(run(&mut one).1, Need::Pause);
        // 8: `init` was before all.
        assert_eq!(one.exported().collect::<Vec<_>>(), [("y", "8")]);
        one.step(1);
        run(&mut one);
        assert_eq!(one.exported().collect::<Vec<_>>(), [("y", "9")]);
    }

    #[test]
    fn labels_are_gone_to() {
        let mut one = machine(
            "print 1, end, label x, print 2, exit, label y, goto error, label z, error \"a $?\"",
        );
        assert_eq!(run(&mut one), (vec!["1\n".to_owned()], Need::Done(End::End)));
        one.go_to("x").unwrap();
        assert_eq!(run(&mut one), (vec!["2\n".to_owned()], Need::Done(End::End)));
        one.go_to("y").unwrap();
        assert_eq!(run(&mut one).1, Need::Done(End::Error(String::new())));
        one.go_to("z").unwrap();
        assert_eq!(run(&mut one).1, Need::Done(End::Error("\"a 0\"".to_owned())));
        assert!(one.go_to("w").is_err() && one.go_to("exit").is_err());
        assert_eq!(shown("goto x maybe, label x, print 1"), ["bad condition \"maybe\"", "1\n"]);
    }

    #[test]
    fn no_script_runs_for_ever_or_grows_without_bound() {
        let error = |config: &str| match run(&mut machine(config)).1 {
            Need::Done(End::Error(why)) => why,
            other => panic!("{config}: {other:?}"),
        };
        assert!(error("loop").contains("1000 jumps without a pause"));
        assert!(error("set x y, label z, set x $x$x$x, goto z").contains("longer than"));
        let many = format!("print '{}' , set a {}", "", "$(c.count)".repeat(101));
        assert!(error(&many).contains("more than 100 handlers"), "{}", error(&many));
        let big: String = (0..30).map(|n| format!("set v{n} $big,")).collect();
        let grow = format!("set big {}, {}", "z".repeat(200_000), big);
        assert!(error(&grow).contains("variables have more than"));
        // One that waits may loop.
        let mut one = machine("wait 1, loop");
        for _ in 0..3000 {
            assert_eq!(run(&mut one).1, Need::Wait(Duration::from_secs(1)));
            one.time_is_over();
        }
    }

    #[test]
    fn much_work_between_jumps_ends_a_script_and_gives_turns() {
        // Few jumps, but a thousand instructions between them.
        let long = format!("label x, {}goto x", "set a $(c.count),".repeat(900));
        let mut one = machine(&long);
        let mut turns = 0;
        let end = loop {
            match one.next_need() {
                Need::Read(_) => one.answer("1".to_owned()),
                Need::Yield => turns += 1,
                Need::Done(end) => break end,
                other => panic!("{other:?}"),
            }
        };
        let why = "10000 instructions without a pause; it is stopped".to_owned();
        assert_eq!((end, turns), (End::Error(why), 10_000 / 64));
        // One that waits may do as much as it likes.
        let mut one = machine(&format!("{}wait 1, loop", "set a 1,".repeat(900)));
        for _ in 0..30 {
            assert_eq!(run(&mut one).1, Need::Wait(Duration::from_secs(1)));
            one.time_is_over();
        }
    }

    #[test]
    fn values_of_handlers_are_bounded() {
        let fails = |text: &str, answer: usize| {
            let mut one = machine(text);
            loop {
                match one.next_need() {
                    Need::Read(call) if call.handler == "length" => one.answer("1".to_owned()),
                    Need::Read(_) => one.answer("z".repeat(answer)),
                    Need::Done(End::Error(why)) => return why,
                    Need::Done(_) => return String::new(),
                    Need::Print { .. } | Need::Yield => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        for text in ["print c.table", "read c.table"] {
            assert_eq!(fails(text, LONGEST), "");
            assert!(fails(text, LONGEST + 1).contains("longer than"), "{text}");
        }
        // Values that other handlers get as arguments are no part of the text.
        let lengths = |count| format!("print \"{}\"", "$(length $(c.table))".repeat(count));
        assert_eq!(fails(&lengths(10), 250_000), "");
        assert_eq!(fails(&lengths(40), 250_000), "an instruction reads more than 4194304 bytes");
    }

    #[test]
    fn the_end_of_a_driver_stops_the_router() {
        let script = Script::parse("DriverManager", "print 1").unwrap();
        let mut one = Machine::new(Arc::new(script));
        assert_eq!(run(&mut one).1, Need::Done(End::Stop));
    }
}
