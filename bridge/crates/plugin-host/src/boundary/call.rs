//! The ABI boundary at run time: the functions that the adapter calls, the adapter's functions that the bridge calls,
//! and the buffers between them. Policy is decided elsewhere; nothing here waits or holds a lock while foreign code
//! runs.

#![expect(unsafe_code, reason = "the boundary to adapter libraries")]

use std::mem::size_of;
use std::ptr;
use std::time::Instant;

use forge_adapter_abi::{
    Completion, EMIT_CLOSED, EMIT_FULL, EMIT_OK, FBytes, FSlice, HostV1, InstanceV1, STATUS_ERROR,
    STATUS_OK,
};
use forge_adapter_api::AdapterError;
use tokio::sync::mpsc::UnboundedSender;

use crate::boundary::load::{LoadError, RawCreate};
use crate::boundary::truncated_answer;
use crate::instance::call_id::{CallId, CallIds, Used};
use crate::instance::log::Logs;
use crate::instance::meters::Meters;
use crate::instance::queue::{Answer, Emitted, Queue};

/// Return value of a completion that was refused.
const NOT_TAKEN: i32 = -1;
/// Longest error message of an adapter; longer ones are truncated.
const MESSAGE_BYTES: usize = 8 * 1024;

/// Command for the cancel thread of an instance.
pub(crate) enum Cancel {
    Call(CallId),
    Stop(tokio::sync::oneshot::Sender<()>),
}

/// State of the bridge that an instance can reach. Leaked on purpose: a callback after `destroy` must find it.
pub(crate) struct Host {
    pub provider: String,
    pub tickets: CallIds,
    /// Events outside any call.
    pub news: Queue,
    pub logs: Logs,
    /// At most one entry for each abandoned call, so bounded by the number of calls.
    pub cancels: UnboundedSender<Cancel>,
    /// The largest answer that is copied.
    pub payload_bytes: usize,
    pub meters: Meters,
}

impl Host {
    /// Abandons a call; cancels it in the adapter if that has received it.
    pub(crate) fn give_up(&self, call_id: CallId, queue: &Queue) {
        self.tickets.give_up(call_id);
        if queue.has_begun() {
            self.cancel(call_id);
        }
    }

    /// Asks the cancel thread to cancel a call in the adapter.
    pub(crate) fn cancel(&self, call_id: CallId) {
        // The receiver is gone only after the instance was destroyed: nothing is left to cancel.
        let _ = self.cancels.send(Cancel::Call(call_id));
    }

    /// Queues an event of a call, or of the instance itself if the call id is 0.
    pub(crate) fn emit(&self, call_id: CallId, event: &[u8]) -> Emitted {
        if call_id.0 == 0 {
            return self.news.emit(event, Instant::now());
        }
        let Some(queue) = self.tickets.find(call_id) else {
            return Emitted::Closed;
        };
        let emitted = queue.emit(event, Instant::now());
        if emitted == Emitted::TooMuch {
            queue.answer(Err(AdapterError::new(
                "output_too_large",
                "the execution emitted more than plugin.execution_bytes of events",
            )));
            self.give_up(call_id, &queue);
        }
        emitted
    }

    /// Completes a call. `answer` is evaluated only for the first completion of an open call.
    pub(crate) fn complete(
        &self,
        call_id: CallId,
        what: &str,
        answer: impl FnOnce() -> Answer,
    ) -> i32 {
        match self.tickets.spend(call_id) {
            Used::Now(queue) => {
                let answer = answer();
                if let Err(error) = &answer
                    && error.code == "protocol_violation"
                {
                    self.logs.breach(&error.message);
                }
                if queue.answer(answer) { 0 } else { NOT_TAKEN }
            }
            Used::GivenUp => NOT_TAKEN,
            Used::Never => {
                self.logs.breach(&format!(
                    "{what} of call {:#x}, which was already answered or never issued",
                    call_id.0
                ));
                NOT_TAKEN
            }
        }
    }

