//! Command line of a stdio service, split into words as a shell does, but without a shell.

/// Mistake in a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandLineError {
    #[error("a {0} quote is not closed")]
    OpenQuote(&'static str),
    #[error("it ends with a backslash")]
    TrailingBackslash,
    #[error("it names no program")]
    NoProgram,
}

/// Splits at white space. Single quotes keep everything; in double quotes and outside of quotes a backslash keeps the
/// next character.
pub fn split(line: &str) -> Result<Vec<String>, CommandLineError> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('\'') => break,
                        Some(other) => word.push(other),
                        None => return Err(CommandLineError::OpenQuote("single")),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some('\\') => word.extend(characters.next()),
                        Some(other) => word.push(other),
                        None => return Err(CommandLineError::OpenQuote("double")),
                    }
                }
            }
            '\\' => {
                let next = characters.next();
                let next = next.ok_or(CommandLineError::TrailingBackslash)?;
                word.get_or_insert_default().push(next);
            }
            space if space.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    match words.first().is_some_and(|program| !program.is_empty()) {
        true => Ok(words),
        false => Err(CommandLineError::NoProgram),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        for (line, words) in [
            ("node server.js", vec!["node", "server.js"]),
            ("  a\t b\n", vec!["a", "b"]),
            ("a 'b c' \"d e\"", vec!["a", "b c", "d e"]),
            (r#"a "x\"y\\z\n""#, vec!["a", "x\"y\\zn"]),
            (r"a 'x\y' b\ c", vec!["a", r"x\y", "b c"]),
            ("a '' \"\"", vec!["a", "", ""]),
            ("a'b'\"c\"d", vec!["abcd"]),
            (
                "a $HOME `b` ; c | d",
                vec!["a", "$HOME", "`b`", ";", "c", "|", "d"],
            ),
        ] {
            assert_eq!(split(line).unwrap(), words, "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (line, error) in [
            ("a 'b", CommandLineError::OpenQuote("single")),
            ("a \"b", CommandLineError::OpenQuote("double")),
            ("a \"b\\", CommandLineError::OpenQuote("double")),
            ("a b\\", CommandLineError::TrailingBackslash),
            ("  ", CommandLineError::NoProgram),
            ("'' a", CommandLineError::NoProgram),
        ] {
            assert_eq!(split(line), Err(error), "{line}");
        }
    }
}
