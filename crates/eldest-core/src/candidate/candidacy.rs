//! Holds the state of one candidate, and changes its phase in exactly one function.

use std::sync::Arc;

use super::announcements::Announcements;
use super::claim::Claim;
use super::config::{CandidateConfig, WatchScope};
use super::keys::{key_of, numbered_key_of, shared_key_of};
use super::phase::{Afterwards, Phase};
use crate::action::{RequestError, Status};
use crate::ids::{RequestId, SlotId};
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
    /// To be listed and to own partitions; it never leads.
    Member(Box<Membership>),
    /// To be listed as a member of a group; it never leads.
    Present,
    /// To own a partition for its member. It leads from the start, once, and watches no key.
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
    /// The announcement that replaces the value while the member takes no partitions.
    pub(super) aside: Option<Arc<[u8]>>,
    pub(super) config: CandidateConfig,
    /// True if the candidate rejoins after a lost term; false once it was dropped or left.
    pub(super) wanted: bool,
    /// True while the candidate is held back from joining: its node is unhealthy, or its work continues.
    pub(super) held: bool,
    /// True once its key has been in etcd; from then on every failure is retried.
    pub(super) registered: bool,
    /// All keys up to this revision are known. They leave a permit free (with `at_once`), or none of them is an
    /// election's (for a lock). 0: no key is known.
    pub(super) free_at: i64,
    /// True if the answer to a join was lost: a key may exist, or still appear, that we do not know.
    pub(super) uncertain: bool,
    /// The newest revision known before the first unanswered join. A key created up to then is not from these joins.
    pub(super) joins_after: i64,
    /// The key without a lease that was last reported to block the election.
    pub(super) blocker: Option<Arc<[u8]>>,
    /// The key that went with the last lease; if it still exists, another program overwrote it unseen.
    pub(super) former: Option<Own>,
    pub(super) failures: u32,
    /// The mod revision of the candidate's key, as far as known.
    pub(super) announced_at: i64,
    /// Made for the first announcement, because few of thousands of elections have one.
    pub(super) announcements: Option<Box<Announcements>>,
    /// The time at which the candidate's key was last created, and how often in a row a key was lost soon after that.
    pub(super) stood_at: Time,
    pub(super) short_stays: u32,
    /// The candidate does not give way before this time.
    pub(super) stays_until: Time,
    /// The time until which a leader that must give way waits for its successor to be warm; `None`: it need not give way.
    pub(super) waits_until: Option<Time>,
    /// The claim to lead with the candidate's version, if its election requires versions.
    pub(super) claim: Claim,
    pub(super) error: Option<RequestError>,
    /// The candidate's view of the queue.
    pub(crate) view: View,
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) status: Option<Status>,
}

impl Candidacy {
    /// Makes a candidate that has not joined yet.
    pub fn new(prefix: Arc<[u8]>, value: Arc<[u8]>, config: CandidateConfig) -> Self {
        let role = match &config.partitions {
            Some(partitions) => Role::Member(Box::new(Membership::new(
                partitions.clone(),
                config.warm_within,
            ))),
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
            waits_until: None,
            claim: Claim::default(),
            error: None,
            phase: Phase::Joining {
                request: None,
                not_before: Time::ZERO,
            },
            status: None,
        }
    }

    /// Makes the owner of a partition, whose key exists.
    pub fn owner(prefix: Arc<[u8]>, value: Arc<[u8]>, member: SlotId, partition: u32) -> Self {
        let role = Role::Owner { member, partition };
        Self {
            role,
            wanted: false,
            registered: true,
            ..Self::new(prefix, value, CandidateConfig::default())
        }
    }

    /// Returns the prefix of the candidate's key and of its queue.
    pub(crate) fn prefix(&self) -> &Arc<[u8]> {
        &self.prefix
    }

    /// Returns the value that the candidate announces.
    pub(crate) fn value(&self) -> &Arc<[u8]> {
        self.aside.as_ref().unwrap_or(&self.value)
    }

    /// Returns true if an evacuation of its data centre concerns the candidate.
    pub(crate) fn is_movable(&self) -> bool {
        self.is_member() || (self.leads() && self.config.gives_way)
    }

    /// Returns true if the candidate does not lead once a newer version has led.
    pub(crate) fn requires_versions(&self) -> bool {
        self.leads() && self.config.required.is_some()
    }

