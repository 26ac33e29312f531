//! Tests every example against an etcd of its own: its output, how it ends, and that it leaves nothing.
//!
//! The test builds the examples itself, with cargo and its own features, so that it never starts an outdated program.
#![cfg(unix)] // one of the examples is ended by a signal
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use eldest::{BoxError, Session, SessionOptions};
use eldest_testing::{Etcd, eventually};
use etcd_client::GetOptions;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// All examples; each has a test below.
const EXAMPLES: [&str; 11] = [
    "fenced_writes",
    "follower_work",
    "forward",
    "http_service",
    "lock",
    "observe",
    "partitioned_consumer",
    "run_a_task",
    "scheduled",
    "stalled_leader",
    "step_by_step",
];

/// The folder of the built examples.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let here = std::env::current_exe().expect("a path");
    let profile = here.ancestors().nth(2).expect("target/profile/deps/test");
    // `cargo xtask test` has built them with the tests.
    if std::env::var_os("ELDEST_EXAMPLES_ARE_BUILT").is_some_and(|value| value == "1") {
        return profile.join("examples");
    }
    let mut cargo = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--examples"]);
    for package in [
        "eldest",
        "eldest-route",
        "eldest-http",
        "eldest-cli",
        "eldest-testing",
    ] {
        cargo.args(["--package", package]);
    }
    cargo.arg("--all-features");
    // Cargo's variables for this test must not reach another cargo: build scripts that read them would run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(profile) => drop(cargo.args(["--profile", profile])),
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the examples do not build: {status}");
    profile.join("examples")
});

/// An example that runs.
struct Running {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

impl Running {
    fn start(name: &str, etcd: &Etcd, variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(BUILT.join(name));
        command
            .env_remove("EXAMPLE_SECONDS")
            .env_remove("EXAMPLE_ROUNDS")
            .env("ETCD_ENDPOINTS", etcd.endpoint())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("its output")?;
        Ok(Self {
            child,
            output: BufReader::new(output).lines(),
            seen: Vec::new(),
        })
    }

