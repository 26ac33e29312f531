//! Combines the roster, the lease and the node's own term into one view, and decides which changes are worth a line.

use std::time::Duration;

use anyhow::Result;
use eldest::{CancellationToken, Election, Roster, Session, SessionState, internal};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::config::Config;
use crate::record::{Event, History};
use crate::seen::{Leader, Seen};
use crate::voice::Voice;
use crate::work::Leading;

/// States that last for less than this are not logged.
const PASSING: Duration = Duration::from_secs(1);

/// Follows the session and the election, and reports each change.
pub(crate) struct Look {
    pub(crate) me: Config,
    pub(crate) session: Session,
    pub(crate) election: Election,
    pub(crate) leads: watch::Receiver<Option<Leading>>,
    pub(crate) seeing: watch::Sender<Seen>,
    pub(crate) voice: Voice,
    pub(crate) history: History,
}

impl Look {
    /// Reports every change, until the node is asked to stop.
    pub(crate) async fn follow(self, shutdown: CancellationToken) -> Result<()> {
        let challenges = internal::watch_challenges(&self.session);
        let condemned = self.history.clone().record_condemned(challenges);
        tokio::select! {
            never = condemned => match never {},
            followed = self.follow_election(shutdown) => followed,
        }
    }

    async fn follow_election(mut self, shutdown: CancellationToken) -> Result<()> {
        let mut session = self.session.state();
        session.mark_changed();
        let mut rosters = self.election.observe().await?;
        let mut roster: Option<Roster> = None;
        // While the lease was not trusted, changes may have been missed. The known state counts again once etcd has
        // answered a request sent after that.
        let mut asking: Option<BoxFuture<'static, eldest::Result<Roster>>> = None;
        let mut trusted = false;
        let mut said: Option<Seen> = None;
        let mut passing = Some((Seen::Nothing, Instant::now() + PASSING));
        let mut last: Option<Leader> = None;
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                changed = session.changed() => {
                    changed?;
                    let live = matches!(*session.borrow_and_update(), SessionState::Live(_));
                    if !live {
                        (trusted, asking) = (false, None);
                    } else if !trusted && asking.is_none() {
                        asking = Some(self.ask());
                    }
                }
                _ = self.leads.changed() => {}
                answer = async { asking.as_mut().expect("asked").await }, if asking.is_some() => match answer {
                    Ok(answer) => {
                        (trusted, asking) = (true, None);
                        newest(&mut roster, answer);
                    }
                    Err(_) => asking = Some(self.ask()),
                },
                item = rosters.next() => match item {
                    Some(item) => newest(&mut roster, item?),
                    // The session is closed.
                    None => return Ok(()),
                },
                () = async { sleep_until(passing.as_ref().expect("it passes").1).await }, if passing.is_some() => {
                    // The state has lasted.
                    if let Some((seen, _)) = passing.take() {
                        self.voice.say(&seen.to_string());
                        said = Some(seen);
                    }
                    continue;
                }
            }
            let known = roster.as_ref().filter(|_| trusted);
            let seen = self.see(&session.borrow(), known, last.as_ref());
            last = seen.leader().cloned().or(last);
            if self.seeing.send_replace(seen.clone()) == seen {
                continue;
            }
            if said.as_ref() == Some(&seen) {
                passing = None;
            } else if seen.is_passing() {
                passing = Some((seen, Instant::now() + PASSING));
            } else {
                passing = None;
                self.voice.say(&seen.to_string());
                said = Some(seen);
            }
        }
    }

    fn ask(&self) -> BoxFuture<'static, eldest::Result<Roster>> {
        let election = self.election.clone();
        async move { election.roster().await }.boxed()
    }

    fn see(&self, session: &SessionState, roster: Option<&Roster>, last: Option<&Leader>) -> Seen {
        let before = self.seeing.borrow().clone();
        let lease = match session {
            SessionState::Live(lease) => lease.lease_id(),
            SessionState::Lost { reason, .. } => {
                let reason = *reason;
                // A term has a grace period of its own, and ends with its work.
                if let Some(leading) = &*self.leads.borrow() {
                    return Seen::Mine(self.mine(leading));
                }
                let last = last.cloned();
                return Seen::Unknown { reason, last };
            }
            _ => return before,
        };
        let mine =
            roster.and_then(|roster| roster.members().iter().find(|m| m.lease_id() == lease));
        if let Some(mine) = mine {
            self.history.record(Event::Joined(mine));
        }
        if let Some(leading) = &*self.leads.borrow() {
            return Seen::Mine(self.mine(leading));
        }
        let Some(roster) = roster else {
            return before;
        };
        if let Some(blocker) = roster.blocker() {
            let key = String::from_utf8_lossy(blocker.key()).into_owned();
            return Seen::Blocked { key };
        }
        match (roster.leader(), mine) {
            (None, _) => Seen::Nobody,
            (Some(first), Some(mine)) if first == mine => Seen::First {
                token: mine.create_revision(),
            },
            (Some(first), mine) => {
                Seen::Theirs(Leader::new(first), mine.map(|mine| mine.rank() - 1))
            }
        }
    }

    fn mine(&self, leading: &Leading) -> Leader {
        Leader {
            name: self.me.name.clone(),
            data_center: self.me.data_center.clone(),
            address: Some(self.me.advertise.clone()),
            token: leading.term.fencing_token(),
            since: Some(leading.since.clone()),
        }
    }
}

/// Keeps the newer roster. Answers and events overtake one another; a larger revision is newer.
fn newest(known: &mut Option<Roster>, roster: Roster) {
    if known
        .as_ref()
        .is_none_or(|known| known.revision() <= roster.revision())
    {
        *known = Some(roster);
    }
}
