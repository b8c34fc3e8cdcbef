//! Difference between an agent in the runtime and the members that a file wants.

use serde_json::{Value, json};

use super::super::lines;
use super::{Exit, Runtime, Tone, exit};

/// Prints the members of a file that the runtime has otherwise. Those of the runtime alone are not compared: a push of
/// the file leaves them as they are.
pub(super) fn print(runtime: &Runtime<'_>, actual: &Value, wanted: &Value, file: &str) -> Exit {
    let screen = &runtime.screen;
    let wanted = wanted.as_object().into_iter().flatten();
    let differences: Vec<_> = wanted
        .map(|(name, wanted)| (name, shown(&actual[name], wanted)))
        .filter(|(_, (old, new))| !lines::changes(old, new).is_empty())
        .collect();
    if runtime.json {
        let entry = |(name, (old, new)): &(&String, _)| json!({"member": name, "runtime": old, "file": new});
        screen.value(&differences.iter().map(entry).collect())?;
    } else if !differences.is_empty() {
        screen.line(screen.paint(Tone::Quiet, format_args!("- in the runtime, + in {file}")))?;
        for (name, (old, new)) in &differences {
            screen.line(screen.paint(Tone::Strong, name))?;
            lines::print(screen, old, new)?;
        }
    }
    Ok(exit(differences.is_empty()))
}

/// Both values as texts, or both as JSON. An absent text is an empty one. Line ends do not count, since runtimes change
/// them.
fn shown(actual: &Value, wanted: &Value) -> (String, String) {
    let text = |value: &Value| match value {
        Value::Null => Some(String::new()),
        value => value.as_str().map(str::to_owned),
    };
    let json = || (format!("{actual:#}"), format!("{wanted:#}"));
    text(actual).zip(text(wanted)).unwrap_or_else(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_text_is_an_empty_one_and_line_ends_do_not_count() {
        for (actual, wanted, count) in [
            (json!("a"), json!("b"), 2),
            (json!("a\nb"), json!("a\r\nb\n"), 0),
            (Value::Null, json!(""), 0),
            (json!("1"), json!(1), 2),
            (json!(["a"]), json!(["a"]), 0),
            (json!(["a"]), Value::Null, 4),
        ] {
            let (old, new) = shown(&actual, &wanted);
            assert_eq!(lines::changes(&old, &new).len(), count, "{actual} {wanted}");
        }
    }
}
