//! Template of the command line. A value of a request becomes an argument only in place of a placeholder
//! that the operator wrote; it stays one argument, never passes through a shell and is never an option of
//! the program.

use std::fmt;

use crate::config::Element;

/// Longest argument that Linux accepts, in bytes.
const LONGEST: usize = 128 * 1024 - 1;

/// Value of a request that an argument can contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeholder {
    Prompt,
    Message,
    SystemPrompt,
    Model,
    SessionId,
    /// A new UUID if the request names no session.
    NewSessionId,
    Workspace,
    OutputFile,
    OutputSchema,
    UsageFile,
    TaskId,
    AgentId,
}

const PLACEHOLDERS: [(&str, Placeholder); 12] = [
    ("{prompt}", Placeholder::Prompt),
    ("{message}", Placeholder::Message),
    ("{system_prompt}", Placeholder::SystemPrompt),
    ("{model}", Placeholder::Model),
    ("{session_id}", Placeholder::SessionId),
    ("{new_session_id}", Placeholder::NewSessionId),
    ("{workspace}", Placeholder::Workspace),
    ("{output_file}", Placeholder::OutputFile),
    ("{output_schema}", Placeholder::OutputSchema),
    ("{usage_file}", Placeholder::UsageFile),
    ("{task_id}", Placeholder::TaskId),
    ("{agent_id}", Placeholder::AgentId),
];

/// The parsed `args`.
pub(crate) struct Template(Vec<Group>);

/// Arguments that are included or left out together.
type Group = Vec<Argument>;

enum Argument {
    Literal(String),
    /// `--name={model}`: `before` is written by the operator, so the value cannot be parsed as an option.
    Value {
        before: String,
        placeholder: Placeholder,
        place: Place,
    },
}

/// Meaning of a value that begins with a dash at this place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A plain argument: after a text of the operator or after `--`.
    Safe,
    Option,
}

/// Error in a template or a command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ArgvError {
    Unknown(String),
    NotAtTheEnd(String),
    LooksLikeAnOption(Placeholder),
    TooLong(Placeholder),
    HoldsNul(Placeholder),
}

impl fmt::Display for ArgvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(text) => {
                write!(f, "{text:?} is not a placeholder; available:")?;
                PLACEHOLDERS
                    .iter()
                    .try_for_each(|(name, _)| write!(f, " {name}"))?;
                f.write_str(", and {{ for a brace")
            }
            Self::NotAtTheEnd(text) => {
                write!(
                    f,
                    "{text:?}: a placeholder is a whole argument, or the end of one"
                )
            }
            Self::LooksLikeAnOption(placeholder) => {
                write!(
                    f,
                    "the {} begins with a dash and would be taken for an option",
                    placeholder.name()
                )
            }
            Self::TooLong(placeholder) => write!(
                f,
                "the {} exceeds the limit of {LONGEST} bytes for an argument; pass it on stdin",
                placeholder.name()
            ),
            Self::HoldsNul(placeholder) => write!(f, "the {} contains a NUL", placeholder.name()),
        }
    }
}

impl Placeholder {
    fn name(self) -> &'static str {
        let named = PLACEHOLDERS
            .iter()
            .find(|(_, placeholder)| *placeholder == self);
        named.map_or("", |(name, _)| name.trim_matches(['{', '}']))
    }

    /// True for text meant for the model, in which an additional space does not change the meaning.
    fn is_prose(self) -> bool {
        match self {
            Self::Prompt | Self::Message | Self::SystemPrompt => true,
            Self::Model
            | Self::SessionId
            | Self::NewSessionId
            | Self::Workspace
            | Self::OutputFile
            | Self::OutputSchema
            | Self::UsageFile
            | Self::TaskId
            | Self::AgentId => false,
        }
    }
}

impl Template {
    pub(crate) fn parse(elements: &[Element]) -> Result<Self, ArgvError> {
        // No argument after `--` is an option.
        let mut place = Place::Option;
        let mut group = |texts: &[String]| -> Result<Group, ArgvError> {
            texts
                .iter()
                .map(|text| {
                    let argument = Argument::parse(text, place)?;
                    if text == "--" {
                        place = Place::Safe;
                    }
                    Ok(argument)
                })
                .collect()
        };
        let groups = elements.iter().map(|element| match element {
            Element::One(text) => group(std::slice::from_ref(text)),
            Element::Group(texts) => group(texts),
        });
        groups.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn has(&self, wanted: Placeholder) -> bool {
        self.0.iter().flatten().any(|argument| match argument {
            Argument::Literal(_) => false,
            Argument::Value { placeholder, .. } => *placeholder == wanted,
        })
    }

    /// The arguments with these values. A group is left out if one of its placeholders has no value.
    pub(crate) fn fill(
        &self,
        value: impl Fn(Placeholder) -> Option<String>,
    ) -> Result<Vec<String>, ArgvError> {
        let mut filled = Vec::new();
        for group in &self.0 {
            let arguments: Option<Vec<_>> =
                group.iter().map(|argument| argument.fill(&value)).collect();
            for argument in arguments.into_iter().flatten() {
                filled.push(argument?);
            }
        }
        Ok(filled)
    }
}

impl Argument {
    fn parse(text: &str, place: Place) -> Result<Self, ArgvError> {
        let known = PLACEHOLDERS
            .iter()
            .find_map(|(name, placeholder)| Some((text.strip_suffix(name)?, *placeholder)));
        let (before, placeholder) = match known {
            Some((before, placeholder)) => (before, Some(placeholder)),
            None => (text, None),
        };
        let literal = before.replace("{{", "\0");
        if PLACEHOLDERS.iter().any(|(name, _)| literal.contains(name)) {
            return Err(ArgvError::NotAtTheEnd(text.to_owned()));
        }
        if literal.contains('{') {
            return Err(ArgvError::Unknown(text.to_owned()));
        }
        let before = literal.replace('\0', "{");
        Ok(match placeholder {
            None => Self::Literal(before),
            Some(placeholder) => Self::Value {
                place: if before.is_empty() {
                    place
                } else {
                    Place::Safe
                },
                before,
                placeholder,
            },
        })
    }

