//! Tests groups whose members listen at real ports: a silent member is gone from the list after its time to answer.

use std::time::Duration;

use super::{D, Result, asked, listening, nowhere, took, with};
use crate::common::{OnPort, Store, Thread, identities, options, soon};
use eldest::{GroupMembership, Observer, Roster, Session, SessionOptions, Status};
use eldest_testing::{Proxy, crash, crashable_session};
use tokio::time::Instant;

/// The longest silence before a suspicion: that of a connection that was made and never answered.
const SILENCE: Duration = Duration::from_secs(1);

/// Returns the next list of exactly these members.
async fn listed(changes: &mut Observer, wanted: &[&str]) -> Result<Roster> {
    loop {
        let change = soon("a change", changes.next()).await;
        let roster = change.ok_or("it ended")??;
        if identities(&roster) == wanted {
            return Ok(roster);
        }
    }
}

/// Observes the group as another node, which is no member.
async fn observe(etcd: &OnPort) -> Result<Observer> {
    let session = etcd.session(options("observer")).await?;
    Ok(session.group("g")?.observe().await?)
}

async fn join(endpoint: String, options: SessionOptions) -> Result<(Session, GroupMembership)> {
    let session = crashable_session([endpoint], options).await?;
    let membership = soon("join", session.group("g")?.join()).await?;
    Ok((session, membership))
}

/// Waits until all three members give signs of life.
async fn all_live(etcd: &OnPort, changes: &mut Observer) -> Result {
    let all = listed(changes, &["a", "b", "c"]).await?;
    for member in all.members() {
        asked(etcd, member.lease_id()).await?;
    }
    Ok(())
}

/// Waits until only the others are listed: not before the member's time to answer is over, and not later than a suspicion
/// and the two requests of a challenge take, each of which has a quarter of that time.
async fn is_gone(changes: &mut Observer, others: [&str; 2], begun: Instant) -> Result {
    listed(changes, &others).await?;
    let took = took(begun);
    let most = SILENCE + D.mul_f64(1.001) + D / 20 + D / 4 * 2;
    assert!(took < most, "{took:?}, more than {most:?}");
    Ok(())
}

/// The next members watch the eldest, and the eldest watch the youngest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_hangs_is_gone_from_the_list_after_its_time_to_answer() -> Result {
    let each = [("a", ["b", "c"]), ("c", ["a", "b"])].map(|(hangs, others)| async move {
        let etcd = OnPort::start().await?;
        let mut changes = observe(&etcd).await?;
        let thread = Thread::start()?;
        let mut members = Vec::new();
        for identity in ["a", "b", "c"] {
            let joining = join(etcd.endpoint().to_owned(), with(identity, listening()));
            members.push(if identity == hangs {
                thread.handle().spawn(joining).await??
            } else {
                joining.await?
            });
        }
        all_live(&etcd, &mut changes).await?;
        let begun = Instant::now();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        // Its only worker.
        thread.handle().spawn(async move {
            let _ = blocked.recv();
        });
        is_gone(&mut changes, others, begun).await?;
        drop(release);
        let [first, second] = others;
        listed(&mut changes, &[first, second, hangs]).await?;
        Ok::<_, eldest::BoxError>(())
    });
    futures::future::try_join_all(each).await?;
    Ok(())
}

/// No connection is closed: neither those from other members, nor those to etcd.
#[tokio::test]
async fn member_whose_host_is_cut_off_is_gone_from_the_list_after_its_time_to_answer() -> Result {
    let each = [false, true].map(|is_killed| async move {
        let etcd = OnPort::start().await?;
        let mut changes = observe(&etcd).await?;
        let port = nowhere().await?;
        let links = [
            Proxy::start(port.to_string()).await?,
            Proxy::start(etcd.endpoint()).await?,
        ];
        let behind = listening().listen(port).advertise(links[0].address());
        let (session, membership) = join(links[1].endpoint(), with("a", behind)).await?;
        let mut others = Vec::new();
        for identity in ["b", "c"] {
            let options = with(identity, listening());
            others.push(join(etcd.endpoint().to_owned(), options).await?);
        }
        all_live(&etcd, &mut changes).await?;
        let begun = Instant::now();
        links.iter().for_each(Proxy::hold);
        if is_killed {
            crash(&session)?;
        }
        is_gone(&mut changes, ["b", "c"], begun).await?;
        if !is_killed {
            assert_ne!(membership.status(), Status::Present, "no clean read counts");
            links.iter().for_each(Proxy::heal);
            listed(&mut changes, &["b", "c", "a"]).await?;
        }
        Ok::<_, eldest::BoxError>(())
    });
    futures::future::try_join_all(each).await?;
    Ok(())
}
