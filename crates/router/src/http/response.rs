//! Answers, and errors as problem details (RFC 9457).

use api::http::PROBLEM;
use web::Bytes;
use web::axum::body::Body;
use web::axum::http::{HeaderName, HeaderValue, StatusCode, header};
use web::axum::response::{IntoResponse, Response};

/// The reason for which there is no answer, as commands show it.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    headers: Vec<(HeaderName, String)>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), headers: Vec::new() }
    }

    /// Adds a header.
    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Closes the connection behind the answer.
    pub(super) fn closing(self) -> Self {
        self.with(header::CONNECTION, "close")
    }

    /// A failure that is the router's.
    pub(super) fn defect(error: impl std::fmt::Display) -> Self {
        let text = format!("{error}: a defect, please report");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail, headers } = self;
        let problem = api::http::Problem {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail,
        };
        // Texts and a number have a form in JSON.
        let text = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = whole(PROBLEM, text.into());
        *response.status_mut() = status;
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

/// An answer of one piece.
pub(super) fn whole(kind: &'static str, text: Bytes) -> Response {
    of(kind, Body::from(text))
}

/// An answer that no cache keeps, and no browser takes for something else.
pub(super) fn of(kind: &'static str, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body).into_response()
}
