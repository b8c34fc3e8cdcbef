//! An instance in another process, as the instance's threads and its attendant use it. It stays the same
//! while processes come and go below it: whoever has a handle need not know. Bringing it back is decided
//! elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forge_adapter_api::AdapterError;
use tokio::sync::{Notify, watch};

use super::program::{self, Program, Start};
use super::wire::{ChildMessage, MessageReader, Writer};
use crate::call::Host;
use crate::call_id::CallId;
use crate::load::LoadError;
use crate::queue::Emitted;
use forge_base::failpoint;

/// How long a full queue is left alone before the same event is offered again.
const PAUSE: Duration = Duration::from_millis(2);
/// What a process gets to end by itself.
const END_WAIT: Duration = Duration::from_secs(1);
const UNREACHED: &str = "the adapter's process ended before the call reached it";
/// The level at which what it writes to stderr is logged.
const STDERR_LEVEL: i32 = 3;
const STDERR_TEXT_BYTES: usize = 8 * 1024;

/// How processes of this instance are made.
pub(crate) struct Spec {
    pub(super) start: Start,
    /// What it is told first.
    pub(super) opening: Vec<u8>,
    /// Until it is ready.
    pub(super) deadline: Duration,
}

/// Whether calls can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Up,
    /// A new process is there and not yet initialised; why the last one ended.
    Starting(String),
    /// Its process ends or is gone; how is not known yet.
    Ending,
    /// Why there is no process.
    Down(String),
}

pub(crate) struct Remote {
    host: &'static Host,
    spec: Spec,
    state: Mutex<State>,
    connection_state: watch::Sender<ConnectionState>,
    settled: AtomicBool,
    silent: Notify,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// No process shall be there any more.
    closing: bool,
    /// What a new process has to be told as the first one was.
    initialize: Option<Vec<u8>>,
    relaying: bool,
}

impl State {
    fn is_current(&self, connection: &Arc<Connection>) -> bool {
        let current = self.connection.as_ref();
        current.is_some_and(|current| Arc::ptr_eq(current, connection))
    }
}

struct Connection {
    program: Program,
    /// Absent once its end was asked for.
    writer: Mutex<Option<Writer>>,
    /// Its events are not taken just now, so that it may have to wait.
    held_back: AtomicBool,
    /// Why we killed it.
    killed: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// Starts the first process. Blocks. Gives the manifest, too.
    pub(crate) fn open(host: &'static Host, spec: Spec) -> Result<(Arc<Self>, Vec<u8>), LoadError> {
        let remote = Self::new(host, spec);
        let manifest = remote.connect()?;
        Ok((remote, manifest))
    }

    /// The manifest of a process that is then ended. That it may end before it is told to concerns nobody:
    /// the calls of the host are not its own. Blocks.
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

