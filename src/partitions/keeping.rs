//! Keeps the share of a member that is away for a while, as during a restart.
//!
//! While the member runs, a task keeps a record beside the member's key, under a lease of its own, and renews that lease.
//! The record lists the partitions that the member owns. The core lets no other member take a listed partition without an
//! owner. The task sees etcd as an observer does, so the record holds what etcd shows: it gives no authority, and the
//! protocol of members does not depend on it.
//!
//! Each write compares the member's key and the records' last revisions. So neither a process that was stopped for long nor
//! one whose restart has taken over rewrites the record.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Partitions;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Observer;
use crate::session::Handle;
use crate::state::{Roster, SHARES, Status, keep_share, live_lease, whole_seconds};
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::{Entry, Reach};
use eldest_core::partitions::{Facts, KeyKind, facts, kept_key, kind_of_entry, member_key};
use eldest_core::time::Time;
use eldest_etcd::runtime::{SharedEnv, timeout};
use eldest_etcd::{Comparison, Condition, Fence, Op};

/// The longest time for which a share is kept.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a change may wait for more, before the record is written.
const SETTLE: Duration = Duration::from_millis(200);
/// The longest pause between two renewals of the record's lease.
const RENEW: Duration = Duration::from_secs(30);

impl Partitions {
    /// Makes members that join or run through this handle from now on keep their share while they are **absent**, for `time`
    /// after they were last there. By default, the other members take the partitions of one that stops.
    ///
    /// A member that returns in time, by its [identity](crate::Announcement::identity), takes the same partitions again, and
    /// no others move: neither when it stops nor when it returns. That suits members with a large local state, whose restart
    /// is faster than moving it. `time` is longer than the session's [TTL](crate::SessionOptions::ttl) and at most 24 h; etcd
    /// counts it, so it may last a minute longer.
    ///
    /// **The price: the partitions of an absent member have no owner until it returns or the time has passed**, even if it
    /// never returns. [`Partitions::forget_share`] ends that at once. Only partitions can be kept: the next candidate of an
    /// election never waits.
    ///
    /// - An orderly stop, a crash and a lost lease keep the share. A member that is [ill](crate::PartitionRunner::health_check)
    ///   keeps none, nor does one that [hands over](crate::PartitionRunner::hand_over_within) before it stops.
    /// - A member whose work outlives its term withdraws its share. If it was there for less than a moment, the share lasts for
    ///   `time`.
    /// - A member that joins meanwhile takes its share from all, so it may take some of the kept partitions. So does one that
    ///   changes its capacity.
    /// - An identity belongs to one member. While another member with the same identity is there, as after a crash until the
    ///   lease has expired, the younger one waits.
    /// - All members must be of a version that knows kept shares: others take the partitions of an absent member.
    ///
    /// The record of a kept share is the key `<namespace>/~partitions/<name>/<count>/k-<lease>`. It is advice: it has no
    /// token, and only a partition's own key says who owns the partition. With more ranges of partitions than fit in 48 KiB,
    /// the last ones are not kept.
    ///
    /// # Errors
    ///
    /// [`Partitions::join`] and [`Partitions::run`] refuse another time as `InvalidInput`.
    pub fn keep_share_for(mut self, time: Duration) -> Self {
        self.keep_share_for = Some(time);
        self
    }

    /// Refuses a time that [`Partitions::join`] would refuse.
    pub(crate) fn check_keep_share_for(&self) -> Result<()> {
        let ttl = self.handle.shared.settings.ttl;
        match self.keep_share_for {
            Some(time) if time <= ttl || time > LONGEST => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "keep_share_for is {time:?}; it must be longer than the ttl of {ttl:?} and at most {LONGEST:?}"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Ends the time for which the share of an absent member is kept, so that the other members take its partitions at once.
    /// Returns `false` if no share is kept for an absent member of that identity; the share of a member that is there is not
    /// touched.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`, `Unauthenticated`: etcd refused the session's user, who needs to read and delete the record.
    /// `Unavailable`: etcd did not answer within the connect timeout; the share may be kept or not, and the call may be
    /// repeated.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, the share may be kept or not.
    pub async fn forget_share(&self, identity: impl AsRef<str>) -> Result<bool> {
        let shared = &self.handle.shared;
        let prefix = self.prefix_bytes();
        let all = shared.roster(&prefix, Reach::Children).await?;
        let identity = identity.as_ref().as_bytes();
        if members(all.entries(), &prefix).any(|member| is_of(member, identity)) {
            return Ok(false);
        }
        let mut existed = false;
        for record in records_of(all.entries(), &prefix, identity) {
            existed |= shared.delete_as_read(record, &prefix).await?;
        }
        Ok(existed)
    }
}

/// Returns the records of an identity.
fn records_of<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    prefix: &[u8],
    identity: &[u8],
) -> Vec<&'a Entry> {
    let is_of = |entry: &&Entry| {
        let is_record = matches!(kind_of_entry(prefix, entry), Some(KeyKind::Kept { .. }));
        let kept = is_record.then(|| (SHARES.kept)(&entry.value)).flatten();
        kept.is_some_and(|kept| kept.identity == identity)
    };
    entries.filter(is_of).collect()
}

