//! JSON of protobuf messages: a message that was read is written as JSON, and read again from it as the same message.

use bytes::Bytes;
use forge_external::transport::grpc::mapping;
use prost_reflect::DescriptorPool;

/// Message types with a mapping of their own, and one with every kind of field.
const TYPES: [&str; 8] = [
    "Any",
    "Duration",
    "FieldMask",
    "FileDescriptorProto",
    "Struct",
    "Timestamp",
    "UninterpretedOption",
    "Value",
];
const LIMIT: usize = 256 * 1024;

/// Input: a byte for the message type and the direction, then JSON or a message.
pub(crate) fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let name = TYPES[usize::from(*first) % TYPES.len()];
    let pool = DescriptorPool::global();
    let found = pool.get_message_by_name(&format!("google.protobuf.{name}"));
    let descriptor = found.unwrap();
    let message = match (*first < 128, std::str::from_utf8(rest)) {
        (true, Ok(json)) => match mapping::encode(descriptor.clone(), json) {
            Ok(message) => message,
            Err(reason) => {
                assert!(!reason.is_empty());
                return;
            }
        },
        (true, Err(_)) => return,
        (false, _) => rest.to_vec(),
    };
    let Ok(json) = mapping::decode(descriptor.clone(), Bytes::from(message), LIMIT) else {
        return;
    };
    assert!(json.len() <= LIMIT);
    let text = std::str::from_utf8(&json).unwrap();
    let Ok(again) = mapping::encode(descriptor.clone(), text) else {
        return;
    };
    let json_again = mapping::decode(descriptor, Bytes::from(again), LIMIT).unwrap();
    assert_eq!(String::from_utf8(json_again).unwrap(), text);
}
