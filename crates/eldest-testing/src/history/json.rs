//! Converts events to and from lines of JSON with times in nanoseconds, and reads files of such lines.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Change, Event, Outcome, Resources, What};

const UNKNOWN: &str = "no event that this version knows";

/// The event as one line, with its line end.
pub(super) fn line(event: &Event) -> String {
    let mut object = what(&event.what);
    if let Some(map) = object.as_object_mut() {
        map.insert("at".into(), nanos(event.at).into());
        map.insert("node".into(), event.node.as_str().into());
        map.insert("election".into(), event.election.as_str().into());
    }
    format!("{object}\n")
}

/// Appends the events of a file.
pub(super) fn read_file(path: &Path, events: &mut Vec<Event>) -> io::Result<()> {
    let bytes = std::fs::read(path)?;
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let problem = match serde_json::from_slice::<Map<String, Value>>(line) {
            Ok(map) => match event(&map) {
                Some(event) => {
                    events.push(event);
                    continue;
                }
                None => UNKNOWN.to_owned(),
            },
            // Empty, or broken off by a kill.
            Err(error) if error.is_eof() => continue,
            Err(error) => error.to_string(),
        };
        let place = format!("{}:{}: {problem}", path.display(), number + 1);
        return Err(io::Error::new(io::ErrorKind::InvalidData, place));
    }
    Ok(())
}

/// One line, as [`Recorder::to_file`](super::Recorder::to_file) writes them: for who follows a file that grows.
impl std::str::FromStr for Event {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Self> {
        let map = serde_json::from_str::<Map<String, Value>>(line)?;
        event(&map).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, UNKNOWN))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn what(what: &What) -> Value {
    match what {
        What::Joined {
            key,
            create_revision,
        } => json!({"what": "joined", "key": key, "create_revision": create_revision}),
        What::Left => json!({"what": "left"}),
        What::Elected { token } => json!({"what": "elected", "token": token}),
        What::Valid { token } => json!({"what": "valid", "token": token}),
        What::Invalid { token } => json!({"what": "invalid", "token": token}),
        What::Guarded { token } => json!({"what": "guarded", "token": token}),
        What::LostToken { token, reason } => {
            json!({"what": "lost_token", "token": token, "reason": reason})
        }
        What::Released { token } => json!({"what": "released", "token": token}),
        What::Paused => json!({"what": "paused"}),
        What::Resumed => json!({"what": "resumed"}),
        What::Killed => json!({"what": "killed"}),
        What::Fault { name } => json!({"what": "fault", "name": name}),
        What::Healed { name } => json!({"what": "healed", "name": name}),
        What::FencedWrite { token, outcome } => match outcome {
            Outcome::Admitted { value } => {
                json!({"what": "admitted", "token": token, "value": value})
            }
            Outcome::Sent => json!({"what": "sent", "token": token}),
            Outcome::Refused => json!({"what": "refused", "token": token}),
            Outcome::Unknown => json!({"what": "unanswered", "token": token}),
        },
        What::FinalCounter { value } => json!({"what": "final_counter", "value": value}),
        What::AskedToDelete { create_revision } => {
            json!({"what": "asked_to_delete", "create_revision": create_revision})
        }
        What::DeletedByOther { create_revision } => {
            json!({"what": "deleted_by_other", "create_revision": create_revision})
        }
        What::Truth { revision, change } => truth(*revision, change),
        What::Baseline(held) => resources("baseline", held),
        What::Final(held) => resources("final", held),
    }
}

fn truth(revision: i64, change: &Change) -> Value {
    match change {
        Change::Created {
            key,
            create_revision,
            lease,
        } => json!({"what": "key_created", "revision": revision, "key": key,
                "create_revision": create_revision, "lease": lease}),
        Change::Overwritten {
            key,
            create_revision,
            lease,
        } => json!({"what": "key_overwritten", "revision": revision, "key": key,
                "create_revision": create_revision, "lease": lease}),
        Change::Deleted {
            key,
            create_revision,
        } => json!({"what": "key_deleted", "revision": revision, "key": key,
                "create_revision": create_revision}),
        Change::Lease { lease, left } => json!({"what": "lease", "revision": revision,
                "lease": lease, "left": left.map(nanos)}),
        Change::Gap { since } => json!({"what": "gap", "revision": revision, "since": since}),
    }
}

fn resources(what: &str, held: &Resources) -> Value {
    let mut object = json!({"what": what});
    for (name, count) in held.named() {
        object[name] = count.into();
    }
    object
}

fn event(map: &Map<String, Value>) -> Option<Event> {
    let text = |name: &str| map.get(name)?.as_str().map(str::to_owned);
    let int = |name: &str| map.get(name)?.as_i64();
    let count = |name: &str| map.get(name)?.as_u64();
    let write = |outcome| {
        Some(What::FencedWrite {
            token: int("token")?,
            outcome,
        })
    };
    let truth = |change| {
        Some(What::Truth {
            revision: int("revision")?,
            change,
        })
    };
    let held = || {
        Some(Resources {
            leases: count("leases")?,
            keys: count("keys")?,
            watchers: count("watchers")?,
            tasks: count("tasks")?,
            threads: count("threads")?,
            fds: count("fds")?,
        })
    };
    let token = int("token");
    let what = match map.get("what")?.as_str()? {
        "joined" => What::Joined {
            key: text("key")?,
            create_revision: int("create_revision")?,
        },
        "left" => What::Left,
        "elected" => What::Elected { token: token? },
        "valid" => What::Valid { token: token? },
        "invalid" => What::Invalid { token: token? },
        "guarded" => What::Guarded { token: token? },
        "lost_token" => What::LostToken {
            token: token?,
            reason: text("reason")?,
        },
        "released" => What::Released { token: token? },
        "paused" => What::Paused,
        "resumed" => What::Resumed,
        "killed" => What::Killed,
        "fault" => What::Fault {
            name: text("name")?,
        },
        "healed" => What::Healed {
            name: text("name")?,
        },
        "admitted" => write(Outcome::Admitted {
            value: count("value")?,
        })?,
        "sent" => write(Outcome::Sent)?,
        "refused" => write(Outcome::Refused)?,
        "unanswered" => write(Outcome::Unknown)?,
        "final_counter" => What::FinalCounter {
            value: count("value")?,
        },
        "asked_to_delete" => What::AskedToDelete {
            create_revision: int("create_revision")?,
        },
        "deleted_by_other" => What::DeletedByOther {
            create_revision: int("create_revision")?,
        },
        "key_created" => truth(Change::Created {
            key: text("key")?,
            create_revision: int("create_revision")?,
            lease: int("lease")?,
        })?,
        "key_overwritten" => truth(Change::Overwritten {
            key: text("key")?,
            create_revision: int("create_revision")?,
            lease: int("lease")?,
        })?,
        "key_deleted" => truth(Change::Deleted {
            key: text("key")?,
            create_revision: int("create_revision")?,
        })?,
        "lease" => truth(Change::Lease {
            lease: int("lease")?,
            left: count("left").map(Duration::from_nanos),
        })?,
        "gap" => truth(Change::Gap {
            since: int("since")?,
        })?,
        "baseline" => What::Baseline(held()?),
        "final" => What::Final(held()?),
        _ => return None,
    };
    Some(Event {
        at: Duration::from_nanos(count("at")?),
        node: text("node")?,
        election: text("election")?,
        what,
    })
}
