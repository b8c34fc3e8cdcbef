//! The frozen boundary between the bridge and an adapter library: a table of C functions that exchange
//! bytes. The table does not change within ABI major 1; only the JSON inside the bytes evolves.
//! `forge_adapter.h` in this crate is the same table in C.
//!
//! Adapter authors do not use this crate; they implement a trait of `forge-adapter-api`.

#![expect(unsafe_code, reason = "this crate is the boundary")]

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;

mod bytes;

pub use bytes::Malformed;

/// The ABI major of this crate; the value of `CEntryV1::abi_major`.
pub const ABI_MAJOR: u32 = 1;

/// Symbol of the plain C entry, a static `CEntryV1`.
pub const C_ENTRY_SYMBOL: &str = "forge_adapter_entry_v1";

/// Symbol that abi_stable looks up. A test compares it with abi_stable's own constant.
pub const ROOT_MODULE_SYMBOL: &str = "_1as_0lib_1header_0root_bmodule_bloader";

/// `HostV1::emit`: the event was accepted.
pub const EMIT_OK: i32 = 0;
/// `HostV1::emit`: the queue is full and the event was not stored; try again later.
pub const EMIT_FULL: i32 = 1;
/// `HostV1::emit`: the call has ended or is unknown; the event will never be accepted.
pub const EMIT_CLOSED: i32 = 2;

/// `start`, `CreateResult` and completions: the payload is the answer.
pub const STATUS_OK: i32 = 0;
/// Completions and `CreateResult`: the payload is an error as JSON.
pub const STATUS_ERROR: i32 = 1;

/// Borrowed bytes, valid for the call they are passed to.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct FSlice {
    pub ptr: *const u8,
    pub len: usize,
}

/// Owned bytes. Their last owner calls `free`, which belongs to the side that allocated them.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct FBytes {
    pub ptr: *mut u8,
    pub len: usize,
    pub cap: usize,
    /// `None` only when `cap` is 0.
    pub free: Option<unsafe extern "C" fn(*mut u8, usize, usize)>,
}

/// Answers one call: exactly once, through `complete_fn` or `abandon_fn`, from any thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct Completion {
    pub ctx: *const (),
    /// The call number passed to `start`.
    pub call: u64,
    /// `(ctx, call, status, payload)`: 0 when accepted, -1 when the call was already answered or is
    /// unknown. The payload is consumed either way.
    pub complete_fn: unsafe extern "C" fn(*const (), u64, i32, FBytes) -> i32,
    /// `(ctx, call)`: the call will never be completed.
    pub abandon_fn: unsafe extern "C" fn(*const (), u64) -> i32,
}

/// The bridge's functions for an instance. Lives as long as the process.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct HostV1 {
    pub size: usize,
    pub ctx: *const (),
    /// `(ctx, call, event)`: one event as JSON; call 0 is the instance itself. Returns an `EMIT_*` code.
    /// Never blocks.
    pub emit: unsafe extern "C" fn(*const (), u64, FSlice) -> i32,
    /// `(ctx, call, level, record)`: one log record as JSON; level 1 error to 5 trace. Never blocks.
    pub log: unsafe extern "C" fn(*const (), u64, i32, FSlice),
    /// `(ctx, name, version)`: a later host interface, or null.
    pub query: unsafe extern "C" fn(*const (), FSlice, u32) -> *const (),
}

/// An adapter instance. The bridge makes all calls from one thread, except `cancel`, for which it has a
/// second.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct InstanceV1 {
    pub size: usize,
    pub data: *mut (),
    /// `(data, call, op, payload, completion)`: 0 when the call was accepted; any other value means that it
    /// will never be completed. Must return without blocking.
    pub start: unsafe extern "C" fn(*mut (), u64, FSlice, FBytes, Completion) -> i32,
    /// `(data, call)`: drops this call. 0 when the call existed.
    pub cancel: unsafe extern "C" fn(*mut (), u64) -> i32,
    /// The last call into this instance.
    pub destroy: unsafe extern "C" fn(*mut ()),
}

/// Result of `create`. `instance` is valid only when `status` is 0; otherwise `error` is an error as JSON.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct CreateResult {
    pub status: i32,
    pub error: FBytes,
    pub instance: InstanceV1,
}

/// The root module of an adapter library.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ModuleV1Ref)))]
#[sabi(missing_field(panic))]
pub struct ModuleV1 {
    /// The manifest as JSON.
    pub manifest: unsafe extern "C" fn() -> FBytes,
    /// `(host, payload)`: creates an instance. Synchronous; must return quickly.
    #[sabi(last_prefix_field)]
    pub create: unsafe extern "C" fn(*const HostV1, FBytes) -> CreateResult,
}

impl RootModule for ModuleV1Ref {
    abi_stable::declare_root_module_statics! {ModuleV1Ref}
    const BASE_NAME: &'static str = "forge_adapter";
    const NAME: &'static str = "forge_adapter";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// The same two functions without abi_stable, for other languages and as a fallback for Rust: every library
/// exports it as the static `forge_adapter_entry_v1`.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct CEntryV1 {
    /// `ABI_MAJOR`.
    pub abi_major: u32,
    /// `size_of::<CEntryV1>()`.
    pub size: u32,
    pub manifest: unsafe extern "C" fn() -> FBytes,
    pub create: unsafe extern "C" fn(*const HostV1, FBytes) -> CreateResult,
}
