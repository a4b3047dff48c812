//! `turnpike pages`: manual pages and completions for shells, from the same text as `--help`.
//!
//! Packages run it when they are built. There is a manual page for each command, as `turnpike-show-ports(1)`, and a file
//! for each shell under the name by which the shell finds it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

/// Options of `turnpike pages`.
#[derive(Debug, Args)]
pub struct PagesArgs {
    /// The directory, with `man` and `completions` afterwards
    directory: PathBuf,
}

/// The end of every page.
const FILES: &[(&str, &str)] = &[
    ("/etc/turnpike/turnpike.lua", "The configuration of the service."),
    ("/usr/share/doc/turnpike", "The guide, and examples of configurations."),
];

/// Writes the pages and completions of a command and of those below it.
///
/// # Errors
/// A file cannot be written.
pub fn pages(args: &PagesArgs, root: &Command) -> Result<()> {
    let shown = |name: &str| {
        let directory = args.directory.join(name);
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        anyhow::Ok(directory)
    };
    let man = shown("man")?;
    let mut command = root.clone().disable_help_subcommand(true);
    command.build();
    write_all(&command, &[], &man).with_context(|| man.display().to_string())?;
    let completions = shown("completions")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut root.clone(), "turnpike", &completions)
            .with_context(|| completions.display().to_string())?;
    }
    Ok(())
}

/// Writes the page of a command with these commands above it, and those of all below it.
fn write_all(command: &Command, above: &[&str], directory: &Path) -> Result<()> {
    let name = [above, &[command.get_name()]].concat();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_all(sub, &name, directory)?;
    }
    fs::write(directory.join(format!("{}.1", name.join("-"))), page(command, above)?)?;
    Ok(())
}

fn page(command: &Command, above: &[&str]) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let version = format!("Turnpike {}", env!("CARGO_PKG_VERSION"));
    // A date that is empty would be left out, and the next argument taken for it.
    Man::new(command.clone()).source(version).manual("Turnpike").date(" ").render(&mut page)?;
    writeln!(page, ".SH FILES")?;
    for (file, text) in FILES {
        writeln!(page, ".TP\n.I {file}\n{text}")?;
    }
    if !above.is_empty() {
        writeln!(page, ".SH \"SEE ALSO\"\n.BR {} (1)", above.join("\\-"))?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_hidden_ones_have_none() {
        let directory = tempfile::tempdir().unwrap();
        let root = Command::new("turnpike").about("A router").subcommands([
            Command::new("show").about("Show").subcommand(Command::new("ports").about("Ports")),
            Command::new("secret").hide(true),
        ]);
        pages(&PagesArgs { directory: directory.path().to_owned() }, &root).unwrap();
        let names = |of: &str| {
            let files = fs::read_dir(directory.path().join(of)).unwrap();
            let mut names: Vec<_> =
                files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names("man"), ["turnpike-show-ports.1", "turnpike-show.1", "turnpike.1"]);
        assert_eq!(names("completions"), ["_turnpike", "turnpike.bash", "turnpike.fish"]);
        let page = fs::read_to_string(directory.path().join("man/turnpike-show-ports.1")).unwrap();
        assert!(page.contains(".SH NAME") && page.contains("turnpike\\-show (1)"), "{page}");
        let page = fs::read_to_string(directory.path().join("man/turnpike.1")).unwrap();
        assert!(!page.contains("secret") && !page.contains("SEE ALSO"), "{page}");
    }
}
