//! Output of executions: capture, validation, truncation and counting.

use forge_base::digest::{hex, sha256};
use reqwest::Method;
use serde_json::{Value, json};

use super::harness::api::{quiet, with};
use super::harness::{Api, Bridge};

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn an_output_is_captured_as_it_was_asked_for() {
    let bridge = Bridge::start().await;
    let work = bridge.home.path().join("work");
    std::fs::write(work.join("secret"), "not yours").unwrap();
    std::fs::create_dir(work.join("linked")).unwrap();
    std::os::unix::fs::symlink(work.join("secret"), work.join("linked/output.md")).unwrap();
    let dir = |name: &str| json!({"dir": work.join(name)});
    std::fs::create_dir(work.join("a")).unwrap();
    std::fs::create_dir(work.join("b")).unwrap();
    let schema =
        json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    let rows = [
        (
            "file",
            json!({"outputStrategy": "file", "workspace": dir("a")}),
            json!({"status": "ok", "output": "hello"}),
        ),
        (
            "file",
            json!({"outputStrategy": "file", "workspace": dir("a"), "outputFile": "x/y.txt"}),
            json!({"status": "ok", "output": "hello"}),
        ),
        (
            "ok",
            json!({"outputStrategy": "file", "workspace": dir("b")}),
            json!({"status": "error", "errorCode": "output_missing"}),
        ),
        (
            "ok",
            json!({"outputStrategy": "file", "workspace": dir("linked")}),
            json!({"status": "error", "errorCode": "output_missing"}),
        ),
        (
            "stream:2",
            json!({"outputStrategy": "stream"}),
            json!({"output": "hello 1\nhello 2\n"}),
        ),
        (
            "structured",
            json!({"outputSchema": schema}),
            json!({"status": "ok", "structuredOutput": {"n": 0}}),
        ),
        (
            "structured",
            json!({"outputStrategy": "structured", "outputSchema": schema, "message": "{\"n\": 7}"}),
            json!({"status": "ok", "structuredOutput": {"n": 7}}),
        ),
        (
            "structured",
            json!({"outputSchema": schema, "message": "{\"n\": \"seven\"}"}),
            json!({"status": "error", "errorCode": "output_invalid", "output": "{\"n\":\"seven\"}"}),
        ),
        (
            "ok",
            json!({"outputSchema": schema}),
            json!({"status": "error", "errorCode": "output_invalid", "output": "hello"}),
        ),
    ];
    for (number, (model, extra, expected)) in rows.into_iter().enumerate() {
        let result = bridge
            .api
            .run(with(quiet(&format!("t{number}"), model), &extra))
            .await;
        for (member, expected) in expected.as_object().unwrap() {
            assert_eq!(&result[member], expected, "{model} {extra}: {result}");
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn what_comes_back_for_the_caller_is_an_error_with_its_content() {
    let bridge = Bridge::start().await;
    let tools = json!({"tools": [
        {"name": "search", "inputSchema": {"properties": {"q": {"type": "string"}}}},
        {"type": "function", "function": {"name": "fetch", "parameters": {"type": "object"}}},
    ]});
    let result = bridge.api.run(with(quiet("tools", "tools"), &tools)).await;
    assert_eq!(result["errorCode"], "input_required", "{result}");
    assert_eq!(result["status"], "error");
    assert_eq!(result["toolCalls"][0]["name"], "search");
    assert_eq!(result["toolCalls"][0]["input"], json!({"q": "text"}));
    assert_eq!(result["toolCalls"][1]["name"], "fetch");
    assert_eq!(result["output"], "hello");

    let budget = json!({"budget": {"maxTokens": 9}});
    let result = bridge
        .api
        .run(with(quiet("budget", "usage:1000"), &budget))
        .await;
    assert_eq!(result["errorCode"], "budget_exceeded", "{result}");
    assert!(
        result["usage"]["inputTokens"].as_u64().unwrap() > 0,
        "{result}"
    );
    let money = json!({"budget": {"maxCostUsd": 0.000_001}});
    let result = bridge
        .api
        .run(with(quiet("money", "stream:3"), &money))
        .await;
    assert_eq!(result["errorCode"], "budget_exceeded", "{result}");
    assert_eq!(
        result["output"], "hello 1\nhello 2\nhello 3\n",
        "what there is, is kept"
    );
    let enough = json!({"budget": {"maxCostUsd": 1, "maxTokens": 1000}});
    let result = bridge
        .api
        .run(with(quiet("enough", "usage:2"), &enough))
        .await;
    assert_eq!(result["status"], "ok", "{result}");

    let usage = result["usage"].as_object().unwrap();
    let members = [
        "cacheReadTokens",
        "cacheWriteTokens",
        "inputTokens",
        "outputTokens",
        "thinkingTokens",
        "totalTokens",
    ];
    assert!(
        members.iter().all(|member| usage.contains_key(*member)),
        "{usage:?}"
    );
    assert_eq!(usage.len(), members.len());
    assert_eq!(usage["thinkingTokens"], Value::Null, "not known is not 0");
    assert!(usage["totalTokens"].as_u64().unwrap() > 0);
    bridge.stop().await;
}

#[tokio::test]
async fn a_large_output_is_cut_and_a_larger_one_refused() {
    let bridge = Bridge::start().await;
    let api = &bridge.api;
    let whole = 2 * MIB + 5;
    let id = api
        .dispatch(quiet("large", &format!("large:{whole}")))
        .await;
    let result = api.finished(&id).await["result"].clone();
    assert_eq!(result["status"], "ok", "the status stays");
    assert_eq!(result["output"].as_str().unwrap().len(), MIB);
    let truncated = &result["outputTruncated"];
    assert_eq!(truncated["bytes"], whole);
    let href = truncated["href"].as_str().unwrap();
    let response = api.request(Method::GET, href).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let body = response.bytes().await.unwrap();
    assert_eq!(body.len(), whole);
    assert_eq!(truncated["sha256"], hex(&sha256(&body)));

    let short = api.dispatch(quiet("short", "ok")).await;
    api.finished(&short).await;
    let path = format!("/api/v2/dispatch/{short}/output");
    let response = api.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(response.bytes().await.unwrap(), "hello");
    assert_eq!(
        api.record(&short).await["result"].get("outputTruncated"),
        None
    );

    let id = api
        .dispatch(quiet("larger", &format!("large:{}", 17 * MIB)))
        .await;
    let result = api.finished(&id).await["result"].clone();
    assert_eq!(
        result["errorCode"], "output_too_large",
        "{}",
        result["error"]
    );
    assert_eq!(result["output"].as_str().unwrap().len(), MIB);

    exceed_the_boundary(api).await;
    assert_eq!(api.run(quiet("after", "ok")).await["status"], "ok");
    bridge.stop().await;
}

/// Runs an output above the limit of the plug-in boundary.
async fn exceed_the_boundary(api: &Api) {
    let id = api.dispatch(quiet("largest", "large:100000000")).await;
    let result = api.finished(&id).await["result"].clone();
    assert_eq!(
        result["errorCode"], "output_too_large",
        "{}",
        result["error"]
    );
    assert_eq!(result["output"].as_str().unwrap().len(), MIB);
}

#[tokio::test]
async fn the_beginning_of_an_output_that_is_too_large_comes_out_of_a_process_too() {
    let bridge = Bridge::with(&[("BRIDGE_ADAPTERS_ECHO_ISOLATION", "process")]).await;
    exceed_the_boundary(&bridge.api).await;
    bridge.stop().await;
}
