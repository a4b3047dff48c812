//! Execution of lines: the engine of `turnpike shell` and telnet.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use api::{Request, Show, client};
use clap::{Arg, ArgAction, Command, FromArgMatches, Subcommand};
use control::rib::RouteSource;

use super::grammar::{Grammar, Kind, Next, Values};
use super::line::Line;
use super::pipe::{PipeArgs, Pipes};
use crate::commands::do_::{self, CallArgs};
use crate::commands::moonroute::{MoonRouteCommand, Staged};
use crate::commands::{Console, JsonError, READING_FILES, RouterCommand, is_broken_pipe, words};

/// Action after a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Read the next line.
    GoOn,
    /// End the session.
    Quit,
}

/// Commands that are about the shell itself.
#[derive(Debug, Subcommand)]
enum ShellCommand {
    /// List the commands, or describe one
    Help {
        /// A command
        command: Vec<String>,
    },
    /// Leave
    #[command(visible_alias = "exit")]
    Quit,
}

/// Runs lines for one router.
pub struct Engine {
    socket: PathBuf,
    pipes: Grammar,
    /// Present for telnet: MoonRoute's commands are available too, and no command reads a file.
    /// Contains the routes entered by MoonRoute's commands.
    telnet: Option<Staged>,
}

/// The possible next words of a line.
#[derive(Debug, Default)]
pub struct Choice {
    /// Byte offset of the word being typed.
    pub start: usize,
    /// The possible words there.
    pub next: Vec<Next>,
    /// True if the line can be run as it is.
    pub complete: bool,
}

impl Engine {
    /// Creates an engine for the router at this socket, which need not run yet.
    pub fn new(socket: &Path) -> Self {
        let pipes = Grammar::new(PipeArgs::augment_subcommands(Command::new("|")));
        Self { socket: socket.to_owned(), pipes, telnet: None }
    }

    /// Adds MoonRoute's commands, and removes those that read files: they would read them with the
    /// permissions of the router and not of the client.
    pub fn for_telnet(self, staged: Staged) -> Self {
        Self { telnet: Some(staged), ..self }
    }

    /// Returns the commands now available: the router's configuration may define some.
    fn commands(&self) -> Grammar {
        let mut root = root();
        if self.telnet.is_some() {
            root = MoonRouteCommand::augment_subcommands(root);
            for name in READING_FILES {
                root = root.mut_subcommand(name, |command| command.hide(true));
            }
        }
        for Next { text, help, .. } in self.known("COMMAND").unwrap_or_default() {
            root = root.subcommand(in_lua(text, help));
        }
        Grammar::new(root)
    }

    /// Runs a line with its output to `out`. A closed reader of `out` is not an error.
    ///
    /// # Errors
    /// The line is wrong, or the router refuses it or cannot be reached.
    pub fn run(&self, text: &str, out: &mut dyn Write) -> Result<Then> {
        match self.run_line(text, out) {
            Err(error) if is_broken_pipe(&error) => Ok(Then::GoOn),
            Err(error) => match error.downcast::<clap::Error>() {
                // All others are reported by the grammar.
                Ok(error) => {
                    write!(out, "{}", error.render())?;
                    Ok(Then::GoOn)
                }
                Err(error) if asks_for_json(text) => Err(JsonError::of(&error).into()),
                Err(error) => Err(error),
            },
            other => other,
        }
    }

    fn run_line(&self, text: &str, out: &mut dyn Write) -> Result<Then> {
        let line = Line::read(text);
        if line.is_empty() {
            return Ok(Then::GoOn);
        }
        if let Some(before) = question(text, &line) {
            out.write_all(self.explain(before)?.as_bytes())?;
            return Ok(Then::GoOn);
        }
        if let Some(quote) = line.open {
            bail!("quote {quote} is not closed");
        }
        let stages = line.texts();
        let (command, pipes) = self.read(&stages)?;
        let json = pipes.json;
        let mut out = pipes.to(out);
        let then = match command {
            Typed::Shell(ShellCommand::Quit) => Then::Quit,
            Typed::Shell(ShellCommand::Help { command }) => {
                out.write_all(self.help(command)?.as_bytes())?;
                Then::GoOn
            }
            Typed::Router(command) if self.telnet.is_some() && command.reads_file() => bail!(
                "not over telnet: it reads a file, and would read it as the router; run it in a Unix shell: \
                 turnpike {}",
                stages.concat().join(" ")
            ),
            Typed::Router(command) => {
                let json = json || command.router().json;
                command.execute(&mut Console { socket: &self.socket, json, out: &mut out })?;
                Then::GoOn
            }
            Typed::Lua(call) => {
                do_::run(&call, &mut Console { socket: &self.socket, json, out: &mut out })?;
                Then::GoOn
            }
            Typed::MoonRoute(command) => {
                let mut console = Console { socket: &self.socket, json, out: &mut out };
                command.execute(self.telnet.as_ref().context("no such command")?, &mut console)?;
                Then::GoOn
            }
        };
        out.finish()?;
        Ok(then)
    }

