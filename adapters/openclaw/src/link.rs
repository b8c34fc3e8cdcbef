//! Connecting to the gateway: the WebSocket over the project's HTTP client, then the handshake with the signed device
//! identity.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_adapter_api::Health;
use forge_adapter_api::foreign_json;
use forge_adapter_transport::http::Http;
use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::{StatusCode, Upgraded};
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::frame::{Frame, Refusal, request};
use crate::identity::{Claims, Identity};
use crate::settings::Settings;

pub(crate) type Socket = WebSocketStream<Upgraded>;

/// Version of the gateway's protocol that this adapter speaks.
const PROTOCOL: u32 = 4;
/// Time limit of a connection attempt, from the first byte to the gateway's hello.
const CONNECT: Duration = Duration::from_secs(15);
/// Limit of a received message; a gateway announces 25 MiB for its own.
const MESSAGE_BYTES: usize = 32 << 20;
/// Id of the first request of a connection.
const HELLO: &str = "connect";
const SCOPES: [&str; 4] = [
    "operator.read",
    "operator.write",
    "operator.admin",
    "operator.approvals",
];

/// The gateway's answer to the handshake.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    /// Differs after each start of the gateway.
    pub(crate) boot: String,
    /// Requested scopes that the gateway did not grant.
    pub(crate) missing: Vec<&'static str>,
    pub(crate) tick: Duration,
    /// Limit of a message to the gateway.
    pub(crate) max_bytes: usize,
}

/// Reason why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct Unavailable {
    pub(crate) health: Health,
    /// Wait that the gateway asked for.
    pub(crate) retry_after: Option<Duration>,
}

impl From<Health> for Unavailable {
    fn from(health: Health) -> Self {
        Self {
            health,
            retry_after: None,
        }
    }
}

/// Connects and shakes hands; keeps the device token that the gateway issues.
pub(crate) async fn connect(
    http: &Http,
    url: &str,
    settings: &Settings,
    identity: &Identity,
) -> Result<(Socket, Hello), Unavailable> {
    let connected = async {
        let mut socket = open(http, url).await?;
        let hello = shake_hands(&mut socket, url, settings, identity).await?;
        Ok((socket, hello))
    };
    let silent = || {
        Health::degraded(format!(
            "what listens at {url} did not complete the handshake of an OpenClaw gateway within {CONNECT:?}; if it \
             is none, correct OPENCLAW_URL"
        ))
    };
    timeout(CONNECT, connected)
        .await
        .unwrap_or_else(|_| Err(silent().into()))
}

async fn open(http: &Http, url: &str) -> Result<Socket, Health> {
    let mut nonce = [0; 16];
    SystemRandom::new()
        .fill(&mut nonce)
        .map_err(|_| Health::degraded("the system has no random numbers"))?;
    let key = STANDARD.encode(nonce);
    let upgrade = http
        .get(url)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", &key);
    let answer = upgrade.send().await.map_err(|error| {
        let reason = std::error::Error::source(&error).map_or_else(String::new, |source| format!(" ({source})"));
        Health::offline(format!(
            "the gateway at {url} cannot be reached{reason}: start it (`openclaw gateway run`), or correct OPENCLAW_URL"
        ))
    })?;
    let accepted = answer.headers().get("sec-websocket-accept");
    let is_ours = accepted.is_some_and(|value| *value == derive_accept_key(key.as_bytes()));
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS || !is_ours {
        return Err(Health::degraded(format!(
            "what listens at {url} answered {} and opens no WebSocket; if it is no OpenClaw gateway, correct \
             OPENCLAW_URL",
            answer.status()
        )));
    }
    let stream = answer
        .upgrade()
        .await
        .map_err(|error| Health::offline(format!("the connection to {url} broke: {error}")))?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await)
}

async fn shake_hands(
    socket: &mut Socket,
    url: &str,
    settings: &Settings,
    identity: &Identity,
) -> Result<Hello, Unavailable> {
    let challenge = loop {
        if let Frame::Event { event, payload } = next(socket).await?
            && event == "connect.challenge"
        {
            break payload;
        }
    };
    let own = settings
        .token
        .as_ref()
        .map(|token| token.expose_secret().to_owned());
    let token = own.or_else(|| identity.token(url)).unwrap_or_default();
    let params = hello_params(&challenge, &token, identity);
    let sent = socket
        .send(Message::text(request(HELLO, "connect", &params)))
        .await;
    sent.map_err(|error| Health::offline(format!("the connection to {url} broke: {error}")))?;
    loop {
        match next(socket).await? {
            Frame::Res {
                id,
                ok: true,
                payload,
                ..
            } if id == HELLO => {
                let issued = payload["auth"]["deviceToken"].as_str();
                if let Some(Err(error)) = issued.map(|token| identity.keep_token(url, token)) {
                    tracing::warn!(%error, "the device token of the gateway was not stored");
                }
                return Ok(hello(&payload));
            }
            Frame::Res { id, error, .. } if id == HELLO => {
                return Err(refused(&error.unwrap_or_default()));
            }
            Frame::Res { .. } | Frame::Event { .. } | Frame::Unknown => {}
        }
    }
}

