//! Tests leaderships: validity, fencing, and every way in which a term ends.

use std::time::Duration;

use crate::common::{
    Result, SOON, behind_a_proxy, elected, in_memory, join_election, key_exists, only_key, options,
    soon,
};
use eldest::{ErrorKind, LostReason, Op, Session};
use eldest_testing::{Etcd, eventually};
use etcd_client::Client;

async fn value(client: &mut Client, key: &str) -> Option<String> {
    let answer = client.get(key, None).await.expect("etcd answers");
    let kv = answer.kvs().first()?;
    Some(String::from_utf8_lossy(kv.value()).into_owned())
}

// ---- validity

#[tokio::test(start_paused = true)]
async fn neither_a_returned_token_nor_another_terms_end_ends_a_term() -> Result {
    let etcd = in_memory();
    let (session, _, mut candidate) = join_election(&etcd, "a").await?;
    let other = session.election("other")?;
    let mut other = soon("campaign", other.campaign()).await?;
    let (first, second) = (elected(&mut candidate).await?, elected(&mut other).await?);
    first.lost().cancel();
    assert!(!first.lost().is_cancelled() && !first.term().lost().is_cancelled());
    assert!(first.is_valid() && first.lost_reason().is_none());
    soon("resign", first.resign()).await?;
    assert!(first.lost().is_cancelled() && !first.is_valid());
    assert!(second.is_valid() && !second.lost().is_cancelled());
    second.txn([Op::put("x", "1")]).await?;
    let left = second.valid_until().time_left();
    let at = std::time::Instant::from(second.valid_until()) - std::time::Instant::now();
    assert!(at <= left && at + SOON > left, "{at:?} of {left:?}");
    Ok(())
}

// ---- fencing

