//! Names of a dispatch at the gateway: its session and its runs. Pure.

use forge_adapter_api::ExecutionRequest;
use ring::digest::{SHA256, digest};

pub(crate) struct Session {
    /// Id for the bridge.
    pub(crate) id: String,
    /// Agent of the gateway.
    pub(crate) agent: String,
    pub(crate) key: String,
}

impl Session {
    /// The session of the request, else one of its own.
    pub(crate) fn of(request: &ExecutionRequest, agent: &str) -> Self {
        let id = request.session_id.as_deref().unwrap_or(dispatch(request));
        Self {
            id: id.to_owned(),
            agent: agent.to_owned(),
            key: format!("agent:{agent}:{}", name(id)),
        }
    }
}

/// Id of the run, which is its idempotency key: that of the dispatch, so that a later attempt finds the run of an
/// earlier one. A hash of the message follows, since the bridge can ask again in the same attempt; runs after a failed
/// one have a number.
pub(crate) fn run_id(request: &ExecutionRequest, number: u32) -> String {
    let hash = hex(request.message.as_bytes());
    format!("{}/{}/{number}", dispatch(request), &hash[..12])
}

fn dispatch(request: &ExecutionRequest) -> &str {
    let (without_attempt, _) = request
        .execution_id
        .rsplit_once('/')
        .unwrap_or((&request.execution_id, ""));
    request
        .meta
        .dispatch_id
        .as_deref()
        .unwrap_or(without_attempt)
}

/// The id as part of a key. The gateway makes keys lower case and reads colons, so that other ids are hashed.
fn name(id: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if (1..=128).contains(&id.len()) && id.chars().all(plain) {
        return id.to_owned();
    }
    hex(id.as_bytes())
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    hash.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_with_different_ids_have_different_keys() {
        let key = |id: &str| {
            let request = ExecutionRequest {
                session_id: Some(id.to_owned()),
                ..ExecutionRequest::sample("")
            };
            Session::of(&request, "main").key
        };
        assert_eq!(key("a-1"), "agent:main:a-1");
        assert_ne!(key("A-1"), key("a-1"));
        assert_ne!(key("a:1"), key("a/1"));
        let own = Session::of(&ExecutionRequest::sample(""), "main");
        assert_eq!(
            (own.id.as_str(), own.key.as_str()),
            ("dsp_sample", "agent:main:dsp_sample")
        );
        let ids = [("a", 1), ("a", 2), ("b", 1)]
            .map(|(message, n)| run_id(&ExecutionRequest::sample(message), n));
        assert!(ids[0].starts_with("dsp_sample/") && ids[0] != ids[1] && ids[0] != ids[2]);
    }
}
