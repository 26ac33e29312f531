//! Does a leader's work: announces when its term began, and raises a fenced counter at a fixed pace.

use anyhow::{Context, Result};
use eldest::{
    Announcement, BoxError, Comparison, Condition, Election, ErrorKind, Leadership, Op, Term,
};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::Config;
use crate::orders::Orders;
use crate::ready::Serves;
use crate::record::{Counter, Event, History, Write};
use crate::register::Register;
use crate::seen::{LEADS_SINCE, LEADS_WITH, why};
use crate::voice::{self, Voice};

/// The counter's prefix, outside the prefix of any election, so that it is no candidate.
const COUNTER: &str = "eldest-node/count/";

/// A term of this node while its work continues.
#[derive(Clone)]
pub(crate) struct Leading {
    pub(crate) term: Term,
    /// The time at which the term began, by the wall clock, as announced to the others.
    pub(crate) since: String,
}

/// The inputs of the work.
pub(crate) struct Work {
    pub(crate) me: Config,
    pub(crate) election: Election,
    pub(crate) leading: watch::Sender<Option<Leading>>,
    pub(crate) voice: Voice,
    pub(crate) history: History,
    pub(crate) register: Register,
    pub(crate) orders: Orders,
}

/// The work of one term. At its end, however it ends, it records the loss of the term and clears the running term.
struct Ends<'a> {
    work: &'a Work,
    term: Term,
    is_recorded: bool,
}

impl Ends<'_> {
    fn record(&mut self) {
        if !std::mem::replace(&mut self.is_recorded, true) {
            self.work.history.record(Event::Lost(&self.term));
        }
    }
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        // The library drops the work of a process that wakes after its deadline, before the work can see its token.
        if self.term.lost().is_cancelled() {
            self.record();
        }
        self.work.leading.send_replace(None);
    }
}

impl Work {
    /// Does the work of one term, until the term is lost.
    pub(crate) async fn lead(&self, leadership: Leadership) -> Result<(), BoxError> {
        let (term, since) = (leadership.term(), voice::now());
        let (token, lost) = (term.fencing_token(), term.lost());
        self.history.record(Event::Elected(&term));
        let leading = Leading {
            term: term.clone(),
            since: since.clone(),
        };
        self.leading.send_replace(Some(leading));
        let mut ends = Ends {
            work: self,
            term: term.clone(),
            is_recorded: false,
        };

        let news = crate::announcement(&self.me)
            .with_metadata(LEADS_SINCE, since)
            .with_metadata(LEADS_WITH, token.to_string());
        let mut news = News {
            term: Some(news),
            serves: Serves::new(&self.me),
        };
        let mut count = Count {
            key: format!("{COUNTER}{}", self.me.election),
            known: None,
            written: 0,
        };
        let counting = self.register.count(&term, &self.history)?;
        let mut pace = interval(self.me.pace);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = lost.cancelled(), if !self.orders.is_deaf() => break,
                _ = pace.tick() => {}
            }
            self.orders.obey(&leadership, &self.election).await;
            tokio::select! {
                () = lost.cancelled(), if !self.orders.is_deaf() => break,
                () = news.tell(&leadership) => {}
            }
            count.up(&term, &self.history).await;
        }

        let reason = term.lost_reason();
        ends.record();
        counting.ends().await?;
        self.history.record(Event::Released(&term));
        self.voice.say(&format!(
            "my term with token {token} is over: {}; I wrote {} times{}",
            reason.map_or("unknown", why),
            count.written,
            count.known.map_or_else(String::new, |known| format!(
                ", and the count is {}",
                known.value
            )),
        ));
        Ok(())
    }
}

/// The announcements of a leader that etcd does not have yet.
struct News {
    term: Option<Announcement>,
    serves: Serves,
}

impl News {
    /// Announces what is due. If etcd did not accept it, the next call repeats it.
    async fn tell(&mut self, leadership: &Leadership) {
        if let Some(term) = &self.term
            && leadership.proclaim(term.clone()).await.is_ok()
        {
            self.term = None;
        }
        self.serves.say(leadership).await;
    }
}

/// The fenced counter.
///
/// The guard keeps older leaders out, but not earlier writes of this leader: a write whose answer was lost may wait in
/// a stopped server, and be applied seconds after the counter was read again. So each write also demands that the
/// counter has the value that was read.
struct Count {
    key: String,
    /// The value and revision of the counter, if they are certain.
    known: Option<Known>,
    /// The number of writes in this term.
    written: u64,
}

#[derive(Clone, Copy, Default)]
struct Known {
    value: u64,
    /// The revision of its last change; 0 if there was none yet.
    revision: i64,
}

impl Count {
    /// Raises the counter once. A failed step is retried at the next one, unless the term is over by then.
    async fn up(&mut self, term: &Term, history: &History) {
        let known = match self.known.take() {
            Some(known) => known,
            // The read has the same guard: no later leader has changed the value that a leader reads.
            None => match self.read(term).await {
                Ok(known) => known,
                Err(_) => return,
            },
        };
        let (token, next) = (term.fencing_token(), known.value + 1);
        let unchanged = Condition::mod_revision(&*self.key, Comparison::Equal, known.revision);
        let step = Op::when([unchanged], [Op::put(&*self.key, next.to_string())], []);
        history.record(Event::Wrote(Counter::Etcd, token, Write::Sent));
        let write = match term.txn([step]).await {
            Ok(outcome) if outcome.all_held() => {
                let (value, revision) = (next, outcome.revision());
                self.known = Some(Known { value, revision });
                self.written += 1;
                Write::Admitted(next)
            }
            Err(error) if error.kind() == ErrorKind::Ambiguous => Write::Unknown,
            Ok(_) | Err(_) => Write::Refused,
        };
        history.record(Event::Wrote(Counter::Etcd, token, write));
    }

    async fn read(&self, term: &Term) -> Result<Known> {
        let outcome = term.txn([Op::get(&*self.key)]).await?;
        match outcome.found().next() {
            Some(kv) => Ok(Known {
                value: kv.value_str()?.parse().context("the count is no number")?,
                revision: kv.mod_revision(),
            }),
            None => Ok(Known::default()),
        }
    }
}
