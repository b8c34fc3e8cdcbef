//! The ABI boundary at run time: the functions that the adapter calls, the adapter's functions that the bridge calls,
//! and the buffers between them. Policy is decided elsewhere; nothing here waits or holds a lock while foreign code
//! runs.

#![expect(unsafe_code, reason = "the boundary to adapter libraries")]

use std::mem::size_of;
use std::ptr;

use forge_adapter_abi::{
    Completion, EMIT_CLOSED, EMIT_FULL, EMIT_OK, FBytes, FSlice, HostV1, InstanceV1, STATUS_ERROR,
    STATUS_OK,
};
use forge_adapter_api::AdapterError;

use crate::boundary::answer::{self, Answer, breach, read_error};
use crate::boundary::call_id::CallId;
use crate::boundary::callbacks::{Callbacks, Emitted, RECORD_BYTES};
use crate::boundary::load_error::LoadError;
use crate::boundary::readable::readable;

/// Return value of a completion that was refused.
const NOT_TAKEN: i32 = -1;

pub(crate) type RawCreate = unsafe extern "C" fn(*const HostV1, FBytes) -> RawCreateResult;

/// Target of the adapter's callbacks. Leaked on purpose: a callback after `destroy` must find it.
struct Context {
    callbacks: &'static dyn Callbacks,
    /// The largest answer that is copied.
    payload_bytes: usize,
}

/// # Safety
///
/// `ctx` is the one that [`Instance::create`] or [`Instance::start`] handed out.
unsafe fn context(ctx: *const ()) -> &'static Context {
    // SAFETY: both hand out the leaked context of the instance.
    unsafe { &*ctx.cast::<Context>() }
}

unsafe extern "C" fn emit(ctx: *const (), call: u64, event: FSlice) -> i32 {
    // SAFETY: by the contract of the table, the context is the bridge's and the bytes are lent for this call.
    let (context, event) = unsafe { (context(ctx), event.as_bytes()) };
    match context.callbacks.emit(CallId(call), event) {
        Emitted::Taken => EMIT_OK,
        Emitted::Full => EMIT_FULL,
        Emitted::Closed | Emitted::TooMuch => EMIT_CLOSED,
    }
}

unsafe extern "C" fn log(ctx: *const (), _call: u64, level: i32, record: FSlice) {
    // SAFETY: as in `emit`.
    let context = unsafe { context(ctx) };
    if record.len > RECORD_BYTES {
        // SAFETY: as in `emit`.
        let head = unsafe { head(record.ptr, RECORD_BYTES) };
        context.callbacks.log(level, &head);
    } else {
        // SAFETY: as in `emit`.
        context.callbacks.log(level, unsafe { record.as_bytes() });
    }
}

/// Copies up to `most` bytes of an allocation whose length cannot be trusted, because it is beyond its limit.
///
/// # Safety
///
/// As for [`FSlice::as_bytes`], except that fewer bytes can be readable.
unsafe fn head(ptr: *const u8, most: usize) -> Vec<u8> {
    let head = FSlice { ptr, len: most };
    // SAFETY: passed on from the caller; only the kernel reads the bytes, and it checks each page.
    readable(unsafe { head.as_bytes() })
}

unsafe extern "C" fn query(_ctx: *const (), _name: FSlice, _version: u32) -> *const () {
    ptr::null()
}

unsafe extern "C" fn complete(ctx: *const (), call: u64, status: i32, payload: FBytes) -> i32 {
    // SAFETY: the bridge's own context.
    let context = unsafe { context(ctx) };
    let mut payload = Some(payload);
    let mut answer = || {
        let payload = payload.take().expect("asked for once");
        // SAFETY: by the contract of the table, the bytes belong to the bridge now.
        unsafe { read_answer(status, payload, context.payload_bytes) }
    };
    let callbacks = context.callbacks;
    let taken = callbacks.complete(CallId(call), "completion", &mut answer);
    if let Some(unread) = payload {
        // SAFETY: the same contract; a refused payload is consumed too.
        unsafe { unread.release() };
    }
    if taken { 0 } else { NOT_TAKEN }
}

