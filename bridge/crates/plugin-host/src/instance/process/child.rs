//! The child: `forge-bridge adapter-host`. Loads one library as the bridge would, and relays messages between the two.
//! The bridge's size limits are enforced here already, by the same code. Ends with the bridge, whose socket is its
//! stdin.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use super::frame::{Frame, Kind};
use super::lines;
use super::order::Order;
use crate::boundary::load_error::chain;
use crate::instance::boot::{Boot, Limits, Source};
use crate::instance::call_stream::Call;
use crate::instance::handle::Handle;
use crate::instance::log::Origin;
use crate::instance::queue::{Bounds, CallMessage};

/// Limit of frames that wait, in each direction.
const WAITING: usize = 16;
const ORDER_BYTES: usize = 1024 * 1024;
/// Time for the instance to shut down; the bridge waits a little longer.
const END_WAIT: Duration = Duration::from_millis(800);

/// Runs the child to its end. `args` are those after `adapter-host`: `--store=<id>`, which is for the reaper, then
/// nothing, `--probe`, or `--memory=<bytes> -- program args…`, which sets the limit and executes the program in its
/// place.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().skip(1);
    let first = args.next();
    let done = match first.as_ref().and_then(|first| first.to_str()) {
        None => hold(Purpose::Serve),
        Some("--probe") => hold(Purpose::Probe),
        Some(limit) => become_program(limit, args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without stderr the error cannot be reported.
            let _ = writeln!(io::stderr(), "forge-bridge adapter-host: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Serve,
    /// Loads the library and ends, to find out if it can be loaded.
    Probe,
}

fn become_program(limit: &str, mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let bytes = limit.strip_prefix("--memory=").and_then(|n| n.parse().ok());
    let rest = args.next().filter(|rest| rest == "--");
    let (Some(bytes), Some(_), Some(program)) = (bytes, rest, args.next()) else {
        return Err(io::Error::other(
            "only the bridge runs this command; usage: adapter-host --store=<id> --memory=<bytes> -- program args…",
        ));
    };
    limit_data(bytes)?;
    let error = Command::new(&program).args(args).exec();
    let text = format!("cannot start {}: {error}", program.display());
    Err(io::Error::new(error.kind(), text))
}

/// Limits the data of this process to its present size and `bytes`, since the allocator has reserved much already.
fn limit_growth(bytes: u64) -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let own = kibibytes.ok_or_else(|| io::Error::other("no VmData in /proc/self/status"))?;
    limit_data(bytes.saturating_add(own * 1024))
}

fn limit_data(bytes: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    Ok(setrlimit(Resource::Data, limit)?)
}

fn hold(purpose: Purpose) -> io::Result<()> {
    let socket = take_stdin()?;
    let mut from = BufReader::new(socket.try_clone()?);
    let order = match Frame::read(&mut from, ORDER_BYTES)? {
        Some(frame) if frame.kind == Kind::Order => frame,
        Some(_) | None => {
            let text = "only the bridge runs this command, and sends its order on stdin";
            return Err(io::Error::other(text));
        }
    };
    let order: Order = serde_json::from_slice(&order.body)?;
    if let Some(bytes) = order.memory_limit_bytes {
        limit_growth(bytes)?;
    }
    // Log lines of the plugin host itself go to stderr, and from there to the bridge's log.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .without_time()
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (out, frames) = mpsc::channel(WAITING);
    let writing = std::thread::Builder::new()
        .name("to bridge".to_owned())
        .spawn(move || write(frames, socket))?;
    let served = runtime.block_on(serve(order, purpose, from, out));
    // The runtime's tasks hold senders too; without them the writer thread ends.
    drop(runtime);
    served?;
    // Waits until the last frames are written.
    let _ = writing.join();
    Ok(())
}

/// Moves the socket away from stdin, where the adapter and its children would find it.
fn take_stdin() -> io::Result<File> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(File::from(socket))
}

fn write(mut frames: mpsc::Receiver<Frame>, mut socket: File) {
    while let Some(frame) = frames.blocking_recv() {
        if frame.write(&mut socket).is_err() {
            // The bridge is gone; the reader thread sees that as the end of the socket.
            return;
        }
    }
}

async fn serve(
    order: Order,
    purpose: Purpose,
    from: BufReader<File>,
    out: mpsc::Sender<Frame>,
) -> io::Result<()> {
    let most = order.payload_bytes + lines::AROUND;
    let call_timeout = Duration::from_millis(order.call_timeout_ms);
    let said = match Handle::boot(boot(order)).await {
        Ok((handle, facts)) => {
            let manifest = serde_json::to_vec(&facts.manifest)?;
            Ok((handle, Frame::new(0, Kind::Ready, manifest)))
        }
        Err(error) => Err(Frame::new(0, Kind::Refused, chain(&error))),
    };
    let handle = match said {
        Ok((handle, ready)) => {
            tell(&out, ready).await;
            handle
        }
        Err(refused) => {
            tell(&out, refused).await;
            return Ok(());
        }
    };
    if purpose == Purpose::Serve {
        let held = Held {
            handle: handle.clone(),
            out,
            running: Arc::default(),
            tracker: TaskTracker::new(),
        };
        held.attend(call_timeout);
        held.follow(listen(from, most)?).await;
    }
    handle.end(END_WAIT).await;
    Ok(())
}

