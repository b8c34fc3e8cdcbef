//! The Captain speaks first.

use forge_base::failpoint::VARIABLE;

use super::super::harness::api::JsonBody as _;
use super::super::harness::process::Home;
use super::*;

/// Settings with a greeting; `None` is the default.
fn settings(origin: &Origin, greeting: Option<&str>) -> String {
    let settings = origin.settings();
    match greeting {
        None => settings.replace("greeting = \"none\"\n", ""),
        Some(name) => settings.replace("\"none\"", &format!("{name:?}")),
    }
}

/// Check of the first sample of the public design: after the attach, and before a message, the Captain asks.
#[tokio::test]
async fn the_captain_speaks_before_the_user_does() {
    for (greeting, is_asked) in [(None, true), (Some("agent"), true), (Some("static"), false)] {
        let origin = Origin::new();
        let bridge = Bridge::configured(&settings(&origin, greeting), &[]).await;
        let api = &bridge.api;
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        let said = answers(api, &run, 1).await;
        assert!(said[0].starts_with("What should I build?"), "{said:?}");
        let (_, listed) = api.get(&format!("/api/v2/dispatches?runId={run}")).await;
        let dispatches = listed["dispatches"].as_array().unwrap().len();
        assert_eq!(dispatches, usize::from(is_asked), "{greeting:?}: {listed}");
        say(api, &run, "hello").await;
        say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{greeting:?}: {record}");
        let events = events(api, &run).await;
        let wanted = [
            "run.started",
            "run.attached",
            "captain.greeting",
            "usage",
            "captain.message",
        ];
        let wanted = wanted
            .iter()
            .filter(|kind| is_asked || !["captain.greeting", "usage"].contains(*kind));
        let wanted: Vec<_> = wanted.copied().collect();
        let first: Vec<_> = kinds(&events, "").into_iter().take(wanted.len()).collect();
        assert_eq!(first, wanted, "{greeting:?}");
        // The greeting, the answer to "hello", and the size of the plan.
        assert_eq!(of(&events, "captain.message").len(), 3, "{greeting:?}");
        verified(api, &run).await;
        bridge.stop().await;
    }
}

/// A message that is given with the creation is the first word.
#[tokio::test]
async fn a_message_with_the_creation_needs_no_greeting() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&settings(&origin, Some("agent")), &[]).await;
    let api = &bridge.api;
    let message = plan(&[task("a", &[], "write a.txt a")]);
    let body = json!({"repoUrl": origin.url(), "message": message});
    let post = || {
        let request = api.request(Method::POST, "/api/v1/runs");
        api::answer(request.header("idempotency-key", "one").json_body(&body))
    };
    let (status, created) = post().await;
    assert_eq!(status, StatusCode::CREATED, "{created}");
    let run = created["runId"].as_str().unwrap();
    assert_eq!(post().await.1["runId"], *run);
    let record = ended(api, run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let events = events(api, run).await;
    assert_eq!(of(&events, "captain.greeting").len(), 0);
    assert_eq!(
        of(&events, "captain.user_message"),
        [&json!({"content": message})]
    );
    verified(api, run).await;
    let other = json!({"repoUrl": origin.url(), "message": "other"});
    let request = api.request(Method::POST, "/api/v1/runs");
    let request = request.header("idempotency-key", "one").json_body(&other);
    assert_eq!(api::answer(request).await.0, StatusCode::CONFLICT);
    for message in [json!(""), json!(1), json!("x".repeat(256 * 1024 + 1))] {
        let body = json!({"repoUrl": origin.url(), "message": message});
        let (status, answer) = api.post("/api/v1/runs", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert_eq!(answer["details"][0]["field"], "message", "{answer}");
    }
    bridge.stop().await;
}

/// The bridge is killed around the greeting, and the user speaks before it ends: it is given once, and no message is lost.
#[tokio::test]
async fn a_killed_bridge_greets_once_and_loses_no_message() {
    for (greeting, point) in [
        ("agent", "run.submit"),
        ("agent", "run.settle:1"),
        ("agent", "run.settle:2"),
        ("static", "run.settle:1"),
        ("static", "run.submit"),
    ] {
        let origin = Origin::new();
        let mut home = Home::new(&[]);
        let text = settings(&origin, Some(greeting));
        std::fs::write(home.dir.path().join("forge-bridge.toml"), text).unwrap();
        home.set("PATH", &std::env::var("PATH").unwrap());
        home.set(VARIABLE, point);
        let bridge = home.start();
        // The bridge can be gone before it has answered, but not before the run is on disk.
        let posted = bridge.api.request(Method::POST, "/api/v1/runs");
        let _ = posted
            .json_body(&json!({"repoUrl": origin.url()}))
            .send()
            .await;
        if (greeting, point) == ("static", "run.submit") {
            // Without a message nothing is submitted.
            let (_, listed) = bridge.api.get("/api/v1/runs").await;
            let run = listed["runs"][0]["runId"].as_str().unwrap();
            answers(&bridge.api, run, 1).await;
            let request = bridge.api.request(Method::POST, "/api/v1/captain/message");
            let body = json!({"runId": run, "message": "hello"});
            let _ = request.json_body(&body).send().await;
        }
        bridge.ended().await;
        home.variables.remove(VARIABLE);
        let bridge = home.start();
        let api = &bridge.api;
        let (_, listed) = api.get("/api/v1/runs").await;
        let run = listed["runs"][0]["runId"].as_str().unwrap().to_owned();
        say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
        let record = ended(api, &run).await;
        assert_eq!(
            record["status"], "completed",
            "{greeting} {point}: {record}"
        );
        let events = events(api, &run).await;
        let is_asked = usize::from(greeting == "agent");
        assert!(of(&events, "captain.greeting").len() <= is_asked, "{point}");
        let first = kinds(&events, "captain.")
            .into_iter()
            .take(2)
            .collect::<Vec<_>>();
        let greeted = ["captain.greeting", "captain.message"];
        let is_greeted = first[0] == greeted[usize::from(greeting == "static")];
        // A message that comes before the attach is the first word.
        assert!(
            is_greeted || first[0] == "captain.user_message",
            "{point}: {first:?}"
        );
        if is_asked == 1 && point != "run.settle:1" {
            assert_eq!(first[0], "captain.greeting", "{point}: {first:?}");
        }
        let finished = of(&events, "plan.finalized");
        assert_eq!(finished.len(), 1, "{greeting} {point}");
        verified(api, &run).await;
        bridge.kill();
    }
}
