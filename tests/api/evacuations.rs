//! Tests evacuated data centres on a real etcd: which nodes let others lead, and which keys an order leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use eldest::{Announcement, BoxError, CancellationToken, Candidate, Election, Evacuate, Session};
use eldest_testing::eventually;

use crate::common::{
    Result, SOON, Store, WHILE, elected, in_memory, keys, leases, nothing_under, options, queue,
    session, soon, stays,
};

const MARKS: &str = "eldest/~evacuated/";

async fn connect(etcd: &impl Store, identity: &str, data_center: &str) -> Result<Session> {
    let at = Announcement::default().with_data_center(data_center);
    let options = options(identity).announcement(at);
    Ok(etcd.session(options).await?)
}

/// Joins the election "e", in that data centre.
async fn join_election(
    etcd: &impl Store,
    identity: &str,
    data_center: &str,
) -> Result<(Session, Election, Candidate)> {
    let session = connect(etcd, identity, data_center).await?;
    let election = session.election("e")?;
    let candidate = soon("campaign", election.campaign()).await?;
    Ok((session, election, candidate))
}

#[tokio::test(start_paused = true)]
async fn a_leader_of_an_evacuated_centre_leads_until_a_candidate_joins_elsewhere() -> Result {
    let etcd = in_memory();
    let ops = session(&etcd, "ops").await?;
    soon("evacuate", ops.evacuate("dc1")).await?;
    let (_a, election, mut a) = join_election(&etcd, "a", "dc1").await?;
    let first = elected(&mut a).await?;
    let (_b, _, _b1) = join_election(&etcd, "b", "dc1").await?;
    stays(WHILE, "it leads", async || first.is_valid()).await?;
    let (_c, _, mut c) = join_election(&etcd, "c", "dc2").await?;
    soon("the loss", first.lost().cancelled()).await;
    queue(&election, &["a", "c", "b"]).await?;
    drop(first);
    let second = elected(&mut c).await?;
    queue(&election, &["c", "b", "a"]).await?;
    // No candidate elsewhere is left.
    drop((second, c));
    Ok(eventually(SOON, "one of the others leads", async || {
        let leader = election.leader().await.ok()??;
        ["a", "b"].contains(&leader.identity()).then_some(())
    })
    .await?)
}

#[tokio::test(start_paused = true)]
async fn partitions_move_to_members_elsewhere_and_back() -> Result {
    let etcd = in_memory();
    let ops = session(&etcd, "ops").await?;
    let work = async |partition: eldest::Partition| {
        partition.lost().cancelled().await;
        Ok::<_, BoxError>(())
    };
    let mut runs = Vec::new();
    for (identity, data_center) in [("a", "dc1"), ("b", "dc2"), ("c", "dc1")] {
        let session = connect(&etcd, identity, data_center).await?;
        let partitions = session.partitions("billing", 8)?;
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let run = tokio::spawn(async move { partitions.run(stop, work).await });
        runs.push((shutdown, run));
    }
    let partitions = ops.partitions("billing", 8)?;
    let owners = async |wanted: &[&str]| {
        eventually(SOON, format!("{wanted:?} own all"), async || {
            let map = partitions.map().await.ok()?;
            let owners: Option<BTreeSet<String>> = (0..8)
                .map(|number| Some(map.owner(number)?.identity().to_owned()))
                .collect();
            owners.filter(|owners| owners.iter().eq(wanted)).map(drop)
        })
        .await
    };
    owners(&["a", "b", "c"]).await?;
    soon("evacuate", ops.evacuate("dc1")).await?;
    owners(&["b"]).await?;
    soon("evacuate", ops.evacuate("dc2")).await?;
    owners(&["a", "b", "c"]).await?;
    soon("lift", ops.lift("dc2")).await?;
    owners(&["b"]).await?;
    soon("lift", ops.lift("dc1")).await?;
    owners(&["a", "b", "c"]).await?;
    for (shutdown, run) in runs {
        shutdown.cancel();
        soon("stops", run).await??;
    }
    nothing_under(&mut etcd.client().await, "eldest/~partitions/").await
}

#[tokio::test(start_paused = true)]
async fn a_session_without_a_data_centre_is_not_evacuated() -> Result {
    let etcd = in_memory();
    let ops = session(&etcd, "ops").await?;
    let election = ops.election("e")?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    let first = elected(&mut candidate).await?;
    let (_b, _, _b1) = join_election(&etcd, "b", "dc2").await?;
    for data_center in ["dc1", "null"] {
        soon("evacuate", ops.evacuate(data_center)).await?;
    }
    stays(WHILE, "it leads", async || first.is_valid()).await
}

#[tokio::test(start_paused = true)]
async fn order_names_its_author_reason_and_end_and_expires() -> Result {
    let etcd = in_memory();
    let ops = session(&etcd, "ops").await?;
    let mut client = etcd.client().await;
    let before = leases(&mut client).await;
    let order = Evacuate::new("eu/dc1")
        .lasting(Duration::from_secs(5))
        .reason("new switches");
    let given = soon("evacuate", ops.evacuate(order)).await?;
    assert_eq!(
        (given.by(), given.reason()),
        (Some("ops"), Some("new switches"))
    );
    let until = given.until().expect("it ends by itself");
    assert!(given.since() < Some(until));
    assert_eq!(ops.evacuations().await?.to_vec(), [given]);
    eventually(SOON, "it has ended", async || {
        ops.evacuations().await.ok()?.is_empty().then_some(())
    })
    .await?;
    assert_eq!(leases(&mut client).await, before);
    assert!(
        ops.lift("eu/dc1").await?.is_none(),
        "nothing is to be lifted"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_replaced_or_lifted_leaves_no_lease() -> Result {
    let etcd = in_memory();
    let ops = session(&etcd, "ops").await?;
    let mut client = etcd.client().await;
    let before = leases(&mut client).await;
    let hours = |hours: u64| Evacuate::new("dc1").lasting(Duration::from_secs(hours * 3600));
    for order in [hours(2), hours(3), Evacuate::new("dc1"), hours(1)] {
        let given = soon("evacuate", ops.evacuate(order.clone())).await?;
        assert_eq!(ops.evacuations().await?.to_vec(), [given]);
        let lasting = usize::from(order != Evacuate::new("dc1"));
        assert_eq!(leases(&mut client).await, before + lasting);
    }
    assert_eq!(
        ops.lift("dc1")
            .await?
            .map(|order| order.by() == Some("ops")),
        Some(true)
    );
    assert_eq!(leases(&mut client).await, before);
    assert!(keys(&mut client, MARKS).await.is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn orders_that_are_given_and_lifted_at_once_leave_one_or_none() -> Result {
    let etcd = in_memory();
    let (a, b) = (session(&etcd, "a").await?, session(&etcd, "b").await?);
    let mut client = etcd.client().await;
    let before = leases(&mut client).await;
    for _ in 0..10 {
        let order = Evacuate::new("dc1").lasting(Duration::from_secs(3600));
        let (first, second, lifted) =
            tokio::join!(a.evacuate(order.clone()), b.evacuate(order), a.lift("dc1"));
        let (first, second) = (first?, second?);
        lifted?;
        let standing = a.evacuations().await?;
        assert!(
            standing
                .iter()
                .all(|order| *order == first || *order == second)
        );
        assert_eq!(leases(&mut client).await, before + standing.len());
    }
    a.lift("dc1").await?;
    assert_eq!(leases(&mut client).await, before);
    Ok(())
}
