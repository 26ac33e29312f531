//! Builds the keys of candidates and permits.

use std::sync::Arc;

use crate::queue::SHARED;

/// Returns `<prefix><lease in lower-case hex>`, as in etcd's own election recipe.
pub fn key_of(prefix: &[u8], lease: i64) -> Arc<[u8]> {
    let mut digits = [0; 16];
    let hex = hex(lease, &mut digits);
    // The length is known, so the key is allocated once.
    prefix.iter().chain(hex).copied().collect()
}

/// Writes the number in lower-case hex, without leading zeros.
fn hex(number: i64, digits: &mut [u8; 16]) -> &[u8] {
    let mut rest = number.cast_unsigned();
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b"0123456789abcdef"[(rest & 0xf) as usize];
        rest >>= 4;
        if rest == 0 {
            return &digits[first..];
        }
    }
}

/// Returns `<prefix><lease in lower-case hex>-<number>`, for a semaphore, where one session may have several keys.
pub fn numbered_key_of(prefix: &[u8], lease: i64, number: u64) -> Arc<[u8]> {
    let mut key = key_of(prefix, lease).to_vec();
    key.extend_from_slice(format!("-{number}").as_bytes());
    key.into()
}

/// Returns `<prefix><lease in lower-case hex>-shared-<number>`, for a shared lock, of which one session may have
/// several keys.
pub(super) fn shared_key_of(prefix: &[u8], lease: i64, number: u64) -> Arc<[u8]> {
    let key = key_of(prefix, lease);
    [&key, SHARED, number.to_string().as_bytes()]
        .concat()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_written_as_go_writes_it() {
        for lease in [0, 1, 0xf, 0x10, 0x694d_8b0e_2f3a_0c51, i64::MAX, -1] {
            let written = format!("e/{lease:x}");
            assert_eq!(&*key_of(b"e/", lease), written.as_bytes());
        }
    }
}
