//! Keys and texts of skills.

use forge_adapter_api::{AdapterError, Result};
use serde_json::Value;

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
        let mut bytes = name.bytes();
        let begins = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_name = name.len() <= 64
            && bytes.next().is_some_and(begins)
            && bytes.all(|byte| begins(byte) || matches!(byte, b'.' | b'_' | b'-'));
        if !is_name || !profiles::is_name(profile) {
            let text = format!("skillKey: {key:?} is not the name of a skill; {FORM}");
            return Err(AdapterError::new("invalid_request", text));
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

/// The text of a `SKILL.md`. Content with front matter of its own is kept, if that says the same as the request.
pub(crate) fn compose(name: &str, description: Option<&str>, content: String) -> Result<String> {
    if content.chars().count() > MOST_CHARS {
        let text = format!("content: it is longer than {MOST_CHARS} characters");
        return Err(invalid(&text));
    }
    let Some(rest) = content.strip_prefix("---") else {
        let description = description.unwrap_or(name);
        // A JSON string is a YAML string.
        let description = Value::from(description);
        return Ok(format!(
            "---\nname: {name}\ndescription: {description}\n---\n\n{content}"
        ));
    };
    let head = rest.split("\n---").next().unwrap_or_default();
    let line = |member: &str| {
        let mut lines = head.lines();
        let value = lines.find_map(|line| line.strip_prefix(member)?.strip_prefix(':'));
        value.map(|value| value.trim().trim_matches(['"', '\'']).to_owned())
    };
    if line("name").as_deref() != Some(name) {
        return Err(invalid(&format!(
            "content: its front matter must have the line `name: {name}`, because Hermes takes the key from there"
        )));
    }
    let said = line("description");
    if description.is_some_and(|wanted| said.as_deref() != Some(wanted)) {
        return Err(invalid(
            "description: it differs from the front matter of content; leave it out, or write the same in one line there",
        ));
    }
    Ok(content)
}

pub(crate) fn invalid(text: &str) -> AdapterError {
    AdapterError::new("invalid_request", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_matter_is_written_or_must_agree_with_the_request() {
        let own = "---\nname: \"dig\"\ndescription: digs\n---\n\nUse paws.";
        let cases = [
            (
                "Use paws.",
                None,
                Ok("---\nname: dig\ndescription: \"dig\"\n---\n\nUse paws."),
            ),
            (
                "Use paws.",
                Some("a: \"b\"\n# c"),
                Ok("---\nname: dig\ndescription: \"a: \\\"b\\\"\\n# c\"\n---\n\nUse paws."),
            ),
            (own, None, Ok(own)),
            (own, Some("digs"), Ok(own)),
            (own, Some("sleeps"), Err("description")),
            ("---\nname: nap\n---\nx", None, Err("name: dig")),
            ("---", None, Err("name: dig")),
        ];
        for (content, description, expected) in cases {
            let text = compose("dig", description, content.to_owned());
            match (text, expected) {
                (Ok(text), Ok(expected)) => assert_eq!(text, expected),
                (Err(error), Err(part)) => assert!(error.message.contains(part), "{error}"),
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
