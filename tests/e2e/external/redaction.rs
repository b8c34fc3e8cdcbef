//! Credentials of callers are planted in calls of every kind: a token of the bridge must reach no service, and a credential
//! that is passed on must be in no log line, file, span or answer.

use super::grpc::{Server, manifest_of};
use super::tokens::{AUDIENCE, Key, claims, serve};
use super::*;
use crate::harness::port::Reserved;
use crate::harness::process::{Home, Process};
use crate::redaction::{assert_clean, assert_folder_clean};

const TOKEN: &str = "planted-bridge-token-of-a-call-4e7d";
const FORWARDED: &str = "planted-authorization-of-a-call-90c2";
/// Records the environment, the arguments and the input of the program.
const RECORDING: &str =
    r#"env >> "$RECORD"; tr '\0' '\n' < /proc/$$/cmdline >> "$RECORD"; cat >> "$RECORD"; echo 1"#;

/// Source of the callers' identities, with the credentials of one caller.
struct Caller {
    auth: &'static str,
    settings: String,
    /// Tokens of the bridge; empty if it asks for none.
    tokens: &'static str,
    headers: Vec<(&'static str, String)>,
    /// Credentials that the service receives.
    forwarded: String,
    /// Value of `Authorization` that is refused.
    refused: Option<String>,
}

fn callers(issuer: &CallbackSink, key: &Key) -> Vec<Caller> {
    let jwt = key.token(&claims(issuer, &json!({})));
    let expired = key.token(&claims(issuer, &json!({"exp": 1})));
    let authorization = |value: &str| ("authorization", format!("Bearer {value}"));
    let forwarded = (
        "x-forge-forward-authorization",
        format!("Bearer {FORWARDED}"),
    );
    let user = ("x-forge-user-id", "u1".to_owned());
    let role = ("x-forge-role", "admin".to_owned());
    vec![
        Caller {
            auth: "token",
            settings: String::new(),
            tokens: TOKEN,
            headers: vec![authorization(TOKEN), forwarded],
            forwarded: FORWARDED.to_owned(),
            refused: None,
        },
        Caller {
            auth: "dev-headers",
            settings: String::new(),
            tokens: "",
            headers: vec![authorization(FORWARDED), user, role],
            forwarded: FORWARDED.to_owned(),
            refused: None,
        },
        Caller {
            auth: "jwt",
            settings: format!(
                "[external.jwt]\nissuer = {:?}\naudience = {AUDIENCE:?}\njwks_url = {:?}\nalgorithms = [\"EdDSA\"]\n",
                issuer.url(""),
                issuer.url("/keys"),
            ),
            tokens: TOKEN,
            headers: vec![authorization(&jwt)],
            forwarded: jwt,
            refused: Some(format!("Bearer {expired}")),
        },
    ]
}

/// Forms in which a credential could appear: itself, and the parts of a JWT that are secret.
fn words(credentials: &[&str]) -> Vec<Vec<u8>> {
    let parts = credentials.iter().flat_map(|text| {
        let rest = text.split('.').skip(1);
        rest.chain([*text])
    });
    parts.map(|word| word.as_bytes().to_vec()).collect()
}

/// Services over HTTP, one of which refuses and one of which is away, a program, and one over gRPC.
fn services(sink: &CallbackSink, away: &Reserved, server: &Server) -> Vec<Value> {
    let mut remote = manifest_of(server.port);
    remote["service"]["name"] = "remote".into();
    let service = |name: &str, url: String| {
        let mut service = probe(sink);
        service["service"]["name"] = name.into();
        service["service"]["baseUrl"] = url.into();
        service
    };
    let words = json!(["/bin/sh", "-c", RECORDING]);
    vec![
        probe(sink),
        service("refusing", sink.url("/refuse/")),
        service("away", format!("http://{}/", away.address())),
        manifest(
            &json!({"name": "tool", "transport": "stdio", "commandArgs": words}),
            &json!([{"name": "run", "kind": "command"}]),
        ),
        remote,
    ]
}

/// Makes calls of every kind; returns the answers.
async fn calls(bridge: &Process, caller: &Caller) -> String {
    let mut answers = String::new();
    let entries = ["probe", "refusing", "away", "tool"];
    let durable = |(key, service)| (service, Some(format!("key-{key}")));
    let plain = entries.map(|service| (service, None));
    for (service, key) in plain
        .into_iter()
        .chain(entries.into_iter().enumerate().map(durable))
    {
        for kind in ["commands/run", "queries/look"] {
            let path = format!("/external/{service}/{kind}");
            let mut request = bridge
                .api
                .request(Method::POST, &path)
                .json_body(&json!({}));
            for (name, value) in &caller.headers {
                request = request.header(*name, value);
            }
            if let Some(key) = &key {
                request = request.header("idempotency-key", key);
            }
            answers += &said(request).await;
        }
    }
    let refused = caller.refused.iter();
    for (name, value) in refused.map(|value| ("authorization", value)) {
        let request = bridge.api.request(Method::POST, COMMAND);
        let answer = said(request.header(name, value)).await;
        assert!(answer.contains("FORGE_AUTH_INVALID"), "{answer}");
        answers += &answer;
    }
    let dispatch = json!({
        "taskId": "t", "agentId": "a", "provider": "external", "model": "command:probe.run", "message": "{}",
        "callbackUrl": null,
    });
    // This route wants a token of the bridge, whatever the caller of a service has.
    let bearer = match caller.tokens {
        "" => FORWARDED,
        token => token,
    };
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let request = request.bearer_auth(bearer);
    let others = caller
        .headers
        .iter()
        .filter(|(name, _)| *name != "authorization");
    let request = others.fold(request, |request, (name, value)| {
        request.header(*name, value)
    });
    let accepted = said(request.json_body(&dispatch)).await;
    assert!(accepted.contains("dispatchId"), "{accepted}");
    answers + &accepted
}

/// Calls the entry that answers with the metadata of its call.
async fn metadata(bridge: &Process, caller: &Caller) -> String {
    let path = "/external/remote/commands/Metadata";
    let request = bridge.api.request(Method::POST, path);
    let headers = caller.headers.iter();
    said(headers.fold(request, |request, (name, value)| {
        request.header(*name, value)
    }))
    .await
}

async fn said(request: reqwest::RequestBuilder) -> String {
    let answer = request.send().await.unwrap();
    let head = format!("{} {:?}\n", answer.status(), answer.headers());
    head + &answer.text().await.unwrap() + "\n"
}

#[tokio::test]
async fn credentials_of_callers_are_neither_logged_nor_kept() {
    let (issuer, key) = (CallbackSink::start().await, Key::new("k1"));
    serve(&issuer, &[&key]);
    let server = Server::grpcio(&["0"]);
    for caller in callers(&issuer, &key) {
        let (sink, collector) = (CallbackSink::start().await, CallbackSink::start().await);
        sink.answer_with(|received| match received.path.contains("refuse") {
            true => Answer::status(401).body(r#"{"ok":false,"error":{"code":"C","message":"m"}}"#),
            false => Answer::status(200).body(r#"{"result":1}"#),
        });
        let home = Home::new(&[
            ("BRIDGE_LOG_LEVEL", "trace"),
            ("BRIDGE_TOKENS", caller.tokens),
            ("BRIDGE_OTLP_EVERY", "10ms"),
        ]);
        let away = Reserved::new();
        let (root, record) = (home.dir.path(), home.dir.path().join("record"));
        register(root, &services(&sink, &away, &server));
        let file = format!(
            "otlp.endpoint = {:?}\n[external]\nroot = {root:?}\nauth = {:?}\n{}\
             [external.services.tool]\nprogram = true\nenv = {{ RECORD = {record:?} }}\n\
             [external.services.away]\ntimeout = \"200ms\"\n",
            collector.url(""),
            caller.auth,
            caller.settings,
        );
        std::fs::write(root.join("forge-bridge.toml"), file).unwrap();
        let bridge = home.start();
        let mut answers = calls(&bridge, &caller).await;
        let told = metadata(&bridge, &caller).await;
        for path in [
            "/api/v2/external",
            "/api/v2/dispatches",
            "/api/v2/events?after=0&limit=1000",
        ] {
            let request = bridge.api.request(Method::GET, path).bearer_auth(TOKEN);
            answers += &said(request.header("accept", "application/json")).await;
        }
        collector.until(1).await;

        let (token, all) = (words(&[TOKEN]), words(&[TOKEN, &caller.forwarded]));
        let auth = caller.auth;
        assert_clean(&format!("answers ({auth})"), answers.as_bytes(), &all);
        assert!(told.contains(&caller.forwarded), "{auth}: {told}");
        assert_clean(&format!("metadata ({auth})"), told.as_bytes(), &token);
        let received = sink.received();
        let forwarded = received.iter().filter(|call| {
            let value = call.headers.get("authorization");
            value.is_some_and(|value| value.contains(&caller.forwarded))
        });
        assert!(forwarded.count() >= 4, "{auth}: {received:?}");
        for call in received {
            let sent = format!("{:?} {}", call, String::from_utf8_lossy(&call.body));
            assert_clean(&format!("a call ({auth})"), sent.as_bytes(), &token);
        }
        let record = std::fs::read(record).unwrap();
        assert!(String::from_utf8_lossy(&record).contains("RECORD="));
        assert_clean(&format!("the program ({auth})"), &record, &all);
        for request in collector.received() {
            assert_clean(&format!("spans ({auth})"), &request.body, &all);
        }
        let data = root.join("data");
        assert_folder_clean(&data, &all);
        bridge.kill();
        assert_folder_clean(&data, &all);
        let log = home.log();
        assert!(log.contains("TRACE"), "the log is as verbose as it can be");
        for line in log.lines() {
            assert_clean(
                &format!("a line of the log ({auth})"),
                line.as_bytes(),
                &all,
            );
        }
    }
}
