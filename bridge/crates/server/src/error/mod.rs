//! Envelope of failed requests, and the status and code of each component's errors. Texts of internal failures
//! stay in the log, under the request id.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::external::Protocol;
use forge_base::id::RequestId;
use forge_base::trace::TraceContext;
use forge_dispatch as dispatch;
use forge_store as store;

/// Error code that callers branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    NotSupported,
    RunNotFound,
    TaskNotFound,
    ArtifactNotFound,
    ChangeRequestNotFound,
    MethodNotAllowed,
    RequestTimeout,
    Conflict,
    InvalidState,
    CursorExpired,
    PayloadTooLarge,
    UnsupportedMediaType,
    NoCapableAdapter,
    UnknownProvider,
    RateLimited,
    QueueFull,
    HeadersTooLarge,
    InternalError,
    RecordUnreadable,
    AdapterError,
    AdapterUnavailable,
    StoreUnavailable,
    ServiceUnavailable,
    ServiceTimeout,
    RunsUnavailable,
    Draining,
}

impl Code {
    fn row(self) -> (StatusCode, &'static str) {
        match self {
            Code::InvalidRequest => (StatusCode::BAD_REQUEST, "INVALID_REQUEST"),
            Code::Unauthorized => (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"),
            Code::Forbidden => (StatusCode::FORBIDDEN, "FORBIDDEN"),
            Code::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            Code::NotSupported => (StatusCode::NOT_FOUND, "NOT_SUPPORTED"),
            Code::RunNotFound => (StatusCode::NOT_FOUND, "RUN_NOT_FOUND"),
            Code::TaskNotFound => (StatusCode::NOT_FOUND, "TASK_NOT_FOUND"),
            Code::ArtifactNotFound => (StatusCode::NOT_FOUND, "ARTIFACT_NOT_FOUND"),
            Code::ChangeRequestNotFound => (StatusCode::NOT_FOUND, "CR_NOT_FOUND"),
            Code::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Code::RequestTimeout => (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
            Code::Conflict => (StatusCode::CONFLICT, "CONFLICT"),
            Code::InvalidState => (StatusCode::CONFLICT, "INVALID_STATE"),
            Code::CursorExpired => (StatusCode::GONE, "CURSOR_EXPIRED"),
            Code::PayloadTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
            Code::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE")
            }
            Code::NoCapableAdapter => (StatusCode::UNPROCESSABLE_ENTITY, "NO_CAPABLE_ADAPTER"),
            Code::UnknownProvider => (StatusCode::UNPROCESSABLE_ENTITY, "UNKNOWN_PROVIDER"),
            Code::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED"),
            Code::QueueFull => (StatusCode::TOO_MANY_REQUESTS, "QUEUE_FULL"),
            Code::HeadersTooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "HEADERS_TOO_LARGE",
            ),
            Code::InternalError => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR"),
            Code::RecordUnreadable => (StatusCode::INTERNAL_SERVER_ERROR, "RECORD_UNREADABLE"),
            Code::AdapterError => (StatusCode::BAD_GATEWAY, "ADAPTER_ERROR"),
            Code::AdapterUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "ADAPTER_UNAVAILABLE"),
            Code::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE"),
            Code::ServiceUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "FORGE_EXTERNAL_RUNTIME_UNAVAILABLE",
            ),
            Code::ServiceTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                "FORGE_EXTERNAL_RUNTIME_TIMEOUT",
            ),
            Code::RunsUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "RUNS_UNAVAILABLE"),
            Code::Draining => (StatusCode::SERVICE_UNAVAILABLE, "DRAINING"),
        }
    }

    pub fn status(self) -> StatusCode {
        self.row().0
    }

    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// Default of the header `Retry-After`; `None`: no header.
    fn retry_after(self) -> Option<Duration> {
        match self {
            Code::RateLimited
            | Code::QueueFull
            | Code::AdapterUnavailable
            | Code::RunsUnavailable
            | Code::Draining => Some(Duration::from_secs(5)),
            Code::StoreUnavailable | Code::ServiceUnavailable => Some(Duration::from_secs(1)),
            Code::InvalidRequest
            | Code::Unauthorized
            | Code::Forbidden
            | Code::NotFound
            | Code::NotSupported
            | Code::RunNotFound
            | Code::TaskNotFound
            | Code::ArtifactNotFound
            | Code::ChangeRequestNotFound
            | Code::MethodNotAllowed
            | Code::RequestTimeout
            | Code::Conflict
            | Code::InvalidState
            | Code::CursorExpired
            | Code::PayloadTooLarge
            | Code::UnsupportedMediaType
            | Code::NoCapableAdapter
            | Code::UnknownProvider
            | Code::HeadersTooLarge
            | Code::InternalError
            | Code::RecordUnreadable
            | Code::ServiceTimeout
            | Code::AdapterError => None,
        }
    }
}

/// Failed request; `render` writes its body once the request id is known.
#[derive(Clone, Debug)]
pub struct Failure {
    code: Code,
    message: String,
    details: Option<Value>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// Time for `Retry-After`, if known better than by the code.
    wait: Option<Duration>,
    protocol: Option<Box<Protocol>>,
}

