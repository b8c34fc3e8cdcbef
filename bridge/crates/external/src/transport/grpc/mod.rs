//! Services over gRPC: one unary call of the method that the entry's path names. Arguments and answer are in protobuf's
//! JSON mapping, by descriptors of the server or of a file.

pub mod descriptors;
pub mod mapping;

use std::error::Error as _;
use std::path::PathBuf;

use bytes::{Buf as _, BufMut as _, Bytes};
use prost_reflect::{MessageDescriptor, MethodDescriptor};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status as GrpcStatus};
use url::Url;

use forge_net::{Http2, Http2Error};

use self::descriptors::Descriptors;
use super::{End, http, too_long};
use crate::answer::{BAD_RESPONSE, FAILED, Status};
use crate::call::{Call, INPUT_INVALID, LARGE_BYTES, UNSUPPORTED};
use crate::manifest::Entry;

/// Bytes of the frame around a message.
const FRAME_BYTES: usize = 5;

/// HTTP/2 client for gRPC.
pub(crate) type GrpcClient = Http2<Body>;

/// Server that can be called.
#[derive(Debug)]
pub(crate) struct Server {
    origin: Uri,
    client: GrpcClient,
    descriptors: Descriptors,
}

/// Call that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Message {
    path: PathAndQuery,
    service: String,
    method: String,
    args: String,
    headers: HeaderMap,
}

impl Server {
    /// `descriptor_set` takes the place of the server's reflection. `Err` with the reason.
    pub(crate) fn new(
        base: &Url,
        client: GrpcClient,
        descriptor_set: Option<PathBuf>,
    ) -> Result<Self, String> {
        let origin = Uri::try_from(base.origin().ascii_serialization());
        Ok(Self {
            origin: origin.map_err(|error| error.to_string())?,
            client,
            descriptors: Descriptors::new(descriptor_set),
        })
    }

    fn client(&self, message_bytes: usize) -> Grpc<GrpcClient> {
        let client = self
            .client
            .limited(message_bytes.saturating_add(FRAME_BYTES));
        // The client's own limit reports a longer answer, which is no status of the server.
        Grpc::with_origin(client, self.origin.clone()).max_decoding_message_size(usize::MAX)
    }

    async fn method(&self, service: &str, method: &str) -> Result<MethodDescriptor, End> {
        let described = self.descriptors.service(service, self).await?;
        let found = described.methods().find(|one| one.name() == method);
        let Some(found) = found else {
            self.descriptors.forget().await;
            let reason = format!("the service {service} has no method {method:?}");
            return Err(End::Refused(FAILED, reason));
        };
        if found.is_client_streaming() || found.is_server_streaming() {
            let reason = format!("{service}/{method} is a streaming method");
            return Err(End::Refused(UNSUPPORTED, reason));
        }
        Ok(found)
    }
}

impl Message {
    /// `Err` with the reason.
    pub(crate) fn new(entry: &Entry, call: &Call<'_>) -> Result<Self, String> {
        let named = entry.path.as_deref().and_then(method_path);
        let Some((service, method)) = named else {
            return Err("the path of a gRPC entry is /package.Service/Method".to_owned());
        };
        let path = PathAndQuery::try_from(format!("/{service}/{method}"));
        let mut headers = http::headers(call);
        headers.remove(CONTENT_TYPE);
        Ok(Self {
            path: path.map_err(|error| error.to_string())?,
            service: service.to_owned(),
            method: method.to_owned(),
            args: call.args.to_string(),
            headers,
        })
    }

    pub(crate) async fn send(
        &self,
        server: &Server,
        deadline: Instant,
        answer_bytes: usize,
    ) -> End {
        let ended = timeout_at(deadline, self.exchange(server, deadline, answer_bytes)).await;
        match ended {
            Ok(Ok(end) | Err(end)) => end,
            Err(_) => End::TimedOut,
        }
    }

    async fn exchange(
        &self,
        server: &Server,
        deadline: Instant,
        answer_bytes: usize,
    ) -> Result<End, End> {
        let method = server.method(&self.service, &self.method).await?;
        let message = mapping::encode(method.input(), &self.args).map_err(|reason| {
            let reason = format!("args do not match {}: {reason}", method.input().full_name());
            End::Refused(INPUT_INVALID, reason)
        })?;
        let mut request = Request::new(Bytes::from(message));
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        let mut client = server.client(answer_bytes);
        match client.unary(request, self.path.clone(), Raw).await {
            Ok(answer) => Ok(read(method.output(), answer.into_inner(), answer_bytes).await),
            Err(status) => {
                if status.code() == Code::Unimplemented {
                    server.descriptors.forget().await;
                }
                Ok(failed(&status, answer_bytes))
            }
        }
    }
}

/// Service and method that a path names.
pub(crate) fn method_path(path: &str) -> Option<(&str, &str)> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|first| !first.is_ascii_digit())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (service.split('.').all(is_name) && is_name(method)).then_some((service, method))
}

/// Turns the message into JSON.
async fn read(output: MessageDescriptor, message: Bytes, limit: usize) -> End {
    let is_large = message.len() > LARGE_BYTES;
    let reading = move || mapping::decode(output, message, limit);
    let read = match is_large {
        false => Ok(reading()),
        true => tokio::task::spawn_blocking(reading).await,
    };
    match read {
        Ok(Ok(body)) => End::Answered {
            status: Status::Grpc(Code::Ok),
            body,
            said: String::new(),
            retry_after: None,
        },
        Ok(Err(mapping::Unreadable::TooLong)) => End::Broken(BAD_RESPONSE, too_long(limit)),
        Ok(Err(error)) => End::Broken(BAD_RESPONSE, format!("the answer is not readable: {error}")),
        Err(error) => End::Broken(FAILED, format!("the answer could not be read: {error}")),
    }
}

/// End of a call without an answer, by the failure of the client or the status of the server.
fn failed(status: &GrpcStatus, limit: usize) -> End {
    let source = status.source();
    match source.and_then(|source| source.downcast_ref::<Http2Error>()) {
        Some(Http2Error::TooLong) => End::Broken(BAD_RESPONSE, too_long(limit)),
        Some(Http2Error::Send(error)) => http::failed(error),
        None if status.code() == Code::DeadlineExceeded => End::TimedOut,
        None => End::Answered {
            status: Status::Grpc(status.code()),
            body: Vec::new(),
            said: match status.message() {
                "" => String::new(),
                message => format!(": {message}"),
            },
            retry_after: None,
        },
    }
}

/// Codec of messages that are bytes already.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = GrpcStatus;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), GrpcStatus> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = GrpcStatus;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, GrpcStatus> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_service_and_a_method() {
        assert_eq!(method_path("/a.b.C/D_1"), Some(("a.b.C", "D_1")));
        for path in [
            "", "/", "a.B/C", "/B", "/a..B/C", "/B/C/D", "/B/1C", "/B/C?d", "/B/",
        ] {
            assert_eq!(method_path(path), None, "{path}");
        }
    }
}