/// Returns the members that are there.
fn members<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    prefix: &[u8],
) -> impl Iterator<Item = &'a Entry> {
    entries.filter(|entry| matches!(kind_of_entry(prefix, entry), Some(KeyKind::Member { .. })))
}

/// Returns true if that member has that identity.
fn is_of(member: &Entry, identity: &[u8]) -> bool {
    (SHARES.identity)(&member.value) == identity
}

/// The task that keeps a member's share. Dropping it stops the task.
pub(super) struct Keeping {
    stop: CancellationToken,
    withdraw: CancellationToken,
    /// Cancelled when the task has ended.
    ended: CancellationToken,
    env: SharedEnv,
}

impl Keeping {
    /// Starts the task of a member that has joined, with its status.
    pub(super) fn start(
        partitions: &Partitions,
        time: Duration,
        status: watch::Receiver<Status>,
    ) -> Self {
        let keeping = Self {
            stop: CancellationToken::new(),
            withdraw: CancellationToken::new(),
            ended: CancellationToken::new(),
            env: Arc::clone(&partitions.handle.shared.env),
        };
        let pause = (time / 8).min(RENEW);
        let keeper = Keeper {
            handle: partitions.handle.clone(),
            name: Arc::clone(&partitions.name),
            prefix: partitions.prefix_bytes(),
            count: partitions.count,
            time,
            pause,
            status,
            view: None,
            identity: partitions.handle.shared.settings.identity.as_bytes().into(),
            member: None,
            last_lease: None,
            written_at: 0,
            record: None,
            write_at: None,
            is_logged: false,
            namesake: Namesake::Gone,
        };
        let run = keeper.run(keeping.stop.clone(), keeping.withdraw.clone());
        let ended = keeping.ended.clone().drop_guard();
        let task = async move {
            run.await;
            drop(ended);
        };
        keeping.env.spawn(task.boxed());
        keeping
    }

    /// Stops the task. The share stays until its lease expires.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops the task, and withdraws the share.
    pub(super) fn withdraw(&self) {
        self.withdraw.cancel();
    }

