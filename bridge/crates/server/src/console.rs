//! Console and reference of the HTTP interface: embedded files, built ahead (`bridge/console`) or written by hand
//! (`openapi.json`, `schemas/`). They hold no data and need no token; the console reads its data through the public
//! interface, like any client.

use std::future::ready;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::Shared;
use forge_base::digest::{hex, sha256};

/// Content security policy: resources of the bridge only, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Another version of the bridge serves other files under the same names.
const CACHING: (HeaderName, &str) = (header::CACHE_CONTROL, "no-cache");

/// The body depends on the encodings that the client takes.
const VARY: (HeaderName, &str) = (header::VARY, "accept-encoding");

#[derive(Clone, Copy)]
struct Asset {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

const PAGE: &[u8] = include_bytes!("../../../console/dist/index.html");

const ASSETS: [Asset; 8] = [
    Asset {
        path: "/",
        kind: "text/html; charset=utf-8",
        bytes: PAGE,
    },
    Asset {
        path: "/docs",
        kind: "text/html; charset=utf-8",
        bytes: PAGE,
    },
    Asset {
        path: "/openapi.json",
        kind: "application/json",
        bytes: include_bytes!("../../../openapi.json"),
    },
    Asset {
        path: "/schemas/forge-manifest.schema.json",
        kind: "application/json",
        bytes: include_bytes!("../../../schemas/forge-manifest.schema.json"),
    },
    Asset {
        path: "/schemas/signal-rules.schema.json",
        kind: "application/json",
        bytes: include_bytes!("../../../schemas/signal-rules.schema.json"),
    },
    Asset {
        path: "/console.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../../console/dist/console.js"),
    },
    // Loaded only by the page with charts.
    Asset {
        path: "/charts.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../../console/dist/charts.js"),
    },
    Asset {
        path: "/console.css",
        kind: "text/css; charset=utf-8",
        bytes: include_bytes!("../../../console/dist/console.css"),
    },
];

pub(super) fn routes() -> Router<Shared> {
    ASSETS.into_iter().fold(Router::new(), |router, asset| {
        // Weak: the compressed form has the same one.
        let tag = format!("W/\"{}\"", hex(&sha256(asset.bytes)[..8]));
        let zipped = Arc::new(OnceLock::new());
        router.route(
            asset.path,
            get(move |headers: HeaderMap| ready(asset.answer(&tag, &zipped, &headers))),
        )
    })
}

impl Asset {
    fn answer(self, tag: &str, zipped: &OnceLock<Bytes>, headers: &HeaderMap) -> Response {
        let known = headers.get(header::IF_NONE_MATCH);
        if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            let headers = [(header::ETAG, tag), CACHING, VARY];
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let known_encodings = headers.get(header::ACCEPT_ENCODING);
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            CACHING,
            VARY,
            (header::ETAG, tag),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        if takes_gzip(known_encodings) {
            let body = zipped.get_or_init(|| self.zip()).clone();
            return (headers, [(header::CONTENT_ENCODING, "gzip")], body).into_response();
        }
        (headers, Bytes::from_static(self.bytes)).into_response()
    }

    fn zip(self) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let zipped = encoder
            .write_all(self.bytes)
            .and_then(|()| encoder.finish());
        zipped.expect("writing to memory does not fail").into()
    }
}

/// True if the client takes gzip: the files are a third as long.
fn takes_gzip(encodings: Option<&HeaderValue>) -> bool {
    let encodings = encodings.and_then(|value| value.to_str().ok());
    let mut encodings = encodings.unwrap_or_default().split(',').map(str::trim);
    encodings.any(|one| one == "gzip" || one.starts_with("gzip;") && !one.ends_with("q=0"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::body::Body;
    use axum::http::Request;
    use flate2::read::GzDecoder;

    use super::super::testing::Edge;

    #[tokio::test]
    async fn the_console_is_served_to_those_without_a_token() {
        let edge = Edge::new().await;
        for (path, kind) in [
            ("/", "text/html"),
            ("/console.js", "text/javascript"),
            ("/charts.js", "text/javascript"),
            ("/console.css", "text/css"),
            ("/docs", "text/html"),
            ("/openapi.json", "application/json"),
            ("/schemas/forge-manifest.schema.json", "application/json"),
            ("/schemas/signal-rules.schema.json", "application/json"),
        ] {
            let answer = edge.get(path).await;
            assert_eq!(answer.status, 200, "{path}");
            assert!(answer.header("content-type").starts_with(kind), "{path}");
            let policy = answer.header("content-security-policy");
            assert!(policy.starts_with("default-src 'none'"), "{path}");
        }
    }

    #[tokio::test]
    async fn files_are_compressed_for_those_who_take_it() {
        let edge = Edge::new().await;
        let plain = edge.get("/console.js").await.body;
        for (encodings, is_zipped) in [
            ("gzip", true),
            ("br, gzip;q=0.5", true),
            ("gzip;q=0", false),
            ("identity", false),
        ] {
            let asked = Request::get("/console.js").header("accept-encoding", encodings);
            let answer = edge.send(asked.body(Body::empty()).unwrap()).await;
            let has_encoding = answer.headers.contains_key("content-encoding");
            assert_eq!(has_encoding, is_zipped, "{encodings}");
            assert_eq!(answer.header("vary"), "accept-encoding");
            if !is_zipped {
                assert_eq!(answer.body, plain);
                continue;
            }
            assert!(answer.body.len() * 2 < plain.len());
            let mut read = Vec::new();
            let mut body = GzDecoder::new(&*answer.body);
            body.read_to_end(&mut read).unwrap();
            assert_eq!(read, plain);
        }
    }
}
