//! Requests over HTTP/2 alone, for gRPC: the same guard, TLS and name lookup as all others, with streamed bodies.
//! Without TLS, HTTP/2 begins at once ("prior knowledge").

use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body_util::combinators::MapErr;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_util::client::legacy;
use tower::{BoxError, Service};
use url::Url;

use super::SendError;
use super::direct::Connector;
use super::guard::{Guard, Trust};

/// Client for one kind of request body. Clones share the connections.
#[derive(Debug)]
pub struct Http2<B> {
    guard: Guard,
    checked: legacy::Client<Connector, B>,
    /// For hosts that the operator allows by name.
    named: legacy::Client<Connector, B>,
    answer_bytes: usize,
}

/// Body of an answer, up to the limit.
pub type Http2Body = MapErr<Limited<Incoming>, fn(BoxError) -> Http2Error>;

/// Reason why there was no answer, or why its body ended early.
#[derive(Debug, thiserror::Error)]
pub enum Http2Error {
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("the answer is too long")]
    TooLong,
}

impl<B> Clone for Http2<B> {
    fn clone(&self) -> Self {
        Self {
            guard: self.guard.clone(),
            checked: self.checked.clone(),
            named: self.named.clone(),
            answer_bytes: self.answer_bytes,
        }
    }
}

impl<B> Http2<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
{
    pub(super) fn new(
        guard: Guard,
        mut builder: legacy::Builder,
        checked: Connector,
        named: Connector,
    ) -> Self {
        builder.http2_only(true);
        Self {
            guard,
            checked: builder.build(checked),
            named: builder.build(named),
            answer_bytes: usize::MAX,
        }
    }

    /// The same client, with a limit for the bodies of its answers.
    pub fn limited(&self, answer_bytes: usize) -> Self {
        Self {
            answer_bytes,
            ..self.clone()
        }
    }
}

impl<B> Service<Request<B>> for Http2<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Http2Body>;
    type Error = Http2Error;
    type Future = BoxFuture<'static, Result<Self::Response, Http2Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let trusted = Url::parse(&request.uri().to_string())
            .map_err(|error| SendError::Protocol(error.to_string()))
            .and_then(|url| self.guard.trust(&url).map_err(SendError::Refused));
        let client = match trusted {
            Ok(Trust::Checked) => &self.checked,
            Ok(Trust::Named) => &self.named,
            Err(error) => return std::future::ready(Err(error.into())).boxed(),
        };
        let (sent, answer_bytes) = (client.request(request), self.answer_bytes);
        async move {
            let sent = sent.await;
            let answer = sent.map_err(|error| SendError::of(&error, error.is_connect()))?;
            Ok(answer.map(|body| {
                let ended: fn(BoxError) -> Http2Error = ended;
                Limited::new(body, answer_bytes).map_err(ended)
            }))
        }
        .boxed()
    }
}

fn ended(error: BoxError) -> Http2Error {
    match error.downcast::<LengthLimitError>() {
        Ok(_) => Http2Error::TooLong,
        Err(error) => SendError::of(&*error, false).into(),
    }
}
