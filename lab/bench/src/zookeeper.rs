//! Configures `ZooKeeper` servers, starts them from their jars, and makes sure that they end with the bench.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::options::Storage;

const PATIENCE: Duration = Duration::from_secs(60);
/// A program that ends Java when its own stdin closes, that is when the process that started it has ended, for whatever
/// reason.
const KEEPER: &str =
    r#"exec 3<&0; "$@" </dev/null >log 2>&1 & java=$!; cat <&3 >/dev/null; kill -9 $java; wait"#;

/// Servers of one ensemble.
pub(crate) struct ZooKeeper {
    // Declared before the folder, so that they have ended when it is removed.
    servers: Vec<Server>,
    folder: TempDir,
}

struct Server {
    keeper: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl ZooKeeper {
    /// Starts so many servers and waits until each of them serves. They write to the folder.
    pub(crate) async fn start(
        jars: OsString,
        members: usize,
        folder: TempDir,
        storage: Storage,
    ) -> Result<Self> {
        let mut ensemble = Self {
            servers: Vec::new(),
            folder,
        };
        let ports = ports(3 * members)?;
        let ports: Vec<&[u16]> = ports.chunks(3).collect();
        for number in 0..members {
            let home = ensemble.folder.path().join(number.to_string());
            configure(&home, number, &ports)?;
            let mut java = Command::new("sh");
            java.current_dir(&home)
                .args(["-c", KEEPER, "sh", "java", "-Xmx512m", "-cp"])
                .arg(&jars)
                .stdin(Stdio::piped());
            if storage == Storage::Memory {
                java.arg("-Dzookeeper.forceSync=no");
            }
            java.args([
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                "zoo.cfg",
            ]);
            let keeper = java.spawn().context("starting java")?;
            let port = ports[number][0];
            ensemble.servers.push(Server { keeper, port });
        }
        for (number, server) in ensemble.servers.iter().enumerate() {
            let log = ensemble.folder.path().join(number.to_string()).join("log");
            server.serves(&log).await?;
        }
        Ok(ensemble)
    }

    /// Returns the addresses in the form that clients expect.
    pub(crate) fn hosts(&self) -> String {
        let hosts = self
            .servers
            .iter()
            .map(|server| format!("127.0.0.1:{}", server.port));
        hosts.collect::<Vec<_>>().join(",")
    }
}

impl Server {
    async fn serves(&self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        // A server does not report its mode until it has one.
        while !self.mode().await.unwrap_or_default().contains("Mode: ") {
            if Instant::now() > deadline {
                let log = fs::read_to_string(log).unwrap_or_default();
                bail!("ZooKeeper does not serve within {PATIENCE:?}: {log}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn mode(&self) -> Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(b"srvr").await?;
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(1), read).await??;
        Ok(answer)
    }
}

fn configure(home: &Path, number: usize, ports: &[&[u16]]) -> Result<()> {
    let data = home.join("data");
    fs::create_dir_all(&data)?;
    fs::write(data.join("myid"), number.to_string())?;
    let mut text = format!(
        "tickTime=500\ninitLimit=20\nsyncLimit=10\nmaxSessionTimeout=120000\nmaxClientCnxns=0\n\
         dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
         4lw.commands.whitelist=srvr\n",
        data.display(),
        ports[number][0],
    );
    if ports.len() > 1 {
        for (number, ports) in ports.iter().enumerate() {
            writeln!(text, "server.{number}=127.0.0.1:{}:{}", ports[1], ports[2])?;
        }
    }
    fs::write(home.join("zoo.cfg"), text)?;
    Ok(())
}

/// Returns so many ports that no process uses now.
fn ports(count: usize) -> Result<Vec<u16>> {
    let listeners: std::io::Result<Vec<TcpListener>> = (0..count)
        .map(|_| TcpListener::bind(("127.0.0.1", 0)))
        .collect();
    let ports = listeners?
        .iter()
        .map(TcpListener::local_addr)
        .collect::<std::io::Result<Vec<_>>>();
    Ok(ports?.iter().map(std::net::SocketAddr::port).collect())
}
