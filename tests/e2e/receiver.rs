//! `forge-bridge callback test` with receivers that are correct, accept invalid signatures, fail, or are forbidden.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use standardwebhooks::Webhook;

use super::harness::process::Home;
use super::harness::{Answer, CallbackSink};
use forge_test_support::callback::Received;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8G";

/// Exit code, report and standard error. Runs on a blocking thread, so that the receiver can answer meanwhile.
async fn test(variables: &[(&str, &str)], url: String) -> (i32, Value, String) {
    let home = Home::new(variables);
    let mut command = home.command();
    command.args(["callback", "test", &url, "--secret", SECRET, "--json"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = output.await.unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let complaint = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), report, complaint)
}

fn outcomes(report: &Value) -> Vec<&str> {
    let rules = report["rules"].as_array().unwrap();
    rules
        .iter()
        .map(|rule| rule["outcome"].as_str().unwrap())
        .collect()
}

/// Returns true if the reference library of the standard accepts the signature.
fn verified(received: &Received) -> bool {
    let headers: HeaderMap = received
        .headers
        .iter()
        .map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        })
        .collect();
    let webhook = Webhook::new(SECRET).unwrap();
    webhook.verify(&received.body, &headers).is_ok()
}

#[tokio::test]
async fn a_receiver_that_checks_passes() {
    let sink = CallbackSink::start().await;
    sink.answer_with(|received| Answer::status(if verified(received) { 204 } else { 401 }));
    let (code, report, complaint) = test(&[], sink.url("/cb")).await;
    assert_eq!(code, 0, "{report} {complaint}");
    assert_eq!(report["passed"], true, "{report}");
    assert_eq!(outcomes(&report), ["ok"; 5], "{report}");
    let received = sink.received();
    let id = |at: usize| &received[at].headers["webhook-id"];
    assert_eq!(id(0), id(1), "the second is the first once more");
    assert_ne!(id(1), id(2));
    let body: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(
        body["metadata"]["test"], true,
        "a receiver can tell it from others"
    );
}

#[tokio::test]
async fn a_receiver_that_believes_everybody_fails() {
    let sink = CallbackSink::start().await;
    let (code, report, _) = test(&[], sink.url("/cb")).await;
    assert_eq!(code, 1, "{report}");
    let wanted = ["ok", "ok", "failed", "warning", "ok"];
    assert_eq!(outcomes(&report), wanted, "{report}");
}

#[tokio::test]
async fn of_a_receiver_that_takes_nothing_it_says_what_the_bridge_would_do() {
    for (answer, wanted) in [
        (
            Answer::status(503).header("retry-after", "7"),
            "Retry-After: 7: the bridge would wait at least 7s",
        ),
        (
            Answer::status(429).header("retry-after", "soon"),
            "neither seconds nor a date",
        ),
        (Answer::status(429), "no Retry-After"),
        (Answer::status(410), "a dead letter immediately"),
        (Answer::close(), "the bridge would retry"),
    ] {
        let sink = CallbackSink::start().await;
        sink.answer(answer);
        let (code, report, _) = test(&[], sink.url("/cb")).await;
        assert_eq!(code, 1, "{report}");
        assert_eq!(outcomes(&report)[0], "failed");
        let told = report.to_string();
        assert!(told.contains(wanted), "{wanted}: {told}");
        assert_eq!(
            told.contains("Retry-After: 7"),
            told.contains("answered 503")
        );
        assert_eq!(sink.received().len(), 1);
    }
}

#[tokio::test]
async fn an_address_that_the_bridge_would_not_call_is_not_called() {
    let sink = CallbackSink::start().await;
    let other_host = [("BRIDGE_CALLBACK_ALLOW", "example.com")];
    let (code, _, complaint) = test(&other_host, sink.url("/cb")).await;
    assert_eq!(code, 1);
    assert!(complaint.contains("callback.allow"), "{complaint}");
    assert!(sink.received().is_empty());
}
