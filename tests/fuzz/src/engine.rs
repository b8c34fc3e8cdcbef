//! The long part: the target that `FORGE_FUZZ_TARGET` names, under libFuzzer.
#![no_main]

use std::sync::LazyLock;

use forge_fuzz::TARGETS;

static RUN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FORGE_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    target.expect("FORGE_FUZZ_TARGET names a target").run
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (*RUN)(data));
