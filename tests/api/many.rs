//! Tests many elections of one session: their common cost, and that a failing one does not spoil the requests that it
//! shares.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::common::{
    OnPort, Result, SOON, WHILE, elected, keys, nothing_under, options, session, soon, stays,
};
use eldest::{Candidate, Leadership, Session};
use eldest_testing::{Etcd, Proxy, eventually};
use etcd_client::Client;
use futures::future::try_join_all;

/// The number of joins in one transaction.
const IN_ONE: usize = 64;

async fn transactions(etcd: &Etcd) -> usize {
    let txn = r#"grpc_server_handled_total{grpc_method="Txn"}"#;
    etcd.metric(txn).await as usize
}

/// Leads all elections, which are joined at once.
async fn lead(session: &Session, n: usize) -> Result<Vec<(Candidate, Leadership)>> {
    let one = async |number: usize| -> Result<_> {
        let mut candidate = session
            .election(format!("many/{number}"))?
            .campaign()
            .await?;
        let leadership = elected(&mut candidate).await?;
        Ok((candidate, leadership))
    };
    soon("leading all", try_join_all((0..n).map(one))).await
}

async fn resign(led: &[(Candidate, Leadership)]) -> Result {
    let all = led.iter().map(|(_, leadership)| leadership.resign());
    soon("resigning", try_join_all(all)).await?;
    Ok(())
}

/// Provides a lease, so that joins are the only requests.
async fn leased(session: &Session) -> Result<Candidate> {
    Ok(soon("campaign", session.election("first")?.campaign()).await?)
}

#[tokio::test]
async fn a_thousand_elections_are_joined_and_resigned_by_few_transactions() -> Result {
    const N: usize = 1_000;
    let etcd = Etcd::start().await?;
    let session = session(&etcd, "a").await?;
    let first = leased(&session).await?;
    // The joins in `N / IN_ONE` transactions, and 16 that were sent before others could share them.
    let few = N / IN_ONE + 16;
    let before = transactions(&etcd).await;
    let led = lead(&session, N).await?;
    let joined = transactions(&etcd).await;
    assert!(joined - before <= few, "{} for {N} joins", joined - before);
    let tokens: BTreeSet<_> = led.iter().map(|(_, led)| led.fencing_token()).collect();
    assert!(tokens.len() <= few, "one revision for each transaction");
    let mut client = etcd.client().await;
    for key in keys(&mut client, "eldest/many/").await {
        let path = key.path.as_bytes();
        let led = led.iter().find(|(_, led)| led.key() == path);
        let token = led.map(|(_, led)| led.fencing_token());
        assert_eq!(token, Some(key.created), "{key:?}");
    }

    let before = transactions(&etcd).await;
    resign(&led).await?;
    let resigned = transactions(&etcd).await - before;
    assert!(resigned <= few, "{resigned} for {N} deletes");
    nothing_under(&mut client, "eldest/many/").await?;
    drop(first);
    Ok(())
}

/// A join is in flight and unanswered; the next one waits neither for its answer nor for its timeout.
#[tokio::test]
async fn a_join_does_not_wait_for_the_answer_of_another() -> Result {
    const UNANSWERED: Duration = Duration::from_secs(10);
    let etcd = OnPort::start().await?;
    let mut client = etcd.client().await;
    let proxy = Proxy::start(etcd.endpoint()).await?;
    let options = options("a").request_timeout(UNANSWERED);
    let session = Session::connect([proxy.endpoint()], options).await?;
    let first = leased(&session).await?;
    proxy.hold_responses();
    let begun = Instant::now();
    let mut standing = Vec::new();
    for number in 0..3 {
        let election = session.election(format!("e{number}"))?;
        let mut campaign = Box::pin(async move { election.campaign().await });
        eventually(SOON, format!("the key of e{number}"), async || {
            let _ = futures::poll!(&mut campaign);
            let keys = keys(&mut client, &format!("eldest/e{number}/")).await;
            (!keys.is_empty()).then_some(())
        })
        .await?;
        standing.push(campaign);
    }
    assert!(begun.elapsed() < UNANSWERED, "one waited for another");
    proxy.heal();
    for campaign in standing {
        drop(soon("campaign", campaign).await?);
    }
    drop(first);
    Ok(())
}

async fn paths(client: &mut Client, prefix: &str) -> BTreeSet<String> {
    let keys = keys(client, prefix).await;
    keys.into_iter().map(|key| key.path).collect()
}

/// The answer to several joins in one transaction is lost; half of the callers have dropped their calls meanwhile.
#[tokio::test]
async fn joins_with_a_lost_shared_answer_leave_no_orphan() -> Result {
    const N: usize = 20;
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let proxy = Proxy::start(etcd.address()).await?;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let first = leased(&session).await?;
    let before = transactions(&etcd).await;
    proxy.hold_responses();
    let elections: Vec<_> = (0..N)
        .map(|number| session.election(format!("many/{number}")))
        .collect::<std::result::Result<_, _>>()?;
    let mut campaigns: Vec<_> = elections
        .iter()
        .map(|election| Box::pin(election.campaign()))
        .collect();
    eventually(SOON, "all keys stand, unheard", async || {
        for campaign in &mut campaigns {
            assert!(futures::poll!(campaign).is_pending());
        }
        (paths(&mut client, "eldest/many/").await.len() == N).then_some(())
    })
    .await?;
    let put = keys(&mut client, "eldest/many/").await;
    let shared: BTreeSet<_> = put.iter().map(|key| key.created).collect();
    assert!(shared.len() < N, "none shared a transaction");
    assert!(transactions(&etcd).await - before <= shared.len());

    let kept = campaigns.split_off(N / 2);
    drop(campaigns);
    proxy.drop_connections();
    proxy.heal();
    let mut candidates = soon("campaigns", try_join_all(kept)).await?;
    let mut led = Vec::new();
    for candidate in &mut candidates {
        led.push(elected(candidate).await?);
    }
    let own = |led: &Leadership| String::from_utf8_lossy(led.key()).into_owned();
    let expected: BTreeSet<_> = led.iter().map(own).collect();
    assert_eq!(expected.len(), N / 2);
    eventually(SOON, "those who gave up have no key", async || {
        (paths(&mut client, "eldest/many/").await == expected).then_some(())
    })
    .await?;
    stays(
        WHILE,
        "each leads by its key, and no other key exists",
        async || {
            let keys = keys(&mut client, "eldest/many/").await;
            let held = |key: &crate::common::Key| {
                let mut own = led.iter().filter(|led| led.key() == key.path.as_bytes());
                own.next().map(|led| led.fencing_token()) == Some(key.created)
            };
            keys.len() == N / 2 && keys.iter().all(held) && led.iter().all(|l| l.is_valid())
        },
    )
    .await?;
    drop(first);
    Ok(())
}
