//! Owns partitions on behalf of a program beside the node. The program asks the node before each act.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eldest::internal::process::Process;
use eldest::internal::{self, Inside};
use eldest::{CancellationToken, Error, Partition, Partitions, Result, Shutdown, Term};
use futures::FutureExt;

use super::health::{Fitness, Health};
use super::programs::{Programs, Promise};
use super::sidecar::{Leading, until_orphaned};

/// The terms of the partitions that are kept for callers.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptPartitions(Arc<Mutex<BTreeMap<u32, Term>>>);

impl KeptPartitions {
    /// Keeps the partition from now on, until the returned value is dropped or [`KeptPartitions::end`] is called. `over` is
    /// cancelled before that call, so no term begins after it.
    fn begin(&self, number: u32, term: Term, over: &CancellationToken) -> KeptPartition {
        let token = term.fencing_token();
        let mut kept = self.lock();
        if !over.is_cancelled() {
            kept.insert(number, term);
        }
        drop(kept);
        KeptPartition(self.clone(), number, token)
    }

    /// Ends all kept terms: from now on, no caller is promised any time.
    fn end(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Term>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kept partition.
#[derive(Debug)]
struct KeptPartition(KeptPartitions, u32, i64);

impl Drop for KeptPartition {
    fn drop(&mut self) {
        let Self(kept, number, token) = self;
        let mut kept = kept.lock();
        if kept
            .get(number)
            .is_some_and(|term| term.fencing_token() == *token)
        {
            kept.remove(number);
        }
    }
}

/// A membership on behalf of callers: the terms kept for them, while these programs live and are fit.
#[derive(Debug, Clone)]
pub(super) struct Owning {
    kept: KeptPartitions,
    programs: Programs,
    pub(super) fitness: Arc<Fitness>,
}

impl Owning {
    pub(super) fn begin<S, K>(
        partitions: &Partitions,
        health: Health,
        shutdown: S,
        programs: Programs,
    ) -> (Self, Leading)
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
    {
        let env = Inside::from(partitions).env();
        let owning = Self {
            kept: KeptPartitions::default(),
            fitness: Fitness::new(env, health),
            programs: programs.clone(),
        };
        let (owns, of) = (owning.clone(), partitions.clone());
        let member = move |shutdown: CancellationToken, at_once: CancellationToken| {
            let (owns, of) = (owns.clone(), of.clone());
            async move { owns.share(&of, &shutdown, &at_once).await }.boxed()
        };
        let leading = Leading::while_programs_live(env, shutdown, programs, member);
        (owning, leading)
    }

    /// Returns for how long callers may act after each answer. A quarter of the grace period is left for the moment between the
    /// decision that a term ends, from which its key is kept for one grace period, and the end that callers can see.
    pub(super) fn may_act_for(session: Inside<'_>) -> Duration {
        session.grace() * 3 / 4
    }

    /// Returns the numbers and fencing tokens of the partitions in which that caller may act, from now on.
    pub(super) fn promised(
        &self,
        session: Inside<'_>,
        caller: Option<&Process>,
    ) -> Vec<(u32, i64)> {
        if self.programs.promise(session, caller) != Promise::Given {
            return Vec::new();
        }
        let grace = session.grace();
        let kept = self.kept.lock();
        // Validity is read last: no other step lies between the clock and the answer.
        let may_act = |term: &Term| {
            let ends = term.lost_reason().is_some();
            !ends && term.valid_until().time_left() >= grace && term.is_valid()
        };
        { kept.iter() }
            .filter(|(_, term)| may_act(term))
            .map(|(number, term)| (*number, term.fencing_token()))
            .collect()
    }

    /// Shares the partitions until `shutdown`, or until every program that bound itself has ended, and returns `true` then.
    async fn share(
        &self,
        partitions: &Partitions,
        shutdown: &CancellationToken,
        at_once: &CancellationToken,
    ) -> Result<bool> {
        let orphaned = at_once.child_token();
        let (owning, of, over) = (self.clone(), partitions.clone(), orphaned.clone());
        let at_once = at_once.clone();
        let work = move |partition: Partition| {
            let kept = owning.clone().keep(of.clone(), partition, over.clone());
            at_once
                .clone()
                .run_until_cancelled_owned(kept)
                .map(|_| Ok::<_, Error>(()))
        };
        let env = Inside::from(partitions).env();
        let mut runner = partitions.runner();
        if let Some((every, limit)) = self.fitness.times() {
            let fitness = Arc::clone(&self.fitness);
            runner = runner.health_check(every, limit, move || Arc::clone(&fitness).ask());
        }
        let run = internal::spawn(env, shutdown.clone(), |token| runner.run(token, work));
        let end = || {
            orphaned.cancel();
            self.kept.end();
        };
        until_orphaned(run, self.programs.end(end)).await
    }

    /// Keeps the partition until no caller may act any longer.
    async fn keep(self, of: Partitions, partition: Partition, orphaned: CancellationToken) {
        let term = partition.term();
        let _kept = self.kept.begin(partition.number(), term.clone(), &orphaned);
        // This work only waits for the time at which it would be dropped.
        internal::interruptible(&term);
        self.programs
            .may_act_no_longer(Inside::from(&of), &term, &orphaned)
            .await;
    }
}
