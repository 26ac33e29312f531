//! Backs etcd up and restores it as operators do: its folder is copied, or a snapshot is taken and restored by etcd's
//! tool.

use std::path::{Path, PathBuf};
use std::process::Command;

use eldest_testing::Etcd;

use crate::stage::Result;

/// The token of every cluster in these tests, so that a restored cluster has the id of the one that it replaces.
const TOKEN: &str = "eldest-restore";

const REMEDY: &str = "there is no etcdutl: name one by ELDEST_ETCDUTL, from version 3.5.10 on (an etcdctl from 3.5.10 to 3.5.x \
    serves as well, Debian 13 has one), or run `cargo xtask test restore::`, which fetches one, or set \
    ELDEST_NO_ETCDUTL=1 to leave its tests out";

/// Starts an etcd that can be restored.
pub(crate) async fn start() -> Result<Etcd> {
    let etcd = Etcd::builder().arg(format!("--initial-cluster-token={TOKEN}"));
    Ok(etcd.start().await?)
}

/// Copies the folder of an etcd that does not run.
pub(crate) fn copy(from: &Path, to: &Path) -> Result {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Returns the program whose `snapshot restore` restores a snapshot. `None`: tests with it are not wanted.
///
/// `etcdctl` of etcd 3.5 has that command too, and runs the code of `etcdutl` for it.
pub(crate) fn etcdutl() -> Option<PathBuf> {
    if std::env::var_os("ELDEST_NO_ETCDUTL").is_some_and(|value| value == "1") {
        println!("left out: ELDEST_NO_ETCDUTL=1");
        return None;
    }
    if let Some(named) = std::env::var_os("ELDEST_ETCDUTL") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join("etcdutl"));
    Some(files.find(|file| file.is_file()).expect(REMEDY))
}

/// A snapshot that etcd's Maintenance service has written.
pub(crate) struct Snapshot {
    etcdutl: PathBuf,
    folder: tempfile::TempDir,
    peer: String,
}

impl Snapshot {
    /// Takes a snapshot of a running etcd.
    pub(crate) async fn take(etcd: &Etcd, etcdutl: PathBuf) -> Result<Self> {
        let mut client = etcd.client().await;
        let members = client.member_list().await?;
        let peer = { members.members().first() }.and_then(|member| member.peer_urls().first());
        let peer = peer.ok_or("a peer")?.clone();
        let mut stream = client.snapshot().await?;
        let mut snapshot = Vec::new();
        while let Some(part) = stream.message().await? {
            snapshot.extend_from_slice(part.blob());
        }
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("snapshot.db"), snapshot)?;
        Ok(Self {
            etcdutl,
            folder,
            peer,
        })
    }

    /// Kills etcd and starts it again with the snapshot in place of its data.
    pub(crate) async fn put_back(&self, etcd: &mut Etcd, options: &[&str]) -> Result {
        etcd.kill();
        self.restore(etcd, options)?;
        Ok(etcd.restart().await?)
    }

    fn restore(&self, etcd: &Etcd, options: &[&str]) -> Result {
        std::fs::remove_dir_all(etcd.data_dir())?;
        let mut restore = Command::new(&self.etcdutl);
        restore.args(["snapshot", "restore"]);
        restore.arg(self.folder.path().join("snapshot.db"));
        restore.arg("--data-dir").arg(etcd.data_dir());
        restore.args(["--name", etcd.name(), "--initial-cluster-token", TOKEN]);
        restore.args(["--initial-advertise-peer-urls", &self.peer]);
        restore.arg(format!("--initial-cluster={}={}", etcd.name(), self.peer));
        let output = restore.env("ETCDCTL_API", "3").args(options).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {said}\n{REMEDY}", self.etcdutl.display()).into())
    }
}