unsafe extern "C" fn abandon(ctx: *const (), call: u64) -> i32 {
    // SAFETY: the bridge's own context.
    let callbacks = unsafe { context(ctx) }.callbacks;
    let taken = callbacks.complete(CallId(call), "abandonment", &mut || {
        Err(AdapterError::new(
            "adapter_error",
            "the adapter abandoned the call without an answer",
        ))
    });
    if taken { 0 } else { NOT_TAKEN }
}

/// Reads the status and payload given to `complete`; an answer of more than `most` bytes is an error.
///
/// # Safety
///
/// As for [`FBytes::into_vec`].
unsafe fn read_answer(status: i32, payload: FBytes, most: usize) -> Answer {
    if payload.is_well_formed() && payload.len > most {
        let found = payload.len;
        // SAFETY: passed on from the caller; the bytes are not freed before the copy is made.
        let head = unsafe { head(payload.ptr, most) };
        let error = answer::too_large(&head, found, most);
        // SAFETY: passed on from the caller.
        unsafe { payload.release() };
        return Err(error);
    }
    // SAFETY: passed on from the caller.
    let bytes = unsafe { payload.into_vec() }.map_err(|_| {
        breach("the answer's buffer is inconsistent (length, capacity, pointer or free)")
    })?;
    match status {
        STATUS_OK => answer::check(Ok(bytes), most),
        STATUS_ERROR => answer::check(Err(bytes), most),
        unknown => Err(breach(&format!("unknown completion status {unknown}"))),
    }
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
    context: &'static Context,
    data: *mut (),
    start: Start,
    cancel: CancelCall,
    destroy: Destroy,
}

// SAFETY: the contract of the table permits calls from any thread; the instance's own threads decide which one calls what.
unsafe impl Send for Instance {}

impl Instance {
    /// Creates an instance of a library that passed all checks. `payload_bytes` is the limit of an answer.
    pub(crate) fn create(
        create: RawCreate,
        callbacks: &'static dyn Callbacks,
        payload_bytes: usize,
        payload: Vec<u8>,
    ) -> Result<Self, LoadError> {
        let context: &'static Context = Box::leak(Box::new(Context {
            callbacks,
            payload_bytes,
        }));
        let table: &'static HostV1 = Box::leak(Box::new(HostV1 {
            size: size_of::<HostV1>(),
            ctx: ptr::from_ref(context).cast(),
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
            context,
            data: raw.data,
            start,
            cancel,
            destroy,
        })
    }

    /// Starts a call; true if the adapter accepted it.
    pub(crate) fn start(&self, call_id: CallId, op: &str, payload: Vec<u8>) -> bool {
        let completion = Completion {
            ctx: ptr::from_ref(self.context).cast(),
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
            let callbacks = self.context.callbacks;
            callbacks.complete(call_id, "refusal", &mut || {
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
    use std::sync::Mutex;

    use super::*;

    /// One open call, and its answer once it is completed.
    #[derive(Default)]
    struct OneCall(Mutex<Option<Answer>>);

    impl Callbacks for OneCall {
        fn emit(&self, _call_id: CallId, _event: &[u8]) -> Emitted {
            Emitted::Taken
        }

        fn log(&self, _level: i32, _record: &[u8]) {}

        fn complete(&self, _: CallId, _: &str, answer: &mut dyn FnMut() -> Answer) -> bool {
            let mut answered = self.0.lock().unwrap();
            let first = answered.is_none();
            if first {
                *answered = Some(answer());
            }
            first
        }
    }

    #[test]
    fn every_form_of_answer_has_a_clear_meaning() {
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
        for (status, payload, code) in table {
            let call: &'static OneCall = Box::leak(Box::default());
            let context: &'static Context = Box::leak(Box::new(Context {
                callbacks: call,
                payload_bytes: 100,
            }));
            let finish = |status, payload| {
                // SAFETY: a leaked context, and bytes made by this test.
                unsafe { complete(ptr::from_ref(context).cast(), 1, status, payload) }
            };
            assert_eq!(finish(status, payload), 0);
            assert_eq!(finish(STATUS_OK, FBytes::empty()), NOT_TAKEN);
            let answer = call.0.lock().unwrap().take().unwrap();
            assert_eq!(answer.err().map(|error| error.code).as_deref(), code);
        }
    }
}
