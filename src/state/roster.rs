//! Builds the roster, the users' view of the candidates, from raw keys.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::announcement::Announcement;
use super::as_of::AsOf;
use super::fields::{is_cold, serves_in, version, warmth};
use super::plain::steers;
use eldest_core::kv::Entry;
use eldest_core::queue::{Queue, is_shared};
use eldest_core::version::Version;

/// The candidates of an election at one revision of etcd, eldest first.
///
/// The cost of cloning a roster and of finding its leader does not depend on the number of candidates. The first call
/// of [`Roster::members`] reads all announcements, in time that grows with their number. Two rosters are equal if they
/// show the same candidates at the same revision, whatever their [age](Roster::as_of).
#[derive(Clone)]
pub struct Roster {
    inner: Arc<Inner>,
    as_of: Option<AsOf>,
    /// True for a group's roster, which has no leader.
    unled: bool,
}

struct Inner {
    revision: i64,
    /// The keys; unchanged parts are shared with the rosters before and after.
    entries: Queue,
    /// The eldest key, computed at the first request.
    eldest: OnceLock<Option<Member>>,
    members: OnceLock<Box<[Member]>>,
}

impl Roster {
    pub(crate) fn new(revision: i64, entries: impl IntoIterator<Item = Entry>) -> Self {
        Self::of(revision, entries.into_iter().collect())
    }

    pub(crate) fn of(revision: i64, entries: Queue) -> Self {
        let inner = Arc::new(Inner {
            revision,
            entries,
            eldest: OnceLock::new(),
            members: OnceLock::new(),
        });
        Self {
            inner,
            as_of: None,
            unled: false,
        }
    }

    /// Returns the same roster without a leader.
    pub(crate) fn unled(self) -> Self {
        Self {
            unled: true,
            ..self
        }
    }

    /// Returns the same roster with the given time.
    pub(crate) fn with_as_of(self, as_of: Option<AsOf>) -> Self {
        Self { as_of, ..self }
    }

    /// Returns the keys, eldest first, without reading their announcements.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.inner.entries.iter().map(|entry| &**entry)
    }

    /// Returns the revision of etcd's store that the roster shows. Of two rosters, the one with the larger revision is
    /// newer.
    pub fn revision(&self) -> i64 {
        self.inner.revision
    }

    /// Returns the moment up to which this roster is complete: it shows every change that etcd had accepted by then.
    ///
    /// The moment is fixed when the roster is returned. For a read, it is the moment before the read was sent. For a
    /// roster of an [`Observer`](crate::Observer), it is the moment just before the session sent the latest request
    /// whose answer confirmed that the observer had seen everything.
    ///
    /// The [revision](Roster::revision) does not say this: it belongs to the last change, which may be long ago.
    /// [`Observer::age`](crate::Observer::age) shows whether the observer that returned the roster is still up to date.
    /// `None` means that the roster was not read from etcd; rosters of observers, reads and overviews always have a
    /// moment.
    ///
    /// Not guaranteed: the roster may lack changes after that moment. The moment is wrong if etcd reports the progress
    /// of a watch stream too early, as versions before 3.4.25 and 3.5.8 do, or answers linearizable reads with old
    /// data.
    pub fn as_of(&self) -> Option<&AsOf> {
        self.as_of.as_ref()
    }

    fn eldest(&self) -> Option<&Member> {
        let eldest = || {
            self.inner
                .entries
                .eldest()
                .map(|entry| Member::new(1, entry))
        };
        self.inner.eldest.get_or_init(eldest).as_ref()
    }

    /// Returns the leader, which is the eldest candidate. Returns `None` if there is no candidate, if the queue is
    /// [blocked](Roster::blocker), or if these are the members of a [`Group`](crate::Group).
    ///
    /// This is etcd's view. Only the leader itself knows whether it acts as leader
    /// ([`Term::is_valid`](crate::Term::is_valid)): a new leader may not have learned of its turn yet, and a leader
    /// that cannot reach etcd stops before its key is gone.
    pub fn leader(&self) -> Option<&Member> {
        let first = self.eldest().filter(|_| !self.unled)?;
        (first.entry.lease != 0).then_some(first)
    }

    /// Returns `true` if there is no candidate.
    pub fn is_vacant(&self) -> bool {
        self.inner.entries.is_empty()
    }

    /// Returns the number of candidates or members, without reading their announcements.
    pub(crate) fn count(&self) -> usize {
        self.inner.entries.len()
    }

    /// Returns every candidate or member, eldest first.
    pub fn members(&self) -> &[Member] {
        let members = || {
            let ranks = (1..).zip(self.inner.entries.iter());
            let members = ranks.map(|(rank, entry)| Member::new(rank, entry));
            let mut latest = None;
            let in_queue = members.map(|member| {
                latest = member.since.max(latest);
                let since = member.since.and(latest);
                Member { since, ..member }
            });
            in_queue.collect()
        };
        self.inner.members.get_or_init(members)
    }

    /// Returns true if the candidate behind that one prepares for its terms and is not warm. Returns `None` if that
    /// candidate is not the eldest.
    pub(crate) fn has_cold_successor(&self, (key, create_revision): (&[u8], i64)) -> Option<bool> {
        let mut eldest = self.inner.entries.iter();
        let leads = eldest.next();
        let leads = leads
            .is_some_and(|first| (&*first.key, first.create_revision) == (key, create_revision));
        leads.then(|| eldest.next().is_some_and(|next| is_cold(&next.value)))
    }

    /// Returns the first key of the queue if that key has no lease. Such a key belongs to no live candidate and never
    /// expires. No node can lead until an operator deletes it, for example with `etcdctl del`.
    pub fn blocker(&self) -> Option<&Member> {
        let first = self.eldest().filter(|_| !self.unled)?;
        (first.entry.lease == 0).then_some(first)
    }
}

