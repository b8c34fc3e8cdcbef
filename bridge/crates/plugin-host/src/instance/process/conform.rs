//! Conformance checks of a program: each instance is a process of it that speaks the line protocol.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forge_adapter_api::conformance::{Heard, Options, Peer, Report, Spoken, Step, check_peer};
use forge_adapter_api::{AdapterError, Manifest, Result};

use super::lines;
use super::program::{self, Channel, Program, Start};
use super::wire::{ChildMessage, MessageReader, Writer};
use crate::boundary::answer;
use crate::boundary::load_error::LoadError;
use crate::boundary::manifest::{self, Language};
use crate::boundary::trust::{self, Rules};
use crate::instance::environment::Environment;

/// Time limit for the manifest.
const READY: Duration = Duration::from_secs(15);
const END_WAIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Checks the program against every rule. Blocks.
pub(crate) fn conform(
    path: &Path,
    provider: &str,
    rules: &Rules<'_>,
    options: Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> std::result::Result<Report, LoadError> {
    trust::vet_program(path, rules.file)?;
    let failed = |error: AdapterError| LoadError::Process(format!("{}: {error}", path.display()));
    let environment = Environment {
        id: provider.to_owned(),
        variables: std::env::vars().collect(),
        listed: Vec::new(),
    };
    let mut candidate = Candidate {
        command: supervised(path).map_err(failed)?,
        environment: environment.of_process(&[]),
        manifest: Vec::new(),
    };
    let (process, said) = candidate
        .begin(b"{\"schema\":1}", Ears::Deaf)
        .map_err(failed)?;
    drop(process);
    candidate.manifest = said;
    let manifest: Manifest = manifest::read(&candidate.manifest, path, provider, Language::Other)?;
    Ok(check_peer(&manifest, Box::new(candidate), options, watch))
}

/// Command of the program under the supervisor, which is this binary, so that everything it starts ends with it.
fn supervised(path: &Path) -> Result<Vec<OsString>> {
    let us = std::env::current_exe().map_err(|error| internal(&error.to_string()))?;
    Ok(vec![us.into(), "exec".into(), "--".into(), path.into()])
}

fn internal(text: &str) -> AdapterError {
    AdapterError::new("internal", text)
}

struct Candidate {
    command: Vec<OsString>,
    environment: BTreeMap<String, String>,
    manifest: Vec<u8>,
}

/// Receiver of an instance's messages.
enum Ears {
    Deaf,
    Of(Heard),
}

struct Process {
    program: Arc<Program>,
    writer: Mutex<Option<Writer>>,
}

impl Candidate {
    /// Starts a process and waits for its manifest; returns both.
    fn begin(&self, payload: &[u8], ears: Ears) -> Result<(Process, Vec<u8>)> {
        let start = Start {
            command: self.command.clone(),
            environment: self.environment.clone(),
            channel: Channel::Pipes,
        };
        let (program, reader, to) = program::start(&start, |_line| {})
            .map_err(|error| internal(&format!("it cannot be started: {error}")))?;
        let program = Arc::new(program);
        let mut reader = MessageReader::new(reader, Channel::Pipes, answer::DEFAULT_BYTES);
        let mut writer = Writer::new(to, Channel::Pipes);
        // A failed write shows as the end of the reader.
        let _ = writer.open(payload);
        let process = Process {
            program: Arc::clone(&program),
            writer: Mutex::new(Some(writer)),
        };
        reader.reader().deadline = Some(Instant::now() + READY);
        let manifest = loop {
            match reader.next() {
                Ok(Some(ChildMessage::Ready(manifest))) => break manifest,
                Ok(Some(ChildMessage::Log { record, .. })) => {
                    if let Ears::Of(heard) = &ears {
                        heard.log(&record);
                    }
                }
                Ok(Some(other)) => {
                    let text = format!("it sent a message before its manifest: {other:?}");
                    return Err(internal(&text));
                }
                Ok(None) => return Err(internal(&program.epitaph().to_string())),
                Err(error) => {
                    return Err(internal(&format!(
                        "no manifest: {error}; it is the first line, flushed, on standard output"
                    )));
                }
            }
        };
        reader.reader().deadline = None;
        if let Ears::Of(heard) = ears {
            std::thread::Builder::new()
                .name("hear".to_owned())
                .spawn(move || listen(reader, &heard, &program))
                .map_err(|error| internal(&error.to_string()))?;
        }
        Ok((process, manifest))
    }
}

impl Peer for Candidate {
    fn manifest(&self) -> Vec<u8> {
        self.manifest.clone()
    }

    fn create(&self, payload: &[u8], heard: Heard) -> Result<Box<dyn Spoken>> {
        let (process, _manifest) = self.begin(payload, Ears::Of(heard))?;
        Ok(Box::new(process))
    }
}

fn listen(mut reader: MessageReader, heard: &Heard, program: &Program) {
    while let Ok(Some(told)) = reader.next() {
        match told {
            ChildMessage::Event { id, event } => {
                while !heard.event(id, &event) {
                    std::thread::sleep(PAUSE);
                }
            }
            ChildMessage::Done { id, answer } => heard.answer(id, answer),
            ChildMessage::TooLarge { id, bytes, .. } => {
                heard.fault(&format!("the answer of call {id} has {bytes} bytes"));
            }
            ChildMessage::Log { record, .. } => heard.log(&record),
            ChildMessage::Breach(why) | ChildMessage::Failed(why) => heard.fault(&why),
            ChildMessage::Ready(_) | ChildMessage::Refused(_) => {
                heard.fault("it sent its manifest twice");
            }
            ChildMessage::Dropped { .. } => {}
        }
    }
    program.bury();
}

impl Process {
    fn write(&self, what: impl FnOnce(&mut Writer) -> std::io::Result<()>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer.as_mut() {
            // An error means that it has ended; the checks notice the missing answer.
            let _ = what(writer);
        }
    }
}

impl Spoken for Process {
    fn start(&self, call: u64, op: &str, payload: &[u8]) {
        self.write(|writer| writer.start(call, op, payload));
    }

    fn shown(&self, call: u64, op: &str, payload: &[u8]) -> Vec<u8> {
        lines::start(call, op, payload)
    }

    fn drop_call(&self, call: u64) {
        self.write(|writer| writer.drop_call(call));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        drop(writer.take());
        if !self.program.ends_within(END_WAIT) {
            self.program.kill();
        }
        self.program.bury();
    }
}
