//! Descriptors of a gRPC server: asked of its reflection, version 1 and then 1alpha, or read from a file; kept until a
//! manifest changes or the server does not know a method.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use futures_util::stream;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, ServiceDescriptor};
use tokio::sync::Mutex;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status as GrpcStatus};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest as Question;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse as Answer;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::{End, Server, failed};
use crate::answer::FAILED;
use crate::call::UNSUPPORTED;
use crate::files;

/// Maximum size of the descriptors of one server.
const DESCRIPTOR_BYTES: usize = 8 * 1024 * 1024;
const MAX_FILES: usize = 256;

/// Methods of reflection; the messages of both versions are the same.
const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Source of descriptors, and the services that were described.
#[derive(Debug)]
pub(super) struct Descriptors {
    descriptor_set: Option<PathBuf>,
    /// Locked while they are asked for: others wait for the same answer.
    known: Mutex<BTreeMap<String, ServiceDescriptor>>,
}

impl Descriptors {
    pub(super) fn new(descriptor_set: Option<PathBuf>) -> Self {
        Self {
            descriptor_set,
            known: Mutex::default(),
        }
    }

    pub(super) async fn service(
        &self,
        name: &str,
        server: &Server,
    ) -> Result<ServiceDescriptor, End> {
        let mut known = self.known.lock().await;
        if let Some(service) = known.get(name) {
            return Ok(service.clone());
        }
        let pool = match &self.descriptor_set {
            Some(path) => read(path.clone()).await?,
            None => reflect(server, name).await?,
        };
        let service = pool.get_service_by_name(name).ok_or_else(|| {
            let reason = format!("the descriptors have no service {name:?}");
            End::Refused(FAILED, reason)
        })?;
        known.insert(name.to_owned(), service.clone());
        Ok(service)
    }

    pub(super) async fn forget(&self) {
        self.known.lock().await.clear();
    }
}

async fn read(path: PathBuf) -> Result<DescriptorPool, End> {
    let shown = path.display().to_string();
    let read = tokio::task::spawn_blocking(move || parse(&path)).await;
    let read = read.unwrap_or_else(|error| Err(error.to_string()));
    read.map_err(|reason| End::Refused(FAILED, format!("descriptor_set {shown}: {reason}")))
}

fn parse(path: &Path) -> Result<DescriptorPool, String> {
    let bytes = files::read(path, DESCRIPTOR_BYTES).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or("there is no such file")?;
    DescriptorPool::decode(&*bytes).map_err(|error| error.to_string())
}

/// Asks the server for the file of a service and for all files that it needs.
async fn reflect(server: &Server, service: &str) -> Result<DescriptorPool, End> {
    let mut version = None;
    let mut found: BTreeMap<String, FileDescriptorProto> = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let mut size = 0;
    let mut questions = vec![Question::FileContainingSymbol(service.to_owned())];
    while let Some(question) = questions.pop() {
        let files = match ask(server, &mut version, question.clone()).await? {
            Ok(files) => files,
            Err(reason) => {
                let file = well_known(&question);
                vec![file.ok_or_else(|| {
                    let reason = format!("the server does not describe {service}: {reason}");
                    End::Refused(FAILED, reason)
                })?]
            }
        };
        for bytes in files {
            size += bytes.len();
            if size > DESCRIPTOR_BYTES || found.len() == MAX_FILES {
                let reason = format!(
                    "the descriptors of the server exceed {DESCRIPTOR_BYTES} bytes or {MAX_FILES} files"
                );
                return Err(End::Refused(FAILED, reason));
            }
            let file = FileDescriptorProto::decode(&*bytes).map_err(|error| unusable(&error))?;
            found.insert(file.name().to_owned(), file);
        }
        let needed = found.values().flat_map(|file| &file.dependency);
        for name in needed.filter(|name| !found.contains_key(*name)) {
            if asked.insert(name.clone()) {
                questions.push(Question::FileByFilename(name.clone()));
            }
        }
    }
    let files = found.into_values().collect();
    let made = tokio::task::spawn_blocking(move || pool(files)).await;
    let made = made.unwrap_or_else(|error| Err(error.to_string()));
    made.map_err(|reason| unusable(&reason))
}

/// Pool of the files. Each is given all others as imports in place of its own: the reflection of grpc-js leaves imports
/// out, and a cycle of public ones would be followed without end.
pub fn pool(mut files: Vec<FileDescriptorProto>) -> Result<DescriptorPool, String> {
    let names: Vec<String> = files.iter().map(|file| file.name().to_owned()).collect();
    for file in &mut files {
        // An error about the syntax panics.
        if !matches!(file.syntax.as_deref(), None | Some("proto2" | "proto3")) {
            let reason = format!("{:?} has a syntax that is not supported", file.name());
            return Err(reason);
        }
        let own = file.name().to_owned();
        file.dependency = names.iter().filter(|name| **name != own).cloned().collect();
        file.public_dependency.clear();
        file.weak_dependency.clear();
    }
    let mut pool = DescriptorPool::new();
    let added = pool.add_file_descriptor_protos(files);
    added.map(|()| pool).map_err(|error| error.to_string())
}

/// File of protobuf itself; some servers do not have them.
fn well_known(question: &Question) -> Option<Vec<u8>> {
    let Question::FileByFilename(name) = question else {
        return None;
    };
    let file = DescriptorPool::global().get_file_by_name(name)?;
    Some(file.encode_to_vec())
}

fn unusable(reason: &dyn std::fmt::Display) -> End {
    let reason = format!("the server's descriptors are not usable: {reason}");
    End::Refused(FAILED, reason)
}

/// Asks one question, in the version that the server has; the inner error is the server's.
async fn ask(
    server: &Server,
    version: &mut Option<&'static str>,
    question: Question,
) -> Result<Result<Vec<Vec<u8>>, String>, End> {
    let versions = match version {
        Some(known) => std::slice::from_ref(known),
        None => &REFLECTION[..],
    };
    for path in versions {
        let described = match answer(server, path, question.clone()).await {
            Ok(answered) => answered,
            Err(status) if status.code() == Code::Unimplemented => continue,
            Err(status) => return Err(failed(&status, DESCRIPTOR_BYTES)),
        };
        *version = Some(path);
        return Ok(match described.message_response {
            Some(Answer::FileDescriptorResponse(files)) => Ok(files.file_descriptor_proto),
            Some(Answer::ErrorResponse(error)) => Err(error.error_message),
            _ => Err("its reflection answers another question".to_owned()),
        });
    }
    let reason =
        "the server has no reflection; name a descriptor_set for it in [external.services]";
    Err(End::Refused(UNSUPPORTED, reason.to_owned()))
}

async fn answer(
    server: &Server,
    path: &'static str,
    question: Question,
) -> Result<ServerReflectionResponse, GrpcStatus> {
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    };
    let questions = Request::new(stream::iter([request]));
    let codec = ProstCodec::<ServerReflectionRequest, ServerReflectionResponse>::default();
    let mut client = server.client(DESCRIPTOR_BYTES);
    let path = PathAndQuery::from_static(path);
    let mut answers = client.streaming(questions, path, codec).await?.into_inner();
    let none = || GrpcStatus::internal("the reflection service did not answer");
    answers.message().await?.ok_or_else(none)
}
