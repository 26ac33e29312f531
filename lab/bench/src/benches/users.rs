//! `users`: one session of an etcd user that is a candidate in many elections and leads them all. etcd checks each key
//! of a lease for every key that a user puts under it.

use std::future::pending;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use eldest::{Credentials, Election, Leadership, Session, SessionOptions, SessionState};
use eldest_testing::Etcd;
use etcd_client::{Client, Permission};
use futures::FutureExt;

use super::Bench;
use crate::peer::TTL;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::{Samples, nanos};

pub(super) const BENCH: Bench = Bench {
    name: "users",
    about: "1,000, 2,000 and 6,000 elections in one session of a user of etcd: leading all, on one lease",
    checked: false,
    for_each_kind: false,
    others: &[],
    run: |run| measure(run).boxed(),
    peer: |_, _| async { bail!("users has no peers") }.boxed(),
};

const NAME: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(10);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let sizes: &[usize] = if run.options.quick {
        &[1_000]
    } else {
        &[1_000, 2_000, 6_000]
    };
    for n in sizes.iter().copied() {
        let samples = Samples::from_iter([nanos(lead(n).await?) / 1e6]);
        let group = Group {
            what: "lead",
            ..run.group(n, "ms")
        };
        let peer = "eldest".to_owned();
        run.report.rows(group, &[Row { peer, samples }]);
    }
    Ok(())
}

/// Returns how long it takes to lead so many elections. Fails if the lease is lost meanwhile.
async fn lead(n: usize) -> Result<Duration> {
    let etcd = Etcd::start().await.map_err(|error| anyhow!("{error}"))?;
    let mut client = Client::connect([etcd.endpoint()], None).await?;
    for (user, role) in [("root", "root"), (NAME, NAME)] {
        client.user_add(user, NAME, None).await?;
        client.role_add(role).await?;
        client.user_grant_role(user, role).await?;
    }
    let below = Permission::read_write(format!("{NAME}/")).with_prefix();
    client.role_grant_permission(NAME, below).await?;
    client.auth_enable().await?;
    let options = SessionOptions::new(NAME).namespace(NAME).ttl(TTL);
    let options = options.credentials(Credentials::new(NAME, NAME));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let lease = session.ready().await?.lease_id();
    let elections: Vec<_> = (0..n)
        .map(|number| session.election(format!("e{number}")))
        .collect::<eldest::Result<_>>()?;
    let begun = Instant::now();
    let work = async |_leadership: Leadership| pending::<Result<()>>().await;
    let runs: Vec<_> = elections
        .iter()
        .map(|election| election.spawn(pending::<()>(), work))
        .collect();
    while !elections.iter().all(Election::is_leader) {
        if begun.elapsed() > PATIENCE {
            let led = elections.iter().filter(|one| one.is_leader()).count();
            bail!("{led} of {n} lead after {PATIENCE:?}");
        }
        tokio::time::sleep(LOOK).await;
    }
    let took = begun.elapsed();
    match &*session.state().borrow() {
        SessionState::Live(view) if view.lease_id() == lease => {}
        other => bail!("the lease was lost: {other:?}"),
    }
    drop(runs);
    session.close().await.context("closing the session")?;
    Ok(took)
}
