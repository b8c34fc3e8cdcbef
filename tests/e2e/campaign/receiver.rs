//! Receivers of callbacks: answers that lead elsewhere, ask for retries for ever or never end, names that are addresses
//! inside, certificates of other names, and signatures that are sent again.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::server::{self, Manner, Server, said};
use super::*;
use crate::callbacks::is_signed_with;

/// Secrets of the receiver's own, which no record may show.
const OWN_BEARER: &str = "bearer-of-the-receiver-itself";
const OWN_SECRET: &str = "whsec_b3duLXNpZ25pbmcta2V5LW9mLXRoZS1yZWNlaXZlcg==";
/// Wait that a receiver can ask for at most: that of the retries themselves, and a day.
const LONGEST_WAIT_MS: i128 = 72 * 3_600_000;
/// Wait before a retry at least: that of the first one, with its random part.
const SHORTEST_WAIT_MS: i128 = 500;
/// Attempts that a receiver can cause meanwhile.
const MOST_ATTEMPTS: usize = 6;

/// A receiver and the end of its delivery.
struct Receiver {
    name: String,
    server: Server,
    url: String,
    end: &'static str,
}

impl Receiver {
    fn new(name: &str, end: &'static str, manner: Manner) -> Self {
        let server = Server::start(move |_, _| manner.clone());
        let url = server.url("/callback");
        Self {
            name: name.to_owned(),
            server,
            url,
            end,
        }
    }
}

/// Answers that lead to the service inside, or would have more sent than the callback.
fn leading(inside: &str) -> Vec<Receiver> {
    let mut receivers = Vec::new();
    for status in [300, 301, 302, 303, 307, 308] {
        let answer = said(status, &[&format!("location: {inside}")], "");
        receivers.push(Receiver::new(
            &status.to_string(),
            "dead",
            Manner::Bytes(answer),
        ));
    }
    let lines = [
        (200, format!("location: {inside}")),
        (200, format!("refresh: 0; url={inside}")),
        (200, format!("link: <{inside}>; rel=preload")),
        (200, format!("content-location: {inside}")),
        (
            200,
            format!("alt-svc: h2=\"{}\"", inside.trim_start_matches("http://")),
        ),
        (201, format!("location: {inside}")),
        (200, "set-cookie: a=b; domain=localhost".to_owned()),
        (305, format!("location: {inside}")),
    ];
    for (status, line) in lines {
        let end = if status < 300 { "delivered" } else { "dead" };
        receivers.push(Receiver::new(
            &line,
            end,
            Manner::Bytes(said(status, &[&line], "")),
        ));
    }
    let asking = [
        (401, "www-authenticate: Basic realm=\"a\""),
        (401, "www-authenticate: Negotiate"),
        (401, "www-authenticate: Digest realm=\"a\", nonce=\"b\""),
        (407, "proxy-authenticate: Basic realm=\"a\""),
        (421, "x: misdirected"),
        (426, "upgrade: h2c"),
        (511, "x: a portal"),
    ];
    for (status, line) in asking {
        receivers.push(Receiver::new(
            line,
            "refused",
            Manner::Bytes(said(status, &[line], "")),
        ));
    }
    receivers
}

/// Answers that ask for retries without end, or for none.
fn retrying() -> Vec<Receiver> {
    let values = [
        "0",
        "-1",
        "1e9",
        "0.0001",
        "99999999999999999999",
        "NaN",
        "",
        " ",
        "1, 1",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "\u{0}",
    ];
    let retrying = values.iter().flat_map(|value| {
        [429, 503].map(|status| {
            let line = format!("retry-after: {value}");
            let name = format!("{status} {line:?}");
            Receiver::new(
                &name,
                "refused",
                Manner::Bytes(said(status, &[&line], "again")),
            )
        })
    });
    retrying.collect()
}

