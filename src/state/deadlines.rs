//! Holds the deadlines that terms depend on: the lease's, and that of clean reads if the session allows challenges.
//!
//! A candidate waits and joins by the lease's deadline alone. A term is valid until the earlier of both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use eldest_core::time::Time;
use eldest_etcd::runtime::Watched;

/// Set in a deadline's word when the deadline can no longer be extended.
const FROZEN: u64 = 1 << 63;

/// A deadline that every term under it shares.
///
/// It only moves later, and only while it is not frozen. It freezes for good as soon as a check sees that it has passed,
/// so a check that returned `false` is never followed by one that returns `true`.
#[derive(Debug)]
pub(crate) struct SharedDeadline {
    word: AtomicU64,
    over: CancellationToken,
}

impl SharedDeadline {
    /// Makes a deadline whose end cancels `over`.
    fn until(deadline: Time, over: CancellationToken) -> Self {
        Self {
            word: AtomicU64::new(deadline.as_nanos()),
            over,
        }
    }

    pub(crate) fn time(&self) -> Time {
        Time::from_nanos(self.word.load(Ordering::Acquire) & !FROZEN)
    }

    fn is_frozen(&self) -> bool {
        self.word.load(Ordering::Acquire) & FROZEN != 0
    }

    /// Moves the deadline later. Returns `false` if the deadline is frozen; the caller must then begin a new one.
    pub(crate) fn extend(&self, deadline: Time) -> bool {
        let later = |word: u64| (word & FROZEN == 0).then(|| word.max(deadline.as_nanos()));
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, later)
            .is_ok()
    }

    /// Freezes the deadline, and cancels the tokens of all terms under it.
    pub(crate) fn end(&self) {
        self.word.fetch_or(FROZEN, Ordering::AcqRel);
        self.over.cancel();
    }

    /// Ends the deadline as [`SharedDeadline::end`] does, if it has passed by `now`. Returns `false` if it has not,
    /// perhaps because it was just extended.
    fn end_by(&self, now: Time) -> bool {
        // The check and the end are one atomic step: no extension can come between them.
        let passed = |word: u64| (word & !FROZEN <= now.as_nanos()).then_some(word | FROZEN);
        let ended = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, passed)
            .is_ok();
        if ended {
            self.over.cancel();
        }
        ended
    }

    /// Returns the time at which the watchdog ends the deadline.
    fn due(&self, grace: Duration) -> Option<Time> {
        (!self.is_frozen()).then(|| self.time().before(grace))
    }
}

/// The deadline of one lease while its trust is unbroken.
#[derive(Debug)]
pub(crate) struct LeaseDeadline {
    /// etcd's id of the lease.
    lease: i64,
    shared: SharedDeadline,
}

impl LeaseDeadline {
    pub(crate) fn until(lease: i64, deadline: Time) -> Arc<Self> {
        Arc::new(Self {
            lease,
            shared: SharedDeadline::until(deadline, CancellationToken::new()),
        })
    }

    pub(crate) fn time(&self) -> Time {
        self.shared.time()
    }

    /// Returns how much longer the lease is trusted: not at all once the trust has ended.
    pub(crate) fn left(&self, now: Time) -> Duration {
        if self.shared.is_frozen() {
            return Duration::ZERO;
        }
        self.time().since(now)
    }

    pub(crate) fn extend(&self, deadline: Time) -> bool {
        self.shared.extend(deadline)
    }

    pub(crate) fn end(&self) {
        self.shared.end();
    }
}

/// The deadline of a term: the earlier one of its lease's and, if the session allows challenges, that of clean reads.
#[derive(Debug, Clone)]
pub(crate) struct TermDeadline {
    lease: Arc<LeaseDeadline>,
    /// The deadline of clean reads, whose token is a child of the lease's.
    reads: Option<Arc<SharedDeadline>>,
}

impl TermDeadline {
    pub(crate) fn lease(&self) -> i64 {
        self.lease.lease
    }

    pub(crate) fn time(&self) -> Time {
        let lease = self.lease.time();
        let reads = self.reads.as_ref();
        reads.map_or(lease, |reads| reads.time().min(lease))
    }

    /// Ends each deadline that has passed by `now`. Returns `false` if none has.
    pub(crate) fn end_by(&self, now: Time) -> bool {
        let reads = self.reads.as_ref().is_some_and(|reads| reads.end_by(now));
        self.lease.shared.end_by(now) || reads
    }

    /// Returns the token that the end of either deadline cancels.
    pub(crate) fn over(&self) -> &CancellationToken {
        let reads = self.reads.as_ref();
        reads.map_or(&self.lease.shared.over, |reads| &reads.over)
    }
}

