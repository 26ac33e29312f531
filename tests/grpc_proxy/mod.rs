//! Runs etcd's gRPC proxy in front of an etcd.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than the proxy takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running proxy, killed on drop.
pub(crate) struct GrpcProxy {
    child: Child,
    address: SocketAddr,
    _data: tempfile::TempDir,
}

impl GrpcProxy {
    /// Starts it with these options beside its addresses, and waits until it accepts connections.
    pub(crate) fn start(etcd: &str, options: &[&str]) -> std::io::Result<Self> {
        let begun = Instant::now();
        loop {
            // Another process may take the port first: then the proxy exits, and another port is tried.
            if let Some(proxy) = Self::attempt(etcd, options, begun)? {
                return Ok(proxy);
            }
            assert!(begun.elapsed() < PATIENCE, "the proxy does not start");
        }
    }

    fn attempt(etcd: &str, options: &[&str], begun: Instant) -> std::io::Result<Option<Self>> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let binary = std::env::var_os("ELDEST_ETCD_BIN").map_or_else(
            || etcd_bin_vendored::etcd_bin_path().map(PathBuf::from),
            |path| Ok(path.into()),
        );
        let data = tempfile::tempdir()?;
        let child = Command::new(binary.map_err(std::io::Error::other)?)
            .args(["grpc-proxy", "start"])
            .args(["--endpoints", etcd])
            .args(["--listen-addr", &address.to_string()])
            .arg("--data-dir")
            .arg(data.path())
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut proxy = Self {
            child,
            address,
            _data: data,
        };
        while begun.elapsed() < PATIENCE {
            if proxy.child.try_wait()?.is_some() {
                return Ok(None);
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(Some(proxy));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for GrpcProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
