//! Prepares the change to another configuration, beside the router's work: reads and checks the text as
//! `turnpike check` does, finds what is different, and makes the graphs that forwarders are to have.
//! Nothing of the running router is touched.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use control::config::{self, Config, Diff, Limits};
use control::import;
use dataplane::catalogue::Catalogue;
use dataplane::port::{PortId, PortInfo};

use crate::commands::check;

use super::graphs::{ForwarderGraph, GraphMaker};

/// What is to be changed to.
#[derive(Clone)]
pub enum Wanted {
    /// A text that may be wrong.
    Text(PathBuf, Arc<str>),
    /// A configuration that has been checked.
    Config(Arc<Config>),
}

/// A change that only needs to be made.
pub struct Prepared {
    /// What the router had when it was prepared.
    pub base: Arc<Config>,
    /// What it is to have.
    pub config: Arc<Config>,
    /// The difference.
    pub diff: Diff,
    /// A graph for each forwarder, if they need others and can have them.
    pub graphs: Vec<ForwarderGraph>,
    /// What steps need to know of the ports then.
    pub ports: Vec<PortInfo>,
}

/// Where changes are prepared.
#[derive(Clone)]
pub struct Workshop {
    catalogue: Catalogue,
    maker: Arc<Mutex<GraphMaker>>,
    forwarders: usize,
}

impl Workshop {
    /// For a router with so many forwarders, whose graphs this maker makes.
    pub fn new(maker: GraphMaker, forwarders: usize) -> Self {
        let catalogue = maker.catalogue().clone();
        Self { catalogue, maker: Arc::new(Mutex::new(maker)), forwarders }
    }

    /// Prepares a change for a router that has these ports, by their numbers; with `graphs`, so that it
    /// can be made.
    pub fn prepare(
        &self,
        base: Arc<Config>,
        running: &[PortInfo],
        wanted: Wanted,
        graphs: bool,
    ) -> Result<Prepared> {
        let config = match wanted {
            Wanted::Text(file, text) => Arc::new(self.read(&base, &file, &text)?),
            Wanted::Config(config) => config,
        };
        let diff = Diff::between(&base, &config);
        let wanted = graphs && diff.graph && diff.fixed().next().is_none();
        let ports = infos(&config, running);
        let graphs = if wanted { self.graphs(&config, &ports)? } else { Vec::new() };
        Ok(Prepared { base, config, diff, graphs, ports })
    }

    fn read(&self, base: &Config, file: &std::path::Path, text: &str) -> Result<Config> {
        let config = config::parse(file, text, Limits::default(), &self.catalogue);
        let mut config = config.map_err(|errors| anyhow!("{errors}"))?;
        config::check_machine(&config).map_err(|errors| anyhow!("{errors}"))?;
        check::names(&config)?;
        for import in &config.imports {
            if !base.imports.iter().any(|known| known.file == import.file) {
                import::read_table(&import.file)
                    .with_context(|| format!("{}:{}: import", file.display(), import.line))?;
            }
        }
        config.align(base).map_err(|error| anyhow!("{}: {error}", file.display()))?;
        Ok(config)
    }

    fn graphs(&self, config: &Config, ports: &[PortInfo]) -> Result<Vec<ForwarderGraph>> {
        let mut maker = self.maker.lock().unwrap_or_else(PoisonError::into_inner);
        (0..self.forwarders).map(|_| maker.make(config, ports)).collect()
    }
}

/// What is known of the ports by their numbers, with what the configuration asks of them.
pub fn infos(config: &Config, running: &[PortInfo]) -> Vec<PortInfo> {
    let info = |(id, info): (PortId, &PortInfo)| {
        config.port(id).map_or(*info, |port| PortInfo {
            reverse_path: port.reverse_path,
            redirects: port.redirects,
            ..*info
        })
    };
    (0..).map_while(PortId::new).zip(running).map(info).collect()
}
