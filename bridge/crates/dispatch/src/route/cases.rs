//! Table tests of the routing rules in `ARCHITECTURE.md`, "Routing layers".

use std::time::Duration;

use forge_adapter_api::request::Budget;
use forge_adapter_api::{CostTier, HealthStatus, LatencyProfile, OutputStrategy, Profile};
use serde_json::{Value, json};

use crate::request::tests::{attachment, minimal};
use crate::request::{DispatchRequest, Preferences, Recovery};

use super::{Candidate, Policy, RouteError, Routed, route, told};

const OFFLINE_GRACE: Duration = Duration::from_secs(60);

fn profile(capabilities: &[&str]) -> Profile {
    Profile {
        capabilities: capabilities.iter().map(|&c| c.to_owned()).collect(),
        native_tools: Vec::new(),
        max_concurrent: 10,
        output_strategies: vec![OutputStrategy::Stream],
        options: Vec::new(),
        cost_tier: CostTier::Medium,
        latency_profile: LatencyProfile::Moderate,
    }
}

fn candidate<'a>(provider: &'a str, profile: &'a Profile) -> Candidate<'a> {
    Candidate {
        provider,
        profile: Some(profile),
        health: HealthStatus::Healthy,
        message: None,
        paused: false,
        running: 0,
        queued: 0,
        max_concurrent: 10,
        has_agent: None,
        away_for: None,
    }
}

fn offline<'a>(candidate: Candidate<'a>, seconds: u64) -> Candidate<'a> {
    Candidate {
        health: HealthStatus::Offline,
        away_for: Some(Duration::from_secs(seconds)),
        ..candidate
    }
}

