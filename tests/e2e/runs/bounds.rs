//! Bounds of runs: their number, and the bytes of their repositories.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forge_base::digest::{hex, sha256};

use super::super::harness::api::JsonBody as _;
use super::disk::{large, used};
use super::remote::{Before, serve, serve_through, settings};
use super::*;

const MIB: u64 = 1 << 20;

/// Posts with a token, and an idempotency key if there is one.
async fn post(
    bridge: &Bridge,
    token: &str,
    path: &str,
    key: Option<&str>,
    body: &Value,
) -> (StatusCode, Value) {
    let mut request = bridge.api.request(Method::POST, path).bearer_auth(token);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    api::answer(request.json_body(body)).await
}

/// Sends it until it is not refused with 429: an ended run gives its place back a moment after its end is seen.
async fn admitted(bridge: &Bridge, token: &str, path: &str, body: &Value) -> Value {
    until("a place", async || {
        let (status, answer) = post(bridge, token, path, None, body).await;
        (status != StatusCode::TOO_MANY_REQUESTS).then(|| {
            assert!(status.is_success(), "{status} {answer}");
            answer
        })
    })
    .await
}

#[tokio::test]
async fn live_runs_are_bounded_in_all_and_for_each_caller() {
    let origin = Origin::new();
    // The two tokens of a rotation are one caller.
    let tokens = [("ana", "ana"), ("ana2", "ana"), ("ben", "ben")].map(|(token, name)| {
        let hash = hex(&sha256(token));
        format!("[[auth.token]]\nhash = \"{hash}\"\nname = \"{name}\"\n")
    });
    let bounds = "max = 3\nmax_per_token = 2\n";
    let settings = format!("{}{bounds}{}", origin.settings(), tokens.concat());
    let bridge = Bridge::configured(&settings, &[]).await;
    let body = json!({"repoUrl": origin.url()});
    let create = async |bridge: &Bridge, token: &str, key: Option<&str>| {
        post(bridge, token, "/api/v1/runs", key, &body).await
    };
    let refused = async |bridge: &Bridge, token: &str, path: &str, setting: &str, max: u64| {
        let (status, answer) = post(bridge, token, path, None, &body).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
        let details = json!({"setting": setting, "live": max, "max": max});
        assert_eq!(answer["details"], details, "{answer}");
        let said = answer["error"].as_str().unwrap();
        assert!(said.contains(&format!("`{setting}` is {max}")), "{said}");
    };
    let mut runs = Vec::new();
    for (token, key) in [("ana", "first"), ("ana2", "second"), ("ben", "first")] {
        let (status, answer) = create(&bridge, token, Some(key)).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        runs.push(answer["runId"].as_str().unwrap().to_owned());
    }
    // Both bounds are reached; that of all is told, since it concerns all.
    refused(&bridge, "ana", "/api/v1/runs", "runs.max", 3).await;
    refused(&bridge, "ben", "/api/v1/runs", "runs.max", 3).await;
    // A run that is there is found, and a key with another body is a conflict, as without bounds.
    let (status, answer) = create(&bridge, "ana", Some("first")).await;
    assert_eq!(
        (status, &answer["runId"]),
        (StatusCode::CREATED, &json!(runs[0]))
    );
    let other = json!({"repoUrl": origin.url(), "planReview": true});
    let (status, answer) = post(&bridge, "ana", "/api/v1/runs", Some("first"), &other).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");

    // A run that ends gives its place back to all, and not to a caller that has as many as it may.
    let of = |run: usize, command: &str| format!("/api/v1/runs/{}/{command}", runs[run]);
    admitted(&bridge, "ben", &of(2, "cancel"), &json!(null)).await;
    until("the place of the run", async || {
        let (_, answer) = create(&bridge, "ana", None).await;
        (answer["details"]["setting"] == "runs.max_per_token").then_some(())
    })
    .await;
    refused(&bridge, "ana2", "/api/v1/runs", "runs.max_per_token", 2).await;
    // Live runs have their owners after a restart, too.
    let bridge = bridge.restarted(&settings, &[]).await;
    refused(&bridge, "ana", "/api/v1/runs", "runs.max_per_token", 2).await;
    let (status, answer) = create(&bridge, "ben", None).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    // A retry takes a place like a new run.
    refused(&bridge, "ben", &of(2, "retry"), "runs.max", 3).await;
    admitted(&bridge, "ana", &of(0, "cancel"), &json!(null)).await;
    admitted(&bridge, "ben", &of(2, "retry"), &json!(null)).await;
    refused(&bridge, "ana", "/api/v1/runs", "runs.max", 3).await;
    bridge.stop().await;
}

