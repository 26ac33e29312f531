//! Tracks the phase of one candidate, and changes its leadership in exactly one function.

use std::sync::Arc;

use super::announcements::Announcements;
use super::config::{Follow, Manner, level_below, miscount};
use super::keys::{key_of, numbered_key_of};
use super::phase::{Phase, Turn};
use crate::action::{Admission, Ask, Class, Standing, Trouble};
use crate::cleanup::Shown;
use crate::facts::{Change, Entry, Reach};
use crate::ids::{RequestId, SlotId, WatchId};
use crate::partitions::{Membership, Wants, member_key, partition_key};
use crate::pause::{LONGEST_PAUSE, Pace, pause};
use crate::queue::{Fate, Own, Place, PredecessorView, PrefixView, View, Watcher, ahead, place_in};
use crate::time::Time;

/// What a candidate's key is for.
#[derive(Debug, Clone, Default)]
pub enum Role {
    /// To lead when its turn comes.
    #[default]
    Candidate,
    /// To say that it is there and shares partitions; it never leads.
    Member(Box<Membership>),
    /// To own a partition, for that member. It leads from the start, once, and looks at nothing.
    Owner { member: SlotId, partition: u32 },
}

/// One candidate of the session.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent facts, each said in its own words"
)]
#[derive(Debug, Clone)]
pub struct Candidacy {
    pub prefix: Arc<[u8]>,
    pub value: Arc<[u8]>,
    pub manner: Manner,
    /// Rejoins after a lost term; false once the candidate was dropped or left.
    pub wanted: bool,
    /// Does not join again until it is told so.
    pub held: bool,
    /// It stood in etcd once; from then on everything is retried.
    pub registered: bool,
    /// With `at_once`: whoever joined up to this revision is known, and leaves a seat free.
    pub free_at: i64,
    /// A join was lost on the way: a key may stand, or come to stand, that we do not know of.
    pub uncertain: bool,
    /// The newest revision that was known before the first join of which no answer is known. A key created up to then
    /// is not from these joins.
    pub joins_after: i64,
    /// The key without a lease that was last told to block the election.
    pub blocker: Option<Arc<[u8]>>,
    /// The key that went with the last lease; if it stands all the same, somebody wrote over it unseen.
    pub former: Option<Own>,
    pub failures: u32,
    /// The mod revision of its key, as far as known.
    pub announced_at: i64,
    /// Made for the first one: of thousands of elections few have any.
    announcements: Option<Box<Announcements>>,
    /// When its key last came to stand, and how often in a row one was lost soon after that.
    stood_at: Time,
    short_stays: u32,
    pub trouble: Option<Trouble>,
    view: View,
    pub role: Role,
    phase: Phase,
    standing: Option<Standing>,
}

impl Candidacy {
    pub fn new(prefix: Arc<[u8]>, value: Arc<[u8]>, manner: Manner) -> Self {
        let sharing = manner.sharing.clone();
        let member = sharing.map(|sharing| Role::Member(Box::new(Membership::new(sharing))));
        Self {
            view: new_view(&prefix, manner.follow),
            role: member.unwrap_or_default(),
            prefix,
            value,
            manner,
            wanted: true,
            held: false,
            registered: false,
            free_at: 0,
            uncertain: false,
            joins_after: 0,
            blocker: None,
            former: None,
            failures: 0,
            announced_at: 0,
            announcements: None,
            stood_at: Time::ZERO,
            short_stays: 0,
            trouble: None,
            phase: Phase::Joining {
                request: None,
                not_before: Time::ZERO,
            },
            standing: None,
        }
    }

