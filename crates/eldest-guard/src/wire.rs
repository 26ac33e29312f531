//! Defines the messages between a session and its guard, as JSON objects with one field, which names the message.

use serde_json::{Value, json};

/// The version, which both ends must share: a guard that does not know a message could miss a life.
pub const VERSION: u64 = 2;

/// A message of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Introduces a session. A descriptor of its process comes with it.
    Hello(Hello),
    /// Adds a process that must also have ended before the keys are deleted; its descriptor comes with it. The guard may
    /// kill a cgroup while a process that belongs to it lives.
    Process {
        /// True if the process belongs to a cgroup of the session.
        contained: bool,
    },
    /// Adds a cgroup that must also be empty before the keys are deleted. Descriptors of its `cgroup.events` and, if
    /// the guard may kill it, of its `cgroup.kill` come with it.
    Cgroup,
    /// Adds a timer that must also have ended, after every process, before the keys are deleted; its descriptor comes
    /// with it.
    Timer,
    /// Requests a proof key for that lease.
    Guard {
        /// The lease.
        lease: i64,
    },
    /// Says that the proof key is in etcd.
    Proven {
        /// The lease.
        lease: i64,
    },
    /// Asks whether the guard reaches etcd.
    Ping,
    /// Ends the session: its leases are no longer guarded.
    Goodbye,
    /// Requests the list of guarded sessions.
    Status,
}

/// A session's introduction of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The version of the messages.
    pub version: u64,
    /// The session's identity.
    pub identity: String,
    /// The prefix of the session's keys, empty or with its final `/`.
    pub namespace: String,
    /// How long the guard waits before it deletes keys, in milliseconds.
    pub linger_ms: u64,
}

/// A message of a guard. Each answers one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The guard knows the session.
    Welcome {
        /// The version of the messages.
        version: u64,
    },
    /// The guard has added a life.
    Added,
    /// The session must put this key under the lease, and leave it there.
    Prove {
        /// The key.
        key: String,
    },
    /// The guard guards the lease.
    Guarded,
    /// The guard lives.
    Pong {
        /// Why the guard does not reach etcd at present.
        problem: Option<String>,
    },
    /// The guard does not do what was asked.
    Refused {
        /// The reason.
        reason: String,
    },
    /// One session, in the answer to `Status`.
    Session(Value),
    /// The end of the list of sessions, with the guard's own status.
    Agent(Value),
}

impl Request {
    /// Returns the message as JSON.
    pub fn encode(&self) -> Value {
        match self {
            Request::Hello(hello) => json!({"hello": {
                "version": hello.version, "identity": hello.identity, "namespace": hello.namespace,
                "linger_ms": hello.linger_ms,
            }}),
            Request::Process { contained } => json!({"process": {"contained": contained}}),
            Request::Cgroup => json!({"cgroup": {}}),
            Request::Timer => json!({"timer": {}}),
            Request::Guard { lease } => json!({"guard": {"lease": hex(*lease)}}),
            Request::Proven { lease } => json!({"proven": {"lease": hex(*lease)}}),
            Request::Ping => json!({"ping": {}}),
            Request::Goodbye => json!({"goodbye": {}}),
            Request::Status => json!({"status": {}}),
        }
    }

    /// Reads a message; `None` if this version does not know it.
    pub fn decode(message: &Value) -> Option<Self> {
        let (name, fields) = message.as_object()?.iter().next()?;
        let text = |field: &str| Some(fields.get(field)?.as_str()?.to_owned());
        let number = |field: &str| fields.get(field)?.as_u64();
        let lease = || i64::from_str_radix(&text("lease")?, 16).ok();
        Some(match name.as_str() {
            "hello" => Request::Hello(Hello {
                version: number("version")?,
                identity: text("identity")?,
                namespace: text("namespace")?,
                linger_ms: number("linger_ms")?,
            }),
            "process" => Request::Process {
                contained: fields.get("contained")?.as_bool()?,
            },
            "cgroup" => Request::Cgroup,
            "timer" => Request::Timer,
            "guard" => Request::Guard { lease: lease()? },
            "proven" => Request::Proven { lease: lease()? },
            "ping" => Request::Ping,
            "goodbye" => Request::Goodbye,
            "status" => Request::Status,
            _ => return None,
        })
    }
}

impl Reply {
    /// Returns the message as JSON.
    pub fn encode(&self) -> Value {
        match self {
            Reply::Welcome { version } => json!({"welcome": {"version": version}}),
            Reply::Added => json!({"added": {}}),
            Reply::Prove { key } => json!({"prove": {"key": key}}),
            Reply::Guarded => json!({"guarded": {}}),
            Reply::Pong { problem } => json!({"pong": {"problem": problem}}),
            Reply::Refused { reason } => json!({"refused": {"reason": reason}}),
            Reply::Session(session) => json!({"session": session}),
            Reply::Agent(agent) => json!({"agent": agent}),
        }
    }

    /// Reads a message; `None` if this version does not know it.
    pub fn decode(message: &Value) -> Option<Self> {
        let (name, fields) = message.as_object()?.iter().next()?;
        let text = |field: &str| Some(fields.get(field)?.as_str()?.to_owned());
        Some(match name.as_str() {
            "welcome" => Reply::Welcome {
                version: fields.get("version")?.as_u64()?,
            },
            "added" => Reply::Added,
            "prove" => Reply::Prove { key: text("key")? },
            "guarded" => Reply::Guarded,
            "pong" => Reply::Pong {
                problem: text("problem"),
            },
            "refused" => Reply::Refused {
                reason: text("reason")?,
            },
            "session" => Reply::Session(fields.clone()),
            "agent" => Reply::Agent(fields.clone()),
            _ => return None,
        })
    }
}

/// Writes a lease's id as etcd's tools do.
pub fn hex(lease: i64) -> String {
    format!("{lease:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_read_back_as_it_was_written() {
        let hello = Request::Hello(Hello {
            version: VERSION,
            identity: "nöde\n".to_owned(),
            namespace: "eldest/".to_owned(),
            linger_ms: 5,
        });
        let lease = i64::MAX;
        let requests = [
            hello,
            Request::Process { contained: true },
            Request::Cgroup,
            Request::Timer,
            Request::Guard { lease },
            Request::Proven { lease },
            Request::Ping,
            Request::Goodbye,
            Request::Status,
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let text = || "x".to_owned();
        let replies = [
            Reply::Welcome { version: VERSION },
            Reply::Added,
            Reply::Prove { key: text() },
            Reply::Guarded,
            Reply::Pong { problem: None },
            Reply::Pong {
                problem: Some(text()),
            },
            Reply::Refused { reason: text() },
            Reply::Session(json!({"pid": 1})),
            Reply::Agent(json!({"pid": 1})),
        ];
        for reply in replies {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for odd in [
            json!(null),
            json!({}),
            json!({"hello": {}}),
            json!({"x": {}}),
            json!({"guard": {"lease": "zz"}}),
        ] {
            assert_eq!(Request::decode(&odd), None, "{odd}");
        }
    }
}
