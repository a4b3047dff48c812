//! Errors of command lines: the unknown word, the one that was probably meant, and the known ones.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use dataplane::words::suggestion;

/// Describes an error of a command line in one sentence that lists the known words if clap's own
/// does not; `root` is the tree of commands, built.
pub fn said(error: &clap::Error, root: &Command, words: &[String]) -> String {
    let command = innermost(root, words);
    match (error.kind(), invalid(error)) {
        (ErrorKind::InvalidSubcommand, Some(word)) => {
            let known: Vec<_> = visible(command).collect();
            format!("\"{word}\": unknown{}", suggestion(word, "known", &known))
        }
        (ErrorKind::UnknownArgument, Some(word)) => {
            let options = options(command);
            let known: Vec<_> = options.iter().map(String::as_str).collect();
            match word.starts_with('-') {
                true => format!("\"{word}\": unknown{}", suggestion(word, "known", &known)),
                false => format!("\"{word}\": not expected here; known: {}", known.join(", ")),
            }
        }
        _ => plain(error),
    }
}

/// Returns clap's own message, without the pointer to help.
fn plain(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = text.split("\n\nFor more information").next().unwrap_or(text);
    text.trim_end().to_owned()
}

fn invalid(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    kinds.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    })
}

/// Returns the last command that the words name.
fn innermost<'c>(root: &'c Command, words: &[String]) -> &'c Command {
    words.iter().fold(root, |command, word| command.find_subcommand(word).unwrap_or(command))
}

fn visible(command: &Command) -> impl Iterator<Item = &str> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(Command::get_name)
}

fn options(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| arg.get_long()).map(|name| format!("--{name}")).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn root() -> Command {
        let offloads = Arg::new("offloads").long("offloads").action(ArgAction::SetTrue);
        let secret = Arg::new("secret").long("secret").hide(true).action(ArgAction::SetTrue);
        let ports = Command::new("ports").arg(offloads).arg(secret);
        let show = Command::new("show").subcommands([ports, Command::new("routes")]);
        let mut root = Command::new("turnpike").no_binary_name(true).subcommand(show);
        root.build();
        root
    }

    fn error(line: &str) -> String {
        let (root, words) = (root(), line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        said(&root.clone().try_get_matches_from(&words).unwrap_err(), &root, &words)
    }

    #[test]
    fn what_is_unknown_is_named_with_what_is_known() {
        assert_eq!(
            error("show prots"),
            "\"prots\": unknown; did you mean \"ports\"? known: ports, routes, help"
        );
        assert!(error("shw").starts_with("\"shw\": unknown; did you mean \"show\"? known: show"));
        assert_eq!(
            error("show ports --ofloads"),
            "\"--ofloads\": unknown; did you mean \"--offloads\"? known: --offloads, --help"
        );
        assert_eq!(
            error("show ports lan"),
            "\"lan\": not expected here; known: --offloads, --help"
        );
        assert!(!error("show ports --offloads=3").contains("For more"));
    }
}
