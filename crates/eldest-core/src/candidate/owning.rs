//! Decides what a member does about the partitions that its view shows.

use std::collections::{BTreeMap, BTreeSet};

use super::Role;
use super::phase::Phase;
use super::seat::Seat;
use crate::ids::SlotId;
use crate::partitions::{Move, Wants, member_key, partition_key};
use crate::queue::{Fate, Own, View};
use crate::timers::Timer;

impl Seat<'_> {
    /// Returns what the member must do, once its view shows everything.
    pub(crate) fn wants(&self) -> Option<Wants> {
        let (Role::Member(member), Phase::Waiting { own }, View::Prefix(view)) =
            (&self.me.role, &self.me.phase, &self.me.view)
        else {
            return None;
        };
        let (roster, read) = (view.roster(), self.evacuation.homes().shares);
        let shown = |key: &[u8], created| self.removals.shown(key, created, roster.revision());
        let complete = view.is_synced();
        complete.then(|| member.wants(&self.me.prefix, own, roster, read, shown))
    }

    /// Returns the terms of partitions that the member gives up now, and arranges when it gives up those whose next owners
    /// are not ready.
    pub(crate) fn give_up_now(&mut self, moves: &[Move]) -> Vec<SlotId> {
        let (prefix, read) = (&self.me.prefix, self.evacuation.homes().ready);
        let (Role::Member(member), View::Prefix(view)) = (&mut self.me.role, &self.me.view) else {
            return Vec::new();
        };
        let next: BTreeSet<i64> = moves.iter().map(|of| of.to).collect();
        let announced = next.into_iter().filter_map(|lease| {
            let entry = view.roster().get(&member_key(prefix, lease))?;
            Some((lease, read(&entry.value)?))
        });
        let ready: BTreeMap<_, _> = announced.collect();
        let is_cold = |of: &Move| {
            let ready = ready.get(&of.to);
            ready.is_some_and(|ready| !ready.contains(&of.partition))
        };
        let (ending, next) = member.give_up_now(moves, self.now, is_cold);
        if let Some(next) = next {
            self.out.set_timer(next, Timer::Rebalance(self.slot));
        }
        ending
    }

    /// Applies the answer to a take, at `revision`, for one partition. Returns its key if it was `taken` under `lease`;
    /// `Err` if the member no longer wants it.
    pub(crate) fn took(
        &mut self,
        partition: u32,
        (taken, lease): (bool, i64),
        revision: i64,
    ) -> Option<Result<Own, Own>> {
        let own = Own {
            key: partition_key(&self.me.prefix, partition),
            create_revision: revision,
            lease,
        };
        let stands = matches!(self.me.phase, Phase::Waiting { .. });
        let may_lead = self.lease.deadlines().leads_until().is_some();
        let (Role::Member(member), View::Prefix(view)) = (&mut self.me.role, &self.me.view) else {
            return None;
        };
        let seen = view.roster().revision();
        if !taken {
            member.refuse(partition, revision, seen);
            return None;
        }
        // The events of its end may have arrived before this answer.
        let over = view.is_synced()
            && seen >= revision
            && own.read(view.roster().get(&own.key)) != Fate::Ours;
        if stands && may_lead && !over {
            Some(Ok(own))
        } else {
            Some(Err(own))
        }
    }

    /// Gives up the member's key, until the work of its partitions has ended.
    pub(crate) fn step_aside(&mut self) {
        if matches!(self.me.phase, Phase::Waiting { .. }) {
            self.me.held = true;
            self.step_back();
            self.report_status();
        }
    }

    /// Returns true if the candidate stepped aside, and will rejoin.
    pub(crate) fn is_aside(&self) -> bool {
        self.me.held && matches!(self.me.phase, Phase::Joining { .. })
    }

    /// Lets a member that stepped aside rejoin, because the work for which it stepped aside has ended.
    pub(crate) fn come_back(&mut self) {
        if self.me.held {
            self.me.held = false;
            self.queue_join();
        }
    }
}
