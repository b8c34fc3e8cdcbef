//! Selection of the session's model, by either mechanism of the protocol: `models` with `session/set_model`, or
//! `configOptions` with `session/set_config_option`.

use serde_json::{Value, json};

/// Models offered in the answer to `session/new` or `session/load`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Models {
    way: Way,
    /// The session's current model.
    pub(crate) current: Option<String>,
    /// Value and name of each model.
    offered: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Way {
    /// The agent has no choice of models.
    #[default]
    None,
    SetModel,
    /// The id of the option.
    SetOption(String),
}

/// Request needed to select a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    /// The model is current already.
    Nothing,
    Ask {
        method: &'static str,
        params: Value,
        value: String,
    },
}

impl Models {
    pub(crate) fn read(session: &Value) -> Self {
        Self::of_options(&session["configOptions"])
            .or_else(|| Self::of_models(&session["models"]))
            .unwrap_or_default()
    }

    pub(crate) fn of_options(options: &Value) -> Option<Self> {
        let options = options.as_array()?;
        let option = options
            .iter()
            .find(|option| option["category"] == "model")
            .or_else(|| options.iter().find(|option| option["id"] == "model"))?;
        let mut offered = Vec::new();
        for entry in option["options"].as_array().into_iter().flatten() {
            // Options can be grouped.
            match entry["options"].as_array() {
                Some(group) => offered.extend(group.iter().filter_map(|one| named(one, "value"))),
                None => offered.extend(named(entry, "value")),
            }
        }
        Some(Self {
            way: Way::SetOption(option["id"].as_str()?.to_owned()),
            current: option["currentValue"].as_str().map(str::to_owned),
            offered,
        })
    }

    fn of_models(models: &Value) -> Option<Self> {
        let available = models["availableModels"].as_array()?;
        Some(Self {
            way: Way::SetModel,
            current: models["currentModelId"].as_str().map(str::to_owned),
            offered: available
                .iter()
                .filter_map(|one| named(one, "modelId"))
                .collect(),
        })
    }

    /// Returns the request that selects the model; `Err` lists the models on offer.
    pub(crate) fn choose(&self, session: &str, wanted: &str) -> Result<Choice, String> {
        if self.current.as_deref() == Some(wanted) {
            return Ok(Choice::Nothing);
        }
        if self.way == Way::None {
            return Err(format!(
                "the agent does not support choosing a model: remove the model {wanted:?}"
            ));
        }
        let value = self.find(wanted)?;
        if self.current.as_ref() == Some(&value) {
            return Ok(Choice::Nothing);
        }
        let (method, params) = match &self.way {
            Way::SetOption(id) => (
                "session/set_config_option",
                json!({"sessionId": session, "configId": id, "value": value}),
            ),
            Way::SetModel | Way::None => (
                "session/set_model",
                json!({"sessionId": session, "modelId": value}),
            ),
        };
        Ok(Choice::Ask {
            method,
            params,
            value,
        })
    }

    /// Finds a model by value, by name, or by the part of its value after the provider, if unambiguous.
    fn find(&self, wanted: &str) -> Result<String, String> {
        let value = |(value, _): &(String, String)| value.clone();
        if let Some(found) = self
            .offered
            .iter()
            .find(|(value, name)| value == wanted || name == wanted)
        {
            return Ok(value(found));
        }
        let mut behind = self.offered.iter().filter(|(value, _)| {
            value
                .strip_suffix(wanted)
                .is_some_and(|provider| provider.ends_with(['/', ':']))
        });
        match (behind.next(), behind.next()) {
            (Some(found), None) => Ok(value(found)),
            (_, _) => {
                let some: Vec<&str> = self.offered.iter().take(20).map(|(v, _)| &v[..]).collect();
                Err(format!(
                    "the agent has no model {wanted:?}; it has {}",
                    some.join(", ")
                ))
            }
        }
    }
}

fn named(entry: &Value, id: &str) -> Option<(String, String)> {
    let value = entry[id].as_str()?;
    let name = entry["name"].as_str().unwrap_or(value);
    Some((value.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_chosen_in_the_way_that_the_agent_has() {
        let by_model = json!({"models": {"currentModelId": "custom:a", "availableModels": [
            {"modelId": "custom:a", "name": "a"}, {"modelId": "custom:b", "name": "Bee"}]}});
        let by_option = json!({"configOptions": [
            {"id": "mode", "category": "mode", "currentValue": "x", "options": []},
            {"id": "m", "category": "model", "currentValue": "p/a", "options": [
                {"value": "p/a", "name": "A"},
                {"group": "g", "name": "G", "options": [{"value": "p/b", "name": "B"}, {"value": "q/b", "name": "B2"}]},
            ]},
        ]});
        let cases = [
            (&by_model, "custom:a", Ok(None)),
            (&by_model, "a", Ok(None)),
            (&by_model, "b", Ok(Some(("session/set_model", "custom:b")))),
            (
                &by_model,
                "Bee",
                Ok(Some(("session/set_model", "custom:b"))),
            ),
            (&by_model, "c", Err("custom:a, custom:b")),
            (&by_option, "p/a", Ok(None)),
            (
                &by_option,
                "q/b",
                Ok(Some(("session/set_config_option", "q/b"))),
            ),
            (
                &by_option,
                "B",
                Ok(Some(("session/set_config_option", "p/b"))),
            ),
            (&by_option, "b", Err("p/a, p/b, q/b")),
            (&Value::Null, "x", Err("remove the model")),
        ];
        for (session, wanted, expected) in cases {
            let choice = Models::read(session).choose("s", wanted);
            match (choice, expected) {
                (Ok(Choice::Nothing), Ok(None)) => {}
                (
                    Ok(Choice::Ask {
                        method,
                        value,
                        params,
                    }),
                    Ok(Some(expected)),
                ) => {
                    assert_eq!((method, value.as_str()), expected);
                    assert_eq!(params["sessionId"], "s");
                }
                (Err(text), Err(part)) => assert!(text.contains(part), "{text}"),
                (choice, _) => panic!("{wanted}: {choice:?}"),
            }
        }
    }
}
