//! An instance in another process, as used by the instance's threads and its monitor. The instance stays the same while
//! its processes come and go; callers need not know. Restarts are decided in `restart`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forge_adapter_api::AdapterError;
use tokio::sync::{Notify, watch};

use super::program::{self, Program, Start};
use super::wire::{ChildMessage, MessageReader, Writer};
use crate::boundary::call_id::CallId;
use crate::boundary::load_error::LoadError;
use crate::instance::host::Host;
use forge_base::failpoint;

/// Time for a process to exit before it is killed.
const END_WAIT: Duration = Duration::from_secs(1);
const UNREACHED: &str = "the adapter's process ended before the call reached it";
/// Log level of lines from stderr: info.
const STDERR_LEVEL: i32 = 3;
const STDERR_TEXT_BYTES: usize = 8 * 1024;

/// Parameters for starting the processes of an instance.
pub(crate) struct Spec {
    pub(super) start: Start,
    /// First message to the process.
    pub(super) opening: Vec<u8>,
    /// Time limit for the process to become ready.
    pub(super) deadline: Duration,
    /// Check before each start.
    pub(super) check: Option<Check>,
}

/// Fails if the process must not be started.
pub(crate) type Check = Box<dyn Fn() -> Result<(), LoadError> + Send + Sync>;

/// State of the connection to the process, which decides if calls are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Up,
    /// A new process runs and is not yet initialised; carries the reason why the last one ended.
    Starting(String),
    /// The process is ending or gone; the reason is not known yet.
    Ending,
    /// No process runs; carries the reason.
    Down(String),
}

pub(crate) struct Remote {
    pub(super) host: &'static Host,
    spec: Spec,
    pub(super) state: Mutex<State>,
    pub(super) connection_state: watch::Sender<ConnectionState>,
    settled: AtomicBool,
    silent: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) connection: Option<Arc<Connection>>,
    /// True once no process is permitted to run.
    pub(super) closing: bool,
    /// Payload of `initialize`, to be sent again to each new process.
    initialize: Option<Vec<u8>>,
    relaying: bool,
}

impl State {
    pub(super) fn is_current(&self, connection: &Arc<Connection>) -> bool {
        let current = self.connection.as_ref();
        current.is_some_and(|current| Arc::ptr_eq(current, connection))
    }
}

/// One process and its channel.
pub(super) struct Connection {
    pub(super) program: Program,
    /// `None` once the process was asked to end.
    writer: Mutex<Option<Writer>>,
    /// True while the process might have to wait, because the bridge does not accept its events.
    pub(super) held_back: AtomicBool,
    /// Reason why the bridge killed the process.
    pub(super) killed: Mutex<Option<String>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// Starts the first process; returns the manifest, too. Blocks.
    pub(crate) fn open(host: &'static Host, spec: Spec) -> Result<(Arc<Self>, Vec<u8>), LoadError> {
        let remote = Self::new(host, spec);
        let manifest = remote.connect()?;
        Ok((remote, manifest))
    }

    /// Starts a process for its manifest, then ends it. An early exit fails no calls, since those of `host` are not
    /// sent to this process. Blocks.
    pub(super) fn probe(host: &'static Host, spec: Spec) -> Result<Vec<u8>, LoadError> {
        let remote = Self::new(host, spec);
        lock(&remote.state).closing = true;
        let manifest = remote.connect()?;
        remote.destroy();
        Ok(manifest)
    }

    fn new(host: &'static Host, spec: Spec) -> Arc<Self> {
        Arc::new(Self {
            host,
            spec,
            state: Mutex::default(),
            connection_state: watch::Sender::new(ConnectionState::Up),
            settled: AtomicBool::new(false),
            silent: Notify::new(),
        })
    }

    /// An instance without a process.
    #[cfg(test)]
    pub(crate) fn unconnected(host: &'static Host) -> Arc<Self> {
        let start = Start {
            command: Vec::new(),
            environment: std::collections::BTreeMap::new(),
            channel: program::Channel::Pipes,
        };
        let spec = Spec {
            start,
            opening: Vec::new(),
            deadline: Duration::ZERO,
            check: None,
        };
        Self::new(host, spec)
    }

