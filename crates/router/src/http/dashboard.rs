//! Files of the dashboard: pages for a browser, which are a client of the API like any other.
//!
//! Anybody may have them: they contain nothing of this router. A browser may load nothing else into them, from nowhere, and
//! show them in no other page; texts of the router's cannot become elements of the page (`require-trusted-types-for`).

use web::Bytes;
use web::axum::body::Body;
use web::axum::http::request::Parts;
use web::axum::http::{HeaderMap, Method, StatusCode, header};
use web::axum::response::{IntoResponse, Response};
use web::dashboard::{FILES, File};

/// Content that pages may have, and where from.
const CONTENT: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                       base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                       require-trusted-types-for 'script'; trusted-types 'none'";

/// A file to be served.
pub(super) struct Served(&'static File);

/// Returns the file that is asked for.
pub(super) fn file(parts: &Parts) -> Option<Served> {
    let is_query = [Method::GET, Method::HEAD].contains(&parts.method);
    let path = parts.uri.path();
    FILES.iter().find(|file| is_query && file.path == path).map(Served)
}

impl Served {
    /// The answer, without the file if the browser has it.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        let Self(file) = self;
        let tag = file.tag();
        let known = headers.get_all(header::IF_NONE_MATCH).iter();
        let is_known = known.filter_map(|known| known.to_str().ok()).any(|known| known == tag);
        let about = [
            (header::CONTENT_TYPE, file.kind),
            // It may be kept, and is asked for again: a router with other pages may be here.
            (header::CACHE_CONTROL, "no-cache"),
            (header::ETAG, tag.as_str()),
            (header::CONTENT_SECURITY_POLICY, CONTENT),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        let isolated = [
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ];
        if is_known {
            return (StatusCode::NOT_MODIFIED, about, isolated).into_response();
        }
        (about, isolated, Body::from(Bytes::from_static(file.bytes))).into_response()
    }
}

#[cfg(test)]
mod tests {
    use web::axum::http::Request;

    use super::*;

    fn parts(method: &str, path: &str) -> Parts {
        Request::builder().method(method).uri(path).body(()).unwrap().into_parts().0
    }

    #[test]
    fn files_are_found_by_their_path_alone() {
        for path in ["/", "/app.js?x=1"] {
            assert!(file(&parts("GET", path)).is_some(), "{path}");
        }
        for path in ["/index.html", "/app.js/", "/../app.js", "//", "/App.js", "/types.d.ts"] {
            assert!(file(&parts("GET", path)).is_none(), "{path}");
        }
        assert!(file(&parts("POST", "/")).is_none() && file(&parts("HEAD", "/")).is_some());
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent() {
        let served = file(&parts("GET", "/app.js")).unwrap();
        let answer = served.answer(&HeaderMap::new());
        let tag = answer.headers()[header::ETAG].clone();
        assert_eq!(answer.status(), StatusCode::OK);
        let status =
            |tag| served.answer(&HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)])).status();
        assert_eq!(status(tag), StatusCode::NOT_MODIFIED);
        assert_eq!(status("\"0\"".parse().unwrap()), StatusCode::OK);
    }
}
