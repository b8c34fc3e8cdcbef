//! Callback receiver of `demo`, `dev` and `drill`: accepts every callback, answers 204 and passes it on. Verifies
//! signatures by the published specification, independently of the bridge's own code.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ring::hmac;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const LONGEST_BODY_BYTES: usize = 32 * 1024 * 1024;
const BACKLOG: usize = 64;

/// A listening receiver.
pub(super) struct Sink {
    pub(super) addr: SocketAddr,
    received: mpsc::Receiver<Callback>,
}

/// Callback as received.
pub(super) struct Callback {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Sink {
    /// Listens on this loopback port until `shutdown`; on a free port if it is 0 or in use.
    pub(super) async fn start(
        port: u16,
        tracker: &TaskTracker,
        shutdown: CancellationToken,
    ) -> std::io::Result<Self> {
        let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?
            }
            bound => bound?,
        };
        let addr = listener.local_addr()?;
        let (sender, received) = mpsc::channel(BACKLOG);
        tracker.spawn(accept(listener, sender, tracker.clone(), shutdown));
        Ok(Self { addr, received })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/callback", self.addr)
    }

    /// Returns the next callback; `None` after the shutdown.
    pub(super) async fn next(&mut self) -> Option<Callback> {
        self.received.recv().await
    }
}

async fn accept(
    listener: TcpListener,
    sender: mpsc::Sender<Callback>,
    tracker: TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            continue;
        };
        let (sender, shutdown) = (sender.clone(), shutdown.clone());
        tracker.spawn(async move {
            let service = service_fn(|request| receive(request, sender.clone()));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // Errors are ignored: a sender that disconnects early retries.
            tokio::select! {
                _ = connection => {}
                () = shutdown.cancelled() => {}
            }
        });
    }
}

async fn receive(
    request: Request<Incoming>,
    sender: mpsc::Sender<Callback>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let status = match Limited::new(body, LONGEST_BODY_BYTES).collect().await {
        Ok(body) => {
            let callback = Callback {
                headers: head.headers,
                body: body.to_bytes(),
            };
            match sender.send(callback).await {
                Ok(()) => StatusCode::NO_CONTENT,
                Err(_) => StatusCode::SERVICE_UNAVAILABLE,
            }
        }
        Err(_) => StatusCode::PAYLOAD_TOO_LARGE,
    };
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    Ok(response)
}

impl Callback {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns true if one of the signatures is `HMAC-SHA256(secret, "<id>.<timestamp>.<body>")`, as specified by
    /// standardwebhooks.com. The secret is `whsec_` followed by base64.
    pub(super) fn is_signed_with(&self, secret: &str) -> bool {
        let (Some(id), Some(timestamp), Some(signatures)) = (
            self.header("webhook-id"),
            self.header("webhook-timestamp"),
            self.header("webhook-signature"),
        ) else {
            return false;
        };
        let encoded = secret.strip_prefix("whsec_").unwrap_or(secret);
        let Ok(key) = BASE64.decode(encoded) else {
            return false;
        };
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let signed = [format!("{id}.{timestamp}.").as_bytes(), &self.body].concat();
        signatures
            .split(' ')
            .filter_map(|signature| BASE64.decode(signature.strip_prefix("v1,")?).ok())
            .any(|signature| hmac::verify(&key, &signed, &signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vector of the Standard Webhooks specification.
    fn callback() -> Callback {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            (
                "webhook-signature",
                "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        Callback {
            headers,
            body: Bytes::from_static(b"{\"test\": 2432232314}"),
        }
    }

    #[test]
    fn the_published_vector_is_accepted() {
        assert!(callback().is_signed_with("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    }

    #[test]
    fn another_secret_body_or_header_is_not() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        assert!(!callback().is_signed_with("whsec_AAAA"));
        assert!(!callback().is_signed_with("not base64!"));
        let changed = Callback {
            body: Bytes::from_static(b"{}"),
            ..callback()
        };
        assert!(!changed.is_signed_with(secret));
        let mut unsigned = callback();
        unsigned.headers.remove("webhook-signature");
        assert!(!unsigned.is_signed_with(secret));
    }
}
