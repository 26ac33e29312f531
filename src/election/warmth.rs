//! Announces that a waiting candidate is warm, and makes a leader wait for a warm successor.

use std::time::Duration;

use super::Election;
use super::leadership::announced;
use super::ordering::LONGEST;
use crate::driver::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::state::Term;
use eldest_etcd::runtime::timeout;

impl Election {
    /// Makes ordered hand-overs wait for a **warm** successor, for candidates that campaign or run through this handle from
    /// now on. By default, no hand-over waits.
    ///
    /// A candidate is warm once it is prepared for its term. [`Runner::prepare`](crate::Runner::prepare) runs the work that
    /// prepares it and announces the result; [`Election::set_warm`] announces it without a runner. Every node sees it as
    /// [`Member::warmth`](crate::Member::warmth). Use the same option on all nodes of an election.
    ///
    /// When a leader is asked to hand over, it leads on until the next in line is warm, for `limit` at most. That applies to
    /// [`Election::step_down`], to an [order](Election::order_step_down) to step down, and to an
    /// [evacuation](crate::Session::evacuate). A successor that does not announce its warmth is not awaited, as candidates
    /// of other libraries. A term that ends for any other reason does not wait, nor does [`Leadership::step_down`], whose
    /// caller states that the work has ended.
    ///
    /// **Warmth changes nothing else.** Age alone decides who leads next, and a warm candidate may not act before it leads.
    ///
    /// `limit` is more than zero and less than 1 h, so that an [order](Election::order_step_down) can outlast it. The
    /// announcement of a candidate then has a field that says whether it is warm. So a plain string cannot be announced.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = eldest::Session::connect([etcd.endpoint()], eldest::SessionOptions::new("node-a")).await?;
    /// # let other = eldest::Session::connect([etcd.endpoint()], eldest::SessionOptions::new("node-b")).await?;
    /// # async fn fill_the_cache() {}
    /// # let elder = other.election("billing/scheduler")?.campaign().await?;
    /// use std::time::Duration;
    ///
    /// let election = session.election("billing/scheduler")?.warm_within(Duration::from_secs(60));
    /// let candidate = election.campaign().await?;
    /// fill_the_cache().await;
    /// election.set_warm(true).await?;
    /// let roster = election.roster().await?;
    /// assert_eq!(roster.members()[1].warmth(), Some(true));
    /// # drop((candidate, elder));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Leadership::step_down`]: crate::Leadership::step_down
    pub fn warm_within(mut self, limit: Duration) -> Self {
        self.warm_within = Some(limit);
        self
    }

    /// Announces that this session's waiting candidate is warm, or no longer. Returns once etcd has the announcement.
    ///
    /// A candidate that loses its key joins at the end of the queue and is not warm until the next call.
    /// [`Runner::prepare`](crate::Runner::prepare) makes this call where it is used. The call waits while etcd is out of
    /// reach or overloaded; add a timeout if it should give up.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: this handle has no [`warm_within`](Election::warm_within). `Ended`: the session has no candidate that
    /// waits and announces its warmth; it may lead. `PermissionDenied`, `Unauthenticated`, `Rejected`: etcd refused the
    /// announcement. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the announcement.
    pub async fn set_warm(&self, is_warm: bool) -> Result<()> {
        if self.warm_within.is_none() {
            let message = "the election has no `warm_within`, so its candidates announce no warmth";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let waits = match self.local.get().slot {
            Some(slot) => {
                let command = |reply| Command::Warm {
                    slot,
                    warm: is_warm,
                    reply,
                };
                announced(&self.handle, command).await?
            }
            None => false,
        };
        if waits {
            return Ok(());
        }
        let message = format!(
            "this session has no candidate that waits in {:?}",
            self.name()
        );
        Err(Error::new(ErrorKind::Ended, message))
    }

    /// Announces the warmth as [`Election::set_warm`] does, and gives up after a few request timeouts.
    pub(crate) async fn set_warm_soon(&self, is_warm: bool) -> Result<()> {
        self.announced_soon(self.set_warm(is_warm)).await
    }

    /// Waits until the candidate behind that leader is warm, announces no warmth or is gone, until the term ends, or until
    /// the limit has passed.
    pub(super) async fn await_warm_successor(&self, term: &Term) {
        let Some(limit) = self.warm_within else {
            return;
        };
        let lost = term.lost();
        let ready = lost.run_until_cancelled(self.ready_successor(term));
        let _ = timeout(&*self.handle.shared.env, limit, ready).await;
    }

    async fn ready_successor(&self, term: &Term) {
        // A session that may not read the queue does not wait.
        let Ok(mut changes) = self.observe().await else {
            return;
        };
        let leader = (term.key(), term.fencing_token());
        while let Some(Ok(roster)) = changes.next().await {
            // A roster from before the term shows another leader: the next roster says more.
            if roster.has_cold_successor(leader) == Some(false) {
                return;
            }
        }
    }
}

/// Refuses a limit that no order to step down outlasts.
pub(super) fn validate(limit: Duration) -> Result<()> {
    if !limit.is_zero() && limit < LONGEST {
        return Ok(());
    }
    let message = format!(
        "warm_within is {limit:?}; it must be more than zero and less than {LONGEST:?}, the longest time of an order to step down"
    );
    Err(Error::new(ErrorKind::InvalidInput, message))
}