    /// The owner of a partition; its key stands.
    pub fn owner(prefix: Arc<[u8]>, value: Arc<[u8]>, member: SlotId, partition: u32) -> Self {
        let role = Role::Owner { member, partition };
        Self {
            role,
            wanted: false,
            registered: true,
            ..Self::new(prefix, value, Manner::default())
        }
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// How many of the eldest lead.
    pub fn seats(&self) -> usize {
        self.manner.share.as_ref().map_or(1, |share| share.seats)
    }

    /// Its key under that lease.
    pub fn key(&self, lease: i64) -> Arc<[u8]> {
        match (&self.role, &self.manner.share) {
            (Role::Member(_), _) => member_key(&self.prefix, lease),
            (Role::Owner { partition, .. }, _) => partition_key(&self.prefix, *partition),
            (Role::Candidate, None) => key_of(&self.prefix, lease),
            (Role::Candidate, Some(share)) => numbered_key_of(&self.prefix, lease, share.number),
        }
    }

    /// What its join demands.
    pub fn admission(&self) -> Admission {
        let family = self.family().map(|(family, _)| Arc::clone(family));
        Admission {
            none_after: self.manner.at_once.then_some(self.free_at),
            nothing_else_in: family,
        }
    }

    /// Whether its turn to lead may come.
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Candidate)
    }

    pub fn is_member(&self) -> bool {
        matches!(self.role, Role::Member(_))
    }

    /// Whether it stands for one partition, whose key its member looks after.
    pub fn is_owner(&self) -> bool {
        matches!(self.role, Role::Owner { .. })
    }

    /// A member's: the partitions of every take under way.
    pub fn takes(&self) -> impl Iterator<Item = (&RequestId, &Vec<u32>)> {
        let member = match &self.role {
            Role::Member(member) => Some(member),
            _ => None,
        };
        member.into_iter().flat_map(|member| &member.taking)
    }

    /// A member's: the keys of the partitions that it is taking.
    pub(crate) fn taking(&self) -> impl Iterator<Item = Arc<[u8]>> {
        let partitions = self.takes().flat_map(|(_, partitions)| partitions);
        partitions.map(|partition| partition_key(&self.prefix, *partition))
    }

    /// A member's: who owns, or owned, a partition by this key. A read that was begun before the key was lost still shows
    /// it.
    pub fn holder_of(&self, entry: &Entry) -> Option<SlotId> {
        let Role::Member(member) = &self.role else {
            return None;
        };
        let mut holds = member.held.values();
        holds.find(|hold| hold.is_by(entry)).map(|hold| hold.slot)
    }

    /// Whether it has an interest in what its view says.
    pub fn watches(&self) -> bool {
        self.looks() && !self.is_owner()
    }

    /// Below that prefix all use the same number.
    fn family(&self) -> Option<(&Arc<[u8]>, usize)> {
        let sharing = self.manner.sharing.as_ref();
        let sharing = sharing.map(|sharing| (&sharing.family, sharing.count as usize));
        let share = self.manner.share.as_ref();
        sharing.or(share.map(|share| (&share.family, share.seats)))
    }

    /// What is told who asks for another number than others, one of whose keys is `other`.
    pub fn mismatch(&self, other: &[u8]) -> Option<Trouble> {
        let (family, ours) = self.family()?;
        let (class, message) = if self.is_member() {
            (Class::Miscount, miscount(family, ours, other))
        } else {
            let (theirs, key) = (level_below(family, other), String::from_utf8_lossy(other));
            let message = format!(
                "capacity {ours} was asked for, but others hold or await permits of capacity {theirs}, as the key {key}"
            );
            (Class::Mismatch, message)
        };
        Some(Trouble {
            class,
            ambiguous: false,
            message,
        })
    }

    /// Its place, as far as its view can tell.
    pub fn place(&self, own: &Own) -> Place {
        self.view.place(own, self.seats())
    }

    /// The key that blocks the election, if that is news.
    pub fn blocked(&mut self) -> Option<Arc<[u8]>> {
        let blocker = match &self.view {
            _ if !self.leads() => None,
            View::Prefix(view) => view.blocker().map(|entry| Arc::clone(&entry.key)),
            View::Predecessor(view) => view.blocker().cloned(),
        };
        let news = blocker
            .clone()
            .filter(|key| self.blocker.as_ref() != Some(key));
        self.blocker = blocker;
        news
    }

    /// A term is over, and its work may not have ended.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. })
    }

    /// Our key, while we hold one and may still act on it.
    pub fn own(&self) -> Option<&Own> {
        match &self.phase {
            Phase::Waiting { own } | Phase::Leading { own, .. } => Some(own),
            Phase::Ending { own, .. } => own.as_ref(),
            Phase::Joining { .. } | Phase::Leaving { .. } => None,
        }
    }

    /// Whether this candidate has an interest in what its view says.
    pub fn looks(&self) -> bool {
        !matches!(self.phase, Phase::Leaving { .. })
    }

    /// Whether a key at its path may be its own, or become so. Of a term whose key went before its work none is, nor of
    /// a candidate that is held back: no join of it follows that would take such a key for its own.
    pub fn may_stand(&self) -> bool {
        match self.phase {
            Phase::Leaving { .. } | Phase::Ending { own: None, .. } => false,
            Phase::Joining { request: None, .. } => !self.held,
            _ => true,
        }
    }

    pub(crate) fn announcements(&mut self) -> &mut Announcements {
        self.announcements.get_or_insert_default()
    }

    /// The candidate is forgotten: calls of `proclaim` that nothing will answer.
    pub(crate) fn unanswered(self) -> Vec<u64> {
        let announcements = self.announcements;
        announcements.map_or_else(Vec::new, |announcements| announcements.unanswered())
    }

    /// The key stands from now on.
    pub fn stand(&mut self, now: Time, own: Own) {
        self.stood_at = now;
        self.enter(Phase::Waiting { own });
    }

    /// The key was lost while it waited: when to join again. A key that is lost each time soon after it stood is put
    /// ever more slowly, whatever takes it away.
    pub fn rejoin_at(&mut self, now: Time) -> Time {
        let short = now.since(self.stood_at) < LONGEST_PAUSE;
        self.short_stays = if short { self.short_stays + 1 } else { 0 };
        now.after(pause(self.short_stays, LONGEST_PAUSE))
    }

    /// Every watcher that stands for it.
    pub(crate) fn watchers(&self) -> Vec<WatchId> {
        self.view.watchers()
    }

    /// The watchers that it does not need any more, and what is to be watched and is not.
    pub(crate) fn unwatched_keys(&mut self) -> (Vec<WatchId>, Vec<(Arc<[u8]>, bool)>) {
        if !self.watches() {
            return Default::default();
        }
        let own = self.own().map(|own| Arc::clone(&own.key));
        let discarded = self.view.take_discarded();
        (discarded, self.view.unwatched_keys(own))
    }

    /// A watch of that key was asked for.
    pub(crate) fn watched(&mut self, key: &[u8], watcher: Watcher) {
        self.view.watched(key, watcher);
    }

    /// The stream broke: what is known may be old.
    pub(crate) fn unwatched(&mut self) {
        self.view.unwatched();
    }

    /// A watch stands since `revision`.
    pub(crate) fn created(&mut self, watch: WatchId, revision: i64) {
        self.view.created(watch, revision);
    }

    /// Whether its view has told everything up to now, as far as the stream is not behind.
    pub(crate) fn is_current(&self) -> bool {
        self.view.is_current()
    }

    /// Events of a watch, in order. What they say of its own key, and of the partitions that it owns: both are judged on
    /// every event, even while a gap is being closed.
    pub(crate) fn changed(&mut self, changes: Vec<Change>) -> (Fate, Vec<(SlotId, Fate)>) {
        let fate = self.own().and_then(|own| {
            let mut fates = changes.iter().map(|change| own.fate(change));
            fates.find(|fate| *fate != Fate::Ours)
        });
        let partitions = match &mut self.role {
            Role::Member(member) => member.judge(&self.prefix, &changes),
            _ => Vec::new(),
        };
        self.view.changes(changes);
        (fate.unwrap_or(Fate::Ours), partitions)
    }

    /// Whether only a read can close a gap. A join under way reads the prefix anyway.
    pub(crate) fn wants_read(&self) -> bool {
        match self.phase {
            Phase::Joining { .. } | Phase::Leaving { .. } => false,
            _ => self.next_read().is_some(),
        }
    }

    /// The read that its view wants.
    pub(crate) fn next_read(&self) -> Option<Ask> {
        let prefix = Arc::clone(&self.prefix);
        match (&self.view, self.own()) {
            (View::Prefix(view), _) if view.wants_list() => Some(Ask::List {
                prefix,
                reach: Reach::Children,
            }),
            (View::Predecessor(view), Some(own)) if view.wants_read() => Some(Ask::Older {
                prefix,
                create_revision: own.create_revision,
            }),
            _ => None,
        }
    }

    /// The read under way.
    pub(crate) fn read(&self) -> Option<RequestId> {
        self.view.read()
    }

    /// A read was begun, or the one under way is over.
    pub(crate) fn set_read(&mut self, read: Option<RequestId>) {
        self.view.set_read(read);
    }

    /// A read failed. When the next one may be sent.
    pub(crate) fn read_failed(&mut self, now: Time, class: Class, pace: Pace) -> Time {
        self.failures += 1;
        now.after(pace.pause(self.failures, class))
    }

    /// Whether a read shows its key behind others that are older, though it leads. Within one store nothing older can come
    /// to be, so a restore has brought them back, and their owners may lead too.
    pub(crate) fn leads_behind(&self, entries: &[Entry]) -> bool {
        let Phase::Leading { own, .. } = &self.phase else {
            return false;
        };
        let place = place_in(entries, own, self.seats());
        self.leads() && matches!(place, Place::Behind(_))
    }

    /// The answer to `request`: a read, or a join that read the prefix and put the key. Beyond `long` older keys a new
    /// candidate follows its neighbours. Whether the read shows the key first, which is proof by itself: nothing older can
    /// come to be, however many seats. The watchers that are not needed any more.
    pub(crate) fn snapshot(
        &mut self,
        (request, joined): (RequestId, bool),
        revision: i64,
        entries: Vec<Entry>,
        long: usize,
    ) -> (bool, Vec<WatchId>) {
        self.failures = 0;
        let own = self.own().cloned();
        let first = own
            .as_ref()
            .filter(|_| self.leads())
            .is_some_and(|own| place_in(&entries, own, self.seats()) == Place::First);
        let auto = joined && self.manner.follow == Follow::Auto;
        let mut discarded = Vec::new();
        match (&self.view, &own) {
            (View::Prefix(_), Some(own)) if auto && ahead(&entries, own) > long => {
                discarded = self.follow_predecessor(revision, &entries);
            }
            _ => self.view.snapshot(request, revision, entries, own.as_ref()),
        }
        (first, discarded)
    }

    /// If the queue is longer than that and it is not the next to lead, it follows its neighbours from now on. The watchers
    /// that are not needed any more.
    pub(crate) fn follow_if_long(&mut self, long: usize) -> Vec<WatchId> {
        let (Phase::Waiting { own }, Follow::Auto, View::Prefix(view)) =
            (&self.phase, self.manner.follow, &self.view)
        else {
            return Vec::new();
        };
        if !view.is_too_wide(own, long) {
            return Vec::new();
        }
        let roster = view.roster();
        let (revision, entries) = (roster.revision(), roster.in_order().cloned());
        let entries: Vec<_> = entries.collect();
        self.follow_predecessor(revision, &entries)
    }

    /// From now on the candidate hears of its neighbours alone. `entries` is the whole queue; what the new watches may
    /// have missed is read for. The watchers that are not needed any more.
    fn follow_predecessor(&mut self, revision: i64, entries: &[Entry]) -> Vec<WatchId> {
        let Some(own) = self.own().cloned() else {
            return Vec::new();
        };
        let mut following = PredecessorView::new(Arc::clone(&self.prefix));
        following.snapshot(revision, entries, &own);
        let before = std::mem::replace(&mut self.view, View::Predecessor(following));
        before.watchers()
    }

    /// A join was begun, which reads the prefix.
    pub(crate) fn join_begun(&mut self, request: RequestId) {
        self.view.join_begun(request);
    }

    /// A join was answered, whatever became of it: the view awaits nothing from it any more.
    pub(crate) fn join_over(&mut self, request: RequestId) {
        self.view.join_over(request);
    }

    /// A member's: what it is to do, once its view shows everything. `shown` says what it means that a view at that revision
    /// shows a key that was created then, or none.
    pub(crate) fn wants(&self, shown: impl Fn(&[u8], Option<i64>, i64) -> Shown) -> Option<Wants> {
        let (Role::Member(member), Phase::Waiting { own }, View::Prefix(view)) =
            (&self.role, &self.phase, &self.view)
        else {
            return None;
        };
        let roster = view.roster();
        let shown = |key: &[u8], created| shown(key, created, roster.revision());
        let complete = view.is_synced();
        complete.then(|| member.wants(&self.prefix, own, roster, shown))
    }

    /// A member's: the answer to a take, at `revision`, names a partition. If that was `taken` under `lease`, its key; `Err`
    /// if nobody wants it any more. `believes`: the lease may be believed in.
    pub(crate) fn took(
        &mut self,
        partition: u32,
        (taken, lease): (bool, i64),
        revision: i64,
        believes: bool,
    ) -> Option<Result<Own, Own>> {
        let own = Own {
            key: partition_key(&self.prefix, partition),
            create_revision: revision,
            lease,
        };
        let stands = matches!(self.phase, Phase::Waiting { .. });
        let (Role::Member(member), View::Prefix(view)) = (&mut self.role, &self.view) else {
            return None;
        };
        let seen = view.roster().revision();
        if !taken {
            member.refuse(partition, revision, seen);
            return None;
        }
        // The events of its end may have come before this answer.
        let over = view.is_synced()
            && seen >= revision
            && own.read(view.roster().get(&own.key)) != Fate::Ours;
        if stands && believes && !over {
            Some(Ok(own))
        } else {
            Some(Err(own))
        }
    }

    /// A new key has a new place: what the old one's neighbours do is of no interest. The watchers that are not needed any
    /// more.
    pub(crate) fn renew_view(&mut self) -> Vec<WatchId> {
        let View::Predecessor(view) = &self.view else {
            return Vec::new();
        };
        let watchers = view.watchers();
        self.view = new_view(&self.prefix, self.manner.follow);
        watchers
    }

    /// What was read so far was another store's.
    pub(crate) fn store_changed(&mut self) {
        self.view = new_view(&self.prefix, self.manner.follow);
        self.free_at = 0;
        if let Role::Member(member) = &mut self.role {
            member.store_changed();
        }
    }

    /// The only place where the phase, and with it leadership, changes.
    pub fn enter(&mut self, next: Phase) -> Turn {
        let before = std::mem::replace(&mut self.phase, next);
        match (before, &self.phase) {
            (Phase::Leading { .. }, Phase::Leading { .. }) => Turn::None,
            (_, Phase::Leading { own, term }) => Turn::Elected {
                term: *term,
                token: own.create_revision,
            },
            (
                Phase::Leading { .. },
                Phase::Ending {
                    term,
                    reason,
                    cutoff,
                    ..
                },
            ) => Turn::TermEnded {
                term: *term,
                reason: *reason,
                cutoff: *cutoff,
            },
            _ => Turn::None,
        }
    }

    /// Where the candidate stands, if that is news.
    pub fn news(&mut self) -> Option<Standing> {
        let standing = match &self.phase {
            Phase::Joining { .. } => Standing::Joining,
            Phase::Waiting { .. } if !self.leads() => Standing::Waiting { ahead: 0 },
            Phase::Waiting { own } => match self.place(own) {
                Place::Behind(ahead) => Standing::Waiting { ahead },
                Place::First => Standing::Waiting { ahead: 0 },
                // Not known: keep to what was said.
                _ => match self.standing {
                    Some(old @ Standing::Waiting { .. }) => old,
                    _ => Standing::Joining,
                },
            },
            Phase::Leading { own, .. } => Standing::Leading {
                token: own.create_revision,
            },
            Phase::Ending { reason, .. } => Standing::Ending { reason: *reason },
            Phase::Leaving { reason } => Standing::Ended { reason: *reason },
        };
        if self.standing == Some(standing) {
            return None;
        }
        self.standing = Some(standing);
        Some(standing)
    }
}

/// A fresh view of the kind that `follow` starts with.
fn new_view(prefix: &Arc<[u8]>, follow: Follow) -> View {
    match follow {
        Follow::Predecessor => View::Predecessor(PredecessorView::new(Arc::clone(prefix))),
        Follow::Auto | Follow::Everyone => View::Prefix(PrefixView::new(Arc::clone(prefix))),
    }
}