    /// Completes when a share that was withdrawn is gone, or cannot be withdrawn within `limit`.
    pub(super) async fn withdrawn(&self, limit: Duration) {
        if self.withdraw.is_cancelled() {
            timeout(&*self.env, limit, self.ended.cancelled()).await;
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The lease of the record.
#[derive(Debug, Clone, Copy)]
struct RecordLease {
    id: i64,
    renew_at: Time,
    /// True once the record was written under this lease.
    is_written: bool,
}

struct Keeper {
    handle: Handle,
    name: Arc<str>,
    prefix: Arc<[u8]>,
    count: u32,
    /// How long the share is kept.
    time: Duration,
    /// The pause between two renewals. The lease lasts two pauses longer than the share is kept, so that the time counts
    /// from the member's end, and one failed renewal does not matter.
    pause: Duration,
    status: watch::Receiver<Status>,
    /// The last state that etcd showed.
    view: Option<Roster>,
    /// The identity of the member, as it was last seen.
    identity: Vec<u8>,
    /// The member's key in that state.
    member: Option<Entry>,
    /// The session's lease under which the member's key was last seen.
    last_lease: Option<i64>,
    /// The revision of the last write. An older view does not show it.
    written_at: i64,
    record: Option<RecordLease>,
    /// When to compare the record with the view.
    write_at: Option<Time>,
    /// True while a failure is logged that has not ended.
    is_logged: bool,
    namesake: Namesake,
}

/// Another member with this member's identity, as it is known.
#[derive(Clone, Copy)]
enum Namesake {
    Gone,
    /// The other member is there, and may be an earlier process of this one until then.
    Until(Time),
    Logged,
}

impl Keeper {
    async fn run(mut self, stop: CancellationToken, withdraw: CancellationToken) {
        let mut changes = None;
        loop {
            let renew_at = self.record.map(|lease| lease.renew_at);
            let warn_at = match self.namesake {
                Namesake::Until(at) => Some(at),
                Namesake::Gone | Namesake::Logged => None,
            };
            let due = [renew_at, self.write_at, warn_at];
            let due = due.into_iter().flatten().min();
            let env = Arc::clone(&self.handle.shared.env);
            let wake = async {
                match due {
                    Some(at) => env.sleep(at.since(env.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = withdraw.cancelled() => return self.withdraw().await,
                () = stop.cancelled() => break,
                change = self.next(&mut changes) => match change {
                    Some(Ok(view)) => self.see(view),
                    Some(Err(error)) => self.warn(&error),
                    None => break,
                },
                () = wake => self.work().await,
            }
        }
        // A lease without a record keeps nothing.
        if let Some(lease) = self.record.filter(|lease| !lease.is_written) {
            self.handle.shared.tidy(lease.id, &self.prefix).await;
        }
    }

    /// Returns what the observer shows next. After etcd has refused to show it, a new observer follows. `None` once the
    /// session is closed.
    async fn next(&self, changes: &mut Option<Observer>) -> Option<Result<Roster>> {
        loop {
            if let Some(observer) = changes {
                if let Some(change) = observer.next().await {
                    return Some(change);
                }
                *changes = None;
                let shared = &self.handle.shared;
                shared.env.sleep(shared.settings.request_timeout).await;
            }
            let prefix = Arc::clone(&self.prefix);
            let observing = Observer::start(self.handle.clone(), prefix, Reach::Children);
            *changes = Some(observing.await.ok()?);
        }
    }

    fn see(&mut self, view: Roster) {
        let is_earlier = |former: &Roster| view.revision() < former.revision();
        if self.view.as_ref().is_some_and(is_earlier) {
            // A backup has replaced etcd's data.
            self.written_at = 0;
        }
        self.member = self.session_lease().and_then(|lease| {
            let key = member_key(&self.prefix, lease);
            let is_own = |entry: &&Entry| entry.key == key && entry.lease == lease;
            view.entries().find(is_own).cloned()
        });
        if let Some(member) = &self.member {
            self.last_lease = Some(member.lease);
            self.identity = (SHARES.identity)(&member.value);
        }
        self.view = Some(view);
        let due = self.handle.shared.env.now().after(SETTLE);
        self.write_at.get_or_insert(due);
    }

    /// Returns the lease of the session, if it has one.
    fn session_lease(&self) -> Option<i64> {
        live_lease(&self.handle.shared.state.borrow())
    }

    /// Returns the member's key under the session's present lease, if the view shows it.
    fn present(&self) -> Option<&Entry> {
        let lease = self.session_lease()?;
        self.member.as_ref().filter(|member| member.lease == lease)
    }

    /// Writes and renews what is due.
    async fn work(&mut self) {
        let shared = Arc::clone(&self.handle.shared);
        let now = shared.env.now();
        self.note_namesake(now);
        let mut done = Ok(());
        if self.write_at.is_some_and(|at| at <= now) {
            self.write_at = None;
            done = self.write().await;
            if done.is_err() {
                // etcd may have granted a lease without an answer, so the next try is late.
                let pause = match self.record {
                    Some(_) => shared.settings.request_timeout,
                    None => self.pause.max(shared.settings.request_timeout),
                };
                self.write_at = Some(shared.env.now().after(pause));
            }
        }
        if let Some(lease) = self.record.filter(|lease| lease.renew_at <= now) {
            if self.present().is_some() {
                let renewed = self.renew().await;
                done = done.and(renewed);
            } else {
                // The time counts from when the member was last there.
                let renew_at = now.after(self.pause);
                self.record = Some(RecordLease { renew_at, ..lease });
            }
        }
        match done {
            Ok(()) => self.is_logged = false,
            Err(failure) => self.warn(&Error::from_request(&failure)),
        }
    }

    fn warn(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.is_logged, true) {
            let (identity, partitions) = (&*self.handle.shared.settings.identity, &*self.name);
            tracing::warn!(target: "eldest::election", identity, partitions, %error, "cannot keep this member's share: other members may take its partitions while it is away");
        }
    }

    /// Warns once of another member with the same identity, if it is there for longer than an earlier process of this member
    /// could leave its key.
    fn note_namesake(&mut self, now: Time) {
        let view = self.view.iter().flat_map(Roster::entries);
        let same = members(view, &self.prefix).filter(|member| is_of(member, &self.identity));
        let is_alone = same.count() < 2;
        let settings = &self.handle.shared.settings;
        self.namesake = match self.namesake {
            _ if is_alone => Namesake::Gone,
            Namesake::Gone => Namesake::Until(now.after(2 * settings.ttl)),
            Namesake::Until(at) if at <= now => {
                let (identity, partitions) = (&*settings.identity, &*self.name);
                tracing::warn!(target: "eldest::election", identity, partitions, "another member has this identity: the younger one owns no partitions");
                Namesake::Logged
            }
            known => known,
        };
    }

    /// Writes the record if the view shows another one.
    async fn write(&mut self) -> Result<(), RequestError> {
        let Some(lease) = self.session_lease() else {
            return Ok(());
        };
        let view = self.view.clone();
        let Some(view) = view.filter(|view| view.revision() >= self.written_at) else {
            return Ok(());
        };
        let Some(member) = self.present().cloned() else {
            // A member whose work outlives its term gives up its key, so that others take the partition.
            let was_there = self.last_lease == Some(lease);
            if was_there && *self.status.borrow() == Status::Joining {
                return self.revoke().await;
            }
            return Ok(());
        };
        let facts = facts(&self.prefix, self.count, view.entries(), SHARES);
        let value = keep_share(&member.value, self.time, &listed(&facts, lease));
        let identity = (SHARES.identity)(&member.value);
        let own_key = self.record.map(|record| kept_key(&self.prefix, record.id));
        let is_own = |entry: &Entry| Some(&entry.key) == own_key.as_ref();
        let own = view.entries().find(|entry| is_own(entry));
        let mut former = records_of(view.entries(), &self.prefix, &identity);
        former.retain(|record| !is_own(record));
        let members: Vec<_> = members(view.entries(), &self.prefix).collect();
        let there: BTreeSet<i64> = members.iter().map(|member| member.lease).collect();
        let same = || members.iter().filter(|member| is_of(member, &identity));
        let is_alone =
            same().count() == 1 && !former.iter().any(|record| ends(record, &facts, &there));
        if !is_alone {
            // The record of an earlier process lists what this one will own, as long as that one's keys stand. Without a
            // record, a younger member of this identity would own partitions.
            let elder = same().min_by_key(|member| member.create_revision);
            let is_elder = elder.is_some_and(|elder| elder.lease == lease);
            if own.is_none() && !(is_elder && former.is_empty()) {
                return Ok(());
            }
            former.clear();
        }
        if own.is_some_and(|own| own.value == value) && former.is_empty() {
            return Ok(());
        }
        let since = own.map_or(0, |own| own.mod_revision);
        let id = self.granted().await?;
        let key = kept_key(&self.prefix, id);
        self.replace(&member, (&key, since), &value, &former).await
    }

    /// Puts the record and deletes those of earlier processes, if nothing of that has changed since the view.
    async fn replace(
        &mut self,
        member: &Entry,
        (key, mod_revision): (&[u8], i64),
        value: &[u8],
        former: &[&Entry],
    ) -> Result<(), RequestError> {
        let Some(lease) = self.record else {
            return Ok(());
        };
        let shared = Arc::clone(&self.handle.shared);
        let fence = Fence::new(Arc::clone(&member.key), member.create_revision);
        let same = Condition::mod_revision(key, Comparison::Equal, mod_revision);
        let stand = former.iter().map(|record| {
            Condition::mod_revision(&*record.key, Comparison::Equal, record.mod_revision)
        });
        let conditions: Vec<_> = std::iter::once(same).chain(stand).collect();
        let put = Op::put_with_lease(key, value, lease.id);
        let deletes = former.iter().map(|record| Op::delete(&*record.key));
        let operations: Vec<_> = std::iter::once(put).chain(deletes).collect();
        let write = vec![Op::when(conditions, operations, [])];
        match shared.pool.fenced_txn(vec![fence], write).await {
            Ok(Some(outcome)) if outcome.all_held() => {
                self.written_at = outcome.revision();
                self.record = Some(RecordLease {
                    is_written: true,
                    ..lease
                });
                for record in former {
                    shared.tidy(record.lease, &self.prefix).await;
                }
                Ok(())
            }
            // Something has changed, and the next view shows it.
            Ok(_) => Ok(()),
            Err(failure) if failure.class == Class::LeaseGone => {
                self.record = None;
                if lease.is_written {
                    // The record has expired while the member was away, or somebody has ended it.
                    self.write_at = Some(shared.env.now());
                    return Ok(());
                }
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Returns the lease of the record, which is granted first if there is none.
    async fn granted(&mut self) -> Result<i64, RequestError> {
        if let Some(lease) = self.record {
            return Ok(lease.id);
        }
        let shared = Arc::clone(&self.handle.shared);
        let seconds = whole_seconds(self.time + 2 * self.pause);
        let sent = shared.env.now();
        let granted = shared
            .pool
            .grant(i64::try_from(seconds).unwrap_or(i64::MAX))
            .await?;
        self.record = Some(RecordLease {
            id: granted.id,
            renew_at: sent.after(self.pause),
            is_written: false,
        });
        Ok(granted.id)
    }

    /// Renews the lease of the record.
    async fn renew(&mut self) -> Result<(), RequestError> {
        let Some(mut lease) = self.record else {
            return Ok(());
        };
        let shared = Arc::clone(&self.handle.shared);
        let sent = shared.env.now();
        let renewed = async { shared.pool.keepalive(lease.id).await?.renew().await };
        let renewed = renewed.await;
        match &renewed {
            Ok(ack) if ack.ttl.is_zero() => {
                self.record = None;
                self.write_at = Some(sent);
                return Ok(());
            }
            Ok(_) => lease.renew_at = sent.after(self.pause),
            Err(_) => lease.renew_at = shared.env.now().after(shared.settings.request_timeout),
        }
        self.record = Some(lease);
        renewed.map(drop)
    }

    /// Ends the share, as [`Self::end_share`] says. Repeats that for one TTL at most; then the leases of the records expire.
    async fn withdraw(&mut self) {
        let shared = Arc::clone(&self.handle.shared);
        let repeated = async {
            while let Err(error) = self.end_share().await {
                self.warn(&error);
                shared.env.sleep(shared.settings.request_timeout).await;
            }
        };
        timeout(&*shared.env, shared.settings.ttl, repeated).await;
    }

    /// Revokes the lease of the record, which deletes it, and deletes the records of earlier processes, which this one has
    /// not replaced yet. Another process with the same identity that still runs writes its record again.
    async fn end_share(&mut self) -> Result<()> {
        let revoked = self.revoke().await;
        revoked.map_err(|failure| Error::from_request(&failure))?;
        let shared = &self.handle.shared;
        let all = shared.roster(&self.prefix, Reach::Children).await?;
        for record in records_of(all.entries(), &self.prefix, &self.identity) {
            shared.delete_as_read(record, &self.prefix).await?;
        }
        Ok(())
    }

    /// Revokes the lease of the record, which deletes it.
    async fn revoke(&mut self) -> Result<(), RequestError> {
        if let Some(lease) = self.record {
            match self.handle.shared.pool.revoke(lease.id).await {
                Err(failure) if failure.class != Class::LeaseGone => return Err(failure),
                _ => self.record = None,
            }
        }
        Ok(())
    }
}

/// Returns true if work of an earlier process is ending: a partition in its record has an owner that is not among the
/// members with these leases.
fn ends(record: &Entry, facts: &Facts, members: &BTreeSet<i64>) -> bool {
    let Some(kept) = (SHARES.kept)(&record.value) else {
        return false;
    };
    facts.owned.iter().any(|key| {
        let mut listed = kept.partitions.iter();
        listed.any(|range| range.contains(&key.partition)) && !members.contains(&key.lease)
    })
}

/// Returns the partitions that a member owns, and those that are kept for it and that it does not own yet.
fn listed(facts: &Facts, lease: i64) -> BTreeSet<u32> {
    let all = facts.owned.iter().chain(&facts.kept);
    let own = all.filter(|key| key.lease == lease);
    own.map(|key| key.partition).collect()
}
