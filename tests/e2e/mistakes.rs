//! Typical mistakes: what the bridge answers says what was wrong, where, and what to do.

use std::fs;
use std::process::{Command, Output};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer, with};
use super::harness::process::Home;

const TOKEN: &str = "token-of-a-mistake-0001";

/// Variable and file of a bridge that does not start, and what it says.
const STARTS: [(&str, &str, &str, &[&str]); 14] = [
    (
        "BRIDGE_LISTEN",
        "8080",
        "",
        &[
            "listen (environment BRIDGE_LISTEN)",
            "socket address",
            "for example \"127.0.0.1:7420\"",
        ],
    ),
    (
        "BRIDGE_ADAPTERS",
        "ecko",
        "",
        &["no adapter can be loaded", "ecko", "did you mean echo?"],
    ),
    (
        "BRIDGE_LOG_LEVEL",
        "loud",
        "",
        &["BRIDGE_LOG_LEVEL", "found \"loud\"", "for example \"info\""],
    ),
    (
        "BRIDGE_DISPATCH_OFFLINE_GRACE",
        "5",
        "",
        &["BRIDGE_DISPATCH_OFFLINE_GRACE", "for example \"1m\""],
    ),
    (
        "BRIDGE_STORE",
        "mysql://h/d",
        "",
        &[
            "store.url (BRIDGE_STORE)",
            "names no store",
            "write sqlite: for a file",
            "or postgres://",
        ],
    ),
    (
        "BRIDGE_STORE",
        "postgres://u@127.0.0.1:1/d",
        "",
        &[
            "store.url (BRIDGE_STORE)",
            "cannot connect to the database d of 127.0.0.1",
        ],
    ),
    (
        "BRIDGE_TLS_CERT",
        "nowhere.pem",
        "tls.key = \"nowhere.key\"",
        &["cannot read tls.cert nowhere.pem", "No such file"],
    ),
    (
        "BRIDGE_DATA_DIR",
        "forge-bridge.toml",
        "",
        &[
            "forge-bridge.toml",
            "as the folder of a bridge",
            "set data_dir (BRIDGE_DATA_DIR)",
        ],
    ),
    (
        "BRIDGE_LOG_LEVEL",
        "info",
        "lisen = \"127.0.0.1:1\"",
        &[
            "lisen (file forge-bridge.toml)",
            "no such key",
            "did you mean listen?",
        ],
    ),
    (
        "BRIDGE_LOG_LEVEL",
        "info",
        "otlp = \"http://127.0.0.1:4318\"",
        &["otlp (file forge-bridge.toml)", "wanted", "a table"],
    ),
    (
        "BRIDGE_LOG_LEVEL",
        "info",
        "listen = \"127",
        &["file forge-bridge.toml", "line 1, column"],
    ),
    (
        "BRIDGE_LOG_LEVEL",
        "info",
        "[http]\norigins = \"https://console.example\"",
        &[
            "http.origins (file forge-bridge.toml)",
            "wanted a sequence",
            "write a list in brackets",
        ],
    ),
    (
        "BRIDGE_LOG_LEVEL",
        "info",
        "[retention]\nrecords = \"a week\"",
        &[
            "retention.records (file forge-bridge.toml)",
            "a week",
            "for example",
        ],
    ),
    (
        "BRIDGE_EXTERNAL_AUTH",
        "basic",
        "",
        &["external.auth (environment BRIDGE_EXTERNAL_AUTH)", "token"],
    ),
];

