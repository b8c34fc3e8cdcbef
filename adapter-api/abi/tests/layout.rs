//! The golden layout: sizes, offsets and symbols that cannot change within ABI major 1.

use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

use abi_stable::library::ROOT_MODULE_LOADER_NAME;
use forge_adapter_abi::{
    ABI_MAJOR, C_ENTRY_SYMBOL, CEntryV1, Completion, CreateResult, FBytes, FSlice, HostV1,
    InstanceV1, ROOT_MODULE_SYMBOL,
};

#[test]
#[cfg(target_pointer_width = "64")]
fn sizes_and_offsets_are_frozen() {
    assert_eq!((size_of::<FSlice>(), align_of::<FSlice>()), (16, 8));
    assert_eq!((offset_of!(FSlice, ptr), offset_of!(FSlice, len)), (0, 8));

    assert_eq!((size_of::<FBytes>(), align_of::<FBytes>()), (32, 8));
    assert_eq!(offset_of!(FBytes, ptr), 0);
    assert_eq!(offset_of!(FBytes, len), 8);
    assert_eq!(offset_of!(FBytes, cap), 16);
    assert_eq!(offset_of!(FBytes, free), 24);

    assert_eq!((size_of::<Completion>(), align_of::<Completion>()), (32, 8));
    assert_eq!(offset_of!(Completion, ctx), 0);
    assert_eq!(offset_of!(Completion, call), 8);
    assert_eq!(offset_of!(Completion, complete_fn), 16);
    assert_eq!(offset_of!(Completion, abandon_fn), 24);

    assert_eq!((size_of::<HostV1>(), align_of::<HostV1>()), (40, 8));
    assert_eq!(offset_of!(HostV1, size), 0);
    assert_eq!(offset_of!(HostV1, ctx), 8);
    assert_eq!(offset_of!(HostV1, emit), 16);
    assert_eq!(offset_of!(HostV1, log), 24);
    assert_eq!(offset_of!(HostV1, query), 32);

    assert_eq!((size_of::<InstanceV1>(), align_of::<InstanceV1>()), (40, 8));
    assert_eq!(offset_of!(InstanceV1, size), 0);
    assert_eq!(offset_of!(InstanceV1, data), 8);
    assert_eq!(offset_of!(InstanceV1, start), 16);
    assert_eq!(offset_of!(InstanceV1, cancel), 24);
    assert_eq!(offset_of!(InstanceV1, destroy), 32);

    assert_eq!(
        (size_of::<CreateResult>(), align_of::<CreateResult>()),
        (80, 8)
    );
    assert_eq!(offset_of!(CreateResult, status), 0);
    assert_eq!(offset_of!(CreateResult, error), 8);
    assert_eq!(offset_of!(CreateResult, instance), 40);

    assert_eq!((size_of::<CEntryV1>(), align_of::<CEntryV1>()), (24, 8));
    assert_eq!(offset_of!(CEntryV1, abi_major), 0);
    assert_eq!(offset_of!(CEntryV1, size), 4);
    assert_eq!(offset_of!(CEntryV1, manifest), 8);
    assert_eq!(offset_of!(CEntryV1, create), 16);
}

#[test]
fn the_names_that_loaders_look_for_are_frozen() {
    assert_eq!(ABI_MAJOR, 1);
    assert_eq!(C_ENTRY_SYMBOL, "forge_adapter_entry_v1");
    assert_eq!(ROOT_MODULE_SYMBOL, ROOT_MODULE_LOADER_NAME);
}

#[test]
fn the_c_header_compiles_and_its_own_layout_asserts_hold() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("forge_adapter.h");
    let checked = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
        ])
        .args(["-x", "c"])
        .arg(&header)
        .output()
        .expect("a C compiler named cc is on the path");
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}
