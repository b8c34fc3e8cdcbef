//! The frozen boundary between the bridge and an adapter library: a table of C functions, bytes in,
//! bytes out. Nothing here changes within ABI major 1; what evolves is the JSON inside the bytes.
//! `forge_adapter.h` beside this crate is the same in C.
//!
//! Adapter authors never see this crate: they implement a trait of `forge-adapter-api`.

#![expect(unsafe_code, reason = "this crate is the boundary")]

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;

mod bytes;

pub use bytes::Malformed;

/// The ABI major that this crate describes; `CEntryV1::abi_major`.
pub const ABI_MAJOR: u32 = 1;

/// The symbol of the plain C entry: a static `CEntryV1`.
pub const C_ENTRY_SYMBOL: &str = "forge_adapter_entry_v1";

/// The symbol that abi_stable looks for. A test holds it against abi_stable's own constant.
pub const ROOT_MODULE_SYMBOL: &str = "_1as_0lib_1header_0root_bmodule_bloader";

/// `HostV1::emit`: the event was taken.
pub const EMIT_OK: i32 = 0;
/// `HostV1::emit`: the queue is full and nothing was kept; try again later.
pub const EMIT_FULL: i32 = 1;
/// `HostV1::emit`: the call has ended or is unknown; it will never be taken.
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

/// Owned bytes. Whoever holds them last calls `free`, which belongs to the side that made them.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct FBytes {
    pub ptr: *mut u8,
    pub len: usize,
    pub cap: usize,
    /// `None` only when there is nothing to free.
    pub free: Option<unsafe extern "C" fn(*mut u8, usize, usize)>,
}

/// How a call is answered: exactly once, by `complete_fn` or by `abandon_fn`, from any thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, StableAbi)]
pub struct Completion {
    pub ctx: *const (),
    /// The number given to `start`.
    pub call: u64,
    /// `(ctx, call, status, payload)`: 0 when taken, -1 when the call was answered already or is
    /// unknown. The payload is consumed either way.
    pub complete_fn: unsafe extern "C" fn(*const (), u64, i32, FBytes) -> i32,
    /// `(ctx, call)`: the call will never be completed.
    pub abandon_fn: unsafe extern "C" fn(*const (), u64) -> i32,
}

/// What the bridge offers an instance. Lives as long as the process.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct HostV1 {
    pub size: usize,
    pub ctx: *const (),
    /// `(ctx, call, event)`: one event as JSON; call 0 is the instance itself. Never blocks.
    pub emit: unsafe extern "C" fn(*const (), u64, FSlice) -> i32,
    /// `(ctx, call, level, record)`: one log record as JSON; level 1 error to 5 trace. Never blocks.
    pub log: unsafe extern "C" fn(*const (), u64, i32, FSlice),
    /// `(ctx, name, version)`: a later host interface, or null.
    pub query: unsafe extern "C" fn(*const (), FSlice, u32) -> *const (),
}

/// One adapter instance. All calls but `cancel` come from one thread of the bridge, which has a
/// second one for `cancel`.
#[repr(C)]
#[derive(Debug, StableAbi)]
pub struct InstanceV1 {
    pub size: usize,
    pub data: *mut (),
    /// `(data, call, op, payload, completion)`: 0 when the call was taken; anything else when it will
    /// never be completed. Must return at once.
    pub start: unsafe extern "C" fn(*mut (), u64, FSlice, FBytes, Completion) -> i32,
    /// `(data, call)`: drop this call. 0 when there was one.
    pub cancel: unsafe extern "C" fn(*mut (), u64) -> i32,
    /// The last call into this instance.
    pub destroy: unsafe extern "C" fn(*mut ()),
}

/// `instance` counts only when `status` is 0; else `error` is an error as JSON.
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
    /// `(host, payload)`: makes an instance. Quick and synchronous.
    #[sabi(last_prefix_field)]
    pub create: unsafe extern "C" fn(*const HostV1, FBytes) -> CreateResult,
}

impl RootModule for ModuleV1Ref {
    abi_stable::declare_root_module_statics! {ModuleV1Ref}
    const BASE_NAME: &'static str = "forge_adapter";
    const NAME: &'static str = "forge_adapter";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// The same two functions for languages without abi_stable, and the insurance for those with it:
/// every library exports it as the static `forge_adapter_entry_v1`.
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
