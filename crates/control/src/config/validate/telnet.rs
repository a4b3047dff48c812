//! `turnpike.telnet { … }`

use std::time::Duration;

use super::super::Telnet;
use super::super::script::Statement;
use super::Context;
use super::rest::{is_within, listen, plain, single, users};

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Option<Telnet> {
    let statement = single(context, statements)?;
    let mut fields =
        plain(context, statement, &["listen", "public", "sessions", "idle_s", "users"]);
    let mut telnet = Telnet::default();
    let usual = telnet.listen.port();
    let public = fields.flag("public");
    if let Some(text) = fields.text("listen", "an address and a port such as \"127.0.0.1:2323\"") {
        match listen(text, usual) {
            Ok(address) => telnet.listen = address,
            Err(reason) => fields.error("listen", format!("listen \"{text}\": {reason}")),
        }
    }
    is_within(&mut fields, telnet.listen, public, ("telnet has", usual));
    if let Some(sessions) = fields.number("sessions", 1..=1000) {
        telnet.sessions = sessions as usize;
    }
    if let Some(seconds) = fields.number("idle_s", 1..=86_400) {
        telnet.idle = Duration::from_secs(seconds);
    }
    telnet.users = users(&mut fields);
    Some(telnet)
}
