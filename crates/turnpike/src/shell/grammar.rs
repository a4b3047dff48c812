//! The grammar of a line is that of the binary's commands, read from clap: a word may be
//! abbreviated if it stays unambiguous, and the possible next words are known at any point.

use anyhow::{Result, anyhow, bail};
use clap::builder::ValueHint;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};
use dataplane::words::suggestion;

use crate::usage;

/// A possible next word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The word, or the name of a value: `ADDRESS`.
    pub text: String,
    /// Its meaning.
    pub help: String,
    /// Its kind.
    pub kind: Kind,
}

/// A kind of word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A literal word.
    Word,
    /// An option, which is never required.
    Option,
    /// A value without known candidates.
    Value,
    /// A file.
    File,
}

impl Next {
    /// Creates a word.
    pub fn word(text: impl Into<String>, help: impl Into<String>) -> Self {
        Self { text: text.into(), help: help.into(), kind: Kind::Word }
    }

    /// Creates a value.
    pub fn value(text: impl Into<String>, help: impl Into<String>) -> Self {
        Self { text: text.into(), help: help.into(), kind: Kind::Value }
    }
}

/// Possible values that clap does not have: after these commands and words, for a value of this
/// name. `None`: none are known, and the value's own name and help are shown.
pub trait Values {
    /// Returns the possible values.
    fn values(&self, commands: &[&str], words: &[String], name: &str) -> Option<Vec<Next>>;
}

/// A tree of commands.
pub struct Grammar {
    root: Command,
}

impl Grammar {
    /// Creates the grammar of the root's subcommands.
    pub fn new(root: Command) -> Self {
        // The router is selected before the first line.
        let settled = |arg: Arg| if arg.get_id() == "socket" { arg.hide(true) } else { arg };
        let mut root = root
            .mut_subcommands(|command| command.mut_args(settled))
            .no_binary_name(true)
            .disable_help_subcommand(true)
            .infer_long_args(true)
            .subcommand_required(true);
        root.build();
        Self { root }
    }

    /// Parses the words of a command.
    ///
    /// # Errors
    /// A [`clap::Error`], which is also the form of requested help, or an ambiguous word.
    pub fn parse(&self, words: &[String]) -> Result<ArgMatches> {
        let mut readings = Vec::new();
        expand(&self.root, words, &mut Vec::new(), &mut readings);
        let parse = |words: &Vec<String>| self.root.clone().try_get_matches_from(words);
        let possible =
            |words: &&Vec<String>| parse(words).map_or_else(|e| is_unfinished(&e), |_| true);
        let only = match &readings[..] {
            [only] => only,
            // An abbreviated word means the one thing with which the rest is valid, now or with
            // more words after it.
            several => match several.iter().filter(possible).collect::<Vec<_>>()[..] {
                [only] => only,
                _ => bail!("{}", ambiguous(words, &readings)),
            },
        };
        parse(only).map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.into(),
            _ => anyhow!("{}", usage::said(&error, &self.root, only)),
        })
    }

    /// Returns the available subcommands.
    pub fn commands(&self) -> Vec<Next> {
        subcommands(&self.root).map(shown).collect()
    }

    /// Returns the words that can follow these, beginning with `partial`.
    ///
    /// # Errors
    /// An earlier word is unknown or ambiguous.
    pub fn next(&self, words: &[String], partial: &str, values: &dyn Values) -> Result<Vec<Next>> {
        let (command, rest) = self.walk(words)?;
        let mut found = if let Some(option) = open_option(command, rest) {
            self.values_of(option, words, &[], values)
        } else if command.has_subcommands() {
            if let Some(word) = rest.iter().find(|word| !word.starts_with('-')) {
                bail!("\"{word}\": {}", no_command(command, word));
            }
            subcommands(command).map(shown).collect()
        } else {
            let given = positionals(command, rest);
            let last = command.get_positionals().count().saturating_sub(1);
            let place = command
                .get_positionals()
                .nth(given.len())
                .or_else(|| command.get_positionals().nth(last).filter(|arg| is_list(arg)));
            // A list takes all words from its position on.
            let before = command.get_positionals().count().saturating_sub(1).min(given.len());
            place.map_or_else(Vec::new, |arg| {
                let listed = if is_list(arg) { &given[before..] } else { &[] };
                self.values_of(arg, words, listed, values)
            })
        };
        if open_option(command, rest).is_none() {
            found.extend(command.get_opts().filter_map(option));
            found.extend(flags(command).filter_map(option));
        }
        found.retain(|next| match next.kind {
            Kind::Value | Kind::File => !partial.starts_with('-'),
            Kind::Word | Kind::Option => next.text.starts_with(partial),
        });
        Ok(found)
    }

    /// Returns the possible words for an argument.
    fn values_of(
        &self,
        arg: &Arg,
        words: &[String],
        listed: &[String],
        values: &dyn Values,
    ) -> Vec<Next> {
        let possible = arg.get_possible_values();
        if !possible.is_empty() {
            let help = |value: &clap::builder::PossibleValue| {
                value.get_help().map(ToString::to_string).unwrap_or_default()
            };
            return possible.iter().map(|v| Next::word(v.get_name(), help(v))).collect();
        }
        let names = arg.get_value_names().unwrap_or_default();
        let name = names.first().map_or_else(|| arg.get_id().as_str(), |name| name.as_str());
        let path = self.path(words);
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if let Some(known) = values.values(&path, listed, name) {
            return known;
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let file = matches!(arg.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath);
        let kind = if file { Kind::File } else { Kind::Value };
        vec![Next { text: name.to_uppercase(), help, kind }]
    }

    /// Returns the full names of the commands with which these words begin.
    fn path(&self, words: &[String]) -> Vec<String> {
        let (mut command, mut path) = (&self.root, Vec::new());
        for word in words.iter().filter(|word| !word.starts_with('-')) {
            let [only] = meant(command, word)[..] else { break };
            path.push(only.get_name().to_owned());
            command = only;
        }
        path
    }

    /// Returns the command named by the first words, and the other words.
    fn walk<'a>(&self, words: &'a [String]) -> Result<(&Command, &'a [String])> {
        let mut command = &self.root;
        for (at, word) in words.iter().enumerate() {
            if !command.has_subcommands() {
                return Ok((command, &words[at..]));
            }
            if word.starts_with('-') {
                continue;
            }
            match meant(command, word)[..] {
                [only] => command = only,
                [] => return Ok((command, &words[at..])),
                ref several => {
                    bail!("{}", says_ambiguous(word, several.iter().map(|c| c.get_name())))
                }
            }
        }
        Ok((command, &[]))
    }
}