/// Commands, and what they say. No bridge is where they ask.
const COMMANDS: [(&[&str], &[&str]); 14] = [
    (
        &["dispach"],
        &["unrecognized subcommand 'dispach'", "similar", "dispatch"],
    ),
    (
        &["dispatch"],
        &["<MESSAGE>", "Usage: forge-bridge dispatch"],
    ),
    (
        &["dispatches", "show"],
        &["<ID>", "Usage: forge-bridge dispatches show"],
    ),
    (
        &["dispatches", "list", "--status", "done"],
        &["invalid value 'done'", "possible values", "queued"],
    ),
    (
        &["dispatches", "list", "--sinse", "1h"],
        &["unexpected argument '--sinse'", "--since"],
    ),
    (
        &["deliveries", "retry"],
        &["<ID>", "Usage: forge-bridge deliveries retry"],
    ),
    (
        &["health"],
        &[
            "cannot reach the bridge at http://127.0.0.1:1/",
            "is it running?",
            "forge-bridge dev",
        ],
    ),
    (
        &["health", "--url", "ftp://x"],
        &[
            "\"ftp://x\" is not an address",
            "such as http://127.0.0.1:7420",
        ],
    ),
    (
        &["adapters", "new", "Bad_Name"],
        &[
            "\"Bad_Name\" is not a valid adapter name",
            "expected 1 to 64 lowercase letters",
        ],
    ),
    (
        &["adapters", "new", "acme", "--api-path", "nowhere"],
        &["cannot find nowhere"],
    ),
    (
        &["adapters", "test", "adapter.so"],
        &["adapter.so", "is not named libforge_adapter_<name>"],
    ),
    (
        &["store", "copy"],
        &["--to <URL>", "Usage: forge-bridge store copy"],
    ),
    (&["drill", "--nodes", "3"], &["--store <URL>"]),
    (
        &["completions", "fishy"],
        &["invalid value 'fishy'", "possible values", "fish"],
    ),
];

/// Changes of a dispatch, the status of the answer, and what it says.
fn dispatches() -> Vec<(Value, u16, &'static [&'static str])> {
    vec![
        (json!({"taskId": null}), 400, &["taskId is required"]),
        (
            json!({"message": 5}),
            400,
            &["message must be a string, not a number"],
        ),
        (
            json!({"callbackUrl": "ftp://x"}),
            400,
            &["callbackUrl must begin with http:// or https://"],
        ),
        (
            json!({"callbackUrl": "localhost"}),
            400,
            &["callbackUrl", "is not a URL such as https://"],
        ),
        (
            json!({"callbackUrl": "http://10.0.0.1/cb"}),
            400,
            &[
                "callbackUrl",
                "10.0.0.1 is a private address",
                "callback.allow",
            ],
        ),
        (
            json!({"provider": "ecko"}),
            422,
            &["no adapter \"ecko\" is loaded", "loaded adapters: echo"],
        ),
        (
            json!({"timeout": "5 minutes"}),
            400,
            &["timeout must be a number"],
        ),
        (
            json!({"recovery": "again"}),
            400,
            &["recovery must be one of fail, retry, resume"],
        ),
        (
            json!({"notBefore": "tomorrow"}),
            400,
            &["notBefore must be an RFC 3339 time, such as"],
        ),
        (
            json!({"priority": 1000}),
            400,
            &["priority must be a whole number from -10 to 10"],
        ),
        (
            json!({"outputSchema": {"type": "objekt"}}),
            400,
            &[
                "outputSchema is not a usable JSON Schema",
                "/type",
                "objekt",
            ],
        ),
        (
            json!({"sessionid": "s"}),
            202,
            &["\"sessionid\" is ignored", "did you mean sessionId?"],
        ),
        (
            json!({"message": "another"}),
            409,
            &[
                "already used for a dispatch with another body",
                "send a new taskId or Idempotency-Key",
            ],
        ),
    ]
}

/// Other requests, the status of the answer, and what it says.
const REQUESTS: [(&str, &str, u16, &[&str]); 11] = [
    (
        "GET",
        "/api/v2/dispatches?limit=0",
        400,
        &["limit must be a whole number from 1 to 200"],
    ),
    (
        "GET",
        "/api/v2/dispatches?status=done",
        400,
        &["status must be one of accepted, queued"],
    ),
    (
        "GET",
        "/api/v2/dispatches?since=yesterday",
        400,
        &["since must be a time such as", "or an age such as 30m"],
    ),
    (
        "GET",
        "/api/v2/dispatches?statuss=ok",
        400,
        &[
            "statuss is not a parameter of this route",
            "did you mean status?",
        ],
    ),
    (
        "GET",
        "/api/v2/dispatches?cursor=zzz",
        400,
        &["cursor must be the nextCursor of an earlier page"],
    ),
    (
        "GET",
        "/api/v2/dispatch/dsp_unknown",
        404,
        &[
            "there is no dispatch \"dsp_unknown\"",
            "or its retention is over",
        ],
    ),
    (
        "DELETE",
        "/api/v2/dispatches",
        405,
        &["/api/v2/dispatches does not support DELETE"],
    ),
    (
        "POST",
        "/api/v2/deliveries/dlv_x/retry",
        404,
        &["there is no delivery \"dlv_x\""],
    ),
    (
        "POST",
        "/api/v2/adapters/ecko/reload",
        404,
        &["there is no adapter \"ecko\"", "BRIDGE_ADAPTERS lists"],
    ),
    (
        "GET",
        "/external/nothing/queries/x",
        405,
        &["does not support GET", "POST {\"args\": {}}"],
    ),
    ("POST", "/api/v1/runs", 400, &["repoUrl is required"]),
];

