//! The node of `wide/near ...`: two sessions beside the first member. One leads an election all the time, and both pass
//! another one to and fro.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use eldest::{Candidate, EndpointStatus, Leadership, Session, SessionOptions};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::peer::{Asked, Context};
use crate::samples::nanos;

/// The peer's name.
pub(super) const NEAR: &str = "near";
/// The TTL: renewals come every 2 s, and it allows the request timeout of such a distance.
const TTL: Duration = Duration::from_secs(6);
/// How often the endpoints and the renewals are checked.
const LOOK: Duration = Duration::from_millis(10);
/// The pause between two hand-overs, in which the session that resigned joins again.
const PAUSE: Duration = Duration::from_millis(100);

/// The durations of the renewals since the bench last asked.
static RENEWALS: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

pub(super) async fn serve(context: Context, mut asked: Asked) -> Result<()> {
    tracing::subscriber::set_global_default(Listener)?;
    let mut node = None;
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match (&words[..], &mut node) {
            (["stand", milliseconds], None) => match start_node(&context, milliseconds).await {
                Ok(stands) => {
                    node = Some(stands);
                    Ok(Vec::new())
                }
                Err(error) => Err(error),
            },
            (words, Some(node)) => node.answer(words).await,
            (words, None) => Err(anyhow::anyhow!("no question {words:?}")),
        };
        asked.answer(answer)?;
    }
    if let Some(node) = node {
        for session in node.sessions {
            session.close().await?;
        }
    }
    Ok(())
}

struct Node {
    near: String,
    sessions: [Session; 2],
    /// The term that must not end.
    held: Leadership,
    _holds: Candidate,
    /// The candidates of both sessions; the first one leads.
    passing: [Candidate; 2],
    leads: Leadership,
}

async fn start_node(context: &Context, milliseconds: &str) -> Result<Node> {
    let round_trip = Duration::from_millis(milliseconds.parse()?);
    let session = async |name: &str| {
        let options = SessionOptions::new(name).wan(round_trip).ttl(TTL);
        Session::connect(&context.endpoints, options).await
    };
    let sessions = [session("a").await?, session("b").await?];
    let mut holds = sessions[0].election("held")?.campaign().await?;
    let mut first = sessions[0].election("passed")?.campaign().await?;
    let second = sessions[1].election("passed")?.campaign().await?;
    Ok(Node {
        near: context.endpoints.first().context("an endpoint")?.clone(),
        held: holds.elected().await?,
        _holds: holds,
        leads: first.elected().await?,
        passing: [first, second],
        sessions,
    })
}

impl Node {
    async fn answer(&mut self, words: &[&str]) -> Result<Vec<f64>> {
        match *words {
            ["handovers", count] => {
                let mut took = Vec::new();
                for _ in 0..count.parse::<usize>()? {
                    took.push(nanos(self.handover().await?));
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(took)
            }
            ["renewals", count] => {
                renewals().clear();
                let count: usize = count.parse()?;
                while renewals().len() < count {
                    tokio::time::sleep(LOOK).await;
                }
                Ok(renewals().iter().copied().map(nanos).collect())
            }
            ["uses", what] => {
                let near = match what {
                    "near" => true,
                    "other" => false,
                    _ => bail!("no question {words:?}"),
                };
                while !self.sessions.iter().all(|one| self.uses(one, near)) {
                    tokio::time::sleep(LOOK).await;
                }
                Ok(Vec::new())
            }
            // A number for each answer.
            ["ended"] => Ok(if self.held.is_valid() {
                Vec::new()
            } else {
                vec![self.held.fencing_token() as f64]
            }),
            _ => bail!("no question {words:?}"),
        }
    }

    async fn handover(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let [old, next] = &mut self.passing;
        let (resigned, elected) = tokio::join!(self.leads.resign(), next.elected());
        self.leads = elected?;
        let took = start.elapsed();
        resigned?;
        *old = self.sessions[0].election("passed")?.campaign().await?;
        self.passing.swap(0, 1);
        self.sessions.swap(0, 1);
        Ok(took)
    }

    /// Returns true if renewals and requests of that session both use the near endpoint; without `near`, if both use another one.
    fn uses(&self, session: &Session, near: bool) -> bool {
        let all = session.endpoints();
        let all = all.borrow();
        let here = all.iter().find(|status| status.url() == self.near);
        let uses = |status: &EndpointStatus| {
            let lanes = [status.renewals(), status.requests()];
            lanes.iter().all(|lane| lane.is_some() == near)
        };
        here.is_some_and(uses)
    }
}

fn renewals() -> std::sync::MutexGuard<'static, Vec<Duration>> {
    RENEWALS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records events of renewals, and ignores spans.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target() == "eldest::session"
            && *metadata.level() == Level::TRACE
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut took = Took::default();
        event.record(&mut took);
        if let Took {
            renewed: true,
            took: Some(took),
        } = took
        {
            renewals().push(took);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event about a renewal.
#[derive(Default)]
struct Took {
    renewed: bool,
    took: Option<Duration>,
}

impl Visit for Took {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.renewed = format!("{value:?}") == "renewed",
            "took" => self.took = duration(&format!("{value:?}")),
            _ => {}
        }
    }
}

/// Parses a duration as `Debug` writes it, such as `41.3ms`.
fn duration(text: &str) -> Option<Duration> {
    let at = text.find(|letter: char| letter.is_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::duration;

    #[test]
    fn a_duration_is_read_as_it_is_written() {
        for micros in [1, 999, 41_300, 1_500_000, 120_000_000] {
            let written = Duration::from_micros(micros);
            let read = duration(&format!("{written:?}")).expect("a duration");
            assert!(
                read.abs_diff(written) < Duration::from_nanos(10),
                "{written:?}"
            );
        }
        assert_eq!(duration("soon"), None);
    }
}