    fn read(&self, stages: &[Vec<String>]) -> Result<(Typed, Pipes)> {
        let [command, behind @ ..] = stages else { bail!("no command") };
        if command.is_empty() {
            bail!("no command before the pipe; write one, such as show ports");
        }
        let mut pipes = Pipes::default();
        for stage in behind {
            if stage.is_empty() {
                bail!("nothing behind the pipe; known: {}", names(&self.pipes));
            }
            pipes.add(PipeArgs::from_arg_matches(&self.pipes.parse(stage)?)?)?;
        }
        // The shell's router is used.
        if let Some(word) = command.iter().find(|word| word.starts_with("--soc")) {
            bail!(
                "\"{word}\": not in the shell, which speaks with one router; see turnpike shell --socket"
            );
        }
        let commands = self.commands();
        let is_known = |name| commands.commands().iter().any(|next| next.text == name);
        if command[0] == "top" && !is_known("top") {
            bail!("not in the shell, as it takes the terminal; run turnpike top in a Unix shell");
        }
        let matches = commands.parse(command)?;
        let name = matches.subcommand_name().unwrap_or_default();
        let command = if ShellCommand::has_subcommand(name) {
            Typed::Shell(ShellCommand::from_arg_matches(&matches)?)
        } else if MoonRouteCommand::has_subcommand(name) {
            Typed::MoonRoute(MoonRouteCommand::from_arg_matches(&matches)?)
        } else if RouterCommand::has_subcommand(name) {
            Typed::Router(RouterCommand::from_arg_matches(&matches)?)
        } else {
            let words = matches.subcommand().and_then(|(_, m)| m.get_many::<String>("words"));
            let args = words.unwrap_or_default().cloned().collect();
            Typed::Lua(CallArgs { name: name.to_owned(), args })
        };
        Ok((command, pipes))
    }

    /// Returns the list of all commands, or the help of one.
    fn help(&self, mut words: Vec<String>) -> Result<String> {
        if !words.is_empty() {
            words.push("--help".to_owned());
            return match self.commands().parse(&words) {
                Ok(_) => Ok(String::new()),
                Err(error) => error.downcast::<clap::Error>().map(|e| e.render().to_string()),
            };
        }
        let pipes = format!("\nBehind a command, after |:\n{}", table(&self.pipes.commands()));
        let hint =
            "\nWords may be cut short. ? says what can come next, help COMMAND everything.\n";
        Ok(table(&self.commands().commands()) + &pipes + hint)
    }

    /// Lists the possible next words after this text, one a line.
    ///
    /// # Errors
    /// An error in the text.
    pub fn explain(&self, text: &str) -> Result<String> {
        let choice = self.next(text)?;
        let mut listed = choice.next;
        if choice.complete {
            listed.push(Next::word("<Enter>", "Run it"));
            if !listed.iter().any(|next| next.text == "|") {
                listed.push(Next::word("|", names(&self.pipes)));
            }
        }
        Ok(if listed.is_empty() { "nothing\n".to_owned() } else { table(&listed) })
    }

    /// Returns the possible next words after this text.
    ///
    /// # Errors
    /// An error in the text.
    pub fn next(&self, text: &str) -> Result<Choice> {
        let line = Line::read(text);
        let stages = line.texts();
        let behind = stages.len() > 1;
        let (mut words, mut partial, mut start) = (Vec::new(), String::new(), text.len());
        if let (Some(texts), Some(stage)) = (stages.last(), line.stages.last()) {
            words.clone_from(texts);
            if let Some(last) = stage.last().filter(|word| word.end == text.len()) {
                start = last.start;
                partial = words.pop().unwrap_or_default();
            }
        }
        let commands = self.commands();
        let grammar = if behind { &self.pipes } else { &commands };
        let next = grammar.next(&words, &partial, self)?;
        let complete = line.open.is_none() && partial.is_empty() && self.read(&stages).is_ok();
        Ok(Choice { start, next, complete })
    }

