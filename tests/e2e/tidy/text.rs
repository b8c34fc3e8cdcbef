//! A lexer for Rust sources: code without comments and literals, and the literals.

/// A source taken apart: code with blanked comments and literals, and the literals.
pub(super) struct Text {
    code: String,
    pub(super) literals: String,
}

impl Text {
    pub(super) fn read(source: &str) -> Self {
        let (mut code, mut literals) = (String::new(), String::new());
        let mut rest = source;
        while let Some(first) = rest.chars().next() {
            let (length, literal) = token(rest);
            if literal {
                literals.push_str(&rest[..length]);
                literals.push('\n');
            }
            if length > 0 {
                let lines = rest[..length].matches('\n').count();
                code.push_str(&"\n".repeat(lines));
                code.push(' ');
                rest = &rest[length..];
            } else {
                code.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        Self { code, literals }
    }

    pub(super) fn before_tests(&self) -> Text {
        let code = match self.code.find("#[cfg(test)]\nmod ") {
            Some(at) => &self.code[..at],
            None => &self.code,
        };
        Text {
            code: code.to_owned(),
            literals: String::new(),
        }
    }

    pub(super) fn has_word(&self, word: &str) -> bool {
        let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
        self.code.match_indices(word).any(|(at, _)| {
            !self.code[..at].ends_with(part_of_name)
                && !self.code[at + word.len()..].starts_with(part_of_name)
        })
    }

    /// `a::b` of each `crate::a::b`, with `crate::{a, b::{c, d}}` taken apart at the first level.
    pub(super) fn crate_paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for (at, found) in self.code.match_indices("crate::") {
            let before = &self.code[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            let rest = &self.code[at + found.len()..];
            match rest.strip_prefix('{') {
                Some(group) => paths.extend(members(group)),
                None => paths.push(plain(rest)),
            }
        }
        paths
    }
}

fn members(group: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut members = vec![String::new()];
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => members.push(String::new()),
            _ => {
                depth = match c {
                    '{' => depth + 1,
                    '}' => depth - 1,
                    _ => depth,
                };
                members.last_mut().unwrap().push(c);
            }
        }
    }
    members.iter().map(|member| plain(member.trim())).collect()
}

fn plain(rest: &str) -> String {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    rest[..end.unwrap_or(rest.len())].to_owned()
}

/// The length of the comment or literal that `rest` begins with, and whether it is a string.
fn token(rest: &str) -> (usize, bool) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), false);
    }
    if rest.starts_with("/*") {
        return (rest.find("*/").map_or(rest.len(), |at| at + 2), false);
    }
    if let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = 1 + hashes + 1;
            let length = rest[body..].find(&end);
            return (length.map_or(rest.len(), |at| body + at + end.len()), true);
        }
    }
    if rest.starts_with('"') {
        return (quoted(rest, '"'), true);
    }
    if let Some(after) = rest.strip_prefix('\'') {
        let mut chars = after.chars();
        let escaped = chars.next() == Some('\\');
        if escaped || chars.next() == Some('\'') {
            return (quoted(rest, '\''), false);
        }
    }
    (0, false)
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if !escaped && c == quote {
            return at + 1;
        }
        escaped = !escaped && c == '\\';
    }
    rest.len()
}
