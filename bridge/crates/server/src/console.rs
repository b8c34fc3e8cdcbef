//! Console and reference of the HTTP interface: embedded files, built ahead (`bridge/console`) or written by hand
//! (`openapi.json`, `schemas/`). They hold no data and need no token; the console reads its data through the public
//! interface, like any client.

use std::future::ready;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::Shared;
use forge_base::digest::{hex, sha256};

/// Content security policy: resources of the bridge only, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Another version of the bridge serves other files under the same names.
const CACHING: (HeaderName, &str) = (header::CACHE_CONTROL, "no-cache");

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
        let tag = format!("\"{}\"", hex(&sha256(asset.bytes)[..8]));
        router.route(
            asset.path,
            get(move |headers: HeaderMap| ready(asset.answer(&tag, &headers))),
        )
    })
}

impl Asset {
    fn answer(self, tag: &str, headers: &HeaderMap) -> Response {
        let known = headers.get(header::IF_NONE_MATCH);
        if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            let headers = [(header::ETAG, tag), CACHING];
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            CACHING,
            (header::ETAG, tag),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        (headers, Bytes::from_static(self.bytes)).into_response()
    }
}

#[cfg(test)]
mod tests {
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
}