    /// Returns the known values of this name.
    fn known(&self, name: &str) -> Option<Vec<Next>> {
        let (show, key) = match name {
            "PORT" => (Show::Ports, None),
            "VRF" => (Show::Vrfs, None),
            "STEP" => (Show::Steps, Some("steps")),
            "COMMAND" => (Show::Commands, None),
            "SOURCE" => {
                return Some(RouteSource::ALL.map(|source| Next::word(source.name(), "")).into());
            }
            _ => return None,
        };
        // Without a router there are no values to list; the command itself will report the error.
        let report = client::ask(&self.socket, &Request::Show(show)).ok()?;
        let list = key.map_or(Some(&report), |key| report.get(key))?.as_array()?;
        let word = |item: &serde_json::Value| {
            let help = item.get("help").and_then(serde_json::Value::as_str).unwrap_or_default();
            Some(Next::word(item.get("name")?.as_str()?, help))
        };
        Some(list.iter().filter_map(word).collect())
    }
}

/// A command of a line.
#[derive(Debug)]
enum Typed {
    Shell(ShellCommand),
    Router(RouterCommand),
    MoonRoute(MoonRouteCommand),
    Lua(CallArgs),
}

/// Returns a command of the configuration; its arguments are not checked here.
fn in_lua(name: String, help: String) -> Command {
    let words = Arg::new("words").value_name("WORDS").num_args(0..).action(ArgAction::Append);
    Command::new(name).about(help).arg(words)
}

/// Returns the names that commands of a configuration must not have, including aliases.
pub fn built_in() -> Vec<String> {
    let root = MoonRouteCommand::augment_subcommands(root());
    let names = |command: &Command| {
        let aliases = command.get_all_aliases().map(str::to_owned);
        aliases.chain([command.get_name().to_owned()]).collect::<Vec<_>>()
    };
    root.get_subcommands().flat_map(names).collect()
}

/// Returns the commands of every shell.
fn root() -> Command {
    let root = ShellCommand::augment_subcommands(Command::new("turnpike"));
    RouterCommand::augment_subcommands(root)
}

impl Values for Engine {
    fn values(&self, commands: &[&str], given: &[String], name: &str) -> Option<Vec<Next>> {
        let keywords = match name {
            "ROUTE" | "SETTINGS" => words::next(commands, given),
            _ => None,
        };
        let Some(keywords) = keywords else { return self.known(name) };
        let next = |(text, help): (&str, &str)| {
            if text.starts_with(|c: char| c.is_ascii_lowercase()) {
                return vec![Next::word(text, help)];
            }
            self.known(text).unwrap_or_else(|| vec![Next::value(text, help)])
        };
        Some(keywords.into_iter().flat_map(next).collect())
    }
}

/// Returns the text before a `?` that ends the line and requests the possible next words. After
/// `grep` it is part of an expression.
fn question<'t>(text: &'t str, line: &Line) -> Option<&'t str> {
    let last = line.stages.last()?.last()?;
    let raw = text.get(last.start..last.end)?;
    let alone = raw == "?";
    let first = line.stages.len() == 1 && line.open.is_none() && !raw.starts_with(['\'', '"']);
    (alone || first && raw.ends_with('?')).then(|| &text[..last.end - 1])
}

/// Returns true if a `?` typed after this text can be a request for help.
pub fn may_ask(text: &str) -> bool {
    let line = Line::read(&format!("{text}?"));
    line.open.is_none() && question(&format!("{text}?"), &line).is_some()
}

fn names(grammar: &Grammar) -> String {
    grammar.commands().into_iter().map(|next| next.text).collect::<Vec<_>>().join(", ")
}

/// Formats a line each, with the help in a column.
fn table(list: &[Next]) -> String {
    let width = list.iter().map(|next| next.text.len()).max().unwrap_or(0);
    let line = |next: &Next| {
        let help = next.help.lines().next().unwrap_or_default();
        format!("{:<width$}  {help}", next.text).trim_end().to_owned() + "\n"
    };
    list.iter().map(|next| format!("  {}", line(next))).collect()
}

/// Returns true if the line requests JSON, even if it is otherwise faulty.
fn asks_for_json(text: &str) -> bool {
    let stages = Line::read(text).texts();
    let option = |words: &Vec<String>| words.iter().any(|word| word == "--json");
    stages.first().is_some_and(option)
        || stages.iter().skip(1).any(|words| words.first().is_some_and(|word| word == "json"))
}

