//! The long run: the target named by `FORGE_FUZZ_TARGET`, under libFuzzer.
#![no_main]

use std::sync::LazyLock;

use forge_fuzz::{TARGETS, Target, chosen};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FORGE_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    *target.expect("FORGE_FUZZ_TARGET names a target")
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| {
    if TARGET.name != "config" || seed.is_multiple_of(2) {
        return libfuzzer_sys::fuzzer_mutate(data, size, most);
    }
    let mut made = chosen::more(&data[..size], &mut SmallRng::seed_from_u64(seed.into()));
    made.truncate(most);
    data[..made.len()].copy_from_slice(&made);
    made.len()
});
