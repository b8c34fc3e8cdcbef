//! The long part: one target under libFuzzer, which sees the edges that bytes take.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| { let _ = data; });
