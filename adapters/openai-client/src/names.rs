//! Conversion of tool names to those that the protocol accepts: letters, digits, `_` and `-`, up to 64.

use std::collections::BTreeMap;

use forge_adapter_api::request::Tool;

const LONGEST: usize = 64;

/// The caller's names, keyed by those that the model sees.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// Assigns each tool a unique name.
    pub fn new(tools: &[Tool]) -> Self {
        let mut names = BTreeMap::new();
        for tool in tools {
            let bare = sayable(&tool.name);
            let mut name = bare.clone();
            let mut number = 1;
            while names.contains_key(&name) {
                number += 1;
                let suffix = format!("_{number}");
                name = bare.chars().take(LONGEST - suffix.len()).collect();
                name.push_str(&suffix);
            }
            names.insert(name, tool.name.clone());
        }
        Self(names)
    }

    /// The model's name of a tool; an unknown name is converted by the same rule.
    pub fn to_model(&self, name: &str) -> String {
        let known = self.0.iter().find(|(_, callers)| *callers == name);
        known.map_or_else(|| sayable(name), |(models, _)| models.clone())
    }

    /// The caller's name of a tool, which a model can know from its prompt too; `None` for a name that the model
    /// invented.
    pub fn to_caller(&self, name: &str) -> Option<&str> {
        let callers = || self.0.values().find(|callers| *callers == name);
        self.0.get(name).or_else(callers).map(String::as_str)
    }
}

fn sayable(name: &str) -> String {
    let letter = |c: char| match c {
        c if c.is_ascii_alphanumeric() || c == '-' => c,
        _ => '_',
    };
    name.chars().map(letter).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_that_cannot_be_said_are_changed_and_found_again() {
        let long = "x".repeat(100);
        let callers = ["crm.find", "crm:find", "plain", &long, &format!("{long}y")];
        let tools = callers.map(|name| Tool {
            name: name.to_owned(),
            description: None,
            input_schema: json!({}),
        });
        let names = Names::new(&tools);
        let models: Vec<String> = callers.iter().map(|name| names.to_model(name)).collect();
        assert_eq!(models[..3], ["crm_find", "crm_find_2", "plain"]);
        for (model, caller) in models.iter().zip(callers) {
            assert!(model.len() <= LONGEST);
            assert_eq!(names.to_caller(model), Some(caller));
        }
        assert_eq!(names.to_caller("crm:find"), Some("crm:find"));
        assert_eq!(names.to_caller("made up"), None);
    }
}
