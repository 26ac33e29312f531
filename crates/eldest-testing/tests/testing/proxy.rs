//! Tests the proxy: it passes bytes on, holds them back, delays them and cuts connections.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use eldest_testing::{Proxy, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::{GUARD, Result, WHILE};

/// A server that sends back the bytes that it receives, and counts them.
struct Echo {
    address: String,
    heard: Arc<AtomicUsize>,
}

impl Echo {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let heard = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let counter = Arc::clone(&counter);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 65_536];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        counter.fetch_add(count, Ordering::SeqCst);
                        if stream.write_all(&buffer[..count]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Ok(Self { address, heard })
    }

    fn heard(&self) -> usize {
        self.heard.load(Ordering::SeqCst)
    }

    async fn has_heard(&self, bytes: usize) -> Result {
        let what = format!("the server hears {bytes} bytes");
        Ok(eventually(GUARD, what, async || (self.heard() == bytes).then_some(())).await?)
    }
}

async fn answer(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 64];
    let count = timeout(GUARD, stream.read(&mut buffer)).await??;
    buffer.truncate(count);
    Ok(buffer)
}

async fn assert_silent(stream: &mut TcpStream) {
    let silent = timeout(WHILE, stream.read_u8()).await;
    assert!(silent.is_err(), "{silent:?}");
}

async fn assert_reset(stream: &mut TcpStream) {
    let read = timeout(GUARD, stream.read_u8()).await.expect("at once");
    assert_eq!(read.map_err(|e| e.kind()), Err(ErrorKind::ConnectionReset));
}

async fn assert_echoes(stream: &mut TcpStream) -> Result {
    stream.write_all(b"hello").await?;
    assert_eq!(answer(stream).await?, b"hello");
    Ok(())
}

async fn proxied() -> Result<(Echo, Proxy, TcpStream)> {
    let echo = Echo::start().await?;
    let proxy = Proxy::start(&echo.address).await?;
    let mut stream = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut stream).await?;
    Ok((echo, proxy, stream))
}

#[tokio::test]
async fn a_proxy_passes_bytes_both_ways_on_several_connections() -> Result {
    let (echo, proxy, mut first) = proxied().await?;
    let mut second = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut second).await?;
    assert_echoes(&mut first).await?;
    assert_eq!(proxy.connections(), 2);
    echo.has_heard(15).await?;
    // The data exceed one piece. The end of the input also reaches the server and comes back.
    let much = vec![7; 3_000_000];
    let (mut reading, mut writing) = first.into_split();
    let write = async {
        writing.write_all(&much).await?;
        writing.shutdown().await
    };
    let mut back = Vec::new();
    let both = async { tokio::try_join!(write, reading.read_to_end(&mut back)) };
    timeout(GUARD, both).await??;
    assert!(back == much);
    assert_eq!((proxy.held_requests(), proxy.held_responses()), (0, 0));
    Ok(eventually(GUARD, "one connection is left", async || {
        (proxy.connections() == 1).then_some(())
    })
    .await?)
}

#[tokio::test]
async fn a_cut_resets_connections_and_refuses_new_ones_until_healed() -> Result {
    let (_echo, proxy, mut stream) = proxied().await?;
    for _ in 0..3 {
        proxy.cut();
        assert_reset(&mut stream).await;
        let refused = TcpStream::connect(proxy.address()).await;
        assert_eq!(
            refused.map_err(|e| e.kind()).err(),
            Some(ErrorKind::ConnectionRefused)
        );
        proxy.heal();
        stream = TcpStream::connect(proxy.address()).await?;
        assert_echoes(&mut stream).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_cut_refuses_connections_while_processes_are_started() -> Result {
    let (_echo, proxy, _stream) = proxied().await?;
    let done = Arc::new(AtomicBool::new(false));
    let starts = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let mut starts = 0;
            while !done.load(Ordering::SeqCst) {
                let status = std::process::Command::new("true").status();
                assert!(status.expect("`true` is started").success());
                starts += 1;
            }
            starts
        }
    });
    for _ in 0..300 {
        proxy.cut();
        let refused = TcpStream::connect(proxy.address()).await;
        assert_eq!(
            refused.map_err(|e| e.kind()).err(),
            Some(ErrorKind::ConnectionRefused)
        );
        proxy.heal();
        drop(TcpStream::connect(proxy.address()).await?);
    }
    done.store(true, Ordering::SeqCst);
    let starts = starts.join().expect("the thread ends");
    assert!(starts > 10, "{starts}");
    Ok(())
}

