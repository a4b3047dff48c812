//! `turnpike.metrics { … }`

use super::super::HttpListeners;
use super::super::script::Statement;
use super::Context;
use super::listeners::{self, Service};
use super::rest::{exposed, plain, single};

const SERVICE: Service =
    Service { socket: "/run/turnpike-metrics.sock", group: "prometheus", port: 9477 };

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<HttpListeners> {
    let statement = single(context, statements)?;
    let known = &["socket", "group", "listen", "public", "certificate", "key", "client_ca"];
    let mut fields = plain(context, statement, known);
    let public = fields.flag("public");
    Some(listeners::read(&mut fields, &SERVICE, |_, tls| {
        let has_clients = tls.is_some_and(|tls| tls.client_ca.is_some());
        (!public && !has_clients).then(|| exposed("metrics have", SERVICE.port))
    }))
}