    /// Starts a process and waits until its instance is ready; returns the manifest. Blocks.
    pub(super) fn connect(self: &Arc<Self>) -> Result<Vec<u8>, LoadError> {
        let failed = |why: String| LoadError::Process(why);
        let channel = self.spec.start.channel;
        let host = self.host;
        let log = move |line: &[u8]| {
            let text = String::from_utf8_lossy(&line[..line.len().min(STDERR_TEXT_BYTES)]);
            let record = serde_json::json!({"message": text, "stream": "stderr"});
            host.logs.push(STDERR_LEVEL, record.to_string().as_bytes());
        };
        if let Some(check) = &self.spec.check {
            check()?;
        }
        failpoint::point("child.start.before");
        let (program, reader, to) = program::start(&self.spec.start, log)
            .map_err(|error| failed(format!("its process cannot be started: {error}")))?;
        failpoint::point("child.start.after");
        let mut reader = MessageReader::new(reader, channel, host.payload_bytes);
        let mut writer = Writer::new(to, channel);
        // A failed write shows as the end of the reader.
        let _ = writer.open(&self.spec.opening);
        reader.reader().deadline = Some(Instant::now() + self.spec.deadline);
        let manifest = self
            .await_manifest(&program, &mut reader)
            .inspect_err(|_| {
                program.kill();
                program.bury();
            })?;
        failpoint::point("child.ready");
        reader.reader().deadline = None;
        let connection = Arc::new(Connection {
            program,
            writer: Mutex::new(Some(writer)),
            held_back: AtomicBool::new(false),
            killed: Mutex::default(),
        });
        {
            let mut state = lock(&self.state);
            if state.closing {
                connection.program.kill();
            }
            state.connection = Some(Arc::clone(&connection));
        }
        let remote = Arc::clone(self);
        let listening = Arc::clone(&connection);
        std::thread::Builder::new()
            .name(format!("hear {}", host.provider))
            .spawn(move || remote.listen(&listening, reader))
            .map_err(|error| {
                connection.program.kill();
                connection.program.bury();
                LoadError::Thread(error)
            })?;
        Ok(manifest)
    }

