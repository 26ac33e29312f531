//! Tests that a leader leaves its state to the next: in the transaction that deletes its key, or by its last checkpoint.

use eldest::{
    BoxError, CancellationToken, Checkpoint, ErrorKind, Leadership, LostReason, Op, Session,
};
use eldest_testing::{MemoryEtcd, Proxy};
use etcd_client::Client;

use crate::common::{
    Result, behind_a_proxy, elected, in_memory, join_election, key_exists, keys, nothing_under,
    only_key, options, queue_of, soon,
};

/// The key of the checkpoint of the election of `join_election`.
const CHECKPOINT: &str = "eldest/~checkpoint/e/leader";
const LARGEST: usize = 64 * 1024;

/// Returns the state that the next leader reads, with its token, and whether it is final.
async fn last(leadership: &Leadership) -> Result<Option<(Vec<u8>, i64, bool)>> {
    let last = leadership.last_checkpoint().await?;
    let parts = |it: Checkpoint| (it.value().to_vec(), it.fencing_token(), it.is_final());
    Ok(last.map(parts))
}

/// Returns what the election's checkpoint says to the leader of a new session.
async fn read_by_the_next(etcd: &MemoryEtcd) -> Result<Option<(Vec<u8>, i64, bool)>> {
    let (session, _, mut candidate) = join_election(etcd, "next").await?;
    let leadership = elected(&mut candidate).await?;
    let read = last(&leadership).await?;
    leadership.resign().await?;
    session.close().await?;
    Ok(read)
}

/// Leads by a session behind the proxy.
async fn leading(proxy: &Proxy) -> Result<Leadership> {
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    elected(&mut candidate).await
}

/// Waits until a state is saved.
async fn saved(client: &mut Client) -> Result {
    queue_of(client, CHECKPOINT, 1).await
}

