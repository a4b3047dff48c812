//! `turnpike.routes_from { … }` and `turnpike.fpm { … }`: other sources of routes.

use std::time::Duration;

use super::super::error::suggestion;
use super::super::script::Statement;
use super::super::value::{Fields, Value};
use super::super::{Fpm, KernelRoutes, RoutesFrom};
use super::Context;
use super::rest::{listen, single, users};

const SOURCES: [&str; 2] = ["kernel", "fpm"];
const EXAMPLE: &str = "write turnpike.routes_from { \"kernel\" }, { \"fpm\" } or both";

pub(super) fn routes_from<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> RoutesFrom {
    let Some(statement) = single(context, statements) else { return RoutesFrom::default() };
    let known = &["audit_s", "receive_buffer_mib"];
    let mut fields = context.listed("routes_from".to_owned(), statement, known);
    let [kernel, fpm] = SOURCES.map(|source| names(&mut fields, source));
    report_others(&mut fields);
    let kernel_routes = kernel_routes(&mut fields);
    if !kernel {
        fields.refuse(&["audit_s", "receive_buffer_mib"], |key| {
            format!("{key} is about \"kernel\", which is not in the list")
        });
    }
    RoutesFrom { kernel: kernel.then_some(kernel_routes), fpm }
}

/// Returns true if the list contains this source; a repetition is an error.
fn names(fields: &mut Fields<'_, '_>, source: &str) -> bool {
    let count =
        fields.items().iter().filter(|v| matches!(v, Value::Text(text) if text == source)).count();
    if count > 1 {
        fields.error("", format!("\"{source}\" given {count} times; once is enough"));
    }
    count > 0
}

fn report_others(fields: &mut Fields<'_, '_>) {
    let items = fields.items();
    if items.is_empty() {
        fields.error("", format!("names no source; {EXAMPLE}"));
    }
    for item in items {
        match item {
            Value::Text(text) if SOURCES.contains(&text.as_str()) => {}
            Value::Text(text) => {
                let suggestion = suggestion(text, "known", &SOURCES);
                fields.error("", format!("source \"{text}\" unknown{suggestion}"));
            }
            other => fields.error("", format!("expected a source, got {other}; {EXAMPLE}")),
        }
    }
}

fn kernel_routes(fields: &mut Fields<'_, '_>) -> KernelRoutes {
    let mut kernel = KernelRoutes::default();
    if let Some(seconds) = fields.number("audit_s", 0..=86_400) {
        kernel.audit = Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero());
    }
    // The kernel counts its own overhead, about four times the size of the messages: 1 MiB holds
    // 1000 routes.
    if let Some(mib) = fields.number("receive_buffer_mib", 1..=1024) {
        kernel.receive_buffer = (mib as usize) << 20;
    }
    kernel
}

pub(super) fn fpm<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    routes_from: &RoutesFrom,
) -> Option<Fpm> {
    let mut fpm = Fpm::default();
    let Some(statement) = single(context, statements) else {
        return routes_from.fpm.then_some(fpm);
    };
    let mut fields = context.fields("fpm".to_owned(), statement, &["listen", "keep_s", "users"]);
    if let Some(text) = fields.text("listen", "an address and a port such as \"127.0.0.1:2620\"") {
        match listen(text, 2620) {
            Ok(address) => fpm.listen = address,
            Err(reason) => fields.error("listen", format!("listen \"{text}\": {reason}")),
        }
    }
    if let Some(seconds) = fields.number("keep_s", 0..=86_400) {
        fpm.keep = Duration::from_secs(seconds);
    }
    fpm.users = users(&mut fields);
    if !routes_from.fpm {
        fields.error("", "not used: turnpike.routes_from lacks \"fpm\"; add it there");
    }
    routes_from.fpm.then_some(fpm)
}
