//! Selection of a session's model or mode, by either mechanism of the protocol: a list with a method of its own, such as
//! `models` with `session/set_model`, or `configOptions` with `session/set_config_option`.

use serde_json::{Value, json};

/// A property of a session that the agent lets clients choose.
#[derive(Debug, PartialEq)]
pub(crate) struct Subject {
    /// Category and usual id of its option; also its name in texts.
    name: &'static str,
    list: &'static str,
    available: &'static str,
    current: &'static str,
    id: &'static str,
    method: &'static str,
}

pub(crate) static MODEL: Subject = Subject {
    name: "model",
    list: "models",
    available: "availableModels",
    current: "currentModelId",
    id: "modelId",
    method: "session/set_model",
};

pub(crate) static MODE: Subject = Subject {
    name: "mode",
    list: "modes",
    available: "availableModes",
    current: "currentModeId",
    id: "id",
    method: "session/set_mode",
};

/// Values offered in the answer to `session/new` or `session/load`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choices {
    subject: &'static Subject,
    way: Way,
    /// The session's current value.
    pub(crate) current: Option<String>,
    /// Value and name of each choice.
    offered: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Way {
    /// The agent offers no choice.
    #[default]
    None,
    Method,
    /// The id of the option.
    SetOption(String),
}

/// Request needed to select a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    /// The value is current already.
    Nothing,
    Ask {
        method: &'static str,
        params: Value,
        value: String,
    },
}

impl Choices {
    pub(crate) fn read(subject: &'static Subject, session: &Value) -> Self {
        Self::of_list(subject, &session[subject.list])
            .or_else(|| Self::of_options(subject, &session["configOptions"]))
            .unwrap_or(Self {
                subject,
                way: Way::None,
                current: None,
                offered: Vec::new(),
            })
    }

    pub(crate) fn of_options(subject: &'static Subject, options: &Value) -> Option<Self> {
        let options = options.as_array()?;
        let option = options
            .iter()
            .find(|option| option["category"] == subject.name)
            .or_else(|| options.iter().find(|option| option["id"] == subject.name))?;
        let mut offered = Vec::new();
        for entry in option["options"].as_array().into_iter().flatten() {
            // Options can be grouped.
            match entry["options"].as_array() {
                Some(group) => offered.extend(group.iter().filter_map(|one| named(one, "value"))),
                None => offered.extend(named(entry, "value")),
            }
        }
        Some(Self {
            subject,
            way: Way::SetOption(option["id"].as_str()?.to_owned()),
            current: option["currentValue"].as_str().map(str::to_owned),
            offered,
        })
    }

    fn of_list(subject: &'static Subject, list: &Value) -> Option<Self> {
        let available = list[subject.available].as_array()?;
        Some(Self {
            subject,
            way: Way::Method,
            current: list[subject.current].as_str().map(str::to_owned),
            offered: available
                .iter()
                .filter_map(|one| named(one, subject.id))
                .collect(),
        })
    }

    /// The values on offer.
    pub(crate) fn values(&self) -> impl Iterator<Item = &str> {
        self.offered.iter().map(|(value, _)| value.as_str())
    }

    /// Returns the request that selects this value; `Err` lists the values on offer.
    pub(crate) fn choose(&self, session: &str, wanted: &str) -> Result<Choice, String> {
        if self.current.as_deref() == Some(wanted) {
            return Ok(Choice::Nothing);
        }
        if self.way == Way::None {
            return Err(format!(
                "the agent does not support choosing a {0}: remove the {0} {wanted:?}",
                self.subject.name
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
            Way::Method | Way::None => {
                let subject = self.subject;
                let param = format!("{}Id", subject.name);
                (subject.method, json!({"sessionId": session, param: value}))
            }
        };
        Ok(Choice::Ask {
            method,
            params,
            value,
        })
    }

    /// Finds a value by itself, by name, or by the part after the provider, if unambiguous.
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
                    "the agent has no {} {wanted:?}; it has {}",
                    self.subject.name,
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
            let choice = Choices::read(&MODEL, session).choose("s", wanted);
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
        let modes =
            json!({"modes": {"currentModeId": "a", "availableModes": [{"id": "a"}, {"id": "b"}]}});
        let choice = Choices::read(&MODE, &modes).choose("s", "b");
        let wanted = Choice::Ask {
            method: "session/set_mode",
            params: json!({"sessionId": "s", "modeId": "b"}),
            value: "b".to_owned(),
        };
        assert_eq!(choice, Ok(wanted));
    }
}
