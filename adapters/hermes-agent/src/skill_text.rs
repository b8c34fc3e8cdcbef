//! Keys and texts of skills.

use forge_adapter_api::Result;
use serde_json::Value;

use crate::management::invalid;
use crate::profiles::{self, DEFAULT};

/// The allowed form of a skill's key, for error texts.
const FORM: &str = "use 1 to 64 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit; before it, the profile \
                    and a slash for a skill of another profile than the default one";
/// Most characters of a `SKILL.md` in Hermes 0.19.0, checked here so that no larger request is sent.
const MOST_CHARS: usize = 100_000;

/// A skill's place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SkillKey {
    pub(crate) profile: String,
    pub(crate) name: String,
}

impl SkillKey {
    pub(crate) fn read(key: &str) -> Result<Self> {
        let (profile, name) = key.split_once('/').unwrap_or((DEFAULT, key));
        if !profiles::is_name_with(name, b"._-") || !profiles::is_name(profile) {
            return Err(invalid(format!(
                "skillKey: {key:?} is not the name of a skill; {FORM}"
            )));
        }
        Ok(Self {
            profile: profile.to_owned(),
            name: name.to_owned(),
        })
    }

    pub(crate) fn text(&self) -> String {
        match self.profile.as_str() {
            DEFAULT => self.name.clone(),
            profile => format!("{profile}/{}", self.name),
        }
    }
}

/// True if the content is a whole `SKILL.md`.
pub(crate) fn has_front_matter(content: &str) -> bool {
    content.starts_with("---")
}

/// Writes the front matter that content has not.
pub(crate) fn compose(name: &str, description: Option<&String>, content: &str) -> String {
    // A JSON string is a YAML string.
    let description = Value::from(description.map_or(name, String::as_str));
    format!("---\nname: {name}\ndescription: {description}\n---\n\n{content}")
}

/// Content that has front matter, if that says the same as the request.
pub(crate) fn checked(name: &str, description: Option<&String>, content: &str) -> Result<String> {
    let line = |member: &str| {
        let mut lines = content.lines().skip(1).take_while(|line| *line != "---");
        let value = lines.find_map(|line| line.strip_prefix(member)?.strip_prefix(':'))?;
        Some(value.trim().trim_matches(['"', '\'']).to_owned())
    };
    if line("name").as_deref() != Some(name) {
        return Err(invalid(format!(
            "content: its front matter must have the line `name: {name}`, because Hermes takes the key from there"
        )));
    }
    if description.is_some() && line("description").as_ref() != description {
        return Err(invalid(
            "description: it differs from the front matter of content; leave it out, or write the same in one line there",
        ));
    }
    Ok(content.to_owned())
}

pub(crate) fn within_limit(text: String) -> Result<String> {
    match text.chars().count() <= MOST_CHARS {
        true => Ok(text),
        false => Err(invalid(format!(
            "content: it is longer than {MOST_CHARS} characters"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_matter_is_written_or_must_agree_with_the_request() {
        let description = "a: \"b\"\n# c".to_owned();
        assert_eq!(
            compose("dig", Some(&description), "Use paws."),
            "---\nname: dig\ndescription: \"a: \\\"b\\\"\\n# c\"\n---\n\nUse paws."
        );
        assert!(compose("dig", None, "x").contains("description: \"dig\""));
        let own = "---\nname: \"dig\"\ndescription: digs\n---\n\nname: nap";
        for (content, description, named) in [
            (own, None, None),
            (own, Some("digs"), None),
            (own, Some("sleeps"), Some("description")),
            ("---\nname: nap\n---\nx", None, Some("name: dig")),
            ("---", None, Some("name: dig")),
        ] {
            let description = description.map(str::to_owned);
            match (checked("dig", description.as_ref(), content), named) {
                (Ok(text), None) => assert_eq!(text, content),
                (Err(error), Some(part)) => assert!(error.message.contains(part), "{error}"),
                (text, _) => panic!("{content:?}: {text:?}"),
            }
        }
    }

    #[test]
    fn keys_name_a_profile_or_mean_the_default_one() {
        for (key, profile) in [
            ("dig", "default"),
            ("ada/dig.v2", "ada"),
            ("default/dig", "default"),
        ] {
            assert_eq!(SkillKey::read(key).unwrap().profile, profile);
        }
        assert_eq!(SkillKey::read("default/dig").unwrap().text(), "dig");
        for key in [
            "",
            "/dig",
            "ada/",
            "a/b/c",
            "..",
            "Ada/dig",
            "dig&profile=x",
            "ünï",
        ] {
            assert_eq!(
                SkillKey::read(key).unwrap_err().code,
                "invalid_request",
                "{key}"
            );
        }
    }
}
