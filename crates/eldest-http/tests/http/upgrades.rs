//! Tests the lifetime of connections and answers that pass through another node, or to the program beside the leader:
//! an upgraded connection ends with the leader's term, and an answer that has begun does not.

use std::net::SocketAddr;
use std::time::Duration;

use eldest::{Session, SessionOptions};
use eldest_http::{ForwardToLeader, program_router};
use eldest_testing::MemoryEtcd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::forward::{Node, app, head, two, until};
use crate::stage::{Result, SOON, listen};

/// Opens a connection that changes its protocol, and uses it. The handler at its other end never ends it.
async fn open(at: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(at).await?;
    let order = head(
        "GET",
        "/socket",
        "Connection: Upgrade\r\nUpgrade: lines\r\n",
    );
    stream.write_all(order.as_bytes()).await?;
    let answer = until(&mut stream, "\r\n\r\n").await?;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    works(&mut stream).await?;
    Ok(stream)
}

async fn works(stream: &mut TcpStream) -> Result {
    stream.write_all(b"line\n").await?;
    until(stream, "LINE\n").await?;
    Ok(())
}

async fn is_closed(mut stream: TcpStream) -> Result {
    let mut rest = Vec::new();
    // A reset closes it too.
    let end = timeout(SOON, stream.read_to_end(&mut rest)).await;
    end.map_err(|_| "the connection is open")?.ok();
    assert_eq!(String::from_utf8_lossy(&rest), "");
    Ok(())
}

/// A node that passes requests on, and never leads.
async fn observer(etcd: &MemoryEtcd, ttl: Duration) -> Result<(Session, SocketAddr)> {
    let options = SessionOptions::new("observer").ttl(ttl);
    let session = etcd.session(options).await?;
    let layer = ForwardToLeader::new(&session.election("team/e")?).await?;
    let at = listen(app("observer").layer(layer)).await?;
    Ok((session, at))
}

#[tokio::test]
async fn a_connection_through_another_node_is_closed_after_a_hand_over() -> Result {
    let etcd = MemoryEtcd::start();
    let (leader, other) = two(&etcd).await?;
    let through = open(other.at).await?;
    let mut with_leader = open(leader.at).await?;
    leader.election.step_down().await?;
    is_closed(through).await?;
    // The connection to the leader itself belongs to its handler.
    works(&mut with_leader).await?;
    open(other.at).await?;
    open(leader.at).await?;
    Ok(())
}

#[tokio::test]
async fn connection_through_another_node_ends_with_the_leadership_or_the_session() -> Result {
    for what in ["leadership", "session"] {
        let etcd = MemoryEtcd::start();
        let leader = Node::start(&etcd, "first").await?;
        let (session, at) = observer(&etcd, Duration::from_secs(60)).await?;
        let through = open(at).await?;
        if what == "leadership" {
            leader.run.stop();
            leader.run.await?;
        } else {
            session.close().await?;
            assert!(leader.election.is_leader());
        }
        is_closed(through).await?;
        session.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn connection_through_a_node_without_etcd_is_closed_in_time() -> Result {
    let etcd = MemoryEtcd::start();
    let leader = Node::start(&etcd, "first").await?;
    let (_session, at) = observer(&etcd, Duration::from_secs(2)).await?;
    let through = open(at).await?;
    etcd.pause();
    is_closed(through).await?;
    assert!(leader.election.is_leader(), "its TTL is far longer");
    Ok(())
}

#[tokio::test]
async fn connection_to_the_leaders_program_is_closed_with_the_term() -> Result {
    let etcd = MemoryEtcd::start();
    let leader = Node::start(&etcd, "first").await?;
    leader.leads().await?;
    let program = listen(app("program")).await?;
    let router = program_router(&leader.election, &program.to_string()).await?;
    let connection = open(listen(router).await?).await?;
    let mut with_program = open(program).await?;
    leader.election.step_down().await?;
    is_closed(connection).await?;
    works(&mut with_program).await
}

#[tokio::test]
async fn answer_that_has_begun_continues_after_a_hand_over() -> Result {
    let etcd = MemoryEtcd::start();
    let (leader, other) = two(&etcd).await?;
    let mut stream = TcpStream::connect(other.at).await?;
    let order = head("POST", "/echo", "Transfer-Encoding: chunked\r\n");
    stream.write_all(order.as_bytes()).await?;
    stream.write_all(b"6\r\nbefore\r\n").await?;
    until(&mut stream, "before").await?;
    leader.election.step_down().await?;
    other.leads().await?;
    stream.write_all(b"5\r\nafter\r\n0\r\n\r\n").await?;
    until(&mut stream, "after\r\n0\r\n\r\n").await?;
    Ok(())
}
