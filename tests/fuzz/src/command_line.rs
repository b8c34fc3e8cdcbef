//! Command lines of stdio services: words that are quoted again are read as the same words.

use forge_external::manifest::command_line::split;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(words) = split(&text) else { return };
    assert!(!words[0].is_empty());
    let quoted: Vec<_> = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
        .collect();
    assert_eq!(split(&quoted.join(" ")).unwrap(), words);
}
