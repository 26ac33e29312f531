//! Makes the transactions of challenges. Each comparison in them is a rule of the protocol.

use std::sync::Arc;
use std::time::Duration;

use super::config::Announced;
use super::suspects::Target;
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
pub(crate) fn challenges_of(anchor: &[u8]) -> Arc<[u8]> {
    [anchor, b"/challenges/"].concat().into()
}

/// Returns the challenge of an anchor by the session of that lease.
pub(crate) fn challenge_key(anchor: &[u8], lease: i64) -> Arc<[u8]> {
    let name = format!("{lease:x}");
    [&*challenges_of(anchor), name.as_bytes()].concat().into()
}

/// Returns true if the key is a challenge by the session of that lease.
pub(crate) fn is_challenge_by(key: &[u8], lease: i64) -> bool {
    is_below_sessions(key) && key.ends_with(format!("/challenges/{lease:x}").as_bytes())
}

/// Returns the lease of the session by which that challenge is.
pub(crate) fn challenger(challenge: &[u8]) -> Option<i64> {
    let name = challenge.rsplit(|byte| *byte == b'/').next()?;
    i64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()
}

/// Returns how long a clean read lets a session lead, from its anchor's value.
pub(crate) fn lead_of(anchor: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(anchor).ok()?;
    let micros = text.split(' ').next()?.parse().ok()?;
    Some(Duration::from_micros(micros))
}

