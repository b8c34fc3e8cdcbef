//! The library's side of the boundary; holds all `unsafe` code of the SDK. Adapter authors only use
//! [`export_adapter!`](crate::export_adapter).
#![expect(
    unsafe_code,
    reason = "pointers cross here and nowhere else in the SDK"
)]

use std::ptr;

use abi_stable::library::{__call_root_module_loader, CheckTypeLayout, RootModuleResult};
use abi_stable::prefix_type::PrefixTypeTrait;
use forge_adapter_abi::{
    ABI_MAJOR, Completion, CreateResult, EMIT_FULL, EMIT_OK, FBytes, FSlice, HostV1, InstanceV1,
    ModuleV1, ModuleV1Ref, STATUS_ERROR, STATUS_OK,
};

use crate::conformance::recorder::Recorder;
use crate::events::Sent;
use crate::guard::caught;
use crate::host::Create;
use crate::instance::Instance;
use crate::json::arguments;
use crate::profile::{Manifest, SCHEMA};
use crate::{AdapterError, ExecutionAdapter, Result};

pub use abi_stable::library::LibHeader;
pub use forge_adapter_abi::CEntryV1;

/// Makes the crate an adapter library: exports both entries for this type. Use it once in a crate whose
/// `[lib]` has `crate-type = ["cdylib", "rlib"]`.
#[macro_export]
macro_rules! export_adapter {
    ($adapter:ty) => {
        #[cfg(panic = "abort")]
        ::core::compile_error!(
            "an adapter must be built with panic = \"unwind\": remove panic = \"abort\" from the profile"
        );

        const _: () = {
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            static ROOT_MODULE: $crate::export::LibHeader =
                $crate::export::root_module::<$adapter>();

            #[unsafe(export_name = "forge_adapter_entry_v1")]
            static C_ENTRY: $crate::export::CEntryV1 = $crate::export::c_entry::<$adapter>();
        };
    };
}

/// The static that abi_stable looks up.
pub const fn root_module<A: ExecutionAdapter>() -> LibHeader {
    // SAFETY: `load_root_module` returns the result of `__call_root_module_loader` for a `ModuleV1Ref`.
    unsafe {
        LibHeader::from_constructor::<ModuleV1Ref>(load_root_module::<A>, CheckTypeLayout::Yes)
    }
}

/// The static for loaders without abi_stable.
pub const fn c_entry<A: ExecutionAdapter>() -> CEntryV1 {
    CEntryV1 {
        abi_major: ABI_MAJOR,
        size: size_of::<CEntryV1>() as u32,
        manifest: manifest::<A>,
        create: create::<A>,
    }
}

extern "C" fn load_root_module<A: ExecutionAdapter>() -> RootModuleResult {
    __call_root_module_loader(|| {
        ModuleV1 {
            manifest: manifest::<A>,
            create: create::<A>,
        }
        .leak_into_prefix()
    })
}

unsafe extern "C" fn manifest<A: ExecutionAdapter>() -> FBytes {
    let made = caught(|| serde_json::to_vec(&Manifest::of::<A>()));
    match made {
        Ok(Ok(json)) => FBytes::from_vec(json),
        // Every loader rejects an empty manifest, as it should here.
        Ok(Err(_)) | Err(_) => FBytes::empty(),
    }
}

unsafe extern "C" fn create<A: ExecutionAdapter>(
    host: *const HostV1,
    payload: FBytes,
) -> CreateResult {
    let made = caught(|| {
        // SAFETY: the loader passes ownership of the payload, which this function frees.
        let payload = unsafe { payload.into_vec() }
            .map_err(|error| AdapterError::new("invalid_request", error.to_string()))?;
        // SAFETY: the loader passes null or a host that lives as long as the process.
        let link = unsafe { HostLink::new(host) }?;
        let create: Create = arguments("create", &payload)?;
        if create.schema != 0 && !SCHEMA.contains(create.schema) {
            let text = format!(
                "schema {} is not among those of this adapter, {} to {}",
                create.schema, SCHEMA.min, SCHEMA.max
            );
            return Err(AdapterError::new("invalid_request", text));
        }
        Instance::<A>::create(link, create)
    });
    let (status, error, data) = match made.and_then(|made| made) {
        Ok(instance) => {
            let data = Box::into_raw(Box::new(instance)).cast();
            (STATUS_OK, FBytes::empty(), data)
        }
        Err(error) => (STATUS_ERROR, error_bytes(&error), ptr::null_mut()),
    };
    CreateResult {
        status,
        error,
        instance: InstanceV1 {
            size: size_of::<InstanceV1>(),
            data,
            start: start::<A>,
            cancel: cancel::<A>,
            destroy: destroy::<A>,
        },
    }
}

