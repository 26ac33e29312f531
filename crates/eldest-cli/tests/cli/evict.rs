//! Tests `eldest evict`.

use eldest::{LostReason, Session};
use eldest_testing::{Etcd, eventually};

use crate::common::{DONE, NOT_DONE, Result, SOON, USAGE, at, join, keys, node, run, words};

async fn leader(session: &Session) -> Result<Option<String>> {
    let leader = session.election("jobs")?.leader().await?;
    Ok(leader.map(|leader| leader.identity().to_owned()))
}

#[tokio::test]
async fn evicted_candidate_learns_of_it_and_the_next_one_leads() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "jobs").await?;
    let leadership = first.elected().await?;
    let _second = join(&b, "jobs").await?;
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
async fn candidate_among_namesakes_is_selected_only_by_its_key() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let twins = (node(&etcd, "twin").await?, node(&etcd, "twin").await?);
    let _candidates = (join(&twins.0, "jobs").await?, join(&twins.1, "jobs").await?);
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
    let line = format!("evict jobs --id other --candidate {key} --yes");
    let other = run(at(&etcd, &words(&line))).await?;
    other.failed(NOT_DONE, &["no candidate of that name with that key"]);
    // The last level of the key selects the same candidate.
    let last = key.rsplit('/').next().ok_or("a last level")?;
    let line = format!("evict jobs --id twin --candidate {last} --yes --output json");
    let done = run(at(&etcd, &words(&line))).await?.done().json();
    assert_eq!(done["evicted"]["key"], key.as_str());
    assert_eq!(done["evicted"]["has_turn"], false);
    assert_eq!(done["leader"]["identity"], "twin");
    Ok(())
}

#[tokio::test]
async fn without_a_terminal_evict_requires_yes_and_deletes_nothing() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
    let refused = run(at(&etcd, &["evict", "jobs", "--id", "a"])).await?;
    refused.failed(USAGE, &["--yes"]);
    assert_eq!(leader(&a).await?.as_deref(), Some("a"));
    Ok(())
}

/// `script` gives the command a terminal, and passes on the answer that the test types.
#[tokio::test]
async fn on_a_terminal_evict_names_the_candidate_and_asks_for_confirmation() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
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
async fn missing_candidate_is_named_with_the_present_ones() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let missing = run(at(&etcd, &["evict", "jobs", "--id", "c", "--yes"])).await?;
    missing.failed(
        NOT_DONE,
        &["no candidate called \"c\"; there are no candidates"],
    );
    let _candidates = (join(&a, "jobs").await?, join(&b, "jobs").await?);
    let missing = run(at(&etcd, &["evict", "jobs", "--id", "c", "--yes"])).await?;
    missing.failed(NOT_DONE, &["there are a, b"]);
    let nobody = run(at(&etcd, &["evict", "jobs", "--yes"])).await?;
    nobody.failed(USAGE, &["--id NAME", "--candidate KEY"]);
    Ok(())
}
