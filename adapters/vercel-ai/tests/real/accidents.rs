//! Accidents of each protocol, retries, and conversations that the providers accept.

use std::time::Duration;

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_test_model::accidents::{self, Outcome, Wire};
use forge_test_model::{Answer, Model};
use forge_test_support::conversation::every_order;
use forge_test_support::execution::run_until;
use serde_json::json;

use crate::bench::{Bench, MODELS, adapter, by_package, config, to};

/// Protocols of [`MODELS`].
const WIRES: [Wire; 4] = [Wire::Messages, Wire::Responses, Wire::Chat, Wire::Gemini];

#[tokio::test]
async fn accidents_are_answers_retries_or_errors_with_their_cause() {
    let bench = Bench::new().await;
    for (model, wire) in MODELS.into_iter().zip(WIRES) {
        for accident in accidents::all(wire) {
            let name = format!("{model}: {}", accident.name);
            let before = bench.model.requests().len();
            bench.model.script(accident.answers);
            let ran = bench.run(to(model, "hello")).await;
            let tries = bench.model.requests().len() - before;
            let retries = ran.all("model.retrying");
            match accident.outcome {
                Outcome::Answer => {
                    assert_eq!(
                        (ran.output(), tries),
                        ("an answer", 1),
                        "{name}: {:?}",
                        ran.result
                    );
                }
                Outcome::Retried(reason) => {
                    assert_eq!(
                        (ran.output(), tries),
                        ("pong: hello", 2),
                        "{name}: {:?}",
                        ran.result
                    );
                    assert_eq!(retries[0]["reason"], reason, "{name}");
                    assert!(retries[0]["delayMs"].is_u64(), "{name}");
                }
                Outcome::Failed(code, said) => {
                    let text = ran.result.error.as_deref().unwrap_or_default();
                    let code_is = ran.result.error_code.as_deref() == Some(code);
                    assert!(code_is && text.contains(said), "{name}: {:?}", ran.result);
                    let is_begun = accident.name.contains("after a text");
                    assert_eq!(
                        ran.output(),
                        if is_begun { "an answer" } else { "" },
                        "{name}"
                    );
                    assert_eq!((tries, retries.len()), (1, 0), "{name}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_retry_waits_as_long_as_asked_and_counts_what_the_tries_used() {
    let bench = Bench::new().await;
    for model in MODELS {
        let ran = bench
            .run(to(model, &format!("FAILONCE429 RETRYAFTER1 {model}")))
            .await;
        ran.succeeded();
        assert_eq!(ran.all("model.retrying")[0]["delayMs"], 1_000);
        let requests = bench.model.requests();
        let [.., refused, answered] = requests.as_slice() else {
            panic!("{} requests", requests.len());
        };
        let waited = answered.at.duration_since(refused.at);
        assert!(waited >= Duration::from_secs(1), "{model}: {waited:?}");
    }
    let overloaded = accidents::all(Wire::Messages).into_iter();
    let mut overloaded = overloaded.filter(|one| one.name == "overloaded in the stream");
    bench.model.script(overloaded.next().unwrap().answers);
    let ran = bench.run(to(MODELS[0], "hello")).await;
    ran.succeeded();
    assert_eq!(ran.result.usage.input_tokens, Some(7 + 35), "both tries");
}

#[tokio::test]
async fn a_model_is_asked_again_only_so_often_and_only_within_the_time_of_the_dispatch() {
    let bench = Bench::with(&json!({"model_retries": 1})).await;
    let ran = bench.run(to(MODELS[0], "FAIL503 always")).await;
    ran.failed_with("upstream_error", "after 2 tries");
    assert_eq!(bench.model.requests().len(), 2);

    let ran = bench.run(to(MODELS[0], "FAIL429 RETRYAFTER31")).await;
    ran.failed_with("rate_limited", "429");
    assert_eq!(
        ran.result.retry_after_ms,
        Some(31_000),
        "beyond the 30 s of the dispatch"
    );
    assert_eq!(bench.model.requests().len(), 3);

    let refusal = accidents::all(Wire::Messages).into_iter();
    let mut refusal = refusal.filter(|one| one.name == "429");
    bench.model.script(refusal.next().unwrap().answers);
    let mut request = to(MODELS[0], "HANG");
    request.timeout_seconds = 1.0;
    let ran = bench.run(request).await;
    ran.failed_with("timeout", "429 Too Many Requests: too fast");
    let refusal = &ran.result.details.as_ref().unwrap()["lastRefusal"];
    assert_eq!(
        (&refusal["reason"], &refusal["status"]),
        (&json!("rate_limited"), &json!(429))
    );
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_it_waits_says_what_it_waited_for() {
    let bench = Bench::new().await;
    let request = to(MODELS[0], "FAIL429 RETRYAFTER20");
    let ran = run_until(&bench.adapter, request, "model.retrying", async || {
        assert!(bench.adapter.cancel("task-sample").await.unwrap());
    })
    .await;
    ran.failed_with("cancelled", "429 Too Many Requests");
}

#[tokio::test]
async fn another_model_answers_when_the_first_one_stays_busy_but_not_for_a_wrong_key() {
    let models = [MODELS[1], MODELS[3]];
    let bench = Bench::with(&json!({"model_retries": 1, "fallback": models})).await;
    let busy =
        || Answer::json(529, &json!({"error": {"message": "busy"}})).with("retry-after-ms", "1");
    bench.model.script([busy(), busy(), busy(), busy()]);
    let ran = bench.run(to(MODELS[0], "hello")).await;
    assert_eq!(ran.succeeded(), "pong: hello");
    let paths: Vec<_> = bench
        .model
        .requests()
        .into_iter()
        .map(|one| one.path)
        .collect();
    let gemini = "/v1beta/models/gemini-2.5-flash:streamGenerateContent";
    assert_eq!(
        paths,
        [
            "/v1/messages",
            "/v1/messages",
            "/v1/responses",
            "/v1/responses",
            gemini
        ]
    );
    let told = ran.all("model.fallback");
    assert_eq!(
        (&told[0]["from"], &told[0]["to"]),
        (&json!(MODELS[0]), &json!(MODELS[1]))
    );
    assert_eq!(told[1]["reason"], "overloaded");
    assert_eq!(ran.result.model_provider.as_deref(), Some("google"));
    assert_eq!(ran.result.usage.input_tokens, Some(31));

    let ran = bench.run(to(MODELS[0], "FAIL401 now")).await;
    ran.failed("unauthenticated");
    assert!(ran.all("model.fallback").is_empty());
}

#[tokio::test]
async fn the_package_is_asked_again_too() {
    let bench = Bench::with(&by_package()).await;
    let ran = bench.run(to(MODELS[0], "FAILONCE529 RETRYAFTER1")).await;
    ran.succeeded();
    let retry = ran.all("model.retrying")[0];
    assert_eq!(
        (&retry["reason"], &retry["delayMs"]),
        (&json!("overloaded"), &json!(1_000))
    );
    let ran = bench.run(to(MODELS[0], "FAIL401 now")).await;
    ran.failed("unauthenticated");
    assert!(ran.all("model.retrying").is_empty());
}

#[tokio::test]
async fn no_turn_makes_the_next_one_fail() {
    let bench = Bench::new().await;
    for model in MODELS {
        every_order(&bench.adapter, Some(model)).await;
    }
}

#[tokio::test]
async fn a_server_of_its_own_is_asked_for_its_health() {
    let model = Model::start().await;
    let mut own = config(model.url());
    own["providers"]["openai-chat"]["base_url"] = "http://127.0.0.1:1/v1".into();
    let mut package = own.clone();
    for (name, value) in by_package().as_object().unwrap() {
        package[name] = value.clone();
    }
    for table in [own, package] {
        let health = adapter(table).await.check_health().await;
        assert_eq!(health.status, HealthStatus::Degraded, "{health:?}");
        assert!(health.message.unwrap().contains("127.0.0.1:1"));
    }
}

#[tokio::test]
async fn a_stream_that_never_ends_holds_no_answer_that_has_ended() {
    let bench = Bench::new().await;
    for (model, wire) in MODELS.into_iter().zip(WIRES) {
        bench.model.script([accidents::never_closed(wire)]);
        let ran = bench.run(to(model, "hello"));
        let ran = tokio::time::timeout(Duration::from_secs(60), ran).await;
        let ran = ran.expect("the answer has ended");
        ran.succeeded();
        assert_eq!(ran.output(), "an answer", "{model}");
        assert_eq!(ran.result.usage.output_tokens, Some(9), "{model}");
    }
}