    /// Reads messages up to the manifest. After an error the process might still run.
    fn await_manifest(
        &self,
        program: &Program,
        reader: &mut MessageReader,
    ) -> Result<Vec<u8>, LoadError> {
        let not_ready = |why| {
            Err(LoadError::Process(format!(
                "it did not become ready: {why}"
            )))
        };
        loop {
            let told = match reader.next() {
                Ok(Some(told)) => told,
                // Its output has ended, but the process might not have.
                Ok(None) => {
                    let reason = program.epitaph();
                    let provider = &self.host.provider;
                    tracing::warn!(adapter.id = %provider, "adapter {provider}: {reason}");
                    return not_ready(reason.how);
                }
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    return Err(LoadError::Timeout(self.spec.deadline));
                }
                Err(error) => return not_ready(error.to_string()),
            };
            match told {
                ChildMessage::Ready(manifest) => return Ok(manifest),
                ChildMessage::Refused(why) => {
                    // The child exits by itself, after its last log lines.
                    program.bury();
                    return Err(LoadError::Refused(why));
                }
                ChildMessage::Log { level, record } => self.host.logs.push(level, &record),
                ChildMessage::Breach(why) => self.host.logs.breach(&why),
                ChildMessage::Failed(why) => return not_ready(why),
                ChildMessage::Event { .. }
                | ChildMessage::Dropped { .. }
                | ChildMessage::Done { .. }
                | ChildMessage::TooLarge { .. } => {
                    let why = "it sent a message before its manifest";
                    return Err(LoadError::Process(why.to_owned()));
                }
            }
        }
    }

    fn connection(&self) -> Option<Arc<Connection>> {
        lock(&self.state).connection.clone()
    }

    /// Sends a call; the call fails if it cannot be sent.
    pub(crate) fn start(&self, call_id: CallId, op: &str, payload: &[u8]) {
        let connection = self.connection();
        let sent = connection.as_ref().is_some_and(|connection| {
            let mut writer = lock(&connection.writer);
            let sent = writer
                .as_mut()
                .map(|writer| writer.start(call_id.0, op, payload));
            matches!(sent, Some(Ok(())))
        });
        if sent {
            return;
        }
        if let Some(connection) = &connection {
            // Done first, so that a retry of the call does not reach this process again.
            self.leave_service(connection);
        }
        self.host.fail(call_id, crashed(UNREACHED));
        if let Some(connection) = connection {
            connection.program.end_now();
        }
    }

    /// Takes a process out of service that does not accept its messages.
    fn leave_service(&self, connection: &Arc<Connection>) {
        let state = lock(&self.state);
        if state.is_current(connection) {
            self.connection_state.send_replace(ConnectionState::Ending);
        }
    }

    /// Asks the process to drop a call.
    pub(crate) fn cancel(&self, call_id: CallId) {
        if let Some(connection) = self.connection()
            && let Some(writer) = lock(&connection.writer).as_mut()
        {
            // An error means that the process has ended, and the call with it.
            let _ = writer.drop_call(call_id.0);
        }
    }

    /// Ends the process, by force if it does not exit soon. Blocks.
    pub(crate) fn destroy(&self) {
        failpoint::point("child.end.before");
        self.end();
        failpoint::point("child.end.after");
    }

    fn end(&self) {
        let connection = {
            let mut state = lock(&self.state);
            state.closing = true;
            state.connection.clone()
        };
        let Some(connection) = connection else {
            return;
        };
        if let Some(mut writer) = lock(&connection.writer).take() {
            // An error means that the process has ended already.
            let _ = writer.end();
        }
        if !connection.program.ends_within(END_WAIT) {
            connection.program.kill();
            connection.program.ends_within(END_WAIT);
        }
    }

    /// Kills the process as if it had crashed; `why` is the reason reported then.
    pub(crate) fn kill(&self, why: &str) {
        if let Some(connection) = self.connection() {
            *lock(&connection.killed) = Some(why.to_owned());
            connection.program.kill();
        }
    }

    /// Kills the process without reporting a crash.
    pub(super) fn abandon(&self) {
        let connection = lock(&self.state).connection.take();
        connection.inspect(|connection| connection.program.kill());
    }

    /// True if the process might be slow because the bridge does not accept its events.
    pub(crate) fn is_held_back(&self) -> bool {
        let connection = self.connection();
        connection.is_some_and(|connection| connection.held_back.load(Ordering::Acquire))
    }

    pub(crate) fn connection_state(&self) -> ConnectionState {
        self.connection_state.borrow().clone()
    }

    pub(super) fn set_state(&self, connection_state: ConnectionState) {
        self.connection_state.send_replace(connection_state);
    }

    /// Accepts calls again. The error is the reason why the process has ended meanwhile.
    pub(super) fn serve(&self) -> Result<(), String> {
        let mut served = Ok(());
        self.connection_state
            .send_modify(|connection_state| match connection_state {
                ConnectionState::Starting(_) | ConnectionState::Up => {
                    *connection_state = ConnectionState::Up;
                }
                ConnectionState::Ending => served = Err("it exited again at once".to_owned()),
                ConnectionState::Down(why) => served = Err(why.clone()),
            });
        served
    }

    /// Resolves with the reason once no process runs.
    pub(super) async fn ended(&self) -> String {
        let mut connection_state = self.connection_state.subscribe();
        let down = connection_state
            .wait_for(|connection_state| matches!(connection_state, ConnectionState::Down(_)))
            .await;
        match down.as_deref() {
            Ok(ConnectionState::Down(why)) => why.clone(),
            // Cannot fail: the sender is a field of `self`.
            Ok(ConnectionState::Up | ConnectionState::Starting(_) | ConnectionState::Ending)
            | Err(_) => String::new(),
        }
    }

    /// Marks the instance as serving: from now on its process is restarted when it ends.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Records that a health request was not answered.
    pub(crate) fn is_silent(&self) {
        self.silent.notify_one();
    }

    pub(super) async fn silence(&self) {
        self.silent.notified().await;
    }

    /// Remembers the state that the next process must be given, too.
    pub(crate) fn remember(&self, op: &str, payload: &[u8]) {
        match op {
            "initialize" => lock(&self.state).initialize = Some(payload.to_vec()),
            "events.start" => lock(&self.state).relaying = true,
            "events.stop" => lock(&self.state).relaying = false,
            _ => {}
        }
    }

    /// The payload of `initialize`, and true if events outside executions are enabled.
    pub(crate) fn remembered(&self) -> (Option<Vec<u8>>, bool) {
        let state = lock(&self.state);
        (state.initialize.clone(), state.relaying)
    }
}

/// The error of a call whose process has ended; `line` is the reason.
pub(super) fn crashed(line: &str) -> AdapterError {
    AdapterError::new("adapter_crashed", line).retryable()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    use super::program::Channel;
    use super::*;

    #[test]
    fn a_program_that_closes_its_output_and_stays_is_killed_and_reaped() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 60 >&-", file.display());
        let (host, _inbox) = Host::for_test();
        let spec = Spec {
            start: Start {
                command: ["/bin/sh", "-c", &script].map(Into::into).into(),
                environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
                channel: Channel::Pipes,
            },
            opening: b"{}".to_vec(),
            deadline: Duration::from_secs(20),
            check: None,
        };
        let opened = Remote::open(Box::leak(Box::new(host)), spec);
        let line = opened.err().unwrap().to_string();
        assert!(line.contains("did not become ready"), "{line}");
        let pid = std::fs::read_to_string(&file).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        assert_eq!(test_kill_process(pid), Err(Errno::SRCH));
    }
}
