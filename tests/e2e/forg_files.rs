//! Files of tools that `forg emit` reads, and its own, which can be pipes and links.

use std::fs;

use serde_json::json;

use super::emit::{Fake, code, message, records};

/// Puts something in the place of a file.
type Make<'a> = &'a dyn Fn(&str);

/// A transcript that is no regular file, or one that a link names: nothing is waited for, it is said, and the record of
/// the hook itself is sent.
#[tokio::test]
async fn a_transcript_that_is_a_pipe_or_a_link_is_left_out_and_nothing_waits_for_it() {
    let fake = Fake::start().await;
    fake.answer(&json!({}));
    let elsewhere = fake.home.path().join("elsewhere");
    fs::write(&elsewhere, message("msg_1")).unwrap();
    let pipe = |path: &str| {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
    };
    let link = |path: &str| std::os::unix::fs::symlink(&elsewhere, path).unwrap();
    let cases: [(Make<'_>, &str); 2] = [(&pipe, "not a regular file"), (&link, "it is a link")];
    for (number, (make, reason)) in cases.into_iter().enumerate() {
        make(&fake.transcript());
        let output = fake.hook("PostToolUse").await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((code(&output), &*output.stdout), (0, &b""[..]), "{said}");
        assert!(said.contains("the transcript cannot be read"), "{said}");
        assert!(said.contains(reason), "{said}");
        fs::remove_file(fake.transcript()).unwrap();
        // Without a model, nothing is known that PostToolUse could report.
        let output = fake.hook("UserPromptSubmit").await;
        assert_eq!(code(&output), 0, "{output:?}");
        assert_eq!(records(&fake.sink.received()).len(), number + 1);
    }
    // The state of forg, too: a pipe in its place is replaced.
    fs::write(fake.transcript(), message("msg_1")).unwrap();
    fake.hook("UserPromptSubmit").await;
    let states = fake.home.path().join(".local/state/forg/sessions");
    let mark = fs::read_dir(states).unwrap().next().unwrap().unwrap();
    fs::remove_file(mark.path()).unwrap();
    pipe(mark.path().to_str().unwrap());
    let output = fake.hook("UserPromptSubmit").await;
    assert_eq!((code(&output), output.stderr.as_slice()), (0, &b""[..]));
    assert_eq!(fs::read_to_string(mark.path()).unwrap(), "msg_1");
}