/// Sends a frame; drops it if the bridge is gone.
async fn tell(out: &mpsc::Sender<Frame>, frame: Frame) {
    let _ = out.send(frame).await;
}

fn boot(order: Order) -> Boot {
    Boot {
        id: order.id,
        library: order.library,
        source: Source::Verified {
            path: order.path,
            copy: order.copy,
            digest: order.digest,
        },
        create: order.create.into_bytes(),
        bounds: Limits {
            payload: order.payload_bytes,
            execution: Bounds {
                queued: order.queue_bytes,
                event: order.event_bytes,
                total: order.execution_bytes,
            },
            waiting: order.waiting_bytes,
        },
        deadline: Duration::from_millis(order.deadline_ms),
    }
}

/// Reads the bridge's frames on a thread of its own.
fn listen(mut from: BufReader<File>, most: usize) -> io::Result<mpsc::Receiver<Frame>> {
    let (to, frames) = mpsc::channel(WAITING);
    std::thread::Builder::new()
        .name("from bridge".to_owned())
        .spawn(move || {
            while let Ok(Some(frame)) = Frame::read(&mut from, most) {
                if to.blocking_send(frame).is_err() {
                    return;
                }
            }
        })?;
    Ok(frames)
}

struct Held {
    handle: Handle,
    out: mpsc::Sender<Frame>,
    /// Calls in flight, by the bridge's call id.
    running: Arc<Mutex<HashMap<u64, AbortHandle>>>,
    tracker: TaskTracker,
}

impl Held {
    /// Starts the background tasks: log, events outside calls, thread watchdog.
    fn attend(&self, call_timeout: Duration) {
        let (handle, out) = (self.handle.clone(), self.out.clone());
        self.tracker.spawn(async move {
            loop {
                let line = handle.next_log().await;
                let frame = match line.origin {
                    Origin::Adapter { level } => Frame::log(level, &line.text),
                    Origin::Breach => Frame::new(0, Kind::Breach, line.text),
                };
                tell(&out, frame).await;
            }
        });
        let (handle, out) = (self.handle.clone(), self.out.clone());
        self.tracker.spawn(async move {
            loop {
                match handle.next_news().await {
                    CallMessage::Event(event) => {
                        tell(&out, Frame::new(0, Kind::Event, event)).await;
                    }
                    CallMessage::Dropped(count) => tell(&out, dropped(0, count)).await,
                    // Only calls have an answer.
                    CallMessage::Answer(_) => return,
                }
            }
        });
        let (handle, out) = (self.handle.clone(), self.out.clone());
        self.tracker.spawn(async move {
            let what = handle.overdue(call_timeout).await;
            let text = format!("it was blocked in {what} for {call_timeout:?}");
            tell(&out, Frame::new(0, Kind::Failed, text)).await;
        });
    }

    /// Executes the bridge's frames until `End`, the end of the socket, or an invalid frame.
    async fn follow(&self, mut frames: mpsc::Receiver<Frame>) {
        while let Some(frame) = frames.recv().await {
            match frame.kind {
                Kind::Start => match frame.call() {
                    Some((op, payload)) => self.start(frame.id, &op, payload).await,
                    None => return,
                },
                Kind::Drop => {
                    let running = self.running().remove(&frame.id);
                    running.inspect(AbortHandle::abort);
                }
                Kind::End => return,
                Kind::Order
                | Kind::Ready
                | Kind::Refused
                | Kind::Event
                | Kind::Dropped
                | Kind::Answer
                | Kind::Error
                | Kind::Log
                | Kind::Breach
                | Kind::Failed => return,
            }
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start(&self, id: u64, op: &str, payload: Vec<u8>) {
        let call = match self.handle.call(op, payload) {
            Ok(call) => call,
            Err(error) => {
                let error = serde_json::to_vec(&error).unwrap_or_default();
                return tell(&self.out, Frame::new(id, Kind::Error, error)).await;
            }
        };
        let (running, out) = (Arc::clone(&self.running), self.out.clone());
        // Locked until the entry is inserted, so that a call that ends at once finds it.
        let mut entries = self.running();
        let task = self.tracker.spawn(async move {
            relay(id, call, &out).await;
            let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
            running.remove(&id);
        });
        entries.insert(id, task.abort_handle());
    }
}

/// Relays the output of a call. Dropping this future before its end cancels the call in the adapter.
async fn relay(id: u64, call: Call, out: &mpsc::Sender<Frame>) {
    loop {
        let frame = match call.queue.next().await {
            CallMessage::Event(event) => Frame::new(id, Kind::Event, event),
            CallMessage::Dropped(count) => dropped(id, count),
            CallMessage::Answer(Ok(answer)) => {
                return tell(out, Frame::new(id, Kind::Answer, answer)).await;
            }
            CallMessage::Answer(Err(error)) => {
                let error = serde_json::to_vec(&error).unwrap_or_default();
                return tell(out, Frame::new(id, Kind::Error, error)).await;
            }
        };
        tell(out, frame).await;
    }
}

fn dropped(id: u64, count: u64) -> Frame {
    Frame::new(id, Kind::Dropped, count.to_le_bytes())
}
