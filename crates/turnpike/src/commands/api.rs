//! `turnpike api`: a request to a running router's API over HTTP, and the line of curl that makes it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use api::http::{DOCUMENT, JSON, LUA, Missing, Operation, Problem, SESSION, openapi};
use clap::Args;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// Default path of the API's socket.
const SOCKET: &str = "/run/turnpike-api.sock";

/// Time limit for the connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The request, or the description of all requests.
#[derive(Debug, Args)]
pub struct ApiArgs {
    /// GET, POST, PUT or DELETE
    #[arg(value_name = "METHOD", required_unless_present = "openapi", value_parser = ["GET", "POST", "PUT", "DELETE"])]
    method: Option<String>,
    /// The path with its query, such as /v1/routes?vrf=blue
    #[arg(value_name = "PATH", required_unless_present = "openapi")]
    path: Option<String>,
    /// The body: JSON, or @FILE; a file whose name ends in .lua is a configuration
    #[arg(short, long, value_name = "JSON")]
    data: Option<String>,
    /// The media type of the answer, such as application/x-ndjson
    #[arg(long, value_name = "TYPE")]
    accept: Option<String>,
    /// The socket of the API over HTTP: turnpike.api { socket }
    #[arg(long, default_value = SOCKET)]
    api_socket: PathBuf,
    /// Print the line of curl that makes the request, in place of making it
    #[arg(long)]
    curl: bool,
    /// Print the OpenAPI document of this version; asks no router
    #[arg(long, conflicts_with_all = ["method", "path", "data", "curl"])]
    openapi: bool,
}

/// Prints the answer.
///
/// # Errors
/// The router cannot be reached, or refuses.
pub fn run(args: &ApiArgs) -> Result<()> {
    if args.openapi {
        let document = openapi::document(env!("CARGO_PKG_VERSION"));
        return print(serde_json::to_string_pretty(&document)?.as_bytes());
    }
    let (Some(method), Some(target)) = (&args.method, &args.path) else {
        bail!("METHOD and PATH are missing");
    };
    let body = args.data.as_deref().map(|data| body(method, target, data)).transpose()?;
    let has_body = check(method, target)?;
    if !has_body && body.is_some() {
        bail!("--data: {method} {target} has no body");
    }
    if args.curl {
        return print(curl(args, method, target, has_body).as_bytes());
    }
    let body = body.or_else(|| has_body.then(|| (JSON, b"{}".to_vec())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ask(args, method, target, body))
}

/// Checks a request against this version's table; returns true if it has a body.
fn check(method: &str, target: &str) -> Result<bool> {
    let path = target.split('?').next().unwrap_or_default();
    if [DOCUMENT, SESSION].contains(&path) {
        return Ok(false);
    }
    match Operation::find(method, path) {
        Ok((operation, _)) => Ok(operation.method.has_body()),
        Err(Missing::Path) => {
            bail!("{path}: no such resource; turnpike api --openapi lists them")
        }
        Err(Missing::Method(known)) => {
            bail!("{path}: no method {method}; known: {}", known.join(", "))
        }
    }
}

/// The body, and its media type.
fn body(method: &str, target: &str, data: &str) -> Result<(&'static str, Vec<u8>)> {
    let kind = kind_of(method, target, data);
    let Some(file) = data.strip_prefix('@') else { return Ok((kind, data.as_bytes().to_vec())) };
    let bytes = std::fs::read(file).with_context(|| format!("--data: file {file}"))?;
    Ok((kind, bytes))
}

/// The media type of a body.
fn kind_of(method: &str, target: &str, data: &str) -> &'static str {
    let file = data.strip_prefix('@').map(Path::new);
    let is_lua = file.and_then(Path::extension).is_some_and(|ending| ending == "lua");
    let path = target.split('?').next().unwrap_or_default();
    let has_text = Operation::find(method, path).is_ok_and(|(operation, _)| operation.has_text());
    if is_lua && has_text { LUA } else { JSON }
}

