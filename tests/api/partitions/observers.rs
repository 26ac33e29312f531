//! Tests observers of partitions, and refusals: another count, and counts out of bounds.

use eldest::{Announcement, CancellationToken, ErrorKind, Member};
use eldest_testing::eventually;

use super::membership::next;
use super::{PREFIX, Running, partitions, until_lost};
use crate::common::{Result, SOON, in_memory, keys, options, session, soon};

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
    let mut member = first.join().await?;
    let partition = next(&mut member).await?;

    let (_b, second) = partitions(&etcd, "b", 16).await?;
    let error = soon("refused", second.join()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    let message = error.to_string();
    assert!(
        message.contains("16 partitions were requested"),
        "{message}"
    );
    assert!(message.contains("share 8"), "{message}");
    let run = second.run(CancellationToken::new(), until_lost);
    let error = soon("refused", run).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    assert_eq!(keys(&mut client, &format!("{PREFIX}16/")).await, []);

    // Not even the key of one partition whose work is ending may exist beside another count.
    let own = only_member(&mut client).await;
    client.delete(own, None).await?;
    let error = soon("refused", second.join()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    drop(partition);
    soon("left", member.leave()).await?;
    let _member = soon("joined", second.join()).await?;
    Ok(())
}

async fn only_member(client: &mut etcd_client::Client) -> String {
    let members = keys(client, &format!("{PREFIX}8/m-")).await;
    assert_eq!(members.len(), 1);
    members[0].path.clone()
}

#[tokio::test(start_paused = true)]
async fn invalid_partitions_are_refused_with_the_rule() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    for (name, count, rule) in [
        ("billing", 0, "is 0; it must be from 1 to 65536"),
        ("billing", 65_537, "is 65537; it must be from 1 to 65536"),
        ("", 8, "empty"),
        ("a//b", 8, "'//'"),
        ("~a", 8, "begin with '~'"),
    ] {
        let error = session.partitions(name, count).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(rule), "{error}");
    }
    let partitions = session.partitions("billing", 8)?;
    let _election = session.election("billing")?; // names of their own
    let nested = session.partitions("billing/eu", 8).unwrap_err();
    assert!(
        nested.to_string().contains("nests with \"billing\""),
        "{nested}"
    );
    let _member = partitions.join().await?;
    let again = soon("refused", partitions.join()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyCampaigning);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn observers_with_another_count_get_an_error_while_the_first_is_used() -> Result {
    let etcd = in_memory();
    let (_a, first) = partitions(&etcd, "a", 8).await?;
    let (_eye, other) = partitions(&etcd, "eye", 16).await?;
    let mut changes = other.observe().await?;
    let state = soon("a state", changes.next()).await.expect("open")?;
    assert_eq!(state.unowned().count(), 16, "nobody shares any");

    let mut member = first.join().await?;
    let error = other.map().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    let message = error.to_string();
    assert!(
        message.contains("16 partitions were requested, but others share 8"),
        "{message}"
    );
    let error = soon("a change", changes.next())
        .await
        .expect("open")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CountMismatch);
    assert_eq!(first.map().await?.members().len(), 1);

    soon("left", member.leave()).await?;
    assert_eq!(other.map().await?.members().len(), 0);
    let _member = soon("joined", other.join()).await?;
    let joined = async {
        loop {
            match changes.next().await.expect("open") {
                Ok(map) if map.members().len() == 1 => return,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::CountMismatch),
            }
        }
    };
    soon("it goes on", joined).await;
    Ok(())
}
