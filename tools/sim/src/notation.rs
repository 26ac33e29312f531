//! Defines how serde writes durations and words in the file of a kept plan.

/// Durations are kept as seconds.
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        of(f64::deserialize(from)?)
    }

    pub(super) fn of<E: Error>(seconds: f64) -> Result<Duration, E> {
        let time = Duration::try_from_secs_f64(seconds);
        time.map_err(|error| E::custom(format!("seconds: {error}")))
    }
}

/// Formats as `seconds` does; an endless duration is `inf`.
pub(crate) mod seconds_or_ever {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "as serde calls it")]
    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.map_or(f64::INFINITY, |time| time.as_secs_f64()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        match f64::deserialize(from)? {
            f64::INFINITY => Ok(None),
            seconds => super::seconds::of(seconds).map(Some),
        }
    }
}

/// Formats the part of the queue that a candidate watches as a word.
pub(crate) mod follow_name {
    use eldest_core::candidate::WatchScope;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: [(&str, WatchScope); 3] = [
        ("auto", WatchScope::Auto),
        ("everyone", WatchScope::Everyone),
        ("predecessor", WatchScope::Predecessor),
    ];

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(follow: &WatchScope, to: S) -> Result<S::Ok, S::Error> {
        let name = NAMES.iter().find(|(_, other)| other == follow);
        to.serialize_str(name.map_or("auto", |(name, _)| name))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<WatchScope, D::Error> {
        let word = String::deserialize(from)?;
        let found = NAMES.iter().find(|(name, _)| *name == word);
        found.map(|(_, follow)| *follow).ok_or_else(|| {
            D::Error::custom(format!(
                "unknown variant `{word}`, expected auto, everyone or predecessor"
            ))
        })
    }
}