    /// Reads the status and payload given to `complete`.
    ///
    /// # Safety
    ///
    /// As for [`FBytes::into_vec`].
    unsafe fn read_answer(&self, status: i32, payload: FBytes) -> Answer {
        if payload.is_well_formed() && payload.len > self.payload_bytes {
            let found = payload.len;
            let head = FSlice {
                ptr: payload.ptr,
                len: found.min(truncated_answer::LOOKED_AT_BYTES),
            };
            // SAFETY: passed on from the caller; the bytes are not freed before the next statement.
            let error = self.too_large(unsafe { head.as_bytes() }, found);
            // SAFETY: passed on from the caller.
            unsafe { payload.release() };
            return Err(error);
        }
        // SAFETY: passed on from the caller.
        let bytes = unsafe { payload.into_vec() }.map_err(|_| {
            breach("the answer's buffer is inconsistent (length, capacity, pointer or free)")
        })?;
        match status {
            STATUS_OK => self.judge(Ok(bytes)),
            STATUS_ERROR => self.judge(Err(bytes)),
            unknown => Err(breach(&format!("unknown completion status {unknown}"))),
        }
    }

    /// Checks the size of an answer or error, and parses the error.
    pub(crate) fn judge(&self, said: Result<Vec<u8>, Vec<u8>>) -> Answer {
        let (Ok(bytes) | Err(bytes)) = &said;
        if bytes.len() > self.payload_bytes {
            let head = &bytes[..bytes.len().min(truncated_answer::LOOKED_AT_BYTES)];
            return Err(self.too_large(head, bytes.len()));
        }
        said.map_err(|bytes| read_error(&bytes))
    }

    /// The error for an answer of `found` bytes that begins with `head`.
    pub(crate) fn too_large(&self, head: &[u8], found: usize) -> AdapterError {
        AdapterError {
            details: Some(truncated_answer::details(head, found)),
            ..AdapterError::new(
                "output_too_large",
                format!(
                    "the answer has {found} bytes, at most {} are accepted",
                    self.payload_bytes
                ),
            )
        }
    }

    /// Ends a call that the adapter will never answer.
    pub(crate) fn fail(&self, call_id: CallId, error: AdapterError) {
        if let Some(queue) = self.tickets.find(call_id) {
            queue.answer(Err(error));
            self.tickets.give_up(call_id);
        }
    }
}

fn breach(message: &str) -> AdapterError {
    AdapterError::new("protocol_violation", message)
}

/// Parses an adapter's error; an unreadable one is a `protocol_violation`.
pub(crate) fn read_error(bytes: &[u8]) -> AdapterError {
    let Ok(mut error) = serde_json::from_slice::<AdapterError>(bytes) else {
        return breach("an error answer that is not {\"code\", \"message\"} as JSON");
    };
    if error.code.is_empty() || error.code.len() > 256 {
        return breach("an error answer whose code is empty or too long");
    }
    if error.message.len() > MESSAGE_BYTES {
        let end = error.message.floor_char_boundary(MESSAGE_BYTES);
        error.message.truncate(end);
    }
    error
}

/// # Safety
///
/// `ctx` is the one that [`Instance::create`] or [`Instance::start`] handed out.
unsafe fn host(ctx: *const ()) -> &'static Host {
    // SAFETY: both contexts are leaked hosts.
    unsafe { &*ctx.cast::<Host>() }
}

unsafe extern "C" fn emit(ctx: *const (), call: u64, event: FSlice) -> i32 {
    // SAFETY: by the contract of the table, the context is the bridge's and the bytes are lent for this call.
    let (host, event) = unsafe { (host(ctx), event.as_bytes()) };
    match host.emit(CallId(call), event) {
        Emitted::Taken => EMIT_OK,
        Emitted::Full => EMIT_FULL,
        Emitted::Closed | Emitted::TooMuch => EMIT_CLOSED,
    }
}

unsafe extern "C" fn log(ctx: *const (), _call: u64, level: i32, record: FSlice) {
    // SAFETY: as in `emit`.
    let (host, record) = unsafe { (host(ctx), record.as_bytes()) };
    host.logs.push(level, record);
}

unsafe extern "C" fn query(_ctx: *const (), _name: FSlice, _version: u32) -> *const () {
    ptr::null()
}

unsafe extern "C" fn complete(ctx: *const (), call: u64, status: i32, payload: FBytes) -> i32 {
    // SAFETY: the bridge's own context.
    let host = unsafe { host(ctx) };
    let mut payload = Some(payload);
    let taken = host.complete(CallId(call), "completion", || {
        let payload = payload.take().expect("asked for once");
        // SAFETY: by the contract of the table, the bytes belong to the bridge now.
        unsafe { host.read_answer(status, payload) }
    });
    if let Some(unread) = payload {
        // SAFETY: the same contract; a refused payload is consumed too.
        unsafe { unread.release() };
    }
    taken
}

