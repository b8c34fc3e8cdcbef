//! Forwarding of signals from the bridge of one machine to that of a team.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forge_base::digest::{MacKey, hex};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::answer;
use super::harness::port::Reserved;
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink, until};
use super::metrics::scrape;
use super::signals::{Tool, agent_of};
use super::signals_main::tokens;

/// Token with all scopes at the team's bridge.
const READER: &str = "reader";
/// Token of the laptop at the team's bridge.
const TOKEN: &str = "signals";

/// Bridge of a team, which can come back at its address.
pub(crate) struct Team {
    home: Home,
    process: Option<Process>,
    pub(crate) address: SocketAddr,
}

impl Team {
    /// Bridge whose rule notifies when the team has used this many tokens.
    pub(crate) fn start(notify_at: u64) -> Self {
        let reserved = Reserved::new();
        let address = reserved.address();
        let listen = address.to_string();
        let home = Home::new(&[("BRIDGE_LISTEN", &listen), ("BRIDGE_TOKENS", READER)]);
        let rules = json!({"version": 1, "rules": [{
            "id": "team", "scope": "org", "window": "all-time", "action": "notify", "message": "Slow down.",
            "condition": {"tokens_in": {"gte": notify_at}},
        }]});
        fs::write(home.dir.path().join("rules.json"), rules.to_string()).unwrap();
        let settings = format!("signals.rules = \"rules.json\"\n{}", tokens());
        fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
        drop(reserved);
        let mut team = Self {
            home,
            process: None,
            address,
        };
        team.come_back();
        team
    }

    fn come_back(&mut self) {
        self.process = Some(self.home.start());
    }

    fn go_away(&mut self) {
        self.process.take().unwrap().kill();
    }

    /// Data of the events of this type.
    async fn events(&self, kind: &str) -> Vec<Value> {
        let api = &self.process.as_ref().unwrap().api;
        let path = "/api/v2/events?after=0&limit=1000";
        let request = api.request(Method::GET, path).bearer_auth(READER);
        let (status, page) = answer(request.header("accept", "application/json")).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let events = page["events"].as_array().unwrap().iter();
        let of_kind = events.filter(|event| event["type"] == kind);
        of_kind.map(|event| event["data"].clone()).collect()
    }

    /// Tokens that the team's bridge has counted in a session, once it has ended.
    pub(crate) async fn counted(&self, session: &str) -> u64 {
        let ended = until("the end of the session", || async {
            let ended = self.events("signal.session.ended").await;
            ended
                .into_iter()
                .find(|end| end["clientSessionId"] == session)
        });
        ended.await["totals"]["totalTokensIn"].as_u64().unwrap()
    }
}

/// Home of a bridge that forwards to this address.
pub(crate) fn laptop(team: SocketAddr, token: &str) -> Home {
    Home::new(&[
        ("BRIDGE_SIGNALS_UPSTREAM_URL", &format!("http://{team}")),
        ("BRIDGE_SIGNALS_UPSTREAM_TOKEN", token),
    ])
}

pub(crate) fn record(number: usize, tokens: u64) -> Value {
    json!({"adapter": "a", "ts": 0, "model": "m", "tokens_in": tokens, "call_id": number.to_string()})
}

pub(crate) fn end() -> Value {
    json!({"adapter": "a", "ts": 0, "hook": "SessionEnd"})
}

/// Number of records with this outcome.
async fn outcomes(bridge: &Process, outcome: &str) -> u64 {
    let page = scrape(bridge).await;
    let name = format!("forge_bridge_signals_forwarded_total{{outcome=\"{outcome}\"}} ");
    let mut lines = page.lines();
    let value = lines.find_map(|line| line.strip_prefix(&name));
    value.unwrap_or("0").parse().unwrap()
}

async fn reaches(bridge: &Process, outcome: &str, count: u64) {
    until(outcome, || async {
        (outcomes(bridge, outcome).await >= count).then_some(())
    })
    .await;
}

async fn emit(tool: &Tool, record: &Value) -> Value {
    let begun = Instant::now();
    let (status, answer) = tool.emit(record).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "forwarding delays no answer"
    );
    answer
}