    /// Starts a process and waits until its instance stands. Blocks.
    pub(super) fn connect(self: &Arc<Self>) -> Result<Vec<u8>, LoadError> {
        let failed = |why: String| LoadError::Process(why);
        let channel = self.spec.start.channel;
        let host = self.host;
        let log = move |line: &[u8]| {
            let text = String::from_utf8_lossy(&line[..line.len().min(STDERR_TEXT_BYTES)]);
            let record = serde_json::json!({"message": text, "stream": "stderr"});
            host.logs.push(STDERR_LEVEL, record.to_string().as_bytes());
        };
        failpoint::point("child.start.before");
        let (program, reader, to) = program::start(&self.spec.start, log)
            .map_err(|error| failed(format!("its process cannot be started: {error}")))?;
        failpoint::point("child.start.after");
        let mut reader = MessageReader::new(reader, channel, host.payload_bytes);
        let mut writer = Writer::new(to, channel);
        // What cannot be written is told by the end that is read.
        let _ = writer.open(&self.spec.opening);
        reader.reader().deadline = Some(Instant::now() + self.spec.deadline);
        let manifest = loop {
            let told = match reader.next() {
                Ok(Some(told)) => told,
                Ok(None) => {
                    let why = program.epitaph();
                    return Err(failed(format!("it was not ready: {why}")));
                }
                Err(error) => {
                    program.kill();
                    program.bury();
                    return Err(match error.kind() {
                        std::io::ErrorKind::TimedOut => LoadError::Timeout(self.spec.deadline),
                        _ => failed(format!("it was not ready: {error}")),
                    });
                }
            };
            match told {
                ChildMessage::Ready(manifest) => break manifest,
                ChildMessage::Refused(why) => {
                    program.bury();
                    return Err(LoadError::Refused(why));
                }
                ChildMessage::Log { level, record } => host.logs.push(level, &record),
                ChildMessage::Breach(why) => host.logs.breach(&why),
                ChildMessage::Failed(why) => {
                    program.kill();
                    program.bury();
                    return Err(failed(format!("it was not ready: {why}")));
                }
                ChildMessage::Event { .. }
                | ChildMessage::Dropped { .. }
                | ChildMessage::Done { .. }
                | ChildMessage::TooLarge { .. } => {
                    program.kill();
                    program.bury();
                    let why = "it spoke before it said who it is (its manifest)";
                    return Err(failed(why.to_owned()));
                }
            }
        };
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
                LoadError::Thread(error)
            })?;
        Ok(manifest)
    }

    fn connection(&self) -> Option<Arc<Connection>> {
        lock(&self.state).connection.clone()
    }

    /// Sends a call. It fails when there is nobody to send it to.
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
            // First of all: a call that is made again shall not come here again.
            self.leave_service(connection);
        }
        self.host.fail(call_id, crashed(UNREACHED));
        if let Some(connection) = connection {
            connection.program.end_now();
        }
    }

    /// Nothing more starts on a process that does not take what it is told.
    fn leave_service(&self, connection: &Arc<Connection>) {
        let state = lock(&self.state);
        if state.is_current(connection) {
            self.connection_state.send_replace(ConnectionState::Ending);
        }
    }

    /// Tells it to drop a call.
    pub(crate) fn cancel(&self, call_id: CallId) {
        if let Some(connection) = self.connection()
            && let Some(writer) = lock(&connection.writer).as_mut()
        {
            // It has ended: then the call has, too.
            let _ = writer.drop_call(call_id.0);
        }
    }

    /// Ends the process, by force when it does not end soon. Blocks.
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
            // It has ended: which is what is wanted.
            let _ = writer.end();
        }
        if !connection.program.ends_within(END_WAIT) {
            connection.program.kill();
            connection.program.ends_within(END_WAIT);
        }
    }

    /// Kills the process, as if it had crashed; `why` is what is told then.
    pub(crate) fn kill(&self, why: &str) {
        if let Some(connection) = self.connection() {
            *lock(&connection.killed) = Some(why.to_owned());
            connection.program.kill();
        }
    }

    /// Kills the process without further notice.
    pub(super) fn abandon(&self) {
        let connection = lock(&self.state).connection.take();
        connection.inspect(|connection| connection.program.kill());
    }

    /// Whether it may have reason to be slow: we do not take its events just now.
    pub(crate) fn is_held_back(&self) -> bool {
        let connection = self.connection();
        connection.is_some_and(|connection| connection.held_back.load(Ordering::Acquire))
    }

    /// Everything it says, until its end.
    fn listen(&self, connection: &Arc<Connection>, mut reader: MessageReader) {
        let why = loop {
            match reader.next() {
                Ok(Some(told)) => {
                    if let Err(why) = self.take(connection, told) {
                        break Some(why);
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(format!("it was stopped, because it sent {error}")),
            }
        };
        if let Some(why) = why {
            lock(&connection.killed).get_or_insert(why);
        }
        let missed = {
            let mut state = lock(&self.state);
            let current = state.is_current(connection);
            if current {
                state.connection = None;
                self.connection_state.send_replace(ConnectionState::Ending);
            }
            current && !state.closing
        };
        // A writer may be waiting for it to read.
        connection.program.end_now();
        if missed {
            failpoint::point("child.ended");
            let killed = lock(&connection.killed).take();
            let line = killed.unwrap_or_else(|| connection.program.epitaph());
            self.connection_state
                .send_replace(ConnectionState::Down(line.clone()));
            for (call_id, _) in self.host.tickets.all() {
                self.host.fail(call_id, crashed(&line));
            }
            failpoint::point("child.told");
        }
        connection.program.bury();
    }

    /// The error says why nothing more is taken from it.
    fn take(&self, connection: &Connection, told: ChildMessage) -> Result<(), String> {
        let host = self.host;
        match told {
            ChildMessage::Event { id, event } => {
                while host.emit(CallId(id), &event) == Emitted::Full {
                    connection.held_back.store(true, Ordering::Release);
                    std::thread::sleep(PAUSE);
                }
                connection.held_back.store(false, Ordering::Release);
            }
            ChildMessage::Dropped { id: 0, count } => host.news.lose(count),
            ChildMessage::Dropped { id, count } => {
                if let Some(queue) = host.tickets.find(CallId(id)) {
                    queue.lose(count);
                }
            }
            ChildMessage::Done { id, answer } => {
                host.complete(CallId(id), "completion", || host.judge(answer));
            }
            ChildMessage::TooLarge { id, head, bytes } => {
                host.complete(CallId(id), "completion", || {
                    Err(host.too_large(&head, bytes))
                });
            }
            ChildMessage::Log { level, record } => host.logs.push(level, &record),
            ChildMessage::Breach(why) => host.logs.breach(&why),
            ChildMessage::Failed(why) => return Err(format!("it was stopped: {why}")),
            ChildMessage::Ready(_) | ChildMessage::Refused(_) => {
                host.logs.breach("it said twice who it is");
            }
        }
        Ok(())
    }

    pub(crate) fn connection_state(&self) -> ConnectionState {
        self.connection_state.borrow().clone()
    }

    pub(super) fn set_state(&self, connection_state: ConnectionState) {
        self.connection_state.send_replace(connection_state);
    }

    /// From now on calls can be made again, unless the process has ended meanwhile: then why.
    pub(super) fn serve(&self) -> Result<(), String> {
        let mut served = Ok(());
        self.connection_state
            .send_modify(|connection_state| match connection_state {
                ConnectionState::Starting(_) | ConnectionState::Up => {
                    *connection_state = ConnectionState::Up
                }
                ConnectionState::Ending => served = Err("it ended again at once".to_owned()),
                ConnectionState::Down(why) => served = Err(why.clone()),
            });
        served
    }

    /// Resolves when there is no process, and says why.
    pub(super) async fn ended(&self) -> String {
        let mut connection_state = self.connection_state.subscribe();
        let down = connection_state
            .wait_for(|connection_state| matches!(connection_state, ConnectionState::Down(_)))
            .await;
        match down.as_deref() {
            Ok(ConnectionState::Down(why)) => why.clone(),
            // The sender is ours.
            Ok(ConnectionState::Up | ConnectionState::Starting(_) | ConnectionState::Ending)
            | Err(_) => String::new(),
        }
    }

    /// From now on there is something to bring back.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// A question about its health was not answered.
    pub(crate) fn is_silent(&self) {
        self.silent.notify_one();
    }

    pub(super) async fn silence(&self) {
        self.silent.notified().await;
    }

    /// Notes what the next process has to be told, too.
    pub(crate) fn remember(&self, op: &str, payload: &[u8]) {
        match op {
            "initialize" => lock(&self.state).initialize = Some(payload.to_vec()),
            "events.start" => lock(&self.state).relaying = true,
            "events.stop" => lock(&self.state).relaying = false,
            _ => {}
        }
    }

    /// The payload of `initialize`, and whether its events are wanted.
    pub(super) fn remembered(&self) -> (Option<Vec<u8>>, bool) {
        let state = lock(&self.state);
        (state.initialize.clone(), state.relaying)
    }
}

fn crashed(line: &str) -> AdapterError {
    AdapterError::new("adapter_crashed", line).retryable()
}