/// Answers that are no HTTP, or have no end. Those whose head is right are an acknowledgement.
fn odd() -> Vec<Receiver> {
    let reflected = [
        ("reflected", "delivered", Manner::Reflect(200)),
        ("reflected refusal", "dead", Manner::Reflect(410)),
        ("reflected failure", "refused", Manner::Reflect(500)),
    ];
    let odd = server::odd().into_iter();
    let odd = odd.map(|(name, is_right, manner)| {
        (name, if is_right { "delivered" } else { "refused" }, manner)
    });
    let all = odd.chain(reflected);
    all.map(|(name, end, manner)| Receiver::new(name, end, manner))
        .collect()
}

/// A receiver with a certificate for this name, and the certificate of its authority.
fn certified(name: &str, url: &str, end: &'static str) -> (Receiver, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let chain = vec![CertificateDer::from(made.cert.der().to_vec())];
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let server = Server::over(Some(Arc::new(config)), |_, _| {
        Manner::Bytes(said(200, &[], ""))
    });
    let url = format!("https://{url}:{}/", server.address.port());
    let receiver = Receiver {
        name: format!("certificate of {name} at {url}"),
        server,
        url,
        end,
    };
    (receiver, made.cert.pem())
}

/// Names of the file of hosts that are addresses inside.
const NAMES: [(&str, &str); 12] = [
    ("a.example", "127.0.0.1"),
    ("b.example", "127.8.8.8"),
    ("c.example", "0.0.0.0"),
    ("d.example", "10.0.0.1"),
    ("e.example", "169.254.169.254"),
    ("f.example", "100.64.0.1"),
    ("g.example", "192.168.0.1"),
    ("h.example", "::1"),
    ("i.example", "::ffff:127.0.0.1"),
    ("j.example", "fd00:ec2::254"),
    ("k.example", "64:ff9b::7f00:1"),
    ("l.example", "fe80::1"),
];

async fn dispatched(campaign: &Campaign, name: &str, url: &str) -> String {
    let body = with(
        owed(name, "ok", url),
        &json!({"callback": {
            "bearer": OWN_BEARER, "secret": OWN_SECRET,
        }}),
    );
    campaign.accepted(OTHER, None, &body).await
}

/// Waits for the first attempt of the delivery; returns it with its attempts.
async fn attempted(campaign: &Campaign, id: &str) -> Value {
    let path = format!("/api/v2/deliveries/{}", id.replace("dsp_", "dlv_"));
    until("an attempt of the delivery", async || {
        let request = campaign
            .bridge
            .api
            .request(Method::GET, &path)
            .bearer_auth(OPERATOR);
        let (status, delivery) = answer(request).await;
        let is_attempted = status == StatusCode::OK && delivery["attemptCount"].as_u64()? > 0;
        is_attempted.then_some(delivery)
    })
    .await
}

/// True if the delivery is as wanted. One that is tried again waits, and not for ever.
fn is_right(delivery: &Value, wanted: &str) -> bool {
    if delivery["status"] != "pending" {
        return delivery["status"] == wanted || wanted == "refused" && delivery["status"] == "dead";
    }
    let time = |value: &Value| {
        value
            .as_str()
            .and_then(|text| text.parse::<Timestamp>().ok())
    };
    let last = delivery["attempts"]
        .as_array()
        .and_then(|attempts| attempts.last());
    let wait = time(&delivery["dueAt"])
        .zip(last.and_then(|last| time(&last["at"])))
        .map(|(due, at)| due.duration_since(at).as_millis());
    wanted == "refused"
        && wait.is_some_and(|wait| (SHORTEST_WAIT_MS..=LONGEST_WAIT_MS).contains(&wait))
}