/// Sends at most a number of bytes, and waits then until the other side closes the connection.
struct Stuck {
    sent: Arc<AtomicU64>,
    most: u64,
}

impl Stuck {
    fn send(&self, mut stream: &TcpStream, output: &[u8]) {
        let most = usize::try_from(self.most).unwrap();
        let part = &output[..output.len().min(most)];
        let _ = stream.write_all(part);
        self.sent.fetch_max(part.len() as u64, Ordering::SeqCst);
        if part.len() < output.len() {
            // Ends with the connection; nothing is sent on it any more.
            let _ = std::io::Read::read(&mut stream, &mut [0]);
        }
    }
}

/// The remote has sent a part of its data when the bound is reached, and never sends the rest: only a bound that holds
/// during the download ends the run.
#[tokio::test]
async fn a_repository_above_its_bound_is_not_downloaded() {
    let origin = large();
    let stuck = Stuck {
        sent: Arc::default(),
        most: 2 * MIB,
    };
    let sent = Arc::clone(&stuck.sent);
    let send = Arc::new(move |stream: &TcpStream, output: &[u8]| stuck.send(stream, output));
    let address = serve_through(origin.root.path(), send);
    let own = format!(
        "{}repository_bytes = {MIB}\n",
        settings(std::slice::from_ref(&address))
    );
    let bridge = Bridge::configured(&own, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": format!("{address}/origin.git")})).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["error"].as_str().unwrap();
    assert!(
        error.contains("`runs.repository_bytes` (1048576)"),
        "{error}"
    );
    assert_eq!(sent.load(Ordering::SeqCst), 2 * MIB);
    // What has come is removed.
    let runs = bridge.home.path().join("data/runs");
    assert!(used(&runs) < MIB / 4, "{}", used(&runs));
    // The same bound for a local repository, however fast it is; a larger one lets the run continue.
    let local = format!("{}repository_bytes = {MIB}\n", origin.settings());
    let bridge = bridge.restarted(&local, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let record = ended(api, &run).await;
    let error = record["error"].as_str().unwrap();
    assert!(error.contains("`runs.repository_bytes`"), "{error}");
    assert!(used(&runs) < MIB / 4, "{}", used(&runs));
    let enough = format!("{}repository_bytes = {}\n", origin.settings(), 16 * MIB);
    let bridge = bridge.restarted(&enough, &[]).await;
    let api = &bridge.api;
    assert_eq!(command(api, &run, "retry").await.0, StatusCode::OK);
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    bridge.stop().await;
}

/// A branch that the run merges with grows at the remote: what is fetched then is bounded like the first download.
#[tokio::test]
async fn a_branch_that_grew_above_the_bound_is_not_fetched() {
    let origin = Arc::new(Origin::new());
    let before: Arc<Before> = Arc::new(|_, _| true);
    let address = serve(origin.root.path(), before);
    let own = format!(
        "{}repository_bytes = {MIB}\n",
        settings(std::slice::from_ref(&address))
    );
    let bridge = Bridge::configured(&own, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": format!("{address}/origin.git")})).await;
    // The branch that the results are merged into comes to be while agents work.
    let orders = "await .git/go\nwrite a.txt a";
    say(api, &run, &plan(&[task("a", &[], orders)])).await;
    running(api, &run, 1).await;
    disk::grow(&origin, &format!("forge/integration/{run}"));
    release(&bridge, &run, "a", 1);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["error"].as_str().unwrap();
    assert!(
        error.contains("`runs.repository_bytes` (1048576)"),
        "{error}"
    );
    let events = events(api, &run).await;
    // It is asked once: it would send the same again.
    let failed = of(&events, "task.failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0]["counted"], false, "{failed:?}");
    bridge.stop().await;
}
