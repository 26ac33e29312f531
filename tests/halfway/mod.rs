//! Opens connections and leaves them idle, waits until the other side closes them, and stops processes with SIGSTOP.

use std::net::SocketAddr;
use std::process::Child;
use std::time::Duration;

use eldest::BoxError;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Opens a connection, sends that, and leaves it.
pub(crate) async fn idle(at: SocketAddr, bytes: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(bytes.as_bytes()).await?;
    Ok(stream)
}

/// Waits until the other side has closed a connection; what it said before.
pub(crate) async fn closed(mut stream: TcpStream, within: Duration) -> Result<String> {
    let mut text = Vec::new();
    let read = timeout(within, stream.read_to_end(&mut text)).await;
    drop(read.map_err(|_| format!("still open after {within:?}"))?);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Stops a process; on return none of its threads does anything any more, which the signal alone does not promise.
pub(crate) fn freeze(child: &Child) -> Result {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP)?;
    let states = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), states)?;
    Ok(())
}
