//! Property tests of routing, for arbitrary adapters and dispatches.

use std::time::Duration;

use forge_adapter_api::{CostTier, HealthStatus, LatencyProfile, OutputStrategy, Profile};
use proptest::prelude::*;

use crate::request::tests::minimal;
use crate::request::{DispatchRequest, Preferences};

use super::{Candidate, Policy, RouteError, route};

const CAPABILITIES: [&str; 4] = [
    "streaming",
    "session_resume",
    "cost_tracking",
    "mcp_servers",
];
const PROVIDERS: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
struct Adapter {
    profile: Option<Profile>,
    health: HealthStatus,
    running: usize,
    has_agent: Option<bool>,
    away_for: Option<Duration>,
}

fn capabilities() -> impl Strategy<Value = Vec<String>> {
    let some = prop::sample::subsequence(CAPABILITIES.to_vec(), 0..=4);
    some.prop_map(|names| names.into_iter().map(str::to_owned).collect())
}

fn cost() -> impl Strategy<Value = CostTier> {
    prop::sample::select(vec![CostTier::Low, CostTier::Medium, CostTier::High])
}

fn latency() -> impl Strategy<Value = LatencyProfile> {
    prop::sample::select(vec![
        LatencyProfile::Fast,
        LatencyProfile::Moderate,
        LatencyProfile::Variable,
    ])
}

fn adapter() -> impl Strategy<Value = Adapter> {
    let profile =
        (capabilities(), cost(), latency()).prop_map(|(capabilities, cost, latency)| Profile {
            capabilities,
            native_tools: Vec::new(),
            max_concurrent: 4,
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: cost,
            latency_profile: latency,
        });
    let health = prop::sample::select(vec![
        HealthStatus::Healthy,
        HealthStatus::Degraded,
        HealthStatus::Offline,
    ]);
    let away = prop::option::of((0..120_u64).prop_map(Duration::from_secs));
    (
        prop::option::weighted(0.9, profile),
        health,
        0..6_usize,
        any::<Option<bool>>(),
        away,
    )
        .prop_map(|(profile, health, running, has_agent, away_for)| Adapter {
            profile,
            health,
            running,
            has_agent,
            away_for,
        })
}

fn dispatch() -> impl Strategy<Value = DispatchRequest> {
    let provider = prop::option::weighted(0.2, prop::sample::select(PROVIDERS.to_vec()));
    let required = prop::sample::subsequence(CAPABILITIES.to_vec(), 0..=2);
    let preferences = (prop::option::of(cost()), prop::option::of(latency()));
    (provider, required, preferences, any::<bool>()).prop_map(
        |(provider, required, (cost_tier, latency_profile), resumes)| DispatchRequest {
            provider: provider.map(str::to_owned),
            requires: required.into_iter().map(str::to_owned).collect(),
            preferences: Preferences {
                cost_tier,
                latency_profile,
                providers: Vec::new(),
            },
            session_id: resumes.then(|| "session".to_owned()),
            ..minimal()
        },
    )
}

proptest! {
    #[test]
    fn the_choice_is_always_the_same_and_one_that_can_and_may(
        adapters in prop::collection::vec(adapter(), 1..=4),
        dispatch in dispatch(),
        default in prop::option::weighted(0.2, prop::sample::select(PROVIDERS.to_vec())),
    ) {
        let candidates: Vec<Candidate<'_>> = adapters
            .iter()
            .zip(PROVIDERS)
            .map(|(adapter, provider)| Candidate {
                provider,
                profile: adapter.profile.as_ref(),
                health: adapter.health,
                message: None,
                running: adapter.running,
                queued: 0,
                max_concurrent: 4,
                has_agent: adapter.has_agent,
                away_for: adapter.away_for,
                paused: false,
            })
            .collect();
        let policy = Policy {
            default_provider: default,
            offline_grace: Duration::from_secs(60),
        };
        let first = route(&dispatch, &candidates, &policy);
        prop_assert_eq!(&route(&dispatch, &candidates, &policy), &first);
        let can = |candidate: &Candidate<'_>| dispatch.requires.iter().all(|name| {
            candidate.profile.is_some_and(|profile| profile.supports(name))
        });
        match first {
            Ok(routed) => {
                let chosen = candidates.iter().find(|c| c.provider == routed.provider).unwrap();
                prop_assert!(can(chosen) || chosen.profile.is_none());
                prop_assert_eq!(routed.pinned, dispatch.provider.is_some());
                if let Some(pinned) = &dispatch.provider {
                    prop_assert_eq!(pinned, &routed.provider);
                }
                let resumes = chosen.profile.is_some_and(|profile| profile.supports("session_resume"));
                prop_assert_eq!(routed.session_honoured, dispatch.session_id.is_some() && resumes);
                // An offline adapter is never chosen while a capable one is not offline.
                if chosen.health == HealthStatus::Offline && dispatch.provider.is_none() && default.is_none() {
                    let there = |c: &&Candidate<'_>| c.health != HealthStatus::Offline && can(c) && c.profile.is_some();
                    prop_assert!(!candidates.iter().any(|c| there(&c)), "{:?}", routed.decision);
                }
                for step in routed.decision.steps() {
                    prop_assert!(step.kept.contains(&routed.provider.as_str()), "{:?}", step);
                }
            }
            Err(RouteError::UnknownProvider { named, .. }) => {
                prop_assert!(candidates.iter().all(|c| c.provider != named));
            }
            Err(RouteError::NoCapableAdapter { dropped } | RouteError::AdapterUnavailable { dropped }) => {
                prop_assert!(!dropped.is_empty());
                prop_assert!(dropped.iter().all(|one| !one.reason.is_empty()));
            }
        }
    }
}