    /// Keeps the candidate from giving way until `until`.
    pub(super) fn stay_until(&mut self, until: Time) {
        self.stays_until = self.stays_until.max(until);
    }

    /// Returns the candidate's phase.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Returns how many of the eldest candidates lead.
    pub fn capacity(&self) -> usize {
        self.config
            .permit
            .as_ref()
            .map_or(1, |permit| permit.capacity)
    }

    /// Returns the candidate's key under that lease.
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

    /// Returns true if the candidate can become leader.
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Candidate)
    }

    /// Returns true if the candidate is a member of a group or of partitions whose members watch each other for signs of
    /// life. A member of a group that watches its own key alone is none.
    pub(crate) fn has_neighbours(&self) -> bool {
        match self.role {
            Role::Present => self.config.watch_scope != WatchScope::Predecessor,
            Role::Member(_) => true,
            Role::Candidate | Role::Owner { .. } => false,
        }
    }

    /// Returns true if the candidate counts only while the session reads cleanly: it can become leader or own
    /// partitions, or has neighbours.
    pub(crate) fn needs_clean_reads(&self) -> bool {
        !matches!(self.role, Role::Present) || self.has_neighbours()
    }

    /// Returns true if the candidate is a member that may own partitions.
    pub fn is_member(&self) -> bool {
        matches!(self.role, Role::Member(_))
    }

    /// Returns the member and the partition, for the owner of one partition, whose key its member manages.
    pub(crate) fn owner_of(&self) -> Option<(SlotId, u32)> {
        match self.role {
            Role::Owner { member, partition } => Some((member, partition)),
            _ => None,
        }
    }

    /// Returns the membership of a member.
    pub(crate) fn member(&self) -> Option<&Membership> {
        match &self.role {
            Role::Member(member) => Some(member),
            _ => None,
        }
    }

    /// Returns the membership of a member, to change it.
    pub(crate) fn member_mut(&mut self) -> Option<&mut Membership> {
        match &mut self.role {
            Role::Member(member) => Some(member),
            _ => None,
        }
    }

    /// Returns the partitions of every take in flight, for a member.
    pub fn takes(&self) -> impl Iterator<Item = (&RequestId, &Vec<u32>)> {
        self.member().into_iter().flat_map(Membership::takes)
    }

    /// Returns the keys of the partitions that a member is taking.
    pub(crate) fn taking(&self) -> impl Iterator<Item = Arc<[u8]>> {
        let partitions = self.takes().flat_map(|(_, partitions)| partitions);
        partitions.map(|partition| partition_key(&self.prefix, *partition))
    }

    /// Returns the candidate's place, as far as its view shows it.
    pub(super) fn place(&self, own: &Own) -> Place {
        self.view.place(own, self.capacity())
    }

    /// Returns the key that blocks the election, if it was not reported before.
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

    /// Returns our key, while we hold one and may still act on it.
    pub fn own(&self) -> Option<&Own> {
        self.phase.own()
    }

    /// Returns true if a key at its path may be its own, or become so. No such key exists while a term ends whose key
    /// went before its work, or while the candidate is held back: no join follows that could adopt such a key.
    pub fn may_have_key(&self) -> bool {
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

    /// Returns the calls of `proclaim` that no write will answer, because the candidate is forgotten.
    pub(crate) fn unanswered(self) -> Vec<u64> {
        let announcements = self.announcements;
        announcements.map_or_else(Vec::new, |announcements| announcements.unanswered())
    }

    /// Changes the phase, and with it leadership, as the only function that does.
    pub(super) fn enter(&mut self, next: Phase) {
        debug_assert!(
            self.phase.may_become(&next),
            "a candidate never goes from {:?} to {next:?}",
            self.phase
        );
        self.phase = next;
    }

    /// Prevents attempts to join before `not_before`.
    pub(super) fn join_at(&mut self, not_before: Time) {
        self.enter(Phase::Joining {
            request: None,
            not_before,
        });
    }

    /// Sets the key of the ending term, or that it has none left.
    pub(super) fn end_with(&mut self, left: Option<Own>) {
        let mut phase = self.phase.clone();
        if let Phase::Ending { own, .. } = &mut phase {
            *own = left;
            self.enter(phase);
        }
    }

    /// Makes the candidate leave after the ending term.
    pub(super) fn end_by(&mut self, reason: EndReason) {
        let mut phase = self.phase.clone();
        if let Phase::Ending { next, .. } = &mut phase {
            *next = Afterwards::Leave(reason);
            self.enter(phase);
        }
    }

    /// Returns true if the candidate leads.
    pub(crate) fn is_leading(&self) -> bool {
        matches!(self.phase, Phase::Leading { .. })
    }

    /// Returns until when the work of an ended term may continue, and true if its key exists.
    pub(crate) fn ending(&self) -> Option<(Time, bool)> {
        match &self.phase {
            Phase::Ending { cutoff, own, .. } => Some((*cutoff, own.is_some())),
            _ => None,
        }
    }

    /// Returns why the candidate leaves, if it does. Until then it uses its view.
    pub(crate) fn leaving(&self) -> Option<EndReason> {
        match self.phase {
            Phase::Leaving { reason } => Some(reason),
            _ => None,
        }
    }

    /// Returns true if the candidate still counts: it has not left, and is not about to. A member counts longer: the
    /// work of its partitions continues after it has left.
    pub(crate) fn is_candidate(&self) -> bool {
        let is_candidate = self.leaving().is_none() && (self.wanted || self.own().is_some());
        is_candidate || self.is_member()
    }

    /// Returns true if a closing session must keep its lease for this candidate.
    pub(crate) fn needs_lease(&self) -> bool {
        match &self.phase {
            // The former key went with its lease, unless another program overwrote it unseen.
            Phase::Ending { own, .. } => {
                own.is_some() || (self.former.is_some() && self.owner_of().is_none())
            }
            // A member waits for the work of its partitions, whose keys count separately.
            Phase::Leaving { .. } if self.is_member() => false,
            _ => true,
        }
    }

    /// Ends the candidacy. Returns the error for its caller, and a key that went with the lease unless another program
    /// overwrote it unseen: such a key would block the others for ever.
    pub(crate) fn finish(&mut self) -> (Option<RequestError>, Option<Own>) {
        let owner = self.owner_of();
        let former = self.former.take().filter(|_| owner.is_none());
        (self.error.take(), former)
    }

    /// Returns true if the candidate's view shows everything up to now, and the key does not exist.
    pub(crate) fn shows_gone(&self, own: &Own) -> bool {
        let View::Prefix(view) = &self.view else {
            return false;
        };
        let roster = view.roster();
        let is_judge = view.is_synced() && roster.revision() >= own.create_revision;
        is_judge && own.read(roster.get(&own.key)) != Fate::Ours
    }

    /// Forgets the former reads, because another store answers now.
    pub(crate) fn store_changed(&mut self) {
        self.view = new_view(&self.prefix, self.config.watch_scope);
        self.free_at = 0;
        self.claim = Claim::default();
        if let Role::Member(member) = &mut self.role {
            member.store_changed();
        }
        debug_assert!(
            self.free_at == 0 && !self.view.is_current(),
            "what was known of a former store is given up"
        );
    }

    /// Returns the candidate's status, if it changed. `may_lead`: the session's clean reads, or its lease, let it lead.
    pub(super) fn news(&mut self, may_lead: bool) -> Option<Status> {
        let is_present = matches!(self.role, Role::Present);
        let status = match &self.phase {
            Phase::Joining { .. } => Status::Joining,
            // The session may have been condemned.
            Phase::Waiting { .. } if is_present && self.has_neighbours() && !may_lead => {
                Status::Joining
            }
            Phase::Waiting { .. } if matches!(self.role, Role::Present) => Status::Present,
            Phase::Waiting { .. } if !self.leads() => Status::waiting(0),
            Phase::Waiting { own } => match self.place(own) {
                Place::Behind(ahead) => Status::waiting(ahead),
                Place::First => Status::waiting(0),
                // The place is unknown: keep the last reported status.
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

/// Makes a new view of the kind with which `watch_scope` starts.
pub(super) fn new_view(prefix: &Arc<[u8]>, watch_scope: WatchScope) -> View {
    match watch_scope {
        WatchScope::Predecessor => View::Predecessor(PredecessorView::new(Arc::clone(prefix))),
        WatchScope::Auto | WatchScope::Everyone => {
            View::Prefix(PrefixView::new(Arc::clone(prefix)))
        }
    }
}
