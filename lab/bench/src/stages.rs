//! Splits a hand-over into stages: records when the library logs the end of one term and the start of the next. A
//! process records this only on request, because recording takes time too.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const TARGET: &str = "eldest::election";
const ENDED: &str = "term ended";
const ELECTED: &str = "elected";

/// The messages since they were last taken.
static HEARD: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());
static LISTENER: OnceLock<()> = OnceLock::new();

/// Records messages from now on, and drops earlier ones.
pub(crate) fn listen() -> Result<()> {
    if LISTENER.set(()).is_ok() {
        tracing::subscriber::set_global_default(Listener)?;
    }
    HEARD.lock().unwrap_or_else(PoisonError::into_inner).clear();
    Ok(())
}

/// Returns when a term ended, and when the next one began.
pub(crate) fn heard() -> Result<(Instant, Instant)> {
    let heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
    let at = |what: &str| {
        let found = heard.iter().find(|(said, _)| said == what);
        let moment = found.map(|(_, at)| *at);
        moment.with_context(|| format!("nothing said \"{what}\""))
    };
    Ok((at(ENDED)?, at(ELECTED)?))
}

/// A subscriber that records events, and ignores spans.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == TARGET && *metadata.level() == Level::INFO
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let now = Instant::now();
        let mut message = Message(String::new());
        event.record(&mut message);
        let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push((message.0, now));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ELECTED, ENDED, TARGET, heard, listen};

    #[test]
    fn only_messages_about_elections_since_listening_are_recorded() {
        listen().unwrap();
        tracing::info!(target: TARGET, token = 1, "{ENDED}");
        tracing::info!(target: "eldest::session", "{ELECTED}");
        tracing::debug!(target: TARGET, "{ELECTED}");
        assert!(heard().is_err());
        tracing::info!(target: TARGET, token = 2, "{ELECTED}");
        let (ended, elected) = heard().unwrap();
        assert!(ended <= elected);
        listen().unwrap();
        assert!(heard().is_err());
    }
}
