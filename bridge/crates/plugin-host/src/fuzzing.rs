//! Access to private parsers of this component for `tests/fuzz`.

use std::path::Path;

use forge_adapter_api::{AdapterError, AdapterEvent, Manifest};
use serde_json::Value;

pub use crate::instance::process::fuzzing::*;

use crate::boundary::answer;
use crate::boundary::format;
use crate::boundary::manifest::{self, Language};
use crate::boundary::truncated_answer;
use crate::instance::call_stream;
use crate::instance::log;

pub fn error(bytes: &[u8]) -> AdapterError {
    answer::read_error(bytes)
}

pub fn event(bytes: &[u8]) -> Result<AdapterEvent, String> {
    call_stream::read_event(bytes)
}

pub fn record(text: &str) -> (String, Option<String>) {
    let (message, rest, _) = log::read(text);
    (message, rest)
}

pub fn beginning(head: &[u8], bytes: usize) -> Value {
    truncated_answer::details(head, bytes)
}

pub fn format(head: &[u8], length: u64) -> Result<(), String> {
    format::check(head, length, "x86_64")
}

pub fn manifest(bytes: &[u8]) -> Result<Manifest, String> {
    manifest::read(bytes, Path::new("/library.so"), "echo", Language::Rust)
        .map_err(|error| error.to_string())
}
