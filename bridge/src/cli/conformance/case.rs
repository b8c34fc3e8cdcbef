//! Signed requests that differ from a right one in one respect, and the answers that they must get.

use std::collections::BTreeMap;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forge_base::digest::from_hex;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::super::client::{self, Client, Target};
use super::report::{Check, Report};
use super::signature::sign;

const SIGNATURE: &str = "x-forg-signature";

/// Receiver of signals that is checked.
pub(super) struct Receiver(Client);

pub(super) struct Sent {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

pub(super) struct Answer {
    status: u16,
    headers: HeaderMap,
    pub(super) body: Value,
}

/// Check with one request, and its difference from a right one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    id: String,
    seed: String,
    reason: String,
    /// Status of the right answer.
    status: u16,
    /// Another status that is right too.
    #[serde(default)]
    or: Option<u16>,
    #[serde(default)]
    change: Change,
}

/// Difference from a right request. Fields and bytes are changed before the signature is made, the others after it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Change {
    set: BTreeMap<String, Value>,
    before: String,
    after: String,
    /// Number of blanks after the body.
    pad: usize,
    /// Body in hexadecimal digits.
    hex: Option<String>,
    method: Option<String>,
    path: Option<String>,
    /// Headers; `null` removes one.
    headers: BTreeMap<String, Option<String>>,
    signature: Signature,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Signature {
    #[default]
    Right,
    UpperCase,
    Twice,
    WithoutPrefix,
    WithBlank,
    OtherKey,
    TextOfKey,
    /// The body is changed by a byte after it was signed.
    OtherByte,
    Reserialised,
}

/// Right signal: where it is sent, with the key that signs it.
#[derive(Clone)]
pub(super) struct Right {
    pub(super) path: &'static str,
    pub(super) key: Vec<u8>,
    pub(super) headers: HeaderMap,
    pub(super) value: Value,
}

impl Sent {
    pub(super) fn new(method: Method, path: &str, body: impl Into<Vec<u8>>) -> Self {
        let json = HeaderValue::from_static("application/json");
        Self {
            method,
            path: path.to_owned(),
            headers: HeaderMap::from_iter([(CONTENT_TYPE, json)]),
            body: body.into(),
        }
    }
}

impl Right {
    /// The request with a change.
    pub(super) fn with(&self, change: &Change) -> anyhow::Result<Sent> {
        let mut value = self.value.clone();
        for (name, to) in &change.set {
            value[name] = to.clone();
        }
        let mut body = match &change.hex {
            Some(digits) => from_hex(digits).context("hexadecimal digits")?,
            None => format!("{}{value}{}", change.before, change.after).into_bytes(),
        };
        body.resize(body.len() + change.pad, b' ');
        let right = sign(&self.key, &body);
        let signature = match change.signature {
            Signature::Right | Signature::Twice | Signature::OtherByte => right,
            Signature::UpperCase => right.to_uppercase().replace("SHA", "sha"),
            Signature::WithoutPrefix => right.replace("sha256=", ""),
            Signature::WithBlank => right.replace('=', "= "),
            Signature::OtherKey => sign(&[7; 32], &body),
            Signature::TextOfKey => sign(BASE64_STANDARD.encode(&self.key).as_bytes(), &body),
            Signature::Reserialised => sign(&self.key, format!("{value:#}").as_bytes()),
        };
        let path = change.path.as_deref().unwrap_or(self.path);
        let method = change.method.as_deref().unwrap_or("POST").parse()?;
        let mut sent = Sent::new(method, path, body);
        sent.headers.extend(self.headers.clone());
        sent.headers.insert(SIGNATURE, signature.parse()?);
        match change.signature {
            Signature::Twice => drop(sent.headers.append(SIGNATURE, signature.parse()?)),
            Signature::OtherByte => sent.body.push(b' '),
            _ => {}
        }
        for (name, to) in &change.headers {
            let name: HeaderName = name.parse()?;
            match to {
                Some(to) => drop(sent.headers.insert(name, to.parse()?)),
                None => drop(sent.headers.remove(name)),
            }
        }
        Ok(sent)
    }
}

impl Receiver {
    pub(super) fn new(url: &Url) -> Result<Self, client::Error> {
        Client::new(url.as_str(), None).map(Self)
    }

    pub(super) async fn send(&self, sent: Sent) -> Result<Answer, client::Error> {
        let path = Vec::from_iter(sent.path.trim_start_matches('/').split('/'));
        let target = Target::path(&path);
        let exchange = self
            .0
            .exchange(sent.method, &target, sent.headers, sent.body);
        let (status, headers, body) = exchange.await?;
        Ok(Answer {
            status: status.as_u16(),
            headers,
            body,
        })
    }

    /// Sends the case of each wanted check of this table, and adds its row.
    pub(super) async fn check(
        &self,
        right: &Right,
        table: &str,
        report: &mut Report<'_>,
    ) -> anyhow::Result<()> {
        let cases: Vec<Case> = serde_json::from_str(table)?;
        for case in cases {
            if report.wants(&case.id) {
                let answer = self.send(right.with(&case.change)?).await?;
                let check = Check::new(&case.id, &case.seed, &case.reason);
                let right = match case.or {
                    Some(other) if other == answer.status => other,
                    Some(_) | None => case.status,
                };
                report.hold(&check, answer.wrong(right))?;
            }
        }
        Ok(())
    }
}

impl Answer {
    /// Names the body unless this holds.
    pub(super) fn unless(&self, holds: bool) -> Option<String> {
        (!holds).then(|| format!("the answer is {}", self.body))
    }

    /// Difference from an answer with this status.
    pub(super) fn wrong(&self, status: u16) -> Option<String> {
        if self.status != status {
            return Some(format!(
                "{} in place of {status}: {}",
                self.status, self.body
            ));
        }
        let mut names = self.headers.keys().map(|name| name.as_str());
        if let Some(name) = names.find(|name| name.starts_with("access-control-allow-")) {
            return Some(format!("a page of a browser is let in by {name}"));
        }
        let has_text = |name: &str| self.body[name].is_string();
        if status >= 400 && !(has_text("error") && has_text("code")) {
            return Some(format!("the body of the error is {}", self.body));
        }
        None
    }
}
