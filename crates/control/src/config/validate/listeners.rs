//! The listeners of services over HTTP: settings that `turnpike.api` and `turnpike.metrics` share.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::super::value::Fields;
use super::super::{HttpListeners, PemFile, Tls};
use super::rest::listen;

/// Most bytes of a Unix socket's path, of which the kernel keeps 108 with the end, and of the addition of its draft.
const PATH_MAX: usize = 90;

/// Settings of a service.
pub(super) struct Service {
    /// The socket of a statement that names neither a socket nor an address.
    pub(super) socket: &'static str,
    /// A group in examples.
    pub(super) group: &'static str,
    /// The port number in examples.
    pub(super) port: u16,
}

/// Reads the listeners of a service. `exposed` returns the reason for which an address that others than this machine can
/// reach is refused.
pub(super) fn read(
    fields: &mut Fields<'_, '_>,
    service: &Service,
    exposed: impl FnOnce(&mut Fields<'_, '_>, Option<&Tls>) -> Option<String>,
) -> HttpListeners {
    let (socket, tls) = (socket(fields, service.socket), tls(fields));
    let mut at = HttpListeners { socket, group: None, listen: None, tls };
    let usual = format!("127.0.0.1:{}", service.port);
    match fields.text("listen", &format!("an address and a port such as \"{usual}\"")) {
        Some(text) => {
            let address =
                listen(text, service.port).and_then(|address: SocketAddr| {
                    match exposed(fields, at.tls.as_ref()).filter(|_| !address.ip().is_loopback()) {
                        Some(reason) => Err(reason),
                        None => Ok(address),
                    }
                });
            match address {
                Ok(address) => at.listen = Some(address),
                Err(reason) => fields.error("listen", format!("listen \"{text}\": {reason}")),
            }
        }
        None => {
            fields.refuse(&["certificate", "key", "client_ca"], |key| {
                format!("{key}: the socket has no TLS; add listen, or leave it out")
            });
            let usual = || PathBuf::from(service.socket);
            at.socket = Some(at.socket.unwrap_or_else(usual));
        }
    }
    at.group = group(fields, service.group, at.socket.is_some());
    at
}

/// Reads the group of a socket.
pub(super) fn group(fields: &mut Fields<'_, '_>, usual: &str, has_socket: bool) -> Option<String> {
    let text = fields.text("group", &format!("a group such as \"{usual}\""))?;
    if !has_socket {
        let message = "group: nothing has it without a socket; add socket, or leave it out";
        fields.error("group", message);
    }
    Some(text.to_owned())
}

/// Reads the path of a socket; `usual`: an example.
fn socket(fields: &mut Fields<'_, '_>, usual: &str) -> Option<PathBuf> {
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

fn tls(fields: &mut Fields<'_, '_>) -> Option<Tls> {
    let is_there = |fields: &Fields<'_, '_>, key: &str| fields.get(key).is_some();
    for (key, other) in
        [("certificate", "key"), ("key", "certificate"), ("client_ca", "certificate")]
    {
        if is_there(fields, key) && !is_there(fields, other) {
            let message = format!("{other} missing: {key} is nothing without it; add {other}");
            fields.error(key, message);
        }
    }
    let certificate = pem_file(fields, "certificate");
    let key = pem_file(fields, "key");
    let client_ca = pem_file(fields, "client_ca");
    Some(Tls { certificate: certificate?, key: key?, client_ca })
}

/// Reads the path of a file in PEM, and the time of its last change.
fn pem_file(fields: &mut Fields<'_, '_>, key: &'static str) -> Option<PemFile> {
    // The value is not shown: it may be a key that somebody has pasted.
    if fields.get(key).is_some() && !fields.is_text(key, is_path) {
        let message =
            format!("{key}: no absolute path of a file in PEM; its text is read from there");
        fields.error(key, message);
        return None;
    }
    let path = PathBuf::from(fields.text(key, "an absolute path")?);
    let changed = path
        .metadata()
        .ok()
        .map(|about| i128::from(about.ctime()) * 1_000_000_000 + i128::from(about.ctime_nsec()));
    Some(PemFile { path, changed })
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && !text.ends_with('/') && !text.contains(char::is_control)
}
