//! Commands in Lua of the current configuration. Each runs on a thread of its own and accesses the router as any other
//! client of the API.

use std::sync::Arc;
use std::time::Duration;

use api::report::Command;
use api::{Answer, DoRequest, Request, client};
use control::config::{Call, run_command};
use serde_json::json;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use super::Owner;

/// The longest run.
const BUDGET: Duration = Duration::from_secs(5);

/// Commands that run at a time.
const PLACES: usize = 4;

/// Bounds how many run.
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PLACES)))
    }
}

impl Owner {
    /// The commands that there are.
    pub(super) fn commands(&self) -> Vec<Command> {
        let commands = self.configurations.current.commands.iter();
        commands.map(|c| Command { name: c.name.clone(), help: c.help.clone() }).collect()
    }

    /// Runs a command, and answers when it has ended.
    pub(super) fn run_command(&self, call: DoRequest, asker: oneshot::Sender<Answer>) {
        let config = self.configurations.current.clone();
        let known: Vec<_> = config.commands.iter().map(|command| command.name.as_str()).collect();
        if !known.contains(&call.name.as_str()) {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message =
                format!("command \"{}\": not in the configuration; known: {known}", call.name);
            let _ = asker.send(Answer::Error(message));
            return;
        }
        let Ok(place) = self.serving.places.0.clone().try_acquire_owned() else {
            let message =
                format!("command \"{}\": {PLACES} commands run already; try later", call.name);
            let _ = asker.send(Answer::Error(message));
            return;
        };
        let socket = self.serving.socket.clone();
        spawn_blocking(move || {
            let DoRequest { name, args } = call;
            let file = config.file.file_name().unwrap_or_default().to_string_lossy();
            let call = Call {
                text: &config.text,
                file: &file,
                name: &name,
                arguments: &args,
                budget: BUDGET,
            };
            let show = move |wanted: serde_json::Value| {
                let request = json!({ "show": wanted }).to_string();
                let request =
                    Request::read(request.as_bytes()).map_err(|error| error.to_string())?;
                client::ask(&socket, &request).map_err(|error| format!("{error:#}"))
            };
            let answer = match run_command(&call, show) {
                Ok(report) => Answer::Ok(report),
                Err(message) => {
                    tracing::warn!("{message}");
                    Answer::Error(message)
                }
            };
            // The client may have disconnected.
            let _ = asker.send(answer);
            drop(place);
        });
    }
}
