//! Metrics of signals. Adapters beyond 64 share a label.

use std::fmt;

use super::super::SignalReceivers;
use super::page::Page;

pub(super) fn write(receivers: &SignalReceivers, page: &mut Page<'_>) -> fmt::Result {
    let SignalReceivers {
        agent,
        engine,
        refusals,
        ..
    } = receivers;
    let apis = [("agent", agent.meters()), ("engine", engine.meters())];
    let about = (
        "signals_received",
        "Signals with a right signature, by API and outcome; those that are lost are not on disk",
    );
    page.counter(about, |to| {
        for (api, meters) in apis {
            for (outcome, count) in meters.received() {
                to.count(&[("api", api), ("outcome", outcome)], count)?;
            }
        }
        Ok(())
    })?;
    let about = (
        "signals_refused",
        "Signals and session starts refused as unauthorized, by API, adapter and reason",
    );
    page.counter(about, |to| {
        refusals
            .counts()
            .try_for_each(|(api, adapter, reason, count)| {
                let labels = [("api", api), ("adapter", adapter), ("reason", reason)];
                to.count(&labels, count)
            })
    })?;
    let about = (
        "signals_forwarded",
        "Records by outcome of their forwarding; failed counts attempts that are repeated",
    );
    page.counter(about, |to| {
        let mut outcomes = agent.forwarding().outcomes().into_iter();
        outcomes.try_for_each(|(outcome, count)| to.count(&[("outcome", outcome)], count))
    })?;
    let about = (
        "signals_sessions",
        "Sessions of signals: those of the agent whose key is valid, and live ones of the engine",
    );
    page.gauge(about, |to| {
        to.level(&[("api", "agent")], agent.sessions() as u64)?;
        to.level(&[("api", "engine")], engine.sessions() as u64)
    })?;
    let about = (
        "signals_heartbeats_lost",
        "Sessions whose adapter stopped its heartbeats",
    );
    page.counter(about, |to| {
        to.count(&[], engine.meters().heartbeats_lost.get())
    })
}
