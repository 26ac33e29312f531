//! Builds the keys of candidates and permits.

use std::sync::Arc;

/// Returns `<prefix><lease in lower-case hex>`, as in etcd's own election recipe.
pub fn key_of(prefix: &[u8], lease: i64) -> Arc<[u8]> {
    let mut key = prefix.to_vec();
    key.extend_from_slice(format!("{lease:x}").as_bytes());
    key.into()
}

/// Returns `<prefix><lease in lower-case hex>-<number>`, for a semaphore, where one session may have several keys.
pub fn numbered_key_of(prefix: &[u8], lease: i64, number: u64) -> Arc<[u8]> {
    let mut key = key_of(prefix, lease).to_vec();
    key.extend_from_slice(format!("-{number}").as_bytes());
    key.into()
}