#[tokio::test]
async fn a_hold_keeps_all_bytes_back_and_lets_them_flow_when_healed() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold();
    stream.write_all(b"one").await?;
    let mut newcomer = TcpStream::connect(proxy.address()).await?;
    newcomer.write_all(b"two").await?;
    assert_silent(&mut stream).await;
    assert_silent(&mut newcomer).await;
    assert_eq!((echo.heard(), proxy.held_requests()), (5, 6));
    proxy.heal();
    assert_eq!(answer(&mut stream).await?, b"one");
    assert_eq!(answer(&mut newcomer).await?, b"two");
    Ok(())
}

#[tokio::test]
async fn one_connection_can_be_held_while_the_others_go_on() -> Result {
    let (echo, proxy, mut first) = proxied().await?;
    let mut second = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut second).await?;
    let open = proxy.open_connections();
    assert_eq!(open.len(), 2);
    proxy.hold_connection(open[0]);
    first.write_all(b"late").await?;
    assert_echoes(&mut second).await?;
    assert_silent(&mut first).await;
    proxy.release_connection(open[0]);
    assert_eq!(answer(&mut first).await?, b"late");
    proxy.hold_connection(open[1]);
    proxy.heal();
    assert_echoes(&mut second).await?;
    assert_eq!(echo.heard(), 5 + 5 + 4 + 5 + 5);
    drop(first);
    Ok(eventually(GUARD, "the connection is gone", async || {
        (proxy.open_connections() == open[1..]).then_some(())
    })
    .await?)
}

#[tokio::test]
async fn held_requests_reach_the_server_even_if_their_client_has_gone() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold_requests();
    stream.write_all(b"late").await?;
    eventually(GUARD, "the request is held", async || {
        (proxy.held_requests() == 4).then_some(())
    })
    .await?;
    drop(stream);
    let mut other = TcpStream::connect(proxy.address()).await?;
    assert_silent(&mut other).await;
    assert_eq!(echo.heard(), 5);
    proxy.heal();
    echo.has_heard(9).await
}

#[tokio::test]
async fn held_responses_leave_the_request_done_and_its_client_without_an_answer() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold_responses();
    stream.write_all(b"done").await?;
    echo.has_heard(9).await?;
    assert_silent(&mut stream).await;
    assert_eq!((proxy.held_requests(), proxy.held_responses()), (0, 4));
    proxy.heal();
    assert_eq!(answer(&mut stream).await?, b"done");
    Ok(())
}

#[tokio::test]
async fn a_delay_counts_once_each_way_and_ends_when_healed() -> Result {
    let (_echo, proxy, mut stream) = proxied().await?;
    proxy.delay(Duration::from_millis(60));
    let began = Instant::now();
    assert_echoes(&mut stream).await?;
    assert!(began.elapsed() >= Duration::from_millis(120));
    proxy.delay(Duration::from_secs(3600));
    stream.write_all(b"patience").await?;
    assert_silent(&mut stream).await;
    proxy.heal();
    assert_eq!(answer(&mut stream).await?, b"patience");
    Ok(())
}

#[tokio::test]
async fn dropped_connections_are_reset_with_what_was_held_and_new_ones_work() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold_requests();
    stream.write_all(b"lost").await?;
    eventually(GUARD, "the request is held", async || {
        (proxy.held_requests() == 4).then_some(())
    })
    .await?;
    proxy.drop_connections();
    assert_reset(&mut stream).await;
    proxy.heal();
    let mut next = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut next).await?;
    assert_eq!(echo.heard(), 10);
    assert_eq!((proxy.held_requests(), proxy.connections()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn a_dropped_proxy_resets_refuses_and_leaves_no_task() -> Result {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let echo = Echo::start().await?;
    let before = tasks();
    let proxy = Proxy::start(&echo.address).await?;
    let mut stream = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut stream).await?;
    assert!(tasks() > before);
    let address = proxy.address();
    drop(proxy);
    assert!(TcpStream::connect(address).await.is_err());
    assert_eq!(timeout(GUARD, stream.read(&mut [0])).await?.unwrap_or(0), 0);
    Ok(eventually(GUARD, "no task is left", async || {
        (tasks() == before).then_some(())
    })
    .await?)
}
