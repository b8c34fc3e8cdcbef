//! JSON mapping of protobuf messages, bounded. Pure.

use std::io;

use bytes::Bytes;
use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};

/// Reason why a message has no JSON.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("its JSON is too long")]
    TooLong,
    #[error("{0}")]
    Message(#[from] prost_reflect::prost::DecodeError),
    #[error("{0}")]
    Json(serde_json::Error),
}

/// Reads a message from JSON; a field that it does not have is an error.
pub fn encode(descriptor: MessageDescriptor, json: &str) -> Result<Vec<u8>, String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let message = DynamicMessage::deserialize(descriptor, &mut reader);
    let message = message.and_then(|message| reader.end().map(|()| message));
    match message {
        Ok(message) => Ok(message.encode_to_vec()),
        Err(error) => Err(error.to_string()),
    }
}

/// Writes a message as JSON of at most `limit` bytes. Fields with their default value are left out.
pub fn decode(
    descriptor: MessageDescriptor,
    message: Bytes,
    limit: usize,
) -> Result<Vec<u8>, Unreadable> {
    let message = DynamicMessage::decode(descriptor, message)?;
    let mut bounded = Bounded {
        bytes: Vec::new(),
        limit,
    };
    match serde_json::to_writer(&mut bounded, &message) {
        Ok(()) => Ok(bounded.bytes),
        Err(error) if error.is_io() => Err(Unreadable::TooLong),
        Err(error) => Err(Unreadable::Json(error)),
    }
}

/// Fails above its limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + part.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