/// Returns the subcommands that a word may mean: the one of this name, else those that begin with
/// it.
fn meant<'c>(command: &'c Command, word: &str) -> Vec<&'c Command> {
    let exact = |sub: &&Command| sub.get_name() == word || sub.get_all_aliases().any(|a| a == word);
    match subcommands(command).find(exact) {
        Some(only) => vec![only],
        None => subcommands(command).filter(|sub| sub.get_name().starts_with(word)).collect(),
    }
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// Collects all expansions of words that may be abbreviated.
fn expand(command: &Command, words: &[String], read: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    let skip = words.iter().take_while(|word| word.starts_with('-')).count();
    let meant = match words.get(skip) {
        Some(word) if command.has_subcommands() => meant(command, word),
        _ => Vec::new(),
    };
    if meant.is_empty() {
        all.push([&read[..], words].concat());
        return;
    }
    let length = read.len();
    for sub in meant {
        read.extend_from_slice(&words[..skip]);
        read.push(sub.get_name().to_owned());
        expand(sub, &words[skip + 1..], read, all);
        read.truncate(length);
    }
}

/// Returns the error for an ambiguous word, with its possible meanings.
fn ambiguous(words: &[String], readings: &[Vec<String>]) -> String {
    let differs = |at: &usize| readings.iter().any(|reading| reading[*at] != readings[0][*at]);
    let at = (0..words.len()).find(differs).unwrap_or(0);
    let mut meant: Vec<&str> = readings.iter().map(|reading| reading[at].as_str()).collect();
    meant.dedup();
    says_ambiguous(&words[at], meant.into_iter())
}

/// Returns true if words are missing but none is wrong.
fn is_unfinished(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::TooFewValues
    )
}

fn says_ambiguous<'a>(word: &str, meant: impl Iterator<Item = &'a str>) -> String {
    format!("\"{word}\": may mean {}; write more of it", meant.collect::<Vec<_>>().join(", "))
}

fn no_command(command: &Command, word: &str) -> String {
    let known: Vec<_> = subcommands(command).map(Command::get_name).collect();
    match &known[..] {
        [] => "not expected here".to_owned(),
        _ => format!("unknown{}", suggestion(word, "known", &known)),
    }
}

fn shown(command: &Command) -> Next {
    let help = command.get_about().map(ToString::to_string).unwrap_or_default();
    let aliases: Vec<_> = command.get_visible_aliases().collect();
    let help = match &aliases[..] {
        [] => help,
        _ => format!("{help} [{}]", aliases.join(", ")),
    };
    Next::word(command.get_name(), help)
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_positional() && !arg.get_action().takes_values())
}

fn option(arg: &Arg) -> Option<Next> {
    let hidden = arg.is_hide_set() || matches!(arg.get_id().as_str(), "help" | "version");
    let name = arg.get_long().filter(|_| !hidden)?;
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    Some(Next { text: format!("--{name}"), help, kind: Kind::Option })
}

/// Returns the option whose value comes next.
fn open_option<'c>(command: &'c Command, words: &[String]) -> Option<&'c Arg> {
    let last = words.last()?;
    command.get_opts().filter(|arg| !arg.is_hide_set()).find(|arg| is_option(arg, last))
}

fn is_option(arg: &Arg, word: &str) -> bool {
    match word.strip_prefix("--") {
        Some(name) => arg.get_long() == Some(name),
        None => word.strip_prefix('-').is_some_and(|short| {
            arg.get_short().is_some_and(|c| short.chars().eq(std::iter::once(c)))
        }),
    }
}

/// Returns the words that are neither options nor their values.
fn positionals(command: &Command, words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if command.get_opts().any(|arg| is_option(arg, word)) {
            words.next();
        } else if !word.starts_with('-') {
            found.push(word.clone());
        }
    }
    found
}

fn is_list(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|range| range.max_values() > 1)
        || matches!(arg.get_action(), clap::ArgAction::Append)
}
