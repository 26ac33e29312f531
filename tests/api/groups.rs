//! Tests groups: nodes that are announced, without a leader.

use eldest::{
    Announcement, EndReason, ErrorKind, Group, GroupMembership, Observer, Roster, Session, Status,
};
use eldest_testing::eventually;
use tokio::time::timeout;

use crate::common::{
    Result, SOON, Store, WHILE, identities, in_memory, keys, nothing_under, only_key, session,
    short, soon,
};

const PREFIX: &str = "eldest/~members/workers/";

async fn join(etcd: &impl Store, identity: &str) -> Result<(Session, Group, GroupMembership)> {
    let session = session(etcd, identity).await?;
    let group = session.group("workers")?;
    let membership = soon("join", group.join()).await?;
    Ok((session, group, membership))
}

/// Returns the next state that has exactly these members.
async fn there(observer: &mut Observer, wanted: &[&str]) -> Result<Roster> {
    loop {
        let roster = soon("a change", observer.next())
            .await
            .ok_or("it ended")??;
        assert_eq!(roster.leader(), None, "nobody leads");
        if identities(&roster) == wanted {
            return Ok(roster);
        }
    }
}

async fn becomes(member: &GroupMembership, wanted: Status) -> Result {
    let mut status = member.subscribe();
    soon("status", status.wait_for(|status| *status == wanted)).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn members_are_announced_listed_and_watched_until_they_leave() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, group, mut first) = join(&etcd, "a").await?;
    assert_eq!((group.name(), group.prefix()), ("workers", PREFIX));
    let key = only_key(&mut client, "").await;
    assert_eq!(key.path, format!("{PREFIX}{:x}", key.lease));
    let mut observer = group.observe().await?;
    there(&mut observer, &["a"]).await?;
    let (_b, _, second) = join(&etcd, "b").await?;
    there(&mut observer, &["a", "b"]).await?;
    let roster = group.members().await?;
    assert_eq!(identities(&roster), ["a", "b"]);
    assert_eq!((roster.leader(), roster.blocker()), (None, None));
    assert_eq!([first.status(), second.status()], [Status::Present; 2]);

    soon("leave", first.leave()).await?;
    assert_eq!(keys(&mut client, PREFIX).await.len(), 1, "when it returns");
    let reason = EndReason::Left;
    assert_eq!(first.status(), Status::ended(reason));
    there(&mut observer, &["b"]).await?;
    drop(second);
    there(&mut observer, &[]).await?;
    nothing_under(&mut client, PREFIX).await?;
    // The member joins again, and leaves with the session.
    let again = soon("join", group.join()).await?;
    soon("close", a.close()).await?;
    assert_eq!(keys(&mut client, PREFIX).await, []);
    let reason = EndReason::SessionClosed;
    becomes(&again, Status::ended(reason)).await
}

#[tokio::test(start_paused = true)]
async fn new_announcement_of_a_member_stays_after_a_rejoin() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = session(&etcd, "a").await?;
    let group = a.group("workers")?;
    let me = Announcement::new("a").with_address("10.0.0.1:80");
    let announcing = group.clone().announcement(me);
    let member = soon("join", announcing.join()).await?;
    let address = async || -> Option<String> {
        let members = group.members().await.ok()?;
        let member = members.members().first()?;
        member.announcement().address().map(str::to_owned)
    };
    assert_eq!(address().await.as_deref(), Some("10.0.0.1:80"));
    let moved = Announcement::new("a").with_address("10.0.0.2:80");
    soon("proclaim", member.proclaim(moved)).await?;
    assert_eq!(address().await.as_deref(), Some("10.0.0.2:80"));
    let key = only_key(&mut client, PREFIX).await;
    client.delete(key.path, None).await?;
    eventually(SOON, "put again", async || {
        let same = address().await? == "10.0.0.2:80";
        let entry = keys(&mut client, PREFIX).await.pop()?;
        (same && entry.created > key.created).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_session_is_a_member_once_and_may_also_be_a_candidate() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, group, _member) = join(&etcd, "a").await?;
    let error = soon("join", group.join()).await.expect_err("it is one");
    assert_eq!(error.kind(), ErrorKind::AlreadyCampaigning, "{error}");
    let _leader = soon("campaign", a.election("workers")?.campaign()).await?;
    assert_eq!(keys(&mut client, PREFIX).await.len(), 1);
    // A foreign key without a lease blocks no member.
    client.put(format!("{PREFIX}stray"), "stray", None).await?;
    let b = session(&etcd, "b").await?;
    let other = soon("join", b.group("workers")?.join()).await?;
    assert_eq!(other.status(), Status::Present);
    let roster = group.members().await?;
    assert_eq!(identities(&roster), ["a", "stray", "b"]);
    assert_eq!(roster.blocker(), None);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_barrier_opens_when_the_last_member_has_joined() -> Result {
    let etcd = in_memory();
    let (_a, group, _member) = join(&etcd, "a").await?;
    let error = soon("wait", group.wait_for(0)).await.expect_err("nothing");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let alone = soon("wait", group.wait_for(1)).await?;
    assert_eq!((identities(&alone), alone.leader()), (vec!["a"], None));
    let mut waiting = tokio::spawn(async move { group.wait_for(3).await });
    let (_b, _, _second) = join(&etcd, "b").await?;
    assert!(
        timeout(WHILE, &mut waiting).await.is_err(),
        "two are too few"
    );
    let (_c, _, _third) = join(&etcd, "c").await?;
    let all = soon("three", waiting).await??;
    assert_eq!(identities(&all), ["a", "b", "c"]);
    Ok(())
}

/// The session's view shows two members, but one of them has left.
#[tokio::test(start_paused = true)]
async fn an_old_view_opens_no_barrier() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, group, _member) = join(&etcd, "a").await?;
    let mut observer = group.observe().await?;
    let other = format!("{PREFIX}other");
    client.put(other.clone(), "other", None).await?;
    there(&mut observer, &["a", "other"]).await?;
    etcd.stall_watches(true);
    client.delete(other.clone(), None).await?;
    let mut waiting = tokio::spawn(async move { group.wait_for(2).await });
    assert!(timeout(WHILE, &mut waiting).await.is_err(), "it left");
    etcd.stall_watches(false);
    there(&mut observer, &["a"]).await?;
    client.put(other, "other", None).await?;
    let both = soon("both", waiting).await??;
    assert_eq!(identities(&both), ["a", "other"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_barrier_waits_for_etcd_and_ends_with_its_session() -> Result {
    let etcd = in_memory();
    let session = etcd.session(short("a")).await?;
    let group = session.group("workers")?;
    let _member = soon("join", group.join()).await?;
    let mut observer = group.observe().await?;
    there(&mut observer, &["a"]).await?;
    etcd.pause();
    let mut waiting = tokio::spawn({
        let group = group.clone();
        async move { group.wait_for(1).await }
    });
    assert!(timeout(SOON, &mut waiting).await.is_err(), "no answer");
    etcd.resume();
    assert_eq!(identities(&soon("it", waiting).await??), ["a"]);

    let waiting = tokio::spawn(async move { group.wait_for(2).await });
    soon("close", session.close()).await?;
    let error = soon("it ends", waiting).await?.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    Ok(())
}