#[tokio::test]
async fn records_reach_the_team_and_its_intervention_comes_back() {
    let mut team = Team::start(20);
    let home = laptop(team.address, TOKEN);
    let bridge = home.start();
    let tool = Tool::start(&agent_of(&bridge.api).await, &json!({"adapter": "a"})).await;
    let free = json!({"blocked": false, "session_id": tool.session, "logged": true});
    assert_eq!(emit(&tool, &record(0, 10)).await, free);
    reaches(&bridge, "forwarded", 1).await;
    assert_eq!(emit(&tool, &record(1, 10)).await, free);
    reaches(&bridge, "forwarded", 2).await;
    let told = emit(&tool, &record(2, 0)).await;
    assert_eq!(
        (&told["blocked"], &told["message"]),
        (&json!(false), &json!("Slow down."))
    );
    let begun = team.events("signal.intervention").await;
    assert_eq!(told["intervention_id"], begun[0]["interventionId"]);
    assert_eq!(emit(&tool, &record(3, 0)).await, free, "it is told once");
    let started = team.events("signal.session.started").await;
    assert_eq!(started[0]["clientSessionId"], *tool.session);
    assert_eq!(
        (&started[0]["adapter"], &started[0]["userId"]),
        (&json!("a"), &json!("signals"))
    );

    reaches(&bridge, "forwarded", 4).await;
    team.go_away();
    for number in 4..8 {
        assert_eq!(emit(&tool, &record(number, 1)).await, free);
    }
    emit(&tool, &end()).await;
    reaches(&bridge, "failed", 1).await;
    team.come_back();
    assert_eq!(team.counted(&tool.session).await, 24);
    assert_eq!(team.events("signal.session.started").await.len(), 1);
    reaches(&bridge, "forwarded", 9).await;
    assert_eq!(home.log().matches("signals are not forwarded").count(), 1);
}

#[tokio::test]
async fn a_wrong_token_is_one_warning_and_a_pause() {
    let team = Team::start(1);
    let home = laptop(team.address, "token-5d7a");
    let bridge = home.start();
    let tool = Tool::start(&agent_of(&bridge.api).await, &json!({"adapter": "a"})).await;
    emit(&tool, &record(0, 1)).await;
    reaches(&bridge, "refused", 1).await;
    emit(&tool, &record(1, 1)).await;
    let warned = || async { home.log().contains("refuses the token").then_some(()) };
    until("the warning", warned).await;
    assert_eq!(outcomes(&bridge, "refused").await, 1);
    assert!(!home.log().contains("token-5d"), "the token is not logged");
    assert!(team.events("signal.session.started").await.is_empty());
}

/// Answer of an engine that has nothing to say.
fn noop() -> Answer {
    Answer::status(200).body(r#"{"action": "noop"}"#)
}

/// Home of a bridge that forwards to a fake engine, and a tool of it.
async fn forwarding(engine: &CallbackSink) -> (Home, Process, Tool) {
    let home = laptop(engine.address(), TOKEN);
    let bridge = home.start();
    let tool = Tool::start(&agent_of(&bridge.api).await, &json!({"adapter": "a"})).await;
    (home, bridge, tool)
}

/// Signals that an engine has received so far, each signed with the token.
fn arrived(engine: &CallbackSink) -> Vec<Value> {
    let signals = engine.received().into_iter().map(|request| {
        assert_eq!(request.path, "/engine/v1/signals");
        assert_eq!(request.headers["authorization"], format!("Bearer {TOKEN}"));
        let digits = hex(&MacKey::new(TOKEN.as_bytes()).mac([&*request.body]));
        let signature = &request.headers["x-forg-signature"];
        assert_eq!(*signature, format!("sha256={digits}"));
        serde_json::from_slice(&request.body).unwrap()
    });
    signals.collect()
}

/// Tokens of the usage that has arrived, in its order.
fn tokens_of(signals: &[Value]) -> Vec<u64> {
    let usage = signals.iter().filter(|one| one["type"] == "post-tool");
    usage
        .map(|one| one["metadata"]["tokens_in"].as_u64().unwrap())
        .collect()
}

#[tokio::test]
async fn a_record_that_is_refused_is_counted_and_not_sent_again() {
    let engine = CallbackSink::start().await;
    engine.answer_with(|request| {
        let signal: Value = serde_json::from_slice(&request.body).unwrap();
        match signal["metadata"]["tokens_in"].as_u64() {
            Some(tokens @ (400 | 403)) => Answer::status(u16::try_from(tokens).unwrap()),
            _ => noop(),
        }
    });
    let (_home, bridge, tool) = forwarding(&engine).await;
    let sent = [1, 400, 2, 403, 3];
    for (number, tokens) in sent.into_iter().enumerate() {
        emit(&tool, &record(number, tokens)).await;
    }
    reaches(&bridge, "forwarded", 3).await;
    assert_eq!(tokens_of(&arrived(&engine)), sent);
    assert_eq!(outcomes(&bridge, "refused").await, 2);
    assert_eq!(outcomes(&bridge, "failed").await, 0);
}

/// The answer of another host is none, and that host never sees the token.
#[tokio::test]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let (engine, other) = (CallbackSink::start().await, CallbackSink::start().await);
    other.answer(noop());
    engine.answer(Answer::redirect(&other.url("/engine/v1/signals")));
    let (_home, bridge, tool) = forwarding(&engine).await;
    emit(&tool, &record(0, 1)).await;
    until("an answer to the redirect", || async {
        let is_followed = !other.received().is_empty();
        (is_followed || outcomes(&bridge, "failed").await > 0).then_some(())
    })
    .await;
    engine.answer(noop());
    reaches(&bridge, "forwarded", 1).await;
    assert!(other.received().is_empty(), "{:?}", other.received());
}

