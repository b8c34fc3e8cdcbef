//! Starts the processes of one adapter: under the supervisor, with few variables, within limits.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::Manifest;

use super::order::Order;
use super::probe;
use super::program::{Channel, Start};
use super::remote::{Remote, Spec};
use crate::boundary::load_error::LoadError;
use crate::boundary::manifest::{self, Language};
use crate::boundary::trust::Vetted;
use crate::instance::boot::{Boot, Found, Launcher};
use crate::instance::host::Host;

/// The program of the process that executes this path: the supervisor.
const SUPERVISOR: &str = "/proc/self/exe";

impl Launcher {
    /// The manifest of a library, which is probed unless its manifest is remembered.
    pub(crate) fn probe(
        &self,
        boot: &Boot,
        host: &'static Host,
        found: &Found,
        vetted: &Vetted,
    ) -> Result<Manifest, LoadError> {
        let folder = &found.copies;
        probe::manifest(host, &found.path, folder, &vetted.digest, || {
            Ok(Spec {
                start: Start {
                    command: self.host(["--probe".into()]),
                    environment: self.environment.of_process(&[]),
                    channel: Channel::Socket,
                },
                opening: self.order(boot, found, vetted)?,
                deadline: boot.deadline / 3,
                check: None,
            })
        })
    }

    /// Starts a library in a child of this binary.
    pub(crate) fn hold(
        &self,
        boot: &Boot,
        host: &'static Host,
        found: &Found,
        vetted: &Vetted,
        manifest: &Manifest,
    ) -> Result<(Arc<Remote>, Manifest), LoadError> {
        let spec = Spec {
            start: Start {
                command: self.host([]),
                environment: self.environment.of_process(&manifest.env),
                channel: Channel::Socket,
            },
            opening: self.order(boot, found, vetted)?,
            deadline: boot.deadline / 2,
            check: None,
        };
        open(boot, host, found, spec)
    }

    /// Starts a program that speaks the line protocol.
    pub(crate) fn run(
        &self,
        boot: &Boot,
        host: &'static Host,
        found: &Found,
    ) -> Result<(Arc<Remote>, Manifest), LoadError> {
        let program = found.path.clone().into_os_string();
        let command = match self.memory_limit_bytes {
            None => {
                let supervisor = self.supervisor.iter().map(OsString::from);
                supervisor.chain([program]).collect()
            }
            Some(bytes) => {
                let limit = format!("--memory={bytes}").into();
                self.host([limit, "--".into(), program])
            }
        };
        let spec = Spec {
            start: Start {
                command,
                environment: self.environment.of_process(&[]),
                channel: Channel::Pipes,
            },
            opening: boot.create.clone(),
            deadline: boot.deadline / 2,
            check: found.check_program(),
        };
        open(boot, host, found, spec)
    }

    /// A command that runs the supervisor's own program as adapter host, with the store's id for the reaper.
    fn host<const N: usize>(&self, arguments: [OsString; N]) -> Vec<OsString> {
        let supervisor = self.supervisor.iter().map(OsString::from);
        let store = format!("--store={}", self.store_id);
        let program = [SUPERVISOR.into(), "adapter-host".into(), store.into()];
        supervisor.chain(program).chain(arguments).collect()
    }

    fn order(&self, boot: &Boot, found: &Found, vetted: &Vetted) -> Result<Vec<u8>, LoadError> {
        let order = Order {
            id: boot.id.clone(),
            library: boot.library.clone(),
            path: found.path.clone(),
            copy: vetted.copy.clone(),
            digest: vetted.digest.clone(),
            create: String::from_utf8_lossy(&boot.create).into_owned(),
            payload_bytes: boot.bounds.payload,
            event_bytes: boot.bounds.execution.event,
            queue_bytes: boot.bounds.execution.queued,
            execution_bytes: boot.bounds.execution.total,
            waiting_bytes: boot.bounds.waiting,
            deadline_ms: millis(boot.deadline),
            call_timeout_ms: millis(self.call_timeout),
            memory_limit_bytes: self.memory_limit_bytes,
        };
        serde_json::to_vec(&order)
            .map_err(|error| LoadError::Process(format!("its path cannot be sent: {error}")))
    }
}

fn open(
    boot: &Boot,
    host: &'static Host,
    found: &Found,
    spec: Spec,
) -> Result<(Arc<Remote>, Manifest), LoadError> {
    let (remote, bytes) = Remote::open(host, spec).map_err(|error| match error {
        LoadError::Process(why) => LoadError::Process(format!("{}: {why}", found.path.display())),
        other => other,
    })?;
    let read = manifest::read(&bytes, &found.path, &boot.library, Language::Other);
    match read {
        Ok(manifest) => Ok((remote, manifest)),
        Err(error) => {
            remote.destroy();
            Err(error)
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
