//! Represents a candidate in the queue of an election, and waits until it is elected.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};

use super::leadership::{Claim, Leadership, proclaim};
use crate::driver::{CandidateState, Command, Winner};
use crate::error::{Error, ErrorKind, Result};
use crate::session::{Handle, WeakHandle};
use crate::state::{Announcement, LocalStatus, LocalStatusWriter, Status, Term};
use crate::util::{LazyWatch, Receiver, Sender, channel};
use eldest_core::action::{SlotId, TermId};
use eldest_core::candidate::CandidateConfig;

/// A node in the queue of an election. Its key is kept alive while it waits.
///
/// After a term that was lost it rejoins at the back by itself, as soon as the [`Leadership`] of that term is
/// dropped; await [`Candidate::elected`] again. So it does after [`Leadership::step_down`]. After a term that was
/// resigned, or whose `Leadership` was dropped while it was valid, it has ended.
///
/// Dropping it while it waits leaves the queue at once, in the background. A `Leadership` it produced lives on without
/// it.
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
    /// Since when, counted from 1970: what it announces later says the same.
    since: Duration,
    status: Arc<LazyWatch<Status>>,
    elected: Receiver<Leadership>,
    failure: Arc<OnceLock<Error>>,
    /// The driver has been told to leave; once is enough, however often a user asks.
    leaves: AtomicBool,
}

/// Makes the leaderships that a candidate wins, and passes them to it.
struct Elected {
    handle: WeakHandle,
    since: Duration,
    sender: Sender<Leadership>,
}

impl Winner for Elected {
    fn elected(&self, slot: SlotId, id: TermId, term: Term) {
        if let Some(handle) = self.handle.upgrade() {
            // With nobody to receive it, it is dropped, which releases the key.
            let claim = Claim::new(handle, slot, self.since, id, term);
            self.sender.send(Leadership::new(claim));
        }
    }
}

impl Candidate {
    /// Stands in the manner that is made for its slot; returns once the key stands in etcd. `turn` is given back when
    /// the key is gone; `local` gets its status.
    pub(crate) async fn stand(
        handle: &Handle,
        name: Arc<str>,
        prefix: Arc<[u8]>,
        turn: Option<OwnedSemaphorePermit>,
        local: Option<Arc<LocalStatus>>,
        announcement: Option<&Announcement>,
        config: impl FnOnce(SlotId) -> CandidateConfig,
    ) -> Result<Self> {
        let announcement = announcement.unwrap_or(&handle.shared.settings.announcement);
        let since = handle.shared.env.unix_time();
        let value = handle.encode(announcement, since)?;
        let room = handle.shared.room.campaign().await;
        let slot = handle.new_slot();
        let (sender, elected) = channel();
        let winner = Elected {
            handle: handle.downgrade(),
            since,
            sender,
        };
        let (candidate, channels) = CandidateState::new(
            Arc::new(winner),
            name,
            prefix,
            room,
            turn,
            local.map(|local| LocalStatusWriter::new(local, slot)),
        );
        handle.send(Command::Campaign {
            slot,
            value,
            config: config(slot),
            candidate,
        })?;
        let candidate = Self {
            handle: handle.clone(),
            slot,
            since,
            status: channels.status,
            elected,
            failure: channels.failure,
            leaves: AtomicBool::new(false),
        };
        match channels.registered.await {
            Ok(Ok(())) => Ok(candidate),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::closed()),
        }
    }

    /// Where it stands. Asks nobody.
    pub fn status(&self) -> Status {
        self.status.get()
    }

    /// The same as a channel: the current status at once (`changed()` returns for it), then every change, the latest
    /// winning.
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        let mut status = self.status.watch();
        status.mark_changed();
        status
    }

    /// Waits until this candidate leads.
    ///
    /// Await it for as long as the candidate stands. One that wins while nobody awaits this leads all the same: its key is
    /// the eldest, nobody else can lead, and nobody acts. The log warns of it after the
    /// [grace period](crate::SessionOptions::grace).
    ///
    /// The deadline is compared at the moment of return: a leadership that has died on the way is never handed out.
    ///
    /// # Errors
    ///
    /// `Ended`: the candidate left or resigned. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the place in the queue is kept, and a leadership won meanwhile is returned by the next call.
    pub async fn elected(&mut self) -> Result<Leadership> {
        loop {
            match self.elected.recv().await {
                Some(leadership) => {
                    if leadership.is_valid() && leadership.lost_reason().is_none() {
                        leadership.term().shared.take_up();
                        return Ok(leadership);
                    }
                    // Lost before anybody took it up: dropping it rejoins.
                }
                None => return Err(self.ended()),
            }
        }
    }

    /// Whether it may not join again after a term, from now on.
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

    /// Replaces all that this candidate announces, now and after every rejoin. At most 32 KiB. Its place stays.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: too large. `Ended`: it is a candidate no more, or its key was lost this moment.
    /// `Unavailable` and others: etcd did not do it now, or did not say so; it will be announced with the next key.
    ///
    /// # Cancellation safety
    ///
    /// Dropped midway, etcd may or may not have it; the next key will.
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

    /// Leaves the queue; returns when etcd confirmed that the key is gone.
    ///
    /// A leadership that [`Candidate::elected`] returned is not ended by it, but will not be followed by another:
    /// resign it. The call then returns when that term has ended. One that was won meanwhile and not taken up is
    /// given back.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm within four request timeouts. The deletion is retried in the background,
    /// and this call may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: leaving goes on in the background.
    pub async fn leave(&mut self) -> Result<()> {
        self.leave_within(self.handle.patience()).await
    }

    pub(crate) fn begin_to_leave(&self) -> Result<()> {
        if self.leaves.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.handle.send(Command::Leave { slot: self.slot })
    }

    pub(crate) async fn leave_within(&mut self, patience: Duration) -> Result<()> {
        self.begin_to_leave()?;
        let mut ended = pin!(self.handle.ended_within(self.slot, patience));
        loop {
            tokio::select! {
                biased;
                result = &mut ended => return result,
                // Won and not taken up: nobody else can give it back.
                Some(leadership) = self.elected.recv() => drop(leadership),
            }
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        // Nobody will take up what was won meanwhile; the leaderships in the channel are released with it.
        drop(self.handle.send(Command::Leave { slot: self.slot }));
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("status", &self.status.get())
            .finish_non_exhaustive()
    }
}
