//! Compression of lists, which can be long. Other answers are short or streams.

use axum::Router;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;

use super::Shared;

/// Size in bytes from which compression is worth its time.
const LEAST: u16 = 1024;

/// Router with these routes, compressed for clients that take gzip.
pub(super) fn compressed(routes: Router<Shared>) -> Router<Shared> {
    let layer = CompressionLayer::new().quality(CompressionLevel::Fastest);
    routes.layer(layer.compress_when(SizeAbove::new(LEAST)))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::http::Request;
    use flate2::read::GzDecoder;

    use super::super::testing::Edge;

    #[tokio::test]
    async fn long_lists_are_compressed_for_those_who_ask() {
        let edge = Edge::new().await;
        for number in 0..20 {
            edge.done(&format!("task-{number}")).await;
        }
        let ask = async |path: &str| {
            let request = Request::get(path).header("accept-encoding", "br, gzip");
            edge.send(request.body("".into()).unwrap()).await
        };
        for path in ["/api/v2/dispatches", "/api/v2/deliveries"] {
            let plain = edge.get(path).await;
            assert_eq!(plain.header("content-encoding"), "", "{path}");
            let packed = ask(path).await;
            assert_eq!(packed.header("content-encoding"), "gzip", "{path}");
            assert!(packed.body.len() < plain.body.len() / 2, "{path}");
            let mut body = Vec::new();
            GzDecoder::new(&*packed.body)
                .read_to_end(&mut body)
                .unwrap();
            assert_eq!(body, plain.body, "{path}");
        }
        for path in ["/api/v2/dispatches?limit=1", "/api/health"] {
            let answer = ask(path).await;
            assert_eq!(answer.header("content-encoding"), "", "{path}");
        }
    }
}
