//! See `eldest::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = (eldest::fuzzing::TARGETS[0].read)(bytes);
});
