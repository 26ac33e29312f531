//! Tests cases that random requests do not reach: leases that expire, watches from the future, and requests that are
//! too large.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use etcd_client::proto::PbPutRequest;
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use futures::future::try_join;

use super::draw::{Draw, Step, Watch};
use super::side::{Answer, Said, Side};
use super::walk::{Pair, run};

fn put(key: &[u8], value: Vec<u8>, lease: i64) -> Step {
    Step::Put(PbPutRequest {
        key: key.to_vec(),
        value,
        lease,
        ..PbPutRequest::default()
    })
}

/// Asserts that both servers answer the same, and returns the answer.
async fn both(pair: &mut Pair, step: &Step) -> Result<Answer> {
    let (etcd, us) = try_join(pair.real.take(step), pair.ours.take(step)).await?;
    ensure!(etcd == us, "{step:?}: etcd answers {etcd:?}, and we {us:?}");
    Ok(etcd)
}

/// Grants a lease of a second, and waits until its key is deleted.
async fn expiry(side: &mut Side) -> Result<(Vec<Answer>, Vec<Said>, Duration)> {
    let begun = Instant::now();
    let steps = [
        Draw::watch_all(),
        Step::Grant { id: 0x77, ttl: 1 },
        put(b"a", b"1".to_vec(), 0x77),
        Step::Renew(0x77),
    ];
    let mut answers = Vec::new();
    for step in &steps {
        answers.push(side.take(step).await?);
    }
    let renewed = Instant::now();
    loop {
        let said = side.said().await?.remove(&7).unwrap_or_default();
        // The three events: created, put, deleted.
        if said.len() == 3 {
            let took = renewed.elapsed();
            answers.push(side.take(&Step::Renew(0x77)).await?);
            answers.push(
                side.take(&Step::TimeToLive {
                    id: 0x77,
                    keys: true,
                })
                .await?,
            );
            return Ok((answers, said, took));
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(20),
            "it does not expire: {said:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_lease_expires_as_with_etcd() -> Result<()> {
    run(async {
        let mut pair = Pair::start().await?;
        let (etcd, us) = try_join(expiry(&mut pair.real), expiry(&mut pair.ours)).await?;
        ensure!(
            etcd.0 == us.0 && etcd.1 == us.1,
            "etcd: {etcd:?}\nwe: {us:?}"
        );
        // The shortest term is two seconds, and expired leases are searched twice a second.
        for (who, took) in [("etcd", etcd.2), ("we", us.2)] {
            ensure!(
                took >= Duration::from_millis(1900),
                "{who}: expired after {took:?}"
            );
        }
        ensure!(
            us.2 < Duration::from_secs(4),
            "we: expired after {:?}",
            us.2
        );
        Ok(())
    })
}

#[test]
fn watch_from_the_future_keeps_its_stream_from_reporting_progress() -> Result<()> {
    run(async {
        let mut pair = Pair::start().await?;
        both(&mut pair, &Draw::watch_all()).await?;
        let ahead = Watch {
            id: 3,
            key: b"a".to_vec(),
            end: Vec::new(),
            start: 4,
            filters: Vec::new(),
            prev_kv: false,
        };
        both(&mut pair, &Step::Watch(ahead)).await?;
        for revision in 1..=5 {
            let wait = Duration::from_millis(300);
            let answers = try_join(
                pair.real.reports_progress(wait),
                pair.ours.reports_progress(wait),
            );
            let (etcd, us) = answers.await?;
            ensure!(
                etcd == us,
                "at {revision} etcd reports progress: {etcd}, and we: {us}"
            );
            ensure!(
                etcd == (revision >= 4),
                "at {revision} etcd reports progress: {etcd}"
            );
            both(&mut pair, &put(b"a", Vec::new(), 0)).await?;
        }
        Ok(())
    })
}

#[test]
fn a_request_that_is_too_large_is_refused_in_etcd_s_words() -> Result<()> {
    run(async {
        let mut pair = Pair::start().await?;
        let large = |size| put(b"a", vec![b'x'; size], 0);
        let fits = both(&mut pair, &large(1_500_000)).await?;
        ensure!(matches!(fits, Answer::Put(_)), "{fits:?}");
        let refused = both(&mut pair, &large(1_600_000)).await?;
        ensure!(matches!(refused, Answer::Refused(..)), "{refused:?}");
        Ok(())
    })
}

/// Returns the join of one election, in the form in which the library joins several at once.
fn join(election: usize, lease: i64) -> TxnOp {
    let (key, prefix) = (format!("e{election}/1"), format!("e{election}/"));
    let some = GetOptions::new().with_prefix().with_limit(3);
    let read = TxnOp::get(prefix.clone(), Some(some));
    let put = TxnOp::put(&*key, "v", Some(PutOptions::new().with_lease(lease)));
    let absent = Compare::create_revision(key, CompareOp::Equal, 0);
    // Every third join also demands that the election has no candidate.
    let empty = Compare::create_revision(&*prefix, CompareOp::Less, 1).with_prefix();
    let when = if election.is_multiple_of(3) {
        vec![absent, empty]
    } else {
        vec![absent]
    };
    let one = Txn::new().when(when).and_then([put, read.clone()]);
    TxnOp::txn(one.or_else([read]))
}

#[test]
fn joins_that_share_a_transaction_are_answered_as_by_etcd() -> Result<()> {
    run(async {
        let mut pair = Pair::start().await?;
        let lease = 0x11;
        both(
            &mut pair,
            &Step::Grant {
                id: lease,
                ttl: 900,
            },
        )
        .await?;
        both(&mut pair, &Draw::watch_all()).await?;
        // The keys: its own, more than a join reads, and one in an election where no candidate may be.
        for key in ["e1/1", "e2/5", "e2/6", "e2/7", "e2/8", "e3/0"] {
            both(&mut pair, &put(key.as_bytes(), b"o".to_vec(), lease)).await?;
        }
        let joins = |elections: std::ops::Range<usize>, lease| {
            let each: Vec<_> = elections.map(|election| join(election, lease)).collect();
            Step::Txn(Txn::new().and_then(each).into())
        };
        // The last ones are as many as the library sends, as many as etcd takes, and more.
        for elections in [0..6, 0..6, 100..164, 200..325, 400..526, 600..727] {
            let number = elections.len();
            let answer = both(&mut pair, &joins(elections, lease)).await?;
            let taken = matches!(answer, Answer::Txn(_));
            ensure!(taken == (number <= 126), "{number} joins: {answer:?}");
        }
        // Nothing is put if one operation fails: the lease is gone, or one election occurs twice.
        let gone = both(&mut pair, &joins(800..804, 0x22)).await?;
        ensure!(matches!(gone, Answer::Refused(..)), "{gone:?}");
        let twice = Txn::new().and_then([join(900, lease), join(900, lease)]);
        let twice = both(&mut pair, &Step::Txn(twice.into())).await?;
        ensure!(matches!(twice, Answer::Refused(..)), "{twice:?}");
        Ok(())
    })
}
