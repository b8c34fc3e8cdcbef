//! Descriptors of a gRPC server: any files end as a pool or as an error, and a pool can be read.

use forge_external::transport::grpc::{descriptors, mapping};
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::FileDescriptorSet;

/// Input: a set of files.
pub(crate) fn run(data: &[u8]) {
    let Ok(set) = FileDescriptorSet::decode(data) else {
        return;
    };
    let Ok(pool) = descriptors::pool(set.file) else {
        return;
    };
    for service in pool.services() {
        for method in service.methods() {
            // Required fields and wrong defaults are no reason to panic.
            let _ = mapping::encode(method.input(), "{}");
            let _ = mapping::decode(method.output(), bytes::Bytes::new(), 1024);
        }
    }
}
