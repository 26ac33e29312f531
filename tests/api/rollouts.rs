//! Tests elections that require versions: once a newer version has led, no older one does until the mark is removed.

use std::time::Duration;

use eldest::{Candidate, Election, ErrorKind, Session, Status, StepDown};
use eldest_testing::Etcd;

use crate::common::{Result, Store, elected, in_memory, options, queue, soon, stays};

/// A node of one version, which is a candidate.
struct Node {
    session: Session,
    election: Election,
    candidate: Candidate,
}

impl Node {
    async fn start(etcd: &impl Store, identity: &str, version: &str) -> Result<Self> {
        let session = etcd.session(options(identity)).await?;
        let election = session.election("e")?.require_version(version.parse()?);
        let candidate = soon("campaign", election.campaign()).await?;
        Ok(Self {
            session,
            election,
            candidate,
        })
    }

    async fn marked(&self) -> Result<Option<(String, String)>> {
        let mark = self.election.version_mark().await?;
        let named =
            |mark: eldest::VersionMark| Some((mark.version()?.to_string(), mark.by()?.to_owned()));
        Ok(mark.and_then(named))
    }
}

fn named(version: &str, by: &str) -> (String, String) {
    (version.to_owned(), by.to_owned())
}

/// A rollout from 1.0 to 2.0, in which the only node of the new version dies.
async fn older_version_waits_until_the_mark_is_removed(etcd: &impl Store) -> Result {
    let mut a = Node::start(etcd, "a", "1.9").await?;
    let first = elected(&mut a.candidate).await?;
    assert_eq!(a.marked().await?, Some(named("1.9", "a")));
    let mut b = Node::start(etcd, "b", "1.10").await?;
    let roster = a.election.roster().await?;
    let versions = roster.members().iter().map(|member| {
        let version = member.version().map(|version| version.to_string());
        version.unwrap_or_default()
    });
    assert_eq!(versions.collect::<Vec<_>>(), ["1.9", "1.10"]);
    soon("the end of the term", first.step_down()).await?;
    let second = elected(&mut b.candidate).await?;
    assert_eq!(b.marked().await?, Some(named("1.10", "b")));
    queue(&a.election, &["b", "a"]).await?;

    // The session's end takes its key away at once, as a guard does after a death.
    drop(second);
    b.session.close().await?;
    queue(&a.election, &["a"]).await?;
    stays(Duration::from_secs(2), "nobody leads", async || {
        matches!(a.candidate.status(), Status::Waiting { rank: 1, .. })
    })
    .await?;
    assert!(!a.election.is_leader());

    let removed = soon("removal", a.election.remove_version_mark()).await?;
    assert_eq!(
        removed.and_then(|mark| mark.version()),
        Some("1.10".parse()?)
    );
    let again = elected(&mut a.candidate).await?;
    assert!(again.is_valid());
    assert_eq!(a.marked().await?, Some(named("1.9", "a")));
    Ok(())
}

#[tokio::test]
async fn older_version_on_a_real_etcd_waits_until_the_mark_is_removed() -> Result {
    older_version_waits_until_the_mark_is_removed(&Etcd::start().await?).await
}

#[tokio::test(start_paused = true)]
async fn older_version_waits_for_the_removal_of_the_mark() -> Result {
    older_version_waits_until_the_mark_is_removed(&in_memory()).await
}

#[tokio::test(start_paused = true)]
async fn order_needs_a_successor_whose_version_may_lead() -> Result {
    let etcd = in_memory();
    let mut a = Node::start(&etcd, "a", "2").await?;
    let leads = elected(&mut a.candidate).await?;
    let mut b = Node::start(&etcd, "b", "1").await?;
    let error = b.election.order_step_down(StepDown::new()).await;
    let error = error.expect_err("only an older version waits");
    assert_eq!(error.kind(), ErrorKind::NotObeyed);
    let said = error.to_string();
    assert!(said.contains("older versions than 2, which led"), "{said}");
    assert!(leads.is_valid());
    b.election.remove_version_mark().await?;
    let ordered = b.election.order_step_down(StepDown::new());
    let (ordered, ()) = tokio::join!(ordered, async {
        leads.lost().cancelled().await;
        drop(leads);
    });
    ordered?;
    let next = elected(&mut b.candidate).await?;
    assert!(next.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn announcement_that_cannot_name_the_version_is_refused() -> Result {
    let etcd = in_memory();
    let session = etcd.session(options("a")).await?;
    let election = session.election("e")?.require_version("1".parse()?);
    let refused = election.clone().announcement("node-a").campaign().await;
    let error = refused.expect_err("a plain string has no room");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("require_version"), "{error}");
    // A later announcement keeps the version.
    let mut candidate = election.campaign().await?;
    let leadership = elected(&mut candidate).await?;
    leadership
        .proclaim(eldest::Announcement::default().with_address("a:1"))
        .await?;
    let leader = election.leader().await?.expect("it leads");
    assert_eq!(leader.announcement().address(), Some("a:1"));
    assert_eq!(leader.version(), Some("1".parse()?));
    assert!(leadership.proclaim("plain").await.is_err());
    Ok(())
}

#[test]
fn text_without_a_version_is_invalid_input() {
    let invalid = "1.0-rc1"
        .parse::<eldest::Version>()
        .map_err(eldest::Error::from);
    let error = invalid.expect_err("it has a suffix");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("\"1.0-rc1\""), "{error}");
}
