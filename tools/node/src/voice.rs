//! Prints a line with its time, the node's name, its data centre and a message.

use std::io::Write as _;
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::Config;

/// Prints lines on standard output.
#[derive(Clone)]
pub(crate) struct Voice {
    who: Arc<str>,
}

impl Voice {
    pub(crate) fn new(me: &Config) -> Self {
        let who = match &me.data_center {
            Some(data_center) => format!("{} ({data_center})", me.name),
            None => me.name.clone(),
        };
        Self { who: who.into() }
    }

    pub(crate) fn say(&self, what: &str) {
        let mut out = std::io::stdout().lock();
        // The reader of the output may be gone; the node leads or follows all the same.
        let _ = writeln!(out, "{} {}: {what}", now(), self.who).and_then(|()| out.flush());
    }
}

/// Returns the wall clock in RFC 3339, for people.
pub(crate) fn now() -> String {
    format!("{:.3}", Timestamp::now())
}
