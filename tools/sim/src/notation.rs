//! Defines how serde writes durations in the file of a kept plan, and the names of variants there and at the command line.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Returns the variant with that name.
pub(crate) fn named<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    let variant = toml::Value::from(name).try_into();
    variant.map_err(|error| error.to_string())
}

/// Returns the name of a variant.
pub(crate) fn name_of(variant: &impl Serialize) -> String {
    let name = toml::Value::try_from(variant).ok();
    let name = name.as_ref().and_then(toml::Value::as_str);
    name.expect("a variant without fields").to_owned()
}

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
