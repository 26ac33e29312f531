//! Tests the image of the command `eldest`: it runs as an unprivileged user, with no other file.

use std::process::{Command, Output};
use std::sync::LazyLock;

use eldest::{Session, SessionOptions};
use eldest_testing::Etcd;

use crate::lab::Result;
use eldest_testing::docker::owner_label;

/// The image of the Dockerfile, as `cargo xtask verify containers` has it built, or that of `cargo xtask images eldest`.
static IMAGE: LazyLock<String> = LazyLock::new(|| {
    let made = concat!("eldest:", env!("CARGO_PKG_VERSION"));
    std::env::var("ELDEST_COMMAND_IMAGE").unwrap_or_else(|_| made.to_owned())
});

/// Runs the command on this machine's network, with fewer rights than any user has, and without a writable file.
fn eldest(etcd: &Etcd, args: &[&str]) -> Result<Output> {
    let (label, owner) = owner_label();
    let mut docker = Command::new("docker");
    docker.args(["run", "--rm", "--network", "host", "--read-only"]);
    docker.args(["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]);
    docker.args(["--label", &format!("{label}={owner}")]);
    docker.args(["--env", &format!("ELDEST_ENDPOINTS={}", etcd.endpoint())]);
    Ok(docker.arg(&*IMAGE).args(args).output()?)
}

#[tokio::test]
async fn the_command_needs_no_other_file_and_no_rights() -> Result {
    let inspect = ["image", "inspect", "--format", "{{.Config.User}}", &IMAGE];
    let user = Command::new("docker").args(inspect).output()?;
    assert_eq!(user.stdout.trim_ascii(), b"65532:65532", "{user:?}");

    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    let _candidate = session.election("jobs")?.campaign().await?;
    let status = eldest(&etcd, &["status", "jobs"])?;
    let shown = String::from_utf8_lossy(&status.stdout);
    assert!(status.status.success(), "{status:?}");
    assert!(
        shown.starts_with("jobs: node-a leads with token"),
        "{status:?}"
    );
    // The program runs itself here, because the image has no other.
    let ran = eldest(
        &etcd,
        &[
            "run",
            "other",
            "--id",
            "c",
            "--",
            "/usr/local/bin/eldest",
            "--version",
        ],
    )?;
    let version = format!("eldest {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), version, "{ran:?}");
    assert!(ran.status.success(), "{ran:?}");
    Ok(())
}