impl From<Arc<LeaseDeadline>> for TermDeadline {
    fn from(lease: Arc<LeaseDeadline>) -> Self {
        Self { lease, reads: None }
    }
}

/// The present deadlines of a session, which the watchdog watches.
#[derive(Debug)]
pub(crate) struct Deadlines {
    present: Mutex<Present>,
    grace: Duration,
    /// True if the session allows challenges, so that no term begins without a clean read.
    reads: bool,
}

#[derive(Debug, Default)]
struct Present {
    lease: Option<Arc<LeaseDeadline>>,
    reads: Option<Arc<SharedDeadline>>,
}

impl Present {
    /// Begins a deadline of clean reads under the present lease.
    fn read_until(&mut self, deadline: Time) {
        let lease = self.lease.as_ref();
        let over = lease.map_or_else(CancellationToken::new, |lease| {
            lease.shared.over.child_token()
        });
        self.reads = Some(Arc::new(SharedDeadline::until(deadline, over)));
    }
}

impl Deadlines {
    /// `reads`: the session allows challenges.
    pub(crate) fn new(grace: Duration, reads: bool) -> Arc<Self> {
        Arc::new(Self {
            present: Mutex::default(),
            grace,
            reads,
        })
    }

    /// Returns the longest time for which work may continue after its term ended.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the deadline of the present lease.
    pub(crate) fn lease(&self) -> Option<Arc<LeaseDeadline>> {
        self.present().lease.clone()
    }

    /// Returns the deadline of a term that begins now; `None` if none may begin.
    pub(crate) fn term(&self) -> Option<TermDeadline> {
        let present = self.present();
        let (lease, reads) = (present.lease.clone()?, present.reads.clone());
        (reads.is_some() == self.reads).then_some(TermDeadline { lease, reads })
    }

    /// Begins the trust in a lease. The terms of the former one stay over, and clean reads count for the new ones.
    pub(crate) fn begin(&self, lease: i64, deadline: Time) -> Arc<LeaseDeadline> {
        let lease_deadline = LeaseDeadline::until(lease, deadline);
        let mut present = self.present();
        present.lease = Some(Arc::clone(&lease_deadline));
        if let Some(reads) = present.reads.take_if(|reads| !reads.is_frozen()) {
            present.read_until(reads.time());
        }
        lease_deadline
    }

    /// Ends the trust in the lease.
    pub(crate) fn end(&self) {
        let lease = self.present().lease.take();
        if let Some(lease) = lease {
            lease.end();
        }
    }

    /// Returns the present lease, and until when clean reads let its session lead: the clock's origin if none counts.
    pub(crate) fn clean_reads(&self) -> Option<(i64, Time)> {
        let present = self.present();
        let reads = present.reads.as_ref().filter(|reads| !reads.is_frozen());
        let until = reads.map_or(Time::ZERO, |reads| reads.time());
        Some((present.lease.as_ref()?.lease, until))
    }

    /// Begins the time for which clean reads let the session lead.
    pub(crate) fn begin_reads(&self, deadline: Time) {
        self.present().read_until(deadline);
    }

    /// Lets clean reads count for longer. Returns `false` if their deadline had ended.
    pub(crate) fn extend_reads(&self, deadline: Time) -> bool {
        let reads = self.present().reads.clone();
        reads.is_some_and(|reads| reads.extend(deadline))
    }

    /// Ends the time for which clean reads let the session lead.
    pub(crate) fn end_reads(&self) {
        let reads = self.present().reads.take();
        if let Some(reads) = reads {
            reads.end();
        }
    }
}

impl Watched for Deadlines {
    fn due(&self) -> Option<Time> {
        let present = self.present();
        let lease = present.lease.as_ref();
        let lease = lease.and_then(|lease| lease.shared.due(self.grace));
        let reads = present.reads.as_ref();
        let reads = reads.and_then(|reads| reads.due(self.grace));
        [lease, reads].into_iter().flatten().min()
    }

    fn fire(&self, now: Time) {
        let Present { lease, reads } = {
            let present = self.present();
            Present {
                lease: present.lease.clone(),
                reads: present.reads.clone(),
            }
        };
        // An extension in this moment has set another due time, so the deadline does not end.
        let by = now.after(self.grace);
        if let Some(lease) = lease {
            lease.shared.end_by(by);
        }
        if let Some(reads) = reads {
            reads.end_by(by);
        }
    }
}

#[cfg(test)]
mod tests;
