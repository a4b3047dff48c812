//! TLS of a listener: a certificate with its key, and the authorities whose clients may come, from texts in PEM.
//!
//! ```text
//!   files -- apply --> Tls::new --> watch channel --> the next handshake; connections that there are stay
//!                                        |
//!                                        +--> each request: is its client's certificate still good?
//! ```
//!
//! TLS 1.2 and 1.3 by rustls; older versions, and clients without a certificate where one is asked for, are refused in
//! the handshake. A client is known by the names in its certificate: the common name of its subject, and its
//! alternative names (DNS, mail, URI).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, rustls};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Most bytes of a client's name.
const NAME_MAX: usize = 255;

/// The texts of the files, in PEM.
#[derive(Clone, Copy)]
pub struct Pem<'a> {
    /// The server's certificate, and those between it and its authority.
    pub certificate: &'a [u8],
    /// The key of the first of them.
    pub key: &'a [u8],
    /// Certificates of authorities. With them a client needs a certificate of one.
    pub client_ca: Option<&'a [u8]>,
}

/// A wrong text.
#[derive(Debug)]
pub struct Wrong {
    /// The setting whose file has it.
    pub setting: &'static str,
    /// The reason, and the way out. Nothing of a key is in it.
    pub reason: String,
}

/// TLS, ready for handshakes.
pub struct Tls {
    config: Arc<ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    certificate: CertificateDer<'static>,
    /// The end of the certificate, if it has passed.
    expired: Option<String>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Takes the texts. An expired certificate is left to the caller: see [`Tls::expired`].
    ///
    /// # Errors
    /// One of them is not what it should be, or they do not belong together.
    pub fn new(pem: Pem<'_>) -> Result<Self, Wrong> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates("certificate", pem.certificate)?;
        let own = chain[0].clone();
        let expired = examine_own(&own)?;
        let key = key(pem.key, chain, &provider)?;
        let clients = pem.client_ca.map(|text| authorities(text, provider.clone())).transpose()?;
        let verifier = clients.clone().unwrap_or_else(|| Arc::new(NoClientAuth));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| wrong("certificate", error))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), clients, certificate: own, expired })
    }

    /// Returns the time at which the server's certificate has expired, for messages.
    pub fn expired(&self) -> Option<&str> {
        self.expired.as_deref()
    }

    /// Returns true if the server's certificate is for this host: a name, or an address without brackets.
    pub fn is_for(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else { return false };
        let parsed = ParsedCertificate::try_from(&self.certificate);
        parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
    }

    /// Returns true if a client with this chain may come now.
    fn admits(&self, chain: &[CertificateDer<'_>]) -> bool {
        let (Some(verifier), Some((own, between))) = (&self.clients, chain.split_first()) else {
            return false;
        };
        verifier.verify_client_cert(own, between, UnixTime::now()).is_ok()
    }
}

/// TLS that may be replaced while connections last.
pub type Present = watch::Receiver<Arc<Tls>>;

/// TLS of one connection.
#[derive(Clone)]
pub struct Session {
    present: Present,
    client: Option<Arc<Client>>,
}

/// A client that has shown a certificate.
struct Client {
    chain: Vec<CertificateDer<'static>>,
    names: Vec<String>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session of {:?}", self.client.as_ref().map(|client| &client.names))
    }
}

impl Session {
    /// Returns the names of the client's certificate, if it is still good: not expired, and of a present authority.
    pub fn client(&self) -> Option<&[String]> {
        let client = self.client.as_ref()?;
        let tls = self.present.borrow().clone();
        tls.admits(&client.chain).then_some(&client.names)
    }

    /// Returns true if the server's certificate is for this host: see [`Tls::is_for`].
    pub fn is_for(&self, host: &str) -> bool {
        self.present.borrow().is_for(host)
    }
}

