//! The audit log: changes by the API, including refused ones, with their clients (RFC 1812,
//! 10.4.1).
//!
//! One line in the router's log for each request for a change, when it is answered:
//!
//! ```text
//! audit: uid 0, pid 4711: {"route":{"del":{"prefix":"192.0.2.0/24"}}}: done
//! audit: uid 0, pid 4712: {"apply":{"file":"/etc/router.lua"}}: refused: line 7: …
//! ```
//!
//! The client is identified by the kernel: the process that opened the connection. The commands,
//! the shell and the telnet server are such processes.

use api::configuration::ApplyRequest;
use api::{Answer, Request};
use tokio::net::UnixStream;

/// Longest text of a request, and of a refusal, in bytes.
const TEXT_MOST: usize = 500;

/// The client at the other end of a connection.
pub struct Client(String);

impl Client {
    /// Returns the process that opened the connection.
    pub fn of(stream: &UnixStream) -> Self {
        Self(process(stream))
    }

    /// A client of a control socket.
    pub fn of_socket(socket: &str, peer: &str) -> Self {
        Self(format!("control_socket \"{socket}\", {peer}"))
    }

    /// A script of the configuration.
    pub fn of_script(name: &str) -> Self {
        Self(format!("script \"{name}\""))
    }

    /// A client of the API over HTTP.
    pub fn of_http(who: &str) -> Self {
        Self(format!("HTTP, {who}"))
    }

    /// Logs a request that was refused.
    pub fn refused(&self, request: &str, reason: &str) {
        tracing::warn!("audit: {}: {request}: refused: {}", self.0, one_line(reason));
    }

    /// Logs the result of a change.
    pub fn record(&self, change: &str, answer: &Answer) {
        let who = &self.0;
        match answer {
            Answer::Ok(_) => tracing::info!("audit: {who}: {change}: done"),
            Answer::Error(reason) => self.refused(change, reason),
        }
    }
}

/// The user and the process at the other end of a connection.
pub fn process(stream: &UnixStream) -> String {
    let Ok(peer) = stream.peer_cred() else { return "somebody".to_owned() };
    let process = peer.pid().map_or_else(String::new, |pid| format!(", pid {pid}"));
    format!("uid {}{process}", peer.uid())
}

/// Returns a request for a change as one line; `None` for a query. The text of a configuration is
/// left out; it is found in its file and the router's history.
pub fn change(request: &Request) -> Option<String> {
    let request = match request {
        Request::Show(_) | Request::Plan(_) => return None,
        Request::Handler(call) if !call.is_write() => return None,
        Request::Apply(ApplyRequest { file, confirm_s, text: _ }) => {
            let (file, confirm_s) = (file.clone(), *confirm_s);
            Request::Apply(ApplyRequest { file, confirm_s, text: String::new() })
        }
        other => other.clone(),
    };
    let mut value = serde_json::to_value(request).ok()?;
    if let Some(apply) = value.get_mut("apply").and_then(serde_json::Value::as_object_mut) {
        apply.remove("text");
    }
    Some(cut(&value.to_string()))
}

/// Replaces line breaks and other control characters, so that a client cannot forge log lines.
fn one_line(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    cut(&printable)
}

fn cut(text: &str) -> String {
    if text.len() <= TEXT_MOST {
        return text.to_owned();
    }
    let end = (0..=TEXT_MOST).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audited(request: &str) -> Option<String> {
        change(&Request::read(request.as_bytes()).unwrap())
    }

    #[test]
    fn changes_are_written_down_and_questions_are_not() {
        for question in [
            r#"{"show":"counters"}"#,
            r#"{"show":"routes"}"#,
            r#"{"plan":{"file":"/etc/router.lua","text":"","all":true}}"#,
            r#"{"handler":{"read":{"handler":"c.count"}}}"#,
            r#"{"handler":{"check-write":{"handler":"c.count"}}}"#,
        ] {
            assert_eq!(audited(question), None, "{question}");
        }
        for change in [
            r#"{"route":{"del":{"prefix":"192.0.2.0/24"}}}"#,
            r#"{"neighbour":{"del":{"address":"10.0.2.9","port":"right"}}}"#,
            r#"{"confirm":{}}"#,
            r#"{"handler":{"write":{"handler":"s.switch","value":"1"}}}"#,
            r#"{"rollback":{"to":3}}"#,
            r#"{"do":{"args":["a"],"name":"count"}}"#,
        ] {
            assert_eq!(audited(change).as_deref(), Some(change));
        }
    }

    #[test]
    fn a_configuration_is_named_and_not_repeated() {
        let apply = r#"{"apply":{"file":"/etc/router.lua","text":"secret","confirm_s":60}}"#;
        let expected = r#"{"apply":{"confirm_s":60,"file":"/etc/router.lua"}}"#;
        assert_eq!(audited(apply).as_deref(), Some(expected));
    }

    #[test]
    fn a_line_stays_one_and_is_bounded() {
        assert_eq!(one_line("line 1\nline 2\u{1b}[31m"), "line 1 line 2 [31m");
        let long = "ü".repeat(TEXT_MOST);
        assert!(cut(&long).len() <= TEXT_MOST + "…".len());
        let name = format!(r#"{{"do":{{"name":"a\nb{}"}}}}"#, "x".repeat(1000));
        let line = audited(&name).unwrap();
        assert!(line.starts_with(r#"{"do":{"args":[],"name":"a\nb"#) && line.len() < 510, "{line}");
    }
}