    /// Returns the next line that contains the text.
    async fn says(&mut self, text: &str) -> Result<String> {
        let found = timeout(LONG, async {
            while let Some(line) = self.output.next_line().await? {
                self.seen.push(line.clone());
                if line.contains(text) {
                    return Result::Ok(line);
                }
            }
            Err(format!("ended without {text:?}").into())
        });
        let found = found.await.unwrap_or_else(|_| Err("silent".into()));
        found.map_err(|error| format!("{error}, not {text:?} after {:#?}", self.seen).into())
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result {
        let pid = self.child.id().ok_or("it has ended")?;
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).ok_or("no process")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    async fn ended(mut self) -> Result<ExitStatus> {
        Ok(timeout(LONG, self.child.wait()).await??)
    }

    /// Ends the example by SIGINT, and expects these last lines.
    async fn interrupted(mut self, last_words: &[&str]) -> Result {
        self.signal(rustix::process::Signal::INT)?;
        for words in last_words {
            self.says(words).await?;
        }
        self.ends_well().await
    }

    async fn ends_well(self) -> Result {
        let status = self.ended().await?;
        assert!(status.success(), "{status}");
        Ok(())
    }
}

async fn keys(etcd: &Etcd) -> Result<Vec<String>> {
    let all = GetOptions::new().with_all_keys().with_keys_only();
    let answer = etcd.client().await.get("", Some(all)).await?;
    let keys = answer.kvs().iter().map(etcd_client::KeyValue::key_str);
    Ok(keys
        .map(|key| key.map(str::to_owned))
        .collect::<std::result::Result<_, _>>()?)
}

#[test]
fn every_example_has_a_test_and_is_short() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("examples/") {
        let path = entry.expect("readable").path();
        // A folder is a separate package with its own tests, or has programs in other languages.
        if path.join("Cargo.toml").is_file() {
            let tests = path.join("tests");
            assert!(tests.is_dir(), "no tests/ in {}", path.display());
            continue;
        }
        if path.is_dir() {
            let tests = include_str!("../crates/eldest-cli/tests/serve/clients.rs");
            for program in std::fs::read_dir(path).expect("a folder") {
                let name = program.expect("readable").file_name();
                let name = name.to_str().expect("a plain name");
                assert!(tests.contains(name), "no test of {name} in tests/serve");
            }
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.lines().count() < 90, "too long: {}", path.display());
        names.insert(
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned(),
        );
    }
    assert_eq!(names, EXAMPLES.map(str::to_owned).into());
}

#[tokio::test]
async fn run_a_task_works_hands_over_and_ends() -> Result {
    let etcd = Etcd::start().await?;
    let mut first = Running::start("run_a_task", &etcd, &[])?;
    first.says("report 2").await?;
    let seconds = [("EXAMPLE_SECONDS", "3")];
    let mut second = Running::start("run_a_task", &etcd, &seconds)?;
    second.says("connected").await?;
    eventually(LONG, "the second waits", async || {
        keys(&etcd)
            .await
            .is_ok_and(|keys| keys.len() == 2)
            .then_some(())
    })
    .await?;
    let words = ["stopped working: Some(Shutdown)", "gone"];
    first.interrupted(&words).await?;
    second.says("leading, fencing token").await?;
    second.says("stopped working: Some(Shutdown)").await?;
    second.says("gone").await?;
    second.ends_well().await?;
    assert_eq!(keys(&etcd).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn step_by_step_prints_each_step() -> Result {
    let etcd = Etcd::start().await?;
    let seconds = [("EXAMPLE_SECONDS", "1")];
    let mut example = Running::start("step_by_step", &etcd, &seconds)?;
    for step in ["standing", "leading, token", "1. node-", "resigned"] {
        example.says(step).await?;
    }
    example.ends_well().await?;
    assert_eq!(keys(&etcd).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn observe_prints_the_leader_and_the_blocked_candidates() -> Result {
    let etcd = Etcd::start().await?;
    let mut example = Running::start("observe", &etcd, &[])?;
    example.says("nobody leads").await?;
    let session = Session::connect([etcd.endpoint()], SessionOptions::new("ruth")).await?;
    let mut candidate = session.election("reports")?.campaign().await?;
    example.says("ruth leads, fencing token").await?;
    candidate.leave().await?;
    example.says("nobody leads").await?;
    let mut client = etcd.client().await;
    client.put("eldest/reports/stone", "", None).await?;
    example.says("blocked by eldest/reports/stone").await?;
    client.delete("eldest/reports/stone", None).await?;
    example.says("nobody leads").await?;
    example.interrupted(&["looked on long enough"]).await
}

#[tokio::test]
async fn fenced_writes_are_made_once_and_refused_to_the_old_leader() -> Result {
    let etcd = Etcd::start().await?;
    let mut example = Running::start("fenced_writes", &etcd, &[])?;
    for text in [
        "counter is 1",
        "counter is 3",
        "etcd, to the old leader: leadership lost",
        "the resource, to the old leader: token",
        "counter is still 3",
    ] {
        example.says(text).await?;
    }
    example.ends_well().await?;
    assert_eq!(keys(&etcd).await?, ["eldest/example-counter"]);
    Ok(())
}

#[tokio::test]
async fn lock_numbers_invoices_of_several_nodes_without_a_gap() -> Result {
    let etcd = Etcd::start().await?;
    let rounds = [("EXAMPLE_ROUNDS", "3")];
    let mut nodes = [
        Running::start("lock", &etcd, &rounds)?,
        Running::start("lock", &etcd, &rounds)?,
    ];
    let mut numbers = BTreeSet::new();
    for node in &mut nodes {
        for _ in 0..3 {
            let line = node.says("printed invoice").await?;
            let number = line.rsplit(' ').next().ok_or("a number")?;
            assert!(numbers.insert(number.parse::<u32>()?), "twice: {line}");
        }
    }
    assert_eq!(numbers, (1..=6).collect());
    for node in nodes {
        node.ends_well().await?;
    }
    assert_eq!(keys(&etcd).await?, ["eldest/example-invoice"]);
    Ok(())
}

#[tokio::test]
async fn partitioned_consumers_count_each_item_once_though_one_is_killed() -> Result {
    const SHARDS: usize = 64;
    const ITEMS: usize = 30;
    let etcd = Etcd::start().await?;
    let items = [("EXAMPLE_ITEMS", "30")];
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(Running::start("partitioned_consumer", &etcd, &items)?);
    }
    for consumer in &mut consumers {
        consumer.says("customer-4711 are in shard").await?;
        consumer.says("from item").await?;
    }
    // Killed in the middle of its work.
    let mut killed = consumers.remove(1);
    killed.child.kill().await?;

    let mut client = etcd.client().await;
    let all = || GetOptions::new().with_prefix();
    eventually(LONG, "every item is done", async || {
        let done = client
            .get("eldest/example-shards/", Some(all()))
            .await
            .ok()?;
        (done.kvs().len() == SHARDS * (ITEMS + 1)).then_some(())
    })
    .await?;
    for consumer in &consumers {
        consumer.signal(rustix::process::Signal::INT)?;
    }
    for mut consumer in consumers {
        consumer.says("gone").await?;
        consumer.ends_well().await?;
    }
    let written = client.get("eldest/example-shards/", Some(all())).await?;
    for entry in written.kvs() {
        // The progress was written once for each item, and each item once.
        let key = entry.key_str()?;
        let times = if key.matches('/').count() == 2 {
            ITEMS as i64
        } else {
            1
        };
        assert_eq!(entry.version(), times, "{key}");
    }
    // The one that was killed may have done all of its items; its keys stand until its lease has expired.
    eventually(LONG, "no key is left", async || {
        let left = client.get("eldest/~partitions/", Some(all())).await.ok()?;
        left.kvs().is_empty().then_some(())
    })
    .await?;
    Ok(())
}

/// Returns status and body of a GET.
async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    ask(address, "GET", path).await
}

/// Returns status and body of a request without a body.
async fn ask(address: &str, method: &str, path: &str) -> Result<(u16, String)> {
    let answer = async {
        let mut stream = TcpStream::connect(address).await?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n");
        let request = format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Result::Ok(answer)
    };
    let answer = timeout(LONG, answer).await??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no body")?;
    let status = head.split(' ').nth(1).ok_or("no status")?;
    Ok((status.parse()?, body.trim().to_owned()))
}

/// Checks that the address soon gives the wanted answer.
async fn answers(address: &str, path: &str, wanted: (u16, &str)) -> Result {
    Ok(eventually(
        LONG,
        format!("{path} at {address}: {wanted:?}"),
        async || {
            let (status, body) = get(address, path).await.ok()?;
            ((status, body.as_str()) == wanted).then_some(())
        },
    )
    .await?)
}

#[tokio::test]
async fn http_service_shows_the_leader_and_resigns_on_sigterm() -> Result {
    let etcd = Etcd::start().await?;
    let listen = [("LISTEN", "127.0.0.1:0")];
    let mut first = Running::start("http_service", &etcd, &listen)?;
    let line = first.says("listening on http://").await?;
    let one = line.trim_start_matches("listening on http://").to_owned();
    first.says("active").await?;
    answers(&one, "/active", (200, "active")).await?;
    answers(&one, "/leader", (200, &one)).await?;

    let mut second = Running::start("http_service", &etcd, &listen)?;
    let line = second.says("listening on http://").await?;
    let two = line.trim_start_matches("listening on http://").to_owned();
    answers(&two, "/leader", (200, &one)).await?;
    answers(&two, "/active", (503, "passive")).await?;
    eventually(LONG, "the second waits", async || {
        keys(&etcd)
            .await
            .is_ok_and(|keys| keys.len() == 2)
            .then_some(())
    })
    .await?;

    first.signal(rustix::process::Signal::TERM)?;
    first.says("passive: Some(Shutdown)").await?;
    first.says("resigned and gone").await?;
    first.ends_well().await?;
    answers(&two, "/active", (200, "active")).await?;
    answers(&two, "/leader", (200, &two)).await?;
    second.interrupted(&["resigned and gone"]).await?;
    assert_eq!(keys(&etcd).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn orders_to_any_node_are_taken_by_the_leader() -> Result {
    let etcd = Etcd::start().await?;
    let (mut nodes, mut addresses) = (Vec::new(), Vec::new());
    for number in 1..=3 {
        let mut node = Running::start("forward", &etcd, &[("LISTEN", "127.0.0.1:0")])?;
        let line = node.says("listening on ").await?;
        addresses.push(line.trim_start_matches("listening on ").to_owned());
        eventually(LONG, "it stands", async || {
            let keys = keys(&etcd).await.ok()?;
            (keys.len() == number).then_some(())
        })
        .await?;
        nodes.push(node);
    }
    nodes[0].says("leading, fencing token").await?;
    let taken_by = async |leader: &str, node: &str| -> Result {
        let (status, body) = ask(node, "POST", "/orders").await?;
        assert_eq!(status, 200, "{body}");
        let taken = format!("taken by {leader}, fencing token ");
        assert!(body.starts_with(&taken), "{body}");
        Ok(())
    };
    for node in &addresses {
        taken_by(&addresses[0], node).await?;
    }
    let first = nodes.remove(0);
    first.interrupted(&["no longer leading", "gone"]).await?;
    for node in &addresses[1..] {
        taken_by(&addresses[1], node).await?;
    }
    // The leader ends last, so the other node never leads.
    for node in nodes.into_iter().rev() {
        node.interrupted(&["gone"]).await?;
    }
    assert_eq!(keys(&etcd).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn follower_work_learns_the_leaders_address_and_ends_before_leading() -> Result {
    let etcd = Etcd::start().await?;
    let mut first = Running::start("follower_work", &etcd, &[])?;
    first.says("orders come here, token").await?;
    let mut second = Running::start("follower_work", &etcd, &[])?;
    let line = second.says("orders go to node-").await?;
    let leader = first.child.id().ok_or("it has ended")?;
    assert!(
        line.contains(&format!("node-{leader} at 127.0.0.1:")),
        "{line}"
    );
    first.interrupted(&["no longer leading", "gone"]).await?;
    for text in ["no longer following", "orders come here, token"] {
        second.says(text).await?;
    }
    second.interrupted(&["gone"]).await?;
    assert_eq!(keys(&etcd).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_stalled_leader_gives_way_and_leads_again_later() -> Result {
    let etcd = Etcd::start().await?;
    let mut first = Running::start("stalled_leader", &etcd, &[])?;
    first.says("piece 1").await?;
    let mut second = Running::start("stalled_leader", &etcd, &[])?;
    for text in ["hanging", "lost the term: Some(Stalled)"] {
        first.says(text).await?;
    }
    for text in ["leading, token", "piece 5", "hanging"] {
        second.says(text).await?;
    }
    first.says("leading, token").await?;
    for example in [first, second] {
        example.interrupted(&["gone"]).await?;
    }
    assert_eq!(keys(&etcd).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn scheduled_reports_continue_after_a_hand_over_without_a_gap() -> Result {
    let etcd = Etcd::start().await?;
    let mut first = Running::start("scheduled", &etcd, &[])?;
    let number = |line: String| line.rsplit(' ').next().and_then(|word| word.parse().ok());
    let wrote: Option<u64> = number(first.says("wrote").await?);
    let mut second = Running::start("scheduled", &etcd, &[])?;
    eventually(LONG, "it stands", async || {
        let keys = keys(&etcd).await.ok()?;
        let candidates = keys.iter().filter(|key| key.contains("/reports/"));
        (candidates.count() == 2).then_some(())
    })
    .await?;
    let last = number(first.says("wrote").await?);
    assert_eq!(last, wrote.map(|second| second + 2));
    first.interrupted(&["gone"]).await?;
    let next = number(second.says("wrote").await?);
    assert_eq!(next, last.map(|second| second + 2));
    second.interrupted(&["gone"]).await?;
    assert_eq!(keys(&etcd).await?, ["eldest/~schedule/reports"]);
    Ok(())
}

#[tokio::test]
async fn without_etcd_an_example_says_so_and_fails() -> Result {
    let mut etcd = Etcd::start().await?;
    etcd.kill();
    let mut example = Command::new(BUILT.join("run_a_task"));
    example.env("ETCD_ENDPOINTS", etcd.endpoint());
    let output = timeout(LONG, example.output()).await??;
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("etcd is unavailable"), "{error}");
    assert!(error.contains(&etcd.endpoint()), "{error}");
    Ok(())
}
