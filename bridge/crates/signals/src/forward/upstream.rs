//! Engine of a team: signs signals with its token and reads its answers.

use forge_adapter_api::foreign_json;
use std::fmt;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use forge_base::digest::MacKey;
use forge_net::guard::{BadRule, Guard};
use forge_net::{self as net, BodyEnd, Client, Outgoing};
use forge_store::record::Severity;

use crate::sign::{Signature, token_key};

const TIMEOUT: Duration = Duration::from_secs(3);
const PATH: [&str; 3] = ["engine", "v1", "signals"];
const SIGNATURE: HeaderName = HeaderName::from_static("x-forg-signature");

/// `[signals.upstream]` of the configuration.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// URL of the bridge that signals are forwarded to; absent: none are. Its host may be called although it is not
    /// public.
    pub url: Option<String>,
    /// Token for that bridge, which also signs.
    #[serde(with = "forge_base::secret")]
    pub token: Option<SecretString>,
}

/// Error in the settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "signals.upstream.url must be an https URL without user name, password, query and fragment; http is for loopback \
         addresses only"
    )]
    Url,
    #[error("the host of signals.upstream.url cannot be called")]
    Host(#[source] BadRule),
    #[error("signals.upstream.token is missing")]
    NoToken,
    #[error("signals.upstream.token contains characters that a header does not allow")]
    Token,
    #[error("the HTTP client for signals.upstream could not be created")]
    Client(#[source] net::Error),
}

/// Engine that signals are forwarded to.
pub struct Upstream {
    url: Url,
    headers: HeaderMap,
    key: MacKey,
    client: Client,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").finish_non_exhaustive()
    }
}

/// Answer to one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Accepted(Option<Told>),
    /// Refused with this status, 400 or 403; a repeat would be refused as well.
    Refused(u16),
    /// The token or the signature is wrong.
    Unauthorized,
    /// No usable answer, for this reason. The signal can be sent again.
    Failed(String),
}

/// Intervention of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) id: String,
    pub(super) message: String,
    pub(super) severity: Severity,
}

impl Upstream {
    /// `None` without a URL.
    pub fn open(config: &Config, net: &net::Config) -> Result<Option<Self>, Error> {
        let Some(url) = &config.url else {
            return Ok(None);
        };
        let mut url = callable(url).ok_or(Error::Url)?;
        let (host, port) = (url.host_str(), url.port_or_known_default());
        let host = format!("{}:{}", host.unwrap_or_default(), port.unwrap_or_default());
        let guard = Guard::of_setting("signals.upstream.url", &[host]).map_err(Error::Host)?;
        let token = config
            .token
            .as_ref()
            .map(|token| token.expose_secret().trim());
        let token = token
            .filter(|token| !token.is_empty())
            .ok_or(Error::NoToken)?;
        if !token.is_ascii() {
            return Err(Error::Token);
        }
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer.map_err(|_| Error::Token)?;
        bearer.set_sensitive(true);
        url.path_segments_mut()
            .map_err(|()| Error::Url)?
            .pop_if_empty()
            .extend(PATH);
        let json = HeaderValue::from_static("application/json");
        Ok(Some(Self {
            url,
            headers: HeaderMap::from_iter([(AUTHORIZATION, bearer), (CONTENT_TYPE, json)]),
            key: MacKey::new(token_key(token.as_bytes())),
            client: Client::new(net, guard).map_err(Error::Client)?,
        }))
    }

    /// Scheme, host and port, for logs.
    pub(super) fn origin(&self) -> String {
        net::origin(&self.url)
    }

    pub(super) async fn send(&self, signal: &Value) -> Reply {
        let body = signal.to_string();
        let signature = Signature::new(&self.key, body.as_bytes()).to_string();
        let signature = HeaderValue::try_from(signature).expect("digits are allowed in a header");
        let mut headers = self.headers.clone();
        headers.insert(SIGNATURE, signature);
        let answer = self.client.send(Outgoing {
            method: Method::POST,
            url: self.url.clone(),
            headers,
            body: body.into(),
            timeout: TIMEOUT,
            answer_bytes: net::ANSWER_BYTES,
        });
        match answer.await {
            Ok(answer) => reply(answer.status, &answer.body, answer.end),
            Err(error) => Reply::Failed(error.to_string()),
        }
    }
}

fn callable(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    (is_plain && net::is_private(&url)).then_some(url)
}