/// Returns the word as it has to be typed.
pub fn quoted(next: &Next) -> Option<String> {
    match next.kind {
        Kind::Word | Kind::Option if next.text.contains([' ', '|', '\'', '"', '\\', '#']) => {
            Some(format!("'{}'", next.text.replace('\'', "'\\''")))
        }
        Kind::Word | Kind::Option => Some(next.text.clone()),
        Kind::Value | Kind::File => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Without a router: the error shows how far the parsing got.
    fn engine() -> Engine {
        Engine::new(Path::new("/nonexistent/router.sock"))
    }

    fn run(line: &str) -> String {
        let mut out = Vec::new();
        match engine().run(line, &mut out) {
            Ok(_) => String::from_utf8(out).unwrap(),
            Err(error) => format!("{error:#}"),
        }
    }

    fn typed(line: &str) -> String {
        match engine().read(&Line::read(line).texts()) {
            Ok((Typed::Router(command), pipes)) => format!("{command:?} {}", pipes.json),
            Ok((Typed::Shell(command), _)) => format!("{command:?}"),
            Ok((Typed::MoonRoute(command), _)) => format!("{command:?}"),
            Ok((Typed::Lua(call), _)) => format!("{call:?}"),
            Err(error) => format!("{error:#}"),
        }
    }

    fn next(line: &str) -> Vec<String> {
        engine().next(line).unwrap().next.into_iter().map(|next| next.text).collect()
    }

    #[test]
    fn words_may_be_cut_short() {
        let full = typed("show counters");
        assert!(full.contains("counters") && typed("sh cou") == full, "{full}");
        let routes = typed("show routes --source kernel");
        assert!(routes.contains("source: Some(\"kernel\")"), "{routes}");
        assert_eq!(typed("show routes --sou kernel"), routes);
        // "ro" may be "route", which requires an address, or "routes", which takes none.
        assert_eq!(typed("sh ro"), "\"ro\": may mean routes, route; write more of it");
        assert_eq!(typed("sh ro 192.0.2.1"), typed("show route 192.0.2.1"));
        assert_eq!(typed("r a 192.0.2.0/24 blackhole"), typed("route add 192.0.2.0/24 blackhole"));
        assert_eq!(typed("exit"), "Quit");
    }

    #[test]
    fn a_word_that_may_mean_several_things_is_refused_with_them() {
        let expected = "\"p\": may mean ports, policing; write more of it";
        assert_eq!(run("show p"), expected);
        assert_eq!(run("sh p | grep x"), expected);
        assert_eq!(engine().next("show p x").unwrap_err().to_string(), expected);
        assert!(
            run("shw ports").starts_with("\"shw\": unknown; did you mean \"show\"? known: help, ")
        );
        assert!(
            run("show prots")
                .contains("did you mean \"ports\"? known: ports, interfaces, bonds, routes, ")
        );
        assert!(run("show route nowhere").contains("invalid value 'nowhere'"));
    }

    #[test]
    fn pipes_belong_to_commands() {
        assert!(typed("show ports | json").ends_with("true"));
        assert!(typed("show ports --json").contains("json: true"));
        assert!(run("| json").contains("no command before the pipe"));
        assert!(run("show ports |").contains("nothing behind the pipe; known: grep, json, count"));
        assert!(run("show ports | grep (").starts_with("grep: "));
        assert!(run("show ports | sort").contains("\"sort\": unknown; known: grep, json, count"));
        assert!(run("show ports --socket /x").contains("speaks with one router"));
        assert!(run("show 'ports").contains("quote ' is not closed"));
        assert!(run("top -d 1").contains("run turnpike top in a Unix shell"));
        // The help can be piped as well.
        assert_eq!(
            run("help | grep neigh"),
            "  neighbour  Set or remove neighbours of a running router\n"
        );
    }

    #[test]
    fn an_error_is_json_where_json_was_asked_for() {
        for line in ["show ports --json", "show ports | json", "show prots --json", "x | json"] {
            let said = run(line);
            let json: serde_json::Value = serde_json::from_str(&said).expect(&said);
            assert!(json["error"].is_string(), "{said}");
        }
        assert!(!run("show ports | grep json").starts_with('{'));
    }

    #[test]
    fn no_file_is_read_over_telnet() {
        let telnet = engine().for_telnet(Staged::default());
        let run = |line: &str| {
            let mut out = Vec::new();
            let error = telnet.run(line, &mut out).err().map(|error| format!("{error:#}"));
            error.unwrap_or_else(|| String::from_utf8(out).unwrap())
        };
        for line in
            ["apply /etc/shadow", "plan /etc/shadow", "apply --confirm 1m /etc/shadow | json"]
        {
            assert!(run(line).contains("not over telnet"), "{line}: {}", run(line));
        }
        for help in [run("help"), run("?")] {
            let names: Vec<_> =
                help.lines().filter_map(|line| line.split_whitespace().next()).collect();
            assert!(names.contains(&"show") && names.contains(&"rollback"), "{help}");
            assert!(!names.contains(&"apply") && !names.contains(&"plan"), "{help}");
        }
        // Without telnet the file is the user's own.
        assert!(super::tests::run("apply /nonexistent").contains("/nonexistent: cannot be read"));
    }

    #[test]
    fn a_router_that_is_away_is_an_error() {
        let error = run("show ports");
        assert!(
            error.contains("socket /nonexistent/router.sock: cannot reach a router"),
            "{error}"
        );
        assert!(run("show graph --lua | count").parse::<u32>().is_err());
        assert!(run("show graph --lua | count").trim().parse::<u32>().unwrap() > 10);
    }

    #[test]
    fn what_can_come_next_is_known() {
        assert!(next("sh")[..] == ["show"] && next("rou")[..] == ["route"]);
        assert_eq!(next("show p"), ["ports", "policing"]);
        assert_eq!(next("sh gra --format "), ["text", "dot", "mermaid"]);
        assert_eq!(next("show routes --s"), ["--source", "--summary"]);
        assert!(next("show routes --source ").contains(&"kernel".to_owned()));
        assert_eq!(next("show route ")[0], "ADDRESS");
        assert_eq!(next("route add ")[..1], ["PREFIX"]);
        assert_eq!(next("route add ::/0 ")[..4], ["via", "dev", "blackhole", "unreachable"]);
        assert_eq!(next("route add ::/0 via ")[0], "ADDRESS");
        assert_eq!(next("route add ::/0 via ::1 dev ")[0], "PORT");
        assert_eq!(next("route del 192.0.2.0/24 m"), ["metric"]);
        assert_eq!(next("neighbour add ")[0], "ADDRESS");
        assert_eq!(next("neighbour add ::1 ")[..2], ["lladdr", "dev"]);
        assert_eq!(next("neighbour add ::1 lladdr x ")[..1], ["dev"]);
        assert_eq!(next("show ports | "), ["grep", "json", "count"]);
        assert_eq!(next("show ports | grep -")[..], ["--invert", "--ignore-case"]);
        assert!(engine().next("show ports ").unwrap().complete);
        assert!(!engine().next("show ").unwrap().complete);
    }

    #[test]
    fn a_question_is_answered_where_it_is_one() {
        assert!(
            run("show ?").contains("  ports           Ports: device, addresses, link, packets\n")
        );
        assert!(run("show p?").contains("policing") && !run("show p?").contains("routes"));
        assert!(run("show ports ?").contains("<Enter>"));
        assert!(run("show ports | ?").contains("grep"));
        assert!(
            run("show route ?").contains("ADDRESS     The destination"),
            "{}",
            run("show route ?")
        );
        assert!(may_ask("show ") && may_ask("") && may_ask("show ports | "));
        assert!(!may_ask("show ports | grep a") && !may_ask("show 'a"));
    }

    #[test]
    fn help_says_everything() {
        let help = run("help");
        assert!(help.contains("  show ") && help.contains("  count"), "{help}");
        assert!(run("help show rou").contains("may mean routes, route"));
        assert!(run("help show routes").contains("--longer"));
        assert_eq!(run("show routes --help"), run("help show routes"));
        assert!(!run("help show routes").contains("--socket"));
        assert!(run("help show routes | count").trim().parse::<u32>().unwrap() > 5);
        assert!(run("help nonsense").contains("\"nonsense\": unknown; known: help, "));
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in "\\PC{0,40}") {
            let engine = engine();
            let _ = engine.run(&line, &mut Vec::new());
            let _ = engine.next(&line);
            may_ask(&line);
        }

        /// Lines that get further than arbitrary ones.
        #[test]
        fn any_words_are_read(
            words in proptest::collection::vec(
                "show|r|route|routes|add|del|--json|--source|-|--|via|dev|[|]|grep|'|\"|[?]|é|help|1.1.1.1|-v",
                0..8,
            ),
        ) {
            let (engine, line) = (engine(), words.join(" "));
            let _ = engine.run(&line, &mut Vec::new());
            let _ = engine.next(&line);
        }
    }
}
