//! `turnpike.metrics { … }`

use std::path::PathBuf;

use super::super::Metrics;
use super::super::script::Statement;
use super::super::value::Fields;
use super::Context;
use super::rest::{is_within, listen, plain, single};

/// The socket of a statement that names neither a socket nor an address.
const SOCKET: &str = "/run/turnpike-metrics.sock";

/// The port number in examples.
const USUAL: u16 = 9477;

/// Most bytes of a Unix socket's path, of which the kernel keeps 108 with the end, and of the addition of its draft.
const PATH_MAX: usize = 90;

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<Metrics> {
    let statement = single(context, statements)?;
    let mut fields = plain(context, statement, &["socket", "group", "listen", "public"]);
    let mut metrics = Metrics { socket: socket(&mut fields, SOCKET), group: None, listen: None };
    let public = fields.flag("public");
    let expected = "an address and a port such as \"127.0.0.1:9477\"";
    if let Some(text) = fields.text("listen", expected) {
        match listen(text, USUAL) {
            Ok(address) => {
                let is_within = is_within(&mut fields, address, public, ("metrics have", USUAL));
                metrics.listen = is_within.then_some(address);
            }
            Err(reason) => fields.error("listen", format!("listen \"{text}\": {reason}")),
        }
    } else if metrics.socket.is_none() {
        metrics.socket = Some(PathBuf::from(SOCKET));
    }
    if let Some(group) = fields.text("group", "a group such as \"prometheus\"") {
        if metrics.socket.is_none() {
            let message = "group: nothing has it without a socket; add socket, or leave it out";
            fields.error("group", message);
        }
        metrics.group = Some(group.to_owned());
    }
    Some(metrics)
}

/// Reads the path of a socket; `usual`: an example.
pub(super) fn socket(fields: &mut Fields<'_, '_>, usual: &str) -> Option<PathBuf> {
    let text = fields.text("socket", "an absolute path")?;
    if !text.starts_with('/') || text.ends_with('/') {
        let message =
            format!("socket \"{text}\": no absolute path of a file; write one such as \"{usual}\"");
        fields.error("socket", message);
    } else if text.len() > PATH_MAX {
        let message =
            format!("socket \"{text}\": longer than {PATH_MAX} bytes; choose a shorter path");
        fields.error("socket", message);
    }
    Some(text.into())
}
