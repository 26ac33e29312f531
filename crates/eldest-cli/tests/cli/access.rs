//! Tests what users with passwords and certificates may do, and that no password is ever shown.

use eldest_fixtures::text::has;
use eldest_testing::Etcd;
use etcd_client::{
    Client, ConnectOptions, GetResponse, Permission, PermissionType, ResponseHeader,
};
use tempfile::TempDir;

use crate::common::{DENIED, DONE, Ended, Result, SICK, USAGE, at, run};

/// A password that occurs nowhere else, so that a leak is found.
const PASSWORD: &str = "canary-9b1f0c";
const WRONG: &str = "canary-000000";

/// An etcd with three users: one may write, one may read, and one has other permissions only.
struct Guarded {
    etcd: Etcd,
    root: Client,
    folder: TempDir,
}

impl Guarded {
    async fn start() -> Result<Self> {
        let etcd = Etcd::builder().arg("--bcrypt-cost=4").start().await?;
        let mut client = etcd.client().await;
        let users = [
            ("root", None),
            ("node", Some((PermissionType::Readwrite, "eldest/"))),
            ("observer", Some((PermissionType::Read, "eldest/"))),
            ("stranger", Some((PermissionType::Readwrite, "other/"))),
        ];
        for (user, permission) in users {
            client.user_add(user, PASSWORD, None).await?;
            client.role_add(user).await?;
            if let Some((kind, prefix)) = permission {
                let permission = Permission::new(kind, prefix).with_prefix();
                client.role_grant_permission(user, permission).await?;
            }
            client.user_grant_role(user, user).await?;
        }
        client.auth_enable().await?;
        let root = ConnectOptions::new().with_user("root", PASSWORD);
        let root = Client::connect([etcd.endpoint()], Some(root)).await?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("password"), format!("{PASSWORD}\n"))?;
        Ok(Self { etcd, root, folder })
    }

    /// Runs the command as that user, and asserts that its output does not contain the password.
    async fn run(&self, user: &str, password: &str, args: &[&str]) -> Result<Ended> {
        let mut command = at(&self.etcd, args);
        command
            .env("ELDEST_USER", user)
            .env("ELDEST_PASSWORD", password);
        command.args(["--log", "trace"]);
        let ended = run(command).await?;
        assert!(
            !format!("{ended:?}").contains("canary"),
            "the password is in {ended:?}"
        );
        Ok(ended)
    }

    fn password_file(&self) -> String {
        self.folder.path().join("password").display().to_string()
    }
}

/// Returns the line of the error, among those of the log.
fn error(ended: &Ended) -> &str {
    let mut lines = ended.stderr.lines();
    let is_error = |line: &&str| line.starts_with("error: ") || line.starts_with("{\"error\"");
    lines.find(is_error).unwrap_or_default()
}

#[tokio::test]
async fn password_comes_from_a_variable_or_a_file_and_is_never_shown() -> Result {
    let guarded = Guarded::start().await?;
    let shown = guarded.run("observer", PASSWORD, &["status"]).await?;
    assert_eq!(
        (shown.code, shown.stdout.as_str()),
        (DONE, "there is no candidate anywhere\n")
    );
    assert!(
        shown.stderr.contains("TRACE"),
        "the log is there to be searched: {shown:?}"
    );

    let file = guarded.password_file();
    let args = ["status", "--user", "observer", "--password-file", &file];
    let shown = run(at(&guarded.etcd, &args)).await?;
    assert_eq!(shown.text(), "there is no candidate anywhere\n");

    for output in ["text", "json"] {
        let args = ["status", "--output", output];
        let refused = guarded.run("observer", WRONG, &args).await?;
        assert_eq!(refused.code, DENIED, "{refused:?}");
        assert!(
            error(&refused).contains("authentication failed"),
            "{refused:?}"
        );
    }
    // Help prints the values of variables unless `hide_env_values` is set.
    let help = guarded
        .run("observer", PASSWORD, &["status", "--help"])
        .await?;
    assert_eq!(help.code, DONE);
    Ok(())
}

