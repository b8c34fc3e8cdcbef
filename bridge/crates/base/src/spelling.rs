//! Suggestions for misspelt names: settings, query parameters, fields of a request.

/// Nearest known name for a misspelt one, if any is close enough: two edits, or a quarter of a long name.
/// Case does not count.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = wanted.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&wanted, &name.to_lowercase());
    known
        .into_iter()
        .map(|name| (distance(name), name))
        .filter(|(distance, name)| *distance <= 2.max(name.len() / 4))
        .min()
        .map(|(_, name)| name)
}

/// `callbackUrl` → `callback_url`.
pub fn snake_case(camel: &str) -> String {
    let mut snake = String::with_capacity(camel.len() + 4);
    for letter in camel.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_and_another_is_not() {
        let known = ["host", "since", "status", "timeoutSeconds"];
        for (wanted, expected) in [
            ("sinse", Some("since")),
            ("sicne", Some("since")),
            ("statuss", Some("status")),
            ("timeoutSecs", Some("timeoutSeconds")),
            ("wildly", None),
            ("", None),
        ] {
            assert_eq!(nearest(wanted, known), expected, "{wanted}");
        }
    }

    #[test]
    fn a_capital_becomes_an_underscore() {
        assert_eq!(snake_case("callbackUrl"), "callback_url");
        assert_eq!(snake_case("host"), "host");
    }
}