/// The equal line of curl.
fn curl(args: &ApiArgs, method: &str, target: &str, has_body: bool) -> String {
    let mut line = format!(
        "curl --unix-socket {} -X {method}",
        quoted(&args.api_socket.display().to_string())
    );
    if let Some(accept) = &args.accept {
        line += &format!(" -H {}", quoted(&format!("Accept: {accept}")));
    }
    if has_body {
        let data = args.data.as_deref().unwrap_or("{}");
        let kind = kind_of(method, target, data);
        line += &format!(
            " -H {} --data-binary {}",
            quoted(&format!("Content-Type: {kind}")),
            quoted(data)
        );
    }
    line + &format!(" {}", quoted(&format!("http://localhost{target}")))
}

/// Quotes a word for a shell, if it must be.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:=,@".contains(&byte);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Sends the request and prints the answer as it comes.
async fn ask(
    args: &ApiArgs,
    method: &str,
    target: &str,
    body: Option<(&'static str, Vec<u8>)>,
) -> Result<()> {
    let shown = args.api_socket.display();
    let connecting = tokio::time::timeout(PATIENCE, UnixStream::connect(&args.api_socket));
    let stream = connecting.await.map_err(Error::from).and_then(|stream| Ok(stream?));
    let stream = stream.with_context(|| {
        format!("socket {shown}: cannot reach the API; does the router's configuration have turnpike.api, with this socket?")
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(target).header(HOST, "localhost");
    if let Some(accept) = &args.accept {
        request = request.header(ACCEPT, accept);
    }
    let (kind, bytes) = body.unzip();
    if let Some(kind) = kind {
        request = request.header(CONTENT_TYPE, kind);
    }
    let request = request.body(Whole(bytes)).with_context(|| format!("PATH {target}"))?;
    let response =
        sender.send_request(request).await.context("the router closed the connection")?;
    if response.status().is_success() {
        return copy(response).await;
    }
    let status = response.status();
    let mut text = Vec::new();
    read(response, |piece| {
        text.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    match serde_json::from_slice::<Problem>(&text) {
        Ok(problem) => Err(anyhow!("{}", problem.detail)),
        Err(_) => Err(anyhow!("status {status}")),
    }
}

/// Prints a body; JSON in lines.
async fn copy(response: Response<Incoming>) -> Result<()> {
    let kind = response.headers().get(CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != JSON) {
        return read(response, print_part).await;
    }
    let mut text = Vec::new();
    read(response, |piece| {
        text.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    let value: serde_json::Value = serde_json::from_slice(&text)?;
    print(serde_json::to_string_pretty(&value)?.as_bytes())
}

async fn read(
    response: Response<Incoming>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut body = response.into_body();
    loop {
        let frame =
            std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context));
        let Some(frame) = frame.await else { return Ok(()) };
        let frame = frame.context("the router closed the connection")?;
        if let Some(piece) = frame.data_ref() {
            each(piece)?;
        }
    }
}

fn print(line: &[u8]) -> Result<()> {
    print_part(line)?;
    print_part(b"\n")
}

/// A reader that closes the output early is no error: the program ends.
fn print_part(piece: &[u8]) -> Result<()> {
    let mut out = std::io::stdout();
    Ok(out.write_all(piece).and_then(|()| out.flush())?)
}

/// A body of one piece, or none.
struct Whole(Option<Vec<u8>>);

impl Body for Whole {
    type Data = std::io::Cursor<Vec<u8>>;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let piece = self.0.take().map(|bytes| Ok(Frame::data(std::io::Cursor::new(bytes))));
        std::task::Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_one_where_it_may_be() {
        let kind = |target, data| kind_of("POST", target, data);
        assert_eq!(kind("/v1/apply?confirm_s=60", "@router.lua"), LUA);
        for (target, data) in
            [("/v1/apply", "router.lua"), ("/v1/apply", "@r.json"), ("/v1/routes", "@r.lua")]
        {
            assert_eq!(kind(target, data), JSON, "{target} {data}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("/run/turnpike-api.sock"), "/run/turnpike-api.sock");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn requests_that_there_are_not_are_named() {
        assert!(!check("GET", "/v1/routes?vrf=blue").unwrap());
        assert!(check("POST", "/v1/apply?confirm_s=60").unwrap());
        let error = check("GET", "/v1/rotes").unwrap_err().to_string();
        assert_eq!(error, "/v1/rotes: no such resource; turnpike api --openapi lists them");
        let error = check("PUT", "/v1/ports").unwrap_err().to_string();
        assert_eq!(error, "/v1/ports: no method PUT; known: GET");
    }
}
