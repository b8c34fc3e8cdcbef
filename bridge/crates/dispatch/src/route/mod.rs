//! Which adapter runs a dispatch: a pure rule over what the adapters declare and how they are, with
//! every layer's decision written down.
//!
//! Layers that only prefer never leave the dispatch without an adapter that could take it now: the best
//! among those that are not offline sets the mark.

#[cfg(test)]
mod cases;
mod decision;
#[cfg(test)]
mod properties;

use std::time::Duration;

use forge_adapter_api::{CostTier, HealthStatus, LatencyProfile, Profile};

use super::capture;
use super::request::{DispatchRequest, Recovery};
pub use decision::{Decision, Dropped, Layer, told};

/// One configured adapter as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub provider: &'a str,
    /// `None`: it was never loaded.
    pub profile: Option<&'a Profile>,
    pub health: HealthStatus,
    /// What it says of its health.
    pub message: Option<&'a str>,
    /// Nothing starts there for now; what is sent there waits.
    pub paused: bool,
    pub running: usize,
    pub queued: usize,
    pub max_concurrent: usize,
    /// Whether it manages agents and has this one; `None`: it manages none.
    pub has_agent: Option<bool>,
    /// How long it has been offline; `None` when it never was there.
    pub away_for: Option<Duration>,
}

/// What the operator wants.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// `GATEWAY_PROVIDER`.
    pub default_provider: Option<&'a str>,
    /// How long an adapter may be away and still be waited for.
    pub offline_grace: Duration,
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    pub provider: String,
    /// The caller named it; it is never routed again.
    pub pinned: bool,
    /// There is a `sessionId` and the adapter resumes it.
    pub session_honoured: bool,
    /// What the chosen adapter cannot do of what was asked, for the caller.
    pub warnings: Vec<String>,
    pub decision: Decision,
}

/// Why there is no adapter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("no adapter {named:?} is loaded; loaded are {}", list(.loaded))]
    UnknownProvider { named: String, loaded: Vec<String> },
    #[error("no adapter can do this: {}", reasons(.dropped))]
    NoCapableAdapter { dropped: Vec<Dropped> },
    #[error("no adapter is available: {}", reasons(.dropped))]
    AdapterUnavailable { dropped: Vec<Dropped> },
}

/// Layers 0 to 4 of `contract.md` §1. Candidates come in configured order, which settles ties.
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
        // The one that is wanted and was never loaded is away, not incapable.
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
            format!("lacks {}, which another has", unmet.join(", "))
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
        warnings: warnings(dispatch, &chosen),
        decision: Decision {
            among: candidates.iter().map(|c| c.provider.to_owned()).collect(),
            dropped: field.dropped,
        },
    })
}

/// Whether a layer has already settled on one adapter, which may then be waited for.
#[derive(Clone, Copy, PartialEq)]
enum Pinned {
    Yes,
    No,
}

/// Who is still in, and who no longer is.
struct Field<'a> {
    left: Vec<Candidate<'a>>,
    dropped: Vec<Dropped>,
}

impl<'a> Field<'a> {
    /// Drops those for which there is a reason.
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

    /// Drops those that are further from the wish than the nearest one that is not offline.
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

/// Layer 0.
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

/// Why an adapter cannot do what the dispatch insists on.
fn lacks(dispatch: &DispatchRequest, candidate: &Candidate<'_>) -> Option<String> {
    let required = dispatch.requires.iter().map(String::as_str);
    let required = required.map(|name| (name, "which the dispatch requires"));
    let budget = dispatch.budget.is_some();
    let resume = dispatch.recovery == Recovery::Resume;
    let answers = !dispatch.tool_results.is_empty();
    let implied = [
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
        (Some(_), None) => Some("was never loaded, so it is not known what it can do".into()),
        (Some((name, why)), Some(_)) => Some(format!("lacks {name}, {why}")),
        (None, profile) => capture::decide(dispatch, profile).err(),
    }
}

/// What the dispatch could use and the adapter does not have.
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

/// Nothing wanted: all are equal. An adapter that never loaded is last.
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

/// Layer 4.
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
        |_| "is paused, another is not".to_owned(),
    );
    field.prefer(
        Layer::Healthier,
        |candidate| usize::from(candidate.health != HealthStatus::Healthy),
        |_| "is degraded, another is healthy".to_owned(),
    );
    let load = |c: &Candidate<'_>| (c.running + c.queued) * 1000 / c.max_concurrent.max(1);
    let chosen = field.left.iter().copied().min_by_key(load);
    // The first of equals: configured order settles ties.
    let chosen = chosen.expect("the health layer left somebody");
    field.require(Layer::Load, |candidate| {
        let other = candidate.provider != chosen.provider;
        other.then(|| "is busier, or comes later in the configuration".to_owned())
    });
    Ok(chosen)
}

fn warnings(dispatch: &DispatchRequest, chosen: &Candidate<'_>) -> Vec<String> {
    let provider = chosen.provider;
    let mut warnings = Vec::new();
    if dispatch.session_id.is_some() && !supports(chosen, "session_resume") {
        warnings.push(format!(
            "sessionId is ignored: {provider} lacks session_resume"
        ));
    }
    if dispatch.output_schema.is_some() && !supports(chosen, "structured_output") {
        warnings.push(format!(
            "outputSchema is checked on the text: {provider} lacks structured_output"
        ));
    }
    if !dispatch.mcp_servers.is_empty() && !supports(chosen, "mcp_servers") {
        warnings.push(format!(
            "{provider} lacks mcp_servers: the bridge offers it their tools and runs those that it hands back"
        ));
    }
    warnings
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

/// One of those of whom none can be had: why is for whoever asked, and not kept with every dispatch.
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
        return "none is loaded".to_owned();
    }
    let each = dropped
        .iter()
        .map(|d| format!("{} {}", d.provider, d.reason));
    each.collect::<Vec<_>>().join("; ")
}
