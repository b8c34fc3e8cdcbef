//! Routing: chooses the adapter of a dispatch from the profiles and the state of all adapters, and records the
//! decision of every layer. Pure.
//!
//! Layers of preference never drop all adapters that are available now: they compare with the best candidate that
//! is not offline.

#[cfg(test)]
mod cases;
mod decision;
#[cfg(test)]
mod properties;
mod warnings;

use std::time::Duration;

use forge_adapter_api::{CostTier, HealthStatus, LatencyProfile, Profile};

use super::capture;
use super::request::{DispatchRequest, Recovery};
pub use decision::{Decision, Dropped, Layer, told};

/// Current state of one configured adapter.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub provider: &'a str,
    /// `None` if the adapter was never loaded.
    pub profile: Option<&'a Profile>,
    pub health: HealthStatus,
    /// Health message of the adapter.
    pub message: Option<&'a str>,
    /// True if the adapter starts nothing for now; its dispatches wait.
    pub paused: bool,
    pub running: usize,
    pub queued: usize,
    pub max_concurrent: usize,
    /// True if the agent is deployed on the adapter; `None` if the adapter manages no agents.
    pub has_agent: Option<bool>,
    /// Time since the adapter went offline; `None` if it is not offline or was never loaded.
    pub away_for: Option<Duration>,
}

/// Routing settings of the operator.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// `GATEWAY_PROVIDER`.
    pub default_provider: Option<&'a str>,
    /// Time for which dispatches wait for an offline adapter.
    pub offline_grace: Duration,
}

/// The chosen adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    pub provider: String,
    /// True if the caller named the adapter; the dispatch is then never routed again.
    pub pinned: bool,
    /// True if there is a `sessionId` and the adapter resumes it.
    pub session_honoured: bool,
    /// Requested features that the chosen adapter lacks, and the reason if it starts nothing now, as texts for the caller.
    pub warnings: Vec<String>,
    pub decision: Decision,
}

/// Reason why no adapter was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("no adapter {named:?} is loaded; loaded adapters: {}", list(.loaded))]
    UnknownProvider { named: String, loaded: Vec<String> },
    #[error("no adapter is capable of this dispatch: {}", reasons(.dropped))]
    NoCapableAdapter { dropped: Vec<Dropped> },
    #[error("no adapter is available: {}", reasons(.dropped))]
    AdapterUnavailable { dropped: Vec<Dropped> },
}

/// Applies layers 0 to 4 of `ARCHITECTURE.md`, "Routing layers". Candidates are in configured order, which breaks ties.
pub fn route(
    dispatch: &DispatchRequest,
    candidates: &[Candidate<'_>],
    policy: &Policy<'_>,
) -> Result<Routed, RouteError> {
    let mut field = Field {
        left: candidates.to_vec(),
        dropped: Vec::new(),
    };
    let held = pin(&mut field, dispatch, policy)?;
    field.require(Layer::Capabilities, |candidate| match candidate.profile {
        // A pinned adapter that was never loaded counts as offline, not as incapable.
        None if held == Pinned::Yes => None,
        Some(_) | None => lacks(dispatch, candidate),
    });
    if field.left.is_empty() && !candidates.is_empty() {
        let dropped = field.dropped;
        return Err(RouteError::NoCapableAdapter { dropped });
    }
    field.prefer(
        Layer::Wishes,
        |c| preferences_unmet(dispatch, c).count(),
        |c| {
            let unmet: Vec<_> = preferences_unmet(dispatch, c).collect();
            format!("lacks {}, which another adapter has", unmet.join(", "))
        },
    );
    field.prefer(
        Layer::Cost,
        |c| cost_distance(dispatch, c),
        |_| "its cost tier is further from the preferred one".to_owned(),
    );
    field.prefer(
        Layer::Latency,
        |c| latency_distance(dispatch, c),
        |_| "its latency profile is further from the preferred one".to_owned(),
    );
    field.prefer(
        Layer::Providers,
        |c| provider_rank(dispatch, c),
        |_| "another provider is preferred".to_owned(),
    );
    field.prefer(
        Layer::Deployments,
        |c| usize::from(c.has_agent != Some(true)),
        |_| "the agent is deployed on another adapter".to_owned(),
    );
    let chosen = choose(&mut field, held, policy)?;
    Ok(Routed {
        provider: chosen.provider.to_owned(),
        pinned: dispatch.provider.is_some(),
        session_honoured: dispatch.session_id.is_some() && supports(&chosen, "session_resume"),
        warnings: warnings::of(dispatch, &chosen),
        decision: Decision {
            among: candidates.iter().map(|c| c.provider.to_owned()).collect(),
            dropped: field.dropped,
        },
    })
}

/// `Yes` if layer 0 has chosen the adapter; dispatches then wait for it while it is offline.
#[derive(Clone, Copy, PartialEq)]
enum Pinned {
    Yes,
    No,
}

/// Candidates still left, and the dropped ones.
struct Field<'a> {
    left: Vec<Candidate<'a>>,
    dropped: Vec<Dropped>,
}

