//! Tests signs of life between sessions: a silent leader is succeeded soon, one that is only unreachable keeps leading, and
//! a port is opened and closed with its session.

mod groups;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::common::{
    OnPort, Result, SOON, behind_a_proxy, elected, keys, leases, options, soon, stays,
};
use eldest::{Candidate, Challenges, ErrorKind, Leadership, Session, SessionOptions};
use eldest_testing::{MemoryEtcd, Proxy, crash, eventually};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The time to answer. The TTL of [`options`] is 30 times as long.
const D: Duration = Duration::from_secs(2);
const LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn listening() -> Challenges {
    Challenges::answer_within(D).listen(LOCAL)
}

fn with(identity: &str, challenges: Challenges) -> SessionOptions {
    options(identity).grace(D / 10).challenges(challenges)
}

async fn leading(session: &Session) -> Result<(Candidate, Leadership)> {
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    Ok((candidate, leadership))
}

async fn waiting(session: &Session) -> Result<Candidate> {
    Ok(soon("campaign", session.election("e")?.campaign()).await?)
}

/// Returns the address that the anchor of a lease announces.
async fn advertised(etcd: &MemoryEtcd, lease: i64) -> Result<String> {
    let anchors = keys(&mut etcd.client().await, "eldest/~session/").await;
    let own = anchors.iter().find(|key| key.lease == lease);
    let (_, address) = own
        .and_then(|key| key.value.split_once(' '))
        .ok_or("an anchor")?;
    Ok(address.to_owned())
}

/// Waits until the session at that address gives signs of life to another one.
async fn asked(etcd: &MemoryEtcd, lease: i64) -> Result {
    let address = advertised(etcd, lease).await?;
    let mut hello = b"eldest\x01".to_vec();
    hello.extend(lease.to_be_bytes());
    Ok(eventually(SOON, "a sign of life", async || {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = TcpStream::connect(&address).await.ok()?;
        stream.write_all(&hello).await.ok()?;
        (stream.read_u8().await.ok()? == 1).then_some(())
    })
    .await?)
}

/// Returns how long a successor took at least, if the leader fell silent at `begun`.
fn took(begun: Instant) -> Duration {
    let (took, least) = (begun.elapsed(), D.mul_f64(1.001) + D / 20);
    assert!(took >= least, "it was condemned too early: {took:?}");
    took
}

/// Waits until the second candidate leads in place of the first one, which fell silent at `begun`.
async fn succeeded(first: &Leadership, second: &mut Candidate, begun: Instant) -> Result {
    let next = elected(second).await?;
    took(begun);
    assert!(!first.is_valid() && next.is_valid());
    Ok(())
}

/// Its process answers, but the task that reads learns nothing.
#[tokio::test]
async fn leader_that_is_cut_off_from_etcd_is_succeeded() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let a = Session::connect([proxy.endpoint()], with("a", listening())).await?;
    let b = Session::connect([etcd.endpoint()], with("b", listening())).await?;
    let (_candidate, first) = leading(&a).await?;
    let mut second = waiting(&b).await?;
    asked(&etcd, first.lease_id()).await?;
    let begun = Instant::now();
    proxy.cut();
    succeeded(&first, &mut second, begun).await
}

/// Returns an address at which nothing listens.
async fn nowhere() -> Result<SocketAddr> {
    Ok(TcpListener::bind(LOCAL).await?.local_addr()?)
}

/// Checks that the leader is challenged, and goes on leading.
async fn keeps_leading(etcd: &MemoryEtcd, first: &Leadership) -> Result {
    let mut client = etcd.client().await;
    let watch = etcd_client::WatchOptions::new().with_prefix();
    let (path, lease) = ("eldest/~session/", first.lease_id());
    let below = format!("{path}{lease:x}/challenges/");
    let mut challenged = client.watch(below, Some(watch)).await?;
    let is_put = async {
        while let Some(answer) = challenged.message().await? {
            if !answer.events().is_empty() {
                return Ok::<_, etcd_client::Error>(true);
            }
        }
        Ok(false)
    };
    assert!(soon("a challenge", is_put).await?);
    stays(D * 2, "it leads", async || first.is_valid()).await?;
    assert_eq!(first.lost_reason(), None);
    Ok(())
}

/// The leader, its successor and etcd are well. Only the link between both breaks: wholly, or one way, or it is silent.
#[tokio::test]
async fn leader_whose_link_to_its_successor_breaks_keeps_leading_until_it_is_silent() -> Result {
    let refuses_requests = |proxy: &Proxy| {
        proxy.hold_requests();
        // The leader would give signs of life to the successor's former connection for a while.
        proxy.drop_connections();
    };
    let breaks: [fn(&Proxy); 4] = [
        Proxy::cut,
        Proxy::hold,
        refuses_requests,
        Proxy::hold_responses,
    ];
    let each = breaks.map(|breaks| async move {
        let etcd = MemoryEtcd::start();
        let port = nowhere().await?;
        let link = Proxy::start(port.to_string()).await?;
        let behind = listening().listen(port).advertise(link.address());
        let a = etcd.session(with("a", behind)).await?;
        let b = etcd.session(with("b", listening())).await?;
        let (_candidate, first) = leading(&a).await?;
        let mut second = waiting(&b).await?;
        asked(&etcd, first.lease_id()).await?;
        breaks(&link);
        keeps_leading(&etcd, &first).await?;
        link.heal();
        asked(&etcd, first.lease_id()).await?;
        let begun = Instant::now();
        crash(&a)?;
        succeeded(&first, &mut second, begun).await
    });
    futures::future::try_join_all(each).await?;
    Ok(())
}

#[tokio::test]
async fn port_that_is_taken_is_an_error_and_leaves_nothing() -> Result {
    let etcd = OnPort::start().await?;
    let taken = TcpListener::bind(LOCAL).await?;
    let address = taken.local_addr()?;
    let challenges = listening().listen(address);
    let error = Session::connect([etcd.endpoint()], with("a", challenges.clone())).await;
    let error = error.err().ok_or("refused")?;
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let message = error.to_string();
    let rule = format!("challenges cannot listen at {address}");
    assert!(message.contains(&rule), "{message}");
    let mut client = etcd.client().await;
    assert_eq!(keys(&mut client, "").await, []);
    assert_eq!(leases(&mut client).await, 0);
    drop(taken);
    Session::connect([etcd.endpoint()], with("a", challenges)).await?;
    Ok(())
}

#[tokio::test]
async fn port_is_closed_with_its_session() -> Result {
    let etcd = MemoryEtcd::start();
    for ends in [true, false] {
        let a = etcd.session(with("a", listening())).await?;
        let (candidate, first) = leading(&a).await?;
        let address = advertised(&etcd, first.lease_id()).await?;
        asked(&etcd, first.lease_id()).await?;
        if ends {
            drop((candidate, first));
            a.close().await?;
        } else {
            drop((candidate, first, a));
        }
        eventually(SOON, "the port is closed", async || {
            TcpStream::connect(&address).await.err()
        })
        .await?;
    }
    Ok(())
}
