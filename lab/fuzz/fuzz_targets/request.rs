//! See `eldest::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = eldest_http::fuzzing::request(bytes);
});
