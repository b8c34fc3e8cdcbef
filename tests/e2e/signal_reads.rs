//! Reads of signals: sessions with their records, totals, interventions, and rules with what is left.

use std::fs;

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::emit::{RECORD, forg};
use super::harness::process::{Home, Process};
use super::signals::{Tool, agent_of};

/// Home with a budget of a dollar for each user, and a price of a thousandth of a dollar for a token.
fn home() -> Home {
    let home = Home::new(&[]);
    let rules = json!({
        "version": 1,
        "rules": [
            {"id": "off", "scope": "org", "window": "1h", "action": "block", "enabled": false, "condition": {"signals": {"gte": 1}}},
            {"id": "life", "scope": "user", "window": "session", "action": "notify", "condition": {"tokens": {"gt": 2000}}},
            {"id": "month", "scope": "project", "window": "month", "action": "notify", "condition": {"errors": {"gte": 9}}},
            {"id": "model", "scope": "org", "window": "1h", "action": "allow", "condition": {"model": {"eq": "x"}}},
        ],
        "budgets": [{"id": "daily", "scope": "user", "window": "1d", "limitUsd": 1}],
    });
    fs::write(home.dir.path().join("rules.json"), rules.to_string()).unwrap();
    let settings =
        "[signals]\nrules = \"rules.json\"\n[signals.prices.m]\ninput = 1000.0\noutput = 0.0\n";
    fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    home
}

async fn tool(bridge: &Process, adapter: &str, user: &str) -> Tool {
    let request = json!({"adapter": adapter, "user_id": user});
    Tool::start(&agent_of(&bridge.api).await, &request).await
}