unsafe extern "C" fn start<A: ExecutionAdapter>(
    data: *mut (),
    call: u64,
    op: FSlice,
    payload: FBytes,
    completion: Completion,
) -> i32 {
    let reply = Reply::new(completion);
    let started = caught(move || {
        // SAFETY: `data` came from `create` and `destroy` has not been called.
        let instance = unsafe { &*data.cast::<Instance<A>>() };
        // SAFETY: borrowed until this function returns, and copied here.
        let op = String::from_utf8_lossy(unsafe { op.as_bytes() }).into_owned();
        // SAFETY: the caller passes ownership of the payload, which this function frees.
        match unsafe { payload.into_vec() } {
            Ok(payload) => instance.start(call, op, payload, reply),
            Err(error) => {
                let text = format!("{op}: {error}");
                reply.send(Err(AdapterError::new("invalid_request", text)));
            }
        }
    });
    if started.is_ok() { 0 } else { -1 }
}

unsafe extern "C" fn cancel<A: ExecutionAdapter>(data: *mut (), call: u64) -> i32 {
    // SAFETY: `data` came from `create` and `destroy` has not been called.
    let instance = unsafe { &*data.cast::<Instance<A>>() };
    match caught(|| instance.cancel(call)) {
        Ok(true) => 0,
        Ok(false) | Err(_) => -1,
    }
}

unsafe extern "C" fn destroy<A: ExecutionAdapter>(data: *mut ()) {
    if data.is_null() {
        return;
    }
    // SAFETY: `data` came from `create`, and this is its last use.
    let instance = unsafe { Box::from_raw(data.cast::<Instance<A>>()) };
    // The panic hook has logged the panic, and `destroy` cannot report it.
    let _ = caught(|| drop(instance));
}

/// The bridge's function table.
#[derive(Clone, Copy)]
pub(crate) struct HostLink(&'static HostV1);

// SAFETY: the table never changes, and its functions may be called from any thread.
unsafe impl Send for HostLink {}
// SAFETY: as above.
unsafe impl Sync for HostLink {}

impl HostLink {
    /// # Safety
    ///
    /// `host` is null or points to a host that lives as long as the process.
    unsafe fn new(host: *const HostV1) -> Result<Self> {
        // SAFETY: guaranteed by the caller. Only `size` is read before the table is known to be complete.
        match unsafe { host.as_ref() } {
            Some(host) if host.size >= size_of::<HostV1>() => Ok(Self(host)),
            Some(_) | None => Err(AdapterError::new(
                "invalid_request",
                "create was given no host of ABI major 1",
            )),
        }
    }

    pub(crate) fn emit(self, call: u64, event: &[u8]) -> Sent {
        // SAFETY: the host's own function and context; the slice is borrowed for the call.
        match unsafe { (self.0.emit)(self.0.ctx, call, FSlice::of(event)) } {
            EMIT_OK => Sent::Taken,
            EMIT_FULL => Sent::Full,
            // Unknown answers of later bridges are final too; retrying them could take forever.
            _ => Sent::Closed,
        }
    }

    pub(crate) fn log(self, call: u64, level: i32, record: &[u8]) {
        // SAFETY: the host's own function and context; the slice is borrowed for the call.
        unsafe { (self.0.log)(self.0.ctx, call, level, FSlice::of(record)) }
    }
}

/// Answers one call: sends a result, or abandons the call when dropped.
pub(crate) struct Reply {
    completion: Completion,
    sent: bool,
}

// SAFETY: a completion may be called from any thread.
unsafe impl Send for Reply {}

impl Reply {
    fn new(completion: Completion) -> Self {
        Self {
            completion,
            sent: false,
        }
    }

    pub(crate) fn send(mut self, answer: Result<Vec<u8>>) {
        self.sent = true;
        let (status, payload) = match answer {
            Ok(payload) => (STATUS_OK, FBytes::from_vec(payload)),
            Err(error) => (STATUS_ERROR, error_bytes(&error)),
        };
        let Completion { ctx, call, .. } = self.completion;
        // SAFETY: the bridge's own function, context and call number; ownership of the payload passes to
        // it. The return value is ignored: -1 only means that the bridge stopped waiting.
        unsafe { (self.completion.complete_fn)(ctx, call, status, payload) };
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            let Completion { ctx, call, .. } = self.completion;
            // SAFETY: as in `send`; nothing was sent before.
            unsafe { (self.completion.abandon_fn)(ctx, call) };
        }
    }
}

fn error_bytes(error: &AdapterError) -> FBytes {
    FBytes::from_vec(serde_json::to_vec(error).expect("an error is plain JSON"))
}

/// The entry of a loaded library, for [`conformance::check_library`](crate::conformance::check_library).
#[derive(Debug)]
pub struct LoadedEntry(pub(crate) CEntryV1);