impl<'a> Field<'a> {
    /// Drops the candidates for which `reason` returns one.
    fn require(&mut self, by: Layer, reason: impl Fn(&Candidate<'a>) -> Option<String>) {
        let Self { left, dropped } = self;
        left.retain(|candidate| match reason(candidate) {
            Some(reason) => {
                dropped.push(Dropped {
                    by,
                    provider: candidate.provider.to_owned(),
                    reason,
                });
                false
            }
            None => true,
        });
    }

    /// Drops the candidates that are further from the preference than the nearest one that is not offline.
    fn prefer(
        &mut self,
        by: Layer,
        distance: impl Fn(&Candidate<'a>) -> usize,
        reason: impl Fn(&Candidate<'a>) -> String,
    ) {
        let there = |c: &&Candidate<'a>| c.health != HealthStatus::Offline;
        let nearest = self.left.iter().filter(there).map(&distance).min();
        let mark = nearest.or_else(|| self.left.iter().map(&distance).min());
        self.require(by, |candidate| {
            (Some(distance(candidate)) > mark).then(|| reason(candidate))
        });
    }
}

/// Layer 0: the adapter named by the dispatch, or the configured default.
fn pin(
    field: &mut Field<'_>,
    dispatch: &DispatchRequest,
    policy: &Policy<'_>,
) -> Result<Pinned, RouteError> {
    let known = |name: &str| field.left.iter().find(|c| c.provider == name);
    let pinned = match (&dispatch.provider, policy.default_provider) {
        (Some(named), _) if known(named).is_none() => {
            return Err(RouteError::UnknownProvider {
                named: named.clone(),
                loaded: field.left.iter().map(|c| c.provider.to_owned()).collect(),
            });
        }
        (Some(named), _) => Some((named.clone(), "the dispatch names another adapter")),
        (None, Some(default)) => known(default)
            .filter(|candidate| lacks(dispatch, candidate).is_none())
            .map(|_| (default.to_owned(), "GATEWAY_PROVIDER names another adapter")),
        (None, None) => None,
    };
    match pinned {
        Some((name, reason)) => {
            field.require(Layer::Pinned, |c| {
                (c.provider != name).then(|| reason.to_owned())
            });
            Ok(Pinned::Yes)
        }
        None => Ok(Pinned::No),
    }
}

/// Reason why an adapter cannot fulfil the requirements of the dispatch; `None` if it can.
fn lacks(dispatch: &DispatchRequest, candidate: &Candidate<'_>) -> Option<String> {
    let required = dispatch.requires.iter().map(String::as_str);
    let required = required.map(|name| (name, "which the dispatch requires"));
    let budget = dispatch.budget.is_some();
    let resume = dispatch.recovery == Recovery::Resume;
    let answers = !dispatch.tool_results.is_empty();
    let attachments = !dispatch.attachments.is_empty();
    let implied = [
        (attachments, "attachments", "which attachments need"),
        (answers, "session_resume", "which toolResults need"),
        (budget, "cost_tracking", "which a budget needs"),
        (resume, "session_resume", "which recovery \"resume\" needs"),
    ];
    let implied = implied
        .into_iter()
        .filter_map(|(on, name, why)| on.then_some((name, why)));
    let mut missing = required
        .chain(implied)
        .filter(|(name, _)| !supports(candidate, name));
    match (missing.next(), candidate.profile) {
        (Some(_), None) => Some("was never loaded, so its capabilities are unknown".into()),
        (Some((name, why)), Some(_)) => Some(format!("lacks {name}, {why}")),
        (None, profile) => capture::decide(dispatch, profile).err(),
    }
}

/// Capabilities that the dispatch would use and the adapter lacks.
fn preferences_unmet(
    dispatch: &DispatchRequest,
    candidate: &Candidate<'_>,
) -> impl Iterator<Item = &'static str> + use<> {
    let has = |capability| supports(candidate, capability);
    let wishes = [
        (
            dispatch.output_schema.is_some() && !has("structured_output"),
            "structured_output",
        ),
        (
            dispatch.session_id.is_some() && !has("session_resume"),
            "session_resume",
        ),
        (
            !dispatch.mcp_servers.is_empty() && !has("mcp_servers"),
            "mcp_servers",
        ),
        (
            !dispatch.tools.is_empty() && !has("native_tools") && !has("mcp_servers"),
            "native_tools or mcp_servers",
        ),
    ];
    wishes
        .into_iter()
        .filter_map(|(unmet, name)| unmet.then_some(name))
}

fn cost_distance(dispatch: &DispatchRequest, candidate: &Candidate<'_>) -> usize {
    let rank = |tier: CostTier| match tier {
        CostTier::Low => 0_usize,
        CostTier::Medium => 1,
        CostTier::High => 2,
    };
    let is = candidate.profile.map(|profile| rank(profile.cost_tier));
    distance(dispatch.preferences.cost_tier.map(rank), is)
}

fn latency_distance(dispatch: &DispatchRequest, candidate: &Candidate<'_>) -> usize {
    let rank = |latency: LatencyProfile| match latency {
        LatencyProfile::Fast => 0_usize,
        LatencyProfile::Moderate => 1,
        LatencyProfile::Variable => 2,
    };
    let is = candidate
        .profile
        .map(|profile| rank(profile.latency_profile));
    distance(dispatch.preferences.latency_profile.map(rank), is)
}

/// Distance from the preferred rank: 0 without a preference, the maximum for an adapter that was never loaded.
fn distance(wanted: Option<usize>, is: Option<usize>) -> usize {
    match (wanted, is) {
        (None, _) => 0,
        (Some(wanted), Some(is)) => wanted.abs_diff(is),
        (Some(_), None) => usize::MAX,
    }
}

fn provider_rank(dispatch: &DispatchRequest, candidate: &Candidate<'_>) -> usize {
    let wanted = &dispatch.preferences.providers;
    let rank = wanted.iter().position(|name| name == candidate.provider);
    rank.unwrap_or(wanted.len())
}

/// Layer 4: health, pause and load.
fn choose<'a>(
    field: &mut Field<'a>,
    held: Pinned,
    policy: &Policy<'_>,
) -> Result<Candidate<'a>, RouteError> {
    let alone = held == Pinned::Yes || field.left.len() == 1;
    let waited_for =
        |c: &Candidate<'_>| alone && c.away_for.is_some_and(|away| away < policy.offline_grace);
    let is_away = |c: &Candidate<'_>| c.health == HealthStatus::Offline && !waited_for(c);
    if field.left.iter().all(is_away) {
        let dropped = field.left.iter().map(away).collect();
        return Err(RouteError::AdapterUnavailable { dropped });
    }
    field.require(Layer::Health, |candidate| {
        is_away(candidate).then(|| "is offline".to_owned())
    });
    field.prefer(
        Layer::Paused,
        |candidate| usize::from(candidate.paused),
        |_| "is paused, another adapter is not".to_owned(),
    );
    field.prefer(
        Layer::Healthier,
        |candidate| usize::from(candidate.health != HealthStatus::Healthy),
        |_| "is degraded, another adapter is healthy".to_owned(),
    );
    let load = |c: &Candidate<'_>| (c.running + c.queued) * 1000 / c.max_concurrent.max(1);
    let chosen = field.left.iter().copied().min_by_key(load);
    // The first of equals: configured order breaks ties.
    let chosen = chosen.expect("the health layer leaves a candidate");
    field.require(Layer::Load, |candidate| {
        let other = candidate.provider != chosen.provider;
        other.then(|| "is busier, or comes later in the configuration".to_owned())
    });
    Ok(chosen)
}

fn supports(candidate: &Candidate<'_>, capability: &str) -> bool {
    candidate
        .profile
        .is_some_and(|profile| profile.supports(capability))
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

/// Reason for an offline candidate in the error when all are offline. With the health message, which is not stored
/// with a decision.
fn away(candidate: &Candidate<'_>) -> Dropped {
    let message = candidate.message.map(|message| format!(": {message}"));
    Dropped {
        by: Layer::Health,
        provider: candidate.provider.to_owned(),
        reason: format!("is offline{}", message.unwrap_or_default()),
    }
}

fn reasons(dropped: &[Dropped]) -> String {
    if dropped.is_empty() {
        return "no adapter is loaded".to_owned();
    }
    let each = dropped
        .iter()
        .map(|d| format!("{} {}", d.provider, d.reason));
    each.collect::<Vec<_>>().join("; ")
}
