//! Attachments of requests.

use std::path::Path;

use forge_adapter_api::request::Attachment;

/// Picture of one pixel in base64, for runtimes that look into it.
pub const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// An attachment whose content is a file of this folder.
pub fn attached(folder: &Path, name: &str, media_type: &str, content: &[u8]) -> Attachment {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    Attachment {
        name: name.to_owned(),
        media_type: media_type.to_owned(),
        bytes: content.len() as u64,
        path,
    }
}
