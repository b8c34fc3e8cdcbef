//! Fake client library of Acme AI, a company that does not exist. It answers locally and deterministically:
//! it repeats the prompt word by word.

use std::time::Duration;

/// Error of Acme's API.
#[derive(Debug)]
pub enum Error {
    /// No key, or an empty one.
    Unauthenticated,
    /// The model does not exist.
    UnknownModel(String),
}

/// A connection to Acme AI.
pub struct Client {
    api_key: Option<String>,
}

/// A generation in progress.
pub struct Generation {
    words: std::vec::IntoIter<String>,
    each: Duration,
    /// Words of system prompt and prompt.
    pub input_tokens: u64,
    /// Words generated so far.
    pub output_tokens: u64,
}

impl Client {
    pub fn new(api_key: Option<String>) -> Self {
        Self { api_key }
    }

    pub fn has_key(&self) -> bool {
        self.api_key.is_some()
    }

    pub fn generate(&self, model: &str, system: &str, prompt: &str) -> Result<Generation, Error> {
        if !self.has_key() {
            return Err(Error::Unauthenticated);
        }
        let each = match model {
            "acme-1" => Duration::ZERO,
            "acme-1-slow" => Duration::from_secs(1),
            other => return Err(Error::UnknownModel(other.to_owned())),
        };
        let words: Vec<String> = prompt.split_inclusive(' ').map(str::to_owned).collect();
        let input = words.len() + system.split_whitespace().count();
        Ok(Generation {
            words: words.into_iter(),
            each,
            input_tokens: u64::try_from(input).unwrap_or(u64::MAX),
            output_tokens: 0,
        })
    }
}

impl Generation {
    /// The next piece of text; `None` at the end.
    pub async fn next(&mut self) -> Option<String> {
        let word = self.words.next()?;
        tokio::time::sleep(self.each).await;
        self.output_tokens += 1;
        Some(word)
    }
}