#[tokio::test(start_paused = true)]
async fn state_is_saved_in_the_transaction_that_deletes_the_key() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let leadership = elected(&mut a).await?;
    let token = leadership.fencing_token();
    assert_eq!(last(&leadership).await?, None);
    let state = [0xff, b'\n', 0].repeat(LARGEST / 3);
    leadership.resign_with(&state).await?;
    assert!(!key_exists(&mut client, leadership.key(), token).await);
    assert_eq!(leadership.lost_reason(), Some(LostReason::Resigned));

    let next = elected(&mut b).await?;
    assert_eq!(last(&next).await?, Some((state, token, true)));
    // The deletion was the last change, so both have one revision.
    let found = client.get(CHECKPOINT, None).await?;
    let saved = found.kvs().first().ok_or("saved")?;
    let revision = found.header().ok_or("a header")?.revision();
    assert_eq!((saved.mod_revision(), saved.lease()), (revision, 0));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn last_checkpoint_of_a_leader_that_died_is_not_final() -> Result {
    for resigns in [false, true] {
        let etcd = in_memory();
        let mut client = etcd.client().await;
        let (_a, _, mut a) = join_election(&etcd, "a").await?;
        let leadership = elected(&mut a).await?;
        for state in ["1", "2"] {
            leadership.checkpoint(state).await?;
        }
        let saved = Some((b"2".to_vec(), leadership.fencing_token(), false));
        assert_eq!(last(&leadership).await?, saved);
        client.lease_revoke(leadership.lease_id()).await?;
        let late = if resigns {
            leadership.resign_with("late").await
        } else {
            leadership.checkpoint("late").await
        };
        let late = late.expect_err("the key is gone");
        let kinds = [ErrorKind::FenceLost, ErrorKind::LeadershipLost];
        assert!(kinds.contains(&late.kind()), "{late}");
        assert_eq!(read_by_the_next(&etcd).await?, saved);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_that_is_asked_to_stop_leaves_its_state() -> Result {
    let etcd = in_memory();
    let session = etcd.session(options("a")).await?;
    for steps_down in [true, false] {
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let work = async |leadership: Leadership| {
            let lost = leadership.lost();
            stop.cancel();
            lost.cancelled().await;
            assert!(leadership.is_valid(), "until the last deadline");
            if steps_down {
                leadership.step_down_with("down").await?;
            } else {
                leadership.resign_with("left").await?;
            }
            assert!(!leadership.is_valid());
            Ok::<_, BoxError>(leadership.fencing_token())
        };
        let run = session.election("e")?.run(shutdown, work);
        let token = soon("the shutdown", run).await?.ok_or("the token")?;
        let state = if steps_down { "down" } else { "left" };
        let read = read_by_the_next(&etcd).await?;
        assert_eq!(read, Some((state.into(), token, true)));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tasks_of_the_term_end_before_their_state_is_saved() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let (lost, key) = (leadership.lost(), leadership.key().to_vec());
    let (token, mut other) = (leadership.fencing_token(), client.clone());
    let (report, seen) = tokio::sync::oneshot::channel();
    leadership.spawn(async move {
        lost.cancelled().await;
        let is_saved = !keys(&mut other, CHECKPOINT).await.is_empty();
        let _ = report.send((key_exists(&mut other, &key, token).await, is_saved));
    })?;
    leadership.resign_with("done").await?;
    assert_eq!(soon("the task", seen).await?, (true, false));
    assert_eq!(keys(&mut client, CHECKPOINT).await.len(), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn state_that_is_too_large_is_refused_before_anything_happens() -> Result {
    let etcd = in_memory();
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let large = vec![0; LARGEST + 1];
    for refused in [
        leadership.checkpoint(&large).await,
        leadership.resign_with(&large).await,
        leadership.step_down_with(&large).await,
    ] {
        let error = refused.expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("has 65537 bytes"), "{error}");
    }
    assert!(leadership.is_valid());
    assert_eq!(last(&leadership).await?, None);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn checkpoint_that_this_library_did_not_write_is_an_error_with_its_key() -> Result {
    let etcd = in_memory();
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    for foreign in ["", "7", "{\"token\":1}\n7", "\n"] {
        leadership.txn([Op::put(CHECKPOINT, foreign)]).await?;
        let error = leadership.last_checkpoint().await.expect_err("foreign");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(CHECKPOINT), "{error}");
    }
    leadership.checkpoint("ours").await?;
    assert!(last(&leadership).await?.is_some());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn elections_and_partitions_never_share_a_checkpoint() -> Result {
    let etcd = in_memory();
    let session = etcd.session(options("a")).await?;
    let mut member = session.partitions("e", 1)?.join().await?;
    let partition = soon("a partition", member.owned()).await?;
    partition.checkpoint("partition").await?;
    for name in ["e", "e/1/0", "e/leader"] {
        let mut candidate = session.election(name)?.campaign().await?;
        let leadership = elected(&mut candidate).await?;
        assert_eq!(last(&leadership).await?, None, "{name}");
        leadership.resign_with(name).await?;
    }
    let last = partition.last_checkpoint().await?.ok_or("saved above")?;
    assert_eq!((last.value(), last.is_final()), (&b"partition"[..], false));
    Ok(())
}

/// Another node may lead as soon as etcd has applied the transaction, long before its answer arrives.
#[tokio::test]
async fn work_that_is_asked_to_stop_acts_no_more_once_its_state_is_on_the_way() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let election = session.election("e")?;
    let shutdown = CancellationToken::new();
    let run = election.run(shutdown.clone(), async |leadership: Leadership| {
        shutdown.cancel();
        leadership.lost().cancelled().await;
        assert!(leadership.is_valid(), "until the last deadline");
        proxy.hold_responses();
        Ok::<_, BoxError>(leadership.step_down_with("7").await?)
    });
    let seen = async {
        saved(&mut client).await?;
        let term = election.term().ok_or("it led")?;
        assert!(!term.is_valid(), "the key is gone");
        proxy.heal();
        Ok::<_, BoxError>(())
    };
    let (done, seen) = soon("the end", Box::pin(futures::future::join(run, seen))).await;
    seen?;
    done?;
    Ok(())
}

/// The state of the first call may be saved, so no later call may say that nothing was.
#[tokio::test]
async fn call_after_one_that_gave_the_key_back_with_a_state_is_ambiguous() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
    let leadership = leading(&proxy).await?;
    proxy.hold_responses();
    tokio::select! {
        left = leadership.resign_with("first") => return Err(format!("{left:?}").into()),
        saved = saved(&mut client) => saved?,
    }
    proxy.heal();
    for state in ["second", "third"] {
        let error = soon("the key's end", leadership.resign_with(state)).await;
        let error = error.expect_err("given back");
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    }
    let saved = only_key(&mut client, CHECKPOINT).await;
    assert!(saved.value.ends_with("first"), "{saved:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn call_after_one_that_gave_the_key_back_without_a_state_saves_nothing() -> Result {
    let etcd = in_memory();
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    leadership.step_down().await?;
    let late = leadership.step_down_with("late").await;
    let error = late.expect_err("given back");
    assert_eq!(error.kind(), ErrorKind::LeadershipLost, "{error}");
    let mut client = etcd.client().await;
    assert!(keys(&mut client, CHECKPOINT).await.is_empty());
    Ok(())
}

/// etcd does not answer before the frozen deadline, so nobody knows whether the state is saved.
#[tokio::test]
async fn state_without_an_answer_until_the_frozen_deadline_is_ambiguous() -> Result {
    let (_etcd, proxy) = behind_a_proxy().await?;
    let leadership = leading(&proxy).await?;
    proxy.hold_responses();
    let error = soon("the deadline", leadership.resign_with("7")).await;
    let error = error.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    proxy.heal();
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn election_at_an_exact_prefix_has_no_checkpoints() -> Result {
    let etcd = in_memory();
    let session = etcd.session(options("a")).await?;
    let mut candidate = session.election_at("e")?.campaign().await?;
    let leadership = elected(&mut candidate).await?;
    for refused in [
        leadership.last_checkpoint().await.map(drop),
        leadership.checkpoint("7").await,
        leadership.resign_with("7").await,
        leadership.step_down_with("7").await,
    ] {
        let error = refused.expect_err("an exact prefix");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert!(leadership.is_valid());
    Ok(())
}

#[tokio::test]
async fn state_whose_answer_is_lost_is_saved_once() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
    let leadership = leading(&proxy).await?;
    proxy.hold_responses();
    let resigning = async {
        saved(&mut client).await?;
        proxy.heal();
        Ok::<_, BoxError>(())
    };
    let (resigned, healed) = tokio::join!(leadership.resign_with("once"), resigning);
    healed?;
    soon("the end", async { resigned }).await?;
    let found = client.get(CHECKPOINT, None).await?;
    assert_eq!(
        found.kvs().first().map(etcd_client::KeyValue::version),
        Some(1)
    );
    nothing_under(&mut client, "eldest/e/").await?;
    Ok(())
}
