//! Tracks the phase of one candidate, and changes its leadership in exactly one function.

use std::sync::Arc;

mod joining;
mod terms;
mod views;

pub(crate) use joining::{JoinDue, JoinOutcome, NotAdmitted, Stood};
pub(crate) use terms::{KeyLost, LeaseLost, Leave, Look, WorkEnded};

use super::announcements::Announcements;
use super::config::{CandidateConfig, WatchScope};
use super::keys::{key_of, numbered_key_of, shared_key_of};
use super::phase::{Phase, Turn};
use crate::action::{Class, RequestError, Status};
use crate::evacuation::{Evacuation, Way};
use crate::ids::{RequestId, SlotId};
use crate::kv::Entry;
use crate::partitions::{Membership, member_key, partition_key};
use crate::pause::Pace;
use crate::queue::{Own, Place, PredecessorView, PrefixView, View};
use crate::time::Time;

/// A write of a candidate's value into its key, if that was last written then.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) own: Own,
    pub(crate) mod_revision: i64,
    pub(crate) value: Arc<[u8]>,
}

/// The purpose of a candidate's key.
#[derive(Debug, Clone, Default)]
pub enum Role {
    /// To lead when its turn comes.
    #[default]
    Candidate,
    /// To say that it is there and owns partitions; it never leads.
    Member(Box<Membership>),
    /// To say that it is there, as a member of a group; it never leads.
    Present,
    /// To own a partition, for that member. It leads from the start, once, and looks at nothing.
    Owner {
        /// The member's slot.
        member: SlotId,
        /// The number of the partition.
        partition: u32,
    },
}

/// One candidate of the session.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent facts, each said in its own words"
)]
#[derive(Debug, Clone)]
pub struct Candidacy {
    prefix: Arc<[u8]>,
    value: Arc<[u8]>,
    /// The value that it announces instead, because it does without partitions.
    aside: Option<Arc<[u8]>>,
    config: CandidateConfig,
    /// Rejoins after a lost term; false once the candidate was dropped or left.
    wanted: bool,
    /// Does not join again until it is told so.
    held: bool,
    /// True once its key has been in etcd; from then on everything is retried.
    registered: bool,
    /// Every key up to this revision is known, and leaves a permit free (with `at_once`), or belongs to no candidate of an
    /// election (of a lock). 0: no key is known.
    free_at: i64,
    /// A join was lost on the way: a key may stand, or come to stand, that we do not know of.
    uncertain: bool,
    /// The newest revision that was known before the first join of which no answer is known. A key created up to then
    /// is not from these joins.
    joins_after: i64,
    /// The key without a lease that was last told to block the election.
    blocker: Option<Arc<[u8]>>,
    /// The key that went with the last lease; if it stands all the same, somebody wrote over it unseen.
    former: Option<Own>,
    failures: u32,
    /// The mod revision of its key, as far as known.
    announced_at: i64,
    /// Made for the first one: of thousands of elections few have any.
    announcements: Option<Box<Announcements>>,
    /// When its key last came to stand, and how often in a row one was lost soon after that.
    stood_at: Time,
    short_stays: u32,
    /// The candidate does not give way before this time.
    stays_until: Time,
    error: Option<RequestError>,
    view: View,
    role: Role,
    phase: Phase,
    status: Option<Status>,
}

impl Candidacy {
    /// A candidate that has not joined yet.
    pub fn new(prefix: Arc<[u8]>, value: Arc<[u8]>, config: CandidateConfig) -> Self {
        let role = match &config.partitions {
            Some(partitions) => Role::Member(Box::new(Membership::new(partitions.clone()))),
            None if config.present => Role::Present,
            None => Role::Candidate,
        };
        Self {
            view: new_view(&prefix, config.watch_scope),
            role,
            prefix,
            value,
            aside: None,
            config,
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
            stays_until: Time::ZERO,
            error: None,
            phase: Phase::Joining {
                request: None,
                not_before: Time::ZERO,
            },
            status: None,
        }
    }

    /// The owner of a partition; its key stands.
    pub fn owner(prefix: Arc<[u8]>, value: Arc<[u8]>, member: SlotId, partition: u32) -> Self {
        let role = Role::Owner { member, partition };
        Self {
            role,
            wanted: false,
            registered: true,
            ..Self::new(prefix, value, CandidateConfig::default())
        }
    }

    /// Below this are its key and those of its queue.
    pub(crate) fn prefix(&self) -> &Arc<[u8]> {
        &self.prefix
    }

    /// Returns the value that it announces.
    pub(crate) fn value(&self) -> &Arc<[u8]> {
        self.aside.as_ref().unwrap_or(&self.value)
    }

    /// Returns true if an evacuation of its data centre concerns it.
    pub(crate) fn is_movable(&self) -> bool {
        self.is_member() || (self.leads() && self.config.gives_way)
    }

    /// A member does without partitions from now on, or no longer, as `evacuation` says of its data centre. Whether its key
    /// has another value than it announces from now on.
    pub(crate) fn set_aside(&mut self, evacuation: &Evacuation) -> bool {
        let aside = self.is_member() && evacuation.since(&self.value).is_some();
        let before = self.aside.take();
        self.aside = aside.then(|| (evacuation.homes().set_aside)(&self.value));
        before != self.aside && self.own().is_some()
    }