fn run(
    dispatch: &DispatchRequest,
    candidates: &[Candidate<'_>],
    default_provider: Option<&str>,
) -> Result<Routed, RouteError> {
    let policy = Policy {
        default_provider,
        offline_grace: OFFLINE_GRACE,
    };
    route(dispatch, candidates, &policy)
}

fn chosen(dispatch: &DispatchRequest, candidates: &[Candidate<'_>]) -> String {
    run(dispatch, candidates, None).unwrap().provider
}

fn pinned_to(provider: &str) -> DispatchRequest {
    DispatchRequest {
        provider: Some(provider.to_owned()),
        ..minimal()
    }
}

#[test]
fn the_dispatch_pins_before_the_operator_does() {
    let plain = profile(&[]);
    let both = [candidate("a", &plain), candidate("b", &plain)];
    for (provider, default, expected, pinned) in [
        (None, None, "a", false),
        (None, Some("b"), "b", false),
        (Some("a"), Some("b"), "a", true),
        (Some("b"), None, "b", true),
        (None, Some("unknown"), "a", false),
    ] {
        let dispatch = DispatchRequest {
            provider: provider.map(str::to_owned),
            ..minimal()
        };
        let routed = run(&dispatch, &both, default).unwrap();
        assert_eq!(
            (routed.provider.as_str(), routed.pinned),
            (expected, pinned)
        );
    }
}

#[test]
fn the_operators_adapter_counts_only_when_it_is_capable() {
    let (plain, able) = (profile(&[]), profile(&["subagents"]));
    let both = [candidate("a", &plain), candidate("b", &able)];
    let dispatch = DispatchRequest {
        requires: vec!["subagents".into()],
        ..minimal()
    };
    assert_eq!(run(&dispatch, &both, Some("a")).unwrap().provider, "b");
}

#[test]
fn an_unknown_adapter_is_named_with_the_loaded_ones() {
    let plain = profile(&[]);
    let both = [candidate("a", &plain), candidate("b", &plain)];
    let error = run(&pinned_to("c"), &both, None).unwrap_err();
    assert!(matches!(error, RouteError::UnknownProvider { .. }));
    assert_eq!(
        error.to_string(),
        "no adapter \"c\" is loaded; loaded adapters: a, b"
    );
}

#[test]
fn what_a_dispatch_insists_on_excludes() {
    let plain = profile(&[]);
    let mut file_only = profile(&[]);
    file_only.output_strategies = vec![OutputStrategy::File];
    let budget = Budget {
        max_tokens: Some(1),
        max_cost_usd: None,
    };
    for (dispatch, profile, word) in [
        (
            DispatchRequest {
                requires: vec!["sandboxing".into()],
                ..minimal()
            },
            &plain,
            "sandboxing",
        ),
        (
            DispatchRequest {
                budget: Some(budget),
                ..minimal()
            },
            &plain,
            "cost_tracking",
        ),
        (
            DispatchRequest {
                attachments: vec![attachment()],
                ..minimal()
            },
            &plain,
            "attachments",
        ),
        (
            DispatchRequest {
                recovery: Recovery::Resume,
                ..minimal()
            },
            &plain,
            "session_resume",
        ),
        (
            DispatchRequest {
                output_strategy: Some(OutputStrategy::Structured),
                ..minimal()
            },
            &plain,
            "structured",
        ),
        (minimal(), &file_only, "workspace.dir"),
        (
            DispatchRequest {
                provider: Some("a".into()),
                requires: vec!["x".into()],
                ..minimal()
            },
            &plain,
            "lacks x",
        ),
    ] {
        let error = run(&dispatch, &[candidate("a", profile)], None).unwrap_err();
        assert!(
            matches!(error, RouteError::NoCapableAdapter { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn what_a_dispatch_could_use_prefers() {
    let (plain, able) = (
        profile(&[]),
        profile(&["structured_output", "session_resume", "mcp_servers"]),
    );
    let both = [candidate("plain", &plain), candidate("able", &able)];
    for dispatch in [
        DispatchRequest {
            output_schema: Some(json!({})),
            ..minimal()
        },
        DispatchRequest {
            session_id: Some("s".into()),
            ..minimal()
        },
        DispatchRequest {
            mcp_servers: vec!["m".into()],
            ..minimal()
        },
    ] {
        let routed = run(&dispatch, &both, None).unwrap();
        assert_eq!(routed.provider, "able");
        assert!(routed.warnings.is_empty());
        // As the only candidate the plain adapter is chosen, with a warning.
        let routed = run(&dispatch, &both[..1], None).unwrap();
        assert_eq!(routed.provider, "plain");
        assert_eq!(routed.warnings.len(), 1, "{:?}", routed.warnings);
        assert!(!routed.session_honoured);
    }
}

#[test]
fn a_session_is_honoured_where_it_can_be() {
    let able = profile(&["session_resume"]);
    let dispatch = DispatchRequest {
        session_id: Some("s".into()),
        ..minimal()
    };
    let one = [candidate("a", &able)];
    assert!(run(&dispatch, &one, None).unwrap().session_honoured);
    assert!(!run(&minimal(), &one, None).unwrap().session_honoured);
}

#[test]
fn preferences_choose_among_the_capable() {
    let plain = profile(&[]);
    let cheap = Profile {
        cost_tier: CostTier::Low,
        ..plain.clone()
    };
    let fast = Profile {
        latency_profile: LatencyProfile::Fast,
        ..plain.clone()
    };
    let all = [
        candidate("plain", &plain),
        candidate("cheap", &cheap),
        candidate("fast", &fast),
    ];
    for (preferences, expected) in [
        (
            Preferences {
                cost_tier: Some(CostTier::Low),
                ..Preferences::default()
            },
            "cheap",
        ),
        (
            Preferences {
                cost_tier: Some(CostTier::High),
                ..Preferences::default()
            },
            "plain",
        ),
        (
            Preferences {
                latency_profile: Some(LatencyProfile::Fast),
                ..Preferences::default()
            },
            "fast",
        ),
        (
            Preferences {
                providers: vec!["gone".into(), "fast".into()],
                ..Preferences::default()
            },
            "fast",
        ),
        (
            Preferences {
                providers: vec!["gone".into()],
                ..Preferences::default()
            },
            "plain",
        ),
        (
            Preferences {
                cost_tier: Some(CostTier::Low),
                providers: vec!["fast".into()],
                ..Preferences::default()
            },
            "cheap",
        ),
    ] {
        let dispatch = DispatchRequest {
            preferences,
            ..minimal()
        };
        assert_eq!(
            chosen(&dispatch, &all),
            expected,
            "{:?}",
            dispatch.preferences
        );
    }
}

#[test]
fn an_adapter_that_has_the_agent_goes_first() {
    let plain = profile(&[]);
    let without = candidate("a", &plain);
    let other = Candidate {
        has_agent: Some(false),
        ..candidate("b", &plain)
    };
    let with = Candidate {
        has_agent: Some(true),
        ..candidate("c", &plain)
    };
    assert_eq!(chosen(&minimal(), &[without, other, with]), "c");
    assert_eq!(chosen(&minimal(), &[without, other]), "a");
}

#[test]
fn a_paused_adapter_is_taken_only_where_no_other_can() {
    let (plain, able) = (profile(&[]), profile(&["file_io"]));
    let a = candidate("a", &able);
    let b = candidate("b", &plain);
    let paused = Candidate { paused: true, ..a };
    let degraded = Candidate {
        health: HealthStatus::Degraded,
        ..b
    };
    let picky = DispatchRequest {
        requires: vec!["file_io".into()],
        ..minimal()
    };
    for (dispatch, candidates, expected) in [
        (&minimal(), [paused, b], "b"),
        (&minimal(), [paused, degraded], "b"),
        (&minimal(), [paused, offline(b, 1)], "a"),
        (&picky, [paused, b], "a"),
    ] {
        assert_eq!(chosen(dispatch, &candidates), expected);
    }
    assert_eq!(chosen(&pinned_to("a"), &[paused, b]), "a");
}

#[test]
fn health_goes_before_load_and_load_before_order() {
    let plain = profile(&[]);
    let a = candidate("a", &plain);
    let b = candidate("b", &plain);
    let degraded = Candidate {
        health: HealthStatus::Degraded,
        ..a
    };
    let busy = Candidate { running: 5, ..a };
    let wide = Candidate {
        running: 6,
        max_concurrent: 100,
        ..b
    };
    for (candidates, expected) in [
        ([a, b], "a"),
        ([degraded, Candidate { running: 9, ..b }], "b"),
        ([busy, b], "b"),
        ([busy, wide], "b"),
        ([Candidate { queued: 1, ..a }, b], "b"),
        ([offline(a, 1), b], "b"),
        (
            [
                offline(a, 1),
                Candidate {
                    health: HealthStatus::Degraded,
                    ..b
                },
            ],
            "b",
        ),
    ] {
        assert_eq!(chosen(&minimal(), &candidates), expected, "{candidates:?}");
    }
}

#[test]
fn a_preference_never_leaves_only_those_that_are_away() {
    let (plain, able) = (profile(&[]), profile(&["structured_output"]));
    let dispatch = DispatchRequest {
        output_schema: Some(json!({})),
        ..minimal()
    };
    let candidates = [
        offline(candidate("able", &able), 1),
        candidate("plain", &plain),
    ];
    assert_eq!(chosen(&dispatch, &candidates), "plain");
}

#[test]
fn an_adapter_is_waited_for_when_it_is_the_only_choice_and_not_away_for_long() {
    let plain = profile(&[]);
    let (a, b) = (candidate("a", &plain), candidate("b", &plain));
    let never = Candidate {
        away_for: None,
        ..offline(a, 0)
    };
    for (dispatch, candidates, default, accepted) in [
        (minimal(), vec![offline(a, 59)], None, true),
        (minimal(), vec![offline(a, 60)], None, false),
        (minimal(), vec![never], None, false),
        (minimal(), vec![offline(a, 1), offline(b, 1)], None, false),
        (
            minimal(),
            vec![offline(a, 1), offline(b, 1)],
            Some("a"),
            true,
        ),
        (pinned_to("a"), vec![offline(a, 1), b], None, true),
        (pinned_to("a"), vec![offline(a, 99), b], None, false),
        (minimal(), vec![], None, false),
    ] {
        let routed = run(&dispatch, &candidates, default);
        match routed {
            Ok(routed) => assert!(accepted && routed.provider == "a", "{candidates:?}"),
            Err(RouteError::AdapterUnavailable { .. }) => assert!(!accepted, "{candidates:?}"),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_dispatch_without_a_candidate_is_told_why() {
    let plain = profile(&[]);
    let (a, b) = (candidate("a", &plain), candidate("b", &plain));
    let a = Candidate {
        message: Some("no key is set"),
        ..offline(a, 99)
    };
    let refused = run(&minimal(), &[a, offline(b, 99)], None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no adapter is available: a is offline: no key is set; b is offline"
    );
}

#[test]
fn an_adapter_that_never_loaded_is_away_when_it_is_wanted_and_unknown_otherwise() {
    let plain = profile(&[]);
    let never = Candidate {
        profile: None,
        away_for: None,
        ..offline(candidate("a", &plain), 0)
    };
    let dispatch = |provider: Option<&str>| DispatchRequest {
        provider: provider.map(str::to_owned),
        requires: vec!["sandboxing".into()],
        ..minimal()
    };
    let wanted = run(&dispatch(Some("a")), &[never], None).unwrap_err();
    assert!(
        matches!(wanted, RouteError::AdapterUnavailable { .. }),
        "{wanted}"
    );
    let any = run(&dispatch(None), &[never], None).unwrap_err();
    assert!(any.to_string().contains("never loaded"), "{any}");
}

#[test]
fn every_step_is_written_down() {
    let (plain, able) = (profile(&[]), profile(&["sandboxing"]));
    let dispatch = DispatchRequest {
        requires: vec!["sandboxing".into()],
        ..minimal()
    };
    let candidates = [
        candidate("plain", &plain),
        candidate("able", &able),
        offline(candidate("away", &able), 100),
    ];
    let routed = run(&dispatch, &candidates, None).unwrap();
    let told = told(routed.decision.stored(), "p", None);
    let steps: Value = serde_json::from_str(told.get()).unwrap();
    let layers = steps.as_array().unwrap().iter();
    let layers: Vec<_> = layers.map(|step| &step["layer"]).collect();
    assert_eq!(layers, [0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4]);
    let lack = "lacks sandboxing, which the dispatch requires";
    let expected = json!({
        "layer": 1, "name": "capabilities", "kept": ["able", "away"],
        "dropped": [{"provider": "plain", "reason": lack}],
    });
    assert_eq!(steps[1], expected);
    assert_eq!(
        (&steps[7]["name"], &steps[7]["dropped"][0]["provider"]),
        (&json!("health"), &json!("away"))
    );
}