async fn emit(tool: &Tool, adapter: &str, more: &Value) -> Value {
    let mut record = json!({
        "adapter": adapter, "ts": "2026-01-01T00:00:00Z", "model": "m", "project_id": "web",
    });
    let fields = record.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    let (status, answer) = tool.emit(&record).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

async fn read(bridge: &Process, path: &str) -> Value {
    let path = format!("/api/v2/signals/{path}");
    let (status, answer) = bridge.api.get(&path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    answer
}

/// Ids of the sessions that a filter selects.
async fn sessions(bridge: &Process, filter: &str) -> Vec<String> {
    let found = read(bridge, &format!("sessions?{filter}")).await;
    let ids = found["sessions"].as_array().unwrap().iter();
    ids.map(|one| one["sessionId"].as_str().unwrap().to_owned())
        .collect()
}

/// Windows of a rule: value, use and rest.
fn windows(rules: &Value, id: &str) -> Vec<(String, f64, f64)> {
    let mut all = rules["rules"].as_array().unwrap().iter();
    let rule = all.find(|rule| rule["id"] == id).unwrap();
    assert_eq!(rule["counting"], false, "{rule}");
    let windows = rule["windows"].as_array().unwrap().iter();
    let amount = |amount: &Value| amount.as_f64().unwrap();
    windows
        .map(|one| {
            let value = one["scopeValue"].as_str().unwrap().to_owned();
            (value, amount(&one["used"]), amount(&one["left"]))
        })
        .collect()
}

#[tokio::test]
async fn what_tools_and_executions_use_is_read() {
    let home = home();
    let bridge = home.start();
    let ana = tool(&bridge, "a", "ana").await;
    emit(&ana, "a", &json!({"tokens_in": 500})).await;
    let ben = tool(&bridge, "b", "ben").await;
    emit(&ben, "b", &json!({"tokens_in": 900, "tokens_out": 5})).await;
    let over = json!({"tokens_in": 200, "error_code": "timeout", "hook": "PreToolUse"});
    let blocked = emit(&ben, "b", &over).await;
    assert_eq!(blocked["blocked"], true);
    emit(&ana, "a", &json!({"tokens_in": 7, "model": "other"})).await;
    let body = json!({
        "taskId": "t", "agentId": "a", "provider": "echo", "message": "one", "callbackUrl": null, "userId": "cleo",
        "model": "usage:2",
    });
    let dispatch = bridge.api.dispatch(body).await;
    bridge.api.finished(&dispatch).await;

    let all = sessions(&bridge, "").await;
    assert_eq!(
        (all.len(), &all[1], &all[2]),
        (3, &ben.session, &ana.session)
    );
    for (filter, expected) in [
        ("adapter=a", vec![&ana.session]),
        ("user=ben&project=web", vec![&ben.session]),
        ("project=none", vec![]),
        ("user=ana&active=true", vec![&ana.session]),
        ("active=false", vec![&all[0]]),
    ] {
        let found = sessions(&bridge, filter).await;
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter}");
    }
    let first = read(&bridge, "sessions?limit=2").await;
    let next = first["nextCursor"].as_str().unwrap();
    let rest = read(&bridge, &format!("sessions?limit=2&cursor={next}")).await;
    assert_eq!(rest["sessions"][0]["sessionId"], ana.session);
    assert_eq!(rest["nextCursor"], Value::Null);

    let mut one = read(&bridge, &format!("sessions/{}", ben.session)).await;
    let records = one["records"].take();
    for time in ["startedAt", "lastAt"] {
        assert!(one[time].take().is_string(), "{time}");
    }
    let expected = json!({
        "sessionId": ben.session, "source": "agent", "adapter": "b", "userId": "ben", "projectId": "web",
        "startedAt": null, "lastAt": null, "endedAt": null, "pausedAt": null, "signalCount": 2,
        "totalTokensIn": 1100, "totalTokensOut": 5, "totalCostUsd": 1.1, "unpricedCount": 0, "records": null,
    });
    assert_eq!(one, expected);
    let mut newest = records[0].clone();
    assert!(newest["at"].take().is_string());
    let expected = json!({
        "at": null, "ts": "2026-01-01T00:00:00.000Z", "hook": "PreToolUse", "model": "m", "tokensIn": 200,
        "tokensOut": null, "costUsd": 0.2, "errorCode": "timeout", "blocked": true,
    });
    assert_eq!((newest, records.as_array().unwrap().len()), (expected, 2));
    let execution = read(&bridge, &format!("sessions/{}", all[0])).await;
    assert!(execution["endedAt"].is_string());
    assert_eq!(
        (
            &execution["source"],
            &execution["dispatchId"],
            &execution["userId"]
        ),
        (&json!("execution"), &json!(dispatch), &json!("cleo"))
    );
    let (status, missing) = bridge.api.get("/api/v2/signals/sessions/none").await;
    assert_eq!(
        (status, &missing["code"]),
        (StatusCode::NOT_FOUND, &json!("NOT_FOUND"))
    );

    let totals = read(&bridge, "totals?by=adapter&since=1h").await;
    let expected = json!({
        "adapter": "b", "signalCount": 2, "errorCount": 1, "totalTokensIn": 1100, "totalTokensOut": 5,
        "totalCostUsd": 1.1, "unpricedCount": 0,
    });
    assert_eq!(totals["totals"][0], expected);
    assert_eq!(totals["totals"][1]["unpricedCount"], 1);
    assert_eq!(totals["leftOutUntil"], Value::Null);
    for (by, value) in [
        ("user", json!("ben")),
        ("project", json!("web")),
        ("model", json!("m")),
    ] {
        let totals = read(&bridge, &format!("totals?by={by}")).await;
        assert_eq!(totals["totals"][0][by], value, "{totals}");
    }
    let none = read(&bridge, "totals?since=2100-01-01T00:00:00Z").await;
    assert_eq!(none["totals"], json!([]));
    for wrong in [
        "totals?by=team",
        "sessions?active=maybe",
        "rules?x=1",
        "interventions?cursor=x",
    ] {
        let (status, _) = bridge.api.get(&format!("/api/v2/signals/{wrong}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}");
    }
}

#[tokio::test]
async fn what_is_left_and_who_was_warned_is_read_after_a_kill_too() {
    let home = home();
    let mut bridge = home.start();
    let ana = tool(&bridge, "a", "ana").await;
    emit(&ana, "a", &json!({"tokens_in": 250})).await;
    let ben = tool(&bridge, "b", "ben").await;
    let warned = emit(&ben, "b", &json!({"tokens_in": 900})).await;
    emit(&ben, "b", &json!({"tokens_in": 350})).await;
    for restart in [false, true] {
        if restart {
            bridge.kill();
            bridge = home.start();
        }
        let rules = read(&bridge, "rules").await;
        let daily = windows(&rules, "daily");
        assert_eq!(
            daily,
            [
                ("ben".to_owned(), 1.25, 0.0),
                ("ana".to_owned(), 0.25, 0.75)
            ]
        );
        let life = windows(&rules, "life");
        let expected = [
            (ben.session.clone(), 1250.0, 750.0),
            (ana.session.clone(), 250.0, 1750.0),
        ];
        assert_eq!(life, expected);
        assert_eq!(windows(&rules, "month"), [("web".to_owned(), 0.0, 9.0)]);
        assert!(windows(&rules, "model").is_empty() && windows(&rules, "off").is_empty());
        let month = &rules["rules"][2];
        assert_eq!(month["condition"], json!({"errors": {"gte": 9}}));
        assert!(month["windows"][0]["until"].is_string());
        assert_eq!(rules["rules"][4]["limitUsd"], 1);

        let told = read(&bridge, "interventions").await;
        let told = told["interventions"].as_array().unwrap();
        let severities: Vec<_> = told.iter().map(|one| &one["severity"]).collect();
        assert_eq!(severities, ["critical", "warning"]);
        let mut oldest = told[1].clone();
        assert!(oldest["at"].take().is_string());
        let expected = json!({
            "interventionId": warned["intervention_id"], "ruleId": "daily", "severity": "warning",
            "message": warned["message"], "sessionId": ben.session, "at": null, "acknowledgedAt": null,
            "ackDelayMs": null,
        });
        assert_eq!(oldest, expected);
        let of_ana = read(&bridge, &format!("interventions?session={}", ana.session)).await;
        assert_eq!(of_ana, json!({"interventions": [], "nextCursor": null}));
    }
}

#[tokio::test]
async fn commands_show_the_tools_that_reported_and_the_rules() {
    let home = home();
    let bridge = home.start();
    let agent = agent_of(&bridge.api).await;
    let variables = [
        ("FORG_AGENT_URL", &*agent),
        ("BRIDGE_URL", &*bridge.api.url),
    ];
    let run = async |arguments: &[&str]| {
        let output = forg(home.dir.path(), &variables, arguments, "").await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let none = run(&["status"]).await;
    let address = agent.strip_prefix("http://").unwrap();
    assert_eq!(
        none,
        format!(
            "Agent: {address}\nSessions with a valid key: 0\nRules: 5\nNo adapter has reported yet.\n"
        )
    );
    run(&["emit", RECORD]).await;
    let shown = run(&["status", "--adapter"]).await;
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[0], "Adapter: test (connected)");
    assert!(
        lines[1].starts_with("  Last signal: ") && lines[1].ends_with(" s ago"),
        "{shown}"
    );
    let other = run(&["status", "--json", "--adapter", "other"]).await;
    let other: Value = serde_json::from_str(&other).unwrap();
    assert_eq!(
        (&other["adapters"], &other["signals"]["rules"]),
        (&json!([]), &json!(5))
    );

    let ana = tool(&bridge, "a", "ana").await;
    emit(&ana, "a", &json!({"tokens_in": 250})).await;
    let rules = run(&["rules", "list"]).await;
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let rules: Vec<_> = rules.lines().map(words).collect();
    assert_eq!(
        rules,
        [
            "RULE SCOPE WINDOW ACTION OF FULLEST USED LIMIT LEFT",
            "off org 1h off - - - - -",
            &format!(
                "life user session notify tokens {} 250 2000 1750",
                ana.session
            ),
            "month project month notify errors web 0 9 9",
            "model org 1h allow - - - - -",
            "daily user 1d block cost_usd ana 0.25 1 0.75",
        ]
    );
    let rules: Value = serde_json::from_str(&run(&["rules", "list", "--json"]).await).unwrap();
    assert_eq!(rules, read(&bridge, "rules").await);
}
