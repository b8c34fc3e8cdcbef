//! Attachments as content blocks of the prompt.

use forge_adapter_api::{AdapterError, Result};
use forge_adapter_transport::attachments::{Attachments, Kind, NOT_SUPPORTED};
use serde_json::{Value, json};

use crate::agent::PromptContent;

/// Fails for the first attachment that the agent does not take.
pub(crate) async fn blocks(attachments: &Attachments, takes: PromptContent) -> Result<Vec<Value>> {
    let texts = attachments.texts().await?;
    let mut blocks: Vec<Value> = texts
        .iter()
        .map(|text| json!({"type": "text", "text": text}))
        .collect();
    for part in attachments.parts() {
        match part.kind {
            Kind::Text => {}
            Kind::Image if takes.images => blocks.push(json!({
                "type": "image", "mimeType": part.media_type, "data": part.base64,
            })),
            Kind::Image | Kind::Pdf | Kind::Other if takes.files => {
                let uri = format!("attachment:{}", part.name);
                blocks.push(json!({"type": "resource", "resource": {
                    "uri": uri, "mimeType": part.media_type, "blob": part.base64,
                }}));
            }
            Kind::Image | Kind::Pdf | Kind::Other => {
                let taken = match takes.images {
                    true => "images and text only",
                    false => "text only",
                };
                let text = format!(
                    "attachment {:?} is {}; this agent takes {taken}",
                    part.name, part.media_type
                );
                return Err(AdapterError::new(NOT_SUPPORTED, text));
            }
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use forge_test_support::attachment::attached;

    use super::*;

    #[tokio::test]
    async fn an_agent_gets_what_it_says_that_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        let attached =
            |name: &str, media_type: &str| attached(folder.path(), name, media_type, b"abc");
        let all = Attachments::new(&[
            attached("a.txt", "text/plain"),
            attached("b.png", "image/png"),
            attached("c.pdf", "application/pdf"),
        ]);
        for (images, files, expected) in [
            (true, true, Ok(["text", "image", "resource"])),
            (false, true, Ok(["text", "resource", "resource"])),
            (true, false, Err("c.pdf")),
            (false, false, Err("b.png")),
        ] {
            let found = blocks(&all, PromptContent { images, files }).await;
            let types = found.map(|blocks| {
                let types = blocks.iter().map(|block| block["type"].as_str().unwrap());
                types.map(str::to_owned).collect::<Vec<_>>()
            });
            match (types, expected) {
                (Ok(types), Ok(expected)) => assert_eq!(types, expected),
                (Err(error), Err(name)) => {
                    assert_eq!(error.code, NOT_SUPPORTED);
                    assert!(error.message.contains(name), "{}", error.message);
                }
                (found, expected) => panic!("{found:?} is not {expected:?}"),
            }
        }
    }
}
