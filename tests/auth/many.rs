//! Tests a session with more keys than etcd checks at ease for each put of a user.

use std::future::pending;

use eldest::{Leadership, SessionOptions};
use eldest_testing::eventually;

use super::{Guarded, LONG, Result};
use crate::capture::Logs;

/// A transaction of 64 puts takes etcd about 150 ms at this number of keys.
const ELECTIONS: usize = 3000;

#[tokio::test]
async fn thousands_of_elections_of_a_user_join_without_losing_the_lease() -> Result {
    let (logs, _guard) = Logs::capture();
    let guarded = Guarded::start(&[]).await?;
    let options = SessionOptions::new("me").namespace("ns");
    let options = options.credentials(Guarded::credentials("me"));
    let session = eldest::Session::connect([guarded.etcd.endpoint()], options).await?;
    let elections: Vec<_> = (0..ELECTIONS)
        .map(|number| session.election(format!("e{number}")))
        .collect::<eldest::Result<_>>()?;
    let work = async |_leadership: Leadership| pending::<Result>().await;
    let runs: Vec<_> = elections
        .iter()
        .map(|election| election.spawn(pending::<()>(), work))
        .collect();
    eventually(3 * LONG, "all lead", async || {
        elections
            .iter()
            .all(eldest::Election::is_leader)
            .then_some(())
    })
    .await?;
    assert_eq!(logs.of("eldest::session", "lease granted", &[]).len(), 1);
    assert!(logs.of("eldest::session", "lease lost", &[]).is_empty());
    let message = "a lease with so many keys is slow on an etcd with users: use another session for some of them";
    logs.one("eldest::session", message, &[("identity", "me")]);
    // Nothing is released: the end of so many keys has a limit of its own, and this etcd ends with the test.
    drop((runs, session, guarded));
    Ok(())
}