/// Returns the address at which the session gives signs of life, from its anchor's value, if there is one.
pub(crate) fn address_of(anchor: &[u8]) -> Option<String> {
    let (_, address) = std::str::from_utf8(anchor).ok()?.split_once(' ')?;
    (!address.is_empty()).then(|| address.to_owned())
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

/// Deletes all challenges of the session, if its anchor exists. The success is a clean read: no number of challengers
/// keeps a session that answers from leading.
pub(crate) fn answer(own: &Announced) -> Ask {
    Ask::Transact(Txn {
        when: vec![exists(own)],
        then: vec![Op::DeleteBelow(challenges_of(&own.anchor))],
        otherwise: Vec::new(),
    })
}

/// Puts a challenge, unless it stands. Its modification revision and the anchor are read by either branch.
pub(crate) fn challenge(target: &Target, lease: i64) -> Ask {
    let challenge = challenge_key(&target.announced.anchor, lease);
    let anchor = Arc::clone(&target.announced.anchor);
    let put = Op::Put {
        key: Arc::clone(&challenge),
        value: Arc::default(),
        lease,
    };
    Ask::Transact(Txn {
        when: vec![
            exists(&target.announced),
            When::Created(Arc::clone(&target.key), target.create_revision),
            When::Created(Arc::clone(&challenge), 0),
        ],
        then: vec![put, Op::Read(anchor)],
        otherwise: read_all(target, challenge),
    })
}

/// Deletes the anchor, the suspect's key and the challenge, if the challenge was never answered: an answer deletes it,
/// and a later one is written at another revision.
pub(crate) fn condemn(target: &Target, lease: i64, written: i64) -> Ask {
    let challenge = challenge_key(&target.announced.anchor, lease);
    Ask::Transact(Txn {
        when: vec![
            When::Written(Arc::clone(&challenge), written),
            exists(&target.announced),
            When::Created(Arc::clone(&target.key), target.create_revision),
        ],
        then: vec![
            Op::Delete(Arc::clone(&target.announced.anchor)),
            Op::Delete(Arc::clone(&target.key)),
            Op::Delete(Arc::clone(&challenge)),
        ],
        otherwise: read_all(target, challenge),
    })
}

/// Deletes a key of a session that was condemned: its anchor is gone, or put again at another revision.
pub(crate) fn delete_by_absence(target: &Target) -> Ask {
    let Announced {
        anchor,
        create_revision,
    } = &target.announced;
    Ask::Transact(Txn {
        when: vec![
            When::NotCreated(Arc::clone(anchor), *create_revision),
            When::Created(Arc::clone(&target.key), target.create_revision),
        ],
        then: vec![Op::Delete(Arc::clone(&target.key))],
        otherwise: vec![Op::Read(Arc::clone(anchor))],
    })
}

fn exists(announced: &Announced) -> When {
    When::Created(Arc::clone(&announced.anchor), announced.create_revision)
}

fn read_all(target: &Target, challenge: Arc<[u8]>) -> Vec<Op> {
    vec![
        Op::Read(challenge),
        Op::Read(Arc::clone(&target.announced.anchor)),
        Op::Read(Arc::clone(&target.key)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    fn target() -> Target {
        Target {
            slot: Some(1),
            key: bytes("e/7f"),
            create_revision: 5,
            announced: Announced {
                anchor: bytes("~session/7f"),
                create_revision: 4,
            },
        }
    }

    fn when(ask: Ask) -> Vec<When> {
        match ask {
            Ask::Transact(txn) => txn.when,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn anchor_is_put_only_if_it_is_absent() {
        let lead = Duration::from_millis(400);
        let (key, ask) = put_anchor((b"~session/", 0x7f), lead, b"10.0.0.1:7");
        assert_eq!(key, bytes("~session/7f"));
        assert_eq!(when(ask), [When::Created(key, 0)]);
    }

    #[test]
    fn value_of_an_anchor_says_how_long_its_session_leads_and_where_it_is() {
        let lead = Duration::from_millis(400);
        let (_, ask) = put_anchor((b"~session/", 0x7f), lead, b"10.0.0.1:7");
        let Ask::Transact(Txn { then, .. }) = ask else {
            panic!("{ask:?}");
        };
        let Op::Put { value, lease, .. } = &then[0] else {
            panic!("{then:?}");
        };
        assert_eq!((lead_of(value), *lease), (Some(lead), 0x7f));
        assert_eq!(address_of(value).as_deref(), Some("10.0.0.1:7"));
        for (value, lead) in [(&b"4000000 "[..], Some(lead * 10)), (b"another's", None)] {
            assert_eq!((lead_of(value), address_of(value)), (lead, None));
        }
    }

    #[test]
    fn answer_compares_the_anchor() {
        let anchor = When::Created(bytes("~session/7f"), 4);
        assert_eq!(when(answer(&target().announced)), [anchor]);
    }

    #[test]
    fn challenge_compares_anchor_and_key_and_is_put_once() {
        let expected = [
            When::Created(bytes("~session/7f"), 4),
            When::Created(bytes("e/7f"), 5),
            When::Created(bytes("~session/7f/challenges/7e"), 0),
        ];
        assert_eq!(when(challenge(&target(), 0x7e)), expected);
    }

    #[test]
    fn condemnation_compares_challenge_anchor_and_key() {
        let expected = [
            When::Written(bytes("~session/7f/challenges/7e"), 9),
            When::Created(bytes("~session/7f"), 4),
            When::Created(bytes("e/7f"), 5),
        ];
        assert_eq!(when(condemn(&target(), 0x7e, 9)), expected);
    }

    #[test]
    fn deletion_by_absence_compares_another_anchor_and_the_key() {
        let expected = [
            When::NotCreated(bytes("~session/7f"), 4),
            When::Created(bytes("e/7f"), 5),
        ];
        assert_eq!(when(delete_by_absence(&target())), expected);
    }

    #[test]
    fn challenge_is_recognized_by_its_folder_and_its_author() {
        for (key, is_ours) in [
            (&b"~session/7f/challenges/7e"[..], true),
            (b"ns/~session/7f/challenges/7e", true),
            (b"~session/7f/challenges/7d", false),
            (b"~session/7e", false),
            (b"ns/e/challenges/7e", false),
        ] {
            let text = String::from_utf8_lossy(key);
            assert_eq!(is_challenge_by(key, 0x7e), is_ours, "{text}");
        }
    }
}
