//! Converts events to and from lines of JSON with times in nanoseconds, and reads files of such lines.

use std::io;
use std::path::Path;

use super::Event;

const UNKNOWN: &str = "no event that this version knows";

/// Formats the event as one line, with its line end.
pub(super) fn line(event: &Event) -> io::Result<String> {
    Ok(serde_json::to_string(event)? + "\n")
}

/// Appends the events of a file.
pub(super) fn read_file(path: &Path, events: &mut Vec<Event>) -> io::Result<()> {
    let bytes = std::fs::read(path)?;
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        match serde_json::from_slice(line) {
            Ok(event) => events.push(event),
            // The line is empty, or was cut off by a kill.
            Err(error) if error.is_eof() => {}
            Err(error) => {
                let problem = problem(&error);
                let place = format!("{}:{}: {problem}", path.display(), number + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, place));
            }
        }
    }
    Ok(())
}

/// Parses one line, as [`Recorder::to_file`](super::Recorder::to_file) writes it, for programs that follow a growing
/// file.
impl std::str::FromStr for Event {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Self> {
        let event = serde_json::from_str(line);
        event.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, problem(&error)))
    }
}

fn problem(error: &serde_json::Error) -> String {
    if error.is_data() {
        UNKNOWN.to_owned()
    } else {
        error.to_string()
    }
}

/// A time in nanoseconds.
pub(super) mod nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_nanos().try_into().unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

/// Formats an optional time in nanoseconds.
pub(super) mod some_nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde calls it like that")]
    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::nanos::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let nanos = Option::<u64>::deserialize(from)?;
        Ok(nanos.map(Duration::from_nanos))
    }
}
