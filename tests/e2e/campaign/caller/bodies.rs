//! Dispatches that lead the bridge, an adapter or a receiver elsewhere.

use super::*;

/// Statuses of a body that is wrong, or names an unknown adapter.
const INVALID: &[u16] = &[400, 422];

/// Dispatches that the bridge must refuse at once.
pub(super) fn refused(campaign: &Campaign) -> Vec<Attempt> {
    let inside = campaign.inside.address();
    let url = |path: &str| format!("http://{inside}{path}");
    let place = |path: &Path| campaign.places.seen(path);
    let work = place(&campaign.places.work());
    let store = match campaign.setting {
        Setting::Shipped => "/var/lib/forge-bridge/store".to_owned(),
        Setting::Ordinary => campaign.places.store().display().to_string(),
    };
    let key = match campaign.setting {
        Setting::Shipped => "/var/lib/forge-bridge/secret.key".to_owned(),
        Setting::Ordinary => campaign.places.key().display().to_string(),
    };
    let mut bodies: Vec<Value> = vec![
        json!({"callbackUrl": url("/")}),
        json!({"callbackUrl": url("/").replace("127.0.0.1", "localhost")}),
        json!({"callbackUrl": url("/").replace("127.0.0.1", "2130706433")}),
        json!({"callbackUrl": url("/").replace("127.0.0.1", "0x7f.1")}),
        json!({"callbackUrl": url("/").replace("127.0.0.1", "[::ffff:127.0.0.1]")}),
        json!({"callbackUrl": url("/").replace("127.0.0.1", "0")}),
        json!({"callbackUrl": url("/").replace("127.0.0.1", "a.localhost")}),
        json!({"callbackUrl": format!("http://{}@{inside}/", campaign.others.address())}),
        json!({"callbackUrl": "http://169.254.169.254/latest/meta-data/"}),
        json!({"callbackUrl": "http://[fd00:ec2::254]/"}),
        json!({"callbackUrl": "http://100.100.100.200/"}),
        json!({"callbackUrl": "file:///etc/passwd"}),
        json!({"callbackUrl": "gopher://127.0.0.1/"}),
        json!({"callbackUrl": "unix:///run/docker.sock"}),
        json!({"callbackUrl": "https://example.org/\r\nx: y"}),
        json!({"mcpServers": ["none"]}),
        json!({"mcpServers": [{"command": "/bin/sh"}]}),
        json!({"mcpServers": [url("/")]}),
        json!({"provider": "none"}),
        json!({"provider": "../echo"}),
        json!({"provider": "echo/../../secret"}),
        json!({"provider": "external", "model": "../../etc"}),
        json!({"attachments": [{"name": "a", "mediaType": "text/plain", "url": url("/")}]}),
        json!({"attachments": [{"name": "a", "mediaType": "text/plain", "url": "file:///etc/passwd"}]}),
        json!({"attachments": [{"name": "a", "mediaType": "text/plain", "path": "/etc/passwd"}]}),
        json!({"attachments": [{"name": "../a", "mediaType": "text/plain", "data": "YQ=="}]}),
        json!({"attachments": [{"name": "/etc/a", "mediaType": "text/plain", "data": "YQ=="}]}),
        json!({"workspace": {"files": [{"path": "../x", "content": ""}]}}),
        json!({"workspace": {"files": [{"path": "/etc/x", "content": ""}]}}),
        json!({"workspace": {"dir": work}, "attachments": [{"name": "a", "mediaType": "text/plain", "path": "../a"}]}),
        json!({"workspace": {"dir": work}, "outputStrategy": "file", "outputFile": "../x"}),
        json!({"workspace": {"dir": work}, "outputStrategy": "file", "outputFile": "/etc/x"}),
        json!({"workspace": {"dir": work}, "outputStrategy": "file", "outputFile": "a/../../x"}),
        json!({"workspace": {"dir": work}, "outputStrategy": "file", "outputFile": key}),
        json!({"workspace": {"dir": work}, "attachments": [{"name": "a", "mediaType": "text/plain", "path": key}]}),
        json!({"taskId": campaign.running}),
        json!({"taskId": "a\u{0}b"}),
        json!({"priority": 1_000_000}),
        json!({"timeout": 1e300}),
    ];
    let folders = [
        "/",
        "/etc",
        "/root",
        "/proc/self",
        "/tmp",
        "work",
        "..",
        "",
        &store,
        &key,
    ];
    bodies.extend(folders.map(|dir| json!({"workspace": {"dir": dir}})));
    bodies.extend(
        [
            format!("{work}/.."),
            format!("{work}/../../etc"),
            format!("{work}/none"),
        ]
        .map(|dir| json!({"workspace": {"dir": dir}})),
    );
    let headers = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
        "idempotency-key",
        "authorization",
        "content-type",
        "x y",
        "x\r\ny",
        "",
        "upgrade",
        "te",
        "http2-settings",
        "trailer",
        "expect",
    ];
    let receiver = campaign.others.url("/");
    bodies.extend(
        headers.map(|name| json!({"callbackUrl": receiver, "callback": {"headers": {name: "1"}}})),
    );
    let values = ["a\r\nx: y", "a\nb", "a\u{0}b"];
    bodies
        .extend(values.map(
            |value| json!({"callbackUrl": receiver, "callback": {"headers": {"x-a": value}}}),
        ));
    bodies.extend(
        values.map(|value| json!({"callbackUrl": receiver, "callback": {"bearer": value}})),
    );
    let bodies = bodies.iter().map(|extra| {
        let body = with(quiet("attack", "ok"), extra).to_string();
        Attempt {
            name: extra.to_string(),
            bytes: request("POST", "/api/v2/dispatch", &[], &body),
            right: INVALID,
        }
    });
    let mut attempts: Vec<Attempt> = bodies.collect();
    let deep = format!("{{\"metadata\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    let large = quiet(&"x".repeat(12 << 20), "ok").to_string();
    let twice = "{\"taskId\":\"a\",\"taskId\":\"b\",\"agentId\":\"a\",\"message\":\"m\",\"callbackUrl\":null}";
    let headers = [
        ("idempotency-key", "a\u{1}b"),
        ("idempotency-key", ""),
        ("traceparent", "\u{1}"),
    ];
    let plain = quiet("attack", "ok").to_string();
    attempts.extend(
        [
            ("deep", deep.as_str()),
            ("large", &large),
            ("one name twice", twice),
        ]
        .map(|(name, body)| Attempt {
            name: name.to_owned(),
            bytes: request("POST", "/api/v2/dispatch", &[], body),
            right: NO,
        }),
    );
    attempts.extend(headers.map(|(name, value)| Attempt {
        name: format!("{name}: {value:?}"),
        bytes: request("POST", "/api/v2/dispatch", &[(name, value)], &plain),
        right: NO,
    }));
    let heads = [
        ("a head of 1 MiB", "x".repeat(1 << 20)),
        ("a path of 128 KiB", String::new()),
    ];
    attempts.extend(heads.map(|(name, value)| {
        let path = match value.is_empty() {
            true => format!("/{}", "x".repeat(1 << 17)),
            false => "/api/v2/dispatch".to_owned(),
        };
        Attempt {
            name: name.to_owned(),
            bytes: request("POST", &path, &[("x-a", &value)], &plain),
            right: NO,
        }
    }));
    attempts
}