async fn campaign(setting: Setting) {
    let inside = CallbackSink::start().await;
    let mut receivers = leading(&inside.url("/inside"));
    receivers.extend(retrying());
    receivers.extend(odd());
    let (own, trusted) = certified("localhost", "localhost", "delivered");
    let (other, also_trusted) = certified("other.example", "localhost", "refused");
    let (unknown, _) = certified("localhost", "localhost", "refused");
    receivers.extend([own, other, unknown]);
    let mut allow: Vec<String> = receivers
        .iter()
        .map(|one| one.server.address.to_string())
        .collect();
    allow.extend(
        receivers
            .iter()
            .map(|one| format!("localhost:{}", one.server.address.port())),
    );
    let authorities = [trusted, also_trusted].concat();
    let needs = Needs {
        allow,
        settings: "callback.timeout = \"2s\"".to_owned(),
        authorities: Some(authorities),
        ..Needs::default()
    };
    let Some(mut campaign) = Campaign::start("receivers of callbacks", setting, needs).await else {
        return;
    };
    let mut sent = Vec::new();
    for (number, receiver) in receivers.iter().enumerate() {
        sent.push(dispatched(&campaign, &format!("receiver-{number}"), &receiver.url).await);
    }
    let mut named = Vec::new();
    if let Some(hosts) = campaign.places.hosts() {
        let lines = NAMES.map(|(name, address)| format!("{address} {name}\n"));
        let text = fs::read_to_string(&hosts).unwrap() + &lines.concat();
        // In place: the bridge has this file.
        fs::write(&hosts, text).unwrap();
        for (name, address) in NAMES {
            let url = format!("http://{name}:{}/", campaign.inside.address().port());
            named.push((name, address, dispatched(&campaign, name, &url).await));
        }
    }
    let mut wrong = Vec::new();
    for (receiver, id) in receivers.iter().zip(&sent) {
        let delivery = attempted(&campaign, id).await;
        let requests = receiver.server.received();
        campaign.tried(&requests.concat());
        let name = &receiver.name;
        if !is_right(&delivery, receiver.end) || requests.len() > MOST_ATTEMPTS {
            wrong.push(format!("{name}: {} requests, {delivery}", requests.len()));
        }
        let record = [
            delivery,
            campaign
                .get(&format!(
                    "/api/v2/dispatch/{id}/events?until=delivered&limit=1000"
                ))
                .await,
        ];
        let record = format!("{record:?}");
        for own in [OWN_BEARER, OWN_SECRET] {
            assert!(!record.contains(own), "{name}: {record}");
        }
        for request in requests {
            let head = String::from_utf8_lossy(&request).to_lowercase();
            let head = head.split("\r\n\r\n").next().unwrap();
            assert!(
                !head.contains("\r\ncookie:") && !head.contains("proxy-auth"),
                "{name}: {head}"
            );
            assert_eq!(
                head.matches("\r\nauthorization: bearer ").count(),
                1,
                "{name}: {head}"
            );
        }
    }
    for (name, address, id) in named {
        let delivery = attempted(&campaign, &id).await;
        campaign.tried(&[]);
        let text = delivery.to_string();
        if !is_right(&delivery, "refused") || !text.contains("not in callback.allow") {
            wrong.push(format!("{name} {address}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{setting}: {wrong:#?}");
    assert_eq!(inside.received().len(), 0, "{:?}", inside.received());
    replayed(&mut campaign).await;
    campaign.prove().await;
}

/// A callback that is sent again proves nothing to the bridge or to another receiver.
async fn replayed(campaign: &mut Campaign) {
    let seen = campaign.others.received().remove(0);
    assert!(is_signed_with(&seen, SECRET) && !is_signed_with(&seen, OWN_SECRET));
    for path in [
        "/api/v2/dispatch",
        "/api/v2/deliveries/retry",
        "/callback/echo",
        "/emit",
        "/engine/v1/signals",
    ] {
        let mut request = campaign
            .bridge
            .api
            .request(Method::POST, path)
            .bearer_auth(OWN_BEARER);
        for (name, value) in &seen.headers {
            if name.starts_with("webhook-")
                || name.starts_with("x-forge-")
                || name == "content-type"
            {
                request = request.header(name, value);
            }
        }
        let answer = request.body(seen.body.clone()).send().await.unwrap();
        let status = answer.status();
        campaign.tried(&answer.bytes().await.unwrap());
        assert!(
            [401, 403, 404, 405].contains(&status.as_u16()),
            "{path}: {status}"
        );
    }
}

#[tokio::test]
async fn a_receiver_reads_and_changes_nothing_of_others() {
    for setting in [Setting::Shipped, Setting::Ordinary] {
        campaign(setting).await;
    }
}
