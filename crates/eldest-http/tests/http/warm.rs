//! Tests that a program beside a waiting node reports that it is prepared, and that a hand-over over HTTP waits for it.

use std::time::Duration;

use eldest_testing::{MemoryEtcd, eventually};

use crate::caller::{ask, get, post};
use crate::stage::{Result, SOON, Standing, options};

const E: &str = "/v1/elections/team%2Fe";
const WARM: &str = "/v1/elections/team%2Fe/warm";
/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(50 * 60);

async fn beside(etcd: &MemoryEtcd, identity: &str) -> Result<Standing> {
    let session = etcd.session(options(identity)).await?;
    let election = session.election("team/e")?.warm_within(LONG);
    Standing::as_candidate(session, election).await
}

/// Waits until a node shows the warmth of these candidates.
async fn shows(of: &Standing, wanted: serde_json::Value) -> Result {
    Ok(eventually(SOON, format!("{wanted}"), async || {
        let state = get(of.server.at, E).await.ok()?.json();
        let roster = state["roster"].as_array()?.iter();
        let warmths: Vec<_> = roster.map(|member| member["warm"].clone()).collect();
        (wanted == serde_json::Value::from(warmths)).then_some(())
    })
    .await?)
}

#[tokio::test]
async fn step_down_over_http_waits_until_the_next_program_is_prepared() -> Result {
    let etcd = MemoryEtcd::start();
    let (a, b) = (beside(&etcd, "a").await?, beside(&etcd, "b").await?);
    shows(&a, serde_json::json!([null, false])).await?;
    let refused = post(a.server.at, WARM).await?;
    refused.refused(409, "not_waiting");
    let detail = refused.json()["detail"].to_string();
    assert!(detail.contains("it leads, or is no candidate"), "{detail}");
    for (method, is_warm) in [("POST", true), ("DELETE", false)] {
        let said = ask(b.server.at, method, WARM, "").await?;
        let wanted = serde_json::json!({ "warm": is_warm });
        assert_eq!((said.status, said.json()), (200, wanted));
        shows(&a, serde_json::json!([null, is_warm])).await?;
    }
    let term = a.election.term().ok_or("a term")?;
    let at = a.server.at;
    let stepping_down = tokio::spawn(async move { post(at, &format!("{E}/step_down")).await });
    eventually(SOON, "the leader waits", async || {
        let answer = get(at, "/leader").await.ok()?;
        (answer.status == 200 && !stepping_down.is_finished()).then_some(())
    })
    .await?;
    assert_eq!(post(b.server.at, WARM).await?.status, 200);
    let answer = tokio::time::timeout(SOON, stepping_down).await???;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["released"], true);
    assert!(term.lost_reason().is_some());
    shows(&b, serde_json::json!([null, false])).await?;
    Ok(())
}