impl fmt::Display for Roster {
    /// Writes a summary: `node-a leads, 2 wait`, `nobody leads`, or `3 members` for a group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.count();
        if self.unled {
            let members = if all == 1 { "member" } else { "members" };
            return write!(f, "{all} {members}");
        }
        if let Some(blocker) = self.blocker() {
            let key = String::from_utf8_lossy(blocker.key());
            return write!(f, "blocked by the key {key:?}, which has no lease");
        }
        match (self.leader(), all.saturating_sub(1)) {
            (None, _) => f.write_str("nobody leads"),
            (Some(leader), 0) => write!(f, "{leader} leads"),
            (Some(leader), 1) => write!(f, "{leader} leads, 1 waits"),
            (Some(leader), waiting) => write!(f, "{leader} leads, {waiting} wait"),
        }
    }
}

impl PartialEq for Roster {
    fn eq(&self, other: &Self) -> bool {
        let same = |(one, another): (&Arc<Entry>, &Arc<Entry>)| {
            Arc::ptr_eq(one, another) || one == another
        };
        let (one, another) = (&self.inner, &other.inner);
        one.revision == another.revision
            && one.entries.len() == another.entries.len()
            && one.entries.iter().zip(another.entries.iter()).all(same)
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster")
            .field("revision", &self.revision())
            .field("as_of", &self.as_of)
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

/// A candidate or member, as every node sees it in etcd.
#[derive(Clone, PartialEq)]
pub struct Member {
    rank: usize,
    announcement: Announcement,
    since: Option<SystemTime>,
    entry: Arc<Entry>,
}

impl Member {
    fn new(rank: usize, entry: &Arc<Entry>) -> Self {
        let announcement = Announcement::decode(&entry.value);
        Self {
            rank,
            since: announcement.since(),
            announcement,
            entry: Arc::clone(entry),
        }
    }

    /// Returns the place in the queue, counted from 1. The eldest has place 1, and leads an election.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the identity.
    pub fn identity(&self) -> &str {
        self.announcement.identity()
    }

    /// Returns the announcement.
    pub fn announcement(&self) -> &Announcement {
        &self.announcement
    }

    /// Returns the key in etcd.
    pub fn key(&self) -> &[u8] {
        &self.entry.key
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Returns `true` if this is a reader of a lock, which holds the lock together with other readers
    /// ([`Lock::shared`](crate::Lock::shared)).
    pub fn is_shared(&self) -> bool {
        is_shared(&self.entry.key)
    }

    /// Returns the announcement's bytes as stored in etcd.
    pub fn value(&self) -> &[u8] {
        &self.entry.value
    }

    /// Returns the create revision of the key: the candidate's seniority, and the fencing token of its leadership.
    pub fn create_revision(&self) -> i64 {
        self.entry.create_revision
    }

    /// Returns the id of the lease that the key is bound to; 0 if there is none.
    pub fn lease_id(&self) -> i64 {
        self.entry.lease
    }

    /// Returns when the candidate's present key was put, by the candidate's own wall clock, if it announced that. The
    /// time is never before that of an older candidate. So of two candidates, the one with the lower rank never appears
    /// younger, although clocks differ. [`Announcement::since`] has the announced time.
    pub fn since(&self) -> Option<SystemTime> {
        self.since
    }

    /// Returns when this leader's term began, by its own wall clock. `None`: the member does not lead, or did not
    /// announce the time.
    ///
    /// A leader of an election announces the time once in each term, with the first renewals that are verified in the
    /// term: after a third of the [TTL](crate::SessionOptions::ttl), or later in a session with more than 16 elections.
    /// Leaders of other libraries do not, nor do leaders that announce a plain string. The time has no effect on the
    /// election, and a program that may write the key may write any time up to the year 9999.
    pub fn leads_since(&self) -> Option<SystemTime> {
        let announced = || self.announcement.leads_since(self.create_revision());
        self.leads().then(announced).flatten()
    }

    /// Returns `true` if this member leads and serves: it said so in its present term, or its election has no
    /// [limit](crate::Election::serving_within) for that. Leaders of other libraries, of earlier versions, and leaders
    /// that announce a plain string serve as soon as they lead.
    ///
    /// Like the rest of the roster, it shows what etcd had accepted by the moment of [`Roster::as_of`].
    pub fn is_serving(&self) -> bool {
        self.leads() && serves_in(self.value(), self.create_revision())
    }

    /// Returns `Some(true)` if this member waits and is prepared for its term, and `Some(false)` if it is not yet.
    /// `None`: it leads, or its election has no [limit](crate::Election::warm_within) for a warm successor, as for
    /// candidates of other libraries and of earlier versions.
    ///
    /// It shows what etcd had accepted by the moment of [`Roster::as_of`], and says nothing of the order: age alone decides
    /// who leads next.
    pub fn warmth(&self) -> Option<bool> {
        warmth(self.value()).filter(|_| self.rank > 1)
    }

    /// Returns the version that this member's election [requires](crate::Election::require_version). `None`: it requires
    /// none, as for candidates of other libraries and of earlier versions.
    pub fn version(&self) -> Option<Version> {
        version(self.value())
    }

    fn leads(&self) -> bool {
        self.rank == 1 && self.entry.lease != 0
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("rank", &self.rank)
            .field("identity", &self.identity())
            .field("create_revision", &self.create_revision())
            .field("lease_id", &format_args!("{:x}", self.lease_id()))
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Member {
    /// Writes the identity and, if announced, the address: `node-a (10.0.0.1:8080)`. Characters that steer a terminal
    /// or reorder text are escaped, because other nodes wrote both.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |text: &str| -> String {
            let escape = |c: char| -> String {
                if steers(c) {
                    c.escape_default().collect()
                } else {
                    c.into()
                }
            };
            text.chars().map(escape).collect()
        };
        f.write_str(&plain(self.identity()))?;
        match self.announcement.address() {
            Some(address) => write!(f, " ({})", plain(address)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str, created: i64, lease: i64) -> Entry {
        Entry {
            key: key.as_bytes().into(),
            value: value.as_bytes().into(),
            create_revision: created,
            mod_revision: created,
            lease,
        }
    }

    #[test]
    fn no_candidate_appears_older_than_one_before_it() {
        let said = |ms: u64| format!(r#"{{"identity":"a","since_unix_ms":{ms}}}"#);
        // The second candidate has lost its key and joined again; the third announces no time.
        let entries = [
            entry("e/1", &said(50), 3, 1),
            entry("e/2", &said(10), 4, 2),
            entry("e/3", "c", 5, 3),
            entry("e/4", &said(70), 6, 4),
        ];
        let roster = Roster::new(7, entries);
        let since = roster.members().iter().map(|member| {
            let since = member.since()?.duration_since(SystemTime::UNIX_EPOCH);
            since.ok().map(|since| since.as_millis())
        });
        let since: Vec<_> = since.collect();
        assert_eq!(since, [Some(50), Some(50), None, Some(70)]);
    }

    #[test]
    fn only_the_first_in_the_queue_leads_since_a_time() {
        let said = |token: i64| {
            format!(r#"{{"identity":"a","leads":{{"token":{token},"since_unix_ms":5}}}}"#)
        };
        let of = |token: i64, lease| {
            let entries = [
                entry("e/1", &said(token), 3, lease),
                entry("e/2", &said(4), 4, 2),
            ];
            let roster = Roster::new(7, entries);
            let each = roster.members().iter();
            each.map(|member| member.leads_since().is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(3, 1), [true, false]);
        assert_eq!(of(2, 1), [false, false], "of an earlier key");
        assert_eq!(of(3, 0), [false, false], "it blocks");
    }

    #[test]
    fn only_the_leader_serves_and_only_in_the_term_that_it_announces() {
        let of = |serves: &str, lease| {
            let said = format!(r#"{{"identity":"a"{serves}}}"#);
            let entries = [entry("e/1", &said, 3, lease), entry("e/2", "b", 4, 2)];
            let roster = Roster::new(7, entries);
            let each = roster.members().iter().map(Member::is_serving);
            each.collect::<Vec<_>>()
        };
        assert_eq!(of("", 1), [true, false], "without a limit");
        assert_eq!(of(r#","serves":3"#, 1), [true, false]);
        assert_eq!(of(r#","serves":0"#, 1), [false, false], "not yet");
        assert_eq!(of(r#","serves":2"#, 1), [false, false], "of an earlier key");
        assert_eq!(of("", 0), [false, false], "it blocks");
    }

    #[test]
    fn only_the_candidate_behind_the_leader_is_awaited_until_it_is_warm() {
        let said = |warm| format!(r#"{{"identity":"a","since_unix_ms":1,"warm":{warm}}}"#);
        let of = |second: &str| {
            let first = entry("e/1", &said(false), 3, 1);
            let third = entry("e/3", &said(false), 5, 3);
            Roster::new(7, [first, entry("e/2", second, 4, 2), third])
        };
        let cold = of(&said(false));
        let each = cold.members().iter().map(Member::warmth);
        let each: Vec<_> = each.collect();
        assert_eq!(each, [None, Some(false), Some(false)]);
        for (second, is_awaited) in [(&*said(false), true), (&*said(true), false), ("b", false)] {
            let roster = of(second);
            assert_eq!(
                roster.has_cold_successor((b"e/1", 3)),
                Some(is_awaited),
                "{second}"
            );
        }
        let not_eldest =
            |candidate: (&[u8], i64)| assert_eq!(cold.has_cold_successor(candidate), None);
        let of_another_term: (&[u8], i64) = (b"e/1", 2);
        not_eldest(of_another_term);
        let behind_the_leader: (&[u8], i64) = (b"e/2", 4);
        not_eldest(behind_the_leader);
        let alone = Roster::new(7, [entry("e/1", "a", 3, 1)]);
        assert_eq!(alone.has_cold_successor((b"e/1", 3)), Some(false));
    }

    #[test]
    fn a_roster_is_printed_in_a_few_words() {
        let at = r#"{"identity":"a","address":"a:1","since_unix_ms":1}"#;
        let (a, b) = (
            entry("e/1", at, 3, 1),
            entry("e/2", "b\u{1b}\u{202e}", 4, 2),
        );
        let stray = entry("e/x", "x", 2, 0);
        for (entries, words) in [
            (vec![], "nobody leads"),
            (vec![a.clone()], "a (a:1) leads"),
            (vec![b.clone()], "b\\u{1b}\\u{202e} leads"),
            (vec![b.clone(), a.clone()], "a (a:1) leads, 1 waits"),
            (
                vec![stray, a.clone()],
                "blocked by the key \"e/x\", which has no lease",
            ),
        ] {
            assert_eq!(Roster::new(9, entries).to_string(), words);
        }
        assert_eq!(Roster::new(9, [a, b]).unled().to_string(), "2 members");
    }
}
