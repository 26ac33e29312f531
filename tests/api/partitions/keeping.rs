//! Tests members that return within a set time: they own their former partitions again, and no others move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eldest::{
    Announcement, ErrorKind, PartitionMap, PartitionRunner, Partitions, Session, SessionState, Term,
};
use eldest_testing::{Etcd, crash, eventually};
use etcd_client::Client;

use super::stalls::checked;
use super::{PREFIX, Running, until_lost};
use crate::common::{
    Result, SOON, Store, WHILE, in_memory, keys, leases, options, short, soon, stays,
};

pub(super) const COUNT: u32 = 6;
/// Longer than [`SOON`], so that nothing that happens soon is the end of this time.
pub(super) const KEEP: Duration = Duration::from_secs(40);

/// A running member that keeps its share.
pub(super) struct Keeper {
    pub(super) session: Session,
    pub(super) partitions: Partitions,
    pub(super) running: Running,
}

impl Keeper {
    pub(super) async fn start(etcd: &impl Store, identity: &str) -> Result<Self> {
        let session = etcd.session(short(identity)).await?;
        let partitions = session.partitions("billing", COUNT)?.keep_share_for(KEEP);
        Ok(Self {
            running: Running::start(&partitions, until_lost),
            session,
            partitions,
        })
    }

    /// Waits until the record lists what the member owns.
    pub(super) async fn recorded(&mut self, client: &mut Client) -> Result {
        recorded(client, self.session.identity(), &self.running.owned()).await
    }

    /// Stops the member as an orderly restart does.
    async fn stop(self) -> Result {
        self.running.shutdown.cancel();
        self.running.end().await?;
        Ok(soon("closed", self.session.close()).await?)
    }
}

/// Returns the partitions in the record of an identity, if there is exactly one record.
pub(super) async fn listed(client: &mut Client, identity: &str) -> Option<BTreeSet<u32>> {
    let records = keys(client, &format!("{PREFIX}{COUNT}/k-")).await;
    let mut of: Vec<_> = records.iter().filter(|key| key.is_of(identity)).collect();
    let record = of.pop().filter(|_| of.is_empty())?;
    let value: serde_json::Value = serde_json::from_str(&record.value).expect("JSON");
    let ranges = value["partitions"].as_str().expect("a list").split(',');
    let ranges = ranges.filter(|range| !range.is_empty()).map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().expect("a number");
        number(first)..=number(last)
    });
    Some(ranges.flatten().collect())
}

/// Waits until the record of an identity lists these partitions.
pub(super) async fn recorded(client: &mut Client, identity: &str, owned: &BTreeSet<u32>) -> Result {
    Ok(eventually(SOON, "the record is written", async || {
        (listed(client, identity).await? == *owned).then_some(())
    })
    .await?)
}

/// Starts two members that own three partitions each, and returns the partitions of the second one.
pub(super) async fn two(
    etcd: &impl Store,
    client: &mut Client,
) -> Result<(Keeper, Keeper, BTreeSet<u32>)> {
    let mut a = Keeper::start(etcd, "a").await?;
    a.running.owns(6).await?;
    let mut b = Keeper::start(etcd, "b").await?;
    let of_b = b.running.owns(3).await?;
    a.running.owns(3).await?;
    a.recorded(client).await?;
    b.recorded(client).await?;
    Ok((a, b, of_b))
}

