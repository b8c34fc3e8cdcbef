//! Checks of a local agent: sessions, signatures, records, and requests that are not those of an adapter.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::json;
use url::Url;

use super::case::{Answer, Change, Receiver, Right, Sent};
use super::report::{Check, Report};

const CASES: &str = include_str!("agent.json");
const HEALTH: &str = "001: { \"status\": \"ok\", \"version\": \"1.4.2\" }";
const START: &str =
    "001: \"session_id\", \"session_key\": \"base64-encoded-32-byte-key\", \"expires_at\"";
const LIFECYCLE: &str = "001: Session lifecycle";
const ANSWER: &str =
    "001: If the response is blocked: true, your adapter should abort the tool call";

pub(super) async fn check(url: &Url, adapter: &str, report: &mut Report<'_>) -> anyhow::Result<()> {
    let agent = Agent {
        receiver: Receiver::new(url)?,
        adapter,
    };
    let answer = agent
        .receiver
        .send(Sent::new(Method::GET, "/health", ""))
        .await?;
    let right = answer.body["status"] == "ok" && answer.body["version"].is_string();
    let check = Check::new("health", HEALTH, "health is `ok` with a version");
    let problem = answer.wrong(200).or_else(|| answer.unless(right));
    report.hold(&check, problem)?;

    let started = read(&agent.start().await?);
    let rule = "a start gives an id, 32 bytes of key in base64, and a time to come";
    let check = Check::new("session-start", START, rule);
    report.hold(&check, started.as_ref().err().cloned())?;
    let Ok((session, key)) = started else {
        return Ok(());
    };
    let right = agent.usage(&session, key);
    agent.receiver.check(&right, CASES, report).await?;
    agent.repeats(&right, report).await?;
    agent.sessions(right, report).await
}

/// Id and key of the answer to a start.
fn read(answer: &Answer) -> Result<(String, Vec<u8>), String> {
    if let Some(problem) = answer.wrong(200) {
        return Err(problem);
    }
    let text = |name: &str| answer.body[name].as_str().unwrap_or_default();
    let key = BASE64_STANDARD.decode(text("session_key"));
    let key = key.unwrap_or_default();
    let later = text("expires_at")
        .parse()
        .is_ok_and(|end: Timestamp| end > Timestamp::now());
    match !text("session_id").is_empty() && key.len() == 32 && later {
        true => Ok((text("session_id").to_owned(), key)),
        // The answer carries a key, which does not belong into a report.
        false => Err(format!(
            "{} bytes of key, `expires_at` {}",
            key.len(),
            answer.body["expires_at"]
        )),
    }
}

struct Agent<'a> {
    receiver: Receiver,
    adapter: &'a str,
}

impl Agent<'_> {
    async fn start(&self) -> anyhow::Result<Answer> {
        let body = json!({"adapter": self.adapter, "user_id": "forg-conformance"});
        let start = Sent::new(Method::POST, "/session/start", body.to_string());
        Ok(self.receiver.send(start).await?)
    }

    async fn emit(&self, right: &Right) -> anyhow::Result<Answer> {
        Ok(self.receiver.send(right.with(&Change::default())?).await?)
    }

    fn usage(&self, session: &str, key: Vec<u8>) -> Right {
        let value = json!({
            "adapter": self.adapter, "ts": "2025-05-28T10:00:00.000Z", "model": "claude-opus-4-5", "tokens_in": 100,
            "tokens_out": 50, "latency_ms": 500, "cost_usd": null, "error_code": null, "session_id": session,
            "project_id": null,
        });
        Right {
            path: "/emit",
            key,
            headers: HeaderMap::new(),
            value,
        }
    }

    async fn repeats(&self, right: &Right, report: &mut Report<'_>) -> anyhow::Result<()> {
        let once = self.emit(right).await?;
        let check = Check::new("answer", ANSWER, "`blocked` is a boolean");
        report.hold(&check, once.unless(once.body["blocked"].is_boolean()))?;
        let again = self.emit(right).await?;
        let seed = "ours: the same signed bytes are one signal";
        let check = Check::new("repeat", seed, "a repeat gets the same answer");
        report.hold(&check, again.unless(again.body == once.body))
    }

    /// Checks of two sessions beside each other, and of the end of one.
    async fn sessions(&self, first: Right, report: &mut Report<'_>) -> anyhow::Result<()> {
        let answer = self.start().await?;
        let second = read(&answer).map(|(session, key)| self.usage(&session, key));
        let differs = |second: &Right| second.key != first.key && second.value != first.value;
        let problem = match &second {
            Ok(second) if differs(second) => None,
            Ok(_) => Some("two starts gave one session".to_owned()),
            Err(problem) => Some(problem.clone()),
        };
        let check = Check::new(
            "session-second",
            LIFECYCLE,
            "each start gives a session of its own",
        );
        report.hold(&check, problem)?;
        let Ok(mut second) = second else {
            return Ok(());
        };
        let crossed = Right {
            key: second.key.clone(),
            ..first
        };
        let seed = "001: HMAC-SHA256 of the request body, signed with the session key";
        let check = Check::new(
            "session-crossed",
            seed,
            "a key signs for its own session alone",
        );
        report.hold(&check, self.emit(&crossed).await?.wrong(401))?;

        let usage = second.value.clone();
        second.value = json!({
            "adapter": self.adapter, "session_id": usage["session_id"], "hook": "SessionEnd", "ts": "2026-01-01T00:00:00Z",
        });
        let seed = "001: Sending a SessionEnd hook closes the session immediately";
        for (id, rule) in [
            ("session-end", "a SessionEnd is accepted"),
            ("session-end-twice", "a second SessionEnd changes nothing"),
        ] {
            let problem = self.emit(&second).await?.wrong(200);
            report.hold(&Check::new(id, seed, rule), problem)?;
        }
        second.value = usage;
        let check = Check::new(
            "session-after-end",
            LIFECYCLE,
            "a signal after the end is accepted",
        );
        report.hold(&check, self.emit(&second).await?.wrong(200))
    }
}
