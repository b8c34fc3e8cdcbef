//! Attachments that the program passes on to the model, and files that it writes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_adapter_api::result::FileContent;
use forge_test_support::attachment::{PICTURE, attached};
use forge_test_support::execution::record;
use serde_json::{Value, json};

use crate::bench::Bench;

#[tokio::test]
async fn a_picture_a_document_and_a_text_reach_the_model() {
    let bench = Bench::new().await;
    let folder = tempfile::tempdir().unwrap();
    let attached = |name: &str, media_type: &str, content: &[u8]| {
        attached(folder.path(), name, media_type, content)
    };
    let picture = STANDARD.decode(PICTURE).unwrap();
    let mut request = bench.request("look");
    request.attachments = vec![
        attached("a.png", "image/png", &picture),
        attached("b.pdf", "application/pdf", b"%PDF-1.4 not really"),
        attached("c.md", "text/markdown", b"the text"),
    ];
    bench.run(request.clone()).await.succeeded();
    let asked = bench.model.requests().pop().unwrap().body;
    let messages = asked["messages"].as_array().unwrap();
    let blocks: Vec<&Value> = messages
        .iter()
        .flat_map(|message| message["content"].as_array().into_iter().flatten())
        .collect();
    let of = |kind: &str| {
        let block = blocks.iter().find(|block| block["type"] == kind);
        block.unwrap_or_else(|| panic!("no {kind} in {asked}"))["source"].clone()
    };
    assert_eq!(of("image")["media_type"], "image/png");
    let document = json!({
        "type": "base64", "media_type": "application/pdf", "data": STANDARD.encode("%PDF-1.4 not really"),
    });
    assert_eq!(of("document"), document);
    assert!(
        asked.to_string().contains("# c.md\\n\\nthe text"),
        "{asked}"
    );

    request.attachments = vec![attached("d.zip", "application/zip", b"PK")];
    let (refused, _) = record(&bench.adapter, request, "", async || {}).await;
    assert_eq!(refused.unwrap_err().code, "attachment_not_supported");
}

#[tokio::test]
async fn a_written_file_is_an_output_file() {
    let bench = Bench::new().await;
    let file = bench.workspace.path().join("notes.txt");
    let call = json!({"file_path": file, "content": "noted"});
    let ran = bench.say(&format!("CALL Write {call}")).await;
    ran.succeeded();
    let files = &ran.result.output_files;
    assert_eq!(files.len(), 1, "{:?}", ran.events);
    assert_eq!(files[0].content, FileContent::Path("notes.txt".into()));
}
