//! `turnpike.api { … }` and `turnpike.access { … }`

use std::path::PathBuf;

use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{Access, Api, Holder};
use super::Context;
use super::metrics::socket;
use super::rest::{listen, plain, single};

/// The socket of a statement that names neither a socket nor an address.
const SOCKET: &str = "/run/turnpike-api.sock";

/// The port number in examples.
const USUAL: u16 = 8479;

/// Prefix of groups among the holders of a role.
const GROUP: &str = "group:";

pub(super) fn api<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<Api> {
    let statement = single(context, statements)?;
    let mut fields =
        plain(context, statement, &["socket", "group", "listen", "token_file", "dashboard"]);
    let (socket, dashboard) = (socket(&mut fields, SOCKET), fields.flag("dashboard"));
    let mut api = Api { socket, group: None, listen: None, token_file: None, dashboard };
    if let Some(text) = fields.text("listen", "an address and a port such as \"127.0.0.1:8479\"") {
        match listen(text, USUAL) {
            Ok(address) if address.ip().is_loopback() => api.listen = Some(address),
            Ok(_) => {
                let message = format!(
                    "listen \"{text}\": others than this machine can reach it, and the API is not encrypted; listen on \
                     \"127.0.0.1:{USUAL}\", and reach it by ssh -L or a proxy with TLS"
                );
                fields.error("listen", message);
            }
            Err(reason) => fields.error("listen", format!("listen \"{text}\": {reason}")),
        }
    } else if api.socket.is_none() {
        api.socket = Some(PathBuf::from(SOCKET));
    }
    api.token_file = token_file(&mut fields, api.listen.is_some());
    api.group = group(&mut fields, api.socket.is_some());
    Some(api)
}

fn token_file(fields: &mut Fields<'_, '_>, has_address: bool) -> Option<PathBuf> {
    let text = fields.text("token_file", "an absolute path")?;
    if !text.starts_with('/') {
        let message = format!("token_file \"{text}\": no absolute path of a file");
        fields.error("token_file", message);
    } else if !has_address {
        let message =
            "token_file: clients of the socket need no token; add listen, or leave it out";
        fields.error("token_file", message);
    }
    Some(text.into())
}

fn group(fields: &mut Fields<'_, '_>, has_socket: bool) -> Option<String> {
    let text = fields.text("group", "a group such as \"netops\"")?;
    if !has_socket {
        let message = "group: nothing has it without a socket; add socket, or leave it out";
        fields.error("group", message);
    }
    Some(text.to_owned())
}

pub(super) fn roles<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<Access> {
    let statement = single(context, statements)?;
    let mut fields = plain(context, statement, &["group", "read", "operate", "configure"]);
    Some(Access {
        group: group(&mut fields, true),
        read: holders(&mut fields, "read"),
        operate: holders(&mut fields, "operate"),
        configure: holders(&mut fields, "configure"),
    })
}

fn holders(fields: &mut Fields<'_, '_>, role: &'static str) -> Vec<Holder> {
    let expected = "users and groups such as { \"alice\", \"1000\", \"group:netops\" }";
    let texts = fields.texts(role, expected);
    if texts.iter().any(|text| text.strip_prefix(GROUP).unwrap_or(text).is_empty()) {
        fields.error(role, format!("{role}: a name is empty; write {expected}"));
    }
    let holder = |text: &str| match text.strip_prefix(GROUP) {
        Some(group) => Holder::Group(group.to_owned()),
        None => Holder::User(text.to_owned()),
    };
    texts.into_iter().map(holder).collect()
}
