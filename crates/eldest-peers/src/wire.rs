//! Defines the messages between two sessions. Each has a fixed length, so no length is read from the network.
//!
//! The asker sends one hello and, every few seconds, [`ASKING`]. The asked session sends [`Reply::Alive`] again and
//! again, or one of the other replies and then closes the connection.

/// The version of the messages.
pub const VERSION: u8 = 1;
/// The length of a hello, in every version.
pub const HELLO: usize = MARK.len() + 1 + size_of::<i64>();
/// Says that the asker still listens.
pub const ASKING: u8 = 1;
/// The first bytes of a hello.
const MARK: [u8; 6] = *b"eldest";

/// The request in a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hello {
    /// Asks for signs of life of the session that holds that lease.
    Asks(i64),
    /// The asker speaks another version.
    OtherVersion,
}

impl Hello {
    /// Returns the hello that asks for that lease.
    pub fn encode(lease: i64) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let (mark, rest) = bytes.split_at_mut(MARK.len());
        mark.copy_from_slice(&MARK);
        rest[0] = VERSION;
        rest[1..].copy_from_slice(&lease.to_be_bytes());
        bytes
    }

    /// Reads a hello; `None` if the bytes are none.
    pub fn decode(bytes: &[u8; HELLO]) -> Option<Self> {
        let (version, lease) = bytes.strip_prefix(&MARK)?.split_first()?;
        if *version != VERSION {
            return Some(Self::OtherVersion);
        }
        Some(Self::Asks(i64::from_be_bytes(lease.try_into().ok()?)))
    }
}

/// A message of the asked session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Reply {
    /// A sign of life: the session may lead.
    Alive = 1,
    /// The session does not hold that lease, so the process that held it has ended or has lost it.
    Unknown = 2,
    /// The session serves as many askers as it may, or has not heard from this one for long.
    Busy = 3,
    /// The session speaks another version.
    OtherVersion = 4,
}

impl Reply {
    /// Reads all replies of one read from the connection, and returns the last one. Returns `None` if the bytes are no
    /// replies: only [`Reply::Alive`] may be followed by another reply.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (last, signs) = bytes.split_last()?;
        if signs.iter().any(|sign| *sign != Self::Alive as u8) {
            return None;
        }
        let all = [Self::Alive, Self::Unknown, Self::Busy, Self::OtherVersion];
        all.into_iter().find(|reply| *reply as u8 == *last)
    }
}

/// Returns true if an asker may send these bytes after its hello.
pub fn still_asks(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| *byte == ASKING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hello_is_read_back_as_it_was_written() {
        for lease in [i64::MIN, -1, 0, 1, i64::MAX] {
            let bytes = Hello::encode(lease);
            assert_eq!(Hello::decode(&bytes), Some(Hello::Asks(lease)));
        }
    }

    #[test]
    fn hello_with_a_changed_byte_asks_for_nothing_else() {
        let hello = Hello::encode(0x1f2a);
        for at in 0..HELLO {
            let mut changed = hello;
            changed[at] ^= 0x40;
            let read = Hello::decode(&changed);
            match at {
                0..6 => assert_eq!(read, None),
                6 => assert_eq!(read, Some(Hello::OtherVersion)),
                _ => assert!(matches!(read, Some(Hello::Asks(lease)) if lease != 0x1f2a)),
            }
        }
    }

    #[test]
    fn only_signs_of_life_are_followed_by_other_replies() {
        assert_eq!(Reply::decode(&[]), None);
        assert_eq!(Reply::decode(&[1; 64]), Some(Reply::Alive));
        assert_eq!(Reply::decode(&[1, 1, 2]), Some(Reply::Unknown));
        assert_eq!(Reply::decode(&[3]), Some(Reply::Busy));
        assert_eq!(Reply::decode(&[4]), Some(Reply::OtherVersion));
        for rubbish in [&[0][..], &[5], &[2, 1], &[1, 0, 1], b"HTTP/1.1 400\r\n"] {
            assert_eq!(Reply::decode(rubbish), None, "{rubbish:?}");
        }
    }

    #[test]
    fn asker_sends_nothing_else_after_its_hello() {
        assert!(still_asks(&[ASKING; 3]));
        for rubbish in [&[][..], &[0], &[ASKING, 2]] {
            assert!(!still_asks(rubbish), "{rubbish:?}");
        }
    }
}
