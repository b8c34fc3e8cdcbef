//! A server that is gone for a while: new work is refused at once, nothing that was answered is lost, and work continues
//! when the server is back.

use forge_test_postgres::Cluster;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::api::{JsonBody, quiet};
use crate::harness::process::Home;
use crate::harness::until;
use crate::signals::Tool;
use crate::store_faults::load::Load;
use crate::store_faults::ready;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_under_load_loses_nothing() {
    let (server, home) = place();
    let bridge = home.start();
    let mut load = Load::start().await;
    for _ in 0..3 {
        load.send(&bridge.api, 20).await;
        // Before, while and after the server fails.
        tokio::join!(load.send(&bridge.api, 100), async {
            until("some of the load", async || {
                let rows = "SELECT 1 FROM dispatch WHERE phase = 4 LIMIT 1";
                (!server.run("postgres", rows).is_empty()).then_some(())
            })
            .await;
            tokio::task::block_in_place(|| server.restart());
        });
        ready(&bridge.api).await;
        load.verify(&bridge.api).await;
    }
    load.verify_all(&bridge.api).await;
    assert!(load.answered() >= 60, "{}", load.answered());
    bridge.terminate();
    assert!(bridge.ended().await.success());
}

#[tokio::test]
async fn while_the_server_is_gone_work_is_refused_and_then_continues() {
    let (server, home) = place();
    let bridge = home.start();
    let api = &bridge.api;
    let slow = api.dispatch(quiet("slow", "slow:500")).await;
    api.running(&slow).await;
    let tool = Tool::try_start(api, &json!({"adapter": "a"})).await;
    let tool = tool.unwrap();
    server.stop();
    let post = || api.request(Method::POST, "/api/v2/dispatch");
    for number in 0..20 {
        let body = quiet(&format!("refused-{number}"), "ok");
        let refused = post().json_body(&body).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key("retry-after"));
    }
    let (status, _) = api.get("/api/health/ready").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let (_, health) = api.get("/api/health").await;
    assert_eq!(health["store"]["status"], "offline", "{health}");
    let signal = json!({"adapter": "a", "ts": 0, "model": "m", "tokens_in": 7, "call_id": "1"});
    let answers =
        |is_logged| json!({"blocked": false, "session_id": tool.session, "logged": is_logged});
    assert_eq!(tool.emit(&signal).await, (StatusCode::OK, answers(false)));
    server.restart();
    ready(api).await;
    // It is sent again, twice, and counted once.
    for _ in 0..2 {
        assert_eq!(tool.emit(&signal).await, (StatusCode::OK, answers(true)));
    }
    let path = format!("/api/v2/signals/sessions/{}", tool.session);
    let (_, session) = api.get(&path).await;
    assert_eq!(session["totalTokensIn"], 7, "{session}");
    for id in [slow, api.dispatch(quiet("refused-0", "ok")).await] {
        let record = api.finished(&id).await;
        assert_eq!(record["result"]["status"], "ok", "{record}");
    }
    bridge.kill();
    let bridge = home.start();
    let counted = server.run("postgres", "SELECT count(*) FROM dispatch");
    assert_eq!(counted, "2");
    bridge.kill();
}

fn place() -> (Cluster, Home) {
    let server = Cluster::start(&[]);
    let home = Home::new(&[("BRIDGE_STORE", &server.url("postgres", "forge"))]);
    (server, home)
}
