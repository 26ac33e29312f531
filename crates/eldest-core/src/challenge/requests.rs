//! Makes the transactions of challenges. Each comparison in them is a rule of the protocol.

use std::sync::Arc;
use std::time::Duration;

use super::config::Announced;
use crate::action::Ask;
use crate::txn::{Op, Txn, When};

/// The name of the folder of all anchors and their challenges.
const SESSIONS: &[u8] = b"~session";

/// Returns true if the key is an anchor or a challenge: a folder above it has the name of the anchors.
pub(crate) fn is_below_sessions(key: &[u8]) -> bool {
    let mut folders = key.rsplit(|byte| *byte == b'/').skip(1);
    folders.any(|folder| folder == SESSIONS)
}

/// Returns the prefix of the challenges of an anchor.
fn challenges_of(anchor: &[u8]) -> Arc<[u8]> {
    [anchor, b"/challenges/"].concat().into()
}

/// Puts the anchor, unless it exists: then an earlier put, whose answer was lost, is read. No candidate has announced
/// it, so it cannot have been condemned.
pub(crate) fn put_anchor(
    (sessions, lease): (&[u8], i64),
    lead: Duration,
    address: &[u8],
) -> (Arc<[u8]>, Ask) {
    let key: Arc<[u8]> = [sessions, format!("{lease:x}").as_bytes()].concat().into();
    let lead = format!("{} ", lead.as_micros());
    let put = Op::Put {
        key: Arc::clone(&key),
        value: [lead.as_bytes(), address].concat().into(),
        lease,
    };
    let ask = Ask::Transact(Txn {
        when: vec![When::Created(Arc::clone(&key), 0)],
        then: vec![put],
        otherwise: vec![Op::Read(Arc::clone(&key))],
    });
    (key, ask)
}

/// Reads the anchor and its challenges at one revision. Linearizable, as every transaction.
pub(crate) fn clean_read(own: &Announced) -> Ask {
    Ask::Transact(Txn {
        when: Vec::new(),
        then: vec![
            Op::Read(Arc::clone(&own.anchor)),
            Op::ReadBelow(challenges_of(&own.anchor)),
        ],
        otherwise: Vec::new(),
    })
}