unsafe extern "C" fn abandon(ctx: *const (), call: u64) -> i32 {
    // SAFETY: the bridge's own context.
    let host = unsafe { host(ctx) };
    host.complete(CallId(call), "abandonment", || {
        Err(AdapterError::new(
            "adapter_error",
            "the adapter abandoned the call without an answer",
        ))
    })
}

type Start = unsafe extern "C" fn(*mut (), u64, FSlice, FBytes, Completion) -> i32;
type CancelCall = unsafe extern "C" fn(*mut (), u64) -> i32;
type Destroy = unsafe extern "C" fn(*mut ());

/// Unvalidated `InstanceV1`: a C adapter might leave functions out.
#[repr(C)]
pub(crate) struct RawInstance {
    size: usize,
    data: *mut (),
    start: Option<Start>,
    cancel: Option<CancelCall>,
    destroy: Option<Destroy>,
}

/// Unvalidated `CreateResult`.
#[repr(C)]
pub(crate) struct RawCreateResult {
    status: i32,
    error: FBytes,
    instance: RawInstance,
}

const _: () = assert!(size_of::<RawInstance>() == size_of::<InstanceV1>());
const _: () = assert!(
    size_of::<RawCreateResult>() == size_of::<forge_adapter_abi::CreateResult>(),
    "an optional function is a nullable pointer"
);

/// One instance of an adapter. `start` and `destroy` belong to its call thread, `cancel` to its cancel thread.
#[derive(Clone, Copy)]
pub(crate) struct Instance {
    host: &'static Host,
    data: *mut (),
    start: Start,
    cancel: CancelCall,
    destroy: Destroy,
}

// SAFETY: the contract of the table permits calls from any thread; `instance.rs` decides which thread calls what.
unsafe impl Send for Instance {}

impl Instance {
    /// Creates an instance of a library that passed all checks.
    pub(crate) fn create(
        create: RawCreate,
        host: &'static Host,
        payload: Vec<u8>,
    ) -> Result<Self, LoadError> {
        let table: &'static HostV1 = Box::leak(Box::new(HostV1 {
            size: size_of::<HostV1>(),
            ctx: ptr::from_ref(host).cast(),
            emit,
            log,
            query,
        }));
        // SAFETY: a checked library's own function; the table is leaked, the bytes are handed over.
        let result = unsafe { create(table, FBytes::from_vec(payload)) };
        if result.status != STATUS_OK {
            // SAFETY: by the contract of the table, a failed call hands the error's bytes over.
            let bytes = unsafe { result.error.into_vec() };
            let error = bytes.map_or_else(
                |_| breach("create failed, and its error's buffer is inconsistent"),
                |bytes| read_error(&bytes),
            );
            return Err(LoadError::Create(error));
        }
        let raw = result.instance;
        if raw.size != size_of::<InstanceV1>() {
            return Err(LoadError::Create(breach(&format!(
                "create returned an instance table of {} bytes, wanted {}",
                raw.size,
                size_of::<InstanceV1>()
            ))));
        }
        let (Some(start), Some(cancel), Some(destroy)) = (raw.start, raw.cancel, raw.destroy)
        else {
            return Err(LoadError::Create(breach(
                "create returned an instance without start, cancel or destroy",
            )));
        };
        Ok(Self {
            host,
            data: raw.data,
            start,
            cancel,
            destroy,
        })
    }

    /// Starts a call; true if the adapter accepted it.
    pub(crate) fn start(&self, call_id: CallId, op: &str, payload: Vec<u8>) -> bool {
        let completion = Completion {
            ctx: ptr::from_ref(self.host).cast(),
            call: call_id.0,
            complete_fn: complete,
            abandon_fn: abandon,
        };
        let payload = FBytes::from_vec(payload);
        // SAFETY: the instance lives until `destroy`, which this thread calls last.
        let status = unsafe {
            (self.start)(
                self.data,
                call_id.0,
                FSlice::of(op.as_bytes()),
                payload,
                completion,
            )
        };
        if status != 0 {
            self.host.complete(call_id, "refusal", || {
                Err(AdapterError::new(
                    "adapter_error",
                    format!("the adapter refused the call {op:?} (start returned {status})"),
                ))
            });
        }
        status == 0
    }

    pub(crate) fn cancel(&self, call_id: CallId) {
        // SAFETY: the thread that calls this has ended before `destroy` is called.
        unsafe { (self.cancel)(self.data, call_id.0) };
    }

    pub(crate) fn destroy(self) {
        // SAFETY: called once, last, by the thread that made all other calls.
        unsafe { (self.destroy)(self.data) };
    }
}

