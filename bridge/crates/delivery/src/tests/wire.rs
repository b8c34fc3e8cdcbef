//! Contents of the request that a receiver gets.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::super::{Config, Origin};
use super::{Rig, TRACE, header, vault};
use forge_base::event::kind;
use forge_store::record::DeliveryState;
use forge_store::roles::Outbox;
use forge_test_support::callback::{Answer, CallbackSink};

#[tokio::test(start_paused = true)]
async fn a_callback_carries_what_the_reference_says() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    let id = rig
        .owe_with_secrets(
            &sink.url("/hook?x=1"),
            Value::Null,
            Some(json!({ "headers": { "x-team": "blue" } })),
        )
        .await;
    rig.round().await;

    let request = &sink.received()[0];
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/hook?x=1")
    );
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body["output"], "grüße");
    assert_eq!(body["events"]["count"], 2);
    for (name, expected) in [
        ("webhook-id", id.to_string()),
        ("idempotency-key", id.to_string()),
        ("content-type", "application/json".into()),
        (
            "user-agent",
            format!("forge-bridge/{}", env!("CARGO_PKG_VERSION")),
        ),
        ("x-forge-delivery-attempt", "1".into()),
        ("x-team", "blue".into()),
        ("authorization", String::new()),
    ] {
        assert_eq!(header(request, name), expected, "{name}");
    }
    let traceparent = header(request, "traceparent");
    assert!(
        traceparent.starts_with(&format!("00-{TRACE}-")),
        "{traceparent}"
    );

    let secret = rig.signer.describe().remove(0).secrets.remove(0);
    let oracle = Webhook::new(secret.expose_secret()).unwrap();
    let timestamp = header(request, "webhook-timestamp").parse().unwrap();
    let signed = oracle.sign(&id.to_string(), timestamp, &request.body);
    assert_eq!(signed.unwrap(), header(request, "webhook-signature"));

    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
    let events = rig.callback_events(id).await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].0, kind::CALLBACK_ATTEMPTED);
    assert_eq!(events[0].1["status"], 200);
    assert_eq!(events[0].1["deliveryId"], id.to_string());
    assert_eq!(events[1].0, kind::CALLBACK_DELIVERED);
    assert_eq!(rig.store.next_due(&[]).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn the_dispatchs_own_secrets_go_before_those_of_the_origin() {
    let sink = CallbackSink::start().await;
    let own = format!("whsec_{}", BASE64_STANDARD.encode([9; 32]));
    let config = Config {
        origins: [(
            sink.url(""),
            Origin {
                secrets: Vec::new(),
                bearer: Some("of-the-origin".into()),
            },
        )]
        .into(),
        ..Config::default()
    };
    let rig = Rig::with(config).await;
    let secrets = json!({ "bearer": "of-the-dispatch", "secret": own });
    rig.owe_with_secrets(&sink.url("/a"), json!({}), Some(secrets))
        .await;
    rig.owe(&sink.url("/b"), json!({})).await;
    rig.round().await;

    for request in sink.received() {
        let (bearer, own_key) = match request.path.as_str() {
            "/a" => ("Bearer of-the-dispatch", true),
            _ => ("Bearer of-the-origin", false),
        };
        assert_eq!(header(&request, "authorization"), bearer);
        let timestamp = header(&request, "webhook-timestamp").parse().unwrap();
        let signed = Webhook::new(&own).unwrap().sign(
            header(&request, "webhook-id"),
            timestamp,
            &request.body,
        );
        let same = signed.unwrap() == header(&request, "webhook-signature");
        assert_eq!(same, own_key, "{}", request.path);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dispatch_whose_secrets_cannot_be_opened_waits_for_the_key() {
    let sink = CallbackSink::start().await;
    let mut rig = Rig::new().await;
    let secrets = Some(json!({ "bearer": "b" }));
    let id = rig
        .owe_with_secrets(&sink.url("/"), json!({}), secrets)
        .await;
    let right = std::mem::replace(&mut rig.vault, vault(8));
    rig.restart();
    rig.round().await;
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Pending);
    let error = delivery.attempts[0].error.as_deref().unwrap();
    assert!(error.contains("another key"), "{error}");
    assert!(sink.received().is_empty());

    rig.vault = right;
    rig.restart();
    rig.next_round().await;
    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
    assert_eq!(header(&sink.received()[0], "authorization"), "Bearer b");
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_echoes_does_not_make_secrets_visible() {
    let sink = CallbackSink::start().await;
    sink.answer_with(|received| {
        let echo = format!("{:?}", received.headers);
        Answer::status(500).body(echo)
    });
    let config = Config {
        origins: [(
            sink.url(""),
            Origin {
                secrets: Vec::new(),
                bearer: Some("of-the-origin".into()),
            },
        )]
        .into(),
        ..Config::default()
    };
    let rig = Rig::with(config).await;
    let given = json!({ "x-api-key": "of-the-header" });
    let secrets = [
        json!({ "bearer": "of-the-dispatch", "headers": given }),
        json!({ "headers": given }),
    ];
    let mut ids = Vec::new();
    for secrets in secrets {
        let url = sink.url("/");
        ids.push(rig.owe_with_secrets(&url, json!({}), Some(secrets)).await);
    }
    rig.round().await;
    for id in ids {
        let answer = rig.delivery(id).await.attempts[0].answer.clone().unwrap();
        assert_eq!(answer.matches("[REDACTED]").count(), 2, "{answer}");
        assert!(!answer.contains("of-the"), "{answer}");
        assert!(answer.contains(&id.to_string()), "{answer}");
    }
}
