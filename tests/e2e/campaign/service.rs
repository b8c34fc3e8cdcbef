//! External services: answers that lead elsewhere, reflect what they were sent or never end, and manifests that name other
//! addresses and programs, or are expensive to read.

use forge_external::manifest::read;
use forge_external::registry;

use super::server::{self, Manner, Server, said};
use super::*;
use crate::external::manifest;

/// A service with a command at a path.
fn http(name: &str, base_url: &str, path: &str) -> Value {
    manifest(
        &json!({"name": name, "transport": "http", "baseUrl": base_url}),
        &json!([{"name": "run", "kind": "command", "path": path}]),
    )
}

/// Answers that lead to the service inside, that carry headers to the caller, or that pretend to be the bridge's.
fn answers(inside: &str) -> Vec<(String, Manner)> {
    let result = "{\"result\":1}";
    let mut answers = Vec::new();
    for status in [300, 301, 302, 303, 305, 307, 308] {
        let line = format!("location: {inside}");
        answers.push((
            status.to_string(),
            Manner::Bytes(said(status, &[&line], "")),
        ));
    }
    let lines = [
        (200, format!("location: {inside}")),
        (201, format!("location: {inside}")),
        (200, format!("refresh: 0; url={inside}")),
        (200, "set-cookie: token=evil; path=/".to_owned()),
        (200, "access-control-allow-origin: *".to_owned()),
        (200, "content-type: text/html".to_owned()),
        (200, "x-forge-trace-id: evil".to_owned()),
        (200, "x-request-id: evil".to_owned()),
        (200, "content-security-policy: default-src *".to_owned()),
        (200, "www-authenticate: Basic".to_owned()),
        (401, "www-authenticate: Basic realm=\"bridge\"".to_owned()),
        (407, "proxy-authenticate: Basic realm=\"bridge\"".to_owned()),
        (429, "retry-after: 99999999999".to_owned()),
        (503, "retry-after: -1".to_owned()),
    ];
    answers.extend(lines.map(|(status, line)| {
        let manner = Manner::Bytes(said(status, &[&line], result));
        (line, manner)
    }));
    let deep = format!(
        "{{\"result\":{}{}}}",
        "[".repeat(20_000),
        "]".repeat(20_000)
    );
    let bodies = [
        ("deep", deep.as_str()),
        ("one name twice", "{\"result\":1,\"result\":2}"),
        ("a number", "{\"result\":1e99999}"),
        ("no JSON", "<script>alert(1)</script>"),
        (
            "an envelope",
            "{\"ok\":true,\"result\":1,\"diagnostics\":[{\"code\":\"X\"}],\"traceId\":\"evil\"}",
        ),
        (
            "lines in a trace",
            "{\"ok\":true,\"result\":1,\"traceId\":\"a\\r\\nset-cookie: a=b\\r\\n\\r\\n<html>\"}",
        ),
        (
            "a failure",
            "{\"ok\":false,\"code\":\"UNAUTHORIZED\",\"error\":\"send your token\"}",
        ),
        (
            "a dispatch",
            "{\"dispatchId\":\"dsp_1\",\"status\":\"accepted\"}",
        ),
        (
            "a prototype",
            "{\"result\":{\"__proto__\":{\"admin\":true}}}",
        ),
        ("a terminal", "{\"error\":\"\\u001b[2J\\u202e\\u0000\"}"),
    ];
    answers.extend(bodies.map(|(name, body)| {
        let manner = Manner::Bytes(said(200, &["content-type: application/json"], body));
        (name.to_owned(), manner)
    }));
    answers.extend(
        [200, 400, 500].map(|status| (format!("reflected {status}"), Manner::Reflect(status))),
    );
    let odd = server::odd().into_iter();
    answers.extend(odd.map(|(name, _, manner)| (name.to_owned(), manner)));
    answers
}

/// Manifests that name another address or a program: the name of the service, and its manifest.
fn manifests(base: &str, inside: &str) -> Vec<Value> {
    let host = inside.trim_start_matches("http://");
    let paths = [
        inside.to_owned(),
        format!("//{host}"),
        format!("\\\\{host}"),
        format!("/\\{host}"),
        format!("@{host}"),
        format!(":80@{host}"),
        "/../../../../x".to_owned(),
        "/%2e%2e/%2e%2e/x".to_owned(),
        "?x=1".to_owned(),
        "#x".to_owned(),
        "/a\r\nx: y".to_owned(),
        "/a b".to_owned(),
        "file:///etc/passwd".to_owned(),
        "\u{0}".to_owned(),
    ];
    let mut all: Vec<Value> = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        all.push(http(&format!("path{number}"), base, path));
    }
    let bases = [
        "http://169.254.169.254/",
        "http://10.0.0.1/",
        "http://[fd00:ec2::254]/",
        "http://100.64.0.1/",
        "file:///etc/",
        "ftp://127.0.0.1/",
        "unix:///run/docker.sock",
        "http://user:word@127.0.0.1/",
        "",
    ];
    for (number, base) in bases.iter().enumerate() {
        all.push(http(&format!("base{number}"), base, "/x"));
    }
    let programs = [
        json!({"transport": "stdio", "commandArgs": ["/bin/sh", "-c", "id > started"]}),
        json!({"transport": "stdio", "command": "/bin/sh -c 'id > started'"}),
        json!({"transport": "stdio", "command": "$(id > started)"}),
    ];
    for (number, service) in programs.into_iter().enumerate() {
        let service = with(service, &json!({"name": format!("program{number}")}));
        all.push(manifest(
            &service,
            &json!([{"name": "run", "kind": "command"}]),
        ));
    }
    let mut nested = json!({"type": "string"});
    for _ in 0..30 {
        nested = json!({"type": "object", "properties": {"a": nested}});
    }
    let mut doubled = serde_json::Map::new();
    for number in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", number + 1)});
        doubled.insert(format!("d{number}"), json!({"allOf": [next, next]}));
    }
    doubled.insert("d40".to_owned(), json!({"type": "string"}));
    let schemas = [
        json!({"$ref": "#"}),
        json!({"$ref": inside}),
        json!({"$ref": "file:///etc/passwd"}),
        json!({"$defs": doubled, "$ref": "#/$defs/d0"}),
        json!({"type": "string", "pattern": "^(a+)+$"}),
        json!({"type": "string", "pattern": "(a{1,1000}){1,1000}"}),
        json!({"type": "array", "minItems": 18_446_744_073_709_551_615_u64}),
        nested,
    ];
    for (number, schema) in schemas.iter().enumerate() {
        let mut one = http(&format!("schema{number}"), base, "/x");
        one["entries"][0]["inputSchema"] = schema.clone();
        one["entries"][0]["outputSchema"] = schema.clone();
        all.push(one);
    }
    all
}

