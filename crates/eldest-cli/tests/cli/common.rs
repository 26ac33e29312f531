//! Runs commands on an etcd, judges what they write, and sets up the elections that they show.

use std::process::Command;
use std::time::Duration;

use eldest::{Announcement, Candidate, Session, SessionOptions};
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, PutOptions};
use serde_json::Value;

use crate::schema::line;
pub(crate) use crate::shared::{Ended, Node, Result, SOON, Stage, eldest, run, words};

/// The exit codes; `--help` explains them.
pub(crate) const DONE: i32 = 0;
pub(crate) const USAGE: i32 = 2;
pub(crate) const UNAVAILABLE: i32 = 3;
pub(crate) const DENIED: i32 = 4;
pub(crate) const NOT_DONE: i32 = 5;
pub(crate) const SICK: i32 = 6;

/// Returns the command with that etcd as its endpoint.
pub(crate) fn at(etcd: &Etcd, args: &[&str]) -> Command {
    let mut command = eldest(args);
    command.env("ELDEST_ENDPOINTS", etcd.endpoint());
    command
}

/// Runs the command with these words and that etcd to its end.
pub(crate) async fn ran(etcd: &Etcd, line: &str) -> Result<Ended> {
    run(at(etcd, &words(line))).await
}

/// Runs a command that succeeds, and returns the object that it writes.
pub(crate) async fn object(etcd: &Etcd, line: &str) -> Result<Value> {
    let mut command = at(etcd, &words(line));
    command.args(["--output", "json"]);
    Ok(run(command).await?.done().json())
}

/// Runs a command that fails like this, in one line.
pub(crate) async fn fails(etcd: &Etcd, line: &str, code: i32, parts: &[&str]) -> Result {
    ran(etcd, line).await?.failed(code, parts);
    Ok(())
}

/// Returns the lines of a text in which a `#` stands for each number, and one blank for several.
pub(crate) fn plain(text: &str) -> Vec<String> {
    let plain = |line: &str| {
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut plain = words.replace(|c: char| c.is_ascii_digit(), "#");
        while plain.contains("##") {
            plain = plain.replace("##", "#");
        }
        plain
    };
    text.lines().map(plain).collect()
}

/// Asserts that the values at these places of an object are these.
#[track_caller]
pub(crate) fn has_values(object: &Value, wanted: &[(&str, Value)]) {
    for (place, wanted) in wanted {
        assert_eq!(object.pointer(place), Some(wanted), "{place}: {object}");
    }
}

impl Ended {
    /// Returns the one object that the command wrote.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        line(&self.stdout)
    }

    /// Asserts that the command failed like this, in one line, and wrote nothing else.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!((self.code, &*self.stdout), (code, ""), "{self:?}");
        let error = self.stderr.strip_prefix("error: ");
        let error = error.unwrap_or_else(|| panic!("no error line: {self:?}"));
        assert_eq!(error.trim_end().lines().count(), 1, "{self:?}");
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    /// Returns what the command wrote, which succeeded.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        &self.done().stdout
    }

    /// Asserts that the command succeeded and wrote no error.
    #[track_caller]
    pub(crate) fn done(&self) -> &Self {
        assert_eq!((self.code, self.stderr.as_str()), (DONE, ""), "{self:?}");
        self
    }
}

impl Node {
    /// Returns the object in the next line of its output.
    pub(crate) async fn json(&mut self) -> Result<Value> {
        Ok(line(&self.line().await?))
    }
}

/// A node's session, with a TTL so long that nothing expires while a test runs.
pub(crate) async fn node(etcd: &Etcd, name: &str) -> Result<Session> {
    let options = SessionOptions::new(name).ttl(Duration::from_secs(60));
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

/// Connects a session whose announcement has an address.
pub(crate) async fn placed(etcd: &Etcd, name: &str) -> Result<Session> {
    let announcement = Announcement::new(name)
        .with_address(format!("{name}:80"))
        .with_data_center("dc1")
        .with_metadata("zone", "z1");
    let options = SessionOptions::new(name)
        .ttl(Duration::from_secs(60))
        .announcement(announcement);
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

/// Joins an election; the candidate's key exists on return.
pub(crate) async fn join(session: &Session, election: &str) -> Result<Candidate> {
    Ok(session.election(election)?.campaign().await?)
}

/// Returns the identities of those in the queue of "jobs", the eldest first.
pub(crate) async fn queue(session: &Session) -> Result<Vec<String>> {
    let roster = session.election("jobs")?.roster().await?;
    let members = roster.members().iter();
    Ok(members.map(|member| member.identity().to_owned()).collect())
}

/// Waits until these are in the queue of "jobs", in this order.
pub(crate) async fn queued(session: &Session, wanted: &[&str]) -> Result {
    let is_so = async || (queue(session).await.ok()? == wanted).then_some(());
    Ok(eventually(SOON, format!("{wanted:?} stand"), is_so).await?)
}

/// Puts a key without a lease, which belongs to no session.
pub(crate) async fn put(client: &mut Client, key: &str, value: &str) -> Result {
    client.put(key, value, None::<PutOptions>).await?;
    Ok(())
}

/// Returns all keys that exist.
pub(crate) async fn keys(client: &mut Client) -> Result<Vec<String>> {
    let all = etcd_client::GetOptions::new()
        .with_all_keys()
        .with_keys_only();
    let answer = client.get("", Some(all)).await?;
    let text = |kv: &etcd_client::KeyValue| String::from_utf8_lossy(kv.key()).into_owned();
    Ok(answer.kvs().iter().map(text).collect())
}

/// Waits until only the wanted number of leases is left, so none of a command's own.
pub(crate) async fn leases(client: &mut Client, wanted: usize) -> Result {
    Ok(eventually(SOON, format!("{wanted} leases"), async || {
        let leases = client.leases().await.ok()?;
        (leases.leases().len() == wanted).then_some(())
    })
    .await?)
}
