//! Hooks in the settings of Claude Code. Members of others keep their order and their text.

use std::fmt::{self, Write as _};

use anyhow::{Context as _, bail};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::hook::EVENTS;

/// Command of a hook; the name of the event follows.
const COMMAND: &str = "forg emit --event ";
/// Time limit of a hook in seconds, above the longest time that it takes.
const TIMEOUT_S: u32 = 10;

/// Members of a JSON object in their order.
struct Members<V>(Vec<(String, V)>);

impl<V> Default for Members<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Members<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ordered<V>(Vec<(String, V)>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Ordered<V> {
            type Value = Members<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Members<V>, A::Error> {
                while let Some(member) = map.next_entry()? {
                    self.0.push(member);
                }
                Ok(Members(self.0))
            }
        }

        deserializer.deserialize_map(Ordered(Vec::new()))
    }
}

impl Members<String> {
    /// JSON text at this depth.
    fn text(&self, depth: usize) -> String {
        if self.0.is_empty() {
            return "{}".to_owned();
        }
        let indent = "  ".repeat(depth + 1);
        let lines = self.0.iter().map(|(name, value)| {
            let name = Value::from(name.as_str());
            format!("{indent}{name}: {value}")
        });
        let lines: Vec<_> = lines.collect();
        format!("{{\n{}\n{}}}", lines.join(",\n"), "  ".repeat(depth))
    }
}

/// Settings with or without the hooks of forg; `None` for a file that is not needed.
pub(super) fn changed(settings: &str, connected: bool) -> anyhow::Result<Option<String>> {
    let is_new = settings.trim().is_empty();
    let members: Members<Box<RawValue>> = match is_new {
        true => Members::default(),
        false => serde_json::from_str(settings).context("it is not a JSON object")?,
    };
    let mut hooks = None;
    let mut changed = Members::default();
    for (name, value) in members.0 {
        if name == "hooks" && hooks.is_some() {
            bail!("it has two members `hooks`");
        }
        if name == "hooks" {
            hooks = Some(changed.0.len());
        }
        changed.0.push((name, value.get().to_owned()));
    }
    let before = hooks.map_or("{}", |at| &changed.0[at].1);
    let after = hooks_changed(before, connected)?;
    match (hooks, after) {
        (Some(at), Some(hooks)) => changed.0[at].1 = hooks,
        (None, Some(hooks)) => changed.0.push(("hooks".to_owned(), hooks)),
        (Some(at), None) => drop(changed.0.remove(at)),
        (None, None) => {}
    }
    if is_new && changed.0.is_empty() {
        return Ok(None);
    }
    let text = format!("{}\n", changed.text(0));
    // The same settings in another layout stay as they are.
    let is_same = !is_new
        && serde_json::from_str::<Value>(settings)? == serde_json::from_str::<Value>(&text)?;
    Ok(Some(if is_same { settings.to_owned() } else { text }))
}

/// The member `hooks`; `None` if no hook is left.
fn hooks_changed(hooks: &str, connected: bool) -> anyhow::Result<Option<String>> {
    let events: Members<Box<RawValue>> =
        serde_json::from_str(hooks).context("`hooks` is not a JSON object")?;
    let mut changed = Members::default();
    for (event, groups) in events.0 {
        changed.0.push((event, groups.get().to_owned()));
    }
    for event in EVENTS {
        let at = changed.0.iter().position(|(name, _)| name == event);
        let before = at.map_or("[]", |at| &changed.0[at].1);
        let groups = groups_changed(before, event, connected)
            .with_context(|| format!("`hooks.{event}` is not a list of hooks"))?;
        match (at, groups) {
            (Some(at), Some(groups)) => changed.0[at].1 = groups,
            (None, Some(groups)) => changed.0.push((event.to_owned(), groups)),
            (Some(at), None) => drop(changed.0.remove(at)),
            (None, None) => {}
        }
    }
    Ok((!changed.0.is_empty()).then(|| changed.text(1)))
}