#[tokio::test]
async fn user_with_too_few_rights_gets_an_exit_code_of_its_own() -> Result {
    let guarded = Guarded::start().await?;
    for command in [vec!["status"], vec!["watch", "jobs"]] {
        let refused = guarded.run("stranger", PASSWORD, &command).await?;
        assert_eq!(refused.code, DENIED, "{refused:?}");
        assert!(error(&refused).contains("permission denied"), "{refused:?}");
    }
    let nobody = run(at(&guarded.etcd, &["status"])).await?;
    nobody.failed(DENIED, &["user name is empty"]);

    let mut client = guarded.root.clone();
    client.put("eldest/jobs/immortal", "old", None).await?;
    let args = ["evict", "jobs", "--candidate", "immortal", "--yes"];
    let refused = guarded.run("observer", PASSWORD, &args).await?;
    assert_eq!(refused.code, DENIED, "{refused:?}");
    assert_eq!(
        client.get("eldest/jobs/immortal", None).await?.kvs().len(),
        1
    );
    let done = guarded.run("node", PASSWORD, &args).await?;
    assert_eq!(done.code, DONE, "{done:?}");
    Ok(())
}

const DOCTOR: [&str; 5] = ["doctor", "--clock", "0s", "--ttl", "60s"];
/// The user and further arguments of the doctor, its exit code, and the parts of its report.
const FOUND: &str = "\
    node => 0 => this user may read and write all below eldest/
    observer => 6 => it can observe, but not become a candidate & -> etcdctl role grant-permission ROLE readwrite eldest/ --prefix
    observer --observer => 0 => this user may read all below eldest/
    stranger => 6 => this user may not read all below eldest/
    stranger --namespace other => 0 => this user may read and write all below other/";

#[tokio::test]
async fn doctor_reports_permissions_without_using_them() -> Result {
    let guarded = Guarded::start().await?;
    let mut client = guarded.root.clone();
    let value = "a key that must not go";
    client.put("eldest/jobs", value, None).await?;
    let revision = |answer: &GetResponse| answer.header().map(ResponseHeader::revision);
    let before = client.get("eldest/jobs", None).await?;
    for line in FOUND.lines() {
        let cells: Vec<&str> = line.trim().split(" => ").collect();
        let mut words = cells[0].split(' ');
        let user = words.next().unwrap_or_default();
        let more: Vec<&str> = words.collect();
        let report = guarded
            .run(user, PASSWORD, &[&DOCTOR[..], &more].concat())
            .await?;
        assert_eq!(report.code.to_string(), cells[1], "{line}: {report:?}");
        for part in cells[2].split(" & ") {
            assert!(
                report.stdout.contains(part),
                "{part:?} is not in {report:?}"
            );
        }
    }
    let report = guarded.run("node", WRONG, &DOCTOR).await?;
    assert_eq!(report.code, SICK, "{report:?}");
    has(&report.stdout, &["-> correct --user and its password"]);
    let after = client.get("eldest/jobs", None).await?;
    assert_eq!(after.kvs().len(), 1, "it asked whether it may delete");
    assert_eq!(revision(&after), revision(&before));
    assert_eq!(client.leases().await?.leases().len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_password_file_holds_one_line_and_nothing_else() -> Result {
    let guarded = Guarded::start().await?;
    let path = guarded.folder.path().join("odd");
    let file = path.display().to_string();
    let args = ["status", "--user", "node", "--password-file", &file];
    let missing = run(at(&guarded.etcd, &args)).await?;
    missing.failed(USAGE, &[&file, "No such file"]);
    for (content, rule) in [
        (&b""[..], "it is empty"),
        (&b"\n"[..], "it is empty"),
        (&b"canary\nuser=node\n"[..], "it has more than one line"),
        (&b"canary\xff"[..], "not UTF-8"),
    ] {
        std::fs::write(&path, content)?;
        let refused = run(at(&guarded.etcd, &args)).await?;
        refused.failed(USAGE, &[&file, rule]);
        assert!(
            !refused.stderr.contains("canary"),
            "leaked secret: {refused:?}"
        );
    }
    std::fs::write(&path, format!("{PASSWORD}\r\n"))?;
    run(at(&guarded.etcd, &args)).await?.done();
    Ok(())
}
