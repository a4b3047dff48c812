//! The program around the router: everything that a router needs from the layers above it, as values.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use anyhow::{Context, Result, anyhow, bail};
use control::config::{self, Command, Config, Limits};
use dataplane::catalogue::Catalogue;

/// A telnet service; accepts clients when polled, in the thread of the API.
pub type TelnetSessions = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes the telnet service of this listener with these settings, for commands to the router at this socket.
pub type OpenTelnet = fn(TcpListener, &config::Telnet, &Path) -> Result<TelnetSessions>;

/// The program that contains the router.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its steps.
    pub catalogue: Catalogue,
    /// Names of its commands, which commands of a configuration must not have, as both are typed alike.
    pub commands: Vec<String>,
    /// Its telnet service.
    pub telnet: OpenTelnet,
}

impl Program {
    /// Reads a configuration's text in Turnpike's language; the file is its name, and other files are found beside it.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse(&self, file: &Path, text: &str) -> Result<Config> {
        let config = config::parse(file, text, Limits::default(), &self.catalogue);
        let config = config.map_err(|errors| anyhow!("{errors}"))?;
        self.check_names(&config)?;
        Ok(config)
    }

    /// Checks that the names of the configuration's commands are free.
    ///
    /// # Errors
    /// A name is taken.
    pub fn check_names(&self, config: &Config) -> Result<()> {
        match config.commands.iter().find(|command| self.commands.contains(&command.name)) {
            None => Ok(()),
            Some(Command { line, name, .. }) => bail!(
                "{}:{line}: command \"{name}\": the name is taken by a command of the binary; choose another",
                config.file.display()
            ),
        }
    }
}

/// The language of a file that describes a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// Lua, with Turnpike's statements.
    #[default]
    Turnpike,
    /// Lua that returns a table of MoonRoute's.
    MoonRoute,
    /// Click's.
    Click,
}

/// The file that describes a router.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// Its path.
    pub file: PathBuf,
    /// Its language.
    pub language: Language,
}

impl ConfigSource {
    /// Loads the configuration, and warnings about unused parts of it.
    ///
    /// # Errors
    /// All faults of the file.
    pub fn load(&self, program: &Program) -> Result<(Config, Vec<String>)> {
        let (file, catalogue) = (&self.file, &program.catalogue);
        let loaded = match self.language {
            Language::MoonRoute => {
                let interfaces = config::interfaces_by_mac()
                    .with_context(|| format!("{}: the interfaces' MACs", file.display()))?;
                config::moonroute::load(file, &interfaces, catalogue)
                    .map(|loaded| (loaded.config, loaded.warnings))
            }
            Language::Click => {
                config::click::load(file, catalogue).map(|loaded| (loaded.config, loaded.notes))
            }
            Language::Turnpike => config::load(file, catalogue).map(|config| (config, Vec::new())),
        };
        let loaded = loaded.map_err(|errors| anyhow!("{errors}"))?;
        program.check_names(&loaded.0)?;
        Ok(loaded)
    }
}