/// Groups of hooks of one event; `None` if none is left.
fn groups_changed(groups: &str, event: &str, connected: bool) -> anyhow::Result<Option<String>> {
    let own = format!(
        r#"{{"matcher": ".*", "hooks": [{{"type": "command", "command": "{COMMAND}{event}", "timeout": {TIMEOUT_S}}}]}}"#
    );
    let own_value: Value = serde_json::from_str(&own)?;
    let groups: Vec<Box<RawValue>> = serde_json::from_str(groups)?;
    let (mut kept, mut is_kept) = (Vec::new(), false);
    for group in groups {
        let mut value: Value = serde_json::from_str(group.get())?;
        if connected && !is_kept && value == own_value {
            is_kept = true;
            kept.push(group.get().to_owned());
            continue;
        }
        let hooks = value["hooks"].as_array_mut().context("no `hooks`")?;
        let count = hooks.len();
        hooks.retain(|hook| !is_own(hook));
        match (hooks.len() == count, hooks.is_empty()) {
            (true, _) => kept.push(group.get().to_owned()),
            (false, false) => kept.push(value.to_string()),
            (false, true) => {}
        }
    }
    if connected && !is_kept {
        kept.push(own);
    }
    if kept.is_empty() {
        return Ok(None);
    }
    let mut text = String::from("[");
    for (number, group) in kept.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        write!(text, "{comma}\n      {group}")?;
    }
    text.push_str("\n    ]");
    Ok(Some(text))
}

/// True for a hook that calls `forg`, wherever it is.
fn is_own(hook: &Value) -> bool {
    let command = hook["command"].as_str().unwrap_or_default();
    let Some((program, _)) = command.split_once(" emit --event ") else {
        return false;
    };
    program == "forg" || program.ends_with("/forg")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREIGN: &str = r#"{
  "zeta": {"b": 1, "a": [1.50, "ü"]},
  "hooks": {
    "Notification": [{"hooks": [{"type": "command", "command": "notify"}]}],
    "Stop": [
      {"matcher": "", "hooks": [{"command": "say done", "type": "command"}]}
    ]
  },
  "alpha": true
}
"#;

    fn connected(settings: &str) -> String {
        changed(settings, true).unwrap().unwrap()
    }

    #[test]
    fn foreign_settings_keep_their_order_and_text() {
        let text = connected(FOREIGN);
        for line in FOREIGN.lines().map(|line| line.trim_end_matches(',')) {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let value: Value = serde_json::from_str(&text).unwrap();
        for event in EVENTS {
            let groups = value["hooks"][event].as_array().unwrap();
            let command = &groups.last().unwrap()["hooks"][0]["command"];
            assert_eq!(command, format!("forg emit --event {event}").as_str());
        }
        assert_eq!(value["hooks"]["Stop"].as_array().unwrap().len(), 2);
        let removed = changed(&text, false).unwrap().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&removed).unwrap(),
            serde_json::from_str::<Value>(FOREIGN).unwrap()
        );
    }

    #[test]
    fn a_second_time_changes_nothing() {
        for settings in ["", "{}", FOREIGN] {
            let once = connected(settings);
            assert_eq!(connected(&once), once);
            let wide = once.replace("\n  ", "\n        ");
            assert_eq!(connected(&wide), wide);
        }
        assert_eq!(changed("", false).unwrap(), None);
        for same in ["{ }", FOREIGN] {
            assert_eq!(changed(same, false).unwrap().as_deref(), Some(same));
        }
        let removed = changed(&connected(""), false).unwrap();
        assert_eq!(removed.as_deref(), Some("{}\n"));
    }

    #[test]
    fn former_hooks_of_forg_are_replaced_and_removed() {
        let former = r#"{"hooks": {"Stop": [{"hooks": [{"command": "/opt/forg emit --event Stop"}, {"command": "other"}]}]}}"#;
        let text = connected(former);
        assert!(
            !text.contains("/opt/forg") && text.contains("other"),
            "{text}"
        );
        let removed = changed(&text, false).unwrap().unwrap();
        let expected = serde_json::json!({"hooks": {"Stop": [{"hooks": [{"command": "other"}]}]}});
        assert_eq!(serde_json::from_str::<Value>(&removed).unwrap(), expected);
    }

    #[test]
    fn settings_that_are_not_understood_are_an_error() {
        for settings in [
            "no JSON",
            "[]",
            "{\"hooks\": []}",
            "{\"hooks\": {\"Stop\": {}}}",
            "{\"hooks\": {\"Stop\": [{}]}}",
            "{\"hooks\": {}, \"hooks\": {}}",
        ] {
            assert!(changed(settings, true).is_err(), "{settings}");
        }
    }
}
