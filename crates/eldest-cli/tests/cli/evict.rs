//! Tests `eldest evict`.

use eldest::LostReason;
use eldest_testing::Etcd;

use crate::common::{
    DONE, NOT_DONE, Result, SOON, USAGE, fails, join, keys, node, object, queue, queued, ran,
};

#[tokio::test]
async fn evicted_candidate_learns_of_it_and_the_next_one_leads() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "jobs").await?;
    let leadership = first.elected().await?;
    let _second = join(&b, "jobs").await?;
    let done = ran(&etcd, "evict jobs --id a --yes").await?;
    let said = "a is out of jobs; b leads now with token ";
    assert!(done.text().starts_with(said), "{done:?}");
    tokio::time::timeout(SOON, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::KeyDeleted));
    drop(leadership);
    queued(&b, &["b", "a"]).await
}

#[tokio::test]
async fn candidate_among_namesakes_is_selected_only_by_its_key() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let twins = (node(&etcd, "twin").await?, node(&etcd, "twin").await?);
    let _candidates = (join(&twins.0, "jobs").await?, join(&twins.1, "jobs").await?);
    let before = keys(&mut client).await?;
    let refused = ["2 candidates are called \"twin\"", &before[0], &before[1]];
    fails(&etcd, "evict jobs --id twin --yes", NOT_DONE, &refused).await?;
    assert_eq!(keys(&mut client).await?, before, "both stand");

    let roster = twins.0.election("jobs")?.roster().await?;
    let key = String::from_utf8(roster.members()[1].key().to_vec())?;
    let line = format!("evict jobs --id other --candidate {key} --yes");
    let other = "no candidate of that name with that key";
    fails(&etcd, &line, NOT_DONE, &[other]).await?;
    // The last level of the key selects the same candidate.
    let last = key.rsplit('/').next().ok_or("a last level")?;
    let line = format!("evict jobs --id twin --candidate {last} --yes");
    let done = object(&etcd, &line).await?;
    assert_eq!(done["evicted"]["key"], key.as_str());
    assert_eq!(done["evicted"]["has_turn"], false);
    assert_eq!(done["leader"]["identity"], "twin");
    Ok(())
}

/// `script` gives the command a terminal, and passes on the answer that the test types.
#[tokio::test]
async fn on_a_terminal_evict_names_the_candidate_and_asks_for_confirmation() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
    for (typed, code) in [("n\n", NOT_DONE), ("\n", NOT_DONE), ("yes\n", DONE)] {
        assert_eq!(queue(&a).await?, ["a"]);
        let (screen, ended) =
            crate::terminal::typed(&etcd, &["evict", "jobs", "--id", "a"], typed).await?;
        assert!(screen.contains("a leads jobs with token"), "{screen}");
        assert!(screen.contains("Delete its key eldest/jobs/"), "{screen}");
        assert_eq!(ended, code, "{screen}");
    }
    Ok(())
}

#[tokio::test]
async fn unnamed_or_missing_candidate_or_no_confirmation_evicts_nobody() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let empty = "no candidate called \"c\"; there are no candidates";
    fails(&etcd, "evict jobs --id c --yes", NOT_DONE, &[empty]).await?;
    let _candidates = (join(&a, "jobs").await?, join(&b, "jobs").await?);
    for (line, code, part) in [
        ("evict jobs --id c --yes", NOT_DONE, "there are a, b"),
        ("evict jobs --yes", USAGE, "--id NAME, or --candidate KEY"),
        // There is no terminal on which it could ask.
        ("evict jobs --id a", USAGE, "--yes"),
    ] {
        fails(&etcd, line, code, &[part]).await?;
    }
    assert_eq!(queue(&a).await?, ["a", "b"]);
    Ok(())
}
