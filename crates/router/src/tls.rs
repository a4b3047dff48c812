//! Files of TLS: who may have them, and whether they can be used.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use control::config::{self, Config, HttpListeners, PemFile, Strictness};
use web::Tls;
use web::tls::{Pem, Wrong};

use super::private::{Others, read};

/// The listeners with TLS of a configuration, and the statements that have them.
fn listeners(config: &Config) -> [(&'static str, Option<&HttpListeners>); 2] {
    [("api", config.api.as_ref().map(|api| &api.at)), ("metrics", config.metrics.as_ref())]
}

/// Checks the files of listeners that `base`, the running configuration, does not have like this.
///
/// # Errors
/// The first that cannot be used: see [`open`].
pub fn examine(config: &Config, base: Option<&Config>, strictness: Strictness) -> Result<()> {
    let before = base.map(listeners);
    for (number, (statement, at)) in listeners(config).into_iter().enumerate() {
        let tls = at.and_then(|at| at.tls.as_ref());
        let former = before.and_then(|before| before[number].1?.tls.as_ref());
        if let Some(tls) = tls.filter(|_| tls != former) {
            open(statement, tls, strictness)?;
        }
    }
    Ok(())
}

/// Reads the files of a listener of this statement. An expired certificate, which clients refuse themselves, is an error
/// only when it is new: a router does not stay away for it.
///
/// # Errors
/// One of them cannot be read, is another's to read or to change, or is not what it should be.
pub fn open(statement: &str, settings: &config::Tls, strictness: Strictness) -> Result<Tls> {
    let config::Tls { certificate, key, client_ca } = settings;
    let text = |setting: &'static str, file: &PemFile, others| {
        let named = || name(statement, setting, &file.path);
        let way_out = || format!("{}: put it there, or correct the setting", named());
        // The reason of the system alone does not say what to do.
        let is_there = file.path.metadata();
        is_there.with_context(way_out)?;
        read(&file.path, others).with_context(named)
    };
    let (own, private) =
        (text("certificate", certificate, Others::Read)?, text("key", key, Others::Nothing)?);
    let authorities =
        client_ca.as_ref().map(|file| text("client_ca", file, Others::Read)).transpose()?;
    let pem = Pem { certificate: &own, key: &private, client_ca: authorities.as_deref() };
    let tls = Tls::new(pem).map_err(|Wrong { setting, reason }| {
        let file = match setting {
            "key" => Some(key),
            "client_ca" => client_ca.as_ref(),
            _ => Some(certificate),
        };
        let path = file.map_or(Path::new(""), |file| &file.path);
        anyhow!("{}: {reason}", name(statement, setting, path))
    })?;
    let expired = tls.expired().map(|end| {
        format!(
            "{}: expired on {end}; renew it, and apply again",
            name(statement, "certificate", &certificate.path)
        )
    });
    ensure!(expired.is_none() || strictness == Strictness::Known, expired.unwrap_or_default());
    Ok(tls)
}

/// The name of a file in messages.
fn name(statement: &str, setting: &str, path: &Path) -> String {
    format!("{statement}: {setting} {}", path.display())
}