/// Shakes hands with a client.
///
/// # Errors
/// The client's, or those of its certificate.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    present: Present,
) -> std::io::Result<(TlsStream<S>, Session)> {
    let config = present.borrow().config.clone();
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let client = chain.first().map(|own| {
        let chain = chain.iter().map(|of| of.clone().into_owned()).collect();
        Arc::new(Client { chain, names: names(own) })
    });
    Ok((stream, Session { present, client }))
}

fn wrong(setting: &'static str, reason: impl fmt::Display) -> Wrong {
    Wrong { setting, reason: reason.to_string() }
}

/// Reads the certificates of a text, at least one.
fn certificates(setting: &'static str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Wrong> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match read {
        Ok(all) if all.is_empty() => {
            Err(wrong(setting, "no certificate in it; expected PEM: -----BEGIN CERTIFICATE-----"))
        }
        Ok(all) => Ok(all),
        Err(error) => Err(wrong(setting, format!("damaged PEM ({error}); copy it again"))),
    }
}

fn parsed<'a>(setting: &'static str, der: &'a [u8]) -> Result<X509Certificate<'a>, Wrong> {
    let parsed = X509Certificate::from_der(der).map(|(_, parsed)| parsed);
    parsed.map_err(|error| wrong(setting, format!("damaged certificate ({error}); copy it again")))
}

/// Checks the server's certificate; returns its end if that has passed.
fn examine_own(own: &CertificateDer<'_>) -> Result<Option<String>, Wrong> {
    const SETTING: &str = "certificate";
    let own = parsed(SETTING, own)?;
    let (validity, now) = (own.validity(), now());
    if now < validity.not_before.timestamp() {
        let reason = format!("not valid before {}; is the clock right?", validity.not_before);
        return Err(wrong(SETTING, reason));
    }
    if !own.subject_alternative_name().is_ok_and(|names| names.is_some()) {
        let reason = "without names of the server (subjectAltName), so no client accepts it; for one such as \
                      openssl req -x509 -addext subjectAltName=DNS:router.example";
        return Err(wrong(SETTING, reason));
    }
    let end = validity.not_after;
    Ok((now > end.timestamp()).then(|| end.to_string()))
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Reads the key of a certificate. The messages have nothing of it.
fn key(
    text: &[u8],
    chain: Vec<CertificateDer<'static>>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Wrong> {
    const SETTING: &str = "key";
    let is_encrypted = text.windows(9).any(|part| part == b"ENCRYPTED");
    if is_encrypted {
        return Err(wrong(SETTING, "encrypted; write it without a password: openssl pkey"));
    }
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|_| {
        wrong(SETTING, "no private key in it; expected PEM: -----BEGIN PRIVATE KEY-----")
    })?;
    let key = provider.key_provider.load_private_key(key).map_err(|_| {
        wrong(SETTING, "damaged, or of an unknown kind; known: RSA, ECDSA (P-256, P-384), Ed25519")
    })?;
    let pair = CertifiedKey::new(chain, key);
    pair.keys_match().map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => wrong(
            SETTING,
            "the key of another certificate than the first of the certificate's file; put both files there",
        ),
        error => wrong("certificate", error),
    })?;
    Ok(pair)
}

/// Reads the authorities of clients.
fn authorities(
    text: &[u8],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Wrong> {
    const SETTING: &str = "client_ca";
    let mut roots = RootCertStore::empty();
    for authority in certificates(SETTING, text)? {
        // The verifier looks at the dates of clients only.
        let end = parsed(SETTING, &authority)?.validity().not_after;
        if now() > end.timestamp() {
            return Err(wrong(
                SETTING,
                format!("an authority in it has expired on {end}; remove it"),
            ));
        }
        roots.add(authority).map_err(|error| {
            wrong(SETTING, format!("a certificate in it cannot be an authority: {error}"))
        })?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    verifier.build().map_err(|error| wrong(SETTING, error))
}

/// The names of a client's certificate, the common name first. One that would spoil a line of a log is none.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = parsed("client", certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names);
    let alternative = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some(*name)
        }
        _ => None,
    });
    let is_clean =
        |name: &&str| (1..=NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    common.chain(alternative).filter(is_clean).map(str::to_owned).collect()
}
