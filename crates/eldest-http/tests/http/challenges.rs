//! Tests that the challenges by a node's session, and of it, are shown with their last step.

use eldest::{Challenges, internal};
use eldest_testing::{MemoryEtcd, crash};
use serde_json::{Value, json};

use crate::caller::{Events, get};
use crate::stage::{Result, Standing, answers, options};

const E: &str = "/v1/elections/team/e";

/// Returns true if the last challenge in the state has these parts.
fn last(state: &Value, by_this_node: bool, identity: &str, step: &str) -> bool {
    let last = state["challenges"].as_array().and_then(|all| all.last());
    let expected = json!([by_this_node, identity, step]);
    last.is_some_and(|it| json!([it["by_this_node"], it["identity"], it["step"]]) == expected)
}

#[tokio::test]
async fn challenges_are_shown_by_both_sides_until_the_silent_one_is_condemned() -> Result {
    let etcd = MemoryEtcd::start();
    let challenged = |name| options(name).challenges(Challenges::steady());
    let a = Standing::with(&etcd, challenged("a")).await?;
    answers(a.server.at, "/leader", 200).await?;
    let b = Standing::with(&etcd, challenged("b")).await?;
    let mut of_a = Events::follow(a.server.at, &format!("{E}/events")).await?;
    let mut of_b = Events::follow(b.server.at, &format!("{E}/events")).await?;
    let both = |state: &Value| state["roster"].as_array().is_some_and(|all| all.len() == 2);
    let state = of_a.until("both are seen", both).await?;
    assert_eq!(state["challenges"], json!([]));
    of_b.until("both are seen", both).await?;

    let lease = a.election.term().ok_or("it leads")?.lease_id();
    internal::suspect(&b.session, lease, true)?;
    let answered = of_a.until("answered", |it| last(it, false, "b", "answered"));
    let state = answered.await?;
    let shown = &state["challenges"][0];
    assert_eq!(shown["over"], json!(true));
    assert!(shown["since_unix_ms"].is_u64());
    let stands = of_b.until("it is suspected", |it| {
        it["challenges"][0]["by_this_node"] == true && it["challenges"][0]["over"] == false
    });
    let shown = &stands.await?["challenges"][0];
    assert_eq!(shown["identity"], json!("a"));
    assert_eq!(shown["lease_id"], json!(format!("{lease:x}")));
    internal::suspect(&b.session, lease, false)?;
    of_b.until("it is over", |it| it["challenges"][0]["over"] == true)
        .await?;

    crash(&a.session)?;
    internal::suspect(&b.session, lease, true)?;
    of_b.until("a challenge stands", |it| last(it, true, "a", "challenged"))
        .await?;
    of_b.until("it is condemned", |it| last(it, true, "a", "condemned"))
        .await?;
    Ok(())
}

#[tokio::test]
async fn session_that_allows_no_challenges_shows_null() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Standing::start(&etcd, "a").await?;
    assert_eq!(get(a.server.at, E).await?.json()["challenges"], Value::Null);
    Ok(())
}