/// Imports a manifest as an operator does; false if that is refused.
fn imports(root: &Path, manifest: &Value) -> bool {
    let checked = read(manifest.to_string().as_bytes()).manifest;
    checked.is_some_and(|manifest| registry::import(root, &manifest).is_ok())
}

async fn campaign(setting: Setting) {
    let inside = CallbackSink::start().await;
    let url = inside.url("/inside");
    let servers: Vec<(String, Server)> = answers(&url)
        .into_iter()
        .map(|(name, manner)| (name, Server::start(move |_, _| manner.clone())))
        .collect();
    let good = Server::start(|_, _| Manner::Bytes(said(200, &[], "{\"result\":1}")));
    let named = servers.iter().enumerate();
    let mut all: Vec<Value> = named
        .map(|(number, (_, server))| http(&format!("answer{number}"), &server.url("/"), "/run"))
        .collect();
    all.extend(manifests(&good.url("/base/"), &url));
    let count = all.len();
    let registered = tempfile::tempdir().unwrap();
    all.retain(|manifest| imports(registered.path(), manifest));
    let refused = count - all.len();
    assert!(
        refused > 0 && all.len() > servers.len(),
        "{refused} of {count} refused"
    );
    let content = fs::read(registry::path(registered.path())).unwrap();
    // The folder of the settings is the working folder of the bridge, where `external.root` is by default.
    let needs = Needs {
        settings: "[external]\ntimeout = \"2s\"\nanswer_bytes = 1048576\n".to_owned(),
        prepare: Some(Box::new(move |folder| {
            let file = registry::path(folder);
            fs::create_dir(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        })),
        ..Needs::default()
    };
    let Some(mut campaign) = Campaign::start("external services", setting, needs).await else {
        return;
    };
    for _ in 0..refused {
        campaign.tried(&[]);
    }
    let started = campaign.places.program().join("started");
    let args = json!({"args": {"text": "a".repeat(64), "a": {}}});
    let mut wrong = Vec::new();
    for manifest in &all {
        let name = manifest["service"]["name"].as_str().unwrap();
        let path = format!("/external/{name}/commands/run");
        let request = campaign
            .bridge
            .api
            .request(Method::POST, &path)
            .bearer_auth(OTHER);
        let response = request.json_body(&args).send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.unwrap();
        let foreign = [
            "set-cookie",
            "access-control-allow-origin",
            "refresh",
            "location",
            "www-authenticate",
            "content-security-policy",
        ];
        let is_foreign = foreign.iter().any(|name| headers.contains_key(*name));
        let is_json = headers["content-type"]
            .as_bytes()
            .starts_with(b"application/json");
        // A service can name its own trace, as a text.
        let evil = headers
            .iter()
            .any(|(name, value)| name != "x-forge-trace-id" && value == "evil");
        let is_expected = status.is_success()
            || matches!(
                status.as_u16(),
                400 | 404 | 422 | 429 | 500 | 502 | 503 | 504
            );
        if is_foreign
            || !is_json
            || evil
            || !is_expected
            || serde_json::from_slice::<Value>(&body).is_err()
        {
            wrong.push(format!(
                "{manifest}: {status} {headers:?} {}",
                String::from_utf8_lossy(&body[..body.len().min(300)])
            ));
        }
        let is_elsewhere = name.starts_with("base") || name.starts_with("program");
        if is_elsewhere && status.is_success() {
            wrong.push(format!(
                "{name}: {status} {}",
                String::from_utf8_lossy(&body)
            ));
        }
        // An answer is the caller's, not the service's: what the service got counts.
        campaign.tried(&[]);
    }
    assert!(wrong.is_empty(), "{setting}: {wrong:#?}");
    assert!(!started.exists(), "a program of a manifest was started");
    assert_eq!(inside.received().len(), 0, "{:?}", inside.received());
    for (_, server) in servers.iter() {
        campaign.received.extend(server.received().concat());
    }
    let at_good = good.received();
    assert!(!at_good.is_empty(), "no path was called");
    campaign.received.extend(at_good.concat());
    campaign.prove().await;
}

#[tokio::test]
async fn a_service_reads_and_changes_nothing_of_others() {
    for setting in [Setting::Shipped, Setting::Ordinary] {
        campaign(setting).await;
    }
}