    fn fill(
        &self,
        value: &impl Fn(Placeholder) -> Option<String>,
    ) -> Option<Result<String, ArgvError>> {
        match self {
            Self::Literal(text) => Some(Ok(text.clone())),
            Self::Value {
                before,
                placeholder,
                place,
            } => Some(argument(
                before,
                &value(*placeholder)?,
                *placeholder,
                *place,
            )),
        }
    }
}

fn argument(
    before: &str,
    value: &str,
    placeholder: Placeholder,
    place: Place,
) -> Result<String, ArgvError> {
    let dash = match (
        value.starts_with('-') && place == Place::Option,
        placeholder.is_prose(),
    ) {
        (false, _) => "",
        (true, true) => " ",
        (true, false) => return Err(ArgvError::LooksLikeAnOption(placeholder)),
    };
    let text = format!("{before}{dash}{value}");
    if text.contains('\0') {
        return Err(ArgvError::HoldsNul(placeholder));
    }
    if text.len() > LONGEST {
        return Err(ArgvError::TooLong(placeholder));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(groups: &[&[&str]]) -> Template {
        let elements: Vec<Element> = groups
            .iter()
            .map(|texts| Element::Group(texts.iter().map(|text| (*text).to_owned()).collect()))
            .collect();
        Template::parse(&elements).unwrap()
    }

    fn filled(
        groups: &[&[&str]],
        prompt: &str,
        model: Option<&str>,
    ) -> Result<Vec<String>, ArgvError> {
        template(groups).fill(|placeholder| match placeholder {
            Placeholder::Prompt => Some(prompt.to_owned()),
            Placeholder::Model => model.map(str::to_owned),
            _ => None,
        })
    }

    #[test]
    fn values_are_whole_arguments_and_groups_without_a_value_are_left_out() {
        let args: [&[&str]; 3] = [&["-z"], &["{prompt}"], &["--model", "{model}"]];
        assert_eq!(
            filled(&args, "a \"b\"; $(rm -rf /) {model}", None).unwrap(),
            ["-z", "a \"b\"; $(rm -rf /) {model}"]
        );
        assert_eq!(
            filled(&args, "a", Some("m")).unwrap(),
            ["-z", "a", "--model", "m"]
        );
        assert_eq!(
            filled(&[&["{{x}", "--p={prompt}"]], "-a", None).unwrap(),
            ["{x}", "--p=-a"]
        );
    }

    #[test]
    fn a_value_is_never_an_option() {
        assert_eq!(
            filled(&[&["{prompt}"]], "--help", None).unwrap(),
            [" --help"]
        );
        assert_eq!(
            filled(&[&["--"], &["{prompt}"]], "--help", None).unwrap(),
            ["--", "--help"]
        );
        assert_eq!(
            filled(&[&["--model", "{model}"]], "", Some("--allow-all")),
            Err(ArgvError::LooksLikeAnOption(Placeholder::Model))
        );
        assert_eq!(
            filled(&[&["--model={model}"]], "", Some("--x")).unwrap(),
            ["--model=--x"]
        );
    }

    #[test]
    fn what_no_argument_can_hold_is_refused() {
        assert_eq!(
            filled(&[&["{prompt}"]], "a\0b", None),
            Err(ArgvError::HoldsNul(Placeholder::Prompt))
        );
        assert_eq!(
            filled(&[&["{prompt}"]], &"a".repeat(LONGEST + 1), None),
            Err(ArgvError::TooLong(Placeholder::Prompt))
        );
    }

    #[test]
    fn what_is_no_placeholder_is_an_error_of_the_template() {
        let parse = |text: &str| {
            Template::parse(&[Element::One(text.to_owned())])
                .err()
                .unwrap()
        };
        assert_eq!(
            parse("{nothing}"),
            ArgvError::Unknown("{nothing}".to_owned())
        );
        assert_eq!(
            parse("{prompt}.txt"),
            ArgvError::NotAtTheEnd("{prompt}.txt".to_owned())
        );
    }
}
