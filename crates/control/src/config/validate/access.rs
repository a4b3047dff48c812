//! `turnpike.api { … }` and `turnpike.access { … }`

use std::path::PathBuf;

use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{Access, Api, Holder};
use super::Context;
use super::listeners::{self, Service, group};
use super::rest::{plain, single};

const SERVICE: Service = Service { socket: "/run/turnpike-api.sock", group: "netops", port: 8479 };

/// Prefix of groups among the holders of a role.
const GROUP: &str = "group:";

/// Prefix of names of certificates there.
const CERTIFICATE: &str = "cert:";

pub(super) fn api<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<Api> {
    let statement = single(context, statements)?;
    let known = &[
        "socket",
        "group",
        "listen",
        "certificate",
        "key",
        "client_ca",
        "token_file",
        "dashboard",
    ];
    let mut fields = plain(context, statement, known);
    let at = listeners::read(&mut fields, &SERVICE, |fields, tls| {
        let port = SERVICE.port;
        match tls {
            None => Some(format!(
                "others than this machine can reach it, and the API is not encrypted; add certificate and key, or listen \
                 on \"127.0.0.1:{port}\" and reach it by ssh -L"
            )),
            Some(tls) if tls.client_ca.is_none() && fields.get("token_file").is_none() => {
                Some(format!(
                    "others than this machine can reach it, and nothing says who they are; add client_ca or token_file, \
                     or listen on \"127.0.0.1:{port}\""
                ))
            }
            Some(_) => None,
        }
    });
    let token_file = token_file(&mut fields, at.listen.is_some());
    Some(Api { at, token_file, dashboard: fields.flag("dashboard") })
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

pub(super) fn roles<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    api: Option<&Api>,
) -> Option<Access> {
    let statement = single(context, statements)?;
    let mut fields = plain(context, statement, &["group", "read", "operate", "configure"]);
    let has_certificates = api.and_then(|api| api.at.tls.as_ref()?.client_ca.as_ref()).is_some();
    let mut holders = |role| holders(&mut fields, role, has_certificates);
    let (read, operate, configure) = (holders("read"), holders("operate"), holders("configure"));
    Some(Access { group: group(&mut fields, SERVICE.group, true), read, operate, configure })
}

fn holders(fields: &mut Fields<'_, '_>, role: &'static str, has_certificates: bool) -> Vec<Holder> {
    let expected = "users, groups and names of certificates such as { \"alice\", \"1000\", \"group:netops\", \"cert:alice\" }";
    let texts = fields.texts(role, expected);
    if texts.iter().map(|text| holder(text)).any(|holder| holder.name().is_empty()) {
        fields.error(role, format!("{role}: a name is empty; write {expected}"));
    }
    let holders: Vec<_> = texts.into_iter().map(holder).collect();
    let is_certificate = |holder: &&Holder| matches!(holder, Holder::Certificate(_));
    if let Some(holder) = holders.iter().find(is_certificate).filter(|_| !has_certificates) {
        let message = format!(
            "{role}: \"{CERTIFICATE}{}\": no client shows a certificate without turnpike.api {{ client_ca }}",
            holder.name()
        );
        fields.error(role, message);
    }
    holders
}

fn holder(text: &str) -> Holder {
    if let Some(group) = text.strip_prefix(GROUP) {
        Holder::Group(group.to_owned())
    } else if let Some(name) = text.strip_prefix(CERTIFICATE) {
        Holder::Certificate(name.to_owned())
    } else {
        Holder::User(text.to_owned())
    }
}