/// Starts a member `b` as `configured`, which keeps its share.
pub(super) async fn keeps(
    etcd: &impl Store,
    configured: impl FnOnce(PartitionRunner<'static>) -> PartitionRunner<'static>,
) -> Result<(Session, Running)> {
    let session = etcd.session(short("b")).await?;
    let partitions = session.partitions("billing", COUNT)?.keep_share_for(KEEP);
    let running = Running::with(configured(partitions.runner()), until_lost);
    Ok((session, running))
}

/// Starts a member `b` as `configured` beside `a`, and returns the partitions of `b` once its record lists them.
pub(super) async fn two_with(
    etcd: &impl Store,
    client: &mut Client,
    configured: impl FnOnce(PartitionRunner<'static>) -> PartitionRunner<'static>,
) -> Result<(Keeper, (Session, Running), BTreeSet<u32>)> {
    let mut a = Keeper::start(etcd, "a").await?;
    a.running.owns(6).await?;
    let (session, mut b) = keeps(etcd, configured).await?;
    let of_b = b.owns(3).await?;
    recorded(client, "b", &of_b).await?;
    Ok((a, (session, b), of_b))
}

/// Waits until two processes of `b` are members.
pub(super) async fn twice_there(client: &mut Client) -> Result {
    Ok(eventually(SOON, "it has joined", async || {
        let mut members = keys(client, &format!("{PREFIX}{COUNT}/m-")).await;
        members.retain(|member| member.is_of("b"));
        (members.len() == 2).then_some(())
    })
    .await?)
}

/// Returns the terms that have not ended.
pub(super) fn valid(running: &mut Running) -> BTreeMap<u32, Term> {
    running.owned();
    let terms = running.terms.iter().filter(|(_, term)| term.is_valid());
    terms
        .map(|(number, term)| (*number, term.clone()))
        .collect()
}

pub(super) fn tokens(terms: &BTreeMap<u32, Term>) -> Vec<i64> {
    terms.values().map(Term::fencing_token).collect()
}

/// Returns the identities of absent members, with the partitions that are kept for them.
fn kept(map: &PartitionMap) -> Vec<(String, BTreeSet<u32>)> {
    let shares = map.kept_shares().iter();
    let kept = shares.map(|share| {
        let partitions = share.partitions().iter().copied().collect();
        (share.identity().to_owned(), partitions)
    });
    kept.collect()
}

/// Stops a member, starts it again `pause` later, and checks that it owns the same and nothing else has moved.
async fn restarts_in_time(etcd: &impl Store, client: &mut Client, pause: Duration) -> Result {
    let (mut a, b, of_b) = two(etcd, client).await?;
    let before = valid(&mut a.running);
    b.stop().await?;
    stays(pause, "nobody takes them", async || {
        a.running.owned().len() == 3
    })
    .await?;
    let map = a.partitions.map().await?;
    assert_eq!(kept(&map), [("b".to_owned(), of_b.clone())]);
    assert_eq!(map.members().len(), 1);
    let share = &map.kept_shares()[0];
    assert_eq!(share.kept_for(), Some(KEEP));
    let first = *of_b.first().expect("three");
    assert_eq!(map.kept_share(first), Some(share));
    assert!(map.owner(first).is_none());
    let time = a.session.lease_time(share.lease_id()).await?;
    assert!(time.expect("it is kept").left() > KEEP / 2);

    let mut b = Keeper::start(etcd, "b").await?;
    assert_eq!(b.running.owns(3).await?, of_b);
    b.recorded(client).await?;
    assert_eq!(tokens(&valid(&mut a.running)), tokens(&before));
    assert!(a.partitions.map().await?.kept_shares().is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn member_that_restarts_in_time_owns_the_same_and_no_others_move() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    restarts_in_time(&etcd, &mut client, KEEP / 2).await?;
    eventually(SOON, "two leases of members, two of records", async || {
        (leases(&mut client).await == 4).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn member_restarts_on_a_real_etcd_and_owns_the_same() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    restarts_in_time(&etcd, &mut client, Duration::from_secs(1)).await
}

#[tokio::test(start_paused = true)]
async fn crashed_member_owns_the_same_although_its_former_keys_still_exist() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (mut a, b, of_b) = two(&etcd, &mut client).await?;
    let before = valid(&mut a.running);
    crash(&b.session)?;
    b.running.task.abort();
    let mut again = Keeper::start(&etcd, "b").await?;
    twice_there(&mut client).await?;
    stays(
        WHILE,
        "it has no record, and no lease for one",
        async || leases(&mut client).await == 5,
    )
    .await?;
    assert_eq!(again.running.owns(3).await?, of_b);
    again.recorded(&mut client).await?;
    assert_eq!(tokens(&valid(&mut a.running)), tokens(&before));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn time_counts_from_when_the_member_was_last_there_although_its_process_lives() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, b, _) = two(&etcd, &mut client).await?;
    etcd.pause();
    let mut state = b.session.state();
    let lost = state.wait_for(|state| matches!(state, SessionState::Lost { .. }));
    soon("its lease is lost", lost).await?;
    etcd.refuse_writes(true);
    etcd.resume();
    stays(KEEP * 9 / 10, "its record stands", async || {
        listed(&mut client, "b").await.is_some()
    })
    .await?;
    eventually(KEEP, "its record has expired", async || {
        listed(&mut client, "b").await.is_none().then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn partitions_move_when_the_time_has_passed() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (mut a, b, _) = two(&etcd, &mut client).await?;
    b.stop().await?;
    stays(KEEP * 9 / 10, "they are kept", async || {
        a.running.owned().len() == 3
    })
    .await?;
    a.running.owns(6).await?;
    assert!(a.partitions.map().await?.kept_shares().is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn forgotten_share_moves_at_once() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (mut a, b, _) = two(&etcd, &mut client).await?;
    for identity in ["a", "b", "c"] {
        let is_forgotten = a.partitions.forget_share(identity).await?;
        assert!(!is_forgotten, "{identity} is there, or unknown");
    }
    a.recorded(&mut client).await?;
    b.stop().await?;
    assert!(a.partitions.forget_share("b").await?);
    a.running.owns(6).await?;
    assert!(!a.partitions.forget_share("b").await?);
    assert_eq!(leases(&mut client).await, 2, "of a and its record");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn another_count_waits_until_the_last_share_is_forgotten() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, b, _) = two(&etcd, &mut client).await?;
    let eye = etcd.session(options("eye")).await?;
    let shown = eye.partitions("billing", COUNT)?;
    a.stop().await?;
    b.stop().await?;
    let names: Vec<_> = kept(&shown.map().await?)
        .into_iter()
        .map(|(identity, _)| identity)
        .collect();
    assert_eq!(names, ["a", "b"]);
    let session = etcd.session(options("c")).await?;
    let more = session.partitions("billing", 2 * COUNT)?;
    let refused = soon("it is refused", more.join()).await;
    let error = refused.expect_err("shares are kept");
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    assert!(error.to_string().contains("/k-"), "{error}");
    for identity in names {
        assert!(shown.forget_share(identity).await?);
    }
    let member = soon("it joins", more.join()).await?;
    drop(member);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn time_that_is_too_short_or_too_long_is_refused_with_the_rule() -> Result {
    let etcd = in_memory();
    let session = etcd.session(short("a")).await?;
    let (ttl, day) = (Duration::from_secs(3), Duration::from_secs(24 * 60 * 60));
    for time in [Duration::ZERO, ttl, day + Duration::from_millis(1)] {
        let shards = session.partitions("billing", COUNT)?.keep_share_for(time);
        let error = shards.join().await.expect_err("the time is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let message = error.to_string();
        let rule = format!("is {time:?}; it must be longer than the ttl of 3s and at most");
        assert!(message.contains(&rule), "{message}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn member_that_is_ill_or_has_handed_over_keeps_no_share() -> Result {
    for is_ill in [true, false] {
        let etcd = in_memory();
        let mut client = etcd.client().await;
        let well = Arc::new(AtomicBool::new(true));
        let configured = |runner: PartitionRunner<'static>| {
            if is_ill {
                checked(runner, &well)
            } else {
                runner.hand_over_within(SOON)
            }
        };
        let (mut a, (_session, b), _) = two_with(&etcd, &mut client, configured).await?;
        if is_ill {
            well.store(false, Ordering::SeqCst);
        } else {
            b.shutdown.cancel();
        }
        a.running.owns(6).await?;
        eventually(SOON, "its record is gone", async || {
            listed(&mut client, "b").await.is_none().then_some(())
        })
        .await?;
        b.shutdown.cancel();
        b.end().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn record_has_the_identity_that_the_member_proclaims() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let session = etcd.session(short("a")).await?;
    let partitions = session.partitions("billing", COUNT)?.keep_share_for(KEEP);
    let mut member = partitions.join().await?;
    let mut owned = Vec::new();
    for _ in 0..COUNT {
        owned.push(soon("it owns all", member.owned()).await?);
    }
    for identity in ["a", "z"] {
        member.proclaim(Announcement::new(identity)).await?;
        recorded(&mut client, identity, &(0..COUNT).collect()).await?;
    }
    assert_eq!(listed(&mut client, "a").await, None);
    Ok(())
}
