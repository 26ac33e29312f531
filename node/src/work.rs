//! Hides what a leader does: it tells the others since when it leads, and counts up, fenced, at its pace.

use anyhow::{Context, Result};
use eldest::etcd_client::{TxnOp, TxnOpResponse};
use eldest::{BoxError, ErrorKind, Leadership, Term};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::Config;
use crate::record::{Counter, Event, History, Write};
use crate::register::Register;
use crate::seen::{LEADS_SINCE, LEADS_WITH, why};
use crate::voice::{self, Voice};

/// Outside the prefix of any election, so that it is no candidate.
const COUNTER: &str = "eldest-node/count/";

/// A term of this node's, while its work goes on.
#[derive(Clone)]
pub(crate) struct Leading {
    pub(crate) term: Term,
    /// By the wall clock, as the others are told.
    pub(crate) since: String,
}

/// What the work needs.
pub(crate) struct Work {
    pub(crate) me: Config,
    pub(crate) leading: watch::Sender<Option<Leading>>,
    pub(crate) voice: Voice,
    pub(crate) history: History,
    pub(crate) register: Register,
}

/// Takes back, however the work ends, that it goes on.
struct Ends<'a>(&'a watch::Sender<Option<Leading>>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

impl Work {
    /// One term's work, until it is lost.
    pub(crate) async fn lead(&self, leadership: Leadership) -> Result<(), BoxError> {
        let (term, since) = (leadership.term(), voice::now());
        let (token, lost) = (term.fencing_token(), term.lost());
        self.history.record(Event::Elected(&term));
        let leading = Leading {
            term: term.clone(),
            since: since.clone(),
        };
        self.leading.send_replace(Some(leading));
        let _ends = Ends(&self.leading);

        let told = crate::announcement(&self.me)
            .metadata(LEADS_SINCE, since)
            .metadata(LEADS_WITH, token.to_string());
        let mut is_told = false;
        let mut count = Count {
            key: format!("{COUNTER}{}", self.me.election),
            value: None,
            written: 0,
        };
        let counting = self.register.count(&term, &self.history)?;
        let mut pace = interval(self.me.pace);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = lost.cancelled() => break,
                _ = pace.tick() => {}
            }
            if !is_told {
                // If etcd did not take it, it is told again.
                let telling = leadership.proclaim(told.clone());
                is_told = tokio::select! {
                    () = lost.cancelled() => break,
                    done = telling => done.is_ok(),
                };
            }
            count.up(&term, &self.history).await;
        }

        let reason = term.lost_reason();
        self.history.record(Event::Lost(&term));
        counting.ends().await?;
        self.history.record(Event::Released(&term));
        self.voice.say(&format!(
            "my term with token {token} is over: {}; I wrote {} times{}",
            reason.map_or("unknown", why),
            count.written,
            count
                .value
                .map_or_else(String::new, |value| format!(", and the count is {value}")),
        ));
        Ok(())
    }
}

/// The fenced counter.
struct Count {
    key: String,
    /// Its value, if that is certain.
    value: Option<u64>,
    /// Writes of this term.
    written: u64,
}

impl Count {
    /// One step. What failed is tried at the next one, unless the term is over by then.
    async fn up(&mut self, term: &Term, history: &History) {
        let value = match self.value {
            Some(value) => value,
            // Read under the same guard: what a leader reads, no later leader has changed.
            None => match self.read(term).await {
                Ok(value) => value,
                Err(_) => return,
            },
        };
        self.value = None;
        let (token, next) = (term.fencing_token(), value + 1);
        let put = TxnOp::put(self.key.as_str(), next.to_string(), None);
        history.record(Event::Wrote(Counter::Etcd, token, Write::Sent));
        let write = match term.txn([put]).await {
            Ok(_) => {
                (self.value, self.written) = (Some(next), self.written + 1);
                Write::Admitted(next)
            }
            Err(error) if error.kind() == ErrorKind::Ambiguous => Write::Unknown,
            Err(_) => Write::Refused,
        };
        history.record(Event::Wrote(Counter::Etcd, token, write));
    }

    async fn read(&self, term: &Term) -> Result<u64> {
        let answer = term.txn([TxnOp::get(self.key.as_str(), None)]).await?;
        let answers = answer.op_responses();
        let Some(TxnOpResponse::Get(got)) = answers.first() else {
            anyhow::bail!("etcd answered something else than it was asked");
        };
        match got.kvs().first() {
            Some(kv) => kv.value_str()?.parse().context("the count is no number"),
            None => Ok(0),
        }
    }
}
