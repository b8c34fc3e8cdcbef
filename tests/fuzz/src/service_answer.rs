//! Answers of external services: a success has a result, a failure says why, and nothing unprintable becomes a trace id.

use forge_external::answer::{self, Status};

/// Input: a byte for the status, then the body.
pub(crate) fn run(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let status = match first {
        0..128 => Status::Http(100 + 4 * u16::from(*first)),
        _ => Status::Exit(i32::from(*first) - 128),
    };
    let reply = answer::read(status, body, "external command 'a.b'", "; stderr: x");
    let last = reply.diagnostics.last();
    if reply.result.is_none() {
        let last = last.expect("a failure has a diagnostic");
        assert!(last["message"].is_string() && last["code"].is_string());
    }
    assert!(reply.diagnostics.iter().all(|one| one.is_object()));
    assert!(reply.diagnostics.len() <= 101);
    if let Some(id) = reply.trace_id {
        assert!((1..=64).contains(&id.len()));
        assert!(id.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    let again = answer::read(status, body, "external command 'a.b'", "; stderr: x");
    assert_eq!(again.result, reply.result);
}