    /// Keeps the candidate from giving way until then.
    pub(crate) fn stay_until(&mut self, until: Time) {
        self.stays_until = self.stays_until.max(until);
    }

    /// Returns the time until which it does not give way; `None`: it may give way now.
    pub(crate) fn stays(&self, now: Time) -> Option<Time> {
        Some(self.stays_until).filter(|until| now < *until)
    }

    /// Decides about its place while its data centre is evacuated, or while it is ordered to step down: candidates elsewhere
    /// lead first. It stays behind the eldest of them, so that it moves once for each of these at most, and two never swap
    /// places.
    pub(crate) fn way(&self, evacuation: &Evacuation) -> Way {
        let (Phase::Waiting { own } | Phase::Leading { own, .. }) = &self.phase else {
            return Way::Keep;
        };
        if !self.leads() || !self.config.gives_way {
            return Way::Keep;
        }
        let (since, is_ordered) = (evacuation.since(&self.value), evacuation.is_ordered(own));
        if since.is_none() && !is_ordered {
            return Way::Keep;
        }
        // An order moves the lead from one evacuated data centre to another, too.
        let anybody = since.is_some() && is_ordered;
        let outside =
            |entry: &Entry| evacuation.is_outsider(entry) || (anybody && entry.lease != 0);
        match &self.view {
            View::Prefix(view) => {
                let mut queue = view.is_synced().then(|| view.roster().in_order());
                let outsider = queue
                    .as_mut()
                    .and_then(|queue| queue.find(|entry| !own.is(entry) && outside(entry)));
                match outsider {
                    Some(eldest) if eldest.create_revision > own.create_revision => Way::Give,
                    _ => Way::Keep,
                }
            }
            // This view does not show the keys behind its own.
            View::Predecessor(_) => match (self.place(own), &self.phase) {
                (_, Phase::Leading { .. }) | (Place::First, _) => Way::Look,
                // Nobody loses anything by that: it does not lead. Once for each mark.
                (Place::Behind(_), _) if since > Some(own.create_revision) => Way::Give,
                _ => Way::Keep,
            },
        }
    }

    /// Returns its phase.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// How many of the eldest lead.
    pub fn capacity(&self) -> usize {
        self.config
            .permit
            .as_ref()
            .map_or(1, |permit| permit.capacity)
    }

    /// Its key under that lease.
    pub fn key(&self, lease: i64) -> Arc<[u8]> {
        let prefix = &self.prefix;
        match (&self.role, &self.config.permit, self.config.shared) {
            (Role::Member(_), ..) => member_key(prefix, lease),
            (Role::Owner { partition, .. }, ..) => partition_key(prefix, *partition),
            (_, Some(permit), _) => numbered_key_of(prefix, lease, permit.number),
            (_, None, Some(number)) => shared_key_of(prefix, lease, number),
            (_, None, None) => key_of(prefix, lease),
        }
    }