impl LoadedEntry {
    /// # Safety
    ///
    /// The functions belong to a library that is never unloaded, and keep the contract of the table.
    pub unsafe fn new(
        manifest: unsafe extern "C" fn() -> FBytes,
        create: unsafe extern "C" fn(*const HostV1, FBytes) -> CreateResult,
    ) -> Self {
        Self(CEntryV1 {
            abi_major: ABI_MAJOR,
            size: size_of::<CEntryV1>() as u32,
            manifest,
            create,
        })
    }
}

/// An instance called through its own table within this process, for the conformance checks.
pub(crate) struct Loopback {
    instance: InstanceV1,
    recorder: &'static Recorder,
}

// SAFETY: the table's functions may be called from any thread.
unsafe impl Send for Loopback {}

impl Loopback {
    /// The entry's manifest.
    pub(crate) fn manifest(entry: &CEntryV1) -> Vec<u8> {
        // SAFETY: the function belongs to an entry of `c_entry`; its answer is owned here.
        unsafe { (entry.manifest)().into_vec() }.unwrap_or_default()
    }

    pub(crate) fn create(entry: &CEntryV1, payload: Vec<u8>) -> Result<Self> {
        // Leaked, as in the bridge: late callbacks must find it.
        let recorder: &'static Recorder = Box::leak(Box::default());
        let host: &'static HostV1 = Box::leak(Box::new(HostV1 {
            size: size_of::<HostV1>(),
            ctx: ptr::from_ref(recorder).cast(),
            emit: recorder_emit,
            log: recorder_log,
            query: recorder_query,
        }));
        // SAFETY: the function belongs to an entry of `c_entry`; the host is never freed.
        let made = unsafe { (entry.create)(host, FBytes::from_vec(payload)) };
        if made.status == STATUS_OK {
            return Ok(Self {
                instance: made.instance,
                recorder,
            });
        }
        // SAFETY: the error is owned here.
        let error = unsafe { made.error.into_vec() }.unwrap_or_default();
        Err(arguments("the error of create", &error)?)
    }

    pub(crate) fn recorder(&self) -> &'static Recorder {
        self.recorder
    }

    /// Starts a call; 0 when it was accepted.
    pub(crate) fn start(&self, call: u64, op: &str, payload: Vec<u8>) -> i32 {
        self.recorder.begin(call);
        let completion = Completion {
            ctx: ptr::from_ref(self.recorder).cast(),
            call,
            complete_fn: recorder_complete,
            abandon_fn: recorder_abandon,
        };
        let (op, payload) = (FSlice::of(op.as_bytes()), FBytes::from_vec(payload));
        // SAFETY: the instance is alive until `Loopback` is dropped.
        unsafe { (self.instance.start)(self.instance.data, call, op, payload, completion) }
    }

    /// Drops a call; 0 when it existed.
    pub(crate) fn cancel(&self, call: u64) -> i32 {
        // SAFETY: the instance is alive until `Loopback` is dropped.
        unsafe { (self.instance.cancel)(self.instance.data, call) }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        // SAFETY: the last call into the instance.
        unsafe { (self.instance.destroy)(self.instance.data) }
    }
}

/// # Safety
///
/// `ctx` is the recorder of a [`Loopback`].
unsafe fn recorder(ctx: *const ()) -> &'static Recorder {
    // SAFETY: recorders are leaked.
    unsafe { &*ctx.cast::<Recorder>() }
}

unsafe extern "C" fn recorder_emit(ctx: *const (), call: u64, event: FSlice) -> i32 {
    // SAFETY: `ctx` is the recorder, and the event is borrowed for the call.
    unsafe { recorder(ctx).emit(call, event.as_bytes()) }
}

unsafe extern "C" fn recorder_log(ctx: *const (), _call: u64, _level: i32, record: FSlice) {
    // SAFETY: `ctx` is the recorder, and the record is borrowed for the call.
    unsafe { recorder(ctx).log(record.as_bytes()) }
}

unsafe extern "C" fn recorder_query(_ctx: *const (), _name: FSlice, _version: u32) -> *const () {
    ptr::null()
}

unsafe extern "C" fn recorder_complete(
    ctx: *const (),
    call: u64,
    status: i32,
    payload: FBytes,
) -> i32 {
    // SAFETY: `ctx` is the recorder, and the payload is owned here.
    unsafe {
        let payload = payload.into_vec().unwrap_or_default();
        recorder(ctx).complete(call, status, payload)
    }
}

unsafe extern "C" fn recorder_abandon(ctx: *const (), call: u64) -> i32 {
    // SAFETY: `ctx` is the recorder.
    unsafe { recorder(ctx).abandon(call) }
}
