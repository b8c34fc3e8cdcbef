//! Names of events. The names that the bridge defines are in three lists here, by who writes them, and everything that
//! needs to know them reads these lists.

/// Defines constants for names, and the list of all of them.
macro_rules! names {
    ($(#[$of_list:meta])* $list:ident { $($(#[$of:meta])* $name:ident = $text:literal,)* }) => {
        $($(#[$of])* pub const $name: &str = $text;)*

        $(#[$of_list])*
        pub const $list: &[&str] = &[$($name),*];
    };
}

names! {
    /// Names that only the bridge writes. If an adapter emits one, its data is merged into the terminal event of the
    /// bridge; it never makes a second event.
    OF_BRIDGE {
        ACCEPTED = "execution.accepted",
        QUEUED = "execution.queued",
        STARTED = "execution.started",
        RETRYING = "execution.retrying",
        COMPLETED = "execution.completed",
        FAILED = "execution.failed",
        CALLBACK_ATTEMPTED = "callback.attempted",
        CALLBACK_DELIVERED = "callback.delivered",
        CALLBACK_DEAD = "callback.dead",
        APPROVAL_REQUESTED = "approval.requested",
        APPROVAL_APPROVED = "approval.approved",
        APPROVAL_REJECTED = "approval.rejected",
        SIGNAL_INTERVENTION = "signal.intervention",
        SIGNAL_BLOCKED = "signal.blocked",
        SIGNAL_ACKNOWLEDGED = "signal.acknowledged",
        SIGNAL_MILESTONE = "signal.milestone",
        SIGNAL_SESSION_STARTED = "signal.session.started",
        SIGNAL_SESSION_PAUSED = "signal.session.paused",
        SIGNAL_SESSION_ENDED = "signal.session.ended",
        /// A session that had heartbeats has had none for a while.
        SIGNAL_HEARTBEAT_LOST = "signal.heartbeat_lost",
        /// Signals were refused as unauthorized.
        SIGNAL_REFUSED = "signal.refused",
        ADAPTER_HEALTH = "adapter.health",
        ADAPTER_EVENT = "adapter.event",
        EVENTS_DROPPED = "events.dropped",
    }
}

names! {
    /// Names that the bridge defines and adapters emit.
    OF_ADAPTERS {
        TEXT = "assistant.text",
        THINKING = "assistant.thinking",
        /// An adapter withdraws the text of a message, or the bridge that of an attempt.
        RETRACTED = "assistant.retracted",
        USAGE = "usage",
        SESSION_UPDATED = "session.updated",
        TOOL_INVOKED = "tool.invoked",
        TOOL_COMPLETED = "tool.completed",
        PROGRESS = "exec.progress",
        /// An adapter repeats a request to a model, inside an attempt.
        MODEL_RETRYING = "model.retrying",
        /// An adapter turns to another model, inside an attempt.
        MODEL_FALLBACK = "model.fallback",
    }
}

/// Names of events of runs, which only the bridge writes. `runs::event::Event` has their data.
pub const OF_RUNS: &[&str] = &[
    "run.started",
    "run.attached",
    "run.executing",
    "run.paused",
    "run.resumed",
    "run.cancelling",
    "run.waiting",
    "run.reopened",
    "run.completed",
    "captain.greeting",
    "captain.user_message",
    "captain.message",
    "captain.tool_call",
    "captain.tool_result",
    "plan.finalized",
    "plan.approved",
    "plan.reopened",
    "task.scheduled",
    "task.started",
    "task.heartbeat",
    "task.progress",
    "task.completed",
    "task.failed",
    "task.stale",
    "task.waiting",
    "task.status",
    "task.pause_ack",
    "task.retried",
    "task.exhausted",
    "tool.call",
    "tool.result",
    "agent.started",
    "agent.ended",
    "artifact.written",
    "branch.pushed",
    "refinery.started",
    "refinery.conflict",
    "refinery.settled",
    "refinery.tests",
    "refinery.merged",
    "cr.emitted",
    "cr.resolved",
    "dag.overlay_applied",
];

/// True if only the bridge writes events of this name: it is on a list of the bridge, or a name beside one. A first
/// part that adapters share, such as `tool.`, reserves nothing.
pub fn is_reserved(name: &str) -> bool {
    if OF_ADAPTERS.contains(&name) {
        return false;
    }
    let first = first_part(name);
    let is_shared = OF_ADAPTERS.iter().any(|known| first_part(known) == first);
    let mut of_bridge = OF_BRIDGE.iter().chain(OF_RUNS);
    of_bridge.any(|known| *known == name || (!is_shared && first_part(known) == first))
}

/// True if this event ends its execution.
pub fn is_terminal(name: &str) -> bool {
    name == COMPLETED || name == FAILED
}

fn first_part(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Names of the members of a schema of `openapi.json`.
    fn types(schema: &str) -> BTreeSet<String> {
        let reference = include_str!("../../../../openapi.json");
        let reference: Value = serde_json::from_str(reference).unwrap();
        let members = &reference["components"]["schemas"][schema]["properties"];
        members.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn every_type_of_the_reference_is_reserved_unless_adapters_emit_it() {
        let all = &types("EventData") | &types("ForgeEventData");
        assert!(all.len() > 70, "{all:?}");
        for name in &all {
            let is_of_adapters = OF_ADAPTERS.contains(&name.as_str());
            assert_eq!(is_reserved(name), !is_of_adapters, "{name}");
        }
        let listed = [OF_BRIDGE, OF_ADAPTERS, OF_RUNS].concat();
        let listed: BTreeSet<_> = listed.into_iter().map(str::to_owned).collect();
        assert_eq!(listed, all);
    }

    #[test]
    fn names_beside_those_of_the_bridge_are_reserved_and_own_ones_pass() {
        for name in [
            "run.ended",
            "refinery.",
            "execution",
            "cr.x.y",
            "adapter.log",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        for name in [
            "acme.tick",
            "tool.progress",
            "assistant",
            "runs.a",
            "user.text",
            "",
        ] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