    /// Returns true if its turn to lead may come.
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Candidate)
    }

    /// Returns true if it is a member that may own partitions.
    pub fn is_member(&self) -> bool {
        matches!(self.role, Role::Member(_))
    }

    /// Returns true if it owns one partition, whose key its member looks after.
    pub fn is_owner(&self) -> bool {
        matches!(self.role, Role::Owner { .. })
    }

    /// If it stands for one partition, its member and the partition.
    pub(crate) fn owner_of(&self) -> Option<(SlotId, u32)> {
        match self.role {
            Role::Owner { member, partition } => Some((member, partition)),
            _ => None,
        }
    }

    /// A member's side of it.
    pub(crate) fn member(&self) -> Option<&Membership> {
        match &self.role {
            Role::Member(member) => Some(member),
            _ => None,
        }
    }

    /// The same, to tell it what happened.
    pub(crate) fn member_mut(&mut self) -> Option<&mut Membership> {
        match &mut self.role {
            Role::Member(member) => Some(member),
            _ => None,
        }
    }

    /// A member's: the partitions of every take under way.
    pub fn takes(&self) -> impl Iterator<Item = (&RequestId, &Vec<u32>)> {
        self.member().into_iter().flat_map(Membership::takes)
    }

    /// A member's: the keys of the partitions that it is taking.
    pub(crate) fn taking(&self) -> impl Iterator<Item = Arc<[u8]>> {
        let partitions = self.takes().flat_map(|(_, partitions)| partitions);
        partitions.map(|partition| partition_key(&self.prefix, *partition))
    }

    /// Returns true if it needs a watch for its view.
    pub fn watches(&self) -> bool {
        self.looks() && !self.is_owner()
    }

    /// Its place, as far as its view can tell.
    pub fn place(&self, own: &Own) -> Place {
        self.view.place(own, self.capacity())
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
        self.phase.own()
    }

    /// Returns true if this candidate uses its view: it is not leaving.
    pub fn looks(&self) -> bool {
        !matches!(self.phase, Phase::Leaving { .. })
    }

    /// Returns true if a key at its path may be its own, or become so. No key is while a term ends whose key went before its
    /// work, or while the candidate is held back: no join of it follows that would take such a key for its own.
    pub fn may_stand(&self) -> bool {
        match self.phase {
            Phase::Leaving { .. } | Phase::Ending { own: None, .. } => false,
            Phase::Joining { request: None, .. } => !self.held,
            _ => true,
        }
    }

    fn announcements(&mut self) -> &mut Announcements {
        self.announcements.get_or_insert_default()
    }

    /// The value is announced from now on. Whether a key stands that it is to be written into, and the call waits for that.
    pub(crate) fn announce(&mut self, value: Arc<[u8]>, ticket: u64) -> bool {
        self.value = value;
        let stands = self.own().is_some();
        if stands {
            self.announcements().wait(ticket);
        }
        stands
    }

    /// The key stands with another value than a caller was told.
    pub(crate) fn owe_announcement(&mut self) {
        self.announcements().owe();
    }

    /// Returns true if a value that is owed waits for its next attempt.
    pub(crate) fn owes_announcement(&mut self) -> bool {
        self.announcements().is_due()
    }

    /// The next write begins: the calls that it answers, and what is written, if the key stands. `None` while another is
    /// under way, after which it follows.
    pub(crate) fn begin_write(&mut self) -> Option<(Vec<u64>, Option<Write>)> {
        let tickets = self.announcements().begin()?;
        let Some(own) = self.own().cloned() else {
            return Some((tickets, None));
        };
        self.announcements().sent();
        let write = Write {
            own,
            mod_revision: self.announced_at,
            value: Arc::clone(self.value()),
        };
        Some((tickets, Some(write)))
    }

    /// Returns true if the answer to a write is awaited.
    pub(crate) fn is_writing(&self) -> bool {
        let announcements = self.announcements.as_ref();
        announcements.is_some_and(|announcements| announcements.are_under_way())
    }

    /// The write was answered, whatever became of it.
    pub(crate) fn write_answered(&mut self) {
        self.announcements().answered();
    }

    /// The write failed. When another one follows, if its value is owed.
    pub(crate) fn write_failed(&mut self, now: Time, class: Class, pace: Pace) -> Option<Time> {
        let failures = self.announcements().failed()?;
        Some(now.after(pace.pause(failures, class)))
    }

    /// The key has the value since that revision.
    pub(crate) fn written(&mut self, at: i64) {
        self.announced_at = at;
        self.announcements().written();
    }

    /// The key stands otherwise than was expected. If it is still ours, an earlier write, of which no answer is known, came
    /// first, and the next one answers these calls; otherwise they are returned.
    pub(crate) fn overtaken(
        &mut self,
        entry: Option<&Entry>,
        tickets: Vec<u64>,
    ) -> Option<Vec<u64>> {
        match (self.own(), entry) {
            (Some(own), Some(entry)) if own.is(entry) && entry.lease == own.lease => {
                self.announced_at = entry.mod_revision;
                self.announcements().repeat(tickets);
                None
            }
            _ => Some(tickets),
        }
    }

    /// Returns true if another write follows the one that was answered.
    pub(crate) fn write_follows(&mut self) -> bool {
        self.announcements().follows()
    }

    /// The candidate is forgotten: calls of `proclaim` that nothing will answer.
    pub(crate) fn unanswered(self) -> Vec<u64> {
        let announcements = self.announcements;
        announcements.map_or_else(Vec::new, |announcements| announcements.unanswered())
    }

    /// The only place where the phase, and with it leadership, changes.
    fn enter(&mut self, next: Phase) -> Turn {
        debug_assert!(
            self.phase.may_become(&next),
            "a candidate never goes from {:?} to {next:?}",
            self.phase
        );
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
    pub fn news(&mut self) -> Option<Status> {
        let status = match &self.phase {
            Phase::Joining { .. } => Status::Joining,
            Phase::Waiting { .. } if matches!(self.role, Role::Present) => Status::Present,
            Phase::Waiting { .. } if !self.leads() => Status::waiting(0),
            Phase::Waiting { own } => match self.place(own) {
                Place::Behind(ahead) => Status::waiting(ahead),
                Place::First => Status::waiting(0),
                // Not known: keep to what was said.
                _ => match self.status {
                    Some(old @ Status::Waiting { .. }) => old,
                    _ => Status::Joining,
                },
            },
            Phase::Leading { own, .. } => Status::Leading {
                fencing_token: own.create_revision,
            },
            Phase::Ending { reason, .. } => Status::Ending { reason: *reason },
            Phase::Leaving { reason } => Status::Ended { reason: *reason },
        };
        if self.status == Some(status) {
            return None;
        }
        self.status = Some(status);
        Some(status)
    }
}

/// A fresh view of the kind that `watch_scope` starts with.
fn new_view(prefix: &Arc<[u8]>, watch_scope: WatchScope) -> View {
    match watch_scope {
        WatchScope::Predecessor => View::Predecessor(PredecessorView::new(Arc::clone(prefix))),
        WatchScope::Auto | WatchScope::Everyone => {
            View::Prefix(PrefixView::new(Arc::clone(prefix)))
        }
    }
}
