//! Holds the state of one candidate, and changes its phase in exactly one function.

use std::sync::Arc;

use super::announcements::Announcements;
use super::config::{CandidateConfig, WatchScope};
use super::keys::{key_of, numbered_key_of, shared_key_of};
use super::phase::{Afterwards, Phase};
use crate::action::{RequestError, Status};
use crate::ids::{RequestId, SlotId, TermId};
use crate::partitions::{Membership, member_key, partition_key};
use crate::queue::{Fate, Own, Place, PredecessorView, PrefixView, View};
use crate::reason::EndReason;
use crate::time::Time;

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

/// One candidate of the session. Its rules are the methods of its `Seat`.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent facts, each said in its own words"
)]
#[derive(Debug, Clone)]
pub struct Candidacy {
    pub(super) prefix: Arc<[u8]>,
    pub(super) value: Arc<[u8]>,
    /// The value that it announces instead, because it does without partitions.
    pub(super) aside: Option<Arc<[u8]>>,
    pub(super) config: CandidateConfig,
    /// Rejoins after a lost term; false once the candidate was dropped or left.
    pub(super) wanted: bool,
    /// True while the candidate is held back from joining: its node is unhealthy, or its work goes on.
    pub(super) held: bool,
    /// True once its key has been in etcd; from then on everything is retried.
    pub(super) registered: bool,
    /// Every key up to this revision is known, and leaves a permit free (with `at_once`), or belongs to no candidate of an
    /// election (of a lock). 0: no key is known.
    pub(super) free_at: i64,
    /// A join was lost on the way: a key may stand, or come to stand, that we do not know of.
    pub(super) uncertain: bool,
    /// The newest revision that was known before the first join of which no answer is known. A key created up to then
    /// is not from these joins.
    pub(super) joins_after: i64,
    /// The key without a lease that was last reported to block the election.
    pub(super) blocker: Option<Arc<[u8]>>,
    /// The key that went with the last lease; if it stands all the same, somebody wrote over it unseen.
    pub(super) former: Option<Own>,
    pub(super) failures: u32,
    /// The mod revision of its key, as far as known.
    pub(super) announced_at: i64,
    /// Made for the first one: of thousands of elections few have any.
    pub(super) announcements: Option<Box<Announcements>>,
    /// When its key last came to stand, and how often in a row one was lost soon after that.
    pub(super) stood_at: Time,
    pub(super) short_stays: u32,
    /// The candidate does not give way before this time.
    pub(super) stays_until: Time,
    pub(super) error: Option<RequestError>,
    /// Its view of the queue.
    pub(crate) view: View,
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) status: Option<Status>,
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

    /// Keeps the candidate from giving way until then.
    pub(super) fn stay_until(&mut self, until: Time) {
        self.stays_until = self.stays_until.max(until);
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

    /// Its place, as far as its view can tell.
    pub(super) fn place(&self, own: &Own) -> Place {
        self.view.place(own, self.capacity())
    }

    /// The key that blocks the election, if that is news.
    pub(super) fn blocked(&mut self) -> Option<Arc<[u8]>> {
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

    pub(super) fn announcements(&mut self) -> &mut Announcements {
        self.announcements.get_or_insert_default()
    }

    /// Returns true if the answer to a write is awaited.
    pub(crate) fn is_writing(&self) -> bool {
        let announcements = self.announcements.as_ref();
        announcements.is_some_and(|announcements| announcements.are_under_way())
    }

    /// The candidate is forgotten: calls of `proclaim` that nothing will answer.
    pub(crate) fn unanswered(self) -> Vec<u64> {
        let announcements = self.announcements;
        announcements.map_or_else(Vec::new, |announcements| announcements.unanswered())
    }

    /// The only place where the phase, and with it leadership, changes.
    pub(super) fn enter(&mut self, next: Phase) {
        debug_assert!(
            self.phase.may_become(&next),
            "a candidate never goes from {:?} to {next:?}",
            self.phase
        );
        self.phase = next;
    }

    /// No attempt to join before this.
    pub(super) fn join_at(&mut self, not_before: Time) {
        self.enter(Phase::Joining {
            request: None,
            not_before,
        });
    }

    /// Sets the key of the term that is ending, if any is left of it.
    pub(super) fn end_with(&mut self, left: Option<Own>) {
        let mut phase = self.phase.clone();
        if let Phase::Ending { own, .. } = &mut phase {
            *own = left;
            self.enter(phase);
        }
    }

    /// After the term that is ending, the candidate leaves.
    pub(super) fn end_by(&mut self, reason: EndReason) {
        let mut phase = self.phase.clone();
        if let Phase::Ending { next, .. } = &mut phase {
            *next = Afterwards::Leave(reason);
            self.enter(phase);
        }
    }

    /// Returns true if it does not join again until it is permitted to.
    pub(crate) fn is_held_back(&self) -> bool {
        self.held
    }

    /// Returns true if it leads.
    pub(crate) fn is_leading(&self) -> bool {
        matches!(self.phase, Phase::Leading { .. })
    }

    /// Returns until when the work of a term that is over may go on, and true if its key exists.
    pub(crate) fn ending(&self) -> Option<(Time, bool)> {
        match &self.phase {
            Phase::Ending { cutoff, own, .. } => Some((*cutoff, own.is_some())),
            _ => None,
        }
    }

    /// Why it leaves, if it does.
    pub(crate) fn leaving(&self) -> Option<EndReason> {
        match self.phase {
            Phase::Leaving { reason } => Some(reason),
            _ => None,
        }
    }

    /// Returns true if it still holds the key of that term, false if it holds the key of another one, `None` without a key.
    pub(crate) fn holds_key_of(&self, term: TermId) -> Option<bool> {
        match self.phase {
            Phase::Leading { term: t, .. }
            | Phase::Ending {
                own: Some(_),
                term: t,
                ..
            } => Some(t == term),
            _ => None,
        }
    }

    /// Returns true if it still counts as a candidate: it has not left, and is not about to. A member does: the work of its
    /// partitions goes on after it has left.
    pub(crate) fn stands(&self) -> bool {
        let stands = self.looks() && (self.wanted || self.own().is_some());
        stands || self.is_member()
    }

    /// Returns true if the lease of a session that closes must be kept for it.
    pub(crate) fn needs_lease(&self) -> bool {
        match &self.phase {
            // The former key went with its lease, unless somebody wrote over it unseen.
            Phase::Ending { own, .. } => {
                own.is_some() || (self.former.is_some() && !self.is_owner())
            }
            // A member waits for the work of its partitions, whose keys count by themselves.
            Phase::Leaving { .. } if self.is_member() => false,
            _ => true,
        }
    }

    /// Ends the candidacy. Returns the error for its caller, and a key that went with the lease unless somebody wrote over it
    /// unseen: then it would block the others for ever.
    pub(crate) fn finish(&mut self) -> (Option<RequestError>, Option<Own>) {
        let owner = self.is_owner();
        let former = self.former.take().filter(|_| !owner);
        (self.error.take(), former)
    }

    /// Returns true if its view shows everything up to now, and that key is not there.
    pub(crate) fn shows_gone(&self, own: &Own) -> bool {
        let View::Prefix(view) = &self.view else {
            return false;
        };
        let roster = view.roster();
        let is_judge = view.is_synced() && roster.revision() >= own.create_revision;
        is_judge && own.read(roster.get(&own.key)) != Fate::Ours
    }

    /// Forgets what was read so far: another store answers now.
    pub(crate) fn store_changed(&mut self) {
        self.view = new_view(&self.prefix, self.config.watch_scope);
        self.free_at = 0;
        if let Role::Member(member) = &mut self.role {
            member.store_changed();
        }
        debug_assert!(
            self.free_at == 0 && !self.view.is_current(),
            "what was known of a former store is given up"
        );
    }

    /// Where the candidate stands, if that is news.
    pub(super) fn news(&mut self) -> Option<Status> {
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
pub(super) fn new_view(prefix: &Arc<[u8]>, watch_scope: WatchScope) -> View {
    match watch_scope {
        WatchScope::Predecessor => View::Predecessor(PredecessorView::new(Arc::clone(prefix))),
        WatchScope::Auto | WatchScope::Everyone => {
            View::Prefix(PrefixView::new(Arc::clone(prefix)))
        }
    }
}