impl Failure {
    /// `message` is shown to the caller: the error, its place, the remedy.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
            source: None,
            wait: None,
            protocol: None,
        }
    }

    /// 500 whose cause is logged and not shown to the caller.
    pub fn internal(source: impl StdError + Send + Sync + 'static) -> Self {
        let message = "internal error; see the log under this request id";
        Self::new(Code::InternalError, message).because(source)
    }

    /// Validation failure of one field.
    pub fn field(field: &str, message: impl Into<String>) -> Self {
        Self::fields(vec![problem(field, message)])
    }

    /// Validation failure of several fields, each from [`problem`].
    pub fn fields(problems: Vec<Value>) -> Self {
        let lines = problems.iter().map(|problem| {
            let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("field"), text("message"))
        });
        let first: Vec<String> = lines.take(3).map(|line| line.trim().to_owned()).collect();
        let more = match problems.len() - first.len() {
            0 => String::new(),
            more => format!("; and {more} more, see details"),
        };
        let message = format!("the request is not valid: {}{more}", first.join("; "));
        Self::new(Code::InvalidRequest, message).with_details(Value::Array(problems))
    }

    /// Replaces the message.
    #[must_use]
    pub fn saying(mut self, message: String) -> Self {
        self.message = message;
        self
    }

    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    /// Sets the cause, which is logged with its whole chain.
    #[must_use]
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Sets `Retry-After`.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets what a failed call of an external service has besides.
    #[must_use]
    pub(super) fn of_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(Box::new(protocol));
        self
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    fn log(&self) {
        let code = self.code.as_str();
        match &self.source {
            Some(source) => tracing::error!(code, "request failed: {}", chain(source.as_ref())),
            None => tracing::warn!(code, "request failed: {}", self.message),
        }
    }
}

fn chain(first: &(dyn StdError + 'static)) -> String {
    let mut text = first.to_string();
    let mut next = first.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Entry of `details` about one field.
pub fn problem(field: &str, message: impl Into<String>) -> Value {
    json!({ "field": field, "message": message.into() })
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.code.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the envelope into the response of a failure, including plain responses made by axum, and logs server
/// errors. `trace` is given for requests to external services, whose failures have more members.
pub(super) fn render(
    mut response: Response,
    request: RequestId,
    trace: Option<TraceContext>,
) -> Response {
    let failure = match response.extensions_mut().remove::<Failure>() {
        Some(failure) => failure,
        None => match plain(&response) {
            Some(failure) => failure,
            None => return response,
        },
    };
    if failure.code.status().is_server_error() {
        failure.log();
    }
    let mut body = json!({
        "error": failure.message,
        "code": failure.code.as_str(),
        "requestId": request.to_string(),
    });
    if let Some(details) = failure.details {
        body["details"] = details;
    }
    let mut headers = HeaderMap::new();
    if let Some(trace) = trace {
        let plain = || Protocol::of(trace, failure.code.as_str(), &failure.message);
        let protocol = failure.protocol.map_or_else(plain, |protocol| *protocol);
        protocol.complete(&mut body, &mut headers);
    }
    let mut rendered = (response.status(), headers, Json(body)).into_response();
    for (name, value) in response.headers() {
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            rendered.headers_mut().append(name, value.clone());
        }
    }
    if let Some(wait) = failure.wait.or_else(|| failure.code.retry_after()) {
        // Rounded up to whole seconds.
        let value = HeaderValue::from(wait.as_secs_f64().ceil() as u64);
        rendered.headers_mut().insert(header::RETRY_AFTER, value);
    }
    if failure.code == Code::Unauthorized {
        let value = HeaderValue::from_static("Bearer");
        rendered
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, value);
    }
    rendered
}

/// Failure for an error response that axum made by itself; `None` for JSON, which the bridge wrote (health).
fn plain(response: &Response) -> Option<Failure> {
    let status = response.status();
    let json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if json || !(status.is_client_error() || status.is_server_error()) {
        return None;
    }
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::PayloadTooLarge,
        StatusCode::REQUEST_TIMEOUT => Code::RequestTimeout,
        status if status.is_server_error() => Code::InternalError,
        _ => Code::InvalidRequest,
    };
    let reason = status.canonical_reason().unwrap_or("refused");
    Some(Failure::new(code, reason.to_ascii_lowercase()))
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(_) => {
                let message = format!("{error}; try again");
                Failure::new(Code::StoreUnavailable, message).because(error)
            }
            store::Error::Unreadable(_) => {
                let message = "this record cannot be read; see the log under this request id";
                Failure::new(Code::RecordUnreadable, message).because(error)
            }
            store::Error::NotFound => Failure::new(Code::NotFound, "no such record"),
            store::Error::InvalidState(message) => Failure::new(Code::InvalidState, message),
            store::Error::Stale(_) => Failure::internal(error),
        }
    }
}

impl From<dispatch::Error> for Failure {
    fn from(error: dispatch::Error) -> Self {
        match error {
            dispatch::Error::Invalid(fields) => Failure::fields(
                fields
                    .into_iter()
                    .map(|field| problem(&field.field, field.message))
                    .collect(),
            ),
            dispatch::Error::Conflict(dispatch_id) => {
                let message = "this key was already used for a dispatch with another body; send a new taskId or Idempotency-Key";
                Failure::new(Code::Conflict, message)
                    .with_details(json!({ "dispatchId": dispatch_id.to_string() }))
            }
            dispatch::Error::NoCapableAdapter(message) => {
                Failure::new(Code::NoCapableAdapter, message)
            }
            dispatch::Error::UnknownProvider(message) => {
                Failure::new(Code::UnknownProvider, message)
            }
            dispatch::Error::AdapterUnavailable(message) => {
                Failure::new(Code::AdapterUnavailable, message)
            }
            dispatch::Error::Forbidden(message) => Failure::new(Code::Forbidden, message),
            dispatch::Error::QueueFull => {
                Failure::new(Code::QueueFull, "the queue is full; try again later")
            }
            dispatch::Error::Store(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests;