fn assert_said(mistake: &str, said: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(
            said.contains(part),
            "{mistake}: {part:?} is not in:\n{said}"
        );
    }
}

#[test]
fn a_bridge_that_cannot_start_says_why() {
    for (variable, value, file, wanted) in STARTS {
        let mut home = Home::new(&[]);
        home.set(variable, value);
        fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
        let Err(ended) = home.try_start() else {
            panic!("it starts with {variable}={value} and {file:?}");
        };
        let last = ended.log.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: "), "one line tells: {}", ended.log);
        assert_said(&format!("{variable}={value}, {file:?}"), last, wanted);
    }
}

#[test]
fn a_command_that_cannot_be_carried_out_says_why() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, wanted) in COMMANDS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forge-bridge"));
        command.args(arguments).current_dir(home.path()).env_clear();
        command.env("HOME", home.path());
        let Output { status, stderr, .. } = command
            .env("BRIDGE_URL", "http://127.0.0.1:1")
            .output()
            .unwrap();
        assert!(!status.success(), "{arguments:?}");
        assert_said(
            &format!("{arguments:?}"),
            &String::from_utf8(stderr).unwrap(),
            wanted,
        );
    }
}

#[tokio::test]
async fn a_request_that_is_wrong_is_answered_with_what_to_change() {
    // Runs need git.
    let path = std::env::var("PATH").unwrap();
    let home = Home::new(&[("BRIDGE_TOKENS", TOKEN), ("PATH", &path)]);
    let bridge = home.start();
    let ask = |method: &str, path: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        bridge.api.request(method, path).bearer_auth(TOKEN)
    };
    let plain = json!({"taskId": "t", "agentId": "a", "message": "m", "callbackUrl": null});
    let (status, _) = answer(ask("POST", "/api/v2/dispatch").json_body(&plain)).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let mut cases = Vec::new();
    for (number, (change, status, wanted)) in dispatches().into_iter().enumerate() {
        // The key of the first is used again by one alone.
        let task = match status {
            409 => "t".to_owned(),
            _ => format!("t{number}"),
        };
        let body = with(with(plain.clone(), &json!({ "taskId": task })), &change);
        cases.push((
            change.to_string(),
            ask("POST", "/api/v2/dispatch").json_body(&body),
            status,
            wanted,
        ));
    }
    for (method, path, status, wanted) in REQUESTS {
        let request = match method {
            "POST" => ask(method, path).json_body(&json!({})),
            _ => ask(method, path),
        };
        cases.push((format!("{method} {path}"), request, status, wanted));
    }
    let without = bridge.api.request(Method::GET, "/api/v2/dispatches");
    let wrong = bridge
        .api
        .request(Method::GET, "/api/v2/dispatches")
        .bearer_auth("wrong");
    let broken = ask("POST", "/api/v2/dispatch").header("content-type", "application/json");
    let broken = broken.body("{\"taskId\":");
    cases.push((
        "no token".to_owned(),
        without,
        401,
        &["this route needs a token", "Authorization: Bearer <token>"],
    ));
    cases.push((
        "a wrong token".to_owned(),
        wrong,
        401,
        &["this token is not known"],
    ));
    cases.push((
        "half a body".to_owned(),
        broken,
        400,
        &["the body is not JSON", "line 1 column 10"],
    ));
    for (mistake, request, wanted_status, wanted) in cases {
        let (status, answer) = answer(request).await;
        assert_eq!(status.as_u16(), wanted_status, "{mistake}: {answer}");
        let said = answer.to_string().replace("\\\"", "\"");
        assert_said(&mistake, &said, wanted);
    }
}

#[test]
fn the_list_is_long_enough() {
    assert!(STARTS.len() + COMMANDS.len() + dispatches().len() + REQUESTS.len() >= 45);
}
