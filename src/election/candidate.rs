//! Defines a candidate: a place in the queue of an election, and the wait until it is elected.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};

use super::leadership::{Claim, Leadership, announced, proclaim};
use super::work_monitor::WorkMonitor;
use crate::driver::{CandidateState, Command, Winner};
use crate::error::{Error, ErrorKind, Result};
use crate::session::{Handle, WeakHandle};
use crate::state::{
    Announcement, LocalStatus, LocalStatusWriter, Status, Term, check_hand_over, not_serving,
    ready_for, versioned, warm,
};
use crate::util::{LazyWatch, Receiver, Sender, channel};
use eldest_core::action::{SlotId, TermId};
use eldest_core::candidate::CandidateConfig;
use eldest_core::kv::LOCK;
use eldest_core::reason::EndReason;
use eldest_core::version::Version;

/// A candidate in the queue of an election. The session keeps its key alive while it waits.
///
/// After a lost term, the candidate joins the queue again, at the end, as soon as the [`Leadership`] of that term is
/// dropped; await [`Candidate::elected`] again. The same happens after [`Leadership::step_down`]. The candidacy ends
/// when the leader resigns, or drops its `Leadership` while it is valid.
///
/// Dropping a waiting candidate removes it from the queue at once, in the background. A `Leadership` that it produced
/// lives on without it.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// # let other = Session::connect([etcd.endpoint()], SessionOptions::new("node-b")).await?;
/// # let elder = other.election("billing/scheduler")?.campaign().await?;
/// use eldest::Status;
///
/// let mut candidate = session.election("billing/scheduler")?.campaign().await?;
/// let mut status = candidate.subscribe();
/// let waits = status.wait_for(|s| matches!(s, Status::Waiting { .. })).await?;
/// if let Status::Waiting { rank, ahead, .. } = *waits {
///     println!("number {rank}, behind {ahead}");
/// #   assert_eq!((rank, ahead), (2, 1));
/// }
/// # drop(waits);
/// candidate.leave().await?; // the key is gone
/// # assert_eq!(session.election("billing/scheduler")?.roster().await?.members().len(), 1);
/// # drop(elder);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a candidate leaves the election"]
pub struct Candidate {
    handle: Handle,
    slot: SlotId,
    /// The time at which the candidate joined, since 1970; later announcements repeat it.
    since: Duration,
    status: Arc<LazyWatch<Status>>,
    elected: Receiver<Leadership>,
    /// The partitions that are coming to a member.
    coming: Option<watch::Receiver<BTreeSet<u32>>>,
    failure: Arc<OnceLock<Error>>,
    /// The limit within which a leader must serve; `None`: there is none, or `run` watches it.
    pub(super) serving_within: Option<Duration>,
    /// True once the driver was asked to leave. One request is enough, however often a user repeats it.
    leaves: AtomicBool,
}

/// The first announcement of a candidate.
#[derive(Clone, Copy, Default)]
pub(crate) struct Opening<'a> {
    /// `None`: the session's.
    pub(crate) announcement: Option<&'a Announcement>,
    /// True if the candidate serves only once it says so.
    pub(crate) unready: bool,
    /// True if the candidate announces whether it is warm.
    pub(crate) prepares: bool,
    /// The version that the candidate announces, if its election requires versions.
    pub(crate) version: Option<&'a Version>,
    /// The announcements of a member of partitions about itself.
    pub(crate) member: MemberSays,
}

/// The announcements of a member of partitions about itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemberSays {
    /// True if the member announces for which partitions it is ready.
    pub(crate) prepares: bool,
    /// True if the member announces that it takes no more partitions, before it leaves.
    pub(crate) hands_over: bool,
}

impl Opening<'_> {
    /// Returns the announcement with the version, and with the fields that say later that the candidate is warm or ready, and
    /// that its leader serves. Refuses one that has no room for them.
    fn with_fields(self, mut value: Arc<[u8]>) -> Result<Arc<[u8]>> {
        if let Some(version) = self.version {
            value = versioned(&value, *version)?;
        }
        if self.prepares {
            value = warm(&value, false)?;
        }
        if self.member.prepares {
            value = ready_for(&value, &BTreeSet::new())?;
        }
        if self.member.hands_over {
            check_hand_over(&value)?;
        }
        if self.unready {
            value = not_serving(&value)?;
        }
        Ok(value)
    }
}

