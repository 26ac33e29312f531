//! Tests the recording of a term from within a node.

use std::time::Duration;

use eldest::{Session, SessionOptions};
use eldest_testing::history::{Event, Recorder, What};
use eldest_testing::{Etcd, eventually};
use tokio::time::timeout;

use crate::{GUARD, Result};

#[tokio::test]
async fn a_followed_term_is_sampled_from_its_election_to_its_end() -> Result {
    let etcd = Etcd::start().await?;
    let options = SessionOptions::new("n1").ttl(Duration::from_secs(2));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let recorder = Recorder::boottime();
    let mut candidate = session.election("jobs")?.campaign().await?;

    let leadership = candidate.elected().await?;
    let first = leadership.fencing_token();
    let followed = tokio::spawn(recorder.follow("n1", leadership.term()));
    let valid = |event: &Event| matches!(event.what, What::Valid { .. });
    eventually(GUARD, "it is sampled", async || {
        let history = recorder.history().ok()?;
        (history.events().iter().filter(|event| valid(event)).count() >= 3).then_some(())
    })
    .await?;
    // While etcd is stopped, the token is cancelled and the rest of the validity passes.
    etcd.pause();
    timeout(GUARD, followed).await??;
    etcd.resume();
    drop(leadership);

    let leadership = candidate.elected().await?;
    let second = leadership.fencing_token();
    let followed = recorder.follow("n1", leadership.term());
    leadership.resign().await?; // before its first check
    timeout(GUARD, followed).await?;

    let history = recorder.history()?;
    let events = history.events();
    assert!(
        events
            .iter()
            .all(|event| (&*event.node, &*event.election) == ("n1", "jobs"))
    );
    let mut seen: Vec<String> = events.iter().map(|event| event.what.to_string()).collect();
    seen.dedup();
    let expected = [
        format!("elected {first}"),
        format!("valid {first}"),
        format!("lost {first} (lease_expiring)"),
        format!("valid {first}"), // the grace period
        format!("not valid {first}"),
        format!("elected {second}"),
        format!("not valid {second}"),
        format!("lost {second} (resigned)"),
    ];
    assert_eq!(seen, expected);
    let samples = events
        .iter()
        .filter(|event| event.what == What::Valid { token: first });
    let times: Vec<Duration> = samples.map(|event| event.at).collect();
    let longest = times
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .max();
    assert!(
        longest < Some(Duration::from_millis(300)),
        "every 10 ms, though the machine may be busy: {longest:?}"
    );
    Ok(())
}
