//! Runs a peer as if on a host of its own, a network namespace that can be cut off. Root on Linux may do this.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::peer::Peer;
use crate::run::Run;

/// The address of this host, for peers that are not on a host of their own.
pub(super) const LOCAL: &str = "127.0.0.1";
const DEVICE: &str = "eth0";

/// Tells whether this machine and this program's permissions allow hosts.
pub(super) async fn check() -> Result<()> {
    call("unshare", ["--net", "ip", "link"]).await
}

/// Starts this program as a peer on a host of its own; returns it with its address. The kernel removes the host with the
/// process.
pub(super) async fn start(run: &mut Run<'_>, name: &str) -> Result<(Peer, String)> {
    /// The number of hosts so far. No two have one number, because the kernel removes them late.
    static HOSTS: AtomicUsize = AtomicUsize::new(0);
    let number = HOSTS.fetch_add(1, Ordering::Relaxed);
    // The networks that are reserved for benchmarks (RFC 2544).
    let network = format!("198.{}.{}", 18 + number / 256 % 2, number % 256);
    let port = forward(run.endpoint().await?).await?;
    let endpoint = format!("http://{network}.1:{port}");
    let peer = run.within(&["unshare", "--net"], name, &endpoint).await?;
    let pid = peer.pid().context("it has ended")?.to_string();
    let ours = format!("bench{number}");
    let (here, there) = (format!("{network}.1/30"), format!("{network}.2/30"));
    let pair = [
        "link", "add", &ours, "type", "veth", "peer", "name", DEVICE, "netns", &pid,
    ];
    call("ip", pair).await?;
    call("ip", ["address", "add", &here, "dev", &ours]).await?;
    call("ip", ["link", "set", &ours, "up"]).await?;
    on(&pid, ["address", "add", &there, "dev", DEVICE]).await?;
    on(&pid, ["link", "set", DEVICE, "up"]).await?;
    Ok((peer, format!("{network}.2")))
}

/// Cuts off the peer's host: packets to its address arrive nowhere, without an error.
pub(super) async fn cut(peer: &mut Peer) -> Result<()> {
    let pid = peer.pid().context("it has ended")?.to_string();
    on(&pid, ["address", "flush", "dev", DEVICE]).await
}

/// Calls `ip` on the host of that process.
async fn on<const N: usize>(pid: &str, words: [&str; N]) -> Result<()> {
    let enter = ["--net", "--target", pid, "ip"];
    call("nsenter", enter.iter().chain(&words)).await
}

async fn call(program: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
    let ended = Command::new(program).args(words).output().await?;
    let error = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{program}: {}", error.trim());
    Ok(())
}

/// Passes connections on to etcd, which serves this host alone; returns the port.
async fn forward(endpoint: String) -> Result<u16> {
    let listener = TcpListener::bind(("0.0.0.0", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let address = endpoint.trim_start_matches("http://").to_owned();
            tokio::spawn(async move {
                let mut etcd = TcpStream::connect(address).await?;
                client.set_nodelay(true)?;
                etcd.set_nodelay(true)?;
                tokio::io::copy_bidirectional(&mut client, &mut etcd).await
            });
        }
    });
    Ok(port)
}