/// Makes the leaderships that a candidate wins, and passes them to it.
struct Elected {
    handle: WeakHandle,
    since: Duration,
    sender: Sender<Leadership>,
    coming: Option<watch::Sender<BTreeSet<u32>>>,
}

impl Winner for Elected {
    fn elected(&self, slot: SlotId, id: TermId, term: Term) {
        if let Some(handle) = self.handle.upgrade() {
            // If the receiver is gone, the leadership is dropped, which releases the key.
            let claim = Claim::new(handle, slot, self.since, id, term);
            self.sender.send(Leadership::new(claim));
        }
    }

    fn coming(&self, partitions: BTreeSet<u32>) {
        if let Some(coming) = &self.coming {
            coming.send_replace(partitions);
        }
    }
}

impl Candidate {
    /// Joins the queue with the configuration that `config` makes for its slot, and returns once its place is known.
    /// `turn` is given back when the key is gone; `local` receives the status.
    #[allow(
        clippy::manual_async_fn,
        reason = "the arguments of an `async fn` are in its future twice, and thousands of campaigns may wait"
    )]
    pub(crate) fn join(
        handle: &Handle,
        name: Arc<str>,
        prefix: Arc<[u8]>,
        turn: Option<OwnedSemaphorePermit>,
        local: Option<Arc<LocalStatus>>,
        opening: Opening<'_>,
        config: impl FnOnce(SlotId) -> CandidateConfig,
    ) -> impl Future<Output = Result<Self>> {
        async move {
            let announcement = opening
                .announcement
                .unwrap_or(&handle.shared.settings.announcement);
            let since = handle.shared.env.unix_time();
            let mut value = opening.with_fields(handle.encode(announcement, since)?)?;
            handle.guarded(&prefix).await?;
            let room = handle.shared.room.campaign().await;
            let slot = handle.new_slot();
            let config = config(slot);
            if config.lock {
                value = [LOCK, &value].concat().into();
            }
            let (sender, elected) = channel();
            let shares = config.partitions.is_some();
            let (sees_coming, coming) = shares.then(|| watch::channel(BTreeSet::new())).unzip();
            let winner = Elected {
                handle: handle.downgrade(),
                since,
                sender,
                coming: sees_coming,
            };
            let (mut candidate, channels) = CandidateState::new(
                Arc::new(winner),
                name,
                prefix,
                room,
                turn,
                local.map(|local| LocalStatusWriter::new(local, slot)),
            );
            candidate.says(opening.unready, opening.prepares, opening.version.copied());
            if opening.member.prepares {
                candidate.says_ready();
            }
            if opening.member.hands_over {
                candidate.may_hand_over();
            }
            handle.send(Command::Campaign {
                slot,
                value,
                config,
                candidate,
            })?;
            let candidate = Self {
                handle: handle.clone(),
                slot,
                since,
                status: channels.status,
                elected,
                coming,
                failure: channels.failure,
                serving_within: None,
                leaves: AtomicBool::new(false),
            };
            match channels.placed.await {
                Ok(Ok(())) => Ok(candidate),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(Error::closed()),
            }
        }
    }

    /// Returns the candidate's status from memory, without asking etcd.
    pub fn status(&self) -> Status {
        self.status.get()
    }

    /// Returns a channel with the status: the current status at once, then every change. The first `changed()` returns
    /// at once, for the current status. A slow reader sees only the latest status.
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        let mut status = self.status.watch();
        status.mark_changed();
        status
    }

    /// Waits until this candidate leads, and returns its leadership.
    ///
    /// Await it for as long as the candidate exists. A candidate can win while no task awaits this call. Its key is
    /// then the eldest, so no other node can lead, and no work is done. The log warns of this after the [grace
    /// period](crate::SessionOptions::grace).
    ///
    /// The deadline is checked at the moment of return, so a leadership that has already ended is never returned.
    ///
    /// # Errors
    ///
    /// `Ended`: the candidate left or resigned. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the candidate keeps its place, and the next call returns a leadership won meanwhile.
    pub async fn elected(&mut self) -> Result<Leadership> {
        loop {
            match self.elected.recv().await {
                Some(leadership) => {
                    if leadership.is_valid() && leadership.lost_reason().is_none() {
                        leadership.term().shared.take_up();
                        return Ok(self.watched(leadership));
                    }
                    // Lost before the caller took it: dropping it rejoins.
                }
                None => return Err(self.ended()),
            }
        }
    }

    /// Watches the limit within which the leader must serve, if there is one.
    fn watched(&self, leadership: Leadership) -> Leadership {
        let Some(limit) = self.serving_within else {
            return leadership;
        };
        let grace = self.handle.shared.settings.grace;
        let monitor = WorkMonitor::start(leadership.claim(), grace, None, false);
        monitor.serve_within(limit);
        leadership.watched_by(monitor)
    }

    /// Returns the partitions that are coming to a member, and the announcer of those for which it is ready.
    pub(crate) fn coming(&self) -> Option<(watch::Receiver<BTreeSet<u32>>, Announcer)> {
        Some((self.coming.clone()?, self.announcer()))
    }

    /// Returns the announcer of what a member of partitions says about itself.
    pub(crate) fn announcer(&self) -> Announcer {
        Announcer {
            handle: self.handle.clone(),
            slot: self.slot,
        }
    }

    /// Sets whether the candidate must not join again after a term.
    pub(crate) fn hold_back(&self, held: bool) -> Result<()> {
        let slot = self.slot;
        self.handle.send(Command::HoldBack { slot, held })
    }

    fn ended(&self) -> Error {
        let failure = self.failure.get().cloned();
        failure.unwrap_or_else(|| match self.status.get() {
            Status::Ended { reason, .. } => Error::closed_by(reason),
            _ => Error::closed(),
        })
    }

    /// Replaces the candidate's whole announcement (at most 32 KiB), now and after every rejoin. The place in the queue
    /// stays the same.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the announcement is too large, or cannot say whether the leader
    /// [serves](crate::Election::serving_within). `Ended`: the candidacy has ended, or the key was lost at that
    /// moment. `Unavailable` and others: etcd did not store or did not confirm the announcement; the next key will have
    /// it.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the announcement; the next key will have it.
    pub async fn proclaim(&self, announcement: impl Into<Announcement>) -> Result<()> {
        proclaim(
            &self.handle,
            self.slot,
            self.since,
            &announcement.into(),
            ErrorKind::Ended,
        )
        .await
    }

    /// Leaves the queue, and returns once etcd has confirmed that the key is gone.
    ///
    /// This call does not end a leadership that [`Candidate::elected`] has returned: resign it as well. No other
    /// leadership follows, and this call returns once that term has ended. A leadership that was won but not yet
    /// returned is given back.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is repeated in the background,
    /// and this call may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: leaving continues in the background.
    pub async fn leave(&mut self) -> Result<()> {
        self.leave_for(EndReason::Left).await
    }

    pub(crate) async fn leave_for(&mut self, reason: EndReason) -> Result<()> {
        self.leave_within(reason, self.handle.patience()).await
    }

    pub(crate) fn begin_to_leave(&self, reason: EndReason) -> Result<()> {
        if self.leaves.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let slot = self.slot;
        self.handle.send(Command::Leave { slot, reason })
    }

    pub(crate) async fn leave_within(
        &mut self,
        reason: EndReason,
        patience: Duration,
    ) -> Result<()> {
        self.begin_to_leave(reason)?;
        let mut ended = pin!(self.handle.ended_within(self.slot, patience));
        loop {
            tokio::select! {
                biased;
                result = &mut ended => return result,
                // Won and not taken: no other code can release it.
                Some(leadership) = self.elected.recv() => drop(leadership),
            }
        }
    }
}

/// Announces for which partitions a member is ready, and that it takes no more.
pub(crate) struct Announcer {
    handle: Handle,
    slot: SlotId,
}

impl Announcer {
    /// Announces that the member is ready for these partitions, and for no others. Returns once etcd has the
    /// announcement, and waits while etcd is out of reach.
    pub(crate) async fn ready(&self, partitions: &BTreeSet<u32>) -> Result<()> {
        let command = |reply| Command::Ready {
            slot: self.slot,
            ready: partitions.clone(),
            reply,
        };
        announced(&self.handle, command).await.map(drop)
    }

    /// Announces that the member takes no more partitions, and hands over those that it owns. Returns and waits as
    /// [`Announcer::ready`].
    pub(crate) async fn hand_over(&self) -> Result<()> {
        let slot = self.slot;
        let command = |reply| Command::HandOver { slot, reply };
        announced(&self.handle, command).await.map(drop)
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        // No caller will take what was won meanwhile; the leaderships in the channel are released with it.
        let (slot, reason) = (self.slot, EndReason::Left);
        drop(self.handle.send(Command::Leave { slot, reason }));
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("status", &self.status.get())
            .finish_non_exhaustive()
    }
}
