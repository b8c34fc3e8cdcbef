//! Successful runs with either protocol version and without streaming.

use forge_adapter_api::result::{FileContent, OutputFile};
use forge_test_support::attachment::attached;

use crate::bench::Bench;

const KINDS: [&str; 3] = ["both", "0.3", "plain"];

#[tokio::test]
async fn every_kind_of_agent_answers_streams_and_asks() {
    for kind in KINDS {
        let bench = Bench::new(kind).await;
        let mut request = bench.request("hello");
        request.system_prompt = Some("You answer.".to_owned());
        let ran = bench.run(request).await;
        assert!(
            ran.succeeded().starts_with("pong: "),
            "{kind}: {:?}",
            ran.result
        );
        assert_eq!(ran.text(), ran.succeeded(), "{kind}");
        assert_eq!(
            ran.result.usage,
            forge_adapter_api::Usage::default(),
            "{kind}: the protocol has none"
        );
        assert_eq!(ran.all("session.updated").len(), 1, "{kind}");
        let asked = bench.model.requests().pop().unwrap().body.to_string();
        assert!(
            asked.contains("You answer.") && asked.contains("hello"),
            "{kind}: {asked}"
        );

        let pieces = bench.say("PIECES please").await;
        assert_eq!(pieces.succeeded(), "one two three", "{kind}");
        assert_eq!(pieces.text(), "one two three", "{kind}");

        let asked = bench.say("ASK me").await;
        assert_eq!(asked.failed("input_required"), "which?", "{kind}");
        assert_eq!(
            asked.result.input_request.as_ref().unwrap()["text"],
            "which?",
            "{kind}"
        );
        let mut answer = bench.request("plums");
        answer.session_id = asked.result.session_id.clone();
        let answered = bench.run(answer).await;
        let context = answered.result.session_id.clone().unwrap();
        assert!(
            asked.result.session_id.unwrap().starts_with(&context),
            "{kind}"
        );
        // The agent adds the context if its task existed before.
        assert!(
            answered.succeeded().ends_with(&format!("[{context}]")),
            "{kind}: {:?}",
            answered.result
        );

        let mut next = bench.request("more");
        next.session_id = Some(context.clone());
        let next = bench.run(next).await;
        assert!(!next.succeeded().contains(&context), "{kind}: a new task");
        assert_eq!(
            next.result.session_id,
            Some(context),
            "{kind}: in the same context"
        );
    }
}

#[tokio::test]
async fn an_artifact_can_be_as_large_as_an_output() {
    for kind in KINDS {
        let ran = Bench::new(kind).await.say("HUGE please").await;
        assert_eq!(ran.succeeded().len(), 6 << 20, "{kind}");
        assert_eq!(ran.text().len(), 6 << 20, "{kind}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_taken_up_again() {
    for kind in ["both", "0.3"] {
        let bench = Bench::new(kind).await;
        let ran = bench.say("PIECES and DROP").await;
        assert_eq!(ran.succeeded(), "one two three", "{kind}");
        assert_eq!(ran.text(), "one two three", "{kind}");
    }
}

#[tokio::test]
async fn files_go_to_the_agent_and_come_back() {
    for kind in KINDS {
        let bench = Bench::new(kind).await;
        let folder = tempfile::tempdir().unwrap();
        let attached = |name: &str, media_type: &str, content: &[u8]| {
            attached(folder.path(), name, media_type, content)
        };
        let mut request = bench.request("RETURN them");
        request.attachments = vec![
            attached("a.png", "image/png", b"one"),
            attached("b.pdf", "application/pdf", b"two"),
        ];
        let ran = bench.run(request).await;
        ran.succeeded();
        let returned = |name: &str, media_type: &str, content: &str| OutputFile {
            name: name.to_owned(),
            media_type: Some(media_type.to_owned()),
            content: FileContent::Data(content.to_owned()),
        };
        let expected = [
            returned("a.png", "image/png", "b25l"),
            returned("b.pdf", "application/pdf", "dHdv"),
        ];
        assert_eq!(ran.result.output_files, expected, "{kind}");
    }
}
