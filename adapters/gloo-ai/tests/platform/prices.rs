//! The list of models and prices.

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest};
use forge_test_model::gloo::{ROUTED_MODEL, UNPRICED_MODEL};

use crate::bench::Bench;

#[tokio::test]
async fn a_price_that_is_not_known_makes_a_cost_that_is_not_known() {
    let bench = Bench::new().await;
    for model in [UNPRICED_MODEL, "gloo-openai-gpt-5-mini"] {
        let mut request = ExecutionRequest::sample("hello");
        request.model = Some(model.to_owned());
        let ran = bench.run(request).await;
        ran.succeeded();
        assert_eq!(ran.result.cost_usd, None, "{model}");
        assert_eq!(ran.result.usage.output_tokens, Some(9));
    }
    assert_eq!(bench.gloo.price_reads(), 1, "it is kept");
}

#[tokio::test]
async fn a_feed_that_fails_fails_no_run_and_is_left_alone_for_a_while() {
    let bench = Bench::new().await;
    bench.gloo.lose_prices();
    for _ in 0..3 {
        let ran = bench.say("hello").await;
        ran.succeeded();
        assert_eq!(ran.result.cost_usd, None);
    }
    assert_eq!(bench.gloo.price_reads(), 1);
}

#[tokio::test]
async fn models_are_those_of_the_feed() {
    let bench = Bench::new().await;
    let manager = bench.adapter.runtime().unwrap();
    let models = manager.discover_models().await.unwrap();
    assert_eq!(models.len(), 3);
    assert_eq!(models[0].model_id, ROUTED_MODEL);
    assert_eq!(models[0].provider.as_deref(), Some("Anthropic"));
    assert!(manager.discover_agents().await.unwrap().is_empty());
}
