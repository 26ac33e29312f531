//! Tests observers of partitions, and refusals: another count, and counts out of bounds.

use eldest::{Announcement, CancellationToken, ErrorKind, Member};
use eldest_testing::eventually;

use super::membership::next;
use super::{PREFIX, Running, partitions, until_lost};
use crate::common::{Result, SOON, in_memory, keys, only_key, options, soon};

#[tokio::test(start_paused = true)]
async fn observers_see_the_owner_of_each_partition_and_its_address() -> Result {
    let etcd = in_memory();
    let (_eye, seen) = partitions(&etcd, "eye", 8).await?;
    let map = seen.map().await?;
    assert_eq!((map.members().len(), map.unowned().count()), (0, 8));
    let mut changes = seen.observe().await?;
    let first = soon("the first state", changes.next())
        .await
        .expect("open")?;
    assert_eq!(first.unowned().count(), 8);

    let mut members = Vec::new();
    for (name, address) in [("a", "10.0.0.1:80"), ("b", "10.0.0.2:80")] {
        let announcement = Announcement::new(name).with_address(address);
        let options = options(name).announcement(announcement);
        let session = etcd.session(options).await?;
        let running = Running::start(&session.partitions("billing", 8)?, until_lost);
        members.push((session, running));
        eventually(SOON, format!("{name} is a member"), async || {
            let map = seen.map().await.ok()?;
            let there = map.members().iter().any(|m| m.identity() == name);
            (there && map.unowned().next().is_none()).then_some(())
        })
        .await?;
    }
    let even = async {
        loop {
            let map = changes.next().await.expect("open").expect("permitted");
            let loads = map.members().iter();
            let loads: Vec<_> = loads.map(|m| map.partitions_of(m).count()).collect();
            if loads == [4, 4] {
                return map;
            }
        }
    };
    let map = soon("even", even).await;
    assert_eq!(map.count(), 8);
    assert!(map.revision() > first.revision());
    for (number, of) in map.iter() {
        let (_, owner) = &mut members[usize::from(of.identity() == "b")];
        // The key exists before its owner has learned of it.
        eventually(SOON, format!("{number} has its work"), async || {
            owner.owned().contains(&number).then_some(())
        })
        .await?;
        let address = format!("10.0.0.{}:80", 1 + u8::from(of.identity() == "b"));
        assert_eq!(of.address(), Some(&*address));
        let member = of.member().expect("is there");
        assert_eq!(member.lease_id(), of.lease_id());
        let token = owner.terms[&number].fencing_token();
        assert_eq!(of.fencing_token(), token);
    }
    let names: Vec<_> = map.members().iter().map(Member::identity).collect();
    assert_eq!(names, ["a", "b"], "the longest-standing first");
    assert!(map.owner(8).is_none());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn another_partition_count_is_refused_while_the_first_has_members() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (a, first) = partitions(&etcd, "a", 8).await?;
    let error = a.partitions("billing", 16).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    assert!(error.to_string().contains("shares 8"), "{error}");
    let (_b, second) = partitions(&etcd, "b", 16).await?;
    let mut changes = second.observe().await?;
    let mut state = async || soon("a state", changes.next()).await.expect("open");
    assert_eq!(state().await?.unowned().count(), 16, "nobody shares any");

    let mut member = first.join().await?;
    let again = soon("refused", first.join()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyCampaigning);
    let partition = next(&mut member).await?;
    let run = second.run(CancellationToken::new(), until_lost);
    for error in [
        soon("refused", second.join()).await.map(drop).unwrap_err(),
        soon("refused", run).await.map(drop).unwrap_err(),
        second.map().await.map(drop).unwrap_err(),
        state().await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::CountMismatch);
        let message = error.to_string();
        assert!(
            message.contains("16 partitions were requested"),
            "{message}"
        );
        assert!(message.contains("share 8"), "{message}");
    }
    assert_eq!(keys(&mut client, &format!("{PREFIX}16/")).await, []);
    assert_eq!(first.map().await?.members().len(), 1);

    // Not even the key of one partition whose work is ending may exist beside another count.
    let own = only_key(&mut client, &format!("{PREFIX}8/m-")).await;
    client.delete(own.path, None).await?;
    let error = soon("refused", second.join()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    drop(partition);
    soon("left", member.leave()).await?;
    assert_eq!(second.map().await?.members().len(), 0);
    let _member = soon("joined", second.join()).await?;
    // The stream goes on.
    loop {
        match state().await {
            Ok(map) if map.members().len() == 1 => return Ok(()),
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::CountMismatch),
        }
    }
}
