//! The client of a request, and its role.
//!
//! | connection | client |
//! |---|---|
//! | Unix socket | the user and the groups of the process that connected |
//! | TCP without `token_file` | the user of the process that is connected, as the kernel reports it; no groups |
//! | TCP with `client_ca` | the names in the certificate of the connection |
//! | TCP with `token_file` | the holder of the token in `Authorization: Bearer …`; with `client_ca` its certificate is enough if that has a role |
//!
//! The file of tokens has a role and a token on each line. It is read at each request, so a token is withdrawn by its line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use api::http::Role;
use control::gate::Gate;
use dataplane::lock::lock;
use subtle::ConstantTimeEq;
use web::axum::http::{HeaderMap, StatusCode, header};
use web::{End, Session};

use super::super::private::{self, Others};
use super::super::server::access::{Peer, Roles};
use super::super::server::audit;
use super::super::web_listeners::WebListeners;
use super::response::Problem;

/// Fewest characters of a token.
const TOKEN_LEAST: usize = 32;

/// Ways to identify clients.
pub(super) struct Door {
    token_file: Option<PathBuf>,
    /// Clients by TCP have certificates.
    certificates: bool,
    gate: Option<Mutex<Gate>>,
}

/// A client.
pub(super) struct Who {
    /// None: it may do nothing.
    pub(super) role: Option<Role>,
    /// Its name in messages.
    pub(super) name: String,
    /// Its name in the audit log.
    number: String,
}

impl Who {
    fn of(peer: &Peer, roles: &Roles, end: &str) -> Self {
        let number = format!("{}{end}", peer.number());
        Self { role: roles.role_of(peer), name: peer.name(), number }
    }

    /// Returns it for the audit log.
    pub(super) fn client(&self) -> audit::Client {
        audit::Client::of_http(&self.number)
    }
}

impl Door {
    /// Prepares to identify clients.
    ///
    /// # Errors
    /// The file of tokens is not right, or the kernel does not report the users of sockets.
    pub(super) fn open(listeners: &WebListeners, token_file: Option<PathBuf>) -> Result<Self> {
        if let Some(file) = &token_file {
            read_tokens(file)?;
        }
        let certificates = listeners.has_certificates();
        let needs_gate = listeners.address().is_some() && token_file.is_none() && !certificates;
        let gate = needs_gate.then(|| Gate::open("api", &[], None).map(Mutex::new));
        Ok(Self { token_file, certificates, gate: gate.transpose()? })
    }

    pub(super) fn identify(
        &self,
        end: &End,
        headers: &HeaderMap,
        roles: &Roles,
    ) -> Result<Who, Problem> {
        let (local, peer) = match end {
            End::Unix(socket) => {
                let peer = Peer::of(&**socket).map_err(|error| unknown(&error))?;
                return Ok(Who::of(&peer, roles, ""));
            }
            End::Tcp { local, peer, tls: _ } => (*local, *peer),
        };
        let by_certificate = self.certificates.then(|| by_certificate(end.tls(), peer, roles));
        match (&self.token_file, by_certificate.transpose()?) {
            (Some(_), Some(who)) if who.role.is_some() && !has_token(headers) => Ok(who),
            (Some(file), _) => by_token(file, headers, peer, roles),
            (None, Some(who)) => Ok(who),
            (None, None) => {
                let gate = self.gate.as_ref().ok_or_else(|| unknown(&"a defect, please report"))?;
                let uid = lock(gate).user(local, peer).map_err(|refusal| {
                    let client = audit::Client::of_http(&peer.to_string());
                    roles.log_unknown(&client, &refusal.to_string());
                    unknown(&refusal)
                })?;
                Ok(Who::of(&Peer::user(uid), roles, &format!(", {peer}")))
            }
        }
    }
}

fn has_token(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
}

fn by_certificate(tls: Option<&Session>, peer: SocketAddr, roles: &Roles) -> Result<Who, Problem> {
    let names = tls.and_then(Session::client).ok_or_else(|| {
        let reason = "its certificate has expired, or its authority is no client_ca any more";
        roles.log_unknown(&audit::Client::of_http(&peer.to_string()), reason);
        Problem::new(StatusCode::FORBIDDEN, format!("{reason}; connect again with another"))
    })?;
    let name = match names.first() {
        Some(name) => format!("certificate {name}"),
        None => "a certificate without a name".to_owned(),
    };
    Ok(Who { role: roles.role_of_names(names), number: format!("{name}, {peer}"), name })
}

fn unknown(reason: &dyn std::fmt::Display) -> Problem {
    let text = format!("the kernel does not tell the user of this connection: {reason}");
    Problem::new(StatusCode::FORBIDDEN, text)
}

