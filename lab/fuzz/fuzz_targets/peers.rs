//! Reads the messages between sessions. See `eldest_peers::wire`.
#![no_main]

use eldest_peers::wire::{Hello, Reply, still_asks};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = bytes.first_chunk()
        && let Some(Hello::Asks(lease)) = Hello::decode(hello)
    {
        assert_eq!(&Hello::encode(lease), hello);
    }
    if let Some(reply) = Reply::decode(bytes) {
        assert_eq!(bytes.last(), Some(&(reply as u8)));
    }
    assert!(!still_asks(bytes) || Reply::decode(bytes) == Some(Reply::Alive));
});
