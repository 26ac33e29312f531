//! Tests many elections of one session: their common cost, and that none waits for another.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::common::{
    Result, SOON, behind_a_proxy, elected, keys, nothing_under, options, session, soon,
};
use eldest::{Candidate, Leadership, Session};
use eldest_testing::{Etcd, eventually};
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
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
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