fn by_token(
    file: &Path,
    headers: &HeaderMap,
    peer: SocketAddr,
    roles: &Roles,
) -> Result<Who, Problem> {
    let log = |reason: &str| {
        roles.log_unknown(&audit::Client::of_http(&peer.to_string()), reason);
    };
    let refusal = |text: &str| {
        Problem::new(StatusCode::UNAUTHORIZED, text).with(header::WWW_AUTHENTICATE, "Bearer")
    };
    let refused = |text: &str| {
        log(text);
        refusal(text)
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|given| given.to_str().ok());
    let given = given.and_then(|given| given.split_once(' '));
    let token = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // A browser asks so before its user has typed one: nobody has guessed.
    let token = token.ok_or_else(|| refusal("a token is missing: Authorization: Bearer TOKEN"))?.1;
    let tokens = read_tokens(file).map_err(|error| {
        log(&format!("{error:#}"));
        refusal("the router cannot read its tokens; see its log")
    })?;
    // Each is compared, and takes its time whatever the token is.
    let is_it = |own: &String| bool::from(own.as_bytes().ct_eq(token.as_bytes()));
    let roles = tokens.iter().filter(|(_, own)| is_it(own)).map(|(role, _)| *role);
    let role = roles.fold(None, |highest, role| highest.max(Some(role)));
    let role = role.ok_or_else(|| refused("this token is not one of the router's"))?;
    let name = format!("the token of role {role}");
    Ok(Who { role: Some(role), number: format!("{name}, {peer}"), name })
}

/// Reads lines such as `read 3f786850e387550fdab836ed7e6dc881`.
fn read_tokens(file: &Path) -> Result<Vec<(Role, String)>> {
    let named = || format!("token_file {}", file.display());
    let bytes = private::read(file, Others::Nothing).with_context(named)?;
    let text = String::from_utf8(bytes).ok().context("no text").with_context(named)?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let tokens: Vec<_> = lines
        .map(|(number, line)| {
            token(line).with_context(|| format!("token_file {}: line {number}", file.display()))
        })
        .collect::<Result<_>>()?;
    ensure!(!tokens.is_empty(), "token_file {}: no token in it", file.display());
    Ok(tokens)
}

/// The messages do not contain what is in the file.
fn token(line: &str) -> Result<(Role, String)> {
    let (role, token) = line.split_once(' ').context("expected ROLE TOKEN")?;
    let token = token.trim_start();
    let role = Role::ALL.into_iter().find(|known| known.name() == role);
    let role = role.context("its role is unknown; known: read, operate, configure")?;
    ensure!(
        token.len() >= TOKEN_LEAST && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "its token is not {TOKEN_LEAST} or more letters, digits and signs: openssl rand -hex 32"
    );
    Ok((role, token.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const READ: &str = "0123456789abcdef0123456789abcdef";
    const CONFIGURE: &str = "fedcba9876543210fedcba9876543210";

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    #[test]
    fn tokens_give_their_roles() {
        let text = format!("# Monitoring\nread {READ}\n\nconfigure {CONFIGURE}\n");
        let (_directory, path) = file(&text, 0o600);
        let role = |header: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, header.parse().unwrap())]);
            let (peer, roles) = ("127.0.0.1:1".parse().unwrap(), Roles::default());
            by_token(&path, &headers, peer, &roles).map(|who| who.role)
        };
        assert_eq!(role(&format!("Bearer {READ}")).ok(), Some(Some(Role::Read)));
        assert_eq!(role(&format!("bearer {CONFIGURE}")).ok(), Some(Some(Role::Configure)));
        for wrong in
            [READ, "Bearer ", "Bearer x", &format!("Bearer {READ}0"), &format!("Basic {READ}")]
        {
            assert!(role(wrong).is_err(), "{wrong}");
        }
        // Withdrawn.
        fs::write(&path, format!("read {READ}\n")).unwrap();
        assert!(role(&format!("Bearer {CONFIGURE}")).is_err());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let error = |text: &str, mode| {
            let (_directory, path) = file(text, mode);
            format!("{:#}", read_tokens(&path).unwrap_err())
        };
        assert!(error(&format!("read {READ}"), 0o640).ends_with("chmod 600"));
        assert!(error("", 0o600).ends_with("no token in it"));
        let short = error("read secret", 0o600);
        assert!(short.contains("line 1") && !short.contains("secret"), "{short}");
        assert!(error(&format!("write {READ}"), 0o600).contains("known: read, operate, configure"));
        assert!(error(READ, 0o600).contains("expected ROLE TOKEN"));
        assert!(read_tokens(Path::new("/dev/null")).is_err());
    }
}
