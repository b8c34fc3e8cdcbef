//! A caller whose token has the scope `dispatch` alone: all other routes, what belongs to other callers, requests with two
//! meanings, and dispatches that lead the bridge or an adapter elsewhere.

mod bodies;
mod framing;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::access::{DISPATCH, PUBLIC, ROUTES};
use super::*;

/// Limit of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Refusals.
const NO: &[u16] = &[400, 401, 403, 404, 405, 409, 413, 415, 422, 431, 501, 505];
const FORBIDDEN: &[u16] = &[403];

/// A request and the statuses that are right for it. An answer is not needed where the connection is closed.
struct Attempt {
    name: String,
    bytes: Vec<u8>,
    right: &'static [u16],
}

/// A request with the token of the attacker.
fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let mut all = vec![("accept", "application/json")];
    if !headers.iter().any(|(name, _)| *name == "authorization") {
        all.push(("authorization", "Bearer token-of-the-attacker"));
    }
    if !body.is_empty() {
        all.push(("content-type", "application/json"));
    }
    all.extend(headers);
    for (name, value) in all {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Sends a request and reads to the end of the connection.
async fn send(campaign: &Campaign, bytes: &[u8]) -> Vec<u8> {
    let address: SocketAddr = campaign
        .bridge
        .api
        .url
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A bridge that has refused the head reads no body.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        // A reset ends the connection as well.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    timeout(ANSWER_TIMEOUT, exchange)
        .await
        .expect("an answer, or the end of the connection")
}

fn status(answer: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(answer.get(9..12)?).ok()?;
    text.parse().ok()
}

/// Every route with the ids of another caller.
fn routes(campaign: &Campaign) -> Vec<Attempt> {
    let id = campaign.running.clone();
    let filled = |path: &str| {
        path.replace("{id}", &id)
            .replace("{provider}", "echo")
            .replace("{runId}", &id.replace("dsp_", "run_"))
            .replace("{origin}", "http%3A%2F%2F127.0.0.1")
            .replace(['{', '}'], "")
    };
    let guarded = ROUTES
        .iter()
        .filter(|(_, _, scope)| ![DISPATCH, PUBLIC].contains(scope));
    let guarded = guarded.map(|(method, path, _)| {
        let path = filled(path);
        let body = if *method == "GET" { "" } else { "{}" };
        Attempt {
            name: format!("{method} {path}"),
            bytes: request(method, &path, &[], body),
            right: FORBIDDEN,
        }
    });
    guarded.collect()
}

/// Ids and names that others use, on the routes that the token may call.
fn of_others(campaign: &Campaign) -> Vec<Attempt> {
    let delivery = campaign.ended.replace("dsp_", "dlv_");
    // The next id of the same millisecond.
    let mut near = campaign.running.clone();
    let last = near.pop().unwrap();
    near.push(if last == '0' { '1' } else { '0' });
    let near_delivery = format!("{}0", &delivery[..delivery.len() - 1]);
    let near_run = near.replace("dsp_", "run_");
    let message = json!({"runId": near_run, "message": "go"}).to_string();
    let posts = [
        (format!("/api/v2/dispatch/{OTHERS_TASK}/cancel"), "{}"),
        (
            "/api/v2/dispatch/running-task-of-another/cancel".to_owned(),
            "{}",
        ),
        (format!("/api/v2/dispatch/{near}/cancel"), "{}"),
        (
            format!(
                "/api/v2/dispatch/{}/cancel",
                campaign.running.to_uppercase()
            ),
            "{}",
        ),
        (
            format!(
                "/api/v2/dispatch/{}/cancel",
                campaign.running.replace("dsp_", "run_")
            ),
            "{}",
        ),
        (format!("/api/v2/deliveries/{OTHERS_TASK}/retry"), "{}"),
        (format!("/api/v2/deliveries/{near_delivery}x/retry"), "{}"),
        (format!("/api/v1/runs/{near_run}/pause"), "{}"),
        (format!("/api/v1/runs/{near_run}/cancel"), "{}"),
        (format!("/api/v1/runs/{near_run}/plan/approve"), "{}"),
        (format!("/api/v1/runs/{near_run}/retry"), "{}"),
        (format!("/api/v1/runs/{near_run}/tasks/a/retry"), "{}"),
        (
            format!("/api/v1/runs/{near_run}/change-requests/a/approve"),
            "{}",
        ),
        ("/api/v1/captain/message".to_owned(), message.as_str()),
        ("/external/none/commands/run".to_owned(), "{}"),
        ("/external/../api/v2/commands/reload".to_owned(), "{}"),
    ];
    let posts = posts.into_iter().map(|(path, body)| Attempt {
        name: format!("POST {path}"),
        bytes: request("POST", &path, &[], body),
        right: NO,
    });
    posts.collect()
}

/// Names and ids of events that are the bridge's own.
fn forged() -> Vec<Attempt> {
    let event = json!({"type": "run.completed", "data": {"runId": "run_1"}}).to_string();
    let paths = [
        "/api/v2/events",
        "/api/v1/runs/x/events",
        "/engine/v1/signals",
        "/session/start",
        "/emit",
    ];
    let forged = paths.iter().map(|path| Attempt {
        name: format!("POST {path}"),
        bytes: request("POST", path, &[], &event),
        right: NO,
    });
    forged.collect()
}

/// Dispatches that are accepted, and must have no effect on others: the answer and the result belong to the attacker.
async fn accepted(campaign: &mut Campaign, receiver: &CallbackSink) {
    let ended = campaign.ended.clone();
    let bodies = [
        (None, json!({"taskId": OTHERS_TASK})),
        (
            Some(OTHERS_KEY),
            json!({"taskId": "with-the-key-of-another"}),
        ),
        (None, json!({"taskId": "running-task-of-another"})),
        (None, json!({"taskId": "retry", "retryOf": ended})),
        (
            None,
            json!({"taskId": "session", "model": "session", "sessionId": "session-of-another"}),
        ),
        (None, json!({"taskId": "user", "userId": "user-of-another"})),
        (
            None,
            json!({"taskId": "template", "message": "{{config}} ${BRIDGE_TOKENS} $(cat /proc/self/environ)"}),
        ),
        (
            None,
            json!({"taskId": "metadata", "metadata": {"dispatchId": ended, "__proto__": {"scope": "admin"}}}),
        ),
        (
            None,
            json!({"taskId": "trace", "runId": "run_1", "stepId": "../..", "gatewayId": "\" or 1=1"}),
        ),
        (
            None,
            json!({"taskId": "schema", "model": "structured", "outputSchema": {"$ref": campaign.inside.url("/schema")}}),
        ),
        (
            None,
            json!({"taskId": "schema-file", "model": "structured", "outputSchema": {"$ref": "file:///etc/passwd"}}),
        ),
    ];
    for (number, (key, body)) in bodies.into_iter().enumerate() {
        let body = with(
            with(
                owed("attack", "ok", &receiver.url("/callback")),
                &json!({"message": "mine"}),
            ),
            &body,
        );
        let headers: Vec<_> = key
            .map(|key| ("idempotency-key", key))
            .into_iter()
            .collect();
        let bytes = request("POST", "/api/v2/dispatch", &headers, &body.to_string());
        let answer = send(campaign, &bytes).await;
        campaign.tried(&answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let others = [&campaign.ended, &campaign.running];
        if status(&answer) == Some(202) {
            assert!(
                !others.iter().any(|id| text.contains(id.as_str())),
                "{body}: {text}"
            );
            assert!(text.contains("\"duplicate\":false"), "{body}: {text}");
        } else {
            assert!(
                status(&answer).is_some_and(|status| NO.contains(&status)),
                "{number} {body}: {text}"
            );
        }
    }
}

async fn campaign(setting: Setting) {
    let receiver = CallbackSink::start().await;
    let needs = Needs {
        allow: vec![receiver.address().to_string()],
        ..Needs::default()
    };
    let Some(mut campaign) =
        Campaign::start("a caller with the scope dispatch", setting, needs).await
    else {
        return;
    };
    let attempts = [
        routes(&campaign),
        of_others(&campaign),
        framing::spellings(),
        framing::two_meanings(),
        bodies::refused(&campaign),
        forged(),
    ];
    let mut wrong = Vec::new();
    for attempt in attempts.into_iter().flatten() {
        let answer = send(&campaign, &attempt.bytes).await;
        campaign.tried(&answer);
        let answers = answer.windows(5).filter(|bytes| bytes == b"HTTP/");
        let is_one = answers.count() < 2;
        let found = status(&answer);
        if !is_one || !found.is_none_or(|found| attempt.right.contains(&found)) {
            wrong.push(format!(
                "{}: {}",
                attempt.name,
                String::from_utf8_lossy(&answer[..answer.len().min(400)])
            ));
        }
    }
    assert!(wrong.is_empty(), "{setting}: {wrong:#?}");
    accepted(&mut campaign, &receiver).await;
    let accepted = campaign.get("/api/v2/dispatches?limit=100").await;
    for record in accepted["dispatches"].as_array().unwrap() {
        if record["dispatchId"] != campaign.running.as_str() {
            campaign
                .get(&format!(
                    "/api/v2/dispatch/{}?wait=60",
                    record["dispatchId"].as_str().unwrap()
                ))
                .await;
        }
    }
    let callbacks = receiver.received();
    for callback in callbacks {
        campaign
            .received
            .extend_from_slice(format!("{callback:?}").as_bytes());
        campaign.received.extend(callback.body);
    }
    campaign.prove().await;
}

#[tokio::test]
async fn a_caller_reads_and_changes_nothing_of_others() {
    for setting in [Setting::Shipped, Setting::Ordinary] {
        campaign(setting).await;
    }
}
