//! Choice of the session's mode. Some agents begin in a mode that allows calls without asking, in which the bridge's
//! permissions would decide nothing.

use crate::choices::{Choice, Choices};
use crate::config::Permission;

/// Modes in which agents ask before they act, best first, in lower case without punctuation.
const ASKING: [&str; 4] = ["default", "manual", "ask", "readonly"];
/// Modes in which agents allow calls by themselves, likewise.
const GRANTING: [&str; 9] = [
    "acceptedits",
    "auto",
    "autoedit",
    "bypass",
    "bypasspermissions",
    "dontask",
    "fullaccess",
    "fullauto",
    "yolo",
];

/// Warning of the health check.
pub(crate) const UNASKED: &str = "the agent offers no mode in which it asks before each call: `permission`, \
     `allowed_tools` and `disallowed_tools` decide only on the calls that it asks about; set `mode`, or the agent's own \
     permissions";

/// Returns the mode to select: the configured one, else the one that asks, else none.
pub(crate) fn wanted<'a>(modes: &'a Choices, configured: Option<&'a str>) -> Option<&'a str> {
    let asking = || {
        ASKING
            .iter()
            .find_map(|name| modes.values().find(|mode| plain(mode) == *name))
    };
    configured.or_else(asking)
}

/// Returns an error if the session would be, or already is, in a mode that `permission` cannot allow.
pub(crate) fn check(permission: Permission, mode: Option<&str>) -> Result<(), String> {
    match (permission, mode) {
        (Permission::Deny, Some(mode)) if GRANTING.contains(&plain(mode).as_str()) => Err(format!(
            "the agent's mode {mode:?} allows calls without asking, which `permission = \"deny\"` forbids: set `mode` \
             to one that asks, or `permission = \"allow\"`"
        )),
        (Permission::Deny | Permission::Allow, _) => Ok(()),
    }
}

/// The mode that the session has after this choice.
pub(crate) fn after<'a>(modes: &'a Choices, choice: &'a Choice) -> Option<&'a str> {
    match choice {
        Choice::Nothing => modes.current.as_deref(),
        Choice::Ask { value, .. } => Some(value),
    }
}

fn plain(mode: &str) -> String {
    let letters = mode.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::choices::MODE;

    /// Modes of agents, the first of each being current.
    #[test]
    fn the_mode_that_asks_is_chosen_and_one_that_grants_is_refused_under_deny() {
        let cases = [
            (
                vec!["acceptEdits", "default", "bypassPermissions"],
                Some("default"),
                true,
            ),
            (
                vec!["yolo", "autoEdit", "plan", "default"],
                Some("default"),
                true,
            ),
            (
                vec!["auto", "read-only", "full-access"],
                Some("read-only"),
                true,
            ),
            (vec!["build", "plan"], None, true),
            (vec!["dont_ask", "plan"], None, false),
            (vec![], None, true),
        ];
        for (ids, chosen, starts) in cases {
            let list: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
            let session = json!({"modes": {"currentModeId": ids.first(), "availableModes": list}});
            let modes = Choices::read(&MODE, &session);
            let found = wanted(&modes, None);
            assert_eq!(found, chosen, "{ids:?}");
            let mode = found.or(modes.current.as_deref());
            assert_eq!(check(Permission::Deny, mode).is_ok(), starts, "{ids:?}");
            assert_eq!(check(Permission::Allow, mode), Ok(()));
            assert_eq!(wanted(&modes, Some("plan")), Some("plan"));
        }
    }
}
