//! Tests that a node shows the version of each candidate, and the newest version that led.

use eldest_testing::{MemoryEtcd, eventually};
use serde_json::{Value, json};

use crate::caller::get;
use crate::stage::{Result, SOON, Standing, answers, options};

const E: &str = "/v1/elections/team%2Fe";

async fn beside(etcd: &MemoryEtcd, identity: &str, version: &str) -> Result<Standing> {
    let session = etcd.session(options(identity)).await?;
    let election = session.election("team/e")?;
    let election = election.require_version(version.parse()?);
    Standing::as_candidate(session, election).await
}

/// Waits until a node shows that newest version, and these versions of the candidates.
async fn shows(of: &Standing, newest: Value, versions: Value) -> Result {
    let wanted = (newest, versions);
    Ok(eventually(SOON, format!("{wanted:?}"), async || {
        let state = get(of.server.at, E).await.ok()?.json();
        let roster = state["roster"].as_array()?.iter();
        let versions: Vec<_> = roster.map(|member| member["version"].clone()).collect();
        let shown = (state["newest_version"].clone(), Value::from(versions));
        (shown == wanted).then_some(())
    })
    .await?)
}

#[tokio::test]
async fn versions_of_the_candidates_and_the_newest_that_led_are_shown() -> Result {
    let etcd = MemoryEtcd::start();
    let a = beside(&etcd, "a", "2.0").await?;
    answers(a.server.at, "/leader", 200).await?;
    let b = beside(&etcd, "b", "1.10").await?;
    for node in [&a, &b] {
        shows(node, json!("2.0"), json!(["2.0", "1.10"])).await?;
    }
    b.election.remove_version_mark().await?;
    shows(&b, Value::Null, json!(["2.0", "1.10"])).await
}