/// Next frame during the handshake.
async fn next(socket: &mut Socket) -> Result<Frame, Health> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => {
                return foreign_json::from_str(&text).map_err(|_| garbage());
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_) | Message::Frame(_))) => return Err(garbage()),
            Some(Ok(Message::Close(close))) => {
                let reason = close.map(|close| format!(": {} {}", close.code, close.reason));
                let reason = reason.unwrap_or_default();
                return Err(Health::degraded(format!(
                    "the gateway closed the handshake{reason}"
                )));
            }
            Some(Err(error)) => {
                return Err(Health::offline(format!("the handshake broke: {error}")));
            }
            None => return Err(Health::offline("the gateway ended the handshake")),
        }
    }
}

/// Health after a message that is no frame of the protocol.
pub(crate) fn garbage() -> Health {
    Health::degraded(
        "the server sent messages that are not OpenClaw's protocol; correct OPENCLAW_URL",
    )
}

fn hello_params(challenge: &Value, token: &str, identity: &Identity) -> Value {
    let claims = Claims {
        client_id: "gateway-client",
        mode: "backend",
        role: "operator",
        scopes: &SCOPES,
        platform: "linux",
        token,
        nonce: challenge["nonce"].as_str().unwrap_or_default(),
        signed_at: challenge["ts"].as_u64().unwrap_or_default(),
    };
    let auth = match token {
        "" => Value::Null,
        token => json!({ "token": token }),
    };
    let mut params = json!({
        "minProtocol": PROTOCOL, "maxProtocol": PROTOCOL, "role": claims.role, "scopes": SCOPES,
        "client": {
            "id": claims.client_id, "displayName": "forge-bridge", "version": env!("CARGO_PKG_VERSION"),
            "platform": claims.platform, "mode": claims.mode,
        },
        "caps": ["tool-events", "agent-kind"],
        "locale": "en-US", "userAgent": concat!("forge-bridge/", env!("CARGO_PKG_VERSION")),
        "device": identity.device(&claims),
    });
    if !auth.is_null() {
        params["auth"] = auth;
    }
    params
}

fn hello(payload: &Value) -> Hello {
    let granted = payload["auth"]["scopes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let policy = &payload["policy"];
    let number = |name: &str, default| policy[name].as_u64().unwrap_or(default);
    Hello {
        boot: payload["server"]["bootId"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        missing: SCOPES
            .into_iter()
            .filter(|scope| !granted.iter().any(|granted| granted == scope))
            .collect(),
        tick: Duration::from_millis(number("tickIntervalMs", 30_000)),
        max_bytes: usize::try_from(number("maxPayload", 25 << 20)).unwrap_or(usize::MAX),
    }
}

/// Reason and fix for a refused handshake.
fn refused(refusal: &Refusal) -> Unavailable {
    let message = &refusal.message;
    let request_id = refusal.details["requestId"].as_str().unwrap_or("<id>");
    let text = match (refusal.code.as_str(), refusal.detail()) {
        (_, "PROTOCOL_MISMATCH") => {
            let theirs = &refusal.details["expectedProtocol"];
            format!(
                "the gateway speaks protocol {theirs} and this adapter {PROTOCOL}: install a matching version of \
                 OpenClaw"
            )
        }
        (_, code) if code.starts_with("AUTH_") => {
            format!("the gateway rejected the token ({message}): correct OPENCLAW_TOKEN")
        }
        (_, "PAIRING_REQUIRED") | ("NOT_PAIRED", _) => format!(
            "the gateway has not approved this device ({message}): run `openclaw devices approve {request_id}` on its \
             machine"
        ),
        _ => format!("the gateway refused the connection: {message}"),
    };
    Unavailable {
        health: Health::degraded(text),
        retry_after: refusal.retry_after_ms.map(Duration::from_millis),
    }
}
