//! Tests fenced transactions: the effect of each operation, etcd's answers, and conditions within them that hold or
//! not.

use eldest::{Comparison, Condition, Op, OpResult};

use crate::common::{Result, elected, in_memory, join_election};

#[tokio::test(start_paused = true)]
async fn each_operation_is_applied_and_its_outcome_returned() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, _, mut candidate) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut candidate).await?;
    let lease = client.lease_grant(60, None).await?.id();

    let outcome = leadership
        .txn([
            Op::put("x/1", "one"),
            Op::put_with_lease("x/2", "two", lease),
            Op::put("y", "other"),
            Op::get_prefix("x/"),
            Op::get("nowhere"),
        ])
        .await?;
    let found: Vec<_> = outcome.found().collect();
    assert_eq!(found.len(), 2, "{outcome:?}");
    assert_eq!(
        (found[0].key(), found[0].value_str()?),
        (&b"x/1"[..], "one")
    );
    assert_eq!((found[0].lease_id(), found[0].version()), (0, 1));
    assert_eq!(
        (found[1].key(), found[1].value()),
        (&b"x/2"[..], &b"two"[..])
    );
    assert_eq!(found[1].lease_id(), lease);
    assert_eq!(found[1].mod_revision(), outcome.revision());
    assert_eq!(found[1].create_revision(), outcome.revision());
    assert!(matches!(outcome.results()[0], OpResult::Put));
    assert!(matches!(&outcome.results()[4], OpResult::Found { entries, .. } if entries.is_empty()));

    let outcome = leadership
        .txn([Op::delete_prefix("x/"), Op::delete("y"), Op::delete("z")])
        .await?;
    let counts: Vec<_> = { outcome.results().iter() }
        .map(|result| match result {
            OpResult::Deleted { count, .. } => *count,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, [2, 1, 0]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_condition_compares_etcds_state_with_its_operand() -> Result {
    let etcd = in_memory();
    let (_session, _, mut candidate) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut candidate).await?;
    let first = leadership.txn([Op::put("k", "1")]).await?.revision();
    let last = leadership.txn([Op::put("k", "2")]).await?.revision();
    let (term, fence) = (leadership.term(), leadership.fence());
    assert_eq!(
        (fence.key(), fence.create_revision()),
        (term.key(), term.fencing_token())
    );

    let holds = [
        Condition::version("k", Comparison::Equal, 2),
        Condition::version("nowhere", Comparison::Equal, 0),
        Condition::create_revision("k", Comparison::Equal, first),
        Condition::create_revision("k", Comparison::Less, last),
        Condition::mod_revision("k", Comparison::Equal, last),
        Condition::mod_revision("k", Comparison::Greater, first),
        Condition::value("k", Comparison::Equal, "2"),
        Condition::value("k", Comparison::NotEqual, "1"),
        Condition::lease("k", Comparison::Equal, 0),
        fence.into(),
    ];
    for condition in &holds {
        let outcome = leadership
            .txn([Op::when([condition.clone()], [], [])])
            .await?;
        assert!(outcome.all_held(), "{condition:?}");
    }
    assert!(leadership.txn([Op::when(holds, [], [])]).await?.all_held());
    for condition in [
        Condition::version("k", Comparison::Greater, 2),
        Condition::create_revision("k", Comparison::Equal, last),
        Condition::mod_revision("k", Comparison::Less, last),
        Condition::value("k", Comparison::Equal, "1"),
        Condition::value("nowhere", Comparison::NotEqual, "1"),
        Condition::lease("k", Comparison::NotEqual, 0),
    ] {
        let outcome = leadership
            .txn([Op::when([condition.clone()], [], [])])
            .await?;
        assert!(!outcome.all_held(), "{condition:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn write_with_a_condition_on_its_base_is_not_applied_twice() -> Result {
    let etcd = in_memory();
    let (_session, _, mut candidate) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut candidate).await?;
    let read = leadership
        .txn([Op::put("count", "41"), Op::get("count")])
        .await?;
    let read = read.found().next().ok_or("written above")?.mod_revision();
    let unchanged = Condition::mod_revision("count", Comparison::Equal, read);
    let count = Op::when([unchanged], [Op::put("count", "42")], [Op::get("count")]);

    let once = leadership.txn([count.clone()]).await?;
    assert!(once.all_held());
    let twice = leadership.txn([count]).await?;
    assert!(!twice.all_held());
    let seen = twice.found().next().ok_or("the other branch reads")?;
    assert_eq!(
        (seen.value_str()?, seen.mod_revision()),
        ("42", once.revision())
    );
    Ok(())
}

#[cfg(feature = "etcd-client")]
#[tokio::test(start_paused = true)]
async fn fences_and_operations_convert_for_another_client() -> Result {
    use etcd_client::{Txn, TxnOp};

    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, _, mut candidate) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut candidate).await?;
    let txn = || {
        let absent = Condition::version("k", Comparison::Equal, 0);
        Txn::new()
            .when([leadership.fence().into(), absent.into()])
            .and_then([TxnOp::from(Op::put("k", "1"))])
    };
    assert!(client.txn(txn()).await?.succeeded());
    client.delete("k", None).await?;
    client.delete(leadership.key(), None).await?;
    assert!(
        !client.txn(txn()).await?.succeeded(),
        "the fence's key is gone"
    );
    Ok(())
}
