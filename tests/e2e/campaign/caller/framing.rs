//! Requests that name another route than it seems, or that two readers take for different ones.

use super::*;

/// Other spellings of a route that the token may not read, and headers that would name another route, caller or scope.
pub(super) fn spellings() -> Vec<Attempt> {
    let paths = [
        "/api/v2/dispatch/../dispatches",
        "/api/v2/dispatch/%2e%2e/dispatches",
        "/api/v2/dispatch/..%2fdispatches",
        "/api/v2/dispatch/..;/dispatches",
        "/api/v2/./dispatches",
        "//api/v2/dispatches",
        "/api/v2//dispatches",
        "/api/v2/dispatches/",
        "/api/v2/dispatches/.",
        "/API/v2/dispatches",
        "/api/v2/dispatches%00",
        "/api/v2/dispatches%20",
        "/api/v2/dispatches;a=b",
        "/api/v2/dispatches?scope=read",
        "/api/v2/dispatches?access_token=canary",
        "/api/v2/events?ticket=canary",
        "/api/v2/events?ticket=",
        "/api%2fv2%2fdispatches",
        "/%61pi/v2/dispatches",
        "/console.js/../../../etc/passwd",
        "/console.js%2f..%2fapi%2fv2%2fdispatches",
        "/..%2f..%2fetc%2fpasswd",
        "/docs/../secret.key",
        "/docs%2f..%2fforge-bridge.toml",
        "/schemas/..%2f..%2fopt%2fforge-bridge.toml",
        "/forge-bridge.toml",
        "/.git/config",
        "http://localhost/api/v2/dispatches",
        "http://169.254.169.254/latest/meta-data/",
        "https://localhost:1/api/v2/dispatches",
        "*",
        "api/v2/dispatches",
        "",
    ];
    let mut attempts: Vec<Attempt> = paths
        .iter()
        .map(|path| Attempt {
            name: format!("GET {path}"),
            bytes: request("GET", path, &[], ""),
            right: NO,
        })
        .collect();
    let methods = [
        "HEAD", "TRACE", "CONNECT", "PROPFIND", "get", "GET\t", "DELETE", "PATCH", "PRI", "",
    ];
    attempts.extend(methods.iter().map(|method| Attempt {
        name: format!("{method:?} /api/v2/dispatches"),
        bytes: request(method, "/api/v2/dispatches", &[], ""),
        right: NO,
    }));
    let headers = [
        ("x-http-method-override", "GET"),
        ("x-method-override", "GET"),
        ("x-original-url", "/api/health"),
        ("x-rewrite-url", "/api/health"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "localhost"),
        ("x-forwarded-prefix", "/api/health"),
        ("forwarded", "for=127.0.0.1;host=localhost"),
        ("x-real-ip", "127.0.0.1"),
        ("x-forge-user-id", "user-of-another"),
        ("x-forge-role", "admin"),
        ("x-forge-permissions", "read"),
        ("x-forge-scopes", "read"),
        ("x-forge-auth-kind", "system"),
        ("x-forge-forward-authorization", "Bearer operator"),
        ("cookie", "token=operator; session=operator"),
        ("proxy-authorization", "Bearer operator"),
        ("origin", "null"),
        ("origin", "https://evil.example"),
        ("origin", "http://localhost.evil.example"),
        ("host", "evil.example"),
        ("upgrade", "h2c"),
        ("upgrade", "websocket"),
        ("expect", "100-continue"),
        ("connection", "authorization"),
        (
            "authorization",
            "Bearer token-of-the-attacker, Bearer operator",
        ),
        ("authorization", "Bearer  token-of-the-attacker"),
        ("authorization", "bearer"),
        ("authorization", "Basic b3BlcmF0b3I6"),
        ("authorization", "Bearer null"),
        ("authorization", "Bearer *"),
        ("authorization", "Bearer ' OR 1=1 --"),
        (
            "authorization",
            "Bearer eyJhbGciOiJub25lIn0.eyJzY29wZSI6ImFkbWluIn0.",
        ),
    ];
    attempts.extend(headers.iter().map(|(name, value)| Attempt {
        name: format!("{name}: {value}"),
        bytes: request("GET", "/api/v2/dispatches", &[(name, value)], ""),
        right: NO,
    }));
    attempts.extend(headers.iter().map(|(name, value)| Attempt {
        name: format!("{name}: {value}, for a pause"),
        bytes: request(
            "POST",
            "/api/v2/adapters/echo/pause",
            &[(name, value)],
            "{}",
        ),
        right: NO,
    }));
    attempts
}

/// Requests that two readers could take for different ones. Behind each is one that asks for the records of all callers.
pub(super) fn two_meanings() -> Vec<Attempt> {
    let inner = "GET /api/v2/dispatches HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer token-of-the-attacker\r\n\r\n";
    let length = inner.len();
    let forms = [
        format!("content-length: 0\r\ncontent-length: {length}\r\n\r\n"),
        format!("content-length: 0, {length}\r\n\r\n"),
        "content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n".to_owned(),
        "transfer-encoding : chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "transfer-encoding: identity\r\n\r\n".to_owned(),
        "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n".to_owned(),
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n".to_owned(),
        "transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n".to_owned(),
        "transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "x: y\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "x: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "x: y\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "x: \0\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\n0;a=\"\n\"\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\n0\n\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\nffffffffffffffff0\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\n-1\r\n\r\n".to_owned(),
        "content-length: +0\r\n\r\n".to_owned(),
        "content-length: 0x0\r\n\r\n".to_owned(),
        "content-length: -1\r\n\r\n".to_owned(),
        "content-length: 18446744073709551616\r\n\r\n".to_owned(),
        "content-length: 0\r\nhost: other\r\n\r\n".to_owned(),
    ];
    let forms = forms.iter().map(|form| {
        let head = "POST /api/v2/adapters/echo/pause HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                    authorization: Bearer token-of-the-attacker\r\ncontent-type: application/json\r\n";
        Attempt { name: format!("{form:?}"), bytes: format!("{head}{form}{inner}").into_bytes(), right: NO }
    });
    forms.collect()
}