fn reply(status: u16, body: &[u8], end: BodyEnd) -> Reply {
    match status {
        200 => {}
        400 | 403 => return Reply::Refused(status),
        401 => return Reply::Unauthorized,
        _ => return Reply::Failed(format!("it answered {status}")),
    }
    let tree: Option<Value> = foreign_json::from_slice(body).ok();
    match tree.filter(|tree| end == BodyEnd::Complete && tree.is_object()) {
        Some(tree) => Reply::Accepted(told(&tree)),
        None => Reply::Failed("its answer is not a JSON object".to_owned()),
    }
}

fn told(tree: &Value) -> Option<Told> {
    if tree["action"] != "intervention" {
        return None;
    }
    let text = |name: &str| tree[name].as_str().map(str::to_owned);
    let severity = Severity::deserialize(&tree["severity"]);
    Some(Told {
        id: text("intervention_id")?,
        message: text("message")?,
        severity: severity.unwrap_or(Severity::Warning),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn open(url: &str, token: Option<&str>) -> Result<Option<Upstream>, Error> {
        let config = Config {
            url: Some(url.to_owned()),
            token: token.map(SecretString::from),
        };
        Upstream::open(&config, &net::Config::default())
    }

    #[test]
    fn urls_are_encrypted_or_local() {
        for url in [
            "https://team.example",
            "https://10.0.0.1:7420/bridge/",
            "http://127.0.0.1:7420",
            "http://[::1]:7420/",
            "http://localhost:7420",
        ] {
            let upstream = open(url, Some("t")).unwrap().unwrap();
            assert!(upstream.url.path().ends_with("/engine/v1/signals"), "{url}");
            assert!(!upstream.url.path().contains("//"), "{url}");
            assert_eq!(upstream.client.guard().check_url(&upstream.url), Ok(()));
        }
        for url in [
            "team.example",
            "http://team.example",
            "http://10.0.0.1",
            "http://localhost.example",
            "ftp://127.0.0.1",
            "https://a:b@team.example",
            "https://team.example?a",
            "https://team.example#a",
        ] {
            assert!(matches!(open(url, Some("t")), Err(Error::Url)), "{url}");
        }
    }

    #[test]
    fn a_token_is_required_and_never_shown() {
        let url = "https://team.example";
        for token in [None, Some(""), Some(" ")] {
            assert!(matches!(open(url, token), Err(Error::NoToken)));
        }
        for token in ["a\nb", "tökén"] {
            assert!(matches!(open(url, Some(token)), Err(Error::Token)));
        }
        let config = Config {
            url: None,
            token: Some("hush".into()),
        };
        assert!(!serde_json::to_string(&config).unwrap().contains("hush"));
        let upstream = open(url, Some("hush")).unwrap().unwrap();
        assert!(!format!("{config:?} {upstream:?}").contains("hush"));
        let none = Upstream::open(&Config::default(), &net::Config::default());
        assert!(none.unwrap().is_none());
    }

    #[test]
    fn only_json_objects_with_status_200_are_answers() {
        let intervention =
            json!({"action": "intervention", "intervention_id": "i", "message": "m"});
        let told = |severity| Told {
            id: "i".to_owned(),
            message: "m".to_owned(),
            severity,
        };
        let with = |name: &str, value: Value| {
            let mut tree = intervention.clone();
            tree[name] = value;
            tree
        };
        for (tree, expected) in [
            (json!({}), None),
            (
                json!({"action": "noop", "message": "m", "intervention_id": "i"}),
                None,
            ),
            (intervention.clone(), Some(told(Severity::Warning))),
            (
                with("severity", json!("critical")),
                Some(told(Severity::Critical)),
            ),
            (
                with("severity", json!("odd")),
                Some(told(Severity::Warning)),
            ),
            (with("message", json!(1)), None),
        ] {
            let read = reply(200, tree.to_string().as_bytes(), BodyEnd::Complete);
            assert_eq!(read, Reply::Accepted(expected), "{tree}");
        }
        for (status, body, end) in [
            (200, "", BodyEnd::Complete),
            (200, "<html>", BodyEnd::Complete),
            (200, "[]", BodyEnd::Complete),
            (200, "{}", BodyEnd::Broken),
            (202, "{}", BodyEnd::Complete),
            (302, "{}", BodyEnd::Complete),
            (404, "{}", BodyEnd::Complete),
            (429, "{}", BodyEnd::Complete),
            (503, "{}", BodyEnd::Complete),
        ] {
            let read = reply(status, body.as_bytes(), end);
            assert!(matches!(read, Reply::Failed(_)), "{status} {body}");
        }
        for status in [400, 403] {
            assert_eq!(
                reply(status, b"", BodyEnd::Complete),
                Reply::Refused(status)
            );
        }
        assert_eq!(reply(401, b"", BodyEnd::Complete), Reply::Unauthorized);
    }
}
