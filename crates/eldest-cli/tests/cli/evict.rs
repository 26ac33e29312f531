//! `eldest evict`.

use eldest::{LostReason, Session};
use eldest_testing::{Etcd, eventually};

use crate::common::{DONE, NOT_DONE, Result, SOON, USAGE, at, keys, node, put, run, stand};

async fn leader(session: &Session) -> Result<Option<String>> {
    let leader = session.election("jobs")?.leader().await?;
    Ok(leader.map(|leader| leader.identity().to_owned()))
}

#[tokio::test]
async fn the_named_one_is_out_and_hears_of_it_and_the_next_one_leads() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = stand(&a, "jobs").await?;
    let leadership = first.elected().await?;
    let _second = stand(&b, "jobs").await?;
    let done = run(at(&etcd, &["evict", "jobs", "--id", "a", "--yes"])).await?;
    let output = &done.done().stdout;
    assert!(
        output.starts_with("a is out of jobs; b leads now with token "),
        "{output}"
    );
    tokio::time::timeout(SOON, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::KeyDeleted));
    drop(leadership);
    eventually(SOON, "it stands again, behind", async || {
        let roster = b.election("jobs").ok()?.roster().await.ok()?;
        let names = roster.members().iter().map(eldest::Member::identity);
        names.eq(["b", "a"]).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn one_of_several_of_a_name_is_chosen_by_its_key_and_by_nothing_less() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let twins = (node(&etcd, "twin").await?, node(&etcd, "twin").await?);
    let _candidates = (
        stand(&twins.0, "jobs").await?,
        stand(&twins.1, "jobs").await?,
    );
    let before = keys(&mut client).await?;
    let refused = run(at(&etcd, &["evict", "jobs", "--id", "twin", "--yes"])).await?;
    let parts = [
        "2 candidates are called \"twin\"",
        before[0].as_str(),
        before[1].as_str(),
    ];
    refused.failed(NOT_DONE, &parts);
    assert_eq!(keys(&mut client).await?, before, "both stand");

    let roster = twins.0.election("jobs")?.roster().await?;
    let second = &roster.members()[1];
    let key = String::from_utf8(second.key().to_vec())?;
    let other = run(at(
        &etcd,
        &[
            "evict",
            "jobs",
            "--id",
            "other",
            "--candidate",
            &key,
            "--yes",
        ],
    ))
    .await?;
    other.failed(NOT_DONE, &["no candidate of that name with that key"]);
    // The last level is enough, and says the same.
    let last = key.rsplit('/').next().ok_or("a last level")?;
    let args = [
        "evict",
        "jobs",
        "--id",
        "twin",
        "--candidate",
        last,
        "--yes",
        "--output",
        "json",
    ];
    let done = run(at(&etcd, &args)).await?.done().json();
    assert_eq!(done["evicted"]["key"], key.as_str());
    assert_eq!(done["evicted"]["has_turn"], false);
    assert_eq!(done["leader"]["identity"], "twin");
    Ok(())
}

#[tokio::test]
async fn what_blocks_an_election_is_taken_away_by_its_key() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    put(&mut client, "eldest/jobs/immortal", "old").await?;
    let a = node(&etcd, "a").await?;
    let _candidate = stand(&a, "jobs").await?;
    assert_eq!(leader(&a).await?, None);
    let args = ["evict", "jobs", "--candidate", "immortal", "--yes"];
    run(at(&etcd, &args)).await?.done();
    assert_eq!(leader(&a).await?.as_deref(), Some("a"));
    Ok(())
}

#[tokio::test]
async fn without_a_terminal_it_asks_for_yes_and_does_nothing() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidate = stand(&a, "jobs").await?;
    let refused = run(at(&etcd, &["evict", "jobs", "--id", "a"])).await?;
    refused.failed(USAGE, &["--yes"]);
    assert_eq!(leader(&a).await?.as_deref(), Some("a"));
    Ok(())
}

/// `script` gives it a terminal, and passes on what we type.
#[tokio::test]
async fn on_a_terminal_it_says_whom_and_asks() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidate = stand(&a, "jobs").await?;
    for (typed, code) in [("n\n", NOT_DONE), ("\n", NOT_DONE), ("yes\n", DONE)] {
        let before = leader(&a).await?;
        assert_eq!(before.as_deref(), Some("a"));
        let (screen, ended) =
            crate::terminal::typed(&etcd, &["evict", "jobs", "--id", "a"], typed).await?;
        assert!(screen.contains("a leads jobs with token"), "{screen}");
        assert!(screen.contains("Delete its key eldest/jobs/"), "{screen}");
        assert_eq!(ended, code, "{screen}");
    }
    Ok(())
}

#[tokio::test]
async fn whom_it_cannot_find_it_names_with_those_who_are_there() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let missing = run(at(&etcd, &["evict", "jobs", "--id", "c", "--yes"])).await?;
    missing.failed(
        NOT_DONE,
        &["no candidate called \"c\"; there are no candidates"],
    );
    let _candidates = (stand(&a, "jobs").await?, stand(&b, "jobs").await?);
    let missing = run(at(&etcd, &["evict", "jobs", "--id", "c", "--yes"])).await?;
    missing.failed(NOT_DONE, &["there are a, b"]);
    let nobody = run(at(&etcd, &["evict", "jobs", "--yes"])).await?;
    nobody.failed(USAGE, &["--id NAME", "--candidate KEY"]);
    Ok(())
}