/// Tests that act as the adapter's own threads.
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::instance::queue::{Bounds, CallMessage};

    const BOUNDS: Bounds = Bounds {
        queued: 10_000,
        event: 100,
        total: Some(150),
    };

    fn leaked_host() -> (&'static Host, UnboundedReceiver<Cancel>) {
        let (cancels, inbox) = unbounded_channel();
        let host = Host {
            provider: "test".into(),
            tickets: CallIds::default(),
            news: Queue::new(BOUNDS),
            logs: Logs::default(),
            cancels,
            payload_bytes: 100,
            meters: Meters::default(),
        };
        (Box::leak(Box::new(host)), inbox)
    }

    fn finish(host: &'static Host, call_id: CallId, status: i32, payload: FBytes) -> i32 {
        // SAFETY: a leaked host, and bytes made by the caller.
        unsafe { complete(ptr::from_ref(host).cast(), call_id.0, status, payload) }
    }

    #[tokio::test]
    async fn every_form_of_answer_has_a_clear_meaning() {
        let json = |text: &str| FBytes::from_vec(text.as_bytes().to_vec());
        let crooked = FBytes {
            len: 9,
            ..FBytes::empty()
        };
        let table = [
            (STATUS_OK, json("{}"), None),
            (STATUS_OK, FBytes::empty(), None),
            (
                STATUS_ERROR,
                json(r#"{"code":"busy","message":"later"}"#),
                Some("busy"),
            ),
            (STATUS_ERROR, json("busy"), Some("protocol_violation")),
            (7, json("{}"), Some("protocol_violation")),
            (STATUS_OK, crooked, Some("protocol_violation")),
            (STATUS_OK, json(&"x".repeat(101)), Some("output_too_large")),
        ];
        let (host, _inbox) = leaked_host();
        for (status, payload, code) in table {
            let queue = Arc::new(Queue::new(BOUNDS));
            let call_id = host.tickets.open(Arc::clone(&queue));
            assert_eq!(finish(host, call_id, status, payload), 0);
            assert_eq!(finish(host, call_id, STATUS_OK, FBytes::empty()), NOT_TAKEN);
            let CallMessage::Answer(answer) = queue.next().await else {
                panic!("the answer comes first");
            };
            assert_eq!(answer.err().map(|error| error.code).as_deref(), code);
        }
    }

    #[tokio::test]
    async fn too_many_events_end_the_call_and_cancel_it() {
        let (host, mut inbox) = leaked_host();
        let queue = Arc::new(Queue::new(BOUNDS));
        let call_id = host.tickets.open(Arc::clone(&queue));
        queue.begin();
        assert_eq!(host.emit(call_id, &[b'x'; 100]), Emitted::Taken);
        assert_eq!(host.emit(call_id, &[b'x'; 100]), Emitted::TooMuch);
        assert_eq!(host.emit(call_id, b"x"), Emitted::Closed);
        assert!(matches!(inbox.try_recv(), Ok(Cancel::Call(call)) if call == call_id));
        assert!(matches!(queue.next().await, CallMessage::Event(_)));
        assert!(
            matches!(queue.next().await, CallMessage::Answer(Err(error)) if error.code == "output_too_large")
        );
    }

    #[test]
    fn of_many_threads_that_complete_one_is_taken() {
        let (host, _inbox) = leaked_host();
        let call_id = host.tickets.open(Arc::new(Queue::new(BOUNDS)));
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| finish(host, call_id, STATUS_OK, FBytes::empty())))
                .collect();
            threads
                .into_iter()
                .map(|thread| usize::from(thread.join().unwrap() == 0))
                .sum()
        });
        assert_eq!(taken, 1);
    }
}
