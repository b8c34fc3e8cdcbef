//! Tests of OpenRouter's specifics, against the fake model.

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{ExecutionRequest, HealthStatus};
use forge_adapter_openai_client::{Dialect as _, OpenAi};
use forge_adapter_openrouter::OpenRouter;
use forge_test_model::Model;
use forge_test_support::execution::run;
use forge_test_support::instance::initialize;
use serde_json::{Value, json};

fn config(model: &Model) -> Value {
    let url = format!("{}/v1", model.url());
    json!({"base_url": url, "OPENROUTER_API_KEY": "k-1", "health_path": "/models"})
}

#[tokio::test]
async fn a_request_has_the_key_and_asks_for_the_cost() {
    let model = Model::start().await;
    let adapter = initialize::<OpenAi<OpenRouter>>(config(&model)).await;
    let ran = run(&adapter, ExecutionRequest::sample("hello")).await;
    assert_eq!(ran.succeeded(), "pong: hello");
    assert_eq!(ran.result.cost_usd, None, "the fake does not report it");
    let asked = model.requests().pop().unwrap();
    assert_eq!(asked.headers["authorization"], "Bearer k-1");
    assert_eq!(asked.headers["x-title"], "forge-bridge");
    assert_eq!(asked.body["usage"], json!({"include": true}));
}

#[test]
fn cost_and_refusals_are_read_in_its_own_words() {
    assert_eq!(OpenRouter::cost(&json!({"cost": 0.002})), Some(0.002));
    let moderated =
        json!({"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"]}});
    assert_eq!(
        OpenRouter::refusal(&moderated).unwrap().code,
        "blocked_by_policy"
    );
    let upstream = json!({"code": 502, "message": "no luck", "metadata": {"provider_name": "Acme", "raw": "busy"}});
    let upstream = OpenRouter::refusal(&upstream).unwrap();
    assert_eq!(
        (upstream.code.as_str(), upstream.message.as_str()),
        ("upstream_error", "Acme: no luck busy")
    );
    assert_eq!(OpenRouter::refusal(&json!({"message": "other"})), None);
}

#[test]
fn conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime.block_on(Model::start());
    conformance::check::<OpenAi<OpenRouter>>(Options {
        config: config(&model),
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"baseurl": "x"})),
        slow: Some(ExecutionRequest::sample("SLOW")),
        failing: Some(ExecutionRequest::sample("FAIL400")),
        attaching: Some(ExecutionRequest::sample("MEDIATYPES")),
        ..Options::default()
    })
    .assert_ok();
}
