//! Tokens: one fetch shared by all runs, renewal before expiry, and one retry after a rejection.

use forge_test_model::gloo::{CLIENT_ID, CLIENT_SECRET, Gloo};
use futures_util::future::join_all;
use serde_json::json;

use crate::bench::{Bench, adapter};

#[tokio::test]
async fn many_runs_share_one_token() {
    let bench = Bench::with_client().await;
    for ran in join_all((0..50).map(|_| bench.say("hello"))).await {
        ran.succeeded();
    }
    assert_eq!(bench.gloo.tokens_issued(), 1);
    assert_eq!(bench.gloo.price_reads(), 1);
}

#[tokio::test]
async fn a_refused_token_is_renewed_once_for_all() {
    let bench = Bench::with_client().await;
    bench.say("hello").await.succeeded();
    bench.gloo.revoke_tokens();
    for ran in join_all((0..20).map(|_| bench.say("hello"))).await {
        ran.succeeded();
    }
    assert_eq!(bench.gloo.tokens_issued(), 2);
    assert_eq!(bench.gloo.turned_away(), 20);

    let ran = bench.say("FAIL401").await;
    assert!(ran.failed("unauthenticated").contains("fake failure 401"));
    assert_eq!(bench.gloo.tokens_issued(), 3, "once and not again");
}

#[tokio::test]
async fn a_token_is_renewed_by_the_clock_and_not_by_a_refusal() {
    let bench = Bench::with_client().await;
    bench.gloo.set_token_seconds(1);
    while bench.gloo.tokens_issued() < 3 {
        bench.say("hello").await.succeeded();
    }
    assert_eq!(bench.gloo.turned_away(), 0);
}

#[tokio::test]
async fn a_platform_that_wants_the_credentials_in_the_form_is_given_them_there() {
    let bench = Bench::with_client().await;
    bench.gloo.take_form_credentials_only();
    bench.say("hello").await.succeeded();
    assert_eq!(bench.gloo.tokens_issued(), 1);
}

#[tokio::test]
async fn wrong_credentials_are_named_and_not_shown() {
    let gloo = Gloo::start().await;
    for (table, secret) in [
        (
            json!({"client_id": CLIENT_ID, "client_secret": "s3cret"}),
            "s3cret",
        ),
        (json!({"api_key": "k3y"}), "k3y"),
        // Keys exist only in the newer generation.
        (
            json!({"api_key": forge_test_model::gloo::API_KEY, "generation": "older"}),
            CLIENT_SECRET,
        ),
    ] {
        let adapter = adapter(gloo.url(), table).await;
        let request = forge_adapter_api::ExecutionRequest::sample("hello");
        let ran = forge_test_support::execution::run(&adapter, request).await;
        let error = ran.failed("unauthenticated");
        assert!(!error.contains(secret), "{error}");
        assert_eq!(ran.result.retryable, Some(false));
    }
}