/// A request has three seconds, there is one at a time, and no tool waits for it.
#[tokio::test]
async fn an_engine_that_hangs_delays_no_tool() {
    let engine = CallbackSink::start().await;
    engine.answer(Answer::hang());
    let (_home, bridge, tool) = forwarding(&engine).await;
    let emitted = [1, 2, 3, 4];
    emit(&tool, &record(0, emitted[0])).await;
    engine.until(1).await;
    for (number, tokens) in emitted.into_iter().enumerate().skip(1) {
        emit(&tool, &record(number, tokens)).await;
    }
    let begun = arrived(&engine).len() as u64;
    assert!(begun <= 1 + outcomes(&bridge, "failed").await);
    reaches(&bridge, "failed", 1).await;
    engine.answer(noop());
    reaches(&bridge, "forwarded", emitted.len() as u64).await;
    assert_eq!(tokens_of(&arrived(&engine)), emitted);
}

/// Heartbeats are due every 30 seconds, and at the start.
#[tokio::test]
async fn heartbeats_of_live_sessions_are_sent() {
    let engine = CallbackSink::start().await;
    engine.answer(noop());
    let (home, bridge, tool) = forwarding(&engine).await;
    let other = Tool::start(&agent_of(&bridge.api).await, &json!({"adapter": "b"})).await;
    emit(
        &other,
        &json!({"adapter": "b", "ts": 0, "hook": "SessionEnd"}),
    )
    .await;
    emit(&tool, &record(0, 1)).await;
    reaches(&bridge, "forwarded", 2).await;
    bridge.terminate();
    bridge.ended().await;
    let _bridge = home.start();
    let heartbeats = until("a heartbeat", || async {
        let mut signals = arrived(&engine);
        signals.retain(|one| one["type"] == "adapter-heartbeat");
        (!signals.is_empty()).then_some(signals)
    });
    for beat in heartbeats.await {
        let named = (&beat["adapter"], &beat["session_id"]);
        assert_eq!(named, (&json!("a"), &json!(tool.session)), "{beat}");
    }
}

/// Settings that would send signals in the clear are refused at the start.
#[test]
fn a_url_in_the_clear_is_refused() {
    let mut home = laptop("10.0.0.1:80".parse().unwrap(), TOKEN);
    let log = home.launch().err().unwrap();
    assert!(
        log.contains("signals.upstream.url must be an https URL"),
        "{log}"
    );
    home.set("BRIDGE_SIGNALS_UPSTREAM_URL", "https://10.0.0.1");
    home.set("BRIDGE_SIGNALS_UPSTREAM_TOKEN", "");
    let log = home.launch().err().unwrap();
    assert!(log.contains("signals.upstream.token is missing"), "{log}");
}
