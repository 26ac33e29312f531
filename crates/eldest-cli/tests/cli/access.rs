//! Tests what users with passwords and certificates may do, and that no password is ever shown.

use eldest_fixtures::text::has;
use etcd_client::{
    Client, ConnectOptions, GetResponse, Permission, PermissionType, ResponseHeader,
};

use crate::common::{DENIED, DONE, Ended, Result, SICK, Stage, USAGE, at, fails, run, words};

/// A password that occurs nowhere else, so that a leak is found.
const PASSWORD: &str = "canary-9b1f0c";
const WRONG: &str = "canary-000000";

/// An etcd with three users: one may write, one may read, and one has other permissions only.
struct Guarded {
    stage: Stage,
    root: Client,
}

impl Guarded {
    async fn start() -> Result<Self> {
        let stage = Stage::new().await?;
        let mut client = stage.etcd.client().await;
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
        let root = Client::connect([stage.etcd.endpoint()], Some(root)).await?;
        Ok(Self { stage, root })
    }

    /// Runs the command as that user, and asserts that its output does not contain the password.
    async fn run(&self, user: &str, password: &str, args: &[&str]) -> Result<Ended> {
        let mut command = at(&self.stage.etcd, args);
        command
            .env("ELDEST_USER", user)
            .env("ELDEST_PASSWORD", password)
            .args(["--log", "trace"]);
        let ended = run(command).await?;
        let is_shown = format!("{ended:?}").contains("canary");
        assert!(!is_shown, "the password is in {ended:?}");
        Ok(ended)
    }

    /// Asserts that a command of that user is refused for this reason.
    async fn denied(&self, user: &str, password: &str, line: &str, why: &str) -> Result {
        let refused = self.run(user, password, &words(line)).await?;
        assert_eq!(refused.code, DENIED, "{refused:?}");
        // The log has lines too.
        let mut lines = refused.stderr.lines();
        let is_error = |line: &&str| line.starts_with("error: ") || line.starts_with("{\"error\"");
        let error = lines.find(is_error).unwrap_or_default();
        has(error, &[why]);
        Ok(())
    }

    /// Runs a status with the password in that file.
    async fn by_file(&self, file: &str) -> Result<Ended> {
        let args = ["status", "--user", "observer", "--password-file", file];
        run(at(&self.stage.etcd, &args)).await
    }
}

#[tokio::test]
async fn password_comes_from_a_variable_or_a_file_and_is_never_shown() -> Result {
    let guarded = Guarded::start().await?;
    let shown = guarded.run("observer", PASSWORD, &["status"]).await?;
    let nothing = "there is no candidate anywhere\n";
    assert_eq!((shown.code, &*shown.stdout), (DONE, nothing));
    has(&shown.stderr, &["TRACE"]);

    let file = guarded.stage.file("password");
    std::fs::write(&file, format!("{PASSWORD}\n"))?;
    assert_eq!(guarded.by_file(&file).await?.text(), nothing);

    for line in ["status --output text", "status --output json"] {
        guarded
            .denied("observer", WRONG, line, "authentication failed")
            .await?;
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
    for line in ["status", "watch jobs"] {
        guarded
            .denied("stranger", PASSWORD, line, "permission denied")
            .await?;
    }
    fails(
        &guarded.stage.etcd,
        "status",
        DENIED,
        &["user name is empty"],
    )
    .await?;

    let mut client = guarded.root.clone();
    client.put("eldest/jobs/immortal", "old", None).await?;
    let evict = "evict jobs --candidate immortal --yes";
    guarded
        .denied("observer", PASSWORD, evict, "permission denied")
        .await?;
    let kept = client.get("eldest/jobs/immortal", None).await?;
    assert_eq!(kept.kvs().len(), 1);
    let done = guarded.run("node", PASSWORD, &words(evict)).await?;
    assert_eq!(done.code, DONE, "{done:?}");
    Ok(())
}

#[tokio::test]
async fn doctor_reports_permissions_without_using_them() -> Result {
    const DOCTOR: &str = "doctor --clock 0s --ttl 60s";
    let guarded = Guarded::start().await?;
    let mut client = guarded.root.clone();
    let value = "a key that must not go";
    client.put("eldest/jobs", value, None).await?;
    let revision = |answer: &GetResponse| answer.header().map(ResponseHeader::revision);
    let before = client.get("eldest/jobs", None).await?;
    let grant = "-> etcdctl role grant-permission ROLE readwrite eldest/ --prefix";
    let all = "this user may read and write all below eldest/";
    let other = "this user may read and write all below other/";
    for (user, password, more, code, message, remedy) in [
        ("node", PASSWORD, "", DONE, all, ""),
        (
            "observer",
            PASSWORD,
            "",
            SICK,
            "it can observe, but not become a candidate",
            grant,
        ),
        (
            "observer",
            PASSWORD,
            " --observer",
            DONE,
            "this user may read all below eldest/",
            "",
        ),
        (
            "stranger",
            PASSWORD,
            "",
            SICK,
            "this user may not read all below eldest/",
            "",
        ),
        ("stranger", PASSWORD, " --namespace other", DONE, other, ""),
        (
            "node",
            WRONG,
            "",
            SICK,
            "",
            "-> correct --user and its password",
        ),
    ] {
        let line = format!("{DOCTOR}{more}");
        let report = guarded.run(user, password, &words(&line)).await?;
        assert_eq!(report.code, code, "{user}{more}: {report:?}");
        has(&report.stdout, &[message, remedy]);
    }
    let after = client.get("eldest/jobs", None).await?;
    assert_eq!(after.kvs().len(), 1, "it asked whether it may delete");
    assert_eq!(revision(&after), revision(&before));
    assert_eq!(client.leases().await?.leases().len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_password_file_holds_one_line_and_nothing_else() -> Result {
    let guarded = Guarded::start().await?;
    let file = guarded.stage.file("odd");
    let missing = guarded.by_file(&file).await?;
    missing.failed(USAGE, &[&file, "No such file"]);
    for (content, rule) in [
        (&b""[..], "it is empty"),
        (&b"\n"[..], "it is empty"),
        (&b"canary\nuser=node\n"[..], "it has more than one line"),
        (&b"canary\xff"[..], "not UTF-8"),
    ] {
        std::fs::write(&file, content)?;
        let refused = guarded.by_file(&file).await?;
        refused.failed(USAGE, &[&file, rule]);
        let is_shown = refused.stderr.contains("canary");
        assert!(!is_shown, "leaked secret: {refused:?}");
    }
    std::fs::write(&file, format!("{PASSWORD}\r\n"))?;
    guarded.by_file(&file).await?.done();
    Ok(())
}
