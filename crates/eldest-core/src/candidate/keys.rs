//! Names the keys of candidates and permits.

use std::sync::Arc;

/// `<prefix><lease in lower-case hex>`, as in etcd's own election recipe.
pub fn key_of(prefix: &[u8], lease: i64) -> Arc<[u8]> {
    let mut key = prefix.to_vec();
    key.extend_from_slice(format!("{lease:x}").as_bytes());
    key.into()
}

/// `<prefix><lease in lower-case hex>-<number>`: a semaphore knows several keys of one session.
pub fn numbered_key_of(prefix: &[u8], lease: i64, number: u64) -> Arc<[u8]> {
    let mut key = key_of(prefix, lease).to_vec();
    key.extend_from_slice(format!("-{number}").as_bytes());
    key.into()
}