#[tokio::test]
async fn a_fenced_transaction_is_applied_while_leading_and_never_sent_after_resigning() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let outcome = leadership.txn([Op::put("x", "1"), Op::get("x")]).await?;
    assert_eq!(outcome.results().len(), 2);
    assert_eq!(value(&mut client, "x").await.as_deref(), Some("1"));
    let term = leadership.term();
    soon("resign", leadership.resign()).await?;
    let txns = r#"grpc_server_started_total{grpc_method="Txn"}"#;
    let before = etcd.metric(txns).await;
    let error = term.txn([Op::put("x", "2")]).await.expect_err("it is over");
    assert_eq!(error.kind(), ErrorKind::LeadershipLost);
    assert!(error.to_string().contains("resigned"), "{error}");
    assert!(
        (etcd.metric(txns).await - before).abs() < 0.5,
        "nothing is sent"
    );
    assert_eq!(value(&mut client, "x").await.as_deref(), Some("1"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn fenced_transaction_is_refused_when_the_key_was_deleted_by_others() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let key = leadership.key().to_vec();
    // etcd receives the deletion first, and the transaction before the session knows of it.
    let (deleted, refused) = tokio::join!(
        client.delete(key, None),
        leadership.txn([Op::put("x", "stale")])
    );
    deleted?;
    let error = refused.expect_err("the key is gone");
    assert_eq!(error.kind(), ErrorKind::FenceLost, "{error}");
    assert_eq!(value(&mut client, "x").await, None);
    soon("the token", leadership.lost().cancelled()).await;
    Ok(())
}

#[tokio::test]
async fn a_fenced_transaction_without_an_answer_is_ambiguous_and_sent_once() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    proxy.hold_responses();
    let error = soon("txn", leadership.txn([Op::put("x", "1")])).await;
    let error = error.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    let answer = client.get("x", None).await?;
    assert_eq!(
        answer.kvs().first().map(etcd_client::KeyValue::version),
        Some(1),
        "once, and unheard"
    );
    proxy.heal();
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn etcds_own_refusal_is_not_reported_as_lost_leadership() -> Result {
    let etcd = in_memory();
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let twice = [Op::put("x", "1"), Op::put("x", "2")];
    let error = leadership.txn(twice).await.expect_err("the same key twice");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    assert!(leadership.is_valid());
    Ok(())
}

// ---- resigning and dropping

#[tokio::test(start_paused = true)]
async fn resigning_is_confirmed_and_may_be_repeated() -> Result {
    // Complaint 5.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    soon("resign", leadership.resign()).await?;
    assert!(!key_exists(&mut client, leadership.key(), leadership.fencing_token()).await);
    assert_eq!(leadership.lost_reason(), Some(LostReason::Resigned));
    assert!(leadership.lost().is_cancelled() && !leadership.is_valid());
    soon("resign again", leadership.resign()).await?;
    let error = soon("elected", a.elected()).await.expect_err("it resigned");
    assert_eq!(error.kind(), ErrorKind::Ended);
    Ok(())
}

#[tokio::test]
async fn a_resignation_that_etcd_did_not_confirm_is_retried_until_it_does() -> Result {
    // Complaint 5.
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
    let patient = options("a").request_timeout(Duration::from_millis(500));
    let session = Session::connect([proxy.endpoint()], patient).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    proxy.cut();
    let error = soon("resign", leadership.resign())
        .await
        .expect_err("cut off");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        leadership.lost_reason(),
        Some(LostReason::Resigned),
        "it is not forgotten"
    );
    assert!(!leadership.is_valid());
    assert!(key_exists(&mut client, leadership.key(), leadership.fencing_token()).await);
    proxy.heal();
    soon("resign", leadership.resign()).await?;
    assert!(!key_exists(&mut client, leadership.key(), leadership.fencing_token()).await);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn dropped_leadership_is_released_at_once_also_by_a_panic() -> Result {
    let etcd = in_memory();
    for panics in [false, true] {
        let (_a, _, mut a) = join_election(&etcd, "a").await?;
        let (_b, _, mut b) = join_election(&etcd, "b").await?;
        let leadership = elected(&mut a).await?;
        let term = leadership.term();
        let work = tokio::spawn(async move {
            let _held = leadership;
            assert!(!panics, "on purpose");
        });
        assert_eq!(soon("the work", work).await.is_err(), panics);
        // Far below the TTL of a minute.
        assert!(elected(&mut b).await?.is_valid());
        assert!(!term.is_valid() && term.lost().is_cancelled());
        assert_eq!(term.lost_reason(), Some(LostReason::Resigned));
    }
    Ok(())
}

/// The session closes meanwhile, so that a term with work would be valid until its deadline.
#[tokio::test(start_paused = true)]
async fn no_view_of_a_dropped_leadership_is_valid() -> Result {
    let etcd = in_memory();
    let (session, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let term = leadership.term();
    let close = tokio::spawn(async move { session.close().await });
    soon("the token", term.lost().cancelled()).await;
    assert!(term.is_valid(), "its work may still wind up");
    drop(leadership);
    assert!(!term.is_valid(), "nobody works under it any more");
    Ok(soon("close", close).await??)
}

#[tokio::test(start_paused = true)]
async fn view_shows_the_term_over_once_its_tasks_have_ended() -> Result {
    let etcd = in_memory();
    let (session, _, mut a) = join_election(&etcd, "a").await?;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let leadership = elected(&mut a).await?;
    let term = leadership.term();
    let lost = leadership.lost();
    let mut client = etcd.client().await;
    leadership.spawn(async move {
        lost.cancelled().await;
        for _ in 0..50 {
            let _ = client.get("something to wait for", None).await;
        }
    })?;
    let winding_up = tokio::spawn(async move { leadership.lost().cancelled().await });
    soon("close", session.close()).await?;
    soon("the work", winding_up).await?;
    let successor = elected(&mut b).await?;
    assert!(
        successor.is_valid() && !term.is_valid(),
        "two leaders at once"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn winding_up_term_is_over_at_once_when_its_key_goes() -> Result {
    // Complaint 13.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    for revoked in [false, true] {
        let (session, _, mut a) = join_election(&etcd, "a").await?;
        let leadership = elected(&mut a).await?;
        let closing = tokio::spawn(async move { session.close().await });
        soon("the token", leadership.lost().cancelled()).await;
        assert!(leadership.is_valid(), "it may wind up");
        if revoked {
            let key = only_key(&mut client, "eldest/e/").await;
            client.lease_revoke(key.lease).await?;
        } else {
            client.delete(leadership.key(), None).await?;
        }
        let (_b, _, mut b) = join_election(&etcd, "b").await?;
        let successor = elected(&mut b).await?;
        eventually(SOON, "the old term is over", async || {
            (!leadership.is_valid()).then_some(())
        })
        .await?;
        assert!(successor.is_valid());
        assert_eq!(leadership.lost_reason(), Some(LostReason::SessionClosed));
        soon("close", closing).await??;
    }
    Ok(())
}
